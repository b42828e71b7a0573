package groups

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

func TestCommitRules(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		commitErr := func(r *CommitRequest) *kafkaproto.Error {
			t.Helper()
			return get(t, f.Commit(r))[0]
		}
		stale := commit(JoinResult{MemberID: "m", Generation: 1}, 1)
		wantErr(t, "member of a missing group", commitErr(stale), kafkaproto.ErrIllegalGeneration)
		stale.GroupIDNotFound = true
		wantErr(t, "member of a missing group, v9", commitErr(stale), kafkaproto.ErrGroupIDNotFound)
		f.wantState(Dead)
		wantErr(t, "simple consumer makes the group", commitErr(commit(nobody, 2)), nil)
		f.wantState(Empty)
		wantErr(t, "member of an empty group", commitErr(stale), kafkaproto.ErrUnknownMemberID)

		m := get(t, f.Join(joining("", static("i"))))
		wantErr(t, "while completing", commitErr(commit(m, 3)), kafkaproto.ErrRebalanceInProgress)
		f.syncAll([]JoinResult{m})
		wantErr(t, "member of a stable group", commitErr(commit(m, 4)), nil)
		wantErr(t, "simple consumer of a group with members", commitErr(commit(nobody, 5)), kafkaproto.ErrUnknownMemberID)
		wantErr(t, "member without generation", commitErr(commit(JoinResult{MemberID: m.MemberID, Generation: -1}, 5)), kafkaproto.ErrIllegalGeneration)
		wantErr(t, "old generation", commitErr(commit(JoinResult{MemberID: m.MemberID, Generation: 0}, 5)), kafkaproto.ErrIllegalGeneration)
		wantErr(t, "unknown member", commitErr(commit(JoinResult{MemberID: "m", Generation: 1}, 5)), kafkaproto.ErrUnknownMemberID)
		fenced := commit(JoinResult{MemberID: "m", Generation: 1}, 5)
		fenced.InstanceID = "i"
		wantErr(t, "fenced", commitErr(fenced), kafkaproto.ErrFencedInstanceID)
		want(t, "committed", f.committed(), int64(4))
		f.Join(joining(""))
		wantErr(t, "while preparing", commitErr(commit(m, 6)), nil)
		want(t, "committed", f.committed(), int64(6))

		long := commit(nobody, 7)
		long.Group = strings.Repeat("g", maxGroupID+1)
		wantErr(t, "long group id", commitErr(long), kafkaproto.ErrInvalidGroupID)
		anonymous := commit(nobody, 7)
		anonymous.Group = ""
		wantErr(t, "empty group id", commitErr(anonymous), nil)
	})
}

// A commit is a sign of life.
func TestCommitKeepsTheSession(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		for i := range 4 {
			pass(9 * time.Second)
			f.mustCommit(commit(m[0], int64(i)))
		}
		f.wantState(Stable)
	})
}

// A request without partitions is answered, and makes nothing.
func TestCommitOfNothing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		want(t, "errors", len(get(t, f.Commit(&CommitRequest{Group: "g", Generation: -1}))), 0)
		want(t, "errors", len(get(t, f.Commit(&CommitRequest{Group: "g", MemberID: "m", Generation: 3}))), 0)
		f.wantState(Dead)
		want(t, "rows", f.rows.keys(), []string(nil))

		m := f.stable(1)
		written := f.rows.commits
		want(t, "errors of a member", len(get(t, f.Commit(&CommitRequest{Group: "g", MemberID: m[0].MemberID, Generation: m[0].Generation}))), 0)
		want(t, "writes", f.rows.commits, written)
		f.wantState(Stable)
	})
}

func TestCommitMetadataTooLong(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		r := commit(nobody, 1)
		r.Offsets = append(r.Offsets, r.Offsets[0], r.Offsets[0], r.Offsets[0])
		for i, metadata := range []string{strings.Repeat("é", 4096), strings.Repeat("a", 4097), strings.Repeat("😀", 2048), strings.Repeat("😀", 2049)} {
			r.Offsets[i].Partition, r.Offsets[i].Metadata = int32(i), metadata
		}
		errs := get(t, f.Commit(r))
		for i, expected := range []*kafkaproto.Error{nil, kafkaproto.ErrOffsetMetadataTooLarge, nil, kafkaproto.ErrOffsetMetadataTooLarge} {
			wantErr(t, fmt.Sprint("partition ", i), errs[i], expected)
		}
		o, ok, err := f.Committed("g", "orders", [16]byte{1}, 0)
		if !ok || err != nil || o != (CommittedOffset{1, -1, strings.Repeat("é", 4096)}) {
			t.Errorf("committed %v %v %v", o, ok, err)
		}
		if _, ok, _ := f.Committed("g", "orders", [16]byte{1}, 1); ok {
			t.Error("a refused offset was committed")
		}
		refused := commit(nobody, 1)
		refused.Group, refused.Offsets[0].Metadata = "h", strings.Repeat("a", 4097)
		wantErr(t, "alone", get(t, f.Commit(refused))[0], kafkaproto.ErrOffsetMetadataTooLarge)
	})
}

func TestCommitWaitsForTheStorage(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.rows.set(nil, time.Second)
		p := f.Commit(commit(nobody, 1))
		mustWait(t, p)
		want(t, "committed", f.committed(), int64(-1))
		pass(time.Second)
		wantErr(t, "commit", get(t, p)[0], nil)

		f.rows.set(nil, time.Hour)
		p = f.Commit(commit(nobody, 2))
		pass(5 * time.Second)
		wantErr(t, "commit that takes too long", get(t, p)[0], kafkaproto.ErrCoordinatorNotAvailable)
		f.rows.set(kafkaproto.ErrNotCoordinator, 0)
		wantErr(t, "commit that fails", get(t, f.Commit(commit(nobody, 3)))[0], kafkaproto.ErrNotCoordinator)
		want(t, "committed", f.committed(), int64(1))
	})
}

// Commits that were accepted one after the other are written in that order, also when the storage is slow and the second
// comes after a rebalance: the offset of the new owner must not be overwritten with that of the old one. What waits is
// written at once.
func TestCommitsKeepTheirOrder(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.rows.set(nil, time.Second)
		before := f.rows.commits
		var waiting []*Pending[[]*kafkaproto.Error]
		for i := range 100 {
			waiting = append(waiting, f.Commit(commit(m[0], int64(i))))
		}
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		f.wantState(Empty)
		waiting = append(waiting, f.Commit(commit(nobody, 1000)))
		pass(3 * time.Second)
		for _, p := range waiting {
			wantErr(t, "commit", get(t, p)[0], nil)
		}
		want(t, "committed", f.committed(), int64(1000))
		want(t, "calls of the storage", f.rows.commits-before, 2)
	})
}

// A group whose first commit failed does not exist.
func TestFirstCommitFails(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.rows.set(kafkaproto.ErrCoordinatorNotAvailable, 0)
		wantErr(t, "commit", get(t, f.Commit(commit(nobody, 1)))[0], kafkaproto.ErrCoordinatorNotAvailable)
		f.wantState(Dead)
		f.rows.set(nil, 0)
		f.mustCommit(commit(nobody, 2))
		f.wantState(Empty)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/0", "group/g"})
	})
}

func TestAllCommitted(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.topics.set("returns", 3)
		for i, o := range []OffsetCommit{
			{Topic: "orders", TopicID: [16]byte{1}, Partition: 10, Offset: 1, LeaderEpoch: 4, Metadata: "m"},
			{Topic: "orders", TopicID: [16]byte{1}, Partition: 2, Offset: 2},
			{Topic: "returns", TopicID: [16]byte{9}, Offset: 3}, // of an earlier topic of that name
			{Topic: "gone", TopicID: [16]byte{8}, Offset: 4},
			{Topic: "dir/stream", TopicID: [16]byte{2}, Offset: 5},
		} {
			r := &CommitRequest{Group: "g", Generation: -1, Offsets: []OffsetCommit{o}}
			if i == 0 {
				r.Group = "g/h" // another group
				f.mustCommit(r)
				r.Group = "g"
			}
			f.mustCommit(r)
		}
		var all []string
		err := f.AllCommitted("g", func(topic string, id [16]byte, partition int32, o CommittedOffset) {
			all = append(all, fmt.Sprint(topic, id[0], partition, o))
		})
		want(t, "error", err, error(nil))
		want(t, "all", all, []string{"dir/stream2 0 {5 0 }", "orders1 10 {1 4 m}", "orders1 2 {2 0 }"})
	})
}

// A topic that is made again has no commits, and no error says so.
func TestTopicMadeAgain(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 1000))
		f.topics.set("orders", 7)
		want(t, "committed", f.committed(), int64(-1))
		f.mustCommit(&CommitRequest{Group: "g", Generation: -1, Offsets: []OffsetCommit{{Topic: "orders", TopicID: [16]byte{7}, Offset: 5}}})
		want(t, "committed", f.committed(), int64(5))
	})
}

func TestCleanRemovesOffsetsOfDeletedTopics(t *testing.T) {
	for name, id := range map[string]byte{"deleted": 0, "made again": 7} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				m := f.stable(1)
				f.mustCommit(commit(m[0], 1))
				f.topics.set("orders", id)
				f.clean()
				want(t, "rows", f.rows.keys(), []string{"group/g"})
				f.wantState(Stable)
			})
		})
	}
}

// When topics are deleted their offsets are removed at once, not at the next pass, and so are those of topics that were
// deleted just before the coordinator ended.
func TestOffsetsGoWithTheirTopics(t *testing.T) {
	for name, tell := range map[string]func(*fixture){
		"told":    func(f *fixture) { f.TopicsDeleted() },
		"restart": func(f *fixture) { f.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				m := f.stable(1)
				f.mustCommit(commit(m[0], 1))
				for _, group := range []string{"both", "only orders", "with/slash", "only the stream"} {
					for topic, id := range f.topics.ids {
						if group == "only orders" && topic != "orders" || group == "only the stream" && topic == "orders" {
							continue
						}
						f.mustCommit(&CommitRequest{Group: group, Generation: -1, Offsets: []OffsetCommit{{Topic: topic, TopicID: [16]byte{id}, Offset: 1}}})
					}
				}
				f.rows.rows["group-offset/bad%/orders/0"] = "neither the key"
				f.rows.rows["group-offset/unreadable/orders/0"] = "nor the value makes sense"
				f.topics.set("orders", 7) // deleted and made again
				tell(f)
				synctest.Wait()
				want(t, "rows", f.rows.keys(), []string{
					"group-offset/bad%/orders/0", "group-offset/both/dir%2Fstream/0", "group-offset/only the stream/dir%2Fstream/0",
					"group-offset/unreadable/orders/0", "group-offset/with%2Fslash/dir%2Fstream/0",
					"group/both", "group/g", "group/only the stream", "group/with/slash",
				})
				wantErr(t, "heartbeat", f.heartbeat(m[0]), nil)
				want(t, "groups in memory", f.inMemory(), 1)
				want(t, "offsets removed, by the metric", metricValue(t, f.m.expiredOffsets), 4.0)
			})
		})
	}
}

// Whoever deletes one topic after the other does not keep the coordinator reading all offsets all the time.
func TestCleanerRestsBetweenDeletions(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 1))
		f.rows.setScanTime(time.Second)
		for range 100 {
			f.TopicsDeleted()
			pass(time.Second)
		}
		pass(time.Minute)
		if n := f.rows.scansOf(offsetPrefix); n < 10 || n > 13 {
			t.Errorf("the offsets were read %d times in 100 s, each time for 1 s; want a tenth of the time", n)
		}
		f.topics.set("orders", 0)
		f.TopicsDeleted()
		pass(5 * time.Second)
		want(t, "rows", f.rows.keys(), []string(nil))
	})
}

// A member that has its id and is about to join finds its group, unless that was deleted by request.
func TestPendingMemberOfAnEmptyGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		first, second := get(t, f.Join(joining("", requireID))), get(t, f.Join(joining("", requireID)))
		f.clean()
		f.wantState(Empty)
		wantErr(t, "delete", get(t, f.DeleteGroup("g")), nil)
		want(t, "pending members, by the metric", metricValue(t, f.m.pendingMembers), 0.0)
		want(t, "groups in memory", f.inMemory(), 0)
		for _, r := range []JoinResult{first, second} {
			wantErr(t, "join", get(t, f.Join(joining(r.MemberID, requireID))).Err, kafkaproto.ErrUnknownMemberID)
		}
	})
}

func (f *fixture) clean() {
	f.t.Helper()
	if err := f.Clean(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

const week = 7 * 24 * time.Hour

// A simple consumer's offset lives for a week after its commit, a commit renews it, and the group goes with its last
// offset. The cleaner runs by itself.
func TestOffsetsOfSimpleConsumersExpire(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 1))
		pass(week - time.Minute)
		f.mustCommit(commit(nobody, 2))
		other := commit(nobody, 3)
		other.Group, other.Offsets[0].Partition = "h", 1
		f.mustCommit(other)
		pass(week - time.Minute)
		want(t, "committed", f.committed(), int64(2))
		pass(11 * time.Minute)
		want(t, "committed", f.committed(), int64(-1))
		want(t, "rows", f.rows.keys(), []string(nil))
		f.wantState(Dead)
		want(t, "groups in memory", f.inMemory(), 0)
	})
}

// The clock of a group that had members starts when the last has left, whenever the commits were.
func TestOffsetsOfEmptyGroupsExpire(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.mustCommit(commit(m[0], 1))
		for range 8 * 24 {
			f.keepAlive(10*time.Second, nil, m[0])
			pass(8 * time.Second)
		}
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		f.restart()
		pass(week - time.Minute)
		f.clean()
		want(t, "committed", f.committed(), int64(1))
		pass(time.Minute)
		f.clean()
		want(t, "rows", f.rows.keys(), []string(nil))
		f.wantState(Dead)
	})
}

// Nothing expires in a rebalance (KAFKA-13636), nor what members read; what consumers have stopped to read does.
func TestOffsetsOfLiveGroups(t *testing.T) {
	f := func(t *testing.T, protocolType string, rebalance bool, left ...string) {
		inBubble(t, func(o *Options) { o.OffsetRetention = 5 * time.Second }, func(t *testing.T, f *fixture) {
			m := f.stable(1, func(r *JoinRequest) { r.ProtocolType = protocolType })
			f.topics.set("unread", 3)
			r := commit(m[0], 1)
			r.Offsets = append(r.Offsets, OffsetCommit{Topic: "unread", TopicID: [16]byte{3}})
			f.mustCommit(r)
			f.keepAlive(6*time.Second, nil, m[0])
			if rebalance {
				f.Join(joining("", func(r *JoinRequest) { r.ProtocolType = protocolType }))
				f.wantState(PreparingRebalance)
			}
			f.clean()
			keys := slices.DeleteFunc(f.rows.keys(), func(k string) bool { return k == "group/g" })
			want(t, "offsets", keys, left)
			want(t, "expired, by the metric", metricValue(t, f.m.expiredOffsets), float64(2-len(left)))
		})
	}
	orders, unread := "group-offset/g/orders/0", "group-offset/g/unread/0"
	t.Run("stable consumers", func(t *testing.T) { f(t, consumerProtocol, false, orders) })
	t.Run("rebalance", func(t *testing.T) { f(t, consumerProtocol, true, orders, unread) })
	t.Run("stable, not consumers", func(t *testing.T) { f(t, "connect", false, orders, unread) })
}

// A commit that is queued when the pass looks is not taken for the old one that it replaces.
func TestCommitDuringClean(t *testing.T) {
	inBubble(t, func(o *Options) { o.OffsetRetention = time.Minute }, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 1))
		pass(time.Minute)
		f.rows.set(nil, time.Second)
		before := f.Commit(commit(nobody, 2))
		done := make(chan error)
		go func() { done <- f.Clean(t.Context()) }()
		pass(0)
		after := f.Commit(commit(nobody, 3))
		want(t, "clean", <-done, error(nil))
		wantErr(t, "commit before", get(t, before)[0], nil)
		pass(time.Second)
		wantErr(t, "commit after", get(t, after)[0], nil)
		want(t, "committed", f.committed(), int64(3))
		f.wantState(Empty)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/0", "group/g"})
	})
}

// A group that somebody has come for is not removed, though its offsets are gone.
func TestCommitBehindClean(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.mustCommit(commit(nobody, 1))
		f.rows.set(nil, time.Second)
		f.DeleteOffsets("g", []Partition{{"orders", 0}})
		done := make(chan error)
		go func() { done <- f.Clean(t.Context()) }()
		pass(0)
		after := f.Commit(commit(nobody, 3))
		want(t, "clean", <-done, error(nil))
		pass(2 * time.Second)
		wantErr(t, "commit", get(t, after)[0], nil)
		f.wantState(Empty)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/0", "group/g"})
	})
}

// A group with neither members nor offsets goes at the next pass; one whose removal fails stays.
func TestCleanRemovesEmptyGroups(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		f.wantState(Empty)
		f.rows.set(kafkaproto.ErrCoordinatorNotAvailable, 0)
		f.clean()
		f.wantState(Empty)
		want(t, "empty groups, by the metric", metricValue(t, f.m.groups[Empty]), 1.0)
		f.rows.set(nil, 0)
		f.clean()
		f.wantState(Dead)
		want(t, "rows", f.rows.keys(), []string(nil))
		want(t, "empty groups, by the metric", metricValue(t, f.m.groups[Empty]), 0.0)
	})
}

// The row that says that a group has no members any more is written in the end, and the group is not forgotten before.
func TestLastMemberGoesUnsaved(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.mustCommit(commit(m[0], 1))
		f.rows.set(kafkaproto.ErrCoordinatorNotAvailable, 0)
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		f.wantState(Empty)
		f.rows.set(nil, 0)
		f.wantState(Empty)
		f.clean()
		want(t, "groups in memory", f.inMemory(), 0)
		f.restart()
		f.wantState(Empty)
	})
}

func TestCleanManyGroups(t *testing.T) {
	inBubble(t, func(o *Options) { o.OffsetRetention = time.Minute }, func(t *testing.T, f *fixture) {
		for i := range 1000 {
			r := commit(nobody, 1)
			r.Group = fmt.Sprint(i)
			f.mustCommit(r)
		}
		want(t, "groups in memory", f.inMemory(), 0)
		pass(time.Minute)
		f.rows.set(nil, time.Second)
		began := time.Now()
		f.clean()
		want(t, "rows", f.rows.keys(), []string(nil))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the pass took %s", took)
		}
	})
}

// A commit to a group that has been empty for long stays as long as any other, whatever protocol its members had.
func TestLateCommitStays(t *testing.T) {
	inBubble(t, func(o *Options) { o.OffsetRetention, o.CleanInterval = time.Hour, time.Minute }, func(t *testing.T, f *fixture) {
		f.settled("a")[0].leave()
		pass(59 * time.Minute)
		f.mustCommit(commit(nobody, 5))
		pass(59 * time.Minute)
		want(t, "committed", f.committed(), int64(5))
		pass(3 * time.Minute)
		want(t, "committed", f.committed(), int64(-1))
	})
}
