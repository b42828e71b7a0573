package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// automaticDiskCache is --disk-cache-bytes until the default is known.
	automaticDiskCache = -1
	// leastDiskCache: a smaller one is not worth its index. Zero is none at all.
	leastDiskCache = 64 * mib
	mostDiskCache  = 16 * 1024 * gib
	// The default is a tenth of the free space and never more than this.
	diskCacheShare      = 10
	mostDefaultDisk     = 8 * gib
	diskCacheLeastLimit = gib // of memory, for a default other than none
)

// parseDiskCache reads a size, or 0 for none.
func parseDiskCache(text string) (int64, error) {
	if n, err := parseBytes(text, 0, 0); err == nil {
		return n, nil
	}
	n, err := parseBytes(text, leastDiskCache, mostDiskCache)
	if err != nil {
		return 0, errors.New("write 0 for none, or a size from " + formatBytes(leastDiskCache) + " to " + formatBytes(mostDiskCache))
	}
	return n, nil
}

func diskCacheOption(field *int64) *option {
	o := newOption("disk-cache-bytes", field, "0", parseDiskCache, "`BYTES` of files in --data-dir that keep records of the bucket that are read again and again, 0 for none; the cache yields when the disk gets full. Its index takes 1/512 of that in memory")
	*field, o.text = automaticDiskCache, ""
	o.fallback = "with a remote bucket a tenth of the free space, at most " + formatBytes(mostDefaultDisk) + "; none with a folder, which the system caches in memory"
	return o
}

// completeDiskCache finds the default of --disk-cache-bytes. free tells the free bytes of the disk that holds a folder.
func (s *settings) completeDiskCache(limit memoryLimit, free func(dir string) (int64, error)) {
	if s.memory.diskCache != automaticDiskCache {
		return
	}
	s.memory.diskCache = 0
	if s.bucketLocal || limit.bytes < diskCacheLeastLimit {
		return
	}
	bytes, err := free(s.dataDir)
	if err != nil {
		return // a disk that cannot tell gets no cache unless it is asked for
	}
	// What an earlier start has filled counts as free, or each start would shrink the cache.
	share := (bytes + folderBytes(filepath.Join(s.dataDir, "cache"))) / diskCacheShare / mib * mib
	if share >= leastDiskCache {
		s.memory.diskCache = min(share, mostDefaultDisk)
	}
}

// freeBytes is the free space of the disk that holds dir, or will: it may not exist yet.
func freeBytes(dir string) (int64, error) {
	for {
		usage, err := vfs.Default.GetDiskUsage(dir)
		parent := filepath.Dir(dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return int64(min(usage.AvailBytes, 1<<62)), err
		}
		dir = parent
	}
}

// folderBytes is the size of all files below dir, as far as they can be seen.
func folderBytes(dir string) (sum int64) {
	_ = fs.WalkDir(os.DirFS(dir), ".", func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
