package objstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
)

func openTestFolder(t *testing.T, root string) *fsBucket {
	t.Helper()
	f, err := openFilesystem(root, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func files(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// syncLog records what is synced, in order, and can make syncs fail.
type syncLog struct {
	mu     sync.Mutex
	synced []string
	fail   func(path string, dir bool) error
}

func (l *syncLog) install(f *fsBucket) {
	f.fsync = func(file *os.File) error {
		info, err := file.Stat()
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		name := strings.TrimPrefix(file.Name(), f.root)
		if !info.IsDir() {
			name = "file"
		}
		l.synced = append(l.synced, name)
		if l.fail != nil {
			return l.fail(file.Name(), info.IsDir())
		}
		return file.Sync()
	}
}

// The data is synced before it has a name, then the directories that were made, from
// the top, then the one with the object.
func TestFilesystemSyncOrder(t *testing.T) {
	f := openTestFolder(t, t.TempDir())
	var l syncLog
	l.install(f)
	for _, name := range []string{"a/b/1", "a/b/2"} {
		if err := f.Create(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"file", "", "/a", "/a/b", "file", "/a/b"}
	if !slices.Equal(l.synced, want) {
		t.Errorf("synced %q, want %q", l.synced, want)
	}
}

// Directories may have been made by a process that died before it synced them.
func TestFilesystemSyncsFoundDirectories(t *testing.T) {
	root := t.TempDir()
	f := openTestFolder(t, root)
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "a/b/taken"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var l syncLog
	l.install(f)
	if err := f.Create(t.Context(), "a/b/taken", nil); !errors.Is(err, ErrExists) {
		t.Fatal(err)
	}
	if want := []string{"", "/a", "/a/b"}; !slices.Equal(l.synced, want) {
		t.Errorf("synced %q before saying that the object exists, want %q", l.synced, want)
	}
}

func TestFilesystemFileSyncFailure(t *testing.T) {
	root := t.TempDir()
	f := openTestFolder(t, root)
	l := syncLog{fail: func(_ string, dir bool) error {
		if dir {
			return nil
		}
		return syscall.EIO
	}}
	l.install(f)
	if err := f.Create(t.Context(), "a/x", []byte("x")); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Create: %v", err)
	}
	if got := files(t, root); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	l.fail = nil
	if err := f.Create(t.Context(), "a/x", []byte("x")); err != nil {
		t.Errorf("another file is written anew: %v", err)
	}
}

// After a failed sync of a directory a later success proves nothing.
func TestFilesystemDirectorySyncFailureSticks(t *testing.T) {
	f := openTestFolder(t, t.TempDir())
	if err := f.Create(t.Context(), "a/x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	l := syncLog{fail: func(_ string, dir bool) error {
		if dir {
			return syscall.EIO
		}
		return nil
	}}
	l.install(f)
	if err := f.Create(t.Context(), "a/y", []byte("y")); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Create: %v", err)
	}
	l.fail = nil
	for _, name := range []string{"a/y", "a/z"} {
		err := f.Create(t.Context(), name, []byte("y"))
		if !errors.Is(err, ErrRejected) || errors.Is(err, ErrExists) {
			t.Errorf("Create(%s) after a failed sync: %v", name, err)
		}
	}
	if data, err := f.Get(t.Context(), "a/x"); err != nil || string(data) != "x" {
		t.Errorf("reads go on: %q, %v", data, err)
	}
}

func TestFilesystemFullDisk(t *testing.T) {
	root := t.TempDir()
	f := openTestFolder(t, root)
	f.write = func(file *os.File, data []byte) error {
		if _, err := file.Write(data[:len(data)/2]); err != nil {
			return err
		}
		return syscall.ENOSPC
	}
	err := f.Create(t.Context(), "a/x", []byte("0123456789"))
	if !errors.Is(err, syscall.ENOSPC) || !Retriable(err) {
		t.Fatalf("Create on a full disk: %v", err)
	}
	if got := files(t, root); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	f.write = writeAll
	if err := f.Create(t.Context(), "a/x", []byte("0123456789")); err != nil {
		t.Errorf("once there is space: %v", err)
	}
}

// An object is not seen, under any name, while it is being written.
func TestFilesystemUnfinishedIsNotSeen(t *testing.T) {
	f := openTestFolder(t, t.TempDir())
	f.write = func(file *os.File, data []byte) error {
		if _, err := f.Get(t.Context(), "x"); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get while writing: %v", err)
		}
		for _, dir := range []string{"", "a"} {
			err := f.List(t.Context(), dir, "", func(o ObjectInfo) error {
				t.Errorf("listed while writing: %v", o)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		if err := f.List(t.Context(), tempDir, "", nil); !errors.Is(err, ErrName) {
			t.Errorf("List of unfinished uploads: %v", err)
		}
		return writeAll(file, data)
	}
	if err := f.Create(t.Context(), "x", []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestFilesystemRemovesStaleUploads(t *testing.T) {
	root := t.TempDir()
	openTestFolder(t, root)
	for name, age := range map[string]time.Duration{"upload-old": 2 * time.Hour, "upload-new": time.Minute} {
		path := filepath.Join(root, tempDir, name)
		if err := os.WriteFile(path, []byte("part"), 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	openTestFolder(t, root)
	if got := files(t, root); !slices.Equal(got, []string{tempDir + "/upload-new"}) {
		t.Errorf("left: %v", got)
	}
}

// Folders that somebody removed are made again.
func TestFilesystemRemovedFolders(t *testing.T) {
	root := t.TempDir()
	f := openTestFolder(t, root)
	if err := f.Create(t.Context(), "a/b/x", nil); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"a", tempDir} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
		err := f.Create(t.Context(), "a/b/"+dir, nil)
		if Retriable(err) { // it found out
			err = f.Create(t.Context(), "a/b/"+dir, nil)
		}
		if err != nil {
			t.Fatalf("after %s was removed: %v", dir, err)
		}
	}
}

func TestFilesystemRefusesReservedNames(t *testing.T) {
	f := openTestFolder(t, t.TempDir())
	for _, name := range []string{tempDir, tempDir + "/x"} {
		if err := f.Create(t.Context(), name, nil); !errors.Is(err, ErrName) {
			t.Errorf("Create(%s): %v", name, err)
		}
	}
}

func TestFilesystemUnusableRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFilesystem(filepath.Join(file, "below"), zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--bucket") {
		t.Errorf("open below a file: %v", err)
	}
}

// Who only looks at a folder neither makes it nor anything in it.
func TestFilesystemExisting(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"nosuch": "there is no folder", "file": "is not a folder", "file/below": "there is no folder"} {
		url := "file://" + filepath.Join(root, name)
		if _, err := Open(t.Context(), Options{URL: url, SkipProbe: true, Existing: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open %s: %v, want %q", name, err, want)
		}
	}
	b, err := Open(t.Context(), Options{URL: "file://" + root, SkipProbe: true, Existing: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
	if err := b.Create(t.Context(), "x", nil); err != nil {
		t.Errorf("create: %v", err)
	}
}
