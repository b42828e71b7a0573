package diskcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	slabMagic       = "BRKLSLAB"
	slabVersion     = 1
	slabHeaderSize  = 16
	entryMagic      = "BRKX"
	entryHeaderSize = 16 + KeySize
	slabSuffix      = ".slab"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// slab is one file of the cache. The writer owns it; readers hold it while they read.
type slab struct {
	number  uint32
	path    string
	file    vfs.File
	size    int64 // of the file at most, what a failed write may have left included; the writer's
	readers sync.WaitGroup

	// Guarded by Cache.mu.
	entries    []entry
	complained bool // a damage was logged
}

// entry finds an entry in its slab. There are many: it holds no pointer.
type entry struct {
	hash   uint64 // of the key
	offset uint32 // of its header
	length uint32 // of its data; the highest bit is set when it was read
}

const entryRead = 1 << 31

func (e entry) size() int { return int(e.length &^ entryRead) }

func slabName(number uint32) string { return fmt.Sprintf("%08x%s", number, slabSuffix) }

func parseSlabName(name string) (number uint32, ok bool) {
	digits, _ := strings.CutSuffix(name, slabSuffix)
	n, err := strconv.ParseUint(digits, 16, 32)
	return uint32(n), err == nil && slabName(uint32(n)) == name
}

func appendSlabHeader(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, slabMagic...), slabVersion)
	return append(b, make([]byte, slabHeaderSize-len(slabMagic)-2)...)
}

func appendEntry(b []byte, key *Key, data []byte) []byte {
	header := len(b)
	b = append(b, entryMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, key[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(data, castagnoli))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[header:], castagnoli))
	return append(b, data...)
}

var errDamaged = errors.New("damaged entry")

// entryHeader is a decoded header of an entry.
type entryHeader struct {
	key    Key
	length int
	crc    uint32 // of the data
}

func decodeEntryHeader(b []byte) (h entryHeader, err error) {
	switch {
	case string(b[:4]) != entryMagic:
		return h, fmt.Errorf("%w: wrong magic", errDamaged)
	case crc32.Checksum(b[:60], castagnoli) != binary.BigEndian.Uint32(b[60:]):
		return h, fmt.Errorf("%w: wrong checksum of the header", errDamaged)
	}
	return entryHeader{Key(b[8:56]), int(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint32(b[56:])}, nil
}

// read returns an entry and the key that it carries.
func (s *slab) read(e entry) (key Key, data []byte, err error) {
	b := make([]byte, entryHeaderSize+e.size())
	if _, err := s.file.ReadAt(b, int64(e.offset)); err != nil {
		return key, nil, err
	}
	h, err := decodeEntryHeader(b)
	if err != nil {
		return key, nil, err
	}
	data = b[entryHeaderSize:]
	if h.length != len(data) || crc32.Checksum(data, castagnoli) != h.crc {
		return key, nil, fmt.Errorf("%w: wrong length or checksum of the data", errDamaged)
	}
	return h.key, data, nil
}

// scanChunk is read at a time, so that many small entries take few reads.
const scanChunk = 64 << 10

// scan calls found for each entry, from front to end, up to where the file is torn. It
// tells whether the file is a slab at all.
func (s *slab) scan(found func(key *Key, offset uint32, length uint32)) (isSlab bool) {
	var buf []byte
	start := int64(0) // of buf in the file
	// at returns n bytes at offset.
	at := func(offset int64, n int) []byte {
		if offset+int64(n) > start+int64(len(buf)) {
			if buf == nil {
				buf = make([]byte, scanChunk)
			}
			got, err := s.file.ReadAt(buf[:cap(buf)], offset)
			if err != nil && !errors.Is(err, io.EOF) {
				got = 0
			}
			buf, start = buf[:got], offset
		}
		if offset+int64(n) > start+int64(len(buf)) {
			return nil
		}
		return buf[offset-start:][:n]
	}
	if h := at(0, slabHeaderSize); string(h) != string(appendSlabHeader(nil)) {
		return false
	}
	for offset := int64(slabHeaderSize); ; {
		b := at(offset, entryHeaderSize)
		if b == nil {
			return true
		}
		h, err := decodeEntryHeader(b)
		end := offset + entryHeaderSize + int64(h.length)
		if err != nil || end > s.size {
			return true
		}
		found(&h.key, uint32(offset), uint32(h.length))
		offset = end
	}
}
