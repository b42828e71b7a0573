package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brookletmq/brooklet/streamstore"
)

func TestDiskCacheDefault(t *testing.T) {
	dir := t.TempDir()
	used := t.TempDir()
	if err := os.MkdirAll(filepath.Join(used, "cache", "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(used, "cache", "a", "1.slab"), make([]byte, 10*mib), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		dir    string
		local  bool
		memory int64
		free   int64
		want   int64
	}{
		{"a tenth of the free space", nil, dir, false, 4 * gib, 20 * gib, 2 * gib},
		{"and of what the cache itself has", nil, used, false, 4 * gib, 20*gib - 10*mib, 2 * gib},
		{"at most", nil, dir, false, 4 * gib, 1024 * gib, 8 * gib},
		{"a full disk", nil, dir, false, 4 * gib, 600 * mib, 0},
		{"a disk that cannot tell", nil, dir, false, 4 * gib, -1, 0},
		{"a folder", nil, dir, true, 4 * gib, 20 * gib, 0},
		{"little memory", nil, dir, false, gib - 1, 20 * gib, 0},
		{"none", []string{"--disk-cache-bytes", "0"}, dir, false, 4 * gib, 20 * gib, 0},
		{"as set", []string{"--disk-cache-bytes", "64MiB"}, dir, true, 4 * gib, 20 * gib, 64 * mib},
	} {
		var s settings
		options := parse(t, &s, c.args...)
		if err := options[0].problem(); err != nil {
			t.Fatal(err)
		}
		s.dataDir, s.bucketLocal = c.dir, c.local
		s.completeDiskCache(memoryLimit{c.memory, "the test"}, func(string) (int64, error) {
			if c.free < 0 {
				return 0, errors.New("unknown")
			}
			return c.free, nil
		})
		if s.memory.diskCache != c.want {
			t.Errorf("%s: %s, want %s", c.name, formatBytes(s.memory.diskCache), formatBytes(c.want))
		}
	}
}

func TestDiskCacheThatIsTooSmall(t *testing.T) {
	var s settings
	err := s.complete(parse(t, &s, "--disk-cache-bytes", "1MiB"))
	if err == nil || !strings.Contains(err.Error(), "write 0 for none, or a size from 64MiB") {
		t.Errorf("%v", err)
	}
}

// The index of the disk cache takes its memory from the other caches.
func TestDiskCacheTakesMemory(t *testing.T) {
	limit := memoryLimit{gib, "the test"}
	without, with := memorySizes{}, memorySizes{diskCache: 32 * gib}
	if err := errors.Join(without.complete(limit, testFlushBytes), with.complete(limit, testFlushBytes)); err != nil {
		t.Fatal(err)
	}
	index := streamstore.DiskCacheMemory(32 * gib)
	if less := without.total() - with.total(); index < 64*mib || less < index*9/10 || less > index {
		t.Errorf("the caches get %s less for an index of %s", formatBytes(less), formatBytes(index))
	}
	huge := memorySizes{diskCache: mostDiskCache, tailCache: gib}
	if err := huge.complete(limit, testFlushBytes); err == nil {
		t.Error("an index that does not fit is accepted")
	}
}

func TestFreeBytes(t *testing.T) {
	if n, err := freeBytes(filepath.Join(t.TempDir(), "not", "there", "yet")); err != nil || n <= 0 {
		t.Errorf("%d, %v", n, err)
	}
}
