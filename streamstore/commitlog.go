package streamstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path"
	"strconv"

	"github.com/klauspost/compress/zstd"
)

// The commit log is the shard's redo log in the bucket: objects numbered without
// gaps, each created with create-if-absent and never changed. Applying their
// state sections in order to an empty database gives the store.
//
// An object is laid out like this; integers are big-endian:
//
//	header   128 bytes, below
//	data     for each stream in id order its record batches back to back,
//	         verbatim; empty in a claim
//	state    one Pebble batch (Batch.Repr), zstd compressed: every change of the
//	         rows n, s, k, e, p and g since the previous commit, among them the
//	         extents of this object's own data; empty in a claim
//	footer   16 bytes: CRC-32C of the header's first 124 bytes (4), zero (4),
//	         magic "BRKLTEND" (8); its presence shows that the object is whole
//
// Header:
//
//	  0   8  magic "BRKLTLOG"
//	  8   2  format version, 1
//	 10   2  flags: bit 0 set in a claim, others zero
//	 12   4  shard
//	 16   8  number of this object
//	 24   8  number of the live object before it, 0 for none
//	 32   8  epoch of the writer
//	 40  16  nonce: random, made anew by each writer that opens the shard
//	 56   8  creation time, ms since 1970
//	 64   8  first append number in this commit
//	 72   8  append number after the last in this commit
//	 80   8  length of the data section
//	 88   8  length of the state section
//	 96   4  CRC-32C of the data section
//	100   4  CRC-32C of the state section
//	104   8  size of the whole object
//	112   8  number of the newest live object that the writer knew to be in the
//	         bucket together with all live ones before it
//	120   4  zero
//	124   4  CRC-32C of bytes 0 to 123
//
// Which objects count. Going up in number, an object is live if the live object
// before it is the one that it names, and it either continues that one's epoch
// or is a claim of a higher epoch. All others are dead: left behind by a writer
// that was fenced with uploads in flight, or written by this writer behind such
// a left-over (see flusher.renumber). Dead objects are skipped by every reader.
//
// A dead object whose writer knew a live object above the reader's position (byte
// 112) proves that the log is damaged: what led from there to here is missing.
const (
	commitMagic       = "BRKLTLOG"
	commitFooterMagic = "BRKLTEND"
	commitVersion     = 1
	commitHeaderSize  = 128
	commitFooterSize  = 16

	// maxStateBytes bounds the state section after decompression.
	maxStateBytes = 1 << 30
)

const flagClaim = 1 << 0

// nonce identifies one opening of a shard by one writer.
type nonce [16]byte

// commitHeader is the first part of a log object.
type commitHeader struct {
	claim      bool
	shard      uint32
	number     uint64
	previous   uint64
	epoch      uint64
	nonce      nonce
	created    int64  // ms since 1970
	appendFrom uint64 // append numbers [appendFrom, appendTo) are in this commit
	appendTo   uint64
	dataLength int64
	stateLen   int64
	dataCRC    uint32
	stateCRC   uint32
	durable    uint64
}

func (h *commitHeader) size() int64 {
	return commitHeaderSize + h.dataLength + h.stateLen + commitFooterSize
}

// encode writes the header into b, which has commitHeaderSize bytes.
func (h *commitHeader) encode(b []byte) {
	clear(b[:commitHeaderSize])
	copy(b, commitMagic)
	be := binary.BigEndian
	be.PutUint16(b[8:], commitVersion)
	if h.claim {
		be.PutUint16(b[10:], flagClaim)
	}
	be.PutUint32(b[12:], h.shard)
	be.PutUint64(b[16:], h.number)
	be.PutUint64(b[24:], h.previous)
	be.PutUint64(b[32:], h.epoch)
	copy(b[40:], h.nonce[:])
	be.PutUint64(b[56:], uint64(h.created))
	be.PutUint64(b[64:], h.appendFrom)
	be.PutUint64(b[72:], h.appendTo)
	be.PutUint64(b[80:], uint64(h.dataLength))
	be.PutUint64(b[88:], uint64(h.stateLen))
	be.PutUint32(b[96:], h.dataCRC)
	be.PutUint32(b[100:], h.stateCRC)
	be.PutUint64(b[104:], uint64(h.size()))
	be.PutUint64(b[112:], h.durable)
	be.PutUint32(b[124:], crc32.Checksum(b[:124], castagnoli))
}

// checkHeader proves what the headers of log objects and segments have in common: 128
// bytes, the magic at 0, the format version at 8, and the checksum of bytes 0 to 123 at
// 124.
func checkHeader(where string, b []byte, magic string, version uint16) error {
	corrupt := func(at int64, what string, found, expected any) error {
		return &CorruptError{Where: where, Position: at, What: what, Found: found, Expected: expected}
	}
	if len(b) < commitHeaderSize {
		return corrupt(0, "length", len(b), fmt.Sprintf("at least %d", commitHeaderSize))
	}
	if m := string(b[:8]); m != magic {
		return corrupt(0, "magic", strconv.Quote(m), strconv.Quote(magic))
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != version {
		return corrupt(8, "format version", v, fmt.Sprintf("%d (a newer release may have written it)", version))
	}
	if found, expected := crc32.Checksum(b[:124], castagnoli), binary.BigEndian.Uint32(b[124:]); found != expected {
		return corrupt(124, "header checksum", found, expected)
	}
	return nil
}

// decodeCommitHeader checks and decodes the header of the object named where.
func decodeCommitHeader(where string, b []byte) (h commitHeader, err error) {
	be := binary.BigEndian
	corrupt := func(at int64, what string, found, expected any) (commitHeader, error) {
		return h, &CorruptError{Where: where, Position: at, What: what, Found: found, Expected: expected}
	}
	if err := checkHeader(where, b, commitMagic, commitVersion); err != nil {
		return h, err
	}
	flags := be.Uint16(b[10:])
	if flags&^flagClaim != 0 {
		return corrupt(10, "flags", flags, "0 or 1")
	}
	h = commitHeader{
		claim:      flags&flagClaim != 0,
		shard:      be.Uint32(b[12:]),
		number:     be.Uint64(b[16:]),
		previous:   be.Uint64(b[24:]),
		epoch:      be.Uint64(b[32:]),
		nonce:      nonce(b[40:56]),
		created:    int64(be.Uint64(b[56:])),
		appendFrom: be.Uint64(b[64:]),
		appendTo:   be.Uint64(b[72:]),
		dataLength: int64(be.Uint64(b[80:])),
		stateLen:   int64(be.Uint64(b[88:])),
		dataCRC:    be.Uint32(b[96:]),
		stateCRC:   be.Uint32(b[100:]),
		durable:    be.Uint64(b[112:]),
	}
	if size := int64(be.Uint64(b[104:])); h.dataLength < 0 || h.stateLen < 0 || size != h.size() {
		return corrupt(104, "object size", size, h.size())
	}
	return h, nil
}

// seal completes an encoded object: object holds room for the header, then
// the data section; state is appended compressed, then the footer. It fills in
// the lengths and checksums of h.
func (c stateCodec) seal(h *commitHeader, object, state []byte) []byte {
	data := object[commitHeaderSize:]
	h.dataLength, h.dataCRC = int64(len(data)), crc32.Checksum(data, castagnoli)
	if len(state) > 0 {
		object = c.encoder.EncodeAll(state, object)
	}
	compressed := object[commitHeaderSize+h.dataLength:]
	h.stateLen, h.stateCRC = int64(len(compressed)), crc32.Checksum(compressed, castagnoli)
	object = append(object, make([]byte, commitFooterSize)...)
	h.encode(object)
	footer := object[len(object)-commitFooterSize:]
	copy(footer, object[124:128])
	copy(footer[8:], commitFooterMagic)
	return object
}

// stateCodec compresses and decompresses state sections.
type stateCodec struct {
	encoder *zstd.Encoder
	decoder *zstd.Decoder
}

func newStateCodec() stateCodec {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // only for wrong options
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(maxReplayFetches), zstd.WithDecoderMaxMemory(maxStateBytes))
	if err != nil {
		panic(err) // only for wrong options
	}
	return stateCodec{encoder, decoder}
}

// check checks the state section of the object whose header is h and returns it,
// still compressed. tail is the object from the state section on.
func (h *commitHeader) check(where string, tail []byte) ([]byte, error) {
	at := commitHeaderSize + h.dataLength
	corrupt := func(at int64, what string, found, expected any) ([]byte, error) {
		return nil, &CorruptError{Where: where, Position: at, What: what, Found: found, Expected: expected}
	}
	if int64(len(tail)) != h.stateLen+commitFooterSize {
		return corrupt(at, "length of state and footer", len(tail), h.stateLen+commitFooterSize)
	}
	compressed, footer := tail[:h.stateLen], tail[h.stateLen:]
	if m := string(footer[8:]); m != commitFooterMagic {
		return corrupt(at+h.stateLen+8, "footer magic", strconv.Quote(m), strconv.Quote(commitFooterMagic))
	}
	if crc := crc32.Checksum(compressed, castagnoli); crc != h.stateCRC {
		return corrupt(at, "state checksum", crc, h.stateCRC)
	}
	return compressed, nil
}

// open checks and decompresses the state section of the object whose header is h.
// tail is the object from the state section on.
func (c stateCodec) open(where string, h *commitHeader, tail []byte) ([]byte, error) {
	compressed, err := h.check(where, tail)
	if err != nil {
		return nil, err
	}
	return c.decompress(where, h, compressed)
}

// decompress returns the Pebble batch of a state section that has been checked.
func (c stateCodec) decompress(where string, h *commitHeader, compressed []byte) ([]byte, error) {
	if len(compressed) == 0 {
		return nil, nil
	}
	state, err := c.decoder.DecodeAll(compressed, nil)
	if err != nil {
		return nil, &CorruptError{Where: where, Position: commitHeaderSize + h.dataLength, What: "state section", Found: err, Expected: "zstd"}
	}
	return state, nil
}

// shardDir is the folder of a shard's objects: shards/<shard>.
func shardDir(shard uint32) string {
	return path.Join("shards", strconv.FormatUint(uint64(shard), 10))
}

// logDir is the folder of a shard's commit log: shards/<shard>/log.
func logDir(shard uint32) string { return path.Join(shardDir(shard), "log") }

// logName is the object name of commit number: its 20 digits in the shard's
// folder, such as shards/0/log/00000000000000000042. Name order is number order.
func logName(shard uint32, number uint64) string {
	return fmt.Sprintf("%s/%020d", logDir(shard), number)
}

// parseLogName is the reverse of logName; ok is false for names of other
// things, which are left alone.
func parseLogName(shard uint32, name string) (number uint64, ok bool) {
	base := path.Base(name)
	if len(base) != 20 {
		return 0, false
	}
	number, err := strconv.ParseUint(base, 10, 64)
	return number, err == nil && logName(shard, number) == name
}
