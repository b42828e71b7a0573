package streamstore

import (
	"bytes"
	"context"
	"fmt"
)

// Ack says when an append is acknowledged (Appended.Wait returns).
type Ack int8

const (
	// AckNone: at once, by definition.
	AckNone Ack = iota
	// AckLocal: synced to this machine's disk (Kafka's acks=1).
	AckLocal
	// AckDurable: durable in the sense of Options.Durability (Kafka's acks=all).
	AckDurable
)

// AnyOffset is the expected offset of an append that does not expect one.
const AnyOffset = -1

// AppendRequest is one batch for one stream.
type AppendRequest struct {
	Stream StreamID
	// Batch is one valid RecordBatch v2; the caller has checked its checksum.
	// The store writes base offset and leader epoch into it and keeps it: the
	// caller must not use its memory again.
	Batch []byte
	// Expected is the offset that the batch must get (compare and append), or
	// AnyOffset.
	Expected int64
	Ack      Ack
	// Close closes the stream behind this batch, in one step with it.
	Close bool
	// FromZero refuses the first batch of a producer that the stream does not know,
	// or knows no more, unless its sequence number is 0.
	FromZero bool
	// Rows are rows of the key-value space that are written in one step with the batch.
	// A duplicate writes none. They must not be changed afterwards.
	Rows []Row
}

// Row is a row of the key-value space.
type Row struct{ Key, Value []byte }

// UnknownOffset stands for the offsets of a duplicate that the stream no longer
// remembers.
const UnknownOffset = -1

// Appended tells what became of an append.
type Appended struct {
	BaseOffset  int64 // offset of the first record
	LastOffset  int64 // offset of the last record
	StartOffset int64 // the stream's start offset
	// Duplicate: the batch was appended before, at these offsets, and is not
	// appended again. The offsets are UnknownOffset if it was too long ago.
	Duplicate bool
	// Timestamp is the batch's largest timestamp, of a duplicate the original
	// one's, in ms since 1970.
	Timestamp int64

	store *Store
	done  <-chan struct{} // nil: acknowledged already
}

// Wait blocks until the append is acknowledged. When ctx ends first it returns
// ctx.Err(), and the batch stays appended. ErrFenced, ErrFailed and ErrClosed
// mean that it was not acknowledged and may or may not survive.
func (a Appended) Wait(ctx context.Context) error {
	if a.done == nil {
		return nil
	}
	return a.store.await(ctx, a.done)
}

func (s *Store) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-s.failed:
		return s.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Append gives a batch its offsets and its place in the order of the shard, and
// returns before it is written; Wait waits for that. It blocks for back-pressure
// only. Batches appended one after the other by one goroutine keep their order.
//
// With ErrConflict and ErrStreamClosed nothing is appended. What these errors tell of the
// stream may still be lost in a crash, and then the next writer finds something else;
// Wait of the result waits until it cannot.
func (s *Store) Append(ctx context.Context, req AppendRequest) (Appended, error) {
	batch, rest, ok := nextBatch(req.Batch)
	if !ok || len(rest) > 0 {
		return Appended{}, ErrInvalidBatch
	}
	if int64(len(batch)) > s.opts.MaxBatchBytes {
		return Appended{}, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrBatchTooLarge, len(batch), s.opts.MaxBatchBytes)
	}
	size := int64(len(batch)) + tailEntryOverhead
	for _, row := range req.Rows {
		size += int64(len(row.Key)+len(row.Value)) + tailEntryOverhead
	}
	if err := s.admit(ctx, size, false); err != nil {
		return Appended{}, err
	}
	if req.Close {
		// It changes the stream's row, as transactions do.
		s.meta.Lock()
		defer s.meta.Unlock()
	}
	appended, queued, err := s.appendAdmitted(batch, req, size)
	if !queued {
		s.unflushed.Release(size)
	}
	return appended, err
}

// tailEntryOverhead is charged per append on top of its batch: the entry in
// memory and its key.
const tailEntryOverhead = 256

func (s *Store) appendAdmitted(batch recordBatch, req AppendRequest, size int64) (_ Appended, queued bool, _ error) {
	st, err := s.acquire(req.Stream)
	if err != nil {
		return Appended{}, false, err
	}
	defer s.release(st)
	var p *producer
	if id := batch.producerID(); id >= 0 {
		if p, err = s.lockWithProducer(st, id); err != nil {
			return Appended{}, false, err
		}
	} else {
		st.mu.Lock()
	}
	defer st.mu.Unlock()

	if st.mu.deleted {
		return Appended{}, false, ErrNoStream
	}
	if p != nil {
		duplicate, err := s.checkProducerLocked(st, p, batch, req.Ack)
		if err != nil || duplicate.Duplicate {
			return duplicate, false, err
		}
		if first := batch.baseSequence(); req.FromZero && first != 0 && !p.live.known() {
			return Appended{}, false, &SequenceError{Got: first, Expected: 0}
		}
	}
	if st.mu.row.closed {
		return st.refusedLocked(s, req.Ack), false, &StreamClosedError{Next: st.mu.next}
	}
	if req.Expected != AnyOffset && req.Expected != st.mu.next {
		return st.refusedLocked(s, req.Ack), false, &ConflictError{Expected: req.Expected, Next: st.mu.next}
	}
	entry := s.placeLocked(st, batch, size)
	entry.wantSync = req.Ack == AckLocal
	if s.opts.Durability == Remote && entry.wantSync {
		entry.synced = make(chan struct{})
	}
	if req.Close || len(req.Rows) > 0 {
		if entry.txn, err = s.mutationOfAppendLocked(st, &req); err != nil {
			s.unplaceLocked(st, entry)
			return Appended{}, false, err
		}
	}
	if err := s.queue.push(entry); err != nil {
		s.unplaceLocked(st, entry)
		return Appended{}, false, err
	}
	st.mu.row.closed, st.mu.lastWrite = req.Close, entry.appended
	if p != nil {
		p.live.add(batch.producerEpoch(), sequencesOf(batch), entry.appended)
		p.unflushed++
	}
	s.tailCache.add(entry)
	return Appended{
		BaseOffset:  entry.base,
		LastOffset:  entry.last,
		StartOffset: st.mu.row.start,
		Timestamp:   entry.maxTimestamp,
		store:       s,
		done:        entry.ackChannel(req.Ack),
	}, true, nil
}

// mutationOfAppendLocked is what an append changes beside the records of its stream.
func (s *Store) mutationOfAppendLocked(st *stream, req *AppendRequest) (*mutation, error) {
	batch := s.db.NewBatch()
	defer batch.Close()
	if req.Close {
		row := st.mu.row
		row.closed = true
		if err := batch.Set(streamKey(st.id), row.encode(), nil); err != nil {
			return nil, err
		}
	}
	for _, row := range req.Rows {
		if err := batch.Set(kvKey(row.Key), row.Value, nil); err != nil {
			return nil, err
		}
	}
	return &mutation{rows: bytes.Clone(batch.Repr())}, nil
}

// refusedLocked is the result of an append that was refused because of where the stream
// ends: it is acknowledged when the stream's last records are.
func (st *stream) refusedLocked(s *Store, ack Ack) Appended {
	refused := Appended{store: s}
	if n := len(st.mu.tail); n > 0 {
		refused.done = st.mu.tail[n-1].ackChannel(ack)
	}
	return refused
}

func (e *tailEntry) ackChannel(ack Ack) <-chan struct{} {
	switch {
	case ack == AckNone:
		return nil
	case ack == AckLocal && e.synced != nil:
		return e.synced
	}
	return e.durable
}

// checkProducerLocked applies the rules of idempotent producers. A duplicate is
// acknowledged when the original is.
func (s *Store) checkProducerLocked(st *stream, p *producer, batch recordBatch, ack Ack) (Appended, error) {
	original, err := p.live.check(batch)
	if err != nil || original == nil {
		return Appended{}, err
	}
	appended := Appended{
		BaseOffset:  original.baseOffset,
		LastOffset:  original.lastOffset,
		StartOffset: st.mu.row.start,
		Duplicate:   true,
		Timestamp:   original.timestamp,
		store:       s,
	}
	if original.baseOffset == UnknownOffset {
		// It came before what the producer appended last: that is durable no earlier.
		original = &p.live.batches[len(p.live.batches)-1]
	}
	if i, ok := st.findTailLocked(original.baseOffset); ok {
		appended.done = st.mu.tail[i].ackChannel(ack)
	}
	return appended, nil
}

// placeLocked assigns offsets and adds the batch to the stream's tail.
func (s *Store) placeLocked(st *stream, batch recordBatch, size int64) *tailEntry {
	batch.place(st.mu.next, LeaderEpoch)
	entry := &tailEntry{
		stream:       st,
		base:         st.mu.next,
		last:         batch.lastOffset(),
		maxTimestamp: batch.maxTimestamp(),
		appended:     s.opts.Now().UnixMilli(),
		size:         size,
		producer:     max(batch.producerID(), noProducer),
		batch:        batch,
		durable:      make(chan struct{}),
	}
	st.mu.tail = append(st.mu.tail, entry)
	st.mu.next = entry.last + 1
	s.pin(st) // until the entry is in the bucket
	return entry
}

// unplaceLocked takes back the entry that was placed last.
func (s *Store) unplaceLocked(st *stream, entry *tailEntry) {
	st.mu.tail = st.mu.tail[:len(st.mu.tail)-1]
	st.mu.next = entry.base
	s.release(st)
}

// LeaderEpoch is the leader epoch of every batch and partition. A record that
// readers have seen is never cut off again, which is all that Kafka's leader
// epochs protect readers from, so one epoch serves for ever.
const LeaderEpoch = 0

func sequencesOf(batch recordBatch) producerBatch {
	return producerBatch{
		firstSequence: batch.baseSequence(),
		lastSequence:  lastSequence(batch),
		baseOffset:    batch.baseOffset(),
		lastOffset:    batch.lastOffset(),
		timestamp:     batch.maxTimestamp(),
	}
}
