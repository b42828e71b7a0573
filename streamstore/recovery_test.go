package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// A store is found again from its disk, from an empty disk, and from a disk as it was
// at any earlier time, with and without an unflushed tail.
func TestRecoverFromAnyDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		var want []string
		var disks []*vfs.MemFS
		disk := func() { disks = append(disks, p.fs.CrashClone(vfs.CrashCloneCfg{})) }
		for i := range 4 {
			id := mustCreate(t, p.Store, "s")
			want = append(want, fmt.Sprint(i))
			mustWait(t, mustAppend(t, p.Store, id, simpleBatch(want[i])))
			disk() // with a tail
			mustCommit(t, p.Store, func(txn *Txn) { txn.Set([]byte("key"), []byte(want[i])) })
			flushOne(t, p.Store)
			mustWait(t, mustAppend(t, p.Store, mustCreate(t, p.Store, fmt.Sprint("t", i)), simpleBatch("t")))
			flushOne(t, p.Store)
			// What a flush changes on the disk is synced with the next append only.
			mustCommit(t, p.Store, func(txn *Txn) { txn.Set([]byte("other"), []byte("x")) })
			flushOne(t, p.Store)
			disk()
		}
		disks = append(disks, p.kill(), vfs.NewCrashableMem())
		for i, fs := range disks {
			p := startProcess(t, bucket, fs, nil)
			if p.Recovery().SetAside != "" {
				t.Errorf("disk %d: recovery %+v", i, p.Recovery())
			}
			if got := readStream(t, p.Store, "s"); !slices.Equal(got, want) {
				t.Errorf("disk %d: read %q, want %q", i, got, want)
			}
			if value, _, err := p.Get([]byte("key")); err != nil || string(value) != want[len(want)-1] {
				t.Errorf("disk %d: key-value row %q, %v", i, value, err)
			}
			p.stop()
		}
	})
}

// A commit that was on its way at the crash has landed: what it covers is in the log,
// the rest of the tail is not, and nothing is there twice. The tail holds transactions
// in every order against the commit.
func TestOwnCommitLandsAtCrash(t *testing.T) {
	type step struct {
		name string
		do   func(t *testing.T, p *process, ids map[string]StreamID)
	}
	appendTo := func(name string) step {
		return step{"append " + name, func(t *testing.T, p *process, ids map[string]StreamID) {
			for i := range 2 {
				mustWait(t, mustAppend(t, p.Store, ids[name], simpleBatch(fmt.Sprint(name, i))))
			}
		}}
	}
	change := func(name string, build func(txn *Txn, ids map[string]StreamID)) step {
		return step{name, func(t *testing.T, p *process, ids map[string]StreamID) {
			mustCommit(t, p.Store, func(txn *Txn) { build(txn, ids) })
		}}
	}
	steps := []step{
		appendTo("a"),
		{"create b", func(t *testing.T, p *process, ids map[string]StreamID) { ids["b"] = mustCreate(t, p.Store, "b") }},
		appendTo("b"),
		change("trim a", func(txn *Txn, ids map[string]StreamID) { txn.Trim(ids["a"], 2) }),
		change("set", func(txn *Txn, ids map[string]StreamID) { txn.Set([]byte("k"), []byte("1")) }),
		appendTo("a"),
		change("configure a", func(txn *Txn, ids map[string]StreamID) {
			txn.Configure(ids["a"], Settings{Retention: 1e9, RetentionBytes: 7})
		}),
		change("delete b", func(txn *Txn, ids map[string]StreamID) { txn.Delete(ids["b"]) }),
		{"create b again", func(t *testing.T, p *process, ids map[string]StreamID) { ids["b"] = mustCreate(t, p.Store, "b") }},
		appendTo("b"),
		change("trim a again", func(txn *Txn, ids map[string]StreamID) { txn.Trim(ids["a"], 4); txn.Trim(ids["b"], 1) }),
		change("unset", func(txn *Txn, ids map[string]StreamID) { txn.Unset([]byte("k")); txn.Set([]byte("l"), []byte("2")) }),
	}
	for cut := 1; cut <= len(steps); cut++ {
		for _, landed := range []bool{true, false} {
			t.Run(fmt.Sprintf("crash after %d, commit landed %v", cut, landed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
					ids := map[string]StreamID{"a": mustCreate(t, p.Store, "a")}
					flushOne(t, p.Store) // 2
					put := newGate(t)
					if landed {
						gateCreates(p.faults, nil, map[uint64]*gate{3: put})
					} else {
						gateCreates(p.faults, map[uint64]*gate{3: put}, nil)
					}
					for i, step := range steps {
						step.do(t, p, ids)
						if i+1 == cut {
							startFlush(t, p)
							<-put.reached
						}
					}
					want := describeAll(t, p.Store)
					p = startProcess(t, bucket, p.kill(), nil)
					if got := describeAll(t, p.Store); got != want {
						t.Fatalf("after the crash:\n%s\nwant:\n%s", got, want)
					}
					flushOne(t, p.Store)
					if got := describeAll(t, p.Store); got != want {
						t.Fatalf("after the flush:\n%s\nwant:\n%s", got, want)
					}
					p = startProcess(t, bucket, vfs.NewCrashableMem(), nil)
					if got := describeAll(t, p.Store); got != want {
						t.Errorf("on another disk:\n%s\nwant:\n%s", got, want)
					}
				})
			})
		}
	}
}

// describeAll writes down everything a store holds.
func describeAll(t *testing.T, s *Store) (text string) {
	t.Helper()
	infos, err := s.List("", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		text += fmt.Sprintf("%s: id %d, %+v, %+v, %q\n", info.Name, info.ID, info.Settings, info.Offsets, payloads(readAll(t, s, info.ID, info.Start)))
	}
	err = s.Scan(nil, func(key, value []byte) error {
		text += fmt.Sprintf("%s = %s\n", key, value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The start offset moves inside a batch. A read there carries the whole batch, one
// below is out of range; so it is before and after flush, restart, crash, and on
// another disk, and for look-ups by time.
func TestTrimInsideBatch(t *testing.T) {
	for _, trim := range []int64{5, 10, 15, 20} {
		t.Run(fmt.Sprint(trim), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
				id := mustCreate(t, p.Store, "s")
				for i := range 2 {
					mustWait(t, mustAppend(t, p.Store, id, batchSpec{records: 10, timestamp: 100 * int64(i+1)}.encode()))
				}
				check := func(when string) {
					t.Helper()
					wantOffsets(t, p.Store, id, Offsets{trim, 20, 20}, when)
					r, err := p.Read(context.Background(), id, trim, ReadOptions{MaxBytes: 1, MinOneBatch: true})
					if err != nil || r.Start != trim {
						t.Errorf("%s: read at start: %+v, %v", when, r.Offsets, err)
					}
					if base := trim / 10 * 10; trim == 20 && len(r.Chunks) != 0 || trim < 20 && (len(r.Chunks) != 1 || recordBatch(r.Chunks[0]).baseOffset() != base) {
						t.Errorf("%s: read at start: %d chunks", when, len(r.Chunks))
					}
					if _, err := p.Read(context.Background(), id, trim-1, ReadOptions{MaxBytes: 1}); !errors.Is(err, ErrOffsetOutOfRange) {
						t.Errorf("%s: read below start: %v", when, err)
					}
					var bases []int64
					scan := func(batch []byte) (bool, error) {
						bases = append(bases, recordBatch(batch).baseOffset())
						return false, nil
					}
					if err := p.ScanTimestamp(context.Background(), id, 100, scan); err != nil || !slices.Equal(bases, [][]int64{{0, 10}, {10}, {}}[trim/10]) {
						t.Errorf("%s: look-up by time found batches at %d, %v", when, bases, err)
					}
					batch, ok, err := p.MaxTimestampBatch(context.Background(), id)
					if err != nil || ok != (trim < 20) || ok && recordBatch(batch).baseOffset() != 10 {
						t.Errorf("%s: batch of the largest timestamp: %v, %v", when, ok, err)
					}
				}
				mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, trim) })
				check("in the tail")
				p = startProcess(t, bucket, p.kill(), nil)
				check("in the tail after a crash")
				flushOne(t, p.Store)
				check("in the bucket")
				p.stop()
				p = startProcess(t, bucket, p.fs, nil)
				check("after a restart")
				p.stop()
				p = startProcess(t, bucket, vfs.NewCrashableMem(), nil)
				check("on another disk")
				if a := mustAppend(t, p.Store, id, simpleBatch("x")); a.BaseOffset != 20 || a.StartOffset != trim {
					t.Errorf("the next append: %+v", a)
				}
			})
		})
	}
}

// Look-ups by time find the first batch in the order of the stream, whether it lies in
// an extent, in the tail, or both, and whether times go up or not.
func TestLookUpByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) { o.TailCacheBytes = 1 })
		id := mustCreate(t, p.Store, "s")
		times := []int64{50, 10, 90, 20, 90, 30, 95, 95, 5}
		for i, ts := range times {
			mustWait(t, mustAppend(t, p.Store, id, batchSpec{timestamp: ts}.encode()))
			if i == 2 || i == 5 {
				flushOne(t, p.Store)
			}
		}
		for start := range int64(len(times)) {
			mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, start) })
			for _, ts := range []int64{0, 10, 21, 50, 51, 90, 91, 95, 96} {
				want, got := int64(-1), int64(-1)
				for i := start; i < int64(len(times)) && want < 0; i++ {
					if times[i] >= ts {
						want = i
					}
				}
				err := p.ScanTimestamp(context.Background(), id, ts, func(batch []byte) (bool, error) {
					got = recordBatch(batch).baseOffset()
					return true, nil
				})
				if err != nil || got != want {
					t.Errorf("from %d: first batch since %d is at %d, %v; want %d", start, ts, got, err, want)
				}
			}
			largest := start
			for i := start; i < int64(len(times)); i++ {
				if times[i] > times[largest] {
					largest = i
				}
			}
			batch, ok, err := p.MaxTimestampBatch(context.Background(), id)
			if err != nil || !ok || recordBatch(batch).baseOffset() != largest {
				t.Errorf("from %d: largest timestamp: %v, %v; want the batch at %d", start, ok, err, largest)
			}
		}
		failure := errors.New("stop")
		if err := p.ScanTimestamp(context.Background(), id, 0, func([]byte) (bool, error) { return false, failure }); err != failure {
			t.Errorf("the callback's error became %v", err)
		}
	})
}
