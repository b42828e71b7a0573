package streamstore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// The bytes in these tests are the formats. One that fails says that data written by
// earlier releases can no longer be read: add a version instead (rows.go).

func goldenHeader() commitHeader {
	return commitHeader{
		claim: true, shard: 0x01020304, number: 0x1112131415161718, previous: 0x2122232425262728,
		epoch: 0x3132333435363738, nonce: nonce{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf},
		created: 0x4142434445464748, appendFrom: 0x5152535455565758, appendTo: 0x6162636465666768,
		dataLength: 0x71727374, stateLen: 0x81828384, dataCRC: 0x91929394, stateCRC: 0xb1b2b3b4, durable: 0xc1c2c3c4c5c6c7c8,
	}
}

const goldenHeaderHex = "42524b4c544c4f47" + "0001" + "0001" + "01020304" + "1112131415161718" + "2122232425262728" + "3132333435363738" +
	"a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" + "4142434445464748" + "5152535455565758" + "6162636465666768" +
	"0000000071727374" + "0000000081828384" + "91929394" + "b1b2b3b4" + "00000000f2f4f788" + "c1c2c3c4c5c6c7c8" + "00000000"

func TestCommitHeader(t *testing.T) {
	h := goldenHeader()
	b := make([]byte, commitHeaderSize)
	h.encode(b)
	if got := hex.EncodeToString(b[:124]); got != goldenHeaderHex {
		t.Errorf("header is\n%s, want\n%s", got, goldenHeaderHex)
	}
	if got, err := decodeCommitHeader("x", b); err != nil || got != h {
		t.Errorf("decoded %+v, %v", got, err)
	}
	for i := range b {
		b[i] ^= 1
		if got, err := decodeCommitHeader("x", b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d changed: %+v, %v", i, got, err)
		}
		b[i] ^= 1
	}
	for n := range b {
		if _, err := decodeCommitHeader("x", b[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// Values out of range under a right checksum.
	for name, change := range map[string]func(b []byte){
		"format version": func(b []byte) { b[9] = 2 },
		"flags":          func(b []byte) { b[11] = 2 },
		"object size":    func(b []byte) { b[111]++ },
		"object size ":   func(b []byte) { b[80] = 0xff },
	} {
		c := append([]byte(nil), b...)
		change(c)
		putChecksum(c)
		if _, err := decodeCommitHeader("x", c); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("wrong %s: %v", name, err)
		}
	}
}

func putChecksum(header []byte) {
	sum := crc32.Checksum(header[:124], castagnoli)
	header[124], header[125], header[126], header[127] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
}

// Each bit of a whole object is covered: by the header's checksum, by that of the state
// section, by the footer's magic, or by the batch's own.
func TestCommitObject(t *testing.T) {
	codec := newStateCodec()
	data, state := simpleBatch("data"), []byte(strings.Repeat("state ", 20))
	object := codec.seal(&commitHeader{number: 1}, append(make([]byte, commitHeaderSize), data...), state)
	open := func(b []byte) ([]byte, error) {
		h, err := decodeCommitHeader("x", b)
		if err != nil {
			return nil, err
		}
		if h.size() != int64(len(b)) {
			return nil, errShortRow
		}
		return codec.open("x", &h, b[commitHeaderSize+h.dataLength:])
	}
	if got, err := open(object); err != nil || string(got) != string(state) {
		t.Fatalf("state %q, %v", got, err)
	}
	h, _ := decodeCommitHeader("x", object)
	if h.dataCRC != crc32.Checksum(data, castagnoli) || h.dataLength != int64(len(data)) {
		t.Errorf("header %+v", h)
	}
	footer := len(object) - commitFooterSize
	if string(object[footer:footer+4]) != string(object[124:128]) || string(object[footer+8:]) != "BRKLTEND" {
		t.Errorf("footer %x", object[footer:])
	}
	for i := range object {
		if i >= commitHeaderSize && i < commitHeaderSize+len(data) || i >= footer && i < footer+8 {
			continue // record batches carry their own checksum; the footer's is a copy
		}
		object[i] ^= 1
		if _, err := open(object); err == nil {
			t.Errorf("byte %d of %d changed: no error", i, len(object))
		}
		object[i] ^= 1
	}
	claim := codec.seal(&commitHeader{claim: true}, make([]byte, commitHeaderSize), nil)
	if len(claim) != commitHeaderSize+commitFooterSize {
		t.Errorf("a claim has %d bytes", len(claim))
	}
	if state, err := open(claim); err != nil || state != nil {
		t.Errorf("a claim's state: %q, %v", state, err)
	}
}

// rowCase is a row, its bytes, and how to read it back.
type rowCase struct {
	name   string
	value  any
	hex    string
	encode func() []byte
	decode func(b []byte) (any, error)
}

func rowCases() []rowCase {
	row := streamRow{name: "a/b", created: 1000, start: -3, closed: true, touched: 2000, settings: Settings{
		Retention: 90 * time.Second, RetentionBytes: 1 << 20, TTL: 300 * time.Millisecond, ContentType: "text/plain",
		ExpiresAt: time.UnixMilli(3000).UTC(),
	}}
	forever := streamRow{name: "x", settings: DefaultSettings()}
	x := extent{base: 100, last: 299, object: logObjectID(7), position: 128, length: 4096, maxTimestamp: -1, written: 1500}
	y := x
	y.object = objectID{objectSegment, segmentNumber(3, 200)}
	g := objectRow{level: 2, run: segmentNumber(1, 1), bytes: 64 << 20, created: 1500}
	p := producerState{epoch: 3, touched: 2000, batches: []producerBatch{{5, 9, 100, 104, 1700}, {math.MaxInt32, 0, 105, 106, -1}}}
	pos := position{number: 300, epoch: 2, nonce: goldenHeader().nonce, appendTo: 70000}
	m := &mutation{
		rows: []byte("rows"), deletes: []StreamID{1, 1 << 40}, trims: []trimSpan{{2, 3, 400}}, expired: []producerRef{{5, 6}},
	}
	return []rowCase{
		{"stream", row, "03" + "03612f62" + "d00f" + "05" + "a0fe0a" + "80808001" + "01" + "a01f" + "ac02" + "0a746578742f706c61696e" + "f02e", row.encode,
			func(b []byte) (any, error) { return decodeStreamRow(b) }},
		{"stream for ever", forever, "03" + "0178" + "00" + "00" + "01" + "01" + "00" + "00" + "00" + "00" + "00", forever.encode,
			func(b []byte) (any, error) { return decodeStreamRow(b) }},
		{"extent", x, "01" + "07" + "8001" + "8020" + "c701" + "01" + "b817", func() []byte { return x.encode(nil) },
			func(b []byte) (any, error) { return decodeExtent(extentKey(1, 299), b) }},
		{"extent in a segment", y, "02" + "03" + "c801" + "8001" + "8020" + "c701" + "01" + "b817", func() []byte { return y.encode(nil) },
			func(b []byte) (any, error) { return decodeExtent(extentKey(1, 299), b) }},
		{"object", g, "01" + "02" + "818080808020" + "80808020" + "b817", g.encode,
			func(b []byte) (any, error) { return decodeObjectRow(b) }},
		{"producer", p, "01" + "06" + "a01f" + "02" + "05" + "09" + "64" + "04" + "c81a" + "ffffffff07" + "00" + "69" + "01" + "01", p.encode,
			func(b []byte) (any, error) { return decodeProducerState(b) }},
		{"position", pos, "01" + "ac02" + "02" + "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" + "f0a204", pos.encode,
			func(b []byte) (any, error) { return decodePosition(b) }},
		{"transaction", m, "01" + "02" + "01" + "808080808020" + "01" + "02" + "03" + "9003" + "01" + "05" + "06" + "726f7773",
			func() []byte { return m.encode()[1:] },
			func(b []byte) (any, error) { return decodeMutation(b) }},
	}
}

func TestRows(t *testing.T) {
	for _, c := range rowCases() {
		t.Run(c.name, func(t *testing.T) {
			b := c.encode()
			if got := hex.EncodeToString(b); got != c.hex {
				t.Errorf("row is %s, want %s", got, c.hex)
			}
			got, err := c.decode(b)
			if err != nil || !reflect.DeepEqual(got, c.value) {
				t.Errorf("decoded %+v, %v; want %+v", got, err, c.value)
			}
			short := len(b)
			if c.name == "transaction" {
				short -= len("rows") // whatever follows is rows
			}
			for n := range short {
				if _, err := c.decode(b[:n]); !errors.Is(err, errShortRow) {
					t.Errorf("%d of %d bytes: %v", n, len(b), err)
				}
			}
			b[0] = 200
			if _, err := c.decode(b); err == nil || !strings.Contains(err.Error(), "version 200") || !strings.Contains(err.Error(), "newer") {
				t.Errorf("unknown version: %v", err)
			}
		})
	}
}

// Rows of earlier versions are read as what they meant.
func TestOldRows(t *testing.T) {
	b, _ := hex.DecodeString("01" + "03612f62" + "d00f" + "05" + "a0fe0a" + "80808001")
	want := streamRow{name: "a/b", created: 1000, start: -3, touched: 1000, settings: Settings{Retention: 90 * time.Second, RetentionBytes: 1 << 20}}
	if row, err := decodeStreamRow(b); err != nil || row != want {
		t.Errorf("stream row of version 1: %+v, %v; want %+v", row, err, want)
	}
	b, _ = hex.DecodeString("02" + "03612f62" + "d00f" + "05" + "a0fe0a" + "80808001" + "01" + "a01f" + "ac02" + "0a746578742f706c61696e")
	want = streamRow{name: "a/b", created: 1000, start: -3, closed: true, touched: 2000, settings: Settings{
		Retention: 90 * time.Second, RetentionBytes: 1 << 20, TTL: 300 * time.Millisecond, ContentType: "text/plain",
	}}
	if row, err := decodeStreamRow(b); err != nil || row != want {
		t.Errorf("stream row of version 2: %+v, %v; want %+v", row, err, want)
	}
}

// Keys of one kind sort by their numbers and do not mix with other kinds.
func TestKeys(t *testing.T) {
	for name, c := range map[string]struct{ key, want string }{
		"name":     {string(nameKey("a/b")), "na/b"},
		"stream":   {string(streamKey(0x0102)), "s\x00\x00\x00\x00\x00\x00\x01\x02"},
		"kv":       {string(kvKey([]byte("x"))), "kx"},
		"extent":   {string(extentKey(1, 2)), "e\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02"},
		"producer": {string(producerKey(1, 2)), "p\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02"},
		"tail":     {string(tailKey(9)), "t\x00\x00\x00\x00\x00\x00\x00\x09"},
		"log":      {logName(3, 42), "shards/3/log/00000000000000000042"},
	} {
		if c.key != c.want {
			t.Errorf("%s: %q, want %q", name, c.key, c.want)
		}
	}
	if prefix := prefixEnd([]byte{'k', 0xff, 0xff}); string(prefix) != "l" {
		t.Errorf("end of prefix: %q", prefix)
	}
	if prefix := prefixEnd([]byte{0xff}); prefix != nil {
		t.Errorf("end of the last prefix: %q", prefix)
	}
	for _, name := range []string{"shards/0/log/42", "shards/1/log/00000000000000000042", "shards/0/log/+0000000000000000042", "shards/0/log/99999999999999999999", "x"} {
		if number, ok := parseLogName(0, name); ok {
			t.Errorf("%q is taken for log object %d", name, number)
		}
	}
}

func TestSetAsideRecord(t *testing.T) {
	got := hex.EncodeToString(setAsideRecord("s/1", []byte("batch")))
	body := "0003" + hex.EncodeToString([]byte("s/1batch"))
	raw, _ := hex.DecodeString(body)
	if want := fmt.Sprintf("%08x%08x%s", len(raw), crc32.Checksum(raw, castagnoli), body); got != want {
		t.Errorf("record is %s, want %s", got, want)
	}
}

// Hostile bytes make an error, never a panic, and what decodes encodes again to what
// decodes the same.

func FuzzDecodeCommit(f *testing.F) {
	codec := newStateCodec()
	f.Add(codec.seal(&commitHeader{number: 1, epoch: 2}, append(make([]byte, commitHeaderSize), "data"...), []byte("state")))
	f.Add(codec.seal(&commitHeader{claim: true}, make([]byte, commitHeaderSize), nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= commitHeaderSize {
			putChecksum(b) // so that the fuzzer gets past it
		}
		h, err := decodeCommitHeader("x", b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again := make([]byte, commitHeaderSize)
		h.encode(again)
		if got, err := decodeCommitHeader("x", again); err != nil || got != h {
			t.Fatalf("%+v became %+v, %v", h, got, err)
		}
		if h.size() != int64(len(b)) {
			return
		}
		h.stateCRC = crc32.Checksum(b[commitHeaderSize+h.dataLength:len(b)-commitFooterSize], castagnoli)
		state, err := codec.open("x", &h, b[commitHeaderSize+h.dataLength:])
		if err == nil && len(state) > 0 {
			var batch pebble.Batch
			_ = batch.SetRepr(state)
		}
	})
}

func FuzzDecodeRows(f *testing.F) {
	for _, c := range rowCases() {
		f.Add(c.encode())
	}
	cases := rowCases()
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range cases {
			got, err := c.decode(b)
			if err != nil {
				continue
			}
			var again []byte
			switch v := got.(type) {
			case streamRow:
				again = v.encode()
			case extent:
				again = v.encode(nil)
			case objectRow:
				again = v.encode()
			case producerState:
				again = v.encode()
			case position:
				again = v.encode()
			case *mutation:
				again = v.encode()[1:]
			}
			if twice, err := c.decode(again); err != nil || !reflect.DeepEqual(twice, got) {
				t.Fatalf("%s: %+v became %+v, %v", c.name, got, twice, err)
			}
		}
	})
}

func FuzzNextBatch(f *testing.F) {
	f.Add([]byte(batchSpec{records: 3, payload: []byte("x"), producer: 1}.encode()))
	f.Add(append(simpleBatch("a"), simpleBatch("b")...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for rest := b; ; {
			batch, after, ok := nextBatch(rest)
			if !ok {
				break
			}
			if len(batch) < batchHeaderSize || len(batch)+len(after) != len(rest) || batch.lastOffset() < batch.baseOffset() && batch.baseOffset() < math.MaxInt64-math.MaxInt32 {
				t.Fatalf("a batch of %d bytes out of %d, offsets %d to %d", len(batch), len(rest), batch.baseOffset(), batch.lastOffset())
			}
			_ = batch.checksumOK()
			rest = after
		}
		_ = checkExtent("x", extent{base: 0, last: 10}, b)
	})
}
