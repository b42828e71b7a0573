package groups

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// The members of a Stable group go on as if nothing had happened, with fresh sessions.
func TestRestartStable(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(3)
		f.mustCommit(commit(m[0], 2))
		pass(9 * time.Second)
		f.restart()
		pass(9 * time.Second)
		for _, r := range m {
			wantErr(t, "heartbeat", f.heartbeat(r), nil)
		}
		f.mustCommit(commit(m[0], 3))
		want(t, "assignment", string(get(t, f.Sync(syncing(m[1]))).Assignment), "for "+m[1].MemberID)
		rejoined := get(t, f.Join(joining(m[2].MemberID)))
		want(t, "a follower rejoins", rejoined, m[2])
		want(t, "members, by the metric", metricValue(t, f.m.members), 3.0)
		want(t, "stable groups, by the metric", metricValue(t, f.m.groups[Stable]), 1.0)
		pass(10 * time.Second)
		f.wantState(Empty)
	})
}

func TestRestartStableWhoseMembersAreGone(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		f.restart()
		pass(9999 * time.Millisecond)
		f.wantState(Stable)
		wantErr(t, "heartbeat", f.heartbeat(m[1]), nil)
		pass(time.Millisecond)
		f.wantState(PreparingRebalance)
		want(t, "leader", f.rejoinAll(m[1:], nil)[0].LeaderID, m[1].MemberID)
	})
}

// A join phase is forgotten: members of before are members of a Stable group, and who was to join joins again.
func TestRestartPreparing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		f.Join(joining(""))
		f.Join(joining(m[0].MemberID))
		f.wantState(PreparingRebalance)
		f.restart()
		f.wantState(Stable)
		for _, r := range m {
			wantErr(t, "heartbeat", f.heartbeat(r), nil)
		}
		f.syncAll(f.rejoinAll(m, f.Join(joining(""))))
	})
}

// Of a join phase that was complete nobody knows: the generation is the one before.
func TestRestartCompleting(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		results := f.rejoinAll(m, f.Join(joining("")))
		f.restart()
		wantErr(t, "heartbeat of the old member", f.heartbeat(results[0]), kafkaproto.ErrIllegalGeneration)
		wantErr(t, "heartbeat of the new member", f.heartbeat(results[1]), kafkaproto.ErrUnknownMemberID)
		wantErr(t, "sync", get(t, f.Sync(syncing(results[0]))).Err, kafkaproto.ErrIllegalGeneration)
		f.syncAll(f.rejoinAll(results[:1], f.Join(joining(""))))
	})
}

func TestRestartFirstRebalance(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := get(t, f.Join(joining("")))
		f.restart()
		f.wantState(Dead)
		wantErr(t, "sync", get(t, f.Sync(syncing(m))).Err, kafkaproto.ErrUnknownMemberID)
		want(t, "rows", f.rows.keys(), []string(nil))
	})
}

func TestRestartEmpty(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.mustCommit(commit(m[0], 4))
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		f.wantState(Empty)
		f.restart()
		f.wantState(Empty)
		want(t, "committed", f.committed(), int64(4))
		want(t, "empty groups, by the metric", metricValue(t, f.m.groups[Empty]), 1.0)
		want(t, "groups in memory", f.inMemory(), 0)
		want(t, "generation", f.stable(1)[0].Generation, int32(3))
	})
}

// A group that is larger than a new limit allows shrinks by a rebalance.
func TestRestartWithALowerLimit(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(3)
		f.opts.MaxSize = 2
		f.restart()
		f.wantState(PreparingRebalance)
		first, second := f.Join(joining(m[0].MemberID)), f.Join(joining(m[1].MemberID))
		wantErr(t, "third", get(t, f.Join(joining(m[2].MemberID))).Err, kafkaproto.ErrGroupMaxSizeReached)
		f.syncAll([]JoinResult{get(t, first), get(t, second)})
	})
}

// A row that makes no sense makes its group unusable, and nothing else.
func TestUnreadableGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		f.mustCommit(commit(m[0], 5))
		f.rows.rows["group/bad"] = "\x03 of a newer release"
		f.rows.rows["group/worse"] = "\x02 cut short"
		f.restart()
		want(t, "failures, by the metric", metricValue(t, f.m.loadFails), 2.0)
		wantErr(t, "heartbeat in the good group", f.heartbeat(m[0]), nil)
		f.mustCommit(commit(m[0], 6))
		for _, name := range []string{"bad", "worse"} {
			r := commit(nobody, 1)
			r.Group = name
			wantErr(t, "commit", get(t, f.Commit(r))[0], kafkaproto.ErrUnknownServerError)
			join := get(t, f.Join(joining("", func(r *JoinRequest) { r.Group = name })))
			wantErr(t, "join", join.Err, kafkaproto.ErrUnknownServerError)
		}
		all, err := f.List()
		want(t, "error", err, nil)
		want(t, "groups", all, []Listing{{"g", consumerProtocol, Stable}})
		want(t, "clean-up", f.Clean(t.Context()), nil)
		want(t, "row", f.rows.rows["group/bad"], "\x03 of a newer release")
		want(t, "stable groups, by the metric", metricValue(t, f.m.groups[Stable]), 1.0)
	})
}

// An unreadable group can be deleted, with all that is stored of it, and made anew.
func TestUnreadableGroupCanBeDeleted(t *testing.T) {
	for name, row := range map[string]string{"newer": "\x03 of a newer release", "classic": "\x01 cut short", "consumer": "\x02 cut short", "empty": ""} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				m := f.stable(1)
				f.mustCommit(commit(m[0], 5))
				f.rows.rows["group/g"] = row
				f.rows.rows["group-member/g/m"] = "of a consumer group"
				f.restart()
				wantErr(t, "join", get(t, f.Join(joining(""))).Err, kafkaproto.ErrUnknownServerError)
				f.rows.set(kafkaproto.ErrNotCoordinator, 0)
				wantErr(t, "deletion that fails", get(t, f.DeleteGroup("g")), kafkaproto.ErrNotCoordinator)
				wantErr(t, "join", get(t, f.Join(joining(""))).Err, kafkaproto.ErrUnknownServerError)
				f.rows.set(nil, time.Second)
				deleted, joined := f.DeleteGroup("g"), f.Join(joining(""))
				pass(time.Second)
				wantErr(t, "delete", get(t, deleted), nil)
				wantErr(t, "join behind the deletion", get(t, joined).Err, nil)
				want(t, "rows", f.rows.keys(), []string(nil))
				wantErr(t, "delete again", get(t, f.DeleteGroup("g")), kafkaproto.ErrNonEmptyGroup)
				f.rows.set(nil, 0)
				f.syncAll([]JoinResult{get(t, joined)})
				f.restart()
				f.wantState(Stable)
			})
		})
	}
}

// The storage's own failures stop the start: they are not about one group.
func TestStartFailsWithTheStorage(t *testing.T) {
	rows := brokenStorage{newMemory()}
	rows.rows["group/g"] = string((&groupRow{}).encode())
	if _, err := New(context.Background(), Options{}, rows, &topicTable{}); !errors.Is(err, errStorage) {
		t.Errorf("error %v", err)
	}
}

var errStorage = errors.New("the storage fails")

type brokenStorage struct{ *memory }

func (brokenStorage) Scan([]byte, func(key, value []byte) error) error { return errStorage }

func TestOptions(t *testing.T) {
	o := Options{MinSessionTimeout: time.Minute, MaxSessionTimeout: time.Second, MaxSize: -1, MaxOffsetMetadata: -1, OffsetRetention: -1, CleanInterval: -1, CommitTimeout: -1}
	o.EnsureDefaults()
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	if n := len(err.(interface{ Unwrap() []error }).Unwrap()); n != 6 {
		t.Errorf("%d errors: %v", n, err)
	}
	o = Options{}
	o.EnsureDefaults()
	want(t, "defaults", o.Validate(), error(nil))
	if _, err := New(context.Background(), Options{MaxSize: -1}, newMemory(), &topicTable{}); err == nil {
		t.Error("no error for bad options")
	}
}

// After a restart the offsets of topics that members read by an expression are neither deleted nor expire, even if no
// member has been heard of yet.
func TestRestartKeepsOffsetsReadByRegex(t *testing.T) {
	inBubble(t, func(o *Options) { o.OffsetRetention, o.CleanInterval = time.Hour, 24*time.Hour }, func(t *testing.T, f *fixture) {
		a := f.consumer("a", matching("ord.*"))
		wantErr(t, "join", a.join().Err, nil)
		f.settle(a)
		f.mustCommit(&CommitRequest{Group: "g", MemberID: "a", Generation: a.epoch, GroupIDNotFound: true, Offsets: []OffsetCommit{
			{Topic: "orders", TopicID: [16]byte{1}, Offset: 5}, {Topic: "dir/stream", TopicID: [16]byte{2}, Offset: 6},
		}})
		for range 150 {
			pass(30 * time.Second)
			a.keepAlive()
		}
		f.restart()
		want(t, "clean-up", f.Clean(t.Context()), nil)
		want(t, "committed", f.committed(), int64(5))
		for _, topic := range []string{"orders", "dir/stream"} {
			deleted := get(t, f.DeleteOffsets("g", []Partition{{topic, 0}}))
			wantErr(t, "delete "+topic, deleted.Errs[0], kafkaproto.ErrGroupSubscribedToTopic)
		}
		f.settle(a)
		wantErr(t, "delete what is not read", get(t, f.DeleteOffsets("g", []Partition{{"dir/stream", 0}})).Errs[0], nil)
		wantErr(t, "delete what is read", get(t, f.DeleteOffsets("g", []Partition{{"orders", 0}})).Errs[0], kafkaproto.ErrGroupSubscribedToTopic)
	})
}
