package kafkaproto

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// errOverBudget is returned for a request that the budget could never hold.
var errOverBudget = errors.New("larger than the memory that all requests together may use")

// budget is a counting limit on bytes, first come, first served. It differs from a
// plain weighted semaphore in one point: a lease may grow while it is held, since a
// frame's buffer grows as its bytes arrive. Were growers to wait like anyone else,
// half-received frames could hold the whole budget and wait for each other. So
// growers go first, and if there is no room for one, a single lease may go over the
// limit until it is released; there is then always one that makes progress, and the
// excess is at most one frame.
type budget struct {
	capacity int64

	mu        sync.Mutex
	used      int64
	overdrawn *lease    // the one lease allowed to exceed capacity, or nil
	growers   []*waiter // leases that hold something already
	waiters   []*waiter
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

// acquire waits until n bytes are free and gives them to l, which holds nothing yet.
func (b *budget) acquire(ctx context.Context, l *lease, n int64) error {
	if n > b.capacity {
		return errOverBudget
	}
	l.b = b
	b.mu.Lock()
	if len(b.growers) == 0 && len(b.waiters) == 0 && b.fits(n) {
		b.give(l, n)
		b.mu.Unlock()
		return nil
	}
	w := &waiter{l: l, n: n, ready: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	b.mu.Unlock()
	return b.wait(ctx, w)
}

// grow waits for n bytes more for l.
func (l *lease) grow(ctx context.Context, n int64) error {
	b := l.b
	b.mu.Lock()
	if l.n+n > b.capacity {
		b.mu.Unlock()
		return errOverBudget
	}
	if b.giveGrower(l, n) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{l: l, n: n, ready: make(chan struct{})}
	b.growers = append(b.growers, w)
	b.mu.Unlock()
	return b.wait(ctx, w)
}

func (b *budget) wait(ctx context.Context, w *waiter) error {
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.growers = without(b.growers, w)
	b.waiters = without(b.waiters, w)
	b.wake() // those behind w may fit now
	// If w was granted meanwhile, its lease has it and gives it back on release.
	return context.Cause(ctx)
}

func without(ws []*waiter, w *waiter) []*waiter {
	if i := slices.Index(ws, w); i >= 0 {
		return slices.Delete(ws, i, i+1)
	}
	return ws
}

// shrink gives back what l holds beyond n bytes.
func (l *lease) shrink(n int64) {
	if l.b == nil {
		return
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.n <= n {
		return
	}
	l.b.used -= l.n - n
	l.n = n
	if l.b.overdrawn == l && (n == 0 || l.b.used <= l.b.capacity) {
		l.b.overdrawn = nil
	}
	l.b.wake()
}

// release gives back all that l holds.
func (l *lease) release() { l.shrink(0) }

// inUse returns the number of bytes given out.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// The methods below need b.mu.

func (b *budget) fits(n int64) bool { return b.used+n <= b.capacity }

func (b *budget) give(l *lease, n int64) {
	b.used += n
	l.n += n
}

func (b *budget) giveGrower(l *lease, n int64) bool {
	switch {
	case b.fits(n):
	case b.overdrawn == nil || b.overdrawn == l:
		b.overdrawn = l
	default:
		return false
	}
	b.give(l, n)
	return true
}

func (b *budget) wake() {
	for len(b.growers) > 0 && b.giveGrower(b.growers[0].l, b.growers[0].n) {
		close(b.growers[0].ready)
		b.growers = slices.Delete(b.growers, 0, 1)
	}
	for len(b.growers) == 0 && len(b.waiters) > 0 && b.fits(b.waiters[0].n) {
		b.give(b.waiters[0].l, b.waiters[0].n)
		close(b.waiters[0].ready)
		b.waiters = slices.Delete(b.waiters, 0, 1)
	}
}
