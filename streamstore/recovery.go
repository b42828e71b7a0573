package streamstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/objstore"
)

// errForeignClaim: another writer has claimed the shard since the local tail was
// written, so the tail can no longer be part of the log.
var errForeignClaim = errors.New("another writer has claimed the shard since this disk was used")

// follower applies the commit log to the local database.
type follower struct {
	store    *Store
	position position
	claims   []nonce           // under which this database's tail may have been claimed
	tailEnd  uint64            // append number after the last in the local tail
	newest   uint64            // highest object number seen
	highest  uint64            // highest epoch seen, in dead objects too
	dead     map[uint64]uint64 // dead objects above position: their number and the one they follow
	orphan   *commitHeader     // dead object that knows a live one above position; nil if there is none
	ahead    uint64            // replay must reach this append number (see checkpoint.go)
}

// maxReplayFetches bounds the log objects fetched at a time, so that a restart
// does not burden a bucket that is in trouble already.
const maxReplayFetches = 4

// followLog brings the database up to the end of the log. It goes on until a
// listing shows nothing new.
func (s *Store) followLog(ctx context.Context) (*follower, error) {
	f, err := s.newFollower()
	if err != nil {
		return nil, err
	}
	if err := f.checkIdentity(ctx); err != nil {
		return nil, err
	}
	return f, f.follow(ctx)
}

func (s *Store) newFollower() (*follower, error) {
	f := &follower{store: s}
	value, ok, err := s.getRow(keyPosition)
	if err != nil {
		return nil, err
	}
	if ok {
		if f.position, err = decodePosition(value); err != nil {
			return nil, fmt.Errorf("position row: %w", err)
		}
	}
	ahead, ok, err := s.getRow(keyAhead)
	if err != nil {
		return nil, err
	}
	if ok {
		if f.ahead, err = decodeAhead(ahead); err != nil {
			return nil, err
		}
	}
	claims, _, err := s.getRow(keyClaims)
	if err != nil {
		return nil, err
	}
	for n := range slices.Chunk(claims, len(nonce{})) {
		f.claims = append(f.claims, nonce(n))
	}
	f.newest, f.highest = f.position.number, f.position.epoch
	f.tailEnd, err = s.localTailEnd()
	return f, err
}

// localTailEnd is the append number after the last in the local tail, 0 if there
// is none.
func (s *Store) localTailEnd() (end uint64, err error) {
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixTail}, UpperBound: []byte{prefixTail + 1}})
	if err != nil {
		return 0, err
	}
	if iter.Last() {
		end = keyNumber(iter.Key(), 0) + 1
	}
	return end, errors.Join(iter.Error(), iter.Close())
}

// hasTail: the local tail goes beyond what the log has.
func (f *follower) hasTail() bool { return f.tailEnd > f.position.appendTo }

// checkIdentity proves that the bucket holds the log that the database has
// followed so far.
func (f *follower) checkIdentity(ctx context.Context) error {
	if f.position.number == 0 {
		return nil
	}
	s, name := f.store, logName(f.store.opts.Shard, f.position.number)
	var found commitHeader
	err := retry(ctx, s.log, "reading the commit log", func() (err error) {
		found, err = s.readCommitHeader(ctx, name)
		if errors.Is(err, objstore.ErrNotFound) {
			err = &CorruptError{Where: s.opts.Bucket.Location() + "/" + name, What: "object", Found: "missing", Expected: "the object that this disk has applied"}
		}
		return err
	})
	if err == nil && (found.epoch != f.position.epoch || found.nonce != f.position.nonce) {
		err = &CorruptError{Where: s.opts.Bucket.Location() + "/" + name, What: "epoch and nonce", Found: fmt.Sprintf("%d %x", found.epoch, found.nonce), Expected: fmt.Sprintf("%d %x", f.position.epoch, f.position.nonce)}
	}
	if errors.Is(err, ErrCorrupt) {
		return fmt.Errorf("the data directory %s and the bucket %s do not belong together (point both at the same store, or move the data directory away to begin with what is in the bucket): %w",
			s.opts.Dir, s.opts.Bucket.Location(), err)
	}
	return err
}

// follow applies all live objects after the position.
func (f *follower) follow(ctx context.Context) error {
	for {
		infos, err := f.list(ctx)
		if err != nil {
			return err
		}
		before := f.newest
		for fetch := range f.fetchAhead(ctx, infos) {
			if err := f.apply(fetch); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.newest == before {
			again, err := f.checkOrphan(ctx)
			if err != nil || !again {
				return err
			}
		}
	}
}

// list returns the log objects after the newest one seen.
func (f *follower) list(ctx context.Context) (infos []objstore.ObjectInfo, err error) {
	s := f.store
	err = retry(ctx, s.log, "listing the commit log", func() error {
		infos = infos[:0]
		return s.opts.Bucket.List(ctx, logDir(s.opts.Shard), logName(s.opts.Shard, f.newest), func(info objstore.ObjectInfo) error {
			if _, ok := parseLogName(s.opts.Shard, info.Name); ok {
				infos = append(infos, info)
			}
			return nil
		})
	})
	return infos, err
}

// checkOrphan tells a missing object from the end of the log: taking its number
// would drop all that follows it. A writer that died may leave uploads behind a
// number that never arrived, but none whose writer knew of a later live object. The
// listing is not one moment of the log, so the missing object is asked for by name
// before it counts as missing; again is true if it is there after all.
func (f *follower) checkOrphan(ctx context.Context) (again bool, err error) {
	if f.orphan == nil || f.orphan.durable <= f.position.number {
		return false, nil
	}
	missing := f.orphan.previous
	for previous, dead := f.dead[missing]; dead; previous, dead = f.dead[missing] {
		missing = previous
	}
	s, name := f.store, logName(f.store.opts.Shard, missing)
	corrupt := &CorruptError{
		Where: s.opts.Bucket.Location() + "/" + name, What: "log object",
		Found: "missing", Expected: fmt.Sprintf("present, because object %d was written after it: restore it", f.orphan.number),
	}
	if missing <= f.position.number {
		corrupt.Found = "another one than the log went on from"
		return false, corrupt
	}
	err = retry(ctx, s.log, "reading the commit log", func() error {
		_, err := s.readCommitHeader(ctx, name)
		if errors.Is(err, objstore.ErrNotFound) {
			err = corrupt
		}
		return err
	})
	f.newest, f.dead, f.orphan = f.position.number, nil, nil
	return true, err
}

// fetched is a log object on its way through replay.
type fetched struct {
	name   string
	header commitHeader
	state  []byte
	err    error
}

// fetchAhead yields header and state of the objects in order, a few fetched ahead.
func (f *follower) fetchAhead(ctx context.Context, infos []objstore.ObjectInfo) func(func(fetched) bool) {
	return func(yield func(fetched) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		pending := make([]chan fetched, 0, maxReplayFetches)
		for len(infos) > 0 || len(pending) > 0 {
			for len(infos) > 0 && len(pending) < maxReplayFetches {
				result, info := make(chan fetched, 1), infos[0]
				infos = infos[1:]
				go func() { result <- f.store.fetchState(ctx, info) }()
				pending = append(pending, result)
			}
			next := <-pending[0]
			pending = pending[1:]
			if !yield(next) {
				return
			}
		}
	}
}

// smallObjectBytes: objects up to this size are fetched in one request.
const smallObjectBytes = 256 << 10

func (s *Store) fetchState(ctx context.Context, info objstore.ObjectInfo) (f fetched) {
	f.name = info.Name
	compressed, err := s.fetchSection(ctx, info, &f.header)
	if err == nil {
		f.state, err = s.codec.decompress(info.Name, &f.header, compressed)
	}
	f.err = err
	return f
}

// fetchSection reads header and state section, still compressed, of a log object that
// was listed, until that succeeds. That the object is gone is a *CorruptError: either
// somebody removed it, or a checkpoint covers it and its owner cleaned it up.
func (s *Store) fetchSection(ctx context.Context, info objstore.ObjectInfo, h *commitHeader) (compressed []byte, err error) {
	err = retry(ctx, s.log, "reading the commit log", func() (err error) {
		*h, compressed, err = s.readSection(ctx, info)
		if errors.Is(err, objstore.ErrNotFound) {
			err = &CorruptError{Where: s.opts.Bucket.Location() + "/" + info.Name, What: "log object", Found: "missing", Expected: "present, because it was listed"}
		}
		return err
	})
	return compressed, err
}

func (s *Store) readSection(ctx context.Context, info objstore.ObjectInfo) (h commitHeader, compressed []byte, err error) {
	if info.Size < commitHeaderSize {
		return h, nil, &CorruptError{Where: info.Name, What: "object size", Found: info.Size, Expected: fmt.Sprintf("at least %d", commitHeaderSize)}
	}
	var tail []byte
	if info.Size <= smallObjectBytes {
		object, err := s.opts.Bucket.Get(ctx, info.Name)
		if err != nil {
			return h, nil, err
		}
		s.fetchedBytes.Add(int64(len(object)))
		if h, err = s.decodeOwnHeader(info.Name, object); err != nil {
			return h, nil, err
		}
		if int64(len(object)) != h.size() {
			return h, nil, &CorruptError{Where: info.Name, What: "object size", Found: len(object), Expected: h.size()}
		}
		tail = object[commitHeaderSize+h.dataLength:]
	} else {
		if h, err = s.readCommitHeader(ctx, info.Name); err != nil {
			return h, nil, err
		}
		if info.Size != h.size() {
			return h, nil, &CorruptError{Where: info.Name, What: "object size", Found: info.Size, Expected: h.size()}
		}
		if tail, err = s.opts.Bucket.GetRange(ctx, info.Name, commitHeaderSize+h.dataLength, h.stateLen+commitFooterSize); err != nil {
			return h, nil, err
		}
		s.fetchedBytes.Add(commitHeaderSize + int64(len(tail)))
	}
	compressed, err = h.check(info.Name, tail)
	return h, compressed, err
}

// readCommitHeader reads the header of a log object. A *CorruptError means that the
// object can never be read; other errors may pass.
func (s *Store) readCommitHeader(ctx context.Context, name string) (commitHeader, error) {
	b, err := s.opts.Bucket.GetRange(ctx, name, 0, commitHeaderSize)
	if errors.Is(err, objstore.ErrTruncated) {
		// Either the transfer broke off, or somebody put a shorter object there.
		b, err = s.opts.Bucket.Get(ctx, name)
	}
	if err != nil {
		return commitHeader{}, fmt.Errorf("header of %s: %w", name, err)
	}
	return s.decodeOwnHeader(name, b)
}

func (s *Store) decodeOwnHeader(name string, b []byte) (commitHeader, error) {
	h, err := decodeCommitHeader(name, b)
	if err != nil {
		return h, err
	}
	if number, _ := parseLogName(s.opts.Shard, name); h.number != number || h.shard != s.opts.Shard {
		return h, &CorruptError{Where: name, Position: 12, What: "shard and number", Found: fmt.Sprintf("%d %d", h.shard, h.number), Expected: fmt.Sprintf("%d %d", s.opts.Shard, number)}
	}
	return h, nil
}

// live reports whether the object counts (see commitlog.go).
func (f *follower) live(h *commitHeader) bool {
	if h.previous != f.position.number {
		return false
	}
	if h.claim {
		return h.epoch > f.position.epoch
	}
	return h.epoch == f.position.epoch && h.nonce == f.position.nonce && f.position.number > 0
}

// apply takes one log object into the database, or skips it if it is dead.
func (f *follower) apply(o fetched) error {
	if o.err != nil {
		return o.err
	}
	h, s := &o.header, f.store
	f.newest, f.highest = max(f.newest, h.number), max(f.highest, h.epoch)
	if !f.live(h) {
		s.log.Info("skipping a dead object of the commit log", zap.String("object", o.name), zap.Uint64("epoch", h.epoch))
		if f.dead == nil {
			f.dead = make(map[uint64]uint64)
		}
		f.dead[h.number] = h.previous
		if h.durable > f.position.number && (f.orphan == nil || f.orphan.durable <= f.position.number) {
			f.orphan = h
		}
		return nil
	}
	if f.hasTail() && !slices.Contains(f.claims, h.nonce) {
		return errForeignClaim
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	if len(o.state) > 0 {
		if err := batch.SetRepr(o.state); err != nil {
			return &CorruptError{Where: o.name, Position: commitHeaderSize + h.dataLength, What: "state section", Found: err, Expected: "a Pebble batch"}
		}
	}
	next := positionOf(h)
	if err := deleteTail(batch, h); err != nil {
		return err
	}
	if err := batch.Set(keyPosition, next.encode(), nil); err != nil {
		return err
	}
	if err := s.db.Apply(batch, pebble.NoSync); err != nil {
		return err
	}
	f.position = next
	s.recovery.ReplayedCommits++
	return nil
}

// deleteTail drops the tail entries that a commit covers. It begins where the
// last commit's deletion ended, so that tombstones never overlap.
func deleteTail(batch *pebble.Batch, h *commitHeader) error {
	if h.appendFrom == h.appendTo {
		return nil
	}
	return batch.DeleteRange(tailKey(h.appendFrom), tailKey(h.appendTo), nil)
}

// claim creates the next log object under a higher epoch. From then on every
// commit of an older writer is refused by the bucket or skipped by readers.
// errClaimLost: another writer was faster; look at the bucket again and start over.
func (s *Store) claim(ctx context.Context, f *follower) (position, error) {
	h, err := s.prepareClaim(f)
	if err != nil {
		return position{}, err
	}
	began := bootTime()
	won, err := s.createClaim(ctx, &h)
	if err != nil {
		return position{}, err
	}
	if !won {
		return position{}, errClaimLost
	}
	// What was left behind above the claim is dead; a newer writer above it wins.
	f.position = positionOf(&h)
	newer, err := s.newerWriter(ctx, &h)
	if err != nil {
		return position{}, err
	}
	if newer {
		s.lostClaim = max(s.lostClaim, h.number)
		s.log.Info("another writer has gone on from where this one claimed the shard, trying again", zap.Uint64("epoch", h.epoch))
		return position{}, errClaimLost
	}
	s.flusher.proved.Store(int64(began))
	return f.position, s.adoptClaim(f, &h)
}

// prepareClaim writes the claim's nonce down before the claim can exist, so that
// a crash in between does not make this disk's tail look foreign.
func (s *Store) prepareClaim(f *follower) (commitHeader, error) {
	h := commitHeader{
		claim:      true,
		shard:      s.opts.Shard,
		number:     f.position.number + 1,
		previous:   f.position.number,
		epoch:      f.highest + 1,
		nonce:      newNonce(),
		created:    s.opts.Now().UnixMilli(),
		appendFrom: f.position.appendTo,
		appendTo:   f.position.appendTo,
		durable:    f.position.number,
	}
	for {
		if _, taken := f.dead[h.number]; !taken {
			break
		}
		h.number++
	}
	f.claims = append(f.claims, h.nonce)
	return h, s.db.Set(keyClaims, joinNonces(f.claims), pebble.Sync)
}

func joinNonces(nonces []nonce) (b []byte) {
	for _, n := range nonces {
		b = append(b, n[:]...)
	}
	return b
}

func (s *Store) createClaim(ctx context.Context, h *commitHeader) (won bool, err error) {
	object := s.codec.seal(h, make([]byte, commitHeaderSize), nil)
	name := logName(h.shard, h.number)
	err = retry(ctx, s.log, "claiming the shard", func() error {
		err := s.opts.Bucket.Create(ctx, name, object)
		if !errors.Is(err, objstore.ErrExists) {
			won = err == nil
			return err
		}
		found, err := s.readCommitHeader(ctx, name)
		won = err == nil && found.nonce == h.nonce
		return err
	})
	return won, err
}

// newerWriter looks above mine for marks of a writer that mine must give way to: one
// of a higher epoch, one that took the same epoch, or one that has seen the log go on
// beyond the number that mine took. A checkpoint of mine's number or a higher one is
// such a mark as well: mine lies in a hole where objects were covered by checkpoints and
// cleaned up. (Log objects are deleted only below the newest checkpoint, so where they are
// gone as marks, a checkpoint is there.)
func (s *Store) newerWriter(ctx context.Context, mine *commitHeader) (newer bool, err error) {
	scan := follower{store: s, newest: mine.number}
	infos, err := scan.list(ctx)
	if err != nil {
		return false, err
	}
	for _, info := range infos {
		var h commitHeader
		err := retry(ctx, s.log, "reading the commit log", func() (err error) {
			h, err = s.readCommitHeader(ctx, info.Name)
			if errors.Is(err, objstore.ErrNotFound) {
				h, err = commitHeader{nonce: mine.nonce}, nil // cleaned up since: the checkpoints tell
			}
			return err
		})
		if err != nil {
			return false, err
		}
		newer = newer || h.nonce != mine.nonce && (h.epoch >= mine.epoch || h.durable >= mine.number)
	}
	// After the log: what is missing there was deleted after these were published.
	checkpoints, err := s.listCheckpoints(ctx)
	if n := len(checkpoints); n > 0 && checkpoints[n-1] >= mine.number {
		newer = true
	}
	return newer, err
}

// checkFence is for a writer that was very slow with its commit: ErrFenced if a
// newer writer has left a mark above it.
func (s *Store) checkFence(ctx context.Context, mine *commitHeader) error {
	newer, err := s.newerWriter(ctx, mine)
	if err == nil && newer {
		err = fmt.Errorf("%w: found above object %d while this writer was stalled", ErrFenced, mine.number)
	}
	return err
}

// adoptClaim makes the claim this writer's own.
func (s *Store) adoptClaim(f *follower, h *commitHeader) error {
	batch := s.db.NewBatch()
	defer batch.Close()
	if err := batch.Set(keyPosition, f.position.encode(), nil); err != nil {
		return err
	}
	if err := batch.Set(keyClaims, h.nonce[:], nil); err != nil {
		return err
	}
	if err := batch.Delete(keyAhead, nil); err != nil {
		return err
	}
	if err := s.db.Apply(batch, pebble.Sync); err != nil {
		return err
	}
	s.epoch, s.nonce = h.epoch, h.nonce
	// Not behind what was left behind above the claim: a hole below this writer's
	// commits would be free for the claim of one that has not seen them.
	s.flusher.next, s.flusher.previous = h.number+1, h.number
	s.recovery.Epoch, s.recovery.Commit = h.epoch, h.number
	s.flusher.started.Store(s.flusher.next - 1)
	s.flusher.completed.Store(h.number)
	s.checkpoints.begin(f.position)
	s.metrics.commitNumber.Set(float64(h.number))
	return nil
}

// loadTail brings the unflushed appends of the local database back to memory, in
// their order, as if they had just been written. Those of transactions are applied
// again: a commit replayed above may have carried older values of the same rows.
func (s *Store) loadTail(p position) error {
	s.flusher.sealedTo = p.appendTo
	s.flusher.durable.Store(p.appendTo)
	next := p.appendTo
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: tailKey(p.appendTo), UpperBound: []byte{prefixTail + 1}})
	if err != nil {
		return err
	}
	defer iter.Close()
	rows := s.db.NewBatch()
	defer rows.Close()
	var entries []*tailEntry
	deleted := make(map[StreamID]bool)
	for valid := iter.First(); valid; valid = iter.Next() {
		e, err := s.decodeTail(keyNumber(iter.Key(), 0), iter.Value())
		if err != nil {
			return err
		}
		if e.number != next {
			return &CorruptError{Where: "tail", What: "append number", Found: e.number, Expected: next}
		}
		next++
		if e.txn != nil {
			for _, id := range e.txn.deletes {
				deleted[id] = true
			}
			if err := e.txn.applyTo(rows, s.db); err != nil {
				return err
			}
		}
		entries = append(entries, e)
	}
	if err := iter.Error(); err != nil {
		return err
	}
	if err := s.db.Apply(rows, pebble.Sync); err != nil {
		return err
	}
	bytes := int64(0)
	for _, e := range entries {
		bytes += e.size
	}
	// A tail larger than the limit, which may have been lowered, still fits.
	s.unflushed = newByteLimit(max(bytes, s.opts.MaxUnflushedBytes))
	s.unflushed.TryAcquire(bytes)
	for _, e := range entries {
		if err := s.readopt(e, deleted); err != nil {
			return err
		}
	}
	s.recovery.TailAppends = len(entries)
	s.queue.mu.next = next
	s.appender.applied.Store(next)
	s.tailCache.trim(next)
	s.flusher.arrive(entries)
	return nil
}

// decodeTail decodes a tail row; the stream of an append is only named in it.
func (s *Store) decodeTail(number uint64, value []byte) (*tailEntry, error) {
	corrupt := func(what string, found, expected any) error {
		return &CorruptError{Where: fmt.Sprintf("tail entry %d", number), What: what, Found: found, Expected: expected}
	}
	e := &tailEntry{number: number, producer: noProducer, durable: make(chan struct{}), appended: s.opts.Now().UnixMilli()}
	e.size = int64(len(value)) + tailEntryOverhead
	if len(value) > 0 && value[0] == tailTransaction {
		var err error
		e.txn, err = decodeMutation(value[1:])
		return e, err
	}
	if len(value) < tailAppendHeader || value[0] != tailAppend && value[0] != tailBoth {
		return nil, corrupt("kind", bytes.Clone(value[:min(len(value), 1)]), "append or transaction")
	}
	batch, rest, ok := nextBatch(bytes.Clone(value[tailAppendHeader:]))
	if !ok || len(rest) > 0 && value[0] == tailAppend || !batch.checksumOK() {
		return nil, corrupt("record batch", "damaged", "one whole batch")
	}
	if value[0] == tailBoth {
		var err error
		if e.txn, err = decodeMutation(rest); err != nil {
			return nil, err
		}
	}
	e.stream = &stream{id: StreamID(binary.BigEndian.Uint64(value[1:]))}
	e.size = int64(len(batch)) + tailEntryOverhead
	e.batch, e.base, e.last = batch, batch.baseOffset(), batch.lastOffset()
	e.maxTimestamp, e.producer = batch.maxTimestamp(), max(batch.producerID(), noProducer)
	return e, nil
}

// readopt puts a tail entry found on disk back where Append had put it.
func (s *Store) readopt(e *tailEntry, deleted map[StreamID]bool) error {
	if s.opts.Durability == Local {
		defer close(e.durable) // it is on this disk
	}
	if e.stream == nil {
		return nil
	}
	st, err := s.acquire(e.stream.id) // pinned until flushed
	if errors.Is(err, ErrNoStream) && deleted[e.stream.id] {
		e.stream, e.batch = nil, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("tail entry %d: %w", e.number, err)
	}
	e.stream = st
	var p *producer
	if e.producer >= 0 {
		if p, err = s.lockWithProducer(st, e.producer); err != nil {
			return err
		}
	} else {
		st.mu.Lock()
	}
	defer st.mu.Unlock()
	if len(st.mu.tail) == 0 && st.mu.next == st.mu.row.start {
		// The start offset was moved into or over this tail.
		st.mu.next = min(e.base, st.mu.next)
	}
	if e.base != st.mu.next {
		return &CorruptError{Where: fmt.Sprintf("tail entry %d of stream %q", e.number, st.mu.row.name), What: "base offset", Found: e.base, Expected: st.mu.next}
	}
	if p != nil {
		p.live.add(e.batch.producerEpoch(), sequencesOf(e.batch), e.appended)
		p.unflushed++
	}
	st.mu.tail = append(st.mu.tail, e)
	st.mu.next = e.last + 1
	st.mu.lastWrite = e.appended
	if s.opts.Durability == Local {
		st.mu.hw = st.mu.next
	}
	s.tailCache.add(e)
	return nil
}
