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

// noGrace makes a process durable in the bucket only, and deletes what is obsolete at
// once.
func noGrace(o *Options) { o.Durability, o.DeleteGrace = Remote, -1 }

// moveOn makes commits and checkpoints until the log objects from the number on are
// covered, and deletes them, with all that is obsolete. The object of that number goes
// even if it holds live records, which none of these tests reads.
func moveOn(t *testing.T, bucket objstore.Bucket, p *process, number uint64) {
	t.Helper()
	for i := 0; p.coveredBelow() <= number; i++ {
		if i == 100 {
			t.Fatalf("object %d does not become covered", number)
		}
		set(t, p.Store, "moved", fmt.Sprint(i))
		mustBase(t, p.Store)
		set(t, p.Store, "moved", fmt.Sprint(i))
	}
	p.checkpoints.cleanUp(context.Background())
	deleteCovered(t, bucket, p.Store)
	overwrite(t, bucket, logName(0, number), nil)
}

// A new writer sees the end of the log and is paused. Others fill the number that it is
// about to claim, cover it by checkpoints and clean it up. Its claim lands in the hole,
// and must not stand: it starts over, with its disk or without.
func TestClaimInCleanedHole(t *testing.T) {
	for _, writer := range []string{"the same writer", "another writer"} {
		for _, disk := range []string{"empty", "outdated"} {
			t.Run(fmt.Sprintf("filled by %s, %s disk", writer, disk), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					fs := vfs.NewCrashableMem()
					p := startProcess(t, bucket, fs, noGrace)
					synctest.Wait()
					set(t, p.Store, "k", "1") // 2
					claims := uint64(3)
					if disk == "outdated" {
						p.stop()
						p = startProcess(t, bucket, vfs.NewCrashableMem(), noGrace) // claims 3
						claims = 4
					} else {
						fs = vfs.NewCrashableMem()
					}
					faults := faulty.New(bucket, 1)
					claim := newGate(t)
					gateCreates(faults, map[uint64]*gate{claims: claim}, nil)
					var late *process
					result := async(func() (err error) {
						late, err = tryProcess(t, faults, fs, noGrace)
						return err
					})
					<-claim.reached
					if writer == "another writer" {
						p = startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
					}
					synctest.Wait()
					moveOn(t, bucket, p, claims)
					set(t, p.Store, "k", "2")
					end := p.Stats().Commit
					claim.open()
					if err := <-result; err != nil {
						t.Fatal(err)
					}
					if got := late.Stats().Commit; got <= end {
						t.Errorf("the claim that stands is %d, the log ended at %d", got, end)
					}
					wantGet(t, late.Store, "k", "2")
					if late.Recovery().Checkpoint == 0 {
						t.Error("the disk was not rebuilt from a checkpoint")
					}
					mustCommitLocal(t, p.Store, func(txn *Txn) { txn.Set([]byte("k"), []byte("late")) })
					if err := p.Flush(context.Background()); !errors.Is(err, ErrFenced) {
						t.Errorf("the writer that lost the shard: %v", err)
					}
					set(t, late.Store, "k", "3")
					late.stop()
					q := coldStart(t, bucket)
					wantGet(t, q.Store, "k", "3")
				})
			})
		}
	}
}

// A writer that had nothing to write for long does not know that it was fenced, and the
// number that it takes next has been cleaned up since. It must not acknowledge.
func TestIdleWriterLooksForNewerWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		id := mustCreate(t, a.Store, "s")
		flushOne(t, a.Store) // 2
		b := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		moveOn(t, bucket, b, 3)
		appended := mustAppend(t, a.Store, id, simpleBatch("late"))
		startFlush(t, a)
		if err := appended.Wait(context.Background()); !errors.Is(err, ErrFenced) {
			t.Errorf("acknowledgement: %v", err)
		}
		wantFenced(t, a.Store, id)
	})
}

// A fenced writer that does not know it publishes checkpoints that were under way. It
// deletes nothing that the new owner builds upon, because no commit of its own has
// proved that it still owned the shard; and what the new owner deletes at the same time
// leaves no damaged checkpoint behind.
func TestFencedWriterDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		set(t, a.Store, "k", "1")
		mustCheckpoint(t, a.Store)
		set(t, a.Store, "k", "2")
		part := newGate(t)
		a.faults.SetHooks(func(op objstore.Op, name string) {
			if op == objstore.OpCreate && strings.HasPrefix(name, stateDir(0)) {
				part.hold()
			}
		}, nil)
		under := async(func() error { return a.checkpoints.make(context.Background()) })
		<-part.reached
		set(t, a.Store, "k", "3")
		b := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait() // b builds upon a's first checkpoint
		part.open()
		if err := <-under; err != nil {
			t.Fatal(err)
		}
		mustBase(t, a.Store) // names nothing of the first
		before := names(t, bucket, stateDir(0))
		a.checkpoints.cleanUp(context.Background())
		if got := names(t, bucket, stateDir(0)); !slices.Equal(got, before) {
			t.Errorf("the fenced writer deleted: %q are left of %q", got, before)
		}
		if covered := a.coveredBelow(); covered != 0 {
			t.Errorf("the fenced writer takes log objects below %d for covered", covered)
		}
		set(t, b.Store, "k", "4")
		mustCheckpoint(t, b.Store)
		q := coldStart(t, bucket)
		wantGet(t, q.Store, "k", "4")
		q.stop()
	})
}

// Parts that are uploaded and in no manifest yet survive the cleaning of others, and
// their manifest, late as it is, harms nobody.
func TestLateManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		set(t, a.Store, "k", "1")
		mustCheckpoint(t, a.Store)
		set(t, a.Store, "k", "2") // 3
		publish := newGate(t)
		a.faults.SetHooks(func(op objstore.Op, name string) {
			if name == checkpointName(0, 3) && op == objstore.OpCreate {
				publish.hold()
			}
		}, nil)
		late := async(func() error { return a.checkpoints.make(context.Background()) })
		<-publish.reached
		b := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		moveOn(t, bucket, b, 3)
		publish.open()
		if err := <-late; err != nil {
			t.Fatal(err)
		}
		m := mustManifest(t, bucket, 3)
		if last := m.parts[len(m.parts)-1].name.object(0); !slices.Contains(names(t, bucket, stateDir(0)), last) {
			t.Errorf("part %s was deleted before its manifest came", last)
		}
		set(t, b.Store, "k", "3")
		for range 3 {
			mustCheckpoint(t, b.Store)
			set(t, b.Store, "k", "3")
			b.checkpoints.cleanUp(context.Background())
		}
		if slices.Contains(checkpoints(t, bucket), 3) {
			t.Error("the late checkpoint was not cleaned up")
		}
		q := coldStart(t, bucket)
		wantGet(t, q.Store, "k", "3")
	})
}

// A checkpoint that a fenced writer publishes when the shard has a new owner is not what
// that one relies on: nobody has looked whether its parts are still there.
func TestLateManifestDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		a := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		set(t, a.Store, "k", "1")
		mustCheckpoint(t, a.Store) // 2
		set(t, a.Store, "k", "2")
		publish := newGate(t)
		a.faults.SetHooks(func(op objstore.Op, name string) {
			if name == checkpointName(0, 3) && op == objstore.OpCreate {
				publish.hold()
			}
		}, nil)
		late := async(func() error { mustBase(t, a.Store); return nil })
		<-publish.reached
		b := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		set(t, b.Store, "k", "3")
		publish.open()
		<-late
		if got := checkpoints(t, bucket); !slices.Equal(got, []uint64{2, 3}) {
			t.Fatalf("checkpoints %v", got)
		}
		for _, part := range mustManifest(t, bucket, 3).parts {
			overwrite(t, bucket, part.name.object(0), nil)
		}
		for range 2 {
			mustCheckpoint(t, b.Store)
			set(t, b.Store, "k", "3")
			if covered := b.coveredBelow(); covered != 0 {
				t.Errorf("covered below %d, the only base is that of 2", covered)
			}
		}
		b.checkpoints.cleanUp(context.Background())
		if slices.Contains(checkpoints(t, bucket), 3) {
			t.Error("the late checkpoint was not cleaned up")
		}
	})
}

// A disk whose position lies below what the log still holds is rebuilt from a
// checkpoint. What it has that is not in the log is set aside, and only that.
func TestOutdatedDisk(t *testing.T) {
	for _, tail := range []string{"none", "foreign", "in the log"} {
		t.Run("tail "+tail, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				a := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
				synctest.Wait()
				id := mustCreate(t, a.Store, "s")
				set(t, a.Store, "k", "1") // 2
				position := a.Stats().Commit
				if tail != "none" {
					mustAppend(t, a.Store, id, simpleBatch("tail"))
					synctest.Wait()
				}
				if err := a.db.Flush(); err != nil {
					t.Fatal(err)
				}
				disk := a.fs.CrashClone(vfs.CrashCloneCfg{})
				owner := a
				if tail == "foreign" {
					a.link.dead.Store(true)
					owner = startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
					synctest.Wait()
				}
				moveOn(t, bucket, owner, position+1)
				set(t, owner.Store, "k", "2")
				owner.link.dead.Store(true)

				p := startProcess(t, bucket, disk, noGrace)
				r := p.Recovery()
				if r.Checkpoint == 0 || r.TailAppends != 0 {
					t.Errorf("recovery: %+v", r)
				}
				if (r.SetAside != "") != (tail == "foreign") || tail == "foreign" && r.SetAsideAppends != 1 {
					t.Errorf("set aside: %q with %d appends", r.SetAside, r.SetAsideAppends)
				}
				wantGet(t, p.Store, "k", "2")
				want := int64(0)
				if tail == "in the log" {
					want = 1
				}
				if offsets, err := p.Offsets(id); err != nil || offsets.Next != want {
					t.Errorf("offsets %+v, %v; want %d records", offsets, err, want)
				}
			})
		})
	}
}

// garbling is a bucket behind a connection that breaks the bytes of some objects and
// takes no writes.
type garbling struct {
	objstore.Bucket
	breaks func(name string) bool
}

func (b garbling) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := b.Bucket.Get(ctx, name)
	if err == nil && b.breaks(name) {
		data[len(data)/2] ^= 4
	}
	return data, err
}

func (b garbling) Create(ctx context.Context, _ string, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

// An opener takes good checkpoints for damaged, because its connection breaks them. It
// has not claimed the shard, so it must not take from the owner what that one relies on:
// the owner deletes what is older than those checkpoints.
func TestOpenerThatSeesDamageDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
		synctest.Wait()
		for i := range 3 {
			set(t, p.Store, "k", fmt.Sprint(i))
			mustBase(t, p.Store)
		}
		all := checkpoints(t, bucket)
		broken := make(map[string]bool)
		for _, number := range all[1:] {
			broken[mustManifest(t, bucket, number).parts[0].name.object(0)] = true
		}
		ctx, cancel := context.WithCancel(context.Background())
		opts := testOptions(garbling{bucket, func(name string) bool { return broken[name] }})
		opts.Durability = Remote
		opened := async(func() error { _, err := Open(ctx, opts); return err })
		time.Sleep(time.Hour) // at its claim
		if got := checkpoints(t, bucket); !slices.Equal(got, all) {
			t.Errorf("checkpoints %v, before %v", got, all)
		}
		cancel()
		if err := <-opened; !errors.Is(err, context.Canceled) {
			t.Errorf("Open: %v", err)
		}
		set(t, p.Store, "k", "end")
		p.checkpoints.cleanUp(context.Background())
		if len(deleteCovered(t, bucket, p.Store)) == 0 {
			t.Error("nothing was covered")
		}
		p.stop()
		q := coldStart(t, bucket)
		wantGet(t, q.Store, "k", "end")
	})
}

// A checkpoint that was found damaged does not count as one of the two that are kept, in
// the process that found it or a later one on its disk: what is before it is kept until
// there are two others, and then it is deleted with its parts.
func TestDamagedCheckpointDoesNotCount(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
				synctest.Wait()
				next := func(checkpoint func(testing.TB, *Store)) {
					t.Helper()
					set(t, p.Store, "k", fmt.Sprint(p.Stats().Commit))
					checkpoint(t, p.Store)
					set(t, p.Store, "k", fmt.Sprint(p.Stats().Commit))
					p.checkpoints.cleanUp(context.Background())
				}
				for range bundleFanout { // a base and one bundle less than are merged
					next(mustCheckpoint)
				}
				all := checkpoints(t, bucket)
				good, damaged := all[len(all)-2], all[len(all)-1]
				parts := mustManifest(t, bucket, damaged).parts
				overwrite(t, bucket, parts[len(parts)-1].name.object(0), []byte("damaged"))
				set(t, p.Store, "k", "x")
				mustCheckpoint(t, p.Store) // finds the damage when it merges bundles
				newest := newestOf(checkpoints(t, bucket))
				if m := mustManifest(t, bucket, newest); m.base.number != newest {
					t.Fatalf("checkpoint %d is no base", newest)
				}
				set(t, p.Store, "k", "y")
				if restart {
					p.stop()
					p = startProcess(t, bucket, p.fs, noGrace)
					synctest.Wait()
					set(t, p.Store, "k", "y")
				}
				if covered := p.coveredBelow(); covered != good {
					t.Errorf("covered below %d, want %d; checkpoint %d is damaged", covered, good, damaged)
				}
				next(mustCheckpoint)
				next(mustBase)
				if got := checkpoints(t, bucket); len(got) != 2 || got[0] <= damaged {
					t.Errorf("checkpoints %v, after the damaged one %d", got, damaged)
				}
				if got := names(t, bucket, stateDir(0)); slices.Contains(got, parts[len(parts)-1].name.object(0)) {
					t.Error("the parts of the damaged checkpoint are still there")
				}
				want := get(t, p.Store, "k")
				p.stop()
				q := coldStart(t, bucket)
				wantGet(t, q.Store, "k", want)
			})
		})
	}
}

// The log is cleaned up while an opener follows it: the opener starts over from a
// checkpoint.
func TestLogCleanedUpWhileFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
		synctest.Wait()
		for i := range 8 {
			set(t, p.Store, "k", fmt.Sprint(i))
		}
		faults := faulty.New(bucket, 1)
		read := newGate(t)
		faults.SetHooks(func(op objstore.Op, name string) {
			if name == logName(0, 5) {
				read.hold()
			}
		}, nil)
		var late *process
		result := async(func() (err error) {
			late, err = tryProcess(t, faults, vfs.NewCrashableMem(), noGrace)
			return err
		})
		<-read.reached
		moveOn(t, bucket, p, 7)
		set(t, p.Store, "k", "end")
		read.open()
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		wantGet(t, late.Store, "k", "end")
		if late.Recovery().Checkpoint == 0 {
			t.Error("not rebuilt from a checkpoint")
		}
	})
}

// The checkpoint that an opener reads is deleted, with all that it had seen beside it, by
// an owner that has newer ones: the opener starts over from those.
func TestCheckpointCleanedUpWhileRead(t *testing.T) {
	for _, dir := range []string{checkpointDir(0), stateDir(0)} {
		t.Run(dir, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), noGrace)
				synctest.Wait()
				for i := range 3 {
					set(t, p.Store, "k", fmt.Sprint(i))
					mustCheckpoint(t, p.Store)
				}
				faults := faulty.New(bucket, 1)
				read := newGate(t)
				faults.SetHooks(func(op objstore.Op, name string) {
					if op == objstore.OpGet && strings.HasPrefix(name, dir) {
						read.hold()
					}
				}, nil)
				var late *process
				result := async(func() (err error) {
					late, err = tryProcess(t, faults, vfs.NewCrashableMem(), noGrace)
					return err
				})
				<-read.reached
				moveOn(t, bucket, p, p.Stats().Commit+1)
				set(t, p.Store, "k", "end")
				read.open()
				if err := <-result; err != nil {
					t.Fatal(err)
				}
				wantGet(t, late.Store, "k", "end")
			})
		})
	}
}

// A process dies at any point of a cold start: the next start on the same disk ends it.
func TestCrashWhileRebuilding(t *testing.T) {
	died := true
	for n := 1; died; n++ {
		synctest.Test(t, func(t *testing.T) {
			bucket := objstore.NewMemory()
			p := coldStart(t, bucket)
			for i := range 4 {
				set(t, p.Store, fmt.Sprint("k", i), "v")
				mustCheckpoint(t, p.Store)
			}
			set(t, p.Store, "last", "v")
			rows := dumpRows(t, p.Store)
			deleteCovered(t, bucket, p.Store)
			p.stop()
			fs := vfs.NewCrashableMem()
			faults := faulty.New(bucket, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			calls, disk := newCounter(), fs
			faults.SetHooks(func(objstore.Op, string) {
				if calls.next() == n {
					disk = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
					cancel()
				}
			}, nil)
			opts := testOptions(faults)
			opts.FS, opts.Durability = fs, Remote
			s, err := Open(ctx, opts)
			if err == nil {
				mustClose(t, s)
			}
			died = disk != fs
			q := startProcess(t, bucket, disk, remote)
			if got := dumpRows(t, q.Store); !mapsEqual(got, rows) {
				t.Errorf("died at call %d: rows %q, want %q", n, got, rows)
			}
			q.stop()
		})
		if n > 1000 {
			t.Fatal("it never ends")
		}
	}
}

type counter struct{ c chan int }

func newCounter() counter {
	c := counter{make(chan int, 1)}
	c.c <- 0
	return c
}

func (c counter) next() int {
	n := <-c.c + 1
	c.c <- n
	return n
}
