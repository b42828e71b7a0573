package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/cockroachdb/pebble/v2"

	"github.com/brookletmq/brooklet/objstore"
)

// ReadOptions bound a read.
type ReadOptions struct {
	// MaxBytes bounds the bytes returned.
	MaxBytes int
	// MinOneBatch returns the first batch even if it is larger than MaxBytes.
	MinOneBatch bool
}

// ReadResult is what a read found.
type ReadResult struct {
	// Chunks are whole record batches back to back, in offset order. They are
	// shared with other readers and must not be changed.
	Chunks [][]byte
	Bytes  int // their size
	Offsets
}

// Read returns the batches from the one that contains offset on, all below the
// high watermark. There are none when offset lies between high watermark and next
// offset, both included. ErrOffsetOutOfRange: offset lies below the start or above
// the next offset; the result's Offsets tell them.
//
// When ctx ends during a read of the bucket, Read returns ctx.Err(); what is being
// fetched then serves the next try.
func (s *Store) Read(ctx context.Context, id StreamID, offset int64, opts ReadOptions) (ReadResult, error) {
	st, err := s.acquire(id)
	if err != nil {
		return ReadResult{}, err
	}
	defer s.release(st)
	r := reader{store: s, stream: st, next: offset, opts: opts}
	defer func() { s.traffic.read.Add(int64(r.result.Bytes)) }()
	for {
		progress, err := r.step(ctx)
		if err != nil && len(r.result.Chunks) > 0 && !errors.Is(err, ErrNoStream) {
			return r.result, nil // what was read is good; the next read meets the error
		}
		if err != nil || !progress {
			return r.result, err
		}
	}
}

// reader is one Read on its way. It walks down: tail in memory, tail in the
// database, extents.
type reader struct {
	store  *Store
	stream *stream
	next   int64 // offset wanted next
	opts   ReadOptions
	result ReadResult
	hw     int64      // high watermark at the last step
	missed bool       // the extent of next was not there
	gone   segmentKey // extent whose object was not there
}

// room is how many bytes may still be returned; the first batch may be larger if
// first is true.
func (r *reader) room() (bytes int, first bool) {
	return r.opts.MaxBytes - r.result.Bytes, r.opts.MinOneBatch && r.result.Bytes == 0
}

// step reads once from one place and reports whether to go on.
func (r *reader) step(ctx context.Context) (progress bool, err error) {
	st := r.stream
	st.mu.Lock()
	offsets := st.offsetsLocked()
	r.hw = offsets.HighWatermark
	if r.result.Chunks == nil {
		r.result.Offsets = offsets
	}
	switch {
	case st.mu.deleted:
		st.mu.Unlock()
		return false, ErrNoStream
	case r.next < offsets.Start || r.next > offsets.Next:
		st.mu.Unlock()
		return false, fmt.Errorf("%w: %d is not within %d to %d", ErrOffsetOutOfRange, r.next, offsets.Start, offsets.Next)
	case r.next >= offsets.HighWatermark:
		st.mu.Unlock()
		return false, nil
	}
	if i, ok := st.findTailLocked(r.next); ok {
		entries, batches := r.collectLocked(st.mu.tail[i:], offsets.HighWatermark)
		st.mu.Unlock()
		progress, err := r.addTail(entries, batches)
		if !errors.Is(err, pebble.ErrNotFound) {
			return progress, err
		}
		// It has been flushed since: one and the same write took its row away and
		// brought its extent.
		return r.readExtents(ctx, offsets.HighWatermark, 0)
	}
	limit := offsets.HighWatermark
	if len(st.mu.tail) > 0 {
		limit = min(limit, st.mu.tail[0].base)
	}
	window := st.readAheadLocked(r.next)
	st.mu.Unlock()
	return r.readExtents(ctx, limit, window)
}

// findTailLocked finds the tail entry that contains offset.
func (st *stream) findTailLocked(offset int64) (int, bool) {
	tail := st.mu.tail
	i := sort.Search(len(tail), func(i int) bool { return tail[i].last >= offset })
	return i, i < len(tail) && tail[i].base <= offset
}

// collectLocked takes the tail entries that fit, with their bytes as far as they
// are in memory.
func (r *reader) collectLocked(tail []*tailEntry, hw int64) (entries []*tailEntry, batches [][]byte) {
	room, first := r.room()
	for _, e := range tail {
		size := int(e.size - tailEntryOverhead)
		if e.last >= hw || size > room && !first {
			break
		}
		entries, batches = append(entries, e), append(batches, e.batch)
		room, first = room-size, false
	}
	return entries, batches
}

// addTail adds tail entries to the result, reading from the database those that
// are not in memory. It stops at one that has been flushed and deleted meanwhile,
// with pebble.ErrNotFound if it is the first.
func (r *reader) addTail(entries []*tailEntry, batches [][]byte) (progress bool, err error) {
	for i, e := range entries {
		batch := batches[i]
		if batch == nil {
			batch, err = r.store.tailRow(e)
			if errors.Is(err, pebble.ErrNotFound) && i > 0 {
				return true, nil
			}
			if err != nil {
				return false, err
			}
		}
		r.add(batch, e.last)
	}
	return len(entries) > 0, nil
}

func (r *reader) add(chunk []byte, last int64) {
	r.result.Chunks = append(r.result.Chunks, chunk)
	r.result.Bytes += len(chunk)
	r.next = last + 1
}

// tailRow reads an append's batch from the database.
func (s *Store) tailRow(e *tailEntry) (recordBatch, error) {
	value, closer, err := s.db.Get(tailKey(e.number))
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	batch, _, ok := nextBatch(value[min(tailAppendHeader, len(value)):])
	if !ok {
		return nil, &CorruptError{Where: fmt.Sprintf("tail entry %d", e.number), What: "record batch", Found: "damaged", Expected: "one whole batch"}
	}
	return bytes.Clone(batch), nil
}

// tailBatch is the batch of an entry that is not flushed yet.
func (s *Store) tailBatch(e *tailEntry) (recordBatch, error) {
	e.stream.mu.Lock()
	batch := e.batch
	e.stream.mu.Unlock()
	if batch != nil {
		return batch, nil
	}
	batch, err := s.tailRow(e)
	if err != nil {
		return nil, fmt.Errorf("tail entry %d: %w", e.number, err)
	}
	return batch, nil
}

// readExtents reads the batches below limit from the bucket or its cache.
func (r *reader) readExtents(ctx context.Context, limit int64, window int64) (progress bool, err error) {
	room, first := r.room()
	if room <= 0 && !first {
		return false, nil
	}
	extents, wanted, err := r.store.extentsFrom(r.stream.id, r.next, limit, int64(max(room, 1)), window)
	if err != nil {
		return false, err
	}
	if len(extents) == 0 {
		// A trim or deletion may have reached the database since the offsets were
		// looked at; the next step sees it.
		if !r.missed {
			r.missed = true
			return true, nil
		}
		return false, &CorruptError{Where: fmt.Sprintf("stream id %d", r.stream.id), What: "offset", Found: "no extent", Expected: r.next}
	}
	from := r.next
	defer func() {
		if r.next > from {
			r.stream.noteRead(r.next, window)
		}
	}()
	for i, l := range r.store.segments.load(extents, wanted, from) {
		data, err := l.wait(ctx)
		if errors.Is(err, objstore.ErrNotFound) && extents[i].key() != r.gone {
			// Compaction has moved the extent and the object was deleted since the index
			// was read; it now tells where the batches are.
			r.gone = extents[i].key()
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !r.addExtent(data) {
			return false, nil
		}
	}
	return true, nil
}

// addExtent adds the batches of one extent that fit and lie below the high watermark,
// and reports whether all did.
func (r *reader) addExtent(data []byte) (all bool) {
	from, to := -1, 0
	var last int64
	room, first := r.room()
	for rest := data; len(rest) > 0; {
		batch, after, ok := nextBatch(rest)
		if !ok {
			break // cannot be: the extent was checked when it was loaded
		}
		if batch.lastOffset() < r.next {
			rest = after
			continue
		}
		if batch.baseOffset() >= r.hw || len(batch) > room && !first {
			break
		}
		if from < 0 {
			from = len(data) - len(rest)
		}
		room, first = room-len(batch), false
		rest, last = after, batch.lastOffset()
		to = len(data) - len(rest)
	}
	if from >= 0 {
		r.add(data[from:to:to], last)
	}
	return to == len(data)
}

// extentsFrom returns the extents from the one that contains offset on: wanted of
// them hold the next room bytes, and more follow for reading ahead, as long as they
// lie in the same object right behind and within window bytes. None reaches limit.
func (s *Store) extentsFrom(id StreamID, offset, limit, room, window int64) (extents []extent, wanted int, err error) {
	bytes := int64(0)
	err = s.eachExtent(id, offset, func(x extent) bool {
		if x.base >= limit {
			return false
		}
		n := len(extents)
		if n > 0 && bytes >= room && (bytes >= window || !follows(extents[n-1], x)) {
			return false
		}
		if n == 0 || bytes < room {
			wanted++
		}
		extents = append(extents, x)
		bytes += x.length
		return true
	})
	if len(extents) > 0 && extents[0].base > offset {
		return nil, 0, nil
	}
	return extents, wanted, err
}

// follows reports whether b lies in the bucket right behind a.
func follows(a, b extent) bool { return a.object == b.object && a.position+a.length == b.position }

// eachExtent calls fn for the stream's extents in offset order, from the one that
// contains offset on, until fn returns false.
func (s *Store) eachExtent(id StreamID, offset int64, fn func(extent) bool) (err error) {
	_, upper := streamSpan(prefixExtent, id)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: extentKey(id, offset), UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Error(), iter.Close()) }()
	for valid := iter.First(); valid; valid = iter.Next() {
		x, err := decodeExtent(iter.Key(), iter.Value())
		if err != nil {
			return fmt.Errorf("extent row of stream id %d: %w", id, err)
		}
		if !fn(x) {
			return nil
		}
	}
	return nil
}

// A few readers of each stream are recognised as sequential by the offset where
// their last read ended; each gets a read-ahead window that doubles with every
// read.
const (
	readerSlots        = 4
	readAheadMin int64 = 256 << 10
	readAheadMax int64 = 8 << 20
)

type readerPosition struct {
	next   int64
	window int64
}

// readAheadLocked is the window for a read at offset, 0 unless it continues an
// earlier one.
func (st *stream) readAheadLocked(offset int64) int64 {
	for _, p := range st.mu.readers {
		if p.window > 0 && p.next == offset {
			return min(2*p.window, readAheadMax)
		}
	}
	return 0
}

// noteRead remembers where a read ended.
func (st *stream) noteRead(next, window int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.mu.readers[st.mu.nextSlot] = readerPosition{next, max(window, readAheadMin)}
	st.mu.nextSlot = (st.mu.nextSlot + 1) % readerSlots
}
