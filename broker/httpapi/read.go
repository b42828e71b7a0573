package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

const (
	// defaultReadBytes is what a reply holds unless max_bytes says otherwise.
	defaultReadBytes = 1 << 20
	// maxReadRecords bounds limit.
	maxReadRecords = 1_000_000
	// readTimeout bounds the time that a read takes until it has records.
	readTimeout = 30 * time.Second
	// replyCopies is how often the records of a reply are in memory at the worst moment: as stored, and encoded.
	replyCopies = 2

	defaultPollTimeout = 30 * time.Second
	maxPollTimeout     = 5 * time.Minute
)

// mediaEvents is the media type of event streams.
const mediaEvents = "text/event-stream"

// position says where a read begins.
type position struct {
	kind positionKind
	// n is an offset, a number of records, or a time in milliseconds since 1970.
	n int64
}

type positionKind int8

const (
	atStart  positionKind = iota
	atTail                // behind the last record
	atOffset              // at offset n
	fromTail              // n records before the tail
	atTime                // at the first record whose timestamp is n or later
)

// readPosition reads the parameters from and time.
func readPosition(q *query) position {
	from, hasFrom := q.text("from")
	text, hasTime := q.text("time")
	switch {
	case hasFrom && hasTime:
		q.fail("time", "from is given too: give one of them")
	case hasTime:
		ms, err := parseTime(text)
		if err != nil {
			q.fail("time", "%v", err)
		}
		return position{atTime, ms}
	case !hasFrom || from == "start":
		return position{kind: atStart}
	case from == "tail":
		return position{kind: atTail}
	}
	n, err := strconv.ParseInt(from, 10, 64)
	switch {
	case err != nil && hasFrom:
		q.fail("from", "it is %q; write an offset, -N for the last N records, start or tail", shorten(from))
	case n < 0:
		return position{fromTail, -n}
	}
	return position{atOffset, n}
}

// readRequest is a read as the client wants it.
type readRequest struct {
	from position
	// to is the offset to stop before.
	to int64
	// clamp: a position outside the stream becomes the start or the tail.
	clamp bool
	// limit and maxBytes bound one reply; 0 is no limit of the client's.
	limit    int
	maxBytes int
	form     string // one of the forms of records, or "" for event streams without one
	values   valueForm
	live     string
	timeout  time.Duration
	// id, if not 0, is the stream that the name must stand for.
	id streamstore.StreamID
	// cursor is where to resume in the streams under a prefix.
	cursor string
}

// read answers GET on a stream.
func (s *Server) read(x *exchange) error {
	q := newQuery(x.r)
	if q.flag("describe") {
		if err := q.done(); err != nil {
			return err
		}
		t, err := s.existing(streamName(x.r))
		if err != nil {
			return err
		}
		return s.describeStream(x, t)
	}
	t, err := s.target(streamName(x.r))
	if err != nil {
		return err
	}
	rq, err := s.readRequest(x, q, t)
	if err != nil {
		return err
	}
	if t.id == 0 && rq.live == "" {
		return errNoStream(t.name)
	}
	if rq.id != 0 && t.id != rq.id {
		return streamReplaced.new("the stream with the id %s has no longer this name", formatID(rq.id))
	}
	if rq.live == liveSSE {
		return s.follow(x, t, rq)
	}
	from, err := s.begin(x, t, rq)
	if err != nil {
		return readProblem(err, streamstore.Offsets{})
	}
	if t.id == 0 {
		return s.answerNothing(x, rq)
	}
	switch {
	case rq.form == formRaw:
		return s.readRaw(x, t, rq, from)
	case rq.form == formJSON:
		return s.readPage(x, t, rq, from)
	case rq.live == liveLongPoll:
		return s.readPolled(x, t, rq, from)
	}
	return s.readStreamed(x, t, rq, from)
}

// begin finds the offset to begin at. A long poll waits until there is something to answer with.
func (s *Server) begin(x *exchange, t *target, rq *readRequest) (int64, error) {
	ctx := x.r.Context()
	if rq.live == "" {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return s.locate(ctx, t.id, rq.from, rq.clamp)
	}
	if t.id == 0 && rq.from.kind == atOffset && rq.from.n > 0 && !rq.clamp {
		return 0, errOutOfRange(rq.from.n, streamstore.Offsets{})
	}
	x.live = liveLongPoll
	s.m.followers.WithLabelValues(liveLongPoll).Inc()
	defer s.m.followers.WithLabelValues(liveLongPoll).Dec()
	return s.await(ctx, t, rq)
}

// answerNothing answers a long poll on a stream that does not exist yet: it is an empty one.
func (s *Server) answerNothing(x *exchange, rq *readRequest) error {
	for _, header := range []string{headerStartOffset, headerEndOffset, headerNextOffset} {
		x.setOffset(header, 0)
	}
	if rq.form != formJSON {
		x.noContent()
		return nil
	}
	return x.writeJSON(http.StatusOK, json.RawMessage(`{"records":[],"next_offset":0,"closed":false}`))
}

// noContent answers that there are no records, where a body could not say so.
func (x *exchange) noContent() {
	x.Header().Set("Cache-Control", cacheNever)
	x.WriteHeader(http.StatusNoContent)
}

// readRequest reads the parameters of a read.
func (s *Server) readRequest(x *exchange, q *query, t *target) (*readRequest, error) {
	rq := &readRequest{from: readPosition(q)}
	rq.to = q.number("to", endless, 0, math.MaxInt64)
	rq.clamp = q.flag("clamp")
	rq.limit = int(q.number("limit", 0, 1, maxReadRecords))
	rq.maxBytes = int(q.number("max_bytes", 0, 1, int64(s.opts.MaxReadBytes)))
	rq.form = q.choice("format", formJSON, formNDJSON, formBatches, formRaw)
	rq.live = q.choice("live", liveLongPoll, liveSSE)
	rq.timeout = time.Duration(q.number("timeout", int64(defaultPollTimeout/time.Millisecond), 0, int64(maxPollTimeout/time.Millisecond))) * time.Millisecond
	values := q.choice("values", "auto", "base64", "json")
	if text, ok := q.text("id"); ok {
		id, err := strconv.ParseUint(text, 16, 64)
		if err != nil || id == 0 {
			q.fail("id", "it is %q; write the stream's id, hexadecimal", shorten(text))
		}
		rq.id = streamstore.StreamID(id)
	}
	if err := q.done(); err != nil {
		return nil, err
	}
	return rq, s.chooseForm(x, rq, t, values)
}

// chooseForm settles the form of the reply and of values: what the parameters say, else what the client accepts.
func (s *Server) chooseForm(x *exchange, rq *readRequest, t *target, values string) error {
	own := ""
	if t.id != 0 {
		info, err := s.store.Describe(t.id)
		if err != nil {
			return err
		}
		own, _, _ = mime.ParseMediaType(info.Settings.ContentType)
	}
	switch {
	case values == "base64":
		rq.values = valuesBase64
	case values == "json", values == "" && own == mediaJSON:
		rq.values = valuesJSON
	}
	if rq.form != "" || rq.live == liveSSE {
		return nil
	}
	x.Header().Add("Vary", "Accept")
	offers := []string{mediaJSON, mediaNDJSON, mediaBatches, mediaBytes, mediaEvents}
	forms := []string{formJSON, formNDJSON, formBatches, formRaw, ""}
	if own != "" && own != mediaJSON {
		offers, forms = append(offers, own), append(forms, formRaw)
	}
	i := bestOffer(strings.Join(x.r.Header.Values("Accept"), ","), offers)
	if i < 0 {
		return notAcceptable.new("the client accepts %q; there are %s", x.r.Header.Get("Accept"), strings.Join(offers, ", "))
	}
	rq.form = forms[i]
	if offers[i] == mediaEvents {
		rq.live = liveSSE
	}
	return nil
}

// bestOffer returns the offer that an Accept header (RFC 9110, 12.5.1) likes best, the first of equals; -1 if none is
// acceptable. The most specific range that matches an offer decides about it.
func bestOffer(accept string, offers []string) int {
	if strings.TrimSpace(accept) == "" {
		return 0
	}
	best, bestQuality := -1, 0.0
	for i, offer := range offers {
		kind, _, _ := strings.Cut(offer, "/")
		specific, q := 0, 0.0
		for part := range strings.SplitSeq(accept, ",") {
			pattern, parameters, _ := strings.Cut(part, ";")
			rank := 1 + slices.Index([]string{"*/*", kind + "/*", offer}, strings.ToLower(strings.TrimSpace(pattern)))
			if rank > specific {
				specific, q = rank, quality(parameters)
			}
		}
		if q > bestQuality {
			best, bestQuality = i, q
		}
	}
	return best
}

// locate finds the offset that a position stands for. An offset outside the stream is an error, or moves to its nearer
// end with clamp.
func (s *Server) locate(ctx context.Context, id streamstore.StreamID, p position, clamp bool) (int64, error) {
	o, err := s.store.Offsets(id)
	if err != nil {
		return 0, err
	}
	switch p.kind {
	case atTail:
		return o.HighWatermark, nil
	case fromTail:
		return max(o.Start, o.HighWatermark-p.n), nil
	case atTime:
		return s.locateTime(ctx, id, p.n, o)
	case atOffset:
		if clamp {
			return min(max(p.n, o.Start), max(o.HighWatermark, o.Start)), nil
		}
		if p.n < o.Start || p.n > o.Next {
			return 0, errOutOfRange(p.n, o)
		}
		return p.n, nil
	}
	return o.Start, nil
}

func errOutOfRange(offset int64, o streamstore.Offsets) error {
	return outOfRange.new("offset %d is not within %d to %d; with clamp=true the read begins at the nearer of them", offset, o.Start, o.HighWatermark).
		withOffset(headerStartOffset, "start_offset", o.Start).
		withOffset(headerEndOffset, "end_offset", o.HighWatermark)
}

// locateTime finds the first record with this timestamp or a later one; the tail if there is none.
func (s *Server) locateTime(ctx context.Context, id streamstore.StreamID, ms int64, o streamstore.Offsets) (int64, error) {
	found := o.HighWatermark
	err := s.store.ScanTimestamp(ctx, id, ms, func(batch []byte) (bool, error) {
		offset, _, ok, err := kafkaproto.FindTimestamp(batch, ms, o.Start)
		if err != nil {
			// Which of its records it would be cannot be known; the read that begins here says so.
			found = max(kafkaproto.RecordBatch(batch).BaseOffset(), o.Start)
			return true, nil
		}
		if ok {
			found = offset
		}
		return ok, nil
	})
	return found, err
}

// page is the part of a reply that is in memory.
type page struct {
	body  []byte
	count int
	span

	flushed bool  // a part was sent
	sendErr error // of sending it
}

// take decides about a record that was just appended to the body, which had size bytes before.
func (p *page) take(size int, rq *readRequest, maxBytes int) verdict {
	if p.count > 0 && len(p.body) > maxBytes {
		p.body = p.body[:size]
		return refused
	}
	p.count++
	if p.count == rq.limit {
		return takenAll
	}
	return taken
}

// takeAndSend is take for a reply without a limit of bytes: what is too much for one piece is sent.
func (p *page) takeAndSend(x *exchange, rq *readRequest, pieceBytes int) verdict {
	p.count++
	if len(p.body) >= pieceBytes {
		p.flushed = true
		if p.send(x) != nil {
			return takenAll
		}
	}
	switch {
	case p.count == rq.limit:
		return takenAll
	case p.flushed:
		return lastBatch
	}
	return taken
}

// fill reads records from an offset on into the page, as JSON objects with separator between them.
func (s *Server) fill(ctx context.Context, p *page, id streamstore.StreamID, from int64, rq *readRequest, maxBytes int, separator string) (err error) {
	p.span, err = s.eachRecord(ctx, id, from, rq.to, maxBytes, func(r *kafkaproto.RecordView) verdict {
		size := len(p.body)
		if p.count > 0 {
			p.body = append(p.body, separator...)
		}
		p.body = appendRecord(p.body, r, "", rq.values)
		return p.take(size, rq, maxBytes)
	})
	return err
}

// readPage answers with one JSON object.
func (s *Server) readPage(x *exchange, t *target, rq *readRequest, from int64) error {
	maxBytes := rq.maxBytes
	setDefault(&maxBytes, min(defaultReadBytes, s.opts.MaxReadBytes))
	held, err := s.hold(x.r.Context(), replyCopies*int64(maxBytes))
	if err != nil {
		return err
	}
	defer held.release()
	ctx, cancel := context.WithTimeout(x.r.Context(), readTimeout)
	defer cancel()
	p := page{body: append(make([]byte, 0, 512), `{"records":[`...)}
	if err := s.fill(ctx, &p, t.id, from, rq, maxBytes, ","); err != nil {
		return readProblem(err, p.Offsets)
	}
	atEnd, err := s.atEnd(t.id, p.next)
	if err != nil {
		return err
	}
	p.body = append(p.body, `],"next_offset":`...)
	p.body = strconv.AppendInt(p.body, p.next, 10)
	p.body = append(p.body, `,"closed":`...)
	p.body = append(strconv.AppendBool(p.body, atEnd), "}\n"...)
	s.m.records.WithLabelValues(recordsOut).Add(float64(p.count))
	x.spanHeader(t, p.span, atEnd)
	x.Header().Set("Content-Type", mediaJSON)
	return x.writeCached(t, rq, from, &p, atEnd)
}

// atEnd tells whether offset is the end of a closed stream.
func (s *Server) atEnd(id streamstore.StreamID, offset int64) (bool, error) {
	info, err := s.store.Describe(id)
	return info.Closed && offset >= info.Next && info.HighWatermark == info.Next, err
}

// spanHeader tells in the head of a reply what was read.
func (x *exchange) spanHeader(t *target, at span, atEnd bool) {
	x.Header().Set(headerStreamID, formatID(t.id))
	x.setOffset(headerStartOffset, at.Start)
	x.setOffset(headerEndOffset, at.HighWatermark)
	x.setOffset(headerNextOffset, at.next)
	if atEnd {
		x.Header().Set(headerClosed, "true")
	}
}

// writeCached answers with a page, or with 304 if the client has it.
//
// Records at given offsets never change, but they can be trimmed, and another stream can get the name. So a reply is kept by
// the client alone, which asks each time whether it still holds, and that costs no body. Only a reply that a trim cannot
// shorten unnoticed for long, and another stream cannot replace, may be used without asking: a whole range of offsets,
// of a stream that is named by its id too. It is kept for an hour, which is then how long trimmed records may live on in
// a client's cache. No shared cache may keep any, because who may read a stream is the broker's to decide.
func (x *exchange) writeCached(t *target, rq *readRequest, from int64, p *page, atEnd bool) error {
	tag := entityTag(t, rq, from, p.next, atEnd)
	h := x.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", cacheChecked)
	if rq.id != 0 && rq.from.kind == atOffset && p.next == rq.to {
		h.Set("Cache-Control", cacheImmutable)
	}
	if rq.live == "" && matchesTag(x.r.Header.Values("If-None-Match"), tag) {
		h.Del("Content-Type")
		x.WriteHeader(http.StatusNotModified)
		return nil
	}
	return x.writeBody(http.StatusOK, p.body)
}

// entityTag names the body of a reply: the stream, the range, and the form. It is weak, because the same body may come
// compressed.
func entityTag(t *target, rq *readRequest, from, next int64, atEnd bool) string {
	end := ""
	if atEnd {
		end = "-end"
	}
	return fmt.Sprintf(`W/"%s-%d-%d-%s%d%s"`, formatID(t.id), from, next, rq.form, rq.values, end)
}

// matchesTag compares If-None-Match with a tag (RFC 9110, 13.1.2).
func matchesTag(headers []string, tag string) bool {
	for _, header := range headers {
		for candidate := range strings.SplitSeq(header, ",") {
			candidate = strings.TrimSpace(candidate)
			if candidate == "*" || strings.TrimPrefix(candidate, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// readRaw answers with the value of one record.
func (s *Server) readRaw(x *exchange, t *target, rq *readRequest, from int64) error {
	held, err := s.hold(x.r.Context(), replyCopies*defaultReadBytes)
	if err != nil {
		return err
	}
	defer held.release()
	ctx, cancel := context.WithTimeout(x.r.Context(), readTimeout)
	defer cancel()
	p := page{}
	parts := ""
	p.span, err = s.eachRecord(ctx, t.id, from, rq.to, defaultReadBytes, func(r *kafkaproto.RecordView) verdict {
		p.body = append(p.body, r.Value...)
		parts = rawParts(r)
		p.count++
		return takenAll
	})
	if err != nil {
		return readProblem(err, p.Offsets)
	}
	info, err := s.store.Describe(t.id)
	if err != nil {
		return err
	}
	atEnd := info.Closed && p.next == info.HighWatermark && info.HighWatermark == info.Next
	x.spanHeader(t, p.span, atEnd)
	s.m.records.WithLabelValues(recordsOut).Add(float64(p.count))
	if p.count == 0 {
		x.noContent()
		return nil
	}
	h := x.Header()
	h.Set("Content-Type", mediaBytes)
	if info.Settings.ContentType != "" {
		h.Set("Content-Type", info.Settings.ContentType)
	}
	h.Set(headerRecord, parts)
	return x.writeCached(t, rq, from, &p, atEnd)
}

// rawParts are the parts of a record beside its value, form-encoded. All but offset and null are parameters that would
// append the record again.
func rawParts(r *kafkaproto.RecordView) string {
	parts := []string{"offset=" + strconv.FormatInt(r.Offset, 10), "timestamp=" + strconv.FormatInt(r.Timestamp, 10)}
	if r.Key != nil {
		parts = append(parts, "key="+url.QueryEscape(string(r.Key)))
	}
	if r.Value == nil {
		parts = append(parts, "null=true")
	}
	for name, value := range r.Headers() {
		parts = append(parts, "header="+url.QueryEscape(string(name)+"="+string(value)))
	}
	return strings.Join(parts, "&")
}

// streamedPage is what is read and sent at a time of a reply that is streamed, in bytes.
const streamedPage = 256 << 10

// readStreamed answers with records as NDJSON or as batches, all up to the end that the stream has when the reply reaches
// it, or up to the client's limits. The reply is read and sent piece by piece; Brooklet-Next-Offset follows it as a trailer.
func (s *Server) readStreamed(x *exchange, t *target, rq *readRequest, from int64) error {
	ctx := x.r.Context()
	held, err := s.hold(ctx, replyCopies*streamedPage)
	if err != nil {
		return err
	}
	defer held.release()
	o, err := s.store.Offsets(t.id)
	if err != nil {
		return err
	}
	h := x.Header()
	h.Set("Content-Type", rq.streamedMedia())
	h.Set("Cache-Control", cacheNever)
	h.Set(headerStreamID, formatID(t.id))
	x.setOffset(headerStartOffset, o.Start)
	x.setOffset(headerEndOffset, o.HighWatermark)
	h.Set("Trailer", headerNextOffset+", "+headerClosed)
	next, left := from, *rq
	for sent := 0; ; {
		p, err := s.streamedPage(x, t.id, next, &left)
		if err != nil {
			return readProblem(err, p.Offsets)
		}
		next = p.next
		sent += len(p.body)
		s.m.records.WithLabelValues(recordsOut).Add(float64(p.count))
		if err := p.send(x); err != nil {
			x.cut(err)
			return nil
		}
		if left.limit -= p.count; rq.limit > 0 && left.limit <= 0 || p.count == 0 || next >= rq.to || rq.maxBytes > 0 && sent >= rq.maxBytes {
			break
		}
	}
	atEnd, err := s.atEnd(t.id, next)
	if err != nil && !errors.Is(err, streamstore.ErrNoStream) {
		return err
	}
	x.setOffset(headerNextOffset, next)
	if atEnd {
		h.Set(headerClosed, "true")
	}
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	return nil
}

// streamedMedia is the media type of a reply that is a sequence of records.
func (rq *readRequest) streamedMedia() string {
	if rq.form == formBatches {
		return mediaBatches
	}
	return mediaNDJSON
}

// readPolled answers a long poll with records as NDJSON or as batches.
func (s *Server) readPolled(x *exchange, t *target, rq *readRequest, from int64) error {
	maxBytes := rq.maxBytes
	setDefault(&maxBytes, min(defaultReadBytes, s.opts.MaxReadBytes))
	held, err := s.hold(x.r.Context(), replyCopies*int64(maxBytes))
	if err != nil {
		return err
	}
	defer held.release()
	p, err := s.streamedPage(x, t.id, from, rq)
	if err != nil {
		return readProblem(err, p.Offsets)
	}
	atEnd, err := s.atEnd(t.id, p.next)
	if err != nil {
		return err
	}
	x.spanHeader(t, p.span, atEnd)
	if p.count == 0 {
		x.noContent()
		return nil
	}
	s.m.records.WithLabelValues(recordsOut).Add(float64(p.count))
	x.Header().Set("Content-Type", rq.streamedMedia())
	x.Header().Set("Cache-Control", cacheNever)
	return x.writeBody(http.StatusOK, p.body)
}

// send sends what is in the body and empties it.
func (p *page) send(x *exchange) error {
	if p.sendErr == nil && len(p.body) > 0 {
		_, p.sendErr = x.Write(p.body)
		p.body = p.body[:0]
	}
	return p.sendErr
}

// streamedPage reads the next piece of a reply that is streamed. If that has no limit of bytes, a piece ends with a batch,
// and parts of it may be sent already.
func (s *Server) streamedPage(x *exchange, id streamstore.StreamID, from int64, rq *readRequest) (p page, err error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), readTimeout)
	defer cancel()
	maxBytes := streamedPage
	if rq.maxBytes > 0 {
		maxBytes = min(maxBytes, rq.maxBytes)
	}
	if rq.form == formNDJSON {
		p.span, err = s.eachRecord(ctx, id, from, rq.to, maxBytes, func(r *kafkaproto.RecordView) verdict {
			size := len(p.body)
			p.body = append(appendRecord(p.body, r, "", rq.values), '\n')
			if rq.maxBytes > 0 || rq.live != "" {
				return p.take(size, rq, maxBytes)
			}
			return p.takeAndSend(x, rq, maxBytes)
		})
		return p, err
	}
	p.span, err = s.eachBatch(ctx, id, from, rq.to, maxBytes, func(b kafkaproto.RecordBatch) bool {
		if len(p.body) > 0 && (len(p.body)+len(b) > maxBytes || rq.limit > 0 && p.count >= rq.limit) {
			return false
		}
		p.body = append(p.body, b...)
		p.count += int(b.RecordCount())
		return true
	})
	return p, err
}
