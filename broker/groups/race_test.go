package groups

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestConcurrentRequests sends requests of all kinds to few groups from many goroutines while timers fire; the race
// detector looks on. In the end every request has been answered, and no group is left in memory.
func TestConcurrentRequests(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.rows.set(nil, time.Millisecond)
		var senders sync.WaitGroup
		for i := range 16 {
			senders.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 0))
				for range 100 {
					f.request(r)
					time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
				}
			})
		}
		senders.Wait()
		pass(10 * time.Minute)
		want(t, "groups in memory", f.inMemory(), 0)
		want(t, "members, by the metric", metricValue(t, f.m.members), 0.0)
		want(t, "pending members, by the metric", metricValue(t, f.m.pendingMembers), 0.0)
		all, err := f.List()
		want(t, "error", err, error(nil))
		want(t, "empty groups, by the metric", metricValue(t, f.m.groups[Empty]), float64(len(all)))
	})
}

// request sends one request, and waits for its answer.
func (f *fixture) request(r *rand.Rand) {
	group := fmt.Sprint("g", r.IntN(3))
	anybody := JoinResult{Generation: -1}
	if d, _ := f.Describe(group); len(d.Members) > 0 {
		anybody.MemberID, anybody.Generation = d.Members[r.IntN(len(d.Members))].MemberID, int32(r.IntN(50))
	}
	ctx := f.t.Context()
	switch r.IntN(10) {
	case 0, 1, 2:
		joined, _ := f.Join(joining("", func(q *JoinRequest) {
			q.Group, q.RequireMemberID = group, r.IntN(2) == 0
			if r.IntN(4) == 0 {
				q.InstanceID = fmt.Sprint(r.IntN(3))
			}
		})).Wait(ctx)
		if joined.Err == nil {
			sync := syncing(joined, assignAll(joined)...)
			sync.Group = group
			f.Sync(sync).Wait(ctx)
		}
	case 3:
		f.Join(joining(anybody.MemberID, func(q *JoinRequest) { q.Group = group })).Wait(ctx)
	case 4, 5:
		f.Heartbeat(&HeartbeatRequest{Group: group, MemberID: anybody.MemberID, Generation: anybody.Generation})
	case 6:
		f.Leave(group, []LeavingMember{{MemberID: anybody.MemberID}})
	case 7:
		q := commit(anybody, 1)
		q.Group = group
		f.Commit(q).Wait(ctx)
	case 8:
		f.DeleteGroup(group).Wait(ctx)
		f.List()
	case 9:
		f.Clean(ctx)
		f.DeleteOffsets(group, []Partition{{"orders", 0}}).Wait(ctx)
	}
}
