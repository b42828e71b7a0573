package broker

import (
	"errors"
	"hash/maphash"
	"sync/atomic"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// streamCacheSlots bounds the named streams that the cache knows, once by name and once by id. An entry takes up to
// about 1.5 KiB, nearly all of it the name.
const streamCacheSlots = 4096

// streamCache remembers named streams that were used lately. Each slot holds the last stream that hashed to it, so the
// cache is bounded and needs no lock; two busy streams that share a slot cost a look-up in the store, nothing else.
type streamCache struct {
	seed   maphash.Seed
	byName []atomic.Pointer[topic]
	byID   []atomic.Pointer[topic]
}

func newStreamCache() streamCache {
	return streamCache{
		seed:   maphash.MakeSeed(),
		byName: make([]atomic.Pointer[topic], streamCacheSlots),
		byID:   make([]atomic.Pointer[topic], streamCacheSlots),
	}
}

func (s *streamCache) nameSlot(name string) *atomic.Pointer[topic] {
	return &s.byName[maphash.String(s.seed, name)%streamCacheSlots]
}

func (s *streamCache) idSlot(id streamstore.StreamID) *atomic.Pointer[topic] {
	return &s.byID[uint64(id)%streamCacheSlots]
}

func (s *streamCache) put(t *topic) {
	s.nameSlot(t.name).Store(t)
	s.idSlot(t.partitions[0]).Store(t)
}

// forget drops t. Nothing depends on it: a hit is checked against the store.
func (s *streamCache) forget(t *topic) {
	s.nameSlot(t.name).CompareAndSwap(t, nil)
	s.idSlot(t.partitions[0]).CompareAndSwap(t, nil)
}

// alive tells whether the stream of a cached topic still exists: others than this catalogue may delete it.
func (c *catalogue) alive(t *topic) bool {
	_, err := c.store.Offsets(t.partitions[0])
	if errors.Is(err, streamstore.ErrNoStream) {
		c.streams.forget(t)
		return false
	}
	return true
}

// streamByName finds a named stream. The name was checked.
func (c *catalogue) streamByName(name string) (*topic, *kafkaproto.Error) {
	if t := c.streams.nameSlot(name).Load(); t != nil && t.name == name && c.alive(t) {
		return t, nil
	}
	c.m.streamLookups.Inc()
	id, err := c.store.Lookup(name)
	if err != nil {
		return nil, storeError(err)
	}
	return c.describeStream(id)
}

// streamByID finds a named stream by its id. The streams of topic partitions, and the broker's own, cannot be reached
// this way.
func (c *catalogue) streamByID(id streamstore.StreamID) (*topic, *kafkaproto.Error) {
	if t := c.streams.idSlot(id).Load(); t != nil && t.partitions[0] == id && c.alive(t) {
		return t, nil
	}
	c.m.streamLookups.Inc()
	t, err := c.describeStream(id)
	if err == kafkaproto.ErrUnknownTopicOrPartition {
		return nil, kafkaproto.ErrUnknownTopicID
	}
	return t, err
}

func (c *catalogue) describeStream(id streamstore.StreamID) (*topic, *kafkaproto.Error) {
	info, err := c.store.Describe(id)
	if err != nil {
		return nil, storeError(err)
	}
	if !isStreamName(info.Name) || checkStreamName(info.Name) != nil {
		return nil, kafkaproto.ErrUnknownTopicOrPartition
	}
	return c.streamTopic(info), nil
}

// streamTopic makes the topic of a named stream and caches it.
func (c *catalogue) streamTopic(info streamstore.StreamInfo) *topic {
	t := &topic{
		name:       info.Name,
		id:         streamTopicID(info.ID),
		created:    info.Created,
		partitions: []streamstore.StreamID{info.ID},
		config:     c.streamDefaults.storedConfig(streamOverrides(&info)),
		stream:     true,
	}
	c.streams.put(t)
	return t
}
