package kafkaproto

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// memoryTimeout is the longest wait for a budget.
	memoryTimeout = 30 * time.Second
	// smallBytes is the largest lease that the small budget of a pool gives.
	smallBytes = 16 << 10
)

// errNoMemory ends a wait of memoryTimeout.
var errNoMemory = fmt.Errorf("no request memory became free within %v: raise the limit on request memory, or send less at a time", memoryTimeout)

// budget is a counting limit on bytes. Nobody waits for one that waits: whoever fits
// is served, so a large wish does not block the small ones behind it. Two rules see to
// it that the large ones are served too:
//
//   - A lease has at most a quarter of the capacity.
//   - One lease at a time has the turn. It does not count against the capacity and may
//     be of any size. The oldest wish that does not fit takes it when it is free.
//
// So leases that grow while they are held, as a frame does while its bytes arrive,
// cannot fill the budget and wait for each other: one of them always goes on.
type budget struct {
	capacity int64

	mu      sync.Mutex
	used    int64 // by all leases but turn
	turn    *lease
	waiters []*waiter // oldest first; if there are any, the turn is taken
}

// lease is a share of a budget. The zero value holds nothing. n is guarded by the
// budget's mutex.
type lease struct {
	b *budget
	n int64
}

type waiter struct {
	l     *lease
	n     int64
	ready chan struct{} // closed, under the mutex, when granted
}

func newBudget(capacity int64) *budget { return &budget{capacity: capacity} }

// tryAcquire adds n bytes to l if that takes no waiting. l holds nothing or a share of
// b.
func (b *budget) tryAcquire(l *lease, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.give(l, n)
}

// acquire adds n bytes to l, which holds nothing or a share of b. It waits until ctx
// ends; the error is ctx's cause, and l is as before.
func (b *budget) acquire(ctx context.Context, l *lease, n int64) error {
	b.mu.Lock()
	if b.give(l, n) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{l: l, n: n, ready: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return b.leave(ctx, w)
	}
}

// leave ends a wait without success, unless w was granted meanwhile.
func (b *budget) leave(ctx context.Context, w *waiter) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiters, w)
	if i < 0 {
		return nil
	}
	b.waiters = slices.Delete(b.waiters, i, i+1)
	return context.Cause(ctx)
}

// shrink gives back what l holds beyond n bytes.
func (l *lease) shrink(n int64) {
	if l.b == nil {
		return
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.n > n {
		l.b.take(l, l.n-n)
	}
}

// release gives back all that l holds.
func (l *lease) release() { l.shrink(0) }

// inUse returns the number of bytes given out.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turn != nil {
		return b.used + b.turn.n
	}
	return b.used
}

// The methods below need b.mu.

func (b *budget) fits(n, total int64) bool {
	return total <= b.capacity/4 && b.used+n <= b.capacity
}

func (b *budget) give(l *lease, n int64) bool {
	switch {
	case b.turn == l:
	case b.fits(n, l.n+n):
		b.used += n
	case b.turn == nil:
		b.turn = l
		b.used -= l.n
	default:
		return false
	}
	l.b = b
	l.n += n
	return true
}

func (b *budget) take(l *lease, n int64) {
	l.n -= n
	if b.turn != l {
		b.used -= n
	}
	b.passTurn()
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		given := b.give(w.l, w.n)
		if given {
			close(w.ready)
		}
		return given
	})
}

// passTurn ends the turn of a lease that is empty or fits in without it.
func (b *budget) passTurn() {
	if b.turn != nil && b.fits(b.turn.n, b.turn.n) {
		b.used += b.turn.n
		b.turn = nil
	}
}

// pool is the budget for one use of memory, in two parts: what is large never takes
// the room of what is small.
type pool struct{ small, large *budget }

func newPool(small, large int64) pool { return pool{newBudget(small), newBudget(large)} }

// of returns the part for leases of up to n bytes.
func (p pool) of(n int64) *budget {
	if n <= smallBytes {
		return p.small
	}
	return p.large
}

func (p pool) inUse() int64 { return p.small.inUse() + p.large.inUse() }

// memory is what requests and responses of all connections may take together.
type memory struct {
	// frames holds requests as they arrive, and Produce requests until they are
	// answered.
	frames pool
	// decoding is held while kmsg decodes, which takes milliseconds, for the most that
	// decoding may allocate.
	decoding pool
	// decoded holds other requests than Produce until they are answered.
	decoded pool
	// responses holds responses until they are written, but for those with memory of
	// their own (see Releaser).
	responses pool
}

// newMemory divides MaxRequestMemory. The frame that has the turn may have up to
// MaxFrameBytes, which Validate holds at a quarter of the whole.
func newMemory(o *Options) *memory {
	part := o.MaxRequestMemory / 32
	return &memory{
		frames:    newPool(4*part, 14*part-int64(o.MaxFrameBytes)),
		decoding:  newPool(part, part),
		decoded:   newPool(2*part, 2*part),
		responses: newPool(2*part, 6*part),
	}
}

func (m *memory) requestBytes() int64  { return m.frames.inUse() + m.decoded.inUse() }
func (m *memory) responseBytes() int64 { return m.responses.inUse() }

// acquire waits for n bytes of b for l, at most memoryTimeout.
func acquire(ctx context.Context, b *budget, l *lease, n int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, memoryTimeout, errNoMemory)
	defer cancel()
	err := b.acquire(ctx, l, n)
	if err != nil && !errors.Is(err, errNoMemory) {
		return fmt.Errorf("waiting for request memory: %w", err)
	}
	return err
}
