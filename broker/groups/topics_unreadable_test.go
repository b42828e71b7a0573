package groups

import (
	"errors"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

var errTopics = errors.New("the topics cannot be read")

// A group that cannot read the topics after a restart goes on with what it has, and makes its targets when it can.
func TestTopicsUnreadableAfterRestart(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		all := f.settled("a", "b")
		f.topics.failWith(errTopics)
		f.restart()
		c := f.consumer("c")
		wantErr(t, "join", c.join().Err, nil)
		all = append(all, c)
		for range 5 {
			for _, m := range all {
				wantErr(t, "heartbeat", m.beat().Err, nil)
			}
			f.wantOneHolder(all)
			d, _ := f.DescribeConsumer("g")
			want(t, "state", d.State, Assigning)
			want(t, "partitions", all[0].owned.union(all[1].owned), parts(0, 1, 2, 3))
			pass(time.Second)
		}
		f.topics.failWith(nil)
		f.settle(all...)
		want(t, "partitions", all[0].owned.union(all[1].owned).union(c.owned), parts(0, 1, 2, 3))
		if len(c.owned) == 0 {
			t.Error("the new member has nothing")
		}
	})
}

// The first member of a group is told to come again if the topics cannot be read.
func TestTopicsUnreadableFirstJoin(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.topics.failWith(errTopics)
		a := f.consumer("a")
		wantErr(t, "join", a.join().Err, kafkaproto.ErrCoordinatorNotAvailable)
		f.wantConsumerState(Empty, 1)
		f.topics.failWith(nil)
		wantErr(t, "join", a.join().Err, nil)
		a.want(2, 0, 1, 2, 3)
	})
}

// A member that uses JoinGroup and says what it holds while the topics cannot be read is not taken for one that holds
// nothing.
func TestTopicsUnreadableRejoin(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		c := f.classicStable()
		b := f.consumer("b")
		wantErr(t, "join", b.join().Err, nil)
		f.topics.failWith(errTopics)
		rejoin := joining(c.MemberID, cooperative(0, 1, 2, 3))
		wantErr(t, "rejoin", get(t, f.Join(rejoin)).Err, kafkaproto.ErrCoordinatorNotAvailable)
		f.topics.failWith(nil)
		wantErr(t, "heartbeat", b.beat().Err, nil)
		want(t, "partitions of the other", len(b.owned), 0)
		c = get(t, f.Join(rejoin))
		wantErr(t, "rejoin", c.Err, nil)
		kept := f.syncOwned(c)
		wantErr(t, "heartbeat", b.beat().Err, nil)
		want(t, "partitions of the other", len(b.owned), 0)
		var numbers []int32
		for _, p := range kept {
			numbers = append(numbers, p.partition)
		}
		c = get(t, f.Join(joining(c.MemberID, cooperative(numbers...))))
		wantErr(t, "rejoin", c.Err, nil)
		wantErr(t, "heartbeat", b.beat().Err, nil)
		want(t, "all partitions", b.owned.union(f.syncOwned(c)), parts(0, 1, 2, 3))
		if len(b.owned) == 0 || b.owned.overlaps(kept) {
			t.Errorf("%v and %v are held", b.owned, kept)
		}
	})
}

// A classic group becomes no consumer group while it cannot be known who holds what.
func TestUpgradeUnreadable(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.classicStable()
		f.topics.failWith(errTopics)
		b := f.consumer("b")
		wantErr(t, "join", b.join().Err, kafkaproto.ErrCoordinatorNotAvailable)
		f.wantState(Stable)
		f.topics.failWith(nil)
		wantErr(t, "join", b.join().Err, nil)
	})
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		r := get(t, f.Join(joining("", cooperative())))
		wantErr(t, "sync", get(t, f.Sync(syncing(r, Assignment{r.MemberID, []byte("what is this")}))).Err, nil)
		wantErr(t, "join", f.consumer("b").join().Err, kafkaproto.ErrGroupIDNotFound)
		f.wantState(Stable)
	})
}
