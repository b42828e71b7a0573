package streamstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

// idempotent is a batch of one record of producer 7.
func idempotent(epoch int16, sequence int32) batchSpec {
	return batchSpec{payload: fmt.Appendf(nil, "%d.%d", epoch, sequence), producer: 7, epoch: epoch, sequence: sequence}
}

func tryAppend(s *Store, id StreamID, spec batchSpec) (Appended, error) {
	return s.Append(context.Background(), AppendRequest{Stream: id, Batch: spec.encode(), Expected: AnyOffset, Ack: AckDurable})
}

// quickExpiry makes producers expire after an hour: a day of fake time is a second of
// real time.
func quickExpiry(o *Options) { o.ProducerExpiry = time.Hour }

// A producer that was idle for longer than its state is kept begins anew at any
// sequence number, whether its stream stayed in memory or not and whether its
// records are still there or not.
func TestIdleProducerBeginsAnew(t *testing.T) {
	for _, c := range []string{"in memory", "row only", "trimmed", "expired by retention pass"} {
		t.Run(c, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), quickExpiry)
				id := mustCreate(t, p.Store, "s")
				for i := range int32(7) {
					mustWait(t, mustAppend(t, p.Store, id, idempotent(0, i).encode()))
				}
				flushOne(t, p.Store)
				time.Sleep(p.opts.ProducerExpiry)
				if _, err := tryAppend(p.Store, id, idempotent(0, 20)); !errors.Is(err, ErrOutOfOrderSequence) {
					t.Errorf("just before expiry: %v", err)
				}
				time.Sleep(time.Minute)
				switch c {
				case "row only":
					p.stop()
					p = startProcess(t, bucket, p.fs, quickExpiry)
				case "trimmed":
					mustCommit(t, p.Store, func(txn *Txn) { txn.Trim(id, 7) })
					flushOne(t, p.Store)
				case "expired by retention pass":
					if err := p.Expire(context.Background()); err != nil {
						t.Fatal(err)
					}
					flushOne(t, p.Store)
				}
				a, err := tryAppend(p.Store, id, idempotent(0, 20))
				if err != nil || a.Duplicate || a.BaseOffset != 7 {
					t.Fatalf("after expiry: %+v, %v", a, err)
				}
				// The state begins there.
				if a, err := tryAppend(p.Store, id, idempotent(0, 20)); err != nil || !a.Duplicate {
					t.Errorf("repeated: %+v, %v", a, err)
				}
				if _, err := tryAppend(p.Store, id, idempotent(0, 7)); !errors.Is(err, ErrOutOfOrderSequence) {
					t.Errorf("old sequence after the new begin: %v", err)
				}
			})
		})
	}
}

// A producer that comes back while a pass of retention is forgetting it keeps its
// new state: its retry is recognised even by a store that has only the log.
func TestProducerReturnsWhileItExpires(t *testing.T) {
	for _, order := range []string{"append first", "expiry first", "one commit apart"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), quickExpiry)
				id := mustCreate(t, p.Store, "s")
				mustAppend(t, p.Store, id, idempotent(0, 0).encode())
				flushOne(t, p.Store)
				time.Sleep(p.opts.ProducerExpiry + time.Minute)
				expire := func() {
					if err := p.Expire(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				switch order {
				case "append first":
					mustAppend(t, p.Store, id, idempotent(0, 1).encode())
					expire() // sees the old row: the append is not in a commit yet
				case "expiry first":
					expire()
					mustAppend(t, p.Store, id, idempotent(0, 1).encode())
				case "one commit apart":
					stale := producerRef{id, 7}
					mustAppend(t, p.Store, id, idempotent(0, 1).encode())
					flushOne(t, p.Store)
					if err := p.queueExpiredProducers(context.Background(), []producerRef{stale}); err != nil {
						t.Fatal(err)
					}
				}
				flushOne(t, p.Store)
				p.stop()
				p = startProcess(t, bucket, vfs.NewCrashableMem(), quickExpiry)
				if a, err := tryAppend(p.Store, id, idempotent(0, 1)); err != nil || !a.Duplicate || a.BaseOffset != 1 {
					t.Errorf("retry on another disk: %+v, %v; want the duplicate at 1", a, err)
				}
			})
		})
	}
}

// Producers of which nothing is left do not stay in the database.
func TestExpiredProducersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), quickExpiry)
		id := mustCreate(t, p.Store, "s")
		const producers = maxExpiredProducers + 100
		for i := range int64(producers) {
			mustAppend(t, p.Store, id, batchSpec{producer: 100 + i}.encode())
		}
		flushOne(t, p.Store)
		if list, err := p.Producers(id); err != nil || len(list) != producers {
			t.Fatalf("%d producers, %v", len(list), err)
		}
		time.Sleep(p.opts.ProducerExpiry + 2*p.opts.RetentionInterval)
		flushOne(t, p.Store)
		if n := countRows(t, p.Store, prefixProducer); n != 0 {
			t.Errorf("%d producer rows are left", n)
		}
		if list, err := p.Producers(id); err != nil || len(list) != 0 {
			t.Errorf("%d producers are left, %v", len(list), err)
		}
	})
}

func countRows(t *testing.T, s *Store, prefix byte) (n int) {
	t.Helper()
	iter, err := s.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer iter.Close()
	for valid := iter.First(); valid; valid = iter.Next() {
		if iter.Key()[0] == prefix {
			n++
		}
	}
	return n
}

// Five batches are remembered: a repeat of one of them gets its first answer, an
// older one is out of order. So it is after a restart and on another disk.
func TestRememberedBatches(t *testing.T) {
	check := func(t *testing.T, s *Store, id StreamID) {
		t.Helper()
		for i := range int32(8) {
			a, err := tryAppend(s, id, idempotent(0, i))
			switch {
			case i < 8-producerBatches && !errors.Is(err, ErrOutOfOrderSequence):
				t.Errorf("batch %d again: %+v, %v; want out of order", i, a, err)
			case i >= 8-producerBatches && (err != nil || !a.Duplicate || a.BaseOffset != int64(i) || a.LastOffset != int64(i)):
				t.Errorf("batch %d again: %+v, %v; want the duplicate", i, a, err)
			}
		}
		if _, err := tryAppend(s, id, idempotent(0, 9)); !errors.Is(err, ErrOutOfOrderSequence) {
			t.Errorf("a hole in the sequence: %v", err)
		}
		if offsets, err := s.Offsets(id); err != nil || offsets.Next != 8 {
			t.Errorf("rejected appends moved the offsets: %+v, %v", offsets, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		for i := range int32(8) {
			mustWait(t, mustAppend(t, p.Store, id, idempotent(0, i).encode()))
			if i == 5 {
				flushOne(t, p.Store) // so that the five lie on both sides
			}
		}
		check(t, p.Store, id)
		p = startProcess(t, bucket, p.kill(), nil)
		check(t, p.Store, id)
		flushOne(t, p.Store)
		check(t, p.Store, id)
		p.stop()
		p = startProcess(t, bucket, p.fs, nil)
		check(t, p.Store, id)
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		check(t, p.Store, id)
		if a, err := tryAppend(p.Store, id, idempotent(0, 8)); err != nil || a.Duplicate || a.BaseOffset != 8 {
			t.Errorf("the next in sequence: %+v, %v", a, err)
		}
	})
}

// Sequence numbers go from 2^31-1 to 0, also within a batch.
func TestSequenceWraps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		batch := func(sequence int32, records int) batchSpec {
			return batchSpec{producer: 7, sequence: sequence, records: records}
		}
		steps := []struct {
			spec batchSpec
			base int64
		}{
			{batch(math.MaxInt32-3, 2), 0}, // up to 2^31-3
			{batch(math.MaxInt32-1, 3), 2}, // 2^31-2, 2^31-1, 0
			{batch(1, 1), 5},
		}
		for _, step := range steps {
			if a, err := tryAppend(p.Store, id, step.spec); err != nil || a.Duplicate || a.BaseOffset != step.base {
				t.Fatalf("sequence %d: %+v, %v", step.spec.sequence, a, err)
			}
		}
		flushOne(t, p.Store)
		p.stop()
		p = startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		for _, step := range steps {
			if a, err := tryAppend(p.Store, id, step.spec); err != nil || !a.Duplicate || a.BaseOffset != step.base {
				t.Errorf("sequence %d again: %+v, %v", step.spec.sequence, a, err)
			}
		}
		states, err := p.Producers(id)
		if want := (ProducerState{ProducerID: 7, LastSequence: 1}); err != nil || !slices.Equal(states, []ProducerState{want}) {
			t.Errorf("producers %+v, %v; want %+v", states, err, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		for i, sequence := range []int32{math.MaxInt32, 0} { // wraps between batches
			if a, err := tryAppend(p.Store, id, idempotent(0, sequence)); err != nil || a.BaseOffset != int64(i) {
				t.Fatalf("sequence %d: %+v, %v", sequence, a, err)
			}
		}
	})
}

// A higher epoch begins at sequence 0, a lower one is refused, and what is refused
// leaves no trace.
func TestProducerEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := objstore.NewMemory()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), nil)
		id := mustCreate(t, p.Store, "s")
		for _, c := range []struct {
			epoch    int16
			sequence int32
			want     error
		}{
			{3, 0, nil},
			{3, 1, nil},
			{4, 1, ErrOutOfOrderSequence}, // a new epoch begins at 0
			{2, 2, ErrInvalidProducerEpoch},
			{3, 2, nil}, // the refused epoch 4 left no trace
			{4, 0, nil},
			{3, 3, ErrInvalidProducerEpoch},
			{3, 2, ErrInvalidProducerEpoch}, // no duplicate across epochs
			{4, 2, ErrOutOfOrderSequence},
			{4, 1, nil},
		} {
			if a, err := tryAppend(p.Store, id, idempotent(c.epoch, c.sequence)); !errors.Is(err, c.want) || a.Duplicate {
				t.Errorf("epoch %d sequence %d: %+v, %v; want %v", c.epoch, c.sequence, a, err, c.want)
			}
		}
		// An append that is refused for its expected offset leaves no trace either.
		spec := idempotent(4, 2)
		_, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: spec.encode(), Expected: 99})
		if !errors.Is(err, ErrConflict) {
			t.Errorf("expected offset 99: %v", err)
		}
		if a, err := tryAppend(p.Store, id, spec); err != nil || a.Duplicate {
			t.Errorf("the same batch after the conflict: %+v, %v", a, err)
		}
		// A duplicate is one whatever offset it expects.
		a, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: spec.encode(), Expected: 5, Ack: AckDurable})
		if err != nil || !a.Duplicate || a.BaseOffset != 5 {
			t.Errorf("the duplicate: %+v, %v", a, err)
		}
		flushOne(t, p.Store)
		want := []string{"3.0", "3.1", "3.2", "4.0", "4.1", "4.2"}
		if got := readStream(t, p.Store, "s"); !slices.Equal(got, want) {
			t.Errorf("read %q, want %q", got, want)
		}
	})
}

// A duplicate is acknowledged when the original is, not before.
func TestDuplicateWaitsForOriginal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), remote)
		id := mustCreate(t, p.Store, "s")
		put := newGate(t)
		gateCreates(p.faults, map[uint64]*gate{2: put}, nil)
		mustAppend(t, p.Store, id, idempotent(0, 0).encode())
		a, err := tryAppend(p.Store, id, idempotent(0, 0))
		if err != nil || !a.Duplicate {
			t.Fatalf("%+v, %v", a, err)
		}
		acknowledged := async(func() error { return a.Wait(context.Background()) })
		startFlush(t, p)
		<-put.reached
		select {
		case err := <-acknowledged:
			t.Fatalf("the duplicate was acknowledged while the original was on its way: %v", err)
		default:
		}
		put.open()
		if err := <-acknowledged; err != nil {
			t.Error(err)
		}
		if a, err := tryAppend(p.Store, id, idempotent(0, 0)); err != nil || !a.Duplicate || a.Wait(context.Background()) != nil {
			t.Errorf("a duplicate of a durable batch: %+v, %v", a, err)
		}
	})
}

// A batch and its retry arrive on two connections. The first looks the producer's row up
// and is held there, while the second is appended and flushed, and the producer leaves
// memory: the first must not go by the row that it has read.
func TestProducerRowReadBeforeRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := newGate(t)
		var armed atomic.Bool
		p := startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) {
			o.Durability = Remote
			o.Now = func() time.Time {
				if armed.CompareAndSwap(true, false) {
					read.hold() // the row is compared with the time after it was read
				}
				return time.Now()
			}
		})
		id := mustCreate(t, p.Store, "s")
		forget := func() { // fills the memory for producers, so that idle ones leave it
			for other := range maxCachedProducers + 1 {
				b := batchSpec{producer: int64(1000 + other + 1000*int(p.queue.nextNumber())), payload: []byte("other")}
				if _, err := tryAppend(p.Store, id, b); err != nil {
					t.Fatal(err)
				}
			}
			flushOne(t, p.Store)
			_, _ = tryAppend(p.Store, id, batchSpec{producer: int64(999 + p.queue.nextNumber()), payload: []byte("other")})
		}
		if _, err := tryAppend(p.Store, id, idempotent(0, 0)); err != nil {
			t.Fatal(err)
		}
		flushOne(t, p.Store)
		forget()
		inMemory := func() bool {
			st := p.streams.peek(id)
			st.mu.Lock()
			defer st.mu.Unlock()
			return st.mu.producers[idempotent(0, 0).producer] != nil
		}
		if inMemory() {
			t.Fatal("the producer has not left memory")
		}
		armed.Store(true)
		var first Appended
		result := async(func() (err error) {
			first, err = tryAppend(p.Store, id, idempotent(0, 1))
			return err
		})
		<-read.reached
		second, err := tryAppend(p.Store, id, idempotent(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		flushOne(t, p.Store)
		forget()
		if inMemory() {
			t.Fatal("the producer has not left memory")
		}
		read.open()
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		if !first.Duplicate || first.BaseOffset != second.BaseOffset {
			t.Errorf("the first was appended at %d, duplicate %v; the second at %d", first.BaseOffset, first.Duplicate, second.BaseOffset)
		}
	})
}

// What the error of a refused append tells of the stream is durable when Wait returns, and
// not before. A writer that is fenced meanwhile does not tell it at all.
func TestRefusalWaitsForWhatItTells(t *testing.T) {
	for _, test := range []struct {
		name   string
		closed bool
		fenced bool
		want   error
	}{
		{"conflict", false, false, ErrConflict},
		{"closed", true, false, ErrStreamClosed},
		{"fenced", false, true, ErrConflict},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := objstore.NewMemory()
				p := startProcess(t, bucket, vfs.NewCrashableMem(), remote)
				id := mustCreate(t, p.Store, "s")
				put := newGate(t)
				gateCreates(p.faults, map[uint64]*gate{2: put}, nil)
				if _, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: simpleBatch("a"), Expected: 0, Ack: AckDurable, Close: test.closed}); err != nil {
					t.Fatal(err)
				}
				refuse := func() Appended {
					a, err := p.Append(context.Background(), AppendRequest{Stream: id, Batch: simpleBatch("b"), Expected: 0, Ack: AckDurable})
					if !errors.Is(err, test.want) {
						t.Fatalf("%v, want %v", err, test.want)
					}
					return a
				}
				a := refuse()
				told := async(func() error { return a.Wait(context.Background()) })
				startFlush(t, p)
				<-put.reached
				synctest.Wait()
				select {
				case err := <-told:
					t.Fatalf("it was told while the append was on its way: %v", err)
				default:
				}
				if test.fenced {
					coldStart(t, bucket)
				}
				put.open()
				if err := <-told; test.fenced != errors.Is(err, ErrFenced) || !test.fenced && err != nil {
					t.Errorf("Wait: %v", err)
				}
				if !test.fenced && refuse().Wait(context.Background()) != nil {
					t.Error("Wait fails although the append is durable")
				}
			})
		})
	}
}
