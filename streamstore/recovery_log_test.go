package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// fillLog makes a log of a claim and n commits, one batch each in stream "s".
func fillLog(t *testing.T, bucket objstore.Bucket, n int) *vfs.MemFS {
	t.Helper()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
	id := mustCreate(t, p.Store, "s")
	for i := range n {
		mustAppend(t, p.Store, id, simpleBatch(fmt.Sprint(i)))
		flushOne(t, p.Store)
	}
	p.stop()
	return p.fs
}

// openCorrupt opens and wants a CorruptError whose message has all the words; the
// bucket must be left as it was.
func openCorrupt(t *testing.T, bucket *objstore.Memory, fs *vfs.MemFS, words ...string) {
	t.Helper()
	before := bucket.Names()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	opts := testOptions(bucket)
	opts.FS = fs
	s, err := Open(ctx, opts)
	if err == nil {
		_ = s.Close()
		t.Fatalf("Open succeeded, the log now is %v", bucket.Names())
	}
	var corrupt *CorruptError
	if !errors.Is(err, ErrCorrupt) || !errors.As(err, &corrupt) || corrupt.Where == "" || corrupt.What == "" {
		t.Fatalf("Open: %v, want a CorruptError that says where and what", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("Open: %q does not tell %q", err, word)
		}
	}
	if after := bucket.Names(); !slices.Equal(before, after) {
		t.Errorf("Open changed the bucket from %v to %v", before, after)
	}
}

// An object that was once there and is gone must not be taken for the end of the
// log, however few follow it: claiming its number would drop them.
func TestMissingLogObject(t *testing.T) {
	for _, missing := range []uint64{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(missing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				fillLog(t, bucket, 8) // numbers 1 to 9
				if err := bucket.Delete(context.Background(), logName(0, missing)); err != nil {
					t.Fatal(err)
				}
				openCorrupt(t, bucket, vfs.NewCrashableMem(), logName(0, missing), "missing")
			})
		})
	}
}

// A hole that an upload of a fenced writer left behind stays in the log for ever
// and is no missing object, also when the next writer dies with uploads in flight
// behind it.
func TestHoleOfFencedWriterIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		id := mustCreate(t, a.Store, "s")
		mustAppend(t, a.Store, id, simpleBatch("0"))
		flushOne(t, a.Store) // 2
		// Of numbers 3, 4 and 5 only 5 arrives.
		lost := newGate(t)
		gateCreates(a.faults, map[uint64]*gate{3: lost, 4: lost}, nil)
		for i := range 3 {
			mustAppend(t, a.Store, id, simpleBatch(fmt.Sprint("lost", i)))
			startFlush(t, a)
		}
		a.link.dead.Store(true)

		b := startProcess(t, bucket, vfs.NewCrashableMem(), remote) // claims 3
		if b.Stats().Commit != 3 {
			t.Fatalf("the second writer claimed number %d, want 3", b.Stats().Commit)
		}
		// Of 4 to 7 the first does not arrive, and the second is taken.
		never := newGate(t)
		gateCreates(b.faults, map[uint64]*gate{4: never}, nil)
		for i := range maxUploads {
			mustAppend(t, b.Store, id, simpleBatch(fmt.Sprint("unanswered", i)))
			startFlush(t, b)
		}
		b.link.dead.Store(true)
		if got := numbers(readLog(t, bucket), false); !slices.Equal(got, []uint64{5, 6, 7}) {
			t.Fatalf("dead objects %v", got)
		}
		if got := readFresh(t, bucket, "s"); !slices.Equal(got, []string{"0"}) {
			t.Errorf("read %q", got)
		}
	})
}

// Bytes that are no commit, or only a part of one, stop Open with a message that
// names the object; it does not wait for them to become better.
func TestDamagedLogObject(t *testing.T) {
	big := batchSpec{payload: make([]byte, smallObjectBytes)}
	damage := map[string]struct {
		do    func(b *objstore.Memory, name string) error
		words []string
	}{
		"header magic":      {func(b *objstore.Memory, n string) error { return b.Corrupt(n, 0) }, []string{"magic", commitMagic}},
		"header version":    {func(b *objstore.Memory, n string) error { return b.Corrupt(n, 9) }, []string{"format version"}},
		"header":            {func(b *objstore.Memory, n string) error { return b.Corrupt(n, 40) }, []string{"header checksum"}},
		"state":             {func(b *objstore.Memory, n string) error { return b.Corrupt(n, sizeOf(b, n)-commitFooterSize-1) }, []string{"state checksum"}},
		"footer":            {func(b *objstore.Memory, n string) error { return b.Corrupt(n, sizeOf(b, n)-1) }, []string{"footer magic"}},
		"cut in the header": {func(b *objstore.Memory, n string) error { return b.Truncate(n, commitHeaderSize-1) }, []string{"size"}},
		"cut at the end":    {func(b *objstore.Memory, n string) error { return b.Truncate(n, sizeOf(b, n)-1) }, []string{"size"}},
		"empty":             {func(b *objstore.Memory, n string) error { return b.Truncate(n, 0) }, []string{"size"}},
		"foreign object": {func(b *objstore.Memory, n string) error {
			if err := b.Delete(context.Background(), n); err != nil {
				return err
			}
			return b.Create(context.Background(), n, make([]byte, 1000))
		}, []string{"magic"}},
		"object of another number": {func(b *objstore.Memory, n string) error {
			other, err := b.Get(context.Background(), logName(0, 2))
			if err != nil {
				return err
			}
			if err := b.Delete(context.Background(), n); err != nil {
				return err
			}
			return b.Create(context.Background(), n, other)
		}, []string{"number"}},
	}
	for name, c := range damage {
		for _, size := range []string{"small", "big"} {
			t.Run(name+" of a "+size+" object", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					fs := fillLog(t, bucket, 1) // 1, 2
					p := startProcess(t, bucket, fs, remote)
					id, err := p.Lookup("s")
					if err != nil {
						t.Fatal(err)
					}
					batch := simpleBatch("x")
					if size == "big" {
						batch = big.encode()
					}
					mustAppend(t, p.Store, id, batch)
					flushOne(t, p.Store) // 4
					p.stop()
					if err := c.do(bucket, logName(0, 4)); err != nil {
						t.Fatal(err)
					}
					// A reader that begins anew, and the one whose position it is.
					openCorrupt(t, bucket, vfs.NewCrashableMem(), append(c.words, logName(0, 4))...)
					if !strings.HasPrefix(name, "state") && !strings.HasPrefix(name, "footer") && name != "cut at the end" {
						openCorrupt(t, bucket, fs, logName(0, 4), "data directory")
					}
				})
			})
		}
	}
}

func sizeOf(b *objstore.Memory, name string) int64 {
	data, err := b.Get(context.Background(), name)
	if err != nil {
		panic(err)
	}
	return int64(len(data))
}

// A data directory together with a bucket that it does not belong to is refused
// before anything is written to either.
func TestWrongBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		fs := fillLog(t, bucket, 3)
		openCorrupt(t, objstore.NewMemory(), fs, "data directory data", "do not belong together", "missing")
		other := objstore.NewMemory()
		fillLog(t, other, 7)
		openCorrupt(t, other, fs, "do not belong together", "epoch and nonce")
		if got := readFresh(t, bucket, "s"); !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("with the right bucket: %q", got)
		}
	})
}

// A bucket that is throttled for five minutes delays a start; it does not end it.
func TestThrottledAtOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		fillLog(t, bucket, 20)
		faults := faulty.New(bucket, 1)
		faults.ThrottleFor(5 * time.Minute)
		opts := testOptions(faults)
		started := time.Now()
		s := openTest(t, opts)
		if took := time.Since(started); took < 5*time.Minute || took > 6*time.Minute {
			t.Errorf("Open took %v", took)
		}
		calls := 0
		for _, op := range []objstore.Op{objstore.OpList, objstore.OpGet, objstore.OpGetRange, objstore.OpCreate} {
			calls += faults.Calls(op)
		}
		// 5 minutes of backoff up to 10 s, then a read of each object.
		if calls > 150 {
			t.Errorf("%d calls", calls)
		}
		if got := readStream(t, s, "s"); len(got) != 20 {
			t.Errorf("read %q", got)
		}
	})
}
