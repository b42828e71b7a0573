package httpapi

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// span is what a read went through.
type span struct {
	// next is where to go on reading.
	next int64
	streamstore.Offsets
}

// endless is the end of a range that has none.
const endless = math.MaxInt64

// expandLimits bound what reading one record of a compressed batch may cost.
var expandLimits = kafkaproto.IterLimits{}

// unreadableError is the error of a batch whose records cannot be decoded. The store takes batches as producers compressed
// them, so nothing keeps one from holding anything else.
type unreadableError struct {
	offset, next int64 // of the batch, and of what follows it
	cause        error
}

func (e *unreadableError) Error() string {
	return fmt.Sprintf("the records at offsets %d to %d cannot be decoded: %v", e.offset, e.next-1, e.cause)
}

func (e *unreadableError) Unwrap() error { return e.cause }

// verdict is what the function that records are handed to says of one.
type verdict int8

const (
	taken     verdict = iota // go on
	lastBatch                // taken; go on to the end of this batch
	takenAll                 // taken, and no more are wanted
	refused                  // left to the next read
)

// eachRecord calls fn with the records from offset from on, all below to and below the high watermark, until fn wants no
// more. A batch is decoded from its beginning each time that a read begins in it, so readers who want all of it should not
// stop inside. room bounds the bytes read from the store at a time. The record is valid during the call.
//
// Errors are those of Store.Read, and *unreadableError; they come only if no record was read before, else the next read
// meets them.
func (s *Server) eachRecord(ctx context.Context, id streamstore.StreamID, from, to int64, room int, fn func(*kafkaproto.RecordView) verdict) (span, error) {
	return s.eachStored(ctx, id, from, to, room, func(at *span, batch kafkaproto.RecordBatch) (more bool, err error) {
		return at.eachInBatch(batch, to, fn)
	})
}

// eachStored calls fn with the batches of the store from the one that holds offset from on, until fn wants no more. fn moves
// the span on. Errors, of fn too, come only if the span has not moved.
func (s *Server) eachStored(ctx context.Context, id streamstore.StreamID, from, to int64, room int, fn func(*span, kafkaproto.RecordBatch) (more bool, err error)) (span, error) {
	at := span{next: from}
	for {
		read, err := s.store.Read(ctx, id, at.next, streamstore.ReadOptions{MaxBytes: room, MinOneBatch: at.next < to})
		at.Offsets = read.Offsets
		if err != nil && at.next > from {
			return at, nil
		}
		if err != nil || read.Bytes == 0 {
			return at, err
		}
		for _, chunk := range read.Chunks {
			for len(chunk) > 0 {
				var batch kafkaproto.RecordBatch
				if batch, chunk, err = kafkaproto.NextBatch(chunk); err != nil {
					return at, err // cannot be: the store returns whole batches
				}
				more, err := fn(&at, batch)
				if err != nil && at.next > from {
					return at, nil
				}
				if err != nil || !more {
					return at, err
				}
			}
		}
	}
}

// eachInBatch calls fn with the records of a batch from at.next to to, and moves at.next behind those that fn took. more
// tells to go on with the next batch.
func (at *span) eachInBatch(batch kafkaproto.RecordBatch, to int64, fn func(*kafkaproto.RecordView) verdict) (more bool, err error) {
	end := batch.LastOffset() + 1
	if batch.BaseOffset() >= to {
		return false, nil
	}
	if batch.IsControl() {
		at.next = end
		return true, nil
	}
	more = true
	it := kafkaproto.NewRecordIterator(batch, expandLimits)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		if r.Offset < at.next {
			continue
		}
		if r.Offset >= to {
			at.next = max(at.next, to)
			return false, nil
		}
		v := fn(r)
		if v != refused {
			at.next = r.Offset + 1
		}
		if v == takenAll || v == refused {
			return false, nil
		}
		more = more && v != lastBatch
	}
	if err := it.Err(); err != nil {
		return false, &unreadableError{offset: at.next, next: end, cause: err}
	}
	at.next = max(at.next, min(end, to)) // offsets behind the last record, if compaction took records away
	return more && at.next < to, nil
}

// readProblem translates an error of a read.
func readProblem(err error, o streamstore.Offsets) error {
	if e, ok := errors.AsType[*unreadableError](err); ok {
		return unreadableBatch.new("%v; go on at offset %d to leave them out", e, e.next).
			with("offset", e.offset).withOffset(headerNextOffset, "next_offset", e.next)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return bucketUnreachable.new("the bucket did not answer in time; try again").withHeader("Retry-After", retryAfter)
	}
	return withRange(err, o)
}

// eachBatch calls fn with the batches from offset from on, like eachRecord, until fn returns false. The first is cut if
// from lies inside, so that records that were trimmed are never shown, and the last if to does.
func (s *Server) eachBatch(ctx context.Context, id streamstore.StreamID, from, to int64, room int, fn func(kafkaproto.RecordBatch) bool) (span, error) {
	return s.eachStored(ctx, id, from, to, room, func(at *span, batch kafkaproto.RecordBatch) (more bool, err error) {
		if at.next >= to || batch.BaseOffset() >= to {
			return false, nil
		}
		if batch.BaseOffset() < at.next || batch.LastOffset() >= to {
			if batch, err = cutBatch(batch, at.next, to); err != nil {
				return false, err
			}
		}
		if !fn(batch) {
			return false, nil
		}
		at.next = batch.LastOffset() + 1
		return true, nil
	})
}

// cutBatch returns a batch of the records of batch from from to to.
func cutBatch(batch kafkaproto.RecordBatch, from, to int64) (kafkaproto.RecordBatch, error) {
	b := takeBuilder(nil)
	defer putBuilder(b)
	at := span{next: from}
	first := int64(-1)
	_, err := at.eachInBatch(batch, to, func(r *kafkaproto.RecordView) verdict {
		if first < 0 {
			first = r.Offset
		}
		record := kafkaproto.Record{Timestamp: r.Timestamp, Key: r.Key, Value: r.Value}
		for name, value := range r.Headers() {
			record.Headers = append(record.Headers, kafkaproto.Header{Key: string(name), Value: value})
		}
		if b.Append(record) != nil {
			return refused
		}
		return taken
	})
	if err != nil {
		return nil, err
	}
	cut, err := b.Build()
	if err != nil {
		return nil, &unreadableError{offset: from, next: batch.LastOffset() + 1, cause: err}
	}
	cut.SetBaseOffset(first)
	return cut, nil
}
