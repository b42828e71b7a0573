package streamstore

import "sync"

// Watch tells a reader of many streams which of them have news, so that it never
// looks at the ones that have none. News of a stream: its high watermark or
// start offset moved, or it was deleted. Add, Remove, Take and Close are for one
// goroutine at a time.
type Watch struct {
	store *Store
	ready chan struct{}
	keys  map[int]*stream

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
	w.keys[key] = st
	return nil
}

// Remove ends the watch of key; unknown keys are ignored. Take may still return
// the key once if it had news before.
func (w *Watch) Remove(key int) {
	st, ok := w.keys[key]
	if !ok {
		return
	}
	delete(w.keys, key)
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
