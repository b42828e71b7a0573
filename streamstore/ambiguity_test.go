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
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// liar reports every n-th creation that succeeded as failed.
type liar struct {
	objstore.Bucket
	n, calls atomic.Int64
}

func (l *liar) Create(ctx context.Context, name string, data []byte) error {
	err := l.Bucket.Create(ctx, name, data)
	if err == nil && l.calls.Add(1)%l.n.Load() == 0 {
		return faulty.ErrInjected
	}
	return err
}

// A creation that was reported as failed but took effect loses nothing and doubles
// nothing, whether the layer below tries again by itself or not.
func TestCreateReportedAsFailed(t *testing.T) {
	for _, every := range []int64{1, 2, 10} {
		for _, wrapped := range []bool{false, true} {
			for _, durability := range []Durability{Local, Remote} {
				t.Run(fmt.Sprintf("every %d, wrapped %v, %v", every, wrapped, durability), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testLiar(t, every, wrapped, durability) })
				})
			}
		}
	}
}

func testLiar(t *testing.T, every int64, wrapped bool, durability Durability) {
	memory := objstore.NewMemory()
	l := &liar{Bucket: memory}
	l.n.Store(every)
	bucket := objstore.Bucket(l)
	if wrapped {
		var err error
		if bucket, err = objstore.Wrap(l, objstore.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
		o.Durability, o.FlushInterval, o.FlushBytes = durability, time.Millisecond, 1000
	})
	want := make(map[string][]string)
	for i := range 120 {
		name, payload := fmt.Sprint("s", i%3), fmt.Sprint(i)
		a := mustAppend(t, p.Store, mustCreate(t, p.Store, name), simpleBatch(payload))
		if want[name] = append(want[name], payload); i%2 == 0 {
			mustWait(t, a)
		}
		if i%40 == 39 {
			mustFlush(t, p.Store)
			p.stop()
			p = startProcess(t, bucket, p.fs, func(o *Options) { *o = p.opts })
		}
	}
	mustFlush(t, p.Store)
	check := func(s *Store, when string) {
		t.Helper()
		for name := range want {
			if got := readStream(t, s, name); !slices.Equal(got, want[name]) {
				t.Errorf("%s: %s has %q, want %q", when, name, got, want[name])
			}
		}
	}
	check(p.Store, "in the store")
	p.stop()
	log := readLog(t, memory)
	if dead := numbers(log, false); len(dead) > 0 || log[len(log)-1].number != uint64(len(log)) {
		t.Errorf("the log has %d objects up to number %d, dead ones: %v", len(log), log[len(log)-1].number, dead)
	}
	p = startProcess(t, memory, vfs.NewCrashableMem(), nil)
	check(p.Store, "on another disk")
}
