package groups

import (
	"maps"
	"slices"
)

// partitionCounts has the partitions of topics in tests that have more than one.
var partitionCounts = map[string]int32{"orders": 4, "payments": 3}

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
	return slices.Sorted(maps.Keys(t.ids))
}

func (t *topicTable) Version() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := uint64(len(t.ids))
	for _, id := range t.ids {
		v += uint64(id) << 8
	}
	return v
}
