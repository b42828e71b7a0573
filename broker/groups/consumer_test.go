package groups

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// The first member has all; a second one gets its share when the first has said that it gave it up, not before.
func TestConsumerGroupHandsOver(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumers("a")[0]
		a.want(1, 0, 1, 2, 3)
		f.wantConsumerState(Stable, 1)

		b := f.consumers("b")[0]
		b.want(2)
		f.wantConsumerState(Reconciling, 2)
		want(t, "nothing to revoke is told to others", b.keepAlive().HasAssignment, false)

		a.slow = true
		result := a.keepAlive()
		want(t, "told to revoke", flatten(result.Assignment), parts(0, 1))
		want(t, "epoch while revoking", a.epoch, int32(1))
		a.beat()
		want(t, "nothing is told twice", a.keepAlive().HasAssignment, false)
		b.beat()
		b.want(2)

		a.slow, a.owned = false, parts(0, 1)
		a.beat()
		a.want(2, 0, 1)
		f.wantConsumerState(Reconciling, 2)
		b.keepAlive()
		b.want(2, 2, 3)
		f.wantConsumerState(Stable, 2)

		wantErr(t, "leave", a.leave().Err, nil)
		f.wantConsumerState(Assigning, 3)
		b.keepAlive()
		b.want(3, 0, 1, 2, 3)
		f.wantConsumerState(Stable, 3)
		want(t, "leave", b.leave(), ConsumerHeartbeatResult{MemberID: "b", MemberEpoch: -1})
		f.wantConsumerState(Empty, 4)
	})
}

func TestConsumerHeartbeatRequests(t *testing.T) {
	empty, unknown, bad, valid := "", "best", "(", "orders"
	join := func(edit func(*ConsumerHeartbeatRequest)) func(*fixture) *ConsumerHeartbeatRequest {
		return func(f *fixture) *ConsumerHeartbeatRequest {
			r := f.consumer("x").request(0)
			edit(r)
			return r
		}
	}
	for name, tc := range map[string]struct {
		request func(*fixture) *ConsumerHeartbeatRequest
		want    *kafkaproto.Error
	}{
		"empty group":          {join(func(r *ConsumerHeartbeatRequest) { r.Group = "" }), kafkaproto.ErrInvalidRequest},
		"empty member id":      {join(func(r *ConsumerHeartbeatRequest) { r.MemberID = "" }), kafkaproto.ErrInvalidRequest},
		"long member id":       {join(func(r *ConsumerHeartbeatRequest) { r.MemberID = strings.Repeat("x", 1<<15) }), kafkaproto.ErrInvalidRequest},
		"empty instance id":    {join(func(r *ConsumerHeartbeatRequest) { r.InstanceID = &empty }), kafkaproto.ErrInvalidRequest},
		"empty rack id":        {join(func(r *ConsumerHeartbeatRequest) { r.RackID = &empty }), kafkaproto.ErrInvalidRequest},
		"no rebalance timeout": {join(func(r *ConsumerHeartbeatRequest) { r.RebalanceTimeout = -1 }), kafkaproto.ErrInvalidRequest},
		"no owned partitions":  {join(func(r *ConsumerHeartbeatRequest) { r.Owned = nil }), kafkaproto.ErrInvalidRequest},
		"owned partitions": {join(func(r *ConsumerHeartbeatRequest) {
			r.Owned = []TopicPartitions{{TopicID: [16]byte{1}, Partitions: []int32{0}}}
		}), kafkaproto.ErrInvalidRequest},
		"no subscription":      {join(func(r *ConsumerHeartbeatRequest) { r.Topics = nil }), kafkaproto.ErrInvalidRequest},
		"empty subscription":   {join(func(r *ConsumerHeartbeatRequest) { r.Topics, r.Regex = []string{}, &empty }), kafkaproto.ErrInvalidRequest},
		"epoch -3":             {join(func(r *ConsumerHeartbeatRequest) { r.MemberEpoch = -3 }), kafkaproto.ErrInvalidRequest},
		"static leave without": {join(func(r *ConsumerHeartbeatRequest) { r.MemberEpoch = -2 }), kafkaproto.ErrInvalidRequest},
		"unknown assignor":     {join(preferring(unknown)), kafkaproto.ErrUnsupportedAssignor},
		"bad expression":       {join(matching(bad)), kafkaproto.ErrInvalidRegularExpression},
		"unbalanced":           {join(matching(")|(")), kafkaproto.ErrInvalidRegularExpression},
		"long expression":      {join(matching(strings.Repeat("x", maxRegex+1))), kafkaproto.ErrInvalidRegularExpression},
		"expression":           {join(matching(valid)), nil},
		"beat of no group":     {join(func(r *ConsumerHeartbeatRequest) { r.Group, r.MemberEpoch = "none", 1 }), kafkaproto.ErrUnknownMemberID},
		"leave of no group":    {join(func(r *ConsumerHeartbeatRequest) { r.Group, r.MemberEpoch = "none", -1 }), kafkaproto.ErrGroupIDNotFound},
		"beat of a stranger":   {join(func(r *ConsumerHeartbeatRequest) { r.MemberEpoch = 1 }), kafkaproto.ErrUnknownMemberID},
		"leave of a stranger":  {join(func(r *ConsumerHeartbeatRequest) { r.MemberEpoch = -1 }), kafkaproto.ErrUnknownMemberID},
		"beat of an instance":  {join(func(r *ConsumerHeartbeatRequest) { r.MemberEpoch, r.InstanceID = 1, &valid }), kafkaproto.ErrUnknownMemberID},
		"leave of an instance": {join(func(r *ConsumerHeartbeatRequest) { r.MemberEpoch, r.InstanceID = -2, &valid }), kafkaproto.ErrUnknownMemberID},
		"no room":              {join(func(r *ConsumerHeartbeatRequest) { r.Topics = []string{strings.Repeat("x", maxGroupMetadata)} }), kafkaproto.ErrGroupMaxSizeReached},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.consumers("a")
				result := get(t, f.ConsumerHeartbeat(tc.request(f)))
				wantErr(t, name, result.Err, tc.want)
			})
		})
	}
}

func TestConsumerGetsAMemberIDBeforeV1(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.consumer("", func(r *ConsumerHeartbeatRequest) { r.MemberIDRequired = false })
		result := c.join()
		wantErr(t, "join", result.Err, nil)
		want(t, "length of the id", len(result.MemberID), 36)
		c.id = result.MemberID
		wantErr(t, "heartbeat", c.beat().Err, nil)
	})
}

// The epoch before is taken for a lost answer, if the member holds nothing that it must not; other wrong epochs fence.
func TestConsumerEpochs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		all := f.settled("a", "b")
		a := all[0]
		a.want(2, 0, 1)
		at := func(epoch int32, owned assignment) *kafkaproto.Error {
			r := a.request(epoch)
			if r.Owned = nil; owned != nil {
				r.Owned = named(owned)
			}
			return get(t, f.ConsumerHeartbeat(r)).Err
		}
		wantErr(t, "newer", at(3, a.owned), kafkaproto.ErrFencedMemberEpoch)
		wantErr(t, "before, with all", at(1, a.owned), nil)
		wantErr(t, "before, with less", at(1, parts(0)), nil)
		wantErr(t, "before, with none", at(1, assignment{}), nil)
		wantErr(t, "before, without telling", at(1, nil), kafkaproto.ErrFencedMemberEpoch)
		wantErr(t, "before, with another's", at(1, parts(0, 2)), kafkaproto.ErrFencedMemberEpoch)
		all[1].leave()
		a.beat()
		wantErr(t, "older", at(1, parts(0)), kafkaproto.ErrFencedMemberEpoch)
		// It has lost all, and is told again what it may use.
		wantErr(t, "join again", a.join().Err, nil)
		a.want(3, 0, 1, 2, 3)
		f.wantConsumerState(Stable, 3)
	})
}

// A full request is always answered with the assignment, for the answer before may have been lost.
func TestConsumerFullRequests(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		want(t, "heartbeat", a.keepAlive().HasAssignment, false)
		r := a.request(a.epoch)
		want(t, "full", flatten(get(t, f.ConsumerHeartbeat(r)).Assignment), parts(0, 1, 2, 3))
		r.Topics = nil
		want(t, "without a subscription", get(t, f.ConsumerHeartbeat(r)).HasAssignment, false)
		want(t, "interval", a.keepAlive().Interval, 5*time.Second)
	})
}

func TestConsumerSessionEnds(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		all := f.settled("a", "b")
		pass(30 * time.Second)
		all[0].keepAlive()
		pass(16 * time.Second)
		f.wantConsumerState(Assigning, 3)
		wantErr(t, "of the one that was late", all[1].keepAlive().Err, kafkaproto.ErrUnknownMemberID)
		all[0].keepAlive()
		all[0].want(3, 0, 1, 2, 3)
		pass(46 * time.Second)
		f.wantConsumerState(Empty, 4)
	})
}

// A member that does not revoke in time is out, however alive it is; others get its partitions.
func TestConsumerRebalanceTimeout(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		b := f.consumers("b")[0]
		a.slow = true
		for range 6 {
			a.beat()
			b.beat()
			pass(10 * time.Second)
		}
		b.beat()
		b.want(3, 0, 1, 2, 3)
		wantErr(t, "the slow one", a.beat().Err, kafkaproto.ErrUnknownMemberID)
	})
}

// One that revokes in time has all the time that it wants after that.
func TestConsumerRebalanceTimeoutEnds(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		b := f.consumers("b")[0]
		for range 10 {
			wantErr(t, "a", a.beat().Err, nil)
			wantErr(t, "b", b.beat().Err, nil)
			pass(20 * time.Second)
		}
		a.want(2, 0, 1)
		b.want(2, 2, 3)
	})
}

// A static member that leaves for a while keeps its partitions; the next of that name takes its place without a rebalance.
func TestStaticConsumer(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a, b := f.consumer("a", instance("i")), f.consumer("b")
		a.join()
		b.join()
		f.settle(a, b)
		again := f.consumer("again", instance("i"))
		wantErr(t, "while it is there", again.join().Err, kafkaproto.ErrUnreleasedInstanceID)

		away := get(t, f.ConsumerHeartbeat(a.request(-2)))
		want(t, "leave for a while", away, ConsumerHeartbeatResult{MemberID: "a", MemberEpoch: -2})
		f.wantConsumerState(Reconciling, 2)
		b.beat()
		b.want(2, 2, 3)
		wantErr(t, "of one that has left", a.beat().Err, kafkaproto.ErrFencedMemberEpoch)

		wantErr(t, "join", again.join().Err, nil)
		again.want(2, 0, 1)
		f.wantConsumerState(Stable, 2)
		wantErr(t, "of the one before", a.beat().Err, kafkaproto.ErrFencedInstanceID)
		wantErr(t, "leave of the one before", a.leave().Err, kafkaproto.ErrFencedInstanceID)
		wantErr(t, "leave", again.leave().Err, nil)
		f.wantConsumerState(Assigning, 3)
	})
}

// The one that comes back may have the same member id, and one that does not come back is out when its session ends.
func TestStaticConsumerThatIsAway(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", instance("i"))
		a.join()
		get(t, f.ConsumerHeartbeat(a.request(-2)))
		wantErr(t, "same member id", a.join().Err, nil)
		a.want(1, 0, 1, 2, 3)
		get(t, f.ConsumerHeartbeat(a.request(-2)))
		pass(46 * time.Second)
		f.wantConsumerState(Empty, 2)
	})
}

// What the one that is away was to revoke is free at once.
func TestStaticConsumerLeavesWhileRevoking(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", instance("i"))
		a.join()
		b := f.consumers("b")[0]
		a.slow = true
		a.beat()
		get(t, f.ConsumerHeartbeat(a.request(-2)))
		b.keepAlive()
		b.want(2, 2, 3)
	})
}

// A client that mixes up ids does no harm to other members.
func TestConsumerMixesUpIDs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a, b := f.consumer("a", instance("i")), f.consumer("b", instance("j"))
		a.join()
		b.join()
		f.settle(a, b)
		get(t, f.ConsumerHeartbeat(a.request(-2)))
		mixed := f.consumer("b", instance("i"))
		wantErr(t, "the instance of another", mixed.join().Err, kafkaproto.ErrInvalidRequest)
		mixed = f.consumer("b", instance("k"))
		wantErr(t, "a new instance", mixed.join().Err, nil)
		mixed.want(2, 2, 3)
		wantErr(t, "the instance that it had", f.consumer("c", instance("j")).join().Err, nil)
		f.restart()
		f.wantConsumerState(Reconciling, 3)
	})
}

func TestConsumerGroupMaxSize(t *testing.T) {
	inBubble(t, func(o *Options) { o.ConsumerMaxSize = 2 }, func(t *testing.T, f *fixture) {
		all := f.consumers("a", "b")
		c := f.consumer("c")
		wantErr(t, "third", c.join().Err, kafkaproto.ErrGroupMaxSizeReached)
		wantErr(t, "first again", all[0].join().Err, nil)
		all[1].leave()
		wantErr(t, "third", c.join().Err, nil)
	})
}

func TestConsumerGroupDrains(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		f.Drain()
		wantErr(t, "heartbeat", a.beat().Err, nil)
		wantErr(t, "join", f.consumer("b").join().Err, kafkaproto.ErrNotCoordinator)
		f.Close()
		wantErr(t, "after the end", a.beat().Err, kafkaproto.ErrCoordinatorNotAvailable)
	})
}

// The assignor is the one that most members would like.
func TestConsumerGroupAssignor(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		assignor := func() string {
			d, err := f.DescribeConsumer("g")
			wantErr(t, "describe", err, nil)
			return d.Assignor
		}
		f.consumer("a", preferring("range")).join()
		want(t, "one", assignor(), "range")
		f.consumer("b", preferring("uniform")).join()
		want(t, "one each", assignor(), "uniform")
		f.consumer("c", preferring("range")).join()
		want(t, "two to one", assignor(), "range")
	})
}

// Members may read different topics, and change their minds.
func TestConsumerSubscriptions(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.topics.set("payments", 3)
		a, b := f.consumer("a"), f.consumer("b", reading("payments", "payments", "missing"))
		a.join()
		b.join()
		f.settle(a, b)
		a.want(2, 0, 1, 2, 3)
		want(t, "payments", b.owned, assignment{{[16]byte{3}, 0}, {[16]byte{3}, 1}, {[16]byte{3}, 2}})
		a.edits = append(a.edits, reading("payments"))
		f.settle(a, b)
		want(t, "all", len(a.owned)+len(b.owned), 3)
		b.leave()
		pass(11 * time.Second)
		f.settle(a)
		f.wantConsumerState(Stable, 4) // topics that nobody reads any more are no change of topics
		f.topics.set("missing", 9)
		pass(2 * time.Second)
		b = f.consumer("b", reading("payments", "missing"))
		b.join()
		f.settle(a, b)
		want(t, "all with the new topic", len(a.owned)+len(b.owned), 4)
	})
}

// A regular expression matches whole names of topics, now and later.
func TestConsumerRegex(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", matching("logs-[ab]|orders"))
		a.join()
		a.want(1, 0, 1, 2, 3)
		f.topics.set("logs-a", 11)
		f.topics.set("logs-ab", 12)
		f.topics.set("more-logs-a", 13)
		a.keepAlive()
		a.want(1, 0, 1, 2, 3) // it is too soon to look again
		pass(time.Second)
		a.keepAlive()
		want(t, "with the new topic", a.owned, parts(0, 1, 2, 3).union(assignment{{[16]byte{11}, 0}}))
		want(t, "epoch", a.epoch, int32(2))
		f.topics.set("orders", 0)
		pass(time.Second)
		f.settle(a)
		want(t, "without the old", a.owned, assignment{{[16]byte{11}, 0}})
		// By names from now on.
		a.edits = []func(*ConsumerHeartbeatRequest){func(r *ConsumerHeartbeatRequest) {
			none := ""
			r.Topics, r.Regex = []string{"logs-ab"}, &none
		}}
		f.settle(a)
		want(t, "by name", a.owned, assignment{{[16]byte{12}, 0}})
	})
}

// Named streams do not show in the version of the topics; they are looked for now and then.
func TestConsumerOfTopicsThatDoNotShow(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", reading("dir/late"))
		a.join()
		f.topics.set("dir/late", 7)
		pass(5 * time.Second)
		a.keepAlive()
		a.want(1)
		pass(5 * time.Second)
		a.keepAlive()
		want(t, "found", a.owned, assignment{{[16]byte{7}, 0}})
	})
}

// A topic that was deleted and made again is another one.
func TestConsumerOfATopicMadeAgain(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		f.topics.set("orders", 8)
		pass(2 * time.Second)
		f.settle(a)
		want(t, "the new one", a.owned[0].topic, [16]byte{8})
		want(t, "partitions", len(a.owned), 4)
	})
}

// Nothing is said that is not durable, and what could not be stored is stored later.
func TestConsumerGroupIsStoredFirst(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		f.rows.set(nil, time.Second)
		b := f.consumer("b")
		p := f.ConsumerHeartbeat(b.request(0))
		mustWait(t, p)
		again := f.ConsumerHeartbeat(b.request(0)) // the client gave up on the first
		mustWait(t, again)
		pass(3 * time.Second)
		wantErr(t, "join", get(t, p).Err, nil)
		wantErr(t, "join", get(t, again).Err, nil)
		want(t, "a heartbeat without news", get(t, f.ConsumerHeartbeat(b.request(2))).Err == nil, true)

		f.rows.set(errors.New("broken"), 0)
		wantErr(t, "revoke", a.keepAlive().Err, kafkaproto.ErrUnknownServerError)
		f.rows.set(nil, 0)
		wantErr(t, "the next", a.beat().Err, nil)
		b.epoch = 2
		f.settle(a, b)
		f.restart()
		f.settle(a, b)
		a.want(2, 0, 1)
		b.want(2, 2, 3)
	})
}

// What is known of a group when the broker starts again is all that was said, in whatever state it was.
func TestConsumerGroupSurvivesRestarts(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.consumer("a", instance("i"), preferring("range"))
		a.join()
		b := f.consumer("b", matching("ord.*"))
		restart := func(state State, epoch int32) {
			t.Helper()
			before, err := f.DescribeConsumer("g")
			wantErr(t, "describe", err, nil)
			f.restart()
			after, err := f.DescribeConsumer("g")
			wantErr(t, "describe", err, nil)
			want(t, "group", after, before)
			f.wantConsumerState(state, epoch)
		}
		restart(Stable, 1)
		b.join()
		restart(Reconciling, 2)
		a.slow = true
		a.beat()
		restart(Reconciling, 2)
		b.beat()
		b.want(2) // what a has not revoked is not given away
		a.slow, a.owned = false, parts(0, 1)
		a.beat()
		restart(Reconciling, 2)
		b.beat()
		b.want(2, 2, 3)
		restart(Stable, 2)
		get(t, f.ConsumerHeartbeat(a.request(-2)))
		restart(Reconciling, 2)
		a.join()
		a.want(2, 0, 1)
		b.leave()
		restart(Assigning, 3)
		a.beat()
		a.want(3, 0, 1, 2, 3)
		a.leave()
		restart(Empty, 4)
		all, err := f.ListTypes()
		want(t, "error", err, nil)
		want(t, "list", all, []TypedListing{{Listing{"g", "consumer", Empty}, true}})
		a.join()
		a.want(5, 0, 1, 2, 3)
	})
}

// Topics that change while no broker runs are found, and a member that does not come back is out in the end.
func TestConsumerGroupAfterARestart(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		all := f.settled("a", "b")
		a := all[0]
		f.Close()
		f.topics.set("orders", 5)
		f.start()
		for range 5 {
			a.beat()
			pass(10 * time.Second)
		}
		a.beat()
		want(t, "all of the new topic", a.owned, assignment{{[16]byte{5}, 0}, {[16]byte{5}, 1}, {[16]byte{5}, 2}, {[16]byte{5}, 3}})
		f.wantConsumerState(Stable, 4)
	})
}

// The rebalance timeout of a member that was to revoke begins anew with the broker.
func TestConsumerRebalanceTimeoutAfterARestart(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		b := f.consumers("b")[0]
		a.slow = true
		a.beat()
		f.restart()
		for range 6 {
			a.beat()
			b.beat()
			pass(10 * time.Second)
		}
		wantErr(t, "the slow one", a.beat().Err, kafkaproto.ErrUnknownMemberID)
	})
}

// An empty consumer group is rows only, can be deleted, and is gone in the end.
func TestEmptyConsumerGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.settled("a")[0].leave()
		want(t, "groups in memory", f.inMemory(), 0)
		want(t, "rows", f.rows.keys(), []string{"group/g"})
		f.mustCommit(commit(nobody, 3))
		want(t, "offset", f.committed(), int64(3))
		wantErr(t, "delete", get(t, f.DeleteGroup("g")), nil)
		want(t, "rows", len(f.rows.keys()), 0)

		f.settled("a")[0].leave()
		wantErr(t, "clean", asKafka(f.Clean(context.Background())), nil)
		want(t, "rows", len(f.rows.keys()), 0)
		_, err := f.DescribeConsumer("g")
		wantErr(t, "describe", err, kafkaproto.ErrGroupIDNotFound)
	})
}

func asKafka(err error) *kafkaproto.Error {
	if err == nil {
		return nil
	}
	return kafkaproto.AsError(err)
}

// Requests for classic groups, about one with members that are not.
func TestConsumerGroupIsNoClassicGroup(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		f.wantState(Dead) // DescribeGroups
		wantErr(t, "delete", get(t, f.DeleteGroup("g")), kafkaproto.ErrNonEmptyGroup)
		wantErr(t, "heartbeat", f.Heartbeat(&HeartbeatRequest{Group: "g", MemberID: "a", Generation: 1}), kafkaproto.ErrUnknownMemberID)
		wantErr(t, "sync", get(t, f.Sync(&SyncRequest{Group: "g", MemberID: "a", Generation: 1})).Err, kafkaproto.ErrUnknownMemberID)
		errs, err := f.Leave("g", []LeavingMember{{MemberID: "a"}})
		wantErr(t, "leave", err, nil)
		wantErr(t, "leave", errs[0], kafkaproto.ErrUnknownMemberID)
		wantErr(t, "still there", a.beat().Err, nil)
		deleted := get(t, f.DeleteOffsets("g", []Partition{{"orders", 0}, {"dir/stream", 0}}))
		wantErr(t, "read by a member", deleted.Errs[0], kafkaproto.ErrGroupSubscribedToTopic)
		wantErr(t, "not read", deleted.Errs[1], nil)
	})
}

// A commit is of the member's epoch, or of one since which it has held the partition.
func TestConsumerCommits(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		all := f.settled("a", "b")
		a, b := all[0], all[1]
		at := func(id string, epoch int32, partitions ...int32) (errs []*kafkaproto.Error) {
			r := &CommitRequest{Group: "g", MemberID: id, Generation: epoch, GroupIDNotFound: true}
			for _, p := range partitions {
				r.Offsets = append(r.Offsets, OffsetCommit{Topic: "orders", TopicID: [16]byte{1}, Partition: p, Offset: 5})
			}
			return get(t, f.Commit(r))
		}
		wantErr(t, "epoch", at("a", 2, 0)[0], nil)
		wantErr(t, "epoch to come", at("a", 3, 0)[0], kafkaproto.ErrStaleMemberEpoch)
		wantErr(t, "epoch before, held since", at("a", 1, 0)[0], nil)
		wantErr(t, "epoch before, given up since", at("a", 1, 2)[0], kafkaproto.ErrStaleMemberEpoch)
		wantErr(t, "before it was given", at("b", 1, 2)[0], kafkaproto.ErrStaleMemberEpoch)
		wantErr(t, "no member", at("c", 2, 0)[0], kafkaproto.ErrUnknownMemberID)
		wantErr(t, "no epoch", at("a", -1, 0)[0], kafkaproto.ErrStaleMemberEpoch)
		wantErr(t, "simple consumer", at("", -1, 0)[0], kafkaproto.ErrUnknownMemberID)
		old := &CommitRequest{Group: "g", MemberID: "a", Generation: 2, Offsets: []OffsetCommit{{Topic: "orders", TopicID: [16]byte{1}}}}
		wantErr(t, "before v9", get(t, f.Commit(old))[0], kafkaproto.ErrUnsupportedVersion)
		a.leave()
		b.beat()
		b.want(3, 0, 1, 2, 3)
		errs := at("b", 2, 2, 0)
		wantErr(t, "held since", errs[0], nil)
		wantErr(t, "given since", errs[1], kafkaproto.ErrStaleMemberEpoch)
	})
}

func TestConsumerFetchesOffsets(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.settled("a", "b")
		a, stranger := "a", "x"
		wantErr(t, "nobody", f.CheckFetch("g", nil, -1), nil)
		wantErr(t, "member", f.CheckFetch("g", &a, 2), nil)
		wantErr(t, "older epoch", f.CheckFetch("g", &a, 1), kafkaproto.ErrStaleMemberEpoch)
		wantErr(t, "stranger", f.CheckFetch("g", &stranger, 2), kafkaproto.ErrUnknownMemberID)
		wantErr(t, "no id", f.CheckFetch("g", nil, 2), kafkaproto.ErrUnknownMemberID)
		wantErr(t, "other group", f.CheckFetch("other", &a, 2), nil)
	})
}

// Offsets that members read do not expire, those of other topics do.
func TestConsumerGroupOffsetsExpire(t *testing.T) {
	inBubble(t, func(o *Options) { o.OffsetRetention, o.CleanInterval = time.Hour, time.Minute }, func(t *testing.T, f *fixture) {
		a := f.settled("a")[0]
		r := &CommitRequest{Group: "g", MemberID: "a", Generation: 1, GroupIDNotFound: true, Offsets: []OffsetCommit{
			{Topic: "orders", TopicID: [16]byte{1}, Offset: 5}, {Topic: "dir/stream", TopicID: [16]byte{2}, Offset: 6},
		}}
		f.mustCommit(r)
		for range 150 {
			pass(30 * time.Second)
			a.keepAlive()
		}
		want(t, "read", f.committed(), int64(5))
		_, ok, err := f.Committed("g", "dir/stream", [16]byte{2}, 0)
		want(t, "error", err, nil)
		want(t, "not read", ok, false)
		a.leave()
		pass(50 * time.Minute)
		want(t, "just left", f.committed(), int64(5))
		pass(12 * time.Minute)
		want(t, "expired", f.committed(), int64(-1))
	})
}

// Members join, settle and leave in a number of writes that does not grow with the square of their number.
func TestThousandConsumers(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.topics.set("wide", 20)
		var all []*fakeConsumer
		for i := range 1000 {
			c := f.consumer(fmt.Sprintf("m%04d", i), reading("wide"))
			wantErr(t, "join", c.join().Err, nil)
			all = append(all, c)
		}
		f.settle(all...)
		for _, c := range all {
			if n := len(c.owned); n != 1 && n != 2 {
				t.Fatalf("%s has %d partitions", c.id, n)
			}
		}
		if f.rows.commits > 10_000 {
			t.Errorf("%d commits", f.rows.commits)
		}
		for _, c := range all {
			wantErr(t, "leave", c.leave().Err, nil)
		}
		f.wantConsumerState(Empty, 2000)
		want(t, "rows", f.rows.keys(), []string{"group/g"})
	})
}

// A commit to a group whose first writes have failed is not stored without the row of the group.
func TestCommitAfterFailedJoin(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.rows.set(kafkaproto.ErrCoordinatorNotAvailable, 0)
		a := f.consumer("a")
		wantErr(t, "join", a.join().Err, kafkaproto.ErrCoordinatorNotAvailable)
		f.rows.set(nil, 0)
		r := commit(nobody, 5)
		r.MemberID, r.Generation, r.GroupIDNotFound = "a", 1, true
		f.mustCommit(r)
		f.restart()
		f.wantConsumerState(Stable, 1)
		want(t, "committed", f.committed(), int64(5))
	})
}
