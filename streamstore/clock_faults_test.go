package streamstore

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// The machine's clock jumps, by years and back, while the store runs, while it is closed
// and when its disk is lost. Records that are kept for ever stay, and so does their order;
// records that expire go from the start of their stream on, and nothing else does.
func TestClockJumps(t *testing.T) {
	for _, durability := range []Durability{Local, Remote} {
		t.Run(durability.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { clockJumps(t, durability) })
		})
	}
}

func clockJumps(t *testing.T, durability Durability) {
	rng := damageRand(t)
	var jump atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
	change := func(o *Options) { o.Durability, o.Now = durability, now }
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), change)
	ids := map[string]StreamID{"kept": mustCreate(t, p.Store, "kept")}
	var err error
	if ids["expiring"], err = p.Ensure(context.Background(), "expiring", Settings{Retention: time.Hour, RetentionBytes: -1}); err != nil {
		t.Fatal(err)
	}
	var given []string // to both streams
	start := int64(0)
	const steps = 200
	for step := range steps {
		next := rng.IntN(6)
		if step == steps-1 {
			jump.Store(int64(100 * 365 * 24 * time.Hour))
			next = 1
		}
		switch next {
		case 0:
			years := time.Duration(rng.IntN(41)-20) * 365 * 24 * time.Hour
			jump.Store(int64(years))
		case 1:
			mustFlush(t, p.Store)
			if err := p.Expire(context.Background()); err != nil {
				t.Fatalf("step %d: Expire: %v", step, err)
			}
		case 2:
			mustFlush(t, p.Store)
			fs := p.kill()
			if durability == Remote && rng.IntN(2) == 0 {
				fs = vfs.NewCrashableMem()
			}
			p.stop()
			p = startProcess(t, bucket, fs, change)
		default:
			payload := fmt.Sprint(step)
			given = append(given, payload)
			for _, id := range ids {
				spec := batchSpec{payload: []byte(payload), timestamp: now().UnixMilli()}
				if a := mustAppend(t, p.Store, id, spec.encode()); a.BaseOffset != int64(len(given)-1) {
					t.Fatalf("step %d: record %d at offset %d", step, len(given)-1, a.BaseOffset)
				}
			}
			synctest.Wait()
		}
		if durability == Remote {
			mustFlush(t, p.Store)
		}
		synctest.Wait()
		if got := readStream(t, p.Store, "kept"); !slices.Equal(got, given) {
			t.Fatalf("step %d: %d of %d records that are kept for ever", step, len(got), len(given))
		}
		offsets, err := p.Offsets(ids["expiring"])
		if err != nil || offsets.Start < start || offsets.HighWatermark != int64(len(given)) {
			t.Fatalf("step %d: offsets %+v after %d records, the start was %d (%v)", step, offsets, len(given), start, err)
		}
		start = offsets.Start
		if got := readStream(t, p.Store, "expiring"); !slices.Equal(got, given[start:]) {
			t.Fatalf("step %d: %q from offset %d on, want %q", step, got, start, given[start:])
		}
	}
	if start != int64(len(given)) {
		t.Errorf("a hundred years later the stream whose records are kept for an hour begins at offset %d of %d", start, len(given))
	}
}

// A clock that is set by less than the time that producers are kept (a day) makes no difference to retries of idempotent producers.
func TestClockJumpsBetweenRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		change := func(o *Options) {
			o.Now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		}
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), change)
		id := mustCreate(t, p.Store, "s")
		for i, hours := range []int{0, 12, -11, 10, 0} {
			batch := batchSpec{producer: 7, sequence: int32(i)}
			first := mustAppend(t, p.Store, id, batch.encode())
			jump.Store(int64(time.Duration(hours) * time.Hour))
			mustFlush(t, p.Store)
			if err := p.Expire(context.Background()); err != nil {
				t.Fatal(err)
			}
			again := mustAppend(t, p.Store, id, batch.encode())
			if first.BaseOffset != int64(i) || again.BaseOffset != first.BaseOffset {
				t.Errorf("after a jump to %d hours: offset %d, then %d for the same batch; want %d", hours, first.BaseOffset, again.BaseOffset, i)
			}
		}
	})
}
