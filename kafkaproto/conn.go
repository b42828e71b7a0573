package kafkaproto

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
)

// closing is why a connection ends. The first one reported counts.
type closing struct {
	reason closeReason
	err    error
	stack  []byte // of a panic
}

// conn is one client connection: a goroutine that reads requests and starts them, and
// one that finishes them and writes the responses. The queue between them keeps the
// order.
type conn struct {
	srv  *Server
	nc   net.Conn
	host string
	fr   frameReader
	info *ConnInfo // of the reading goroutine; replaced, never changed

	ctx    context.Context
	cancel context.CancelFunc

	queue    chan *pending
	inFlight chan struct{} // holds one token per unanswered request
	control  chan struct{} // and those of requests other than Produce, see alone
	free     atomic.Bool   // a request uses freeBytes
	lastSent atomic.Int64  // when the last response was written, Unix nanoseconds

	mu struct {
		sync.Mutex
		cause    *closing
		stopped  bool // no further request is read
		draining chan struct{}
		linger   *time.Timer
	}

	clientID string // last seen, for the log line; of the reading goroutine
	served   int    // of the reading goroutine
}

// pending is a request on its way through a connection.
type pending struct {
	key, version  int16
	correlationID int32
	elements      int64 // of a request other than Produce
	reply         Reply // nil: no response
	receivedAt    time.Time

	frame, decoding, decoded, response lease

	free    int64 // of the connection's freeBytes
	control int   // tokens
}

func newConn(s *Server, nc net.Conn, id uint64) *conn {
	c := &conn{
		srv:      s,
		nc:       nc,
		host:     hostOf(nc.RemoteAddr()),
		queue:    make(chan *pending, s.opts.MaxInFlight),
		inFlight: make(chan struct{}, s.opts.MaxInFlight),
		control:  make(chan struct{}, maxControlInFlight),
	}
	c.mu.draining = make(chan struct{})
	c.info = &ConnInfo{ID: id, Remote: nc.RemoteAddr(), Local: nc.LocalAddr(), draining: c.mu.draining}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.fr = frameReader{
		br:              bufio.NewReaderSize(nc, readBufferBytes),
		versions:        s.opts.Versions,
		maxBytes:        s.opts.MaxFrameBytes,
		maxControlBytes: s.opts.MaxControlFrameBytes,
		setDeadline:     c.setReadDeadline,
		timeout:         s.opts.FrameTimeout,
		first:           true,
	}
	return c
}

// serve runs the connection to its end.
func (c *conn) serve() {
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.writeLoop()
	}()
	c.end(c.readLoop())
	close(c.queue)
	<-written
	c.cut()
	c.logEnd()
}

// cut ends everything at once.
func (c *conn) cut() {
	c.cancel()
	c.mu.Lock()
	if c.mu.linger != nil {
		c.mu.linger.Stop()
	}
	c.mu.Unlock()
	// The peer may be gone; there is nothing to do about an error here.
	_ = c.nc.Close()
}

// end records why the connection ends and lets the answers to requests already
// started leave, within WriteTimeout, unless the peer is gone anyway.
func (c *conn) end(cl closing) {
	switch cl.reason {
	case closedByClient, closedWrite:
		c.setCause(cl)
		c.cut()
	default:
		c.setCause(cl)
		c.stopReading()
		if cl.reason == closedDrain {
			return // Shutdown's context bounds the wait
		}
		c.mu.Lock()
		if c.mu.linger == nil {
			c.mu.linger = time.AfterFunc(c.srv.opts.WriteTimeout, c.cut)
		}
		c.mu.Unlock()
	}
}

func (c *conn) setCause(cl closing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.cause == nil {
		c.mu.cause = &cl
	}
}

// stopReading makes the reading goroutine stop at the next chance and tells replies
// that wait to answer now.
func (c *conn) stopReading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		return
	}
	c.mu.stopped = true
	close(c.mu.draining)
	// Only a closed connection refuses a deadline, and then reading ends as well.
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}

func (c *conn) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stopped
}

// setReadDeadline sets the deadline, unless stopReading has set the last one.
func (c *conn) setReadDeadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.stopped {
		_ = c.nc.SetReadDeadline(t) // as above
	}
}

// readLoop reads and starts requests until something ends it.
func (c *conn) readLoop() closing {
	for {
		if err := c.takeToken(c.inFlight, c.mu.draining); err != nil {
			return c.readFault(err)
		}
		if cl, ok := c.awaitByte(); !ok {
			return cl
		}
		p, err := c.readAndStart()
		if err != nil {
			if p != nil {
				c.release(p)
			}
			return c.readFault(err)
		}
		c.served++
		c.queue <- p // never blocks: there are no more entries than tokens
	}
}

// awaitByte waits for the next request to begin.
func (c *conn) awaitByte() (closing, bool) {
	idle := c.srv.opts.IdleTimeout
	deadline := time.Now().Add(idle)
	if c.fr.first {
		deadline = time.Now().Add(c.srv.opts.FirstByteTimeout)
	}
	for {
		if c.isStopped() {
			return closing{reason: closedDrain}, false
		}
		c.setReadDeadline(deadline)
		_, err := c.fr.br.Peek(1)
		switch {
		case err == nil:
			return closing{}, true
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return closing{reason: closedByClient, err: err}, false
		case c.isStopped():
			return closing{reason: closedDrain}, false
		case c.fr.first:
			return closing{reason: closedFirstByte, err: fmt.Errorf("connected and sent nothing for %v", c.srv.opts.FirstByteTimeout)}, false
		}
		// Not idle while an answer is due or has just left. One of the tokens is ours.
		if len(c.inFlight) > 1 {
			deadline = time.Now().Add(idle)
			continue
		}
		deadline = time.Unix(0, c.lastSent.Load()).Add(idle)
		if !time.Now().Before(deadline) {
			return closing{reason: closedIdle, err: fmt.Errorf("no request for %v", idle)}, false
		}
	}
}

// readAndStart reads one request and hands it to the handler. On an error the
// returned pending, if any, still holds memory.
func (c *conn) readAndStart() (*pending, error) {
	head, err := c.fr.readHead()
	if err != nil {
		return nil, err
	}
	p := &pending{key: head.key, version: head.version}
	if p.key != KeyProduce {
		if err := c.takeToken(c.control, c.mu.draining); err != nil {
			return p, err
		}
		p.control++
	}
	frame, err := c.fr.readBody(head.size, func(n int) error { return c.chargeFrame(p, head.size, int64(n)) })
	if err != nil {
		return p, err
	}
	p.receivedAt = time.Now()
	c.srv.metrics.request(head.key, len(frame))
	if head.tooNew {
		c.startTooNew(p, frame)
		p.frame.release()
		return p, nil
	}
	req, err := c.decode(p, frame)
	if err != nil {
		return p, err
	}
	if err := c.makeRoomForResponse(p); err != nil {
		return p, err
	}
	p.reply, err = c.handle(req)
	return p, err
}

// startTooNew answers an ApiVersions request of a version from the future. Of its
// header, only what no version can change is read.
func (c *conn) startTooNew(p *pending, frame []byte) {
	w := wire{b: frame[4:]}
	p.correlationID, p.version = w.int32(), 0
	p.reply = func(context.Context) (kmsg.Response, error) {
		return c.srv.opts.Versions.unsupportedApiVersions(), nil
	}
}

func (c *conn) decode(p *pending, frame []byte) (*Request, error) {
	body := newRequest(p.key, p.version)
	h, err := parseHeader(frame, body.IsFlexible())
	if err != nil {
		return nil, err
	}
	c.clientID = h.clientID
	p.correlationID = h.correlationID
	if p.key == KeyProduce {
		err = c.decodeProduce(p, &h, body)
	} else {
		body, err = c.decodeControl(p, &h, body, len(frame))
	}
	if err != nil {
		return nil, err
	}
	if av, ok := body.(*kmsg.ApiVersionsRequest); ok && av.Version >= 3 {
		c.info = c.info.introduced(av)
	}
	return &Request{
		Conn:          c.info,
		Key:           p.key,
		Version:       p.version,
		CorrelationID: h.correlationID,
		ClientID:      h.clientID,
		Body:          body,
		Size:          len(frame),
		ReceivedAt:    p.receivedAt,
	}, nil
}

// decodeProduce charges what the structs take together with the frame.
func (c *conn) decodeProduce(p *pending, h *header, body kmsg.Request) error {
	shape, err := walkProduce(p.version, h.body)
	if err != nil {
		return err
	}
	if err := c.hold(p, &p.frame, c.srv.mem.frames.small, shape.decodedBytes()+int64(len(h.clientID))); err != nil {
		return err
	}
	return parseBody(body, h.body)
}

// decodeControl decodes a request other than Produce into body and replaces the charge
// for its frame by one for what stays. That is known afterwards only. To wait then would
// be to hold memory that nobody counts: the body is given up instead, and decoded again
// when there is room.
func (c *conn) decodeControl(p *pending, h *header, body kmsg.Request, size int) (kmsg.Request, error) {
	for charged := false; ; charged = true {
		shape, err := c.decodeGated(p, h, body, size)
		if err != nil {
			return nil, err
		}
		kept := shape.bytes + int64(len(h.clientID))
		if shape.aliases {
			kept += int64(size)
		}
		b := c.srv.mem.decoded.of(kept)
		free := !charged && c.takeFree(p, kept-p.free) // instead of what the frame uses
		if charged || free || b.tryAcquire(&p.decoded, kept) {
			if !free {
				c.leaveFree(p)
			}
			p.frame.release()
			p.elements = shape.elements
			if kept > aloneBytes {
				return body, c.alone(p)
			}
			return body, nil
		}
		body = nil
		if err := c.acquire(b, &p.decoded, kept); err != nil {
			return nil, err
		}
		body = newRequest(p.key, p.version)
	}
}

// decodeGated decodes while it holds what that may allocate at most.
func (c *conn) decodeGated(p *pending, h *header, body kmsg.Request, size int) (requestShape, error) {
	cost, mostBytes := int64(len(h.body))*decodeFactor, int64(maxDecodedBytes)
	if size > c.fr.maxControlBytes { // only a bulk request gets here
		elements, err := walkBulk(p.key, p.version, h.body)
		if err != nil {
			return requestShape{}, err
		}
		cost = int64(len(h.body)) + int64(elements)*decodeFactor
		mostBytes = cost
	}
	if err := c.acquire(c.srv.mem.decoding.of(int64(size)), &p.decoding, cost); err != nil {
		return requestShape{}, err
	}
	defer p.decoding.release()
	if err := parseBody(body, h.body); err != nil {
		return requestShape{}, err
	}
	shape := measure(body)
	return shape, shape.check(h.key, mostBytes)
}

// handlerError wraps what a handler or a reply returned.
type handlerError struct {
	key, version int16
	err          error
}

func (e *handlerError) Error() string {
	return fmt.Sprintf("%s v%d: %v", kmsg.NameForKey(e.key), e.version, e.err)
}

func (e *handlerError) Unwrap() error { return e.err }

// panicError is a recovered panic.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func recoverTo(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{value: p, stack: debug.Stack()}
	}
}

func (c *conn) handle(r *Request) (reply Reply, err error) {
	reply, err = func() (_ Reply, err error) {
		defer recoverTo(&err)
		return c.srv.handler.Handle(c.ctx, r)
	}()
	if err != nil {
		return nil, &handlerError{r.Key, r.Version, err}
	}
	return reply, nil
}

// readFault turns an error of the reading side into the reason to close.
func (c *conn) readFault(err error) closing {
	if c.ctx.Err() != nil {
		return closing{reason: closedByClient, err: err} // cut already, with a cause of its own
	}
	if errors.Is(err, errDraining) || c.isStopped() && errors.Is(err, os.ErrDeadlineExceeded) {
		return closing{reason: closedDrain}
	}
	if errors.Is(err, errNoMemory) {
		return closing{reason: closedMemory, err: err}
	}
	if pe, ok := errors.AsType[*parseError](err); ok {
		c.srv.metrics.malformed[pe.kind].Inc()
		switch pe.kind {
		case malformedKey, malformedVersion:
			return closing{reason: closedUnsupported, err: err}
		case malformedCut:
			return closing{reason: closedByClient, err: err}
		}
		return closing{reason: closedMalformed, err: err}
	}
	if _, ok := errors.AsType[*handlerError](err); ok {
		return handlerFault(err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return closing{reason: closedFrame, err: err}
	}
	return closing{reason: closedByClient, err: err}
}

func handlerFault(err error) closing {
	if pe, ok := errors.AsType[*panicError](err); ok {
		return closing{reason: closedPanic, err: err, stack: pe.stack}
	}
	return closing{reason: closedHandler, err: err}
}

// writeLoop finishes requests in order. After the first failure it only gives their
// memory back.
func (c *conn) writeLoop() {
	failed := false
	for p := range c.queue {
		if !failed && c.ctx.Err() == nil {
			if cl, ok := c.finish(p); !ok {
				failed = true
				c.setCause(cl)
				c.cut()
			}
		}
		c.release(p)
		<-c.inFlight
	}
}

// finish waits for a request's response and writes it.
func (c *conn) finish(p *pending) (closing, bool) {
	if p.reply == nil {
		c.srv.metrics.response(p.key, 0, p.receivedAt)
		return closing{}, true
	}
	buffers := buffersFor(p.key)
	buf := buffers.get()
	defer func() { buffers.put(buf) }()
	resp, err := c.encode(buf, p)
	r, ownMemory := resp.(Releaser)
	if ownMemory {
		defer r.Release()
	}
	if err != nil {
		if c.ctx.Err() != nil {
			return closing{reason: closedByClient, err: err}, false
		}
		return handlerFault(&handlerError{p.key, p.version, err}), false
	}
	// The peer decides how long writing takes; only what is written is kept meanwhile.
	p.reply, resp = nil, nil
	c.releaseRequest(p)
	buf = buffers.fit(buf)
	size := len(*buf)
	c.srv.expected[p.key].learn(p.elements, int64(size))
	if err := c.chargeResponse(p, int64(cap(*buf)), ownMemory); err != nil {
		return closing{reason: closedMemory, err: fmt.Errorf("a response of %d bytes: %w", size, err)}, false
	}
	if size > 0 {
		if err := c.write(*buf); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return closing{reason: closedWrite, err: fmt.Errorf("the client does not read its responses, or slower than %d KiB/s: %w", minRate>>10, err)}, false
			}
			return closing{reason: closedByClient, err: err}, false
		}
		c.lastSent.Store(time.Now().UnixNano())
	}
	c.srv.metrics.response(p.key, size, p.receivedAt)
	return closing{}, true
}

// encode asks for the response and puts it, framed, into buf. buf is left empty if
// there is none.
func (c *conn) encode(buf *[]byte, p *pending) (resp kmsg.Response, err error) {
	defer recoverTo(&err)
	*buf = (*buf)[:0]
	resp, err = p.reply(c.ctx)
	if err != nil || resp == nil {
		return resp, err
	}
	if resp.Key() != p.key {
		return resp, fmt.Errorf("the handler answered with a %s response", kmsg.NameForKey(resp.Key()))
	}
	resp.SetVersion(p.version)
	*buf, err = appendResponse(*buf, resp, p.correlationID)
	return resp, err
}

// appendResponse appends size, header and body of resp. The header of an ApiVersions
// response has no tags in any version: a client must be able to read it before it
// knows the broker's versions (KIP-511).
func appendResponse(dst []byte, resp kmsg.Response, correlationID int32) ([]byte, error) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(correlationID))
	if resp.IsFlexible() && resp.Key() != KeyApiVersions {
		dst = append(dst, 0)
	}
	dst = resp.AppendTo(dst)
	size := len(dst) - start - 4
	if size > maxResponseBytes {
		return dst[:start], fmt.Errorf("a response of %d bytes cannot be framed", size)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(size))
	return dst, nil
}

const (
	maxResponseBytes = 1<<31 - 1
	writeStepBytes   = 256 << 10
)

// write sends b. The peer may be slow, within pace.
func (c *conn) write(b []byte) error {
	pace := startPace(c.srv.opts.WriteTimeout)
	for len(b) > 0 {
		step := b[:min(len(b), writeStepBytes)]
		if err := c.nc.SetWriteDeadline(pace.deadline); err != nil {
			return err
		}
		if _, err := c.nc.Write(step); err != nil {
			return err
		}
		pace.moved(len(step))
		b = b[len(step):]
	}
	return nil
}

// logEnd counts and logs the end of the connection.
func (c *conn) logEnd() {
	c.mu.Lock()
	cl := *c.mu.cause
	c.mu.Unlock()
	c.srv.metrics.closed[cl.reason].Inc()
	fields := []zap.Field{
		zap.Uint64("conn", c.info.ID),
		zap.String("remote", c.host),
		zap.String("reason", string(cl.reason)),
		zap.Int("requests", c.served),
		zap.Error(cl.err),
	}
	if c.clientID != "" {
		fields = append(fields, zap.String("client_id", quoteShort(c.clientID)))
	}
	switch cl.reason {
	case closedPanic:
		fields = append(fields, zap.ByteString("stack", cl.stack))
		c.srv.logBounded(zap.ErrorLevel, c.host, "handler panicked, connection closed", fields...)
	case closedHandler:
		c.srv.logBounded(zap.WarnLevel, c.host, "request failed, connection closed", fields...)
	case closedIdle, closedDrain:
		c.srv.logger.Debug("connection closed", fields...)
	case closedByClient:
		if !errors.Is(cl.err, errClosedByPeer) { // between requests, as it should be
			c.srv.logger.Debug("connection closed by the client", fields...)
			return
		}
		c.srv.logBounded(zap.InfoLevel, c.host, "connection closed by the client", fields...)
	default:
		c.srv.logBounded(zap.InfoLevel, c.host, "connection closed", fields...)
	}
}

// quoteShort makes a client's own words fit for a log.
func quoteShort(s string) string {
	const limit = 64
	if len(s) > limit {
		s = s[:limit]
	}
	return strconv.QuoteToASCII(s)
}
