package groups

import (
	"errors"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// CompletingRebalance -> Stable: all get what the leader assigned, whoever asks first.
func TestSync(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(1)
		results := f.rejoinAll(m, f.Join(joining("")))
		follower := f.Sync(syncing(results[1]))
		mustWait(t, follower)
		f.wantState(CompletingRebalance)
		leader := f.Sync(syncing(results[0],
			Assignment{results[0].MemberID, []byte("a")}, Assignment{results[1].MemberID, []byte("b")}, Assignment{"nobody", []byte("c")}))
		want(t, "leader", get(t, leader), SyncResult{ProtocolType: "consumer", Protocol: "range", Assignment: []byte("a")})
		want(t, "follower", get(t, follower), SyncResult{ProtocolType: "consumer", Protocol: "range", Assignment: []byte("b")})
		f.wantState(Stable)
		want(t, "again", string(get(t, f.Sync(syncing(results[1]))).Assignment), "b")
	})
}

func TestMembersThatTheLeaderLeavesOutGetNothing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := get(t, f.Join(joining("")))
		r := get(t, f.Sync(syncing(m)))
		wantErr(t, "sync", r.Err, nil)
		want(t, "assignment", len(r.Assignment), 0)
		f.wantState(Stable)
	})
}

func TestSyncErrors(t *testing.T) {
	other := "other"
	for _, tc := range []struct {
		name string
		edit func(*SyncRequest)
		want *kafkaproto.Error
	}{
		{"empty group id", func(r *SyncRequest) { r.Group = "" }, kafkaproto.ErrInvalidGroupID},
		{"missing group", func(r *SyncRequest) { r.Group = "h" }, kafkaproto.ErrUnknownMemberID},
		{"unknown member", func(r *SyncRequest) { r.MemberID = "m" }, kafkaproto.ErrUnknownMemberID},
		{"unknown instance", func(r *SyncRequest) { r.InstanceID = "j" }, kafkaproto.ErrUnknownMemberID},
		{"fenced instance", func(r *SyncRequest) { r.MemberID, r.InstanceID = "m", "i" }, kafkaproto.ErrFencedInstanceID},
		{"old generation", func(r *SyncRequest) { r.Generation-- }, kafkaproto.ErrIllegalGeneration},
		{"later generation", func(r *SyncRequest) { r.Generation++ }, kafkaproto.ErrIllegalGeneration},
		{"other protocol", func(r *SyncRequest) { r.Protocol = &other }, kafkaproto.ErrInconsistentGroupProtocol},
		{"other protocol type", func(r *SyncRequest) { r.ProtocolType = &other }, kafkaproto.ErrInconsistentGroupProtocol},
		{"protocol not given", func(r *SyncRequest) { r.Protocol, r.ProtocolType = nil, nil }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				r := syncing(get(t, f.Join(joining("", static("i")))))
				tc.edit(r)
				wantErr(t, "sync", get(t, f.Sync(r)).Err, tc.want)
			})
		})
	}
	t.Run("while preparing", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			m := f.stable(1)
			f.Join(joining(""))
			wantErr(t, "sync", get(t, f.Sync(syncing(m[0]))).Err, kafkaproto.ErrRebalanceInProgress)
		})
	})
}

// A second SyncGroup of a member ends the wait of the first.
func TestSyncTwice(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		results := f.rejoinAll(f.stable(1), f.Join(joining("")))
		first, second := f.Sync(syncing(results[1])), f.Sync(syncing(results[1]))
		wantErr(t, "first", get(t, first).Err, kafkaproto.ErrRebalanceInProgress)
		f.Sync(syncing(results[0], assignAll(results[0])...))
		want(t, "second", string(get(t, second).Assignment), "for "+results[1].MemberID)
	})
}

// CompletingRebalance -> PreparingRebalance: a member comes, and those that wait for an assignment must rejoin.
func TestJoinWhileCompleting(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		results := f.rejoinAll(f.stable(1), f.Join(joining("")))
		sync := f.Sync(syncing(results[1]))
		p := f.Join(joining(""))
		wantErr(t, "sync", get(t, sync).Err, kafkaproto.ErrRebalanceInProgress)
		f.wantState(PreparingRebalance)
		f.syncAll(f.rejoinAll(results, p))
	})
}

// Members that do not sync within the rebalance timeout are out, be it while the leader's assignment is awaited or later.
func TestSyncTimeout(t *testing.T) {
	t.Run("the leader", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			results := f.rejoinAll(f.stable(1), f.Join(joining("")))
			sync := f.Sync(syncing(results[1]))
			f.keepAlive(59*time.Second, nil, results[0])
			mustWait(t, sync)
			pass(time.Second)
			wantErr(t, "sync of the follower", get(t, sync).Err, kafkaproto.ErrRebalanceInProgress)
			wantErr(t, "heartbeat of the leader", f.heartbeat(results[0]), kafkaproto.ErrUnknownMemberID)
			again := f.rejoinAll(results[1:], nil)
			want(t, "leader", again[0].LeaderID, results[1].MemberID)
			f.syncAll(again)
		})
	})
	t.Run("a follower of a Stable group", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			results := f.rejoinAll(f.stable(1), f.Join(joining("")))
			f.Sync(syncing(results[0], assignAll(results[0])...))
			f.wantState(Stable)
			f.keepAlive(59*time.Second, nil, results...)
			f.keepAlive(time.Second, kafkaproto.ErrRebalanceInProgress, results[0])
			wantErr(t, "heartbeat of the follower", f.heartbeat(results[1]), kafkaproto.ErrUnknownMemberID)
		})
	})
}

// A follower may be later than the leader.
func TestLateSync(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		results := f.rejoinAll(f.stable(1), f.Join(joining("")))
		f.Sync(syncing(results[0], assignAll(results[0])...))
		f.keepAlive(59*time.Second, nil, results...)
		want(t, "late", string(get(t, f.Sync(syncing(results[1]))).Assignment), "for "+results[1].MemberID)
		f.keepAlive(time.Minute, nil, results...)
		f.wantState(Stable)
	})
}

// The wait for SyncGroup ends with the generation: it removes nobody in the join phase after it.
func TestSyncTimeoutEndsWithTheGeneration(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		results := f.rejoinAll(f.stable(1), f.Join(joining("")))
		f.keepAlive(30*time.Second, nil, results...)
		p := f.Join(joining(""))
		f.keepAlive(59*time.Second, kafkaproto.ErrRebalanceInProgress, results...)
		mustWait(t, p)
		f.syncAll(f.rejoinAll(results, p))
	})
}

// The answers of SyncGroup wait until the group is stored.
func TestSyncWaitsForTheStorage(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := get(t, f.Join(joining("")))
		f.rows.set(nil, time.Second)
		p := f.Sync(syncing(m, assignAll(m)...))
		again := f.Sync(syncing(m)) // of an impatient client; what was assigned first holds
		pass(999 * time.Millisecond)
		mustWait(t, again)
		wantErr(t, "heartbeat", f.heartbeat(m), nil)
		pass(time.Millisecond)
		wantErr(t, "first", get(t, p).Err, kafkaproto.ErrRebalanceInProgress)
		want(t, "again", string(get(t, again).Assignment), "for "+m.MemberID)
		f.keepAlive(10*time.Second, nil, m) // whatever else is on its way
		f.restart()
		want(t, "stored", string(get(t, f.Sync(syncing(m))).Assignment), "for "+m.MemberID)
	})
}

func TestSyncThatCannotBeStored(t *testing.T) {
	for name, tc := range map[string]struct {
		fail  error
		delay time.Duration
		want  *kafkaproto.Error
	}{
		"fails":          {kafkaproto.ErrNotCoordinator, 0, kafkaproto.ErrNotCoordinator},
		"fails unknown":  {errors.New("disk"), 0, kafkaproto.ErrUnknownServerError},
		"takes too long": {nil, time.Hour, kafkaproto.ErrCoordinatorNotAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				m := get(t, f.Join(joining("")))
				f.rows.set(tc.fail, tc.delay)
				p := f.Sync(syncing(m, assignAll(m)...))
				pass(5 * time.Second)
				wantErr(t, "sync", get(t, p).Err, tc.want)
				f.wantState(PreparingRebalance)
				f.rows.set(nil, 0)
				f.syncAll(f.rejoinAll([]JoinResult{m}, nil))
			})
		})
	}
}

// What is stored when a rebalance has begun meanwhile is not handed out.
func TestRebalanceWhileStoring(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := get(t, f.Join(joining("")))
		f.rows.set(nil, time.Second)
		sync := f.Sync(syncing(m, assignAll(m)...))
		p := f.Join(joining(""))
		wantErr(t, "sync", get(t, sync).Err, kafkaproto.ErrRebalanceInProgress)
		pass(2 * time.Second)
		f.wantState(PreparingRebalance)
		f.rows.set(nil, 0)
		f.syncAll(f.rejoinAll([]JoinResult{m}, p))
	})
}

func TestHeartbeatErrors(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := get(t, f.Join(joining("", static("i"))))
		for _, tc := range []struct {
			name                    string
			group, member, instance string
			generation              int32
			want                    *kafkaproto.Error
		}{
			{"while completing", "g", m.MemberID, "i", 1, nil},
			{"without the instance id", "g", m.MemberID, "", 1, nil},
			{"empty group id", "", m.MemberID, "i", 1, kafkaproto.ErrInvalidGroupID},
			{"missing group", "h", m.MemberID, "i", 1, kafkaproto.ErrUnknownMemberID},
			{"unknown member", "g", "m", "", 1, kafkaproto.ErrUnknownMemberID},
			{"fenced", "g", "m", "i", 1, kafkaproto.ErrFencedInstanceID},
			{"unknown instance", "g", m.MemberID, "j", 1, kafkaproto.ErrUnknownMemberID},
			{"old generation", "g", m.MemberID, "i", 0, kafkaproto.ErrIllegalGeneration},
		} {
			wantErr(t, tc.name, f.Heartbeat(&HeartbeatRequest{Group: tc.group, MemberID: tc.member, InstanceID: tc.instance, Generation: tc.generation}), tc.want)
		}
		f.syncAll([]JoinResult{m})
		wantErr(t, "stable", f.heartbeat(m), nil)
		f.Join(joining(""))
		wantErr(t, "preparing", f.heartbeat(m), kafkaproto.ErrRebalanceInProgress)
		f.Leave("g", []LeavingMember{{MemberID: m.MemberID}})
		wantErr(t, "left", f.heartbeat(m), kafkaproto.ErrUnknownMemberID)
	})
}

// Stable -> PreparingRebalance: a session ends.
func TestSessionEnds(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		f.keepAlive(9*time.Second, nil, m[1])
		f.keepAlive(time.Second, kafkaproto.ErrRebalanceInProgress, m[1])
		wantErr(t, "heartbeat of the one that is out", f.heartbeat(m[0]), kafkaproto.ErrUnknownMemberID)
		results := f.rejoinAll(m[1:], nil)
		want(t, "leader", results[0].LeaderID, m[1].MemberID)
	})
}

// PreparingRebalance -> CompletingRebalance: the session of the one that is missing ends.
func TestSessionEndsWhilePreparing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		p := f.Join(joining(m[0].MemberID))
		pass(10 * time.Second)
		want(t, "members", len(get(t, p).Members), 1)
	})
}

// A join phase that loses its last member leads to Empty, with the next generation stored.
func TestLastMemberGoes(t *testing.T) {
	for name, end := range map[string]func(f *fixture, m JoinResult){
		"leaves":  func(f *fixture, m JoinResult) { f.Leave("g", []LeavingMember{{MemberID: m.MemberID}}) },
		"expires": func(*fixture, JoinResult) { pass(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				m := f.stable(1)
				end(f, m[0])
				f.wantState(Empty)
				want(t, "groups in memory", f.inMemory(), 0)
				next := f.stable(1)
				want(t, "generation", next[0].Generation, int32(3))
			})
		})
	}
}

func TestLeave(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		s := f.rejoinAll(m, f.Join(joining("", static("i"))))
		f.syncAll(s)
		errs, err := f.Leave("g", []LeavingMember{
			{MemberID: "m"},
			{MemberID: ""},
			{MemberID: "m", InstanceID: "i"},
			{MemberID: "", InstanceID: "j"},
			{MemberID: "", InstanceID: "i"}, // by an administrator
			{MemberID: m[1].MemberID},
			{MemberID: m[1].MemberID},
		})
		wantErr(t, "leave", err, nil)
		for i, expected := range []*kafkaproto.Error{
			kafkaproto.ErrUnknownMemberID, kafkaproto.ErrUnknownMemberID, kafkaproto.ErrFencedInstanceID,
			kafkaproto.ErrUnknownMemberID, nil, nil, kafkaproto.ErrUnknownMemberID,
		} {
			if got := errs[i]; (got == nil) != (expected == nil) || got != nil && got.Code != expected.Code {
				t.Errorf("member %d: %v, want %v", i, got, expected)
			}
		}
		want(t, "members left", len(f.rejoinAll(m[:1], nil)[0].Members), 1)
		_, err = f.Leave("", nil)
		wantErr(t, "empty group id", err, kafkaproto.ErrInvalidGroupID)
		errs, _ = f.Leave("h", []LeavingMember{{MemberID: "m"}})
		wantErr(t, "missing group", errs[0], kafkaproto.ErrUnknownMemberID)
	})
}

// Leaving ends the member's requests that wait.
func TestLeaveEndsWaiting(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := f.stable(2)
		p := f.Join(joining(m[1].MemberID, listing(Protocol{"range", nil})))
		f.Leave("g", []LeavingMember{{MemberID: m[1].MemberID}})
		wantErr(t, "join", get(t, p).Err, kafkaproto.ErrUnknownMemberID)

		results := f.rejoinAll(m[:1], f.Join(joining("")))
		sync := f.Sync(syncing(results[1]))
		f.Leave("g", []LeavingMember{{MemberID: results[1].MemberID}})
		wantErr(t, "sync", get(t, sync).Err, kafkaproto.ErrUnknownMemberID)
		f.wantState(PreparingRebalance)
	})
}
