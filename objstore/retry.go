package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// transient reports whether another attempt may succeed where one ended with err.
// The caller's own context is not considered here.
func transient(err error) bool {
	for _, final := range []error{
		ErrExists, ErrNotFound, // answers, not failures
		ErrDenied, ErrNoBucket, ErrUnsupported, ErrRejected, ErrName, // a person must act
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	if errors.Is(err, ErrTruncated) {
		// An object that is too short stays so; a transfer that broke off does not.
		return errors.Is(err, io.ErrUnexpectedEOF)
	}
	return true
}

// backoff counts the attempts of one call.
type backoff struct {
	policy   RetryPolicy
	attempts int
	start    time.Time
}

func newBackoff(p RetryPolicy) *backoff { return &backoff{policy: p, start: time.Now()} }

// progress starts the count anew, for calls that make headway between failures.
func (b *backoff) progress() { b.attempts, b.start = 0, time.Now() }

// next returns the wait before the next attempt after one that ended with err, or
// false when the policy allows no further one.
func (b *backoff) next(err error) (time.Duration, bool) {
	b.attempts++
	wait := b.policy.wait(b.attempts, errors.Is(err, ErrThrottled))
	if b.attempts >= b.policy.MaxAttempts || time.Since(b.start)+wait > b.policy.MaxElapsed {
		return 0, false
	}
	return wait, true
}

// wait draws the wait after the given number of failed attempts (1 or more): full
// jitter, so that clients that failed together do not come back together.
func (p RetryPolicy) wait(failed int, throttled bool) time.Duration {
	base, most := p.Base, p.Max
	if throttled {
		base, most = p.ThrottledBase, p.ThrottledMax
	}
	bound := min(base<<min(failed-1, 20), most)
	if bound <= 0 { // the shift overflowed
		bound = most
	}
	if throttled {
		return bound/2 + rand.N(bound/2+1)
	}
	return rand.N(bound + 1)
}

// sleep waits for d, or until ctx ends and then returns its error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempt runs fn under a time limit; see timedOut.
func attempt(ctx context.Context, limit time.Duration, fn func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return timedOut(ctx, fn(limited), limit)
}

// timedOut turns a context's error that is not the caller's own (an attempt's limit,
// or a dial timeout, which looks the same) into ErrTimeout, so that callers can tell
// the end of their own context by its error.
func timedOut(caller context.Context, err error, limit time.Duration) error {
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if !ended || caller.Err() != nil {
		return err
	}
	return fmt.Errorf("%w (limit %v): %v", ErrTimeout, limit, err)
}
