package httpapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// durableCreation is what a PUT asks for.
type durableCreation struct {
	contentType string // "" if the request has none
	ttl         time.Duration
	expiresAt   time.Time
	closed      bool
	fork        *forkRequest // nil if the stream is no fork
}

// readCreation reads the headers of a PUT.
func readCreation(h http.Header) (*durableCreation, error) {
	c := &durableCreation{contentType: h.Get("Content-Type"), closed: saysTrue(h, headerDurableClosed)}
	if _, ok := h[http.CanonicalHeaderKey(headerDurableTTL)]; ok {
		text := h.Get(headerDurableTTL)
		seconds, err := plainNumber(text, math.MaxInt64/int64(time.Second))
		if err != nil {
			return nil, badSettings.new("%s is %q: %v", headerDurableTTL, shorten(text), err)
		}
		// A stream that lives for no time at all is one that has expired when it is looked at.
		c.ttl = max(time.Duration(seconds)*time.Second, time.Millisecond)
	}
	if _, ok := h[http.CanonicalHeaderKey(headerDurableExpires)]; ok {
		if c.ttl > 0 {
			return nil, badSettings.new("%s and %s are both given: a stream has one of them", headerDurableTTL, headerDurableExpires)
		}
		text := h.Get(headerDurableExpires)
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, badSettings.new("%s is %q: write a time in the form of RFC 3339, such as 2030-01-31T12:00:00Z", headerDurableExpires, shorten(text))
		}
		c.expiresAt = time.UnixMilli(max(at.UnixMilli(), 1)).UTC() // the store keeps milliseconds
	}
	var err error
	c.fork, err = readFork(h)
	return c, err
}

// plainNumber reads a decimal number without sign and leading zeros.
func plainNumber(text string, most int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most || strconv.FormatInt(n, 10) != text {
		return 0, errors.New("write a number from 0 to " + strconv.FormatInt(most, 10) + ", without a sign and leading zeros")
	}
	return n, nil
}

// settings are those of a stream that is made by the request.
func (c *durableCreation) settings(from *forkSource) (streamstore.Settings, error) {
	s := streamstore.DefaultSettings()
	s.ContentType, s.TTL, s.ExpiresAt = c.contentType, c.ttl, c.expiresAt
	if from == nil {
		if s.ContentType == "" {
			s.ContentType = mediaBytes
		}
		return s, nil
	}
	if c.contentType != "" && durableMedia(c.contentType) != from.media() {
		return s, durableMismatch.new("the source of the fork has the content type %q, the request %q", from.contentType(), c.contentType)
	}
	s.ContentType = from.contentType()
	if s.TTL == 0 && s.ExpiresAt.IsZero() {
		s.TTL, s.ExpiresAt = from.info.Settings.TTL, from.info.Settings.ExpiresAt
	}
	return s, nil
}

// matches tells why an existing stream is not the one that the request would make, or returns nil. What a fork would have
// of its source is not compared: that may have changed since.
func (s *Server) matches(c *durableCreation, d *durableStream) error {
	differs := func(what string) error {
		return streamExists.new("the stream %q exists with another %s", d.name, what)
	}
	have := d.info.Settings
	switch {
	case (c.fork == nil || c.contentType != "") && durableMedia(c.contentType) != d.media():
		return differs("content type, " + d.contentType())
	case (c.fork == nil || c.ttl > 0) && c.ttl != have.TTL:
		return differs("time to live")
	case (c.fork == nil || !c.expiresAt.IsZero()) && !c.expiresAt.Equal(have.ExpiresAt):
		return differs("end of life")
	case c.closed != d.info.Closed:
		return differs("state: one is closed, the other is not")
	case c.fork == nil:
		return nil
	}
	o, err := s.originOf(d.id)
	if err != nil {
		return err
	}
	if o == nil || o.name != c.fork.source || c.fork.hasOffset && o.offset != c.fork.offset || o.sub != c.fork.sub {
		return differs("origin")
	}
	return nil
}

// durableCreate answers PUT.
func (s *Server) durableCreate(x *exchange) error {
	c, err := readCreation(x.r.Header)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	var first kafkaproto.RecordBatch
	for read := false; ; {
		d, err := s.durableStream(durableName(x.r))
		switch {
		case err != nil:
			return err
		case d.gone:
			return streamExists.new("the stream %q was deleted; its name is free when all of its forks are deleted, too", d.name)
		case d.id != 0:
			if err := s.matches(c, d); err != nil {
				return err
			}
			return s.durableCreated(x, d, http.StatusOK)
		}
		if err := d.own("create"); err != nil {
			return err
		}
		from, err := s.forkSource(c.fork)
		if err != nil {
			return err
		}
		settings, err := c.settings(from)
		if err != nil {
			return err
		}
		if !read {
			if first, err = s.firstBatch(x, d, settings.ContentType); err != nil {
				return err
			}
			read = true
		}
		id, err := s.makeDurable(ctx, x.r.Context(), d, settings, from, c.closed, first)
		if errors.Is(err, streamstore.ErrStreamExists) {
			continue // made meanwhile
		}
		if err != nil {
			return durableProblem(err)
		}
		s.maySweep()
		d.id = id
		if d.info, err = s.store.Describe(id); err != nil {
			return err
		}
		return s.durableCreated(x, d, http.StatusCreated)
	}
}

func (s *Server) durableCreated(x *exchange, d *durableStream, status int) error {
	h := x.Header()
	h.Set("Content-Type", d.contentType())
	h.Set("Cache-Control", cacheNever)
	h.Set(headerDurableNext, formatDurable(d.info.HighWatermark))
	if d.info.Closed {
		h.Set(headerDurableClosed, "true")
	}
	if status == http.StatusCreated {
		scheme := "http://"
		if x.r.TLS != nil {
			scheme = "https://"
		}
		h.Set("Location", scheme+x.r.Host+durablePathOf(d.name))
	}
	h.Set("Content-Length", "0")
	x.WriteHeader(status)
	return nil
}

// firstBatch makes a batch of the body of a PUT, nil if there is nothing in it.
func (s *Server) firstBatch(x *exchange, d *durableStream, contentType string) (kafkaproto.RecordBatch, error) {
	body, release, err := x.readBody()
	if err != nil {
		return nil, err
	}
	defer release()
	if len(body) == 0 {
		return nil, nil
	}
	batch, err := s.durableBatch(d.target, body, durableMedia(contentType) == mediaJSON, nil)
	if errors.Is(err, errNoMessages) {
		return nil, nil
	}
	return batch, err
}

// nurseryPrefix begins the names of streams that are being filled. Their names are given to them when they are complete, so
// that a crash leaves none half made; what it leaves here has a time to live.
const (
	nurseryPrefix = "_ds/new/"
	nurseryTTL    = 10 * time.Minute
)

// makeDurable makes the stream of d: a copy of from, if that is not nil, and behind it first. It is there with all of that
// or not at all, and is durable when makeDurable returns. copying is for the copy, which takes as long as it takes.
func (s *Server) makeDurable(ctx, copying context.Context, d *durableStream, settings streamstore.Settings, from *forkSource, closed bool, first kafkaproto.RecordBatch) (streamstore.StreamID, error) {
	txn := streamstore.NewTxn()
	if d.expired != 0 {
		txn.Delete(d.expired)
		if err := s.unsetRows(txn, d.expired); err != nil {
			return 0, err
		}
	}
	txn.Unset([]byte(rowGone + d.name))
	if from == nil && first == nil && !closed {
		txn.Create(d.name, settings)
		result, err := s.store.Commit(ctx, txn)
		if err != nil {
			return 0, s.retryExpired(d, err)
		}
		return result.Created[0], nil
	}
	id, err := s.nursery(ctx, from)
	if err != nil {
		return 0, err
	}
	err = s.fillDurable(ctx, copying, id, from, first)
	if err == nil {
		txn.Rename(id, d.name)
		txn.Configure(id, settings)
		if closed {
			txn.Close(id)
		}
		if from != nil {
			o := from.origin()
			txn.Set(idRow(rowOrigin, id), o.encode())
			txn.Set(idRow(rowFork, o.source, id), nil)
		}
		ctx, cancel := context.WithTimeout(copying, s.opts.AppendTimeout)
		defer cancel()
		_, err = s.store.Commit(ctx, txn)
	}
	if err != nil {
		s.abandon(id)
		return 0, s.retryExpired(d, err)
	}
	return id, nil
}

// retryExpired makes an error that says to look again of one that comes because the expired stream was deleted meanwhile.
func (s *Server) retryExpired(d *durableStream, err error) error {
	if d.expired != 0 && errors.Is(err, streamstore.ErrNoStream) {
		return streamstore.ErrStreamExists
	}
	return err
}

// nursery makes a stream without a name of its own.
func (s *Server) nursery(ctx context.Context, from *forkSource) (streamstore.StreamID, error) {
	settings := streamstore.DefaultSettings()
	settings.TTL = nurseryTTL
	name := nurseryPrefix + rand.Text()
	if from == nil || from.start == 0 {
		return s.store.Ensure(ctx, name, settings)
	}
	txn := streamstore.NewTxn()
	txn.CreateAt(name, settings, from.start)
	result, err := s.store.Commit(ctx, txn)
	if err != nil {
		return 0, err
	}
	return result.Created[0], nil
}

// fillDurable appends what a new stream begins with. It does not wait until that is durable: the change that gives the
// stream its name is behind it.
func (s *Server) fillDurable(ctx, copying context.Context, id streamstore.StreamID, from *forkSource, first kafkaproto.RecordBatch) error {
	if from != nil {
		if err := s.copyFork(copying, id, from); err != nil {
			return err
		}
	}
	if first == nil {
		return nil
	}
	_, err := s.store.Append(ctx, streamstore.AppendRequest{Stream: id, Batch: bytes.Clone(first), Expected: streamstore.AnyOffset})
	return err
}

// abandon removes a stream that gets no name. If it fails, the stream's time to live does it.
func (s *Server) abandon(id streamstore.StreamID) {
	ctx, cancel := s.appendContext()
	defer cancel()
	txn := streamstore.NewTxn()
	txn.Delete(id)
	if _, err := s.store.Commit(ctx, txn); err != nil {
		s.log.Sugar().Debugf("removing the unfinished stream %d: %v", id, err)
	}
}

// appendContext is for changes that no request waits for.
func (s *Server) appendContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.opts.AppendTimeout)
}
