package streamstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Txn is a set of metadata changes that happen together or not at all: streams
// created, deleted, trimmed and configured, and rows of the key-value space that
// the catalogue and the coordinators keep their state in. Build it, then hand it
// to Store.Commit once.
type Txn struct {
	ops     []txnOp
	creates int
	bytes   int64
}

type txnOp struct {
	kind     txnKind
	name     string
	id       StreamID
	offset   int64
	settings Settings
	edit     func(*Settings) error
	key      []byte
	value    []byte
	// touched is what retention knows of the last write to what it trims, ms; 0: the
	// trim is a user's.
	touched int64
	seen    *streamRow // what retention decided by; nil: the change is a user's
}

type txnKind int8

const (
	txnCreate txnKind = iota
	txnCreateIfAbsent
	txnDelete
	txnTrim
	txnConfigure
	txnReconfigure
	txnClose
	txnRename
	txnTouch
	txnDeleteIdle
	txnSet
	txnUnset
)

// NewTxn returns an empty transaction.
func NewTxn() *Txn { return &Txn{} }

func (t *Txn) add(op txnOp) {
	t.ops = append(t.ops, op)
	t.bytes += int64(len(op.name)+len(op.key)+len(op.value)) + tailEntryOverhead
}

// Create makes a stream; Commit fails with ErrStreamExists if the name is taken.
// It returns the index of the new id in Result.Created.
func (t *Txn) Create(name string, settings Settings) int {
	return t.create(txnOp{kind: txnCreate, name: name, settings: settings})
}

// CreateIfAbsent makes a stream unless the name is taken; an existing stream
// keeps its settings, and Result.Created holds its id.
func (t *Txn) CreateIfAbsent(name string, settings Settings) int {
	return t.create(txnOp{kind: txnCreateIfAbsent, name: name, settings: settings})
}

// CreateAt is Create of a stream whose first record gets offset start, as if what was
// before had been trimmed. A negative start is ErrOffsetOutOfRange.
func (t *Txn) CreateAt(name string, settings Settings, start int64) int {
	return t.create(txnOp{kind: txnCreate, name: name, settings: settings, offset: start})
}

func (t *Txn) create(op txnOp) int {
	t.add(op)
	t.creates++
	return t.creates - 1
}

// Delete removes a stream and its records. Its name is free at once. Commit fails
// with ErrNoStream if it does not exist.
func (t *Txn) Delete(id StreamID) { t.add(txnOp{kind: txnDelete, id: id}) }

// Trim moves the start offset up to offset, which is at most the high watermark
// (else ErrOffsetOutOfRange). An offset below the start offset changes nothing.
func (t *Txn) Trim(id StreamID, offset int64) {
	t.add(txnOp{kind: txnTrim, id: id, offset: offset})
}

// expire is a trim by retention; written is when the last record that it takes away
// was written, ms. Commit fails with errChanged if the stream has other settings than
// seen.
func (t *Txn) expire(id StreamID, seen *streamRow, offset, written int64) {
	t.add(txnOp{kind: txnTrim, id: id, offset: offset, touched: max(written, 1), seen: seen})
}

// Configure replaces a stream's settings.
func (t *Txn) Configure(id StreamID, settings Settings) {
	t.add(txnOp{kind: txnConfigure, id: id, settings: settings})
}

// Reconfigure changes a stream's settings from what they are when Commit gets to it, so
// that changes at the same time do not undo each other. edit must neither wait nor use the
// store. Its error, if it returns one, is that of Commit, and nothing happens.
func (t *Txn) Reconfigure(id StreamID, edit func(*Settings) error) {
	t.add(txnOp{kind: txnReconfigure, id: id, edit: edit})
}

// Close closes a stream: it takes no more appends, for ever. Closing it again
// changes nothing.
func (t *Txn) Close(id StreamID) { t.add(txnOp{kind: txnClose, id: id}) }

// Rename gives a stream another name; Commit fails with ErrStreamExists if that is
// taken. Records, id and settings stay. Those who watch the new name, or a prefix of it,
// get news when the change is durable; those who look the name up may find it before.
func (t *Txn) Rename(id StreamID, name string) { t.add(txnOp{kind: txnRename, id: id, name: name}) }

// Touch begins the time to live of a stream anew, as a write to it does.
func (t *Txn) Touch(id StreamID) { t.add(txnOp{kind: txnTouch, id: id}) }

// deleteIdle removes a stream if its next offset is still offset, else Commit fails
// with ErrConflict, and if it has not been trimmed or configured since it was as seen,
// else with errChanged.
func (t *Txn) deleteIdle(id StreamID, seen *streamRow, offset int64) {
	t.add(txnOp{kind: txnDeleteIdle, id: id, offset: offset, seen: seen})
}

// deleteOver removes a stream whose end of life has come. Commit fails with errChanged if
// it has other settings than seen.
func (t *Txn) deleteOver(id StreamID, seen *streamRow) {
	t.add(txnOp{kind: txnDelete, id: id, seen: seen})
}

// errChanged: a stream is no longer as retention saw it, so the decision is to be made
// again.
var errChanged = errors.New("the stream was changed meanwhile")

// Set writes a row of the key-value space.
func (t *Txn) Set(key, value []byte) { t.add(txnOp{kind: txnSet, key: key, value: value}) }

// Unset removes a row of the key-value space; an absent one is no error.
func (t *Txn) Unset(key []byte) { t.add(txnOp{kind: txnUnset, key: key}) }

// makesRoom reports whether the transaction removes records, or lets them expire. A
// folder bucket may be on the disk that is nearly full, and then this is the way out.
func (t *Txn) makesRoom() bool {
	return t.creates == 0 && slices.ContainsFunc(t.ops, func(op txnOp) bool {
		switch op.kind {
		case txnDelete, txnDeleteIdle, txnTrim, txnConfigure, txnReconfigure:
			return true
		}
		return false
	})
}

// Result of a transaction.
type Result struct {
	// Created has the id of each Create and CreateIfAbsent, in call order.
	Created []StreamID
}

// Commit carries out a transaction and returns when it is durable in the sense
// of Options.Durability. When an operation is refused, nothing happens. When ctx
// ends first, Commit returns ctx.Err() and the changes stay; ErrFenced, ErrFailed
// and ErrClosed mean that they may or may not survive.
func (s *Store) Commit(ctx context.Context, t *Txn) (Result, error) {
	result, entry, err := s.queueTxn(ctx, t)
	if err != nil || entry == nil {
		return result, err
	}
	return result, s.await(ctx, entry.durable)
}

// Ensure returns the id of the stream called name and makes the stream if there
// is none, without waiting until that is durable: an append to it is ordered
// behind its creation, so the one's acknowledgement covers the other.
func (s *Store) Ensure(ctx context.Context, name string, settings Settings) (StreamID, error) {
	if id, err := s.Lookup(name); err == nil {
		return id, nil
	}
	ids, err := s.EnsureAll(ctx, []string{name}, settings)
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// EnsureAll is Ensure for many streams, in one transaction. It is for names that are
// likely to be missing; a name may occur more than once.
func (s *Store) EnsureAll(ctx context.Context, names []string, settings Settings) ([]StreamID, error) {
	t := NewTxn()
	for _, name := range names {
		t.CreateIfAbsent(name, settings)
	}
	result, _, err := s.queueTxn(ctx, t)
	return result.Created, err
}

// mutation is a transaction on its way through the tail: its row changes, and
// what the flusher derives changes of extents and producers from.
type mutation struct {
	rows    []byte // Pebble batch (Batch.Repr) on rows n, s and k
	deletes []StreamID
	trims   []trimSpan
	expired []producerRef

	// renamed streams have news when the entry is durable.
	renamed []*stream
	// pinned streams are released when the rows are in the database: until then
	// only memory knows their new state.
	pinned []*stream
}

// trimSpan: the start offset of a stream moved.
type trimSpan struct {
	id       StreamID
	from, to int64
}

type producerRef struct {
	id       StreamID
	producer int64
}

// encode makes the tail entry:
//
//	kind (1 byte), row version, deletes u, {stream id u}, trims u,
//	{stream id u, from u, to u}, expired producers u, {stream id u, producer u},
//	rows: the rest
func (m *mutation) encode() []byte {
	b := append(make([]byte, 0, 64+len(m.rows)), tailTransaction, rowVersion)
	b = binary.AppendUvarint(b, uint64(len(m.deletes)))
	for _, id := range m.deletes {
		b = binary.AppendUvarint(b, uint64(id))
	}
	b = binary.AppendUvarint(b, uint64(len(m.trims)))
	for _, t := range m.trims {
		b = binary.AppendUvarint(b, uint64(t.id))
		b = binary.AppendUvarint(b, uint64(t.from))
		b = binary.AppendUvarint(b, uint64(t.to))
	}
	b = binary.AppendUvarint(b, uint64(len(m.expired)))
	for _, p := range m.expired {
		b = binary.AppendUvarint(b, uint64(p.id))
		b = binary.AppendUvarint(b, uint64(p.producer))
	}
	return append(b, m.rows...)
}

// decodeMutation reads what follows the kind byte.
func decodeMutation(b []byte) (*mutation, error) {
	r, m := newRowReader(b, rowVersion), &mutation{}
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		m.deletes = append(m.deletes, StreamID(r.uvarint()))
	}
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		m.trims = append(m.trims, trimSpan{StreamID(r.uvarint()), int64(r.uvarint()), int64(r.uvarint())})
	}
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		m.expired = append(m.expired, producerRef{StreamID(r.uvarint()), int64(r.uvarint())})
	}
	if r.err != nil {
		return nil, fmt.Errorf("transaction in the tail: %w", r.err)
	}
	m.rows = append([]byte(nil), r.b...)
	return m, nil
}

// applyTo adds the row changes to batch.
func (m *mutation) applyTo(batch *pebble.Batch, db *pebble.DB) error {
	if len(m.rows) == 0 {
		return nil
	}
	rows := db.NewBatch()
	defer rows.Close()
	if err := rows.SetRepr(append([]byte(nil), m.rows...)); err != nil {
		return err
	}
	return batch.Apply(rows, nil)
}

// txnStage collects the effects of a transaction while its operations are
// checked; nothing is visible before all have passed.
type txnStage struct {
	store    *Store
	rows     *pebble.Batch
	mutation *mutation
	result   Result
	names    map[string]StreamID // names changed so far; 0: deleted
	created  map[StreamID]*stream
	touched  map[StreamID]*touchedStream
}

// touchedStream is an existing stream that the transaction changes.
type touchedStream struct {
	stream  *stream
	row     streamRow
	changed bool
	deleted bool
	next    int64 // the stream's next offset must be this; AnyOffset: it need not
}

// queueTxn checks a transaction, makes it visible and queues it. The entry is
// nil if there is nothing to change.
func (s *Store) queueTxn(ctx context.Context, t *Txn) (Result, *tailEntry, error) {
	size := t.bytes + tailEntryOverhead
	if err := s.admit(ctx, size, t.makesRoom()); err != nil {
		return Result{}, nil, err
	}
	result, entry, err := s.queueAdmittedTxn(t, size)
	if entry == nil {
		s.unflushed.Release(size)
	}
	return result, entry, err
}

func (s *Store) queueAdmittedTxn(t *Txn, size int64) (Result, *tailEntry, error) {
	// Transactions are checked one at a time. Point reads of the database happen
	// under this lock: metadata changes wait for one another, appends and reads
	// do not.
	s.meta.Lock()
	defer s.meta.Unlock()
	stage := &txnStage{
		store:    s,
		rows:     s.db.NewBatch(),
		mutation: &mutation{},
		names:    make(map[string]StreamID),
		created:  make(map[StreamID]*stream),
		touched:  make(map[StreamID]*touchedStream),
	}
	defer stage.close()
	for i := range t.ops {
		if err := stage.check(&t.ops[i]); err != nil {
			return Result{}, nil, err
		}
	}
	entry, err := stage.queue(size)
	return stage.result, entry, err
}

func (g *txnStage) close() {
	g.rows.Close()
	for _, touched := range g.touched {
		g.store.release(touched.stream)
	}
}

func (g *txnStage) check(op *txnOp) error {
	switch op.kind {
	case txnCreate, txnCreateIfAbsent:
		return g.create(op)
	case txnSet:
		return g.rows.Set(kvKey(op.key), op.value, nil)
	case txnUnset:
		return g.rows.Delete(kvKey(op.key), nil)
	}
	touched, err := g.touch(op.id)
	if err != nil {
		return err
	}
	if op.seen != nil && op.seen.settings != touched.row.settings {
		return errChanged
	}
	switch op.kind {
	case txnDeleteIdle:
		if op.seen.touched != touched.row.touched {
			return errChanged
		}
		touched.next = op.offset
		return g.delete(touched)
	case txnDelete:
		return g.delete(touched)
	case txnTrim:
		return g.trim(touched, op)
	case txnClose:
		touched.changed = touched.changed || !touched.row.closed
		touched.row.closed = true
		return nil
	case txnRename:
		return g.rename(touched, op.name)
	case txnTouch:
		touched.row.touched, touched.changed = g.now(), true
		return nil
	case txnReconfigure:
		op.settings = touched.row.settings
		if err := op.edit(&op.settings); err != nil {
			return err
		}
	}
	return g.configure(touched, op.settings)
}

func (g *txnStage) configure(t *touchedStream, settings Settings) error {
	if err := settings.validate(); err != nil {
		return err
	}
	t.row.settings, t.changed = settings.normal(), true
	t.row.touched = g.now()
	return nil
}

func (g *txnStage) now() int64 { return g.store.opts.Now().UnixMilli() }

func (g *txnStage) create(op *txnOp) error {
	if err := ValidateName(op.name); err != nil {
		return err
	}
	if err := op.settings.validate(); err != nil {
		return err
	}
	if op.offset < 0 {
		return fmt.Errorf("%w: a stream cannot start at %d", ErrOffsetOutOfRange, op.offset)
	}
	id, err := g.lookup(op.name)
	if err != nil {
		return err
	}
	if id != 0 {
		if op.kind == txnCreate {
			return fmt.Errorf("%w: %q", ErrStreamExists, op.name)
		}
		g.result.Created = append(g.result.Created, id)
		return nil
	}
	id = g.store.newStreamID()
	st := &stream{id: id, prefixes: &g.store.prefixes}
	now := g.now()
	st.mu.row = streamRow{name: op.name, created: now, touched: now, start: op.offset, settings: op.settings.normal()}
	st.mu.next, st.mu.hw = op.offset, op.offset
	g.names[op.name] = id
	g.created[id] = st
	g.result.Created = append(g.result.Created, id)
	if err := g.setName(op.name, id); err != nil {
		return err
	}
	return g.rows.Set(streamKey(id), st.mu.row.encode(), nil)
}

func (g *txnStage) setName(name string, id StreamID) error {
	return g.rows.Set(nameKey(name), numberKey(0, uint64(id))[1:], nil)
}

func (g *txnStage) rename(t *touchedStream, name string) error {
	if err := ValidateName(name); err != nil {
		return err
	}
	switch id, err := g.lookup(name); {
	case err != nil:
		return err
	case id != 0:
		return fmt.Errorf("%w: %q", ErrStreamExists, name)
	}
	if err := g.rows.Delete(nameKey(t.row.name), nil); err != nil {
		return err
	}
	g.names[t.row.name], g.names[name] = 0, t.stream.id
	t.row.name, t.row.touched, t.changed = name, g.now(), true
	g.mutation.renamed = append(g.mutation.renamed, t.stream)
	return g.setName(name, t.stream.id)
}

func (g *txnStage) lookup(name string) (StreamID, error) {
	if id, ok := g.names[name]; ok {
		return id, nil
	}
	return g.store.lookupNewest(name)
}

// touch pins an existing stream for a change.
func (g *txnStage) touch(id StreamID) (*touchedStream, error) {
	touched := g.touched[id]
	if touched == nil {
		st, err := g.store.acquire(id)
		if err != nil {
			return nil, err
		}
		touched = &touchedStream{stream: st, next: AnyOffset}
		st.mu.Lock()
		touched.row, touched.deleted = st.mu.row, st.mu.deleted
		st.mu.Unlock()
		g.touched[id] = touched
	}
	if touched.deleted {
		return nil, fmt.Errorf("%w: id %d", ErrNoStream, id)
	}
	return touched, nil
}

func (g *txnStage) delete(t *touchedStream) error {
	t.deleted, t.changed = true, true
	g.names[t.row.name] = 0
	g.mutation.deletes = append(g.mutation.deletes, t.stream.id)
	if err := g.rows.Delete(nameKey(t.row.name), nil); err != nil {
		return err
	}
	return g.rows.Delete(streamKey(t.stream.id), nil)
}

func (g *txnStage) trim(t *touchedStream, op *txnOp) error {
	offset := op.offset
	t.stream.mu.Lock()
	hw := t.stream.mu.hw
	t.stream.mu.Unlock()
	if offset > hw {
		return fmt.Errorf("%w: cannot trim to %d, the high watermark is %d", ErrOffsetOutOfRange, offset, hw)
	}
	if offset > t.row.start {
		g.mutation.trims = append(g.mutation.trims, trimSpan{t.stream.id, t.row.start, offset})
		t.row.start, t.changed = offset, true
		if op.touched == 0 {
			op.touched = g.now()
		}
		t.row.touched = max(t.row.touched, op.touched)
	}
	return nil
}

// queue gives the checked transaction its place in the order and makes its
// effects visible.
func (g *txnStage) queue(size int64) (*tailEntry, error) {
	for id, touched := range g.touched {
		if touched.changed && !touched.deleted {
			if err := g.rows.Set(streamKey(id), touched.row.encode(), nil); err != nil {
				return nil, err
			}
		}
	}
	if g.rows.Empty() {
		return nil, nil
	}
	g.mutation.rows = append([]byte(nil), g.rows.Repr()...)
	entry := &tailEntry{size: size, producer: noProducer, appended: g.now(), txn: g.mutation, durable: make(chan struct{})}
	s := g.store
	for _, st := range g.created {
		s.adopt(st)
		g.mutation.pinned = append(g.mutation.pinned, st)
	}
	for _, touched := range g.touched {
		s.pin(touched.stream)
		g.mutation.pinned = append(g.mutation.pinned, touched.stream)
	}
	if err := g.pushAndPublish(entry); err != nil {
		for _, st := range g.mutation.pinned {
			s.release(st)
		}
		return nil, err
	}
	for name, id := range g.names {
		s.pendingNames.set(name, id, entry.number, s.appender.applied.Load())
	}
	return entry, nil
}

// pushAndPublish queues the entry and makes the changes of existing streams visible
// in one step, so that no append to a deleted stream comes after its deletion and no
// reader finds the records gone before the start offset has moved. Nobody else holds
// two streams' locks, because transactions are serial, so their order is free.
func (g *txnStage) pushAndPublish(entry *tailEntry) error {
	for _, touched := range g.touched {
		touched.stream.mu.Lock()
		defer touched.stream.mu.Unlock()
	}
	for _, touched := range g.touched {
		if next := touched.stream.mu.next; touched.next != AnyOffset && touched.next != next {
			return &ConflictError{Expected: touched.next, Next: next}
		}
	}
	if err := g.store.queue.push(entry); err != nil {
		return err
	}
	for _, touched := range g.touched {
		touched.publishLocked()
	}
	return nil
}

// publishLocked makes the change of an existing stream visible.
func (t *touchedStream) publishLocked() {
	if !t.changed {
		return
	}
	t.stream.mu.row, t.stream.mu.deleted = t.row, t.deleted
	t.stream.notifyLocked()
}

// pendingNames knows the names whose rows are queued but may not be in the
// database yet. Guarded by Store.meta.
type pendingNames struct {
	m     map[string]pendingName
	sweep int // size at which entries that are in the database are swept out
}

type pendingName struct {
	id     StreamID // 0: deleted
	number uint64   // append number of the change
}

func (p *pendingNames) set(name string, id StreamID, number, applied uint64) {
	if p.m == nil {
		p.m, p.sweep = make(map[string]pendingName), 1024
	}
	if len(p.m) >= p.sweep {
		for name, pending := range p.m {
			if pending.number < applied {
				delete(p.m, name)
			}
		}
		p.sweep = max(1024, 2*len(p.m))
	}
	p.m[name] = pendingName{id, number}
}

// lookupNewest finds a name, queued changes included; 0 if there is none. The
// caller holds Store.meta.
func (s *Store) lookupNewest(name string) (StreamID, error) {
	if pending, ok := s.pendingNames.m[name]; ok {
		if pending.number >= s.appender.applied.Load() {
			return pending.id, nil
		}
		delete(s.pendingNames.m, name)
	}
	id, _, err := s.lookupRow(name)
	return id, err
}
