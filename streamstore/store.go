package streamstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"
)

// Store keeps the streams of one shard. Its methods are safe for concurrent use.
type Store struct {
	opts    Options
	log     *zap.Logger
	metrics *metrics
	db      *pebble.DB
	codec   stateCodec
	lock    io.Closer // of the bucket folder

	epoch    uint64
	nonce    nonce
	recovery Recovery

	streams   streamTable
	tailCache tailCache
	segments  *segmentCache
	catalogue *catalogue
	compactor *compactor
	queue     appendQueue
	appender  appender
	flusher   *flusher
	unflushed *byteLimit
	disk      diskGuard
	witness   witness // written by the goroutine of runSync
	guard     *logGuard

	prefixes prefixWatches
	traffic  struct{ appended, read, watching atomic.Int64 }

	checkpoints  *checkpointer
	fetchedBytes atomic.Int64 // read from the bucket by recovery
	lostClaim    uint64       // highest number of a log object that was to be this writer's claim and is not

	meta         sync.Mutex // serialises transactions
	pendingNames pendingNames
	nextStream   uint64 // counter part of the next stream id; guarded by meta

	failed  chan struct{}
	failing sync.Once
	failure atomic.Pointer[error]

	ctx          context.Context // ends when the store is closed
	cancel       context.CancelFunc
	stopAppender chan struct{}
	appending    sync.WaitGroup // the appender's goroutines
	running      sync.WaitGroup // all others
}

// Stats is a snapshot of a store's state.
type Stats struct {
	Epoch           uint64 // of this writer
	Commit          uint64 // number of the newest durable commit
	StreamsInMemory int
	TailCacheBytes  int64
	SegmentBytes    int64 // of the segment cache
	AppendNumber    uint64
	AppendedBytes   int64 // written to the local database since it was opened
	ReadBytes       int64 // returned by Read since then
	Unflushed       int64 // appends and transactions that are not in the bucket yet
	Watching        int64 // streams and prefixes that are watched, each as often as it is
}

// start begins the store's background work. The database is open, the shard is
// claimed and the tail is loaded.
func (s *Store) start() {
	s.appending.Add(2)
	go func() {
		defer s.appending.Done()
		s.appender.run(s.stopAppender)
	}()
	go func() {
		defer s.appending.Done()
		s.appender.runSync()
	}()
	snapshot := s.db.NewSnapshot() // of the state before the first commit
	s.background(func() { s.catalogue.load(s.ctx, snapshot, s.recovery.Commit) })
	s.background(func() { s.flusher.run(s.ctx) })
	s.background(func() { s.compactor.run(s.ctx) })
	s.background(func() { s.runRetention(s.ctx) })
	s.background(func() { s.checkpoints.run(s.ctx) })
}

func (s *Store) background(f func()) {
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		f()
	}()
}

// Close stops the store. Appends that are queued are still written to disk; what
// is not in the bucket yet stays in the local database (call Flush first to leave
// nothing behind). No other method may be running or called afterwards. After
// ErrFailed the database cannot be closed in order: Close returns the error, and
// the process should exit.
func (s *Store) Close() error {
	if err := s.Err(); errors.Is(err, ErrFailed) {
		s.cancel()
		if s.segments.disk != nil {
			go s.segments.disk.Close() // waits for a disk that may hang
		}
		return err
	}
	closed := make(chan error, 1)
	go func() { closed <- s.close() }()
	select {
	case err := <-closed:
		return err
	case <-s.guard.stuck: // the disk has failed just now
		return fmt.Errorf("%w: the write-ahead log in %s", ErrFailed, s.opts.dbDir())
	}
}

func (s *Store) close() error {
	s.queue.close(ErrClosed)
	close(s.stopAppender)
	s.appending.Wait()
	s.setFailure(ErrClosed)
	s.cancel()
	s.running.Wait()
	s.guard.active.Store(false)
	if s.segments.disk != nil {
		s.segments.disk.Close()
	}
	return errors.Join(s.witness.close(), s.db.Close(), s.lock.Close())
}

// Failed is closed when the store takes no more writes: it was fenced, its disk
// failed, or it was closed. Err says which.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err tells why the store takes no more writes, nil while it does.
func (s *Store) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail stops all writes for good. Only the first call counts.
func (s *Store) fail(err error) {
	if s.setFailure(err) {
		s.log.Error("the store stops: nothing more is acknowledged; unflushed records stay in the data directory",
			zap.Error(err), zap.String("data_dir", s.opts.Dir))
	}
}

func (s *Store) setFailure(err error) (first bool) {
	s.failing.Do(func() {
		first = true
		s.failure.Store(&err)
		s.queue.close(err)
		close(s.failed)
	})
	return first
}

// Stats returns a snapshot.
func (s *Store) Stats() Stats {
	return Stats{
		Epoch:           s.epoch,
		Commit:          uint64(s.metrics.commitNumberValue()),
		StreamsInMemory: s.streams.len(),
		TailCacheBytes:  s.tailCache.size(),
		SegmentBytes:    s.segments.size(),
		AppendNumber:    s.queue.nextNumber(),
		AppendedBytes:   s.traffic.appended.Load(),
		ReadBytes:       s.traffic.read.Load(),
		Unflushed:       int64(s.queue.nextNumber() - s.flusher.durable.Load()),
		Watching:        s.traffic.watching.Load(),
	}
}

// Flush returns when everything appended before the call is in the bucket.
func (s *Store) Flush(ctx context.Context) error { return s.flushTo(ctx, s.queue.nextNumber()) }

// flushTo returns when everything below an append number is in the bucket.
func (s *Store) flushTo(ctx context.Context, target uint64) error {
	r := &flushRequest{target: target, done: make(chan struct{})}
	select {
	case s.flusher.requests <- r:
	case <-s.failed:
		return s.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.await(ctx, r.done)
}

// admit waits for room among the unflushed bytes. makesRoom: what is admitted leads to
// free space on the disk in the end.
func (s *Store) admit(ctx context.Context, size int64, makesRoom bool) error {
	if err := s.Err(); err != nil {
		return err
	}
	if err := s.disk.check(s, size, makesRoom); err != nil {
		return err
	}
	if s.unflushed.TryAcquire(size) {
		return nil
	}
	if size > s.opts.MaxUnflushedBytes {
		return fmt.Errorf("%w: a change of %d bytes exceeds the limit of unflushed bytes, %d", ErrBatchTooLarge, size, s.opts.MaxUnflushedBytes)
	}
	s.metrics.backpressure.Inc()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if err := s.unflushed.Acquire(waiting, size); err != nil {
		if failure := s.Err(); failure != nil {
			return failure
		}
		return fmt.Errorf("%w: %d bytes wait for the bucket (%s)", ErrBackpressure, s.opts.MaxUnflushedBytes, s.opts.Bucket.Location())
	}
	return nil
}

// byteLimit is a semaphore of bytes that tells how many are taken.
type byteLimit struct {
	*semaphore.Weighted
	taken atomic.Int64
}

func newByteLimit(n int64) *byteLimit { return &byteLimit{Weighted: semaphore.NewWeighted(n)} }

func (l *byteLimit) TryAcquire(n int64) bool {
	ok := l.Weighted.TryAcquire(n)
	if ok {
		l.taken.Add(n)
	}
	return ok
}

func (l *byteLimit) Acquire(ctx context.Context, n int64) error {
	err := l.Weighted.Acquire(ctx, n)
	if err == nil {
		l.taken.Add(n)
	}
	return err
}

func (l *byteLimit) Release(n int64) {
	l.taken.Add(-n)
	l.Weighted.Release(n)
}

// diskGuard refuses appends before the local disk is full, because a database
// that cannot write its log can only stop. What makes room is refused later.
//
// It looks again after an interval, because others fill the disk too, and after so
// many bytes that what comes between two looks, however fast, is little beside what is to
// stay free: admitted appends may still be on their way then, and the database needs room
// to merge its tables.
type diskGuard struct {
	checked atomic.Int64 // bootTime of the last look
	since   atomic.Int64 // bytes of appends since the last look, those refused included
	low     atomic.Bool  // less than Options.MinFreeBytes are free
	scarce  atomic.Bool  // less than 1/scarceShare of that
}

const (
	diskCheckInterval = time.Second
	diskCheckShare    = 32 // a look for each 1/diskCheckShare of Options.MinFreeBytes
	scarceShare       = 4
)

// check is asked before size bytes are written.
func (g *diskGuard) check(s *Store, size int64, makesRoom bool) error {
	if s.opts.MinFreeBytes < 0 {
		return nil
	}
	now, last := int64(bootTime()), g.checked.Load()
	due := now-last >= int64(diskCheckInterval) || g.since.Add(size) >= s.opts.MinFreeBytes/diskCheckShare
	if due && g.checked.CompareAndSwap(last, now) {
		g.since.Store(0)
		g.look(s)
	}
	if g.low.Load() && (!makesRoom || g.scarce.Load()) {
		return fmt.Errorf("%w: less than %d MiB are free on the disk of %s: make room there", ErrBackpressure, s.opts.MinFreeBytes>>20, s.opts.Dir)
	}
	return nil
}

func (g *diskGuard) look(s *Store) {
	usage, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
	if err != nil {
		return // a file system that cannot tell is not guarded
	}
	low := usage.AvailBytes < uint64(s.opts.MinFreeBytes)
	g.scarce.Store(usage.AvailBytes < uint64(s.opts.MinFreeBytes/scarceShare))
	if g.low.Swap(low) == low {
		return
	}
	if low {
		s.log.Error("the disk is nearly full, appends are refused until there is room",
			zap.String("data_dir", s.opts.Dir), zap.Uint64("free_bytes", usage.AvailBytes), zap.Int64("min_free_bytes", s.opts.MinFreeBytes))
	} else {
		s.log.Info("the disk has room again, appends are accepted", zap.Uint64("free_bytes", usage.AvailBytes))
	}
}

// processStart is the origin of bootTime where the system has no better one.
var processStart = time.Now()

// newStreamID makes an id. The caller holds s.meta.
func (s *Store) newStreamID() StreamID {
	s.nextStream++
	return StreamID(s.epoch<<streamIDCounterBits | s.nextStream)
}

// getRow returns a copy of a row of the local database.
func (s *Store) getRow(key []byte) (value []byte, ok bool, err error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	value = append([]byte(nil), value...)
	return value, true, closer.Close()
}

func (s *Store) lookupRow(name string) (StreamID, bool, error) {
	value, closer, err := s.db.Get(nameKey(name))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer closer.Close()
	if len(value) != 8 {
		return 0, false, &CorruptError{Where: "name row " + name, What: "length", Found: len(value), Expected: 8}
	}
	return StreamID(binary.BigEndian.Uint64(value)), true, nil
}

// Lookup finds a stream by name. ErrNoStream: there is none.
func (s *Store) Lookup(name string) (StreamID, error) {
	id, ok, err := s.lookupRow(name)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("%w: %q", ErrNoStream, name)
	}
	return id, nil
}

// Describe tells about a stream. ErrNoStream: there is none.
func (s *Store) Describe(id StreamID) (StreamInfo, error) {
	st, err := s.acquire(id)
	if err != nil {
		return StreamInfo{}, err
	}
	defer s.release(st)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.deleted {
		return StreamInfo{}, ErrNoStream
	}
	return st.infoLocked(), nil
}

// Offsets of a stream. ErrNoStream: there is none.
func (s *Store) Offsets(id StreamID) (Offsets, error) {
	info, err := s.Describe(id)
	return info.Offsets, err
}

// List returns up to limit streams in name order: those whose names begin with
// prefix and are greater than after. Streams whose creation has not been
// acknowledged yet may be missing.
func (s *Store) List(prefix, after string, limit int) ([]StreamInfo, error) {
	lower := nameKey(prefix)
	if after >= prefix && after != "" {
		lower = append(nameKey(after), 0)
	}
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(nameKey(prefix))})
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	var infos []StreamInfo
	for valid := iter.First(); valid && len(infos) < limit; valid = iter.Next() {
		info, err := s.Describe(StreamID(binary.BigEndian.Uint64(iter.Value())))
		if errors.Is(err, ErrNoStream) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, iter.Error()
}

// StreamBytes is the size of a stream's batches, in bytes: those in the bucket
// counted by whole extents, and those in the tail. ErrNoStream: there is none.
func (s *Store) StreamBytes(id StreamID) (int64, error) {
	st, err := s.acquire(id)
	if err != nil {
		return 0, err
	}
	defer s.release(st)
	st.mu.Lock()
	deleted, start, limit, total := st.mu.deleted, st.mu.row.start, st.mu.next, int64(0)
	for i := len(st.mu.tail) - 1; i >= 0 && !st.mu.tail[i].flushed; i-- {
		total += st.mu.tail[i].size - tailEntryOverhead
		limit = st.mu.tail[i].base
	}
	st.mu.Unlock()
	if deleted {
		return 0, ErrNoStream
	}
	// What reaches the bucket from here on has been counted in the tail.
	err = s.eachExtent(id, start, func(x extent) bool {
		if x.base >= limit {
			return false
		}
		total += x.length
		return true
	})
	return total, err
}

// Producer returns what a stream knows of one idempotent producer; ok is false if that is nothing. ErrNoStream: there is
// no such stream.
func (s *Store) Producer(id StreamID, producer int64) (state ProducerState, ok bool, err error) {
	st, err := s.acquire(id)
	if err != nil {
		return state, false, err
	}
	defer s.release(st)
	p, err := s.lockWithProducer(st, producer)
	if err != nil {
		return state, false, err
	}
	defer st.mu.Unlock()
	if st.mu.deleted {
		return state, false, ErrNoStream
	}
	if !p.live.known() {
		return state, false, nil
	}
	newest := p.live.batches[len(p.live.batches)-1]
	return ProducerState{producer, p.live.epoch, newest.lastSequence, newest.timestamp}, true, nil
}

// Producers lists the idempotent producers that a stream remembers. ErrNoStream:
// there is no such stream.
func (s *Store) Producers(id StreamID) ([]ProducerState, error) {
	st, err := s.acquire(id)
	if err != nil {
		return nil, err
	}
	defer s.release(st)
	states := make(map[int64]producerState)
	lower, upper := streamSpan(prefixProducer, id)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	for valid := iter.First(); valid; valid = iter.Next() {
		state, err := decodeProducerState(iter.Value())
		if err != nil {
			return nil, err
		}
		if !state.expired(s.opts.Now(), s.opts.ProducerExpiry) {
			states[int64(keyNumber(iter.Key(), 1))] = state
		}
	}
	st.mu.Lock()
	deleted := st.mu.deleted
	for pid, p := range st.mu.producers {
		if p.live.known() && !p.live.expired(s.opts.Now(), s.opts.ProducerExpiry) {
			states[pid] = p.live.clone()
		}
	}
	st.mu.Unlock()
	if deleted {
		return nil, ErrNoStream
	}
	list := make([]ProducerState, 0, len(states))
	for pid, state := range states {
		newest := state.batches[len(state.batches)-1]
		list = append(list, ProducerState{pid, state.epoch, newest.lastSequence, newest.timestamp})
	}
	return list, iter.Error()
}

// Get returns a copy of a row of the key-value space. It sees every transaction
// whose Commit has returned.
func (s *Store) Get(key []byte) (value []byte, ok bool, err error) { return s.getRow(kvKey(key)) }

// Scan calls fn for each row of the key-value space whose key begins with prefix,
// in key order, on a consistent snapshot. key and value are valid during the call.
func (s *Store) Scan(prefix []byte, fn func(key, value []byte) error) error {
	lower := kvKey(prefix)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(lower)})
	if err != nil {
		return err
	}
	defer iter.Close()
	for valid := iter.First(); valid; valid = iter.Next() {
		if err := fn(iter.Key()[1:], iter.Value()); err != nil {
			return err
		}
	}
	return iter.Error()
}

// dbDir is the folder of the Pebble database inside the data directory.
func (o *Options) dbDir() string { return path.Join(o.Dir, "db") }

// outdatedDir is where a database is put that is about to be removed.
func (o *Options) outdatedDir() string { return path.Join(o.Dir, "db-outdated") }
