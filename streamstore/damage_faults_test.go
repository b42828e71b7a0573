package streamstore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

var (
	damageSeed  = flag.Uint64("damage.seed", 0, "seed of the damage tests; 0 draws one")
	damageFlips = flag.Int("damage.flips", 40, "damaged bytes per file of the data directory")
)

func damageRand(t *testing.T) *rand.Rand {
	seed := *damageSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with: go test ./streamstore -run %s -damage.seed=%d", t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// written is what streams have been given and what was acknowledged.
type written map[string][]string

// verify holds a store to what was acknowledged: each record is there and right, or reading it is an error that names
// what is damaged. It returns how many records could not be read.
func (w written) verify(t *testing.T, s *Store) (unreadable int) {
	t.Helper()
	for name, want := range w {
		id, err := s.Lookup(name)
		if err != nil {
			unreadable += w.refused(t, name, len(want), err)
			continue
		}
		offsets, err := s.Offsets(id)
		if err != nil {
			unreadable += w.refused(t, name, len(want), err)
			continue
		}
		if offsets.Start != 0 || offsets.HighWatermark < int64(len(want)) {
			t.Errorf("%s: offsets %+v, but %d records were acknowledged", name, offsets, len(want))
		}
		for offset := range int64(len(want)) {
			r, err := s.Read(context.Background(), id, offset, ReadOptions{MaxBytes: 1, MinOneBatch: true})
			if err != nil {
				unreadable += w.refused(t, name, 1, err)
				continue
			}
			if len(r.Chunks) != 1 {
				t.Errorf("%s: %d batches at offset %d", name, len(r.Chunks), offset)
				continue
			}
			batch := recordBatch(r.Chunks[0])
			if got := string(batch[batchHeaderSize:]); got != want[offset] || batch.baseOffset() != offset || !batch.checksumOK() {
				t.Errorf("%s: %q at offset %d (%d asked for), want %q", name, got, batch.baseOffset(), offset, want[offset])
			}
		}
	}
	return unreadable
}

func (written) refused(t *testing.T, name string, n int, err error) int {
	t.Helper()
	if !strings.Contains(err.Error(), "data/db") && !strings.Contains(err.Error(), logDir(0)) {
		t.Errorf("%s: %q does not name a file or an object", name, err)
	}
	return n
}

// damagedDisk writes to a data directory until every kind of file in it has content: records that are in the bucket,
// records that are not yet, in tables and in the database's log.
func damagedDisk(t *testing.T, bucket objstore.Bucket) (*vfs.MemFS, written) {
	t.Helper()
	w := make(written)
	p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
	write := func(name string, n int) {
		id := mustCreate(t, p.Store, name)
		for i := range n {
			payload := fmt.Sprintf("%s %d %s", name, i, strings.Repeat("x", 100))
			mustWait(t, mustAppend(t, p.Store, id, simpleBatch(payload)))
			w[name] = append(w[name], payload)
		}
	}
	table := func() {
		if err := p.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	write("in the bucket", 20)
	mustFlush(t, p.Store)
	table()
	write("tail in a table", 20)
	table()
	write("tail in the log", 20)
	p.link.dead.Store(true)
	return copyDisk(t, p.fs), w
}

// copyDisk copies a disk, so that it can be damaged.
func copyDisk(t *testing.T, disk *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	copied := vfs.NewMem()
	if ok, err := vfs.Clone(disk, copied, "data", "data"); err != nil || !ok {
		t.Fatalf("copying the disk: %v", err)
	}
	return copied
}

func readFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, fs vfs.FS, name string, data []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A byte changes somewhere in the local database. The store must not open as if records had never been, nor serve other
// ones: it opens with all that was acknowledged, or says which file is damaged and what can be done.
func TestDamagedDisk(t *testing.T) {
	rng := damageRand(t)
	bucket := objstore.NewMemory()
	disk, want := damagedDisk(t, bucket)
	names, err := disk.List("data/db")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			file := path.Join("data/db", name)
			content := readFile(t, disk, file)
			opened, refused, unreadable := 0, 0, 0
			end := len(content)
			if strings.HasPrefix(name, "MANIFEST") {
				end = lastRecord(content) // see checkManifest
			}
			for range min(*damageFlips, end) {
				at, bit := rng.IntN(end), byte(1)<<rng.IntN(8)
				fs := copyDisk(t, disk)
				damaged := slices.Clone(content)
				damaged[at] ^= bit
				writeFile(t, fs, file, damaged)
				opts := testOptions(copyBucket(t, bucket))
				opts.FS = fs
				s, err := Open(context.Background(), opts)
				if err != nil {
					refused++
					checkRefusal(t, err, at)
					continue
				}
				opened++
				unreadable += want.verify(t, s)
				if err := s.Close(); err != nil && !errors.Is(err, ErrFailed) {
					t.Logf("byte %d: Close: %v", at, err)
				}
				if t.Failed() {
					t.Fatalf("after bit %#x of byte %d of %d", bit, at, len(content))
				}
			}
			t.Logf("%d bytes: opened %d times (%d records unreadable), refused %d times", len(content), opened, unreadable, refused)
		})
	}
}

// lastRecord is where the last chunk of a MANIFEST begins.
func lastRecord(content []byte) (at int) {
	for next := 0; next < len(content); next += chunkLength(content, next) {
		at = next
	}
	return at
}

// checkRefusal wants an error that says where the damage is and what to do.
func checkRefusal(t *testing.T, err error, at int) {
	t.Helper()
	if !strings.Contains(err.Error(), "data/db") || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("byte %d: %q does not say where the damage is and what to do", at, err)
	}
}

// copyBucket copies a bucket, so that a store may write to it.
func copyBucket(t *testing.T, bucket *objstore.Memory) *objstore.Memory {
	t.Helper()
	copied := objstore.NewMemory()
	for _, name := range bucket.Names() {
		data, err := bucket.Get(context.Background(), name)
		if err == nil {
			err = copied.Create(context.Background(), name, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return copied
}

// A byte changes somewhere in an object of the bucket, or the object is gone. A store
// that starts on an empty disk refuses to, naming the object, or serves what is right
// and an error that names the object for the rest; so does one that has followed the log
// already.
func TestDamagedBucket(t *testing.T) {
	synctest.Test(t, damageBucket) // what is damaged is read three times, with pauses
}

func damageBucket(t *testing.T) {
	rng := damageRand(t)
	bucket := objstore.NewMemory()
	w := make(written)
	p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
	for round := range 4 {
		for s := range 3 {
			name := fmt.Sprint("stream ", s)
			id := mustCreate(t, p.Store, name)
			for i := range 5 {
				payload := fmt.Sprintf("%s %d %d %s", name, round, i, strings.Repeat("x", rng.IntN(100)))
				mustAppend(t, p.Store, id, simpleBatch(payload))
				w[name] = append(w[name], payload)
			}
		}
		flushOne(t, p.Store) // uploads of several commits at a time may leave a hole, and that is no damage
	}
	p.stop()
	names := slices.DeleteFunc(bucket.Names(), func(name string) bool { return !strings.HasPrefix(name, logDir(0)) })
	for i, name := range names {
		content, err := bucket.Get(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		damages := map[string]func(b *objstore.Memory) error{
			"cut":      func(b *objstore.Memory) error { return b.Truncate(name, rng.Int64N(int64(len(content)))) },
			"swapped":  func(b *objstore.Memory) error { return replaceObject(b, name, names[(i+1)%len(names)]) },
			"emptied":  func(b *objstore.Memory) error { return b.Truncate(name, 0) },
			"replaced": func(b *objstore.Memory) error { return replaceObject(b, name, "") },
		}
		if i < len(names)-1 { // without the last one the log is a shorter one
			damages["gone"] = func(b *objstore.Memory) error { return b.Delete(context.Background(), name) }
		}
		for range *damageFlips {
			at := rng.Int64N(int64(len(content)))
			damages[fmt.Sprint("byte ", at)] = func(b *objstore.Memory) error { return b.Corrupt(name, at) }
		}
		for what, do := range damages {
			for disk, fs := range map[string]*vfs.MemFS{"empty": vfs.NewMem(), "used": copyDisk(t, p.fs)} {
				damaged := copyBucket(t, bucket)
				if err := do(damaged); err != nil {
					t.Fatal(err)
				}
				w.holdOpened(t, damaged, fs, name)
				if t.Failed() {
					t.Fatalf("%s: %s, on a disk that is %s", name, what, disk)
				}
			}
		}
	}
}

// holdOpened opens a store on a bucket with a damaged object.
func (w written) holdOpened(t *testing.T, bucket objstore.Bucket, fs *vfs.MemFS, name string) {
	t.Helper()
	opts := testOptions(bucket)
	opts.FS, opts.Durability = fs, Remote
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Open(ctx, opts)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("Open: %v, want an error that says that %s is damaged", err, name)
		}
		return
	}
	w.verify(t, s)
	mustClose(t, s)
}

// replaceObject puts a copy of another object in the place of one, or other bytes.
func replaceObject(b *objstore.Memory, name, other string) error {
	data := []byte(strings.Repeat("something else ", 30))
	if other != "" {
		var err error
		if data, err = b.Get(context.Background(), other); err != nil {
			return err
		}
	}
	if err := b.Delete(context.Background(), name); err != nil {
		return err
	}
	return b.Create(context.Background(), name, data)
}
