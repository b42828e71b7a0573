package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// createWith makes a stream with settings.
func createWith(t *testing.T, s *Store, name string, settings Settings) StreamID {
	t.Helper()
	return mustCommit(t, s, func(txn *Txn) { txn.Create(name, settings) }).Created[0]
}

// appendAt appends one record with a timestamp and flushes, so that it is an extent
// of its own.
func appendAt(t *testing.T, s *Store, id StreamID, timestamp int64) {
	t.Helper()
	mustWait(t, mustAppend(t, s, id, batchSpec{payload: make([]byte, 100), timestamp: timestamp}.encode()))
	flushOne(t, s)
}

func mustExpire(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Expire(context.Background()); err != nil {
		t.Fatalf("Expire: %v", err)
	}
	flushOne(t, s)
}

func wantOffsets(t *testing.T, s *Store, id StreamID, want Offsets, when string) {
	t.Helper()
	if got, err := s.Offsets(id); err != nil || got != want {
		t.Errorf("%s: offsets %+v, %v; want %+v", when, got, err, want)
	}
}

// Records expire by age, oldest first; when all have, the start offset is the next
// one, before and after a restart and on another disk.
func TestRetentionByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := createWith(t, p.Store, "s", Settings{Retention: 10 * time.Minute, RetentionBytes: -1})
		for range 3 {
			appendAt(t, p.Store, id, time.Now().UnixMilli())
			time.Sleep(4 * time.Minute)
		}
		mustExpire(t, p.Store) // ages 12, 8 and 4 minutes
		wantOffsets(t, p.Store, id, Offsets{1, 3, 3}, "after 12 minutes")
		time.Sleep(time.Hour)
		mustExpire(t, p.Store)
		all := Offsets{3, 3, 3}
		wantOffsets(t, p.Store, id, all, "after all expired")
		if r, err := p.Read(context.Background(), id, 2, ReadOptions{MaxBytes: 1}); !errors.Is(err, ErrOffsetOutOfRange) || r.Offsets != all {
			t.Errorf("reading an expired record: %+v, %v", r, err)
		}
		if n := countRows(t, p.Store, prefixExtent); n != 0 {
			t.Errorf("%d extents are left", n)
		}
		p.stop()
		p = startProcess(t, bucket, p.fs, nil)
		wantOffsets(t, p.Store, id, all, "after a restart")
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		wantOffsets(t, p.Store, id, all, "on another disk")
		if a := mustAppend(t, p.Store, id, simpleBatch("x")); a.BaseOffset != 3 {
			t.Errorf("the next record got offset %d", a.BaseOffset)
		}
	})
}

// The oldest records expire while more than the limit remains without them. What is
// not in the bucket yet counts but does not expire.
func TestRetentionByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		size := int64(len(batchSpec{payload: make([]byte, 100)}.encode()))
		id := createWith(t, p.Store, "s", Settings{Retention: -1, RetentionBytes: 3*size + 1})
		for range 6 {
			appendAt(t, p.Store, id, 0)
		}
		mustExpire(t, p.Store)
		wantOffsets(t, p.Store, id, Offsets{2, 6, 6}, "four batches are one byte more than needed")
		if n, err := p.StreamBytes(id); err != nil || n != 4*size {
			t.Errorf("%d bytes, %v; want %d", n, err, 4*size)
		}
		mustWait(t, mustAppend(t, p.Store, id, batchSpec{payload: make([]byte, 100)}.encode()))
		if err := p.Expire(context.Background()); err != nil {
			t.Fatal(err)
		}
		wantOffsets(t, p.Store, id, Offsets{3, 7, 7}, "with one in the tail")
		mustCommit(t, p.Store, func(txn *Txn) { txn.Configure(id, Settings{Retention: -1, RetentionBytes: 0}) })
		mustExpire(t, p.Store)
		mustExpire(t, p.Store)
		wantOffsets(t, p.Store, id, Offsets{7, 7, 7}, "with a limit of 0")
	})
}

// A record from the future does not hold up what lies behind it, and a record
// without a timestamp is as old as its commit.
func TestRetentionByOddTimestamps(t *testing.T) {
	for name, timestamp := range map[string]int64{"future": time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), "none": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
				id := createWith(t, p.Store, "s", Settings{Retention: 10 * time.Minute, RetentionBytes: -1})
				appendAt(t, p.Store, id, timestamp)
				appendAt(t, p.Store, id, time.Now().UnixMilli())
				time.Sleep(9 * time.Minute)
				mustExpire(t, p.Store)
				wantOffsets(t, p.Store, id, Offsets{0, 2, 2}, "after 9 minutes")
				time.Sleep(2 * time.Minute)
				mustExpire(t, p.Store)
				wantOffsets(t, p.Store, id, Offsets{2, 2, 2}, "after 11 minutes")
			})
		})
	}
}

// A deleted stream leaves no rows behind, its name is free at once, its id is not
// used again, also not by a writer that knows only the log.
func TestDelete(t *testing.T) {
	for _, when := range []string{"flushed", "unflushed", "in flight"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
				old := mustCreate(t, p.Store, "s")
				put := newGate(t)
				appends := []Appended{mustAppend(t, p.Store, old, idempotent(0, 0).encode())}
				switch when {
				case "flushed":
					flushOne(t, p.Store)
				case "in flight":
					gateCreates(p.faults, map[uint64]*gate{2: put}, nil)
					startFlush(t, p)
					appends = append(appends, mustAppend(t, p.Store, old, idempotent(0, 1).encode()))
				}
				watch := p.NewWatch()
				defer watch.Close()
				if err := watch.Add(old, 1); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				watch.Take(nil)
				result := mustCommit(t, p.Store, func(txn *Txn) {
					txn.Delete(old)
					txn.Create("s", DefaultSettings())
				})
				if news := watch.Take(nil); !slices.Equal(news, []int{1}) {
					t.Errorf("news of the deletion: %v", news)
				}
				put.open()
				for _, a := range appends {
					mustWait(t, a)
				}
				id := result.Created[0]
				check := func(s *Store, when string) {
					t.Helper()
					_, describe := s.Describe(old)
					_, read := s.Read(context.Background(), old, 0, ReadOptions{MaxBytes: 1})
					_, appended := tryAppend(s, old, idempotent(0, 9))
					_, size := s.StreamBytes(old)
					_, producers := s.Producers(old)
					_, _, max := s.MaxTimestampBatch(context.Background(), old)
					scan := s.ScanTimestamp(context.Background(), old, 0, nil)
					for i, err := range []error{describe, read, appended, size, producers, max, scan} {
						if !errors.Is(err, ErrNoStream) {
							t.Errorf("%s: call %d on the deleted stream: %v", when, i, err)
						}
					}
					if got, err := s.Lookup("s"); err != nil || got != id {
						t.Errorf("%s: Lookup: %d, %v; want %d", when, got, err, id)
					}
					wantOffsets(t, s, id, Offsets{}, when)
				}
				check(p.Store, "after deletion")
				p = startProcess(t, bucket, p.kill(), nil)
				check(p.Store, "after a crash")
				flushOne(t, p.Store)
				check(p.Store, "after flush")
				for _, prefix := range []byte{prefixExtent, prefixProducer, prefixTail} {
					if n := countRows(t, p.Store, prefix); n != 0 {
						t.Errorf("%d rows %c are left", n, prefix)
					}
				}
				p.stop()
				p = startProcess(t, bucket, vfs.NewCrashableMem(), nil)
				check(p.Store, "on another disk")
				if again := mustCreate(t, p.Store, "t"); again == old || again == id {
					t.Errorf("id %d was given again", again)
				}
			})
		})
	}
}

// A deletion that does not reach the log takes nothing with it: what was
// acknowledged before is there for a writer that has only the log.
func TestDeletionThatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewMem(), remote)
		id, other := mustCreate(t, p.Store, "s"), mustCreate(t, p.Store, "other")
		flushOne(t, p.Store) // 2
		// Four commits on their way, so that what follows waits to be sealed.
		first, last := newGate(t), newGate(t)
		gateCreates(p.faults, map[uint64]*gate{3: first, 8: last}, nil)
		for range maxUploads {
			mustAppend(t, p.Store, other, simpleBatch("x"))
			startFlush(t, p)
		}
		a := mustAppend(t, p.Store, id, simpleBatch("acknowledged")) // 7
		// Fills a commit, so that the deletion goes into the next one.
		mustAppend(t, p.Store, other, batchSpec{payload: make([]byte, maxCommitBytes-tailEntryOverhead-batchHeaderSize)}.encode())
		txn := NewTxn()
		txn.Delete(id)
		if _, _, err := p.queueTxn(context.Background(), txn); err != nil {
			t.Fatal(err)
		}
		startFlush(t, p)
		first.open()
		mustWait(t, a)
		p.link.dead.Store(true)
		if got := readFresh(t, bucket, "s"); !slices.Equal(got, []string{"acknowledged"}) {
			t.Errorf("the stream whose deletion was lost has %q", got)
		}
	})
}

// Trimming again and again costs the database no more than its last trims: the
// deletions of a stream do not overlap, and neither do those of the tail.
func TestTombstonesDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		for i := range int64(200) {
			mustWait(t, mustAppend(t, p.Store, id, simpleBatch(fmt.Sprint(i))))
			mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, i+1) })
			flushOne(t, p.Store)
		}
		for _, prefix := range []byte{prefixTail, prefixExtent} {
			var end []byte
			spans := 0
			scan := func(start, stop []byte) {
				if start[0] != prefix {
					return
				}
				if spans++; string(start) < string(end) {
					t.Errorf("deletion of %x to %x overlaps one that ends at %x", start, stop, end)
				}
				end = slices.Clone(stop)
			}
			for _, span := range deletions(t, p, prefix) {
				scan(span[0], span[1])
			}
			if spans < 200 {
				t.Errorf("prefix %c: %d deletions, want one per trim or flush", prefix, spans)
			}
		}
	})
}

// deletions are the range deletions that the state sections of the log and their
// application made, in order.
func deletions(t *testing.T, p *process, prefix byte) (spans [][2][]byte) {
	t.Helper()
	for _, o := range readLog(t, p.opts.Bucket) {
		if prefix == prefixTail {
			if o.appendFrom < o.appendTo {
				spans = append(spans, [2][]byte{tailKey(o.appendFrom), tailKey(o.appendTo)})
			}
			continue
		}
		object, err := p.opts.Bucket.Get(context.Background(), logName(0, o.number))
		if err != nil {
			t.Fatal(err)
		}
		state, err := p.codec.open("log", &o.commitHeader, object[commitHeaderSize+o.dataLength:])
		if err != nil {
			t.Fatal(err)
		}
		if len(state) == 0 {
			continue
		}
		var batch pebble.Batch
		if err := batch.SetRepr(state); err != nil {
			t.Fatal(err)
		}
		reader := batch.Reader()
		for {
			kind, key, value, ok, err := reader.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if kind == pebble.InternalKeyKindRangeDelete && key[0] == prefix {
				spans = append(spans, [2][]byte{slices.Clone(key), slices.Clone(value)})
			}
		}
	}
	return spans
}
