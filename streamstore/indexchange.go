package streamstore

import (
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// indexChange is the result of a compaction on its way into the index: extents of a new
// segment take the place of others that hold the same batches. It travels with the next
// commit.
//
// The rows to replace were read a while before. What happens to them until the change
// is sealed into a commit can only be that transactions drop them: the flusher notes
// which (drops), from the commits that were on their way when the change was begun up
// to the very commit that carries it. Only streams found there are looked at again, so
// sealing is short however large the change is.
type indexChange struct {
	segment objectID
	row     objectRow
	removed []streamExtent // in stream and offset order, like added
	added   []streamExtent
	batch   *pebble.Batch // the change of rows, as if nothing were dropped
	used    usage         // the change of use, likewise
	since   drops
	done    chan struct{} // closed when it is durable

	// submitted: it is complete and goes into the next commit. It belongs to the flusher's
	// goroutine, as since does until the change is sealed.
	submitted bool
}

// beginChange starts to note what is dropped, for a change whose extents are read after
// it returns. Called in the flusher's goroutine.
func (f *flusher) beginChange(change *indexChange) {
	change.since = make(drops)
	for _, c := range f.inflight {
		for _, e := range c.entries {
			if e.txn != nil {
				change.since.add(e.txn)
			}
		}
	}
	f.tracked = append(f.tracked, change)
}

// endChange stops that, of a change that is given up or goes into a commit.
func (f *flusher) endChange(change *indexChange) {
	f.tracked = slices.DeleteFunc(f.tracked, func(x *indexChange) bool { return x == change })
}

// trackDrops notes what a transaction that is being sealed drops.
func (f *flusher) trackDrops(m *mutation) {
	for _, change := range f.tracked {
		change.since.add(m)
	}
}

// submitted returns the change that goes into the next commit, nil if there is none.
func (f *flusher) submitted() *indexChange {
	for _, change := range f.tracked {
		if change.submitted {
			return change
		}
	}
	return nil
}

// addChange lets a commit that is being built take along what is not appends: a
// submitted change and the rows of deleted objects.
func (f *flusher) addChange(c *commit) {
	if c.change = f.submitted(); c.change != nil {
		f.endChange(c.change)
	}
	c.forgotten, f.forgotten = f.forgotten, nil
}

// prepare makes the batch and the change of use.
func (x *indexChange) prepare(db *pebble.DB, longRun int64) error {
	x.used = make(usage)
	for _, old := range x.removed {
		x.used.drop(old.extent)
	}
	tally := runTally{usage: x.used, longRun: longRun}
	for _, a := range x.added {
		tally.add(a)
	}
	tally.finish()
	x.batch = db.NewBatch()
	if err := x.batch.Set(objectKey(x.segment), x.row.encode(), nil); err != nil {
		return err
	}
	for _, old := range x.removed {
		if _, kept := x.addedAt(old); kept {
			continue // its row is overwritten
		}
		if err := x.batch.Delete(extentKey(old.id, old.last), nil); err != nil {
			return err
		}
	}
	var value []byte
	for i := range x.added {
		a := &x.added[i]
		value = a.encode(value[:0])
		if err := x.batch.Set(extentKey(a.id, a.last), value, nil); err != nil {
			return err
		}
	}
	return nil
}

// dataLength is the length of the segment's data, in bytes.
func (x *indexChange) dataLength() (n int64) {
	for _, old := range x.removed {
		n += old.length
	}
	return n
}

func (x *indexChange) addedAt(old streamExtent) (int, bool) {
	return slices.BinarySearchFunc(x.added, old, streamExtent.compare)
}

// applyTo adds the change of rows to batch. Extents that were dropped meanwhile are
// taken back.
func (x *indexChange) applyTo(batch *pebble.Batch) error {
	if err := batch.Apply(x.batch, nil); err != nil {
		return err
	}
	var failed error
	x.eachDropped(x.added, func(a streamExtent) {
		if err := batch.Delete(extentKey(a.id, a.last), nil); err != nil {
			failed = err
		}
	})
	return failed
}

// eachDropped calls fn for those of the extents that were dropped meanwhile.
func (x *indexChange) eachDropped(extents []streamExtent, fn func(streamExtent)) {
	for id, to := range x.since {
		i, _ := slices.BinarySearchFunc(extents, streamExtent{id: id, extent: extent{last: -1}}, streamExtent.compare)
		for ; i < len(extents) && extents[i].id == id && extents[i].last < to; i++ {
			fn(extents[i])
		}
	}
}

// addUsage adds how the change alters the use of objects. What was dropped meanwhile is
// accounted for by the commit that dropped it.
func (x *indexChange) addUsage(u usage) {
	for o, d := range x.used {
		u.add(o, d)
	}
	x.eachDropped(x.removed, func(old streamExtent) { u.add(old.object, objectDelta{live: old.length, extents: 1}) })
	x.eachDropped(x.added, func(a streamExtent) { u.drop(a.extent) })
}

// finish tells that the change is durable; nil is none.
func (x *indexChange) finish() {
	if x != nil {
		close(x.done)
		_ = x.batch.Close() // only returns memory
	}
}

// objectRow is the row of the commit's own object.
func (c *commit) objectRow() objectRow {
	return objectRow{bytes: c.header.dataLength, created: c.header.created}
}

// deriveObjects adds the changes that concern objects: the commit's own, if it holds
// records, the result of a compaction, and objects that were deleted.
func (c *commit) deriveObjects(batch *pebble.Batch) error {
	if c.header.dataLength > 0 {
		row := c.objectRow()
		if err := batch.Set(objectKey(logObjectID(c.header.number)), row.encode(), nil); err != nil {
			return err
		}
	}
	for _, o := range c.forgotten {
		if err := batch.Delete(objectKey(o), nil); err != nil {
			return err
		}
	}
	if c.change == nil {
		return nil
	}
	return c.change.applyTo(batch)
}
