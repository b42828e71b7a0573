package harness

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is a record for [Batch].
type Record struct {
	Key, Value []byte // nil is null
	Timestamp  int64  // milliseconds since 1970
}

// Batch returns a record batch (magic 2) of records, without a producer id.
func Batch(codec kgo.CompressionCodec, records ...Record) []byte {
	base, latest := records[0].Timestamp, records[0].Timestamp
	var plain []byte
	for i, r := range records {
		latest = max(latest, r.Timestamp)
		plain = appendRecord(plain, r, r.Timestamp-base, i)
	}
	body, attributes := plain, int16(0)
	// The error is that of a level out of range, and a nil compressor stands for no compression.
	if compressor, _ := kgo.DefaultCompressor(codec); compressor != nil {
		compressed, kind := compressor.Compress(new(bytes.Buffer), plain)
		body, attributes = bytes.Clone(compressed), int16(kind)
	}
	return RawBatch(attributes, len(records), base, latest, body)
}

// RawBatch returns a record batch with this header and this body, whatever it is. The checksum is right.
func RawBatch(attributes int16, count int, baseTimestamp, maxTimestamp int64, body []byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, 0)       // base offset
	b = binary.BigEndian.AppendUint32(b, 0)          // length
	b = binary.BigEndian.AppendUint32(b, 0xffffffff) // partition leader epoch
	b = append(b, 2)                                 // magic
	b = binary.BigEndian.AppendUint32(b, 0)          // checksum
	b = binary.BigEndian.AppendUint16(b, uint16(attributes))
	b = binary.BigEndian.AppendUint32(b, uint32(count-1)) // last offset delta
	b = binary.BigEndian.AppendUint64(b, uint64(baseTimestamp))
	b = binary.BigEndian.AppendUint64(b, uint64(maxTimestamp))
	b = binary.BigEndian.AppendUint64(b, ^uint64(0)) // producer id
	b = binary.BigEndian.AppendUint16(b, 0xffff)     // producer epoch
	b = binary.BigEndian.AppendUint32(b, 0xffffffff) // base sequence
	b = binary.BigEndian.AppendUint32(b, uint32(count))
	b = append(b, body...)
	binary.BigEndian.PutUint32(b[lengthAt:], uint32(len(b)-headBytes))
	return seal(b)
}

// Idempotent makes batch, which it changes, one of an idempotent producer.
func Idempotent(batch []byte, producerID int64, epoch int16, sequence int32) []byte {
	binary.BigEndian.PutUint64(batch[producerAt:], uint64(producerID))
	binary.BigEndian.PutUint16(batch[producerAt+8:], uint16(epoch))
	binary.BigEndian.PutUint32(batch[producerAt+10:], uint32(sequence))
	return seal(batch)
}

// Places of fields in a batch.
const (
	lengthAt   = 8
	checksumAt = 17
	producerAt = 43 // id, epoch, sequence
	headBytes  = 12 // base offset and length, which the length does not count
)

// seal gives a batch its checksum.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[checksumAt:], crc32.Checksum(b[checksumAt+4:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func appendRecord(dst []byte, r Record, timestampDelta int64, offsetDelta int) []byte {
	body := []byte{0} // attributes
	body = binary.AppendVarint(body, timestampDelta)
	body = binary.AppendVarint(body, int64(offsetDelta))
	for _, field := range [][]byte{r.Key, r.Value} {
		if field == nil {
			body = binary.AppendVarint(body, -1)
			continue
		}
		body = append(binary.AppendVarint(body, int64(len(field))), field...)
	}
	body = binary.AppendVarint(body, 0) // headers
	return append(binary.AppendVarint(dst, int64(len(body))), body...)
}
