package streamstore

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// StreamID names a stream for ever: it is never 0 and never reused, not even
// after the local disk is lost, because its upper 24 bits are the epoch of the
// writer that made it and its lower 40 bits count within that epoch.
type StreamID uint64

const streamIDCounterBits = 40

// Offsets of a stream. Start <= HighWatermark <= Next.
type Offsets struct {
	Start         int64 // first offset still readable
	HighWatermark int64 // first offset that readers do not see yet
	Next          int64 // offset that the next record will get
}

// StreamInfo describes a stream.
type StreamInfo struct {
	ID       StreamID
	Name     string
	Created  time.Time
	Settings Settings
	// Closed: the stream takes no more appends. Its last records may still be above
	// the high watermark.
	Closed bool
	// LastWrite is when the newest record was appended, as far as it is known: no
	// earlier than that, and no later than when it reached the bucket or the stream was
	// trimmed, configured, renamed or touched after it. Without records, when the
	// stream was made.
	LastWrite time.Time
	Offsets
}

// Expired reports whether the stream's time to live is over at now, or its end of life
// has come.
func (i *StreamInfo) Expired(now time.Time) bool {
	if over := i.Settings.ExpiresAt; !over.IsZero() && !now.Before(over) {
		return true
	}
	return i.Settings.TTL > 0 && now.Sub(i.LastWrite) > i.Settings.TTL
}

// stream is the state of a stream in memory. It exists while somebody uses the
// stream, watches it, or has unflushed records in it; after that a bounded
// number are kept for the next user (streamTable). All else is rows.
type stream struct {
	id       StreamID
	prefixes *prefixWatches

	load    sync.Once
	loadErr error

	mu struct {
		sync.Mutex
		row     streamRow
		deleted bool
		next    int64
		hw      int64 // row.start <= hw <= next
		// lastWrite is when the newest record was appended, or later, ms.
		lastWrite int64
		// tail holds the newest batches in offset order without gaps up to next:
		// all that are not in the bucket yet, and before them those that are but
		// still are in the tail cache.
		tail      []*tailEntry
		producers map[int64]*producer
		// producerSweep is the number of producers at which idle ones are dropped.
		producerSweep  int
		producerSweeps int // how often they were
		watchers       map[watcher]struct{}
		readers        [readerSlots]readerPosition
		nextSlot       int
	}

	// Guarded by the streamTable shard's lock.
	pins int
	idle *list.Element
}

// producer is an idempotent producer of a stream in memory. live is what the
// next append is checked against; committed is the state as of the newest
// commit built, which goes into the producer row.
type producer struct {
	live, committed producerState
	unflushed       int // batches between the two, or in commits not yet durable
}

// maxCachedProducers bounds the producers that a stream remembers in memory
// beyond those with unflushed batches. The others are read from their rows.
const maxCachedProducers = 64

// tailEntry is one append: a batch of a stream, or a transaction.
type tailEntry struct {
	number       uint64  // append number: shard-wide, dense
	stream       *stream // nil for a transaction
	base, last   int64
	maxTimestamp int64
	appended     int64 // ms since 1970
	size         int64 // bytes charged to the limit of unflushed bytes
	producer     int64 // producer id, or noProducer

	// batch is nil when it is only in the database. flushed: it is in the
	// bucket and its extent is in the database. Both guarded by stream.mu.
	batch   recordBatch
	flushed bool

	txn *mutation // nil for an append

	wantSync bool
	synced   chan struct{} // closed when synced to disk; nil if nobody asked and it makes nothing durable
	durable  chan struct{} // closed when durable
}

// noProducer is the producer id of batches without one.
const noProducer = -1

func (st *stream) offsetsLocked() Offsets {
	return Offsets{Start: st.mu.row.start, HighWatermark: st.mu.hw, Next: st.mu.next}
}

func (st *stream) infoLocked() StreamInfo {
	return StreamInfo{
		ID:       st.id,
		Name:     st.mu.row.name,
		Created:  time.UnixMilli(st.mu.row.created),
		Settings: st.mu.row.settings,
		Closed:   st.mu.row.closed,
		Offsets:  st.offsetsLocked(),

		LastWrite: time.UnixMilli(max(st.mu.row.touched, st.mu.lastWrite)),
	}
}

// notifyLocked tells the watchers that something moved.
func (st *stream) notifyLocked() {
	for w := range st.mu.watchers {
		w.watch.notify(w.key)
	}
	st.prefixes.notify(st)
}

// dropFlushedLocked forgets the oldest tail entries that are in the bucket and
// no longer in memory.
func (st *stream) dropFlushedLocked() {
	n := 0
	for n < len(st.mu.tail) && st.mu.tail[n].flushed && st.mu.tail[n].batch == nil {
		n++
	}
	if n == 0 {
		return
	}
	clear(st.mu.tail[:n])
	st.mu.tail = st.mu.tail[n:]
	if len(st.mu.tail) == 0 {
		st.mu.tail = nil
	}
}

// loadRows reads the stream's state from the database, once.
func (st *stream) loadRows(s *Store) error {
	st.load.Do(func() { st.loadErr = st.readRows(s) })
	return st.loadErr
}

func (st *stream) readRows(s *Store) error {
	value, ok, err := s.getRow(streamKey(st.id))
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%w: id %d", ErrNoStream, st.id)
	}
	row, err := decodeStreamRow(value)
	if err != nil {
		return fmt.Errorf("stream row %d: %w", st.id, err)
	}
	next, written := row.start, int64(0)
	last, ok, err := s.lastExtent(st.id)
	if err != nil {
		return err
	}
	if ok {
		next, written = max(next, last.last+1), last.written
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.mu.row, st.mu.next, st.mu.hw, st.mu.lastWrite = row, next, next, written
	return nil
}

// lastExtent returns the extent with the newest records of a stream.
func (s *Store) lastExtent(id StreamID) (x extent, ok bool, err error) {
	lower, upper := streamSpan(prefixExtent, id)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return x, false, err
	}
	defer func() { err = errors.Join(err, iter.Error(), iter.Close()) }()
	if !iter.Last() {
		return x, false, nil
	}
	x, err = decodeExtent(iter.Key(), iter.Value())
	return x, err == nil, err
}

// lockWithProducer returns the producer's state, reading its row if need be; the
// stream's lock is not held across the read. It returns with st.mu held.
func (s *Store) lockWithProducer(st *stream, id int64) (*producer, error) {
	st.mu.Lock()
	if p := st.mu.producers[id]; p != nil {
		if p.unflushed == 0 && p.live.expired(s.opts.Now(), s.opts.ProducerExpiry) {
			*p = producer{}
		}
		return p, nil
	}
	var state producerState
	for read := false; !read; {
		sweeps := st.mu.producerSweeps
		st.mu.Unlock()
		var err error
		state, err = s.readProducer(st.id, id)
		st.mu.Lock()
		if err != nil {
			st.mu.Unlock()
			return nil, err
		}
		if p := st.mu.producers[id]; p != nil {
			return p, nil
		}
		// Meanwhile the producer may have come to memory, appended, and left it again.
		read = sweeps == st.mu.producerSweeps
	}
	if st.mu.producers == nil {
		st.mu.producers = make(map[int64]*producer)
	}
	st.evictProducersLocked()
	p := &producer{live: state, committed: state.clone()}
	st.mu.producers[id] = p
	return p, nil
}

func (st *stream) evictProducersLocked() {
	if len(st.mu.producers) < max(st.mu.producerSweep, maxCachedProducers) {
		return
	}
	st.mu.producerSweeps++
	for id, p := range st.mu.producers {
		if p.unflushed == 0 {
			delete(st.mu.producers, id)
		}
	}
	// However many have to stay, a sweep costs no more than what was added since.
	st.mu.producerSweep = 2 * len(st.mu.producers)
}

// producerIdle reports whether nothing is known of a producer as of the newest commit
// built, or its state has expired. Called by the flusher.
func (s *Store) producerIdle(ref producerRef) (bool, error) {
	if p, ok := s.committedProducer(ref); ok {
		return p.expired(s.opts.Now(), s.opts.ProducerExpiry), nil
	}
	p, err := s.readProducer(ref.id, ref.producer)
	return !p.known(), err
}

// committedProducer returns a producer's committed state if it is in memory; if not,
// its row is up to date.
func (s *Store) committedProducer(ref producerRef) (producerState, bool) {
	st := s.streams.peek(ref.id)
	if st == nil {
		return producerState{}, false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	p := st.mu.producers[ref.producer]
	if p == nil {
		return producerState{}, false
	}
	return p.committed.clone(), true
}

func (s *Store) readProducer(id StreamID, producer int64) (producerState, error) {
	value, ok, err := s.getRow(producerKey(id, producer))
	if err != nil || !ok {
		return producerState{}, err
	}
	state, err := decodeProducerState(value)
	if err != nil {
		return producerState{}, fmt.Errorf("producer row of stream %d, producer %d: %w", id, producer, err)
	}
	if state.expired(s.opts.Now(), s.opts.ProducerExpiry) {
		return producerState{}, nil
	}
	return state, nil
}

// streamTable finds the streams that are in memory.
type streamTable struct {
	shards [64]streamTableShard
}

type streamTableShard struct {
	mu   sync.Mutex
	m    map[StreamID]*stream
	idle list.List // of *stream with no pins, least recently used first
}

// maxIdleStreams is how many unused streams a table shard keeps in memory.
const maxIdleStreams = 64

func (t *streamTable) shard(id StreamID) *streamTableShard { return &t.shards[id%64] }

// acquire pins the stream of id and loads it. The caller releases it.
func (s *Store) acquire(id StreamID) (*stream, error) {
	shard := s.streams.shard(id)
	shard.mu.Lock()
	st := shard.m[id]
	if st == nil {
		st = &stream{id: id, prefixes: &s.prefixes}
		shard.insertLocked(st)
	}
	shard.pinLocked(st)
	shard.mu.Unlock()
	if err := st.loadRows(s); err != nil {
		shard.forget(st)
		return nil, err
	}
	return st, nil
}

// Pin keeps a stream in memory until it is released.
type Pin struct {
	store  *Store
	stream *stream // nil: none
}

// Pin reads what Append needs to know of a stream and of a producer (negative: none), so
// that it finds that in memory as long as the pin is held. (The producer may leave it if the
// stream has very many.) It is a hint: if something cannot be read, Append tells.
func (s *Store) Pin(id StreamID, producer int64) Pin {
	st, err := s.acquire(id)
	if err != nil {
		return Pin{}
	}
	if producer >= 0 {
		if _, err := s.lockWithProducer(st, producer); err == nil {
			st.mu.Unlock()
		}
	}
	return Pin{s, st}
}

// Release ends the pin. It is called once.
func (p Pin) Release() {
	if p.stream != nil {
		p.store.release(p.stream)
	}
}

// peek returns a stream if it is in memory, without a pin.
func (t *streamTable) peek(id StreamID) *stream {
	shard := t.shard(id)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.m[id]
}

// adopt puts a stream that was just created into the table, pinned.
func (s *Store) adopt(st *stream) {
	st.load.Do(func() {})
	shard := s.streams.shard(st.id)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.insertLocked(st)
	shard.pinLocked(st)
}

// pin adds a pin to a stream that the caller has pinned already.
func (s *Store) pin(st *stream) {
	shard := s.streams.shard(st.id)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.pinLocked(st)
}

func (s *Store) release(st *stream) {
	shard := s.streams.shard(st.id)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if st.pins--; st.pins > 0 || shard.m[st.id] != st {
		return
	}
	st.idle = shard.idle.PushBack(st)
	if shard.idle.Len() > maxIdleStreams {
		oldest := shard.idle.Remove(shard.idle.Front()).(*stream)
		delete(shard.m, oldest.id)
	}
}

func (t *streamTableShard) insertLocked(st *stream) {
	if t.m == nil {
		t.m = make(map[StreamID]*stream)
	}
	t.m[st.id] = st
}

func (t *streamTableShard) pinLocked(st *stream) {
	if st.idle != nil {
		t.idle.Remove(st.idle)
		st.idle = nil
	}
	st.pins++
}

// forget undoes acquire for a stream that could not be loaded, so that the next
// user tries again.
func (t *streamTableShard) forget(st *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st.pins--
	if t.m[st.id] == st {
		delete(t.m, st.id)
	}
}

// len is the number of streams in memory.
func (t *streamTable) len() (n int) {
	for i := range t.shards {
		shard := &t.shards[i]
		shard.mu.Lock()
		n += len(shard.m)
		shard.mu.Unlock()
	}
	return n
}
