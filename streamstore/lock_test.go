package streamstore

import (
	"context"
	"errors"
	"testing"

	"github.com/brookletmq/brooklet/objstore"
)

// Two stores on one bucket folder: with local durability the second is refused,
// because the first would go on acknowledging until its next flush.
func TestBucketFolderIsLockedForLocalDurability(t *testing.T) {
	bucket, err := objstore.Open(context.Background(), objstore.Options{URL: "file://" + t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	first := mustOpen(t, testOptions(bucket))
	if _, err := Open(context.Background(), testOptions(bucket)); !errors.Is(err, objstore.ErrLocked) {
		t.Fatalf("a second local store: %v, want ErrLocked", err)
	}
	id := mustCreate(t, first, "a")
	mustWait(t, mustAppend(t, first, id, simpleBatch("still the owner")))
	mustFlush(t, first)
	mustClose(t, first)
	mustClose(t, mustOpen(t, testOptions(bucket)))
}
