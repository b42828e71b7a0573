package groups

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// partitionCounts has the partitions of topics in tests that have more than one.
var partitionCounts = map[string]int32{"orders": 4, "payments": 3, "wide": 1200}

func (t *topicTable) Topic(name string) (Topic, bool, error) {
	id, ok, err := t.TopicID(name)
	n := partitionCounts[name]
	if n == 0 {
		n = 1
	}
	return Topic{id, n}, ok, err
}

func (t *topicTable) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed++
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.ids)), isStream)
}

// isStream tells the names of streams, which are no topics for Names and Version.
func isStream(name string) bool { return strings.Contains(name, "/") }

func (t *topicTable) Version() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var v uint64
	for name, id := range t.ids {
		if !isStream(name) {
			v += 1 + uint64(id)<<8
		}
	}
	return v
}

// fakeConsumer is a client of KIP-848.
type fakeConsumer struct {
	f     *fixture
	id    string
	epoch int32
	// owned is what it holds. A slow one holds on to what it is to revoke.
	owned assignment
	slow  bool
	edits []func(*ConsumerHeartbeatRequest)
}

// consumers joins members of these ids that read "orders", one after the other.
func (f *fixture) consumers(ids ...string) []*fakeConsumer {
	f.t.Helper()
	var all []*fakeConsumer
	for _, id := range ids {
		c := f.consumer(id)
		wantErr(f.t, "join", c.join().Err, nil)
		all = append(all, c)
	}
	return all
}

// consumer is one that has yet to join.
func (f *fixture) consumer(id string, edits ...func(*ConsumerHeartbeatRequest)) *fakeConsumer {
	return &fakeConsumer{f: f, id: id, edits: edits}
}

// settled makes a Stable group of members with these ids.
func (f *fixture) settled(ids ...string) []*fakeConsumer {
	f.t.Helper()
	all := f.consumers(ids...)
	f.settle(all...)
	return all
}

// settle beats until the group is Stable. No partition may be held by two.
func (f *fixture) settle(all ...*fakeConsumer) {
	f.t.Helper()
	for range 4 + 2*len(all) {
		for _, c := range all {
			wantErr(f.t, "heartbeat of "+c.id, c.beat().Err, nil)
		}
		f.wantOneHolder(all)
		if d, _ := f.DescribeConsumer("g"); d.State == Stable {
			return
		}
	}
	f.t.Fatal("the group does not become stable")
}

func (f *fixture) wantOneHolder(all []*fakeConsumer) {
	f.t.Helper()
	holders := map[topicPartition]string{}
	for _, c := range all {
		for _, p := range c.owned {
			if other, ok := holders[p]; ok {
				f.t.Fatalf("%v is held by %s and %s", p, other, c.id)
			}
			holders[p] = c.id
		}
	}
}

// request is a join, or a full heartbeat.
func (c *fakeConsumer) request(epoch int32) *ConsumerHeartbeatRequest {
	r := &ConsumerHeartbeatRequest{
		Group: "g", MemberID: c.id, MemberIDRequired: true, MemberEpoch: epoch, RebalanceTimeout: time.Minute,
		Topics: []string{"orders"}, Owned: []TopicPartitions{}, ClientID: "client", ClientHost: "/10.0.0.1",
	}
	if epoch > 0 {
		r.Owned = named(c.owned)
	}
	for _, edit := range c.edits {
		edit(r)
	}
	return r
}

func named(a assignment) []TopicPartitions {
	topics := []TopicPartitions{}
	a.byTopic(func(topic [16]byte, partitions []int32) {
		topics = append(topics, TopicPartitions{TopicID: topic, Partitions: partitions})
	})
	return topics
}

func (c *fakeConsumer) join() ConsumerHeartbeatResult {
	c.f.t.Helper()
	c.owned = nil
	return c.send(c.request(0))
}

// beat tells what it holds, and takes up what it is assigned.
func (c *fakeConsumer) beat() ConsumerHeartbeatResult {
	c.f.t.Helper()
	return c.send(c.request(c.epoch))
}

// keepAlive sends a heartbeat that says nothing.
func (c *fakeConsumer) keepAlive() ConsumerHeartbeatResult {
	c.f.t.Helper()
	r := c.request(c.epoch)
	r.Topics, r.Regex, r.Owned, r.RebalanceTimeout, r.Assignor = nil, nil, nil, -1, nil
	return c.send(r)
}

func (c *fakeConsumer) leave() ConsumerHeartbeatResult {
	c.f.t.Helper()
	return get(c.f.t, c.f.ConsumerHeartbeat(c.request(leaveEpoch)))
}

func (c *fakeConsumer) send(r *ConsumerHeartbeatRequest) ConsumerHeartbeatResult {
	c.f.t.Helper()
	result := get(c.f.t, c.f.ConsumerHeartbeat(r))
	c.take(&result)
	return result
}

func (c *fakeConsumer) take(result *ConsumerHeartbeatResult) {
	if result.Err != nil {
		return
	}
	c.epoch = result.MemberEpoch
	if !result.HasAssignment {
		return
	}
	assigned := flatten(result.Assignment)
	if c.slow {
		assigned = assigned.union(c.owned)
	}
	c.owned = assigned
}

func instance(name string) func(*ConsumerHeartbeatRequest) {
	return func(r *ConsumerHeartbeatRequest) { r.InstanceID = &name }
}

func reading(topics ...string) func(*ConsumerHeartbeatRequest) {
	return func(r *ConsumerHeartbeatRequest) { r.Topics = topics }
}

func matching(regex string) func(*ConsumerHeartbeatRequest) {
	return func(r *ConsumerHeartbeatRequest) { r.Topics, r.Regex = []string{}, &regex }
}

func preferring(assignor string) func(*ConsumerHeartbeatRequest) {
	return func(r *ConsumerHeartbeatRequest) { r.Assignor = &assignor }
}

// parts are partitions of "orders".
func parts(numbers ...int32) assignment {
	var a assignment
	for _, n := range numbers {
		a = append(a, topicPartition{[16]byte{1}, n})
	}
	return a
}

func (f *fixture) wantConsumerState(state State, epoch int32) {
	f.t.Helper()
	d, err := f.DescribeConsumer("g")
	wantErr(f.t, "describe", err, nil)
	if d.State != state || d.Epoch != epoch {
		f.t.Fatalf("the group is %s at epoch %d, want %s at %d", d.State, d.Epoch, state, epoch)
	}
}

func (c *fakeConsumer) want(epoch int32, owned ...int32) {
	c.f.t.Helper()
	if c.epoch != epoch || !c.owned.equal(parts(owned...)) {
		c.f.t.Fatalf("%s is at epoch %d with %v, want epoch %d with %v", c.id, c.epoch, c.owned, epoch, owned)
	}
}
