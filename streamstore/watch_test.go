package streamstore

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// A Watch reports exactly the streams whose high watermark or start moved or that
// were deleted, each once until the next Take.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), remote)
		ids := make([]StreamID, 4)
		for i := range ids {
			ids[i] = mustCreate(t, p.Store, fmt.Sprint("s", i))
		}
		w := p.NewWatch()
		for i, id := range ids {
			if err := w.Add(id, 10+i); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Add(4711, 99); !errors.Is(err, ErrNoStream) {
			t.Errorf("Add of an unknown stream: %v", err)
		}
		news := func(when string, want ...int) {
			t.Helper()
			synctest.Wait()
			ready := false
			select {
			case <-w.Ready():
				ready = true
			default:
			}
			if got := w.Take([]int{-1})[1:]; !slices.Equal(got, want) || ready != (len(want) > 0) {
				t.Errorf("%s: ready %v, news %v, want %v", when, ready, got, want)
			}
		}
		news("at first")
		mustAppend(t, p.Store, ids[2], simpleBatch("x"))
		news("appended, but not durable")
		flushOne(t, p.Store)
		news("durable", 12)
		news("taken")
		for range 3 {
			mustAppend(t, p.Store, ids[0], simpleBatch("x"))
			mustAppend(t, p.Store, ids[3], simpleBatch("x"))
		}
		flushOne(t, p.Store)
		news("two streams", 10, 13)
		txn := NewTxn()
		txn.Trim(ids[2], 1)
		txn.Delete(ids[0])
		if _, _, err := p.queueTxn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.Take(nil); !slices.Equal(slices.Sorted(slices.Values(got)), []int{10, 12}) {
			t.Errorf("trimmed and deleted: %v", got)
		}
		if err := w.Add(ids[0], 50); !errors.Is(err, ErrNoStream) {
			t.Errorf("Add of a deleted stream: %v", err)
		}
		w.Remove(13)
		w.Remove(77)
		mustAppend(t, p.Store, ids[3], simpleBatch("x"))
		mustAppend(t, p.Store, ids[1], simpleBatch("x"))
		flushOne(t, p.Store)
		news("after Remove", 11)
		if err := w.Add(ids[3], 13); err != nil {
			t.Error(err)
		}
		mustAppend(t, p.Store, ids[3], simpleBatch("x"))
		flushOne(t, p.Store)
		news("added again", 13)
		w.Close()
		mustAppend(t, p.Store, ids[3], simpleBatch("x"))
		flushOne(t, p.Store)
		news("after Close")
		if n := pinned(p.Store); n != 0 {
			t.Errorf("%d streams are still pinned", n)
		}
	})
}

// Among ten thousand watched streams one append is news of one. Streams that nobody
// uses leave memory, and none has a goroutine.
func TestManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		const streams, perTxn = 10_000, 1000
		before := runtime.NumGoroutine()
		var ids []StreamID
		for len(ids) < streams {
			ids = append(ids, mustCommit(t, p.Store, func(txn *Txn) {
				for i := range perTxn {
					txn.Create(fmt.Sprint("s", len(ids)+i), DefaultSettings())
				}
			}).Created...)
		}
		for _, id := range ids {
			mustAppend(t, p.Store, id, simpleBatch("x"))
		}
		flushOne(t, p.Store)
		bound := len(p.streams.shards) * maxIdleStreams
		if n := p.Stats().StreamsInMemory; n > bound {
			t.Errorf("%d idle streams are in memory, the bound is %d", n, bound)
		}
		w := p.NewWatch()
		for key, id := range ids {
			if err := w.Add(id, key); err != nil {
				t.Fatal(err)
			}
		}
		mustWait(t, mustAppend(t, p.Store, ids[1234], simpleBatch("x")))
		<-w.Ready()
		if news := w.Take(nil); !slices.Equal(news, []int{1234}) {
			t.Errorf("news of %d streams", len(news))
		}
		if n := runtime.NumGoroutine(); n > before+10 {
			t.Errorf("%d goroutines for %d streams", n-before, streams)
		}
		w.Close()
		flushOne(t, p.Store)
		if n := p.Stats().StreamsInMemory; n > bound {
			t.Errorf("after Close %d streams are in memory", n)
		}
		// A stream that was dropped from memory goes on where it was.
		if a := mustAppend(t, p.Store, ids[0], simpleBatch("y")); a.BaseOffset != 1 {
			t.Errorf("%+v", a)
		}
	})
}
