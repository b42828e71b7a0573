package groups

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Times between two looks at the topics, on occasion of a heartbeat.
const (
	// minTopicRefresh is the least, however often topics change: a look costs a regular expression and a look-up for
	// each topic.
	minTopicRefresh = time.Second
	// maxTopicRefresh is the most, because not all topics show in Topics.Version.
	maxTopicRefresh = 10 * time.Second
)

// subscribedMetadata is what a group knows of the topics that its members subscribe to.
type subscribedMetadata struct {
	// byName has those that exist, names their names by id.
	byName map[string]Topic
	names  map[[16]byte]string
	// hash of byName. It is stored, so that the first look after a restart finds what has changed.
	hash uint64
	// matches has the topics of each regular expression of a member, sorted.
	matches map[string][]string
	// version is Topics.Version before the last look, which was at looked.
	version uint64
	looked  time.Time
}

// refreshTopics looks at the topics if that is due, and starts a rebalance if those that the members read have changed. In
// a rebalance whose targets are yet to be computed, updateTarget looks.
func (g *group) refreshTopics() {
	cg := g.consumer
	age := time.Since(cg.topics.looked)
	fresh := age < minTopicRefresh || age < maxTopicRefresh && cg.topics.version == g.c.topics.Version()
	if cg.topics.byName != nil && (fresh || cg.epoch != cg.targetEpoch) {
		return
	}
	if changed, err := g.lookAtTopics(); err == nil && changed {
		g.bumpEpoch("topics were created, deleted or changed")
	}
}

// lookAtTopics brings what is known of the topics up to date, and returns whether it has changed. If topics cannot be
// read, all stays as it is until the next look; after a restart that is nothing.
func (g *group) lookAtTopics() (changed bool, err error) {
	md := &g.consumer.topics
	next := subscribedMetadata{
		byName: map[string]Topic{}, names: map[[16]byte]string{}, matches: map[string][]string{},
		version: g.c.topics.Version(), looked: time.Now(),
	}
	for name := range g.subscribedNames(&next) {
		t, ok, err := g.c.topics.Topic(name)
		if err != nil {
			g.c.log.Warn("topics of a consumer group cannot be read", zap.String("group", g.name), zap.String("topic", name), zap.Error(err))
			md.looked = next.looked
			return false, err
		}
		if ok {
			next.byName[name], next.names[t.ID] = t, name
		}
	}
	next.hash = hashTopics(next.byName)
	changed = next.hash != md.hash
	*md = next
	g.headChanged = g.headChanged || changed
	return changed, nil
}

// subscribedNames returns the topics that members read, and fills the matches of next. Those of the last look are good if
// the topics are still the same.
func (g *group) subscribedNames(next *subscribedMetadata) map[string]bool {
	last := &g.consumer.topics
	same := last.byName != nil && last.version == next.version
	var all []string
	names := map[string]bool{}
	for _, m := range g.consumer.members {
		for _, t := range m.topics {
			names[t] = true
		}
		if m.pattern == nil || next.matches[m.regex] != nil {
			continue
		}
		matched := last.matches[m.regex]
		if matched == nil || !same {
			if all == nil {
				all = g.c.topics.Names()
			}
			matched = m.pattern.matching(all)
		}
		for _, t := range matched {
			names[t] = true
		}
		next.matches[m.regex] = matched
	}
	return names
}

func hashTopics(topics map[string]Topic) uint64 {
	h := fnv.New64a()
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := topics[name]
		b = appendBytes(b[:0], name)
		b = append(b, t.ID[:]...)
		b = binary.BigEndian.AppendUint32(b, uint32(t.Partitions))
		h.Write(b)
	}
	return h.Sum64()
}

// reads calls fn with the topics that a member subscribes to and that exist, some twice.
func (md *subscribedMetadata) reads(m *consumerMember, fn func(name string, t Topic)) {
	for _, names := range [][]string{m.topics, md.matches[m.regex]} {
		for _, name := range names {
			if t, ok := md.byName[name]; ok {
				fn(name, t)
			}
		}
	}
}

// updateTarget computes the members' targets if the group has a new epoch (Kafka: TargetAssignmentBuilder). If topics
// cannot be read the group stays Assigning, and the next heartbeat tries again.
func (g *group) updateTarget() error {
	cg := g.consumer
	if cg.epoch == cg.targetEpoch {
		return nil
	}
	if _, err := g.lookAtTopics(); err != nil {
		return err
	}
	in := &assignorInput{partitions: map[[16]byte]int32{}}
	members := cg.inOrder()
	for _, m := range members {
		in.members = append(in.members, assignorMember{id: m.id, instanceID: m.instanceID, topics: g.topicsOf(m, in.partitions), target: m.target})
	}
	targets := assignors[cg.assignor()](in)
	for _, m := range members {
		if t := targets[m.id]; !t.equal(m.target) {
			m.target = t
			g.changed(m)
		}
	}
	cg.targetEpoch = cg.epoch
	g.headChanged = true
	g.updateConsumerState()
	return nil
}

// topicsOf returns the ids of the topics that a member reads, sorted, and notes how many partitions they have.
func (g *group) topicsOf(m *consumerMember, partitions map[[16]byte]int32) [][16]byte {
	var ids [][16]byte
	g.consumer.topics.reads(m, func(_ string, t Topic) {
		ids = append(ids, t.ID)
		partitions[t.ID] = t.Partitions
	})
	slices.SortFunc(ids, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}

// assignor returns the name of the assignor that most members would like; among equals, and if nobody cares, uniform.
func (cg *consumerGroup) assignor() string {
	votes := map[string]int{}
	for _, m := range cg.members {
		votes[m.assignor]++
	}
	if votes[rangeAssignor] > votes[uniformAssignor] {
		return rangeAssignor
	}
	return uniformAssignor
}
