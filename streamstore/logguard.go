package streamstore

import (
	"fmt"
	"path"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logGuard is the file system below the database. An error of the database's write-ahead
// log stops the store here, and the goroutine that met it stays here for ever: above,
// Pebble would panic, in places with its mutex unlocked from which nothing can recover,
// and the broker would end with a trace in place of a reason. As with errors that Pebble
// calls fatal (see pebbleLogger), nothing is acknowledged any more.
//
// While the database is being opened or closed errors pass: Pebble returns them then.
type logGuard struct {
	vfs.FS
	store  *Store
	active atomic.Bool
	stuck  chan struct{} // closed when a goroutine stays here
	once   sync.Once
}

func newLogGuard(s *Store) *logGuard {
	return &logGuard{FS: s.opts.FS, store: s, stuck: make(chan struct{})}
}

func (g *logGuard) Unwrap() vfs.FS { return g.FS }

func isLog(name string) bool { return path.Ext(name) == ".log" }

// stop does not return if err is one that stops the store.
func (g *logGuard) stop(what, name string, err error) {
	if err == nil || !g.active.Load() || !isLog(name) {
		return
	}
	g.store.fail(fmt.Errorf("%w: %s %s: %w", ErrFailed, what, name, err))
	g.once.Do(func() { close(g.stuck) })
	select {}
}

func (g *logGuard) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := g.FS.Create(name, category)
	g.stop("creating", name, err)
	return g.file(name, file), err
}

func (g *logGuard) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := g.FS.ReuseForWrite(oldname, newname, category)
	g.stop("creating", newname, err)
	return g.file(newname, file), err
}

func (g *logGuard) file(name string, file vfs.File) vfs.File {
	if file == nil || !isLog(name) {
		return file
	}
	return guardedLog{file, g, name}
}

// guardedLog is a file of the write-ahead log.
type guardedLog struct {
	vfs.File
	guard *logGuard
	name  string
}

func (f guardedLog) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.guard.stop("writing to", f.name, err)
	return n, err
}

func (f guardedLog) Sync() error {
	err := f.File.Sync()
	f.guard.stop("syncing", f.name, err)
	return err
}

func (f guardedLog) SyncData() error {
	err := f.File.SyncData()
	f.guard.stop("syncing", f.name, err)
	return err
}

func (f guardedLog) SyncTo(length int64) (fullSync bool, err error) {
	fullSync, err = f.File.SyncTo(length)
	f.guard.stop("syncing", f.name, err)
	return fullSync, err
}

func (f guardedLog) Close() error {
	err := f.File.Close()
	f.guard.stop("closing", f.name, err)
	return err
}
