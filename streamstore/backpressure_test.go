package streamstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// appendFor tries to append 1000 bytes within d of fake time and reports how long it
// took.
func appendFor(s *Store, id StreamID, d time.Duration) (Appended, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	started := time.Now()
	batch := batchSpec{payload: make([]byte, 1000)}.encode()
	a, err := s.Append(ctx, AppendRequest{Stream: id, Batch: batch, Expected: AnyOffset, Ack: AckDurable})
	return a, time.Since(started), err
}

// The bucket is down for hours. With local durability appends are acknowledged until
// the limit of unflushed bytes, then they wait and fail; with remote durability none is
// acknowledged. Reads of what is cached go on, and all goes on when the bucket is back.
func TestBucketDown(t *testing.T) {
	for _, durability := range []Durability{Local, Remote} {
		t.Run(durability.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 20 * (1000 + batchHeaderSize + tailEntryOverhead)
				p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) {
					o.Durability, o.FlushInterval, o.FlushBytes = durability, 100*time.Millisecond, 1000
					o.MaxBatchBytes, o.MaxUnflushedBytes, o.TailCacheBytes = 5000, limit, 1
				})
				id := mustCreate(t, p.Store, "s")
				mustAppend(t, p.Store, id, simpleBatch("old"))
				flushOne(t, p.Store)
				p.tailCache.trim(p.appender.applied.Load())
				if got := readStream(t, p.Store, "s"); len(got) != 1 { // now in the segment cache
					t.Fatalf("read %q", got)
				}
				for _, op := range []objstore.Op{objstore.OpCreate, objstore.OpGet, objstore.OpGetRange, objstore.OpList} {
					p.faults.SetRate(op, faulty.Before, 1)
				}
				var appends []Appended
				for {
					a, took, err := appendFor(p.Store, id, time.Minute)
					if err != nil {
						if !errors.Is(err, ErrBackpressure) || took != time.Minute {
							t.Errorf("append over the limit: %v after %v", err, took)
						}
						break
					}
					appends = append(appends, a)
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					if err := a.Wait(ctx); (durability == Local) != (err == nil) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("acknowledgement with the bucket down: %v", err)
					}
					cancel()
				}
				if len(appends) != 20 {
					t.Errorf("%d appends were taken, want 20", len(appends))
				}
				time.Sleep(5 * time.Hour)
				want := map[Durability]int{Local: 21, Remote: 1}[durability]
				if got := readStream(t, p.Store, "s"); len(got) != want {
					t.Errorf("with the bucket down %d batches can be read, want %d", len(got), want)
				}
				if err := p.Err(); err != nil {
					t.Errorf("the store has stopped: %v", err)
				}
				waiting := async(func() error {
					a, _, err := appendFor(p.Store, id, time.Hour)
					appends = append(appends, a)
					return err
				})
				synctest.Wait()
				healed := time.Now()
				p.faults.Heal()
				if err := <-waiting; err != nil {
					t.Errorf("the append that waited: %v", err)
				}
				for _, a := range appends {
					mustWait(t, a)
				}
				if took := time.Since(healed); took > time.Minute {
					t.Errorf("it went on after %v", took)
				}
				flushOne(t, p.Store)
				if got := readStream(t, p.Store, "s"); len(got) != 22 {
					t.Errorf("%d batches", len(got))
				}
			})
		})
	}
}

// Whatever becomes of an append or a transaction, the bytes it was admitted for are
// given back: afterwards all of them are free.
func TestUnflushedBytesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), quickExpiry)
		ctx := context.Background()
		id := mustCreate(t, p.Store, "s")
		attempts := map[string]func() error{
			"append":       func() error { _, err := tryAppend(p.Store, id, idempotent(1, 0)); return err },
			"duplicate":    func() error { _, err := tryAppend(p.Store, id, idempotent(1, 0)); return err },
			"out of order": func() error { _, err := tryAppend(p.Store, id, idempotent(1, 5)); return err },
			"stale epoch":  func() error { _, err := tryAppend(p.Store, id, idempotent(0, 0)); return err },
			"no stream":    func() error { _, err := tryAppend(p.Store, 12345, batchSpec{}); return err },
			"conflict": func() error {
				_, err := p.Append(ctx, AppendRequest{Stream: id, Batch: simpleBatch("x"), Expected: 77})
				return err
			},
			"no batch": func() error {
				_, err := p.Append(ctx, AppendRequest{Stream: id, Batch: []byte("x"), Expected: AnyOffset})
				return err
			},
		}
		for name, build := range map[string]func(*Txn){
			"empty transaction":        func(*Txn) {},
			"transaction":              func(txn *Txn) { txn.Set([]byte("k"), []byte("v")) },
			"existing name":            func(txn *Txn) { txn.Set([]byte("k"), []byte("w")); txn.Create("s", DefaultSettings()) },
			"existing name, if absent": func(txn *Txn) { txn.CreateIfAbsent("s", DefaultSettings()) },
			"invalid name":             func(txn *Txn) { txn.Create("/", DefaultSettings()) },
			"trim too far":             func(txn *Txn) { txn.Trim(id, 1000) },
			"trim of nothing":          func(txn *Txn) { txn.Trim(id, 0) },
			"invalid settings":         func(txn *Txn) { txn.Configure(id, Settings{}) },
			"unknown stream":           func(txn *Txn) { txn.Delete(4711) },
		} {
			attempts[name] = func() error {
				txn := NewTxn()
				build(txn)
				_, err := p.Commit(ctx, txn)
				return err
			}
		}
		check := func(when string) {
			t.Helper()
			flushOne(t, p.Store)
			if !p.unflushed.TryAcquire(p.opts.MaxUnflushedBytes) {
				t.Fatalf("%s: bytes are still taken", when)
			}
			p.unflushed.Release(p.opts.MaxUnflushedBytes)
		}
		for name, attempt := range attempts {
			for range 2 {
				_ = attempt()
				check(name)
			}
		}
		if value, _, _ := p.Get([]byte("k")); string(value) != "v" {
			t.Errorf("a refused transaction left %q", value)
		}
		mustAppend(t, p.Store, id, simpleBatch("in the tail at the crash"))
		mustCommit(t, p.Store, func(txn *Txn) { txn.Set([]byte("k"), []byte("x")) })
		p = startProcess(t, bucket, p.kill(), quickExpiry)
		check("after a crash")
		time.Sleep(2*time.Hour + time.Minute)
		check("after retention")
		mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(id) })
		check("after deletion")
		if n := pinned(p.Store); n != 0 {
			t.Errorf("%d streams are still pinned", n)
		}
	})
}

// pinned counts the streams that somebody holds.
func pinned(s *Store) (n int) {
	for i := range s.streams.shards {
		shard := &s.streams.shards[i]
		shard.mu.Lock()
		for _, st := range shard.m {
			if st.pins != 0 {
				n++
			}
		}
		shard.mu.Unlock()
	}
	return n
}

// A change larger than the limit can never be admitted: it is refused at once.
func TestTooLargeToAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) {
			o.MaxBatchBytes, o.MaxUnflushedBytes, o.FlushBytes = 1000, 2000, 1000
		})
		id := mustCreate(t, p.Store, "s")
		if _, _, err := appendFor(p.Store, id, time.Minute); !errors.Is(err, ErrBatchTooLarge) {
			t.Errorf("append: %v", err)
		}
		txn := NewTxn()
		txn.Set([]byte("k"), make([]byte, 3000))
		started := time.Now()
		if _, err := p.Commit(context.Background(), txn); !errors.Is(err, ErrBatchTooLarge) || time.Since(started) > 0 {
			t.Errorf("transaction: %v after %v", err, time.Since(started))
		}
	})
}

// Closing a store ends what waits for room in it.
func TestCloseEndsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) {
			o.Durability, o.MaxBatchBytes, o.MaxUnflushedBytes, o.FlushBytes = Remote, 2000, 2000, 2000
		})
		id := mustCreate(t, p.Store, "s")
		flushOne(t, p.Store)
		p.faults.SetRate(objstore.OpCreate, faulty.Stall, 1)
		a, _, err := appendFor(p.Store, id, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		results := []<-chan error{
			async(func() error { return a.Wait(context.Background()) }),
			async(func() error { return p.Flush(context.Background()) }),
			async(func() error {
				_, _, err := appendFor(p.Store, id, 1000*time.Hour)
				return err
			}),
			async(func() error {
				txn := NewTxn()
				txn.Set([]byte("k"), make([]byte, 1400))
				_, err := p.Commit(context.Background(), txn)
				return err
			}),
		}
		synctest.Wait()
		p.stop()
		for i, result := range results {
			if err := <-result; !errors.Is(err, ErrClosed) {
				t.Errorf("waiter %d: %v", i, err)
			}
		}
	})
}
