package diskcache

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// writer is the goroutine that changes the files. Its fields are its own.
type writer struct {
	cache *Cache
	fs    vfs.FS
	log   *zap.Logger
	dir   string

	sealed []*slab // oldest first
	active *slab   // nil: none is begun
	doomed []*slab // could not be removed yet
	next   uint32  // number of the next slab

	buf    []byte // entries for the active slab that are not written yet
	staged []entry

	recovered bool      // knows what a former process left
	looked    time.Time // at the disk
	low       bool      // the disk has too little room
	paused    time.Time // no writes until then, after a failure
	backoff   time.Duration
}

const (
	carryShare   = 3       // quarters of a new slab that may be filled with what is carried over
	writeBytes   = 1 << 20 // written at a time, about
	syncBytes    = 1 << 20 // after which the system is asked to write to disk
	lookInterval = 2 * time.Second
	leastBackoff = time.Second
	mostBackoff  = 5 * time.Minute
)

func (w *writer) run() {
	w.recover()
	w.cache.counts.bytes.Store(w.bytes())
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-w.cache.closing:
			w.close()
			return
		case <-ticker.C:
			w.look()
		case <-w.cache.wake:
			items := w.cache.takeQueue()
			w.store(items)
			w.cache.settle(items)
		}
		w.cache.counts.bytes.Store(w.bytes())
	}
}

func (w *writer) close() {
	if w.active != nil {
		w.seal()
	}
	for _, s := range w.sealed {
		w.cache.retire(s)
		s.readers.Wait()
		_ = s.file.Close()
	}
}

// bytes is the size of all files at most.
func (w *writer) bytes() (sum int64) {
	for _, s := range slices.Concat(w.doomed, w.sealed) {
		sum += s.size
	}
	if w.active != nil {
		sum += w.active.size
	}
	return sum
}

// recover finds the slabs of a former process. Nothing is written before it has: files
// that it does not know could exceed the limit. The newest come first into the index:
// what is in several of them was carried over, and the newest is not the first to go.
func (w *writer) recover() {
	if err := errors.Join(w.removeOthers(), w.openSlabs()); err != nil {
		for _, s := range w.sealed {
			_ = s.file.Close()
		}
		w.sealed = nil
		w.fail("opening", w.dir, err)
		return
	}
	w.recovered = true
	for len(w.sealed) > 0 && w.over(0) {
		w.evict(w.sealed[0])
	}
	found := 0
	for i := len(w.sealed) - 1; i >= 0; i-- {
		select {
		case <-w.cache.closing:
			return
		default:
		}
		s, entries := w.sealed[i], []entry(nil)
		isSlab := s.scan(func(key *Key, offset, length uint32) {
			if len(entries) < w.cache.sizes.slabEntries {
				entries = append(entries, entry{w.cache.hash(key), offset, length})
			}
		})
		if found += len(entries); !isSlab || len(entries) == 0 || found > w.cache.sizes.entries-2*w.cache.sizes.slabEntries {
			w.evict(s)
			continue
		}
		w.cache.publish(s, entries, false)
	}
}

// removeOthers makes the folder, and removes what other identities left.
func (w *writer) removeOthers() error {
	if err := w.fs.MkdirAll(w.dir, 0o755); err != nil {
		return err
	}
	dir := w.cache.opts.Dir
	names, err := w.fs.List(dir)
	for _, name := range names {
		if name != w.cache.opts.Identity {
			err = errors.Join(err, w.fs.RemoveAll(w.fs.PathJoin(dir, name)))
		}
	}
	return err
}

// openSlabs opens the slabs that are there, and removes what is none.
func (w *writer) openSlabs() error {
	names, err := w.fs.List(w.dir)
	for _, name := range names {
		path := w.fs.PathJoin(w.dir, name)
		if number, ok := parseSlabName(name); ok {
			w.next = max(w.next, number+1)
			if s, err := w.openSlab(path, number); err == nil {
				w.sealed = append(w.sealed, s)
				continue
			}
		}
		err = errors.Join(err, w.fs.RemoveAll(path))
	}
	slices.SortFunc(w.sealed, func(a, b *slab) int { return cmp.Compare(a.number, b.number) })
	return err
}

func (w *writer) openSlab(path string, number uint32) (*slab, error) {
	file, err := w.fs.Open(path, vfs.RandomReadsOption)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Size() > mostSlab {
		err = errDamaged // no slab is that large
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &slab{number: number, path: path, file: file, size: info.Size()}, nil
}

// store writes items to disk as far as the disk allows it.
func (w *writer) store(items []*item) {
	for _, it := range items {
		if !w.ready() || !w.stage(&it.key, it.hash, it.data) && !(w.roll() && w.stage(&it.key, it.hash, it.data)) {
			w.cache.counts.dropped.Add(1)
			continue
		}
		if len(w.buf) >= writeBytes {
			w.flush()
		}
	}
	w.flush()
}

// ready reports whether the disk is to be written to.
func (w *writer) ready() bool {
	if time.Since(w.looked) >= lookInterval {
		w.look()
	}
	return w.recovered && !w.low && !time.Now().Before(w.paused)
}

// stage puts an entry into the buffer of the active slab, if there is room.
func (w *writer) stage(key *Key, hash uint64, data []byte) bool {
	s := w.active
	if s == nil {
		return false
	}
	at := s.size + int64(len(w.buf))
	if at+entryHeaderSize+int64(len(data)) > w.cache.sizes.slabBytes || len(s.entries)+len(w.staged) >= w.cache.sizes.slabEntries {
		return false
	}
	w.buf = appendEntry(w.buf, key, data)
	w.staged = append(w.staged, entry{hash, uint32(at), uint32(len(data))})
	return true
}

// flush writes the buffer to the active slab and makes its entries findable.
func (w *writer) flush() {
	s, staged := w.active, w.staged
	if s == nil || len(staged) == 0 {
		return
	}
	written := int64(len(w.buf))
	_, err := s.file.Write(w.buf) // may change the buffer
	s.size += written             // or less, if it failed
	w.buf, w.staged = w.buf[:0], staged[:0]
	if cap(w.buf) > 2*writeBytes {
		w.buf = nil
	}
	if err != nil {
		w.seal()
		w.cache.counts.dropped.Add(int64(len(staged)))
		w.fail("writing", s.path, err)
		return
	}
	w.cache.counts.writtenBytes.Add(written)
	w.cache.publish(s, staged, true)
	if w.backoff != 0 {
		w.backoff = 0
		w.log.Info("the disk cache can write again")
	}
}

func (w *writer) seal() {
	w.sealed = append(w.sealed, w.active)
	w.active = nil
}

// roll begins a new slab, and makes room for the one after that: the oldest slabs go,
// and what was read of them moves on.
func (w *writer) roll() bool {
	w.flush()
	if w.active != nil {
		w.seal()
	}
	for len(w.sealed) > 0 && w.over(1) {
		w.evict(w.sealed[0])
	}
	if w.over(1) || !w.ready() {
		return false
	}
	path := w.fs.PathJoin(w.dir, slabName(w.next))
	file, err := w.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		w.fail("creating", path, err)
		return false
	}
	// Many dirty bytes at once would hold up the syncs of the database.
	file = vfs.NewSyncingFile(file, vfs.SyncingFileOptions{NoSyncOnClose: true, BytesPerSync: syncBytes})
	w.active = &slab{number: w.next, path: path, file: file}
	w.next++
	w.active.size = slabHeaderSize
	if _, err := file.Write(appendSlabHeader(nil)); err != nil {
		w.seal()
		w.fail("writing", path, err)
		return false
	}
	for budget := w.cache.sizes.slabBytes * carryShare / 4; len(w.sealed) > 0 && w.over(2); {
		budget = w.carry(w.sealed[0], budget)
		w.evict(w.sealed[0])
	}
	return w.active != nil
}

// over reports whether so many whole slabs beside those that are sealed exceed a limit.
func (w *writer) over(slabs int) bool {
	z := &w.cache.sizes
	bytes, entries := int64(slabs)*z.slabBytes, slabs*z.slabEntries
	for _, s := range w.doomed {
		bytes += s.size
	}
	for _, s := range w.sealed {
		bytes += s.size
		entries += len(s.entries)
	}
	return bytes > w.cache.opts.Bytes || entries > z.entries || len(w.sealed)+slabs > z.slabs
}

// carry copies what was read of a slab to the active one, budget bytes at most, and
// returns the budget that is left. What does not fit goes with its slab, but is taken in
// when it comes from the bucket the next time.
func (w *writer) carry(s *slab, budget int64) int64 {
	carried := w.cache.readEntries(s)
	for i, e := range carried {
		size := int64(entryHeaderSize + e.size())
		if size > budget || len(w.staged)+len(w.activeEntries()) >= w.cache.sizes.slabEntries*carryShare/4 {
			w.cache.remember(carried[i:])
			break
		}
		key, data, err := s.read(e)
		if err != nil {
			w.cache.spoiled(s, e.hash, err)
			continue
		}
		if !w.stage(&key, e.hash, data) {
			w.cache.remember(carried[i:])
			break
		}
		budget -= size
		if len(w.buf) >= writeBytes {
			w.flush()
		}
	}
	w.flush()
	return budget
}

func (w *writer) activeEntries() []entry {
	if w.active == nil {
		return nil
	}
	return w.active.entries
}

// evict removes a sealed slab, once nobody reads it. Until its file is gone it counts.
func (w *writer) evict(s *slab) {
	w.cache.retire(s)
	s.readers.Wait()
	_ = s.file.Close()
	w.sealed = slices.DeleteFunc(w.sealed, func(other *slab) bool { return other == s })
	w.remove(s)
}

func (w *writer) remove(s *slab) {
	if err := w.fs.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.doomed = append(w.doomed, s)
		w.fail("removing", s.path, err)
		return
	}
	w.cache.counts.evictedBytes.Add(s.size)
}

// look sees to it that the disk keeps some room: the cache's own goes first. What failed
// before is tried again.
func (w *writer) look() {
	w.looked = time.Now()
	if !w.recovered && !w.looked.Before(w.paused) {
		w.recover()
	}
	doomed := w.doomed
	w.doomed = nil
	for _, s := range doomed {
		w.remove(s)
	}
	least := w.cache.opts.MinFreeBytes
	usage, err := w.fs.GetDiskUsage(w.cache.opts.Dir)
	if least <= 0 || err != nil {
		w.low = false // a file system that cannot tell is not watched
		return
	}
	free, wasLow := int64(min(usage.AvailBytes, 1<<62)), w.low
	if w.low = free < least || wasLow && free < least+w.cache.sizes.slabBytes; w.low && !wasLow {
		w.log.Warn("the disk is nearly full: the disk cache gives its room up and writes nothing until there is more",
			zap.Int64("free_bytes", free), zap.Int64("min_free_bytes", least))
	} else if wasLow && !w.low {
		w.log.Info("the disk has room again, the disk cache goes on")
	}
	if free < least && w.active != nil {
		w.flush()
	}
	for ; free < least && w.sealOldest(); w.evict(w.sealed[0]) {
		free += w.sealed[0].size
	}
}

// sealOldest reports whether there is a sealed slab; the active one is sealed if it is
// the only one.
func (w *writer) sealOldest() bool {
	if len(w.sealed) == 0 && w.active != nil {
		w.seal()
	}
	return len(w.sealed) > 0
}

// fail pauses all writes, longer with each failure. A disk that is full gets a slab
// back.
func (w *writer) fail(what, path string, err error) {
	w.cache.counts.errors.Add(1)
	if w.backoff == 0 {
		w.log.Warn("the disk cache pauses: it cannot use its files", zap.String("failed", what), zap.String("path", path), zap.Error(err))
	}
	w.backoff = min(max(2*w.backoff, leastBackoff), mostBackoff)
	w.paused = time.Now().Add(w.backoff)
	if what != "removing" && vfs.IsNoSpaceError(err) && w.sealOldest() {
		w.evict(w.sealed[0])
	}
}
