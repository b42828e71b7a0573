package streamstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// batchSpec describes a test batch. Its records are opaque bytes: the store does
// not look into them.
type batchSpec struct {
	records   int
	payload   []byte
	timestamp int64
	producer  int64 // 0: none
	epoch     int16
	sequence  int32
}

func (b batchSpec) encode() []byte {
	batch := make([]byte, batchHeaderSize+len(b.payload))
	be := binary.BigEndian
	be.PutUint32(batch[8:], uint32(len(batch)-batchLengthEnd))
	batch[batchMagicAt] = batchMagic
	be.PutUint32(batch[23:], uint32(max(b.records, 1)-1))
	be.PutUint64(batch[27:], uint64(b.timestamp))
	be.PutUint64(batch[35:], uint64(b.timestamp))
	producer, epoch, sequence := int64(-1), int16(-1), int32(-1)
	if b.producer != 0 {
		producer, epoch, sequence = b.producer, b.epoch, b.sequence
	}
	be.PutUint64(batch[43:], uint64(producer))
	be.PutUint16(batch[51:], uint16(epoch))
	be.PutUint32(batch[53:], uint32(sequence))
	be.PutUint32(batch[57:], uint32(max(b.records, 1)))
	copy(batch[batchHeaderSize:], b.payload)
	be.PutUint32(batch[17:], crc32.Checksum(batch[21:], castagnoli))
	return batch
}

func simpleBatch(payload string) []byte { return batchSpec{payload: []byte(payload)}.encode() }

// testOptions are those of a store in memory that flushes only when told.
func testOptions(bucket objstore.Bucket) Options {
	return Options{
		Dir: "data", FS: vfs.NewCrashableMem(), Bucket: bucket, FlushInterval: time.Hour, BlockCacheBytes: 1 << 20,
		CheckpointCommits: 1 << 30, CheckpointInterval: 1e6 * time.Hour, // only when told
	}
}

func mustOpen(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// openTest opens a store that is closed when the test ends.
func openTest(t testing.TB, opts Options) *Store {
	t.Helper()
	s := mustOpen(t, opts)
	t.Cleanup(func() { mustClose(t, s) })
	return s
}

func mustCreate(t testing.TB, s *Store, name string) StreamID {
	t.Helper()
	id, err := s.Ensure(context.Background(), name, DefaultSettings())
	if err != nil {
		t.Fatalf("Ensure %q: %v", name, err)
	}
	return id
}

// mustAppend appends and does not wait for the acknowledgement.
func mustAppend(t testing.TB, s *Store, id StreamID, batch []byte) Appended {
	t.Helper()
	a, err := s.Append(context.Background(), AppendRequest{Stream: id, Batch: batch, Expected: AnyOffset, Ack: AckDurable})
	if err != nil {
		t.Fatalf("Append: %v", err)
	}
	return a
}

func mustWait(t testing.TB, a Appended) {
	t.Helper()
	if err := a.Wait(context.Background()); err != nil {
		t.Fatalf("Wait: %v", err)
	}
}

func mustFlush(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Flush(context.Background()); err != nil {
		t.Fatalf("Flush: %v", err)
	}
}

// flushOne flushes what was appended, all of it in one commit, and returns when that
// is acknowledged. For use in a bubble.
func flushOne(t testing.TB, s *Store) {
	t.Helper()
	synctest.Wait() // all is in the database
	mustFlush(t, s)
	synctest.Wait()
}

// startFlush begins to flush what was appended in one commit, and returns when its
// upload is on the way, or done.
func startFlush(t testing.TB, p *process) {
	t.Helper()
	synctest.Wait()
	go func() { _ = p.Flush(context.Background()) }()
	synctest.Wait()
}

// readAll returns all batches of a stream from offset on.
func readAll(t testing.TB, s *Store, id StreamID, offset int64) []recordBatch {
	t.Helper()
	var batches []recordBatch
	for {
		r, err := s.Read(context.Background(), id, offset, ReadOptions{MaxBytes: 1 << 16, MinOneBatch: true})
		if err != nil {
			t.Fatalf("Read at %d: %v", offset, err)
		}
		if len(r.Chunks) == 0 {
			return batches
		}
		for _, chunk := range r.Chunks {
			for rest := chunk; len(rest) > 0; {
				batch, after, ok := nextBatch(rest)
				if !ok || !batch.checksumOK() {
					t.Fatalf("Read at %d: damaged batch", offset)
				}
				batches = append(batches, batch)
				rest, offset = after, batch.lastOffset()+1
			}
		}
	}
}

func payloads(batches []recordBatch) []string {
	var list []string
	for _, b := range batches {
		list = append(list, string(b[batchHeaderSize:]))
	}
	return list
}

func equalBatches(a, b []recordBatch) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// process is one writer of a bucket that it may share with others, with a disk and
// with faults of its own.
type process struct {
	*Store
	t      testing.TB
	opts   Options
	fs     *vfs.MemFS
	link   *switchBucket
	faults *faulty.Bucket
	closed bool
}

// startProcess opens a store on a disk; change may alter its options. It is
// closed when the test ends, if it still runs then.
func startProcess(t testing.TB, bucket objstore.Bucket, fs *vfs.MemFS, change func(*Options)) *process {
	t.Helper()
	p, err := tryProcess(t, bucket, fs, change)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return p
}

func tryProcess(t testing.TB, bucket objstore.Bucket, fs *vfs.MemFS, change func(*Options)) (*process, error) {
	p := &process{t: t, fs: fs, faults: faulty.New(bucket, 1)}
	p.link = &switchBucket{Bucket: p.faults}
	p.opts = testOptions(p.link)
	p.opts.FS = fs
	if change != nil {
		change(&p.opts)
	}
	p.opts.EnsureDefaults()
	var err error
	if p.Store, err = Open(context.Background(), p.opts); err != nil {
		return nil, err
	}
	t.Cleanup(p.stop)
	return p, nil
}

// remote makes a process durable in the bucket only.
func remote(o *Options) { o.Durability = Remote }

// stop ends the process in good order; twice is once.
func (p *process) stop() {
	if p.closed {
		return
	}
	p.closed = true
	if err := p.Close(); err != nil && !errors.Is(err, ErrFailed) {
		p.t.Errorf("Close: %v", err)
	}
}

// kill cuts the process off the bucket and returns its disk as a power failure
// leaves it. Uploads that are on their way stay on their way.
func (p *process) kill() *vfs.MemFS {
	p.link.dead.Store(true)
	return p.fs.CrashClone(vfs.CrashCloneCfg{})
}

// gate is a place where a test holds a call: reached is closed when one is there, and
// all go on when it is opened, at the latest when the test ends.
type gate struct {
	reached, opened chan struct{}
	reach, open     func()
}

func newGate(t testing.TB) *gate {
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	g.reach = sync.OnceFunc(func() { close(g.reached) })
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

func (g *gate) hold() {
	g.reach()
	<-g.opened
}

// gateCreates holds the creation of log objects, by number, before or after it has
// its effect.
func gateCreates(f *faulty.Bucket, before, after map[uint64]*gate) {
	hook := func(gates map[uint64]*gate) faulty.Hook {
		return func(op objstore.Op, name string) {
			number, ok := parseLogName(0, name)
			if g := gates[number]; ok && g != nil && op == objstore.OpCreate {
				g.hold()
			}
		}
	}
	f.SetHooks(hook(before), hook(after))
}

// logObject is an object of the commit log and whether it counts.
type logObject struct {
	commitHeader
	live bool
}

// readLog reads the headers of the whole log and decides anew which objects count.
func readLog(t testing.TB, bucket objstore.Bucket) []logObject {
	t.Helper()
	var log []logObject
	var last commitHeader
	err := bucket.List(context.Background(), logDir(0), "", func(info objstore.ObjectInfo) error {
		b, err := bucket.Get(context.Background(), info.Name)
		if err != nil {
			return err
		}
		h, err := decodeCommitHeader(info.Name, b)
		if err != nil {
			return err
		}
		follows := h.previous == last.number
		live := follows && (h.claim && h.epoch > last.epoch || !h.claim && h.nonce == last.nonce)
		if live {
			last = h
		}
		log = append(log, logObject{h, live})
		return nil
	})
	if err != nil {
		t.Fatalf("reading the log: %v", err)
	}
	return log
}

// numbers are those of the objects that count, or of those that do not.
func numbers(log []logObject, live bool) (list []uint64) {
	for _, o := range log {
		if o.live == live {
			list = append(list, o.number)
		}
	}
	return list
}

// readStream returns the payloads of a stream found by name, all of them.
func readStream(t testing.TB, s *Store, name string) []string {
	t.Helper()
	id, err := s.Lookup(name)
	if err != nil {
		t.Fatalf("Lookup %q: %v", name, err)
	}
	offsets, err := s.Offsets(id)
	if err != nil {
		t.Fatalf("Offsets %q: %v", name, err)
	}
	return payloads(readAll(t, s, id, offsets.Start))
}

// readFresh returns the payloads of a stream as a reader with an empty disk finds
// them. It claims the shard.
func readFresh(t testing.TB, bucket objstore.Bucket, name string) []string {
	t.Helper()
	p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
	defer p.stop()
	return readStream(t, p.Store, name)
}

func mustCommit(t testing.TB, s *Store, build func(*Txn)) Result {
	t.Helper()
	txn := NewTxn()
	build(txn)
	result, err := s.Commit(context.Background(), txn)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return result
}

// async runs f and delivers its error.
func async(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}
