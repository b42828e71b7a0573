package streamstore

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/brookletmq/brooklet/objstore"
)

// compactor merges the short runs of many objects into segments, where each stream's
// batches lie together, and deletes objects of which nothing is in use any more. One
// goroutine does it, in the background of everything else:
//
//	objects ──directories──> merge by stream and offset ──> rows still there?
//	                                                             │
//	   index <──next commit── indexChange <──upload── segment <──┘ copy, checked
//
// Compactions are tiered: the log's short runs become a run of segments of level 1, and
// so many runs of one level (compactionPolicy.fanout) become one of the next, so that a
// byte is rewritten as often as the store is old in powers of the fanout. Runs of one
// stream that are long enough to be read well stay where they are.
//
// A compaction that fails or is cut off by the end of the process loses nothing: each
// segment enters the index with a commit of its own, and one that did not is an object
// that nothing names.
type compactor struct {
	store *Store
	count uint64 // of this epoch's newest segment
	pace  pacer
	low   bool // a compaction has to wait for disk space
	// undeletable is when deletions that failed are tried again.
	undeletable time.Time
}

func newCompactor(s *Store) *compactor {
	return &compactor{store: s, pace: pacer{rate: s.opts.CompactionBandwidth}}
}

// scratchDir is where objects of a remote bucket lie while they are merged.
func (o *Options) scratchDir() string { return path.Join(o.Dir, "compaction") }

func (k *compactor) run(ctx context.Context) {
	ticker := time.NewTicker(k.store.opts.compaction.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.store.failed:
			return
		case <-ticker.C:
		}
		for k.step(ctx) && ctx.Err() == nil {
		}
		k.deleteDead(ctx)
	}
}

// step makes the compaction that is due, if there is one, and reports whether it moved
// something, so that there may be another one.
func (k *compactor) step(ctx context.Context) bool {
	s := k.store
	plan := k.next()
	if plan == nil {
		return false
	}
	moved, err := k.compact(ctx, plan)
	if err != nil && ctx.Err() == nil && s.Err() == nil {
		s.metrics.compactionFailures.Inc()
		s.log.Warn("compaction failed, it is tried again", zap.Error(err), zap.Int("objects", len(plan.objects())), zap.Uint64("level", plan.level))
	}
	return err == nil && moved > 0
}

// next returns the first due compaction for which there is room on the disk, nil if there
// is none.
func (k *compactor) next() (next *compaction) {
	s := k.store
	var lacking int64 // what one that comes before it needs
	for plan := range s.catalogue.due(s.opts.Now()) {
		need, ok := k.diskHasRoom(plan)
		if ok {
			next = plan
			break
		}
		lacking = need
	}
	if lacking > 0 && !k.low {
		s.log.Warn("the disk has no room for a compaction, it has to wait", zap.String("data_dir", s.opts.Dir), zap.Int64("needed_bytes", lacking))
	}
	k.low = lacking > 0
	return next
}

// diskHasRoom reports whether the disk has room for what a compaction of a remote bucket
// fetches, and how many bytes must be free for that.
func (k *compactor) diskHasRoom(plan *compaction) (need int64, ok bool) {
	s := k.store
	if s.opts.Bucket.Local() || s.opts.MinFreeBytes < 0 {
		return 0, true
	}
	need = plan.bytes
	if plan.level > 1 {
		need = min(need, 2*int64(len(plan.runs))*s.opts.compaction.output)
	}
	need += 2 * s.opts.MinFreeBytes
	usage, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
	return need, err != nil || usage.AvailBytes >= uint64(need)
}

// compact carries a plan out and returns how many bytes it has moved.
func (k *compactor) compact(ctx context.Context, plan *compaction) (moved int64, err error) {
	s := k.store
	started := bootTime()
	m := &merge{store: s, ctx: ctx, plan: plan, window: window(s.opts.CompactionMemory/4, len(plan.runs))}
	out := &segmentWriter{compactor: k, ctx: ctx, level: plan.level}
	err = errors.Join(k.mergeTo(m, out), m.close(), out.abandon())
	if err != nil {
		return out.bytes, err
	}
	s.catalogue.compacted(plan.objects())
	s.metrics.compactions.Inc()
	s.log.Info("compacted", zap.Uint64("level", plan.level), zap.Int("objects", len(plan.objects())), zap.Int("runs", len(plan.runs)),
		zap.Int("segments", out.segments), zap.Int64("bytes", out.bytes), zap.Duration("took", bootTime()-started))
	return out.bytes, nil
}

// mergeTo writes all that is to move into segments.
func (k *compactor) mergeTo(m *merge, out *segmentWriter) error {
	if err := m.start(); err != nil {
		return err
	}
	for {
		list, err := m.nextStream()
		if err != nil {
			return err
		}
		if list == nil {
			return errors.Join(out.flush(), out.arrived())
		}
		if err := k.copyStream(m, out, list); err != nil {
			return err
		}
		if err := m.closeExhausted(); err != nil {
			return err
		}
	}
}

// copyStream moves what is to move of one stream's extents; list holds all of them that
// the merged objects were made with.
func (k *compactor) copyStream(m *merge, out *segmentWriter, list []mergeEntry) error {
	list, err := out.stillLive(list)
	if err != nil {
		return err
	}
	if !m.plan.all {
		list = shortRuns(list, k.store.opts.compaction.longRun)
	}
	limits, ok, err := k.store.mergeLimits(list)
	if err != nil || !ok {
		return err
	}
	for i := 0; i < len(list); i++ {
		data, err := m.read(&list[i])
		if err != nil {
			return err
		}
		if data == nil {
			continue // damaged: it stays where it is
		}
		if out.full(len(data)) {
			if err := out.flush(); err != nil {
				return err
			}
			// The rows were read before the new segment's drops are noted.
			last := list[i].last
			if list, err = out.stillLive(list[i:]); err != nil {
				return err
			}
			if i = 0; len(list) == 0 || list[0].last != last {
				i = -1
				continue
			}
		}
		out.add(list[i].streamExtent, data, limits)
		if err := k.pace.wait(m.ctx, int64(len(data))); err != nil {
			return err
		}
	}
	return nil
}

// shortRuns leaves out the extents that lie in long runs.
func shortRuns(list []mergeEntry, longRun int64) []mergeEntry {
	short := list[:0]
	for len(list) > 0 {
		n, bytes := 1, list[0].length
		for n < len(list) && follows(list[n-1].extent, list[n].extent) {
			bytes += list[n].length
			n++
		}
		if bytes < longRun {
			short = append(short, list[:n]...)
		}
		list = list[n:]
	}
	return short
}

// mergeLimits say how far neighbouring extents of a stream become one. Records expire by
// whole extents, so where they do an extent must be small beside what is kept.
type mergeLimits struct {
	bytes int64
	age   int64 // ms between the youngest and the oldest; negative: any
}

// expiryParts is how many extents make up what retention keeps, at least.
const expiryParts = 8

// mergeLimits reads the stream's settings; ok is false if there is nothing to move or
// the stream is being deleted.
func (s *Store) mergeLimits(list []mergeEntry) (limits mergeLimits, ok bool, err error) {
	limits = mergeLimits{bytes: extentTarget, age: -1}
	if len(list) == 0 {
		return limits, false, nil
	}
	value, closer, err := s.db.Get(streamKey(list[0].id))
	if errors.Is(err, pebble.ErrNotFound) {
		return limits, false, nil
	}
	if err != nil {
		return limits, false, err
	}
	row, err := decodeStreamRow(value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return limits, false, fmt.Errorf("stream row %d: %w", list[0].id, err)
	}
	if row.settings.RetentionBytes >= 0 {
		limits.bytes = min(limits.bytes, row.settings.RetentionBytes/expiryParts)
	}
	if row.settings.Retention >= 0 {
		limits.age = row.settings.retentionMillis() / expiryParts
	}
	return limits, true, nil
}

// allow reports whether b, which follows a, may become one extent with it; oldest is
// the age of a's oldest part.
func (l mergeLimits) allow(a, b extent, oldest int64) bool {
	if a.last+1 != b.base || a.length+b.length > l.bytes {
		return false
	}
	return l.age < 0 || max(a.agesFrom(), b.agesFrom())-min(oldest, b.agesFrom()) <= l.age
}

// segmentWriter gathers a segment, uploads it and brings it into the index, again and
// again. While one is on its way the next one is gathered: both hold extents of their own,
// so the order in which they enter the index does not matter.
type segmentWriter struct {
	compactor *compactor
	ctx       context.Context
	level     uint64

	change *indexChange // being gathered; nil: none
	live   *pebble.Iterator
	object []byte
	oldest int64 // of the newest added extent: since when its oldest part ages

	underWay chan error // receives when the segment before is in the index; nil: there is none
	spare    []byte     // memory of the object before, to be used again once it has arrived

	// Of what is in the index, or on its way.
	run      uint64 // number of the first segment
	segments int
	bytes    int64
}

// begin starts a segment: from now on what is dropped is noted, then the rows are read.
func (w *segmentWriter) begin() (err error) {
	if w.change != nil {
		return nil
	}
	s := w.compactor.store
	change := &indexChange{done: make(chan struct{})}
	if err := s.flusher.do(w.ctx, func() { s.flusher.beginChange(change) }); err != nil {
		return err
	}
	w.change = change
	if w.object == nil {
		// With room for the directory of small extents, so that sealing need not copy it.
		w.object = make([]byte, segmentHeaderSize, segmentHeaderSize+s.opts.compaction.output+s.opts.compaction.output/16)
	}
	w.live, err = s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixExtent}, UpperBound: []byte{prefixExtent + 1}})
	return err
}

// stillLive leaves those out whose extents are no longer in the index.
func (w *segmentWriter) stillLive(list []mergeEntry) ([]mergeEntry, error) {
	if err := w.begin(); err != nil {
		return nil, err
	}
	live := list[:0]
	for _, e := range list {
		if !w.live.SeekGE(extentKey(e.id, e.last)) {
			if err := w.live.Error(); err != nil {
				return nil, err
			}
			break
		}
		if StreamID(keyNumber(w.live.Key(), 0)) != e.id || int64(keyNumber(w.live.Key(), 1)) != e.last {
			continue
		}
		x, err := decodeExtent(w.live.Key(), w.live.Value())
		if err != nil {
			return nil, fmt.Errorf("extent row of stream id %d: %w", e.id, err)
		}
		if x.object == e.object && x.position == e.position {
			e.extent = x
			live = append(live, e)
		}
	}
	return live, nil
}

// full reports whether the segment has no room for n more bytes.
func (w *segmentWriter) full(n int) bool {
	size := int64(len(w.object)) - segmentHeaderSize
	return size > 0 && size+int64(n) > w.compactor.store.opts.compaction.output
}

// add appends the bytes of an extent.
func (w *segmentWriter) add(x streamExtent, data []byte, limits mergeLimits) {
	w.change.removed = append(w.change.removed, x)
	position := int64(len(w.object))
	w.object = append(w.object, data...)
	if n := len(w.change.added); n > 0 {
		if a := &w.change.added[n-1]; a.id == x.id && limits.allow(a.extent, x.extent, w.oldest) {
			w.oldest = min(w.oldest, x.agesFrom())
			a.last = x.last
			a.length += x.length
			a.maxTimestamp = max(a.maxTimestamp, x.maxTimestamp)
			a.written = max(a.written, x.written)
			return
		}
	}
	w.oldest = x.agesFrom()
	x.position = position
	w.change.added = append(w.change.added, x)
}

// flush sends the segment that was gathered on its way, if there is one, when the one
// before has arrived.
func (w *segmentWriter) flush() error {
	// The iterator first: it keeps obsolete tables on the disk, and the bucket may be slow.
	if err := errors.Join(w.closeIterator(), w.arrived()); err != nil {
		return err
	}
	if w.change == nil || len(w.change.added) == 0 {
		return nil
	}
	change, object, underWay := w.change, w.object, make(chan error, 1)
	w.change, w.underWay = nil, underWay
	w.object, w.spare = w.spare, nil
	w.compactor.store.background(func() { underWay <- w.send(change, object) })
	return nil
}

// arrived waits until the segment that is on its way is in the index.
func (w *segmentWriter) arrived() (err error) {
	if w.underWay != nil {
		err = <-w.underWay
		w.underWay = nil
	}
	return err
}

// send uploads a segment and returns when it is in the index. With an error its change is
// given up.
func (w *segmentWriter) send(change *indexChange, object []byte) (err error) {
	s := w.compactor.store
	submitted := false
	defer func() {
		if err != nil && !submitted {
			w.giveUp(change)
		}
	}()
	h, object, err := w.upload(change, object)
	if err != nil {
		return err
	}
	w.spare = object[:segmentHeaderSize]
	change.segment, change.row = objectID{objectSegment, h.number}, h.row()
	for i := range change.added {
		change.added[i].object = change.segment
	}
	if err := change.prepare(s.db, s.opts.compaction.longRun); err != nil {
		return err
	}
	if err := s.flusher.do(w.ctx, func() { change.submitted = true }); err != nil {
		return err
	}
	submitted = true
	// It can no longer be taken back, so this ends only with the store.
	if err := s.await(s.ctx, change.done); err != nil {
		return err
	}
	w.segments++
	w.bytes += h.dataLength
	s.metrics.compactionWritten.Add(float64(h.size()))
	return nil
}

// upload creates the segment's object under a number of its own. It returns the object, which
// sealing may have moved.
func (w *segmentWriter) upload(change *indexChange, object []byte) (segmentHeader, []byte, error) {
	s := w.compactor.store
	h := segmentHeader{
		shard:   s.opts.Shard,
		epoch:   s.epoch,
		nonce:   s.nonce,
		created: s.opts.Now().UnixMilli(),
		level:   uint32(w.level),
	}
	for {
		w.compactor.count++
		h.number = segmentNumber(s.epoch, w.compactor.count)
		if w.run == 0 {
			w.run = h.number
		}
		h.run = w.run
		object = s.codec.sealSegment(&h, object[:segmentHeaderSize+change.dataLength()], change.added)
		won, err := w.create(&h, object)
		if won || err != nil {
			return h, object, err
		}
		s.log.Warn("an object has the name of a segment that is yet to be written; it is left alone", zap.String("object", segmentName(h.shard, h.number)))
	}
}

func (w *segmentWriter) create(h *segmentHeader, object []byte) (won bool, err error) {
	s, name := w.compactor.store, segmentName(h.shard, h.number)
	err = retry(w.ctx, s.log, "writing a segment", func() error {
		err := s.opts.Bucket.Create(w.ctx, name, object)
		if !errors.Is(err, objstore.ErrExists) {
			won = err == nil
			return err
		}
		b, err := s.opts.Bucket.GetRange(w.ctx, name, 0, segmentHeaderSize)
		if err != nil {
			return err
		}
		found, err := decodeSegmentHeader(name, b)
		won = err == nil && found.number == h.number && found.nonce == h.nonce
		return err
	})
	return won, err
}

func (w *segmentWriter) closeIterator() error {
	live := w.live
	if w.live = nil; live == nil {
		return nil
	}
	return live.Close()
}

// abandon gives up what is not submitted.
func (w *segmentWriter) abandon() error {
	err := errors.Join(w.closeIterator(), w.arrived())
	if w.change != nil {
		w.giveUp(w.change)
		w.change = nil
	}
	return err
}

func (w *segmentWriter) giveUp(change *indexChange) {
	s := w.compactor.store
	// Not with the writer's context: that one may have ended.
	_ = s.flusher.do(s.ctx, func() { s.flusher.endChange(change) })
}

// mergeEntry is an extent that an object was made with, and where to read it.
type mergeEntry struct {
	streamExtent
	input *mergeInput
}

// merge goes through the directories of all objects of a plan in stream and offset
// order. Of each run one object is open at a time.
type merge struct {
	store     *Store
	ctx       context.Context
	plan      *compaction
	window    int64
	cursors   runHeap
	exhausted []*mergeInput // to be closed when the stream is done
	list      []mergeEntry
}

// runCursor is at an extent of a run.
type runCursor struct {
	rest  compactionRun // objects to be opened
	input *mergeInput
	next  streamExtent
}

type runHeap []*runCursor

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return h[i].next.compare(h[j].next) < 0 }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*runCursor)) }
func (h *runHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// maxMergeOpens bounds the objects that are opened at a time, and with that the requests to
// the bucket.
const maxMergeOpens = 8

// start opens the first object of each run, several at a time.
func (m *merge) start() error {
	budget := m.store.opts.CompactionMemory / 4
	memory := semaphore.NewWeighted(budget) // objects of a remote bucket are in memory until they are in a file
	group, ctx := errgroup.WithContext(m.ctx)
	group.SetLimit(maxMergeOpens)
	for _, run := range m.plan.runs {
		c := &runCursor{rest: run}
		m.cursors = append(m.cursors, c)
		size := min(run[0].bytes, budget)
		if memory.Acquire(ctx, size) != nil {
			break // one has failed
		}
		group.Go(func() error {
			defer memory.Release(size)
			return m.openNext(c)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	live := m.cursors[:0]
	for i, c := range m.cursors {
		ok, err := m.advance(c)
		if err != nil {
			m.cursors = append(live, m.cursors[i:]...)
			return err
		}
		if ok {
			live = append(live, c)
		}
	}
	m.cursors = live
	heap.Init(&m.cursors)
	return m.ctx.Err()
}

// openNext opens a run's next object. One that is damaged is left out.
func (m *merge) openNext(c *runCursor) (err error) {
	o := c.rest[0]
	c.rest = c.rest[1:]
	if c.input, err = m.open(o); err != nil && m.damaged(o.id, err) {
		err = nil
	}
	return err
}

// advance moves a cursor to the next extent of its run; ok is false at the end. A
// damaged object is left out from where the damage is.
func (m *merge) advance(c *runCursor) (ok bool, err error) {
	for {
		if c.input == nil {
			if len(c.rest) == 0 {
				return false, nil
			}
			if err := m.openNext(c); err != nil {
				return false, err
			}
			continue
		}
		x, ok, err := c.input.directory.next()
		if err == nil && ok {
			c.next = x
			return true, nil
		}
		if err != nil && !m.damaged(c.input.object, err) {
			return false, err
		}
		m.exhausted = append(m.exhausted, c.input)
		c.input = nil
	}
}

// damaged reports whether err means that an object cannot be read as it is stored; if
// so, it is told and the object is left alone from now on.
func (m *merge) damaged(o objectID, err error) bool {
	if !errors.Is(err, ErrCorrupt) {
		return false
	}
	m.store.log.Error("compaction leaves an object out because a part of it is damaged", zap.String("object", o.name(m.store.opts.Shard)), zap.Error(err))
	m.store.catalogue.markDamaged(o)
	return true
}

// nextStream returns all extents of the next stream, nil at the end. The slice is valid
// until the next call.
func (m *merge) nextStream() ([]mergeEntry, error) {
	m.list = m.list[:0]
	for len(m.cursors) > 0 {
		c := m.cursors[0]
		if len(m.list) > 0 && c.next.id != m.list[0].id {
			return m.list, nil
		}
		m.list = append(m.list, mergeEntry{c.next, c.input})
		ok, err := m.advance(c)
		switch {
		case err != nil:
			return nil, err
		case ok:
			heap.Fix(&m.cursors, 0)
		default:
			heap.Pop(&m.cursors)
		}
	}
	if len(m.list) == 0 {
		return nil, nil
	}
	return m.list, nil
}

// read returns the checked bytes of an extent, nil if they are damaged. They are valid
// until the next read of the same object.
func (m *merge) read(e *mergeEntry) (data []byte, err error) {
	name := e.object.name(m.store.opts.Shard)
	for range maxCorruptReads {
		if data, err = e.input.read(m.ctx, e.position, e.length); err == nil {
			if err = checkExtent(name, e.extent, data); err == nil {
				return data, nil
			}
		}
		if !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
		if again := e.input.refresh(m.ctx); again != nil {
			return nil, again
		}
	}
	if m.damaged(e.object, err) {
		err = nil
	}
	return nil, err
}

// closeExhausted closes the objects of which nothing is left to read.
func (m *merge) closeExhausted() (err error) {
	for _, in := range m.exhausted {
		err = errors.Join(err, in.close())
	}
	m.exhausted = m.exhausted[:0]
	return err
}

func (m *merge) close() error {
	err := m.closeExhausted()
	for _, c := range m.cursors {
		if c.input != nil {
			err = errors.Join(err, c.input.close())
		}
	}
	m.cursors = nil
	return err
}

// pacer spreads bytes over time.
type pacer struct {
	rate int64 // bytes per second; negative: any
	due  time.Time
}

// pacerBurst is how far the bytes run ahead before they are held up.
const pacerBurst = 50 * time.Millisecond

// wait returns when n more bytes are due.
func (p *pacer) wait(ctx context.Context, n int64) error {
	if p.rate < 0 {
		return ctx.Err()
	}
	now := time.Now()
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	ahead := p.due.Sub(now)
	if ahead < pacerBurst {
		return ctx.Err()
	}
	select {
	case <-time.After(ahead):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	// maxDeletes is how many objects are deleted at a time.
	maxDeletes = 8
	// deleteRetry is the time after which deletions that failed are tried again.
	deleteRetry = time.Minute
)

// deleteDead deletes the objects of which nothing is in use. Those that fail are tried
// again later.
func (k *compactor) deleteDead(ctx context.Context) {
	s := k.store
	now := s.opts.Now()
	if now.Before(k.undeletable) {
		return
	}
	var mu sync.Mutex
	var deleted []objectID
	var failure error
	group := new(errgroup.Group)
	group.SetLimit(maxDeletes)
	for _, o := range s.catalogue.dead(now, max(0, s.opts.DeleteGrace), s.coveredBelow()) {
		if ctx.Err() != nil || s.Err() != nil {
			break
		}
		group.Go(func() error {
			err := s.opts.Bucket.Delete(ctx, o.name(s.opts.Shard))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.metrics.deleteFailures.Inc()
				failure = fmt.Errorf("deleting %s: %w", o.name(s.opts.Shard), err)
				return nil
			}
			s.metrics.objectsDeleted.Inc()
			s.catalogue.forget(o)
			deleted = append(deleted, o)
			return nil
		})
	}
	_ = group.Wait() // none returns an error
	if failure != nil && ctx.Err() == nil {
		k.undeletable = now.Add(deleteRetry)
		s.log.Warn("objects that are no longer needed could not be deleted, they are tried again", zap.Error(failure))
	}
	if len(deleted) > 0 {
		// Their rows go with the next commit. If there is none before the store is
		// closed, they are deleted once more after the next start.
		_ = s.flusher.do(ctx, func() { s.flusher.forgotten = append(s.flusher.forgotten, deleted...) })
	}
}
