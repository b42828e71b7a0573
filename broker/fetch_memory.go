package broker

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

const (
	// replyCopies is how often the records of a reply are in memory at the worst moment: gathered, and encoded.
	replyCopies = 2
	// memoryShare: the records of one reply may take this part of the memory that is free. A connection writes one
	// reply at a time, so this bounds connections as well: however much they ask for and however slowly they read,
	// each leaves seven eighths of what it found to the others.
	memoryShare = 8
	// memorySpare is the part of the memory that is kept for the first records of a reply.
	memorySpare = 8
	// firstRecords is what a reply without records gets out of the spare memory too, in bytes of records.
	firstRecords = 1 << 20
)

// fetchMemory bounds the memory that the records of replies in flight hold. It is given out in three ways:
//
//   - a reply takes up to a share of what is free, without waiting and without touching the spare part;
//   - one that has no records yet takes firstRecords from all that is free, and waits for them, first come, first
//     served. Only those wait: fetches that held memory and waited for more could wait for each other;
//   - a first batch that is larger than what was taken for it goes beyond the limit, so that no batch blocks its reader
//     for good. Nobody gets anything then until enough has come back.
type fetchMemory struct {
	total, spare int64
	m            *fetchMetrics

	mu struct {
		sync.Mutex
		held    int64 // above total for a while after a large first batch
		waiters []*memoryWaiter
	}
}

func newFetchMemory(total int64, m *fetchMetrics) *fetchMemory {
	return &fetchMemory{total: total, spare: total / memorySpare, m: m}
}

// reservation is what one reply holds.
type reservation struct {
	pool  *fetchMemory
	bytes int   // of records
	held  int64 // of the pool
}

// memoryWaiter is a reservation of nothing that waits for its first records.
type memoryWaiter struct {
	r       *reservation
	n       int
	ready   chan struct{} // closed when granted
	granted int
}

// take reserves up to n bytes of records, without waiting. ok is false if there is nothing to be had.
func (r *reservation) take(n int) (granted int, ok bool) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.bytes == 0 && len(p.mu.waiters) > 0 && n > 0 {
		return 0, false // others were here before
	}
	return p.takeLocked(r, n)
}

func (p *fetchMemory) takeLocked(r *reservation, n int) (granted int, ok bool) {
	if n == 0 && r.bytes > 0 {
		return 0, true
	}
	free := p.total - p.mu.held
	room := int((free+r.held-p.spare)/memoryShare/replyCopies) - r.bytes
	if r.bytes == 0 {
		first := min(n, firstRecords)
		if min(first*replyCopies, int(p.total)) > int(max(free, 0)) {
			return 0, false
		}
		room = max(room, first)
	}
	granted = min(n, room)
	if granted < 0 || granted == 0 && n > 0 {
		return 0, false
	}
	p.resizeLocked(r, r.bytes+granted)
	return granted, true
}

// resizeLocked makes r hold what bytes of records need.
func (p *fetchMemory) resizeLocked(r *reservation, bytes int) {
	held := int64(bytes) * replyCopies
	p.mu.held += held - r.held
	r.bytes, r.held = bytes, held
	p.m.memoryBytes.Set(float64(p.mu.held))
}

// settle replaces n bytes that were taken by what was really used.
func (r *reservation) settle(n, used int) {
	if n == used {
		return
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.pool.resizeLocked(r, r.bytes+used-n)
	r.pool.wakeLocked()
}

func (r *reservation) release() { r.settle(r.bytes, 0) }

// wait queues r, which holds nothing, for its first n bytes of records. leave ends the wait.
func (r *reservation) wait(n int) *memoryWaiter {
	w := &memoryWaiter{r: r, n: n, ready: make(chan struct{})}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.pool.mu.waiters = append(r.pool.mu.waiters, w)
	r.pool.wakeLocked()
	return w
}

// leave ends the wait and returns what was granted.
func (w *memoryWaiter) leave() (granted int, ok bool) {
	p := w.r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.mu.waiters, w); i >= 0 {
		p.mu.waiters = slices.Delete(p.mu.waiters, i, i+1)
		p.wakeLocked() // those behind w may fit
		return 0, false
	}
	return w.granted, true
}

// wakeLocked serves the waiters that there is room for, in order.
func (p *fetchMemory) wakeLocked() {
	for len(p.mu.waiters) > 0 {
		w := p.mu.waiters[0]
		granted, ok := p.takeLocked(w.r, w.n)
		if !ok {
			return
		}
		w.granted = granted
		p.mu.waiters = slices.Delete(p.mu.waiters, 0, 1)
		close(w.ready)
	}
}

// attach hands the reservation over to the response, which holds it until it is written or dropped.
func (r *reservation) attach(resp *kmsg.FetchResponse) kmsg.Response {
	if r.bytes == 0 {
		return resp
	}
	out := &fetchReply{FetchResponse: resp, memory: *r}
	r.bytes, r.held = 0, 0
	return out
}

// fetchReply is a response with records and the memory reserved for them.
type fetchReply struct {
	*kmsg.FetchResponse
	memory reservation
}

var _ kafkaproto.Releaser = (*fetchReply)(nil)

// Release implements [kafkaproto.Releaser].
func (r *fetchReply) Release() { r.memory.release() }

// AppendTo makes room for the records first, so that appending does not copy them again and again.
func (r *fetchReply) AppendTo(dst []byte) []byte {
	return r.FetchResponse.AppendTo(slices.Grow(dst, r.memory.bytes+r.memory.bytes/64))
}
