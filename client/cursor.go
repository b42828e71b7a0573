package client

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// Cursor is a position under a prefix: the next offset of each stream that was read, with the id that tells the stream from
// a later one of the same name, and whether streams that it does not know are read from their start or, once, from their
// end. It is stored as text (JSON) or binary, and belongs to one
// FollowPrefix at a time. The zero value begins at the start of every stream.
type Cursor struct {
	next    map[string]place
	fromEnd bool
}

// place is a position in one stream.
type place struct {
	next int64
	id   int64 // of the stream, 0: not known
}

// FromEnd returns a cursor that leaves out what the streams under the prefix hold when following begins. Streams that are
// made later are read from their start. The cursor is complete, and worth storing, from the first record on.
func FromEnd() *Cursor { return &Cursor{fromEnd: true} }

// Next returns the offset at which a stream is read on, and whether the cursor knows it.
func (c *Cursor) Next(stream string) (offset int64, ok bool) {
	p, ok := c.next[stream]
	return p.next, ok
}

// All returns the streams that the cursor knows, in order of their names, with their next offsets.
func (c *Cursor) All() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for _, stream := range slices.Sorted(maps.Keys(c.next)) {
			if !yield(stream, c.next[stream].next) {
				return
			}
		}
	}
}

// Clone returns a copy, which can be stored while the cursor moves on.
func (c *Cursor) Clone() *Cursor { return &Cursor{next: maps.Clone(c.next), fromEnd: c.fromEnd} }

func (c *Cursor) set(stream string, p place) {
	if c.next == nil {
		c.next = make(map[string]place)
	}
	c.next[stream] = p
}

// cursorText is a cursor as JSON: {"from":"start","next":{"sessions/alice":7},"ids":{"sessions/alice":1099511627777}}.
// Streams whose id is not known are not among the ids; neither is one in text of the first release.
type cursorText struct {
	From string           `json:"from"` // start or end
	Next map[string]int64 `json:"next,omitempty"`
	IDs  map[string]int64 `json:"ids,omitempty"`
}

const (
	cursorStart = "start"
	cursorEnd   = "end"
)

// MarshalText implements [encoding.TextMarshaler]. The text is JSON in one line.
func (c *Cursor) MarshalText() ([]byte, error) {
	t := cursorText{From: cursorStart, Next: make(map[string]int64, len(c.next)), IDs: make(map[string]int64, len(c.next))}
	if c.fromEnd {
		t.From = cursorEnd
	}
	for stream, p := range c.next {
		t.Next[stream] = p.next
		if p.id != 0 {
			t.IDs[stream] = p.id
		}
	}
	return json.Marshal(t)
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *Cursor) UnmarshalText(text []byte) error {
	var t cursorText
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("not a cursor: %w", err)
	}
	if t.From != cursorStart && t.From != cursorEnd {
		return fmt.Errorf("not a cursor: it begins from %q, not from %q or %q", t.From, cursorStart, cursorEnd)
	}
	read := Cursor{fromEnd: t.From == cursorEnd}
	for stream, next := range t.Next {
		if next < 0 {
			return fmt.Errorf("not a cursor: stream %q has the offset %d", stream, next)
		}
		read.set(stream, place{next: next, id: t.IDs[stream]})
	}
	*c = read
	return nil
}

// cursorVersion is the version of the binary form:
//
//	version byte, flags byte (bit 0: from the end), then for each stream in order of names:
//	length of what its name shares with the one before, uvarint; length of the rest, uvarint; the rest; next offset, uvarint;
//	id of the stream less the one before it here (0 at first), varint. Version 1 had no ids.
const (
	cursorVersion      = 2
	cursorWithoutIDs   = 1
	cursorFixed        = 2
	cursorFlagsFromEnd = 1
)

var errCursor = errors.New("not a cursor, or one of a later release")

// MarshalBinary implements [encoding.BinaryMarshaler].
func (c *Cursor) MarshalBinary() ([]byte, error) {
	flags := byte(0)
	if c.fromEnd {
		flags = cursorFlagsFromEnd
	}
	b := []byte{cursorVersion, flags}
	last, lastID := "", int64(0)
	for stream, next := range c.All() {
		shared := 0
		for shared < min(len(last), len(stream)) && last[shared] == stream[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = binary.AppendUvarint(b, uint64(len(stream)-shared))
		b = append(b, stream[shared:]...)
		b = binary.AppendUvarint(b, uint64(next))
		id := c.next[stream].id
		b = binary.AppendVarint(b, id-lastID)
		last, lastID = stream, id
	}
	return b, nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler].
func (c *Cursor) UnmarshalBinary(b []byte) error {
	if len(b) < cursorFixed || b[0] < cursorWithoutIDs || b[0] > cursorVersion || b[1] > cursorFlagsFromEnd {
		return errCursor
	}
	read := Cursor{fromEnd: b[1] == cursorFlagsFromEnd}
	r := cursorReader{b: b[cursorFixed:], ids: b[0] >= cursorVersion}
	for len(r.b) > 0 && !r.bad {
		if stream, p := r.stream(); !r.bad {
			read.set(stream, p)
		}
	}
	if r.bad {
		return errCursor
	}
	*c = read
	return nil
}

// cursorReader reads the streams of a binary cursor. bad is set once there is none, and nothing is read any more.
type cursorReader struct {
	b   []byte
	ids bool
	bad bool

	name string // the last one
	id   int64
}

func (r *cursorReader) stream() (string, place) {
	shared, rest := r.uvarint(), r.uvarint()
	if shared > uint64(len(r.name)) || rest > uint64(len(r.b)) {
		r.fail()
		return "", place{}
	}
	r.name = r.name[:shared] + string(r.b[:rest])
	r.b = r.b[rest:]
	next := r.uvarint()
	if int64(next) < 0 {
		r.fail()
	}
	if r.ids {
		delta, n := binary.Varint(r.b)
		if n <= 0 {
			r.fail()
		} else {
			r.b = r.b[n:]
		}
		r.id += delta
	}
	return r.name, place{next: int64(next), id: r.id}
}

func (r *cursorReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *cursorReader) fail() { r.b, r.bad = nil, true }
