package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// tempDir is the folder, directly in the root, for files that are being written.
	// Objects cannot be in it. It is on the file system of the root, so that a file
	// in it can be linked to its name.
	tempDir = ".tmp"
	// staleTemp is the age of a temporary file whose writer must be dead.
	staleTemp = time.Hour
)

// fsBucket keeps objects as files below a folder.
//
// An object comes into being by link(2) of a complete, synced temporary file, which
// is atomic and fails when the name is taken; rename(2) would replace the object,
// and O_EXCL would show it while it is being written. A power failure at any point
// leaves the old state, the new state, or a temporary file, which nobody lists and
// the next open removes once it is old enough.
//
// Requests to a local file system cannot be interrupted; contexts are looked at
// before each.
type fsBucket struct {
	root string
	// durable holds the directories whose entries in all their parents are synced.
	durable sync.Map
	// broken holds the error of the first directory sync that failed. The kernel may
	// have dropped what it could not write and report success from then on, so no
	// create is acknowledged any more.
	broken atomic.Pointer[error]
	// Seams for tests.
	write func(*os.File, []byte) error
	fsync func(*os.File) error
}

// openFilesystem returns the bucket in the folder root, made if missing.
func openFilesystem(root string, log *zap.Logger) (*fsBucket, error) {
	f := newFilesystem(root)
	if err := f.ensureDir(filepath.Join(f.root, tempDir)); err != nil {
		return nil, fmt.Errorf("open bucket folder (set --bucket to one that can be written): %w", err)
	}
	if err := f.removeStale(log); err != nil {
		return nil, fmt.Errorf("clean bucket folder: %w", err)
	}
	return f, nil
}

// openExistingFilesystem returns the bucket in the folder root, which must be there. It
// changes nothing.
func openExistingFilesystem(root string) (*fsBucket, error) {
	info, err := os.Stat(root)
	switch {
	case isAbsent(err):
		return nil, fmt.Errorf("there is no folder %s", root)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is not a folder", root)
	}
	return newFilesystem(root), nil
}

func newFilesystem(root string) *fsBucket {
	return &fsBucket{root: filepath.Clean(root), write: writeAll, fsync: (*os.File).Sync}
}

// writeChunk is how much of an object is written before the system is asked to
// bring it to the disk. Left to itself it collects the whole object and brings it
// all at once with the final sync, and whatever else waits for that disk, such as
// the sync of a write-ahead log, waits for all of it.
const writeChunk = 1 << 20

func writeAll(f *os.File, data []byte) error {
	for at := 0; at < len(data); at += writeChunk {
		if _, err := f.Write(data[at:min(at+writeChunk, len(data))]); err != nil {
			return err
		}
		startWriteback(f, int64(at), writeChunk)
	}
	return nil
}

// removeStale removes the temporary files of writers that died.
func (f *fsBucket) removeStale(log *zap.Logger) error {
	dir := filepath.Join(f.root, tempDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), lockSuffix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // its writer, alive after all, was done
		}
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || time.Since(info.ModTime()) < staleTemp {
			continue
		}
		log.Info("removing an unfinished upload", zap.String("file", e.Name()), zap.Int64("bytes", info.Size()))
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// path is the file of an object.
func (f *fsBucket) path(name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	if name == tempDir || strings.HasPrefix(name, tempDir+"/") {
		return "", fmt.Errorf("%w: %s is for unfinished uploads", ErrName, tempDir)
	}
	return filepath.Join(f.root, filepath.FromSlash(name)), nil
}

func (f *fsBucket) Create(ctx context.Context, name string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := f.path(name)
	if err != nil {
		return err
	}
	if err := f.usable(); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return f.exists(path) // spares writing the data; link decides otherwise
	}
	err = f.createFile(path, data)
	if errors.Is(err, fs.ErrNotExist) {
		f.durable.Clear() // somebody removed a folder; the next attempt makes it again
	}
	return fileError(err)
}

func (f *fsBucket) createFile(path string, data []byte) error {
	temp, err := f.writeTemp(data)
	if err != nil {
		return err
	}
	// A temporary file left behind by a failing Remove is removed by a later open.
	defer os.Remove(temp)
	return f.publish(temp, path)
}

func (f *fsBucket) usable() error {
	if broken := f.broken.Load(); broken != nil {
		return fmt.Errorf("%w: no writes after a failed sync, check the disk and restart: %w", ErrRejected, *broken)
	}
	return nil
}

// writeTemp writes a complete and synced temporary file.
func (f *fsBucket) writeTemp(data []byte) (name string, err error) {
	dir := filepath.Join(f.root, tempDir)
	if err := f.ensureDir(dir); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(dir, "upload-*")
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := f.write(file, data); err != nil {
		return "", err
	}
	// A failure here concerns this file alone, which is thrown away.
	if err := f.fsync(file); err != nil {
		return "", fmt.Errorf("sync %s: %w", file.Name(), err)
	}
	return file.Name(), nil
}

// publish gives the temporary file its name.
func (f *fsBucket) publish(temp, path string) error {
	dir := filepath.Dir(path)
	if err := f.ensureDir(dir); err != nil {
		return err
	}
	err := os.Link(temp, path)
	switch {
	case errors.Is(err, fs.ErrExist):
		return f.exists(path)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.ENOSYS):
		return fmt.Errorf("%w: the bucket folder must be on one file system that has hard links (ext4, xfs, ...): %w", ErrUnsupported, err)
	case err != nil:
		return err
	}
	return f.syncDir(dir)
}

// exists is the answer to a create of a name that is taken. Its writer may have died,
// or may be, between link and sync; the answer says that the object is durable, so
// it must be made so. Data is synced before it gets a name.
func (f *fsBucket) exists(path string) error {
	dir := filepath.Dir(path)
	if err := f.ensureDir(dir); err != nil {
		return fileError(err)
	}
	if err := f.syncDir(dir); err != nil {
		return fileError(err)
	}
	return fmt.Errorf("%w: %s", ErrExists, path)
}

// syncDir makes the entries of dir durable, or the bucket unusable.
func (f *fsBucket) syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := f.fsync(d); err != nil {
		err = fmt.Errorf("sync directory %s: %w", dir, err)
		f.broken.CompareAndSwap(nil, &err)
	}
	return f.usable()
}

// ensureDir makes dir and its parents, and syncs the entry of each. From the root
// down it syncs also what exists: who made it may not have come to the sync.
func (f *fsBucket) ensureDir(dir string) error {
	if _, ok := f.durable.Load(dir); ok {
		return nil
	}
	_, statErr := os.Stat(dir)
	parent := filepath.Dir(dir)
	ours := dir == f.root || strings.HasPrefix(dir, f.root+string(filepath.Separator))
	if parent == dir || statErr == nil && !ours {
		return nil
	}
	if err := f.ensureDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := f.syncDir(parent)
	if err != nil && !(dir == f.root && statErr == nil && errors.Is(err, fs.ErrPermission)) {
		return err // an existing root may be in a folder that is not for us to open
	}
	f.durable.Store(dir, struct{}{})
	return nil
}

// open opens the file of an object and returns its size.
func (f *fsBucket) open(ctx context.Context, name string) (*os.File, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	path, err := f.path(name)
	if err != nil {
		return nil, 0, err
	}
	file, err := os.Open(path)
	if isAbsent(err) {
		return nil, 0, fmt.Errorf("%w: %s", ErrNotFound, path)
	}
	if err != nil {
		return nil, 0, fileError(err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is not a file", ErrNotFound, path)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

func (f *fsBucket) Get(ctx context.Context, name string) ([]byte, error) {
	file, size, err := f.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readObject(file, size)
}

func (f *fsBucket) GetRange(ctx context.Context, name string, off, length int64) ([]byte, error) {
	file, size, err := f.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if off > size || length > size-off {
		return nil, shortObject(name, off, length, size)
	}
	data := make([]byte, length)
	if _, err := file.ReadAt(data, off); err != nil {
		if err == io.EOF {
			return nil, shortObject(name, off, length, size)
		}
		return nil, fileError(err)
	}
	return data, nil
}

func (f *fsBucket) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path := f.root
	if dir != "" {
		var err error
		if path, err = f.path(dir); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(path) // sorted by name
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return fileError(err)
	}
	for _, e := range entries {
		name := dirPrefix(dir) + e.Name()
		if name <= after || !e.Type().IsRegular() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return fileError(err)
		}
		if err := fn(ObjectInfo{Name: name, Size: info.Size()}); err != nil {
			return err
		}
	}
	return nil
}

// Delete leaves folders where they are: removing an empty one would race with a
// create in it.
func (f *fsBucket) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := f.path(name)
	if err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && info.IsDir() {
		return nil // no object; os.Remove would remove an empty folder
	}
	if err == nil {
		err = os.Remove(path)
	}
	if isAbsent(err) {
		return nil
	}
	return fileError(err)
}

func (f *fsBucket) Location() string { return "file://" + f.root }
func (f *fsBucket) Local() bool      { return true }
func (f *fsBucket) Close() error     { return nil }

// isAbsent reports whether err of an open or remove says that there is no such object.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// fileError puts an error of the operating system into the words of this package.
// The rest (a full disk, an I/O error) is passed on and tried again.
func fileError(err error) error {
	switch {
	case errors.Is(err, ErrUnsupported):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrName, err)
	}
	return err
}
