package kafkaproto

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// build returns a batch of the given records, as a producer would send it.
func build(t testing.TB, opts BatchOptions, records ...Record) RecordBatch {
	t.Helper()
	b := NewBuilder(opts)
	for _, r := range records {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// someRecords have nulls, empty fields, headers, and timestamps that go back.
func someRecords() []Record {
	return []Record{
		{Timestamp: 1000, Key: []byte("k"), Value: []byte("v")},
		{Timestamp: 900, Value: bytes.Repeat([]byte("long "), 2000)},
		{Timestamp: 1 << 42, Key: []byte{}, Value: []byte{}},
		{Timestamp: 1001, Headers: []Header{{Key: "a", Value: []byte("1")}, {Key: ""}, {Key: "a", Value: []byte{}}}},
	}
}

func TestRecordBatchHeaderFieldByField(t *testing.T) {
	batch := build(t, BatchOptions{
		Codec: CodecLZ4, Producer: &ProducerState{ID: 1<<40 + 7, Epoch: 300, Sequence: 1 << 20}, Transactional: true,
	}, someRecords()...)
	batch.SetBaseOffset(1<<50 + 3)
	batch.SetPartitionLeaderEpoch(99)

	var want kmsg.RecordBatch
	if err := want.ReadFrom(batch); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name      string
		got, want int64
	}{
		{"baseOffset", batch.BaseOffset(), want.FirstOffset},
		{"length", int64(batch.Len()), int64(want.Length) + 12},
		{"real length", int64(len(batch)), int64(want.Length) + 12},
		{"leader epoch", int64(batch.PartitionLeaderEpoch()), int64(want.PartitionLeaderEpoch)},
		{"magic", int64(batch.Magic()), int64(want.Magic)},
		{"crc", int64(batch.CRC()), int64(uint32(want.CRC))},
		{"computed crc", int64(batch.ComputeCRC()), int64(uint32(want.CRC))},
		{"attributes", int64(batch.Attributes()), int64(want.Attributes)},
		{"lastOffsetDelta", int64(batch.LastOffsetDelta()), int64(want.LastOffsetDelta)},
		{"last offset", batch.LastOffset(), want.FirstOffset + 3},
		{"baseTimestamp", batch.BaseTimestamp(), want.FirstTimestamp},
		{"maxTimestamp", batch.MaxTimestamp(), want.MaxTimestamp},
		{"true maxTimestamp", batch.MaxTimestamp(), 1 << 42},
		{"producerId", batch.ProducerID(), want.ProducerID},
		{"producerEpoch", int64(batch.ProducerEpoch()), int64(want.ProducerEpoch)},
		{"baseSequence", int64(batch.BaseSequence()), int64(want.FirstSequence)},
		{"recordCount", int64(batch.RecordCount()), int64(want.NumRecords)},
	} {
		if f.got != f.want {
			t.Errorf("%s: got %d, want %d", f.name, f.got, f.want)
		}
	}
	if !bytes.Equal(batch.Records(), want.Records) {
		t.Error("records differ")
	}
	if batch.Codec() != CodecLZ4 || !batch.IsTransactional() || batch.IsControl() || batch.IsLogAppendTime() || batch.HasDeleteHorizon() {
		t.Errorf("attribute bits: %v", batch)
	}
}

func TestBatchWithoutProducerHasMinusOnes(t *testing.T) {
	b := build(t, BatchOptions{}, Record{Timestamp: 5})
	if b.ProducerID() != -1 || b.ProducerEpoch() != -1 || b.BaseSequence() != -1 || b.PartitionLeaderEpoch() != -1 {
		t.Fatal(b)
	}
	if b.BaseTimestamp() != 5 || b.MaxTimestamp() != 5 {
		t.Fatal(b.BaseTimestamp(), b.MaxTimestamp())
	}
}

func TestOffsetAssignmentLeavesCRCValid(t *testing.T) {
	b := build(t, BatchOptions{}, someRecords()...)
	b.SetBaseOffset(math.MaxInt64 - 10)
	b.SetPartitionLeaderEpoch(7)
	if b.CRC() != b.ComputeCRC() {
		t.Fatal("CRC covers fields that the broker assigns")
	}
}

func TestPatchLogAppendTime(t *testing.T) {
	b := build(t, BatchOptions{Codec: CodecZstd}, someRecords()...)
	base := b.BaseTimestamp()
	PatchLogAppendTime(b, 777)
	if !b.IsLogAppendTime() || b.Codec() != CodecZstd || b.MaxTimestamp() != 777 || b.BaseTimestamp() != base {
		t.Fatal(b)
	}
	if b.CRC() != b.ComputeCRC() {
		t.Fatal("CRC not computed anew")
	}
	it := NewRecordIterator(b, IterLimits{})
	defer it.Close()
	for it.Next() {
		if it.Record().Timestamp != 777 {
			t.Fatalf("record at %d has timestamp %d", it.Record().Offset, it.Record().Timestamp)
		}
	}
	if it.Err() != nil {
		t.Fatal(it.Err())
	}
}

func TestNextBatchSplitsAndStopsAtAPartialTail(t *testing.T) {
	a := build(t, BatchOptions{}, Record{Value: []byte("a")})
	b := build(t, BatchOptions{Codec: CodecGzip}, Record{Value: []byte("b")}, Record{})
	joined := slices.Concat([]byte(a), []byte(b))
	for cut := range len(joined) {
		rest := joined[:cut]
		var got []RecordBatch
		for {
			batch, r, err := NextBatch(rest)
			if err != nil {
				if !errors.Is(err, ErrShortBatch) {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				break
			}
			got, rest = append(got, batch), r
		}
		want := 0
		if cut >= len(a) {
			want = 1
		}
		if len(got) != want {
			t.Fatalf("cut at %d: %d batches, want %d", cut, len(got), want)
		}
	}
	first, rest, err := NextBatch(joined)
	if err != nil || !bytes.Equal(first, a) || !bytes.Equal(rest, b) {
		t.Fatal(first, err)
	}
	if cap(first) != len(first) {
		t.Fatal("an append to the first batch would overwrite the second")
	}
}

func TestNextBatchRefusesImpossibleLengths(t *testing.T) {
	for _, length := range []int32{math.MinInt32, -12, -1, 0, 4, 48} {
		b := build(t, BatchOptions{}, Record{})
		b.putInt32(offBatchLength, length)
		if _, _, err := NextBatch(b); !errors.Is(err, ErrCorruptMessage) {
			t.Errorf("length %d: %v", length, err)
		}
	}
	b := build(t, BatchOptions{}, Record{})
	b.putInt32(offBatchLength, math.MaxInt32)
	if _, _, err := NextBatch(b); !errors.Is(err, ErrShortBatch) {
		t.Errorf("length beyond the end: %v", err)
	}
}

// TestValidateBatch has one fault per case, and checks the error that Kafka gives.
func TestValidateBatch(t *testing.T) {
	const now = 1_700_000_000_000
	limits := BatchLimits{
		MaxBytes: 1 << 20, ProduceVersion: 9, Now: now, TimestampBeforeMax: 1000, TimestampAfterMax: 500,
	}
	valid := func() RecordBatch {
		return build(t, BatchOptions{Codec: CodecZstd, Producer: &ProducerState{ID: 1, Epoch: 0, Sequence: 0}},
			Record{Timestamp: now}, Record{Timestamp: now + 1})
	}
	for _, tc := range []struct {
		name   string
		damage func(b RecordBatch, l *BatchLimits) []byte
		want   *Error
	}{
		{"valid", func(b RecordBatch, _ *BatchLimits) []byte { return b }, nil},
		{"valid at the size limit", func(b RecordBatch, l *BatchLimits) []byte { l.MaxBytes = len(b); return b }, nil},
		{"valid at the timestamp limits", func(b RecordBatch, l *BatchLimits) []byte { l.Now, l.TimestampAfterMax = now-499, 500; return b }, nil},
		{"no records field", func(RecordBatch, *BatchLimits) []byte { return nil }, ErrInvalidRecord},
		{"message set of magic 0", func(b RecordBatch, _ *BatchLimits) []byte { b[offMagic] = 0; return b }, ErrInvalidRecord},
		{"message set of magic 1", func(b RecordBatch, _ *BatchLimits) []byte { b[offMagic] = 1; return b }, ErrInvalidRecord},
		{"magic of the future", func(b RecordBatch, _ *BatchLimits) []byte { b[offMagic] = 3; return b }, ErrInvalidRecord},
		{"two batches", func(b RecordBatch, _ *BatchLimits) []byte { return slices.Concat(b, b) }, ErrInvalidRecord},
		{"bytes left over", func(b RecordBatch, _ *BatchLimits) []byte { return append(b, 0) }, ErrInvalidRecord},
		{"cut short", func(b RecordBatch, _ *BatchLimits) []byte { return b[:len(b)-1] }, ErrInvalidRecord},
		{"shorter than a header", func(b RecordBatch, _ *BatchLimits) []byte {
			b = b[:BatchOverhead-1]
			b.putInt32(offBatchLength, int32(len(b)-lengthOverhead))
			return b
		}, ErrCorruptMessage},
		{"zstd before v7", func(b RecordBatch, l *BatchLimits) []byte { l.ProduceVersion = 6; return b }, ErrUnsupportedCompressionType},
		{"codec 5", func(b RecordBatch, _ *BatchLimits) []byte { b.putInt16(offAttributes, 5); b.SetCRC(); return b }, ErrUnsupportedCompressionType},
		{"base offset", func(b RecordBatch, _ *BatchLimits) []byte { b.SetBaseOffset(1); return b }, ErrInvalidRecord},
		{"too large", func(b RecordBatch, l *BatchLimits) []byte { l.MaxBytes = len(b) - 1; return b }, ErrMessageTooLarge},
		{"bad CRC", func(b RecordBatch, _ *BatchLimits) []byte { b[len(b)-1] ^= 1; return b }, ErrCorruptMessage},
		{"no records", func(b RecordBatch, _ *BatchLimits) []byte {
			b.putInt32(offRecordCount, 0)
			b.putInt32(offLastOffsetDelta, -1)
			b.SetCRC()
			return b
		}, ErrInvalidRecord},
		{"negative count", func(b RecordBatch, _ *BatchLimits) []byte {
			b.putInt32(offRecordCount, math.MinInt32)
			b.putInt32(offLastOffsetDelta, math.MaxInt32)
			b.SetCRC()
			return b
		}, ErrInvalidRecord},
		{"more records than bytes", func(b RecordBatch, _ *BatchLimits) []byte {
			n := int32((len(b)-BatchOverhead)/minRecordBytes) + 1
			b.putInt16(offAttributes, int16(CodecNone))
			b.putInt32(offRecordCount, n)
			b.putInt32(offLastOffsetDelta, n-1)
			b.SetCRC()
			return b
		}, ErrInvalidRecord},
		{"count and delta differ", func(b RecordBatch, _ *BatchLimits) []byte { b.putInt32(offLastOffsetDelta, 5); b.SetCRC(); return b }, ErrInvalidRecord},
		{"delta overflows", func(b RecordBatch, _ *BatchLimits) []byte {
			b.putInt32(offLastOffsetDelta, math.MaxInt32)
			b.SetCRC()
			return b
		}, ErrInvalidRecord},
		{"control batch", func(b RecordBatch, _ *BatchLimits) []byte {
			b.putInt16(offAttributes, b.Attributes()|attrControl)
			b.SetCRC()
			return b
		}, ErrInvalidRecord},
		{"producer without sequence", func(b RecordBatch, _ *BatchLimits) []byte { b.putInt32(offBaseSequence, -1); b.SetCRC(); return b }, ErrInvalidRecord},
		{"producer without epoch", func(b RecordBatch, _ *BatchLimits) []byte { b.putInt16(offProducerEpoch, -1); b.SetCRC(); return b }, ErrInvalidRecord},
		{"claims LogAppendTime", func(b RecordBatch, _ *BatchLimits) []byte { PatchLogAppendTime(b, now); return b }, ErrInvalidTimestamp},
		{"claims LogAppendTime, times unchecked", func(b RecordBatch, l *BatchLimits) []byte { l.Now = 0; PatchLogAppendTime(b, now); return b }, ErrInvalidTimestamp},
		{"from the future", func(b RecordBatch, l *BatchLimits) []byte { l.Now = now - 500; return b }, ErrInvalidTimestamp},
		{"from the past", func(b RecordBatch, l *BatchLimits) []byte { l.Now = now + 1001; return b }, ErrInvalidTimestamp},
		{"any time allowed", func(b RecordBatch, l *BatchLimits) []byte {
			l.TimestampAfterMax, l.TimestampBeforeMax = math.MaxInt64, math.MaxInt64
			b.putInt64(offMaxTimestamp, math.MaxInt64)
			b.SetCRC()
			return b
		}, nil},

		// Two faults: the order decides.
		{"zstd before v7 with a bad CRC", func(b RecordBatch, l *BatchLimits) []byte { l.ProduceVersion = 6; b[offCRC] ^= 1; return b }, ErrUnsupportedCompressionType},
		{"too large with a bad CRC", func(b RecordBatch, l *BatchLimits) []byte { l.MaxBytes = 1; b[offCRC] ^= 1; return b }, ErrMessageTooLarge},
		{"base offset and too large", func(b RecordBatch, l *BatchLimits) []byte { l.MaxBytes = 1; b.SetBaseOffset(9); return b }, ErrInvalidRecord},
		{"bad CRC and bad count", func(b RecordBatch, _ *BatchLimits) []byte { b.putInt32(offRecordCount, 0); return b }, ErrCorruptMessage},
		{"control batch that claims LogAppendTime", func(b RecordBatch, _ *BatchLimits) []byte {
			b.putInt16(offAttributes, attrControl)
			PatchLogAppendTime(b, now)
			return b
		}, ErrInvalidRecord},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := limits
			err := ValidateBatch(tc.damage(valid(), &l), l)
			if tc.want == nil {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if CodeOf(err) != tc.want.Code {
				t.Fatalf("code %d", CodeOf(err))
			}
		})
	}
}

// Every single bit flip behind the CRC must be noticed.
func TestValidateBatchNoticesEveryFlippedBit(t *testing.T) {
	good := build(t, BatchOptions{}, someRecords()[:1]...)
	for i := offCRC * 8; i < len(good)*8; i++ {
		b := slices.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		if ValidateBatch(b, BatchLimits{}) == nil {
			t.Fatalf("bit %d of byte %d", i%8, i/8)
		}
	}
}

func TestErrors(t *testing.T) {
	e := ErrMessageTooLarge.WithMessage("%d bytes", 7)
	if !errors.Is(e, ErrMessageTooLarge) || errors.Is(e, ErrInvalidRecord) {
		t.Error("errors.Is compares by code")
	}
	if e.Error() != "MESSAGE_TOO_LARGE: 7 bytes" || ErrMessageTooLarge.Message == e.Message {
		t.Error(e)
	}
	var null *Error
	for _, tc := range []struct {
		err  error
		want int16
	}{
		{nil, 0}, {null, 0}, {e, 10}, {errors.Join(errors.New("x"), e), 10}, {errors.New("x"), -1}, {ErrNotLeaderOrFollower, 6},
	} {
		if got := CodeOf(tc.err); got != tc.want {
			t.Errorf("CodeOf(%v) = %d, want %d", tc.err, got, tc.want)
		}
	}
	if !ErrUnknownTopicOrPartition.Retriable || ErrInvalidRecord.Retriable {
		t.Error("retriable flags")
	}
	if ErrNotLeaderOrFollower.Name != "NOT_LEADER_OR_FOLLOWER" {
		t.Error(ErrNotLeaderOrFollower)
	}
}
