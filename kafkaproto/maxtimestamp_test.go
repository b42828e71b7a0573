package kafkaproto

import (
	"bytes"
	"testing"
)

// withMaxTimestamp returns the batch with a header that claims ts.
func withMaxTimestamp(batch []byte, ts int64) RecordBatch {
	b := RecordBatch(bytes.Clone(batch))
	b.putInt64(offMaxTimestamp, ts)
	b.SetCRC()
	return b
}

func TestPatchMaxTimestamp(t *testing.T) {
	records := []Record{{Timestamp: 100, Value: []byte("a")}, {Timestamp: 900, Value: []byte("b")}, {Timestamp: 300, Value: []byte("c")}}
	honest := build(t, BatchOptions{}, records...)
	for _, claimed := range []int64{300, 900, 5000, -1} {
		b := withMaxTimestamp(honest, claimed)
		if changed := PatchMaxTimestamp(b); changed != (claimed != 900) {
			t.Errorf("claimed %d: changed is %v", claimed, changed)
		}
		if !bytes.Equal(b, honest) {
			t.Errorf("claimed %d: header tells %d, CRC is right: %v", claimed, b.MaxTimestamp(), b.CRC() == b.ComputeCRC())
		}
	}
	for _, codec := range allCodecs {
		if codec == CodecNone {
			continue
		}
		if b := withMaxTimestamp(build(t, BatchOptions{Codec: codec}, records...), 300); PatchMaxTimestamp(b) {
			t.Errorf("%v: a compressed batch was changed", codec)
		}
	}
	appended := RecordBatch(bytes.Clone(honest))
	PatchLogAppendTime(appended, 5000)
	if PatchMaxTimestamp(appended) {
		t.Error("a batch with LogAppendTime was changed")
	}
	none := build(t, BatchOptions{}, Record{Timestamp: -1, Value: []byte("a")})
	if PatchMaxTimestamp(RecordBatch(none)) {
		t.Errorf("a batch without timestamps was changed to %d", RecordBatch(none).MaxTimestamp())
	}
}

// Whatever the records are made of, a batch that is not well formed stays as it is.
func TestPatchMaxTimestampMalformed(t *testing.T) {
	honest := build(t, BatchOptions{}, Record{Timestamp: 100, Value: []byte("a")}, Record{Timestamp: 900, Value: []byte("b")})
	for _, tc := range []struct {
		name string
		edit func(b RecordBatch) RecordBatch
	}{
		{"more records than there are", func(b RecordBatch) RecordBatch { b.putInt32(offRecordCount, 3); return b }},
		{"bytes left over", func(b RecordBatch) RecordBatch { return append(b, 0) }},
		{"cut inside a record", func(b RecordBatch) RecordBatch { return b[:len(b)-1] }},
		{"record that reaches beyond the batch", func(b RecordBatch) RecordBatch { b[BatchOverhead] = 0x7e; return b }},
		{"negative length", func(b RecordBatch) RecordBatch { b[BatchOverhead] = 0x03; return b }},
		{"record without a timestamp", func(b RecordBatch) RecordBatch { b[BatchOverhead] = 0x02; return b }},
		{"endless varint", func(b RecordBatch) RecordBatch {
			copy(b[BatchOverhead:], bytes.Repeat([]byte{0xff}, 5))
			return b
		}},
	} {
		b := tc.edit(withMaxTimestamp(honest, 42))
		before := bytes.Clone(b)
		if PatchMaxTimestamp(b) || !bytes.Equal(b, before) {
			t.Errorf("%s: the batch was changed", tc.name)
		}
	}
}

func BenchmarkPatchMaxTimestamp(b *testing.B) {
	records := make([]Record, 16)
	for i := range records {
		records[i] = Record{Timestamp: int64(i), Value: make([]byte, 1<<10)}
	}
	batch := RecordBatch(build(b, BatchOptions{}, records...))
	b.ReportAllocs()
	for b.Loop() {
		if PatchMaxTimestamp(batch) {
			b.Fatal("changed")
		}
	}
}
