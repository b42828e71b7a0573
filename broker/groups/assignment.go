package groups

import (
	"bytes"
	"cmp"
	"slices"
	"sort"
)

// topicPartition names a partition by the id of its topic, so that it cannot be taken for one of a later topic of the
// same name.
type topicPartition struct {
	topic     [16]byte
	partition int32
}

func (p topicPartition) compare(q topicPartition) int {
	if c := bytes.Compare(p.topic[:], q.topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(p.partition, q.partition)
}

// assignment is a set of partitions: sorted, without duplicates, and never changed once made.
type assignment []topicPartition

// newAssignment makes a set of any partitions. It keeps the slice.
func newAssignment(all []topicPartition) assignment {
	slices.SortFunc(all, topicPartition.compare)
	return slices.Compact(all)
}

func (a assignment) has(p topicPartition) bool {
	i := sort.Search(len(a), func(i int) bool { return a[i].compare(p) >= 0 })
	return i < len(a) && a[i] == p
}

// filter returns the partitions for which keep is true.
func (a assignment) filter(keep func(topicPartition) bool) assignment {
	var kept assignment
	for _, p := range a {
		if keep(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

func (a assignment) intersect(b assignment) assignment { return a.filter(b.has) }

func (a assignment) minus(b assignment) assignment {
	return a.filter(func(p topicPartition) bool { return !b.has(p) })
}

func (a assignment) union(b assignment) assignment {
	return newAssignment(append(slices.Clone(a), b...))
}

// overlaps tells whether the two have a partition in common.
func (a assignment) overlaps(b assignment) bool { return slices.ContainsFunc(a, b.has) }

// subsetOf tells whether all partitions are in b.
func (a assignment) subsetOf(b assignment) bool {
	return !slices.ContainsFunc(a, func(p topicPartition) bool { return !b.has(p) })
}

func (a assignment) equal(b assignment) bool { return slices.Equal(a, b) }

// byTopic calls fn with the partitions of each topic. The slice is fn's to keep.
func (a assignment) byTopic(fn func(topic [16]byte, partitions []int32)) {
	for len(a) > 0 {
		topic := a[0].topic
		n := 1
		for n < len(a) && a[n].topic == topic {
			n++
		}
		partitions := make([]int32, n)
		for i := range n {
			partitions[i] = a[i].partition
		}
		fn(topic, partitions)
		a = a[n:]
	}
}
