package streamstore

import (
	"sync"
	"sync/atomic"
)

// AddName begins to watch, under key, for a stream called name, which need not exist. It has news when such a stream has
// news, so the first of a new stream comes with its first record; look the name up then, and Add the stream. Remove ends
// it.
func (w *Watch) AddName(name string, key int) {
	if w.names == nil {
		w.names = make(map[int]string)
	}
	w.names[key] = name
	w.store.traffic.watching.Add(1)
	w.store.prefixes.names.add(name, watcher{w, key})
}

// nameWatches are those who wait for names. While nobody does, a stream with news costs one load.
type nameWatches struct {
	waiting atomic.Int64 // entries of byName
	mu      sync.Mutex
	byName  map[string]map[watcher]struct{}
}

func (n *nameWatches) add(name string, w watcher) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName = make(map[string]map[watcher]struct{})
	}
	if n.byName[name] == nil {
		n.byName[name] = make(map[watcher]struct{})
		n.waiting.Add(1)
	}
	n.byName[name][w] = struct{}{}
}

func (n *nameWatches) remove(name string, w watcher) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.byName[name], w); len(n.byName[name]) == 0 {
		delete(n.byName, name)
		n.waiting.Add(-1)
	}
}

// notify is called with the stream's lock held; this lock and those of watches come after it.
func (n *nameWatches) notify(st *stream) {
	if n.waiting.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.byName[st.mu.row.name] {
		w.watch.notify(w.key)
	}
}
