package streamstore

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

var (
	modelSeed  = flag.Uint64("model.seed", 0, "run the model test with this seed only")
	modelSteps = flag.Int("model.steps", 400, "operations per seed")
	modelSoak  = flag.Duration("model.soak", 0, "run the model test with ever new seeds for this long")
	modelLog   = flag.Bool("model.log", false, "print the store's log and each operation")
)

// TestModel runs random operations on a store with faults in its bucket, crashes,
// lost disks and competing writers, and compares it with a simple model.
//
// One goroutine issues all operations, so the order of the history is the order of
// the log. The store must at all times be equal to the model after some prefix of
// the history; after a crash that prefix must hold everything that was acknowledged
// as far as the durability promises, and what lies behind it is gone for good.
func TestModel(t *testing.T) {
	switch {
	case *modelSoak > 0:
		for end := time.Now().Add(*modelSoak); time.Now().Before(end) && !t.Failed(); {
			runModel(t, rand.Uint64())
		}
	case *modelSeed != 0:
		runModel(t, *modelSeed)
	default:
		for range 16 {
			runModel(t, rand.Uint64())
		}
	}
}

func runModel(t *testing.T, seed uint64) {
	t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		t.Logf("repeat with: go test ./streamstore -run TestModel -model.seed=%d -model.steps=%d", seed, *modelSteps)
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, seed)
			defer h.stop()
			for h.steps = range *modelSteps {
				h.step()
			}
			h.verifyAll("at the end")
			for _, p := range mustCheck(t, h.memory).Problems {
				if !slices.Contains(h.damaged, p.Object) { // what was spoilt may be found
					h.fatalf("problem in the bucket: %+v", p)
				}
			}
		})
	})
}

// modelState is the whole state of a store, as simple as can be.
type modelState struct {
	streams map[string]*modelStream
	kv      map[string]string
}

type modelStream struct {
	id      StreamID
	start   int64
	next    int64
	batches []recordBatch // all since creation; the start offset hides the first ones
}

func (m modelState) clone() modelState {
	c := modelState{streams: make(map[string]*modelStream), kv: maps.Clone(m.kv)}
	for name, st := range m.streams {
		copied := *st
		copied.batches = slices.Clone(st.batches)
		c.streams[name] = &copied
	}
	return c
}

// modelOp is one entry of the history: how it changes the state.
type modelOp struct {
	what    string
	apply   func(m modelState)
	pending *Appended // append whose acknowledgement was not awaited
}

type harness struct {
	t     *testing.T
	rng   *rand.Rand
	steps int

	memory     *objstore.Memory
	bucket     *switchBucket // of the open store
	faults     *faulty.Bucket
	fs         *vfs.MemFS
	oldFS      *vfs.MemFS // a disk that another writer has replaced
	store      *Store
	opened     []*Store
	durability Durability
	damaged    []string     // objects of checkpoints that were spoilt
	damagedAt  uint64       // the newest checkpoint when the last one was
	compacting atomic.Int32 // compactions that run beside the operations

	// base is the state before the history; state is the one after it. The first
	// acked entries of the history are acknowledged, the first flushed are in the
	// bucket.
	base           modelState
	history        []modelOp
	acked, flushed int
	state          modelState

	producers map[int64]*modelProducer
	payload   uint64
}

// modelProducer is an idempotent producer as a client is one.
type modelProducer struct {
	epoch    int16
	sequence map[StreamID]int32
	last     map[StreamID]sentBatch // its newest batch per stream, to send again
}

type sentBatch struct {
	batch  recordBatch
	offset int64
}

// switchBucket cuts a store off the bucket, as the death of its process does.
type switchBucket struct {
	objstore.Bucket
	dead   atomic.Bool
	remote bool // passes for a service on another machine
}

func (b *switchBucket) Local() bool { return !b.remote && b.Bucket.Local() }

var errDead = errors.New("the process is dead")

func (b *switchBucket) Delete(ctx context.Context, name string) error {
	if b.dead.Load() {
		return errDead
	}
	return b.Bucket.Delete(ctx, name)
}

func (b *switchBucket) Create(ctx context.Context, name string, data []byte) error {
	if b.dead.Load() {
		return errDead
	}
	return b.Bucket.Create(ctx, name, data)
}

func newHarness(t *testing.T, seed uint64) *harness {
	h := &harness{
		t:         t,
		rng:       rand.New(rand.NewPCG(seed, seed)),
		memory:    objstore.NewMemory(),
		fs:        vfs.NewCrashableMem(),
		base:      modelState{streams: make(map[string]*modelStream), kv: make(map[string]string)},
		producers: make(map[int64]*modelProducer),
	}
	h.state = h.base.clone()
	h.durability = Durability(h.rng.IntN(2))
	h.logf("durability %v", h.durability)
	h.faults = faulty.New(h.memory, seed)
	h.setFaults()
	h.store = h.open(h.fs)
	return h
}

func (h *harness) stop() {
	for _, s := range h.opened {
		_ = s.Close()
	}
}

func (h *harness) logf(format string, args ...any) {
	if *modelLog {
		h.t.Logf("step %d: "+format, append([]any{h.steps}, args...)...)
	}
}

func (h *harness) fatalf(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("step %d: "+format, append([]any{h.steps}, args...)...)
}

func (h *harness) chance(percent int) bool { return h.rng.IntN(100) < percent }

func pick[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

// setFaults chooses how badly the bucket behaves from now on.
func (h *harness) setFaults() {
	h.faults.Heal()
	if h.chance(30) {
		return
	}
	for _, op := range []objstore.Op{objstore.OpCreate, objstore.OpGet, objstore.OpGetRange, objstore.OpList, objstore.OpDelete} {
		h.faults.SetRate(op, faulty.Before, h.rng.Float64()/5)
		h.faults.SetRate(op, faulty.After, h.rng.Float64()/5)
		h.faults.SetRate(op, faulty.Truncate, h.rng.Float64()/10)
		h.faults.SetDelay(op, 0, time.Duration(h.rng.IntN(int(30*time.Millisecond))))
	}
}

func (h *harness) open(fs *vfs.MemFS) *Store {
	bucket, err := objstore.Wrap(h.faults, objstore.Options{Retry: objstore.RetryPolicy{MaxAttempts: 100, MaxElapsed: 24 * time.Hour}})
	if err != nil {
		h.fatalf("Wrap: %v", err)
	}
	h.bucket = &switchBucket{Bucket: bucket, remote: h.chance(50)}
	opts := Options{
		Dir: "data", FS: fs, Bucket: h.bucket, Durability: h.durability,
		FlushInterval:     pick(h.rng, time.Millisecond, 20*time.Millisecond, time.Second),
		FlushBytes:        pick[int64](h.rng, 1, 4<<10, 1<<20),
		TailCacheBytes:    pick[int64](h.rng, 1, 2<<10, 1<<20),
		SegmentCacheBytes: pick[int64](h.rng, 1, 4<<10, 1<<20),
		DiskCacheBytes:    pick[int64](h.rng, 0, 64<<10, 1<<20),
		BlockCacheBytes:   1 << 20,
		FenceCheckAfter:   pick(h.rng, time.Nanosecond, time.Hour),

		CheckpointCommits: pick(h.rng, 1, 5, 1000),
		CheckpointBytes:   pick[int64](h.rng, 1, 1<<10, 1<<20),

		CheckpointBaseCommits: pick(h.rng, 1, 10, 1000),

		CheckpointInterval:  pick(h.rng, time.Second, time.Hour),
		CheckpointBandwidth: 1 << 40,
		CompactionBandwidth: -1,
		DeleteGrace:         -1,
		compaction: compactionPolicy{
			interval: 100 * 365 * 24 * time.Hour, // when the test says so
			bytes:    pick[int64](h.rng, 1, 10<<10, 1<<20),
			objects:  1 << 10, extents: 1 << 20, ageObjects: 1,
			fanout:  2 + h.rng.IntN(3),
			longRun: pick[int64](h.rng, 100, 4<<10, 1<<20),
			output:  pick[int64](h.rng, 1, 4<<10, 1<<20),
		},
	}
	if *modelLog {
		opts.Logger = zaptest.NewLogger(h.t, zaptest.Level(zap.InfoLevel))
	}
	s, err := Open(context.Background(), opts)
	if err != nil {
		h.fatalf("Open: %v", err)
	}
	h.opened = append(h.opened, s)
	return s
}

func (h *harness) close(s *Store) error {
	h.opened = slices.DeleteFunc(h.opened, func(o *Store) bool { return o == s })
	return s.Close()
}

// step does one random operation.
func (h *harness) step() {
	switch n := h.rng.IntN(100); {
	case n < 45:
		h.append()
	case n < 50:
		h.create()
	case n < 55:
		h.trim()
	case n < 57:
		h.delete()
	case n < 61:
		h.setKV()
	case n < 65:
		h.flush()
	case n < 80:
		h.read()
	case n < 84:
		h.timestamps()
	case n < 85:
		h.list()
	case n < 86:
		h.setFaults()
	case n < 87:
		h.compact()
	case n < 88:
		h.checkpoint()
	case n < 92:
		h.restart()
	case n < 96:
		h.crash()
	case n < 98:
		h.loseDisk()
	default:
		h.compete()
	}
}

var modelNames = []string{"a", "a/b", "b/c/d", "users/1", "users/2", "z"}

func (h *harness) randomStream() (string, *modelStream) {
	names := slices.Sorted(maps.Keys(h.state.streams))
	if len(names) == 0 {
		return "", nil
	}
	name := pick(h.rng, names...)
	return name, h.state.streams[name]
}

// record adds an operation to the history and to the present state.
func (h *harness) record(op modelOp) {
	op.apply(h.state)
	h.history = append(h.history, op)
	h.logf("%s", op.what)
}

// ack: everything in the history so far is acknowledged.
func (h *harness) ack() { h.acked = len(h.history) }

func (h *harness) create() {
	name := pick(h.rng, modelNames...)
	t := NewTxn()
	t.Create(name, DefaultSettings())
	result, err := h.store.Commit(context.Background(), t)
	if h.state.streams[name] != nil {
		if !errors.Is(err, ErrStreamExists) {
			h.fatalf("Create of existing %q: %v", name, err)
		}
		return
	}
	if err != nil {
		h.fatalf("Create %q: %v", name, err)
	}
	h.recordCreate(name, result.Created[0])
	h.ack()
}

func (h *harness) recordCreate(name string, id StreamID) {
	h.record(modelOp{what: fmt.Sprintf("create %s id %d", name, id), apply: func(m modelState) {
		m.streams[name] = &modelStream{id: id}
	}})
}

func (h *harness) append() {
	name := pick(h.rng, modelNames...)
	if h.state.streams[name] == nil {
		id, err := h.store.Ensure(context.Background(), name, DefaultSettings())
		if err != nil {
			h.fatalf("Ensure %q: %v", name, err)
		}
		h.recordCreate(name, id)
	}
	st := h.state.streams[name]
	spec := batchSpec{
		records:   1 + h.rng.IntN(5),
		payload:   h.nextPayload(),
		timestamp: 1000 + h.rng.Int64N(1000),
	}
	ack := pick(h.rng, AckNone, AckLocal, AckDurable, AckDurable)
	if h.chance(40) {
		h.appendIdempotent(name, st, spec, ack)
		return
	}
	expected := int64(AnyOffset)
	if h.chance(20) {
		expected = st.next + int64(h.rng.IntN(2))
	}
	a, err := h.store.Append(context.Background(), AppendRequest{Stream: st.id, Batch: spec.encode(), Expected: expected, Ack: ack})
	if expected > st.next {
		var conflict *ConflictError
		if !errors.As(err, &conflict) || conflict.Next != st.next {
			h.fatalf("append to %s expecting %d: %v, want a conflict at %d", name, expected, err, st.next)
		}
		return
	}
	h.appended(name, spec, a, err, ack)
}

func (h *harness) nextPayload() []byte {
	h.payload++
	size := h.rng.IntN(300)
	if h.chance(3) {
		size = h.rng.IntN(200 << 10)
	}
	return append(fmt.Appendf(nil, "%d:", h.payload), make([]byte, size)...)
}

// appended checks an append that must have succeeded and records it.
func (h *harness) appended(name string, spec batchSpec, a Appended, err error, ack Ack) {
	h.t.Helper()
	st := h.state.streams[name]
	if err != nil || a.Duplicate || a.BaseOffset != st.next {
		h.fatalf("append to %s: %+v, %v; want offset %d", name, a, err, st.next)
	}
	batch := recordBatch(spec.encode())
	batch.place(a.BaseOffset, LeaderEpoch)
	h.record(modelOp{what: fmt.Sprintf("append %s at %d", name, a.BaseOffset), pending: &a, apply: func(m modelState) {
		st := m.streams[name]
		st.batches = append(slices.Clip(st.batches), batch)
		st.next = batch.lastOffset() + 1
	}})
	if ack == AckDurable && h.chance(60) {
		h.wait(a)
	}
}

func (h *harness) wait(a Appended) {
	h.t.Helper()
	if err := a.Wait(context.Background()); err != nil {
		h.fatalf("Wait: %v", err)
	}
	h.ack()
}

// appendIdempotent appends as an idempotent producer, sometimes again what it has
// sent last, sometimes with a hole in its sequence.
func (h *harness) appendIdempotent(name string, st *modelStream, spec batchSpec, ack Ack) {
	pid := 1 + h.rng.Int64N(3)
	p, key := h.producer(pid), st.id
	if sent, ok := p.last[key]; ok && h.chance(30) {
		a, err := h.store.Append(context.Background(), AppendRequest{Stream: st.id, Batch: bytes.Clone(sent.batch), Expected: AnyOffset, Ack: AckDurable})
		if err != nil || !a.Duplicate || a.BaseOffset != sent.offset {
			h.fatalf("append to %s again: %+v, %v; want the duplicate at %d", name, a, err, sent.offset)
		}
		if err := a.Wait(context.Background()); err != nil {
			h.fatalf("Wait for a duplicate: %v", err)
		}
		return
	}
	spec.producer, spec.epoch, spec.sequence = pid, p.epoch, p.sequence[key]
	if _, known := p.last[key]; known && h.chance(10) {
		spec.sequence += 7
		if _, err := h.store.Append(context.Background(), AppendRequest{Stream: st.id, Batch: spec.encode(), Expected: AnyOffset, Ack: ack}); !errors.Is(err, ErrOutOfOrderSequence) {
			h.fatalf("append to %s with a hole in the sequence: %v", name, err)
		}
		return
	}
	a, err := h.store.Append(context.Background(), AppendRequest{Stream: st.id, Batch: spec.encode(), Expected: AnyOffset, Ack: ack})
	p.sent(key, spec.encode(), a.BaseOffset)
	h.appended(name, spec, a, err, ack)
}

func (h *harness) producer(pid int64) *modelProducer {
	p := h.producers[pid]
	if p == nil {
		p = &modelProducer{sequence: make(map[StreamID]int32), last: make(map[StreamID]sentBatch)}
		h.producers[pid] = p
	}
	return p
}

func (p *modelProducer) sent(id StreamID, batch recordBatch, offset int64) {
	p.sequence[id] = batch.baseSequence() + batch.lastOffsetDelta() + 1
	p.last[id] = sentBatch{batch, offset}
}

// resumeProducers makes the producers know what survived, as clients that got the
// answers to it do.
func (h *harness) resumeProducers() {
	h.producers = make(map[int64]*modelProducer)
	for _, st := range h.state.streams {
		for _, batch := range st.batches {
			if pid := batch.producerID(); pid >= 0 {
				h.producer(pid).sent(st.id, batch, batch.baseOffset())
			}
		}
	}
}

func (h *harness) trim() {
	name, st := h.randomStream()
	if st == nil {
		return
	}
	offsets, err := h.store.Offsets(st.id)
	if err != nil {
		h.fatalf("Offsets %s: %v", name, err)
	}
	to := offsets.Start + h.rng.Int64N(offsets.HighWatermark-offsets.Start+1)
	t := NewTxn()
	t.Trim(st.id, to)
	if _, err := h.store.Commit(context.Background(), t); err != nil {
		h.fatalf("Trim %s to %d: %v", name, to, err)
	}
	if to > st.start {
		h.record(modelOp{what: fmt.Sprintf("trim %s to %d", name, to), apply: func(m modelState) { m.streams[name].start = to }})
		h.ack()
	}
}

func (h *harness) delete() {
	name, st := h.randomStream()
	if st == nil {
		return
	}
	t := NewTxn()
	t.Delete(st.id)
	if _, err := h.store.Commit(context.Background(), t); err != nil {
		h.fatalf("Delete %s: %v", name, err)
	}
	h.record(modelOp{what: "delete " + name, apply: func(m modelState) { delete(m.streams, name) }})
	h.ack()
	if _, err := h.store.Describe(st.id); !errors.Is(err, ErrNoStream) {
		h.fatalf("Describe of deleted %s: %v", name, err)
	}
}

func (h *harness) setKV() {
	key, value := fmt.Sprint("key", h.rng.IntN(5)), fmt.Sprint(h.payload)
	t := NewTxn()
	unset := h.chance(20)
	if unset {
		t.Unset([]byte(key))
	} else {
		t.Set([]byte(key), []byte(value))
	}
	if _, err := h.store.Commit(context.Background(), t); err != nil {
		h.fatalf("Set: %v", err)
	}
	h.record(modelOp{what: fmt.Sprintf("set %s=%s (unset %v)", key, value, unset), apply: func(m modelState) {
		if m.kv[key] = value; unset {
			delete(m.kv, key)
		}
	}})
	h.ack()
}

// compact compacts and deletes what is dead, at once or beside the operations that
// follow. The history knows nothing of it.
func (h *harness) compact() {
	s := h.store
	if !h.compacting.CompareAndSwap(0, 1) {
		return
	}
	done := make(chan struct{})
	beside := h.chance(70)
	h.logf("compact, beside the rest %v", beside)
	s.background(func() {
		defer close(done)
		defer h.compacting.Store(0)
		select {
		case <-s.catalogue.ready:
		case <-s.ctx.Done():
			return
		}
		for n := 0; n < 10 && s.compactor.step(s.ctx); n++ {
		}
		s.compactor.deleteDead(s.ctx)
	})
	if beside {
		return
	}
	<-done
	if err := s.Err(); err != nil {
		h.fatalf("compaction: %v", err)
	}
	h.checkUse()
}

// checkpoint makes a checkpoint and cleans older ones up. The history knows nothing of
// it.
func (h *harness) checkpoint() {
	h.logf("checkpoint")
	if err := h.store.checkpoints.make(context.Background()); err != nil {
		h.fatalf("checkpoint: %v", err)
	}
	h.store.checkpoints.cleanUp(context.Background())
}

// damageCheckpoint spoils one object of a checkpoint that is kept, in one of several ways:
// a manifest, a base or a bundle. That has to be survived if the others are sound. What is
// spoilt stays so; until two sound bases have been made since, nothing else is.
func (h *harness) damageCheckpoint() {
	all := checkpoints(h.t, h.memory)
	k, err := keep(all, func(number uint64) (*manifest, error) {
		b, err := h.memory.Get(context.Background(), checkpointName(0, number))
		if err != nil {
			return nil, err
		}
		m, err := decodeManifest("checkpoint", 0, number, b)
		if err == nil && h.spoilt(m) {
			m = nil
		}
		if errors.Is(err, ErrCorrupt) {
			m, err = nil, nil
		}
		return m, err
	})
	if err != nil {
		h.fatalf("%v", err)
	}
	if k.newest == nil || k.newest.position.number != newestOf(all) || len(h.damaged) > 0 && (!k.twoBases() || min(k.newest.base.number, k.other.base.number) <= h.damagedAt) {
		return
	}
	m := k.newest
	if k.twoBases() && h.chance(20) {
		m = k.other
	}
	name := checkpointName(0, m.position.number)
	if i := h.rng.IntN(len(m.parts) + 1); i < len(m.parts) {
		name = m.parts[i].name.object(0)
	}
	b, err := h.memory.Get(context.Background(), name)
	if err != nil {
		h.fatalf("%v", err)
	}
	kind := pick(h.rng, slices.Sorted(maps.Keys(damages))...)
	h.logf("damage checkpoint %d: %s %s", m.position.number, name, kind)
	h.damaged, h.damagedAt = append(h.damaged, name), newestOf(all)
	overwrite(h.t, h.memory, name, damages[kind](b))
}

// spoilt: an object of the checkpoint was damaged.
func (h *harness) spoilt(m *manifest) bool {
	return slices.Contains(h.damaged, checkpointName(0, m.position.number)) ||
		slices.ContainsFunc(m.parts, func(p part) bool { return slices.Contains(h.damaged, p.name.object(0)) })
}

// checkUse proves that the count of live bytes is right and that every object in use is
// in the bucket.
func (h *harness) checkUse() {
	h.t.Helper()
	checkUse(h.t, h.store)
	if h.t.Failed() {
		h.fatalf("the use of objects is counted wrongly")
	}
	c := h.store.catalogue
	c.mu.Lock()
	objects := maps.Clone(c.mu.objects)
	c.mu.Unlock()
	for o, use := range objects {
		if use.live == 0 {
			continue
		}
		if _, err := h.memory.GetRange(context.Background(), o.name(0), 0, 1); err != nil {
			h.fatalf("object %s is in use: %v", o.name(0), err)
		}
	}
}

func (h *harness) flush() {
	if err := h.store.Flush(context.Background()); err != nil {
		h.fatalf("Flush: %v", err)
	}
	h.logf("flush")
	h.flushed = len(h.history)
	if h.durability == Remote {
		h.ack()
	}
}

// read reads at a random offset and compares.
func (h *harness) read() {
	name, st := h.randomStream()
	if st == nil {
		return
	}
	offset := h.rng.Int64N(st.next + 2)
	r, err := h.store.Read(context.Background(), st.id, offset, ReadOptions{MaxBytes: h.rng.IntN(8 << 10), MinOneBatch: true})
	if offset < st.start || offset > st.next {
		if !errors.Is(err, ErrOffsetOutOfRange) {
			h.fatalf("read %s at %d outside %d..%d: %v", name, offset, st.start, st.next, err)
		}
		return
	}
	if err != nil {
		h.fatalf("read %s at %d: %v", name, offset, err)
	}
	if r.Start != st.start || r.Next != st.next {
		h.fatalf("read %s: offsets %+v, want start %d, next %d", name, r.Offsets, st.start, st.next)
	}
	want := st.batches
	for len(want) > 0 && want[0].lastOffset() < offset {
		want = want[1:]
	}
	got := bytes.Join(r.Chunks, nil)
	if len(got) == 0 && offset < r.HighWatermark {
		h.fatalf("read %s at %d below the high watermark %d: nothing", name, offset, r.HighWatermark)
	}
	if !bytes.HasPrefix(bytes.Join(asBytes(want), nil), got) {
		h.fatalf("read %s at %d: %d bytes that are not what was appended", name, offset, len(got))
	}
}

func asBytes(batches []recordBatch) [][]byte {
	list := make([][]byte, len(batches))
	for i, b := range batches {
		list[i] = b
	}
	return list
}

func (h *harness) timestamps() {
	name, st := h.randomStream()
	if st == nil {
		return
	}
	offsets, err := h.store.Offsets(st.id)
	if err != nil {
		h.fatalf("Offsets %s: %v", name, err)
	}
	ts := 1000 + h.rng.Int64N(1000)
	want, got := int64(-1), int64(-1)
	for _, b := range st.batches {
		if b.lastOffset() >= st.start && b.baseOffset() < offsets.HighWatermark && b.maxTimestamp() >= ts {
			want = b.baseOffset()
			break
		}
	}
	err = h.store.ScanTimestamp(context.Background(), st.id, ts, func(batch []byte) (bool, error) {
		got = recordBatch(batch).baseOffset()
		return true, nil
	})
	if err != nil || got != want {
		h.fatalf("first batch of %s since %d is at %d, %v; want %d", name, ts, got, err, want)
	}
}

func (h *harness) list() {
	prefix := pick(h.rng, "", "a", "users/", "x")
	var got []string
	for after := ""; ; {
		infos, err := h.store.List(prefix, after, 2)
		if err != nil {
			h.fatalf("List: %v", err)
		}
		for _, info := range infos {
			got = append(got, info.Name)
		}
		if len(infos) < 2 {
			break
		}
		after = infos[1].Name
	}
	var want []string
	for _, name := range slices.Sorted(maps.Keys(h.state.streams)) {
		if len(name) >= len(prefix) && name[:len(prefix)] == prefix {
			want = append(want, name)
		}
	}
	// A creation that is only queued may be missing.
	if h.acked == len(h.history) && !slices.Equal(got, want) {
		h.fatalf("List %q: %q, want %q", prefix, got, want)
	}
}

// restart closes the store in good order and opens it again.
func (h *harness) restart() {
	h.logf("restart")
	if err := h.close(h.store); err != nil {
		h.fatalf("Close: %v", err)
	}
	h.reopen(h.fs, h.acked, "after a restart")
}

// crash pulls the plug: the disk keeps what was synced and some of the rest.
func (h *harness) crash() {
	cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: pick(h.rng, 0, 50, 100), RNG: rand.New(rand.NewPCG(h.rng.Uint64(), 1))}
	h.logf("crash, %d%% of unsynced data survives", cfg.UnsyncedDataPercent)
	h.bucket.dead.Store(true)
	h.fs = h.fs.CrashClone(cfg)
	_ = h.close(h.store)
	h.reopen(h.fs, h.acked, "after a crash")
}

// loseDisk replaces the disk by an empty one.
func (h *harness) loseDisk() {
	h.logf("lose the disk")
	h.bucket.dead.Store(true)
	_ = h.close(h.store)
	h.fs = vfs.NewCrashableMem()
	if h.chance(30) {
		h.damageCheckpoint()
	}
	h.reopen(h.fs, h.durableWithoutDisk(), "after losing the disk")
}

// durableWithoutDisk is the part of the history that must survive without the disk.
func (h *harness) durableWithoutDisk() int {
	if h.durability == Remote {
		return h.acked
	}
	return h.flushed
}

// compete opens a second writer on an empty disk, or on one that an earlier
// competition left behind, while the first one runs. The first one must not
// acknowledge anything more, as far as its durability promises.
func (h *harness) compete() {
	h.logf("compete")
	h.flush()
	first, fs := h.store, vfs.NewCrashableMem()
	if h.oldFS != nil && h.chance(50) {
		fs = h.oldFS
	}
	old := h.fs
	h.store = nil
	must := h.durableWithoutDisk()
	h.fs = fs
	h.reopen(fs, must, "after a second writer took over")
	if name, st := h.randomStream(); st != nil {
		a, err := first.Append(context.Background(), AppendRequest{Stream: st.id, Batch: batchSpec{payload: []byte("late")}.encode(), Expected: AnyOffset, Ack: AckDurable})
		if err == nil && h.durability == Remote {
			err = a.Wait(context.Background())
		} else if err == nil {
			err = first.Flush(context.Background())
		}
		if !errors.Is(err, ErrFenced) {
			h.fatalf("the first writer's append to %s after a second one took over: %v, want ErrFenced", name, err)
		}
	}
	if err := h.close(first); err != nil {
		h.fatalf("Close of the fenced writer: %v", err)
	}
	h.oldFS = old
	h.verifyAll("after the first writer was fenced")
}

// reopen opens the store on a disk and finds the prefix of the history that
// survived, which holds at least must entries.
func (h *harness) reopen(fs *vfs.MemFS, must int, when string) {
	h.t.Helper()
	h.store = h.open(fs)
	actual := h.dump()
	m := h.base.clone()
	for n := 0; ; n++ {
		if n >= must && m.equal(actual) {
			h.logf("%d of %d operations survived, %d had to", n, len(h.history), must)
			break
		}
		if n == len(h.history) {
			h.fatalf("%s: the store matches no prefix of the history (at least %d of %d operations must survive): %s", when, must, len(h.history), h.state.difference(actual))
		}
		h.history[n].apply(m)
	}
	h.base, h.state = m.clone(), m
	h.history, h.acked, h.flushed = nil, 0, 0
	h.resumeProducers()
	if h.durability == Local && h.store.Recovery().TailAppends > 0 {
		// What is in the base but not in the bucket would be lost with the disk.
		h.flush()
	}
}

func (h *harness) verifyAll(when string) {
	h.t.Helper()
	h.flush()
	synctest.Wait() // with local durability readers see an append once it is synced, which Flush does not wait for
	if actual := h.dump(); !h.state.equal(actual) {
		h.fatalf("%s: %s", when, h.state.difference(actual))
	}
	for h.compacting.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	h.checkUse()
}

// dump reads everything out of the store.
func (h *harness) dump() modelState {
	h.t.Helper()
	m := modelState{streams: make(map[string]*modelStream), kv: make(map[string]string)}
	infos, err := h.store.List("", "", 1000)
	if err != nil {
		h.fatalf("List: %v", err)
	}
	if h.durability == Remote {
		// What survived on the disk alone becomes visible with the next flush.
		if err := h.store.Flush(context.Background()); err != nil {
			h.fatalf("Flush: %v", err)
		}
	}
	for _, info := range infos {
		if id, err := h.store.Lookup(info.Name); err != nil || id != info.ID {
			h.fatalf("Lookup %q: %d, %v; want %d", info.Name, id, err, info.ID)
		}
		m.streams[info.Name] = &modelStream{id: info.ID, start: info.Start, next: info.Next, batches: readAll(h.t, h.store, info.ID, info.Start)}
	}
	if err := h.store.Scan(nil, func(key, value []byte) error {
		m.kv[string(key)] = string(value)
		return nil
	}); err != nil {
		h.fatalf("Scan: %v", err)
	}
	return m
}

// visible are the batches that a reader gets.
func (s *modelStream) visible() []recordBatch {
	batches := s.batches
	for len(batches) > 0 && batches[0].lastOffset() < s.start {
		batches = batches[1:]
	}
	return batches
}

func (s *modelStream) equal(o *modelStream) bool {
	return o != nil && s.id == o.id && s.start == o.start && s.next == o.next && equalBatches(s.visible(), o.visible())
}

func (m modelState) equal(o modelState) bool {
	return maps.Equal(m.kv, o.kv) && maps.EqualFunc(m.streams, o.streams, (*modelStream).equal)
}

func (m modelState) difference(actual modelState) string {
	var b bytes.Buffer
	for name, st := range m.streams {
		got := actual.streams[name]
		switch {
		case got == nil:
			fmt.Fprintf(&b, "\n%s is missing", name)
		case !st.equal(got):
			fmt.Fprintf(&b, "\n%s: id %d start %d next %d batches %d, want id %d start %d next %d batches %d", name, got.id, got.start, got.next, len(got.visible()), st.id, st.start, st.next, len(st.visible()))
		}
	}
	for name := range actual.streams {
		if m.streams[name] == nil {
			fmt.Fprintf(&b, "\n%s should not be there", name)
		}
	}
	if !maps.Equal(m.kv, actual.kv) {
		fmt.Fprintf(&b, "\nkey-value rows %v, want %v", actual.kv, m.kv)
	}
	return b.String()
}
