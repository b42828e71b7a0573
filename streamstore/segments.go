package streamstore

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/brookletmq/brooklet/streamstore/diskcache"
)

// segmentCache keeps extents read from the bucket in memory, least recently used
// dropped first, and below that on disk. The extent is its unit: a stream's history
// costs its own bytes, nothing is rounded up. A reader gets the bytes that it waited for
// even if the cache drops them at once, so a small cache slows readers down but never
// stops them.
type segmentCache struct {
	store    *Store
	budget   int64
	fetching *semaphore.Weighted // bounds the bytes being fetched from the bucket
	reading  *semaphore.Weighted // bounds the bytes being read from disk
	disk     *diskcache.Cache    // nil: there is none

	mu struct {
		sync.Mutex
		entries map[segmentKey]*list.Element // of *segmentEntry
		lru     list.List                    // most recently used first
		bytes   int64
		flights map[segmentKey]*flight
	}
}

type segmentKey struct {
	object   objectID
	position int64
}

type segmentEntry struct {
	extent extent
	data   []byte
	usage  extentUse
}

// flight is one extent on its way from disk or bucket. Whoever wants it waits for it.
type flight struct {
	extent extent
	onDisk bool // look there first
	done   chan struct{}
	data   []byte
	err    error
	usage  extentUse // guarded by segmentCache.mu
}

// extentUse tells whether an extent was asked for again. A reader that goes through an
// extent in many small reads asks once; so each read counts by its offset, and only one
// that is not above all earlier ones is a second use.
type extentUse struct {
	next  int64 // the offset above the highest read, 0: none yet
	again bool
}

func (u *extentUse) note(offset int64) {
	u.again = u.again || offset < u.next
	u.next = max(u.next, offset+1)
}

const (
	// maxFetchingBytes bounds the bytes that are on their way from the bucket.
	maxFetchingBytes = 64 << 20
	// maxReadingBytes bounds the bytes that are on their way from disk. They do not wait
	// for those of a bucket that is in trouble.
	maxReadingBytes = 16 << 20
	// fetchTimeout bounds one read of the bucket, waiting for its turn included.
	fetchTimeout = time.Minute
)

func newSegmentCache(s *Store) *segmentCache {
	c := &segmentCache{store: s, budget: s.opts.SegmentCacheBytes, fetching: semaphore.NewWeighted(maxFetchingBytes), reading: semaphore.NewWeighted(maxReadingBytes)}
	c.mu.entries = make(map[segmentKey]*list.Element)
	c.mu.flights = make(map[segmentKey]*flight)
	return c
}

func (x *extent) key() segmentKey { return segmentKey{x.object, x.position} }

// maxReadFetches bounds the requests to the bucket that one read has under way.
const maxReadFetches = 16

// loading is an extent that a reader asked for: its bytes, or the flight that brings
// them. It holds on to them even if the cache drops them at once.
type loading struct {
	data   []byte
	flight *flight
}

// wait returns the checked bytes of the extent.
func (l loading) wait(ctx context.Context) ([]byte, error) {
	if l.flight == nil {
		return l.data, nil
	}
	select {
	case <-l.flight.done:
		return l.flight.data, l.flight.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// load asks for extents[:wanted], or the first of them that maxReadFetches requests
// bring, to read them from offset on. All requests begin at once, so that a history of many small extents takes one
// round trip and not one after the other; extents that lie next to each other in the
// same object, those behind the wanted ones too, share a request.
func (c *segmentCache) load(extents []extent, wanted int, offset int64) (list []loading) {
	for fetches := 0; len(list) < wanted && fetches < maxReadFetches; {
		data, awaited, fetch := c.plan(extents[len(list):], wanted-len(list), offset)
		if len(fetch) == 0 {
			c.store.metrics.segmentHits.Inc()
			list = append(list, loading{data, awaited})
			continue
		}
		c.store.background(func() { c.fetch(fetch) })
		fetches++
		for _, f := range fetch[:min(len(fetch), wanted-len(list))] {
			list = append(list, loading{flight: f})
		}
	}
	return list
}

// plan looks extents[0] up; if it is neither cached in memory nor on its way, it
// registers the flights that the caller is to fetch: all from disk or all from the bucket.
// The first wanted extents are read from offset on.
func (c *segmentCache) plan(extents []extent, wanted int, offset int64) (data []byte, awaited *flight, fetch []*flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := max(offset, extents[0].base)
	if element, ok := c.mu.entries[extents[0].key()]; ok {
		c.mu.lru.MoveToFront(element)
		entry := element.Value.(*segmentEntry)
		entry.usage.note(first)
		return entry.data, nil, nil
	}
	if f, ok := c.mu.flights[extents[0].key()]; ok {
		f.usage.note(first)
		return nil, f, nil
	}
	onDisk := c.onDisk(extents[0])
	for i, x := range extents {
		_, cached := c.mu.entries[x.key()]
		_, flying := c.mu.flights[x.key()]
		if i > 0 && (cached || flying || !follows(extents[i-1], x) || c.onDisk(x) != onDisk) {
			break
		}
		f := &flight{extent: x, onDisk: onDisk, done: make(chan struct{})}
		if i < wanted {
			f.usage.note(max(offset, x.base))
		}
		c.mu.flights[x.key()] = f
		fetch = append(fetch, f)
	}
	return nil, fetch[0], fetch
}

func (c *segmentCache) onDisk(x extent) bool { return c.disk != nil && c.disk.Has(x.diskKey()) }

// fetch brings neighbouring extents from disk, and those that are not there from the
// bucket, and lands their flights.
func (c *segmentCache) fetch(flights []*flight) {
	ctx, cancel := context.WithTimeout(c.store.ctx, fetchTimeout)
	defer cancel()
	for len(flights) > 0 {
		n := 0 // flights that one request to the bucket brings
		for n < len(flights) && !c.fetchDisk(ctx, flights[n]) {
			n++
		}
		if n > 0 {
			c.fetchBucket(ctx, flights[:n])
		}
		flights = flights[min(n+1, len(flights)):]
	}
}

// fetchDisk lands a flight if the disk has its extent, unharmed.
func (c *segmentCache) fetchDisk(ctx context.Context, f *flight) bool {
	if !f.onDisk {
		return false
	}
	weight := min(f.extent.length, maxReadingBytes)
	if c.reading.Acquire(ctx, weight) != nil {
		return false
	}
	defer c.reading.Release(weight)
	key := f.extent.diskKey()
	data, ok := c.disk.Get(key)
	if !ok {
		return false
	}
	// The proof that these bytes are the extent's, whoever wrote the files.
	if err := checkExtent(f.extent.object.name(c.store.opts.Shard), f.extent, data); err != nil {
		c.disk.Reject(key, err)
		return false
	}
	f.data = data
	c.land(f)
	return true
}

// fetchBucket reads neighbouring extents with one request and lands their flights.
func (c *segmentCache) fetchBucket(ctx context.Context, flights []*flight) {
	c.store.metrics.segmentMisses.Inc()
	first, last := flights[0].extent, flights[len(flights)-1].extent
	data, err := c.read(ctx, first.object, first.position, last.position+last.length-first.position)
	for _, f := range flights {
		if f.err = err; err == nil {
			// A copy each, so that one of them in the cache does not hold them all.
			from := f.extent.position - first.position
			f.data = data[from : from+f.extent.length : from+f.extent.length]
			if len(flights) > 1 {
				f.data = append([]byte(nil), f.data...)
			}
			f.err = checkExtent(f.extent.object.name(c.store.opts.Shard), f.extent, f.data)
		}
		if f.err == nil && c.disk != nil {
			c.disk.Loaded(f.extent.diskKey(), f.data)
		}
		c.land(f)
	}
}

func (c *segmentCache) read(ctx context.Context, object objectID, position, length int64) ([]byte, error) {
	weight := min(length, maxFetchingBytes)
	if err := c.fetching.Acquire(ctx, weight); err != nil {
		return nil, fmt.Errorf("waiting to read from the bucket: gave up after %v", fetchTimeout)
	}
	defer c.fetching.Release(weight)
	name := object.name(c.store.opts.Shard)
	data, err := c.store.opts.Bucket.GetRange(ctx, name, position, length)
	if err != nil {
		if ctx.Err() != nil {
			// This fetch's own time is over; its waiters must not take it for theirs.
			return nil, fmt.Errorf("reading %d bytes at %d of %s: gave up after %v: %v", length, position, name, fetchTimeout, err)
		}
		return nil, fmt.Errorf("reading %d bytes at %d of %s: %w", length, position, name, err)
	}
	c.store.metrics.segmentBytes.Add(float64(length))
	return data, nil
}

// land hands a flight to its waiters and, if it is good, to the cache. What that drops
// may go to disk.
func (c *segmentCache) land(f *flight) {
	var dropped []*segmentEntry
	c.mu.Lock()
	delete(c.mu.flights, f.extent.key())
	if f.err == nil {
		c.mu.entries[f.extent.key()] = c.mu.lru.PushFront(&segmentEntry{f.extent, f.data, f.usage})
		c.mu.bytes += int64(len(f.data))
	}
	for c.mu.bytes > c.budget {
		oldest := c.mu.lru.Remove(c.mu.lru.Back()).(*segmentEntry)
		delete(c.mu.entries, oldest.extent.key())
		c.mu.bytes -= int64(len(oldest.data))
		dropped = append(dropped, oldest)
	}
	c.mu.Unlock()
	close(f.done)
	if c.disk == nil {
		return
	}
	for _, e := range dropped {
		if e.usage.next > 0 { // and was not only read ahead
			c.disk.Evicted(e.extent.diskKey(), e.data, e.usage.again)
		}
	}
}

func (c *segmentCache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.bytes
}

// checkExtent proves that data is the extent's run of batches: whole, in order,
// without gaps, each with a right checksum.
func checkExtent(name string, x extent, data []byte) error {
	next := x.base
	for rest := data; len(rest) > 0; {
		at := x.position + int64(len(data)-len(rest))
		batch, after, ok := nextBatch(rest)
		switch {
		case !ok:
			return &CorruptError{Where: name, Position: at, What: "record batch", Found: "a malformed header", Expected: fmt.Sprintf("the batch of offset %d", next)}
		case batch.baseOffset() != next:
			return &CorruptError{Where: name, Position: at, What: "base offset", Found: batch.baseOffset(), Expected: next}
		case !batch.checksumOK():
			return &CorruptError{Where: name, Position: at, What: "checksum of the batch", Found: "a mismatch", Expected: batch.checksum()}
		}
		next, rest = batch.lastOffset()+1, after
	}
	if next != x.last+1 {
		return &CorruptError{Where: name, Position: x.position, What: "last offset of the extent", Found: next - 1, Expected: x.last}
	}
	return nil
}
