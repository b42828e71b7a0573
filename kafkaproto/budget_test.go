package kafkaproto

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// take acquires in the background and returns a function that tells whether it has
// been granted.
func take(t *testing.T, b *budget, l *lease, n int64) (granted func() bool) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		if err := b.acquire(t.Context(), l, n); err != nil {
			t.Error(err)
		}
		close(done)
	}()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

func mustTake(t *testing.T, b *budget, l *lease, n int64) {
	t.Helper()
	if !b.tryAcquire(l, n) {
		t.Fatalf("no room for %d, %d of %d in use", n, b.inUse(), b.capacity)
	}
}

func wantInUse(t *testing.T, b *budget, n int64) {
	t.Helper()
	if got := b.inUse(); got != n {
		t.Fatalf("%d in use, want %d", got, n)
	}
}

// A large wish that cannot be served, beside a small lease that is held for long, must
// not be in the way of others.
func TestBudgetLargeWaiterBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var held, turn, large, small lease
		mustTake(t, b, &held, 10)
		mustTake(t, b, &turn, 1000) // as large as it wants to be
		granted := take(t, b, &large, 500)
		if granted() {
			t.Fatal("two have the turn")
		}
		for range 10 {
			mustTake(t, b, &small, 25)
			small.release()
		}
		turn.release()
		if !granted() {
			t.Fatal("the turn was not passed on")
		}
		wantInUse(t, b, 510)
		large.release()
		held.release()
		wantInUse(t, b, 0)
	})
}

func TestBudgetLeasesAreAtMostAQuarter(t *testing.T) {
	b := newBudget(100)
	var one, two lease
	mustTake(t, b, &one, 26) // has the turn
	if b.tryAcquire(&two, 26) {
		t.Fatal("more than a quarter without the turn")
	}
	mustTake(t, b, &two, 25)
	if b.tryAcquire(&two, 1) {
		t.Fatal("grown to more than a quarter")
	}
	one.shrink(25) // it counts like any other now
	mustTake(t, b, &two, 1)
	wantInUse(t, b, 51)
}

// The oldest of those for whom there is no room gets on when there is a turn to take.
func TestBudgetTurnGoesToTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var full [4]lease
		for i := range full {
			mustTake(t, b, &full[i], 25)
		}
		var first, second, third lease
		mustTake(t, b, &first, 20) // takes the turn
		granted2 := take(t, b, &second, 20)
		if granted2() {
			t.Fatal("beyond the budget")
		}
		granted3 := take(t, b, &third, 20)
		first.release()
		if !granted2() || granted3() {
			t.Fatal(granted2(), granted3())
		}
		full[0].release() // room for the second among the others, so the turn is free
		if !granted3() {
			t.Fatal("the third does not go on")
		}
		wantInUse(t, b, 115)
	})
}

func TestBudgetWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		var turn, waiting lease
		mustTake(t, b, &turn, 60)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.acquire(ctx, &waiting, 90) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		turn.release()
		wantInUse(t, b, 0)
	})
}

// Two half-received frames that fill the budget must not wait for each other.
func TestBudgetGrowersDoNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		leases := make([]lease, 5)
		for i := range leases {
			mustTake(t, b, &leases[i], 20)
		}
		mustTake(t, b, &leases[0], 5) // takes the turn, and its room is free for others
		mustTake(t, b, &leases[1], 5)
		mustTake(t, b, &leases[2], 5)
		mustTake(t, b, &leases[3], 5)
		mustTake(t, b, &leases[4], 5)
		granted := take(t, b, &leases[1], 10)
		if granted() {
			t.Fatal("two have the turn")
		}
		mustTake(t, b, &leases[0], 100) // the one that has it goes on
		leases[0].release()
		if !granted() {
			t.Fatal("the other one does not go on")
		}
		for i := range leases {
			leases[i].release()
			leases[i].release()
		}
		wantInUse(t, b, 0)
		if b.turn != nil || b.used != 0 {
			t.Fatal(b.used)
		}
	})
}

func TestPoolKeepsRoomForSmallOnes(t *testing.T) {
	p := newPool(smallBytes*4, 1<<20)
	var large [5]lease
	for i := range large {
		mustTake(t, p.of(smallBytes+1), &large[i], 1<<18)
	}
	var small lease
	mustTake(t, p.of(smallBytes), &small, smallBytes)
}
