package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Headers of the protocol. All replies may carry them, and web pages of other origins may read them (cors.go).
const (
	headerStreamID    = "Brooklet-Stream-Id"    // the stream's id, hexadecimal
	headerStartOffset = "Brooklet-Start-Offset" // first offset still readable
	headerEndOffset   = "Brooklet-End-Offset"   // first offset that readers do not see yet
	// headerNextOffset is where to go on: of a read, the offset after the last record in the reply; of everything
	// else, the offset that the next record gets.
	headerNextOffset = "Brooklet-Next-Offset"
	headerClosed     = "Brooklet-Closed" // "true" if the stream takes no more records and the reply reaches its end
	headerRecord     = "Brooklet-Record" // of a raw read: offset, key, timestamp and headers, form-encoded
)

// Headers of requests.
const (
	headerProducerID    = "Producer-Id"    // name of an idempotent producer
	headerProducerEpoch = "Producer-Epoch" // number of the producer's life
	headerProducerSeq   = "Producer-Seq"   // number of the append within it
	headerLastEventID   = "Last-Event-ID"
)

// writePiece is the largest piece that is written under one deadline, in bytes.
const writePiece = 64 << 10

// exchange is a request and its reply.
type exchange struct {
	s     *Server
	r     *http.Request
	w     http.ResponseWriter
	rc    *http.ResponseController
	began time.Time
	route string
	// end is when a reply that is in memory as a whole must be sent; zero: no such time.
	end time.Time
	// live is the way in which the reply waits for records, if it does.
	live string

	status         int // 0 until the head of the reply is written
	sent, received int64
	problem        error // what the client was told, or why it was cut
}

// dataPolicy keeps a browser that opens a reply as a page from running what is in it in the name of this origin, from
// which it could use every stream: a stream may hold HTML, and say so. Only the live page has a policy of its own.
const dataPolicy = "sandbox; default-src 'none'"

func newExchange(s *Server, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{s: s, r: r, w: w, rc: http.NewResponseController(w), began: time.Now()}
	x.Header().Set("X-Content-Type-Options", "nosniff")
	x.Header().Set("Content-Security-Policy", dataPolicy)
	x.extendWrite() // the deadline that the last request of this connection left behind may be over
	return x
}

// Header returns the header of the reply.
func (x *exchange) Header() http.Header { return x.w.Header() }

// setOffset sets a header to a number.
func (x *exchange) setOffset(header string, offset int64) {
	x.Header().Set(header, strconv.FormatInt(offset, 10))
}

// WriteHeader begins the reply.
func (x *exchange) WriteHeader(status int) {
	x.status = status
	x.w.WriteHeader(status)
}

// extendWrite gives the next write its time. An error means that w is no connection, which then needs no deadline.
func (x *exchange) extendWrite() {
	_ = x.rc.SetWriteDeadline(earlier(time.Now().Add(x.s.opts.IOTimeout), x.end))
}

// Write sends a part of the body. A client must take each piece of it within the I/O timeout, so that one that is slow
// may take long, and one that has stopped reading is cut.
func (x *exchange) Write(p []byte) (n int, err error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	for len(p) > 0 && err == nil {
		x.extendWrite()
		var k int
		k, err = x.w.Write(p[:min(len(p), writePiece)])
		n, p = n+k, p[k:]
	}
	x.sent += int64(n)
	return n, err
}

// flush sends what was written.
func (x *exchange) flush() error {
	x.extendWrite()
	return x.rc.Flush()
}

// Values of Cache-Control.
const (
	cacheNever = "no-store"
	// cacheChecked: kept by the client only, which asks each time whether it still holds.
	cacheChecked = "private, no-cache"
	// cacheImmutable: kept by the client only, for an hour without asking.
	cacheImmutable = "private, max-age=3600, immutable"
)

// writeJSON answers with a JSON object.
func (x *exchange) writeJSON(status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	h := x.Header()
	h.Set("Content-Type", "application/json")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", cacheNever)
	}
	return x.writeBody(status, append(body, '\n'))
}

// writeBody answers with a body that is complete, compressed if the client likes that.
func (x *exchange) writeBody(status int, body []byte) error {
	body, release, err := x.compressed(body)
	if err != nil {
		return err
	}
	defer release()
	x.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.end = time.Now().Add(x.s.timeFor(int64(len(body))))
	x.WriteHeader(status)
	_, err = x.Write(body)
	x.cut(err)
	return nil
}

// cut notes the error that ended a reply whose head was sent. The client learns it by the connection only.
func (x *exchange) cut(err error) {
	if err != nil {
		x.problem = err
		if errors.Is(err, os.ErrDeadlineExceeded) {
			x.s.m.slowClients.Inc()
		}
	}
}

// fail answers with a problem. If the reply has begun the connection is closed, so that the client does not take what it
// has for all.
func (x *exchange) fail(err error) {
	p := asProblem(err)
	x.problem = err
	if p.kind.status == http.StatusInternalServerError && x.r.Context().Err() == nil {
		x.s.log.Warn("request failed", zap.String("route", x.route), zap.Int("status", p.kind.status), zap.Error(err))
	}
	if x.status != 0 {
		panic(http.ErrAbortHandler)
	}
	body, jsonErr := json.Marshal(p)
	if jsonErr != nil {
		body = []byte(`{"title":"error"}`)
	}
	h := x.Header()
	for _, name := range []string{"ETag", "Content-Encoding", "Content-Length", "Last-Modified"} {
		h.Del(name)
	}
	for name, values := range p.header {
		h[name] = values
	}
	if p.kind == bodyTimeout {
		h.Set("Connection", "close") // else the server waits for the rest of the body before it sends the reply
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", cacheNever)
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	x.WriteHeader(p.kind.status)
	if x.r.Method != http.MethodHead {
		_, err := x.Write(append(body, '\n'))
		x.cut(err)
	}
}

// query is the query of a request. Its methods note the first value that cannot be understood; err returns it.
type query struct {
	values url.Values
	known  map[string]bool
	err    error
}

func newQuery(r *http.Request) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values, known: map[string]bool{}}
	if err != nil {
		q.err = badRequest.new("the query cannot be understood: %v", err)
	}
	return q
}

// text returns a parameter and whether it was given.
func (q *query) text(name string) (string, bool) {
	q.known[name] = true
	values, ok := q.values[name]
	if !ok {
		return "", false
	}
	if len(values) > 1 {
		q.fail(name, "it is given %d times", len(values))
	}
	return values[0], true
}

// list returns a parameter that may be given many times.
func (q *query) list(name string) []string {
	q.known[name] = true
	return q.values[name]
}

func (q *query) fail(name, format string, args ...any) {
	if q.err == nil {
		p := badRequest.new("parameter "+name+": "+format, args...)
		q.err = p.with("parameter", name)
	}
}

// number returns a parameter within bounds, or its default.
func (q *query) number(name string, otherwise, low, high int64) int64 {
	text, ok := q.text(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		q.fail(name, "it is %q; write a number from %d to %d", text, low, high)
		return otherwise
	}
	return n
}

// flag returns a parameter that is true or false; given without a value it is true.
func (q *query) flag(name string) bool {
	text, ok := q.text(name)
	switch {
	case !ok || text == "false":
		return false
	case text == "" || text == "true":
		return true
	}
	q.fail(name, "it is %q; write true or false", text)
	return false
}

// choice returns a parameter that is one of several words, or "".
func (q *query) choice(name string, words ...string) string {
	text, ok := q.text(name)
	if !ok {
		return ""
	}
	for _, word := range words {
		if text == word {
			return word
		}
	}
	q.fail(name, "it is %q; write one of %s", text, strings.Join(words, ", "))
	return ""
}

// done returns the first error. A parameter that nobody has asked for is one: a misspelt one would be ignored otherwise.
func (q *query) done() error {
	if q.err != nil {
		return q.err
	}
	for name := range q.values {
		if !q.known[name] {
			return badRequest.new("there is no parameter %q", name).with("parameter", name)
		}
	}
	return nil
}
