package objstore

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback begins to bring a part of a file to the disk, after the part
// before it has arrived there. It only spreads the work of the sync that follows,
// which reports all errors.
func startWriteback(f *os.File, off, n int64) {
	if off > 0 {
		before := max(off-n, 0)
		_ = unix.SyncFileRange(int(f.Fd()), before, off-before, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	}
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
