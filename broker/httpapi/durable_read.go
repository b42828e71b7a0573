package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// durablePollTimeout is how long a long poll waits.
const durablePollTimeout = 20 * time.Second

// durableRequest is a GET as the client wants it.
type durableRequest struct {
	from   position
	isNow  bool
	live   string
	cursor string
}

// readDurable reads the parameters of a GET. The protocol wants parameters that are not known to be ignored.
func readDurable(r *http.Request) (*durableRequest, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest.new("the query cannot be understood: %v", err)
	}
	rq := &durableRequest{live: values.Get("live"), cursor: values.Get("cursor")}
	offsets := values["offset"]
	switch {
	case rq.live != "" && rq.live != liveLongPoll && rq.live != liveSSE:
		return nil, badRequest.new("live is %q; write %s or %s", shorten(rq.live), liveLongPoll, liveSSE)
	case len(offsets) > 1:
		return nil, badRequest.new("offset is given %d times", len(offsets))
	case len(offsets) == 0 && rq.live != "":
		return nil, badRequest.new("with live=%s an offset must be given; %s is the beginning of the stream", rq.live, durableBegin)
	case len(offsets) == 0 || offsets[0] == durableBegin:
		rq.from = position{kind: atStart}
	case offsets[0] == durableNow:
		rq.from, rq.isNow = position{kind: atTail}, true
	default:
		n, err := parseDurable(offsets[0])
		if err != nil {
			return nil, err
		}
		rq.from = position{kind: atOffset, n: n}
	}
	return rq, nil
}

// durableRead answers GET.
func (s *Server) durableRead(x *exchange) error {
	d, err := s.durableExisting(durableName(x.r))
	if err != nil {
		return err
	}
	rq, err := readDurable(x.r)
	if err != nil {
		return err
	}
	if err := s.checkDurable(d, rq); err != nil {
		return err
	}
	s.keepAlive(x, d.id)
	switch {
	case rq.live == liveSSE:
		err = s.durableFollow(x, d, rq)
	case rq.live == liveLongPoll:
		err = s.durablePoll(x, d, rq)
	case rq.isNow:
		err = s.durableTail(x, d)
	default:
		err = s.durableCatchUp(x, d, rq)
	}
	if err != nil {
		return durableReadProblem(err)
	}
	return nil
}

// checkDurable refuses offsets that the stream does not have.
func (s *Server) checkDurable(d *durableStream, rq *durableRequest) error {
	if rq.from.kind != atOffset {
		return nil
	}
	switch n := rq.from.n; {
	case n < d.info.Start:
		return durableGone.new("the records at the offset %s were trimmed; the first that there are is at %s", formatDurable(n), formatDurable(d.info.Start)).
			with("start_offset", formatDurable(d.info.Start))
	case n > d.info.Next:
		return badRequest.new("the offset %s lies behind the end of the stream, which is %s; was another stream given the name?", formatDurable(n), formatDurable(d.info.HighWatermark))
	}
	return nil
}

// durableChunk is a part of a stream as readers get it.
type durableChunk struct {
	body  []byte
	count int
	from  int64
	span
	// atEnd: the stream is closed and this is its last part.
	atEnd bool
}

func (c *durableChunk) upToDate() bool { return c.next >= c.HighWatermark }

const (
	// durableChunkBytes is the size from which a reply ends with the next batch.
	durableChunkBytes = 256 << 10
	// chunkSlack is how often larger a chunk may be, to not end inside a batch: that is decoded from its beginning again
	// by the next read.
	chunkSlack = 4
)

// durableChunk reads from an offset on: maxBytes and what follows in the same batch, at most chunkSlack times as much unless
// one record is larger. The body of a JSON stream is an array.
func (s *Server) durableChunk(ctx context.Context, d *durableStream, from int64, maxBytes int, buffer []byte) (c durableChunk, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c.from, c.body = from, buffer
	isJSON := d.isJSON()
	if isJSON {
		c.body = append(c.body, '[')
	}
	c.span, err = s.eachRecord(ctx, d.id, from, endless, maxBytes, func(r *kafkaproto.RecordView) verdict {
		size := len(c.body)
		if isJSON {
			if c.count > 0 {
				c.body = append(c.body, ',')
			}
			c.body = appendMessage(c.body, r.Value)
		} else {
			c.body = append(c.body, r.Value...)
		}
		if c.count > 0 && len(c.body) > chunkSlack*maxBytes {
			c.body = c.body[:size]
			return refused
		}
		c.count++
		if len(c.body) >= maxBytes {
			return lastBatch
		}
		return taken
	})
	if isJSON {
		c.body = append(c.body, ']')
	}
	if err != nil {
		return c, err
	}
	s.m.records.WithLabelValues(recordsOut).Add(float64(c.count))
	// What was closed before this look ends no later than the records that were read, or they are not all.
	c.atEnd, err = s.atEnd(d.id, c.next)
	return c, err
}

// appendMessage appends a value as a JSON value.
func appendMessage(dst, value []byte) []byte {
	switch {
	case value == nil:
		return append(dst, "null"...)
	case !utf8.Valid(value):
		return appendBase64(dst, value)
	case json.Valid(value):
		return append(dst, value...)
	}
	return appendString(dst, value)
}

// chunkHeader describes a chunk in the head of a reply.
func (x *exchange) chunkHeader(d *durableStream, c *durableChunk) {
	h := x.Header()
	h.Set("Content-Type", d.contentType())
	h.Set(headerDurableNext, formatDurable(c.next))
	if c.upToDate() {
		h.Set(headerDurableUpToDate, "true")
	}
	if c.atEnd {
		h.Set(headerDurableClosed, "true")
	}
}

// durableTail answers a read at the tail with nothing.
func (s *Server) durableTail(x *exchange, d *durableStream) error {
	c, err := s.emptyChunk(d, d.info.HighWatermark)
	if err != nil {
		return err
	}
	x.chunkHeader(d, &c)
	x.Header().Set("Cache-Control", cacheNever)
	if d.isJSON() {
		c.body = []byte("[]")
	}
	return x.writeBody(http.StatusOK, c.body)
}

// emptyChunk is the chunk of a reader at the tail.
func (s *Server) emptyChunk(d *durableStream, at int64) (c durableChunk, err error) {
	c.from, c.next, c.HighWatermark = at, at, at
	c.atEnd, err = s.atEnd(d.id, at)
	return c, err
}

// durableCatchUp answers with what there is at an offset.
func (s *Server) durableCatchUp(x *exchange, d *durableStream, rq *durableRequest) error {
	held, err := s.hold(x.r.Context(), replyCopies*chunkSlack*durableChunkBytes)
	if err != nil {
		return err
	}
	defer held.release()
	from, err := s.locate(x.r.Context(), d.id, rq.from, false)
	if err != nil {
		return err
	}
	c, err := s.durableChunk(x.r.Context(), d, from, durableChunkBytes, nil)
	if err != nil {
		return err
	}
	return x.writeChunk(d, &c)
}

// cacheDurable is for chunks with more behind them, which no append changes: kept by the client only, because who may read
// is the broker's to decide, and for a minute without asking, which is how long what was trimmed or deleted may be read.
const cacheDurable = "private, max-age=60, stale-while-revalidate=300"

// writeChunk answers with a chunk, or with 304 if the client has it.
func (x *exchange) writeChunk(d *durableStream, c *durableChunk) error {
	x.chunkHeader(d, c)
	end := ""
	if c.atEnd {
		end = ":c"
	}
	tag := fmt.Sprintf(`W/"%s:%d:%d%s"`, formatID(d.id), c.from, c.next, end)
	h := x.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", cacheChecked)
	if !c.upToDate() {
		h.Set("Cache-Control", cacheDurable)
	}
	if matchesTag(x.r.Header.Values("If-None-Match"), tag) {
		h.Del("Content-Type")
		x.WriteHeader(http.StatusNotModified)
		return nil
	}
	return x.writeBody(http.StatusOK, c.body)
}

// durablePoll answers a long poll.
func (s *Server) durablePoll(x *exchange, d *durableStream, rq *durableRequest) error {
	x.live = liveLongPoll
	s.m.followers.WithLabelValues(liveLongPoll).Inc()
	defer s.m.followers.WithLabelValues(liveLongPoll).Dec()
	from, err := s.await(x.r.Context(), d.target, &readRequest{from: rq.from, to: endless, timeout: durablePollTimeout})
	if err != nil {
		return err
	}
	held, err := s.hold(x.r.Context(), replyCopies*chunkSlack*durableChunkBytes)
	if err != nil {
		return err
	}
	defer held.release()
	c, err := s.durableChunk(x.r.Context(), d, from, durableChunkBytes, nil)
	if err != nil {
		return err
	}
	if !c.atEnd {
		x.Header().Set(headerDurableCursor, nextCursor(time.Now(), rq.cursor))
	}
	if c.count > 0 {
		return x.writeChunk(d, &c)
	}
	x.chunkHeader(d, &c)
	x.Header().Del("Content-Type")
	x.noContent()
	return nil
}

// A cursor numbers the intervals since durableEpoch. Clients send it back, so that what caches keep of a live read is found
// by those only who ask in the same interval.
const durableInterval = 20 * time.Second

var durableEpoch = time.Date(2024, 10, 9, 0, 0, 0, 0, time.UTC)

// maxDurableCursor bounds the cursors of clients that are taken for ones of this server; those of the next 100,000 years are
// below.
const maxDurableCursor = 1 << 40

// nextCursor is the cursor of a reply: the present interval, or more than the client has sent.
func nextCursor(now time.Time, sent string) string {
	cursor := max(int64(now.Sub(durableEpoch)/durableInterval), 0)
	if n, err := strconv.ParseInt(sent, 10, 64); err == nil && n >= cursor && n < maxDurableCursor {
		// By chance, so that clients that have all come to the same cursor do not stay together.
		cursor = n + 1 + rand.Int64N(int64(time.Hour/durableInterval))
	}
	return strconv.FormatInt(cursor, 10)
}
