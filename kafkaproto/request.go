package kafkaproto

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Handler starts requests.
type Handler interface {
	// Handle starts one request. It is called by the connection's reading goroutine,
	// one request at a time, in request order, so whatever order requests must take
	// effect in is decided here. It may block for back-pressure: the connection is
	// not read meanwhile. ctx ends when the connection dies or [Server.Shutdown]
	// gives up waiting.
	//
	// A nil Reply means that there is no response (Produce with acks=0). An error
	// closes the connection after the answers to earlier requests have left, and is
	// logged once. A panic closes this connection only.
	Handle(ctx context.Context, r *Request) (Reply, error)
}

// Reply finishes a request. The connection's writing goroutine calls replies in
// request order, so responses leave in request order; a reply may wait, for data or
// for durability, and holds up those behind it. ctx ends when the connection dies or
// the drain gives up. An error closes the connection.
//
// The response's version is set by the caller of Reply. Make responses with kmsg's
// constructors or with [Request.Response], so that fields left alone have the
// protocol's defaults.
type Reply func(ctx context.Context) (kmsg.Response, error)

// Releaser is a response that holds something, such as a share of a memory budget.
// Release is called once, when the response has been written or dropped.
type Releaser interface{ Release() }

// Request is one decoded request.
type Request struct {
	// Conn is the connection it came on.
	Conn *ConnInfo
	// Key and Version are within the server's [Versions].
	Key, Version int16
	// CorrelationID is the client's number for the request.
	CorrelationID int32
	// ClientID is what the client calls itself, empty if null. It is up to 32767
	// bytes long and may hold anything: quote it in logs.
	ClientID string
	// Body is the typed request. Byte fields and unknown tags are slices of the
	// frame, which belongs to this request alone and is never written again. To keep
	// one alive keeps the whole frame alive. The memory that all requests may use is
	// counted until the Reply has returned.
	Body kmsg.Request
	// Size is that of the frame in bytes, without its size field.
	Size int
	// ReceivedAt is when the last byte had been read.
	ReceivedAt time.Time
}

// Response returns an empty response for r, of r's version, with the protocol's
// defaults in its own fields. Elements of its arrays need constructors of their own.
func (r *Request) Response() kmsg.Response { return r.Body.ResponseKind() }

// ConnInfo describes a connection. It is immutable: when a client introduces itself,
// later requests carry a new ConnInfo with the same ID.
type ConnInfo struct {
	// ID is unique within the process.
	ID uint64
	// Remote and Local are the two ends.
	Remote, Local net.Addr
	// ClientSoftwareName and ClientSoftwareVersion are what the client said in
	// ApiVersions v3 or later (KIP-511). They are empty before that, and if they are
	// not of the form that the KIP prescribes.
	ClientSoftwareName, ClientSoftwareVersion string

	draining <-chan struct{}
}

// Draining is closed when no further request of the connection will be read: the
// server shuts down or the connection is about to be closed. A reply that waits for
// news should answer at once with what it has.
func (c *ConnInfo) Draining() <-chan struct{} { return c.draining }

// validSoftware is the pattern of KIP-511. Its length is ours, the KIP has no limit.
var validSoftware = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-.]{0,126}[a-zA-Z0-9])?$`)

// introduced returns c with the names from an ApiVersions request.
func (c *ConnInfo) introduced(r *kmsg.ApiVersionsRequest) *ConnInfo {
	n := *c
	n.ClientSoftwareName, n.ClientSoftwareVersion = "", ""
	if validSoftware.MatchString(r.ClientSoftwareName) && validSoftware.MatchString(r.ClientSoftwareVersion) {
		n.ClientSoftwareName, n.ClientSoftwareVersion = r.ClientSoftwareName, r.ClientSoftwareVersion
	}
	return &n
}

// Bounds on what is decoded.
const (
	// minFrameBytes is a request header with a null client id and no body.
	minFrameBytes = 10
	// maxElements bounds what a request other than Produce is made of: elements of
	// arrays and unknown tags. The largest honest ones are fetches, commits and
	// assignments over tens of thousands of partitions.
	maxElements = 200_000
	// maxDecodedBytes bounds what such a request holds once it is decoded.
	maxDecodedBytes = 16 << 20
	// decodeFactor is how much larger than its frame a decoded request can be. The
	// worst case is an array whose elements have one unknown tag each: a map of 320
	// bytes for 3 bytes of input.
	decodeFactor = 128
	// maxProduceEntries bounds topics plus partitions of one Produce request.
	maxProduceEntries = 1 << 16
	// Decoded sizes of a section of unknown tags, and of each tag beyond the section.
	tagSectionBytes = 320
	tagBytes        = 96
)

// parseError is a request that is refused, with the kind for the metric.
type parseError struct {
	kind malformedKind
	err  error
}

func (e *parseError) Error() string { return e.err.Error() }
func (e *parseError) Unwrap() error { return e.err }

func malformed(kind malformedKind, format string, args ...any) *parseError {
	return &parseError{kind: kind, err: fmt.Errorf(format, args...)}
}

// header is a request header, v1 or v2.
type header struct {
	key, version  int16
	correlationID int32
	clientID      string
	body          []byte
}

// parseHeader splits frame into header and body. flexible tells whether the header
// ends with tagged fields (v2); the client id is not compact in either.
func parseHeader(frame []byte, flexible bool) (header, error) {
	w := wire{b: frame}
	h := header{key: w.int16(), version: w.int16(), correlationID: w.int32()}
	id, _ := w.nullableString()
	if flexible {
		w.skipTags()
	}
	if w.bad {
		return h, malformed(malformedHeader, "the request header does not fit its frame of %d bytes", len(frame))
	}
	h.clientID, h.body = string(id), w.b
	return h, nil
}

// parseBody decodes a request of a supported version.
func parseBody(req kmsg.Request, body []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = malformed(malformedBody, "decoding panicked: %v", p)
		}
	}()
	if err := req.ReadFrom(body); err != nil {
		return malformed(malformedBody, "the request body cannot be decoded: %w", err)
	}
	return nil
}

// newRequest returns an empty request of a key and version that are served.
func newRequest(key, version int16) kmsg.Request {
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	return req
}

// produceShape counts what a Produce request is made of.
type produceShape struct {
	topics, partitions, tagSections, tags int
	stringBytes                           int
}

func (s *produceShape) decodedBytes() int64 {
	return int64(unsafe.Sizeof(kmsg.ProduceRequest{})) +
		int64(s.stringBytes) +
		int64(s.topics)*int64(unsafe.Sizeof(kmsg.ProduceRequestTopic{})) +
		int64(s.partitions)*int64(unsafe.Sizeof(kmsg.ProduceRequestTopicPartition{})) +
		int64(s.tagSections)*tagSectionBytes +
		int64(s.tags)*tagBytes
}

// walkProduce measures a Produce request without allocating, and refuses one with
// more than maxProduceEntries topics and partitions. kmsg would believe any number
// that the bytes behind it could hold, and a frame may be 100 MiB.
func walkProduce(version int16, body []byte) (produceShape, error) {
	var s produceShape
	flexible := version >= 9
	w := wire{b: body}
	w.skipString(flexible) // transactional id
	w.skip(2 + 4)          // acks, timeout
	s.topics = w.arrayLen(flexible, 2)
	for t := 0; t < s.topics && !w.bad; t++ {
		before := len(w.b)
		if version >= 13 {
			w.skip(16)
		} else {
			w.skipString(flexible)
		}
		s.stringBytes += before - len(w.b)
		n := w.arrayLen(flexible, 5)
		if s.partitions += n; s.topics+s.partitions > maxProduceEntries {
			return s, malformed(malformedShape, "Produce request with more than %d topics and partitions", maxProduceEntries)
		}
		for p := 0; p < n && !w.bad; p++ {
			w.skip(4)
			w.skipBytes(flexible)
			s.countTags(&w, flexible)
		}
		s.countTags(&w, flexible)
	}
	s.countTags(&w, flexible)
	if w.bad {
		return s, malformed(malformedBody, "the Produce request does not fit its %d bytes", len(body))
	}
	return s, nil
}

func (s *produceShape) countTags(w *wire, flexible bool) {
	if !flexible {
		return
	}
	if n := w.skipTags(); n > 0 {
		s.tagSections++
		s.tags += n
	}
}

// requestShape is what a decoded request other than Produce is made of.
type requestShape struct {
	// bytes is an estimate of what it holds besides its frame.
	bytes int64
	// elements of arrays, and unknown tags.
	elements int64
	// aliases tells that it has byte fields or unknown tags, which are slices of its
	// frame. kmsg copies strings.
	aliases bool
}

// measure walks a decoded request.
func measure(req kmsg.Request) requestShape {
	var s requestShape
	if fetch, ok := req.(*kmsg.FetchRequest); ok { // the hot one
		s.addFetch(fetch)
	} else {
		s.addPointed(reflect.ValueOf(req))
	}
	return s
}

// check refuses what no honest client sends.
func (s *requestShape) check(key int16, mostBytes int64) error {
	if s.elements > maxElements || s.bytes > mostBytes {
		return malformed(malformedShape, "%s request of %d elements, %d bytes when decoded; at most %d elements and %d bytes are accepted, ask for less at a time",
			kmsg.NameForKey(key), s.elements, s.bytes, maxElements, mostBytes)
	}
	return nil
}

func (s *requestShape) addFetch(r *kmsg.FetchRequest) {
	s.bytes += int64(unsafe.Sizeof(*r)) + int64(len(r.Rack))
	s.addTags(r.UnknownTags.Len())
	s.addElements(len(r.Topics), unsafe.Sizeof(kmsg.FetchRequestTopic{}))
	for i := range r.Topics {
		t := &r.Topics[i]
		s.bytes += int64(len(t.Topic))
		s.addTags(t.UnknownTags.Len())
		s.addElements(len(t.Partitions), unsafe.Sizeof(kmsg.FetchRequestTopicPartition{}))
		for j := range t.Partitions {
			s.addTags(t.Partitions[j].UnknownTags.Len())
		}
	}
	s.addElements(len(r.ForgottenTopics), unsafe.Sizeof(kmsg.FetchRequestForgottenTopic{}))
	for i := range r.ForgottenTopics {
		t := &r.ForgottenTopics[i]
		s.bytes += int64(len(t.Topic))
		s.addTags(t.UnknownTags.Len())
		s.addElements(len(t.Partitions), unsafe.Sizeof(t.Partitions[0]))
	}
}

func (s *requestShape) addElements(n int, size uintptr) {
	s.elements += int64(n)
	s.bytes += int64(n) * int64(size)
}

func (s *requestShape) addTags(n int) {
	if n > 0 {
		s.bytes += tagSectionBytes
		s.addElements(n, tagBytes)
		s.aliases = true
	}
}

// addPointed adds what v points to, v itself being counted already.
func (s *requestShape) addPointed(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		s.bytes += int64(v.Len())
	case reflect.Map: // only unknown tags
		s.addTags(v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			s.bytes += int64(v.Type().Elem().Size())
			s.addPointed(v.Elem())
		}
	case reflect.Slice:
		s.addSlice(v)
	case reflect.Struct:
		for i := range v.NumField() {
			s.addPointed(v.Field(i))
		}
	}
}

func (s *requestShape) addSlice(v reflect.Value) {
	elem := v.Type().Elem()
	if elem.Kind() == reflect.Uint8 {
		s.aliases = s.aliases || v.Len() > 0
		return
	}
	s.addElements(v.Len(), elem.Size())
	switch elem.Kind() {
	case reflect.String, reflect.Pointer, reflect.Slice, reflect.Struct:
		for i := range v.Len() {
			s.addPointed(v.Index(i))
		}
	}
}

// describeForeign recognises the first bytes of protocols that are sent to a Kafka
// port by mistake. b holds at least four bytes; read as a size, all of these are
// negative or above any limit.
func describeForeign(b []byte) (hint string, ok bool) {
	if b[0] == 0x16 && b[1] == 0x03 {
		return "looks like a TLS ClientHello: this listener is plaintext, set security.protocol to PLAINTEXT in the client or connect to a TLS listener", true
	}
	switch string(b[:4]) {
	case "GET ", "POST", "PUT ", "HEAD", "DELE", "OPTI", "PATC", "CONN", "TRAC":
		return "looks like an HTTP request: this listener speaks the Kafka protocol, HTTP has its own address", true
	case "PRI ":
		return "looks like HTTP/2 (or gRPC): this listener speaks the Kafka protocol, HTTP has its own address", true
	case "HTTP":
		return "looks like an HTTP response", true
	case "SSH-":
		return "looks like an SSH client: this is a Kafka listener", true
	}
	return "", false
}

var errClosedByPeer = errors.New("the peer closed the connection")
