package broker

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// serveConsumers starts a server whose consumer groups beat fast.
func serveConsumers(t *testing.T) (b *adminBroker, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	wantNoError(t, err)
	b = newMachine().open(t, func(o *Options) {
		o.AdvertisedHost, o.AdvertisedPort = "127.0.0.1", int32(l.Addr().(*net.TCPAddr).Port)
		o.Groups.InitialRebalanceDelay = 100 * time.Millisecond
		o.Groups.MinSessionTimeout = 500 * time.Millisecond
		o.Groups.ConsumerHeartbeatInterval = 50 * time.Millisecond
		o.Groups.ConsumerSessionTimeout = 2 * time.Second
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

// Two real consumers of each protocol, in each order, share a topic. The group changes its type with the first member
// that lets the broker assign, and back when the last such member leaves; offsets stay.
func TestConsumersWithBothProtocols(t *testing.T) {
	broker := []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.ServerSideBalancer()}
	cooperative := []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}
	eager := []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}
	for _, tc := range []struct {
		name                string
		first, second       []kgo.Opt
		alone, shared, left string // types of the group
	}{
		{"both by the broker", broker, broker, "consumer", "consumer", "consumer"},
		{"upgrade", cooperative, broker, "classic", "consumer", "consumer"},
		{"upgrade of an eager member", eager, broker, "classic", "consumer", "consumer"},
		{"downgrade", broker, cooperative, "consumer", "consumer", "classic"},
		{"downgrade to an eager member", broker, eager, "consumer", "consumer", "classic"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			b, address := serveConsumers(t)
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
			first, firstOwns := groupConsumer(t, address, tc.first...)
			owns(t, ctx, firstOwns, 2)
			wantEqual(t, []string{"a0", "a1"}, poll(t, ctx, first, 2))
			wantNoError(t, first.CommitUncommittedOffsets(ctx))
			wantEqual(t, tc.alone, b.typeOf("g"))

			second, secondOwns := groupConsumer(t, address, tc.second...)
			owns(t, ctx, secondOwns, 1)
			owns(t, ctx, firstOwns, 1)
			wantEqual(t, tc.shared, b.typeOf("g"))
			produce("b")
			wantEqual(t, []string{"b0", "b1"}, slices.Sorted(slices.Values(append(poll(t, ctx, first, 1), poll(t, ctx, second, 1)...))))
			wantNoError(t, first.CommitUncommittedOffsets(ctx))
			wantNoError(t, second.CommitUncommittedOffsets(ctx))

			first.Close()
			owns(t, ctx, secondOwns, 2)
			wantEqual(t, tc.left, b.typeOf("g"))
			produce("c")
			wantEqual(t, []string{"c0", "c1"}, poll(t, ctx, second, 2))
			second.Close() // without a commit

			third, _ := groupConsumer(t, address, tc.first...)
			wantEqual(t, []string{"c0", "c1"}, poll(t, ctx, third, 2))
		})
	}
}

// typeOf returns the type of a group as ListGroups has it.
func (b *adminBroker) typeOf(group string) string {
	b.t.Helper()
	for _, g := range ask[*kmsg.ListGroupsResponse](b, 5, kmsg.NewPtrListGroupsRequest()).Groups {
		if g.Group == group {
			return g.GroupType
		}
	}
	return ""
}

// beating is a full ConsumerGroupHeartbeat of a member that reads "orders"; at epoch 0 it joins.
func beating(group, member string, epoch int32) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = group, member, epoch, 60_000
	req.SubscribedTopicNames, req.Topics = []string{"orders"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return req
}

// assignedTo is what a reply to a heartbeat assigns.
func assignedTo(resp *kmsg.ConsumerGroupHeartbeatResponse) map[topicID][]int32 {
	if resp.Assignment == nil {
		return nil
	}
	assigned := map[topicID][]int32{}
	for _, t := range resp.Assignment.Topics {
		assigned[t.TopicID] = t.Partitions
	}
	return assigned
}

// A member's life in both versions, as it and administrators see it.
func TestConsumerGroupInAllVersions(t *testing.T) {
	for version := range int16(2) {
		b := newAdminBroker(t, nil)
		id := topicID(b.mustCreate("orders", 2).TopicID)
		join := beating("g", "", 0)
		resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](b, version, join)
		if version >= 1 {
			wantCode(t, "no member id", resp.ErrorCode, kafkaproto.ErrInvalidRequest)
			wantEqual(t, "MemberId can't be empty.", *resp.ErrorMessage)
			join.MemberID = "mine"
			resp = ask[*kmsg.ConsumerGroupHeartbeatResponse](b, version, join)
		}
		wantCode(t, "join", resp.ErrorCode, nil)
		wantEqual(t, int32(1), resp.MemberEpoch)
		wantEqual(t, int32(5000), resp.HeartbeatIntervalMillis)
		wantEqual(t, map[topicID][]int32{id: {0, 1}}, assignedTo(resp))
		member := *resp.MemberID

		alive := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		alive.Group, alive.MemberID, alive.MemberEpoch = "g", member, 1
		resp = ask[*kmsg.ConsumerGroupHeartbeatResponse](b, version, alive)
		wantCode(t, "heartbeat", resp.ErrorCode, nil)
		wantEqual(t, map[topicID][]int32(nil), assignedTo(resp))

		b.wantConsumerGroupCommits(member, id)
		b.wantConsumerGroupDescribed(version, member, id)

		alive.MemberEpoch = -1
		resp = ask[*kmsg.ConsumerGroupHeartbeatResponse](b, version, alive)
		wantCode(t, "leave", resp.ErrorCode, nil)
		wantEqual(t, int32(-1), resp.MemberEpoch)
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Groups = []string{"g"}
		wantCode(t, "delete", ask[*kmsg.DeleteGroupsResponse](b, 2, req).Groups[0].ErrorCode, nil)
	}
}

// wantConsumerGroupCommits checks offset requests of the only member of "g", at epoch 1.
func (b *adminBroker) wantConsumerGroupCommits(member string, id topicID) {
	b.t.Helper()
	for version := int16(8); version <= 10; version++ {
		commit := committing("g", "orders", id, 7)
		commit.MemberID, commit.Generation = member, 1
		want := kafkaproto.ErrUnsupportedVersion
		if version >= 9 {
			want = nil
		}
		wantCode(b.t, "commit", ask[*kmsg.OffsetCommitResponse](b, version, commit).Topics[0].Partitions[0].ErrorCode, want)
		if version < 9 {
			continue
		}
		commit.Generation = 2
		wantCode(b.t, "commit", ask[*kmsg.OffsetCommitResponse](b, version, commit).Topics[0].Partitions[0].ErrorCode, kafkaproto.ErrStaleMemberEpoch)
		for epoch, want := range map[int32]*kafkaproto.Error{1: nil, 2: kafkaproto.ErrStaleMemberEpoch} {
			fetch := kmsg.NewPtrOffsetFetchRequest()
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group, g.MemberID, g.MemberEpoch = "g", &member, epoch
			fetch.Groups = append(fetch.Groups, g)
			found := ask[*kmsg.OffsetFetchResponse](b, version, fetch).Groups[0]
			wantCode(b.t, "fetch", found.ErrorCode, want)
			if want == nil {
				wantEqual(b.t, int64(7), found.Topics[0].Partitions[0].Offset)
			} else {
				wantLen(b.t, found.Topics, 0)
			}
		}
	}
}

func (b *adminBroker) wantConsumerGroupDescribed(version int16, member string, id topicID) {
	b.t.Helper()
	b.mustJoin("old")
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{"g", "old", "g", "missing"}, true
	found := ask[*kmsg.ConsumerGroupDescribeResponse](b, version, req).Groups
	wantLen(b.t, found, 3)
	g := found[0]
	wantCode(b.t, "describe", g.ErrorCode, nil)
	wantEqual(b.t, []any{"Stable", int32(1), int32(1), "uniform", int32(groupOperations)}, []any{g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName, g.AuthorizedOperations})
	wantLen(b.t, g.Members, 1)
	m := g.Members[0]
	wantEqual(b.t, []any{member, int32(1), []string{"orders"}}, []any{m.MemberID, m.MemberEpoch, m.SubscribedTopics})
	wantEqual(b.t, version >= 1, m.MemberType == memberTypeConsumer)
	for _, a := range []kmsg.Assignment{m.Assignment, m.TargetAssignment} {
		wantEqual(b.t, []any{"orders", id, []int32{0, 1}}, []any{a.TopicPartitions[0].Topic, topicID(a.TopicPartitions[0].TopicID), a.TopicPartitions[0].Partitions})
	}
	wantCode(b.t, "classic", found[1].ErrorCode, kafkaproto.ErrGroupIDNotFound)
	wantCode(b.t, "missing", found[2].ErrorCode, kafkaproto.ErrGroupIDNotFound)

	classic := kmsg.NewPtrDescribeGroupsRequest()
	classic.Groups = []string{"g"}
	wantCode(b.t, "as a classic one", ask[*kmsg.DescribeGroupsResponse](b, 6, classic).Groups[0].ErrorCode, kafkaproto.ErrGroupIDNotFound)
	wantEqual(b.t, "Dead", ask[*kmsg.DescribeGroupsResponse](b, 5, classic).Groups[0].State)
	for filter, want := range map[string][]string{"consumer": {"g"}, "Classic": {"old"}} {
		list := kmsg.NewPtrListGroupsRequest()
		list.TypesFilter = []string{filter}
		var names []string
		for _, l := range ask[*kmsg.ListGroupsResponse](b, 5, list).Groups {
			names = append(names, l.Group)
		}
		wantEqual(b.t, want, names)
	}
}

// Named streams are read by name; expressions match topics, also those that come later.
func TestConsumerGroupOfStreamsAndExpressions(t *testing.T) {
	b := newAdminBroker(t, nil)
	stream := topicID(b.mustCreate("logs/one", 1).TopicID)
	req := beating("streams", "m", 0)
	req.SubscribedTopicNames = []string{"logs/one", "logs/none"}
	wantEqual(t, map[topicID][]int32{stream: {0}}, assignedTo(ask[*kmsg.ConsumerGroupHeartbeatResponse](b, 1, req)))

	first := topicID(b.mustCreate("logs.1", 1).TopicID)
	req = beating("topics", "m", 0)
	req.SubscribedTopicNames, req.SubscribedTopicRegex = nil, kmsg.StringPtr("logs.*")
	wantEqual(t, map[topicID][]int32{first: {0}}, assignedTo(ask[*kmsg.ConsumerGroupHeartbeatResponse](b, 1, req)))
	second := topicID(b.mustCreate("logs.2", 1).TopicID)
	req = beating("more", "m", 0)
	req.SubscribedTopicNames, req.SubscribedTopicRegex = nil, kmsg.StringPtr("logs[.].")
	wantEqual(t, map[topicID][]int32{first: {0}, second: {0}}, assignedTo(ask[*kmsg.ConsumerGroupHeartbeatResponse](b, 1, req)))
	req = beating("bad", "m", 0)
	req.SubscribedTopicRegex = kmsg.StringPtr("(?<!x)y")
	wantCode(t, "not RE2", ask[*kmsg.ConsumerGroupHeartbeatResponse](b, 1, req).ErrorCode, kafkaproto.ErrInvalidRegularExpression)
}

// After a restart members go on with their heartbeats, and find what has happened to the topics.
func TestConsumerGroupSurvivesARestart(t *testing.T) {
	machine := newMachine()
	b := machine.open(t, nil)
	b.mustCreate("orders", 1)
	wantCode(t, "join", ask[*kmsg.ConsumerGroupHeartbeatResponse](b, 1, beating("g", "m", 0)).ErrorCode, nil)
	b.stop()
	b = machine.open(t, nil)
	b.mustDelete("orders")
	id := topicID(b.mustCreate("orders", 3).TopicID)
	resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](b, 1, beating("g", "m", 1))
	wantCode(t, "heartbeat", resp.ErrorCode, nil)
	wantEqual(t, int32(2), resp.MemberEpoch)
	wantEqual(t, map[topicID][]int32{id: {0, 1, 2}}, assignedTo(resp))
}
