package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/streamstore"
)

// description is a stream as JSON.
type description struct {
	Name        string `json:"name"`
	ID          string `json:"id"`
	StartOffset int64  `json:"start_offset"`
	EndOffset   int64  `json:"end_offset"`
	NextOffset  int64  `json:"next_offset"`
	Closed      bool   `json:"closed"`
	Created     string `json:"created"`
	LastWrite   string `json:"last_write"`
	settingsJSON
	// Bytes is the size of the stream's records as stored; lists do not have it.
	Bytes *int64 `json:"bytes,omitempty"`
}

// settingsJSON are the settings of a stream as JSON. Null is for ever, or no limit.
type settingsJSON struct {
	RetentionMs    *int64 `json:"retention_ms"`
	RetentionBytes *int64 `json:"retention_bytes"`
	TTLMs          *int64 `json:"ttl_ms"`
	ContentType    string `json:"content_type"`
}

// timeForm is RFC 3339 with milliseconds.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

func describe(info *streamstore.StreamInfo) description {
	return description{
		Name:         info.Name,
		ID:           formatID(info.ID),
		StartOffset:  info.Start,
		EndOffset:    info.HighWatermark,
		NextOffset:   info.Next,
		Closed:       info.Closed,
		Created:      info.Created.UTC().Format(timeForm),
		LastWrite:    info.LastWrite.UTC().Format(timeForm),
		settingsJSON: describeSettings(&info.Settings),
	}
}

func describeSettings(s *streamstore.Settings) settingsJSON {
	out := settingsJSON{ContentType: s.ContentType}
	number := func(n int64) *int64 { return &n }
	if s.Retention >= 0 {
		out.RetentionMs = number(s.Retention.Milliseconds())
	}
	if s.RetentionBytes >= 0 {
		out.RetentionBytes = number(s.RetentionBytes)
	}
	if s.TTL > 0 {
		out.TTLMs = number(s.TTL.Milliseconds())
	}
	return out
}

// settingsChange is settings as a client sends them: what is absent stays, null is for ever or no limit.
type settingsChange struct {
	RetentionMs    json.RawMessage `json:"retention_ms"`
	RetentionBytes json.RawMessage `json:"retention_bytes"`
	TTLMs          json.RawMessage `json:"ttl_ms"`
	ContentType    *string         `json:"content_type"`
}

func (c *settingsChange) empty() bool {
	return c.RetentionMs == nil && c.RetentionBytes == nil && c.TTLMs == nil && c.ContentType == nil
}

// apply changes s.
func (c *settingsChange) apply(s *streamstore.Settings) error {
	const mostMs = math.MaxInt64 / int64(time.Millisecond)
	set := func(name string, value json.RawMessage, low, high int64, none func(), some func(int64)) error {
		switch {
		case value == nil:
			return nil
		case string(value) == "null":
			none()
			return nil
		}
		var n int64
		if err := json.Unmarshal(value, &n); err != nil || n < low || n > high {
			return badSettings.new("%s is %s: write a number from %d to %d, or null", name, shorten(string(value)), low, high)
		}
		some(n)
		return nil
	}
	if c.ContentType != nil {
		if _, _, err := mime.ParseMediaType(*c.ContentType); err != nil && *c.ContentType != "" {
			return badSettings.new("content_type %q is no media type: %v", shorten(*c.ContentType), err)
		}
		s.ContentType = *c.ContentType
	}
	return errors.Join(
		set("retention_ms", c.RetentionMs, 1, mostMs, func() { s.Retention = -1 }, func(n int64) { s.Retention = time.Duration(n) * time.Millisecond }),
		set("retention_bytes", c.RetentionBytes, 0, math.MaxInt64, func() { s.RetentionBytes = -1 }, func(n int64) { s.RetentionBytes = n }),
		set("ttl_ms", c.TTLMs, 1, mostMs, func() { s.TTL = 0 }, func(n int64) { s.TTL = time.Duration(n) * time.Millisecond }),
	)
}

// readJSONBody decodes a small JSON body. An empty one leaves into as it is.
func (x *exchange) readJSONBody(into any) error {
	body, release, err := x.readBody()
	if err != nil || len(body) == 0 {
		return err
	}
	defer release()
	if t := x.r.Header.Get("Content-Type"); t != "" {
		if media, _, _ := mime.ParseMediaType(t); media != mediaJSON && !strings.HasSuffix(media, "+json") {
			return badMediaType.new("the Content-Type is %q: send %s", t, mediaJSON)
		}
	}
	if err := strictJSON(body, into); err != nil {
		return badRequest.new("the body is not what is wanted: %v", err)
	}
	return nil
}

// create answers PUT: it makes a stream. One that exists with the same settings is as good.
func (s *Server) create(x *exchange) error {
	if err := newQuery(x.r).done(); err != nil {
		return err
	}
	t, err := s.target(streamName(x.r))
	if err != nil {
		return err
	}
	if err := t.own("create"); err != nil {
		return err
	}
	onlyNew, err := createCondition(x.r)
	if err != nil {
		return err
	}
	var change settingsChange
	settings := streamstore.DefaultSettings()
	if err := x.readJSONBody(&change); err != nil {
		return err
	}
	if err := change.apply(&settings); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	info, made, err := s.createStream(ctx, t.name, settings)
	if err != nil {
		return err
	}
	x.Header().Set("Location", streamsPath+"/"+(&url.URL{Path: t.name}).EscapedPath())
	d := describe(&info)
	x.describeHeader(&info)
	switch {
	case made:
		return x.writeJSON(http.StatusCreated, &d)
	case onlyNew:
		return preconditionNo.new("the stream %q exists", t.name)
	case info.Settings != settings:
		return streamExists.new("the stream %q exists with other settings: change them with PATCH", t.name).with("stream", &d)
	}
	return x.writeJSON(http.StatusOK, &d)
}

// createCondition reads the condition of a PUT: whether the stream must be new.
func createCondition(r *http.Request) (onlyNew bool, err error) {
	if r.Header.Get("If-Match") != "" {
		return false, badRequest.new("PUT knows no If-Match: change an existing stream with PATCH")
	}
	switch match := r.Header.Get("If-None-Match"); match {
	case "":
		return false, nil
	case "*":
		return true, nil
	default:
		return false, badRequest.new("If-None-Match is %q: PUT knows * only", match)
	}
}

// createStream makes a stream unless one of that name exists, and returns the one that there is then. It is durable when
// createStream returns.
func (s *Server) createStream(ctx context.Context, name string, settings streamstore.Settings) (info streamstore.StreamInfo, made bool, err error) {
	for {
		txn := streamstore.NewTxn()
		txn.Create(name, settings)
		var result streamstore.Result
		result, err = s.store.Commit(ctx, txn)
		if err == nil {
			info, err = s.store.Describe(result.Created[0])
			return info, true, err
		}
		if !errors.Is(err, streamstore.ErrStreamExists) {
			return info, false, err
		}
		var id streamstore.StreamID
		if id, err = s.store.Lookup(name); err == nil {
			info, err = s.store.Describe(id)
		}
		if !errors.Is(err, streamstore.ErrNoStream) { // else deleted meanwhile
			return info, false, err
		}
	}
}

// describeHeader tells in the head of a reply where the stream begins and ends.
func (x *exchange) describeHeader(info *streamstore.StreamInfo) {
	h := x.Header()
	h.Set(headerStreamID, formatID(info.ID))
	x.setOffset(headerStartOffset, info.Start)
	x.setOffset(headerEndOffset, info.HighWatermark)
	x.setOffset(headerNextOffset, info.Next)
	if info.Closed {
		h.Set(headerClosed, "true")
	}
}

// head answers HEAD: what describe says, as far as it fits into the head of a reply.
func (s *Server) head(x *exchange) error {
	t, err := s.existing(streamName(x.r))
	if err != nil {
		return err
	}
	info, err := s.store.Describe(t.id)
	if err != nil {
		return err
	}
	x.describeHeader(&info)
	h := x.Header()
	h.Set("Cache-Control", cacheNever)
	h.Set("Content-Type", mediaBytes)
	if info.Settings.ContentType != "" {
		h.Set("Content-Type", info.Settings.ContentType)
	}
	x.WriteHeader(http.StatusOK)
	return nil
}

// describeStream answers GET with describe: the stream as JSON.
func (s *Server) describeStream(x *exchange, t *target) error {
	info, err := s.store.Describe(t.id)
	if err != nil {
		return err
	}
	size, err := s.store.StreamBytes(t.id)
	if err != nil {
		return err
	}
	d := describe(&info)
	d.Bytes = &size
	x.describeHeader(&info)
	return x.writeJSON(http.StatusOK, &d)
}

// streamChange is the body of a PATCH.
type streamChange struct {
	StartOffset *int64 `json:"start_offset"`
	Closed      *bool  `json:"closed"`
	settingsChange
}

// change answers PATCH: it trims a stream, closes it, and changes its settings, in one step.
func (s *Server) change(x *exchange) error {
	if err := errors.Join(newQuery(x.r).done(), noConditions(x.r)); err != nil {
		return err
	}
	t, err := s.existing(streamName(x.r))
	if err != nil {
		return err
	}
	var c streamChange
	if err := x.readJSONBody(&c); err != nil {
		return err
	}
	info, err := s.store.Describe(t.id)
	if err != nil {
		return err
	}
	txn, err := c.plan(t, &info)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	if _, err := s.store.Commit(ctx, txn); err != nil {
		return withRange(err, info.Offsets)
	}
	if info, err = s.store.Describe(t.id); err != nil {
		return err
	}
	d := describe(&info)
	x.describeHeader(&info)
	return x.writeJSON(http.StatusOK, &d)
}

// plan makes a transaction of a change.
func (c *streamChange) plan(t *target, info *streamstore.StreamInfo) (*streamstore.Txn, error) {
	txn := streamstore.NewTxn()
	if c.StartOffset == nil && c.Closed == nil && c.empty() {
		return nil, badRequest.new("nothing is to be changed: send start_offset, closed, retention_ms, retention_bytes, ttl_ms or content_type")
	}
	if !c.empty() {
		if err := t.own("configure"); err != nil {
			return nil, err
		}
		txn.Reconfigure(t.id, c.apply)
	}
	if c.Closed != nil {
		if err := t.own("close"); err != nil {
			return nil, err
		}
		if !*c.Closed && info.Closed {
			return nil, streamClosed.new("a closed stream cannot be opened again").withHeader(headerClosed, "true")
		}
		if *c.Closed {
			txn.Close(t.id)
		}
	}
	if c.StartOffset != nil {
		if *c.StartOffset < 0 {
			return nil, badRequest.new("start_offset is %d; it must not be negative", *c.StartOffset)
		}
		txn.Trim(t.id, *c.StartOffset)
	}
	return txn, nil
}

// withRange adds the offsets of the stream to an error about an offset out of range.
func withRange(err error, o streamstore.Offsets) error {
	if !errors.Is(err, streamstore.ErrOffsetOutOfRange) {
		return err
	}
	return asProblem(err).
		withOffset(headerStartOffset, "start_offset", o.Start).
		withOffset(headerEndOffset, "end_offset", o.HighWatermark)
}

// noConditions refuses conditions that would be ignored.
func noConditions(r *http.Request) error {
	for _, name := range []string{"If-Match", "If-None-Match", "If-Unmodified-Since"} {
		if r.Header.Get(name) != "" {
			return badRequest.new("%s knows no %s", r.Method, name)
		}
	}
	return nil
}

// delete answers DELETE: it removes a stream with all its records.
func (s *Server) delete(x *exchange) error {
	if err := errors.Join(newQuery(x.r).done(), noConditions(x.r), x.noBody()); err != nil {
		return err
	}
	t, err := s.existing(streamName(x.r))
	if err != nil {
		return err
	}
	if err := t.own("delete"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	txn := streamstore.NewTxn()
	txn.Delete(t.id)
	if _, err := s.store.Commit(ctx, txn); err != nil {
		return err
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}
