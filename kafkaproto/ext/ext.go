// Package ext defines what Brooklet adds to the Kafka protocol: tagged fields (KIP-482), the protocol's own means of
// extension. A peer that does not know a tag skips it, so clients and brokers without them keep working; a client that
// depends on a tag first looks whether the broker has announced [Version].
//
// Broker and client share this package; docs/kafka-extensions.md is the same table for readers.
//
//	request                  where      tag     value
//	ApiVersions v3+          response   10000   int16: Version
//	Produce v9+              partition  10010   int64: the offset that the batch must get
//	                         partition  10011   nothing: close the stream behind the batch
//	   response              partition  10010   int64: the stream's next offset, with the errors below
//	DescribeTopicPartitions  request    10020   prefix, bytes as they are: list the streams under it
//	                         request    10021   nothing: answer with Details
//	   response              topic      10021   Details
//	Fetch v12+               request    10030   Follow: all streams under a prefix
//	                         partition  10031   int64: id of the stream that the offset belongs to
//	   response              partition  10030   Position, when the broker has chosen or moved it
//	                         partition  10031   int64: id of the stream, when the session reads it for the first time
//
// Numbers of other tags are free for later releases of Brooklet from 10000 to 10999.
//
// Values are encoded as the protocol does: integers big-endian, strings compact (an unsigned varint of their length plus
// one, then the bytes). A value may be longer than a reader expects: what a later release appends is ignored.
package ext

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// IsStream tells names of streams from names of topics: a topic's has no slash.
func IsStream(name string) bool { return strings.IndexByte(name, '/') >= 0 }

// Version of the extensions in this package. It grows when tags are added.
//
//	1  all but the tags below
//	2  TagStreamID
const Version = 2

// The tags. Those of a request and its response are numbered apart from each other, as in Kafka.
const (
	// TagVersion, in an ApiVersions response, announces the extensions.
	TagVersion = 10000

	// TagExpectedOffset, in a partition of a Produce request, makes the append conditional.
	TagExpectedOffset = 10010
	// TagClose, in a partition of a Produce request, closes the stream in one step with the append.
	TagClose = 10011
	// TagNextOffset, in a partition of a Produce response, is where the stream really ends.
	TagNextOffset = 10010

	// TagPrefix, in a DescribeTopicPartitions request, lists streams.
	TagPrefix = 10020
	// TagDetails, in a DescribeTopicPartitions request, asks for Details; in a topic of the response it holds them.
	TagDetails = 10021

	// TagFollow, in a Fetch request, follows a prefix.
	TagFollow = 10030
	// TagStreamID, in a partition of a Fetch that follows a prefix, tells a stream from another one of the same name: in a
	// request, which of them the offset belongs to, and in a response, which of them the session reads.
	TagStreamID = 10031
	// TagPosition, in a partition of a Fetch response, is the Position that the broker reads from.
	TagPosition = 10030
)

// Errors of Produce that come with TagNextOffset. Stock clients, which cannot provoke the first, retry neither.
const (
	// CodeConflict is OPERATION_NOT_ATTEMPTED: the expected offset is not the next one.
	CodeConflict int16 = 55
	// CodeClosed is POLICY_VIOLATION: the stream is closed.
	CodeClosed int16 = 44
)

// Configs of named streams that Kafka's topics do not have.
const (
	// ConfigTTL is the stream's time to live after its last write, in milliseconds; -1: for ever.
	ConfigTTL = "stream.ttl.ms"
	// ConfigContentType is the media type of the records' values.
	ConfigContentType = "stream.content.type"
	// ConfigClosed is true once the stream takes no more records. It cannot be set back to false.
	ConfigClosed = "stream.closed"
)

// ErrShort is the error of a value that ends early.
var ErrShort = errors.New("ext: tagged field ends early")

// Tag returns the value of a tag, and whether it is there.
func Tag(tags *kmsg.Tags, tag uint32) (value []byte, ok bool) {
	if tags.Len() == 0 {
		return nil, false
	}
	tags.Each(func(t uint32, v []byte) {
		if t == tag {
			value, ok = v, true
		}
	})
	return value, ok
}

// SetInt64 sets a tag whose value is an int64.
func SetInt64(tags *kmsg.Tags, tag uint32, v int64) {
	tags.Set(tag, binary.BigEndian.AppendUint64(nil, uint64(v)))
}

// Int64 returns the value of a tag that is an int64. ok is false if it is not there; the error is ErrShort.
func Int64(tags *kmsg.Tags, tag uint32) (v int64, ok bool, err error) {
	b, ok := Tag(tags, tag)
	if !ok {
		return 0, false, nil
	}
	r := reader{b: b}
	v = r.int64()
	return v, r.err == nil, r.err
}

// SetVersion announces the extensions in an ApiVersions response.
func SetVersion(tags *kmsg.Tags) {
	tags.Set(TagVersion, binary.BigEndian.AppendUint16(nil, Version))
}

// AnnouncedVersion returns the version that an ApiVersions response announces, 0 if none.
func AnnouncedVersion(tags *kmsg.Tags) int16 {
	b, _ := Tag(tags, TagVersion)
	if len(b) < 2 {
		return 0
	}
	return int16(binary.BigEndian.Uint16(b))
}

// Details describe a stream in a listing.
//
//	start offset int64, next offset int64,
//	created int64 (ms since 1970), last write int64 (the same),
//	retention int64 (ms, -1: for ever), retention bytes int64 (-1: unlimited),
//	time to live int64 (ms, -1: for ever), flags int8 (bit 0: closed), content type string
type Details struct {
	// Start is the first offset that can be read, Next the one behind the last.
	Start, Next int64
	// Created is when the stream was made, LastWrite when it got its newest record, or was made.
	Created, LastWrite time.Time
	// Retention of records; negative: for ever.
	Retention time.Duration
	// RetentionBytes are kept of records at least; negative: no limit.
	RetentionBytes int64
	// TTL after the last write, when the stream is deleted; negative: never.
	TTL time.Duration
	// Closed: the stream takes no more records.
	Closed bool
	// ContentType is the media type of values, or "".
	ContentType string
}

const flagClosed = 1 << 0

// Encode makes the tag's value.
func (d *Details) Encode() []byte {
	b := make([]byte, 0, 58+len(d.ContentType)+2)
	for _, v := range []int64{d.Start, d.Next, d.Created.UnixMilli(), d.LastWrite.UnixMilli(), millis(d.Retention), d.RetentionBytes, millis(d.TTL)} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	flags := byte(0)
	if d.Closed {
		flags |= flagClosed
	}
	return appendString(append(b, flags), d.ContentType)
}

// DecodeDetails reads a tag's value. The error is ErrShort.
func DecodeDetails(b []byte) (Details, error) {
	r := reader{b: b}
	d := Details{
		Start: r.int64(), Next: r.int64(),
		Created: time.UnixMilli(r.int64()), LastWrite: time.UnixMilli(r.int64()),
		Retention: duration(r.int64()), RetentionBytes: r.int64(), TTL: duration(r.int64()),
	}
	d.Closed = r.byte()&flagClosed != 0
	d.ContentType = r.string()
	return d, r.err
}

// Follow makes a fetch follow all streams whose names begin with a prefix, those included that are made later. The
// partitions that the request names must lie under the prefix: they are followed from the offsets that it gives.
//
//	flags int8 (bit 0: from the end), prefix string
type Follow struct {
	// Prefix of the names. It may be empty: all streams, but for those of topics and the broker's own.
	Prefix string
	// FromEnd reads the streams that exist when the session begins, and that the request does not name, from their end.
	// Otherwise, and for streams that are made later, it is the first offset that can be read.
	FromEnd bool
}

const flagFromEnd = 1 << 0

// Encode makes the tag's value.
func (f *Follow) Encode() []byte {
	flags := byte(0)
	if f.FromEnd {
		flags |= flagFromEnd
	}
	return appendString([]byte{flags}, f.Prefix)
}

// DecodeFollow reads a tag's value. The error is ErrShort.
func DecodeFollow(b []byte) (Follow, error) {
	r := reader{b: b}
	f := Follow{FromEnd: r.byte()&flagFromEnd != 0}
	f.Prefix = r.string()
	return f, r.err
}

// reader reads values; the first failure sticks.
type reader struct {
	b   []byte
	err error
}

func (r *reader) span(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.err, r.b = ErrShort, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.span(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) int64() int64 {
	if b := r.span(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) string() string {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n == 0 || n > math.MaxInt32 {
		r.err = ErrShort
		return ""
	}
	r.b = r.b[size:]
	return string(r.span(int(n - 1)))
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s))+1)
	return append(b, s...)
}

// millis writes a duration as Kafka's configs do: -1 for a negative one, and for one that was never set.
func millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

func duration(ms int64) time.Duration {
	switch {
	case ms < 0:
		return -1
	case ms > math.MaxInt64/int64(time.Millisecond):
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
