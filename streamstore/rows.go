package streamstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Row values begin with a version byte. To change a row's format: add a version,
// keep decoding the old ones, and write the newest. Numbers below are varints
// (encoding/binary: u = unsigned, i = zigzag) unless a size is given; a string is
// a u length and its bytes.
const (
	rowVersion       = 1 // of all rows but those below
	streamRowVersion = 3
)

var errShortRow = errors.New("row ends early")

// rowReader decodes a row; the first failure sticks.
type rowReader struct {
	b       []byte
	version byte
	err     error
}

// newRowReader reads the version byte of a row, which must be 1 to newest.
func newRowReader(b []byte, newest byte) *rowReader {
	r := &rowReader{b: b}
	if r.version = r.byte(); r.err == nil && (r.version == 0 || r.version > newest) {
		r.err = fmt.Errorf("row has version %d, this program reads up to version %d: it was written by a newer release", r.version, newest)
	}
	return r
}

func (r *rowReader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *rowReader) bytes(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *rowReader) fail() {
	if r.err == nil {
		r.err = errShortRow
	}
}

func (r *rowReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.err != nil || n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *rowReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if r.err != nil || n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *rowReader) string() string { return string(r.bytes(r.uvarint())) }

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// streamRow is the durable state of a stream that is not derived from its
// records.
//
//	version, name string, created i (ms since 1970), start i,
//	retention i (ms, -1 for ever), retention bytes i (-1 unlimited);
//	since version 2: flags u (bit 0: closed), touched i (ms since 1970),
//	time to live u (ms, 0 for ever), content type string;
//	since version 3: end of life i (ms since 1970, 0 never)
//
// The next offset is not stored: it follows the last extent or tail entry, and
// is the start offset when there is none.
type streamRow struct {
	name    string
	created int64
	start   int64 // start offset: first offset still readable
	closed  bool  // takes no more appends
	// touched is when the row was last changed other than by retention, ms. The last
	// write is not stored: it is in the last extent, or no later than this if a trim
	// has taken that away.
	touched  int64
	settings Settings
}

const streamRowClosed = 1 << 0

func (row *streamRow) encode() []byte {
	b := append(make([]byte, 0, 48+len(row.name)+len(row.settings.ContentType)), streamRowVersion)
	b = appendString(b, row.name)
	b = binary.AppendVarint(b, row.created)
	b = binary.AppendVarint(b, row.start)
	b = binary.AppendVarint(b, row.settings.retentionMillis())
	b = binary.AppendVarint(b, row.settings.RetentionBytes)
	flags := uint64(0)
	if row.closed {
		flags |= streamRowClosed
	}
	b = binary.AppendUvarint(b, flags)
	b = binary.AppendVarint(b, row.touched)
	b = binary.AppendUvarint(b, uint64(row.settings.TTL.Milliseconds()))
	b = appendString(b, row.settings.ContentType)
	return binary.AppendVarint(b, row.settings.expiresAtMillis())
}

func decodeStreamRow(b []byte) (row streamRow, err error) {
	r := newRowReader(b, streamRowVersion)
	row.name = r.string()
	row.created = r.varint()
	row.start = r.varint()
	row.settings.Retention = durationOfMillis(r.varint())
	row.settings.RetentionBytes = r.varint()
	if row.touched = row.created; r.version == 1 {
		return row, r.err
	}
	row.closed = r.uvarint()&streamRowClosed != 0
	row.touched = r.varint()
	row.settings.TTL = max(0, durationOfMillis(int64(r.uvarint())))
	row.settings.ContentType = r.string()
	if r.version >= 3 {
		row.settings.ExpiresAt = timeOfMillis(r.varint())
	}
	return row, r.err
}

// extent finds one stream's contiguous run of batches inside one object of the
// bucket. Runs longer than extentTarget are cut into several extents, so that
// finding an offset inside one reads at most about extentTarget bytes.
//
// Key: stream id, last offset. Value:
//
//	version, object, position u, length u,
//	last offset - base offset u, max timestamp i, written i (ms since 1970)
//
// The version tells what the object is: in version 1 it is u, the number of a log
// object; in version 2 it is u, u: the two parts of the number of a segment, the epoch
// of its writer and the count within that.
type extent struct {
	base, last   int64 // offsets
	object       objectID
	position     int64 // byte position in the object
	length       int64
	maxTimestamp int64 // largest maxTimestamp of its batches, ms
	written      int64 // when the commit was made, ms
}

// rowVersionSegment is the version of extent rows that lie in a segment.
const rowVersionSegment = 2

// extentTarget is the size, in bytes, at which a run of batches is cut.
const extentTarget = 1 << 20

func (x *extent) encode(b []byte) []byte {
	if x.object.kind == objectSegment {
		b = append(b, rowVersionSegment)
		b = binary.AppendUvarint(b, segmentEpoch(x.object.number))
		b = binary.AppendUvarint(b, segmentCount(x.object.number))
	} else {
		b = append(b, rowVersion)
		b = binary.AppendUvarint(b, x.object.number)
	}
	b = binary.AppendUvarint(b, uint64(x.position))
	b = binary.AppendUvarint(b, uint64(x.length))
	b = binary.AppendUvarint(b, uint64(x.last-x.base))
	b = binary.AppendVarint(b, x.maxTimestamp)
	return binary.AppendVarint(b, x.written)
}

func decodeExtent(key, value []byte) (x extent, err error) {
	r := newRowReader(value, rowVersionSegment)
	x.last = int64(keyNumber(key, 1))
	x.object.number = r.uvarint()
	if r.version == rowVersionSegment {
		epoch, count := x.object.number, r.uvarint()
		if epoch >= 1<<(64-segmentCounterBits) || count >= 1<<segmentCounterBits {
			r.fail()
		}
		x.object = objectID{objectSegment, segmentNumber(epoch, count)}
	}
	x.position = int64(r.uvarint())
	x.length = int64(r.uvarint())
	x.base = x.last - int64(r.uvarint())
	x.maxTimestamp = r.varint()
	x.written = r.varint()
	return x, r.err
}

// Settings of a stream. Make them with DefaultSettings.
type Settings struct {
	// Retention: records older than this, by the earlier of their timestamp and
	// the time they were written to the bucket, expire. Millisecond precision.
	// Negative: never. Zero is invalid.
	Retention time.Duration
	// RetentionBytes: the oldest records expire while more than this many bytes
	// remain without them. Negative: unlimited. Zero keeps nothing but the
	// newest extent's worth of records that is not yet due.
	RetentionBytes int64
	// TTL is the time to live of the whole stream: it is deleted when nothing has been
	// written to it, and it has not been trimmed or configured, for so long.
	// Millisecond precision. Zero: never; a negative one becomes zero.
	TTL time.Duration
	// ContentType is the media type of the records' values, such as
	// "application/json", or "". The store only keeps it: printable ASCII, at most
	// MaxContentTypeBytes.
	ContentType string
	// ExpiresAt is the time at which the whole stream is deleted, whatever happens to
	// it before. Millisecond precision. Zero, like all before 1970: never.
	ExpiresAt time.Time
}

// MaxContentTypeBytes is the longest content type of a stream, in bytes.
const MaxContentTypeBytes = 255

// DefaultSettings keep records for ever.
func DefaultSettings() Settings { return Settings{Retention: -1, RetentionBytes: -1} }

func (s Settings) validate() error {
	switch {
	case s.Retention >= 0 && s.Retention < time.Millisecond:
		return fmt.Errorf("%w: retention must be at least 1 ms, or negative for ever, not %v", ErrInvalidSettings, s.Retention)
	case s.TTL > 0 && s.TTL < time.Millisecond:
		return fmt.Errorf("%w: time to live must be at least 1 ms, or 0 for ever, not %v", ErrInvalidSettings, s.TTL)
	case len(s.ContentType) > MaxContentTypeBytes:
		return fmt.Errorf("%w: a content type has at most %d bytes, not %d", ErrInvalidSettings, MaxContentTypeBytes, len(s.ContentType))
	}
	for _, c := range []byte(s.ContentType) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("%w: content type %q is not printable ASCII", ErrInvalidSettings, s.ContentType)
		}
	}
	return nil
}

// normal is the stored form: what means the same is the same.
func (s Settings) normal() Settings {
	s.TTL = max(s.TTL, 0).Truncate(time.Millisecond)
	s.ExpiresAt = timeOfMillis(s.expiresAtMillis())
	if s.Retention < 0 {
		s.Retention = -1
	} else {
		s.Retention = s.Retention.Truncate(time.Millisecond)
	}
	s.RetentionBytes = max(s.RetentionBytes, -1)
	return s
}

func (s Settings) expires() bool { return s.Retention >= 0 || s.RetentionBytes >= 0 }

// mortal tells that the stream as a whole may be deleted one day.
func (s Settings) mortal() bool { return s.TTL > 0 || !s.ExpiresAt.IsZero() }

func (s Settings) expiresAtMillis() int64 { return max(s.ExpiresAt.UnixMilli(), 0) }

// timeOfMillis turns the stored form back. It is in UTC, so that equal times are
// equal values.
func timeOfMillis(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func (s Settings) retentionMillis() int64 {
	if s.Retention < 0 {
		return -1
	}
	return s.Retention.Milliseconds()
}

// durationOfMillis turns the stored form back; what a Duration cannot hold (292
// years) counts as for ever.
func durationOfMillis(ms int64) time.Duration {
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
