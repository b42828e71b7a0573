package streamstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/brookletmq/brooklet/objstore"
)

// fullDisk is a disk that takes a number of writes and then is full.
func fullDisk(fs vfs.FS, room *atomic.Int64) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpCreate, errorfs.OpFilePreallocate:
			if room.Add(-1) < 0 {
				return syscall.ENOSPC
			}
		}
		return nil
	}))
}

// The disk is full at any moment, whatever is being written then. The store stops, with
// an error that names the data directory; Pebble's panics do not get out. What was
// acknowledged is there when the disk has room again.
func TestFullDiskAtAnyMoment(t *testing.T) {
	for _, durability := range []Durability{Local, Remote} {
		t.Run(durability.String(), func(t *testing.T) {
			for room := int64(0); room < 150; room += 7 {
				fullAfter(t, durability, room)
			}
		})
	}
}

func fullAfter(t *testing.T, durability Durability, writes int64) {
	t.Helper()
	disk, bucket := vfs.NewMem(), objstore.NewMemory()
	var room atomic.Int64
	room.Store(writes)
	opts := testOptions(bucket)
	opts.FS, opts.Durability, opts.MinFreeBytes = fullDisk(disk, &room), durability, -1
	want := make(written)
	stopped := fillStore(t, opts, want)
	switch {
	case stopped == nil && durability == Local:
		t.Fatalf("full after %d writes: the store goes on", writes)
	case stopped == nil: // what is in the bucket does not need the disk
	case !strings.Contains(stopped.Error(), "data") || !errors.Is(stopped, ErrFailed) && !errors.Is(stopped, syscall.ENOSPC):
		t.Errorf("full after %d writes: %v", writes, stopped)
	}
	opts.FS = copyDisk(t, disk)
	s, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatalf("full after %d writes, opening it with room again: %v", writes, err)
	}
	want.verify(t, s)
	mustClose(t, s)
}

// fillStore appends to a store until it stops, and returns why.
func fillStore(t *testing.T, opts Options, w written) error {
	t.Helper()
	s, err := Open(context.Background(), opts)
	if err != nil {
		return err
	}
	defer s.Close() // it has failed, or the test has
	id, err := s.Ensure(context.Background(), "s", DefaultSettings())
	for i := 0; i < 200 && err == nil; i++ {
		payload := fmt.Sprint(i)
		var a Appended
		a, err = s.Append(context.Background(), AppendRequest{Stream: id, Batch: simpleBatch(payload), Expected: AnyOffset, Ack: AckDurable})
		if err == nil && (i%5 == 4 || opts.Durability == Remote) {
			err = s.Flush(context.Background())
		}
		if err == nil {
			err = a.Wait(context.Background())
		}
		if err == nil {
			w["s"] = append(w["s"], payload)
		}
	}
	if err != nil && s.Err() != nil {
		return s.Err()
	}
	return err
}
