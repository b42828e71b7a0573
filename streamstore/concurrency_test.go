package streamstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/objstore"
)

// An append that races with the deletion of its stream is either ordered before it or
// refused: it leaves no rows behind, and the store can be opened again.
func TestAppendsRaceWithDelete(t *testing.T) {
	opts := testOptions(objstore.NewMemory())
	opts.FlushInterval, opts.FlushBytes = time.Millisecond, 1
	s := mustOpen(t, opts)
	const streams = 200
	for round := range 10 {
		ids := make([]StreamID, streams)
		for i := range ids {
			ids[i] = mustCreate(t, s, fmt.Sprint("s", i))
		}
		var warm, writing sync.WaitGroup
		for half := range 2 {
			warm.Add(1)
			writing.Go(func() {
				for pass, open := 0, true; open; pass++ {
					open = false
					for i := half; i < streams; i += 2 {
						_, err := s.Append(context.Background(), AppendRequest{Stream: ids[i], Batch: simpleBatch("x"), Expected: AnyOffset})
						if open = open || err == nil; err != nil && !errors.Is(err, ErrNoStream) {
							t.Errorf("round %d: %v", round, err)
						}
					}
					if pass == 0 {
						warm.Done()
					}
				}
			})
		}
		warm.Wait()
		mustCommit(t, s, func(txn *Txn) {
			for _, id := range ids {
				txn.Delete(id)
			}
		})
		writing.Wait()
	}
	mustFlush(t, s)
	for _, prefix := range []byte{prefixTail, prefixExtent} {
		if n := countRows(t, s, prefix); n != 0 {
			t.Errorf("%d rows %c are left", n, prefix)
		}
	}
	mustClose(t, s)
	mustClose(t, mustOpen(t, opts))
}

// Readers and look-ups by time that race with appends, flushes, eviction and trims
// see each record that they must see, and no error but "out of range" for what was
// trimmed under them.
func TestReadersRaceWithFlushAndTrim(t *testing.T) {
	opts := testOptions(objstore.NewMemory())
	opts.FlushInterval, opts.FlushBytes = time.Millisecond, 1
	opts.TailCacheBytes, opts.SegmentCacheBytes = 1, 1
	s := openTest(t, opts)
	id := mustCreate(t, s, "s")
	const appends = 2000
	var acknowledged atomic.Int64 // offset after the last acknowledged record
	ctx := context.Background()
	mustWait(t, mustAppend(t, s, id, batchSpec{timestamp: 0}.encode()))
	acknowledged.Store(1)

	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	writing.Go(func() {
		for i := int64(1); i < appends; i++ {
			a := mustAppend(t, s, id, batchSpec{timestamp: i, payload: fmt.Append(nil, i)}.encode())
			mustWait(t, a)
			acknowledged.Store(i + 1)
			if i%20 == 0 {
				txn := NewTxn()
				txn.Trim(id, i-10)
				if _, err := s.Commit(ctx, txn); err != nil {
					t.Errorf("trim to %d: %v", i-10, err)
				}
			}
		}
	})
	for range 2 {
		reading.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				offsets, err := s.Offsets(id)
				if err != nil {
					t.Error(err)
					return
				}
				for _, at := range []int64{offsets.Start, (offsets.Start + offsets.HighWatermark) / 2} {
					r, err := s.Read(ctx, id, at, ReadOptions{MaxBytes: 300, MinOneBatch: true})
					if err != nil && !errors.Is(err, ErrOffsetOutOfRange) {
						t.Errorf("Read at %d: %v", at, err)
						return
					}
					if err == nil && at < offsets.HighWatermark && (len(r.Chunks) == 0 || recordBatch(r.Chunks[0]).baseOffset() != at) {
						t.Errorf("Read at %d found %d chunks", at, len(r.Chunks))
						return
					}
				}
			}
		})
		reading.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				want, got := acknowledged.Load()-1, int64(-1)
				err := s.ScanTimestamp(ctx, id, want, func(batch []byte) (bool, error) {
					got = recordBatch(batch).baseOffset()
					return true, nil
				})
				if offsets, _ := s.Offsets(id); offsets.Start > want {
					continue // trimmed meanwhile
				}
				if err != nil && !errors.Is(err, ErrOffsetOutOfRange) || err == nil && got != want {
					t.Errorf("first record since %d is at %d, %v", want, got, err)
					return
				}
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()
}
