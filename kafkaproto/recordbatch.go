package kafkaproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The layout of a RecordBatch v2 (KIP-98, class DefaultRecordBatch). All integers
// are big endian.
//
//	 0  8  baseOffset            assigned by the broker, clients send 0
//	 8  4  batchLength           bytes that follow this field: total - 12
//	12  4  partitionLeaderEpoch  assigned by the broker, clients send -1
//	16  1  magic                 2
//	17  4  crc                   CRC-32C of byte 21 to the end
//	21  2  attributes            bits 0-2 codec, 3 timestamp type,
//	                             4 transactional, 5 control, 6 delete horizon
//	23  4  lastOffsetDelta       last offset = baseOffset + lastOffsetDelta
//	27  8  baseTimestamp         milliseconds; records carry the difference to it
//	35  8  maxTimestamp          milliseconds
//	43  8  producerId            -1 if none
//	51  2  producerEpoch         -1 if none
//	53  4  baseSequence          -1 if none
//	57  4  recordCount
//	61     records               one compressed block unless the codec is 0
//
// The fields before the CRC are outside it, so assigning an offset and an epoch
// costs 12 bytes and no hash.
const (
	// BatchOverhead is the size in bytes of a batch without records.
	BatchOverhead = 61

	offBaseOffset      = 0
	offBatchLength     = 8
	offLeaderEpoch     = 12
	offMagic           = 16
	offCRC             = 17
	offAttributes      = 21
	offLastOffsetDelta = 23
	offBaseTimestamp   = 27
	offMaxTimestamp    = 35
	offProducerID      = 43
	offProducerEpoch   = 51
	offBaseSequence    = 53
	offRecordCount     = 57

	// lengthOverhead is what batchLength does not count.
	lengthOverhead = 12

	attrCodec         = 0x07
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	attrDeleteHorizon = 1 << 6

	magicV2 = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrShortBatch is returned by [NextBatch] when the bytes end inside a batch. A
// reader of a fetch response drops such a tail; anywhere else it is damage.
var ErrShortBatch = errors.New("kafkaproto: the bytes end inside a record batch")

// RecordBatch is a view over the bytes of exactly one RecordBatch v2. Accessors
// read and setters write these bytes in place. They panic on a slice shorter than
// [BatchOverhead]; [NextBatch], [SingleBatch] and [ValidateBatch] make sure that
// it is not.
type RecordBatch []byte

// BaseOffset returns the offset of the batch's first record when it was written.
func (b RecordBatch) BaseOffset() int64 { return b.int64At(offBaseOffset) }

// Len returns the size of the batch in bytes as its header tells it.
func (b RecordBatch) Len() int { return int(b.int32At(offBatchLength)) + lengthOverhead }

// PartitionLeaderEpoch returns the epoch of the leader that wrote the batch.
func (b RecordBatch) PartitionLeaderEpoch() int32 { return b.int32At(offLeaderEpoch) }

// Magic returns the version of the message format.
func (b RecordBatch) Magic() int8 { return int8(b[offMagic]) }

// CRC returns the stored checksum. [RecordBatch.ComputeCRC] has the true one.
func (b RecordBatch) CRC() uint32 { return binary.BigEndian.Uint32(b[offCRC:]) }

// ComputeCRC returns the CRC-32C of the bytes that the checksum covers.
func (b RecordBatch) ComputeCRC() uint32 { return crc32.Checksum(b[offAttributes:], castagnoli) }

// Attributes returns the attribute bits.
func (b RecordBatch) Attributes() int16 { return b.int16At(offAttributes) }

// Codec returns how the records are compressed.
func (b RecordBatch) Codec() Codec { return Codec(b.Attributes() & attrCodec) }

// IsLogAppendTime tells whether all records carry maxTimestamp, the time the
// broker wrote them, instead of a time of their own.
func (b RecordBatch) IsLogAppendTime() bool { return b.Attributes()&attrLogAppendTime != 0 }

// IsTransactional tells whether the batch belongs to a transaction.
func (b RecordBatch) IsTransactional() bool { return b.Attributes()&attrTransactional != 0 }

// IsControl tells whether the batch holds a marker for clients, not user data.
func (b RecordBatch) IsControl() bool { return b.Attributes()&attrControl != 0 }

// HasDeleteHorizon tells whether baseTimestamp is the time from which tombstones
// of the batch may be dropped (KIP-534). Record timestamps count from it all the same.
func (b RecordBatch) HasDeleteHorizon() bool { return b.Attributes()&attrDeleteHorizon != 0 }

// LastOffsetDelta returns last offset minus base offset. Compaction keeps it, so
// it may exceed the record count less one.
func (b RecordBatch) LastOffsetDelta() int32 { return b.int32At(offLastOffsetDelta) }

// LastOffset returns the offset of the last record when the batch was written.
func (b RecordBatch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// BaseTimestamp returns the time in milliseconds that record timestamps count from.
func (b RecordBatch) BaseTimestamp() int64 { return b.int64At(offBaseTimestamp) }

// MaxTimestamp returns the largest timestamp in milliseconds, as the producer says.
func (b RecordBatch) MaxTimestamp() int64 { return b.int64At(offMaxTimestamp) }

// ProducerID returns the idempotent producer's id, or -1.
func (b RecordBatch) ProducerID() int64 { return b.int64At(offProducerID) }

// ProducerEpoch returns the idempotent producer's epoch, or -1.
func (b RecordBatch) ProducerEpoch() int16 { return b.int16At(offProducerEpoch) }

// BaseSequence returns the sequence number of the first record, or -1.
func (b RecordBatch) BaseSequence() int32 { return b.int32At(offBaseSequence) }

// RecordCount returns the number of records.
func (b RecordBatch) RecordCount() int32 { return b.int32At(offRecordCount) }

// Records returns the bytes after the header, compressed if the codec says so.
func (b RecordBatch) Records() []byte { return b[BatchOverhead:] }

// SetBaseOffset assigns the offset of the first record. The CRC stays valid.
func (b RecordBatch) SetBaseOffset(o int64) { b.putInt64(offBaseOffset, o) }

// SetPartitionLeaderEpoch assigns the leader epoch. The CRC stays valid.
func (b RecordBatch) SetPartitionLeaderEpoch(e int32) { b.putInt32(offLeaderEpoch, e) }

// SetProducer makes the batch part of an idempotent producer's sequence, whatever it
// was part of before, and computes the checksum anew.
func (b RecordBatch) SetProducer(p ProducerState) {
	b.putInt64(offProducerID, p.ID)
	b.putInt16(offProducerEpoch, p.Epoch)
	b.putInt32(offBaseSequence, p.Sequence)
	b.SetCRC()
}

// SetCRC computes the checksum and stores it. It is due after a change to any
// field from the attributes on.
func (b RecordBatch) SetCRC() { binary.BigEndian.PutUint32(b[offCRC:], b.ComputeCRC()) }

func (b RecordBatch) int16At(i int) int16 { return int16(binary.BigEndian.Uint16(b[i:])) }
func (b RecordBatch) int32At(i int) int32 { return int32(binary.BigEndian.Uint32(b[i:])) }
func (b RecordBatch) int64At(i int) int64 { return int64(binary.BigEndian.Uint64(b[i:])) }

func (b RecordBatch) putInt16(i int, v int16) { binary.BigEndian.PutUint16(b[i:], uint16(v)) }
func (b RecordBatch) putInt32(i int, v int32) { binary.BigEndian.PutUint32(b[i:], uint32(v)) }
func (b RecordBatch) putInt64(i int, v int64) { binary.BigEndian.PutUint64(b[i:], uint64(v)) }

// PatchLogAppendTime makes all records of b carry now (milliseconds), as a topic
// with message.timestamp.type=LogAppendTime wants it: bit 3 and maxTimestamp are
// set and the CRC is computed anew. Base timestamp and deltas stay.
func PatchLogAppendTime(b RecordBatch, now int64) {
	b.putInt16(offAttributes, b.Attributes()|attrLogAppendTime)
	b.putInt64(offMaxTimestamp, now)
	b.SetCRC()
}

// NextBatch cuts the first batch off b, which holds batches back to back. Errors
// are [ErrShortBatch] and [ErrCorruptMessage] (a length that no batch can have, or a
// magic other than 2). The CRC is not looked at.
func NextBatch(b []byte) (batch RecordBatch, rest []byte, err error) {
	if len(b) < lengthOverhead {
		return nil, nil, ErrShortBatch
	}
	n := int64(RecordBatch(b).int32At(offBatchLength)) + lengthOverhead
	if n <= offMagic {
		return nil, nil, ErrCorruptMessage.WithMessage("record batch with a length field of %d", n-lengthOverhead)
	}
	if int64(len(b)) < n {
		return nil, nil, ErrShortBatch
	}
	batch = RecordBatch(b[:n:n])
	if m := batch.Magic(); m != magicV2 {
		return nil, nil, ErrCorruptMessage.WithMessage("record batch of magic %d, only magic 2 is stored", m)
	}
	if n < BatchOverhead {
		return nil, nil, ErrCorruptMessage.WithMessage("record batch of %d bytes, a header alone takes %d", n, BatchOverhead)
	}
	return batch, b[n:], nil
}

// SingleBatch returns the one batch that a records field of Produce v3 and later
// must be. Message sets of magic 0 and 1, no batch, more than one batch and bytes
// left over are [ErrInvalidRecord]; a size below the header's is
// [ErrCorruptMessage].
func SingleBatch(records []byte) (RecordBatch, error) {
	if len(records) > offMagic {
		if m := int8(records[offMagic]); m == 0 || m == 1 {
			return nil, ErrInvalidRecord.WithMessage("message format of magic %d; Produce v3 and later must send record batches of magic 2, so use a client of Kafka 0.11 or later", m)
		} else if m != magicV2 {
			return nil, ErrInvalidRecord.WithMessage("unknown message format of magic %d", m)
		}
	}
	batch, rest, err := NextBatch(records)
	if errors.Is(err, ErrShortBatch) {
		return nil, ErrInvalidRecord.WithMessage("the records field of %d bytes holds no whole record batch", len(records))
	}
	if err != nil {
		return nil, err
	}
	if len(rest) != 0 {
		return nil, ErrInvalidRecord.WithMessage("%d bytes follow the first record batch; a partition of a Produce request takes exactly one batch", len(rest))
	}
	return batch, nil
}

// BatchLimits are the rules of a topic that [ValidateBatch] holds a batch to. The
// zero value has none.
type BatchLimits struct {
	// MaxBytes is max.message.bytes: the largest batch as sent, header included.
	// Zero means no limit.
	MaxBytes int
	// ProduceVersion is the version of the request the batch came in. Below 7
	// zstd is refused (KIP-110). Zero means that it came by another door.
	ProduceVersion int16
	// Now, if not zero, turns on the check of timestamps against the two limits
	// below: milliseconds since 1970. Leave it zero for LogAppendTime topics.
	Now int64
	// TimestampBeforeMax and TimestampAfterMax are message.timestamp.before.max.ms
	// and message.timestamp.after.max.ms (KIP-937).
	TimestampBeforeMax, TimestampAfterMax int64
}

// ValidateBatch checks the records field of one partition of a Produce request, in
// the order of Kafka's classes ProduceRequest, UnifiedLog and LogValidator, so that
// a batch with two faults gets the error that Kafka would give. On success records
// is exactly one [RecordBatch].
//
// Nothing is decompressed. What only the records themselves can tell is not
// checked here: their true number, contiguous offset deltas, null keys, and
// timestamps other than the header's two. [RecordIterator] meets those with an
// error, never with a crash, when the batch is read record by record.
//
// Errors are *[Error]: ErrInvalidRecord, ErrUnsupportedCompressionType,
// ErrMessageTooLarge, ErrCorruptMessage, ErrInvalidTimestamp.
func ValidateBatch(records []byte, limits BatchLimits) error {
	b, err := SingleBatch(records)
	if err != nil {
		return err
	}
	if err := validateCodec(b, limits.ProduceVersion); err != nil {
		return err
	}
	if o := b.BaseOffset(); o != 0 {
		return ErrInvalidRecord.WithMessage("base offset %d, a producer must send 0", o)
	}
	if limits.MaxBytes > 0 && len(b) > limits.MaxBytes {
		return ErrMessageTooLarge.WithMessage("record batch of %d bytes is larger than the topic's max.message.bytes of %d", len(b), limits.MaxBytes)
	}
	if got, want := b.ComputeCRC(), b.CRC(); got != want {
		return ErrCorruptMessage.WithMessage("record batch has CRC %08x, its bytes give %08x", want, got)
	}
	if err := validateCounts(b); err != nil {
		return err
	}
	if b.IsControl() {
		return ErrInvalidRecord.WithMessage("control batches are written by the broker only")
	}
	if b.ProducerID() >= 0 && (b.BaseSequence() < 0 || b.ProducerEpoch() < 0) {
		return ErrInvalidRecord.WithMessage("producer id %d with sequence %d and epoch %d; neither may be negative", b.ProducerID(), b.BaseSequence(), b.ProducerEpoch())
	}
	return validateTimestamps(b, limits)
}

func validateCodec(b RecordBatch, produceVersion int16) error {
	switch c := b.Codec(); {
	case c > CodecZstd:
		return ErrUnsupportedCompressionType.WithMessage("compression codec %d does not exist", c)
	case c == CodecZstd && produceVersion > 0 && produceVersion < 7:
		return ErrUnsupportedCompressionType.WithMessage("zstd needs Produce v7 or later, the request is v%d", produceVersion)
	}
	return nil
}

func validateCounts(b RecordBatch) error {
	count, delta := b.RecordCount(), b.LastOffsetDelta()
	if count <= 0 {
		return ErrInvalidRecord.WithMessage("record batch with a record count of %d", count)
	}
	if int64(delta)+1 != int64(count) {
		return ErrInvalidRecord.WithMessage("record batch of %d records with a last offset delta of %d", count, delta)
	}
	if body := len(b) - BatchOverhead; b.Codec() == CodecNone && int64(count)*minRecordBytes > int64(body) {
		return ErrInvalidRecord.WithMessage("record batch claims %d records in %d bytes", count, body)
	}
	return nil
}

// minRecordBytes is the size of the smallest record: its length, attributes, timestamp and offset deltas, key and value
// lengths and header count take a byte each.
const minRecordBytes = 7

func validateTimestamps(b RecordBatch, limits BatchLimits) error {
	if b.IsLogAppendTime() {
		return ErrInvalidTimestamp.WithMessage("the batch claims LogAppendTime, which only the broker may set")
	}
	if limits.Now == 0 {
		return nil
	}
	// Differences are compared, since limits are often the largest int64.
	for _, ts := range [...]int64{b.BaseTimestamp(), b.MaxTimestamp()} {
		if ts < 0 {
			continue // -1 means that the records have none
		}
		if ts > limits.Now && ts-limits.Now > limits.TimestampAfterMax {
			return ErrInvalidTimestamp.WithMessage("timestamp %d is more than message.timestamp.after.max.ms=%d after the broker's clock (%d)", ts, limits.TimestampAfterMax, limits.Now)
		}
		if ts < limits.Now && limits.Now-ts > limits.TimestampBeforeMax {
			return ErrInvalidTimestamp.WithMessage("timestamp %d is more than message.timestamp.before.max.ms=%d before the broker's clock (%d)", ts, limits.TimestampBeforeMax, limits.Now)
		}
	}
	return nil
}

// String returns the batch's header in one line, for logs and test failures.
func (b RecordBatch) String() string {
	if len(b) < BatchOverhead {
		return fmt.Sprintf("record batch cut to %d bytes", len(b))
	}
	return fmt.Sprintf("record batch [%d,%d] %d records %d bytes codec=%v attributes=%#x producer=%d/%d/%d",
		b.BaseOffset(), b.LastOffset(), b.RecordCount(), len(b), b.Codec(), b.Attributes(),
		b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
}
