package httpapi

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/brookletmq/brooklet/streamstore"
)

// watcher waits for news of one stream, which need not exist yet. It is for one goroutine.
type watcher struct {
	s *Server
	t *target
	// One of the two, by whether the stream exists.
	stream *streamstore.Watch
	name   *nameWaiter
}

// watch begins to watch the stream of t. Only what happens from now on is news. If the stream does not exist, t gets its id
// when it has its first record, or at once if it was made meanwhile. Close the watcher after use.
func (s *Server) watch(t *target) (*watcher, error) {
	w := &watcher{s: s, t: t}
	return w, w.begin()
}

func (w *watcher) begin() error {
	for {
		if w.t.id == 0 {
			w.name = w.s.names.add(w.t.name)
			id, err := w.s.store.Lookup(w.t.name)
			if errors.Is(err, streamstore.ErrNoStream) {
				return nil
			}
			w.close()
			if err != nil {
				return err
			}
			w.t.id = id
		}
		w.stream = w.s.store.NewWatch()
		err := w.stream.Add(w.t.id, 0)
		if err == nil {
			return nil
		}
		w.close()
		if !errors.Is(err, streamstore.ErrNoStream) {
			return err
		}
		w.t.id = 0 // deleted
	}
}

// ready receives when there is news.
func (w *watcher) ready() <-chan struct{} {
	if w.name != nil {
		return w.name.ready
	}
	return w.stream.Ready()
}

// take takes the news; look at the stream again after it.
func (w *watcher) take() error {
	if w.stream != nil {
		w.stream.Take(nil)
		return nil
	}
	w.close()
	return w.begin()
}

// lost begins again after the stream was deleted: t waits for another one of its name.
func (w *watcher) lost() error {
	w.close()
	w.t.id = 0
	return w.begin()
}

func (w *watcher) close() {
	if w.stream != nil {
		w.stream.Close()
	}
	if w.name != nil {
		w.s.names.remove(w.name)
	}
	w.stream, w.name = nil, nil
}

// newNames wakes readers of streams that do not exist yet. However many there are, the store is asked for the news of all
// streams once, by one goroutine that runs while there are readers.
type newNames struct {
	store *streamstore.Store

	mu struct {
		sync.Mutex
		waiting map[string]map[*nameWaiter]struct{}
		stop    chan struct{} // nil while nobody waits
	}
}

// nameWaiter is a reader that waits for a stream of a name.
type nameWaiter struct {
	name  string
	ready chan struct{}
}

func (n *newNames) add(name string) *nameWaiter {
	w := &nameWaiter{name: name, ready: make(chan struct{}, 1)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.waiting == nil {
		n.mu.waiting = map[string]map[*nameWaiter]struct{}{}
	}
	if n.mu.waiting[name] == nil {
		n.mu.waiting[name] = map[*nameWaiter]struct{}{}
	}
	n.mu.waiting[name][w] = struct{}{}
	if n.mu.stop == nil {
		n.mu.stop = make(chan struct{})
		go n.run(n.store.WatchPrefix(""), n.mu.stop)
	}
	return w
}

func (n *newNames) remove(w *nameWaiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mu.waiting[w.name], w)
	if len(n.mu.waiting[w.name]) == 0 {
		delete(n.mu.waiting, w.name)
	}
	if len(n.mu.waiting) == 0 && n.mu.stop != nil {
		close(n.mu.stop)
		n.mu.stop = nil
	}
}

// maxKnown bounds the streams that run remembers.
const maxKnown = 1 << 16

// run wakes the readers of streams that have news for the first time. A stream that had news before needs no second look:
// whoever began to wait since then has looked for it first.
func (n *newNames) run(watch *streamstore.PrefixWatch, stop <-chan struct{}) {
	defer watch.Close()
	known := map[streamstore.StreamID]struct{}{}
	var ids []streamstore.StreamID
	for {
		select {
		case <-stop:
			return
		case <-watch.Ready():
		}
		var lost bool
		if ids, lost = watch.Take(ids[:0]); lost {
			n.wakeAll()
			continue
		}
		for _, id := range ids {
			if _, ok := known[id]; ok {
				continue
			}
			if len(known) == maxKnown {
				clear(known)
			}
			known[id] = struct{}{}
			if info, err := n.store.Describe(id); err == nil {
				n.wake(info.Name)
			}
		}
	}
}

func (n *newNames) wake(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.mu.waiting[name] {
		w.wake()
	}
}

func (n *newNames) wakeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, waiters := range n.mu.waiting {
		for w := range waiters {
			w.wake()
		}
	}
}

func (w *nameWaiter) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// await waits until the stream of t has a record at from or behind it, is closed and ends there, or rq.timeout is over. It
// returns where to begin; t.id is 0 if there is still no stream.
func (s *Server) await(ctx context.Context, t *target, rq *readRequest) (from int64, err error) {
	w, err := s.watch(t)
	if err != nil {
		return 0, err
	}
	defer w.close()
	timeout := time.NewTimer(rq.timeout)
	defer timeout.Stop()
	position, clamp := rq.from, rq.clamp
	if t.id == 0 {
		position, clamp = positionInNew(position), true
	}
	for located := false; ; {
		if t.id != 0 && !located {
			if from, err = s.locate(ctx, t.id, position, clamp); err != nil && !errors.Is(err, streamstore.ErrNoStream) {
				return 0, err
			}
			located = err == nil
		}
		if located {
			info, err := s.store.Describe(t.id)
			if err == nil && (info.HighWatermark > from || info.Start > from || info.Closed && info.HighWatermark == info.Next || from >= rq.to) {
				return from, nil
			}
			if err != nil && !errors.Is(err, streamstore.ErrNoStream) {
				return 0, err
			}
			if err != nil {
				return 0, errNoStream(t.name) // deleted while the client waited at an offset of it
			}
		}
		select {
		case <-w.ready():
			err = w.take()
		case <-timeout.C:
			return from, nil
		case <-s.draining:
			return from, nil
		case <-ctx.Done():
			return from, ctx.Err()
		}
		if err != nil {
			return 0, err
		}
	}
}
