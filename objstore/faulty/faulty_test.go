package faulty_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

func newBucket(t *testing.T) (*objstore.Memory, *faulty.Bucket) {
	t.Helper()
	m := objstore.NewMemory()
	if err := m.Create(t.Context(), "d/x", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	return m, faulty.New(m, 7)
}

func TestKinds(t *testing.T) {
	for _, c := range []struct {
		kind    faulty.Kind
		err     error
		created bool
	}{
		{faulty.Before, faulty.ErrInjected, false},
		{faulty.After, faulty.ErrInjected, true},
		{faulty.Throttle, objstore.ErrThrottled, false},
		{faulty.Truncate, faulty.ErrInjected, false},
		{faulty.Corrupt, nil, true},
		{faulty.Stall, context.DeadlineExceeded, false},
		{faulty.StallAfter, context.DeadlineExceeded, true},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, f := newBucket(t)
				f.FailNext(objstore.OpCreate, c.kind)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				if err := f.Create(ctx, "new", nil); !errors.Is(err, c.err) {
					t.Errorf("Create: %v, want %v", err, c.err)
				}
				stalled := time.Since(start) == time.Minute
				if want := c.err == context.DeadlineExceeded; stalled != want {
					t.Errorf("took %v", time.Since(start))
				}
				if got := slices.Contains(m.Names(), "new"); got != c.created {
					t.Errorf("created: %v", got)
				}
				// Only one call failed; the next sees what that one did.
				var want error
				if c.created {
					want = objstore.ErrExists
				}
				if err := f.Create(t.Context(), "new", nil); !errors.Is(err, want) {
					t.Errorf("second Create: %v, want %v", err, want)
				}
			})
		})
	}
}

func TestSpoiledReads(t *testing.T) {
	_, f := newBucket(t)
	f.Fail(faulty.Rule{Kind: faulty.Truncate, Times: 2})
	_, getErr := f.Get(t.Context(), "d/x")
	_, rangeErr := f.GetRange(t.Context(), "d/x", 2, 4)
	for _, err := range []error{getErr, rangeErr} {
		if !errors.Is(err, objstore.ErrTruncated) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("broken read: %v", err)
		}
	}
	f.FailNext(objstore.OpGetRange, faulty.Corrupt)
	if data, err := f.GetRange(t.Context(), "d/x", 2, 4); err != nil || string(data) == "2345" || len(data) != 4 {
		t.Errorf("corrupt read: %q, %v", data, err)
	}
	if data, err := f.Get(t.Context(), "d/x"); err != nil || string(data) != "0123456789" {
		t.Errorf("the object itself: %q, %v", data, err)
	}
	if n := f.Calls(objstore.OpGetRange); n != 2 {
		t.Errorf("%d calls counted", n)
	}
}

func TestSpoiledList(t *testing.T) {
	m, f := newBucket(t)
	if err := m.Create(t.Context(), "d/y", nil); err != nil {
		t.Fatal(err)
	}
	f.FailNext(objstore.OpList, faulty.Truncate)
	for _, want := range []int{1, 2} {
		n := 0
		err := f.List(t.Context(), "d", "", func(objstore.ObjectInfo) error {
			n++
			return nil
		})
		if n != want || (err != nil) != (want == 1) {
			t.Errorf("%d names, %v", n, err)
		}
	}
}

func TestRulesMatchAndHeal(t *testing.T) {
	_, f := newBucket(t)
	f.Fail(faulty.Rule{
		Op: objstore.OpCreate, Kind: faulty.Before, Times: -1,
		Match: func(name string) bool { return strings.HasPrefix(name, "log/") },
	})
	if err := f.Create(t.Context(), "segments/1", nil); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := f.Create(t.Context(), "log/1", nil); !errors.Is(err, faulty.ErrInjected) {
			t.Error(err)
		}
	}
	f.Heal()
	if err := f.Create(t.Context(), "log/1", nil); err != nil {
		t.Error(err)
	}
}

func TestThrottleForAndDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f := newBucket(t)
		f.ThrottleFor(time.Minute)
		if err := f.Delete(t.Context(), "d/x"); !errors.Is(err, objstore.ErrThrottled) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		f.SetDelay(objstore.OpDelete, time.Second, 2*time.Second)
		start := time.Now()
		if err := f.Delete(t.Context(), "d/x"); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < time.Second || d > 2*time.Second {
			t.Errorf("delay %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := f.Delete(ctx, "d/x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context does not end the delay: %v", err)
		}
	})
}

// The same seed meets the same faults, at about the rate that was asked for.
func TestRatesAreDeterministic(t *testing.T) {
	run := func(seed uint64) (history string, failed int) {
		f := faulty.New(objstore.NewMemory(), seed)
		f.SetRate(objstore.OpCreate, faulty.Before, 0.2)
		f.SetRate(objstore.OpCreate, faulty.After, 0.1)
		for i := range 1000 {
			err := f.Create(t.Context(), fmt.Sprint(i), nil)
			history += fmt.Sprintln(err)
			if err != nil {
				failed++
			}
		}
		return history, failed
	}
	a, failed := run(1)
	b, _ := run(1)
	c, _ := run(2)
	if a != b || a == c {
		t.Error("faults do not depend on the seed alone")
	}
	if failed < 250 || failed > 350 {
		t.Errorf("%d of 1000 failed, want about 300", failed)
	}
}

// A test can stand between the effect of a call and its answer.
func TestHooks(t *testing.T) {
	m, f := newBucket(t)
	reached, proceed := make(chan string), make(chan struct{})
	f.SetHooks(nil, func(op objstore.Op, name string) {
		reached <- string(op) + " " + name
		<-proceed
	})
	done := make(chan error)
	go func() { done <- f.Create(context.Background(), "new", nil) }()
	if at := <-reached; at != "create new" || !slices.Contains(m.Names(), "new") {
		t.Errorf("at %q with %v", at, m.Names())
	}
	proceed <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}

	f.SetHooks(func(objstore.Op, string) {
		reached <- "before"
		<-proceed
	}, nil)
	go func() { done <- f.Delete(context.Background(), "new") }()
	<-reached
	if !slices.Contains(m.Names(), "new") {
		t.Error("deleted before the hook returned")
	}
	proceed <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestConcurrentUse(t *testing.T) {
	_, f := newBucket(t)
	f.SetRate(objstore.OpGet, faulty.Before, 0.5)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				_, err := f.Get(context.Background(), "d/x")
				if err != nil && !errors.Is(err, faulty.ErrInjected) {
					t.Error(err)
				}
				f.FailNext(objstore.OpList, faulty.Before)
				f.SetDelay(objstore.OpDelete, 0, time.Duration(i))
			}
		})
	}
	wg.Wait()
	if n := f.Calls(objstore.OpGet); n != 800 {
		t.Errorf("%d calls counted", n)
	}
}
