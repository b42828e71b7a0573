package kafkaproto

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"
)

const (
	// maxControlInFlight is the number of unanswered requests other than Produce on a
	// connection beyond which it is not read. Kafka has one; a few save clients that
	// pipeline a round trip.
	maxControlInFlight = 4
	// aloneBytes is the decoded size beyond which such a request has its connection for
	// itself.
	aloneBytes = 2 << 20
	// freeBytes may be used by one request, and by the response being written, of each
	// connection without being counted. They make a connection a little more
	// expensive; with them, small requests are served whatever holds the rest of the
	// memory.
	freeBytes = smallBuffer
	// responseFactor is how much larger than its encoding a response can be while it is
	// made of structs.
	responseFactor = 4
)

// errDraining ends a wait because the connection is about to close.
var errDraining = errors.New("draining")

// hold adds n bytes to l, which is empty or a share of its own budget; b is the one to
// take from otherwise.
func (c *conn) hold(p *pending, l *lease, b *budget, n int64) error {
	if l.n > 0 {
		b = l.b
	} else if c.takeFree(p, n) {
		return nil
	}
	return c.acquire(b, l, n)
}

// takeFree uses n more bytes of what the connection has for itself.
func (c *conn) takeFree(p *pending, n int64) bool {
	if p.free+n > freeBytes || p.free == 0 && !c.free.CompareAndSwap(false, true) {
		return false
	}
	p.free += n
	return true
}

func (c *conn) leaveFree(p *pending) {
	if p.free > 0 {
		p.free = 0
		c.free.Store(false)
	}
}

// chargeFrame charges n more bytes of a frame of size bytes. Small frames other than
// Produce are not worth it, they are gone as soon as they are decoded.
func (c *conn) chargeFrame(p *pending, size int, n int64) error {
	if p.key != KeyProduce && size <= readBufferBytes {
		return nil
	}
	return c.hold(p, &p.frame, c.srv.mem.frames.of(int64(size)), n)
}

// acquire waits for n bytes of b, on the reading goroutine.
func (c *conn) acquire(b *budget, l *lease, n int64) error {
	if b.tryAcquire(l, n) {
		return nil
	}
	c.srv.metrics.memoryWaits.Inc()
	return c.watchPeer(func(ctx context.Context) error { return acquire(ctx, b, l, n) })
}

// takeToken waits for a place in tokens, until stop is closed.
func (c *conn) takeToken(tokens chan struct{}, stop <-chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	default:
	}
	return c.watchPeer(func(ctx context.Context) error {
		select {
		case tokens <- struct{}{}:
			return nil
		case <-stop:
			return errDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// alone waits until all earlier requests of the connection but Produce are answered, and
// keeps later ones from being read.
func (c *conn) alone(p *pending) error {
	for p.control < maxControlInFlight {
		if err := c.takeToken(c.control, nil); err != nil {
			return err
		}
		p.control++
	}
	return nil
}

// watchPeer calls wait on the reading goroutine, which does not read meanwhile. The
// context ends when the peer closes the connection, as far as that shows: bytes that
// it has sent before, beyond the read buffer, hide it.
func (c *conn) watchPeer(wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	c.setReadDeadline(time.Time{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			switch _, err := c.fr.br.Peek(c.fr.br.Buffered() + 1); {
			case err == nil:
			case c.fr.br.Buffered() == readBufferBytes, errors.Is(err, os.ErrDeadlineExceeded):
				return
			default:
				cancel(err)
				return
			}
		}
	}()
	err := wait(ctx)
	c.setReadDeadline(time.Unix(1, 0)) // the next read sets its own
	<-watched
	return err
}

// releaseRequest gives back what p holds as a request.
func (c *conn) releaseRequest(p *pending) {
	p.frame.release()
	p.decoded.release()
	c.leaveFree(p)
}

// release gives back all that p holds.
func (c *conn) release(p *pending) {
	c.releaseRequest(p)
	p.response.release()
	for ; p.control > 0; p.control-- {
		<-c.control
	}
}

// answersLate tells whether requests of a key wait for news. What their response will
// take is charged when it is there: a wait is no reason to keep memory from others.
func answersLate(key int16) bool {
	switch key {
	case KeyProduce, KeyFetch, KeyJoinGroup, KeySyncGroup:
		return true
	}
	return false
}

// makeRoomForResponse charges what the response will probably take, before the handler
// makes it. Otherwise many connections could ask for large responses that nobody
// has counted when they are there. It waits for earlier requests first, since one that
// waits for news would make it keep that memory for as long.
func (c *conn) makeRoomForResponse(p *pending) error {
	if answersLate(p.key) {
		return nil
	}
	n := responseFactor * c.srv.expected[p.key].of(p.elements)
	if n <= freeBytes {
		return nil
	}
	if err := c.alone(p); err != nil {
		return err
	}
	return c.acquire(c.srv.mem.responses.of(n), &p.response, n)
}

// chargeResponse replaces the estimate by the size of the buffer that holds the encoded
// response, on the writing goroutine.
func (c *conn) chargeResponse(p *pending, size int64, ownMemory bool) error {
	b := c.srv.mem.responses.of(size)
	if ownMemory || size <= freeBytes || p.response.b != b {
		p.response.release()
	}
	if ownMemory || size <= freeBytes {
		return nil
	}
	p.response.shrink(size)
	more := size - p.response.n
	if b.tryAcquire(&p.response, more) {
		return nil
	}
	c.srv.metrics.memoryWaits.Inc()
	return acquire(c.ctx, b, &p.response, more)
}

// expectation is what responses of one key have been like: those to requests without
// any element, which often ask for everything, and per element of the others, in
// bytes.
type expectation struct{ whole, perElement atomic.Int64 }

func (e *expectation) of(elements int64) int64 {
	if elements == 0 {
		return e.whole.Load()
	}
	return elements * e.perElement.Load()
}

// learn takes a new largest response to all as it is and forgets it slowly. Elements
// are averaged, so that a client with one large topic says little about the others.
func (e *expectation) learn(elements, size int64) {
	const weight = 8
	// Of two updates at the same time one may be lost.
	if elements == 0 {
		old := e.whole.Load()
		e.whole.Store(max(size, old-(old-size)/weight))
		return
	}
	old := e.perElement.Load()
	e.perElement.Store(old + (size/elements-old)/weight)
}
