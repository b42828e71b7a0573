package diskcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const testLimit = 256 << 10 // 8 slabs of 32 KiB

// testCache is a cache on a disk in memory. It runs in a bubble, where settle waits for
// its writer.
type testCache struct {
	*Cache
	t    testing.TB
	opts Options
	mem  *vfs.MemFS
	logs *observer.ObservedLogs
	most int64 // bytes that the files may have
}

func openTest(t testing.TB, mem *vfs.MemFS, change func(*Options)) *testCache {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	c := &testCache{t: t, mem: mem, logs: logs, opts: Options{FS: mem, Dir: "data/cache", Identity: "a", Bytes: testLimit, Logger: zap.New(core)}}
	if change != nil {
		change(&c.opts)
	}
	c.most = max(c.opts.Bytes, diskBytes(mem, "data/cache"))
	c.Cache = Open(c.opts)
	c.settle()
	return c
}

// settle waits until the writer has nothing to do.
func (c *testCache) settle() {
	synctest.Wait()
	c.checkSize()
}

// checkSize proves that the files keep within the limit. A crash can bring removed files
// back; until a disk that fails lets them go, they must at least not become more.
func (c *testCache) checkSize() {
	c.t.Helper()
	sum := diskBytes(c.mem, "data/cache")
	if sum > c.most {
		c.t.Errorf("the files have %d bytes, the limit is %d", sum, c.opts.Bytes)
	}
	c.most = max(c.opts.Bytes, min(sum, c.most))
}

func diskBytes(fs vfs.FS, dir string) (sum int64) {
	names, _ := fs.List(dir)
	for _, name := range names {
		info, err := fs.Stat(path.Join(dir, name))
		switch {
		case err != nil:
		case info.IsDir():
			sum += diskBytes(fs, path.Join(dir, name))
		default:
			sum += info.Size()
		}
	}
	return sum
}

func slabFiles(fs vfs.FS, dir string) (list []string) {
	names, _ := fs.List(dir)
	slices.Sort(names)
	for _, name := range names {
		list = append(list, path.Join(dir, name))
	}
	return list
}

func testKey(n int) (k Key) {
	binary.BigEndian.PutUint64(k[3:], uint64(n))
	return k
}

// testData is what the key stands for.
func testData(n, size int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	data := make([]byte, size)
	_, _ = r.Read(data)
	return data
}

// put brings entries to disk.
func (c *testCache) put(size int, numbers ...int) {
	for _, n := range numbers {
		c.Evicted(testKey(n), testData(n, size), true)
	}
	c.settle()
}

// found tells which of the entries from..to-1 are there, unchanged.
func (c *testCache) found(size, from, to int) (list []int) {
	c.t.Helper()
	for n := from; n < to; n++ {
		data, ok := c.Get(testKey(n))
		if ok && !bytes.Equal(data, testData(n, size)) {
			c.t.Fatalf("entry %d has wrong bytes", n)
		}
		if ok {
			list = append(list, n)
		}
	}
	return list
}

func seq(from, to int) (list []int) {
	for n := from; n < to; n++ {
		list = append(list, n)
	}
	return list
}

func inBubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

// Only what was used again goes to disk: again in memory, or again from the bucket while
// it is remembered.
func TestAdmission(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := openTest(t, vfs.NewMem(), nil)
		defer c.Close()
		load := func(n int) { c.Loaded(testKey(n), testData(n, 100)); c.settle() }
		drop := func(n int, again bool) { c.Evicted(testKey(n), testData(n, 100), again); c.settle() }
		load(1)
		drop(1, false)
		if c.Has(testKey(1)) || c.Metrics().WrittenBytes != 0 {
			t.Error("an entry that was used once was written")
		}
		load(1)
		if !c.Has(testKey(1)) {
			t.Error("an entry that was asked for again was not written")
		}
		load(2)
		drop(2, true)
		if !c.Has(testKey(2)) {
			t.Error("an entry that was used twice in memory was not written")
		}
		load(3)
		drop(3, false)
		for n := 10; n*100 < 10*100+testLimit+ghostTicks; n++ {
			drop(n, false) // more bytes than are remembered
		}
		load(3)
		if c.Has(testKey(3)) {
			t.Error("an entry was remembered for longer than the bytes of the cache")
		}
	})
}

func TestGhost(t *testing.T) {
	g := newGhost(1<<12, 1<<20)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	hashes := make([]uint64, 1<<10) // a quarter: few sets are full
	for i := range hashes {
		hashes[i] = r.Uint64()
		g.add(hashes[i], 1<<10)
	}
	remembered := 0
	for _, h := range hashes {
		if g.take(h) {
			remembered++
		}
		if g.take(h) {
			t.Fatal("remembered after it was taken")
		}
	}
	if remembered < len(hashes)*95/100 {
		t.Errorf("%d of %d are remembered", remembered, len(hashes))
	}
	for range 1000 {
		if g.take(r.Uint64()) {
			t.Error("something is remembered that was never there") // 1000 × 8 in 2^32
		}
	}
}

// What was written is found after a restart; the files of another identity are removed.
func TestRestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mem := vfs.NewMem()
		c := openTest(t, mem, nil)
		c.put(1000, seq(0, 100)...)
		c.Close()
		if got := c.found(1000, 0, 100); len(got) != 0 {
			t.Errorf("after Close %v are found", got)
		}
		c = openTest(t, mem, nil)
		if got := c.found(1000, 0, 101); !slices.Equal(got, seq(0, 100)) {
			t.Errorf("after a restart %v are found", got)
		}
		c.put(1000, 100) // beside the old files
		c.Close()
		c = openTest(t, mem, nil)
		if got := c.found(1000, 0, 101); !slices.Equal(got, seq(0, 101)) {
			t.Errorf("after another restart %v are found", got)
		}
		c.Close()
		c = openTest(t, mem, func(o *Options) { o.Bytes /= 4 })
		if got := c.found(1000, 0, 101); len(got) == 0 || got[len(got)-1] != 100 {
			t.Errorf("with a lower limit %v are found", got)
		}
		c.Close()
		c = openTest(t, mem, func(o *Options) { o.Identity = "b" })
		defer c.Close()
		if got := c.found(1000, 0, 101); len(got) != 0 || diskBytes(mem, "data/cache") != 0 {
			t.Errorf("with another identity %v are found, %d bytes are left", got, diskBytes(mem, "data/cache"))
		}
	})
}

// Many restarts leave many short files; their number is bounded, and so is their size.
func TestManyRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mem := vfs.NewMem()
		for i := range 100 {
			c := openTest(t, mem, nil)
			c.put(1000, i)
			if got := c.found(1000, i, i+1); len(got) != 1 {
				t.Fatalf("restart %d: the new entry is not found", i)
			}
			c.Close()
			if n, most := len(slabFiles(mem, "data/cache/a")), c.sizes.slabs; n > most {
				t.Fatalf("%d files, want at most %d", n, most)
			}
		}
	})
}

// What is read stays while much more than the limit is written; what is not read goes,
// oldest first.
func TestSecondChance(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := openTest(t, vfs.NewMem(), nil)
		defer c.Close()
		hot, next := seq(0, 40), 1000
		for _, n := range hot {
			c.put(1000, n, next, next+1)
			next += 2
		}
		for range 100 {
			for range 20 {
				c.put(1000, next)
				next++
			}
			if got := c.found(1000, 0, 40); !slices.Equal(got, hot) {
				t.Fatalf("after %d more entries only %v of the hot ones are there", next-1000, got)
			}
		}
		rest := c.found(1000, 1000, next)
		if n := len(rest); n < 50 || rest[n-1]-rest[0] > n || rest[n-1] != next-1 {
			t.Errorf("of the others %v are there", rest)
		}
		if m := c.Metrics(); m.EvictedBytes == 0 || m.Bytes > testLimit || m.Bytes < testLimit/2 {
			t.Errorf("%+v", m)
		}
	})
}

// The number of entries is bounded, however small they are.
func TestTinyEntries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := openTest(t, vfs.NewMem(), func(o *Options) { o.Bytes = 32 << 20 })
		defer c.Close()
		const n = 3 * leastEntries
		for i := range n {
			c.Evicted(testKey(i), []byte{byte(i)}, true)
			if i%1000 == 999 {
				c.settle()
				c.mu.Lock()
				entries := c.mu.entries
				c.mu.Unlock()
				if entries > c.sizes.entries {
					t.Fatalf("%d entries, the limit is %d", entries, c.sizes.entries)
				}
			}
		}
		c.settle()
		if m := c.Metrics(); m.Entries < leastEntries/2 || m.Dropped != 0 {
			t.Errorf("%+v", m)
		}
		if data, ok := c.Get(testKey(n - 1)); !ok || !bytes.Equal(data, []byte{byte((n - 1) & 255)}) {
			t.Error("the newest entry is not there")
		}
	})
}

// The index needs no more memory than MemoryBound says.
func TestMemoryPerEntry(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const limit = 8 << 30
	before := heap()
	c := &Cache{sizes: sizesFor(limit)}
	c.mu.index = make(map[uint64]location)
	c.mu.slabs = make(map[uint32]*slab)
	c.mu.ghost = newGhost(c.sizes.entries, limit)
	r := rand.New(rand.NewPCG(1, 2))
	for number := range c.sizes.entries / c.sizes.slabEntries {
		s := &slab{number: uint32(number)}
		for range c.sizes.slabEntries {
			c.publish(s, []entry{{hash: r.Uint64(), offset: 1, length: 1}}, true)
		}
	}
	used := heap() - before
	t.Logf("%d entries take %d bytes, %.1f each", c.sizes.entries, used, float64(used)/float64(c.sizes.entries))
	if int64(used) > MemoryBound(limit) {
		t.Errorf("MemoryBound says %d", MemoryBound(limit))
	}
	runtime.KeepAlive(c)
}

// A file with a damaged byte anywhere, cut anywhere, or gone gives misses, is complained
// of once, and does not harm others.
func TestDamagedFiles(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mem := vfs.NewMem()
		c := openTest(t, mem, nil)
		c.put(300, seq(0, 100)...)
		c.Close()
		files := slabFiles(mem, "data/cache/a")
		whole, err := mem.UnsafeGetFileDataBuffer(files[0])
		if err != nil || len(files) != 2 {
			t.Fatalf("%v, %v", files, err)
		}
		whole = bytes.Clone(whole)
		damage := func(name string, at int, data []byte) {
			disk := vfs.NewMem()
			copyFile(t, mem, disk, files[1])
			writeFile(t, disk, files[0], data)
			c := openTest(t, disk, nil)
			defer c.Close()
			got := c.found(300, 0, 100)
			if len(got) < 100-len(whole)/(300+entryHeaderSize) || len(got) == 100 {
				t.Fatalf("%s at %d: %d entries are found", name, at, len(got))
			}
			c.found(300, 0, 100)
			if n := c.logs.FilterMessageSnippet("cannot be read").Len(); n > 1 {
				t.Fatalf("%s at %d: %d complaints", name, at, n)
			}
		}
		for at := 0; at < len(whole); at += 1 + at%61 {
			flipped := bytes.Clone(whole)
			flipped[at] ^= 1 << (at % 8)
			damage("flipped", at, flipped)
		}
		for at := 0; at < len(whole); at += 97 {
			damage("cut", at, whole[:at])
		}
		damage("emptied", 0, make([]byte, len(whole)))
	})
}

// Bytes that change under an open file: each lost entry is a miss, the first is reported.
func TestDamageWhileOpen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mem := vfs.NewMem()
		c := openTest(t, mem, nil)
		defer c.Close()
		c.put(300, seq(0, 50)...)
		data, err := mem.UnsafeGetFileDataBuffer(slabFiles(mem, "data/cache/a")[0])
		if err != nil {
			t.Fatal(err)
		}
		clear(data[slabHeaderSize:])
		if got := c.found(300, 0, 50); len(got) != 0 {
			t.Errorf("%v are found", got)
		}
		if n := c.logs.FilterMessageSnippet("cannot be read").Len(); n != 1 {
			t.Errorf("%d complaints", n)
		}
		if m := c.Metrics(); m.Errors != 50 || m.Entries != 0 {
			t.Errorf("%+v", m)
		}
		c.put(300, 7)
		c.Reject(testKey(7), errors.New("not what it should be"))
		if got := c.found(300, 0, 50); len(got) != 0 {
			t.Errorf("after Reject %v are found", got)
		}
	})
}

// When others fill the disk, the cache gives its room up, though it keeps its own limit,
// and goes on when there is room again.
func TestLowDisk(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const least = 1 << 20
		mem := vfs.NewMem()
		room := func(bytes uint64) {
			mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: bytes, TotalBytes: 1 << 40})
			time.Sleep(lookInterval + time.Millisecond)
		}
		room(1 << 30)
		c := openTest(t, mem, func(o *Options) { o.MinFreeBytes = least })
		c.put(1000, seq(0, 150)...)
		before := diskBytes(mem, "data/cache")
		room(least - 40<<10) // two slabs short
		c.settle()
		if after := diskBytes(mem, "data/cache"); after > before-40<<10 || after == 0 {
			t.Errorf("of %d bytes %d are left", before, after)
		}
		if got := c.found(1000, 0, 150); len(got) == 0 || got[len(got)-1] != 149 {
			t.Errorf("%v are found", got)
		}
		c.put(1000, 200)
		if c.Has(testKey(200)) || c.Metrics().Dropped != 1 {
			t.Error("the cache wrote to a full disk")
		}
		room(1)
		c.settle()
		if n := diskBytes(mem, "data/cache"); n != 0 {
			t.Errorf("%d bytes are kept on a full disk", n)
		}
		c.Close()
		c = openTest(t, mem, func(o *Options) { o.MinFreeBytes = least })
		defer c.Close()
		c.put(1000, 200)
		room(1 << 30)
		c.put(1000, 201)
		if c.Has(testKey(200)) || !c.Has(testKey(201)) {
			t.Error("opened on a full disk, the cache does not go on when there is room")
		}
	})
}

// A disk that fails writes makes the cache pause, report it once, and give room back if
// that is what lacks. Reads of what is there go on.
func TestFailingWrites(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO, syscall.EROFS} {
		t.Run(cause.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var fail atomic.Bool
				mem := vfs.NewMem()
				c := openTest(t, mem, func(o *Options) {
					o.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
						if fail.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove {
							return cause
						}
						return nil
					}))
				})
				defer c.Close()
				c.put(1000, seq(0, 100)...)
				fail.Store(true)
				for n := range 20 {
					c.put(1000, 200+n)
				}
				if m := c.Metrics(); m.Errors != 1 || m.Dropped != 20 {
					t.Errorf("%+v", m)
				}
				got := c.found(1000, 0, 100)
				if want := 100; cause != syscall.ENOSPC && len(got) != want || cause == syscall.ENOSPC && (len(got) == want || len(got) < 50) {
					t.Errorf("%d entries are found", len(got))
				}
				for range 10 { // the pauses get longer
					time.Sleep(leastBackoff)
					c.put(1000, 300)
				}
				if m := c.Metrics(); m.Errors > 4 || m.Errors < 3 || c.logs.FilterLevelExact(zapcore.WarnLevel).Len() != 1 {
					t.Errorf("%+v, %v", m, c.logs.All())
				}
				fail.Store(false)
				time.Sleep(mostBackoff)
				c.put(1000, 301)
				if !c.Has(testKey(301)) || c.logs.FilterMessageSnippet("can write again").Len() != 1 {
					t.Error("the cache does not go on when the disk works again")
				}
			})
		})
	}
}

// A file that cannot be removed keeps counting, so the limit holds.
func TestFilesThatStay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var fail atomic.Bool
		mem := vfs.NewMem()
		c := openTest(t, mem, func(o *Options) {
			o.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if fail.Load() && op.Kind == errorfs.OpRemove {
					return syscall.EIO
				}
				return nil
			}))
		})
		defer c.Close()
		fail.Store(true)
		for n := range 1000 {
			c.put(1000, n)
			if n%20 == 0 {
				time.Sleep(10 * time.Second)
			}
		}
		fail.Store(false)
		time.Sleep(2 * mostBackoff)
		c.put(1000, 2000)
		if !c.Has(testKey(2000)) {
			t.Error("the cache does not go on when files can be removed again")
		}
	})
}

// A disk that hangs holds neither Evicted nor Has nor hits of what is in the queue, and
// no more than the queue's bytes wait for it.
func TestHangingDisk(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		hang := make(chan struct{})
		var on atomic.Bool
		mem := vfs.NewMem()
		c := openTest(t, mem, func(o *Options) {
			o.Bytes = 1 << 30
			o.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if on.Load() && op.Kind == errorfs.OpFileWrite {
					<-hang
				}
				return nil
			}))
		})
		defer c.Close()
		on.Store(true)
		const size = 1 << 20
		for n := range 20 {
			c.Evicted(testKey(n), testData(n, size), true)
		}
		if got := c.found(size, 0, 20); !slices.Equal(got, seq(0, queueBytes/size)) {
			t.Errorf("while the disk hangs %v are found", got)
		}
		if m := c.Metrics(); m.Dropped != 20-queueBytes/size || m.WrittenBytes != 0 {
			t.Errorf("%+v", m)
		}
		close(hang)
		c.settle()
		if got := c.found(size, 0, 20); !slices.Equal(got, seq(0, queueBytes/size)) || c.Metrics().WrittenBytes == 0 {
			t.Errorf("after that %v are found", got)
		}
	})
}

// Two keys of one hash never get each other's bytes.
func TestCollision(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := openTest(t, vfs.NewMem(), nil)
		defer c.Close()
		c.put(100, 1)
		one, two := testKey(1), testKey(2)
		c.mu.Lock()
		c.mu.index[c.hash(&two)] = c.mu.index[c.hash(&one)]
		c.mu.Unlock()
		if got := c.found(100, 1, 3); !slices.Equal(got, []int{1}) {
			t.Errorf("%v are found", got)
		}
	})
}

// Random calls, faults of the disk, crashes and restarts: every hit has the right bytes,
// and the files keep within the limit.
func TestModel(t *testing.T) {
	for i := range 30 {
		seed := uint64(time.Now().UnixNano()) + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { runModel(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func runModel(t *testing.T, r *rand.Rand) {
	mem := vfs.NewCrashableMem()
	var rate atomic.Int64 // of operations that fail, per 1000
	faults := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if rate.Load() > rand.Int64N(1000) && op.Kind != errorfs.OpFileClose {
			return []error{syscall.EIO, syscall.ENOSPC}[rand.IntN(2)]
		}
		return nil
	})
	open := func() *testCache {
		return openTest(t, mem, func(o *Options) { o.FS = errorfs.Wrap(mem, faults) })
	}
	size := func(n int) int { return 1 + n*n%5000 }
	c := open()
	hits := 0
	for range 3000 {
		n := r.IntN(300)
		switch p := r.IntN(1000); {
		case p < 400:
			if data, ok := c.Get(testKey(n)); ok {
				if hits++; !bytes.Equal(data, testData(n, size(n))) {
					t.Fatalf("entry %d has wrong bytes", n)
				}
			}
		case p < 700:
			c.Evicted(testKey(n), testData(n, size(n)), r.IntN(2) == 0)
		case p < 900:
			c.Loaded(testKey(n), testData(n, size(n)))
		case p < 950:
			c.settle()
		case p < 960:
			c.Reject(testKey(n), errors.New("rejected"))
		case p < 970:
			time.Sleep(time.Duration(r.IntN(10_000)) * time.Millisecond)
		case p < 980:
			rate.Store([]int64{0, 0, 0, 20, 300}[r.IntN(5)])
		case p < 985:
			c.settle() // nobody else touches the files
			damageOne(mem, r)
		default:
			crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
			c.Close()
			if r.IntN(2) == 0 {
				mem = crashed
			}
			c = open()
		}
	}
	c.Close()
	if hits == 0 {
		t.Error("nothing was ever found")
	}
}

// damageOne changes a byte of some file.
func damageOne(mem *vfs.MemFS, r *rand.Rand) {
	files := slabFiles(mem, "data/cache/a")
	if len(files) == 0 {
		return
	}
	// Through the file system, whose locks order it before what the cache reads.
	file, err := mem.OpenReadWrite(files[r.IntN(len(files))], vfs.WriteCategoryUnspecified)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return
	}
	at, b := r.Int64N(info.Size()), make([]byte, 1)
	if _, err := file.ReadAt(b, at); err != nil {
		panic(err) // a file in memory
	}
	b[0] ^= byte(1 + r.IntN(255))
	if _, err := file.WriteAt(b, at); err != nil {
		panic(err)
	}
}

// Calls from many goroutines, for the race detector.
func TestConcurrency(t *testing.T) {
	c := Open(Options{FS: vfs.NewMem(), Dir: "cache", Identity: "a", Bytes: testLimit, Logger: zap.NewNop()})
	done := make(chan int)
	for g := range 8 {
		go func() {
			r, hits := rand.New(rand.NewPCG(uint64(g), 3)), 0
			for range 5000 {
				n := r.IntN(400)
				c.Evicted(testKey(n), testData(n, 1000), true)
				if data, ok := c.Get(testKey(r.IntN(400))); ok {
					hits += len(data) / 1000
				}
			}
			done <- hits
		}()
	}
	sum := 0
	for range 8 {
		sum += <-done
	}
	c.Close()
	if m := c.Metrics(); sum == 0 || m.Hits != int64(sum) || m.Errors != 0 {
		t.Errorf("%d hits, %+v", sum, m)
	}
}

// FuzzSlab opens a cache on arbitrary bytes: it never fails, and finds nothing wrong.
func FuzzSlab(f *testing.F) {
	f.Add([]byte{})
	whole := appendSlabHeader(nil)
	for n := range 3 {
		key := testKey(n)
		whole = appendEntry(whole, &key, testData(n, 50))
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-10])
	f.Add(append(bytes.Clone(whole), strings.Repeat("x", 100)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		inBubble(t, func(t *testing.T) {
			mem := vfs.NewMem()
			writeFile(t, mem, "data/cache/a/"+slabName(1), data)
			c := Open(Options{FS: mem, Dir: "data/cache", Identity: "a", Bytes: testLimit, Logger: zap.NewNop()})
			synctest.Wait()
			for n := range 3 {
				if got, ok := c.Get(testKey(n)); ok && !bytes.Equal(got, testData(n, 50)) {
					t.Errorf("entry %d has wrong bytes", n)
				}
			}
			c.Evicted(testKey(9), testData(9, 50), true)
			synctest.Wait()
			if got, ok := c.Get(testKey(9)); !ok || !bytes.Equal(got, testData(9, 50)) {
				t.Error("a new entry is not found")
			}
			c.Close()
		})
	})
}

func copyFile(t testing.TB, from, to *vfs.MemFS, name string) {
	t.Helper()
	data, err := from.UnsafeGetFileDataBuffer(name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, to, name, data)
}

func writeFile(t testing.TB, fs vfs.FS, name string, data []byte) {
	t.Helper()
	if err := fs.MkdirAll(path.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(bytes.Clone(data)); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
