package kafkaproto

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Run one target at a time, and keep the engine from spending its time on making
// large inputs small: go test -fuzz '^FuzzBatch$' -fuzzminimizetime 10x

// seedFrames returns an encoding by kmsg of every served version of every key.
func seedFrames(t testing.TB) [][]byte {
	batch := build(t, BatchOptions{Codec: CodecLZ4}, someRecords()...)
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Topics = []kmsg.FetchRequestTopic{{Topic: "t", Partitions: []kmsg.FetchRequestTopicPartition{kmsg.NewFetchRequestTopicPartition()}}}
	var seeds [][]byte
	eachServed(func(key, version int16) {
		var req kmsg.Request
		switch key {
		case KeyProduce:
			req = produceRequest(version, 2, 1, batch)
		case KeyFetch:
			req = fetch
		default:
			req = newRequest(key, version)
		}
		seeds = append(seeds, frameOf(req, version, 1)[4:])
	})
	return seeds
}

// FuzzRequest decodes frames as a connection does. What is accepted must encode
// again, and that encoding must decode to the same.
func FuzzRequest(f *testing.F) {
	for _, s := range seedFrames(f) {
		f.Add(s)
	}
	v := allVersions(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < minFrameBytes {
			return
		}
		w := wire{b: frame}
		if key, version := w.int16(), w.int16(); !v.supports(key, version) {
			return
		}
		req, err := decodeAll(frame)
		if err != nil {
			return
		}
		if kept := measure(req).bytes; kept < 0 || kept > int64(len(frame)+64)*decodeFactor {
			t.Fatalf("%d bytes stay charged for a frame of %d", kept, len(frame))
		}
		once := req.AppendTo(nil)
		again := newRequest(req.Key(), req.GetVersion())
		if err := parseBody(again, once); err != nil {
			t.Fatalf("the encoding of an accepted request is refused: %v", err)
		}
		if !bytes.Equal(once, again.AppendTo(nil)) {
			t.Fatal("encoding is not stable")
		}
	})
}

// FuzzFrames reads a connection's bytes to their end.
func FuzzFrames(f *testing.F) {
	var all []byte
	for _, s := range seedFrames(f) {
		all = binary.BigEndian.AppendUint32(all, uint32(len(s)))
		all = append(all, s...)
	}
	f.Add(all)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 9})
	versions := allVersions(f)
	f.Fuzz(func(t *testing.T, stream []byte) {
		fr := frameReader{
			br: bufio.NewReaderSize(bytes.NewReader(stream), readBufferBytes), versions: versions,
			maxBytes: 1 << 30, maxControlBytes: 1 << 16, setDeadline: func(time.Time) {}, first: true,
		}
		read := 0
		for {
			if _, err := fr.br.Peek(1); err != nil {
				if !errors.Is(err, io.EOF) || read != len(stream) {
					t.Fatalf("ended at %d of %d: %v", read, len(stream), err)
				}
				return
			}
			head, err := fr.readHead()
			if err != nil {
				return
			}
			charged := 0
			frame, err := fr.readBody(head.size, func(n int) error {
				charged += n
				return nil
			})
			if charged > 8*len(stream) {
				t.Fatalf("%d bytes charged for a stream of %d", charged, len(stream))
			}
			if err != nil {
				return
			}
			if !bytes.Equal(frame, stream[read+4:read+4+head.size]) {
				t.Fatal("the frame is not what was sent")
			}
			read += 4 + head.size
		}
	})
}

// FuzzBatch validates and reads arbitrary bytes as a record batch. Half of the time
// the CRC is set right, to get past it.
func FuzzBatch(f *testing.F) {
	for _, codec := range allCodecs {
		f.Add([]byte(build(f, BatchOptions{Codec: codec}, someRecords()...)), true)
	}
	f.Add([]byte(build(f, BatchOptions{Producer: &ProducerState{ID: 1}}, Record{})), false)
	limits := IterLimits{MaxBytes: 1 << 20, MaxRecordBytes: 1 << 18}
	f.Fuzz(func(t *testing.T, b []byte, fixCRC bool) {
		if fixCRC && len(b) >= BatchOverhead {
			RecordBatch(b).SetCRC()
		}
		if ValidateBatch(b, BatchLimits{MaxBytes: 1 << 20, Now: 1 << 40, ProduceVersion: 9}) == nil {
			if batch, rest, err := NextBatch(b); err != nil || len(rest) != 0 || batch.Len() != len(b) {
				t.Fatal("valid, and not one batch")
			}
		}
		batch, _, err := NextBatch(b)
		if err != nil {
			return
		}
		_ = batch.String()
		_, offsets, err := readAll(batch, limits)
		for i, o := range offsets {
			if o < batch.BaseOffset() || o > batch.LastOffset() || i > 0 && o <= offsets[i-1] {
				t.Fatalf("offsets %v of %v", offsets, batch)
			}
		}
		if err == nil && len(offsets) != int(batch.RecordCount()) {
			t.Fatalf("%d records of %v", len(offsets), batch)
		}
		_, ts, ok, err := FindTimestamp(batch, 1000, batch.BaseOffset())
		if err == nil && ok && ts < 1000 {
			t.Fatalf("found timestamp %d", ts)
		}
		_, _, _, _ = MaxTimestamp(batch, batch.BaseOffset()+1)
	})
}

// FuzzRecords reads arbitrary bytes as the records of a batch, compressed and not,
// past all of the header's checks.
func FuzzRecords(f *testing.F) {
	for _, codec := range allCodecs {
		f.Add(int8(codec), int32(4), build(f, BatchOptions{Codec: codec}, someRecords()...).Records())
	}
	f.Add(int8(CodecSnappy), int32(4), xerial(build(f, BatchOptions{}, someRecords()...).Records()))
	limits := IterLimits{MaxBytes: 1 << 20, MaxRecordBytes: 1 << 18}
	f.Fuzz(func(t *testing.T, codec int8, count int32, block []byte) {
		b := withBlock(build(t, BatchOptions{}, Record{}), Codec(codec)&attrCodec, block)
		b.putInt32(offRecordCount, count)
		b.putInt32(offLastOffsetDelta, count-1)
		got, _, err := readAll(b, limits)
		if err != nil {
			return
		}
		// What was read can be written, and reads back the same.
		if len(got) == 0 {
			return
		}
		again, _, err := readAll(build(t, BatchOptions{Codec: CodecLZ4}, got...), limits)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if !equalRecord(got[i], again[i]) {
				t.Fatalf("record %d: %v, then %v", i, got[i], again[i])
			}
		}
	})
}
