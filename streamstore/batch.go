package streamstore

import (
	"encoding/binary"
	"hash/crc32"
)

// The store keeps records as Kafka RecordBatches of format version 2 and needs
// only their header: it writes the base offset and leader epoch, and reads what
// ordering, duplicates and look-up by time depend on. All numbers are
// big-endian.
//
//	 0  8  base offset               written by the store
//	 8  4  batch length              size of the batch less 12
//	12  4  partition leader epoch    written by the store
//	16  1  magic                     2
//	17  4  CRC-32C                   of byte 21 to the end
//	21  2  attributes
//	23  4  last offset delta
//	27  8  base timestamp
//	35  8  max timestamp             milliseconds since 1970
//	43  8  producer id               -1: none
//	51  2  producer epoch
//	53  4  base sequence
//	57  4  record count
//	61     records
//
// Base offset and leader epoch lie outside the checksum, so an append patches
// 12 bytes and hashes nothing. Source: Kafka's DefaultRecordBatch.
const (
	batchLengthEnd  = 12 // bytes before what batch length counts
	batchHeaderSize = 61
	batchMagic      = 2
	batchMagicAt    = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordBatch is one whole RecordBatch v2.
type recordBatch []byte

// nextBatch cuts the first batch off b and reports whether one is there whole
// and has the right shape. It does not check the checksum.
func nextBatch(b []byte) (batch recordBatch, rest []byte, ok bool) {
	if len(b) < batchHeaderSize {
		return nil, b, false
	}
	size := batchLengthEnd + int64(int32(binary.BigEndian.Uint32(b[8:])))
	if size < batchHeaderSize || size > int64(len(b)) || b[batchMagicAt] != batchMagic {
		return nil, b, false
	}
	batch = recordBatch(b[:size:size])
	if batch.lastOffsetDelta() < 0 {
		return nil, b, false
	}
	return batch, b[size:], true
}

func (b recordBatch) baseOffset() int64      { return int64(binary.BigEndian.Uint64(b[0:])) }
func (b recordBatch) checksum() uint32       { return binary.BigEndian.Uint32(b[17:]) }
func (b recordBatch) lastOffsetDelta() int32 { return int32(binary.BigEndian.Uint32(b[23:])) }
func (b recordBatch) maxTimestamp() int64    { return int64(binary.BigEndian.Uint64(b[35:])) }
func (b recordBatch) producerID() int64      { return int64(binary.BigEndian.Uint64(b[43:])) }
func (b recordBatch) producerEpoch() int16   { return int16(binary.BigEndian.Uint16(b[51:])) }
func (b recordBatch) baseSequence() int32    { return int32(binary.BigEndian.Uint32(b[53:])) }
func (b recordBatch) lastOffset() int64      { return b.baseOffset() + int64(b.lastOffsetDelta()) }

// checksumOK reports whether the CRC-32C of the batch holds.
func (b recordBatch) checksumOK() bool { return crc32.Checksum(b[21:], castagnoli) == b.checksum() }

// place writes what the store assigns.
func (b recordBatch) place(base int64, leaderEpoch int32) {
	binary.BigEndian.PutUint64(b[0:], uint64(base))
	binary.BigEndian.PutUint32(b[12:], uint32(leaderEpoch))
}
