package groups

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/brookletmq/brooklet/kafkaproto"
)

func metricValue(t testing.TB, c prometheus.Collector) float64 {
	t.Helper()
	return testutil.ToFloat64(c)
}

func TestDescribe(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		m := get(t, f.Join(joining("", static("i"))))
		d, err := f.Describe("g")
		wantErr(t, "describe", err, nil)
		member := MemberDescription{MemberID: m.MemberID, InstanceID: "i", ClientID: "client", ClientHost: "/10.0.0.1"}
		want(t, "while completing", d, Description{State: CompletingRebalance, ProtocolType: "consumer", Members: []MemberDescription{member}})
		f.syncAll([]JoinResult{m})
		d, _ = f.Describe("g")
		member.Metadata, member.Assignment = subscribe("orders"), []byte("for "+m.MemberID)
		want(t, "stable", d, Description{State: Stable, ProtocolType: "consumer", Protocol: "range", Members: []MemberDescription{member}})
		f.Leave("g", []LeavingMember{{InstanceID: "i"}})
		d, _ = f.Describe("g")
		want(t, "empty", d, Description{State: Empty, ProtocolType: "consumer"})
		d, _ = f.Describe("h")
		want(t, "missing", d, Description{})
	})
}

func TestList(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.stable(1)
		simple := commit(nobody, 1)
		simple.Group = "a"
		f.mustCommit(simple)
		f.Join(joining("", func(r *JoinRequest) { r.Group, r.ProtocolType = "z", "connect" })) // has no row yet
		f.Heartbeat(&HeartbeatRequest{Group: "nothing"})
		all, err := f.List()
		want(t, "error", err, error(nil))
		want(t, "list", all, []Listing{{"a", "", Empty}, {"g", "consumer", Stable}, {"z", "connect", CompletingRebalance}})
		for s, n := range map[State]float64{Empty: 1, PreparingRebalance: 0, CompletingRebalance: 1, Stable: 1} {
			want(t, s.String()+", by the metric", metricValue(t, f.m.groups[s]), n)
		}
		want(t, "members, by the metric", metricValue(t, f.m.members), 2.0)
	})
}

func TestDeleteGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		wantErr(t, "missing", get(t, f.DeleteGroup("g")), kafkaproto.ErrGroupIDNotFound)
		m := f.stable(1)
		f.mustCommit(commit(m[0], 1))
		wantErr(t, "with members", get(t, f.DeleteGroup("g")), kafkaproto.ErrNonEmptyGroup)
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		neighbour := commit(nobody, 1)
		neighbour.Group = "g/h"
		f.mustCommit(neighbour)
		f.rows.set(kafkaproto.ErrNotCoordinator, 0)
		wantErr(t, "that fails", get(t, f.DeleteGroup("g")), kafkaproto.ErrNotCoordinator)
		want(t, "empty groups, by the metric", metricValue(t, f.m.groups[Empty]), 2.0)
		f.rows.set(nil, 0)
		f.wantState(Empty)
		want(t, "committed", f.committed(), int64(1))
		wantErr(t, "delete", get(t, f.DeleteGroup("g")), nil)
		f.wantState(Dead)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g%2Fh/orders/0", "group/g/h"})
		want(t, "generation of the next", f.stable(1)[0].Generation, int32(1))
	})
}

// Commits before and after a deletion that is on its way fall on their side of it.
func TestCommitsAroundADeletion(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.rows.set(nil, time.Second)
		before := f.Commit(commit(nobody, 1))
		r := commit(nobody, 1)
		r.Offsets[0].Partition = 1
		also := f.Commit(r)
		deleted := f.DeleteGroup("g")
		wantErr(t, "deleted already", get(t, f.DeleteGroup("g")), kafkaproto.ErrGroupIDNotFound)
		after := f.Commit(commit(nobody, 2))
		pass(5 * time.Second)
		wantErr(t, "before", get(t, before)[0], nil)
		wantErr(t, "also before", get(t, also)[0], nil)
		wantErr(t, "deletion", get(t, deleted), nil)
		wantErr(t, "after", get(t, after)[0], nil)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/0", "group/g"})
		want(t, "committed", f.committed(), int64(2))
		f.wantState(Empty)
	})
}

func TestDeleteOffsets(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		remove := func(partitions ...Partition) DeletedOffsets { return get(t, f.DeleteOffsets("g", partitions)) }
		orders, other := Partition{"orders", 0}, Partition{"other", 0}
		wantErr(t, "empty group id", get(t, f.DeleteOffsets("", nil)).Err, kafkaproto.ErrInvalidGroupID)
		wantErr(t, "missing group", remove(orders).Err, kafkaproto.ErrGroupIDNotFound)
		f.topics.set("other", 3)
		m := f.stable(1)
		r := commit(m[0], 1)
		r.Offsets = append(r.Offsets, OffsetCommit{Topic: "other", TopicID: [16]byte{3}})
		f.mustCommit(r)
		result := remove(orders, other)
		wantErr(t, "all", result.Err, nil)
		wantErr(t, "subscribed", result.Errs[0], kafkaproto.ErrGroupSubscribedToTopic)
		wantErr(t, "not subscribed", result.Errs[1], nil)
		want(t, "rows", f.rows.keys(), []string{"group-offset/g/orders/0", "group/g"})
		f.Leave("g", []LeavingMember{{MemberID: m[0].MemberID}})
		f.rows.set(kafkaproto.ErrNotCoordinator, 0)
		wantErr(t, "that fails", remove(orders).Err, kafkaproto.ErrNotCoordinator)
		f.rows.set(nil, 0)
		wantErr(t, "no members", remove(orders).Errs[0], nil)
		want(t, "rows", f.rows.keys(), []string{"group/g"})
	})
}

// Members whose metadata is no subscription may read any topic; those of another kind refuse altogether.
func TestDeleteOffsetsOfOtherGroups(t *testing.T) {
	for i, metadata := range [][]byte{nil, {0}, {0, 0, 0xff, 0xff, 0xff, 0xff}, {0xff, 0xff, 0, 0, 0, 0}, {0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 1, 'x'}, {0, 0, 0, 0, 0, 1, 0xff, 0xff}} {
		t.Run(fmt.Sprint("hostile ", i), func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.stable(1, listing(Protocol{"range", metadata}))
				wantErr(t, "delete", get(t, f.DeleteOffsets("g", []Partition{{"other", 0}})).Errs[0], kafkaproto.ErrGroupSubscribedToTopic)
			})
		})
	}
	t.Run("not consumers", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			f.stable(1, func(r *JoinRequest) { r.ProtocolType = "connect" })
			wantErr(t, "delete", get(t, f.DeleteOffsets("g", []Partition{{"other", 0}})).Err, kafkaproto.ErrNonEmptyGroup)
		})
	})
	t.Run("joined since", func(t *testing.T) {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			f.stable(1)
			f.Join(joining("", listing(Protocol{"range", subscribe("other")})))
			wantErr(t, "delete", get(t, f.DeleteOffsets("g", []Partition{{"other", 0}})).Errs[0], kafkaproto.ErrGroupSubscribedToTopic)
		})
	})
}

func FuzzSubscription(f *testing.F) {
	f.Add(subscribe("orders", "returns"))
	f.Add([]byte{0, 3, 0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		if subscribedTopics(b, func(topic []byte) { n += 2 + len(topic) }) == nil && n > len(b)-6 {
			t.Errorf("%d bytes of topics in %d", n, len(b))
		}
	})
}
