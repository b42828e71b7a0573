package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

func mustCheckpoint(t testing.TB, s *Store) {
	t.Helper()
	if err := s.checkpoints.make(context.Background()); err != nil {
		t.Fatalf("making a checkpoint: %v", err)
	}
}

// mustBase makes a checkpoint that shares no part with others.
func mustBase(t testing.TB, s *Store) {
	t.Helper()
	c := s.checkpoints
	c.work <- struct{}{}
	c.newest = nil
	<-c.work
	mustCheckpoint(t, s)
}

// names are the objects of a folder of a bucket.
func names(t testing.TB, bucket objstore.Bucket, dir string) (list []string) {
	t.Helper()
	err := bucket.List(context.Background(), dir, "", func(info objstore.ObjectInfo) error {
		list = append(list, info.Name)
		return nil
	})
	if err != nil {
		t.Fatalf("listing %s: %v", dir, err)
	}
	return list
}

func checkpoints(t testing.TB, bucket objstore.Bucket) (list []uint64) {
	t.Helper()
	for _, name := range names(t, bucket, checkpointDir(0)) {
		number, ok := parseCheckpointName(0, name)
		if !ok {
			t.Fatalf("%s is no checkpoint", name)
		}
		list = append(list, number)
	}
	return list
}

func mustManifest(t testing.TB, bucket objstore.Bucket, number uint64) *manifest {
	t.Helper()
	b, err := bucket.Get(context.Background(), checkpointName(0, number))
	if err != nil {
		t.Fatalf("checkpoint %d: %v", number, err)
	}
	m, err := decodeManifest("checkpoint", 0, number, b)
	if err != nil {
		t.Fatalf("checkpoint %d: %v", number, err)
	}
	return m
}

// overwrite overwrites an object, as a person or a failing disk does; nil removes it.
func overwrite(t testing.TB, bucket objstore.Bucket, name string, b []byte) {
	t.Helper()
	err := bucket.Delete(context.Background(), name)
	if err == nil && b != nil {
		err = bucket.Create(context.Background(), name, b)
	}
	if err != nil {
		t.Fatalf("replacing %s: %v", name, err)
	}
}

// deleteCovered deletes the log objects that checkpoints cover and that hold no live
// records, and returns their numbers.
func deleteCovered(t testing.TB, bucket objstore.Bucket, s *Store) (deleted []uint64) {
	t.Helper()
	live := make(map[uint64]bool)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixExtent}, UpperBound: []byte{prefixExtent + 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer iter.Close()
	for valid := iter.First(); valid; valid = iter.Next() {
		x, err := decodeExtent(iter.Key(), iter.Value())
		if err != nil {
			t.Fatal(err)
		}
		live[x.object.number] = live[x.object.number] || x.object.kind == objectLog
	}
	for _, name := range names(t, bucket, logDir(0)) {
		number, _ := parseLogName(0, name)
		if number < s.coveredBelow() && !live[number] {
			overwrite(t, bucket, name, nil)
			deleted = append(deleted, number)
		}
	}
	return deleted
}

// set makes a commit that changes a row of the key-value space.
func set(t testing.TB, s *Store, key, value string) {
	t.Helper()
	mustCommitLocal(t, s, func(txn *Txn) { txn.Set([]byte(key), []byte(value)) })
	flushOne(t, s)
}

// mustCommitLocal queues a transaction and does not wait until it is durable.
func mustCommitLocal(t testing.TB, s *Store, build func(*Txn)) {
	t.Helper()
	txn := NewTxn()
	build(txn)
	if _, _, err := s.queueTxn(context.Background(), txn); err != nil {
		t.Fatalf("transaction: %v", err)
	}
}

func get(t testing.TB, s *Store, key string) string {
	t.Helper()
	value, ok, err := s.Get([]byte(key))
	if err != nil {
		t.Fatalf("Get %q: %v", key, err)
	}
	if !ok {
		return "absent"
	}
	return string(value)
}

// coldStart opens a store with an empty disk.
func coldStart(t testing.TB, bucket objstore.Bucket) *process {
	t.Helper()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
	synctest.Wait() // its checkpoints are known
	return p
}

func wantGet(t testing.TB, s *Store, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := get(t, s, pairs[i]); got != pairs[i+1] {
			t.Errorf("key %q has the value %q, want %q", pairs[i], got, pairs[i+1])
		}
	}
}

// dumpRows returns all rows that are a function of the log.
func dumpRows(t testing.TB, s *Store) map[string]string {
	t.Helper()
	rows := make(map[string]string)
	for _, prefix := range checkpointPrefixes {
		iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
		if err != nil {
			t.Fatal(err)
		}
		for valid := iter.First(); valid; valid = iter.Next() {
			rows[string(iter.Key())] = string(iter.Value())
		}
		if err := errors.Join(iter.Error(), iter.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// A store with a lost disk comes back from a checkpoint and the log after it, row for
// row, whether that is a base alone or one with bundles, and although what the checkpoints
// cover is gone from the log.
func TestColdStart(t *testing.T) {
	for _, made := range []int{1, 2, 5, 30} {
		t.Run(fmt.Sprintf("%d checkpoints", made), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := coldStart(t, bucket)
				var want []string
				id := mustCreate(t, p.Store, "s")
				for i := range made {
					mustAppend(t, p.Store, id, idempotent(0, int32(i)).encode())
					want = append(want, fmt.Sprint("0.", i))
					mustCreate(t, p.Store, fmt.Sprint("stream/", i))
					set(t, p.Store, fmt.Sprint("key", i%3), fmt.Sprint(i))
					if i%4 == 3 {
						mustCommitLocal(t, p.Store, func(txn *Txn) {
							txn.Trim(id, int64(i-1))
							old, _ := p.Lookup(fmt.Sprint("stream/", i-1))
							txn.Delete(old)
							txn.Unset([]byte("key0"))
						})
						want = want[len(want)-2:]
					}
					flushOne(t, p.Store)
					if i%3 == 2 {
						mustBase(t, p.Store)
					} else {
						mustCheckpoint(t, p.Store)
					}
				}
				mustAppend(t, p.Store, id, simpleBatch("after"))
				flushOne(t, p.Store)
				rows := dumpRows(t, p.Store)
				covered := p.coveredBelow()
				if deleted := deleteCovered(t, bucket, p.Store); made > 2 && (covered == 0 || len(deleted) == 0) {
					t.Errorf("covered below %d, deleted %v", covered, deleted)
				}
				p.stop()

				q := coldStart(t, bucket)
				if got := dumpRows(t, q.Store); !mapsEqual(got, rows) {
					t.Errorf("rows differ: %d, want %d", len(got), len(rows))
				}
				if got := readStream(t, q.Store, "s"); !slices.Equal(got, append(want, "after")) {
					t.Errorf("read %q, want %q", got, want)
				}
				if r := q.Recovery(); r.Checkpoint != newestOf(checkpoints(t, bucket)) || r.ReplayedCommits != 1 || r.FetchedBytes == 0 {
					t.Errorf("recovery: %+v", r)
				}
				if a, err := tryAppend(q.Store, id, idempotent(0, int32(made-1))); err != nil || !a.Duplicate {
					t.Errorf("a retry after the cold start: %+v, %v", a, err)
				}
				set(t, q.Store, "more", "1")
				mustCheckpoint(t, q.Store)
				q.stop()
				r := coldStart(t, bucket)
				wantGet(t, r.Store, "more", "1")
				if n := r.Recovery().ReplayedCommits; n != 0 {
					t.Errorf("%d commits replayed after the newest checkpoint", n)
				}
			})
		})
	}
}

func newestOf(numbers []uint64) uint64 {
	if len(numbers) == 0 {
		return 0
	}
	return numbers[len(numbers)-1]
}

func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// The rows of a base are ahead of its commit by what was appended and not flushed. The
// manifest is not written before the log has caught up, and then each row has its last
// value, whichever of the commits in between changed it.
func TestBaseAheadOfLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		set(t, p.Store, "old", "1")  // 2
		set(t, p.Store, "both", "1") // 3
		id := mustCreate(t, p.Store, "gone")
		mustAppend(t, p.Store, id, simpleBatch("x"))
		flushOne(t, p.Store) // 4
		puts := map[uint64]*gate{5: newGate(t), 6: newGate(t)}
		gateCreates(p.faults, puts, nil)
		change := func(key, value string) {
			mustCommitLocal(t, p.Store, func(txn *Txn) { txn.Set([]byte(key), []byte(value)) })
		}
		change("both", "2")
		change("new", "1")
		startFlush(t, p) // 5
		change("both", "3")
		mustCommitLocal(t, p.Store, func(txn *Txn) { txn.Unset([]byte("new")); txn.Delete(id) })
		startFlush(t, p) // 6
		made := async(func() error { return p.checkpoints.make(context.Background()) })
		synctest.Wait()
		if len(names(t, bucket, stateDir(0))) == 0 {
			t.Error("the base is not there")
		}
		for _, number := range []uint64{5, 6} {
			if got := checkpoints(t, bucket); len(got) > 0 {
				t.Errorf("checkpoint of commit %v although commit %d is not durable", got, number)
			}
			puts[number].open()
			synctest.Wait()
		}
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		if m := mustManifest(t, bucket, 4); m.ahead != p.queue.nextNumber() || m.position.appendTo >= m.ahead {
			t.Errorf("manifest: %+v", m)
		}
		rows := dumpRows(t, p.Store)
		p.stop()
		q := coldStart(t, bucket)
		if got := dumpRows(t, q.Store); !mapsEqual(got, rows) {
			t.Errorf("rows %q, want %q", got, rows)
		}
		wantGet(t, q.Store, "old", "1", "both", "3", "new", "absent")
		q.stop()

		// Without the commits that the base is ahead by, it must not be used.
		overwrite(t, bucket, logName(0, 6), nil)
		overwrite(t, bucket, logName(0, 7), nil) // the claim above
		before := names(t, bucket, logDir(0))
		if _, err := tryProcess(t, bucket, vfs.NewCrashableMem(), remote); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Open without commit 6: %v", err)
		}
		if after := names(t, bucket, logDir(0)); !slices.Equal(before, after) {
			t.Errorf("a claim was made: %v", after)
		}
	})
}

// damages are ways in which an object can be broken.
var damages = map[string]func(b []byte) []byte{
	"missing":   func([]byte) []byte { return nil },
	"empty":     func([]byte) []byte { return []byte{} },
	"truncated": func(b []byte) []byte { return b[:len(b)/2] },
	"flipped":   func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 4; return b },
	"longer":    func(b []byte) []byte { return append(bytes.Clone(b), 0) },
}

// A damaged newest checkpoint is survived by means of the one before, and the next one
// does not build upon it.
func TestDamagedNewestCheckpoint(t *testing.T) {
	for what, damage := range damages {
		for _, object := range []string{"manifest", "part"} {
			t.Run(object+" "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					p := coldStart(t, bucket)
					for i := range 3 {
						set(t, p.Store, "k", fmt.Sprint(i))
						mustCheckpoint(t, p.Store)
					}
					set(t, p.Store, "k", "3")
					deleteCovered(t, bucket, p.Store)
					p.stop()
					all := checkpoints(t, bucket)
					name := checkpointName(0, all[2])
					if m := mustManifest(t, bucket, all[2]); object == "part" {
						name = m.parts[len(m.parts)-1].name.object(0)
					}
					b, err := bucket.Get(context.Background(), name)
					if err != nil {
						t.Fatal(err)
					}
					overwrite(t, bucket, name, damage(b))
					q := coldStart(t, bucket)
					wantGet(t, q.Store, "k", "3")
					if got := q.Recovery().Checkpoint; got != all[1] {
						t.Errorf("restored from checkpoint %d, want %d", got, all[1])
					}
					q.stop()
					q = startProcess(t, bucket, q.fs, remote) // has not seen the damage itself
					synctest.Wait()
					set(t, q.Store, "k", "4")
					mustCheckpoint(t, q.Store)
					q.stop()
					r := coldStart(t, bucket)
					wantGet(t, r.Store, "k", "4")
					if got := r.Recovery(); got.Checkpoint <= all[2] || got.ReplayedCommits > 0 {
						t.Errorf("recovery from the checkpoint made after: %+v", got)
					}
				})
			})
		}
	}
}

// Damage to what the newest checkpoints share is survived by means of the other base that
// is kept, and while there is none by means of the log. The next checkpoint begins anew.
func TestDamagedBase(t *testing.T) {
	for what, damage := range damages {
		for _, bases := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, %d bases", what, bases), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					p := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
					synctest.Wait()
					for i := range bases {
						set(t, p.Store, fmt.Sprint("k", i), "v")
						mustBase(t, p.Store)
						for j := range 3 {
							set(t, p.Store, "bundle", fmt.Sprint(i, j))
							mustCheckpoint(t, p.Store)
						}
					}
					set(t, p.Store, "last", "v")
					p.checkpoints.cleanUp(context.Background())
					if deleted := deleteCovered(t, bucket, p.Store); (len(deleted) > 0) != (bases > 1) {
						t.Errorf("deleted %v", deleted)
					}
					rows := dumpRows(t, p.Store)
					p.stop()
					all := checkpoints(t, bucket)
					if len(all) != 2 {
						t.Fatalf("checkpoints %v", all)
					}
					replace(t, bucket, mustManifest(t, bucket, all[1]).parts[0].name.object(0), damage)
					q := coldStart(t, bucket)
					if got := dumpRows(t, q.Store); !mapsEqual(got, rows) {
						t.Errorf("rows differ: %d, want %d", len(got), len(rows))
					}
					want := uint64(0)
					if bases > 1 {
						want = all[0]
					}
					if got := q.Recovery().Checkpoint; got != want {
						t.Errorf("restored from checkpoint %d, want %d", got, want)
					}
					set(t, q.Store, "last", "w")
					mustCheckpoint(t, q.Store)
					newest := newestOf(checkpoints(t, bucket))
					if m := mustManifest(t, bucket, newest); m.base != m.position {
						t.Errorf("the next checkpoint, %d, builds on that of %d", newest, m.base.number)
					}
					q.stop()
					r := coldStart(t, bucket)
					wantGet(t, r.Store, "last", "w")
					if got := r.Recovery(); got.Checkpoint != newest {
						t.Errorf("recovery from the checkpoint made after: %+v", got)
					}
				})
			})
		}
	}
}

// A new base is made after so many commits, however little they change, so that the log
// becomes covered.
func TestNewBaseAfterManyCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 20
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
			o.Durability, o.CheckpointCommits, o.CheckpointBaseCommits = Remote, 3, limit
		})
		for i := range 200 {
			set(t, p.Store, "k", fmt.Sprint(i))
			time.Sleep(time.Second)
			commit, covered := p.Stats().Commit, p.coveredBelow()
			if i > 2*limit && commit-covered > 2*limit {
				t.Fatalf("at commit %d the log is covered below %d", commit, covered)
			}
		}
		bases := make(map[position]bool)
		for _, number := range checkpoints(t, bucket) {
			bases[mustManifest(t, bucket, number).base] = true
		}
		if len(bases) < 8 || len(bases) > 11 {
			t.Errorf("%d bases", len(bases))
		}
	})
}

// When the other base that is kept has vanished from the bucket, and the log is cleaned up,
// the next checkpoint is a base of its own: so damage to one object is survived again.
func TestLostBaseIsReplaced(t *testing.T) {
	for _, cleaned := range []bool{false, true} {
		t.Run(fmt.Sprintf("log cleaned up %v", cleaned), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
				synctest.Wait()
				for i := range 2 {
					set(t, p.Store, "k", fmt.Sprint(i)) // 2, 3
					mustBase(t, p.Store)
				}
				set(t, p.Store, "k", "2")
				if cleaned && len(deleteCovered(t, bucket, p.Store)) == 0 {
					t.Error("nothing was deleted")
				}
				p.stop()
				for _, part := range mustManifest(t, bucket, 2).parts {
					overwrite(t, bucket, part.name.object(0), nil)
				}
				q := startProcess(t, bucket, p.fs, noGrace)
				synctest.Wait()
				set(t, q.Store, "k", "3")
				mustCheckpoint(t, q.Store)
				newest := newestOf(checkpoints(t, bucket))
				if m := mustManifest(t, bucket, newest); (m.base == m.position) != cleaned {
					t.Errorf("checkpoint %d builds on that of %d", newest, m.base.number)
				}
				set(t, q.Store, "k", "4")
				if got, want := q.coveredBelow(), map[bool]uint64{true: 3}[cleaned]; got != want {
					t.Errorf("covered below %d, want %d", got, want)
				}
			})
		})
	}
}

// Without a checkpoint that can be read the whole log is replayed if it is there, and
// else nothing is claimed and the error says what is wrong.
func TestNoUsableCheckpoint(t *testing.T) {
	for _, cleaned := range []bool{false, true} {
		t.Run(fmt.Sprintf("log cleaned up %v", cleaned), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := coldStart(t, bucket)
				for i := range 3 {
					set(t, p.Store, fmt.Sprint("k", i), "v")
					mustBase(t, p.Store)
				}
				set(t, p.Store, "last", "v")
				if cleaned && len(deleteCovered(t, bucket, p.Store)) == 0 {
					t.Fatal("nothing was deleted")
				}
				p.stop()
				for _, name := range names(t, bucket, stateDir(0)) {
					overwrite(t, bucket, name, []byte("damaged"))
				}
				before := names(t, bucket, logDir(0))
				q, err := tryProcess(t, bucket, vfs.NewCrashableMem(), remote)
				if !cleaned {
					if err != nil {
						t.Fatal(err)
					}
					wantGet(t, q.Store, "k0", "v", "k2", "v", "last", "v")
					return
				}
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "cannot be rebuilt") {
					t.Errorf("Open: %v", err)
				}
				if after := names(t, bucket, logDir(0)); !slices.Equal(before, after) {
					t.Errorf("a claim was made: %v", after)
				}
				// The disk that was used last still opens.
				r := startProcess(t, bucket, p.fs, remote)
				synctest.Wait()
				wantGet(t, r.Store, "k0", "v", "last", "v")
			})
		})
	}
}

// A process dies at each of the writes of two checkpoints, before or after the write has
// its effect: the next one opens with the disk or without, and makes checkpoints.
func TestCrashWhileCheckpointing(t *testing.T) {
	for dieAt := 1; ; dieAt++ {
		for _, after := range []bool{false, true} {
			for _, keepDisk := range []bool{false, true} {
				died := false
				synctest.Test(t, func(t *testing.T) { died = crashWhileCheckpointing(t, dieAt, after, keepDisk) })
				if t.Failed() {
					t.Fatalf("died at write %d, after it %v, disk kept %v", dieAt, after, keepDisk)
				}
				if !died {
					if dieAt < 5 {
						t.Fatalf("only %d writes", dieAt-1)
					}
					return
				}
			}
		}
	}
}

func crashWhileCheckpointing(t *testing.T, dieAt int, after, keepDisk bool) (died bool) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
	synctest.Wait()
	set(t, p.Store, "k", "0")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var writes atomic.Int32
	die := func(op objstore.Op, name string) {
		if op == objstore.OpCreate && !strings.HasPrefix(name, logDir(0)) && int(writes.Add(1)) == dieAt {
			p.link.dead.Store(true)
			cancel()
		}
	}
	if after {
		p.faults.SetHooks(nil, die)
	} else {
		p.faults.SetHooks(func(op objstore.Op, name string) {
			if die(op, name); p.link.dead.Load() {
				<-ctx.Done()
			}
		}, nil)
	}
	for i := 1; i <= 4; i++ {
		if p.link.dead.Load() {
			break
		}
		set(t, p.Store, "k", fmt.Sprint(i))
		_ = p.checkpoints.make(ctx)
	}
	died = p.link.dead.Load()
	want := get(t, p.Store, "k")
	disk := vfs.NewCrashableMem()
	if keepDisk {
		disk = p.kill()
	}
	p.stop()
	q := startProcess(t, bucket, disk, remote)
	synctest.Wait()
	wantGet(t, q.Store, "k", want)
	for i := range 3 {
		set(t, q.Store, "k2", fmt.Sprint(i))
		mustCheckpoint(t, q.Store)
	}
	deleteCovered(t, bucket, q.Store)
	q.stop()
	r := coldStart(t, bucket)
	wantGet(t, r.Store, "k", want, "k2", "2")
	r.stop()
	return died
}

// Only the newest checkpoint stays and the newest on another base, with the parts that they
// name; others stay for the grace time, and until a commit has proved that this writer saw
// the two while it owned the shard.
func TestObsoleteCheckpointsAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		clean := func() { p.checkpoints.cleanUp(context.Background()) }
		for i := range 20 {
			set(t, p.Store, "k", fmt.Sprint(i))
			if i == 9 {
				mustBase(t, p.Store) // 11
			} else {
				mustCheckpoint(t, p.Store)
			}
			clean()
		}
		if got := checkpoints(t, bucket); len(got) != 20 {
			t.Errorf("within the grace time %d checkpoints are left of 20", len(got))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		clean()
		if got := checkpoints(t, bucket); !slices.Equal(got, []uint64{10, 20, 21}) {
			t.Errorf("before a commit the checkpoints %v are left, and the newest is not proved", got)
		}
		set(t, p.Store, "k", "last")
		time.Sleep(time.Hour)
		clean()
		all := checkpoints(t, bucket)
		if !slices.Equal(all, []uint64{10, 21}) {
			t.Errorf("checkpoints %v", all)
		}
		if got := p.coveredBelow(); got != 10 {
			t.Errorf("covered below %d", got)
		}
		var want []string
		for _, number := range all {
			for _, p := range mustManifest(t, bucket, number).parts {
				want = append(want, p.name.object(0))
			}
		}
		slices.Sort(want)
		if got := names(t, bucket, stateDir(0)); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("parts\n%v, want\n%v", got, want)
		}
		p.stop()
		q := coldStart(t, bucket)
		wantGet(t, q.Store, "k", "last")
	})
}

// Obsolete checkpoints stay while the newer ones that made them so are not there, whoever
// has removed them.
func TestObsoleteCheckpointsStayForMissingOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		synctest.Wait()
		for i := range 4 {
			set(t, p.Store, "k", fmt.Sprint(i))
			mustCheckpoint(t, p.Store)
		}
		set(t, p.Store, "k", "end")
		all := checkpoints(t, bucket)
		for _, number := range all[2:] {
			overwrite(t, bucket, checkpointName(0, number), nil)
		}
		time.Sleep(2 * time.Hour)
		deleteCovered(t, bucket, p.Store)
		p.checkpoints.cleanUp(context.Background())
		if got := checkpoints(t, bucket); !slices.Equal(got, all[:2]) {
			t.Errorf("checkpoints %v, want %v", got, all[:2])
		}
		for range 3 {
			set(t, p.Store, "k", "end")
			mustCheckpoint(t, p.Store)
		}
		set(t, p.Store, "k", "end")
		time.Sleep(2 * time.Hour)
		p.checkpoints.cleanUp(context.Background())
		if got := checkpoints(t, bucket); len(got) != 2 || got[0] < all[3] {
			t.Errorf("checkpoints %v after three more", got)
		}
		p.stop()
		q := coldStart(t, bucket)
		wantGet(t, q.Store, "k", "end")
	})
}

// A store that is used all the time keeps no more checkpoints than the grace time asks for,
// whether they follow one another quickly or slowly.
func TestCheckpointsDoNotPileUp(t *testing.T) {
	for _, pause := range []time.Duration{time.Second, 10 * time.Minute, 3 * time.Hour} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
					o.CheckpointCommits, o.DeleteGrace = 2, 10*pause
				})
				for i := range 200 {
					set(t, p.Store, "k", fmt.Sprint(i))
					time.Sleep(pause)
					synctest.Wait()
				}
				if got := checkpoints(t, bucket); len(got) < 2 || len(got) > 15 {
					t.Errorf("%d checkpoints are left, %v", len(got), got)
				}
				p.stop()
				q := coldStart(t, bucket)
				wantGet(t, q.Store, "k", "199")
			})
		})
	}
}

// Bundles of one size are merged, so a checkpoint has few parts.
func TestBundlesAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		for i := range 100 {
			set(t, p.Store, fmt.Sprint("k", i), "v")
			mustCheckpoint(t, p.Store)
		}
		m := mustManifest(t, bucket, newestOf(checkpoints(t, bucket)))
		levels := make(map[uint8]int)
		for _, p := range m.parts[1:] {
			levels[p.level]++
		}
		if len(m.parts) > 1+3*bundleFanout || levels[2] != 1 || levels[1] != 4 || levels[0] != 3 { // 99 = 64 + 4*8 + 3
			t.Errorf("%d parts, bundles by level: %v", len(m.parts), levels)
		}
		p.stop()
		q := coldStart(t, bucket)
		for i := range 100 {
			wantGet(t, q.Store, fmt.Sprint("k", i), "v")
		}
	})
}

// Of a large base the bundles may become a quarter, because to a start they are dearer.
func TestNewBaseOfALargeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 64 // MiB
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		rng, value := rand.NewChaCha8([32]byte{}), make([]byte, 1<<20)
		change := func(i int) {
			_, _ = rng.Read(value)
			set(t, p.Store, fmt.Sprint("k", i), string(value))
		}
		for i := range rows {
			change(i)
		}
		mustCheckpoint(t, p.Store)
		first := mustManifest(t, bucket, newestOf(checkpoints(t, bucket))).base
		changes := 0
		for mustManifest(t, bucket, newestOf(checkpoints(t, bucket))).base == first && changes < rows {
			change(0)
			mustCheckpoint(t, p.Store)
			changes++
		}
		if changes != 16 {
			t.Errorf("a new base came after changes of %d MiB, want 16", changes)
		}
	})
}

// When the bundles have outgrown the base, a new base is made, so that a cold start
// reads what is live and not what has changed.
func TestNewBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		rng := rand.NewChaCha8([32]byte{})
		value, bases, last := make([]byte, 1<<20), 0, uint64(0)
		for range 24 {
			_, _ = rng.Read(value)
			set(t, p.Store, "k", string(value))
			mustCheckpoint(t, p.Store)
			m := mustManifest(t, bucket, newestOf(checkpoints(t, bucket)))
			if m.base.number != last {
				last = m.base.number
				bases++
			}
			if total := m.bytes(partTable) + m.bytes(partBundle); total > minBaseFactor*p.opts.CheckpointBytes+2<<20 {
				t.Errorf("a cold start reads %d bytes", total)
			}
		}
		if bases < 3 || bases > 5 {
			t.Errorf("%d bases", bases)
		}
		p.stop()
		q := coldStart(t, bucket)
		wantGet(t, q.Store, "k", string(value))
	})
}

// A checkpoint after a restart takes the commits from before it from the log; if those
// cannot be read it is a new base.
func TestCheckpointReadsLogBack(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("log object gone %v", gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := coldStart(t, bucket)
				set(t, p.Store, "a", "1")
				mustCheckpoint(t, p.Store)
				set(t, p.Store, "b", "2") // 3
				p.stop()
				q := startProcess(t, bucket, p.fs, remote)
				synctest.Wait()
				set(t, q.Store, "c", "3")
				if gone {
					overwrite(t, bucket, logName(0, 3), nil)
				}
				mustCheckpoint(t, q.Store)
				m := mustManifest(t, bucket, newestOf(checkpoints(t, bucket)))
				if isBase := m.base.number == m.position.number; isBase != gone {
					t.Errorf("base of %d, checkpoint of %d", m.base.number, m.position.number)
				}
				q.stop()
				r := coldStart(t, bucket)
				wantGet(t, r.Store, "a", "1", "b", "2", "c", "3")
			})
		})
	}
}

// Parts that have vanished are noticed when the store opens with its disk intact, and
// the next checkpoint does not build upon them.
func TestMissingPartsAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		for i := range 2 {
			set(t, p.Store, "k", fmt.Sprint(i))
			mustCheckpoint(t, p.Store)
		}
		p.stop()
		for _, name := range names(t, bucket, stateDir(0)) {
			overwrite(t, bucket, name, nil)
		}
		q := startProcess(t, bucket, p.fs, remote)
		synctest.Wait()
		set(t, q.Store, "k", "2")
		mustCheckpoint(t, q.Store)
		if got := q.coveredBelow(); got != 0 {
			t.Errorf("covered below %d with a single checkpoint that can be read", got)
		}
		q.stop()
		r := coldStart(t, bucket)
		wantGet(t, r.Store, "k", "2")
		if r.Recovery().ReplayedCommits != 0 {
			t.Errorf("recovery: %+v", r.Recovery())
		}
	})
}

// The store makes checkpoints by itself: after so many commits, so many bytes, or so
// long a time, and none while nothing is committed.
func TestCheckpointsAreMade(t *testing.T) {
	for what, limit := range map[string]func(*Options){
		"commits":  func(o *Options) { o.CheckpointCommits = 3 },
		"bytes":    func(o *Options) { o.CheckpointBytes = 3 * commitHeaderSize },
		"interval": func(o *Options) { o.CheckpointInterval = time.Minute },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
					remote(o)
					limit(o)
				})
				time.Sleep(24 * time.Hour)
				if got := checkpoints(t, bucket); len(got) > 0 {
					t.Errorf("checkpoints %v of an idle store", got)
				}
				for round := range 3 {
					for i := range 3 {
						set(t, p.Store, "k", fmt.Sprint(i))
					}
					time.Sleep(time.Hour)
					synctest.Wait()
					if got := checkpoints(t, bucket); len(got) < round+1 {
						t.Errorf("after round %d: checkpoints %v", round, got)
					}
				}
				before := len(checkpoints(t, bucket))
				time.Sleep(24 * time.Hour)
				if got := checkpoints(t, bucket); len(got) > before {
					t.Errorf("checkpoints %v, %d were made before the store became idle", got, before)
				}
			})
		})
	}
}

// A bucket that throttles does not stop a cold start, and is asked for a few parts at a
// time.
func TestThrottledColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := coldStart(t, bucket)
		for i := range 6 {
			set(t, p.Store, "k", fmt.Sprint(i))
			mustCheckpoint(t, p.Store)
		}
		p.stop()
		f := faulty.New(bucket, 1)
		var at, most atomic.Int32
		f.SetHooks(func(op objstore.Op, name string) {
			if op == objstore.OpGet {
				most.Store(max(most.Load(), at.Add(1)))
				time.Sleep(time.Millisecond)
			}
		}, func(op objstore.Op, name string) {
			if op == objstore.OpGet {
				at.Add(-1)
			}
		})
		f.ThrottleFor(5 * time.Minute)
		began := time.Now()
		q := startProcess(t, f, vfs.NewCrashableMem(), remote)
		wantGet(t, q.Store, "k", "5")
		if took := time.Since(began); took < 5*time.Minute || took > 6*time.Minute {
			t.Errorf("opened after %v", took)
		}
		if calls := f.Calls(objstore.OpList); calls > 100 {
			t.Errorf("%d listings while throttled", calls)
		}
		if most.Load() > maxPartFetches {
			t.Errorf("%d reads at a time", most.Load())
		}
	})
}
