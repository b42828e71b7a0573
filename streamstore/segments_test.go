package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// countingBucket notes the range reads.
type countingBucket struct {
	objstore.Bucket

	mu    sync.Mutex
	reads []int64 // lengths
	// inFlight is how many bytes are being read at a time, and its maximum.
	inFlight, most int64
	delay          time.Duration
}

func (b *countingBucket) GetRange(ctx context.Context, name string, off, length int64) ([]byte, error) {
	b.mu.Lock()
	b.reads = append(b.reads, length)
	b.inFlight += length
	b.most = max(b.most, b.inFlight)
	b.mu.Unlock()
	time.Sleep(b.delay)
	data, err := b.Bucket.GetRange(ctx, name, off, length)
	b.mu.Lock()
	b.inFlight -= length
	b.mu.Unlock()
	return data, err
}

func (b *countingBucket) take() (reads []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	reads, b.reads = b.reads, nil
	return reads
}

// coldStore writes with fill and reopens with an empty tail, so that all reads are cold.
func coldStore(t *testing.T, bucket objstore.Bucket, change func(*Options), fill func(p *process)) (*process, *countingBucket) {
	t.Helper()
	p := startProcess(t, bucket, vfs.NewMem(), nil)
	fill(p)
	// All of it is in the database when this is, so one commit takes it all.
	mustCommit(t, p.Store, func(txn *Txn) { txn.Set([]byte("end"), nil) })
	mustFlush(t, p.Store)
	p.stop()
	counting := &countingBucket{Bucket: bucket}
	p = startProcess(t, counting, p.fs, change)
	synctest.Wait() // until nothing in the background looks at the bucket, which tests change
	counting.take()
	return p, counting
}

// A cold read of one stream among a thousand in one object fetches exactly that
// stream's bytes, and a hundred readers that ask at once cause one request.
func TestColdReadFetchesOwnBytesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), nil, func(p *process) {
			for i := range 1000 {
				ids = append(ids, mustCreate(t, p.Store, fmt.Sprint("s", i)))
				for j := range 3 {
					mustAppend(t, p.Store, ids[i], simpleBatch(fmt.Sprintf("%d:%d", i, j)))
				}
			}
		})
		bucket.delay = time.Second
		var want int64
		for j := range 3 {
			want += int64(len(simpleBatch(fmt.Sprintf("500:%d", j))))
		}
		var readers sync.WaitGroup
		for i := range 100 {
			readers.Go(func() {
				r, err := p.Read(context.Background(), ids[500], int64(i%3), ReadOptions{MaxBytes: 1 << 20})
				if err != nil || len(r.Chunks) != 1 || recordBatch(r.Chunks[0]).baseOffset() != int64(i%3) {
					t.Errorf("reader %d: %d chunks, %v", i, len(r.Chunks), err)
				}
			})
		}
		readers.Wait()
		if reads := bucket.take(); len(reads) != 1 || reads[0] != want {
			t.Errorf("requests of %v bytes, want one of %d", reads, want)
		}
		if _, err := p.Read(context.Background(), ids[500], 0, ReadOptions{MaxBytes: 1 << 20}); err != nil || len(bucket.take()) != 0 {
			t.Errorf("a warm read: %v, or a request", err)
		}
	})
}

// A reader that goes on where it ended fetches ahead, more each time; one that jumps
// about fetches what it asks for.
func TestReadAheadGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var id StreamID
		const batches, size = 48, 512 << 10
		p, bucket := coldStore(t, objstore.NewMemory(), nil, func(p *process) {
			id = mustCreate(t, p.Store, "s")
			for range batches {
				mustAppend(t, p.Store, id, batchSpec{payload: make([]byte, size)}.encode())
			}
		})
		read := func(offset int64) {
			t.Helper()
			r, err := p.Read(context.Background(), id, offset, ReadOptions{MaxBytes: size, MinOneBatch: true})
			if err != nil || len(r.Chunks) != 1 || recordBatch(r.Chunks[0]).baseOffset() != offset {
				t.Fatalf("read at %d: %+v, %v", offset, r.Offsets, err)
			}
		}
		for _, offset := range []int64{45, 20, 35} {
			read(offset)
		}
		for _, length := range bucket.take() {
			if length > 2*extentTarget {
				t.Errorf("a random read fetched %d bytes", length)
			}
		}
		for offset := range int64(batches) {
			read(offset)
		}
		reads := bucket.take()
		if len(reads) > 12 || reads[0] > 2*extentTarget || reads[len(reads)/2] < 2*reads[0] {
			t.Errorf("sequential reads fetched %v", reads)
		}
		for _, length := range reads {
			if length > readAheadMax+2*extentTarget {
				t.Errorf("a read fetched %d bytes", length)
			}
		}
	})
}

// A cache of one byte slows readers down and stops none.
func TestReadersProgressWithoutCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []StreamID
		p, _ := coldStore(t, objstore.NewMemory(), func(o *Options) { o.SegmentCacheBytes, o.TailCacheBytes = 1, 1 }, func(p *process) {
			for i := range 20 {
				ids = append(ids, mustCreate(t, p.Store, fmt.Sprint("s", i)))
			}
			for range 10 {
				for _, id := range ids {
					mustAppend(t, p.Store, id, batchSpec{payload: make([]byte, 10_000)}.encode())
				}
				mustFlush(t, p.Store)
			}
		})
		var readers sync.WaitGroup
		for i := range 100 {
			readers.Go(func() {
				if got := readAll(t, p.Store, ids[i%20], 0); len(got) != 10 {
					t.Errorf("reader %d: %d batches", i, len(got))
				}
			})
		}
		readers.Wait()
		if n := p.Stats().SegmentBytes; n > 1 {
			t.Errorf("the cache holds %d bytes", n)
		}
	})
}

// A reader whose time is over returns at once; what was being fetched serves the next.
func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var id StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), nil, func(p *process) {
			id = mustCreate(t, p.Store, "s")
			mustAppend(t, p.Store, id, simpleBatch("x"))
		})
		bucket.delay = 3 * time.Second
		started := time.Now()
		for i := range 5 {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			r, err := p.Read(ctx, id, 0, ReadOptions{MaxBytes: 100})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(started) != time.Duration(i+1)*500*time.Millisecond || r.Next != 1 {
				t.Errorf("try %d: %v after %v", i, err, time.Since(started))
			}
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		defer cancel()
		if r, err := p.Read(ctx, id, 0, ReadOptions{MaxBytes: 100}); err != nil || len(r.Chunks) != 1 {
			t.Errorf("after the fetch has landed: %v", err)
		}
		if reads := bucket.take(); len(reads) != 1 {
			t.Errorf("%d requests", len(reads))
		}
	})
}

// Damaged bytes from the bucket are an error that tells where, are not cached, and are
// not handed out; when the next fetch is good, so is the read.
func TestCorruptSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := objstore.NewMemory()
		var id StreamID
		p, bucket := coldStore(t, memory, nil, func(p *process) {
			id = mustCreate(t, p.Store, "s")
			for i := range 3 {
				mustAppend(t, p.Store, id, batchSpec{payload: bytes.Repeat([]byte{byte(i)}, 100)}.encode())
			}
		})
		faults := faulty.New(memory, 1)
		bucket.Bucket = faults
		faults.FailNext(objstore.OpGetRange, faulty.Corrupt)
		r, err := p.Read(context.Background(), id, 0, ReadOptions{MaxBytes: 1000})
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Where != logName(0, 2) || corrupt.Position < commitHeaderSize || len(r.Chunks) != 0 {
			t.Errorf("read of damaged bytes: %d chunks, %v", len(r.Chunks), err)
		}
		if n := p.Stats().SegmentBytes; n != 0 {
			t.Errorf("%d damaged bytes are cached", n)
		}
		if r, err := p.Read(context.Background(), id, 0, ReadOptions{MaxBytes: 1000}); err != nil || r.Bytes != 3*(100+batchHeaderSize) {
			t.Errorf("the next read: %d bytes, %v", r.Bytes, err)
		}
	})
}

// Fifty cold readers that want as much as they can get keep within the bound of bytes on
// their way from the bucket.
func TestColdReadersShareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers, size, batches = 50, 256 << 10, 6 // 75 MiB
		var ids []StreamID
		p, bucket := coldStore(t, objstore.NewMemory(), func(o *Options) { o.SegmentCacheBytes = 1 }, func(p *process) {
			for i := range readers {
				ids = append(ids, mustCreate(t, p.Store, fmt.Sprint("s", i)))
				for range batches {
					mustAppend(t, p.Store, ids[i], batchSpec{payload: make([]byte, size)}.encode())
				}
				mustFlush(t, p.Store)
			}
		})
		bucket.delay = time.Second
		var running sync.WaitGroup
		for _, id := range ids {
			running.Go(func() {
				r, err := p.Read(context.Background(), id, 0, ReadOptions{MaxBytes: 50 << 20})
				if err != nil || r.Bytes != batches*(size+batchHeaderSize) {
					t.Errorf("%d bytes, %v", r.Bytes, err)
				}
			})
		}
		running.Wait()
		if bucket.most > maxFetchingBytes || bucket.most < maxFetchingBytes/2 {
			t.Errorf("up to %d bytes were on their way, the bound is %d", bucket.most, maxFetchingBytes)
		}
	})
}

// With local durability the bucket can be faster than the sync of the local disk: an
// extent then reaches beyond the high watermark, and a read stops there all the same.
func TestReadStopsAtHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		for i := range 4 {
			mustAppend(t, p.Store, id, simpleBatch(fmt.Sprint(i)))
		}
		flushOne(t, p.Store)
		p.stop()
		p = startProcess(t, p.opts.Bucket, p.fs, nil)
		st, err := p.acquire(id)
		if err != nil {
			t.Fatal(err)
		}
		defer p.release(st)
		for hw := range int64(5) {
			st.mu.Lock()
			st.mu.hw = hw
			st.mu.Unlock()
			r, err := p.Read(context.Background(), id, 0, ReadOptions{MaxBytes: 1 << 20})
			if err != nil || r.Bytes != int(hw)*len(simpleBatch("0")) {
				t.Errorf("with the high watermark at %d: %d bytes, %v", hw, r.Bytes, err)
			}
		}
	})
}

// Without MinOneBatch a read returns nothing rather than more than it was asked for;
// with it, one batch, from wherever it comes.
func TestReadLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		size := len(simpleBatch("0"))
		for i := range 4 {
			mustWait(t, mustAppend(t, p.Store, id, simpleBatch(fmt.Sprint(i))))
		}
		check := func(where string) {
			t.Helper()
			for _, c := range []struct {
				max  int
				one  bool
				want int
			}{{0, false, 0}, {0, true, 1}, {size - 1, false, 0}, {size - 1, true, 1}, {size, false, 1}, {3*size - 1, true, 2}, {3 * size, false, 3}, {100 * size, true, 4}} {
				r, err := p.Read(context.Background(), id, 0, ReadOptions{MaxBytes: c.max, MinOneBatch: c.one})
				if err != nil || r.Bytes != c.want*size || len(bytes.Join(r.Chunks, nil)) != r.Bytes {
					t.Errorf("%s: at most %d bytes, at least one batch %v: %d bytes, %v; want %d", where, c.max, c.one, r.Bytes, err, c.want*size)
				}
			}
		}
		check("tail in memory")
		p.Store.tailCache.budget = 0
		p.Store.tailCache.trim(p.appender.applied.Load())
		check("tail in the database")
		mustFlush(t, p.Store)
		check("bucket")
	})
}

// A history of many small extents in as many objects is read in few round trips.
func TestSmallExtentsAreFetchedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := faulty.New(objstore.NewMemory(), 1)
		opts := testOptions(bucket)
		s := mustOpen(t, opts)
		id := mustCreate(t, s, "a")
		const extents = 2 * maxReadFetches
		for range extents {
			mustAppend(t, s, id, simpleBatch("x"))
			mustFlush(t, s)
		}
		mustClose(t, s)
		s = openTest(t, opts)
		const roundTrip = 100 * time.Millisecond
		bucket.SetDelay(objstore.OpGetRange, roundTrip, roundTrip)
		began := time.Now()
		r, err := s.Read(context.Background(), id, 0, ReadOptions{MaxBytes: 1 << 20})
		if err != nil || len(r.Chunks) != extents {
			t.Fatalf("%d chunks, %v", len(r.Chunks), err)
		}
		if took := time.Since(began); took != 2*roundTrip {
			t.Errorf("%d extents took %v, want two round trips", extents, took)
		}
	})
}
