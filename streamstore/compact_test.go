package streamstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// eager makes everything due at once and small, and leaves the doing to the test.
func eager(o *Options) {
	o.CompactionBandwidth = -1
	o.DeleteGrace = -1
	o.compaction = compactionPolicy{
		interval: 100 * 365 * 24 * time.Hour,
		bytes:    1 << 20, objects: 1 << 10, extents: 1 << 20, ageObjects: 1,
		fanout: 2, longRun: 2 << 10, output: 8 << 10,
	}
}

// pick returns the compaction to make first, nil if none is due.
func (c *catalogue) pick(now time.Time) *compaction {
	for plan := range c.due(now) {
		return plan
	}
	return nil
}

// compactAll compacts until nothing is due.
func compactAll(t testing.TB, s *Store) {
	t.Helper()
	<-s.catalogue.ready
	for range 1000 {
		plan := s.catalogue.pick(s.opts.Now())
		if plan == nil {
			return
		}
		if _, err := s.compactor.compact(s.ctx, plan); err != nil {
			t.Fatalf("compact: %v", err)
		}
	}
	t.Fatal("there is always something to compact")
}

// compactAsync makes the compaction that is due.
func compactAsync(ctx context.Context, s *Store) <-chan error {
	return async(func() error {
		_, err := s.compactor.compact(ctx, s.catalogue.pick(s.opts.Now()))
		return err
	})
}

// holdSegments holds the creation of segments.
func holdSegments(t *testing.T, p *process) *gate {
	held := newGate(t)
	p.faults.SetHooks(func(op objstore.Op, name string) {
		if op == objstore.OpCreate && strings.HasPrefix(name, segmentDir(0)) {
			held.hold()
		}
	}, nil)
	return held
}

// checkAndLose checks the store as it is, after a crash, and without its disk.
func checkAndLose(t *testing.T, p *process, bucket objstore.Bucket, check func(*Store)) {
	t.Helper()
	check(p.Store)
	fs := p.kill()
	p.stop()
	p = startProcess(t, bucket, fs, eager)
	check(p.Store)
	p.stop()
	check(startProcess(t, bucket, vfs.NewCrashableMem(), eager).Store)
}

// checkUse counts the use of all objects anew and compares it with the catalogue.
func checkUse(t testing.TB, s *Store) {
	t.Helper()
	<-s.catalogue.ready
	err := s.flusher.do(s.ctx, func() {
		snapshot := s.db.NewSnapshot()
		defer snapshot.Close()
		rows, used, err := s.catalogue.scan(context.Background(), snapshot)
		if err != nil {
			t.Errorf("scan: %v", err)
			return
		}
		s.catalogue.mu.Lock()
		defer s.catalogue.mu.Unlock()
		for o, use := range s.catalogue.mu.objects {
			if want := used[o]; use.live != want.live || use.extents != want.extents {
				t.Errorf("object %s has %d live bytes in %d extents, the catalogue says %d in %d", o.name(0), want.live, want.extents, use.live, use.extents)
			}
			if min(use.short, use.live) < used[o].short {
				// What moved since is no longer short; what is left must be counted.
				t.Logf("object %s: %d short bytes, the catalogue says %d", o.name(0), used[o].short, use.short)
			}
			if (use.live == 0) != (use.deadSince != 0) {
				t.Errorf("object %s has %d live bytes and is dead since %d", o.name(0), use.live, use.deadSince)
			}
			delete(used, o)
		}
		for o, d := range used {
			t.Errorf("object %s is in use (%+v) and the catalogue does not know it", o.name(0), d)
		}
		forgotten := slices.Clone(s.flusher.forgotten)
		for _, c := range s.flusher.inflight {
			forgotten = append(forgotten, c.forgotten...)
		}
		for o := range rows {
			if s.catalogue.mu.objects[o] == nil && !slices.Contains(forgotten, o) {
				t.Errorf("object %s has a row and the catalogue does not know it", o.name(0))
			}
		}
	})
	if err != nil {
		t.Fatalf("checkUse: %v", err)
	}
}

// extentsOf returns all extents of a stream.
func extentsOf(t testing.TB, s *Store, id StreamID) (list []extent) {
	t.Helper()
	if err := s.eachExtent(id, 0, func(x extent) bool { list = append(list, x); return true }); err != nil {
		t.Fatal(err)
	}
	return list
}

func objectNames(t testing.TB, b objstore.Bucket, dir string) (list []string) {
	t.Helper()
	if err := b.List(context.Background(), dir, "", func(info objstore.ObjectInfo) error {
		list = append(list, info.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// fill appends n rounds of one batch to each of the streams, each round in a commit of
// its own, waits for them, and returns their ids and what was appended.
func fill(t testing.TB, s *Store, streams, rounds, size int) (ids []StreamID, want map[StreamID][]string) {
	t.Helper()
	want = make(map[StreamID][]string)
	for i := range streams {
		ids = append(ids, mustCreate(t, s, fmt.Sprintf("s/%d", i)))
	}
	for round := range rounds {
		for _, id := range ids {
			payload := fmt.Sprintf("%d/%d %s", id, round, strings.Repeat("x", size))
			mustWait(t, mustAppend(t, s, id, simpleBatch(payload)))
			want[id] = append(want[id], payload)
		}
		mustFlush(t, s)
	}
	return ids, want
}

func checkFill(t testing.TB, s *Store, want map[StreamID][]string) {
	t.Helper()
	for id, list := range want {
		offsets, err := s.Offsets(id)
		if err != nil {
			t.Fatalf("Offsets: %v", err)
		}
		if got := payloads(readAll(t, s, id, offsets.Start)); !slices.Equal(got, list) {
			t.Fatalf("stream %d from %d: %d batches, want %d", id, offsets.Start, len(got), len(list))
		}
	}
}

// forBuckets runs a test with a bucket that is a folder of this machine and with a
// remote one.
func forBuckets(t *testing.T, test func(t *testing.T, bucket objstore.Bucket)) {
	t.Run("local", func(t *testing.T) { test(t, objstore.NewMemory()) })
	t.Run("remote", func(t *testing.T) { test(t, farBucket{objstore.NewMemory()}) })
}

// farBucket is memory that passes for a remote service.
type farBucket struct{ objstore.Bucket }

func (farBucket) Local() bool { return false }

// After compaction each stream's history lies together, in objects of the next level,
// and reads as before: now, after a restart, and without the disk.
func TestCompactionMovesShortRuns(t *testing.T) {
	forBuckets(t, func(t *testing.T, bucket objstore.Bucket) {
		p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		ids, want := fill(t, p.Store, 5, 10, 200)
		checkUse(t, p.Store)
		before := len(extentsOf(t, p.Store, ids[0]))
		compactAll(t, p.Store)
		checkUse(t, p.Store)
		checkFill(t, p.Store, want)
		for _, id := range ids {
			list := extentsOf(t, p.Store, id)
			if len(list) > 3 || len(list) >= before {
				t.Errorf("stream %d has %d extents after compaction, %d before", id, len(list), before)
			}
			for _, x := range list {
				if x.object.kind != objectSegment {
					t.Errorf("stream %d: an extent of %d bytes is still in %s", id, x.length, x.object.name(0))
				}
			}
		}
		if left, err := p.fs.List(p.opts.scratchDir()); err == nil && len(left) > 0 {
			t.Errorf("scratch files are left: %q", left)
		}
		p.stop()
		p = startProcess(t, bucket, p.fs, eager)
		checkFill(t, p.Store, want)
		checkUse(t, p.Store)
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		checkFill(t, p.Store, want)
		checkUse(t, p.Store)
		if plan := p.catalogue.pick(p.opts.Now()); plan != nil {
			t.Errorf("something is due again after a replay: %+v", plan)
		}
	})
}

// Runs that are long already stay where they are.
func TestCompactionLeavesLongRuns(t *testing.T) {
	bucket := objstore.NewMemory()
	s := startProcess(t, bucket, vfs.NewCrashableMem(), eager).Store
	long, short := mustCreate(t, s, "long"), mustCreate(t, s, "short")
	for range 4 {
		mustAppend(t, s, long, simpleBatch(strings.Repeat("x", 3<<10)))
		mustAppend(t, s, short, simpleBatch("x"))
		mustFlush(t, s)
	}
	compactAll(t, s)
	checkUse(t, s)
	for _, x := range extentsOf(t, s, long) {
		if x.object.kind != objectLog {
			t.Errorf("a long run was moved to %s", x.object.name(0))
		}
	}
	if list := extentsOf(t, s, short); len(list) != 1 || list[0].object.kind != objectSegment {
		t.Errorf("short runs became %+v", list)
	}
}

// Segments are merged level by level, so a stream's extents stay few.
func TestCompactionLevels(t *testing.T) {
	s := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) {
		eager(o)
		o.compaction.longRun = 1 << 20
	}).Store
	want := make(map[StreamID][]string)
	levels := make(map[uint64]bool)
	for range 16 {
		ids, more := fill(t, s, 3, 2, 50)
		for _, id := range ids {
			want[id] = append(want[id], more[id]...)
		}
		compactAll(t, s)
		for _, use := range s.catalogue.mu.objects {
			if use.live > 0 {
				levels[use.level] = true
			}
		}
	}
	checkFill(t, s, want)
	checkUse(t, s)
	for id := range want {
		if list := extentsOf(t, s, id); len(list) > 4 {
			t.Errorf("stream %d has %d extents after 16 rounds", id, len(list))
		}
	}
	if !levels[1] || !levels[2] || !levels[3] {
		t.Errorf("levels that were made: %v", slices.Sorted(maps.Keys(levels)))
	}
}

// A load under which the log is always due does not keep the levels from being merged.
func TestCompactionOfLevelsUnderLoad(t *testing.T) {
	s := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), eager).Store
	<-s.catalogue.ready
	var levels []uint64
	for range 6 {
		fill(t, s, 3, 2, 50) // the log is due
		plan := s.catalogue.pick(s.opts.Now())
		if _, err := s.compactor.compact(s.ctx, plan); err != nil {
			t.Fatalf("compact: %v", err)
		}
		levels = append(levels, plan.level)
	}
	if want := []uint64{1, 1, 2, 1, 1, 2}; !slices.Equal(levels, want) {
		t.Errorf("levels made: %v, want %v", levels, want)
	}
}

// What is trimmed or deleted while a compaction is on its way does not come back,
// whichever step the compaction has reached, and is not counted twice.
func TestCompactionRaces(t *testing.T) {
	type step struct {
		name string
		op   objstore.Op
		dir  string
	}
	for _, at := range []step{
		{"while an object is read", objstore.OpGetRange, logDir(0)},
		{"while the segment is uploaded", objstore.OpCreate, segmentDir(0)},
	} {
		for _, flushed := range []bool{true, false} {
			for _, what := range []string{"trim", "trim all", "delete"} {
				t.Run(fmt.Sprintf("%s %s, flushed %v", what, at.name, flushed), func(t *testing.T) {
					bucket := objstore.NewMemory()
					p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
					ids, want := fill(t, p.Store, 3, 6, 100)
					<-p.catalogue.ready
					held := newGate(t)
					p.faults.SetHooks(func(op objstore.Op, name string) {
						if op == at.op && strings.HasPrefix(name, at.dir) {
							held.hold()
						}
					}, nil)
					done := compactAsync(p.ctx, p.Store)
					<-held.reached
					id := ids[1]
					mustCommit(t, p.Store, func(txn *Txn) {
						switch what {
						case "trim":
							txn.Trim(id, 4)
						case "trim all":
							txn.Trim(id, 6)
						case "delete":
							txn.Delete(id)
						}
					})
					switch what {
					case "trim":
						want[id] = want[id][4:]
					case "trim all":
						want[id] = nil
					case "delete":
						delete(want, id)
					}
					if flushed {
						mustFlush(t, p.Store)
					}
					held.open()
					if err := <-done; err != nil {
						t.Fatalf("compact: %v", err)
					}
					mustFlush(t, p.Store)
					checkUse(t, p.Store)
					check := func(s *Store) {
						t.Helper()
						checkFill(t, s, want)
						list := extentsOf(t, s, id)
						if what != "trim" && len(list) > 0 {
							t.Errorf("extents came back: %+v", list)
						}
						checkUse(t, s)
					}
					checkAndLose(t, p, bucket, check)
				})
			}
		}
	}
}

// The same while one segment is on its way and the next one is gathered already: of
// whichever of them the stream's extents are.
func TestCompactionRacesWithTwoSegments(t *testing.T) {
	for stream := range 3 {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("stream %d, all %v", stream, all), func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
				ids, want := fill(t, p.Store, 3, 6, 1500)
				<-p.catalogue.ready
				held := holdSegments(t, p)
				done := compactAsync(p.ctx, p.Store)
				<-held.reached
				waitTracked(t, p.Store, 2)
				id, to := ids[stream], int64(5)
				if all {
					to = 6
				}
				mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, to) })
				want[id] = want[id][to:]
				held.open()
				if err := <-done; err != nil {
					t.Fatalf("compact: %v", err)
				}
				mustFlush(t, p.Store)
				if n := p.compactor.count; n < 2 {
					t.Errorf("it was %d segment", n)
				}
				check := func(s *Store) {
					t.Helper()
					checkFill(t, s, want)
					if list := extentsOf(t, s, id); all && len(list) > 0 {
						t.Errorf("extents came back: %+v", list)
					}
					checkUse(t, s)
				}
				checkAndLose(t, p, bucket, check)
			})
		}
	}
}

// What a commit drops that is on its way when a compaction begins does not come back:
// the rows that the compaction reads still have it.
func TestCompactionBeginsDuringATrim(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	ids, want := fill(t, p.Store, 3, 6, 100)
	<-p.catalogue.ready
	trimming, uploading := newGate(t), newGate(t)
	p.faults.SetHooks(func(op objstore.Op, name string) {
		switch {
		case op != objstore.OpCreate:
		case strings.HasPrefix(name, segmentDir(0)):
			uploading.hold()
		case strings.HasPrefix(name, logDir(0)):
			trimming.hold()
		}
	}, nil)
	id := ids[1]
	mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, 6) })
	want[id] = nil
	flushed := async(func() error { return p.Flush(p.ctx) })
	<-trimming.reached
	compacted := compactAsync(p.ctx, p.Store)
	<-uploading.reached // its rows are read
	trimming.open()
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	uploading.open()
	if err := <-compacted; err != nil {
		t.Fatalf("compact: %v", err)
	}
	checkFill(t, p.Store, want)
	if list := extentsOf(t, p.Store, id); len(list) > 0 {
		t.Errorf("extents came back: %+v", list)
	}
	checkUse(t, p.Store)
}

// A compaction that is cut off with one segment on its way and the next one gathered
// leaves nothing behind in the flusher, and the store goes on.
func TestCompactionIsCutOff(t *testing.T) {
	p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), eager)
	_, want := fill(t, p.Store, 3, 6, 1500)
	<-p.catalogue.ready
	ctx, cancel := context.WithCancel(p.ctx)
	held := holdSegments(t, p)
	p.faults.Fail(faulty.Rule{Op: objstore.OpCreate, Match: func(name string) bool { return strings.HasPrefix(name, segmentDir(0)) }, Kind: faulty.Before, Times: -1})
	compacted := compactAsync(ctx, p.Store)
	<-held.reached
	waitTracked(t, p.Store, 2)
	cancel()
	held.open()
	if err := <-compacted; err == nil {
		t.Error("a compaction that was cut off succeeded")
	}
	waitTracked(t, p.Store, 0)
	p.faults.Heal()
	checkUse(t, p.Store)
	compactAll(t, p.Store)
	checkFill(t, p.Store, want)
	checkUse(t, p.Store)
}

// waitTracked waits until so many changes are being made.
func waitTracked(t *testing.T, s *Store, want int) {
	t.Helper()
	for tracked, end := -1, time.Now().Add(time.Minute); tracked != want; {
		if time.Now().After(end) {
			t.Fatalf("%d changes are being made, want %d", tracked, want)
		}
		if err := s.flusher.do(s.ctx, func() { tracked = len(s.flusher.tracked) }); err != nil {
			t.Fatal(err)
		}
	}
}

// However many objects are merged, few are opened at a time.
func TestCompactionOpensFewObjectsAtATime(t *testing.T) {
	p := startProcess(t, farBucket{objstore.NewMemory()}, vfs.NewCrashableMem(), eager)
	_, want := fill(t, p.Store, 1, 10*maxMergeOpens, 100)
	<-p.catalogue.ready
	var open, most atomic.Int32
	full := make(chan struct{}) // as many as may are being read
	reach := sync.OnceFunc(func() { close(full) })
	p.faults.SetHooks(func(op objstore.Op, name string) {
		if op == objstore.OpGet && strings.HasPrefix(name, logDir(0)) {
			n := open.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if n >= maxMergeOpens {
				reach()
			}
			<-full
		}
	}, func(op objstore.Op, name string) {
		if op == objstore.OpGet && strings.HasPrefix(name, logDir(0)) {
			open.Add(-1)
		}
	})
	compactAll(t, p.Store)
	if n := most.Load(); n != maxMergeOpens {
		t.Errorf("up to %d objects were read at a time, want %d", n, maxMergeOpens)
	}
	checkFill(t, p.Store, want)
}

// A compaction for which the disk has no room does not stop one that needs less.
func TestCompactionThatFits(t *testing.T) {
	fs := vfs.NewCrashableMem()
	room := func(bytes uint64) {
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: bytes, TotalBytes: 1 << 40})
	}
	const minFree = 1 << 20
	room(1 << 30)
	p := startProcess(t, farBucket{objstore.NewMemory()}, fs, func(o *Options) {
		eager(o)
		o.MinFreeBytes = minFree
	})
	<-p.catalogue.ready
	want := make(map[StreamID][]string)
	fillMore := func(streams, rounds, size int) {
		_, more := fill(t, p.Store, streams, rounds, size)
		for id, list := range more {
			want[id] = append(want[id], list...)
		}
	}
	for range 2 {
		fillMore(8, 2, 1500)
		if _, err := p.compactor.compact(p.ctx, p.catalogue.pick(p.opts.Now())); err != nil {
			t.Fatalf("compact: %v", err)
		}
	}
	fillMore(1, 1, 100)
	if plan := p.compactor.next(); plan == nil || plan.level != 2 {
		t.Fatalf("with room: %+v", plan)
	}
	room(2*minFree + 4<<10)
	if plan := p.compactor.next(); plan == nil || plan.level != 1 {
		t.Fatalf("with little room: %+v", plan)
	}
	if !p.compactor.low {
		t.Error("it does not know that a compaction waits")
	}
	room(2 * minFree)
	if plan := p.compactor.next(); plan != nil {
		t.Fatalf("without room: %+v", plan)
	}
	room(1 << 30)
	compactAll(t, p.Store)
	checkFill(t, p.Store, want)
}

// A segment of which nothing is in use any more is deleted, as are its rows, and nothing
// else is.
func TestDeadSegmentsAreDeleted(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	ids, want := fill(t, p.Store, 3, 4, 100)
	compactAll(t, p.Store)
	p.compactor.deleteDead(p.ctx)
	segments := objectNames(t, bucket, segmentDir(0))
	if len(segments) == 0 {
		t.Fatal("there are no segments")
	}
	mustCommit(t, p.Store, func(txn *Txn) {
		for _, id := range ids {
			txn.Delete(id)
		}
	})
	p.compactor.deleteDead(p.ctx)
	if left := objectNames(t, bucket, segmentDir(0)); !slices.Equal(left, segments) {
		t.Fatalf("segments were deleted before the deletion of their streams is durable: %q are left of %q", left, segments)
	}
	p.faults.Fail(faulty.Rule{Op: objstore.OpDelete, Kind: faulty.Before})
	mustFlush(t, p.Store)
	p.compactor.deleteDead(p.ctx)
	if left := objectNames(t, bucket, segmentDir(0)); len(left) != 1 {
		t.Fatalf("after one deletion that failed, %q are left of %q", left, segments)
	}
	p.compactor.undeletable = time.Time{}
	p.compactor.deleteDead(p.ctx)
	if left := objectNames(t, bucket, segmentDir(0)); len(left) > 0 {
		t.Fatalf("%q are left", left)
	}
	mustCreate(t, p.Store, "new")
	mustFlush(t, p.Store)
	checkUse(t, p.Store)
	if totals := p.catalogue.totals(); totals.live != 0 {
		t.Errorf("totals: %+v", totals)
	}
	clear(want)
	p.stop()
	checkUse(t, startProcess(t, bucket, vfs.NewCrashableMem(), eager).Store)
}

// An object that is dead is kept for the grace time, then goes.
func TestDeleteGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
			eager(o)
			o.DeleteGrace = time.Hour
		})
		ids, _ := fill(t, p.Store, 1, 4, 100)
		compactAll(t, p.Store)
		mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(ids[0]) })
		mustFlush(t, p.Store)
		time.Sleep(time.Hour - time.Second)
		p.compactor.deleteDead(p.ctx)
		if left := objectNames(t, bucket, segmentDir(0)); len(left) == 0 {
			t.Error("the segment is gone before its time")
		}
		time.Sleep(time.Second)
		p.compactor.deleteDead(p.ctx)
		if left := objectNames(t, bucket, segmentDir(0)); len(left) > 0 {
			t.Errorf("%q are left", left)
		}
	})
}

// A reader that found an extent before it was moved, and comes to the bucket when the
// object is gone, finds the new place.
func TestReadAfterObjectIsGone(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) {
		eager(o)
		o.TailCacheBytes, o.SegmentCacheBytes = 1, 1
	})
	fill(t, p.Store, 1, 1, 1) // pushes the rest out of the tail cache
	ids, want := fill(t, p.Store, 2, 4, 100)
	held := newGate(t)
	p.faults.SetHooks(func(op objstore.Op, name string) {
		if op == objstore.OpGetRange && strings.HasPrefix(name, logDir(0)) && held != nil {
			held.hold()
		}
	}, nil)
	done := async(func() error {
		r, err := p.Read(context.Background(), ids[1], 2, ReadOptions{MaxBytes: 1 << 20})
		if got := payloads(chunkBatches(r.Chunks)); err == nil && !slices.Equal(got, want[ids[1]][2:]) {
			err = fmt.Errorf("read %q", got)
		}
		return err
	})
	<-held.reached
	// As if compaction had taken place meanwhile: its own reads would be held as well.
	p.faults.SetHooks(nil, nil)
	compactAll(t, p.Store)
	for _, name := range objectNames(t, bucket, logDir(0)) {
		if err := bucket.Delete(context.Background(), name); err != nil {
			t.Fatal(err)
		}
	}
	held.open()
	if err := <-done; err != nil {
		t.Errorf("Read: %v", err)
	}
}

func chunkBatches(chunks [][]byte) (list []recordBatch) {
	for rest := bytes.Join(chunks, nil); len(rest) > 0; {
		var batch recordBatch
		batch, rest, _ = nextBatch(rest)
		list = append(list, batch)
	}
	return list
}

// A damaged batch stays where it is and is reported by who reads it; all others move.
func TestCompactionLeavesDamageAlone(t *testing.T) {
	forBuckets(t, func(t *testing.T, bucket objstore.Bucket) {
		p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		ids, want := fill(t, p.Store, 3, 3, 100)
		x := extentsOf(t, p.Store, ids[1])[1]
		name := x.object.name(0)
		data, err := bucket.Get(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		data[x.position+x.length-1] ^= 1
		if err := bucket.Delete(context.Background(), name); err != nil {
			t.Fatal(err)
		}
		if err := bucket.Create(context.Background(), name, data); err != nil {
			t.Fatal(err)
		}
		compactAll(t, p.Store)
		checkUse(t, p.Store)
		list := extentsOf(t, p.Store, ids[1])
		if !slices.Contains(list, x) {
			t.Errorf("the damaged extent %+v is not in %+v", x, list)
		}
		if len(list) != 3 || list[0].object.kind != objectSegment || list[2].object.kind != objectSegment {
			t.Errorf("the extents around the damaged one are %+v", list)
		}
		delete(want, ids[1])
		checkFill(t, p.Store, want)
	})
}

// A missing object is left out; the others are compacted.
func TestCompactionWithoutAnObject(t *testing.T) {
	forBuckets(t, func(t *testing.T, bucket objstore.Bucket) {
		p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		ids, _ := fill(t, p.Store, 1, 3, 100)
		x := extentsOf(t, p.Store, ids[0])[1]
		if err := bucket.Delete(context.Background(), x.object.name(0)); err != nil {
			t.Fatal(err)
		}
		compactAll(t, p.Store)
		checkUse(t, p.Store)
		if list := extentsOf(t, p.Store, ids[0]); len(list) != 3 || list[0].object.kind != objectSegment || list[1] != x {
			t.Errorf("extents are %+v", list)
		}
	})
}

// A compaction that breaks off at any request to the bucket, by a fault or a crash,
// loses nothing, and the next one ends well.
func TestCompactionBreaksOff(t *testing.T) {
	for n := 1; ; n++ {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		_, want := fill(t, p.Store, 4, 5, 900)
		<-p.catalogue.ready
		<-p.checkpoints.loaded
		ctx, cancel := context.WithCancel(p.ctx)
		var calls atomic.Int32
		p.faults.SetHooks(func(objstore.Op, string) {
			if int(calls.Add(1)) == n {
				p.link.dead.Store(true)
				p.faults.Fail(faulty.Rule{Kind: faulty.Before, Times: -1})
				cancel()
			}
		}, nil)
		ended := make(chan struct{})
		result := async(func() error {
			defer close(ended)
			_, err := p.compactor.compact(ctx, p.catalogue.pick(p.opts.Now()))
			return err
		})
		select {
		case <-ended:
		case <-ctx.Done():
		}
		fs := p.kill()
		cancel()
		p.cancel() // what waits for a commit ends with the store alone
		err := <-result
		p.stop()
		p = startProcess(t, bucket, fs, eager)
		checkFill(t, p.Store, want)
		checkUse(t, p.Store)
		compactAll(t, p.Store)
		checkFill(t, p.Store, want)
		checkUse(t, p.Store)
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		checkFill(t, p.Store, want)
		p.stop()
		if err == nil {
			if n < 8 {
				t.Errorf("a compaction of five objects made only %d requests", n)
			}
			return
		}
	}
}

// The upload of a segment whose answer is lost counts as the success that it was.
func TestSegmentCreatedButReportedAsFailed(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	_, want := fill(t, p.Store, 2, 3, 100)
	p.faults.Fail(faulty.Rule{Op: objstore.OpCreate, Kind: faulty.After, Match: func(name string) bool { return strings.HasPrefix(name, segmentDir(0)) }})
	compactAll(t, p.Store)
	checkFill(t, p.Store, want)
	if list := objectNames(t, bucket, segmentDir(0)); len(list) != 1 {
		t.Errorf("segments: %q", list)
	}
}

// Objects that are mostly dead are rewritten, however long their runs are.
func TestCompactionRewritesWaste(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	keep, drop := mustCreate(t, p.Store, "keep"), mustCreate(t, p.Store, "drop")
	mustAppend(t, p.Store, keep, simpleBatch(strings.Repeat("x", 3<<10)))
	mustWait(t, mustAppend(t, p.Store, drop, simpleBatch(strings.Repeat("y", 6<<10))))
	mustFlush(t, p.Store)
	compactAll(t, p.Store)
	if list := extentsOf(t, p.Store, keep); list[0].object.kind != objectLog {
		t.Fatalf("a long run was moved: %+v", list)
	}
	mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(drop) })
	mustFlush(t, p.Store)
	compactAll(t, p.Store)
	checkUse(t, p.Store)
	if list := extentsOf(t, p.Store, keep); list[0].object.kind != objectSegment {
		t.Errorf("what is left of a wasteful object was not moved: %+v", list)
	}
	if totals := p.catalogue.totals(); totals.live != extentsOf(t, p.Store, keep)[0].length {
		t.Errorf("totals: %+v", totals)
	}
}

// Where records expire, extents stay small beside what is kept.
func TestCompactionKeepsExpiryFine(t *testing.T) {
	for _, settings := range []Settings{{Retention: 80 * time.Hour, RetentionBytes: -1}, {Retention: -1, RetentionBytes: 8 << 10}} {
		t.Run(fmt.Sprintf("%+v", settings), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) {
					eager(o)
					o.compaction.output, o.compaction.longRun = 1<<20, 1<<20
					o.RetentionInterval = 1000 * time.Hour
				})
				id, err := p.Ensure(context.Background(), "x", settings)
				if err != nil {
					t.Fatal(err)
				}
				for range 40 {
					mustAppend(t, p.Store, id, batchSpec{payload: make([]byte, 200), timestamp: time.Now().UnixMilli()}.encode())
					flushOne(t, p.Store)
					time.Sleep(2 * time.Hour)
				}
				compactAll(t, p.Store)
				list := extentsOf(t, p.Store, id)
				if len(list) < 6 || len(list) > 16 {
					t.Errorf("%d extents", len(list))
				}
				for _, x := range list {
					if settings.RetentionBytes >= 0 && x.length > settings.RetentionBytes/expiryParts {
						t.Errorf("an extent has %d bytes", x.length)
					}
				}
				if err := p.Expire(context.Background()); err != nil {
					t.Fatal(err)
				}
				flushOne(t, p.Store)
				offsets, err := p.Offsets(id)
				// Of 40 batches two hours apart the last 40 or, by size, 31 are kept.
				if want := int64(0); err != nil || settings.RetentionBytes >= 0 && (offsets.Start < 5 || offsets.Start > 10) || settings.Retention >= 0 && offsets.Start != want {
					t.Errorf("offsets %+v, %v", offsets, err)
				}
				time.Sleep(40 * time.Hour)
				if err := p.Expire(context.Background()); err != nil {
					t.Fatal(err)
				}
				if offsets, _ := p.Offsets(id); settings.Retention >= 0 && (offsets.Start < 15 || offsets.Start > 20) {
					t.Errorf("half of the time later, offsets are %+v", offsets)
				}
			})
		})
	}
}

// The map of use is right whatever happens while it is filled.
func TestUseWhileLoading(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	ids, _ := fill(t, p.Store, 4, 4, 100)
	p.stop()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p = startProcess(t, bucket, p.fs, eager)
		for range 5 {
			id := ids[rng.IntN(len(ids))]
			offsets, err := p.Offsets(id)
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, p.Store, id, simpleBatch("more"))
			mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, offsets.Start+rng.Int64N(offsets.HighWatermark-offsets.Start+1)) })
			if rng.IntN(2) == 0 {
				mustFlush(t, p.Store)
			}
		}
		mustFlush(t, p.Store)
		checkUse(t, p.Store)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		p.stop()
	}
}

// Two writers one after the other never make segments of the same name.
func TestSegmentNumbers(t *testing.T) {
	bucket := objstore.NewMemory()
	seen := make(map[string]bool)
	for round := range 3 {
		p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
		ids, _ := fill(t, p.Store, 2, 3, 100)
		compactAll(t, p.Store)
		for _, name := range objectNames(t, bucket, segmentDir(0)) {
			number, ok := parseSegmentName(0, name)
			if !ok || segmentEpoch(number) > p.epoch {
				t.Errorf("segment %s", name)
			}
			if segmentEpoch(number) == p.epoch && seen[name] {
				t.Errorf("round %d made %s again", round, name)
			}
			seen[name] = true
		}
		mustCommit(t, p.Store, func(txn *Txn) {
			for _, id := range ids {
				txn.Delete(id)
			}
		})
		mustFlush(t, p.Store)
		p.compactor.deleteDead(p.ctx)
		p.stop()
	}
	if len(seen) < 3 {
		t.Errorf("segments: %v", seen)
	}
}

func goldenSegment() (segmentHeader, []streamExtent) {
	h := segmentHeader{shard: 3, number: segmentNumber(2, 5), run: segmentNumber(2, 4), epoch: 2, nonce: goldenHeader().nonce, created: 1500, level: 1}
	o := objectID{objectSegment, h.number}
	return h, []streamExtent{
		{7, extent{base: 0, last: 9, object: o, position: 128, length: 3, maxTimestamp: 1000, written: 1100}},
		{7, extent{base: 10, last: 10, object: o, position: 131, length: 1, maxTimestamp: -1, written: 1200}},
		{1 << 41, extent{base: 5, last: 6, object: o, position: 132, length: 2, maxTimestamp: 2000, written: 1100}},
	}
}

func TestSegmentFormat(t *testing.T) {
	codec := newStateCodec()
	h, extents := goldenSegment()
	object := codec.sealSegment(&h, append(make([]byte, segmentHeaderSize), "abcdef"...), extents)
	const want = "42524b4c545345470001000000000003" + "00000200000000050000020000000004" + "0000000000000002a0a1a2a3a4a5a6a7" +
		"a8a9aaabacadaeaf00000000000005dc" + "0000000100000003"
	if got := hex.EncodeToString(object[:72]); got != want {
		t.Errorf("header begins\n%s, want\n%s", got, want)
	}
	const directory = "07" + "00" + "09" + "03" + "d00f" + "9811" + "00" + "0a" + "00" + "01" + "d10f" + "c801" + "f9ffffffff3f" + "05" + "01" + "02" + "a21f" + "c701"
	if got := hex.EncodeToString(encodeDirectory(extents)); got != directory {
		t.Errorf("directory is\n%s, want\n%s", got, directory)
	}
	if int64(len(object)) != h.size() {
		t.Errorf("the object has %d bytes, its header says %d", len(object), h.size())
	}
	got, list, err := readSegment(codec, object)
	if err != nil || got != h || !slices.Equal(list, extents) {
		t.Errorf("read %+v %+v, %v", got, list, err)
	}
	for i := range object {
		if i >= segmentHeaderSize && i < segmentHeaderSize+6 || i >= len(object)-16 && i < len(object)-8 {
			continue // the data's batches carry checksums of their own; the footer's copy is for people
		}
		object[i] ^= 1
		if _, _, err := readSegment(codec, object); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		object[i] ^= 1
	}
}

func readSegment(codec stateCodec, object []byte) (h segmentHeader, list []streamExtent, err error) {
	if h, err = decodeSegmentHeader("x", object); err != nil {
		return h, nil, err
	}
	if int64(len(object)) < segmentHeaderSize+h.dataLength {
		return h, nil, &CorruptError{Where: "x", What: "length"}
	}
	d, err := codec.openDirectory("x", &h, object[segmentHeaderSize+h.dataLength:])
	for err == nil {
		x, ok, failed := d.next()
		if err = failed; !ok || err != nil {
			break
		}
		list = append(list, x)
	}
	return h, list, err
}

func FuzzSegmentDirectory(f *testing.F) {
	codec := newStateCodec()
	_, extents := goldenSegment()
	f.Add(uint32(3), int64(6), encodeDirectory(extents))
	f.Add(uint32(1), int64(0), []byte{1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, count uint32, length int64, raw []byte) {
		h := segmentHeader{extents: count, dataLength: max(0, length), number: segmentNumber(1, 1)}
		tail := codec.encoder.EncodeAll(raw, nil)
		h.directoryLen, h.directoryCRC = int64(len(tail)), crc32.Checksum(tail, castagnoli)
		tail = append(append(tail, make([]byte, 8)...), commitFooterMagic...)
		d, err := codec.openDirectory("x", &h, tail)
		var list []streamExtent
		for err == nil {
			x, ok, failed := d.next()
			if err = failed; !ok || err != nil {
				break
			}
			list = append(list, x)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if uint32(len(list)) != count {
			t.Fatalf("%d extents of %d", len(list), count)
		}
		h.directoryLen = 0
		object := codec.sealSegment(&h, make([]byte, segmentHeaderSize), list)
		h.dataLength = max(0, length)
		d = &directory{where: "x", header: h, position: segmentHeaderSize}
		d.reader.b, err = codec.decoder.DecodeAll(object[segmentHeaderSize:len(object)-commitFooterSize], nil)
		for i := 0; err == nil; i++ {
			x, ok, failed := d.next()
			if err = failed; err != nil || !ok && i != len(list) || ok && x != list[i] {
				t.Fatalf("extent %d: %+v, %v", i, x, err)
			}
			if !ok {
				break
			}
		}
	})
}
