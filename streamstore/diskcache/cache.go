package diskcache

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// KeySize is the length of a key, in bytes.
const KeySize = 48

// Key names an entry. A key must never stand for two different byte strings.
type Key [KeySize]byte

// Options of a Cache. All fields but MinFreeBytes are required.
type Options struct {
	FS vfs.FS
	// Dir is a folder that belongs to the cache alone; it is made if it is not there.
	Dir string
	// Identity is a folder name. Entries of another identity are removed unread.
	Identity string
	// Bytes is the limit of all files together.
	Bytes int64
	// MinFreeBytes: with less free space on the disk the cache gives its own up, and
	// writes nothing. Zero or less: no check.
	MinFreeBytes int64
	Logger       *zap.Logger
}

// Cache is a disk cache. Its methods are safe for concurrent use.
type Cache struct {
	opts   Options
	sizes  sizes
	seed   maphash.Seed
	counts counts

	wake    chan struct{} // something is in the queue
	closing chan struct{}
	closed  chan struct{} // the writer has ended

	mu struct {
		sync.Mutex
		index   map[uint64]location // by hash of the key
		slabs   map[uint32]*slab
		entries int // of all slabs, those that the index has forgotten too
		ghost   ghost
		queue   []*item          // waits for the writer
		pending map[uint64]*item // is in the queue or being written
		queued  int64            // bytes of pending
	}
}

// location is an entry's place. There are many: it holds no pointer.
type location struct {
	slab  uint32 // number
	entry uint32 // index in slab.entries
}

// item is an entry on its way to disk.
type item struct {
	key  Key
	hash uint64
	data []byte
}

// sizes follow from the limit.
type sizes struct {
	slabBytes   int64 // of one file
	slabEntries int   // in one file
	entries     int   // in all files
	slabs       int   // files
	entryBytes  int   // data of one entry; it fits beside what is carried over
}

const (
	slabsAimedAt  = 128
	leastSlab     = 8 << 20 // but never more than an eighth of the limit
	mostSlab      = 1 << 30 // positions in a slab are 32 bits
	bytesPerEntry = 32 << 10
	leastEntries  = 1 << 16

	queueBytes    = 16 << 20 // of entries that wait for the writer; more are dropped
	bytesOfMemory = 64       // per entry, measured by TestMemoryPerEntry
)

func sizesFor(limit int64) (z sizes) {
	z.slabBytes = max(limit/slabsAimedAt, min(limit/8, leastSlab))
	z.slabBytes = min(z.slabBytes, mostSlab)
	slabs := max(1, limit/z.slabBytes)
	z.entries = int(max(limit/bytesPerEntry, leastEntries))
	z.slabEntries = int(int64(z.entries) / slabs)
	z.slabs = int(4 * slabs) // a slab may be small because its process ended
	z.entryBytes = int(min(z.slabBytes/4-slabHeaderSize-entryHeaderSize, queueBytes))
	return z
}

// MemoryBound is the memory in bytes that a cache with the given limit uses at most:
// index, ghost list, and what waits to be written.
func MemoryBound(limit int64) int64 {
	if limit <= 0 {
		return 0
	}
	return int64(sizesFor(limit).entries)*bytesOfMemory + 2*queueBytes
}

// Open returns a cache and begins to look at what a former process left. It never fails:
// a disk that cannot be used makes an empty cache.
func Open(opts Options) *Cache {
	c := &Cache{
		opts: opts, sizes: sizesFor(opts.Bytes), seed: maphash.MakeSeed(),
		wake: make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	c.mu.index = make(map[uint64]location)
	c.mu.slabs = make(map[uint32]*slab)
	c.mu.pending = make(map[uint64]*item)
	c.mu.ghost = newGhost(c.sizes.entries, opts.Bytes)
	w := &writer{cache: c, fs: opts.FS, log: opts.Logger, dir: opts.FS.PathJoin(opts.Dir, opts.Identity)}
	go func() {
		defer close(c.closed)
		w.run()
	}()
	return c
}

// Close waits for reads and the write under way, and closes the files. What waits to be
// written is dropped. Calls that come later find nothing.
func (c *Cache) Close() {
	close(c.closing)
	<-c.closed
}

func (c *Cache) hash(key *Key) uint64 { return maphash.Bytes(c.seed, key[:]) }

// Has reports whether Get would look for the entry on disk. It does no I/O.
func (c *Cache) Has(key Key) bool {
	hash := c.hash(&key)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hasLocked(hash)
}

func (c *Cache) hasLocked(hash uint64) bool {
	_, onDisk := c.mu.index[hash]
	return onDisk || c.mu.pending[hash] != nil
}

// Get reads an entry. The slice may be shared with other callers and must not be
// changed.
func (c *Cache) Get(key Key) ([]byte, bool) {
	hash := c.hash(&key)
	data, s, e := c.find(hash, &key)
	if s != nil {
		found, read, err := s.read(e)
		s.readers.Done()
		switch {
		case err != nil:
			c.spoiled(s, hash, err)
		case found == key: // else two keys of one hash
			data = read
		}
	}
	if data == nil {
		c.counts.misses.Add(1)
		return nil, false
	}
	c.counts.hits.Add(1)
	c.counts.readBytes.Add(int64(len(data)))
	return data, true
}

// find returns the data of an entry that is not written yet, or the slab that has it.
// The caller must release that.
func (c *Cache) find(hash uint64, key *Key) (data []byte, s *slab, e entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it := c.mu.pending[hash]; it != nil && it.key == *key {
		return it.data, nil, e
	}
	at, ok := c.mu.index[hash]
	if !ok {
		return nil, nil, e
	}
	s = c.mu.slabs[at.slab]
	s.entries[at.entry].length |= entryRead
	s.readers.Add(1)
	return nil, s, s.entries[at.entry]
}

// spoiled takes an entry that cannot be read out of the index.
func (c *Cache) spoiled(s *slab, hash uint64, err error) {
	c.counts.errors.Add(1)
	c.mu.Lock()
	if at, ok := c.mu.index[hash]; ok && c.mu.slabs[at.slab] == s {
		delete(c.mu.index, hash)
	}
	first := !s.complained
	s.complained = true
	c.mu.Unlock()
	if first {
		c.opts.Logger.Warn("an entry of the disk cache cannot be read and is taken from the bucket again; more such entries of this file are not reported",
			zap.String("file", s.path), zap.Error(err))
	}
}

// Reject tells that the bytes that Get returned are not what the key stands for. The
// entry is not found any more.
func (c *Cache) Reject(key Key, reason error) {
	hash := c.hash(&key)
	c.mu.Lock()
	at, ok := c.mu.index[hash]
	s := c.mu.slabs[at.slab]
	c.mu.Unlock()
	if ok {
		c.spoiled(s, hash, reason)
	}
}

// Evicted tells that an entry has left memory; again, that it was used a second time
// there. data must not be changed any more.
func (c *Cache) Evicted(key Key, data []byte, again bool) {
	hash := c.hash(&key)
	c.mu.Lock()
	defer c.mu.Unlock()
	at, onDisk := c.mu.index[hash]
	switch {
	case onDisk && again:
		c.mu.slabs[at.slab].entries[at.entry].length |= entryRead
	case again:
		c.putLocked(key, hash, data)
	case !onDisk:
		c.mu.ghost.add(hash, len(data))
	}
}

// Loaded tells that an entry that the cache did not have has come into memory. data must
// not be changed any more.
func (c *Cache) Loaded(key Key, data []byte) {
	hash := c.hash(&key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ghost.take(hash) {
		c.putLocked(key, hash, data)
	}
}

// putLocked queues an entry for the writer, or drops it if too much waits.
func (c *Cache) putLocked(key Key, hash uint64, data []byte) {
	if len(data) == 0 || c.hasLocked(hash) {
		return
	}
	if len(data) > c.sizes.entryBytes || c.mu.queued+int64(len(data)) > queueBytes {
		c.counts.dropped.Add(1)
		return
	}
	it := &item{key, hash, data}
	c.mu.queue = append(c.mu.queue, it)
	c.mu.pending[hash] = it
	c.mu.queued += int64(len(data))
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// takeQueue hands what waits to the writer. It stays pending until settle.
func (c *Cache) takeQueue() (items []*item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	items, c.mu.queue = c.mu.queue, nil
	return items
}

// settle ends the way of items to disk, whether they got there or not.
func (c *Cache) settle(items []*item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, it := range items {
		delete(c.mu.pending, it.hash)
		c.mu.queued -= int64(len(it.data))
	}
}

// publish makes entries of a slab findable. fresh: in the place of older ones.
func (c *Cache) publish(s *slab, entries []entry, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.slabs[s.number] = s
	for _, e := range entries {
		if _, known := c.mu.index[e.hash]; fresh || !known {
			c.mu.index[e.hash] = location{s.number, uint32(len(s.entries))}
		}
		s.entries = append(s.entries, e)
	}
	c.mu.entries += len(entries)
}

// retire makes a slab unfindable. Who reads it still does.
func (c *Cache) retire(s *slab) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range s.entries {
		if c.mu.index[e.hash] == (location{s.number, uint32(i)}) {
			delete(c.mu.index, e.hash)
		}
	}
	delete(c.mu.slabs, s.number)
	c.mu.entries -= len(s.entries)
	s.entries = nil
}

// readEntries returns the entries of a slab that were read since they were written.
func (c *Cache) readEntries(s *slab) (list []entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range s.entries {
		at, ok := c.mu.index[e.hash]
		if ok && at == (location{s.number, uint32(i)}) && e.length&entryRead != 0 {
			list = append(list, e)
		}
	}
	return list
}

// remember puts entries on the ghost list.
func (c *Cache) remember(entries []entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.mu.ghost.add(e.hash, e.size())
	}
}

// counts of what happened since Open.
type counts struct {
	hits, misses, readBytes, writtenBytes, evictedBytes, dropped, errors, bytes atomic.Int64
}

// Metrics is a snapshot of a cache's state and of what it did since Open.
type Metrics struct {
	Bytes   int64 // of all files, at most Options.Bytes
	Entries int64 // that can be found

	Hits, Misses int64 // of Get
	ReadBytes    int64 // by hits
	WrittenBytes int64 // carried over entries included
	EvictedBytes int64 // of files that were removed
	Dropped      int64 // entries not written: the disk was too slow, full or failing
	Errors       int64 // failed reads and writes, damaged entries
}

// Metrics returns a snapshot.
func (c *Cache) Metrics() Metrics {
	c.mu.Lock()
	entries := len(c.mu.index)
	c.mu.Unlock()
	n := &c.counts
	return Metrics{
		Bytes: n.bytes.Load(), Entries: int64(entries),
		Hits: n.hits.Load(), Misses: n.misses.Load(), ReadBytes: n.readBytes.Load(),
		WrittenBytes: n.writtenBytes.Load(), EvictedBytes: n.evictedBytes.Load(),
		Dropped: n.dropped.Load(), Errors: n.errors.Load(),
	}
}
