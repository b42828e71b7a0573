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
		batch, doubtful := g.takeBatch(), g.doubtful
		g.mu.Unlock()
		wrote, err := g.write(batch, doubtful)
		if err != nil {
			g.c.m.storeFails.Inc()
			g.c.log.Warn("group rows could not be written", zap.String("group", g.name), zap.Error(err))
		}
		g.mu.Lock()
		g.doubtful = err != nil || g.doubtful && !wrote
		confirming := g.confirming
		g.confirming = nil
		for _, w := range batch {
			w.done(err)
		}
		for _, done := range confirming {
			done(err)
		}
	}
	g.writing, g.queue = false, nil
	g.c.leave(g)
}

// Confirm answers when all is durable that [Coordinator.Committed] and [Coordinator.AllCommitted] have returned for a
// group before the call: the storage shows changes before they are durable, and one that is lost with the broker must not
// have been seen. It waits for the write that is on its way, if there is one, and not for those queued behind it. Errors
// are those of the storage: what was returned may be lost, and is to be read again.
func (c *Coordinator) Confirm(group string) *Pending[*kafkaproto.Error] {
	g := c.lookup(group)
	if g == nil {
		return answered[*kafkaproto.Error](nil)
	}
	defer c.leave(g)
	p := newPending[*kafkaproto.Error]()
	done := func(err error) {
		if err != nil {
			p.answer(asKafkaError(err))
			return
		}
		p.answer(nil)
	}
	switch {
	case g.writing:
		g.confirming = append(g.confirming, done)
	case g.doubtful:
		g.enqueue(&write{done: done})
	default:
		done(nil)
	}
	return p
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

// write makes the changes of a batch and returns whether there were any. If an earlier write has failed, which may be
// visible and not durable, there always are: when the storage has made a later change, it has made or dropped that one.
func (g *group) write(batch []*write, doubtful bool) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(g.c.ctx, g.c.opts.CommitTimeout)
	defer cancel()
	var changes []Change
	for _, w := range batch {
		changes = append(changes, w.changes...)
		if w.prepare == nil {
			continue
		}
		prepared, err := w.prepare()
		if err != nil {
			return false, err
		}
		changes = append(changes, prepared...)
	}
	if len(changes) == 0 && doubtful {
		changes = append(changes, Change{Key: offsetsKey(g.name)}) // no row has this key
	}
	if len(changes) == 0 {
		return false, nil
	}
	return true, g.c.storage.Commit(ctx, changes)
}
