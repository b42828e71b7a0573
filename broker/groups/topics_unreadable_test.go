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
