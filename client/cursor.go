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

// Cursor is a position under a prefix: the next offset of each stream that was read, and whether streams that it does not
// know are read from their start or, once, from their end. It is stored as text (JSON) or binary, and belongs to one
// FollowPrefix at a time. The zero value begins at the start of every stream.
type Cursor struct {
	next    map[string]int64
	fromEnd bool
}

// FromEnd returns a cursor that leaves out what the streams under the prefix hold when following begins. Streams that are
// made later are read from their start. The cursor is complete, and worth storing, from the first record on.
func FromEnd() *Cursor { return &Cursor{fromEnd: true} }

// Next returns the offset at which a stream is read on, and whether the cursor knows it.
func (c *Cursor) Next(stream string) (offset int64, ok bool) {
	offset, ok = c.next[stream]
	return offset, ok
}

// All returns the streams that the cursor knows, in order of their names, with their next offsets.
func (c *Cursor) All() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for _, stream := range slices.Sorted(maps.Keys(c.next)) {
			if !yield(stream, c.next[stream]) {
				return
			}
		}
	}
}

// Clone returns a copy, which can be stored while the cursor moves on.
func (c *Cursor) Clone() *Cursor { return &Cursor{next: maps.Clone(c.next), fromEnd: c.fromEnd} }

func (c *Cursor) set(stream string, next int64) {
	if c.next == nil {
		c.next = make(map[string]int64)
	}
	c.next[stream] = next
}

// cursorText is a cursor as JSON: {"from":"start","next":{"sessions/alice":7}}.
type cursorText struct {
	From string           `json:"from"` // start or end
	Next map[string]int64 `json:"next,omitempty"`
}

const (
	cursorStart = "start"
	cursorEnd   = "end"
)

// MarshalText implements [encoding.TextMarshaler]. The text is JSON in one line.
func (c *Cursor) MarshalText() ([]byte, error) {
	t := cursorText{From: cursorStart, Next: c.next}
	if c.fromEnd {
		t.From = cursorEnd
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
	for stream, next := range t.Next {
		if next < 0 {
			return fmt.Errorf("not a cursor: stream %q has the offset %d", stream, next)
		}
	}
	*c = Cursor{next: t.Next, fromEnd: t.From == cursorEnd}
	return nil
}

// cursorVersion is the version of the binary form:
//
//	version byte, flags byte (bit 0: from the end), then for each stream in order of names:
//	length of what its name shares with the one before, uvarint; length of the rest, uvarint; the rest; next offset, uvarint
const cursorVersion = 1

var errCursor = errors.New("not a cursor, or one of a later release")

// MarshalBinary implements [encoding.BinaryMarshaler].
func (c *Cursor) MarshalBinary() ([]byte, error) {
	flags := byte(0)
	if c.fromEnd {
		flags = 1
	}
	b := []byte{cursorVersion, flags}
	last := ""
	for stream, next := range c.All() {
		shared := 0
		for shared < min(len(last), len(stream)) && last[shared] == stream[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = binary.AppendUvarint(b, uint64(len(stream)-shared))
		b = append(b, stream[shared:]...)
		b = binary.AppendUvarint(b, uint64(next))
		last = stream
	}
	return b, nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler].
func (c *Cursor) UnmarshalBinary(b []byte) error {
	if len(b) < 2 || b[0] != cursorVersion || b[1] > 1 {
		return errCursor
	}
	read := Cursor{fromEnd: b[1] == 1}
	last := ""
	for b = b[2:]; len(b) > 0; {
		var numbers [3]uint64
		var rest []byte
		for i := range numbers {
			n, size := binary.Uvarint(b)
			if size <= 0 {
				return errCursor
			}
			numbers[i], b = n, b[size:]
			if i == 1 {
				if numbers[0] > uint64(len(last)) || n > uint64(len(b)) {
					return errCursor
				}
				rest, b = b[:n], b[n:]
			}
		}
		if int64(numbers[2]) < 0 {
			return errCursor
		}
		last = last[:numbers[0]] + string(rest)
		read.set(last, int64(numbers[2]))
	}
	*c = read
	return nil
}
