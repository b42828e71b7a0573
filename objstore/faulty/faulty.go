// Package faulty wraps a bucket to make it misbehave, for tests of what is above it.
//
// Faults come from three places, asked in this order: one-shot rules ([Bucket.Fail],
// [Bucket.FailNext]), a period of throttling ([Bucket.ThrottleFor]), and rates per
// operation ([Bucket.SetRate]) drawn from a generator with a fixed seed, so that a
// sequence of calls meets the same faults in each run. [Bucket.SetHooks] lets a test
// stand exactly before or after the effect of a call.
//
// The wrapped bucket makes one attempt per call; objstore.Wrap puts retries on top.
package faulty

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/brookletmq/brooklet/objstore"
)

// ErrInjected is in the chain of every error that is made up here.
var ErrInjected = errors.New("injected fault")

// Kind is a way to fail.
type Kind int

// The kinds of faults. Those that need a result to work on let the call pass unchanged
// when it fails by itself.
const (
	// Before fails without any effect.
	Before Kind = iota + 1
	// After fails after the effect: a created object is there, and a further create
	// gets ErrExists.
	After
	// Throttle fails without any effect, with objstore.ErrThrottled.
	Throttle
	// Truncate makes Get and GetRange fail as if the transfer broke off half way, and
	// List after half of the objects. Creates and deletes: as Before.
	Truncate
	// Corrupt inverts a byte in the middle of what Get and GetRange return. For other
	// operations it does nothing.
	Corrupt
	// Stall has no effect and returns when the context ends.
	Stall
	// StallAfter has its effect and then returns only when the context ends.
	StallAfter
	numKinds
)

func (k Kind) String() string {
	names := [...]string{"none", "before", "after", "throttle", "truncate", "corrupt", "stall", "stall-after"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return names[k]
}

// Rule makes calls fail.
type Rule struct {
	// Op is the operation that fails; "" is any.
	Op objstore.Op
	// Kind is how.
	Kind Kind
	// Match chooses by object name, or folder for a listing; nil matches all. It is
	// called with the bucket's lock held and must not use the bucket.
	Match func(name string) bool
	// Times is how often the rule applies; 0 means once, negative for ever.
	Times int
}

// Hook is called with the operation and the object name, or folder for a listing. It
// may block; it should watch the context of the call only through its own means.
type Hook func(op objstore.Op, name string)

// Bucket is the wrapper. Its methods, those that configure it included, are safe for
// concurrent use; with concurrent calls the order of draws is up to the scheduler.
type Bucket struct {
	objstore.Bucket

	mu struct {
		sync.Mutex
		rules          []Rule
		rates          map[objstore.Op][numKinds]float64
		delays         map[objstore.Op][2]time.Duration
		throttledUntil time.Time
		rng            *rand.Rand
		calls          map[objstore.Op]int
		before, after  Hook
	}
}

// New wraps b; it behaves well until told otherwise.
func New(b objstore.Bucket, seed uint64) *Bucket {
	f := &Bucket{Bucket: b}
	f.mu.rates = make(map[objstore.Op][numKinds]float64)
	f.mu.delays = make(map[objstore.Op][2]time.Duration)
	f.mu.calls = make(map[objstore.Op]int)
	f.mu.rng = rand.New(rand.NewPCG(seed, 0))
	return f
}

// FailNext makes the next call of op fail.
func (f *Bucket) FailNext(op objstore.Op, kind Kind) { f.Fail(Rule{Op: op, Kind: kind}) }

// Fail adds a rule. Rules are asked in the order they were added.
func (f *Bucket) Fail(r Rule) {
	if r.Times == 0 {
		r.Times = 1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = append(f.mu.rules, r)
}

// ThrottleFor makes all calls fail with Throttle until d from now.
func (f *Bucket) ThrottleFor(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.throttledUntil = time.Now().Add(d)
}

// SetRate makes a share p (0 to 1) of the calls of op fail with kind. The shares of all
// kinds of one op must not add up to more than 1.
func (f *Bucket) SetRate(op objstore.Op, kind Kind, p float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rates := f.mu.rates[op]
	rates[kind] = p
	f.mu.rates[op] = rates
}

// SetDelay makes each call of op wait, before its effect, for a time drawn between
// least and most, or until its context ends.
func (f *Bucket) SetDelay(op objstore.Op, least, most time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.delays[op] = [2]time.Duration{least, most}
}

// SetHooks installs functions to be called before a call has its effect (and before
// its delay and faults), and after it had it. nil removes a hook. No lock is held.
func (f *Bucket) SetHooks(before, after Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.before, f.mu.after = before, after
}

// Heal removes rules, rates, delays and throttling; hooks and counts stay.
func (f *Bucket) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = nil
	clear(f.mu.rates)
	clear(f.mu.delays)
	f.mu.throttledUntil = time.Time{}
}

// Calls returns how many calls of op began, failed ones included.
func (f *Bucket) Calls(op objstore.Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.calls[op]
}

// plan is what is to happen to one call.
type plan struct {
	kind          Kind
	delay         time.Duration
	before, after Hook
}

func (f *Bucket) plan(op objstore.Op, name string) plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.calls[op]++
	p := plan{before: f.mu.before, after: f.mu.after}
	if d := f.mu.delays[op]; d[1] > 0 {
		p.delay = d[0] + time.Duration(f.mu.rng.Float64()*float64(d[1]-d[0]))
	}
	p.kind = f.kindLocked(op, name)
	return p
}

func (f *Bucket) kindLocked(op objstore.Op, name string) Kind {
	for i := range f.mu.rules {
		r := &f.mu.rules[i]
		if r.Op != "" && r.Op != op || r.Match != nil && !r.Match(name) {
			continue
		}
		kind := r.Kind
		if r.Times--; r.Times == 0 {
			f.mu.rules = append(f.mu.rules[:i:i], f.mu.rules[i+1:]...)
		}
		return kind
	}
	if time.Now().Before(f.mu.throttledUntil) {
		return Throttle
	}
	rates, ok := f.mu.rates[op]
	if !ok {
		return 0
	}
	x := f.mu.rng.Float64()
	for kind, p := range rates {
		if x < p {
			return Kind(kind)
		}
		x -= p
	}
	return 0
}

// call runs effect with the faults that are due. effect is told the kind so that reads
// can spoil their result.
func (f *Bucket) call(ctx context.Context, op objstore.Op, name string, effect func(Kind) error) error {
	p := f.plan(op, name)
	if p.before != nil {
		p.before(op, name)
	}
	if err := wait(ctx, p.delay); err != nil {
		return err
	}
	switch p.kind {
	case Before:
		return injected(op, name, Before)
	case Throttle:
		return fmt.Errorf("%w: %w", objstore.ErrThrottled, injected(op, name, Throttle))
	case Stall:
		<-ctx.Done()
		return fmt.Errorf("%w: %w", ctx.Err(), injected(op, name, Stall))
	}
	err := effect(p.kind)
	if p.after != nil {
		p.after(op, name)
	}
	if err != nil {
		return err
	}
	switch p.kind {
	case After:
		return injected(op, name, After)
	case StallAfter:
		<-ctx.Done()
		return fmt.Errorf("%w: %w", ctx.Err(), injected(op, name, StallAfter))
	}
	return nil
}

func injected(op objstore.Op, name string, kind Kind) error {
	return fmt.Errorf("%w (%s, %s %q)", ErrInjected, kind, op, name)
}

func brokenOff(op objstore.Op, name string) error {
	return fmt.Errorf("%w: %w: %w", objstore.ErrTruncated, io.ErrUnexpectedEOF, injected(op, name, Truncate))
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Create implements objstore.Bucket.
func (f *Bucket) Create(ctx context.Context, name string, data []byte) error {
	return f.call(ctx, objstore.OpCreate, name, func(k Kind) error {
		if k == Truncate {
			return injected(objstore.OpCreate, name, k)
		}
		return f.Bucket.Create(ctx, name, data)
	})
}

// Get implements objstore.Bucket.
func (f *Bucket) Get(ctx context.Context, name string) ([]byte, error) {
	return f.read(ctx, objstore.OpGet, name, func() ([]byte, error) {
		return f.Bucket.Get(ctx, name)
	})
}

// GetRange implements objstore.Bucket.
func (f *Bucket) GetRange(ctx context.Context, name string, off, length int64) ([]byte, error) {
	return f.read(ctx, objstore.OpGetRange, name, func() ([]byte, error) {
		return f.Bucket.GetRange(ctx, name, off, length)
	})
}

func (f *Bucket) read(ctx context.Context, op objstore.Op, name string, get func() ([]byte, error)) ([]byte, error) {
	var data []byte
	err := f.call(ctx, op, name, func(k Kind) (err error) {
		data, err = get()
		switch {
		case err != nil:
			return err
		case k == Truncate:
			return brokenOff(op, name)
		case k == Corrupt && len(data) > 0:
			data[len(data)/2] ^= 0xff
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// List implements objstore.Bucket.
func (f *Bucket) List(ctx context.Context, dir, after string, fn func(objstore.ObjectInfo) error) error {
	return f.call(ctx, objstore.OpList, dir, func(k Kind) error {
		var infos []objstore.ObjectInfo
		err := f.Bucket.List(ctx, dir, after, func(o objstore.ObjectInfo) error {
			infos = append(infos, o)
			return nil
		})
		if err != nil {
			return err
		}
		if k == Truncate {
			infos = infos[:len(infos)/2]
		}
		for _, o := range infos {
			if err := fn(o); err != nil {
				return err
			}
		}
		if k == Truncate {
			return brokenOff(objstore.OpList, dir)
		}
		return nil
	})
}

// Delete implements objstore.Bucket.
func (f *Bucket) Delete(ctx context.Context, name string) error {
	return f.call(ctx, objstore.OpDelete, name, func(k Kind) error {
		if k == Truncate {
			return injected(objstore.OpDelete, name, k)
		}
		return f.Bucket.Delete(ctx, name)
	})
}
