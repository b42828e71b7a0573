package streamstore

import (
	"crypto/sha256"
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

// Producers of HTTP and other protocols than Kafka's are known by names that they
// choose. A named producer's id has this bit set, which no id that the broker hands
// out ever has, and its sequence numbers count appends, not records.
const namedProducerBit = 1 << 62

// NamedProducer is the producer id of a producer that is known by a name: the first
// 62 bits of the name's SHA-256 under a bit that other ids do not have. The sequence
// number in a batch of a named producer counts its appends to the stream: each takes
// one, however many records it has. Whatever does not exceed its last sequence number
// in the same epoch is a duplicate, not only the last few batches.
func NamedProducer(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:])>>2 | namedProducerBit)
}

func isNamedProducer(id int64) bool { return id >= namedProducerBit }

// lastSequence is the last sequence number that a batch takes.
func lastSequence(batch recordBatch) int32 {
	if isNamedProducer(batch.producerID()) {
		return batch.baseSequence()
	}
	return int32((int64(batch.baseSequence()) + int64(batch.lastOffsetDelta())) & math.MaxInt32)
}

// check decides about a batch of the producer: a duplicate returns the
// remembered one, nil means that the batch is to be appended. The rules are
// those of Kafka's ProducerAppendInfo and ProducerStateEntry, and for named
// producers those of NamedProducer.
func (p *producerState) check(batch recordBatch) (duplicate *producerBatch, err error) {
	epoch, first, last := batch.producerEpoch(), batch.baseSequence(), lastSequence(batch)
	switch {
	case !p.known():
		return nil, nil
	case epoch < p.epoch:
		return nil, &ProducerEpochError{Got: epoch, Current: p.epoch}
	case epoch > p.epoch:
		if first != 0 {
			return nil, &SequenceError{Got: first, Expected: 0}
		}
		return nil, nil
	}
	for i := range p.batches {
		if b := &p.batches[i]; b.firstSequence == first && b.lastSequence == last {
			return b, nil
		}
	}
	newest := p.batches[len(p.batches)-1].lastSequence
	if isNamedProducer(batch.producerID()) && sequenceBefore(first, newest) {
		return &producerBatch{firstSequence: first, lastSequence: last, baseOffset: UnknownOffset, lastOffset: UnknownOffset, timestamp: -1}, nil
	}
	if expected := nextSequence(newest); first != expected {
		return nil, &SequenceError{Got: first, Expected: expected}
	}
	return nil, nil
}

// sequenceBefore reports whether a comes before b, on a circle of 2^31 numbers.
func sequenceBefore(a, b int32) bool {
	distance := (b - a) & math.MaxInt32
	return distance != 0 && distance < 1<<30
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
	r := newRowReader(b, rowVersion)
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
