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
