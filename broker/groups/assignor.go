package groups

import (
	"cmp"
	"maps"
	"slices"
)

// Server-side assignors, by the names that members choose them by.
const (
	uniformAssignor = "uniform"
	rangeAssignor   = "range"
)

// assignors map a group to who shall have which partition. Each is a function of its argument alone: it does not depend
// on the order in which members joined or maps are walked. A partition of a topic with a subscriber is given to exactly
// one member that subscribes to it; nothing else is given.
var assignors = map[string]func(*assignorInput) map[string]assignment{
	uniformAssignor: assignUniform,
	rangeAssignor:   assignRange,
}

// assignorInput is what an assignor goes by.
type assignorInput struct {
	// members in order of their ids.
	members []assignorMember
	// partitions counts those of each topic that exists.
	partitions map[[16]byte]int32
}

type assignorMember struct {
	id, instanceID string
	// topics that the member subscribes to and that exist, in order of ids.
	topics [][16]byte
	// target is what the member was to have before.
	target assignment
}

// subscribers returns, for each topic, the indices of the members that subscribe to it, ascending.
func (in *assignorInput) subscribers() map[[16]byte][]int {
	subscribers := make(map[[16]byte][]int, len(in.partitions))
	for i := range in.members {
		for _, t := range in.members[i].topics {
			subscribers[t] = append(subscribers[t], i)
		}
	}
	return subscribers
}

// homogeneous tells whether all members subscribe to the same topics.
func (in *assignorInput) homogeneous() bool {
	for i := 1; i < len(in.members); i++ {
		if !slices.Equal(in.members[i].topics, in.members[0].topics) {
			return false
		}
	}
	return true
}

func (in *assignorInput) result(given [][]topicPartition) map[string]assignment {
	result := make(map[string]assignment, len(in.members))
	for i := range in.members {
		result[in.members[i].id] = newAssignment(given[i])
	}
	return result
}

func sortedTopics[V any](topics map[[16]byte]V) [][16]byte {
	return slices.SortedFunc(maps.Keys(topics), func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
}

// assignRange gives each topic's partitions to its subscribers in runs, the first ones one longer if need be. Members
// are in order of instance ids, then of member ids, in each topic, so that topics with as many partitions and the same
// subscribers are given out alike: partition n of each goes to the same member, which can join them (Kafka: RangeAssignor).
func assignRange(in *assignorInput) map[string]assignment {
	given := make([][]topicPartition, len(in.members))
	for topic, subscribers := range in.subscribers() {
		slices.SortFunc(subscribers, func(a, b int) int { return compareForRange(&in.members[a], &in.members[b]) })
		n, size := int32(len(subscribers)), in.partitions[topic]
		next := int32(0)
		for i, m := range subscribers {
			run := size / n
			if int32(i) < size%n {
				run++
			}
			for range run {
				given[m] = append(given[m], topicPartition{topic, next})
				next++
			}
		}
	}
	return in.result(given)
}

// compareForRange puts static members first: their place does not change when they restart.
func compareForRange(a, b *assignorMember) int {
	switch {
	case a.instanceID != "" && b.instanceID == "":
		return -1
	case a.instanceID == "" && b.instanceID != "":
		return 1
	case a.instanceID != b.instanceID:
		return cmp.Compare(a.instanceID, b.instanceID)
	}
	return cmp.Compare(a.id, b.id)
}

// assignUniform spreads the partitions evenly and lets members keep what they had as far as that allows (Kafka:
// UniformAssignor). If all subscribe to the same topics, numbers differ by one at most and no more partitions move than
// must. Otherwise no partition can go to another subscriber such that the two have more equal numbers.
func assignUniform(in *assignorInput) map[string]assignment {
	u := newUniform(in)
	if in.homogeneous() {
		u.cutToQuota()
		u.giveUnassigned()
	} else {
		u.giveUnassigned()
		u.balance()
	}
	return in.result(u.given)
}

// uniform is the work of assignUniform.
type uniform struct {
	in          *assignorInput
	subscribers map[[16]byte][]int
	// given has the partitions of each member.
	given [][]topicPartition
	// unassigned partitions, those with the fewest subscribers first: they have the least choice.
	unassigned []topicPartition
}

// newUniform lets everybody keep what they may.
func newUniform(in *assignorInput) *uniform {
	u := &uniform{in: in, subscribers: in.subscribers(), given: make([][]topicPartition, len(in.members))}
	taken := make(map[[16]byte][]bool, len(in.partitions))
	for t, n := range in.partitions {
		taken[t] = make([]bool, n)
	}
	for i := range in.members {
		m := &in.members[i]
		for _, p := range m.target {
			_, subscribed := slices.BinarySearchFunc(m.topics, p.topic, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
			if subscribed && p.partition < in.partitions[p.topic] && !taken[p.topic][p.partition] {
				taken[p.topic][p.partition] = true
				u.given[i] = append(u.given[i], p)
			}
		}
	}
	topics := sortedTopics(u.subscribers)
	slices.SortStableFunc(topics, func(a, b [16]byte) int { return cmp.Compare(len(u.subscribers[a]), len(u.subscribers[b])) })
	for _, t := range topics {
		for n := range in.partitions[t] {
			if !taken[t][n] {
				u.unassigned = append(u.unassigned, topicPartition{t, n})
			}
		}
	}
	return u
}

// cutToQuota takes from members what is more than their share. The members that have one more than the others are chosen
// among those that have as much already.
func (u *uniform) cutToQuota() {
	total := len(u.unassigned)
	for i := range u.given {
		total += len(u.given[i])
	}
	if len(u.given) == 0 {
		return
	}
	share, larger := total/len(u.given), total%len(u.given)
	for i := range u.given {
		keep := share
		if len(u.given[i]) > share && larger > 0 {
			keep++
			larger--
		}
		if len(u.given[i]) > keep {
			u.unassigned = append(u.unassigned, u.given[i][keep:]...)
			u.given[i] = u.given[i][:keep]
		}
	}
}

// giveUnassigned gives each partition to the subscriber that has the fewest.
func (u *uniform) giveUnassigned() {
	for _, p := range u.unassigned {
		m := u.least(p.topic)
		u.given[m] = append(u.given[m], p)
	}
	u.unassigned = nil
}

// least returns the subscriber of a topic that has the fewest partitions, the first of those with as few.
func (u *uniform) least(topic [16]byte) int {
	least := -1
	for _, m := range u.subscribers[topic] {
		if least < 0 || len(u.given[m]) < len(u.given[least]) {
			least = m
		}
	}
	return least
}

// balance moves partitions to subscribers that have at least two fewer, until there is no such pair. Each move makes the
// sum of the squares of all numbers smaller, so it ends.
func (u *uniform) balance() {
	for moved := true; moved; {
		moved = false
		for m := range u.given {
			moved = u.unload(m) || moved
		}
	}
}

// unload moves partitions away from a member. One that has at most one more than the least of all cannot lose any.
func (u *uniform) unload(m int) bool {
	least := len(u.given[m])
	for i := range u.given {
		least = min(least, len(u.given[i]))
	}
	if least+1 >= len(u.given[m]) {
		return false
	}
	moved := false
	for i := len(u.given[m]) - 1; i >= 0; i-- {
		p := u.given[m][i]
		if to := u.least(p.topic); len(u.given[to])+1 < len(u.given[m]) {
			u.given[to] = append(u.given[to], p)
			u.given[m] = slices.Delete(u.given[m], i, i+1)
			moved = true
		}
	}
	return moved
}
