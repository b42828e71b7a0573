package streamstore

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

const hotExtent = 10_000 // bytes of the extents of these tests

// withDiskCache gives a store memory for few extents and disk for many.
func withDiskCache(memory, disk int64) func(*Options) {
	return func(o *Options) { o.SegmentCacheBytes, o.DiskCacheBytes, o.TailCacheBytes = memory, disk, 1 }
}

// fillExtents makes n streams of one extent each, filled with what seed makes of them.
func fillExtents(t testing.TB, p *process, n int, seed byte) (ids []StreamID) {
	t.Helper()
	for i := range n {
		ids = append(ids, mustCreate(t, p.Store, fmt.Sprintf("s%05d", i)))
		mustAppend(t, p.Store, ids[i], batchSpec{payload: extentPayload(i, seed)}.encode())
		if i%100 == 99 {
			mustFlush(t, p.Store)
		}
	}
	return ids
}

func extentPayload(i int, seed byte) []byte {
	return bytes.Repeat([]byte{byte(i), byte(i >> 8), seed, 1}, hotExtent/4)
}

// mustReadExtent reads stream i of fillExtents and checks each byte.
func mustReadExtent(t testing.TB, s *Store, ids []StreamID, i int, seed byte) {
	t.Helper()
	r, err := s.Read(context.Background(), ids[i], 0, ReadOptions{MaxBytes: 1 << 20})
	if err != nil || len(r.Chunks) != 1 || !bytes.Equal(r.Chunks[0][batchHeaderSize:], extentPayload(i, seed)) {
		t.Fatalf("stream %d: %d chunks, %v", i, len(r.Chunks), err)
	}
}

// A hot set twice as large as memory is served from disk, and goes on to be while cold
// data, many times as much as the disk holds, is scanned past it.
func TestDiskCacheKeepsHotSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hot, cold = 100, 2000
		const memory, disk = hot / 2 * hotExtent, 4 * hot * hotExtent
		var ids []StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), withDiskCache(memory, disk), func(p *process) { ids = fillExtents(t, p, hot+cold, 0) })
		defer p.stop()
		pass := func(what string) (ratio float64) {
			before := p.segments.disk.Metrics().Hits
			bucket.take()
			for i := range hot {
				mustReadExtent(t, p.Store, ids, i, 0)
				synctest.Wait()
			}
			misses := len(bucket.take())
			t.Logf("%-28s %3d hot reads: %3d of the bucket, %3d of the disk; hit ratio %.2f", what, hot, misses,
				p.segments.disk.Metrics().Hits-before, 1-float64(misses)/hot)
			return 1 - float64(misses)/hot
		}
		pass("first pass")
		pass("second pass")
		if ratio := pass("third pass"); ratio != 1 {
			t.Errorf("the hot set is not on disk: hit ratio %.2f", ratio)
		}
		written := p.segments.disk.Metrics().WrittenBytes
		for i := hot; i < hot+cold; i++ {
			mustReadExtent(t, p.Store, ids, i, 0)
			synctest.Wait()
		}
		if more := p.segments.disk.Metrics().WrittenBytes - written; more > hot*hotExtent/4 {
			t.Errorf("a scan wrote %d bytes to disk", more)
		}
		if ratio := pass("after a scan"); ratio < 0.98 {
			t.Errorf("a scan pushed the hot set out: hit ratio %.2f", ratio)
		}
		for i := hot; i < hot+cold; i++ {
			mustReadExtent(t, p.Store, ids, i, 0)
			if i%20 == 0 { // the hot ones in between
				mustReadExtent(t, p.Store, ids, i/20%hot, 0)
			}
			synctest.Wait()
		}
		if ratio := pass("after a mixed second scan"); ratio < 0.98 {
			t.Errorf("a scan pushed the hot set out: hit ratio %.2f", ratio)
		}
	})
}

// One reader that goes through long extents in small steps is a scan as well, however
// often it comes back to the same extent.
func TestSmallReadsAreOneUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batches, size = 400, 100_000
		var id StreamID
		p, _ := coldStore(t, objstore.NewMemory(), withDiskCache(16<<20, 128<<20), func(p *process) {
			id = mustCreate(t, p.Store, "s")
			for range batches {
				mustAppend(t, p.Store, id, batchSpec{payload: make([]byte, size)}.encode())
			}
		})
		defer p.stop()
		for pass := range 3 {
			for offset := range int64(batches) {
				if r, err := p.Read(context.Background(), id, offset, ReadOptions{MaxBytes: size, MinOneBatch: true}); err != nil || len(r.Chunks) != 1 {
					t.Fatalf("offset %d: %v", offset, err)
				}
			}
			synctest.Wait()
			if written := p.segments.disk.Metrics().WrittenBytes; (written > 0) != (pass > 0) {
				t.Errorf("after pass %d %d bytes are on disk", pass+1, written)
			}
		}
	})
}

// After a restart the disk answers what it answered before.
func TestDiskCacheSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		var ids []StreamID
		change := withDiskCache(1, 64<<20)
		p, bucket := coldStore(t, objstore.NewMemory(), change, func(p *process) { ids = fillExtents(t, p, n, 0) })
		for range 2 {
			for i := range n {
				mustReadExtent(t, p.Store, ids, i, 0)
			}
		}
		synctest.Wait()
		p.stop()
		p = startProcess(t, bucket, p.fs, change)
		defer p.stop()
		synctest.Wait()
		bucket.take()
		for i := range n {
			mustReadExtent(t, p.Store, ids, i, 0)
		}
		if reads := bucket.take(); len(reads) != 0 {
			t.Errorf("after a restart %d of %d reads went to the bucket", len(reads), n)
		}
	})
}

// The cache of one log never serves another one whose objects have the same names and
// shape, though it finds its files in the same data directory.
func TestDiskCacheOfAnotherLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		change := withDiskCache(1, 64<<20)
		read := func(p *process, ids []StreamID, seed byte) {
			for range 3 {
				for i := range n {
					mustReadExtent(t, p.Store, ids, i, seed)
				}
				synctest.Wait()
			}
		}
		fs := vfs.NewMem()
		for seed := range byte(3) {
			p := startProcess(t, objstore.NewMemory(), fs, change)
			ids := fillExtents(t, p, n, seed)
			mustFlush(t, p.Store)
			synctest.Wait()
			read(p, ids, seed)
			if m := p.segments.disk.Metrics(); m.Hits == 0 {
				t.Errorf("the disk cache is not used: %+v", m)
			}
			p.stop()
			if err := fs.RemoveAll("data/db"); err != nil {
				t.Fatal(err)
			}
		}
		if names, err := fs.List("data/cache"); err != nil || len(names) != 1 {
			t.Errorf("the caches of former logs are kept: %v, %v", names, err)
		}
	})
}

// A cache file whose entries check out but are not the extents' bytes, even of batches
// with right checksums, is found out.
func TestDiskCacheBytesAreProved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		var ids []StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), withDiskCache(1, 64<<20), func(p *process) { ids = fillExtents(t, p, n, 0) })
		defer p.stop()
		foreign := batchSpec{payload: []byte("of another stream")}.encode()
		recordBatch(foreign).place(7, 0)
		for i := range n {
			err := p.eachExtent(ids[i], 0, func(x extent) bool {
				p.segments.disk.Evicted(x.diskKey(), [][]byte{foreign, {}, []byte("no batch")}[i], true)
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		bucket.take()
		for i := range n {
			mustReadExtent(t, p.Store, ids, i, 0)
		}
		if reads := bucket.take(); len(reads) != n {
			t.Errorf("%d reads of the bucket, want %d", len(reads), n)
		}
	})
}

// Extents that are next to each other come from the bucket in one request, also when the
// disk turns out not to have them.
func TestLostCacheFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 8
		var id StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), withDiskCache(1, 64<<20), func(p *process) {
			id = mustCreate(t, p.Store, "s")
			for range n {
				mustAppend(t, p.Store, id, batchSpec{payload: make([]byte, extentTarget)}.encode())
			}
		})
		defer p.stop()
		read := func() {
			t.Helper()
			if r, err := p.Read(context.Background(), id, 0, ReadOptions{MaxBytes: 1 << 30}); err != nil || r.Bytes != n*(extentTarget+batchHeaderSize) {
				t.Fatalf("%d bytes, %v", r.Bytes, err)
			}
			synctest.Wait()
		}
		read()
		read()
		bucket.take()
		if read(); len(bucket.take()) != 0 {
			t.Error("the disk is not used")
		}
		damageCache(t, p.fs)
		if read(); len(bucket.take()) != 1 {
			t.Error("not one request")
		}
	})
}

// damageCache overwrites all files of the cache with zeros, from their 100th byte on.
func damageCache(t testing.TB, fs *vfs.MemFS) {
	t.Helper()
	dirs, err := fs.List("data/cache")
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%v, %v", dirs, err)
	}
	names, err := fs.List(path.Join("data/cache", dirs[0]))
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range names {
		data, err := fs.UnsafeGetFileDataBuffer(path.Join("data/cache", dirs[0], name))
		if err != nil {
			t.Fatal(err)
		}
		clear(data[100:])
	}
}

// While the bucket is out of reach, reads of what is on disk go on.
func TestDiskCacheWithoutBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), withDiskCache(1, 64<<20), func(p *process) { ids = fillExtents(t, p, 20, 0) })
		defer p.stop()
		for range 2 {
			for i := range ids[:10] {
				mustReadExtent(t, p.Store, ids, i, 0)
			}
			synctest.Wait()
		}
		faults := faulty.New(bucket.Bucket, 1)
		faults.SetRate(objstore.OpGetRange, faulty.Before, 1)
		bucket.Bucket = faults
		if _, err := p.Read(context.Background(), ids[15], 0, ReadOptions{MaxBytes: 1 << 20}); err == nil {
			t.Error("a read of the bucket succeeds")
		}
		for i := range ids[:10] {
			mustReadExtent(t, p.Store, ids, i, 0)
		}
	})
}

// A cache that is turned off gives its room back.
func TestDiskCacheTurnedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), withDiskCache(1, 64<<20), func(p *process) { ids = fillExtents(t, p, 5, 0) })
		for range 3 {
			mustReadExtent(t, p.Store, ids, 0, 0)
			synctest.Wait()
		}
		p.stop()
		p = startProcess(t, bucket, p.fs, nil)
		defer p.stop()
		synctest.Wait()
		if _, err := p.fs.Stat("data/cache"); err == nil {
			t.Error("the files are still there")
		}
		mustReadExtent(t, p.Store, ids, 0, 0)
	})
}

// BenchmarkExtent reads one extent of 64 KiB from where it lies.
func BenchmarkExtent(b *testing.B) {
	const n, size = 64, 64 << 10
	for _, c := range []struct {
		name         string
		memory, disk int64
	}{{"memory", 64 << 20, 0}, {"disk", 1, 256 << 20}, {"folder", 1, 0}} {
		b.Run(c.name, func(b *testing.B) {
			bucket, err := objstore.Open(context.Background(), objstore.Options{URL: "file://" + b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			opts := testOptions(bucket)
			opts.Dir, opts.FS = b.TempDir(), vfs.Default
			withDiskCache(c.memory, c.disk)(&opts)
			s := openTest(b, opts)
			var ids []StreamID
			for i := range n {
				ids = append(ids, mustCreate(b, s, fmt.Sprint(i)))
				mustWait(b, mustAppend(b, s, ids[i], batchSpec{payload: make([]byte, size)}.encode()))
			}
			mustFlush(b, s)
			read := func(i int) {
				if r, err := s.Read(context.Background(), ids[i%n], 0, ReadOptions{MaxBytes: 1 << 20}); err != nil || r.Bytes != size+batchHeaderSize {
					b.Fatalf("%d bytes, %v", r.Bytes, err)
				}
			}
			for i := 0; i < n || c.disk > 0 && s.segments.disk.Metrics().Entries < n; i++ {
				read(i)
			}
			b.SetBytes(size)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				read(i)
			}
		})
	}
}
