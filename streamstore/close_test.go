package streamstore

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// What is queued when the store is closed is still written to disk, whoever of
// appender and Close comes first.
func TestCloseWritesWhatIsQueued(t *testing.T) {
	bucket := objstore.NewMemory()
	fs := vfs.NewCrashableMem()
	var want int64
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			p := startProcess(t, bucket, fs, nil)
			id := mustCreate(t, p.Store, "s")
			synctest.Wait() // the appender waits
			for i := range 10 {
				if a := mustAppend(t, p.Store, id, simpleBatch(fmt.Sprint(i))); a.BaseOffset != want {
					t.Fatalf("round %d: append %d got offset %d, want %d: queued appends were lost when the store was closed", round, i, a.BaseOffset, want)
				}
				want++
			}
			p.stop()
		})
		if t.Failed() {
			return
		}
	}
}
