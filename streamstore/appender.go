package streamstore

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// appendQueue holds the appends that wait for the appender. push numbers them,
// so append numbers are dense and their order is the queue's.
type appendQueue struct {
	signal chan struct{} // capacity 1: there is something to take

	mu struct {
		sync.Mutex
		next    uint64 // append number of the next push
		waiting []*tailEntry
		closed  error
	}
}

// push numbers an entry and queues it. Called with the stream's lock held, which
// makes a stream's offset order its append order.
func (q *appendQueue) push(e *tailEntry) error {
	q.mu.Lock()
	if q.mu.closed != nil {
		defer q.mu.Unlock()
		return q.mu.closed
	}
	e.number = q.mu.next
	q.mu.next++
	q.mu.waiting = append(q.mu.waiting, e)
	q.mu.Unlock()
	select {
	case q.signal <- struct{}{}:
	default:
	}
	return nil
}

// take moves what waits into group, which must be empty, and returns both
// slices swapped.
func (q *appendQueue) take(group []*tailEntry) []*tailEntry {
	q.mu.Lock()
	defer q.mu.Unlock()
	group, q.mu.waiting = q.mu.waiting, group
	return group
}

// close makes every later push fail with err.
func (q *appendQueue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed == nil {
		q.mu.closed = err
	}
}

// nextNumber is the append number after the newest.
func (q *appendQueue) nextNumber() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.next
}

// appender is the group commit: one goroutine writes what is waiting as one
// Pebble batch, a second one waits for its sync, so that building a group
// overlaps the sync of the one before. Groups are acknowledged in order, and
// none after a sync has failed: what the disk dropped then is unknown, so a later
// sync that succeeds proves nothing about it.
type appender struct {
	store   *Store
	applied atomic.Uint64 // append number after the last that is in the database
	syncing chan appendGroup
}

type appendGroup struct {
	entries []*tailEntry
	batch   *pebble.Batch
}

const (
	// maxGroupBytes bounds one Pebble batch of appends; well below half a
	// memtable, where Pebble would flush the memtable first.
	maxGroupBytes = 8 << 20
	// maxSyncingGroups bounds the groups between write and sync.
	maxSyncingGroups = 4
)

// Kinds of tail entries. A tail row's value is the kind (1 byte), and
//
//	append:       stream id (8 bytes, big-endian), the record batch
//	both:         the same, then what is behind the kind of a transaction
//	transaction:  see mutation.encode
const (
	tailAppend      = 'a'
	tailBoth        = 'b'
	tailTransaction = 'm'

	tailAppendHeader = 1 + 8
)

func (a *appender) run(stop <-chan struct{}) {
	defer close(a.syncing)
	var group []*tailEntry
	for stopping := false; !stopping; {
		select {
		case <-a.store.queue.signal:
		case <-stop:
			stopping = true // once more: what is queued is still written
		}
		group = a.store.queue.take(group[:0])
		for rest := group; len(rest) > 0; {
			n := groupLength(rest)
			if err := a.write(rest[:n]); err != nil {
				a.store.fail(fmt.Errorf("%w: writing to %s: %w", ErrFailed, a.store.opts.Dir, err))
				return
			}
			rest = rest[n:]
		}
		clear(group)
	}
}

// groupLength is how many of the entries make the next group, at least one.
func groupLength(entries []*tailEntry) int {
	bytes := int64(0)
	for i, e := range entries {
		if bytes += e.size; bytes > maxGroupBytes && i > 0 {
			return i
		}
	}
	return len(entries)
}

// write applies a group to the database and passes it on to be synced, if it
// needs that.
func (a *appender) write(group []*tailEntry) error {
	s := a.store
	bytes, appended, wantSync := int64(0), int64(0), s.opts.Durability == Local
	for _, e := range group {
		bytes += e.size
		appended += int64(len(e.batch))
		wantSync = wantSync || e.wantSync
	}
	batch := s.db.NewBatchWithSize(int(bytes))
	for _, e := range group {
		if err := a.stage(batch, e); err != nil {
			return err
		}
	}
	entries := append([]*tailEntry(nil), group...)
	s.metrics.groups.Inc()
	s.metrics.groupAppends.Add(float64(len(entries)))
	s.traffic.appended.Add(appended)
	if !wantSync {
		if err := s.db.Apply(batch, pebble.NoSync); err != nil {
			return err
		}
		a.finishApply(entries)
		return batch.Close()
	}
	if err := s.db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
		return err
	}
	a.finishApply(entries)
	a.syncing <- appendGroup{entries, batch}
	return nil
}

func (a *appender) stage(batch *pebble.Batch, e *tailEntry) error {
	if e.txn != nil {
		if err := batch.Set(tailKey(e.number), e.encodeWithTxn(), nil); err != nil {
			return err
		}
		return e.txn.applyTo(batch, a.store.db)
	}
	op := batch.SetDeferred(1+8, tailAppendHeader+len(e.batch))
	op.Key[0] = prefixTail
	binary.BigEndian.PutUint64(op.Key[1:], e.number)
	op.Value[0] = tailAppend
	binary.BigEndian.PutUint64(op.Value[1:], uint64(e.stream.id))
	copy(op.Value[tailAppendHeader:], e.batch)
	return op.Finish()
}

// encodeWithTxn makes the tail row of an entry that has a transaction.
func (e *tailEntry) encodeWithTxn() []byte {
	if e.stream == nil {
		return e.txn.encode()
	}
	b := append(make([]byte, 0, tailAppendHeader+len(e.batch)+64+len(e.txn.rows)), tailBoth)
	b = binary.BigEndian.AppendUint64(b, uint64(e.stream.id))
	b = append(b, e.batch...)
	return append(b, e.txn.encode()[1:]...)
}

// finishApply makes a group visible to the flusher and to reads from the
// database.
func (a *appender) finishApply(entries []*tailEntry) {
	a.applied.Store(entries[len(entries)-1].number + 1)
	for _, e := range entries {
		if e.txn != nil {
			for _, st := range e.txn.pinned {
				a.store.release(st)
			}
			e.txn.pinned = nil
		}
	}
	a.store.tailCache.trim(a.applied.Load())
	a.store.flusher.arrive(entries)
}

// runSync acknowledges groups when their sync is done.
func (a *appender) runSync() {
	for group := range a.syncing {
		err := group.batch.SyncWait()
		if err != nil {
			a.store.fail(fmt.Errorf("%w: syncing the log in %s: %w", ErrFailed, a.store.opts.Dir, err))
		}
		if a.store.Err() != nil {
			continue
		}
		_ = group.batch.Close() // only returns memory
		if err := a.store.witness.note(group.entries[len(group.entries)-1].number + 1); err != nil {
			a.store.log.Warn("noting how far the log is synced", zap.Error(err))
		}
		for _, e := range group.entries {
			if e.synced != nil {
				close(e.synced)
			}
			if a.store.opts.Durability == Local {
				e.becomeDurable()
			}
		}
	}
}

// becomeDurable moves the high watermark over the entry and acknowledges it.
// Called in append order.
func (e *tailEntry) becomeDurable() {
	if st := e.stream; st != nil {
		st.mu.Lock()
		st.mu.hw = e.last + 1
		st.notifyLocked()
		st.mu.Unlock()
	}
	if e.txn != nil {
		for _, st := range e.txn.renamed {
			st.mu.Lock()
			st.notifyLocked()
			st.mu.Unlock()
		}
		e.txn.renamed = nil
	}
	close(e.durable)
}
