package streamstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/objstore"
)

// flusher moves the tail into the bucket. One goroutine decides: it seals
// commits, starts their uploads, of which several run at a time, and completes
// them strictly in order. All its fields but mu belong to that goroutine.
type flusher struct {
	store *Store

	mu struct {
		sync.Mutex
		arrived []*tailEntry // applied, not yet seen by the goroutine
	}
	signal   chan struct{} // capacity 1: something arrived
	requests chan *flushRequest
	calls    chan func()  // run in the goroutine
	results  chan *commit // uploads that ended

	waiting      []*tailEntry // in append order, not in a commit yet
	waitingBytes int64
	target       uint64 // flush everything below this append number now
	waiters      []*flushRequest

	sealedTo uint64        // append number after the last in a sealed commit
	durable  atomic.Uint64 // append number after the last in a durable commit
	oldest   atomic.Int64  // when the oldest entry was appended that is in none, ms; 0: there is none
	next     uint64        // number of the next log object
	previous uint64        // number of the newest durable commit of the log
	// started is the highest number of a log object whose upload may have begun,
	// completed that of the newest durable commit; read by others.
	started, completed atomic.Uint64
	// proved is a bootTime at which this writer is known to have owned the shard.
	proved   atomic.Int64
	inflight []*commit // sealed, not durable; in order
	buffers  [][]byte  // object buffers to use again

	tracked   []*indexChange // being made; what is dropped meanwhile is noted in them
	forgotten []objectID     // deleted objects whose rows go with the next commit
}

// flushRequest asks that everything below target be flushed.
type flushRequest struct {
	target uint64
	done   chan struct{}
}

const (
	// maxUploads is how many commits are on their way to the bucket at a time.
	maxUploads = 4
	// maxCommitBytes bounds the data of one commit, except that a single append
	// always fits.
	maxCommitBytes = 64 << 20
)

// commit is one object of the log on its way.
type commit struct {
	header    commitHeader
	entries   []*tailEntry
	bytes     int64 // charged to the limit of unflushed bytes
	extents   []streamExtent
	producers []row
	change    *indexChange // by compaction, or nil
	forgotten []objectID
	object    []byte // encoded; while sealed but not numbered: header room and data

	began    time.Duration // bootTime at which its upload began
	uploaded bool
	// burned: the number is taken by a left-over of a fenced writer.
	burned bool
	err    error
}

type streamExtent struct {
	id StreamID
	extent
}

type row struct{ key, value []byte }

func newFlusher(s *Store) *flusher {
	return &flusher{
		store:    s,
		signal:   make(chan struct{}, 1),
		requests: make(chan *flushRequest),
		calls:    make(chan func()),
		results:  make(chan *commit, maxUploads),
	}
}

// arrive hands entries over that are in the database. Called in append order.
func (f *flusher) arrive(entries []*tailEntry) {
	f.mu.Lock()
	f.mu.arrived = append(f.mu.arrived, entries...)
	f.mu.Unlock()
	select {
	case f.signal <- struct{}{}:
	default:
	}
}

// run is the flusher's goroutine. It ends when ctx does or the store fails;
// uploads that are still running then are abandoned.
func (f *flusher) run(ctx context.Context) {
	timer := time.NewTimer(f.store.opts.FlushInterval)
	timer.Stop()
	timing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.store.failed:
			return
		case <-f.signal:
			f.takeArrived()
		case r := <-f.requests:
			f.target = max(f.target, r.target)
			f.waiters = append(f.waiters, r)
			f.finishWaiters()
		case call := <-f.calls:
			call()
		case c := <-f.results:
			c.uploaded = true
			if err := f.completeHead(ctx); err != nil {
				f.store.fail(failure(err))
				return
			}
		case <-timer.C:
			timing = false
			if n := len(f.waiting); n > 0 {
				f.target = max(f.target, f.waiting[n-1].number+1)
			}
		}
		if err := f.seal(ctx); err != nil {
			f.store.fail(failure(err))
			return
		}
		f.noteOldest()
		if !timing && len(f.waiting) > 0 && f.target <= f.waiting[0].number {
			timer.Reset(f.store.opts.FlushInterval)
			timing = true
		}
	}
}

// failure makes an error that ends the flusher one that callers of the store know.
func failure(err error) error {
	if errors.Is(err, ErrFenced) || errors.Is(err, ErrFailed) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

func (f *flusher) takeArrived() {
	f.mu.Lock()
	arrived := f.mu.arrived
	f.mu.arrived = nil
	f.mu.Unlock()
	for _, e := range arrived {
		f.waitingBytes += e.size
	}
	f.waiting = append(f.waiting, arrived...)
}

// noteOldest tells the metrics how far behind the bucket is.
func (f *flusher) noteOldest() {
	oldest := int64(0)
	if len(f.waiting) > 0 {
		oldest = f.waiting[0].appended
	}
	for i := len(f.inflight) - 1; i >= 0; i-- {
		if entries := f.inflight[i].entries; len(entries) > 0 {
			oldest = entries[0].appended
		}
	}
	f.oldest.Store(oldest)
}

// seal makes commits of what is due, while uploads are free.
func (f *flusher) seal(ctx context.Context) error {
	for len(f.inflight) < maxUploads && f.due() {
		c, err := f.build(f.cut())
		if err != nil {
			return err
		}
		f.inflight = append(f.inflight, c)
		if err := f.start(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// due reports whether a commit is to be made now. The result of a compaction takes
// along what is waiting.
func (f *flusher) due() bool {
	return f.submitted() != nil || len(f.waiting) > 0 && (f.waiting[0].number < f.target || f.waitingBytes >= f.store.opts.FlushBytes)
}

// do runs call in the flusher's goroutine, between two commits.
func (f *flusher) do(ctx context.Context, call func()) error {
	done := make(chan struct{})
	select {
	case f.calls <- func() { call(); close(done) }:
		<-done
		return nil
	case <-f.store.failed:
		return f.store.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cut takes the entries of the next commit off the waiting ones.
func (f *flusher) cut() []*tailEntry {
	n, bytes := 0, int64(0)
	for n < len(f.waiting) && (n == 0 || bytes+f.waiting[n].size <= maxCommitBytes) {
		bytes += f.waiting[n].size
		n++
	}
	entries := slices.Clone(f.waiting[:n])
	f.waitingBytes -= bytes
	clear(f.waiting[:n])
	if f.waiting = f.waiting[n:]; len(f.waiting) == 0 {
		f.waiting = nil
	}
	return entries
}

// build lays the data of a commit out: batches sorted by stream, then offset. It
// runs in commit order, which the producers' committed states rely on.
func (f *flusher) build(entries []*tailEntry) (*commit, error) {
	c := &commit{entries: entries}
	c.header = commitHeader{
		shard:      f.store.opts.Shard,
		epoch:      f.store.epoch,
		nonce:      f.store.nonce,
		created:    f.store.opts.Now().UnixMilli(),
		appendFrom: f.sealedTo,
		appendTo:   f.sealedTo,
	}
	if len(entries) > 0 {
		c.header.appendTo = entries[len(entries)-1].number + 1
	}
	f.sealedTo = c.header.appendTo
	appends := make([]*tailEntry, 0, len(entries))
	deleted := make(map[StreamID]struct{})
	for _, e := range entries {
		c.bytes += e.size
		if e.txn != nil {
			for _, id := range e.txn.deletes {
				deleted[id] = struct{}{}
			}
			f.trackDrops(e.txn)
		}
		if e.stream != nil {
			appends = append(appends, e)
		}
	}
	slices.SortStableFunc(appends, func(a, b *tailEntry) int { return cmp.Compare(a.stream.id, b.stream.id) })
	c.object = f.buffer(c.bytes)[:commitHeaderSize]
	for len(appends) > 0 {
		n := 1
		for n < len(appends) && appends[n].stream == appends[0].stream {
			n++
		}
		// The records of a stream that this very commit deletes are left out. If
		// its deletion follows in a later commit they are not: that one may never
		// arrive, and they are acknowledged with this one.
		if _, gone := deleted[appends[0].stream.id]; !gone {
			if err := f.addRun(c, appends[:n]); err != nil {
				return nil, err
			}
		}
		appends = appends[n:]
	}
	c.header.dataLength = int64(len(c.object)) - commitHeaderSize
	f.addChange(c)
	return c, f.keepRevived(entries)
}

// keepRevived takes those producers off the transactions' lists of expired ones that
// have appended again since the lists were made. All appends of the commit are in the
// producers' committed states already.
func (f *flusher) keepRevived(entries []*tailEntry) error {
	for _, e := range entries {
		if e.txn == nil {
			continue
		}
		idle := e.txn.expired[:0]
		for _, ref := range e.txn.expired {
			ok, err := f.store.producerIdle(ref)
			if err != nil {
				return err
			}
			if ok {
				idle = append(idle, ref)
			}
		}
		e.txn.expired = idle
	}
	return nil
}

// addRun adds one stream's batches to the commit.
func (f *flusher) addRun(c *commit, run []*tailEntry) error {
	st := run[0].stream
	changed := make(map[int64]struct{})
	for i, e := range run {
		batch, err := f.store.tailBatch(e)
		if err != nil {
			return err
		}
		f.addBatch(c, st.id, e, batch, i == 0)
		if id := batch.producerID(); id >= 0 {
			changed[id] = struct{}{}
			st.mu.Lock()
			if p := st.mu.producers[id]; p != nil {
				p.committed.add(batch.producerEpoch(), sequencesOf(batch), e.appended)
			}
			st.mu.Unlock()
		}
	}
	for id := range changed {
		st.mu.Lock()
		if p := st.mu.producers[id]; p != nil {
			c.producers = append(c.producers, row{producerKey(st.id, id), p.committed.encode()})
		}
		st.mu.Unlock()
	}
	return nil
}

// addBatch appends a batch's bytes and grows the stream's last extent by it, or
// begins a new one.
func (f *flusher) addBatch(c *commit, id StreamID, e *tailEntry, batch recordBatch, first bool) {
	position := int64(len(c.object))
	c.object = append(c.object, batch...)
	if n := len(c.extents); !first && c.extents[n-1].length < extentTarget {
		x := &c.extents[n-1]
		x.last = e.last
		x.length += int64(len(batch))
		x.maxTimestamp = max(x.maxTimestamp, e.maxTimestamp)
		return
	}
	c.extents = append(c.extents, streamExtent{id, extent{
		base:         e.base,
		last:         e.last,
		position:     position,
		length:       int64(len(batch)),
		maxTimestamp: e.maxTimestamp,
		written:      c.header.created,
	}})
}

// start numbers a commit, encodes it and begins its upload.
func (f *flusher) start(ctx context.Context, c *commit) error {
	c.header.number = f.next
	c.header.previous, c.header.durable = f.previous, f.previous
	if i := slices.Index(f.inflight, c); i > 0 {
		c.header.previous = f.inflight[i-1].header.number
	}
	f.next++
	f.started.Store(c.header.number)
	derived, err := f.derivedRows(c)
	if err != nil {
		return err
	}
	defer derived.Close()
	state := f.store.db.NewBatch()
	defer state.Close()
	for _, e := range c.entries {
		if e.txn != nil {
			if err := e.txn.applyTo(state, f.store.db); err != nil {
				return err
			}
		}
	}
	if err := state.Apply(derived, nil); err != nil {
		return err
	}
	c.object = f.store.codec.seal(&c.header, c.object, state.Repr())
	f.store.background(func() {
		f.upload(ctx, c)
		select {
		case f.results <- c:
		case <-ctx.Done():
		}
	})
	return nil
}

// derivedRows are the changes of extents and producers that the commit makes,
// under its present number.
func (f *flusher) derivedRows(c *commit) (*pebble.Batch, error) {
	batch := f.store.db.NewBatch()
	var value []byte
	for i := range c.extents {
		x := &c.extents[i]
		x.object = logObjectID(c.header.number)
		value = x.encode(value[:0])
		if err := batch.Set(extentKey(x.id, x.last), value, nil); err != nil {
			return nil, err
		}
	}
	for _, p := range c.producers {
		if err := batch.Set(p.key, p.value, nil); err != nil {
			return nil, err
		}
	}
	if err := c.deriveObjects(batch); err != nil {
		return nil, err
	}
	for _, e := range c.entries {
		if e.txn == nil {
			continue
		}
		if err := e.txn.deriveRows(batch); err != nil {
			return nil, err
		}
	}
	return batch, nil
}

// deriveRows drops extents and producers that the transaction made obsolete. A
// trim deletes from the last trim's offset on, so that the range tombstones of a
// stream never overlap.
func (m *mutation) deriveRows(batch *pebble.Batch) error {
	for _, t := range m.trims {
		if err := batch.DeleteRange(extentKey(t.id, t.from), extentKey(t.id, t.to), nil); err != nil {
			return err
		}
	}
	for _, id := range m.deletes {
		for _, prefix := range []byte{prefixExtent, prefixProducer} {
			lower, upper := streamSpan(prefix, id)
			if err := batch.DeleteRange(lower, upper, nil); err != nil {
				return err
			}
		}
	}
	for _, p := range m.expired {
		if err := batch.Delete(producerKey(p.id, p.producer), nil); err != nil {
			return err
		}
	}
	return nil
}

const (
	uploadBackoffMin = 100 * time.Millisecond
	uploadBackoffMax = 10 * time.Second
)

// upload creates the commit's object, trying until that succeeded, was refused,
// or ctx ended. It sets c.burned or c.err.
func (f *flusher) upload(ctx context.Context, c *commit) {
	c.began = bootTime()
	err := f.create(ctx, c)
	if err == nil && f.late(c) {
		// The object may lie in a part of the log that a newer writer has filled,
		// covered by checkpoints and cleaned up.
		err = retry(ctx, f.store.log, "looking for a newer writer", func() error { return f.store.checkFence(ctx, &c.header) })
	}
	c.burned = errors.Is(err, errBurned)
	if !c.burned {
		c.err = err
	}
}

// late reports whether a newer writer may have cleaned up the commit's place in the log
// before its upload succeeded: the upload took long, or nothing has proved for long that
// this writer owns the shard, because it had nothing to write. What a newer writer
// writes stays for DeleteGrace at least.
func (f *flusher) late(c *commit) bool {
	now, opts := bootTime(), &f.store.opts
	return now-c.began >= opts.FenceCheckAfter || now-time.Duration(f.proved.Load()) >= opts.DeleteGrace/2
}

// errBurned: a log number is taken by a dead object.
var errBurned = errors.New("the log number is taken by a fenced writer's object")

func (f *flusher) create(ctx context.Context, c *commit) error {
	name := logName(c.header.shard, c.header.number)
	return retry(ctx, f.store.log, "writing the commit log", func() error {
		err := f.store.opts.Bucket.Create(ctx, name, c.object)
		if !errors.Is(err, objstore.ErrExists) {
			return err
		}
		return f.store.whoseObject(ctx, name, &c.header)
	})
}

// whoseObject decides what it means that an object of the commit's number
// exists: nil if it is this very commit, whose creation was reported as failed,
// errBurned if it is dead, ErrFenced if its writer is newer.
func (s *Store) whoseObject(ctx context.Context, name string, mine *commitHeader) error {
	found, err := s.readCommitHeader(ctx, name)
	switch {
	case err != nil:
		return err
	case found.nonce == mine.nonce && found.number == mine.number:
		return nil
	case found.epoch < mine.epoch:
		return errBurned
	}
	return fmt.Errorf("%w: object %s of epoch %d is there, this writer has epoch %d", ErrFenced, name, found.epoch, mine.epoch)
}

// maxCorruptReads is how often something is read before it counts as damaged where it
// is stored, and not on the way.
const maxCorruptReads = 3

// retry calls do until it succeeds, ctx ends, or it fails for good.
func retry(ctx context.Context, log *zap.Logger, what string, do func() error) error {
	backoff, corrupt := uploadBackoffMin, 0
	for {
		err := do()
		if errors.Is(err, ErrCorrupt) {
			corrupt++
		}
		if err == nil || errors.Is(err, ErrFenced) || corrupt == maxCorruptReads || errors.Is(err, errBurned) || ctx.Err() != nil {
			return err
		}
		wait := backoff/2 + rand.N(backoff/2)
		log.Warn(what+" failed, trying again", zap.Error(err), zap.Duration("wait", wait))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
		backoff = min(2*backoff, uploadBackoffMax)
	}
}

// completeHead completes the commits at the head of the line whose uploads
// ended.
func (f *flusher) completeHead(ctx context.Context) error {
	for len(f.inflight) > 0 && f.inflight[0].uploaded {
		c := f.inflight[0]
		switch {
		case c.err != nil:
			if ctx.Err() != nil {
				return nil
			}
			return c.err
		case c.burned:
			return f.renumber(ctx)
		}
		if err := f.complete(c); err != nil {
			return err
		}
	}
	return nil
}

// renumber gives every commit in flight a new number behind the left-over that
// took one of theirs. Objects of later commits that are in the bucket under their
// old number are dead, because the chain of previous numbers no longer reaches
// them. It waits until no upload is running.
func (f *flusher) renumber(ctx context.Context) error {
	for _, c := range f.inflight {
		if !c.uploaded {
			return nil // called again when its result is there
		}
	}
	f.store.log.Info("a fenced writer's object took a number of the commit log, moving on", zap.Uint64("number", f.inflight[0].header.number))
	for _, c := range f.inflight {
		if c.err != nil {
			return c.err
		}
		c.uploaded, c.burned = false, false
		c.object = c.object[:commitHeaderSize+c.header.dataLength]
		if err := f.start(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// complete applies the durable commit at the head of the line to the database
// and to the streams in memory.
func (f *flusher) complete(c *commit) error {
	s := f.store
	batch, err := f.derivedRows(c)
	if err != nil {
		return err
	}
	defer batch.Close()
	if err := deleteTail(batch, &c.header); err != nil {
		return err
	}
	if err := batch.Set(keyPosition, positionOf(&c.header).encode(), nil); err != nil {
		return err
	}
	used, err := s.usageOf(c)
	if err != nil {
		return err
	}
	if err := s.db.Apply(batch, pebble.NoSync); err != nil {
		return fmt.Errorf("%w: applying commit %d: %w", ErrFailed, c.header.number, err)
	}
	f.inflight = f.inflight[1:]
	f.previous = c.header.number
	f.durable.Store(c.header.appendTo)
	s.catalogue.complete(c, used)
	c.change.finish()
	for _, e := range c.entries {
		s.entryFlushed(e)
	}
	s.unflushed.Release(c.bytes)
	s.metrics.commits.Inc()
	s.metrics.commitBytes.Add(float64(len(c.object)))
	s.metrics.commitNumber.Set(float64(c.header.number))
	f.completed.Store(c.header.number)
	f.proved.Store(int64(c.began))
	s.checkpoints.committed(&c.header, c.object[commitHeaderSize+c.header.dataLength:][:c.header.stateLen])
	f.buffers = append(f.buffers, c.object[:0])
	c.object = nil
	if len(f.inflight) == 0 && len(f.waiting) == 0 {
		f.buffers = nil // idle: hold no memory
	}
	f.finishWaiters()
	return nil
}

// entryFlushed: the entry's commit is durable and its rows are in the database.
func (s *Store) entryFlushed(e *tailEntry) {
	if s.opts.Durability == Remote {
		e.becomeDurable()
	}
	st := e.stream
	if st == nil {
		return
	}
	st.mu.Lock()
	e.flushed = true
	if e.producer != noProducer {
		if p := st.mu.producers[e.producer]; p != nil {
			p.unflushed--
		}
	}
	st.dropFlushedLocked()
	st.mu.Unlock()
	s.release(st)
}

func (f *flusher) finishWaiters() {
	f.waiters = slices.DeleteFunc(f.waiters, func(r *flushRequest) bool {
		if r.target > f.durable.Load() {
			return false
		}
		close(r.done)
		return true
	})
}

// buffer returns an empty object buffer with room for about size bytes.
func (f *flusher) buffer(size int64) []byte {
	want := int(size) + bufferSlack
	for i, b := range f.buffers {
		if cap(b) >= want {
			f.buffers = slices.Delete(f.buffers, i, i+1)
			return b
		}
	}
	if len(f.buffers) >= maxUploads {
		f.buffers = nil // all too small
	}
	return make([]byte, 0, want)
}

// bufferSlack is room for header, state section and footer of an ordinary commit.
const bufferSlack = 64 << 10

// position is how far the database has followed the log. Its row:
//
//	version, number u, epoch u, nonce (16 bytes), append number u
type position struct {
	number   uint64 // newest live log object applied; 0: none
	epoch    uint64
	nonce    nonce
	appendTo uint64 // append number after the last that is in the log
}

func positionOf(h *commitHeader) position {
	return position{h.number, h.epoch, h.nonce, h.appendTo}
}

func (p position) encode() []byte {
	b := append(make([]byte, 0, 48), rowVersion)
	b = binary.AppendUvarint(b, p.number)
	b = binary.AppendUvarint(b, p.epoch)
	b = append(b, p.nonce[:]...)
	return binary.AppendUvarint(b, p.appendTo)
}

func decodePosition(b []byte) (p position, err error) {
	r := newRowReader(b, rowVersion)
	p.number = r.uvarint()
	p.epoch = r.uvarint()
	copy(p.nonce[:], r.bytes(16))
	p.appendTo = r.uvarint()
	return p, r.err
}
