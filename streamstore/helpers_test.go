package streamstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
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
	return Options{Dir: "data", FS: vfs.NewCrashableMem(), Bucket: bucket, FlushInterval: time.Hour, BlockCacheBytes: 1 << 20}
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
