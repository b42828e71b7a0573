package streamstore

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Watch tells a reader of many streams which of them have news, so that it never
// looks at the ones that have none. News of a stream: its high watermark or
// start offset moved, or it was deleted. Add, Remove, Take and Close are for one
// goroutine at a time.
type Watch struct {
	store *Store
	ready chan struct{}
	keys  map[int]*stream
	names map[int]string // of AddName

	mu struct {
		sync.Mutex
		news    []int
		pending map[int]struct{} // the keys in news
	}
}

// watcher is one entry in a stream's set of watchers.
type watcher struct {
	watch *Watch
	key   int
}

// NewWatch returns a Watch of no streams. Close it after use.
func (s *Store) NewWatch() *Watch {
	w := &Watch{store: s, ready: make(chan struct{}, 1), keys: make(map[int]*stream)}
	w.mu.pending = make(map[int]struct{})
	return w
}

// Add begins to watch a stream under key, which must not be in use. Only what
// happens from now on is news. ErrNoStream: there is no such stream.
func (w *Watch) Add(id StreamID, key int) error {
	st, err := w.store.acquire(id)
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.deleted {
		w.store.release(st)
		return ErrNoStream
	}
	if st.mu.watchers == nil {
		st.mu.watchers = make(map[watcher]struct{})
	}
	st.mu.watchers[watcher{w, key}] = struct{}{}
	w.store.traffic.watching.Add(1)
	w.keys[key] = st
	return nil
}

// Remove ends the watch of key; unknown keys are ignored. Take may still return
// the key once if it had news before.
func (w *Watch) Remove(key int) {
	if name, ok := w.names[key]; ok {
		delete(w.names, key)
		w.store.traffic.watching.Add(-1)
		w.store.prefixes.names.remove(name, watcher{w, key})
		return
	}
	st, ok := w.keys[key]
	if !ok {
		return
	}
	delete(w.keys, key)
	w.store.traffic.watching.Add(-1)
	st.mu.Lock()
	delete(st.mu.watchers, watcher{w, key})
	st.mu.Unlock()
	w.store.release(st)
}

// Ready receives when there is news since the last Take.
func (w *Watch) Ready() <-chan struct{} { return w.ready }

// Take appends the keys that have news to keys, in the order in which it came,
// and forgets them.
func (w *Watch) Take(keys []int) []int {
	select {
	case <-w.ready:
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	keys = append(keys, w.mu.news...)
	w.mu.news = w.mu.news[:0]
	clear(w.mu.pending)
	return keys
}

// Close ends the watch of all streams.
func (w *Watch) Close() {
	for key := range w.names {
		w.Remove(key)
	}
	for key := range w.keys {
		w.Remove(key)
	}
}

// notify is called with the stream's lock held; the Watch's lock comes after it.
func (w *Watch) notify(key int) {
	w.mu.Lock()
	if _, ok := w.mu.pending[key]; !ok {
		w.mu.pending[key] = struct{}{}
		w.mu.news = append(w.mu.news, key)
	}
	w.mu.Unlock()
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// PrefixWatch tells which streams under a prefix have news, those included that are
// made later. News is what Watch calls so; a new stream has its first with its first
// record. Take and Close are for one goroutine at a time.
type PrefixWatch struct {
	store  *Store
	prefix string
	ready  chan struct{}

	mu struct {
		sync.Mutex
		news    []StreamID
		pending map[StreamID]struct{} // the ids in news
		lost    bool
	}
}

// maxPrefixNews bounds the streams whose news wait for one Take.
const maxPrefixNews = 1 << 16

// prefixWatches are the watches of prefixes of a store. There are few: each is asked
// about every stream that has news.
type prefixWatches struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*PrefixWatch] // copied on change; nil: none
	// names are watched one by one, because there may be many.
	names nameWatches
}

// WatchPrefix begins to watch all streams whose names begin with prefix. Only what
// happens from now on is news. Close it after use.
func (s *Store) WatchPrefix(prefix string) *PrefixWatch {
	w := &PrefixWatch{store: s, prefix: prefix, ready: make(chan struct{}, 1)}
	w.mu.pending = make(map[StreamID]struct{})
	s.prefixes.change(func(list []*PrefixWatch) []*PrefixWatch { return append(list, w) })
	s.traffic.watching.Add(1)
	return w
}

func (p *prefixWatches) change(edit func([]*PrefixWatch) []*PrefixWatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*PrefixWatch
	if old := p.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if list = edit(list); len(list) == 0 {
		p.list.Store(nil)
		return
	}
	p.list.Store(&list)
}

// notify is called with the stream's lock held; a watch's lock comes after it.
func (p *prefixWatches) notify(st *stream) {
	p.names.notify(st)
	list := p.list.Load()
	if list == nil {
		return
	}
	for _, w := range *list {
		if strings.HasPrefix(st.mu.row.name, w.prefix) {
			w.notify(st.id)
		}
	}
}

func (w *PrefixWatch) notify(id StreamID) {
	w.mu.Lock()
	if _, ok := w.mu.pending[id]; !ok {
		if len(w.mu.news) < maxPrefixNews {
			w.mu.pending[id] = struct{}{}
			w.mu.news = append(w.mu.news, id)
		} else {
			w.mu.lost = true
		}
	}
	w.mu.Unlock()
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// Ready receives when there is news since the last Take.
func (w *PrefixWatch) Ready() <-chan struct{} { return w.ready }

// Take appends the ids of the streams that have news to ids, in the order in which it
// came, and forgets them. lost means that there was more news than a watch keeps
// (65,536 streams): look at all streams under the prefix.
func (w *PrefixWatch) Take(ids []StreamID) (_ []StreamID, lost bool) {
	select {
	case <-w.ready:
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ids = append(ids, w.mu.news...)
	lost = w.mu.lost
	w.mu.news, w.mu.lost = w.mu.news[:0], false
	clear(w.mu.pending)
	return ids, lost
}

// Close ends the watch.
func (w *PrefixWatch) Close() {
	w.store.traffic.watching.Add(-1)
	w.store.prefixes.change(func(list []*PrefixWatch) []*PrefixWatch {
		return slices.DeleteFunc(list, func(other *PrefixWatch) bool { return other == w })
	})
}
