package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// groupBroker is a broker whose groups do not wait for more members.
func groupBroker(t testing.TB) *adminBroker { return newMachine().openGroups(t) }

func (m *machine) openGroups(t testing.TB) *adminBroker {
	t.Helper()
	return m.open(t, func(o *Options) { o.Groups.InitialRebalanceDelay = -1 })
}

func joinGroup(group, member string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType = group, member, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name = "range"
	metadata := kmsg.ConsumerMemberMetadata{Topics: []string{"orders"}}
	p.Metadata = metadata.AppendTo(nil)
	req.Protocols = append(req.Protocols, p)
	return req
}

// mustJoin makes a group of one member, Stable, and returns what the member was told.
func (b *adminBroker) mustJoin(group string) *kmsg.JoinGroupResponse {
	b.t.Helper()
	joined := ask[*kmsg.JoinGroupResponse](b, 3, joinGroup(group, ""))
	wantCode(b.t, "join", joined.ErrorCode, nil)
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = group, joined.MemberID, joined.Generation
	a := kmsg.NewSyncGroupRequestGroupAssignment()
	a.MemberID, a.MemberAssignment = joined.MemberID, []byte("yours")
	sync.GroupAssignment = append(sync.GroupAssignment, a)
	wantCode(b.t, "sync", ask[*kmsg.SyncGroupResponse](b, 3, sync).ErrorCode, nil)
	return joined
}

// A member's life in every version of the requests.
func TestGroupMemberInAllVersions(t *testing.T) {
	b := groupBroker(t)
	for version := int16(0); version <= 9; version++ {
		group := fmt.Sprint("g", version)
		join := joinGroup(group, "")
		if version >= 5 {
			join.InstanceID = kmsg.StringPtr("i")
		}
		joined := ask[*kmsg.JoinGroupResponse](b, version, join)
		if version == 4 {
			wantCode(t, "v4 join", joined.ErrorCode, kafkaproto.ErrMemberIDRequired)
			joined = ask[*kmsg.JoinGroupResponse](b, version, joinGroup(group, joined.MemberID))
		}
		wantCode(t, fmt.Sprintf("v%d join", version), joined.ErrorCode, nil)
		wantInt(t, 1, joined.Generation)
		wantEqual(t, "range", *joined.Protocol)
		wantEqual(t, joined.MemberID, joined.LeaderID)
		wantLen(t, joined.Members, 1)
		wantEqual(t, join.Protocols[0].Metadata, joined.Members[0].ProtocolMetadata)
		if version >= 7 {
			wantEqual(t, "consumer", *joined.ProtocolType)
		}
		if version >= 5 {
			wantEqual(t, "i", *joined.Members[0].InstanceID)
		}

		sync := kmsg.NewPtrSyncGroupRequest()
		sync.Group, sync.MemberID, sync.Generation = group, joined.MemberID, 1
		sync.ProtocolType, sync.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = joined.MemberID, []byte{1, 2}
		sync.GroupAssignment = append(sync.GroupAssignment, a)
		synced := ask[*kmsg.SyncGroupResponse](b, min(version, 5), sync)
		wantCode(t, fmt.Sprintf("v%d sync", version), synced.ErrorCode, nil)
		wantEqual(t, []byte{1, 2}, synced.MemberAssignment)

		beat := kmsg.NewPtrHeartbeatRequest()
		beat.Group, beat.MemberID, beat.Generation = group, joined.MemberID, 1
		wantCode(t, "heartbeat", ask[*kmsg.HeartbeatResponse](b, min(version, 4), beat).ErrorCode, nil)
		beat.Generation = 2
		wantCode(t, "heartbeat", ask[*kmsg.HeartbeatResponse](b, min(version, 4), beat).ErrorCode, kafkaproto.ErrIllegalGeneration)

		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Group, leave.MemberID = group, joined.MemberID
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = joined.MemberID
		leave.Members = append(leave.Members, m)
		v := min(version, 5)
		for i, want := range []*kafkaproto.Error{nil, kafkaproto.ErrUnknownMemberID} {
			left := ask[*kmsg.LeaveGroupResponse](b, v, leave)
			code := left.ErrorCode
			if v >= 3 {
				wantZero(t, code)
				code = left.Members[0].ErrorCode
			}
			wantCode(t, fmt.Sprintf("v%d leave %d", v, i), code, want)
		}
	}
}

func TestSyncGroupMustNameTheProtocol(t *testing.T) {
	b := groupBroker(t)
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group = "g"
	wantCode(t, "v5", ask[*kmsg.SyncGroupResponse](b, 5, sync).ErrorCode, kafkaproto.ErrInconsistentGroupProtocol)
	wantCode(t, "v4", ask[*kmsg.SyncGroupResponse](b, 4, sync).ErrorCode, kafkaproto.ErrUnknownMemberID)
}

func committing(group, topic string, id [16]byte, offsets ...int64) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = group, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = topic, id
	for p, offset := range offsets {
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = int32(p), offset, 0, kmsg.StringPtr("note")
		t.Partitions = append(t.Partitions, rp)
	}
	req.Topics = append(req.Topics, t)
	return req
}

// mustCommit commits offsets for the first partitions of a topic as a simple consumer.
func (b *adminBroker) mustCommit(group, topic string, offsets ...int64) {
	b.t.Helper()
	resp := ask[*kmsg.OffsetCommitResponse](b, 9, committing(group, topic, [16]byte{}, offsets...))
	for _, p := range resp.Topics[0].Partitions {
		wantCode(b.t, "commit", p.ErrorCode, nil)
	}
}

// fetchOffsets asks in a version for partitions of a topic, all that is committed if there are none, and returns
// what the reply says of each.
func (b *adminBroker) fetchOffsets(version int16, group, topic string, id [16]byte, partitions ...int32) []string {
	b.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	if len(partitions) > 0 {
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: topic, Partitions: partitions}}
		gt := kmsg.NewOffsetFetchRequestGroupTopic()
		gt.Topic, gt.TopicID, gt.Partitions = topic, id, partitions
		g.Topics = append(g.Topics, gt)
	}
	other := kmsg.NewOffsetFetchRequestGroup()
	other.Group = "another"
	req.Groups = append(req.Groups, g, other)
	resp := ask[*kmsg.OffsetFetchResponse](b, version, req)
	var found []string
	add := func(topic string, partition int32, offset int64, epoch int32, metadata *string, code int16) {
		found = append(found, fmt.Sprintf("%s/%d %d %d %q %d", topic, partition, offset, epoch, *metadata, code))
	}
	wantZero(b.t, resp.ErrorCode)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			add(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
		}
	}
	if version >= 8 {
		wantLen(b.t, resp.Groups, 2)
		wantLen(b.t, resp.Groups[1].Topics, 0)
		wantZero(b.t, resp.Groups[0].ErrorCode)
		for _, t := range resp.Groups[0].Topics {
			for _, p := range t.Partitions {
				name := t.Topic
				if version >= 10 {
					name = fmt.Sprintf("%.4x", t.TopicID[:2])
				}
				add(name, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode)
			}
		}
	}
	return found
}

// Every partition that is asked for comes back, in all versions.
func TestOffsetsInAllVersions(t *testing.T) {
	b := groupBroker(t)
	id := b.mustCreate("orders", 3).TopicID
	for version := int16(2); version <= 10; version++ {
		group := fmt.Sprint("g", version)
		resp := ask[*kmsg.OffsetCommitResponse](b, version, committing(group, "orders", id, 5, 6, 7, 8))
		for p, want := range []*kafkaproto.Error{nil, nil, nil, kafkaproto.ErrUnknownTopicOrPartition} {
			wantCode(t, fmt.Sprintf("v%d partition %d", version, p), resp.Topics[0].Partitions[p].ErrorCode, want)
		}
	}
	b.mustCommit("g", "orders", 5)
	for version := int16(1); version <= 10; version++ {
		epoch, name := 0, "orders"
		if version < 5 {
			epoch = -1
		}
		if version >= 10 {
			name = fmt.Sprintf("%.4x", id[:2])
		}
		committed := fmt.Sprintf("%s/0 5 %d \"note\" 0", name, epoch)
		missing := func(p int) string { return fmt.Sprintf("%s/%d -1 -1 \"\" 0", name, p) }
		got := b.fetchOffsets(version, "g", "orders", id, 1, 0, 9)
		wantEqual(t, []string{missing(1), committed, missing(9)}, got, "v%d", version)
		wantEqual(t, []string{missing(0)}, b.fetchOffsets(version, "unknown", "orders", id, 0), "v%d", version)
		if version >= 2 {
			wantEqual(t, []string{committed}, b.fetchOffsets(version, "g", "", [16]byte{}), "v%d", version)
		}
	}
	wantEqual(t, []string{`nothing/0 -1 -1 "" 0`}, b.fetchOffsets(9, "g", "nothing", [16]byte{}, 0))
}

func TestOffsetsByUnknownTopicID(t *testing.T) {
	b := groupBroker(t)
	resp := ask[*kmsg.OffsetCommitResponse](b, 10, committing("g", "", [16]byte{1}, 5))
	wantCode(t, "commit", resp.Topics[0].Partitions[0].ErrorCode, kafkaproto.ErrUnknownTopicID)
	wantEqual(t, []string{fmt.Sprintf("0100/0 -1 -1 \"\" %d", kafkaproto.ErrUnknownTopicID.Code)}, b.fetchOffsets(10, "g", "", [16]byte{1}, 0))
}

func TestOffsetFetchOfAGroupTwice(t *testing.T) {
	b := groupBroker(t)
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = "g"
	req.Groups = append(req.Groups, g, g)
	resp := ask[*kmsg.OffsetFetchResponse](b, 8, req)
	wantLen(t, resp.Groups, 1)
	wantCode(t, "fetch", resp.Groups[0].ErrorCode, kafkaproto.ErrInvalidRequest)
}

// A commit with nothing in it is answered and makes no group.
func TestOffsetCommitOfNothing(t *testing.T) {
	b := groupBroker(t)
	id := b.mustCreate("orders", 1).TopicID
	member := b.mustJoin("live")
	for version := int16(2); version <= 10; version++ {
		for what, edit := range map[string]func(*kmsg.OffsetCommitRequest){
			"nobody": func(r *kmsg.OffsetCommitRequest) { r.Group, r.Generation = "g", -1 },
			"a member": func(r *kmsg.OffsetCommitRequest) {
				r.Group, r.MemberID, r.Generation = "live", member.MemberID, member.Generation
			},
		} {
			none := kmsg.NewPtrOffsetCommitRequest()
			edit(none)
			wantLen(t, ask[*kmsg.OffsetCommitResponse](b, version, none).Topics, 0, "v%d, %s", version, what)
			topicOnly := committing("", "orders", id)
			edit(topicOnly)
			topics := ask[*kmsg.OffsetCommitResponse](b, version, topicOnly).Topics
			wantLen(t, topics, 1, "v%d, %s", version, what)
			wantLen(t, topics[0].Partitions, 0, "v%d, %s", version, what)
		}
	}
	wantLen(t, b.fetchOffsets(9, "live", "", [16]byte{}), 0)
	resp := ask[*kmsg.OffsetCommitResponse](b, 9, committing("g", "missing", [16]byte{}, 1))
	wantCode(t, "missing topic", resp.Topics[0].Partitions[0].ErrorCode, kafkaproto.ErrUnknownTopicOrPartition)
	resp = ask[*kmsg.OffsetCommitResponse](b, 9, committing("g", "bad name", [16]byte{}, 1))
	wantCode(t, "impossible topic", resp.Topics[0].Partitions[0].ErrorCode, kafkaproto.ErrUnknownTopicOrPartition)
	listed := ask[*kmsg.ListGroupsResponse](b, 5, kmsg.NewPtrListGroupsRequest()).Groups
	wantLen(t, listed, 1)
	wantEqual(t, "live", listed[0].Group)
}

func TestOffsetsOfNamedStreams(t *testing.T) {
	m := newMachine()
	b := m.openGroups(t)
	id := b.mustCreate("sessions/alice", 1).TopicID
	b.mustCommit("g", "sessions/alice", 3)
	b.stop()
	b = m.openGroups(t)
	wantEqual(t, []string{`sessions/alice/0 3 0 "note" 0`}, b.fetchOffsets(9, "g", "sessions/alice", [16]byte{}, 0))
	wantEqual(t, []string{fmt.Sprintf("%.4x/0 3 0 \"note\" 0", id[:2])}, b.fetchOffsets(10, "g", "", [16]byte{}))
	b.mustDelete("sessions/alice")
	wantLen(t, b.fetchOffsets(9, "g", "", [16]byte{}), 0)
	b.mustCreate("sessions/alice", 1)
	wantEqual(t, []string{`sessions/alice/0 -1 -1 "" 0`}, b.fetchOffsets(9, "g", "sessions/alice", [16]byte{}, 0))
}

// Commits go away with the topic: a new one of the name has none, and the old id is refused.
func TestOffsetsOfATopicMadeAgain(t *testing.T) {
	b := groupBroker(t)
	id := b.mustCreate("orders", 1).TopicID
	b.mustCommit("g", "orders", 1000)
	b.mustDelete("orders")
	b.mustCreate("orders", 1)
	wantEqual(t, []string{`orders/0 -1 -1 "" 0`}, b.fetchOffsets(9, "g", "orders", [16]byte{}, 0))
	wantLen(t, b.fetchOffsets(9, "g", "", [16]byte{}), 0)
	resp := ask[*kmsg.OffsetCommitResponse](b, 10, committing("g", "", id, 1))
	wantCode(t, "commit for the old topic", resp.Topics[0].Partitions[0].ErrorCode, kafkaproto.ErrUnknownTopicID)
	wantNoError(t, b.groups.Clean(context.Background()))
	wantLen(t, ask[*kmsg.ListGroupsResponse](b, 5, kmsg.NewPtrListGroupsRequest()).Groups, 0)
}

// Offsets of deleted topics and streams do not stay in the store, where nobody sees them.
func TestOffsetsAreDeletedWithTheirTopic(t *testing.T) {
	b := groupBroker(t)
	for _, topic := range []string{"kept", "deleted", "some/stream"} {
		b.mustCreate(topic, 1)
		b.mustCommit("g", topic, 7)
	}
	for _, topic := range []string{"deleted", "some/stream"} {
		b.mustDelete(topic)
	}
	var rows []string
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		rows = nil
		err := b.store.Scan([]byte("group-offset/"), func(key, _ []byte) error {
			rows = append(rows, string(key))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 1 {
			break
		}
	}
	if len(rows) != 1 || rows[0] != "group-offset/g/kept/0" {
		t.Errorf("the store has the offsets %q, want that of the topic that is there", rows)
	}
}

func describeGroups(b *adminBroker, version int16, names ...string) []kmsg.DescribeGroupsResponseGroup {
	b.t.Helper()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = names, true
	return ask[*kmsg.DescribeGroupsResponse](b, version, req).Groups
}

func TestDescribeGroups(t *testing.T) {
	b := groupBroker(t)
	b.mustCreate("orders", 1)
	m := b.mustJoin("live")
	b.mustCommit("simple", "orders", 1)
	for version := int16(0); version <= 6; version++ {
		found := describeGroups(b, version, "live", "simple", "missing", "live")
		wantLen(t, found, 3)
		live := found[0]
		wantCode(t, "live", live.ErrorCode, nil)
		wantEqual(t, []string{"Stable", "consumer", "range"}, []string{live.State, live.ProtocolType, live.Protocol})
		wantLen(t, live.Members, 1)
		wantEqual(t, m.MemberID, live.Members[0].MemberID)
		wantEqual(t, []byte("yours"), live.Members[0].MemberAssignment)
		if version >= 3 {
			wantInt(t, 328, live.AuthorizedOperations)
		}
		wantCode(t, "simple", found[1].ErrorCode, nil)
		wantEqual(t, "Empty", found[1].State)
		wantEqual(t, "Dead", found[2].State)
		if version < 6 {
			wantCode(t, "missing", found[2].ErrorCode, nil)
		} else {
			wantCode(t, "missing", found[2].ErrorCode, kafkaproto.ErrGroupIDNotFound)
			wantEqual(t, `group "missing" not found`, *found[2].ErrorMessage)
		}
	}
}

func TestListGroups(t *testing.T) {
	b := groupBroker(t)
	b.mustCreate("orders", 1)
	b.mustJoin("live")
	b.mustCommit("simple", "orders", 1)
	for version := int16(0); version <= 5; version++ {
		for _, tc := range []struct {
			states, types []string
			min           int16
			want          []string
		}{
			{nil, nil, 0, []string{"live", "simple"}},
			{[]string{"stable"}, nil, 4, []string{"live"}},
			{[]string{"Empty", "Dead"}, nil, 4, []string{"simple"}},
			{[]string{"nonsense"}, nil, 4, nil},
			{nil, []string{"Classic"}, 5, []string{"live", "simple"}},
			{nil, []string{"consumer"}, 5, nil},
		} {
			if version < tc.min {
				continue
			}
			req := kmsg.NewPtrListGroupsRequest()
			req.StatesFilter, req.TypesFilter = tc.states, tc.types
			var names []string
			for _, g := range ask[*kmsg.ListGroupsResponse](b, version, req).Groups {
				names = append(names, g.Group)
				if version >= 5 {
					wantEqual(t, "classic", g.GroupType)
				}
			}
			wantEqual(t, tc.want, names, "v%d %+v", version, tc)
		}
	}
}

func TestDeleteGroups(t *testing.T) {
	b := groupBroker(t)
	b.mustCreate("orders", 1)
	b.mustJoin("live")
	for version := int16(0); version <= 3; version++ {
		b.mustCommit("simple", "orders", 1)
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Groups = []string{"live", "simple", "missing", "simple"}
		resp := ask[*kmsg.DeleteGroupsResponse](b, version, req)
		wantLen(t, resp.Groups, 3)
		for i, want := range []*kafkaproto.Error{kafkaproto.ErrNonEmptyGroup, nil, kafkaproto.ErrGroupIDNotFound} {
			wantCode(t, fmt.Sprintf("v%d %s", version, resp.Groups[i].Group), resp.Groups[i].ErrorCode, want)
			if version >= 3 {
				wantEqual(t, want == nil, resp.Groups[i].ErrorMessage == nil)
			}
		}
		wantEqual(t, []string{`orders/0 -1 -1 "" 0`}, b.fetchOffsets(9, "simple", "orders", [16]byte{}, 0))
	}
}

func TestOffsetDelete(t *testing.T) {
	b := groupBroker(t)
	b.mustCreate("orders", 1)
	b.mustCreate("other", 1)
	for _, topic := range []string{"orders", "other"} {
		b.mustCommit("g", topic, 1)
	}
	b.mustJoin("g")
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = "g"
	for _, topic := range []string{"orders", "other", "missing"} {
		t := kmsg.NewOffsetDeleteRequestTopic()
		t.Topic = topic
		t.Partitions = append(t.Partitions, kmsg.NewOffsetDeleteRequestTopicPartition())
		req.Topics = append(req.Topics, t)
	}
	resp := ask[*kmsg.OffsetDeleteResponse](b, 0, req)
	wantCode(t, "all", resp.ErrorCode, nil)
	for i, want := range []*kafkaproto.Error{kafkaproto.ErrGroupSubscribedToTopic, nil, kafkaproto.ErrUnknownTopicOrPartition} {
		wantCode(t, resp.Topics[i].Topic, resp.Topics[i].Partitions[0].ErrorCode, want)
	}
	wantEqual(t, []string{`orders/0 1 0 "note" 0`}, b.fetchOffsets(9, "g", "", [16]byte{}))
	req.Group = "missing"
	resp = ask[*kmsg.OffsetDeleteResponse](b, 0, req)
	wantCode(t, "missing group", resp.ErrorCode, kafkaproto.ErrGroupIDNotFound)
	wantLen(t, resp.Topics, 0)
}

// After a restart members go on with their heartbeats.
func TestGroupSurvivesARestart(t *testing.T) {
	machine := newMachine()
	b := machine.openGroups(t)
	b.mustCreate("orders", 1)
	b.mustCommit("g", "orders", 7)
	m := b.mustJoin("g")
	b.stop()
	b = machine.openGroups(t)
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID, beat.Generation = "g", m.MemberID, m.Generation
	wantCode(t, "heartbeat", ask[*kmsg.HeartbeatResponse](b, 4, beat).ErrorCode, nil)
	wantEqual(t, []string{`orders/0 7 0 "note" 0`}, b.fetchOffsets(9, "g", "", [16]byte{}))
	req := committing("g", "orders", [16]byte{}, 8)
	req.MemberID, req.Generation = m.MemberID, m.Generation
	wantCode(t, "commit", ask[*kmsg.OffsetCommitResponse](b, 9, req).Topics[0].Partitions[0].ErrorCode, nil)
}

// What a retry may cure makes clients try again; the rest does not.
func TestCoordinatorErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want *kafkaproto.Error
	}{
		{streamstore.ErrFenced, kafkaproto.ErrNotCoordinator},
		{streamstore.ErrBackpressure, kafkaproto.ErrCoordinatorNotAvailable},
		{streamstore.ErrFailed, kafkaproto.ErrCoordinatorNotAvailable},
		{streamstore.ErrClosed, kafkaproto.ErrCoordinatorNotAvailable},
		{context.DeadlineExceeded, kafkaproto.ErrCoordinatorNotAvailable},
		{errors.New("other"), kafkaproto.ErrUnknownServerError},
		{nil, nil},
	} {
		got := coordinatorError(fmt.Errorf("commit: %w", tc.err))
		if tc.err == nil {
			got = coordinatorError(nil)
		}
		wantCode(t, fmt.Sprint(tc.err), errorCode(got), tc.want)
	}
}

// serve starts a server of the Kafka protocol and returns its address.
func serveGroups(t *testing.T) (b *adminBroker, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	wantNoError(t, err)
	b = newMachine().open(t, func(o *Options) {
		o.AdvertisedHost, o.AdvertisedPort = "127.0.0.1", int32(l.Addr().(*net.TCPAddr).Port)
		o.Groups.InitialRebalanceDelay = 100 * time.Millisecond
		o.Groups.MinSessionTimeout = 500 * time.Millisecond
	})
	server, err := kafkaproto.NewServer(kafkaproto.Options{Versions: b.Versions()}, b)
	wantNoError(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		b.Drain()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		wantNoError(t, server.Shutdown(ctx))
		wantErrorIs(t, <-done, kafkaproto.ErrServerClosed)
	})
	return b, l.Addr().String()
}

// groupConsumer is a franz-go consumer of "orders" in the group "g". assigned receives the partitions that it owns after
// each change.
func groupConsumer(t *testing.T, address string, opts ...kgo.Opt) (client *kgo.Client, assigned chan []int32) {
	t.Helper()
	assigned = make(chan []int32, 100)
	var owned []int32 // callbacks come one at a time
	change := func(add, remove []int32) {
		owned = slices.DeleteFunc(owned, func(p int32) bool { return slices.Contains(remove, p) })
		owned = append(owned, add...)
		slices.Sort(owned)
		assigned <- slices.Clone(owned)
	}
	client, err := kgo.NewClient(append(opts,
		kgo.SeedBrokers(address), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(50*time.Millisecond), kgo.SessionTimeout(2*time.Second),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(50*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { change(p["orders"], nil) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { change(nil, p["orders"]) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, p map[string][]int32) { change(nil, p["orders"]) }),
	)...)
	wantNoError(t, err)
	t.Cleanup(client.Close)
	return client, assigned
}

// owns waits until a consumer owns n partitions.
func owns(t *testing.T, ctx context.Context, assigned chan []int32, n int) {
	t.Helper()
	for {
		select {
		case owned := <-assigned:
			if len(owned) == n {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no %d partitions were assigned", n)
		}
	}
}

// poll returns the values of n records.
func poll(t *testing.T, ctx context.Context, client *kgo.Client, n int) []string {
	t.Helper()
	var values []string
	for len(values) < n {
		fetches := client.PollFetches(ctx)
		wantNoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	slices.Sort(values)
	return values
}

// Two real consumers share a topic; one commits and leaves; what comes next goes to the other, and a newcomer goes on
// where the group stands.
func TestConsumersOfAGroup(t *testing.T) {
	for name, balancer := range map[string]kgo.GroupBalancer{"eager": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer()} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			b, address := serveGroups(t)
			b.mustCreate("orders", 2)
			producer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			wantNoError(t, err)
			defer producer.Close()
			produce := func(value string) {
				for p := range int32(2) {
					r := &kgo.Record{Topic: "orders", Partition: p, Value: fmt.Append(nil, value, p)}
					wantNoError(t, producer.ProduceSync(ctx, r).FirstErr())
				}
			}
			produce("a")
			first, firstOwns := groupConsumer(t, address, kgo.Balancers(balancer))
			owns(t, ctx, firstOwns, 2)
			wantEqual(t, []string{"a0", "a1"}, poll(t, ctx, first, 2))
			wantNoError(t, first.CommitUncommittedOffsets(ctx))

			second, secondOwns := groupConsumer(t, address, kgo.Balancers(balancer))
			owns(t, ctx, secondOwns, 1)
			owns(t, ctx, firstOwns, 1)
			produce("b")
			wantEqual(t, []string{"b0", "b1"}, slices.Sorted(slices.Values(append(poll(t, ctx, first, 1), poll(t, ctx, second, 1)...))))
			wantNoError(t, first.CommitUncommittedOffsets(ctx))
			wantNoError(t, second.CommitUncommittedOffsets(ctx))

			first.Close()
			owns(t, ctx, secondOwns, 2)
			produce("c")
			wantEqual(t, []string{"c0", "c1"}, poll(t, ctx, second, 2))
			second.Close() // without a commit

			third, _ := groupConsumer(t, address, kgo.Balancers(balancer))
			wantEqual(t, []string{"c0", "c1"}, poll(t, ctx, third, 2))
		})
	}
}
