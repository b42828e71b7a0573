package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// topic is what clients see as a topic: a real one, or a named stream. It is immutable; a change replaces it whole, so
// a handler that holds one sees one consistent state.
type topic struct {
	name    string
	id      topicID
	created time.Time
	// partitions holds the stream of each partition.
	partitions []streamstore.StreamID
	// config is never nil. For a named stream it was read when the stream was looked up: only what no request can
	// change may be used from it (see catalogue.streamConfig for the rest).
	config *topicConfig
	// stream marks a named stream seen as a topic of one partition.
	stream bool
}

// partition returns the stream of partition p, and whether there is such a partition.
func (t *topic) partition(p int32) (streamstore.StreamID, bool) {
	if p < 0 || int(p) >= len(t.partitions) {
		return 0, false
	}
	return t.partitions[p], true
}

// snapshot is the catalogue at one moment. It is immutable once published.
type snapshot struct {
	byName map[string]*topic
	byID   map[topicID]*topic
	// folded holds the names that contain '.' or '_', by foldName: metrics of Kafka clients fold the two, so Kafka
	// allows only one topic of each such group.
	folded     map[string]string
	partitions int
	// names returns all topic names in order. It is computed at the first call.
	names func() []string
}

func newSnapshot() *snapshot {
	return &snapshot{byName: map[string]*topic{}, byID: map[topicID]*topic{}, folded: map[string]string{}}
}

func (s *snapshot) clone() *snapshot {
	return &snapshot{byName: maps.Clone(s.byName), byID: maps.Clone(s.byID), folded: maps.Clone(s.folded), partitions: s.partitions}
}

// put adds a topic or replaces the one of that name.
func (s *snapshot) put(t *topic) {
	s.remove(t.name)
	s.byName[t.name] = t
	s.byID[t.id] = t
	if strings.ContainsAny(t.name, "._") {
		s.folded[foldName(t.name)] = t.name
	}
	s.partitions += len(t.partitions)
}

// remove takes a topic out, if it is there.
func (s *snapshot) remove(name string) {
	t, ok := s.byName[name]
	if !ok {
		return
	}
	delete(s.byName, name)
	delete(s.byID, t.id)
	delete(s.folded, foldName(name))
	s.partitions -= len(t.partitions)
}

// catalogue knows all topics, and finds named streams in the store. Look-ups of topics are one atomic load and one map
// look-up. Changes of one topic happen one after the other; changes of different topics share the store's commits.
type catalogue struct {
	store *streamstore.Store
	opts  *Options
	log   *zap.Logger
	m     *metrics

	topicDefaults, streamDefaults *configDefaults

	current atomic.Pointer[snapshot]
	// deleted is called when topics or named streams have been deleted. It is set before there are requests, and must not
	// wait.
	deleted func()
	// version counts the snapshots that were published.
	version atomic.Uint64
	streams streamCache

	// ctx ends when the catalogue is closed; it bounds commits, which outlive the requests that asked for them.
	ctx     context.Context
	cancel  context.CancelFunc
	commits sync.WaitGroup

	mu struct {
		sync.Mutex
		// busy holds the reservation keys of changes that are under way; the channel closes when one is done.
		busy map[string]chan struct{}
	}
}

// loadCatalogue reads all topic rows.
func loadCatalogue(ctx context.Context, opts *Options, m *metrics) (*catalogue, error) {
	c := &catalogue{
		store:          opts.Store,
		opts:           opts,
		log:            opts.Logger,
		m:              m,
		topicDefaults:  newConfigDefaults(opts, false),
		streamDefaults: newConfigDefaults(opts, true),
		streams:        newStreamCache(),
		deleted:        func() {},
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.mu.busy = map[string]chan struct{}{}
	s, err := c.readTopics(ctx)
	if err != nil {
		return nil, err
	}
	c.publish(s)
	return c, nil
}

// readTopics builds the first snapshot. Retention that follows the broker's default is pushed to the streams again,
// because the default may have changed since they were configured.
func (c *catalogue) readTopics(ctx context.Context) (*snapshot, error) {
	rows := map[string]topicRow{}
	err := c.store.Scan([]byte(topicRowPrefix), func(key, value []byte) error {
		name := strings.TrimPrefix(string(key), topicRowPrefix)
		row, err := decodeTopicRow(value)
		if err != nil {
			return fmt.Errorf("row of topic %q: %w", name, err)
		}
		rows[name] = row
		return nil
	})
	if err != nil {
		return nil, err
	}
	s, stale, changed := newSnapshot(), streamstore.NewTxn(), false
	for name, row := range rows {
		t := &topic{name: name, id: row.id, created: row.created, partitions: make([]streamstore.StreamID, row.partitions)}
		t.config = c.topicDefaults.storedConfig(row.overrides)
		for p := range t.partitions {
			info, err := c.describePartition(name, int32(p))
			if err != nil {
				return nil, fmt.Errorf("topic %q partition %d: %w", name, p, err)
			}
			t.partitions[p] = info.ID
			if want := t.config.settings(); info.Settings != want {
				stale.Configure(info.ID, want)
				changed = true
			}
		}
		s.put(t)
	}
	if changed {
		if _, err := c.store.Commit(ctx, stale); err != nil {
			return nil, fmt.Errorf("apply the broker's default retention: %w", err)
		}
	}
	return s, nil
}

func (c *catalogue) describePartition(name string, p int32) (streamstore.StreamInfo, error) {
	id, err := c.store.Lookup(partitionStream(name, p))
	if err != nil {
		return streamstore.StreamInfo{}, err
	}
	return c.store.Describe(id)
}

// close ends changes that are still waiting for the store and waits until they are gone.
func (c *catalogue) close() {
	c.cancel()
	c.commits.Wait()
}

// load returns the catalogue as it is now.
func (c *catalogue) load() *snapshot { return c.current.Load() }

// publish makes s, which nobody else has seen yet, the current snapshot.
func (c *catalogue) publish(s *snapshot) {
	s.names = sync.OnceValue(func() []string { return slices.Sorted(maps.Keys(s.byName)) })
	c.current.Store(s)
	c.version.Add(1)
	c.m.topics.Set(float64(len(s.byName)))
	c.m.partitions.Set(float64(s.partitions))
}

// byName finds a topic, or a named stream if the name contains a slash. Errors: UNKNOWN_TOPIC_OR_PARTITION, and
// INVALID_TOPIC_EXCEPTION for a name that nothing can have.
func (c *catalogue) byName(name string) (*topic, *kafkaproto.Error) {
	if t, ok := c.load().byName[name]; ok {
		return t, nil
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if isStreamName(name) {
		return c.streamByName(name)
	}
	return nil, kafkaproto.ErrUnknownTopicOrPartition
}

// byID finds a topic or a named stream by its topic id. The only error is UNKNOWN_TOPIC_ID.
func (c *catalogue) byID(id topicID) (*topic, *kafkaproto.Error) {
	if t, ok := c.load().byID[id]; ok {
		return t, nil
	}
	if sid, ok := id.stream(); ok {
		return c.streamByID(sid)
	}
	return nil, kafkaproto.ErrUnknownTopicID
}

// A plan collects one change of the catalogue: what to write, and how the snapshot differs once that is written.
type plan struct {
	now *snapshot
	txn *streamstore.Txn
	// edits change the next snapshot; after is what else happens once the change is durable. Both are called with
	// the ids of the streams that txn created.
	edits []func(next *snapshot, created []streamstore.StreamID)
	after []func(created []streamstore.StreamID)
	// newPartitions counts what the change creates.
	newPartitions int
	folded        map[string]bool
}

// A step adds the part of names[i] to the plan, or says why that is not possible.
type step func(p *plan, i int) *kafkaproto.Error

// change carries out one change that concerns the given topics or streams, but for those that failed a check before:
// checked[i] is the result for names[i] then. The others get their step; one that fails leaves the rest alone. All parts
// are written in one transaction, which is durable when change returns. With dryRun nothing is written. When ctx ends
// first the answer is REQUEST_TIMED_OUT and the change goes on.
//
// A named stream may come or go between the look of a step and the commit, which then fails as a whole. The steps are then
// called again, each for a change of its own, so that the failure is told to the one it belongs to.
func (c *catalogue) change(ctx context.Context, names []string, checked []*kafkaproto.Error, dryRun bool, fn step) []*kafkaproto.Error {
	if !slices.Contains(checked, nil) {
		return checked
	}
	errs := slices.Clone(checked)
	err := c.attempt(ctx, names, errs, dryRun, fn)
	if len(names) > 1 && (errors.Is(err, streamstore.ErrStreamExists) || errors.Is(err, streamstore.ErrNoStream)) {
		return c.changeEach(ctx, names, checked, dryRun, fn)
	}
	for i := range errs {
		if errs[i] == nil {
			errs[i] = adminError(err)
		}
	}
	return errs
}

func (c *catalogue) changeEach(ctx context.Context, names []string, checked []*kafkaproto.Error, dryRun bool, fn step) []*kafkaproto.Error {
	errs := slices.Clone(checked)
	for i := range errs {
		if errs[i] == nil {
			alone := func(p *plan, _ int) *kafkaproto.Error { return fn(p, i) }
			errs[i] = c.change(ctx, names[i:i+1], []*kafkaproto.Error{nil}, dryRun, alone)[0]
		}
	}
	return errs
}

// attempt makes a plan, filling errs, and commits it.
func (c *catalogue) attempt(ctx context.Context, names []string, errs []*kafkaproto.Error, dryRun bool, fn step) error {
	release, err := c.reserve(ctx, names)
	if err != nil {
		return err
	}
	p := &plan{now: c.load(), txn: streamstore.NewTxn(), folded: map[string]bool{}}
	for i := range errs {
		if errs[i] == nil {
			errs[i] = fn(p, i)
		}
	}
	if dryRun || !slices.Contains(errs, nil) {
		release()
		return nil
	}
	return c.commit(ctx, p, release)
}

// commit runs the plan to its end even if the request that asked for it gives up: a row that reaches the store must
// reach the snapshot as well.
func (c *catalogue) commit(ctx context.Context, p *plan, release func()) error {
	done := make(chan error, 1)
	c.commits.Go(func() {
		res, err := c.store.Commit(c.ctx, p.txn)
		if err == nil {
			c.apply(p, res.Created)
		}
		release()
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *catalogue) apply(p *plan, created []streamstore.StreamID) {
	if len(p.edits) > 0 {
		c.mu.Lock()
		next := c.load().clone()
		for _, edit := range p.edits {
			edit(next, created)
		}
		c.publish(next)
		c.mu.Unlock()
	}
	for _, fn := range p.after {
		fn(created)
	}
}

// reserve waits until no other change concerns one of the names, then keeps others out until release is called. Names
// that Kafka's rule against collisions folds together count as one. All names are taken at once or none, so two
// requests that share names cannot wait for each other.
func (c *catalogue) reserve(ctx context.Context, names []string) (release func(), err error) {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = foldName(name)
	}
	done := make(chan struct{})
	for {
		other := c.tryReserve(keys, done)
		if other == nil {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() {
		c.mu.Lock()
		for _, key := range keys {
			delete(c.mu.busy, key)
		}
		c.mu.Unlock()
		close(done)
	}, nil
}

// tryReserve returns nil if it reserved the keys, else the channel of a change that is in the way.
func (c *catalogue) tryReserve(keys []string, done chan struct{}) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if other, ok := c.mu.busy[key]; ok {
			return other
		}
	}
	for _, key := range keys {
		c.mu.busy[key] = done
	}
	return nil
}
