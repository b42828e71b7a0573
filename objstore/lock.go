package objstore

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrLocked says that another process of this machine holds a lock.
var ErrLocked = errors.New("in use by another process")

// locker is a bucket that processes of one machine can lock parts of.
type locker interface {
	lock(name string) (io.Closer, error)
}

// Lock takes the lock called name of a bucket that is a folder of this machine, and
// holds it until the result is closed or the process ends. ErrLocked: another
// process holds it. Buckets of other kinds have no locks, for them it does nothing.
//
// It is for writers that acknowledge more than what is in the bucket, and so would
// learn too late from it that there is another one.
func Lock(b Bucket, name string) (io.Closer, error) {
	if l, ok := b.(locker); ok {
		return l.lock(name)
	}
	return noLock{}, nil
}

type noLock struct{}

func (noLock) Close() error { return nil }

func (g *guard) lock(name string) (io.Closer, error) { return Lock(g.Bucket, name) }

func (p *prefixed) lock(name string) (io.Closer, error) { return Lock(p.Bucket, p.prefix+name) }

const lockSuffix = ".lock"

// lock locks a file in the folder of temporary files, which removeStale leaves
// alone. The kernel drops the lock with the process.
func (f *fsBucket) lock(name string) (io.Closer, error) {
	path := filepath.Join(f.root, tempDir, url.PathEscape(name)+lockSuffix)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(file, 64))
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is locked by process %s", ErrLocked, f.Location(), strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// Only to be named in the message above.
	if err := file.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(file, os.Getpid())
	}
	return file, nil
}
