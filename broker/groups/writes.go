package groups

import (
	"context"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// write is a change of a group's rows on its way to the storage.
type write struct {
	changes []Change
	// prepare, if set, makes the changes when all writes before this one have returned. It is called without the
	// group's lock.
	prepare func() ([]Change, error)
	// done is called with the group locked.
	done func(error)
}

// maxWriteBytes bounds the writes that are taken together, by the size of their rows.
const maxWriteBytes = 4 << 20

// enqueue writes w after the writes that are queued already. It does not wait, but for a coordinator that is closed,
// where it fails at once.
func (g *group) enqueue(w *write) {
	if g.c.closed.Load() {
		w.done(kafkaproto.ErrCoordinatorNotAvailable)
		return
	}
	g.queue = append(g.queue, w)
	if !g.writing {
		g.writing = true
		g.c.keep(g)
		g.c.work.Go(g.writeAll)
	}
}

// writeAll writes until the queue is empty: one batch at a time, so that rows change in the order of the queue. What
// arrives during a write shares the next.
func (g *group) writeAll() {
	g.mu.Lock()
	for len(g.queue) > 0 {
		batch := g.takeBatch()
		g.mu.Unlock()
		err := g.c.write(batch)
		if err != nil {
			g.c.m.storeFails.Inc()
			g.c.log.Warn("group rows could not be written", zap.String("group", g.name), zap.Error(err))
		}
		g.mu.Lock()
		for _, w := range batch {
			w.done(err)
		}
	}
	g.writing, g.queue = false, nil
	g.c.leave(g)
}

// takeBatch takes the writes that come next. One that is yet to be prepared is alone.
func (g *group) takeBatch() []*write {
	n, bytes := 0, 0
	for n < len(g.queue) && (n == 0 || g.queue[n].prepare == nil && bytes < maxWriteBytes) {
		w := g.queue[n]
		n++
		for _, c := range w.changes {
			bytes += len(c.Key) + len(c.Value)
		}
		if w.prepare != nil {
			break
		}
	}
	batch := g.queue[:n:n]
	g.queue = g.queue[n:]
	return batch
}

func (c *Coordinator) write(batch []*write) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.opts.CommitTimeout)
	defer cancel()
	var changes []Change
	for _, w := range batch {
		changes = append(changes, w.changes...)
		if w.prepare == nil {
			continue
		}
		prepared, err := w.prepare()
		if err != nil {
			return err
		}
		changes = append(changes, prepared...)
	}
	if len(changes) == 0 {
		return nil
	}
	return c.storage.Commit(ctx, changes)
}
