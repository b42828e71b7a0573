package streamstore

import (
	"testing"

	"github.com/brookletmq/brooklet/objstore"
)

// The block cache keeps what was read also while the memtables are large, which Pebble takes off its size: a row that is
// looked at again costs no read of a table.
func TestBlockCacheBesideFullMemtables(t *testing.T) {
	opts := testOptions(objstore.NewMemory())
	opts.TailCacheBytes = 1 << 20
	s := openTest(t, opts)
	id := mustCreate(t, s, "users/1")
	mustWait(t, mustAppend(t, s, id, simpleBatch("x")))
	mustFlush(t, s)
	if err := s.db.Flush(); err != nil { // the rows are in a table now
		t.Fatal(err)
	}
	payload := string(make([]byte, 1<<20))
	for appended := 0; s.db.Metrics().MemTable.Size < memTableBytes; appended++ {
		if appended == 1024 {
			t.Fatalf("the memtables have %d bytes after a GiB of appends, %d expected", s.db.Metrics().MemTable.Size, memTableBytes)
		}
		mustWait(t, mustAppend(t, s, id, simpleBatch(payload)))
	}
	look := func() (misses int64) {
		before := s.db.Metrics().BlockCache.Misses
		if _, ok, err := s.getRow(streamKey(id)); !ok || err != nil {
			t.Fatalf("stream row: %v, %v", ok, err)
		}
		return s.db.Metrics().BlockCache.Misses - before
	}
	look()
	if misses := look(); misses != 0 {
		t.Errorf("looking at a row again read %d blocks of tables", misses)
	}
}
