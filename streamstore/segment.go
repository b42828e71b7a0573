package streamstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A segment is what compaction makes: the record batches of many streams, each
// stream's together. It is created with create-if-absent and never changed. What of it
// is in use is said by the extents in the index; its directory tells what it was made
// with, and lets it be merged again without a look at the whole index.
//
// It is laid out like this; integers are big-endian:
//
//	header     128 bytes, below
//	data       record batches back to back, sorted by stream id, then offset
//	directory  one entry per extent, in the order of the data, zstd compressed
//	footer     16 bytes: CRC-32C of the header's first 124 bytes (4), zero (4),
//	           magic "BRKLTEND" (8); its presence shows that the object is whole
//
// Header:
//
//	  0   8  magic "BRKLTSEG"
//	  8   2  format version, 1
//	 10   2  zero
//	 12   4  shard
//	 16   8  number of this segment (see segmentNumber)
//	 24   8  number of the first segment of the same compaction, its run
//	 32   8  epoch of the writer
//	 40  16  nonce of the writer
//	 56   8  creation time, ms since 1970
//	 64   4  level
//	 68   4  number of extents
//	 72   8  length of the data section
//	 80   8  length of the directory
//	 88   4  CRC-32C of the data section
//	 92   4  CRC-32C of the directory
//	 96   8  size of the whole object
//	104  20  zero
//	124   4  CRC-32C of bytes 0 to 123
//
// Entry of the directory, with varints as in rows.go. The first entry's predecessor is
// all zero; positions follow from the lengths.
//
//	stream id less the predecessor's u, base offset u, last offset - base offset u,
//	length u, max timestamp less the predecessor's i, written less the predecessor's i
const (
	segmentMagic      = "BRKLTSEG"
	segmentVersion    = 1
	segmentHeaderSize = commitHeaderSize // checkHeader reads both

	// minDirectoryEntry is the size of the smallest entry, in bytes.
	minDirectoryEntry = 6
)

// segmentHeader is the first part of a segment.
type segmentHeader struct {
	shard        uint32
	number       uint64
	run          uint64
	epoch        uint64
	nonce        nonce
	created      int64 // ms since 1970
	level        uint32
	extents      uint32
	dataLength   int64
	directoryLen int64
	dataCRC      uint32
	directoryCRC uint32
}

func (h *segmentHeader) size() int64 {
	return segmentHeaderSize + h.dataLength + h.directoryLen + commitFooterSize
}

func (h *segmentHeader) row() objectRow {
	return objectRow{level: uint64(h.level), run: h.run, bytes: h.dataLength, created: h.created}
}

// encode writes the header into b, which has segmentHeaderSize bytes.
func (h *segmentHeader) encode(b []byte) {
	clear(b[:segmentHeaderSize])
	copy(b, segmentMagic)
	be := binary.BigEndian
	be.PutUint16(b[8:], segmentVersion)
	be.PutUint32(b[12:], h.shard)
	be.PutUint64(b[16:], h.number)
	be.PutUint64(b[24:], h.run)
	be.PutUint64(b[32:], h.epoch)
	copy(b[40:], h.nonce[:])
	be.PutUint64(b[56:], uint64(h.created))
	be.PutUint32(b[64:], h.level)
	be.PutUint32(b[68:], h.extents)
	be.PutUint64(b[72:], uint64(h.dataLength))
	be.PutUint64(b[80:], uint64(h.directoryLen))
	be.PutUint32(b[88:], h.dataCRC)
	be.PutUint32(b[92:], h.directoryCRC)
	be.PutUint64(b[96:], uint64(h.size()))
	be.PutUint32(b[124:], crc32.Checksum(b[:124], castagnoli))
}

// decodeSegmentHeader checks and reads the header of the segment called where.
func decodeSegmentHeader(where string, b []byte) (h segmentHeader, err error) {
	be := binary.BigEndian
	if err := checkHeader(where, b, segmentMagic, segmentVersion); err != nil {
		return h, err
	}
	h = segmentHeader{
		shard:        be.Uint32(b[12:]),
		number:       be.Uint64(b[16:]),
		run:          be.Uint64(b[24:]),
		epoch:        be.Uint64(b[32:]),
		nonce:        nonce(b[40:56]),
		created:      int64(be.Uint64(b[56:])),
		level:        be.Uint32(b[64:]),
		extents:      be.Uint32(b[68:]),
		dataLength:   int64(be.Uint64(b[72:])),
		directoryLen: int64(be.Uint64(b[80:])),
		dataCRC:      be.Uint32(b[88:]),
		directoryCRC: be.Uint32(b[92:]),
	}
	if size := int64(be.Uint64(b[96:])); h.dataLength < 0 || h.directoryLen < 0 || size != h.size() {
		return segmentHeader{}, &CorruptError{Where: where, Position: 96, What: "object size", Found: size, Expected: h.size()}
	}
	return h, nil
}

// sealSegment completes an encoded segment: object holds room for the header, then the
// data section, which extents describes. It fills in the counts, lengths and checksums
// of h.
func (c stateCodec) sealSegment(h *segmentHeader, object []byte, extents []streamExtent) []byte {
	data := object[segmentHeaderSize:]
	h.dataLength, h.dataCRC = int64(len(data)), crc32.Checksum(data, castagnoli)
	h.extents = uint32(len(extents))
	object = c.encoder.EncodeAll(encodeDirectory(extents), object)
	directory := object[segmentHeaderSize+h.dataLength:]
	h.directoryLen, h.directoryCRC = int64(len(directory)), crc32.Checksum(directory, castagnoli)
	object = append(object, make([]byte, commitFooterSize)...)
	h.encode(object)
	footer := object[len(object)-commitFooterSize:]
	copy(footer, object[124:128])
	copy(footer[8:], commitFooterMagic)
	return object
}

func encodeDirectory(extents []streamExtent) []byte {
	b := make([]byte, 0, 16*len(extents))
	var previous streamExtent
	for _, x := range extents {
		b = binary.AppendUvarint(b, uint64(x.id-previous.id))
		b = binary.AppendUvarint(b, uint64(x.base))
		b = binary.AppendUvarint(b, uint64(x.last-x.base))
		b = binary.AppendUvarint(b, uint64(x.length))
		b = binary.AppendVarint(b, x.maxTimestamp-previous.maxTimestamp)
		b = binary.AppendVarint(b, x.written-previous.written)
		previous = x
	}
	return b
}

// openDirectory checks the directory of the segment whose header is h. tail is the
// object from the directory on.
func (c stateCodec) openDirectory(where string, h *segmentHeader, tail []byte) (*directory, error) {
	at := segmentHeaderSize + h.dataLength
	corrupt := func(at int64, what string, found, expected any) (*directory, error) {
		return nil, &CorruptError{Where: where, Position: at, What: what, Found: found, Expected: expected}
	}
	if int64(len(tail)) != h.directoryLen+commitFooterSize {
		return corrupt(at, "length of directory and footer", len(tail), h.directoryLen+commitFooterSize)
	}
	compressed, footer := tail[:h.directoryLen], tail[h.directoryLen:]
	if m := string(footer[8:]); m != commitFooterMagic {
		return corrupt(at+h.directoryLen+8, "footer magic", strconv.Quote(m), strconv.Quote(commitFooterMagic))
	}
	if crc := crc32.Checksum(compressed, castagnoli); crc != h.directoryCRC {
		return corrupt(at, "directory checksum", crc, h.directoryCRC)
	}
	raw, err := c.decoder.DecodeAll(compressed, nil)
	if err != nil {
		return corrupt(at, "directory", err, "zstd")
	}
	if int64(len(raw)) < int64(h.extents)*minDirectoryEntry {
		return corrupt(at, "length of the directory", len(raw), fmt.Sprintf("at least %d for %d extents", int64(h.extents)*minDirectoryEntry, h.extents))
	}
	return &directory{where: where, header: *h, reader: rowReader{b: raw}, position: segmentHeaderSize}, nil
}

// directory goes through the extents that a segment was made with.
type directory struct {
	where    string
	header   segmentHeader
	reader   rowReader
	read     uint32
	previous streamExtent
	position int64 // of the next extent
}

// next returns the next extent; ok is false at the end.
func (d *directory) next() (x streamExtent, ok bool, err error) {
	corrupt := func(what string, found, expected any) (streamExtent, bool, error) {
		return streamExtent{}, false, &CorruptError{Where: d.where, Position: segmentHeaderSize + d.header.dataLength, What: what, Found: found, Expected: expected}
	}
	if d.read == d.header.extents {
		if end := segmentHeaderSize + d.header.dataLength; d.position != end || len(d.reader.b) > 0 {
			return corrupt("end of the directory", d.position, end)
		}
		return streamExtent{}, false, nil
	}
	r := &d.reader
	x.id = d.previous.id + StreamID(r.uvarint())
	x.base = int64(r.uvarint())
	x.last = x.base + int64(r.uvarint())
	x.length = int64(r.uvarint())
	x.maxTimestamp = d.previous.maxTimestamp + r.varint()
	x.written = d.previous.written + r.varint()
	x.object, x.position = objectID{objectSegment, d.header.number}, d.position
	left := segmentHeaderSize + d.header.dataLength - d.position
	switch {
	case r.err != nil:
		return corrupt("directory", r.err, fmt.Sprintf("%d extents", d.header.extents))
	case x.base < 0 || x.last < x.base || x.length < 0 || x.length > left:
		return corrupt("extent", fmt.Sprintf("%d to %d, %d bytes", x.base, x.last, x.length), fmt.Sprintf("at most %d bytes", left))
	case d.read > 0 && x.compare(d.previous) <= 0:
		return corrupt("order of extents", x.id, fmt.Sprintf("one behind %d", d.previous.id))
	}
	d.read++
	d.previous = x
	d.position += x.length
	return x, true, nil
}

// compare orders extents by stream, then offset.
func (x streamExtent) compare(y streamExtent) int {
	switch {
	case x.id < y.id, x.id == y.id && x.last < y.last:
		return -1
	case x.id == y.id && x.last == y.last:
		return 0
	}
	return 1
}
