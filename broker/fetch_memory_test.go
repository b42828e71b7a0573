package broker

import "testing"

func newTestMemory(total int64) *fetchMemory { return newFetchMemory(total, newFetchMetrics(nil)) }

func isReady(w *memoryWaiter) bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// A reply gets its share of what is free, in one piece or many; only the first records of a reply come out of the spare
// memory.
func TestMemoryShares(t *testing.T) {
	const total = 256 << 20
	p := newTestMemory(total)
	one := reservation{pool: p}
	share := (total - total/memorySpare) / memoryShare / replyCopies
	granted, ok := one.take(total)
	wantEqual(t, true, ok)
	wantEqual(t, share, granted)
	_, ok = one.take(1)
	wantEqual(t, false, ok, "that was all of its share")
	_, ok = one.take(0)
	wantEqual(t, true, ok)

	pieces := reservation{pool: p}
	sum := 0
	for {
		granted, ok := pieces.take(1 << 20)
		if !ok {
			break
		}
		sum += granted
	}
	wantEqual(t, share*(memoryShare-1)/memoryShare, sum, "an eighth of what the first left")

	// However many come, what is taken beyond the first records leaves the spare memory alone.
	large := 0
	for range 1000 {
		r := reservation{pool: p}
		if n, ok := r.take(total); ok && n > firstRecords {
			large += n
			wantAtMost(t, p.mu.held, total-total/memorySpare)
		}
	}
	wantLess(t, 0, large)
	wantAtMost(t, p.mu.held, total)
	wantLess(t, total-firstRecords*replyCopies, p.mu.held)
}

func TestMemoryWaiters(t *testing.T) {
	p := newTestMemory(8 << 20)
	var held [4]reservation
	for i := range held {
		held[i].pool = p
		n, ok := held[i].take(firstRecords)
		wantEqual(t, true, ok && n == firstRecords)
	}
	var rs [3]reservation
	var ws [3]*memoryWaiter
	for i := range rs {
		rs[i].pool = p
		_, ok := rs[i].take(10)
		wantEqual(t, false, ok)
		ws[i] = rs[i].wait(firstRecords)
	}
	granted, ok := ws[0].leave()
	wantEqual(t, false, ok)
	wantZero(t, granted)

	held[0].release()
	wantEqual(t, true, isReady(ws[1]), "the first in line")
	wantEqual(t, false, isReady(ws[2]))
	late := reservation{pool: p}
	_, ok = late.take(10)
	wantEqual(t, false, ok, "others were here before")
	granted, ok = ws[1].leave()
	wantEqual(t, true, ok)
	wantEqual(t, firstRecords, granted)

	rs[1].settle(granted, 0)
	wantEqual(t, true, isReady(ws[2]), "what is not used goes to the next")
	_, ok = ws[2].leave()
	wantEqual(t, true, ok)
	for _, r := range []*reservation{&held[1], &held[2], &held[3], &rs[2]} {
		r.release()
	}
	wantZero(t, p.mu.held)
}

// A first batch larger than all memory is counted in full, and nobody gets any until it is gone.
func TestMemoryOfLargeBatch(t *testing.T) {
	p := newTestMemory(8 << 20)
	large := reservation{pool: p}
	granted, ok := large.take(firstRecords)
	wantEqual(t, true, ok)
	large.settle(granted, 64<<20)
	wantInt(t, 128<<20, p.mu.held)
	next := reservation{pool: p}
	w := next.wait(10)
	wantEqual(t, false, isReady(w))
	large.release()
	wantEqual(t, true, isReady(w))
	wantInt(t, 10*replyCopies, p.mu.held)
}
