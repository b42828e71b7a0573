package streamstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

func bucketOptions(b objstore.Bucket) BucketOptions {
	return BucketOptions{Bucket: b, Dir: "check", FS: vfs.NewMem()}
}

func mustCheck(t testing.TB, b objstore.Bucket) BucketReport {
	t.Helper()
	report, err := CheckBucket(context.Background(), bucketOptions(b))
	if err != nil {
		t.Fatalf("CheckBucket: %v", err)
	}
	return report
}

// replace puts other bytes in the place of an object.
func replace(t testing.TB, b objstore.Bucket, name string, change func(data []byte) []byte) {
	t.Helper()
	data, err := b.Get(context.Background(), name)
	if err == nil {
		err = b.Delete(context.Background(), name)
	}
	if data = change(data); err == nil && data != nil {
		err = b.Create(context.Background(), name, data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// filled is a bucket with streams of which some lie in segments and some in the log.
func filled(t testing.TB) (objstore.Bucket, *process, []StreamID) {
	t.Helper()
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	ids, _ := fill(t, p.Store, 4, 5, 100)
	compactAll(t, p.Store)
	mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(ids[0], 3) })
	fill(t, p.Store, 4, 2, 100)
	mustFlush(t, p.Store)
	return bucket, p, ids
}

func TestCheckBucket(t *testing.T) {
	bucket, p, ids := filled(t)
	before := slices.Concat(objectNames(t, bucket, logDir(0)), objectNames(t, bucket, segmentDir(0)))
	report := mustCheck(t, bucket)
	if len(report.Problems) > 0 || len(report.Garbage) > 0 {
		t.Errorf("problems %v, garbage %v", report.Problems, report.Garbage)
	}
	totals := p.catalogue.totals()
	if report.Streams != int64(len(ids)) || report.LiveBytes != totals.live || report.Epoch != 1 || report.Segments == 0 || report.CheckedObjects < 3 {
		t.Errorf("report %+v, the store says %+v", report, totals)
	}
	if after := slices.Concat(objectNames(t, bucket, logDir(0)), objectNames(t, bucket, segmentDir(0))); !slices.Equal(before, after) {
		t.Errorf("the check changed the bucket: %q became %q", before, after)
	}
	if _, err := CheckBucket(context.Background(), bucketOptions(objstore.NewMemory())); err == nil || !strings.Contains(err.Error(), "no commit log") {
		t.Errorf("check of an empty bucket: %v", err)
	}
}

// Damage is found wherever it is, and told with the stream and the offsets that it hits.
func TestCheckBucketFindsDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   objectKind
		damage func(x extent) func([]byte) []byte
		whole  bool // all of the object's records are hit
	}{
		{"a changed record in a segment", objectSegment, func(x extent) func([]byte) []byte {
			return func(b []byte) []byte { b[x.position+x.length-1] ^= 1; return b }
		}, false},
		{"a changed record in the log", objectLog, func(x extent) func([]byte) []byte {
			return func(b []byte) []byte { b[x.position+x.length-1] ^= 1; return b }
		}, false},
		{"a changed header of a segment", objectSegment, func(extent) func([]byte) []byte {
			return func(b []byte) []byte { b[20] ^= 1; return b }
		}, true},
		{"a changed directory", objectSegment, func(extent) func([]byte) []byte {
			return func(b []byte) []byte { b[len(b)-20] ^= 1; return b }
		}, true},
		{"a short segment", objectSegment, func(extent) func([]byte) []byte {
			return func(b []byte) []byte { return b[:len(b)-1] }
		}, true},
		{"a missing segment", objectSegment, func(extent) func([]byte) []byte {
			return func([]byte) []byte { return nil }
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bucket, p, ids := filled(t)
			list := extentsOf(t, p.Store, ids[1])
			x := list[slices.IndexFunc(list, func(x extent) bool { return x.object.kind == c.kind })]
			p.stop()
			replace(t, bucket, x.object.name(0), c.damage(x))
			report := mustCheck(t, bucket)
			i := slices.IndexFunc(report.Problems, func(p BucketProblem) bool { return p.Stream == "s/1" && p.Base == x.base && p.Last == x.last })
			if i < 0 || (len(report.Problems) > 1) != c.whole {
				t.Fatalf("problems: %+v", report.Problems)
			}
			if p := report.Problems[i]; p.Object != x.object.name(0) || !errors.Is(p.Err, ErrCorrupt) {
				t.Errorf("problem: %+v", p)
			}
		})
	}
}

// What a live writer moves and deletes while the check reads is no problem.
func TestCheckBucketBesideWriter(t *testing.T) {
	bucket, p, ids := filled(t)
	held := newGate(t)
	slow := faulty.New(bucket, 1)
	slow.SetHooks(func(op objstore.Op, name string) {
		if op == objstore.OpGet && strings.HasPrefix(name, segmentDir(0)) {
			held.hold()
		}
	}, nil)
	var report BucketReport
	done := async(func() (err error) {
		report, err = CheckBucket(context.Background(), bucketOptions(slow))
		return err
	})
	<-held.reached
	fill(t, p.Store, 4, 1, 100)
	compactAll(t, p.Store)
	mustCommit(t, p.Store, func(txn *Txn) { txn.Delete(ids[2]) })
	mustFlush(t, p.Store)
	compactAll(t, p.Store)
	p.compactor.deleteDead(p.ctx)
	held.open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(report.Problems) > 0 {
		t.Errorf("problems: %+v", report.Problems)
	}
}

// makeSegment puts a segment into the bucket that no commit names.
func makeSegment(t testing.TB, b objstore.Bucket, number uint64, created time.Time) string {
	t.Helper()
	h := segmentHeader{number: number, run: number, epoch: segmentEpoch(number), created: created.UnixMilli(), level: 1}
	object := newStateCodec().sealSegment(&h, make([]byte, segmentHeaderSize), nil)
	if err := b.Create(context.Background(), segmentName(0, number), object); err != nil {
		t.Fatal(err)
	}
	return segmentName(0, number)
}

// Only segments that can never be committed are collected, and only when they are old.
func TestCollectGarbage(t *testing.T) {
	bucket, p, _ := filled(t)
	p.stop()
	p = startProcess(t, bucket, p.fs, eager) // epoch 2
	fill(t, p.Store, 4, 2, 100)
	p.compactor.count = 3
	compactAll(t, p.Store)
	old := time.Now().Add(-48 * time.Hour)
	fenced := makeSegment(t, bucket, segmentNumber(1, 1000), old)
	young := makeSegment(t, bucket, segmentNumber(1, 1001), time.Now())
	passed := makeSegment(t, bucket, segmentNumber(2, 2), old)
	next := makeSegment(t, bucket, segmentNumber(2, p.compactor.count+1), old)
	newer := makeSegment(t, bucket, segmentNumber(3, 1), old)
	foreign := segmentDir(0) + "/notes"
	if err := bucket.Create(context.Background(), foreign, []byte("mine")); err != nil {
		t.Fatal(err)
	}
	named := objectNames(t, bucket, segmentDir(0))
	collect := func(remove bool) (free, deleted, kept []string) {
		t.Helper()
		report, err := CollectGarbage(context.Background(), bucketOptions(bucket), 24*time.Hour, remove)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range report.Garbage {
			switch {
			case g.Deleted:
				deleted = append(deleted, g.Name)
			case g.InUse != "":
				kept = append(kept, g.Name)
			default:
				free = append(free, g.Name)
			}
		}
		return free, deleted, kept
	}
	want, wantKept := []string{fenced, passed}, []string{young, next, newer, foreign}
	if free, deleted, kept := collect(false); !slices.Equal(free, want) || len(deleted) > 0 || !slices.Equal(kept, wantKept) {
		t.Errorf("without removal: %q free, %q deleted, %q kept", free, deleted, kept)
	}
	if got := objectNames(t, bucket, segmentDir(0)); !slices.Equal(got, named) {
		t.Errorf("a dry run changed the bucket: %q", got)
	}
	if free, deleted, kept := collect(true); len(free) > 0 || !slices.Equal(deleted, want) || !slices.Equal(kept, wantKept) {
		t.Errorf("with removal: %q free, %q deleted, %q kept", free, deleted, kept)
	}
	left := slices.DeleteFunc(named, func(name string) bool { return slices.Contains(want, name) })
	if got := objectNames(t, bucket, segmentDir(0)); !slices.Equal(got, left) {
		t.Errorf("left are %q, want %q", got, left)
	}
	if report := mustCheck(t, bucket); len(report.Problems) > 0 {
		t.Errorf("problems: %+v", report.Problems)
	}
}

// A segment that is uploaded and about to be committed is never garbage, however old it
// looks.
func TestGarbageIsNotAboutToBeCommitted(t *testing.T) {
	bucket := objstore.NewMemory()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), eager)
	_, want := fill(t, p.Store, 3, 4, 900)
	<-p.catalogue.ready
	for {
		plan := p.catalogue.pick(p.opts.Now())
		if plan == nil {
			break
		}
		p.faults.SetHooks(nil, func(op objstore.Op, name string) {
			if op != objstore.OpCreate || !strings.HasPrefix(name, segmentDir(0)) {
				return
			}
			report, err := CollectGarbage(context.Background(), bucketOptions(bucket), 0, true)
			if err != nil || slices.ContainsFunc(report.Garbage, func(g GarbageObject) bool { return g.Deleted }) {
				t.Errorf("collected %+v, %v", report.Garbage, err)
			}
			if !slices.ContainsFunc(report.Garbage, func(g GarbageObject) bool { return g.Name == name }) {
				t.Errorf("%s is not among %+v", name, report.Garbage)
			}
		})
		if _, err := p.compactor.compact(p.ctx, plan); err != nil {
			t.Fatal(err)
		}
	}
	checkFill(t, p.Store, want)
}
