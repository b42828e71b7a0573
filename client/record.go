package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Record is one record of a stream. Stream and Offset are those of a record that was read, and ignored in one that is
// written.
type Record struct {
	Stream string
	Offset int64
	// Timestamp has millisecond precision. The zero value of a record that is written means now.
	Timestamp time.Time
	// Key and Value may be nil, which is not the same as empty.
	Key, Value []byte
	// Headers keep their order, and keys may repeat.
	Headers []Header
}

// Header is one header of a Record.
type Header struct {
	Key   string
	Value []byte // may be nil
}

// size is about what a record takes in a batch, in bytes.
func (r *Record) size() int {
	const overhead = 16
	n := overhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += overhead + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// appendTo adds the record to a batch.
func (r *Record) appendTo(b *kafkaproto.Builder, now time.Time) error {
	ts := r.Timestamp
	if ts.IsZero() {
		ts = now
	}
	out := kafkaproto.Record{Timestamp: ts.UnixMilli(), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, kafkaproto.Header{Key: h.Key, Value: h.Value})
	}
	return b.Append(out)
}

// errBadRecords: what a broker has sent cannot be read, and could not be read a second time.
var errBadRecords = errors.New("unreadable records")

// decode calls emit with the records of batches back to back whose offsets are next or more, until it returns false. It
// returns the offset behind the last record that was emitted or passed over.
func decode(stream string, batches []byte, next int64, emit func(*Record) bool) (int64, error) {
	for len(batches) > 0 {
		batch, rest, err := kafkaproto.NextBatch(batches)
		if err != nil {
			return next, fmt.Errorf("stream %q: %w behind offset %d: %w", stream, errBadRecords, next, err)
		}
		batches = rest
		var ok bool
		if next, ok, err = decodeBatch(stream, batch, next, emit); err != nil || !ok {
			return next, err
		}
	}
	return next, nil
}

func decodeBatch(stream string, batch kafkaproto.RecordBatch, next int64, emit func(*Record) bool) (_ int64, ok bool, _ error) {
	end := batch.LastOffset() + 1
	if batch.IsControl() || end <= next {
		return max(next, end), true, nil
	}
	if batch.CRC() != batch.ComputeCRC() {
		return next, false, fmt.Errorf("stream %q: %w: the checksum of the batch at offset %d is wrong", stream, errBadRecords, batch.BaseOffset())
	}
	it := kafkaproto.NewRecordIterator(batch, kafkaproto.IterLimits{})
	defer it.Close()
	for it.Next() {
		v := it.Record()
		if v.Offset < next {
			continue
		}
		next = v.Offset + 1
		if !emit(newRecord(stream, v)) {
			return next, false, nil
		}
	}
	if err := it.Err(); err != nil {
		return next, false, fmt.Errorf("stream %q: %w in the batch at offset %d: %w", stream, errBadRecords, batch.BaseOffset(), err)
	}
	return max(next, end), true, nil
}

// newRecord copies what the iterator shows. Key and value share memory.
func newRecord(stream string, v *kafkaproto.RecordView) *Record {
	r := &Record{Stream: stream, Offset: v.Offset, Timestamp: time.UnixMilli(v.Timestamp)}
	both := make([]byte, 0, len(v.Key)+len(v.Value))
	if v.Key != nil {
		both = append(both, v.Key...)
		r.Key = both[:len(both):len(both)]
	}
	if v.Value != nil {
		r.Value = append(both, v.Value...)[len(both):]
	}
	if n := v.NumHeaders(); n > 0 {
		r.Headers = make([]Header, 0, n)
		for key, value := range v.Headers() {
			h := Header{Key: string(key)}
			if value != nil {
				h.Value = append([]byte{}, value...)
			}
			r.Headers = append(r.Headers, h)
		}
	}
	return r
}
