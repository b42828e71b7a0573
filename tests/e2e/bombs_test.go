package e2e

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

// bomb is a batch that is small and expands to a lot.
type bomb struct {
	name  string
	batch func() []byte
}

const bombRecord = 1 << 20 // bytes of zeros in each record

// bombs expand to 4 GiB with zstd, and otherwise to as much as the codec can make of a few MB. "one record" is a single
// record that is larger than any broker should hold; "many records" must be walked through one by one.
var bombs = []bomb{
	{"gzip, many records", func() []byte { return manyRecordsBomb(1, 1000) }},
	{"lz4, many records", func() []byte { return manyRecordsBomb(3, 600) }},
	{"zstd, many records", func() []byte { return manyRecordsBomb(4, 4096) }},
	{"snappy, many records", func() []byte { return manyRecordsBomb(2, 300) }},
	{"gzip, one record", func() []byte { return oneRecordBomb(1, 1000) }},
	{"lz4, one record", func() []byte { return oneRecordBomb(3, 600) }},
	{"zstd, one record", func() []byte { return oneRecordBomb(4, 2047) }},
	{"snappy, a false size", func() []byte {
		lie := binary.AppendUvarint(nil, 1<<32-1) // the size that a block says it has
		return harness.RawBatch(2, 2, day.UnixMilli(), day.UnixMilli()+1, append(lie, incompressible(1<<20)...))
	}},
}

// A batch is compressed by parts, for all codecs allow parts to be joined. That makes 4 GiB of zeros quickly.
type bombWriter struct {
	codec codec
	body  []byte
	zeros []byte // one part of bombRecord zeros
}

func newBombWriter(c codec) *bombWriter {
	w := &bombWriter{codec: c}
	w.zeros = w.part(make([]byte, bombRecord))
	if c == 2 {
		w.body = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1} // the framing of Java's library
	}
	return w
}

func (w *bombWriter) part(plain []byte) []byte {
	if w.codec == 2 {
		block := snappy.Encode(nil, plain)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(block))), block...)
	}
	compressor, err := kgo.DefaultCompressor(franzCodecs[w.codec])
	if err != nil {
		panic(err) // the codecs are constants
	}
	part, _ := compressor.Compress(new(bytes.Buffer), plain)
	return part
}

func (w *bombWriter) write(plain []byte) { w.body = append(w.body, w.part(plain)...) }
func (w *bombWriter) writeZeros(parts int) {
	for range parts {
		w.body = append(w.body, w.zeros...)
	}
}

// bombHead is the start of a record up to its value of n bytes; a byte for the count of headers must follow it.
func bombHead(offsetDelta int, n int64) []byte {
	head := []byte{0, 0} // attributes, timestamp delta
	head = binary.AppendVarint(head, int64(offsetDelta))
	head = binary.AppendVarint(head, -1) // null key
	head = binary.AppendVarint(head, n)
	return append(binary.AppendVarint(nil, int64(len(head))+n+1), head...)
}

func manyRecordsBomb(c codec, records int) []byte {
	w := newBombWriter(c)
	for i := range records {
		w.write(bombHead(i, bombRecord))
		w.writeZeros(1)
		w.write([]byte{0}) // headers
	}
	return w.batch(records)
}

func oneRecordBomb(c codec, parts int) []byte {
	w := newBombWriter(c)
	w.write(bombHead(0, int64(parts)*bombRecord))
	w.writeZeros(parts)
	w.write([]byte{0})
	w.write(bombHead(1, 0))
	w.write([]byte{0})
	return w.batch(2)
}

// batch says that some record is younger than all of them are, so that a search walks through all.
func (w *bombWriter) batch(records int) []byte {
	return harness.RawBatch(int16(w.codec), records, day.UnixMilli(), day.UnixMilli()+1, w.body)
}

// TestBombs appends batches that expand to gigabytes and looks for times in them, which makes the broker expand them.
func TestBombs(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: append([]string{"--max-message-bytes", "32MiB"}, smallMemory...)})
	createTopic(t, b, "bombs", int32(len(bombs)))
	bystander := watchBystander(t, b)
	stored := make([]bool, len(bombs))
	for i, bomb := range bombs {
		batch := bomb.batch()
		resp := harness.Do[*kmsg.ProduceResponse](harness.Dial(t, b.Addr), produceRequest(9, "bombs", int32(i), batch))
		stored[i] = resp.Topics[0].Partitions[0].ErrorCode == 0
		t.Logf("%s: %d bytes, stored: %v", bomb.name, len(batch), stored[i])
	}
	const searches = 4 // of each at once
	var done sync.WaitGroup
	for i, bomb := range bombs {
		for range searches {
			c := harness.Dial(t, b.Addr)
			done.Go(func() {
				p := tryListOffset(c, "bombs", int32(i), day.UnixMilli()+1)
				if err := kerr.ErrorForCode(p.ErrorCode); stored[i] && err == nil || p.Offset != -1 {
					t.Errorf("%s: looking for a time found offset %d, error %v; want an error", bomb.name, p.Offset, err)
				}
			})
		}
	}
	done.Wait()
	bystander.check(t)
	checkPeak(t, b)
	// Readers who know what they do get the bombs as they are.
	for i, bomb := range bombs {
		if stored[i] {
			if got := fetchPartition(t, harness.Dial(t, b.Addr), "bombs", int32(i), 0).RecordBatches; len(got) == 0 {
				t.Errorf("%s: nothing to fetch", bomb.name)
			}
		}
	}
}
