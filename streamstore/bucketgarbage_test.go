package streamstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// collectGarbage returns the names of what was deleted, and what stays with the reason.
func collectGarbage(t testing.TB, b objstore.Bucket, minAge time.Duration) (deleted []string, stays map[string]string) {
	t.Helper()
	report, err := CollectGarbage(context.Background(), bucketOptions(b), minAge, true)
	if err != nil {
		t.Fatalf("CollectGarbage: %v", err)
	}
	stays = make(map[string]string)
	for _, g := range report.Garbage {
		if isOne := strings.HasPrefix(g.Name, checkpointDir(0)+"/"); g.Checkpoint != isOne {
			t.Errorf("%s is a checkpoint: %v", g.Name, g.Checkpoint)
		}
		if g.Deleted {
			deleted = append(deleted, g.Name)
		} else {
			stays[g.Name] = g.InUse
		}
	}
	return deleted, stays
}

// keepAll makes a process that deletes nothing by itself.
func keepAll(o *Options) { o.Durability, o.DeleteGrace = Remote, 3*time.Hour }

// orphaned makes the process die after it has uploaded the parts of a checkpoint, and
// returns their names.
func orphaned(t testing.TB, bucket objstore.Bucket, p *process) (parts []string) {
	t.Helper()
	before := names(t, bucket, stateDir(0))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.faults.SetHooks(func(op objstore.Op, name string) {
		if op == objstore.OpCreate && strings.HasPrefix(name, checkpointDir(0)) {
			p.link.dead.Store(true)
			cancel()
		}
	}, nil)
	set(t, p.Store, "k", "orphaned")
	p.checkpoints.newest = nil
	if err := p.checkpoints.make(ctx); err == nil {
		t.Fatal("the checkpoint was made")
	}
	p.stop()
	for _, name := range names(t, bucket, stateDir(0)) {
		if !slices.Contains(before, name) {
			parts = append(parts, name)
		}
	}
	if len(parts) == 0 {
		t.Fatal("no parts were uploaded")
	}
	return parts
}

// What crashes leave behind among the checkpoints and in the log is collected, when the
// present writer has made a checkpoint since, and that is old enough. The store starts
// from what is left, also without the base of the newest checkpoint.
func TestCollectCheckpointGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), keepAll)
		synctest.Wait()
		for i := range 4 {
			set(t, p.Store, fmt.Sprint("k", i), "v")
			mustCheckpoint(t, p.Store)
		}
		orphans := orphaned(t, bucket, p)
		p = startProcess(t, bucket, vfs.NewCrashableMem(), keepAll)
		synctest.Wait()
		if deleted, stays := collectGarbage(t, bucket, 0); len(deleted) > 0 || stays[orphans[0]] == "" {
			t.Errorf("before a checkpoint of the present writer %q were deleted, stay %v", deleted, stays)
		}
		id := mustCreate(t, p.Store, "s")
		mustAppend(t, p.Store, id, simpleBatch("record"))
		flushOne(t, p.Store)
		live := logName(0, p.Stats().Commit)
		for i := range 3 {
			set(t, p.Store, "k", fmt.Sprint(i))
			mustBase(t, p.Store)
		}
		set(t, p.Store, "k", "end")
		all := checkpoints(t, bucket)
		zombie := logName(0, 3)
		overwrite(t, bucket, zombie, newStateCodec().seal(&commitHeader{
			claim: true, number: 3, previous: 2, epoch: 1, nonce: newNonce(), created: time.Now().UnixMilli(),
		}, make([]byte, commitHeaderSize), nil))
		if deleted, _ := collectGarbage(t, bucket, time.Hour); len(deleted) > 0 {
			t.Errorf("younger than asked for: %q", deleted)
		}
		time.Sleep(2 * time.Hour)
		deleted, stays := collectGarbage(t, bucket, time.Hour)
		for _, name := range slices.Concat(orphans, []string{zombie, logName(0, 1), checkpointName(0, all[0]), checkpointName(0, all[len(all)-3])}) {
			if !slices.Contains(deleted, name) {
				t.Errorf("%s was not deleted; stays: %q", name, stays[name])
			}
		}
		if slices.Contains(deleted, live) {
			t.Errorf("%s with a live record was deleted", live)
		}
		kept := all[len(all)-2:]
		if got := checkpoints(t, bucket); !slices.Equal(got, kept) {
			t.Errorf("checkpoints %v are left, want %v", got, kept)
		}
		collectGarbage(t, bucket, time.Hour) // parts of the checkpoints deleted before
		var want []string
		for _, number := range kept {
			for _, part := range mustManifest(t, bucket, number).parts {
				want = append(want, part.name.object(0))
			}
		}
		slices.Sort(want)
		if got := names(t, bucket, stateDir(0)); !slices.Equal(got, want) {
			t.Errorf("parts %q, want %q", got, want)
		}
		if report := mustCheck(t, bucket); len(report.Problems)+len(report.Garbage) > 0 || report.Checkpoints != 2 {
			t.Errorf("report: %+v", report)
		}
		set(t, p.Store, "k", "more") // the writer goes on
		mustCheckpoint(t, p.Store)
		rows := dumpRows(t, p.Store)
		p.stop()
		for _, damage := range []bool{false, true} {
			if damage {
				overwrite(t, bucket, want[len(want)-1], nil)
			}
			q := coldStart(t, bucket)
			if got := dumpRows(t, q.Store); !mapsEqual(got, rows) {
				t.Errorf("newest base damaged %v: rows differ", damage)
			}
			if got := readStream(t, q.Store, "s"); !slices.Equal(got, []string{"record"}) {
				t.Errorf("read %q", got)
			}
			q.stop()
		}
	})
}

// Parts that a writer, even a fenced one, is about to name do no harm when they are
// collected: those of the present writer stay, and a checkpoint without parts counts for
// nothing.
func TestGarbageIsNotAboutToBeNamed(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprintf("fenced %v", fenced), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), keepAll)
				synctest.Wait()
				for i := range 2 {
					set(t, p.Store, "k", fmt.Sprint(i))
					mustBase(t, p.Store)
				}
				set(t, p.Store, "k", "2") // 4
				publish := newGate(t)
				p.faults.SetHooks(func(op objstore.Op, name string) {
					if op == objstore.OpCreate && name == checkpointName(0, 4) {
						publish.hold()
					}
				}, nil)
				late := async(func() error { mustBase(t, p.Store); return nil })
				<-publish.reached
				parts := names(t, bucket, stateDir(0))
				owner := p
				if fenced {
					owner = startProcess(t, bucket, vfs.NewCrashableMem(), keepAll)
					synctest.Wait()
					set(t, owner.Store, "k", "3")
					mustBase(t, owner.Store)
				}
				deleted, stays := collectGarbage(t, bucket, 0)
				about := parts[len(parts)-1]
				if slices.Contains(deleted, about) != fenced || !fenced && !strings.Contains(stays[about], "about to name") {
					t.Errorf("deleted %q, stay %v", deleted, stays)
				}
				publish.open()
				<-late
				for i := range 2 {
					set(t, owner.Store, "k", fmt.Sprint("end", i))
					mustCheckpoint(t, owner.Store)
				}
				set(t, owner.Store, "k", "end")
				time.Sleep(4 * time.Hour)
				owner.checkpoints.cleanUp(context.Background())
				deleteCovered(t, bucket, owner.Store)
				rows := dumpRows(t, owner.Store)
				owner.stop()
				all := checkpoints(t, bucket)
				overwrite(t, bucket, checkpointName(0, newestOf(all)), nil)
				q := coldStart(t, bucket)
				if got := dumpRows(t, q.Store); !mapsEqual(got, rows) {
					t.Error("rows differ")
				}
			})
		})
	}
}

// Damage to a checkpoint that is kept is told, and what is older than it stays.
func TestCheckBucketFindsDamagedCheckpoints(t *testing.T) {
	for what, damage := range damages {
		for _, object := range []string{"manifest", "part"} {
			if object == "manifest" && what == "missing" {
				continue // then there is no such checkpoint
			}
			t.Run(object+" "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := objstore.NewMemory()
					p := startProcess(t, bucket, vfs.NewCrashableMem(), keepAll)
					synctest.Wait()
					for i := range 3 {
						set(t, p.Store, "k", fmt.Sprint(i))
						mustBase(t, p.Store)
					}
					set(t, p.Store, "k", "end")
					all := checkpoints(t, bucket)
					name := checkpointName(0, all[1])
					if object == "part" {
						name = mustManifest(t, bucket, all[1]).parts[0].name.object(0)
					}
					replace(t, bucket, name, damage)
					report := mustCheck(t, bucket)
					if len(report.Problems) != 1 || report.Problems[0].Object != name {
						t.Errorf("problems: %+v", report.Problems)
					}
					deleted, _ := collectGarbage(t, bucket, 0)
					for _, number := range []uint64{all[0], all[2]} {
						if slices.Contains(deleted, checkpointName(0, number)) || slices.Contains(deleted, logName(0, number)) {
							t.Errorf("deleted %q", deleted)
						}
					}
				})
			})
		}
	}
}
