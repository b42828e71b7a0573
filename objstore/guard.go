package objstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"
)

// guard gives a provider the manners that the Bucket contract asks for: it checks
// names and ranges, limits and repeats attempts, checks the order of listings, and
// measures. Providers below it make one attempt and know nothing of this.
type guard struct {
	Bucket
	timeouts Timeouts
	retry    RetryPolicy
	metrics  *metrics
	log      *zap.Logger
}

// Wrap adds name checks, time limits, retries and metrics to a bucket that lacks
// them, such as one of package faulty. opts.URL is not used. Close of the result
// closes b.
func Wrap(b Bucket, opts Options) (Bucket, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, err
	}
	return &guard{Bucket: b, timeouts: opts.Timeouts, retry: opts.Retry, metrics: m, log: opts.Logger}, nil
}

// run makes attempts of op until one succeeds, fails for good, or b allows no more.
func (g *guard) run(ctx context.Context, op Op, name string, b *backoff, try func() error) error {
	for {
		if err := ctx.Err(); err != nil {
			return describe(op, name, err)
		}
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !transient(err) {
			return describe(op, name, joinContext(ctx, err))
		}
		wait, ok := b.next(err)
		if !ok {
			return describe(op, name, fmt.Errorf("gave up after %d attempts: %w", b.attempts, err))
		}
		g.log.Debug("bucket request failed, trying again", zap.String("op", string(op)),
			zap.String("object", name), zap.Duration("wait", wait), zap.Error(err))
		if sleep(ctx, wait) != nil {
			return describe(op, name, joinContext(ctx, err))
		}
		g.metrics.ops[op].retries.Inc()
	}
}

// joinContext makes an error that came with the end of ctx say so.
func joinContext(ctx context.Context, err error) error {
	if end := ctx.Err(); end != nil && !errors.Is(err, end) && transient(err) {
		return fmt.Errorf("%w, last: %w", end, err)
	}
	return err
}

func describe(op Op, name string, err error) error {
	return fmt.Errorf("bucket %s %q: %w", op, name, err)
}

func (g *guard) Create(ctx context.Context, name string, data []byte) (err error) {
	defer g.observe(OpCreate, time.Now(), len(data), &err)
	if err := CheckName(name); err != nil {
		return err
	}
	failed := false
	return g.run(ctx, OpCreate, name, newBackoff(g.retry), func() error {
		err := attempt(ctx, g.timeouts.forBytes(int64(len(data))), func(ctx context.Context) error {
			return g.Bucket.Create(ctx, name, data)
		})
		if failed && errors.Is(err, ErrExists) {
			return fmt.Errorf("%w: %w", err, ErrAmbiguous)
		}
		failed = true
		return err
	})
}

func (g *guard) Get(ctx context.Context, name string) (data []byte, err error) {
	defer func(start time.Time) { g.metrics.ops[OpGet].observe(start, len(data), err) }(time.Now())
	if err := CheckName(name); err != nil {
		return nil, err
	}
	err = g.run(ctx, OpGet, name, newBackoff(g.retry), func() error {
		return attempt(ctx, g.timeouts.Get, func(ctx context.Context) (err error) {
			data, err = g.Bucket.Get(ctx, name)
			return err
		})
	})
	return data, err
}

func (g *guard) GetRange(ctx context.Context, name string, off, length int64) (data []byte, err error) {
	defer func(start time.Time) { g.metrics.ops[OpGetRange].observe(start, len(data), err) }(time.Now())
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if off < 0 || length < 0 || length > math.MaxInt64-off {
		return nil, fmt.Errorf("%w: %d bytes from %d of %q", ErrName, length, off, name)
	}
	if length == 0 {
		return []byte{}, nil
	}
	err = g.run(ctx, OpGetRange, name, newBackoff(g.retry), func() error {
		return attempt(ctx, g.timeouts.forBytes(length), func(ctx context.Context) (err error) {
			data, err = g.Bucket.GetRange(ctx, name, off, length)
			return err
		})
	})
	return data, err
}

func (g *guard) Delete(ctx context.Context, name string) (err error) {
	defer g.observe(OpDelete, time.Now(), 0, &err)
	if err := CheckName(name); err != nil {
		return err
	}
	return g.run(ctx, OpDelete, name, newBackoff(g.retry), func() error {
		return attempt(ctx, g.timeouts.Request, func(ctx context.Context) error {
			return g.Bucket.Delete(ctx, name)
		})
	})
}

// List goes on after the last name delivered when an attempt breaks off, so fn sees
// each name once.
func (g *guard) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) (err error) {
	start := time.Now()
	if dir != "" {
		if err := CheckName(dir); err != nil {
			g.metrics.ops[OpList].observe(start, 0, err)
			return err
		}
	}
	counted := func(o ObjectInfo) error {
		g.metrics.listed.Inc()
		return fn(o)
	}
	l := lister{bucket: g.Bucket, dir: dir, last: after, fn: counted, idle: g.timeouts.Request, backoff: newBackoff(g.retry)}
	err = g.run(ctx, OpList, dir, l.backoff, func() error { return l.attempt(ctx) })
	g.metrics.ops[OpList].observe(start, 0, err)
	if l.stop != nil { // no failure of the bucket
		return l.stop
	}
	return err
}

func (g *guard) observe(op Op, start time.Time, n int, err *error) {
	g.metrics.ops[op].observe(start, n, *err)
}

// lister is the state of one List across its attempts.
type lister struct {
	bucket  Bucket
	dir     string
	last    string // the last name delivered, or where to begin after
	fn      func(ObjectInfo) error
	stop    error // what fn returned, once it did
	idle    time.Duration
	backoff *backoff
}

// attempt lists until the end, a failure, or a pause of the store that is too long.
// The time that fn takes does not count.
func (l *lister) attempt(ctx context.Context) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(l.idle, cancel)
	defer idle.Stop()

	err := l.bucket.List(limited, l.dir, l.last, func(o ObjectInfo) error {
		idle.Stop()
		defer idle.Reset(l.idle)
		return l.deliver(o)
	})
	if l.stop != nil {
		return nil
	}
	return timedOut(ctx, err, l.idle)
}

// deliver hands o to fn. A store that lists out of order (S3 directory buckets do)
// would make a reader of the log skip objects without noticing.
func (l *lister) deliver(o ObjectInfo) error {
	if o.Name <= l.last {
		return fmt.Errorf("%w: the store lists %q after %q; a bucket that lists names in ascending order is needed",
			ErrUnsupported, o.Name, l.last)
	}
	l.last = o.Name
	l.stop = l.fn(o)
	l.backoff.progress()
	return l.stop
}
