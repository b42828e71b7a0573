package groups

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// fleet is a random group for assignors.
type fleet struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	in   *assignorInput
	// same: all members subscribe to all topics.
	same bool
	next int
}

func newFleet(t *testing.T, seed uint64, same bool) *fleet {
	f := &fleet{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), same: same, in: &assignorInput{partitions: map[[16]byte]int32{}}}
	for range 1 + f.rng.IntN(6) {
		f.addTopic()
	}
	for range 1 + f.rng.IntN(8) {
		f.addMember()
	}
	return f
}

func (f *fleet) addTopic() {
	f.in.partitions[[16]byte{byte(len(f.in.partitions) + 1)}] = int32(f.rng.IntN(12))
}

func (f *fleet) addMember() {
	f.next++
	m := assignorMember{id: fmt.Sprintf("m%03d", f.rng.IntN(1000)*1000+f.next)}
	if f.rng.IntN(3) == 0 {
		m.instanceID = fmt.Sprint("i", f.next)
	}
	f.in.members = append(f.in.members, m)
	slices.SortFunc(f.in.members, func(a, b assignorMember) int { return strings.Compare(a.id, b.id) })
}

// subscribe lets members subscribe anew.
func (f *fleet) subscribe() {
	for i := range f.in.members {
		m := &f.in.members[i]
		m.topics = nil
		for _, t := range sortedTopics(f.in.partitions) {
			if f.same || f.rng.IntN(2) == 0 {
				m.topics = append(m.topics, t)
			}
		}
	}
}

// change makes one change: a member comes or goes, or topics change.
func (f *fleet) change() {
	switch n := f.rng.IntN(4); {
	case n == 0 && len(f.in.members) > 1:
		i := f.rng.IntN(len(f.in.members))
		f.in.members = slices.Delete(f.in.members, i, i+1)
	case n == 1:
		topics := sortedTopics(f.in.partitions)
		f.in.partitions[topics[f.rng.IntN(len(topics))]] += int32(f.rng.IntN(4))
	case n == 2:
		f.addTopic()
	default:
		f.addMember()
	}
	f.subscribe()
}

// assign calls an assignor, checks that each partition of a topic with a subscriber is given to one subscriber, and makes
// the result the members' target. It returns how many partitions have moved from a member that may still have them.
func (f *fleet) assign(name string) (moved int) {
	f.t.Helper()
	first, again := assignors[name](f.in), assignors[name](f.in)
	if !maps.EqualFunc(first, again, assignment.equal) {
		f.t.Fatalf("seed %d: two results for one input", f.seed)
	}
	holders := map[topicPartition]string{}
	for i := range f.in.members {
		m := &f.in.members[i]
		for _, p := range first[m.id] {
			if other, ok := holders[p]; ok {
				f.t.Fatalf("seed %d: %v is given to %s and %s", f.seed, p, other, m.id)
			}
			if !slices.Contains(m.topics, p.topic) || p.partition >= f.in.partitions[p.topic] {
				f.t.Fatalf("seed %d: %s does not read %v", f.seed, m.id, p)
			}
			holders[p] = m.id
		}
	}
	for t := range f.in.subscribers() {
		for n := range f.in.partitions[t] {
			if _, ok := holders[topicPartition{t, n}]; !ok {
				f.t.Fatalf("seed %d: partition %d of %x is given to nobody", f.seed, n, t)
			}
		}
	}
	for i := range f.in.members {
		m := &f.in.members[i]
		moved += len(m.target.minus(first[m.id]))
		m.target = first[m.id]
	}
	return moved
}

func eachSeed(t *testing.T, n uint64, fn func(seed uint64)) {
	start := uint64(time.Now().UnixNano())
	t.Logf("seeds %d to %d", start, start+n-1)
	for seed := start; seed < start+n; seed++ {
		fn(seed)
	}
}

func TestAssignorsGiveEachPartitionOnce(t *testing.T) {
	for name := range assignors {
		eachSeed(t, 120, func(seed uint64) {
			f := newFleet(t, seed, seed%2 == 0)
			f.subscribe()
			for range 10 {
				f.assign(name)
				f.change()
			}
		})
	}
}

// Members with the same subscription have as many partitions but for one, and the least possible number of partitions
// moves: what a member has above its share. Of the members that have more than the others, as many as possible had more.
func TestUniformAssignorMovesTheLeast(t *testing.T) {
	eachSeed(t, 120, func(seed uint64) {
		f := newFleet(t, seed, true)
		f.subscribe()
		for range 10 {
			total := 0
			for _, n := range f.in.partitions {
				total += int(n)
			}
			share, larger := total/len(f.in.members), total%len(f.in.members)
			least := 0
			for i := range f.in.members {
				switch over := len(f.in.members[i].target) - share; {
				case over > 0 && larger > 0:
					larger--
					least += over - 1
				case over > 0:
					least += over
				}
			}
			if moved := f.assign(uniformAssignor); moved != least {
				t.Fatalf("seed %d: %d partitions moved, %d had to", seed, moved, least)
			}
			for i := range f.in.members {
				if n := len(f.in.members[i].target); n != share && n != share+1 {
					t.Fatalf("seed %d: a member has %d of %d partitions, there are %d members", seed, n, total, len(f.in.members))
				}
			}
			f.change()
		}
	})
}

// With different subscriptions no move of one partition makes the numbers more equal, and nothing moves without a reason.
func TestUniformAssignorWithDifferentSubscriptions(t *testing.T) {
	eachSeed(t, 120, func(seed uint64) {
		f := newFleet(t, seed, false)
		f.subscribe()
		for range 10 {
			f.assign(uniformAssignor)
			loads, subscribers := map[string]int{}, f.in.subscribers()
			for i := range f.in.members {
				loads[f.in.members[i].id] = len(f.in.members[i].target)
			}
			for i := range f.in.members {
				m := &f.in.members[i]
				for _, p := range m.target {
					for _, j := range subscribers[p.topic] {
						if to := f.in.members[j].id; loads[to]+1 < loads[m.id] {
							t.Fatalf("seed %d: %v should go from %s with %d to %s with %d", seed, p, m.id, loads[m.id], to, loads[to])
						}
					}
				}
			}
			if moved := f.assign(uniformAssignor); moved != 0 {
				t.Fatalf("seed %d: %d partitions moved though nothing has changed", seed, moved)
			}
			f.change()
		}
	})
}

func TestRangeAssignorGivesRuns(t *testing.T) {
	orders, payments, other := [16]byte{1}, [16]byte{2}, [16]byte{3}
	both := [][16]byte{orders, payments}
	in := &assignorInput{
		partitions: map[[16]byte]int32{orders: 5, payments: 5, other: 2},
		members: []assignorMember{
			{id: "a", topics: [][16]byte{orders, payments, other}},
			{id: "b", topics: both},
			{id: "c", instanceID: "static", topics: both},
		},
	}
	run := func(topic [16]byte, from, to int32) (a assignment) {
		for n := from; n < to; n++ {
			a = append(a, topicPartition{topic, n})
		}
		return a
	}
	got := assignRange(in)
	// The static member comes first in each topic.
	want(t, "a", got["a"], run(orders, 2, 4).union(run(payments, 2, 4)).union(run(other, 0, 2)))
	want(t, "b", got["b"], run(orders, 4, 5).union(run(payments, 4, 5)))
	want(t, "c", got["c"], run(orders, 0, 2).union(run(payments, 0, 2)))
}

func TestAssignmentSets(t *testing.T) {
	p := func(topic byte, n int32) topicPartition { return topicPartition{[16]byte{topic}, n} }
	a := newAssignment([]topicPartition{p(2, 0), p(1, 3), p(1, 0), p(1, 3)})
	b := newAssignment([]topicPartition{p(1, 3), p(3, 1)})
	want(t, "sorted", a, assignment{p(1, 0), p(1, 3), p(2, 0)})
	want(t, "intersection", a.intersect(b), assignment{p(1, 3)})
	want(t, "difference", a.minus(b), assignment{p(1, 0), p(2, 0)})
	want(t, "union", a.union(b), assignment{p(1, 0), p(1, 3), p(2, 0), p(3, 1)})
	want(t, "overlap", a.overlaps(b), true)
	want(t, "no overlap", a.overlaps(assignment{p(3, 1)}), false)
	want(t, "subset", assignment{p(1, 3)}.subsetOf(a), true)
	want(t, "no subset", b.subsetOf(a), false)
	want(t, "nothing is a subset", assignment(nil).subsetOf(nil), true)
}
