package objstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	open := func() Bucket {
		b, err := Open(context.Background(), Options{URL: "file://" + dir})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, second := open(), open()
	held, err := Lock(first, "shards/0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(second, "shards/0"); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock: %v, want ErrLocked", err)
	}
	other, err := Lock(second, "shards/1")
	if err != nil {
		t.Fatalf("lock of another name: %v", err)
	}
	defer other.Close()
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(second, "shards/0")
	if err != nil {
		t.Fatalf("lock after it was given back: %v", err)
	}
	again.Close()
}

// A lock file that is removed while it is held would let a second process make and
// lock a new one.
func TestLockFilesAreNotStale(t *testing.T) {
	dir := t.TempDir()
	b, err := openFilesystem(dir, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	held, err := Lock(b, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	old := time.Now().Add(-10 * staleTemp)
	if err := os.Chtimes(filepath.Join(dir, tempDir, "x"+lockSuffix), old, old); err != nil {
		t.Fatal(err)
	}
	second, err := openFilesystem(dir, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(second, "x"); !errors.Is(err, ErrLocked) {
		t.Fatalf("lock after another open cleaned up: %v, want ErrLocked", err)
	}
}

func TestLockOfOtherBuckets(t *testing.T) {
	for range 2 {
		if _, err := Lock(NewMemory(), "x"); err != nil {
			t.Fatal(err)
		}
	}
}
