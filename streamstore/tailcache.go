package streamstore

import "sync"

// tailCache keeps the bytes of recent appends in memory, oldest dropped first.
// The entries themselves hang on their streams; this is the order in which they
// lose their bytes. Eviction never touches an entry that is not in the database
// yet, because a read then finds it there.
type tailCache struct {
	budget int64

	mu struct {
		sync.Mutex
		entries []*tailEntry // ascending append number, from head on
		head    int
		bytes   int64
	}
}

func (c *tailCache) add(e *tailEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.entries = append(c.mu.entries, e)
	c.mu.bytes += e.size
}

// trim drops the bytes of the oldest entries below append number applied while
// the cache is over its budget.
func (c *tailCache) trim(applied uint64) {
	for {
		e := c.popOver(applied)
		if e == nil {
			return
		}
		st := e.stream
		st.mu.Lock()
		e.batch = nil
		st.dropFlushedLocked()
		st.mu.Unlock()
	}
}

func (c *tailCache) popOver(applied uint64) *tailEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.bytes <= c.budget || c.mu.head == len(c.mu.entries) {
		return nil
	}
	e := c.mu.entries[c.mu.head]
	if e.number >= applied {
		return nil
	}
	c.mu.entries[c.mu.head] = nil
	c.mu.head++
	c.mu.bytes -= e.size
	if c.mu.head > len(c.mu.entries)/2 && c.mu.head > 1024 {
		n := copy(c.mu.entries, c.mu.entries[c.mu.head:])
		clear(c.mu.entries[n:])
		c.mu.entries, c.mu.head = c.mu.entries[:n], 0
	}
	return e
}

func (c *tailCache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.bytes
}
