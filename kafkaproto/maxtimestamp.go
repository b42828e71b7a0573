package kafkaproto

import "encoding/binary"

// noTimestamp is the timestamp of a record whose producer gave none.
const noTimestamp = -1

// PatchMaxTimestamp makes the header of an uncompressed CreateTime batch tell the
// largest timestamp of its records, as Kafka's class LogValidator does, and reports
// whether it had to. Producers exist that write the last record's timestamp there;
// believed, it would hide the record with the largest one from look-ups by time and
// let retention drop it too early. When the header changes, the CRC is computed anew.
//
// Batches that are compressed or carry LogAppendTime stay as they are, and so does
// one whose records are malformed: its readers meet that with an error. b must have
// passed [ValidateBatch].
//
// It reads a few bytes of each record and allocates nothing.
func PatchMaxTimestamp(b RecordBatch) (changed bool) {
	if b.Codec() != CodecNone || b.IsLogAppendTime() {
		return false
	}
	largest, ok := largestTimestamp(b)
	if !ok || largest == b.MaxTimestamp() {
		return false
	}
	b.putInt64(offMaxTimestamp, largest)
	b.SetCRC()
	return true
}

// largestTimestamp walks the records of an uncompressed batch. ok is false if they
// do not fit together.
func largestTimestamp(b RecordBatch) (largest int64, ok bool) {
	largest = noTimestamp
	base, rest := b.BaseTimestamp(), b.Records()
	for range b.RecordCount() {
		length, n := uvarint32(rest)
		size := int(unzigzag32(length))
		if n <= 0 || size < 2 || size > len(rest)-n {
			return 0, false
		}
		record := rest[n : n+size]
		delta, m := binary.Uvarint(record[1:]) // behind the attributes
		if m <= 0 {
			return 0, false
		}
		largest = max(largest, base+unzigzag64(delta))
		rest = rest[n+size:]
	}
	return largest, len(rest) == 0
}
