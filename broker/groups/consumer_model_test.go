package groups

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// consumerModel runs clients of both protocols against a group, at random: they join, leave, come back, are slow, lose
// answers and fall silent, while topics change, writes fail and the broker restarts.
type consumerModel struct {
	*fixture
	rng  *rand.Rand
	seed uint64
	next int
	// live are the clients that believe to be members.
	live    []*fakeConsumer
	classic []*classicClient
	// epoch is the newest of the group.
	epoch int32
	// faults tells that answers may be lost and writes fail.
	faults bool
}

func TestConsumerGroupModel(t *testing.T) {
	eachSeed(t, 60, func(seed uint64) { runConsumerModel(t, seed, false) })
}

// The same with members that use JoinGroup among the others.
func TestMixedGroupModel(t *testing.T) {
	eachSeed(t, 60, func(seed uint64) { runConsumerModel(t, seed, true) })
}

func runConsumerModel(t *testing.T, seed uint64, mixed bool) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.topics.set("payments", 3)
		m := &consumerModel{fixture: f, rng: rand.New(rand.NewPCG(seed, 2)), seed: seed, faults: true}
		m.addConsumer()
		for range 150 {
			m.act(mixed)
			m.check()
		}
		m.calmDown()
	})
}

func (m *consumerModel) act(mixed bool) {
	n := m.rng.IntN(20)
	switch {
	case n == 0 && len(m.live) < 6:
		m.addConsumer()
	case n == 1 && mixed && len(m.classic) < 3:
		m.next++
		m.classic = append(m.classic, &classicClient{m: m, name: fmt.Sprint("c", m.next)})
	case n == 2 && len(m.live) > 0:
		m.leave(m.rng.IntN(len(m.live)))
	case n == 3:
		m.topics.set("payments", byte(m.rng.IntN(2)*(3+m.rng.IntN(9))))
	case n == 4 && m.rng.IntN(4) == 0:
		m.restart()
		m.epoch = 0 // what was not stored is lost, but nobody was told of it
	case n == 5:
		fail := error(nil)
		if m.rng.IntN(3) == 0 {
			fail = kafkaproto.ErrCoordinatorNotAvailable
		}
		m.rows.set(fail, 0)
	case n == 6 && len(m.live) > 0:
		c := m.live[m.rng.IntN(len(m.live))]
		c.slow = !c.slow
	case n == 7:
		pass(time.Duration(m.rng.IntN(20)) * time.Second)
	case n < 14 && len(m.live) > 0:
		m.beat(m.live[m.rng.IntN(len(m.live))])
	case len(m.classic) > 0:
		c := m.classic[m.rng.IntN(len(m.classic))]
		if m.rng.IntN(15) == 0 {
			c.leave()
		} else {
			c.step()
		}
	}
}

func (m *consumerModel) addConsumer() {
	m.next++
	c := m.consumer(fmt.Sprint("m", m.next))
	if m.rng.IntN(3) == 0 {
		c.edits = append(c.edits, instance(fmt.Sprint("i", m.next)))
	}
	if m.rng.IntN(3) == 0 {
		c.edits = append(c.edits, matching("pay.*|orders"))
	}
	if m.rng.IntN(4) == 0 {
		c.edits = append(c.edits, preferring(rangeAssignor))
	}
	m.live = append(m.live, c)
	m.beat(c)
}

// beat lets a client do what it does next, and perhaps lose the answer.
func (m *consumerModel) beat(c *fakeConsumer) {
	if c.epoch == 0 {
		c.owned = nil
	}
	if !c.slow && m.rng.IntN(3) == 0 && c.epoch > 0 {
		m.took(c, c.f.ConsumerHeartbeat(silent(c.request(c.epoch))))
		return
	}
	m.took(c, c.f.ConsumerHeartbeat(c.request(c.epoch)))
}

func silent(r *ConsumerHeartbeatRequest) *ConsumerHeartbeatRequest {
	r.Topics, r.Regex, r.Owned, r.RebalanceTimeout, r.Assignor = nil, nil, nil, -1, nil
	return r
}

func (m *consumerModel) took(c *fakeConsumer, p *Pending[ConsumerHeartbeatResult]) {
	result := get(m.t, p)
	if m.faults && m.rng.IntN(8) == 0 {
		return // lost on its way
	}
	switch {
	case result.Err == nil:
		if result.MemberEpoch < c.epoch {
			m.t.Fatalf("seed %d: %s goes from epoch %d back to %d", m.seed, c.id, c.epoch, result.MemberEpoch)
		}
		c.f = m.fixture
		c.take(&result)
	case is(result.Err, kafkaproto.ErrFencedMemberEpoch), is(result.Err, kafkaproto.ErrUnknownMemberID):
		c.epoch, c.owned = 0, nil
	case is(result.Err, kafkaproto.ErrUnreleasedInstanceID), is(result.Err, kafkaproto.ErrCoordinatorNotAvailable):
	default:
		m.t.Fatalf("seed %d: heartbeat of %s at %d: %v", m.seed, c.id, c.epoch, result.Err)
	}
}

func is(err, other *kafkaproto.Error) bool { return err != nil && err.Code == other.Code }

// leave ends a client: it says so, or does not, or means to come back.
func (m *consumerModel) leave(i int) {
	c := m.live[i]
	r := c.request(leaveEpoch)
	if r.InstanceID != nil && m.rng.IntN(2) == 0 {
		r.MemberEpoch = staticLeave
		away := get(m.t, m.ConsumerHeartbeat(r))
		m.next++
		c.id, c.epoch, c.owned = fmt.Sprint("m", m.next), 0, nil
		if away.Err == nil {
			return
		}
	}
	m.live = slices.Delete(m.live, i, i+1)
	if m.rng.IntN(2) == 0 {
		get(m.t, m.ConsumerHeartbeat(r))
	}
}

// check holds what clients hold against what the group knows. That it knows of no two holders is checked when it loads.
func (m *consumerModel) check() {
	m.t.Helper()
	g, err := m.enter("g")
	if err != nil {
		m.t.Fatal(err)
	}
	defer m.Coordinator.leave(g)
	if g.consumer == nil {
		return
	}
	cg := g.consumer
	if cg.epoch < m.epoch {
		m.t.Fatalf("seed %d: the group goes from epoch %d back to %d", m.seed, m.epoch, cg.epoch)
	}
	m.epoch = cg.epoch
	held := map[topicPartition]string{}
	for id, member := range cg.members {
		for _, p := range member.assigned.union(member.revoking) {
			if other, ok := held[p]; ok || cg.owners[p].member != member {
				m.t.Fatalf("seed %d: %v belongs to %s and %s", m.seed, p, other, id)
			}
			held[p] = id
		}
		if member.epoch > cg.targetEpoch || cg.targetEpoch > cg.epoch {
			m.t.Fatalf("seed %d: epochs %d, %d, %d of %s, the target, the group", m.seed, member.epoch, cg.targetEpoch, cg.epoch, id)
		}
	}
	if len(held) != len(cg.owners) {
		m.t.Fatalf("seed %d: %d partitions have owners, %d are held", m.seed, len(cg.owners), len(held))
	}
	for _, c := range m.live {
		if cg.members[c.id] == nil {
			continue // it will find out
		}
		for _, p := range c.owned {
			if held[p] != c.id {
				m.t.Fatalf("seed %d: %s holds %v, which belongs to %q", m.seed, c.id, p, held[p])
			}
		}
	}
	for _, c := range m.classic {
		if cg.members[c.id] == nil {
			continue
		}
		for _, p := range c.owned {
			if held[p] != c.id {
				m.t.Fatalf("seed %d: %s holds %v, which belongs to %q", m.seed, c.id, p, held[p])
			}
		}
	}
}

// calmDown stops all trouble. The group becomes stable, and every partition has one holder.
func (m *consumerModel) calmDown() {
	m.faults = false
	m.rows.set(nil, 0)
	if len(m.live) == 0 {
		m.addConsumer()
	}
	for _, c := range m.live {
		c.slow = false
	}
	m.topics.set("payments", 0)
	for range 60 {
		for _, c := range m.live {
			m.beat(c)
		}
		for _, c := range m.classic {
			c.step()
		}
		pass(time.Second)
		m.check()
	}
	d, err := m.DescribeConsumer("g")
	wantErr(m.t, "describe", err, nil)
	if d.State != Stable {
		m.t.Fatalf("seed %d: the group does not become stable: %+v", m.seed, d)
	}
	held := map[topicPartition]bool{}
	for _, owned := range m.owned() {
		for _, p := range owned {
			if held[p] {
				m.t.Fatalf("seed %d: %v has two holders", m.seed, p)
			}
			held[p] = true
		}
	}
	if len(held) != 4 {
		m.t.Fatalf("seed %d: %d partitions of 4 have a holder", m.seed, len(held))
	}
}

func (m *consumerModel) owned() (all []assignment) {
	for _, c := range m.live {
		all = append(all, c.owned)
	}
	for _, c := range m.classic {
		all = append(all, c.owned)
	}
	return all
}

// classicClient is a consumer of "orders" that uses JoinGroup and rebalances cooperatively.
type classicClient struct {
	m    *consumerModel
	name string
	id   string
	// joined is the result of its last JoinGroup; in is whether it has synced.
	joined JoinResult
	in     bool
	owned  assignment

	joining *Pending[JoinResult]
	syncing *Pending[SyncResult]
}

// step lets the client do what it does next.
func (c *classicClient) step() {
	m := c.m
	switch {
	case c.joining != nil:
		if r, ok := ready(c.joining); ok {
			c.joining = nil
			c.tookJoin(r)
		}
	case c.syncing != nil:
		if r, ok := ready(c.syncing); ok {
			c.syncing = nil
			c.tookSync(r)
		}
	case !c.in:
		var owned []int32
		for _, p := range c.owned {
			owned = append(owned, p.partition)
		}
		c.joining = m.Join(joining(c.id, cooperative(owned...), func(r *JoinRequest) { r.ClientID = c.name }))
	default:
		switch err := m.Heartbeat(&HeartbeatRequest{Group: "g", MemberID: c.id, Generation: c.joined.Generation}); {
		case err == nil || is(err, kafkaproto.ErrCoordinatorNotAvailable):
		case is(err, kafkaproto.ErrRebalanceInProgress):
			c.in = false
		default:
			c.lost(err)
		}
	}
}

func ready[T any](p *Pending[T]) (value T, ok bool) {
	select {
	case <-p.done:
		return p.value, true
	default:
		return value, false
	}
}

func (c *classicClient) tookJoin(r JoinResult) {
	switch {
	case r.Err == nil:
		c.joined, c.id = r, r.MemberID
		var assignments []Assignment
		if r.LeaderID == r.MemberID {
			assignments = assignCooperatively(c.m.t, r.Members)
		}
		c.syncing = c.m.Sync(syncing(r, assignments...))
	case is(r.Err, kafkaproto.ErrRebalanceInProgress), is(r.Err, kafkaproto.ErrCoordinatorNotAvailable), is(r.Err, kafkaproto.ErrNotCoordinator):
	default:
		c.lost(r.Err)
	}
}

func (c *classicClient) tookSync(r SyncResult) {
	switch {
	case r.Err == nil:
		assigned := c.m.decodeOwned(r.Assignment)
		// With something to revoke it rejoins as soon as that is done.
		c.in = c.owned.subsetOf(assigned)
		c.owned = assigned
	case is(r.Err, kafkaproto.ErrRebalanceInProgress), is(r.Err, kafkaproto.ErrCoordinatorNotAvailable), is(r.Err, kafkaproto.ErrNotCoordinator):
	default:
		c.lost(r.Err)
	}
}

// lost lets the client begin anew.
func (c *classicClient) lost(err *kafkaproto.Error) {
	if !is(err, kafkaproto.ErrUnknownMemberID) && !is(err, kafkaproto.ErrIllegalGeneration) {
		c.m.t.Fatalf("seed %d: %s: %v", c.m.seed, c.name, err)
	}
	c.in, c.owned = false, nil
	if is(err, kafkaproto.ErrUnknownMemberID) {
		c.id = ""
	}
}

func (c *classicClient) leave() {
	if c.joining == nil && c.syncing == nil && c.id != "" {
		if _, err := c.m.Leave("g", []LeavingMember{{MemberID: c.id}}); err != nil && !errors.Is(err, kafkaproto.ErrCoordinatorNotAvailable) {
			c.m.t.Fatalf("seed %d: leave: %v", c.m.seed, err)
		}
		c.m.classic = slices.DeleteFunc(c.m.classic, func(o *classicClient) bool { return o == c })
	}
}

// assignCooperatively is what a leader does: who holds partitions keeps them up to its share, and only what nobody holds
// is given out.
func assignCooperatively(t *testing.T, members []JoinedMember) []Assignment {
	share := (4 + len(members) - 1) / len(members)
	given := make([][]int32, len(members))
	held := map[int32]bool{}
	for i, m := range members {
		s, err := parseSubscription(m.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		for _, named := range s.owned {
			for _, p := range named.partitions {
				if len(given[i]) < share && !held[p] {
					given[i] = append(given[i], p)
				}
				held[p] = true
			}
		}
	}
	for p := range int32(4) {
		if held[p] {
			continue
		}
		least := 0
		for i := range given {
			if len(given[i]) < len(given[least]) {
				least = i
			}
		}
		given[least] = append(given[least], p)
	}
	var all []Assignment
	for i, m := range members {
		slices.Sort(given[i])
		all = append(all, Assignment{m.MemberID, assigning(given[i]...)})
	}
	return all
}

// Reading rows of members back gives the same, whatever is in them; what is cut short is refused.
func TestMemberRows(t *testing.T) {
	full := &consumerMember{
		instanceID: "i", rackID: "r", clientID: "c", clientHost: "/h", rebalanceTimeout: time.Minute,
		topics: []string{"orders", "payments"}, regex: "a.*", assignor: "range",
		classic: &classicMember{time.Second, []Protocol{{"range", []byte("x")}}},
		epoch:   5, previousEpoch: staticLeave, state: unreleased,
		assigned: parts(0, 3), revoking: parts(1), target: assignment{{[16]byte{1}, 2}, {[16]byte{9}, 1 << 20}},
	}
	for _, m := range []*consumerMember{full, {}} {
		m.id = "a/%b"
		row := m.encode()
		got, err := decodeMember(m.id, row)
		want(t, "error", err, nil)
		want(t, "member", got, m)
		for n := range row {
			if _, err := decodeMember("", row[:n]); m.classic != nil && err == nil && n > len(row)-4 {
				t.Errorf("the first %d of %d bytes are a row", n, len(row))
			}
		}
	}
	head := consumerRow{since: time.UnixMilli(1), epoch: 7, targetEpoch: 6, topicsHash: 1 << 63, members: 300}
	got, err := decodeConsumerRow(head.encode())
	want(t, "error", err, nil)
	want(t, "group", got, head)
	for n := range head.encode() {
		if _, err := decodeConsumerRow(head.encode()[:n]); !errors.Is(err, errBadRow) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
}

// Rows that contradict each other are refused, with the group's name.
func TestBadConsumerRows(t *testing.T) {
	one := &consumerMember{id: "a", instanceID: "i", epoch: 1, assigned: parts(0)}
	for name, other := range map[string]*consumerMember{
		"same partition": {id: "b", epoch: 1, revoking: parts(0)},
		"same instance":  {id: "b", instanceID: "i", epoch: 1},
		"missing":        nil,
		"bad state":      {id: "b", state: unreleased + 1},
		"bad epoch":      {id: "b", epoch: -3},
	} {
		inBubble(t, nil, func(t *testing.T, f *fixture) {
			f.Close()
			head := consumerRow{epoch: 1, members: 2}
			changes := []Change{{groupKey("g"), head.encode()}, {memberKey("g", "a"), one.encode()}}
			if other != nil {
				changes = append(changes, Change{memberKey("g", "b"), other.encode()})
			}
			want(t, "commit", f.rows.Commit(t.Context(), changes), nil)
			f.start()
			want(t, name+": failures, by the metric", metricValue(t, f.m.loadFails), 1.0)
			if _, err := f.open("g"); !errors.Is(err, errBadRow) {
				t.Errorf("%s: %v", name, err)
			}
			wantErr(t, name, f.consumer("a").join().Err, kafkaproto.ErrUnknownServerError)
		})
	}
}

func FuzzDecodeMember(f *testing.F) {
	m := &consumerMember{topics: []string{"orders"}, assigned: parts(0, 3), classic: &classicMember{time.Second, []Protocol{{"range", nil}}}}
	f.Add(m.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMember("m", b)
		if err != nil {
			return
		}
		again, err := decodeMember("m", m.encode())
		want(t, "error", err, nil)
		want(t, "decoded again", again, m)
	})
}

func FuzzConsumerProtocol(f *testing.F) {
	f.Add(subscribing(1, 2))
	f.Add(assigning(1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseSubscription(b)
		parseAssignment(b)
	})
}
