package kafkaproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var allCodecs = []Codec{CodecNone, CodecGzip, CodecSnappy, CodecLZ4, CodecZstd}

// readAll copies what the iterator gives out.
func readAll(b RecordBatch, limits IterLimits) ([]Record, []int64, error) {
	it := NewRecordIterator(b, limits)
	defer it.Close()
	var records []Record
	var offsets []int64
	for it.Next() {
		v := it.Record()
		r := Record{Timestamp: v.Timestamp, Key: bytes.Clone(v.Key), Value: bytes.Clone(v.Value)}
		for key, value := range v.Headers() {
			r.Headers = append(r.Headers, Header{Key: string(key), Value: bytes.Clone(value)})
		}
		records, offsets = append(records, r), append(offsets, v.Offset)
	}
	return records, offsets, it.Err()
}

func equalRecord(a, b Record) bool {
	sameBytes := func(x, y []byte) bool { return bytes.Equal(x, y) && (x == nil) == (y == nil) }
	return a.Timestamp == b.Timestamp && sameBytes(a.Key, b.Key) && sameBytes(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y Header) bool { return x.Key == y.Key && sameBytes(x.Value, y.Value) })
}

func TestBuilderAndIteratorRoundTrip(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			want := someRecords()
			batch := build(t, BatchOptions{Codec: codec}, want...)
			if err := ValidateBatch(batch, BatchLimits{}); err != nil {
				t.Fatal(err)
			}
			batch.SetBaseOffset(100)
			got, offsets, err := readAll(batch, IterLimits{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, want, equalRecord) {
				t.Fatalf("got %v", got)
			}
			if !slices.Equal(offsets, []int64{100, 101, 102, 103}) {
				t.Fatal(offsets)
			}
		})
	}
}

// kmsg has its own reading of the format; both must agree.
func TestBuilderRecordsAreReadByKmsg(t *testing.T) {
	want := someRecords()
	batch := build(t, BatchOptions{}, want...)
	rest := batch.Records()
	for i, w := range want {
		length, n := binary.Varint(rest)
		var r kmsg.Record
		if err := r.ReadFrom(rest[:n+int(length)]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n+int(length):]
		got := Record{Timestamp: batch.BaseTimestamp() + r.TimestampDelta64, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			got.Headers = append(got.Headers, Header{Key: h.Key, Value: h.Value})
		}
		if !equalRecord(got, w) || int(r.OffsetDelta) != i {
			t.Errorf("record %d: got %v at %d", i, got, r.OffsetDelta)
		}
	}
	if len(rest) != 0 {
		t.Error("bytes left over")
	}
}

func TestBuilderReset(t *testing.T) {
	b := NewBuilder(BatchOptions{Codec: CodecGzip})
	if _, err := b.Build(); !errors.Is(err, ErrEmptyBatch) {
		t.Fatal(err)
	}
	if err := b.Append(Record{Timestamp: 9, Value: []byte("first")}); err != nil {
		t.Fatal(err)
	}
	first, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.Clone(first)
	b.Reset(BatchOptions{})
	if b.Count() != 0 || b.Size() != BatchOverhead {
		t.Fatal(b.Count(), b.Size())
	}
	if err := b.Append(Record{Timestamp: 3, Value: []byte("second")}); err != nil {
		t.Fatal(err)
	}
	second, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, kept) {
		t.Fatal("a built batch changed with the builder")
	}
	if second.Codec() != CodecNone || second.BaseTimestamp() != 3 || second.RecordCount() != 1 || len(second) != b.Size() {
		t.Fatal(second)
	}
}

func TestBuilderFull(t *testing.T) {
	b := NewBuilder(BatchOptions{})
	if err := b.Append(Record{}); err != nil {
		t.Fatal(err)
	}
	b.count = math.MaxInt32
	if err := b.Append(Record{}); !errors.Is(err, ErrBatchFull) {
		t.Fatal(err)
	}
}

// xerial frames blocks as the Java snappy library does.
func xerial(blocks ...[]byte) []byte {
	out := append(bytes.Clone(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1)
	for _, b := range blocks {
		enc := snappy.Encode(nil, b)
		out = binary.BigEndian.AppendUint32(out, uint32(len(enc)))
		out = append(out, enc...)
	}
	return out
}

// withBlock replaces the compressed block of a batch.
func withBlock(b RecordBatch, codec Codec, block []byte) RecordBatch {
	out := append(slices.Clone(b[:BatchOverhead]), block...)
	out.putInt32(offBatchLength, int32(len(out)-lengthOverhead))
	out.putInt16(offAttributes, b.Attributes()&^attrCodec|int16(codec))
	out.SetCRC()
	return out
}

func TestIteratorReadsXerialSnappy(t *testing.T) {
	want := someRecords()
	plain := build(t, BatchOptions{}, want...)
	raw := plain.Records()
	for name, block := range map[string][]byte{
		"one block":      xerial(raw),
		"many blocks":    xerial(raw[:5], nil, raw[5:700], raw[700:]),
		"joined streams": slices.Concat(xerial(raw[:100]), xerial(raw[100:])),
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := readAll(withBlock(plain, CodecSnappy, block), IterLimits{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, want, equalRecord) {
				t.Fatal("records differ")
			}
		})
	}
}

func TestIteratorReadsCompactedBatches(t *testing.T) {
	b := build(t, BatchOptions{}, someRecords()...)
	b.putInt32(offLastOffsetDelta, 50)
	b.SetCRC()
	if _, offsets, err := readAll(b, IterLimits{}); err != nil || len(offsets) != 4 {
		t.Fatal(offsets, err)
	}
	// Compaction may leave no record at all; the header stays for its offsets.
	empty := withBlock(b, CodecZstd, nil)
	empty.putInt32(offRecordCount, 0)
	empty.SetCRC()
	if got, _, err := readAll(empty, IterLimits{}); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	if _, _, ok, err := MaxTimestamp(empty, 0); ok || err != nil {
		t.Fatal(ok, err)
	}
}

// rawRecord puts a length before the bytes of a record.
func rawRecord(body ...byte) []byte {
	return append(binary.AppendVarint(nil, int64(len(body))), body...)
}

func varint(v int64) []byte { return binary.AppendVarint(nil, v) }

func TestIteratorRefusesDamagedRecords(t *testing.T) {
	base := build(t, BatchOptions{}, Record{}, Record{})
	ok := rawRecord(0, 0, 0, 1, 1, 0)
	second := rawRecord(0, 0, 2, 1, 1, 0)
	for name, records := range map[string][]byte{
		"nothing":                   nil,
		"one record of two":         ok,
		"three records of two":      slices.Concat(ok, second, rawRecord(0, 0, 4, 1, 1, 0)),
		"length -1":                 varint(-1),
		"length of 2 GiB":           varint(math.MaxInt32),
		"length of 2 GiB negative":  varint(math.MinInt32),
		"length overflows 32 bits":  varint(math.MaxInt64),
		"length 0":                  slices.Concat(varint(0), second),
		"length cut":                {0x80},
		"timestamp of 11 bytes":     rawRecord(slices.Concat([]byte{0}, bytes.Repeat([]byte{0x80}, 10), []byte{1})...),
		"offset delta negative":     slices.Concat(rawRecord(0, 0, 1, 1, 1, 0), second),
		"offset delta repeated":     slices.Concat(ok, ok),
		"offset delta beyond batch": slices.Concat(ok, rawRecord(0, 0, 4, 1, 1, 0)),
		"key length -2":             slices.Concat(rawRecord(0, 0, 0, 3, 1, 0), second),
		"key beyond record":         slices.Concat(rawRecord(0, 0, 0, 100, 1, 0), second),
		"value beyond record":       slices.Concat(rawRecord(0, 0, 0, 1, 100, 0), second),
		"header count negative":     slices.Concat(rawRecord(0, 0, 0, 1, 1, 1), second),
		"header count of 2^31-1":    slices.Concat(rawRecord(append([]byte{0, 0, 0, 1, 1}, varint(math.MaxInt32)...)...), second),
		"null header key":           slices.Concat(rawRecord(0, 0, 0, 1, 1, 2, 1, 1), second),
		"header value beyond":       slices.Concat(rawRecord(0, 0, 0, 1, 1, 2, 0, 50), second),
		"bytes left in a record":    slices.Concat(rawRecord(0, 0, 0, 1, 1, 0, 0), second),
	} {
		for _, codec := range allCodecs {
			t.Run(fmt.Sprintf("%s/%v", name, codec), func(t *testing.T) {
				block, err := compress(nil, codec, records)
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = readAll(withBlock(base, codec, block), IterLimits{})
				if CodeOf(err) != ErrInvalidRecord.Code && !errors.Is(err, ErrExpandLimit) {
					t.Fatalf("got %v", err)
				}
			})
		}
	}
}

func TestIteratorRefusesDamagedBlocks(t *testing.T) {
	for _, codec := range allCodecs[1:] {
		good := build(t, BatchOptions{Codec: codec}, someRecords()...)
		for name, block := range map[string][]byte{
			"empty":   {},
			"garbage": []byte("not compressed at all, by any of them"),
			"cut":     good.Records()[:len(good.Records())-3],
		} {
			t.Run(fmt.Sprintf("%v/%s", codec, name), func(t *testing.T) {
				if _, _, err := readAll(withBlock(good, codec, block), IterLimits{}); !errors.Is(err, ErrInvalidRecord) {
					t.Fatalf("got %v", err)
				}
			})
		}
	}
	b := build(t, BatchOptions{}, Record{})
	b.putInt16(offAttributes, 6)
	if _, _, err := readAll(b, IterLimits{}); !errors.Is(err, ErrInvalidRecord) {
		t.Fatalf("codec 6: %v", err)
	}
	b.putInt32(offRecordCount, -1)
	if _, _, err := readAll(b, IterLimits{}); !errors.Is(err, ErrInvalidRecord) {
		t.Fatalf("negative count: %v", err)
	}
}

// allocated returns the bytes allocated while fn runs.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// bomb returns a batch of about a megabyte or less whose one record expands to size
// bytes of zeros.
func bomb(t testing.TB, codec Codec, size int) RecordBatch {
	t.Helper()
	return build(t, BatchOptions{Codec: codec}, Record{Timestamp: 1, Value: make([]byte, size)})
}

func TestBombsAreRefusedInBoundedMemory(t *testing.T) {
	const size = 20 << 20
	for _, codec := range []Codec{CodecGzip, CodecLZ4, CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			b := bomb(t, codec, size)
			limits := IterLimits{MaxBytes: 2 << 20, MaxRecordBytes: 2 << 20}
			var err error
			if n := allocated(func() { _, _, err = readAll(b, limits) }); n > 16<<20 {
				t.Errorf("allocated %d MiB", n>>20)
			}
			if !errors.Is(err, ErrExpandLimit) || CodeOf(err) != ErrMessageTooLarge.Code {
				t.Errorf("record limit: %v", err)
			}
			limits.MaxRecordBytes = 1 << 30
			if n := allocated(func() { _, _, err = readAll(b, limits) }); n > 20<<20 {
				t.Errorf("allocated %d MiB", n>>20)
			}
			if !errors.Is(err, ErrExpandLimit) {
				t.Errorf("total limit: %v", err)
			}
			// A time look-up skips the value, however long.
			if n := allocated(func() { _, _, _, err = FindTimestamp(b, 2, 0) }); n > 16<<20 {
				t.Errorf("time look-up allocated %d MiB", n>>20)
			}
			if err != nil {
				t.Errorf("time look-up: %v", err)
			}
		})
	}
}

// Bombs beyond the default limits must not be expanded to their end.
func TestTimeLookUpGivesUpOnABomb(t *testing.T) {
	b := build(t, BatchOptions{}, Record{}, Record{})
	zeros, err := compress(nil, CodecZstd, make([]byte, 32<<20))
	if err != nil {
		t.Fatal(err)
	}
	head := slices.Concat(varint(math.MaxInt32), []byte{0, 0, 0})
	first, err := compress(nil, CodecZstd, head)
	if err != nil {
		t.Fatal(err)
	}
	// Joined zstd frames are one stream: 1.5 GiB in all.
	block := first
	for range 48 {
		block = append(block, zeros...)
	}
	it := new(RecordIterator)
	it.init(withBlock(b, CodecZstd, block), IterLimits{MaxBytes: 32 << 20, MaxRecordBytes: math.MaxInt32}, true)
	defer it.Close()
	for it.Next() {
	}
	if !errors.Is(it.Err(), ErrExpandLimit) {
		t.Fatal(it.Err())
	}
	if it.src.expanded > 33<<20 {
		t.Fatalf("expanded %d MiB", it.src.expanded>>20)
	}
}

func TestSnappyThatLiesAboutItsSize(t *testing.T) {
	base := build(t, BatchOptions{}, Record{})
	raw := append(binary.AppendUvarint(nil, math.MaxUint32), 0, 0)
	framed := append(bytes.Clone(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1)
	for name, block := range map[string][]byte{
		"raw block":                 raw,
		"framed block":              append(append(bytes.Clone(framed), 0, 0, 0, byte(len(raw))), raw...),
		"frame length of 4 GiB":     append(bytes.Clone(framed), 0xff, 0xff, 0xff, 0xff, 1, 2),
		"frame length cut":          append(bytes.Clone(framed), 0, 0),
		"header cut":                framed[:10],
		"ratio snappy cannot reach": append(binary.AppendUvarint(nil, 100<<20), bytes.Repeat([]byte{0xfe, 1, 0}, 1000)...),
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if n := allocated(func() { _, _, err = readAll(withBlock(base, CodecSnappy, block), IterLimits{}) }); n > 1<<20 {
				t.Errorf("allocated %d bytes", n)
			}
			if err == nil {
				t.Error("accepted")
			}
		})
	}
}

// A zstd frame asks for its history buffer before it delivers anything.
func TestZstdWindowIsBounded(t *testing.T) {
	base := build(t, BatchOptions{}, Record{})
	for _, exponent := range []byte{17, 21, 31} { // 2^27, 2^31, 2^41 bytes
		// Magic, descriptor (no content size), window, and one RLE block of 100 bytes.
		block := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3, 0x23, 0x03, 0, 0}
		var err error
		if n := allocated(func() { _, _, err = readAll(withBlock(base, CodecZstd, block), IterLimits{}) }); n > 8<<20 {
			t.Errorf("window 2^%d: allocated %d MiB", exponent+10, n>>20)
		}
		if !errors.Is(err, ErrInvalidRecord) {
			t.Errorf("window 2^%d: %v", exponent+10, err)
		}
	}
}

func TestFindTimestamp(t *testing.T) {
	tenApart := make([]Record, 10)
	for i := range tenApart {
		tenApart[i] = Record{Timestamp: 1000 + int64(i)*10, Key: []byte("k"), Value: bytes.Repeat([]byte("x"), 5000)}
	}
	jumbled := []Record{{Timestamp: 50}, {Timestamp: 20}, {Timestamp: 70}, {Timestamp: 70}, {Timestamp: 10}}
	type want struct {
		offset, ts int64
		ok         bool
	}
	for _, tc := range []struct {
		name        string
		records     []Record
		appendTime  int64 // 0: CreateTime
		target, min int64
		want        want
	}{
		{"between two records", tenApart, 0, 1045, 0, want{505, 1050, true}},
		{"on a record", tenApart, 0, 1050, 0, want{505, 1050, true}},
		{"before all", tenApart, 0, 0, 0, want{500, 1000, true}},
		{"on the last", tenApart, 0, 1090, 0, want{509, 1090, true}},
		{"after all", tenApart, 0, 1091, 0, want{}},
		{"below the start offset", tenApart, 0, 0, 503, want{503, 1030, true}},
		{"batch below the start offset", tenApart, 0, 0, 510, want{}},
		{"out of order, first in offset order counts", jumbled, 0, 15, 0, want{500, 50, true}},
		{"out of order, later record", jumbled, 0, 60, 0, want{502, 70, true}},
		{"out of order, below the start offset", jumbled, 0, 15, 501, want{501, 20, true}},
		{"append time, before", tenApart, 7777, 7776, 0, want{500, 7777, true}},
		{"append time, at", tenApart, 7777, 7777, 504, want{504, 7777, true}},
		{"append time, after", tenApart, 7777, 7778, 0, want{}},
		{"append time, below the start offset", tenApart, 7777, 1, 510, want{}},
	} {
		for _, codec := range allCodecs {
			t.Run(fmt.Sprintf("%s/%v", tc.name, codec), func(t *testing.T) {
				b := build(t, BatchOptions{Codec: codec}, tc.records...)
				b.SetBaseOffset(500)
				if tc.appendTime != 0 {
					PatchLogAppendTime(b, tc.appendTime)
				}
				offset, ts, ok, err := FindTimestamp(b, tc.target, tc.min)
				if err != nil {
					t.Fatal(err)
				}
				if got := (want{offset, ts, ok}); got != tc.want {
					t.Fatalf("got %+v, want %+v", got, tc.want)
				}
			})
		}
	}
}

func TestMaxTimestamp(t *testing.T) {
	records := []Record{{Timestamp: 50}, {Timestamp: 20}, {Timestamp: 70}, {Timestamp: 70}, {Timestamp: 10}}
	for _, codec := range allCodecs {
		b := build(t, BatchOptions{Codec: codec}, records...)
		b.SetBaseOffset(500)
		for _, tc := range []struct {
			min, offset, ts int64
			ok              bool
		}{{0, 502, 70, true}, {503, 503, 70, true}, {504, 504, 10, true}, {505, 0, 0, false}} {
			if offset, ts, ok, err := MaxTimestamp(b, tc.min); err != nil || ok != tc.ok || offset != tc.offset || ts != tc.ts {
				t.Errorf("%v from %d: got %d, %d, %v, %v", codec, tc.min, offset, ts, ok, err)
			}
		}
		PatchLogAppendTime(b, 9)
		if offset, ts, ok, err := MaxTimestamp(b, 501); err != nil || !ok || offset != 501 || ts != 9 {
			t.Errorf("%v with append time: got %d, %d, %v, %v", codec, offset, ts, ok, err)
		}
		// With gaps left by compaction, the answer is a record that is there.
		b.putInt32(offLastOffsetDelta, 50)
		if offset, _, ok, err := MaxTimestamp(b, 530); err != nil || ok {
			t.Errorf("%v in a gap: got %d, %v, %v", codec, offset, ok, err)
		}
	}
}

func TestIteratorDoesNotAllocatePerRecord(t *testing.T) {
	records := make([]Record, 1000)
	for i := range records {
		records[i] = Record{Key: []byte("key"), Value: []byte("value"), Headers: []Header{{Key: "h", Value: []byte("v")}}}
	}
	for _, codec := range allCodecs {
		b := build(t, BatchOptions{Codec: codec}, records...)
		n := testing.AllocsPerRun(20, func() {
			it := NewRecordIterator(b, IterLimits{})
			for it.Next() {
			}
			if it.Err() != nil {
				t.Fatal(it.Err())
			}
			it.Close()
		})
		if n > 50 {
			t.Errorf("%v: %v allocations for 1000 records", codec, n)
		}
	}
}

func TestIteratorAfterCloseIsDone(t *testing.T) {
	for _, codec := range allCodecs {
		it := NewRecordIterator(build(t, BatchOptions{Codec: codec}, someRecords()...), IterLimits{})
		if !it.Next() {
			t.Fatal(it.Err())
		}
		it.Close()
		it.Close()
		if it.Next() || it.Err() != nil {
			t.Fatal("a record or an error after Close", it.Err())
		}
	}
}
