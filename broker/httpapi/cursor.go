package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/brookletmq/brooklet/streamstore"
)

// A cursor is the position of a reader of a prefix in all streams under it, the id of cursor events. It is opaque to
// clients: base64url without padding of
//
//	0  1  version, 1
//	1  4  CRC-32C of the prefix, big endian: a cursor holds for its prefix only
//	5     uvarint: number of streams, then for each in order of ids
//	         uvarint: id less the one before
//	         uvarint: offset of the next record
//	   4  CRC-32C of all that, big endian
//
// A stream that is not in it is one that the reader has seen nothing of: it begins at its start.
type cursor map[streamstore.StreamID]int64

const cursorVersion = 1

// cursorFixed are the bytes of a cursor without streams but for their number.
const cursorFixed = 1 + 4 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (c cursor) encode(prefix string) string {
	b := make([]byte, 0, cursorFixed+4+5*len(c))
	b = append(b, cursorVersion)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum([]byte(prefix), castagnoli))
	b = binary.AppendUvarint(b, uint64(len(c)))
	last := streamstore.StreamID(0)
	for _, id := range slices.Sorted(maps.Keys(c)) {
		b = binary.AppendUvarint(b, uint64(id-last))
		b = binary.AppendUvarint(b, uint64(c[id]))
		last = id
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor reads a cursor that belongs to prefix and has at most limit streams.
func decodeCursor(text, prefix string, limit int) (cursor, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < cursorFixed || crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, badCursor.new("the cursor %q is damaged, or was not made by a cursor event", shorten(text))
	}
	if b[0] != cursorVersion {
		return nil, badCursor.new("the cursor is of version %d, which this broker does not know: begin with from=start or from=tail", b[0])
	}
	if binary.BigEndian.Uint32(b[1:]) != crc32.Checksum([]byte(prefix), castagnoli) {
		return nil, badCursor.new("the cursor belongs to another prefix than %q", prefix)
	}
	r := uvarints{b: b[5 : len(b)-4]}
	n := r.next()
	if n > uint64(limit) {
		return nil, tooManyStreams.new("the cursor has %d streams, the limit is %d: narrow the prefix", n, limit).with("limit", limit)
	}
	c := make(cursor, n)
	id := streamstore.StreamID(0)
	for range n {
		id += streamstore.StreamID(r.next())
		c[id] = int64(r.next())
	}
	if r.bad || len(r.b) > 0 {
		return nil, badCursor.new("the cursor %q is damaged", shorten(text))
	}
	return c, nil
}

// uvarints reads numbers. bad is set once there is none.
type uvarints struct {
	b   []byte
	bad bool
}

func (r *uvarints) next() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}
