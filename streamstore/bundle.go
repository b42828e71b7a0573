package streamstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A bundle is an object that holds the state sections of consecutive live commits,
// so that replay reads one object instead of hundreds. Integers are big-endian:
//
//	 0   8  magic "BRKLTBDL"
//	 8   2  format version, 1
//	10   2  zero
//	12   4  shard
//	16   8  number of the live commit before the first, 0 for none
//	24   8  number of the last commit
//	32   8  length of the body
//	40  20  zero
//	60   4  CRC-32C of bytes 0 to 59
//	64      body: for each commit its header as in the log (commitlog.go), and its
//	        state section as in the log, compressed
//
// The commits' headers carry the checksums of the sections.
const (
	bundleMagic      = "BRKLTBDL"
	bundleVersion    = 1
	bundleHeaderSize = 64
)

// section is one commit's state in a bundle.
type section struct {
	header     commitHeader
	compressed []byte
}

// encodeBundleHeader fills in the header of a bundle: b is the header's room and the
// body.
func encodeBundleHeader(b []byte, shard uint32, after, last uint64) {
	be := binary.BigEndian
	clear(b[:bundleHeaderSize])
	copy(b, bundleMagic)
	be.PutUint16(b[8:], bundleVersion)
	be.PutUint32(b[12:], shard)
	be.PutUint64(b[16:], after)
	be.PutUint64(b[24:], last)
	be.PutUint64(b[32:], uint64(len(b)-bundleHeaderSize))
	be.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// bundleBody checks a bundle's header and returns its body.
func bundleBody(where string, shard uint32, after, last uint64, b []byte) ([]byte, error) {
	be := binary.BigEndian
	corrupt := func(at int64, what string, found, expected any) ([]byte, error) {
		return nil, &CorruptError{Where: where, Position: at, What: what, Found: found, Expected: expected}
	}
	if len(b) < bundleHeaderSize {
		return corrupt(0, "length", len(b), fmt.Sprintf("at least %d", bundleHeaderSize))
	}
	if m := string(b[:8]); m != bundleMagic {
		return corrupt(0, "magic", strconv.Quote(m), strconv.Quote(bundleMagic))
	}
	if v := be.Uint16(b[8:]); v != bundleVersion {
		return corrupt(8, "format version", v, fmt.Sprintf("%d (a newer release may have written it)", bundleVersion))
	}
	if found, expected := crc32.Checksum(b[:60], castagnoli), be.Uint32(b[60:]); found != expected {
		return corrupt(60, "header checksum", found, expected)
	}
	if s, from, to := be.Uint32(b[12:]), be.Uint64(b[16:]), be.Uint64(b[24:]); s != shard || from != after || to != last {
		return corrupt(12, "shard and commits", fmt.Sprintf("%d, after %d to %d", s, from, to), fmt.Sprintf("%d, after %d to %d", shard, after, last))
	}
	if n := be.Uint64(b[32:]); n != uint64(len(b)-bundleHeaderSize) {
		return corrupt(32, "length of the body", n, len(b)-bundleHeaderSize)
	}
	return b[bundleHeaderSize:], nil
}

// nextSection cuts the first commit off a bundle's body, which begins at byte at of
// the object.
func nextSection(where string, at int64, body []byte) (s section, rest []byte, err error) {
	if s.header, err = decodeCommitHeader(where, body); err != nil {
		return s, nil, err
	}
	rest = body[commitHeaderSize:]
	if s.header.stateLen > int64(len(rest)) {
		return s, nil, &CorruptError{Where: where, Position: at + 88, What: "length of a state section", Found: s.header.stateLen, Expected: fmt.Sprintf("at most %d", len(rest))}
	}
	s.compressed, rest = rest[:s.header.stateLen], rest[s.header.stateLen:]
	if crc := crc32.Checksum(s.compressed, castagnoli); crc != s.header.stateCRC {
		return s, nil, &CorruptError{Where: where, Position: at + commitHeaderSize, What: "state checksum", Found: crc, Expected: s.header.stateCRC}
	}
	return s, rest, nil
}

// eachSection calls fn for each commit of a body that goes on from the commit
// numbered after. It proves that each names the one before it.
func eachSection(where string, after uint64, body []byte, fn func(section) error) error {
	for rest := body; len(rest) > 0; {
		at := int64(bundleHeaderSize + len(body) - len(rest))
		s, next, err := nextSection(where, at, rest)
		if err != nil {
			return err
		}
		if s.header.previous != after || s.header.number <= after {
			return &CorruptError{Where: where, Position: at + 16, What: "commit", Found: fmt.Sprintf("%d after %d", s.header.number, s.header.previous), Expected: fmt.Sprintf("the one after %d", after)}
		}
		if err := fn(s); err != nil {
			return err
		}
		after, rest = s.header.number, next
	}
	return nil
}

// appendSection adds a commit to a body.
func appendSection(body []byte, h *commitHeader, compressed []byte) []byte {
	n := len(body)
	body = append(body, make([]byte, commitHeaderSize)...)
	h.encode(body[n:])
	return append(body, compressed...)
}
