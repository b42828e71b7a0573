package streamstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/objstore"
)

// Checkpoints bound what a start with an empty disk reads, and with that which log
// objects must be kept.
//
// A checkpoint is a base, the rows of the database as tables, and bundles of the state
// sections of the commits since. Most checkpoints add one bundle to the one before, so
// their cost is what has changed. When the bundles have become 1/baseShare of the base, a
// new base is written; so a start reads little more than the live metadata, and the bases
// cost a few times the changes that led to them (at most baseShare+1). To a start a byte of
// a bundle is far dearer than one of a table: its rows are replayed one by one, tables are
// taken as they are. Bundles of one size are merged, so that there are few. A new base is
// also written after Options.CheckpointBaseCommits, because of the next rule.
//
// Why a base is right although the database runs ahead of the log. The base is a
// snapshot of the database taken at any time. Its rows e, g and p are those of commit N,
// the position in the snapshot, because a commit's completion changes them and the
// position at once. Its rows n, s and k are those after all appends below A, the end of
// the tail in the snapshot, because a transaction changes them and the tail at once.
// Replaying the commits after N over it gives the state of each later commit M whose
// appends go to A or beyond: a row e, g or p has seen exactly the commits up to M. A row
// n, s or k that an append between N's end and M's end changes has the value of the
// last such change, because each change sets or deletes the whole row and replay ends
// with that change; a row that none of them changes has been the same since N, because
// changes after N's end and below A are among them. So the manifest, which says A, is
// written when the commits up to A are durable.
//
// Two checkpoints are kept (keep): the newest, and the newest on another base, so that no
// damaged object breaks both. Log objects below the second may be deleted (coveredBelow).
// While there is one base only, the log stays as a whole, and a start that finds the base
// damaged replays it.
//
// Deletion. Checkpoints that are older than the newest and not kept are deleted, with the
// parts that no other manifest names. Two things must hold for that, and for the deletion
// of log objects, to be safe against others:
//
//   - A reader that found an old checkpoint has Options.DeleteGrace to read it.
//   - A writer that was fenced and does not know it yet must not delete what a new
//     owner builds upon. The new owner builds upon the newest checkpoint that it finds
//     after its claim, and begins with a base if that one is damaged. So nothing is
//     deleted before a commit whose upload began after the two that are kept were seen
//     has become durable: whoever claims the shard does so after that commit, finds these
//     two checkpoints, and names parts of the newer one, or of later ones, only. From
//     then on it does not matter when the deletion happens.
//
// A fenced writer may still publish a checkpoint that was under way. The owner does not
// count one that it has neither made nor found after its claim, because the parts may be
// gone, and the next owner looks whether they are there.
//
// Parts whose manifest was never written, after a crash or an error, stay behind. They
// are not looked for here: CollectGarbage removes them.
type checkpointer struct {
	store  *Store
	signal chan struct{} // capacity 1: a commit was completed that makes a checkpoint due
	loaded chan struct{} // closed when the checkpoints in the bucket are known

	mu struct {
		sync.Mutex
		pending []byte // bundle body of the newest commits
		after   uint64 // commit before the first in pending
		newest  position
		commits int   // since the newest checkpoint
		bytes   int64 // of their state sections

		proved  proof  // of the newest pair that may be relied upon
		waiting proof  // of a later pair; waits to be found true
		next    proof  // of a still later one, if waiting still waited when that was seen
		covered uint64 // see coveredBelow
		created int64  // of the newest checkpoint, ms since 1970; 0 if there is none
	}

	// work serialises the making of checkpoints and guards what follows: who has put a
	// token into it may go on. It is held across I/O, and no mutex.
	work      chan struct{}
	newest    *manifest // to build upon; nil: begin with a base
	sequence  uint64    // of the next part's name
	lastTried time.Time
	backoff   time.Duration

	found     []uint64             // commit numbers of those in the bucket after the claim
	manifests map[uint64]*manifest // of those in the bucket, as far as known; nil: damaged
	obsolete  map[uint64]time.Time // since when a checkpoint is not one of the two that are kept
	bad       []partName           // parts found damaged
	noted     []uint64             // damaged checkpoints in the row "l damaged"
	doomed    []string             // parts of deleted checkpoints, still to be deleted
}

// proof says when two checkpoints may be relied upon, so that what they make obsolete can
// be deleted. The zero value is that of none.
type proof struct {
	newest  uint64 // commit number of the newest checkpoint
	other   uint64 // of the other that is kept, 0: there is none
	covered uint64 // log objects below this are not needed
	fence   uint64 // a durable commit of this number or higher proves it
}

// has reports whether a checkpoint is one of the two.
func (p *proof) has(number uint64) bool { return number == p.newest || number == p.other }

func (p *proof) samePair(q *proof) bool { return p.newest == q.newest && p.other == q.other }

// kept are the checkpoints that must stay.
type kept struct {
	newest *manifest // nil: none can be read
	other  *manifest // the newest on another base; while there is none, the newest but one; or nil
}

// keep chooses which of the checkpoints of these commits, in ascending order, must stay.
// read returns nil for one that does not count.
func keep(numbers []uint64, read func(number uint64) (*manifest, error)) (k kept, err error) {
	for _, number := range slices.Backward(numbers) {
		m, err := read(number)
		switch {
		case err != nil:
			return k, err
		case m == nil:
		case k.newest == nil:
			k.newest = m
		case m.base != k.newest.base:
			k.other = m
			return k, nil
		case k.other == nil:
			k.other = m
		}
	}
	return k, nil
}

// twoBases: no damaged object breaks both.
func (k *kept) twoBases() bool { return k.other != nil && k.other.base != k.newest.base }

// covered is the number below which log objects are not needed to rebuild the shard, 0 if
// all are.
func (k *kept) covered() uint64 {
	if !k.twoBases() {
		return 0
	}
	return k.other.position.number
}

// proof is the one that a commit of the number fence gives.
func (k *kept) proof(fence uint64) proof {
	p := proof{newest: k.newest.position.number, covered: k.covered(), fence: fence}
	if k.other != nil {
		p.other = k.other.position.number
	}
	return p
}

const (
	// partTarget is the size at which a part is closed.
	partTarget = 32 << 20
	// maxPartBytes bounds a part: one with a single huge state section or row.
	maxPartBytes = 4 << 30
	// minBaseFactor: bundles up to so many times Options.CheckpointBytes do not make a
	// new base due.
	minBaseFactor = 2
	// baseShare: larger ones, of this part of the base, do.
	baseShare = 4
	// maxPendingBytes bounds the state sections kept in memory; what is dropped is read
	// back from the log.
	maxPendingBytes = 16 << 20
	// maxReadBack: with more log objects to read than this, a base is made instead.
	maxReadBack = 4096
	// bundleFanout bundles of one level become one of the next.
	bundleFanout = 8

	checkpointBackoffMin = time.Second
	checkpointBackoffMax = 5 * time.Minute
)

func newCheckpointer(s *Store) *checkpointer {
	return &checkpointer{
		store:     s,
		signal:    make(chan struct{}, 1),
		loaded:    make(chan struct{}),
		work:      make(chan struct{}, 1),
		manifests: make(map[uint64]*manifest),
		obsolete:  make(map[uint64]time.Time),
	}
}

// begin tells the position of the claim. Nothing runs yet.
func (c *checkpointer) begin(claim position) {
	c.mu.after, c.mu.newest = claim.number, claim
}

// committed takes the state section of a commit that is durable and applied. Called in
// commit order.
func (c *checkpointer) committed(h *commitHeader, compressed []byte) {
	c.mu.Lock()
	if len(c.mu.pending) > 0 && len(c.mu.pending)+commitHeaderSize+len(compressed) > maxPendingBytes {
		c.mu.pending, c.mu.after = nil, h.previous
	}
	c.mu.pending = appendSection(c.mu.pending, h, compressed)
	c.mu.newest = positionOf(h)
	c.mu.commits++
	c.mu.bytes += int64(commitHeaderSize + len(compressed))
	due := c.dueLocked()
	c.mu.Unlock()
	if due {
		c.wake()
	}
}

func (c *checkpointer) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// dueLocked: enough has changed for a checkpoint.
func (c *checkpointer) dueLocked() bool {
	return c.mu.bytes >= c.store.opts.CheckpointBytes || c.mu.commits >= c.store.opts.CheckpointCommits
}

// coveredBelow is the number below which log objects are not needed to rebuild the
// shard, even if any object of a checkpoint is damaged: the commit of the second one that
// is kept, whose object itself is kept, because it proves which log a checkpoint belongs
// to. 0 until there are two bases.
func (s *Store) coveredBelow() uint64 {
	c := s.checkpoints
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked()
	return c.mu.covered
}

// run is the checkpointer's goroutine. It ends when ctx does or the store fails.
func (c *checkpointer) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.store.background(func() {
		select {
		case <-c.store.failed:
		case <-ctx.Done():
		}
		cancel()
	})
	if err := c.load(ctx); err != nil {
		return // ctx ended
	}
	close(c.loaded)
	for {
		timer := time.NewTimer(c.untilDue())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.signal:
			timer.Stop()
		case <-timer.C:
		}
		if c.untilDue() <= 0 {
			if err := c.make(ctx); err != nil && ctx.Err() == nil {
				c.store.log.Warn("making a checkpoint failed, trying again later", zap.Error(err))
			}
		}
		c.cleanUp(ctx)
	}
}

// untilDue is the time until the next checkpoint is due, as far as is known now.
func (c *checkpointer) untilDue() time.Duration {
	c.work <- struct{}{}
	since, backoff := time.Since(c.lastTried), c.backoff
	<-c.work
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case backoff > 0:
		return backoff - since
	case c.dueLocked():
		return 0
	}
	wait := c.store.opts.CheckpointInterval - since
	if wait <= 0 && c.mu.commits == 0 {
		wait = c.store.opts.CheckpointInterval
	}
	return wait
}

// load finds the checkpoints that are in the bucket. It happens after the claim, which
// the rules of deletion rely on.
func (c *checkpointer) load(ctx context.Context) (err error) {
	c.work <- struct{}{}
	defer func() { <-c.work }()
	c.lastTried = time.Now()
	if err := c.recallDamaged(); err != nil {
		return err
	}
	if c.found, err = c.store.listCheckpoints(ctx); err != nil {
		return err
	}
	seen, err := c.findWhole(ctx)
	if err == nil {
		err = c.note(seen)
	}
	if err != nil {
		return err
	}
	from, extendable := uint64(0), false
	if newest := seen.kept.newest; newest != nil {
		if extendable, err = c.extendable(ctx, &seen); err != nil {
			return err
		}
		from = newest.position.number
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if extendable && from <= c.mu.newest.number {
		c.newest = seen.kept.newest
	} else {
		from = 0
	}
	// The claims of a store that nobody uses do not make checkpoints due.
	c.mu.commits += int(c.mu.after-from) - 1
	if c.dueLocked() {
		c.wake()
	}
	return nil
}

// findWhole is find, and looks whether the parts of those that are kept are there.
func (c *checkpointer) findWhole(ctx context.Context) (seen sighting, err error) {
	for {
		if seen, err = c.find(ctx); err != nil || seen.kept.newest == nil {
			return seen, err
		}
		sizes, err := c.store.listParts(ctx)
		if err != nil {
			return seen, err
		}
		whole := true
		for _, m := range []*manifest{seen.kept.newest, seen.kept.other} {
			if m != nil && !m.partsIn(sizes) {
				c.store.log.Warn("parts of a checkpoint are missing", zap.Uint64("commit", m.position.number))
				c.distrust(m.position.number)
				whole = false
			}
		}
		if whole {
			return seen, nil
		}
	}
}

// extendable: the next checkpoint can go on from the newest one. A base is due if a newer
// one is damaged, as the rules of deletion ask for, or if neither a second base nor the
// whole log would make up for damage to the only base.
func (c *checkpointer) extendable(ctx context.Context, seen *sighting) (bool, error) {
	if seen.kept.newest.position.number != seen.all[len(seen.all)-1] {
		return false, nil
	}
	if seen.kept.twoBases() {
		return true, nil
	}
	whole := true
	err := retry(ctx, c.store.log, "looking for the beginning of the commit log", func() error {
		_, err := c.store.readCommitHeader(ctx, logName(c.store.opts.Shard, 1))
		if whole = err == nil; errors.Is(err, objstore.ErrNotFound) || errors.Is(err, ErrCorrupt) {
			err = nil
		}
		return err
	})
	return whole, err
}

// distrust takes a checkpoint for damaged: it is not built upon, and not one of the two
// that are kept. It stays until there is a newer one that can be read, because others may
// find it whole: it can be the way to the bucket that breaks the bytes.
func (c *checkpointer) distrust(number uint64) { c.manifests[number] = nil }

// recallDamaged distrusts the checkpoints that were found damaged before this database
// was opened.
func (c *checkpointer) recallDamaged() error {
	value, ok, err := c.store.getRow(keyDamaged)
	if err != nil || !ok {
		return err
	}
	if c.noted, err = decodeDamaged(value); err != nil {
		return err
	}
	for _, number := range c.noted {
		c.distrust(number)
	}
	return nil
}

// noteDamaged writes down which of the checkpoints in the bucket are damaged, as far as
// is known.
func (c *checkpointer) noteDamaged(inBucket []uint64) error {
	var damaged []uint64
	for _, number := range inBucket {
		if c.isDamaged(number) {
			damaged = append(damaged, number)
		}
	}
	if slices.Equal(damaged, c.noted) {
		return nil
	}
	c.noted = damaged
	return c.store.db.Set(keyDamaged, encodeDamaged(damaged), pebble.Sync)
}

// The row "l damaged": version, count u, commit numbers u.
func encodeDamaged(numbers []uint64) []byte {
	b := binary.AppendUvarint([]byte{rowVersion}, uint64(len(numbers)))
	for _, number := range numbers {
		b = binary.AppendUvarint(b, number)
	}
	return b
}

func decodeDamaged(b []byte) (numbers []uint64, err error) {
	r := newRowReader(b, rowVersion)
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		numbers = append(numbers, r.uvarint())
	}
	if r.err != nil {
		return nil, fmt.Errorf("row %q: %w", keyDamaged, r.err)
	}
	return numbers, nil
}

// listParts returns the sizes of the objects in the folder of parts, by name.
func (s *Store) listParts(ctx context.Context) (sizes map[string]int64, err error) {
	err = retry(ctx, s.log, "listing the parts of the checkpoints", func() error {
		sizes = make(map[string]int64)
		return s.opts.Bucket.List(ctx, stateDir(s.opts.Shard), "", func(info objstore.ObjectInfo) error {
			sizes[info.Name] = info.Size
			return nil
		})
	})
	return sizes, err
}

// partsIn reports whether the parts of a checkpoint are among the objects of these sizes.
func (m *manifest) partsIn(sizes map[string]int64) bool {
	return !slices.ContainsFunc(m.parts, func(p part) bool { return sizes[p.name.object(m.shard)] != p.size })
}

// sighting is what a look at the bucket found.
type sighting struct {
	all   []uint64 // commit numbers of all checkpoints
	kept  kept
	older []uint64 // commit numbers of those before the newest that are not kept
	fence uint64   // the uploads of commits of this number and higher began after the look
}

// find lists the checkpoints.
func (c *checkpointer) find(ctx context.Context) (seen sighting, err error) {
	if seen.all, err = c.store.listCheckpoints(ctx); err != nil {
		return seen, err
	}
	seen.fence = c.store.flusher.started.Load() + 1
	seen.kept, err = keep(seen.all, func(number uint64) (*manifest, error) {
		m, err := c.manifest(ctx, number)
		if m != nil && m.position.nonce != c.store.nonce && !slices.Contains(c.found, number) {
			m = nil // a fenced writer's, late
		}
		return m, err
	})
	if err != nil || seen.kept.newest == nil {
		return seen, err
	}
	p := seen.kept.proof(seen.fence)
	for _, number := range seen.all {
		if number < p.newest && !p.has(number) {
			seen.older = append(seen.older, number)
		}
	}
	return seen, nil
}

// note remembers which checkpoints are kept, since when others are obsolete, and which are
// damaged.
func (c *checkpointer) note(seen sighting) error {
	if err := c.noteDamaged(seen.all); err != nil {
		return err
	}
	for _, number := range seen.older {
		if _, ok := c.obsolete[number]; !ok {
			c.obsolete[number] = c.store.opts.Now()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked()
	if seen.kept.newest == nil {
		c.mu.waiting, c.mu.next = proof{}, proof{}
		return nil
	}
	c.mu.created = seen.kept.newest.created
	p := seen.kept.proof(seen.fence)
	delete(c.obsolete, p.newest) // newer ones, or one on another base, may have turned out
	delete(c.obsolete, p.other)  // to be damaged
	c.dropDamagedLocked()
	// A proof that waits is not given up for a later one, or checkpoints that follow one
	// another quickly would never be proved.
	switch {
	case c.mu.waiting == proof{}:
		if !p.samePair(&c.mu.proved) {
			c.mu.waiting = p
		}
	case !p.samePair(&c.mu.waiting) && !p.samePair(&c.mu.next):
		c.mu.next = p
	}
	c.advanceLocked()
	return nil
}

// dropDamagedLocked gives up the proofs of checkpoints that have turned out to be damaged.
func (c *checkpointer) dropDamagedLocked() {
	for _, p := range []*proof{&c.mu.waiting, &c.mu.next} {
		if c.isDamaged(p.newest) || c.isDamaged(p.other) {
			*p = proof{}
		}
	}
	if c.mu.waiting == (proof{}) {
		c.mu.waiting, c.mu.next = c.mu.next, proof{}
	}
}

func (c *checkpointer) isDamaged(number uint64) bool {
	m, known := c.manifests[number]
	return known && m == nil
}

// advanceLocked moves the mark of what is covered, if a commit has proved the checkpoints
// that are kept.
func (c *checkpointer) advanceLocked() {
	completed := c.store.flusher.completed.Load()
	for c.mu.waiting != (proof{}) && completed >= c.mu.waiting.fence {
		c.mu.proved = c.mu.waiting
		c.mu.covered = max(c.mu.covered, c.mu.proved.covered)
		c.mu.waiting, c.mu.next = c.mu.next, proof{}
	}
}

// manifest returns the manifest of the checkpoint of a commit, nil if it is damaged.
func (c *checkpointer) manifest(ctx context.Context, number uint64) (*manifest, error) {
	m, ok := c.manifests[number]
	if ok {
		return m, nil
	}
	m, err := c.store.readManifest(ctx, number)
	if errors.Is(err, ErrCorrupt) {
		c.store.log.Warn("a checkpoint is damaged", zap.Uint64("commit", number), zap.Error(err))
		m, err = nil, nil
	}
	if err == nil {
		c.manifests[number] = m
	}
	return m, err
}

// readable is manifest, but of a checkpoint that is distrusted because of its parts it
// returns the manifest as well.
func (c *checkpointer) readable(ctx context.Context, number uint64) (*manifest, error) {
	if m := c.manifests[number]; m != nil {
		return m, nil
	}
	m, err := c.store.readManifest(ctx, number)
	if errors.Is(err, ErrCorrupt) {
		return nil, nil
	}
	return m, err
}

// errBaseDue: the next checkpoint begins with a new base.
var errBaseDue = errors.New("a new base is due")

// make makes a checkpoint, if there were commits since the last one.
func (c *checkpointer) make(ctx context.Context) error {
	c.work <- struct{}{}
	defer func() { <-c.work }()
	err := c.makeLocked(ctx)
	c.lastTried = time.Now()
	if err == nil {
		c.backoff = 0
		return nil
	}
	c.backoff = min(max(2*c.backoff, checkpointBackoffMin), checkpointBackoffMax)
	c.store.metrics.checkpointFailures.Inc()
	return err
}

func (c *checkpointer) makeLocked(ctx context.Context) error {
	c.mu.Lock()
	body, after, newest, commits, bytes := c.mu.pending, c.mu.after, c.mu.newest, c.mu.commits, c.mu.bytes
	c.mu.pending, c.mu.after, c.mu.commits, c.mu.bytes = nil, newest.number, 0, 0
	c.mu.Unlock()
	if c.newest != nil && c.newest.position.number >= newest.number {
		return nil // a base may be ahead of what committed has told
	}
	m, err := c.extend(ctx, body, after, newest)
	if errors.Is(err, errBaseDue) {
		m, err = c.base(ctx)
	}
	if err == nil {
		err = c.publish(ctx, m)
	}
	if err != nil {
		c.mu.Lock()
		c.mu.commits, c.mu.bytes = c.mu.commits+commits, c.mu.bytes+bytes
		c.mu.Unlock()
		return err
	}
	return nil
}

// extend makes a checkpoint of the newest commit from the last checkpoint and the
// commits since. body are those after after; the ones before it are read from the log.
// errBaseDue: it would not be worth it, or cannot be done.
func (c *checkpointer) extend(ctx context.Context, body []byte, after uint64, newest position) (*manifest, error) {
	last := c.newest
	if last == nil || newest.number-last.base.number > uint64(c.store.opts.CheckpointBaseCommits) {
		return nil, errBaseDue
	}
	m := &manifest{
		shard: last.shard, position: newest, base: last.base, ahead: last.ahead,
		created: c.store.opts.Now().UnixMilli(), parts: slices.Clone(last.parts),
	}
	w := bundleWriter{checkpointer: c, manifest: m, at: last.position}
	w.limit = max(minBaseFactor*c.store.opts.CheckpointBytes, m.bytes(partTable)/baseShare) - m.bytes(partBundle)
	if after > last.position.number {
		if err := w.readBack(ctx, after); err != nil {
			return nil, err
		}
	}
	err := eachSection("memory", after, body, func(s section) error {
		if s.header.number <= last.position.number {
			return nil // in the base
		}
		return w.add(ctx, s)
	})
	if err != nil {
		return nil, err
	}
	if err := w.finish(ctx); err != nil {
		return nil, err
	}
	if w.at != newest {
		return nil, fmt.Errorf("the bundles end at commit %d, not %d", w.at.number, newest.number)
	}
	return m, c.mergeBundles(ctx, m)
}

// bundleWriter adds commits to a checkpoint.
type bundleWriter struct {
	checkpointer *checkpointer
	manifest     *manifest
	at           position // newest commit added
	limit        int64    // bytes after which a base is due
	after        uint64   // commit before the first in object
	object       []byte   // header room and body
}

// readBack adds commits from the log, up to the commit numbered last.
func (w *bundleWriter) readBack(ctx context.Context, last uint64) error {
	s := w.checkpointer.store
	f := &follower{store: s, position: w.at, newest: w.at.number}
	infos, err := f.list(ctx)
	if err != nil {
		return err
	}
	if len(infos) > maxReadBack {
		return errBaseDue
	}
	for _, info := range infos {
		if f.position.number == last {
			return nil
		}
		var c section
		if c.compressed, err = s.fetchSection(ctx, info, &c.header); err != nil {
			break
		}
		if f.live(&c.header) {
			f.position = positionOf(&c.header)
			if err = w.add(ctx, c); err != nil {
				return err
			}
		}
	}
	if f.position.number == last {
		return nil
	}
	if err == nil || errors.Is(err, ErrCorrupt) {
		s.log.Warn("the commit log cannot be read back for a checkpoint, making a new base", zap.Error(err))
		err = errBaseDue
	}
	return err
}

func (w *bundleWriter) add(ctx context.Context, s section) error {
	if w.object != nil && len(w.object)+commitHeaderSize+len(s.compressed) > partTarget {
		if err := w.finish(ctx); err != nil {
			return err
		}
	}
	if w.object == nil {
		w.object, w.after = make([]byte, bundleHeaderSize), w.at.number
	}
	w.object = appendSection(w.object, &s.header, s.compressed)
	w.at = positionOf(&s.header)
	if w.limit -= int64(commitHeaderSize + len(s.compressed)); w.limit < 0 {
		return errBaseDue
	}
	return nil
}

// finish uploads the bundle that was begun.
func (w *bundleWriter) finish(ctx context.Context) error {
	if w.object == nil {
		return nil
	}
	p, err := w.checkpointer.uploadBundle(ctx, w.object, w.after, w.at.number, 0)
	w.manifest.parts = append(w.manifest.parts, p)
	w.object = nil
	return err
}

func (c *checkpointer) uploadBundle(ctx context.Context, object []byte, after, last uint64, level uint8) (part, error) {
	encodeBundleHeader(object, c.store.opts.Shard, after, last)
	return c.upload(ctx, part{kind: partBundle, level: level, after: after, last: last}, object)
}

// mergeBundles replaces the last bundles by one as often as bundleFanout of them have
// the same level.
func (c *checkpointer) mergeBundles(ctx context.Context, m *manifest) error {
	for len(m.parts) >= bundleFanout {
		i := len(m.parts) - bundleFanout
		run, total := m.parts[i:], int64(bundleHeaderSize)
		for _, p := range run {
			if p.kind != partBundle || p.level != run[0].level {
				return nil
			}
			total += p.size - bundleHeaderSize
		}
		if total > partTarget {
			return nil
		}
		object := make([]byte, bundleHeaderSize, total)
		for j := range run {
			p := &run[j]
			b, err := c.store.readPart(ctx, p)
			if err != nil {
				return c.damaged(p.name, err)
			}
			body, err := bundleBody(p.name.object(c.store.opts.Shard), c.store.opts.Shard, p.after, p.last, b)
			if err != nil {
				return c.damaged(p.name, err)
			}
			object = append(object, body...)
		}
		merged, err := c.uploadBundle(ctx, object, run[0].after, run[len(run)-1].last, run[0].level+1)
		if err != nil {
			return err
		}
		for _, p := range run {
			if !slices.Contains(c.newest.parts, p) {
				c.doomed = append(c.doomed, p.name.object(c.store.opts.Shard)) // in no manifest
			}
		}
		m.parts = append(m.parts[:i], merged)
	}
	return nil
}

// damaged: a part of the newest checkpoint cannot be read, so a base is due.
func (c *checkpointer) damaged(p partName, err error) error {
	if !errors.Is(err, ErrCorrupt) {
		return err
	}
	c.store.log.Warn("a part of the newest checkpoint is damaged, making a new base", zap.Error(err))
	c.newest, c.bad = nil, append(c.bad, p)
	return errBaseDue
}

// upload creates the object of a part.
func (c *checkpointer) upload(ctx context.Context, p part, object []byte) (part, error) {
	s := c.store
	p.size, p.crc = int64(len(object)), crc32.Checksum(object, castagnoli)
	p.name = partName{s.flusher.completed.Load(), s.epoch, s.nonce, c.sequence}
	c.sequence++
	name := p.name.object(s.opts.Shard)
	err := retry(ctx, s.log, "writing a part of a checkpoint", func() error {
		err := s.opts.Bucket.Create(ctx, name, object)
		if errors.Is(err, objstore.ErrExists) {
			return nil // no other upload has this name: an earlier attempt succeeded
		}
		return err
	})
	if err == nil {
		s.metrics.checkpointBytes.Add(float64(len(object)))
	}
	return p, err
}

// base makes a checkpoint that consists of tables alone.
func (c *checkpointer) base(ctx context.Context) (*manifest, error) {
	s := c.store
	snapshot := s.db.NewSnapshot()
	defer snapshot.Close()
	m := &manifest{shard: s.opts.Shard, created: s.opts.Now().UnixMilli()}
	var err error
	if m.position, m.ahead, err = snapshotState(snapshot); err != nil {
		return nil, err
	}
	m.base = m.position
	w := tableWriter{checkpointer: c, manifest: m}
	for _, prefix := range checkpointPrefixes {
		if err := w.addRows(ctx, snapshot, prefix); err != nil {
			return nil, errors.Join(err, w.abandon())
		}
	}
	if err := w.finish(ctx); err != nil {
		return nil, err
	}
	return m, s.flushTo(ctx, m.ahead)
}

// checkpointPrefixes are the rows that are a pure function of the commit log, in key
// order.
var checkpointPrefixes = []byte{prefixExtent, prefixObject, prefixKV, prefixName, prefixProducer, prefixStream}

// snapshotState is how far a snapshot of the database has followed the log, and the
// append number after the last append in it.
func snapshotState(snapshot *pebble.Snapshot) (p position, ahead uint64, err error) {
	value, closer, err := snapshot.Get(keyPosition)
	if err != nil {
		return p, 0, fmt.Errorf("position row: %w", err)
	}
	p, err = decodePosition(value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return p, 0, fmt.Errorf("position row: %w", err)
	}
	iter, err := snapshot.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixTail}, UpperBound: []byte{prefixTail + 1}})
	if err != nil {
		return p, 0, err
	}
	ahead = p.appendTo
	if iter.Last() {
		ahead = max(ahead, keyNumber(iter.Key(), 0)+1)
	}
	return p, ahead, errors.Join(iter.Error(), iter.Close())
}

// tableWriter writes rows as tables of about partTarget bytes, one at a time in memory.
type tableWriter struct {
	checkpointer *checkpointer
	manifest     *manifest
	object       *tableObject
	table        *sstable.Writer // nil: none begun
}

// tableObject is the memory that a table is written to.
type tableObject struct{ bytes.Buffer }

func (o *tableObject) Write(p []byte) error { _, err := o.Buffer.Write(p); return err }

// Finish and Abort make it an objstorage.Writable.
func (o *tableObject) Finish() error { return nil }
func (o *tableObject) Abort()        {}

func (w *tableWriter) addRows(ctx context.Context, snapshot *pebble.Snapshot, prefix byte) error {
	iter, err := snapshot.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return err
	}
	defer iter.Close()
	for valid := iter.First(); valid; valid = iter.Next() {
		if w.table == nil {
			w.begin()
		}
		if err := w.table.Set(iter.Key(), iter.Value()); err != nil {
			return err
		}
		if w.table.Raw().EstimatedSize() >= partTarget {
			if err := w.finish(ctx); err != nil {
				return err
			}
		}
	}
	return iter.Error()
}

// begin starts a table. Its format is fixed, so that older releases, back to the first
// with checkpoints, can read it.
func (w *tableWriter) begin() {
	w.object = &tableObject{}
	w.table = sstable.NewWriter(w.object, sstable.WriterOptions{
		TableFormat:  sstable.TableFormatPebblev4,
		BlockSize:    32 << 10,
		FilterPolicy: bloom.FilterPolicy(bloomBitsPerKey),
		FilterType:   sstable.TableFilter,
	})
}

// finish uploads the table that was begun, and then waits as long as the bandwidth
// limit asks for.
func (w *tableWriter) finish(ctx context.Context) error {
	if w.table == nil {
		return nil
	}
	err := w.abandon()
	if err != nil {
		return err
	}
	p, err := w.checkpointer.upload(ctx, part{kind: partTable}, w.object.Bytes())
	if err != nil {
		return err
	}
	w.manifest.parts = append(w.manifest.parts, p)
	w.object = nil
	select {
	case <-time.After(time.Duration(float64(p.size) / float64(w.checkpointer.store.opts.CheckpointBandwidth) * float64(time.Second))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon closes the table that was begun.
func (w *tableWriter) abandon() error {
	if w.table == nil {
		return nil
	}
	table := w.table
	w.table = nil
	return table.Close()
}

// publish writes the manifest of a checkpoint whose parts are in the bucket.
func (c *checkpointer) publish(ctx context.Context, m *manifest) error {
	s := c.store
	name, object := checkpointName(m.shard, m.position.number), m.encode()
	err := retry(ctx, s.log, "writing a checkpoint", func() error {
		err := s.opts.Bucket.Create(ctx, name, object)
		if !errors.Is(err, objstore.ErrExists) {
			return err
		}
		// An earlier attempt, perhaps with other parts, has succeeded: that one counts.
		found, err := s.readManifest(ctx, m.position.number)
		if err == nil && found.position != m.position {
			err = &CorruptError{Where: s.opts.Bucket.Location() + "/" + name, What: "position", Found: fmt.Sprint(found.position), Expected: fmt.Sprint(m.position)}
		}
		if err == nil {
			m = found
		}
		return err
	})
	if err != nil {
		return err
	}
	s.metrics.checkpoints.Inc()
	s.metrics.checkpointBytes.Add(float64(len(object)))
	c.newest = m
	c.manifests[m.position.number] = m
	if err := c.distrustBad(ctx); err != nil {
		return err
	}
	seen, err := c.find(ctx)
	if err == nil {
		err = c.note(seen)
	}
	return err
}

// distrustBad distrusts the checkpoints that name a damaged part.
func (c *checkpointer) distrustBad(ctx context.Context) error {
	if len(c.bad) == 0 {
		return nil
	}
	numbers, err := c.store.listCheckpoints(ctx)
	if err != nil {
		return err
	}
	for _, number := range numbers {
		m, err := c.manifest(ctx, number)
		if err != nil {
			return err
		}
		if m != nil && slices.ContainsFunc(m.parts, func(p part) bool { return slices.Contains(c.bad, p.name) }) {
			c.distrust(number)
		}
	}
	c.bad = nil
	return nil
}

// cleanUp deletes the checkpoints that have been obsolete for the grace time, each
// with the parts that no other checkpoint names. What fails is tried again the next
// time.
func (c *checkpointer) cleanUp(ctx context.Context) {
	c.work <- struct{}{}
	defer func() { <-c.work }()
	s := c.store
	proved := c.provedPair()
	var due []uint64
	for number, since := range c.obsolete {
		if number < proved.newest && !proved.has(number) && s.opts.Now().Sub(since) >= s.opts.DeleteGrace {
			due = append(due, number)
		}
	}
	slices.Sort(due)
	if len(due) == 0 && len(c.doomed) == 0 {
		return
	}
	if err := c.deleteCheckpoints(ctx, due); err != nil && ctx.Err() == nil {
		s.metrics.checkpointFailures.Inc()
		s.log.Warn("deleting obsolete checkpoints failed, trying again later", zap.Error(err))
	}
}

// provedPair are the newest checkpoints that may be relied upon.
func (c *checkpointer) provedPair() proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked()
	return c.mu.proved
}

func (c *checkpointer) deleteCheckpoints(ctx context.Context, due []uint64) error {
	s := c.store
	numbers, err := s.listCheckpoints(ctx)
	if err != nil {
		return err
	}
	named := make(map[partName]struct{}) // by checkpoints that stay
	good := 0                            // of these
	for _, number := range numbers {
		if slices.Contains(due, number) {
			continue
		}
		m, err := c.manifest(ctx, number)
		if err == nil && m != nil {
			good++
		} else if err == nil {
			m, err = c.readable(ctx, number)
		}
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		for i := range m.parts {
			named[m.parts[i].name] = struct{}{}
		}
	}
	if len(due) > 0 && good < 2 {
		return fmt.Errorf("newer ones are no longer in the bucket: %d good ones would be left", good)
	}
	for _, number := range due {
		m, err := c.readable(ctx, number)
		if err != nil {
			return err
		}
		if err := s.opts.Bucket.Delete(ctx, checkpointName(s.opts.Shard, number)); err != nil {
			return err
		}
		delete(c.obsolete, number)
		delete(c.manifests, number)
		if m == nil {
			continue
		}
		for i := range m.parts {
			if name := m.parts[i].name; !has(named, name) {
				named[name] = struct{}{} // once
				c.doomed = append(c.doomed, name.object(s.opts.Shard))
			}
		}
	}
	for len(c.doomed) > 0 {
		if err := s.opts.Bucket.Delete(ctx, c.doomed[0]); err != nil {
			return err
		}
		c.doomed = c.doomed[1:]
	}
	return nil
}

func has[K comparable](set map[K]struct{}, key K) bool { _, ok := set[key]; return ok }

// age is the time since the newest checkpoint was made, 0 if there is none.
func (c *checkpointer) age() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.created == 0 {
		return 0
	}
	return max(0, c.store.opts.Now().Sub(time.UnixMilli(c.mu.created)))
}

// pendingBytes are the state sections since the newest checkpoint.
func (c *checkpointer) pendingBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.bytes
}
