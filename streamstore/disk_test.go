package streamstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/brookletmq/brooklet/objstore"
)

// A sync of the write-ahead log fails once and then works again. What the disk has
// dropped is unknown, so nothing is acknowledged any more; what was acknowledged before
// is found again.
func TestFailedSync(t *testing.T) {
	disk := vfs.NewCrashableMem()
	var arm, failed atomic.Bool
	fs := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		isSync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		if isSync && strings.HasSuffix(op.Path, ".log") && arm.Load() && failed.CompareAndSwap(false, true) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	opts := testOptions(objstore.NewMemory())
	opts.FS = fs
	s := mustOpen(t, opts)
	id := mustCreate(t, s, "s")
	var mu sync.Mutex
	acknowledged := make(map[int64]bool)
	mustWait(t, mustAppend(t, s, id, simpleBatch("before")))
	acknowledged[0] = true
	arm.Store(true)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				a, err := s.Append(context.Background(), AppendRequest{Stream: id, Batch: simpleBatch(fmt.Sprint(w, i)), Expected: AnyOffset, Ack: AckDurable})
				if err == nil {
					wasFailed := s.Err() != nil
					if err = a.Wait(context.Background()); err == nil {
						if wasFailed {
							t.Errorf("offset %d was acknowledged after the failure", a.BaseOffset)
						}
						mu.Lock()
						acknowledged[a.BaseOffset] = true
						mu.Unlock()
						continue
					}
				}
				if !errors.Is(err, ErrFailed) {
					t.Errorf("after the failed sync: %v", err)
				}
				return
			}
		})
	}
	<-s.Failed()
	writers.Wait()
	if !failed.Load() {
		t.Fatal("no sync failed")
	}
	if _, err := s.Commit(context.Background(), NewTxn()); !errors.Is(err, ErrFailed) {
		t.Errorf("Commit: %v", err)
	}
	if err := s.Flush(context.Background()); !errors.Is(err, ErrFailed) {
		t.Errorf("Flush: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	opts.FS = disk.CrashClone(vfs.CrashCloneCfg{})
	s = openTest(t, opts)
	offsets, err := s.Offsets(id)
	if err != nil {
		t.Fatal(err)
	}
	for offset := range acknowledged {
		if offset >= offsets.HighWatermark {
			t.Errorf("offset %d was acknowledged and is lost: %+v", offset, offsets)
		}
	}
	if got := readStream(t, s, "s"); int64(len(got)) != offsets.HighWatermark || got[0] != "before" {
		t.Errorf("%d batches, offsets %+v", len(got), offsets)
	}
}

// A disk that cannot be written to is an error that names the data directory; the
// bucket is not touched.
func TestUnwritableDiskAtOpen(t *testing.T) {
	for _, cause := range []error{syscall.EROFS, syscall.ENOSPC, syscall.EACCES} {
		t.Run(cause.Error(), func(t *testing.T) {
			bucket := objstore.NewMemory()
			opts := testOptions(bucket)
			opts.FS = errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
					return cause
				}
				return nil
			}))
			s, err := Open(context.Background(), opts)
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, cause) || !strings.Contains(fmt.Sprint(err), "data") {
				t.Errorf("Open: %v", err)
			}
			if names := bucket.Names(); len(names) > 0 {
				t.Errorf("objects %v", names)
			}
		})
	}
}

// When the disk is nearly full, appends are refused with a retriable error that tells
// what to do; reads go on; when there is room again, so do appends.
func TestLowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		room := func(bytes uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: bytes, TotalBytes: 1 << 40, UsedBytes: 1<<40 - bytes})
		}
		room(100 << 20)
		p := startProcess(t, objstore.NewMemory(), fs, func(o *Options) { o.MinFreeBytes = 100 << 20 })
		look := func() { p.disk.checked.Store(0) } // as if a second had passed
		id := mustCreate(t, p.Store, "s")
		mustWait(t, mustAppend(t, p.Store, id, simpleBatch("0")))
		room(100<<20 - 1)
		look()
		if _, err := tryAppend(p.Store, id, batchSpec{}); !errors.Is(err, ErrBackpressure) || !strings.Contains(err.Error(), "data") || !strings.Contains(err.Error(), "100 MiB") {
			t.Errorf("Append: %v", err)
		}
		txn := NewTxn()
		txn.Set([]byte("k"), nil)
		if _, err := p.Commit(context.Background(), txn); !errors.Is(err, ErrBackpressure) {
			t.Errorf("Commit: %v", err)
		}
		if got := readStream(t, p.Store, "s"); !slices.Equal(got, []string{"0"}) {
			t.Errorf("read %q", got)
		}
		flushOne(t, p.Store)
		room(100 << 20)
		look()
		if a := mustAppend(t, p.Store, id, simpleBatch("1")); a.BaseOffset != 1 {
			t.Errorf("with room again: %+v", a)
		}
	})
}

// A disk that fills within the interval of looks, by the appends themselves, is noticed
// before they have taken much of what is to stay free.
func TestLowDiskBetweenLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minFree = 64 << 20
		fs := vfs.NewCrashableMem()
		p := startProcess(t, objstore.NewMemory(), fs, func(o *Options) { o.MinFreeBytes = minFree })
		id := mustCreate(t, p.Store, "s")
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: minFree - 1, TotalBytes: 1 << 40})
		p.disk.checked.Store(math.MaxInt64) // the interval is not over
		spec := batchSpec{payload: make([]byte, 100<<10)}
		for taken := 0; ; taken += len(spec.payload) {
			_, err := tryAppend(p.Store, id, spec)
			if errors.Is(err, ErrBackpressure) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if taken > minFree/16 {
				t.Fatalf("%d bytes were taken from a disk that is nearly full", taken)
			}
		}
	})
}

// A disk that is nearly full does not stop what makes room: deletions, trims, shorter
// retention, and retention itself. With much less room they are refused as well.
func TestLowDiskTakesWhatMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		p := startProcess(t, objstore.NewMemory(), fs, func(o *Options) { o.MinFreeBytes, o.RetentionInterval = 100<<20, 1000*time.Hour })
		room := func(bytes uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: bytes, TotalBytes: 1 << 40, UsedBytes: 1<<40 - bytes})
			p.disk.checked.Store(0) // as if a second had passed
		}
		room(100 << 20)
		expiring := createWith(t, p.Store, "expiring", Settings{Retention: time.Minute, RetentionBytes: -1})
		kept, gone := mustCreate(t, p.Store, "kept"), mustCreate(t, p.Store, "gone")
		for _, id := range []StreamID{expiring, kept, gone} {
			mustWait(t, mustAppend(t, p.Store, id, idempotent(0, 0).encode()))
		}
		flushOne(t, p.Store)
		time.Sleep(p.opts.ProducerExpiry + time.Hour)
		commit := func(build func(*Txn)) error {
			txn := NewTxn()
			build(txn)
			_, err := p.Commit(context.Background(), txn)
			return err
		}
		room(100<<20 - 1)
		for what, build := range map[string]func(*Txn){
			"create":         func(txn *Txn) { txn.Create("x", DefaultSettings()) },
			"set":            func(txn *Txn) { txn.Set([]byte("k"), nil) },
			"create, delete": func(txn *Txn) { txn.Create("x", DefaultSettings()); txn.Delete(gone) },
		} {
			if err := commit(build); !errors.Is(err, ErrBackpressure) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, build := range map[string]func(*Txn){
			"trim": func(txn *Txn) { txn.Trim(kept, 1) },
			"configure": func(txn *Txn) {
				txn.Configure(kept, Settings{Retention: time.Minute, RetentionBytes: -1})
				txn.Set([]byte("k"), nil)
			},
			"delete": func(txn *Txn) { txn.Delete(gone); txn.Unset([]byte("k")) },
		} {
			if err := commit(build); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		mustExpire(t, p.Store)
		wantOffsets(t, p.Store, expiring, Offsets{1, 1, 1}, "after retention")
		if n := countRows(t, p.Store, prefixExtent) + countRows(t, p.Store, prefixProducer); n != 0 {
			t.Errorf("%d rows of extents and producers are left", n)
		}
		room(25<<20 - 1)
		if err := commit(func(txn *Txn) { txn.Delete(kept) }); !errors.Is(err, ErrBackpressure) {
			t.Errorf("with the disk all but full: %v", err)
		}
	})
}

// The ballast is reserved while there is ample room, and given up when the disk is
// full at start.
func TestBallast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket, fs := objstore.NewMemory(), vfs.NewMem()
		size := func() int64 {
			info, err := fs.Stat("data/ballast")
			if err != nil {
				return 0
			}
			return info.Size()
		}
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
		startProcess(t, bucket, fs, nil).stop()
		if size() != ballastBytes {
			t.Fatalf("the ballast has %d bytes", size())
		}
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 0, TotalBytes: 1 << 40})
		p := startProcess(t, bucket, fs, nil)
		if size() != 0 {
			t.Errorf("the ballast still has %d bytes", size())
		}
		if _, err := p.Ensure(context.Background(), "s", DefaultSettings()); !errors.Is(err, ErrBackpressure) {
			t.Errorf("a write on the full disk: %v", err)
		}
		p.stop()
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
		startProcess(t, bucket, fs, nil).stop()
		if size() != ballastBytes {
			t.Errorf("with room again the ballast has %d bytes", size())
		}
	})
}
