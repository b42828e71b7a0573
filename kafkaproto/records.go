package kafkaproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"sync"
)

// RecordView is one record of a batch. Key, Value and the headers are slices of the
// iterator's memory and valid until its next call.
type RecordView struct {
	// Offset is the record's offset in its stream.
	Offset int64
	// Timestamp is in milliseconds since 1970, -1 if the producer gave none.
	Timestamp int64
	// Key and Value are nil if null.
	Key, Value []byte

	numHeaders int
	headers    []byte // validated
}

// NumHeaders returns the number of headers.
func (r *RecordView) NumHeaders() int { return r.numHeaders }

// Headers iterates over keys and values of the headers, in order. A value is nil if
// null.
func (r *RecordView) Headers() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		b := r.headers
		for range r.numHeaders {
			var key, value []byte
			key, b, _ = cutVarBytes(b)
			value, b, _ = cutVarBytes(b)
			if !yield(key, value) {
				return
			}
		}
	}
}

// IterLimits bounds what reading a compressed batch may cost. A record batch of
// 1 MB can expand to gigabytes.
type IterLimits struct {
	// MaxBytes is the most that the records of one batch may expand to, in bytes.
	// Zero means 256 MiB. It bounds time; memory is bounded by MaxRecordBytes.
	MaxBytes int64
	// MaxRecordBytes is the largest single record of a compressed batch, in bytes.
	// Zero means 64 MiB. The iterator holds at most about twice the largest record.
	MaxRecordBytes int
}

func (l *IterLimits) ensureDefaults() {
	if l.MaxBytes <= 0 {
		l.MaxBytes = 256 << 20
	}
	if l.MaxRecordBytes <= 0 {
		l.MaxRecordBytes = 64 << 20
	}
}

// ErrExpandLimit is in the chain of a [RecordIterator]'s error if the batch expands
// beyond its [IterLimits]. The protocol error in the same chain is MESSAGE_TOO_LARGE.
var ErrExpandLimit = errors.New("kafkaproto: the compressed batch expands beyond the limit")

var errExpandLimit = fmt.Errorf("%w: %w", ErrExpandLimit, ErrMessageTooLarge)

// RecordIterator walks the records of one batch:
//
//	it := NewRecordIterator(batch, IterLimits{})
//	defer it.Close()
//	for it.Next() {
//		use(it.Record())
//	}
//	return it.Err()
//
// Uncompressed records are not copied. Compressed ones are expanded as a stream
// through a window that holds one record. The batch may be hostile: every length is
// checked, and offsets must rise and lie within the batch. Compacted batches, with
// fewer records than offsets, are fine.
type RecordIterator struct {
	src       recordSource
	codec     Codec
	dec       decompressor
	headsOnly bool

	base, baseTime, appendTime int64
	logAppendTime              bool
	lastDelta, prevDelta       int32
	left                       int32
	maxRecord                  int

	rec RecordView
	err error
}

// NewRecordIterator returns an iterator over batch, which [NextBatch],
// [SingleBatch] or [ValidateBatch] have accepted. Errors, also those of opening the
// compressed block, come from Err.
func NewRecordIterator(batch RecordBatch, limits IterLimits) *RecordIterator {
	it := new(RecordIterator)
	it.init(batch, limits, false)
	return it
}

func (it *RecordIterator) init(b RecordBatch, limits IterLimits, headsOnly bool) {
	limits.ensureDefaults()
	*it = RecordIterator{
		codec:         b.Codec(),
		headsOnly:     headsOnly,
		base:          b.BaseOffset(),
		baseTime:      b.BaseTimestamp(),
		appendTime:    b.MaxTimestamp(),
		logAppendTime: b.IsLogAppendTime(),
		lastDelta:     b.LastOffsetDelta(),
		prevDelta:     -1,
		left:          b.RecordCount(),
		maxRecord:     limits.MaxRecordBytes,
	}
	if it.left < 0 {
		it.fail("negative record count %d", it.left)
		return
	}
	if it.codec == CodecNone || it.left == 0 {
		// A batch that compaction emptied has no compressed block either.
		it.src = recordSource{buf: b.Records(), w: len(b.Records())}
		it.maxRecord = len(b)
		return
	}
	if it.codec > CodecZstd {
		it.fail("compression codec %d does not exist", it.codec)
		return
	}
	it.dec = decompressors[it.codec].Get().(decompressor)
	it.src = recordSource{rd: it.dec, allowed: limits.MaxBytes}
	if headsOnly {
		it.maxRecord = math.MaxInt32 // nothing but the head is held
	}
	if err := it.dec.reset(b.Records(), limits.MaxBytes); err != nil {
		it.src.rd = nil
		it.fail("opening the %v block: %w", it.codec, err)
	}
}

// Next moves to the next record. It returns false at the end and on an error.
func (it *RecordIterator) Next() bool {
	if it.err != nil {
		return false
	}
	if it.left == 0 {
		if n := it.src.rest(); n != 0 {
			it.fail("bytes follow the last record")
		} else if it.src.err != nil {
			it.fail("after the last record: %w", it.src.err)
		}
		return false
	}
	it.left--
	return it.nextRecord()
}

// nextRecord parses, as DefaultRecord lays it out: varint length, int8 attributes,
// varlong timestamp delta, varint offset delta, key, value, headers. All
// variable-length integers are zigzag coded.
func (it *RecordIterator) nextRecord() bool {
	length, n := uvarint32(it.src.peek(maxVarint32))
	if n <= 0 {
		return it.failSource("record length")
	}
	it.src.advance(n)
	size := int(unzigzag32(length))
	if size < 0 {
		return it.fail("record length %d", size)
	}
	if size > it.maxRecord {
		if it.dec == nil {
			return it.fail("record of %d bytes in a batch of fewer", size)
		}
		return it.fail("record of %d bytes: %w", size, errExpandLimit)
	}
	want := size
	if it.headsOnly {
		want = min(size, maxRecordHead)
	}
	b := it.src.peek(want)
	if len(b) < want {
		return it.failSource("record")
	}
	rest, ok := it.parseHead(b)
	if !ok {
		return false
	}
	if !it.headsOnly && !it.parseBody(rest) {
		return false
	}
	if it.src.skip(size) < size {
		return it.failSource("record")
	}
	return true
}

// maxRecordHead is the longest encoding of attributes, timestamp and offset.
const maxRecordHead = 1 + maxVarint64 + maxVarint32

func (it *RecordIterator) parseHead(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, it.fail("empty record")
	}
	b = b[1:] // attributes: none are defined
	ts, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, it.fail("bad timestamp delta")
	}
	b = b[n:]
	delta, n := uvarint32(b)
	if n <= 0 {
		return nil, it.fail("bad offset delta")
	}
	d := unzigzag32(delta)
	if d <= it.prevDelta || d > it.lastDelta {
		return nil, it.fail("offset delta %d after %d in a batch that ends at %d", d, it.prevDelta, it.lastDelta)
	}
	it.prevDelta = d
	it.rec = RecordView{Offset: it.base + int64(d), Timestamp: it.appendTime}
	if !it.logAppendTime {
		it.rec.Timestamp = it.baseTime + unzigzag64(ts)
	}
	return b[n:], true
}

func (it *RecordIterator) parseBody(b []byte) (ok bool) {
	if it.rec.Key, b, ok = cutVarBytes(b); !ok {
		return it.fail("bad key length")
	}
	if it.rec.Value, b, ok = cutVarBytes(b); !ok {
		return it.fail("bad value length")
	}
	count, n := uvarint32(b)
	if n <= 0 {
		return it.fail("bad header count")
	}
	b = b[n:]
	headers := unzigzag32(count)
	// A header takes two bytes at least. The check bounds the loop below.
	if headers < 0 || int(headers) > len(b)/2 {
		return it.fail("%d headers in %d bytes", headers, len(b))
	}
	it.rec.headers, it.rec.numHeaders = b, int(headers)
	for range headers {
		var key []byte
		if key, b, ok = cutVarBytes(b); !ok || key == nil {
			return it.fail("bad header key")
		}
		if _, b, ok = cutVarBytes(b); !ok {
			return it.fail("bad header value")
		}
	}
	if len(b) != 0 {
		return it.fail("%d bytes left in a record", len(b))
	}
	return true
}

// Record returns the current record. It is valid until the next call of Next or Close.
func (it *RecordIterator) Record() *RecordView { return &it.rec }

// Err returns what ended the iteration, nil at the end of the batch. Errors are
// [ErrInvalidRecord], or [ErrExpandLimit].
func (it *RecordIterator) Err() error { return it.err }

// Close gives the decoder back. The current record becomes invalid, and Next returns
// false from then on.
func (it *RecordIterator) Close() {
	it.src.release()
	it.left = 0
	if it.dec == nil {
		return
	}
	if it.src.expanded < poolMaxExpanded {
		// Reset on an empty input drops the reference to the batch; what it
		// returns about that input is of no interest.
		_ = it.dec.reset(nil, 0)
		decompressors[it.codec].Put(it.dec)
	}
	it.dec = nil
}

func (it *RecordIterator) fail(format string, args ...any) bool {
	err := fmt.Errorf(format, args...)
	if errors.Is(err, ErrExpandLimit) {
		it.err = err
	} else {
		it.err = fmt.Errorf("%w: %w", ErrInvalidRecord.WithMessage("record batch at offset %d", it.base), err)
	}
	return false
}

// failSource reports input that ended or a decoder that gave up inside what.
func (it *RecordIterator) failSource(what string) bool {
	if err := it.src.err; err != nil && err != io.EOF {
		return it.fail("%s: %w", what, err)
	}
	return it.fail("the data ends inside a %s", what)
}

// recordSource is the window that records are parsed from. Without a reader it is
// the whole uncompressed input.
type recordSource struct {
	rd       io.Reader
	buf      []byte // buf[r:w] is unread
	r, w     int
	allowed  int64 // bytes that rd may still produce
	expanded int64 // bytes that rd has produced
	err      error // what rd returned, or errExpandLimit
	pooled   *[]byte
}

const sourceWindow = 16 << 10

var sourceWindows = sync.Pool{New: func() any { b := make([]byte, sourceWindow); return &b }}

// peek returns the next n unread bytes, fewer if the input ends or fails before.
func (s *recordSource) peek(n int) []byte {
	for s.w-s.r < n && s.fill() {
	}
	return s.buf[s.r:min(s.w, s.r+n)]
}

func (s *recordSource) advance(n int) { s.r += n }

// skip drops n bytes without holding them and returns how many there were.
func (s *recordSource) skip(n int) int {
	done := 0
	for {
		step := min(n-done, s.w-s.r)
		s.r += step
		if done += step; done == n || !s.fill() {
			return done
		}
	}
}

// rest reads to the end, so that checksums are verified, and tells whether anything
// was left.
func (s *recordSource) rest() int {
	n := len(s.peek(1))
	if s.err == io.EOF {
		s.err = nil
	}
	return n
}

// fill reads more, making room first. The window doubles only when it is full, so
// it grows with the bytes that came and not with what a length claims.
func (s *recordSource) fill() bool {
	if s.rd == nil || s.err != nil {
		return false
	}
	if s.buf == nil {
		s.pooled = sourceWindows.Get().(*[]byte)
		s.buf = *s.pooled
	}
	if s.r > 0 {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if s.w == len(s.buf) {
		grown := make([]byte, 2*len(s.buf))
		copy(grown, s.buf)
		s.buf = grown
	}
	n, err := s.rd.Read(s.buf[s.w:])
	s.w += n
	s.expanded += int64(n)
	if s.allowed -= int64(n); s.allowed < 0 {
		s.err = errExpandLimit
		return false
	}
	s.err = err
	return n > 0 || err == nil
}

func (s *recordSource) release() {
	if s.pooled != nil {
		sourceWindows.Put(s.pooled)
	}
	s.rd, s.pooled, s.buf, s.r, s.w = nil, nil, nil, 0, 0
}

const (
	maxVarint32 = 5
	maxVarint64 = 10
)

// uvarint32 is binary.Uvarint for 32 bits: n is 0 if b ends too early and negative
// on overflow.
func uvarint32(b []byte) (v uint32, n int) {
	var shift uint
	for i, c := range b {
		if i == maxVarint32-1 && c > 0x0f {
			return 0, -1
		}
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v, i + 1
		}
		shift += 7
	}
	return 0, 0
}

func unzigzag32(u uint32) int32 { return int32(u>>1) ^ -int32(u&1) }
func unzigzag64(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// cutVarBytes cuts a byte field with a varint length off b. A length of -1 is null.
func cutVarBytes(b []byte) (field, rest []byte, ok bool) {
	u, n := uvarint32(b)
	if n <= 0 {
		return nil, nil, false
	}
	l, b := int(unzigzag32(u)), b[n:]
	if l == -1 {
		return nil, b, true
	}
	if l < 0 || l > len(b) {
		return nil, nil, false
	}
	return b[:l:l], b[l:], true
}
