package groups

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Empty -> PreparingRebalance -> CompletingRebalance, after the initial delay.
func TestEmptyGroupWaitsForMoreMembers(t *testing.T) {
	inBubble(t, func(o *Options) { o.InitialRebalanceDelay = 3 * time.Second }, func(t *testing.T, f *fixture) {
		first := f.Join(joining(""))
		pass(2 * time.Second)
		second := f.Join(joining(""))
		f.wantState(PreparingRebalance)
		pass(3 * time.Second) // a member came in the first three seconds
		mustWait(t, first)
		pass(time.Second)
		a, b := get(t, first), get(t, second)
		f.wantState(CompletingRebalance)
		want(t, "generations", []int32{a.Generation, b.Generation}, []int32{1, 1})
		want(t, "leaders", []string{a.LeaderID, b.LeaderID}, []string{a.MemberID, a.MemberID})
		want(t, "protocol", a.ProtocolType+" "+b.Protocol, "consumer range")
		want(t, "members shown to the follower", len(b.Members), 0)
		want(t, "members shown to the leader", a.Members, []JoinedMember{
			{MemberID: a.MemberID, Metadata: subscribe("orders")}, {MemberID: b.MemberID, Metadata: subscribe("orders")},
		})
		if !strings.HasPrefix(a.MemberID, "client-") || len(a.MemberID) != len("client-")+36 {
			t.Errorf("member id %q", a.MemberID)
		}
	})
}

func TestInitialDelayEndsWithTheRebalanceTimeout(t *testing.T) {
	inBubble(t, func(o *Options) { o.InitialRebalanceDelay = 3 * time.Second }, func(t *testing.T, f *fixture) {
		quick := func(r *JoinRequest) { r.RebalanceTimeout = 10 * time.Second }
		first := f.Join(joining("", quick))
		for range 9 {
			pass(time.Second)
			f.Join(joining("", quick))
		}
		pass(999 * time.Millisecond)
		mustWait(t, first)
		pass(time.Millisecond)
		want(t, "members", len(get(t, first).Members), 10)
	})
}

// A group that lost its members during the initial delay is Empty again.
func TestInitialDelayWithoutMembersLeft(t *testing.T) {
	inBubble(t, func(o *Options) { o.InitialRebalanceDelay = 3 * time.Second }, func(t *testing.T, f *fixture) {
		p := f.Join(joining("", static("i")))
		f.Leave("g", []LeavingMember{{InstanceID: "i"}})
		wantErr(t, "join of one who left", get(t, p).Err, kafkaproto.ErrUnknownMemberID)
		f.wantState(PreparingRebalance)
		pass(3 * time.Second)
		f.wantState(Empty)
		want(t, "groups in memory", f.inMemory(), 0)
	})
}

func TestJoinErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*JoinRequest)
		want *kafkaproto.Error
	}{
		{"empty group id", func(r *JoinRequest) { r.Group = "" }, kafkaproto.ErrInvalidGroupID},
		{"long group id", func(r *JoinRequest) { r.Group = strings.Repeat("g", maxGroupID+1) }, kafkaproto.ErrInvalidGroupID},
		{"short session", func(r *JoinRequest) { r.SessionTimeout = 5999 * time.Millisecond }, kafkaproto.ErrInvalidSessionTimeout},
		{"long session", func(r *JoinRequest) { r.SessionTimeout = 1800001 * time.Millisecond }, kafkaproto.ErrInvalidSessionTimeout},
		{"no protocol type", func(r *JoinRequest) { r.ProtocolType = "" }, kafkaproto.ErrInconsistentGroupProtocol},
		{"no protocols", func(r *JoinRequest) { r.Protocols = nil }, kafkaproto.ErrInconsistentGroupProtocol},
		{"too many protocols", func(r *JoinRequest) { r.Protocols = make([]Protocol, maxProtocols+1) }, kafkaproto.ErrInconsistentGroupProtocol},
		{"member of a missing group", func(r *JoinRequest) { r.MemberID = "m" }, kafkaproto.ErrUnknownMemberID},
		{"too much metadata", func(r *JoinRequest) { r.Protocols[0].Metadata = make([]byte, maxGroupMetadata) }, kafkaproto.ErrGroupMaxSizeReached},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				r := get(t, f.Join(joining("", tc.edit)))
				wantErr(t, "join", r.Err, tc.want)
				want(t, "generation", r.Generation, int32(-1))
				f.wantState(Dead)
				want(t, "groups in memory", f.inMemory(), 0)
			})
		})
	}
}

func TestJoinErrorsOfAGroupWithMembers(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*JoinRequest)
		want *kafkaproto.Error
	}{
		{"other protocol type", func(r *JoinRequest) { r.ProtocolType = "connect" }, kafkaproto.ErrInconsistentGroupProtocol},
		{"no common protocol", listing(Protocol{"sticky", nil}), kafkaproto.ErrInconsistentGroupProtocol},
		{"unknown member", func(r *JoinRequest) { r.MemberID = "m" }, kafkaproto.ErrUnknownMemberID},
		{"unknown instance", func(r *JoinRequest) { r.MemberID, r.InstanceID = "m", "other" }, kafkaproto.ErrUnknownMemberID},
		{"instance of another member", func(r *JoinRequest) { r.MemberID, r.InstanceID = "m", "i" }, kafkaproto.ErrFencedInstanceID},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.syncAll([]JoinResult{get(t, f.Join(joining("", static("i"))))})
				wantErr(t, "join", get(t, f.Join(joining("", tc.edit))).Err, tc.want)
				f.wantState(Stable)
			})
		})
	}
}

func requireID(r *JoinRequest) { r.RequireMemberID = true }

// KIP-394: the first answer is an id, and the group is touched by the second request only.
func TestMemberIDRequired(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		r := get(t, f.Join(joining("", requireID)))
		wantErr(t, "first join", r.Err, kafkaproto.ErrMemberIDRequired)
		f.wantState(Empty)
		joined := get(t, f.Join(joining(r.MemberID, requireID)))
		wantErr(t, "second join", joined.Err, nil)
		want(t, "member id", joined.MemberID, r.MemberID)
		// A static member needs no id, even then.
		p := f.Join(joining("", requireID, static("i")))
		mustWait(t, p)
	})
}

func TestPendingMemberExpires(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		r := get(t, f.Join(joining("", requireID)))
		pass(9999 * time.Millisecond)
		f.wantState(Empty)
		pass(time.Millisecond)
		f.wantState(Dead)
		wantErr(t, "late join", get(t, f.Join(joining(r.MemberID, requireID))).Err, kafkaproto.ErrUnknownMemberID)
		want(t, "groups in memory", f.inMemory(), 0)
	})
}

// A pending member holds a join phase open, until it joins, leaves or expires.
func TestPendingMemberHoldsJoinPhaseOpen(t *testing.T) {
	for name, end := range map[string]func(f *fixture, id string){
		"joins":   func(f *fixture, id string) { f.Join(joining(id)) },
		"leaves":  func(f *fixture, id string) { f.Leave("g", []LeavingMember{{MemberID: id}}) },
		"expires": func(*fixture, string) { pass(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				pending := get(t, f.Join(joining("", requireID)))
				first := f.Join(joining(""))
				mustWait(t, first)
				end(f, pending.MemberID)
				wantErr(t, "join", get(t, first).Err, nil)
			})
		})
	}
}

func TestPendingMembersAreBounded(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		for range maxPendingMembers {
			wantErr(t, "join", get2(f.Join(joining("", requireID))).Err, kafkaproto.ErrMemberIDRequired)
		}
		wantErr(t, "one too many", get2(f.Join(joining("", requireID))).Err, kafkaproto.ErrGroupMaxSizeReached)
		pass(10 * time.Second)
		want(t, "groups in memory", f.inMemory(), 0)
	})
}

// get2 returns an answer that is there at once.
func get2[T any](p *Pending[T]) T { return p.value }

func TestGroupMaxSize(t *testing.T) {
	inBubble(t, func(o *Options) { o.MaxSize = 2 }, func(t *testing.T, f *fixture) {
		members := f.stable(2)
		wantErr(t, "join of a full Stable group", get(t, f.Join(joining(""))).Err, kafkaproto.ErrGroupMaxSizeReached)
		f.wantState(Stable)
		// In a join phase those that have joined count.
		leader := f.Join(joining(members[0].MemberID))
		newcomer := f.Join(joining(""))
		mustWait(t, newcomer)
		late := get(t, f.Join(joining(members[1].MemberID)))
		wantErr(t, "the last to rejoin", late.Err, kafkaproto.ErrGroupMaxSizeReached)
		want(t, "members", len(get(t, leader).Members), 2)
		wantErr(t, "newcomer", get(t, newcomer).Err, nil)
		wantErr(t, "heartbeat of one turned away", f.heartbeat(members[1]), kafkaproto.ErrUnknownMemberID)
	})
}

// A static member that comes again takes its own place in a full group.
func TestStaticMemberComesAgainToAFullGroup(t *testing.T) {
	inBubble(t, func(o *Options) { o.MaxSize = 1 }, func(t *testing.T, f *fixture) {
		f.syncAll([]JoinResult{get(t, f.Join(joining("", static("i"))))})
		wantErr(t, "again", get(t, f.Join(joining("", static("i")))).Err, nil)
		wantErr(t, "another", get(t, f.Join(joining("", static("j")))).Err, kafkaproto.ErrGroupMaxSizeReached)
	})
}

func TestProtocolChoice(t *testing.T) {
	list := func(names ...string) []Protocol {
		var protocols []Protocol
		for _, n := range names {
			protocols = append(protocols, Protocol{n, []byte("as " + n)})
		}
		return protocols
	}
	for _, tc := range []struct {
		name    string
		members [][]string
		want    string
	}{
		{"one", [][]string{{"x", "y"}}, "x"},
		{"only what all list", [][]string{{"x", "y"}, {"z", "y"}}, "y"},
		{"most votes", [][]string{{"x", "y"}, {"y", "x"}, {"y", "x"}}, "y"},
		{"the leader's among equals", [][]string{{"x", "y"}, {"y", "x"}}, "x"},
		{"votes count among common ones", [][]string{{"q", "x", "y"}, {"y", "x"}, {"r", "y", "x"}}, "y"},
		{"named twice", [][]string{{"x", "x", "y"}, {"y", "y"}}, "y"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(o *Options) { o.InitialRebalanceDelay = time.Second }, func(t *testing.T, f *fixture) {
				var waiting []*Pending[JoinResult]
				for _, names := range tc.members {
					waiting = append(waiting, f.Join(joining("", listing(list(names...)...))))
				}
				pass(2 * time.Second)
				for _, p := range waiting {
					want(t, "protocol", get(t, p).Protocol, tc.want)
				}
				for _, m := range get(t, waiting[0]).Members {
					want(t, "metadata", string(m.Metadata), "as "+tc.want)
				}
			})
		})
	}
}

// Stable -> PreparingRebalance: a member joins. Members learn it by heartbeat, and the leader stays.
func TestNewMemberRebalances(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		old := f.stable(1)
		p := f.Join(joining(""))
		f.wantState(PreparingRebalance)
		mustWait(t, p)
		wantErr(t, "heartbeat", f.heartbeat(old[0]), kafkaproto.ErrRebalanceInProgress)
		results := f.rejoinAll(old, p)
		want(t, "generation", results[1].Generation, int32(2))
		want(t, "leader", results[1].LeaderID, old[0].MemberID)
		f.syncAll(results)
	})
}

// PreparingRebalance -> CompletingRebalance when time is up: who did not rejoin is out, and who did leads.
func TestRebalanceTimeout(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		old := f.stable(2)
		p := f.Join(joining(old[1].MemberID, listing(Protocol{"range", []byte("changed")})))
		f.keepAlive(59*time.Second, kafkaproto.ErrRebalanceInProgress, old[0])
		mustWait(t, p)
		pass(time.Second)
		r := get(t, p)
		want(t, "members", r.Members, []JoinedMember{{MemberID: old[1].MemberID, Metadata: []byte("changed")}})
		want(t, "leader", r.LeaderID, old[1].MemberID)
		wantErr(t, "heartbeat of the one that is out", f.heartbeat(old[0]), kafkaproto.ErrUnknownMemberID)
	})
}

func TestRejoinOfKnownMembers(t *testing.T) {
	changed := listing(Protocol{"range", subscribe("orders", "returns")})
	t.Run("follower of a Stable group, unchanged", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			m := f.stable(2)
			r := get(t, f.Join(joining(m[1].MemberID)))
			want(t, "result", r, m[1])
			f.wantState(Stable)
			want(t, "assignment", string(get(t, f.Sync(syncing(r))).Assignment), "for "+r.MemberID)
		})
	})
	t.Run("follower of a Stable group, changed", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			m := f.stable(2)
			p := f.Join(joining(m[1].MemberID, changed))
			mustWait(t, p)
			f.wantState(PreparingRebalance)
		})
	})
	t.Run("leader of a Stable group, unchanged", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			m := f.stable(2)
			p := f.Join(joining(m[0].MemberID))
			mustWait(t, p)
			f.wantState(PreparingRebalance)
		})
	})
	t.Run("while completing, unchanged", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			first := get(t, f.Join(joining("")))
			f.wantState(CompletingRebalance)
			want(t, "leader's result", get(t, f.Join(joining(first.MemberID))), first)
			f.wantState(CompletingRebalance)
		})
	})
	t.Run("while completing, changed", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			first := get(t, f.Join(joining("")))
			again := get(t, f.Join(joining(first.MemberID, changed)))
			want(t, "generation", again.Generation, int32(2))
		})
	})
	t.Run("while preparing, twice", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			m := f.stable(2)
			given := f.Join(joining(m[0].MemberID))
			p := f.Join(joining(m[0].MemberID, changed))
			wantErr(t, "the one given up", get(t, given).Err, kafkaproto.ErrRebalanceInProgress)
			mustWait(t, p)
			f.Join(joining(m[1].MemberID))
			want(t, "leader's new metadata", get(t, p).Members[0].Metadata, subscribe("orders", "returns"))
		})
	})
}

// A new member that waits is taken for gone after five minutes.
func TestNewMemberDoesNotWaitForEver(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		slow := func(r *JoinRequest) { r.RebalanceTimeout = time.Hour }
		old := f.stable(1, slow)
		p := f.Join(joining("", slow))
		f.keepAlive(newMemberTimeout-time.Second, kafkaproto.ErrRebalanceInProgress, old[0])
		mustWait(t, p)
		f.keepAlive(time.Second, kafkaproto.ErrRebalanceInProgress, old[0])
		wantErr(t, "join", get(t, p).Err, kafkaproto.ErrUnknownMemberID)
		f.wantState(PreparingRebalance)
	})
}

// A member of before that waits is not: its session starts again with the answer.
func TestWaitingMemberDoesNotExpire(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		p := f.Join(joining(m[0].MemberID))
		f.keepAlive(30*time.Second, kafkaproto.ErrRebalanceInProgress, m[1])
		mustWait(t, p)
		f.Join(joining(m[1].MemberID))
		wantErr(t, "join", get(t, p).Err, nil)
		pass(10 * time.Second)
		f.wantState(Empty) // nobody sent anything since
	})
}

func TestThousandMembersJoinInOneRebalance(t *testing.T) {
	inBubble(t, func(o *Options) { o.InitialRebalanceDelay = 3 * time.Second }, func(t *testing.T, f *fixture) {
		const n = 1000
		waiting := make([]*Pending[JoinResult], n)
		for i := range waiting {
			waiting[i] = f.Join(joining("", static(fmt.Sprint(i))))
		}
		pass(6 * time.Second)
		results := make([]JoinResult, n)
		for i, p := range waiting {
			results[i] = get2(p)
			want(t, "generation", results[i].Generation, int32(1))
		}
		want(t, "members", len(results[0].Members), n)
		for i := range results {
			var assignments []Assignment
			if i == 0 {
				assignments = assignAll(results[0])
			}
			f.Sync(syncing(results[i], assignments...))
		}
		f.wantState(Stable)
		want(t, "commits", f.rows.commits, 1)
		pass(10 * time.Second) // none of them sends heartbeats
		f.wantState(Empty)
	})
}

func TestLongNamesFitOldStrings(t *testing.T) {
	id := newMemberID(strings.Repeat("é", math.MaxInt16/2))
	if len(id) > maxMemberName+37 || strings.ToValidUTF8(id, "?") != id {
		t.Errorf("member id of %d bytes", len(id))
	}
}

// Group ids that nobody uses leave no memory behind.
func TestGroupsWithoutMembersAreOnlyRows(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		for i := range 1000 {
			r := commit(nobody, 5)
			r.Group = fmt.Sprint("one-shot-", i)
			f.mustCommit(r)
		}
		want(t, "groups in memory", f.inMemory(), 0)
		all, err := f.List()
		want(t, "list error", err, error(nil))
		want(t, "groups", len(all), 1000)
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		join := f.Join(joining(m[0].MemberID))
		f.Drain()
		wantErr(t, "join that waits", get(t, join).Err, kafkaproto.ErrNotCoordinator)
		wantErr(t, "later join", get(t, f.Join(joining(m[1].MemberID))).Err, kafkaproto.ErrNotCoordinator)
		wantErr(t, "heartbeat", f.heartbeat(m[0]), kafkaproto.ErrRebalanceInProgress)
		f.mustCommit(commit(m[0], 7))
		f.Close()
		wantErr(t, "heartbeat after close", f.heartbeat(m[0]), kafkaproto.ErrCoordinatorNotAvailable)
		wantErr(t, "commit after close", get(t, f.Commit(commit(m[0], 8)))[0], kafkaproto.ErrCoordinatorNotAvailable)
	})
}

func TestDrainAnswersSyncs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		results := f.rejoinAll(m, f.Join(joining("")))
		sync := f.Sync(syncing(results[1]))
		mustWait(t, sync)
		f.Drain()
		wantErr(t, "sync that waits", get(t, sync).Err, kafkaproto.ErrNotCoordinator)
		wantErr(t, "later sync", get(t, f.Sync(syncing(results[0]))).Err, kafkaproto.ErrNotCoordinator)
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.stable(1)
		p := f.Join(joining(""))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := p.Wait(ctx)
		want(t, "error", err, ctx.Err())
		synctest.Wait()
		f.wantState(PreparingRebalance)
	})
}
