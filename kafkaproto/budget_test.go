package kafkaproto

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestBudgetIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var first lease
		if err := b.acquire(t.Context(), &first, 80); err != nil {
			t.Fatal(err)
		}
		var granted atomic.Int32
		var large, small lease
		take := func(l *lease, n int64) {
			go func() {
				if err := b.acquire(t.Context(), l, n); err != nil {
					t.Error(err)
				}
				granted.Add(1)
			}()
			synctest.Wait()
		}
		take(&large, 90)
		take(&small, 10) // would fit, but would starve the large one
		if granted.Load() != 0 {
			t.Fatal("the queue was jumped")
		}
		first.release()
		synctest.Wait()
		if b.inUse() != 100 || granted.Load() != 2 {
			t.Fatal(b.inUse(), granted.Load())
		}
		large.release()
		small.release()
		small.release()
		if b.inUse() != 0 {
			t.Fatal(b.inUse())
		}
	})
}

func TestBudgetRefusesWhatCanNeverFit(t *testing.T) {
	b := newBudget(100)
	var l lease
	if err := b.acquire(t.Context(), &l, 101); !errors.Is(err, errOverBudget) {
		t.Fatal(err)
	}
	if err := b.acquire(t.Context(), &l, 60); err != nil {
		t.Fatal(err)
	}
	if err := l.grow(t.Context(), 41); !errors.Is(err, errOverBudget) {
		t.Fatal(err)
	}
	l.shrink(70) // no growth by shrinking
	if b.inUse() != 60 {
		t.Fatal(b.inUse())
	}
}

func TestBudgetWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var a, waiting, behind lease
		if err := b.acquire(t.Context(), &a, 60); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if err := b.acquire(ctx, &waiting, 90); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		synctest.Wait()
		go func() {
			if err := b.acquire(t.Context(), &behind, 30); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if b.inUse() != 60 {
			t.Fatal("the queue was jumped")
		}
		cancel() // those behind must not wait for one that left
		synctest.Wait()
		if b.inUse() != 90 {
			t.Fatal(b.inUse())
		}
	})
}

// Two half-received frames that fill the budget must not wait for each other.
func TestBudgetGrowersDoNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var one, two, fresh lease
		for _, l := range []*lease{&one, &two} {
			if err := b.acquire(t.Context(), l, 50); err != nil {
				t.Fatal(err)
			}
		}
		if err := one.grow(t.Context(), 30); err != nil { // overdraws
			t.Fatal(err)
		}
		grown := false
		go func() {
			if err := two.grow(t.Context(), 40); err != nil {
				t.Error(err)
			}
			grown = true
		}()
		synctest.Wait()
		go func() {
			if err := b.acquire(t.Context(), &fresh, 1); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if grown || b.inUse() != 130 {
			t.Fatal("two frames overdrew the budget", b.inUse())
		}
		if err := one.grow(t.Context(), 10); err != nil { // the one that may goes on
			t.Fatal(err)
		}
		one.release()
		synctest.Wait()
		if !grown || b.inUse() != 91 {
			t.Fatal(grown, b.inUse())
		}
		two.release()
		fresh.release()
		if b.inUse() != 0 || b.overdrawn != nil {
			t.Fatal(b.inUse())
		}
	})
}
