package groups

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Storage keeps the rows. Its methods may be called from any goroutine.
type Storage interface {
	// Get returns a copy of a row. It sees every change whose Commit has returned without an error.
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan calls fn for each row whose key begins with prefix, in key order. key and value are valid during the call.
	Scan(prefix []byte, fn func(key, value []byte) error) error
	// Commit makes the changes in order, all or none, and returns when they are durable. When ctx ends first it
	// returns an error, and the changes may or may not be made; changes of a later call are then made after them. A
	// *kafkaproto.Error is what clients are told. Get and Scan may show changes before they are durable.
	Commit(ctx context.Context, changes []Change) error
}

// Change is a change of one row.
type Change struct {
	Key []byte
	// Value of the row. Nil removes it.
	Value []byte
}

// Topics tells which topics exist.
type Topics interface {
	// TopicID returns the id of a topic, which no later topic of that name will have; ok is false if there is none.
	TopicID(topic string) (id [16]byte, ok bool, err error)
	// Topic returns the id of a topic and how many partitions it has; ok is false if there is none.
	Topic(topic string) (t Topic, ok bool, err error)
	// Names returns the topics that regular expressions are matched with, in any order. The slice is not changed.
	Names() []string
	// Version is another one after each change of Names or of the partitions of one of these. Changes of other topics
	// need not show.
	Version() uint64
}

// Topic is what assignors know of a topic.
type Topic struct {
	ID         [16]byte
	Partitions int32
}

// Coordinator coordinates all groups of a store. It is made by [New]; its methods may be called from any goroutine.
type Coordinator struct {
	opts    Options
	storage Storage
	topics  Topics
	log     *zap.Logger
	m       *metrics

	seed   maphash.Seed
	shards [numShards]shard

	// ctx ends when the coordinator is closed.
	ctx    context.Context
	cancel context.CancelFunc
	// work counts the goroutines that write rows, and the cleaner.
	work sync.WaitGroup
	// topicsDeleted wakes the cleaner.
	topicsDeleted chan struct{}
	// draining is set before Drain looks at the groups, and closed before Close does: whoever finds a group
	// afterwards sees them.
	draining, closed atomic.Bool
}

const numShards = 64

// shard is a part of the registry.
type shard struct {
	sync.Mutex
	groups map[string]*group
}

// New loads the groups that have members, starts their session timers, and starts the cleaner. It reads every group's
// row once; ctx bounds nothing after it has returned. The error tells what is wrong with opts, or is that of the storage.
// Groups whose rows make no sense are logged and counted; requests for them are answered with UNKNOWN_SERVER_ERROR, but for
// those that delete them.
func New(ctx context.Context, opts Options, storage Storage, topics Topics) (*Coordinator, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{opts: opts, storage: storage, topics: topics, log: opts.Logger, m: newMetrics(opts.Registerer), seed: maphash.MakeSeed(), topicsDeleted: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for i := range c.shards {
		c.shards[i].groups = map[string]*group{}
	}
	if err := c.loadAll(); err != nil {
		c.Close()
		return nil, err
	}
	c.TopicsDeleted() // some may have been when the last process ended
	c.work.Go(c.cleanLoop)
	return c, nil
}

// loadAll counts the groups and loads those with members. One whose rows make no sense is left out: it is refused until
// they do, and the others go on.
func (c *Coordinator) loadAll() error {
	var live []string
	err := c.storage.Scan([]byte(groupPrefix), func(key, value []byte) error {
		name := strings.TrimPrefix(string(key), groupPrefix)
		members, err := countMembers(value)
		switch {
		case err != nil:
			c.unreadable(name, err)
		case members == 0:
			c.m.count(Empty, 1)
		default:
			live = append(live, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range live {
		g, err := c.open(name) // starts its timers
		switch {
		case errors.Is(err, errBadRow):
			c.unreadable(name, err)
			continue
		case err != nil:
			return fmt.Errorf("groups: group %q: %w", name, err)
		}
		if g.consumer != nil {
			c.m.count(g.state, 1)
		} else {
			c.m.count(Stable, 1) // what it was before resume, which counts changes
		}
		c.leave(g)
	}
	return nil
}

// unreadable tells that a group cannot be used because of what is stored of it.
func (c *Coordinator) unreadable(name string, err error) {
	c.m.loadFails.Inc()
	c.log.Error("what is stored of a group cannot be read; its members are refused until it can, or until the group is deleted", zap.String("group", name), zap.Error(err))
}

// Drain answers all requests that wait for other members with NOT_COORDINATOR, and from now on those that would have to.
// Heartbeats and commits go on. It may be called many times.
func (c *Coordinator) Drain() {
	c.draining.Store(true)
	c.each(func(g *group) { g.refuseWaiting(kafkaproto.ErrNotCoordinator) })
}

// Close drains, stops all timers, and waits until writes that are on their way have returned. Requests that come later
// are answered with COORDINATOR_NOT_AVAILABLE. Members keep what is stored of them.
func (c *Coordinator) Close() {
	c.Drain()
	c.closed.Store(true)
	c.cancel()
	c.each((*group).stopTimers)
	c.work.Wait()
}

// each calls fn with every group in memory, locked, that is loaded.
func (c *Coordinator) each(fn func(*group)) {
	for i := range c.shards {
		s := &c.shards[i]
		s.Lock()
		groups := make([]*group, 0, len(s.groups))
		for _, g := range s.groups {
			g.users++
			groups = append(groups, g)
		}
		s.Unlock()
		for _, g := range groups {
			g.mu.Lock()
			if g.loaded {
				fn(g)
			}
			c.leave(g)
		}
	}
}

func (c *Coordinator) shardOf(name string) *shard {
	return &c.shards[maphash.String(c.seed, name)%numShards]
}

// enter returns the group called name, loaded and locked. Follow it with leave. A group that does not exist is Dead. The
// error is for clients.
func (c *Coordinator) enter(name string) (*group, error) {
	if c.closed.Load() {
		return nil, kafkaproto.ErrCoordinatorNotAvailable
	}
	g, err := c.open(name)
	if err != nil {
		c.unreadable(name, err)
		return nil, asKafkaError(err)
	}
	return g, nil
}

// open is enter, with the error of the storage or errBadRow.
func (c *Coordinator) open(name string) (*group, error) {
	g := c.hold(name)
	if err := g.load(); err != nil {
		c.leave(g)
		return nil, err
	}
	return g, nil
}

// hold returns the group called name, locked and perhaps not loaded. Follow it with leave.
func (c *Coordinator) hold(name string) *group {
	s := c.shardOf(name)
	s.Lock()
	g := s.groups[name]
	if g == nil {
		g = &group{c: c, name: name}
		s.groups[name] = g
	}
	g.users++
	s.Unlock()
	g.mu.Lock()
	return g
}

// lookup returns the group called name, locked, if it is in memory, perhaps not loaded; otherwise nil. Follow it with
// leave.
func (c *Coordinator) lookup(name string) *group {
	s := c.shardOf(name)
	s.Lock()
	g := s.groups[name]
	if g != nil {
		g.users++
	}
	s.Unlock()
	if g != nil {
		g.mu.Lock()
	}
	return g
}

// reenter locks a group for one of its timers. It returns false if the group is not in memory any more.
func (c *Coordinator) reenter(g *group) bool {
	s := c.shardOf(g.name)
	s.Lock()
	alive := s.groups[g.name] == g
	if alive {
		g.users++
	}
	s.Unlock()
	if alive {
		g.mu.Lock()
	}
	return alive
}

// leave unlocks a group, and forgets it if nobody else uses it and it is no more than its rows.
func (c *Coordinator) leave(g *group) {
	g.mu.Unlock()
	s := c.shardOf(g.name)
	s.Lock()
	defer s.Unlock()
	// With no users left nobody can be inside: every way to the group's lock counts a user first.
	if g.users--; g.users == 0 && len(g.members) == 0 && len(g.pending) == 0 && g.state != PreparingRebalance && !g.unsaved && !g.hasConsumers() && !g.unwritten() {
		if !g.stored {
			g.vanish() // it was never more than an intention
			g.loaded = false
		}
		if !g.doubtful {
			delete(s.groups, g.name)
		}
	}
}

// keep counts one more user of a group that is locked, for a goroutine that will leave it.
func (c *Coordinator) keep(g *group) {
	s := c.shardOf(g.name)
	s.Lock()
	g.users++
	s.Unlock()
}

// asKafkaError returns what clients are told about an error of the storage. A change that took too long may be made all
// the same, so clients must be able to try again.
func asKafkaError(err error) *kafkaproto.Error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return kafkaproto.ErrCoordinatorNotAvailable
	}
	return kafkaproto.AsError(err)
}
