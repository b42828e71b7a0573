package kafkaproto

import "encoding/binary"

// wire reads the protocol's primitives from hostile bytes. After the first field
// that does not fit, bad is set and everything reads as zero. It never allocates.
type wire struct {
	b   []byte
	bad bool
}

func (w *wire) skip(n int) {
	if n < 0 || n > len(w.b) {
		w.bad, w.b = true, nil
		return
	}
	w.b = w.b[n:]
}

func (w *wire) span(n int) []byte {
	b := w.b
	if w.skip(n); w.bad {
		return nil
	}
	return b[:n]
}

func (w *wire) int16() int16 {
	if b := w.span(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (w *wire) int32() int32 {
	if b := w.span(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (w *wire) uvarint() uint32 {
	v, n := uvarint32(w.b)
	if n <= 0 {
		w.bad, w.b = true, nil
		return 0
	}
	w.b = w.b[n:]
	return v
}

// nullableString reads an int16 length and a string; ok is false if it is null.
func (w *wire) nullableString() (s []byte, ok bool) {
	n := w.int16()
	if n < 0 || w.bad {
		return nil, false
	}
	s = w.span(int(n))
	return s, !w.bad
}

// skipString skips a string, null or not. Flexible versions use compact lengths
// (KIP-482), one more than the length with 0 for null.
func (w *wire) skipString(flexible bool) {
	var n int
	if flexible {
		n = int(w.uvarint()) - 1
	} else {
		n = int(w.int16())
	}
	if n > 0 {
		w.skip(n)
	}
}

// skipBytes skips a byte field, null or not.
func (w *wire) skipBytes(flexible bool) {
	var n int
	if flexible {
		n = int(w.uvarint()) - 1
	} else {
		n = int(w.int32())
	}
	if n > 0 {
		w.skip(n)
	}
}

// arrayLen reads the length of an array whose elements take at least minElement
// bytes, zero for null.
func (w *wire) arrayLen(flexible bool, minElement int) int {
	var n int
	if flexible {
		n = int(w.uvarint()) - 1
	} else {
		n = int(w.int32())
	}
	if n > len(w.b)/minElement {
		w.bad, w.b = true, nil
	}
	if w.bad {
		return 0
	}
	return max(n, 0)
}

// skipTags skips a section of tagged fields and returns how many there were.
func (w *wire) skipTags() int {
	n := int(w.uvarint())
	if n > len(w.b)/2 { // a tag has a number and a size
		w.bad, w.b = true, nil
		return 0
	}
	for i := 0; i < n && !w.bad; i++ {
		w.uvarint()
		w.skip(int(w.uvarint()))
	}
	return n
}
