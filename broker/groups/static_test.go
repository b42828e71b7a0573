package groups

import (
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// staticPair makes a Stable group of the static members "i", the leader, and "j".
func (f *fixture) staticPair() (i, j JoinResult) {
	f.t.Helper()
	first := get(f.t, f.Join(joining("", static("i"))))
	p := f.Join(joining("", static("j")))
	r := []JoinResult{get(f.t, f.Join(joining(first.MemberID, static("i")))), get(f.t, p)}
	f.syncAll(r)
	f.wantState(Stable)
	return r[0], r[1]
}

func knowsSkip(r *JoinRequest) { r.SkipAssignment = true }

// KIP-345, KIP-814: a static member that comes again to a Stable group takes its place without a rebalance, with a new
// id; the old id is fenced.
func TestStaticMemberComesAgainStable(t *testing.T) {
	t.Run("follower", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			i, j := f.staticPair()
			again := get(t, f.Join(joining("", static("j"), knowsSkip)))
			wantErr(t, "join", again.Err, nil)
			want(t, "generation", again.Generation, j.Generation)
			want(t, "leader", again.LeaderID, i.MemberID)
			want(t, "skip", again.SkipAssignment, false)
			want(t, "assignment", string(get(t, f.Sync(syncing(again))).Assignment), "for "+j.MemberID)
			wantErr(t, "heartbeat of the old", f.Heartbeat(&HeartbeatRequest{Group: "g", MemberID: j.MemberID, InstanceID: "j", Generation: j.Generation}), kafkaproto.ErrFencedInstanceID)
			wantErr(t, "join of the old", get(t, f.Join(joining(j.MemberID, static("j")))).Err, kafkaproto.ErrFencedInstanceID)
			old := commit(j, 1)
			old.InstanceID = "j"
			wantErr(t, "commit of the old", get(t, f.Commit(old))[0], kafkaproto.ErrFencedInstanceID)
			f.wantState(Stable)
			wantErr(t, "heartbeat of the leader", f.heartbeat(i), nil)
		})
	})
	t.Run("leader that knows skipAssignment", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			i, _ := f.staticPair()
			again := get(t, f.Join(joining("", static("i"), knowsSkip)))
			want(t, "leader", again.LeaderID, again.MemberID)
			want(t, "skip", again.SkipAssignment, true)
			want(t, "members", len(again.Members), 2)
			want(t, "assignment", string(get(t, f.Sync(syncing(again))).Assignment), "for "+i.MemberID)
		})
	})
	t.Run("leader that does not", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			i, _ := f.staticPair()
			again := get(t, f.Join(joining("", static("i"))))
			want(t, "leader it is told", again.LeaderID, i.MemberID)
			want(t, "members", len(again.Members), 0)
			// Its next join is that of the leader.
			p := f.Join(joining(again.MemberID, static("i")))
			mustWait(t, p)
			f.wantState(PreparingRebalance)
		})
	})
	t.Run("survives a restart", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			f.staticPair()
			again := get(t, f.Join(joining("", static("j"))))
			f.restart()
			wantErr(t, "heartbeat", f.heartbeat(again), nil)
		})
	})
	t.Run("protocol changes", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			both := listing(Protocol{"range", nil}, Protocol{"sticky", nil})
			m := get(t, f.Join(joining("", static("i"), both)))
			f.syncAll([]JoinResult{m})
			again := get(t, f.Join(joining("", static("i"), listing(Protocol{"sticky", nil}))))
			want(t, "generation", again.Generation, m.Generation+1)
			want(t, "protocol", again.Protocol, "sticky")
		})
	})
	t.Run("not stored", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			f.staticPair()
			f.rows.set(kafkaproto.ErrCoordinatorNotAvailable, 0)
			wantErr(t, "join", get(t, f.Join(joining("", static("j")))).Err, kafkaproto.ErrCoordinatorNotAvailable)
			f.rows.set(nil, 0)
			f.wantState(Stable)
			wantErr(t, "again", get(t, f.Join(joining("", static("j")))).Err, nil)
		})
	})
	t.Run("twice while it is stored", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			f.staticPair()
			f.rows.set(nil, time.Second)
			first := f.Join(joining("", static("j")))
			mustWait(t, first)
			second := f.Join(joining("", static("j")))
			wantErr(t, "first", get(t, first).Err, kafkaproto.ErrFencedInstanceID)
			pass(time.Second)
			mustWait(t, second) // only the first one's id is stored
			pass(time.Second)
			again := get(t, second)
			wantErr(t, "second", again.Err, nil)
			f.restart()
			wantErr(t, "heartbeat", f.heartbeat(again), nil)
		})
	})
	t.Run("rebalance while it is stored", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			i, j := f.staticPair()
			f.rows.set(nil, time.Second)
			again := f.Join(joining("", static("j")))
			p := f.Join(joining(i.MemberID, static("i")))
			r := get(t, p) // all have joined
			want(t, "generation", r.Generation, j.Generation+1)
			want(t, "generation of the other", get(t, again).Generation, j.Generation+1)
			pass(2 * time.Second)
			f.wantState(CompletingRebalance)
		})
	})
}

// While a rebalance is prepared the newer client takes the place, and the older's JoinGroup ends: the group must not hold
// the member twice (KAFKA-8500).
func TestStaticMemberComesAgainPreparing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		i, j := f.staticPair()
		older := f.Join(joining(i.MemberID, static("i")))
		newer := f.Join(joining("", static("i")))
		r := get(t, older)
		wantErr(t, "older", r.Err, kafkaproto.ErrFencedInstanceID)
		want(t, "its id", r.MemberID, i.MemberID)
		mustWait(t, newer)
		f.Join(joining(j.MemberID, static("j")))
		again := get(t, newer)
		want(t, "leader", again.LeaderID, again.MemberID)
		want(t, "members", len(again.Members), 2)
	})
}

// While the leader's assignment is awaited it may name the old id, so the rebalance starts again.
func TestStaticMemberComesAgainCompleting(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		i, j := f.staticPair()
		waiting := f.Join(joining(i.MemberID, static("i")))
		j = get(t, f.Join(joining(j.MemberID, static("j"))))
		i = get(t, waiting)
		sync := f.Sync(syncing(j))
		newer := f.Join(joining("", static("j")))
		wantErr(t, "sync of the older", get(t, sync).Err, kafkaproto.ErrFencedInstanceID)
		wantErr(t, "sync of the leader", get(t, f.Sync(syncing(i, assignAll(i)...))).Err, kafkaproto.ErrRebalanceInProgress)
		i = get(t, f.Join(joining(i.MemberID, static("i"))))
		want(t, "members", len(i.Members), 2)
		f.syncAll([]JoinResult{i, get(t, newer)})
	})
}

// A static member that does not rejoin in time keeps its place until its session, or the wait for its SyncGroup, ends.
func TestStaticMemberThatDoesNotRejoin(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		long := func(r *JoinRequest) { r.SessionTimeout = 20 * time.Minute }
		i := get(t, f.Join(joining("", static("i"), long)))
		p := f.Join(joining("", static("j"), long))
		i = get(t, f.Join(joining(i.MemberID, static("i"), long)))
		f.syncAll([]JoinResult{i, get(t, p)})

		p = f.Join(joining(i.MemberID, static("i"), long))
		pass(time.Minute)
		i = get(t, p)
		want(t, "members", len(i.Members), 2)
		f.Sync(syncing(i, assignAll(i)...))
		f.wantState(Stable)
		pass(time.Minute)
		f.wantState(PreparingRebalance) // "j" did not sync
		want(t, "members", len(f.rejoinAll([]JoinResult{i}, nil)[0].Members), 1)
	})
}

// If none of the members that are left has joined when time is up, the phase begins again.
func TestNobodyRejoins(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		long := func(r *JoinRequest) { r.SessionTimeout = 20 * time.Minute }
		i := get(t, f.Join(joining("", static("i"), long)))
		f.syncAll([]JoinResult{i})
		f.Join(joining("", static("j"), long))
		f.Leave("g", []LeavingMember{{InstanceID: "j"}})
		pass(10 * time.Minute)
		f.wantState(PreparingRebalance)
		want(t, "generation", f.rejoinAll([]JoinResult{i}, nil)[0].Generation, int32(2))
	})
}
