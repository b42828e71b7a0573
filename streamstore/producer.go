package streamstore

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// producerBatches is how many of a producer's last batches are remembered, so
// that a retry is recognised: a client may have that many requests in flight
// (Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
const producerBatches = 5

// producerBatch is one remembered batch of an idempotent producer.
type producerBatch struct {
	firstSequence, lastSequence int32
	baseOffset, lastOffset      int64
	timestamp                   int64 // the batch's maxTimestamp, ms
}

// producerState is what a stream remembers of one idempotent producer: its
// epoch and last batches, oldest first. The zero value knows nothing and
// accepts any first sequence (KIP-360).
type producerState struct {
	epoch   int16
	batches []producerBatch // 1 to producerBatches; none: state unknown
	// touched is when the newest batch was appended, ms. An idle state expires.
	touched int64
}

func (p *producerState) known() bool { return len(p.batches) > 0 }

// nextSequence follows a sequence number; they wrap to 0 after 2^31-1.
func nextSequence(last int32) int32 {
	if last == math.MaxInt32 {
		return 0
	}
	return last + 1
}

// lastSequence is the sequence number of a batch's last record.
func lastSequence(base, lastOffsetDelta int32) int32 {
	return int32((int64(base) + int64(lastOffsetDelta)) & math.MaxInt32)
}

// check decides about a batch of the producer: a duplicate returns the
// remembered one, nil means that the batch is to be appended. The rules are
// those of Kafka's ProducerAppendInfo and ProducerStateEntry.
func (p *producerState) check(epoch int16, first, last int32) (duplicate *producerBatch, err error) {
	switch {
	case !p.known():
		return nil, nil
	case epoch < p.epoch:
		return nil, ErrInvalidProducerEpoch
	case epoch > p.epoch:
		if first != 0 {
			return nil, ErrOutOfOrderSequence
		}
		return nil, nil
	}
	for i := range p.batches {
		if b := &p.batches[i]; b.firstSequence == first && b.lastSequence == last {
			return b, nil
		}
	}
	if first != nextSequence(p.batches[len(p.batches)-1].lastSequence) {
		return nil, ErrOutOfOrderSequence
	}
	return nil, nil
}

// add remembers an appended batch.
func (p *producerState) add(epoch int16, b producerBatch, now int64) {
	if epoch != p.epoch {
		p.epoch, p.batches = epoch, p.batches[:0]
	}
	if len(p.batches) == producerBatches {
		p.batches = slices.Delete(p.batches, 0, 1)
	}
	p.batches = append(p.batches, b)
	p.touched = now
}

func (p *producerState) clone() producerState {
	c := *p
	c.batches = slices.Clone(p.batches)
	return c
}

func (p *producerState) expired(now time.Time, expiry time.Duration) bool {
	return now.UnixMilli()-p.touched > expiry.Milliseconds()
}

// encode makes the producer row:
//
//	version, epoch i, touched i (ms since 1970), batch count u, and for each batch:
//	first sequence u, last sequence u, base offset u,
//	last offset - base offset u, timestamp i
func (p *producerState) encode() []byte {
	b := append(make([]byte, 0, 8+24*len(p.batches)), rowVersion)
	b = binary.AppendVarint(b, int64(p.epoch))
	b = binary.AppendVarint(b, p.touched)
	b = binary.AppendUvarint(b, uint64(len(p.batches)))
	for _, batch := range p.batches {
		b = binary.AppendUvarint(b, uint64(batch.firstSequence))
		b = binary.AppendUvarint(b, uint64(batch.lastSequence))
		b = binary.AppendUvarint(b, uint64(batch.baseOffset))
		b = binary.AppendUvarint(b, uint64(batch.lastOffset-batch.baseOffset))
		b = binary.AppendVarint(b, batch.timestamp)
	}
	return b
}

func decodeProducerState(b []byte) (p producerState, err error) {
	r := newRowReader(b)
	p.epoch = int16(r.varint())
	p.touched = r.varint()
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		var batch producerBatch
		batch.firstSequence = int32(r.uvarint())
		batch.lastSequence = int32(r.uvarint())
		batch.baseOffset = int64(r.uvarint())
		batch.lastOffset = batch.baseOffset + int64(r.uvarint())
		batch.timestamp = r.varint()
		p.batches = append(p.batches, batch)
	}
	return p, r.err
}

// ProducerState describes an idempotent producer of a stream, for Kafka's
// DescribeProducers.
type ProducerState struct {
	ProducerID    int64
	Epoch         int16
	LastSequence  int32
	LastTimestamp int64 // ms since 1970
}
