package httpapi

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/streamstore"
)

// Durable Streams (github.com/durable-streams/durable-streams, PROTOCOL.md, version 1.0) at /ds/<name>: the same streams as
// everywhere, /ds/a/b is the stream a/b.
//
//	durable.go          names, offsets, headers, HEAD
//	durable_create.go   PUT
//	durable_fork.go     what a PUT copies of another stream; DELETE, and what forks keep of a deleted source
//	durable_append.go   POST, writer sequences, closing
//	durable_read.go     GET: catch up, long poll
//	durable_follow.go   GET with live=sse
//	durable_rows.go     rows in the key-value space
//
// An append of a byte stream is one record. A JSON message is one record, those of one append are a batch. Records that came
// through another door are read like these: their values are what follows one after the other, and in a JSON stream a value
// that is not JSON is given as a JSON string, as base64 if it is not text.

// durablePath begins the addresses of streams.
const durablePath = "/ds/"

// durableRoutes are those of the protocol. It is its own contract, so docs/openapi.yaml does not have them.
var durableRoutes = []route{
	{http.MethodPut, durablePath + "{name}", "durableCreate", (*Server).durableCreate},
	{http.MethodPost, durablePath + "{name}", "durableAppend", (*Server).durableAppend},
	{http.MethodGet, durablePath + "{name}", "durableRead", (*Server).durableRead},
	{http.MethodHead, durablePath + "{name}", "durableHead", (*Server).durableHead},
	{http.MethodDelete, durablePath + "{name}", "durableDelete", (*Server).durableDelete},
}

// Headers of the protocol.
const (
	headerDurableNext     = "Stream-Next-Offset"
	headerDurableUpToDate = "Stream-Up-To-Date"
	headerDurableClosed   = "Stream-Closed"
	headerDurableCursor   = "Stream-Cursor"
	headerDurableTTL      = "Stream-TTL"
	headerDurableExpires  = "Stream-Expires-At"
	headerDurableSeq      = "Stream-Seq"
	headerDurableEncoding = "Stream-SSE-Data-Encoding"
	headerForkedFrom      = "Stream-Forked-From"
	headerForkOffset      = "Stream-Fork-Offset"
	headerForkSubOffset   = "Stream-Fork-Sub-Offset"
	headerProducerExpects = "Producer-Expected-Seq"
	headerProducerGot     = "Producer-Received-Seq"
)

// The problems that only this protocol has.
var (
	durableGone     = &problemKind{http.StatusGone, "stream-gone", "What is asked for is there no longer"}
	durableMismatch = &problemKind{http.StatusConflict, "content-type-mismatch", "The stream has another content type"}
	durableRegress  = &problemKind{http.StatusConflict, "stream-sequence", "The sequence of the stream's writers is further on"}
)

// durableStream is a stream that a request names.
type durableStream struct {
	*target
	// info is empty if the stream does not exist. Whoever waits must look again.
	info streamstore.StreamInfo
	// expired, if not 0, is a stream of this name whose time is over: it counts as deleted, and must be when another
	// one is made. Retention deletes it otherwise.
	expired streamstore.StreamID
	// gone: the stream was deleted, and keeps its name while there are forks of it.
	gone bool
}

// durableName is what follows the prefix in the address of a request, percent-decoded.
func durableName(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, durablePath) }

// durableStream finds the stream of a name.
func (s *Server) durableStream(name string) (*durableStream, error) {
	t, err := s.target(name)
	if err != nil {
		return nil, err
	}
	d := &durableStream{target: t}
	if t.id != 0 {
		d.info, err = s.store.Describe(t.id)
		switch {
		case errors.Is(err, streamstore.ErrNoStream): // deleted meanwhile
			t.id = 0
		case err != nil:
			return nil, err
		case d.info.Expired(time.Now()):
			d.expired, t.id, d.info = t.id, 0, streamstore.StreamInfo{}
		}
	}
	if t.id == 0 {
		d.gone, err = s.isGone(name)
	}
	return d, err
}

// durableExisting is durableStream for requests that need the stream to exist.
func (s *Server) durableExisting(name string) (*durableStream, error) {
	d, err := s.durableStream(name)
	switch {
	case err != nil:
		return nil, err
	case d.gone:
		return nil, durableGone.new("the stream %q was deleted; its name is free when all of its forks are deleted, too", name)
	case d.id == 0:
		return nil, errNoStream(name)
	}
	return d, nil
}

// An offset is written as two numbers of 16 digits: the offset of a record and a position inside it. The protocol wants
// offsets that sort as strings; 16 digits are enough for a record each microsecond for 300 years. Positions inside records
// are not given out, so the second number is always zero.
const (
	durableDigits = 16
	durableBegin  = "-1"
	durableNow    = "now"
)

func formatDurable(offset int64) string {
	return fmt.Sprintf("%0*d_%0*d", durableDigits, offset, durableDigits, 0)
}

// parseDurable is the inverse. The offset need not be one of any stream.
func parseDurable(text string) (offset int64, err error) {
	first, second, ok := strings.Cut(text, "_")
	n, err1 := strconv.ParseUint(first, 10, 63)
	inside, err2 := strconv.ParseUint(second, 10, 63)
	if !ok || len(first) != durableDigits || len(second) != durableDigits || errors.Join(err1, err2) != nil {
		return 0, badRequest.new("the offset %q is none that this server has given", shorten(text))
	}
	if inside != 0 {
		return 0, badRequest.new("the offset %q lies inside a record: no such offset was given", text)
	}
	return int64(n), nil
}

// durableMedia is the media type of a content type, in lower case and without parameters. That of a stream without one,
// which another door has made, is bytes.
func durableMedia(contentType string) string {
	if contentType == "" {
		return mediaBytes
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(contentType, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	return media
}

func (d *durableStream) media() string { return durableMedia(d.info.Settings.ContentType) }
func (d *durableStream) isJSON() bool  { return d.media() == mediaJSON }

// isText tells that events carry the values as they are.
func (d *durableStream) isText() bool { return d.isJSON() || strings.HasPrefix(d.media(), "text/") }

// contentType is what readers get: as it was given, or bytes.
func (d *durableStream) contentType() string {
	if d.info.Settings.ContentType == "" {
		return mediaBytes
	}
	return d.info.Settings.ContentType
}

// saysTrue tells whether a header is exactly true; whatever else it is counts as absent.
func saysTrue(h http.Header, name string) bool { return strings.EqualFold(h.Get(name), "true") }

// durableHead answers HEAD. It does not extend the stream's time to live.
func (s *Server) durableHead(x *exchange) error {
	d, err := s.durableExisting(durableName(x.r))
	if err != nil {
		return err
	}
	h := x.Header()
	h.Set("Content-Type", d.contentType())
	h.Set("Cache-Control", cacheNever)
	h.Set(headerDurableNext, formatDurable(d.info.HighWatermark))
	if ttl := d.info.Settings.TTL; ttl > 0 {
		h.Set(headerDurableTTL, strconv.FormatInt(int64((ttl+time.Second-1)/time.Second), 10))
	}
	if over := d.info.Settings.ExpiresAt; !over.IsZero() {
		h.Set(headerDurableExpires, over.Format(time.RFC3339Nano))
	}
	if d.info.Closed && d.info.HighWatermark == d.info.Next {
		h.Set(headerDurableClosed, "true")
	}
	x.WriteHeader(http.StatusOK)
	return nil
}

// keepAlive begins the time to live of a stream anew, because it is read. The store only knows of writes, and telling it of
// each read would make a write of each; so it is told once in a hundredth of the time, and a stream may expire so much
// early. What hinders that hinders no read.
func (s *Server) keepAlive(x *exchange, id streamstore.StreamID) {
	info, err := s.store.Describe(id)
	if err != nil || info.Settings.TTL <= 0 || time.Since(info.LastWrite) < info.Settings.TTL/100 {
		return
	}
	txn := streamstore.NewTxn()
	txn.Touch(id)
	if _, err := s.store.Commit(x.r.Context(), txn); err != nil {
		s.log.Sugar().Debugf("extending the time to live of stream %q: %v", info.Name, err)
	}
}

// durableProblem adds the headers of the protocol to an error.
func durableProblem(err error) error {
	p := asProblem(err)
	if e, ok := errors.AsType[*streamstore.StreamClosedError](err); ok {
		return p.withHeader(headerDurableClosed, "true").withHeader(headerDurableNext, formatDurable(e.Next))
	}
	if e, ok := errors.AsType[*streamstore.ProducerEpochError](err); ok {
		return p.withHeader(headerProducerEpoch, strconv.Itoa(int(e.Current)))
	}
	return p
}

// durableReadProblem is durableProblem for reads.
func durableReadProblem(err error) error {
	if e, ok := errors.AsType[*unreadableError](err); ok {
		return asProblem(readProblem(err, streamstore.Offsets{})).withHeader(headerDurableNext, formatDurable(e.next))
	}
	if errors.Is(err, streamstore.ErrOffsetOutOfRange) {
		return durableGone.new("the records there were trimmed; begin at %s, the first that there are", durableBegin)
	}
	return readProblem(err, streamstore.Offsets{})
}

// durablePathOf is the address of a stream.
func durablePathOf(name string) string { return durablePath + (&url.URL{Path: name}).EscapedPath() }
