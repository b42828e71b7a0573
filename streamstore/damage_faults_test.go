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
