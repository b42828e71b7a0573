package streamstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/objstore"
)

// catalogue knows the objects of the bucket that hold records and how much of each is
// in use: live is what extents find. It chooses what to compact and tells what can be
// deleted.
//
// Use is not stored, it follows from the extents. A scan of a snapshot taken before the
// first commit brings it to memory in the background, while commits that complete add
// what they change at once: addition does not care for the order. Until the scan is done
// nothing is chosen.
//
// An object without a live byte stays that way, because extents of a log object are made
// by its own commit alone and those of a segment by the commit that brings it. So what
// is dead as of a durable commit is dead for every later writer too, and a writer that
// was fenced without knowing it can delete nothing that its successor needs.
type catalogue struct {
	store *Store
	ready chan struct{} // closed when the use of all objects is known

	mu struct {
		sync.Mutex
		objects map[objectID]*objectUse
		loaded  bool
	}
}

// objectUse is an object's row and its use.
type objectUse struct {
	objectRow
	objectDelta
	deadSince int64 // ms since 1970: no live byte since then; 0 while there are some
	damaged   bool  // a part of it cannot be read: compaction leaves it alone
}

// objectDelta is a use of an object, or a change of it.
type objectDelta struct {
	live    int64 // bytes of batches that extents find
	extents int64 // how many
	// short is how many of the live bytes lie in short runs, which compaction would
	// move. What trims take from a run is not told apart, so it is an upper bound.
	short int64
}

// usage is the change of use per object.
type usage map[objectID]objectDelta

func (u usage) add(o objectID, d objectDelta) {
	sum := u[o]
	sum.live += d.live
	sum.extents += d.extents
	sum.short += d.short
	u[o] = sum
}

func (u usage) drop(x extent) { u.add(x.object, objectDelta{live: -x.length, extents: -1}) }

// runTally adds extents, given in stream and offset order, to a usage. Extents of one
// stream that lie behind each other in one object are a run.
type runTally struct {
	usage   usage
	longRun int64
	last    streamExtent
	run     objectDelta // that ends with last
}

func (t *runTally) add(x streamExtent) {
	if t.run.extents > 0 && (t.last.id != x.id || !follows(t.last.extent, x.extent)) {
		t.finish()
	}
	t.last = x
	t.run.live += x.length
	t.run.extents++
}

// finish ends the last run.
func (t *runTally) finish() {
	if t.run.extents == 0 {
		return
	}
	if t.run.live < t.longRun {
		t.run.short = t.run.live
	}
	t.usage.add(t.last.object, t.run)
	t.run = objectDelta{}
}

// drops are the extents that transactions made obsolete: of each stream those whose
// last offset is lower than its number. A deleted stream has droppedAll.
type drops map[StreamID]int64

const droppedAll = math.MaxInt64

func (d drops) add(m *mutation) {
	for _, t := range m.trims {
		d[t.id] = max(d[t.id], t.to)
	}
	for _, id := range m.deletes {
		d[id] = droppedAll
	}
}

func (d drops) has(id StreamID, last int64) bool { return last < d[id] }

func newCatalogue(s *Store) *catalogue {
	c := &catalogue{store: s, ready: make(chan struct{})}
	c.mu.objects = make(map[objectID]*objectUse)
	return c
}

// load adds what the snapshot holds; it closes the snapshot. claim is the number of this
// writer's first log object.
func (c *catalogue) load(ctx context.Context, snapshot *pebble.Snapshot, claim uint64) {
	rows, used, err := c.scan(ctx, snapshot)
	if err = errors.Join(err, snapshot.Close()); err == nil {
		err = c.findEmpty(ctx, rows, claim)
	}
	if err != nil {
		if ctx.Err() == nil {
			c.store.log.Error("the use of the bucket's objects cannot be told: nothing is compacted or deleted until the next start", zap.Error(err))
		}
		return
	}
	now := c.store.opts.Now().UnixMilli()
	c.mu.Lock()
	defer c.mu.Unlock()
	for o, row := range rows {
		c.entryLocked(o).objectRow = row
	}
	for o, d := range used {
		c.addLocked(o, d, now)
	}
	for _, use := range c.mu.objects {
		use.bytes = max(use.bytes, use.live) // of objects that are older than their rows
		if use.live == 0 {
			use.deadSince = now
		}
	}
	c.mu.loaded = true
	close(c.ready)
}

func (c *catalogue) scan(ctx context.Context, snapshot *pebble.Snapshot) (rows map[objectID]objectRow, used usage, err error) {
	rows, used = make(map[objectID]objectRow), make(usage)
	err = eachRow(ctx, snapshot, prefixObject, func(key, value []byte) error {
		o, err := decodeObjectKey(key)
		if err == nil {
			rows[o], err = decodeObjectRow(value)
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("object rows: %w", err)
	}
	tally := runTally{usage: used, longRun: c.store.opts.compaction.longRun}
	err = eachRow(ctx, snapshot, prefixExtent, func(key, value []byte) error {
		x, err := decodeExtent(key, value)
		tally.add(streamExtent{StreamID(keyNumber(key, 0)), x})
		return err
	})
	tally.finish()
	if err != nil {
		return nil, nil, fmt.Errorf("extent rows: %w", err)
	}
	return rows, used, nil
}

// eachRow calls fn for all rows under a prefix.
func eachRow(ctx context.Context, r pebble.Reader, prefix byte, fn func(key, value []byte) error) (err error) {
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Error(), iter.Close()) }()
	for valid := iter.First(); valid; valid = iter.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(iter.Key(), iter.Value()); err != nil {
			return err
		}
	}
	return nil
}

// findEmpty adds the log objects up to the claim that have no row, because they hold no
// records: claims, commits of metadata alone, what fenced writers left behind. They are
// to be deleted when checkpoints cover them.
func (c *catalogue) findEmpty(ctx context.Context, rows map[objectID]objectRow, claim uint64) error {
	s := c.store
	return retry(ctx, s.log, "listing the commit log", func() error {
		return s.opts.Bucket.List(ctx, logDir(s.opts.Shard), "", func(info objstore.ObjectInfo) error {
			number, ok := parseLogName(s.opts.Shard, info.Name)
			if !ok || number > claim {
				return nil
			}
			o := logObjectID(number)
			if _, known := rows[o]; !known {
				rows[o] = objectRow{}
			}
			return nil
		})
	})
}

func (c *catalogue) entryLocked(o objectID) *objectUse {
	use := c.mu.objects[o]
	if use == nil {
		use = &objectUse{}
		c.mu.objects[o] = use
	}
	return use
}

func (c *catalogue) addLocked(o objectID, d objectDelta, now int64) {
	use := c.entryLocked(o)
	use.live += d.live
	use.extents += d.extents
	use.short += d.short
	if use.deadSince = 0; use.live == 0 {
		use.deadSince = now
	}
}

// complete takes in a commit that is durable and applied.
func (c *catalogue) complete(cm *commit, u usage) {
	now := c.store.opts.Now().UnixMilli()
	c.mu.Lock()
	defer c.mu.Unlock()
	own := logObjectID(cm.header.number)
	c.entryLocked(own).objectRow = cm.objectRow()
	c.addLocked(own, objectDelta{}, now)
	if cm.change != nil {
		c.entryLocked(cm.change.segment).objectRow = cm.change.row
		c.addLocked(cm.change.segment, objectDelta{}, now)
	}
	for o, d := range u {
		c.addLocked(o, d, now)
	}
}

// usageOf is what a commit changes. It reads the rows that the commit drops, so it
// belongs right before the commit is applied.
func (s *Store) usageOf(c *commit) (usage, error) {
	u, dropped := make(usage), make(drops)
	for _, e := range c.entries {
		if e.txn != nil {
			dropped.add(e.txn)
		}
	}
	tally := runTally{usage: u, longRun: s.opts.compaction.longRun}
	for _, x := range c.extents {
		if !dropped.has(x.id, x.last) {
			tally.add(x)
		}
	}
	tally.finish()
	if c.change != nil {
		c.change.addUsage(u)
	}
	return u, s.dropUsage(u, dropped)
}

// dropUsage subtracts the extents in the database that are dropped.
func (s *Store) dropUsage(u usage, dropped drops) (err error) {
	if len(dropped) == 0 {
		return nil
	}
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixExtent}, UpperBound: []byte{prefixExtent + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Error(), iter.Close()) }()
	for id, to := range dropped {
		lower, _ := streamSpan(prefixExtent, id)
		for valid := iter.SeekGE(lower); valid; valid = iter.Next() {
			if StreamID(keyNumber(iter.Key(), 0)) != id || int64(keyNumber(iter.Key(), 1)) >= to {
				break
			}
			x, err := decodeExtent(iter.Key(), iter.Value())
			if err != nil {
				return fmt.Errorf("extent row of stream id %d: %w", id, err)
			}
			u.drop(x)
		}
	}
	return nil
}

// dead returns the objects without a live byte that may be deleted at this time: log
// objects only below covered.
func (c *catalogue) dead(now time.Time, grace time.Duration, covered uint64) (list []objectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.loaded {
		return nil
	}
	for o, use := range c.mu.objects {
		if use.live == 0 && now.Sub(time.UnixMilli(use.deadSince)) >= grace && (o.kind == objectSegment || o.number < covered) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, objectID.compare)
	return list
}

func (c *catalogue) forget(o objectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.objects, o)
}

func (c *catalogue) markDamaged(o objectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entryLocked(o).damaged = true
}

// compacted: what lay in short runs of the objects has been moved, or cannot be.
func (c *catalogue) compacted(objects []objectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range objects {
		if use := c.mu.objects[o]; use != nil {
			use.short = 0
		}
	}
}

// catalogueTotals sums the catalogue up.
type catalogueTotals struct {
	objects     int
	bytes, live int64
	backlog     int64 // live bytes in short runs of the log
}

func (c *catalogue) totals() (t catalogueTotals) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.objects = len(c.mu.objects)
	for o, use := range c.mu.objects {
		t.bytes += use.bytes
		t.live += use.live
		if o.kind == objectLog {
			t.backlog += use.candidate()
		}
	}
	return t
}

// candidate is how many bytes a compaction would move.
func (u *objectUse) candidate() int64 {
	if u.damaged {
		return 0
	}
	return max(0, min(u.short, u.live))
}

// compaction is a plan: merge runs into a new one of the given level.
type compaction struct {
	level uint64
	runs  []compactionRun
	// all: move everything that is live, not only short runs.
	all   bool
	bytes int64 // of the objects
}

// compactionRun is a sequence of objects in ascending stream and offset order.
type compactionRun []candidateObject

type candidateObject struct {
	id objectID
	objectUse
}

func (p *compaction) objects() (list []objectID) {
	for _, run := range p.runs {
		for _, o := range run {
			list = append(list, o.id)
		}
	}
	return list
}

func (p *compaction) add(run compactionRun) {
	p.runs = append(p.runs, run)
	for _, o := range run {
		p.bytes += o.bytes
	}
}

// due yields the compactions that are due, the one to make first.
func (c *catalogue) due(now time.Time) iter.Seq[*compaction] {
	return func(yield func(*compaction) bool) {
		levels := c.levels()
		if len(levels) == 0 {
			return
		}
		policy := &c.store.opts.compaction
		offer := func(p *compaction) (more bool) { return p == nil || yield(p) }
		// The log comes second: what is due in a level was made by fanout compactions of the
		// level below, so it holds the log up for a while only, but under a load that keeps
		// compaction busy the log would keep the levels from ever being merged.
		for level, objects := range levels[1:] {
			if !offer(policy.pickLevel(uint64(level+1), objects)) {
				return
			}
		}
		if offer(policy.pickLog(levels[0], now)) {
			offer(policy.pickRewrite(slices.Concat(levels...), now))
		}
	}
}

// levels copies the live objects, by level; nil if they are not known yet.
func (c *catalogue) levels() [][]candidateObject {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.loaded {
		return nil
	}
	levels := make([][]candidateObject, 1)
	for o, use := range c.mu.objects {
		if use.live <= 0 || use.damaged || use.level > maxLevel {
			continue
		}
		for uint64(len(levels)) <= use.level {
			levels = append(levels, nil)
		}
		levels[use.level] = append(levels[use.level], candidateObject{o, *use})
	}
	for _, objects := range levels {
		slices.SortFunc(objects, func(a, b candidateObject) int { return a.id.compare(b.id) })
	}
	return levels
}

// maxLevel bounds what a damaged row can make of the number of levels; with a fanout of
// eight no store comes near it.
const maxLevel = 64

// compactionPolicy says when what is compacted.
type compactionPolicy struct {
	interval time.Duration // between two looks; default: Options.CompactionInterval
	// The log's short runs are due when they have so many bytes, lie in so many
	// objects, have so many extents, or, if there are at least ageObjects, are so old.
	bytes      int64 // default: Options.CompactionBytes
	objects    int
	extents    int64
	age        time.Duration
	ageObjects int
	fanout     int           // so many runs of a level become one of the next
	longRun    int64         // runs of one stream of this size stay where they are
	output     int64         // size of a segment; default: from Options.CompactionMemory
	rewriteAge time.Duration // of objects that are mostly dead
}

// maxSegmentBytes is the size of a segment where memory allows it.
const maxSegmentBytes = 64 << 20

func defaultCompactionPolicy(rewriteAge time.Duration) compactionPolicy {
	return compactionPolicy{
		objects:    1024,
		extents:    2 << 20,
		age:        24 * time.Hour,
		ageObjects: 16,
		fanout:     8,
		longRun:    512 << 10,
		rewriteAge: rewriteAge,
	}
}

func (p *compactionPolicy) pickLog(objects []candidateObject, now time.Time) *compaction {
	plan := &compaction{level: 1}
	var bytes, extents int64
	oldest := now
	for _, o := range objects {
		if o.candidate() == 0 || o.id.kind != objectLog {
			continue
		}
		if bytes >= p.bytes || extents >= p.extents || len(plan.runs) >= 4*p.objects {
			break // the rest another time
		}
		plan.add(compactionRun{o})
		bytes += o.candidate()
		extents += o.extents
		if created := time.UnixMilli(o.created); created.Before(oldest) {
			oldest = created
		}
	}
	old := len(plan.runs) >= p.ageObjects && now.Sub(oldest) >= p.age
	if bytes >= p.bytes || extents >= p.extents || len(plan.runs) >= p.objects || old {
		return plan
	}
	return nil
}

func (p *compactionPolicy) pickLevel(level uint64, objects []candidateObject) *compaction {
	runs := make(map[uint64]compactionRun)
	for _, o := range objects {
		if o.candidate() > 0 {
			runs[o.run] = append(runs[o.run], o)
		}
	}
	if len(runs) < p.fanout {
		return nil
	}
	plan := &compaction{level: level + 1}
	numbers := make([]uint64, 0, len(runs))
	for number := range runs {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	for _, number := range numbers[:min(len(numbers), 4*p.fanout)] {
		plan.add(runs[number])
	}
	return plan
}

// pickRewrite chooses objects that are less than half alive, if that frees enough.
func (p *compactionPolicy) pickRewrite(objects []candidateObject, now time.Time) *compaction {
	var wasteful []candidateObject
	var total, waste int64
	for _, o := range objects {
		total += o.bytes
		if 2*o.live < o.bytes && now.Sub(time.UnixMilli(o.created)) >= p.rewriteAge {
			wasteful = append(wasteful, o)
			waste += o.bytes - o.live
		}
	}
	if waste == 0 || waste < min(p.output, total/10) {
		return nil
	}
	slices.SortStableFunc(wasteful, func(a, b candidateObject) int { return cmp.Compare(b.bytes-b.live, a.bytes-a.live) })
	plan := &compaction{level: 1, all: true}
	var bytes, extents int64
	for _, o := range wasteful {
		if bytes >= p.bytes || extents >= p.extents || len(plan.runs) >= 4*p.objects {
			break
		}
		plan.add(compactionRun{o})
		plan.level = max(plan.level, o.level)
		bytes += o.live
		extents += o.extents
	}
	return plan
}
