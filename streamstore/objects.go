package streamstore

import (
	"encoding/binary"
	"fmt"
	"path"
	"strconv"
)

// objectKind tells the two kinds of bucket objects that hold records.
type objectKind uint8

const (
	// objectLog is an object of the commit log.
	objectLog objectKind = iota
	// objectSegment is a result of compaction.
	objectSegment
)

// objectID names an object of the bucket that holds records. Kind and number are
// never used again for another object: a log object's number can be taken again only
// above every commit that is durable, and a segment's number begins with its writer's
// epoch (see newSegmentNumber).
type objectID struct {
	kind   objectKind
	number uint64
}

func logObjectID(number uint64) objectID { return objectID{objectLog, number} }

// name is the object's name in the bucket.
func (o objectID) name(shard uint32) string {
	if o.kind == objectSegment {
		return segmentName(shard, o.number)
	}
	return logName(shard, o.number)
}

func (o objectID) compare(p objectID) int {
	switch {
	case o == p:
		return 0
	case o.kind < p.kind, o.kind == p.kind && o.number < p.number:
		return -1
	}
	return 1
}

// A segment's number has the epoch of its writer in the upper 24 bits and a count
// within that epoch in the lower 40. So no two writers ever make an object of the same
// name, a number is never used again after the object was deleted, and the name alone
// tells whether the writer that could still commit the segment has been fenced.
const segmentCounterBits = 40

func segmentNumber(epoch, count uint64) uint64 { return epoch<<segmentCounterBits | count }

// segmentEpoch is the epoch of the writer that made a segment.
func segmentEpoch(number uint64) uint64 { return number >> segmentCounterBits }

func segmentCount(number uint64) uint64 { return number & (1<<segmentCounterBits - 1) }

// segmentDir is the folder of a shard's compacted segments: shards/<shard>/segments.
func segmentDir(shard uint32) string { return path.Join(shardDir(shard), "segments") }

// segmentName is the object name of a segment: the 20 digits of its number.
func segmentName(shard uint32, number uint64) string {
	return fmt.Sprintf("%s/%020d", segmentDir(shard), number)
}

// parseSegmentName is the reverse of segmentName; ok is false for names of other
// things, which are left alone.
func parseSegmentName(shard uint32, name string) (number uint64, ok bool) {
	base := path.Base(name)
	if len(base) != 20 {
		return 0, false
	}
	number, err := strconv.ParseUint(base, 10, 64)
	return number, err == nil && segmentName(shard, number) == name
}

// objectKey is the key of an object's row: g, kind (1 byte), number (8 bytes,
// big-endian).
func objectKey(o objectID) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixObject, byte(o.kind)}, o.number)
}

const objectKeySize = 1 + 1 + 8

// objectRow is what the store knows of an object that holds records, from the commit
// that makes it known until the object is deleted. How many of its bytes are still in
// use is not stored: it follows from the extents.
//
//	version, level u, run u, bytes u, created i (ms since 1970)
type objectRow struct {
	level   uint64 // 0: the commit log; else how many compactions the bytes went through
	run     uint64 // number of the first segment of the same compaction; 0 for level 0
	bytes   int64  // of record batches, dead ones included
	created int64
}

func (row *objectRow) encode() []byte {
	b := append(make([]byte, 0, 32), rowVersion)
	b = binary.AppendUvarint(b, row.level)
	b = binary.AppendUvarint(b, row.run)
	b = binary.AppendUvarint(b, uint64(row.bytes))
	return binary.AppendVarint(b, row.created)
}

func decodeObjectRow(b []byte) (row objectRow, err error) {
	r := newRowReader(b, rowVersion)
	row.level = r.uvarint()
	row.run = r.uvarint()
	row.bytes = int64(r.uvarint())
	row.created = r.varint()
	return row, r.err
}

// decodeObjectKey is the reverse of objectKey.
func decodeObjectKey(key []byte) (objectID, error) {
	if len(key) != objectKeySize || key[1] > byte(objectSegment) {
		return objectID{}, &CorruptError{Where: "object row", What: "key", Found: fmt.Sprintf("%x", key), Expected: "g, kind, number"}
	}
	return objectID{objectKind(key[1]), binary.BigEndian.Uint64(key[2:])}, nil
}
