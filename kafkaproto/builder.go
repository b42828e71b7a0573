package kafkaproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Record is one record to be put into a batch by a [Builder].
type Record struct {
	// Timestamp is in milliseconds since 1970.
	Timestamp int64
	// Key and Value are null if nil.
	Key, Value []byte
	// Headers keep their order; keys may repeat.
	Headers []Header
}

// Header is one header of a [Record].
type Header struct {
	Key   string
	Value []byte // null if nil
}

// BatchOptions are the properties of a batch that are not in its records. The zero
// value is an uncompressed batch of a producer that is not idempotent.
type BatchOptions struct {
	// Codec compresses the records.
	Codec Codec
	// Producer, if not nil, makes the batch part of an idempotent producer's sequence.
	Producer *ProducerState
	// Transactional marks the batch as part of the producer's transaction.
	Transactional bool
	// Control marks the batch as a marker. Only brokers write those.
	Control bool
}

// ProducerState is what an idempotent producer stamps on a batch (KIP-98).
type ProducerState struct {
	ID       int64
	Epoch    int16
	Sequence int32 // of the batch's first record
}

// ErrBatchFull is returned by [Builder.Append] if the batch would outgrow what the
// format can express, 2 GiB.
var ErrBatchFull = errors.New("kafkaproto: record batch full")

// ErrEmptyBatch is returned by [Builder.Build] if no record was appended.
var ErrEmptyBatch = errors.New("kafkaproto: record batch without records")

// Builder makes one record batch at a time. The zero value is ready to use. It is
// not safe for concurrent use.
type Builder struct {
	opts     BatchOptions
	buf      []byte // header space and encoded records
	count    int32
	baseTime int64
	maxTime  int64
}

// NewBuilder returns a builder of batches with the given properties.
func NewBuilder(opts BatchOptions) *Builder { return &Builder{opts: opts} }

// Reset drops what was appended and sets the properties of the next batch. The
// builder's memory is kept.
func (b *Builder) Reset(opts BatchOptions) {
	*b = Builder{opts: opts, buf: b.buf[:0]}
}

// Count returns the number of records appended.
func (b *Builder) Count() int { return int(b.count) }

// Size returns the size in bytes of the batch so far, before compression.
func (b *Builder) Size() int { return max(len(b.buf), BatchOverhead) }

// Append adds a record. Key, value and headers are copied. The only error is
// [ErrBatchFull], which leaves the batch as it was.
func (b *Builder) Append(r Record) error {
	if len(b.buf) == 0 {
		b.buf = append(b.buf, make([]byte, BatchOverhead)...)
		b.baseTime, b.maxTime = r.Timestamp, r.Timestamp
	}
	ts := r.Timestamp - b.baseTime
	size := recordSize(&r, ts, b.count)
	if int64(len(b.buf))+size+maxVarint32 > math.MaxInt32 || b.count == math.MaxInt32 {
		return ErrBatchFull
	}
	b.buf = binary.AppendVarint(b.buf, size)
	b.buf = append(b.buf, 0) // attributes
	b.buf = binary.AppendVarint(b.buf, ts)
	b.buf = binary.AppendVarint(b.buf, int64(b.count))
	b.buf = appendVarBytes(b.buf, r.Key)
	b.buf = appendVarBytes(b.buf, r.Value)
	b.buf = binary.AppendVarint(b.buf, int64(len(r.Headers)))
	for _, h := range r.Headers {
		b.buf = binary.AppendVarint(b.buf, int64(len(h.Key)))
		b.buf = append(b.buf, h.Key...)
		b.buf = appendVarBytes(b.buf, h.Value)
	}
	b.maxTime = max(b.maxTime, r.Timestamp)
	b.count++
	return nil
}

// Build returns the batch, in memory of its own, with base offset 0 and leader epoch
// -1 as a producer sends it. The records stay in the builder until Reset.
func (b *Builder) Build() (RecordBatch, error) {
	if b.count == 0 {
		return nil, ErrEmptyBatch
	}
	out := make([]byte, BatchOverhead, len(b.buf))
	out, err := compress(out, b.opts.Codec, b.buf[BatchOverhead:])
	if err != nil {
		return nil, fmt.Errorf("kafkaproto: compressing a record batch: %w", err)
	}
	batch := RecordBatch(out)
	b.putHeader(batch)
	return batch, nil
}

func (b *Builder) putHeader(batch RecordBatch) {
	attrs := int16(b.opts.Codec)
	if b.opts.Transactional {
		attrs |= attrTransactional
	}
	if b.opts.Control {
		attrs |= attrControl
	}
	producer := ProducerState{ID: -1, Epoch: -1, Sequence: -1}
	if b.opts.Producer != nil {
		producer = *b.opts.Producer
	}
	batch.putInt32(offBatchLength, int32(len(batch)-lengthOverhead))
	batch.putInt32(offLeaderEpoch, -1)
	batch[offMagic] = magicV2
	batch.putInt16(offAttributes, attrs)
	batch.putInt32(offLastOffsetDelta, b.count-1)
	batch.putInt64(offBaseTimestamp, b.baseTime)
	batch.putInt64(offMaxTimestamp, b.maxTime)
	batch.putInt64(offProducerID, producer.ID)
	batch.putInt16(offProducerEpoch, producer.Epoch)
	batch.putInt32(offBaseSequence, producer.Sequence)
	batch.putInt32(offRecordCount, b.count)
	batch.SetCRC()
}

// recordSize returns the size of the encoded record without its length field.
func recordSize(r *Record, ts int64, offsetDelta int32) int64 {
	n := 1 + varintLen(ts) + varintLen(int64(offsetDelta)) +
		varBytesLen(r.Key) + varBytesLen(r.Value) + varintLen(int64(len(r.Headers)))
	for _, h := range r.Headers {
		n += varintLen(int64(len(h.Key))) + int64(len(h.Key)) + varBytesLen(h.Value)
	}
	return n
}

func varBytesLen(b []byte) int64 {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + int64(len(b))
}

func varintLen(v int64) int64 {
	n := int64(1)
	for u := uint64(v<<1) ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

func appendVarBytes(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	dst = binary.AppendVarint(dst, int64(len(b)))
	return append(dst, b...)
}
