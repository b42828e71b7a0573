package streamstore

import (
	"context"
	"errors"
	"math"
)

// ScanTimestamp calls fn with each batch whose largest timestamp is at least ts
// (ms since 1970), in offset order, until fn reports done. Batches below the start
// offset and at or above the high watermark do not count; a batch that the start
// offset lies in does. The batch is shared and must not be changed.
func (s *Store) ScanTimestamp(ctx context.Context, id StreamID, ts int64, fn func(batch []byte) (done bool, err error)) error {
	st, err := s.acquire(id)
	if err != nil {
		return err
	}
	defer s.release(st)
	st.mu.Lock()
	next, hw := st.mu.row.start, st.mu.hw
	st.mu.Unlock()
	for next < hw {
		candidate, err := s.findTimestamp(st, next, hw, ts)
		if err != nil || candidate < 0 {
			return err
		}
		result, err := s.Read(ctx, id, candidate, ReadOptions{MaxBytes: extentTarget, MinOneBatch: true})
		if errors.Is(err, ErrOffsetOutOfRange) && result.Start > candidate {
			next = result.Start // trimmed meanwhile
			continue
		}
		if err != nil {
			return err
		}
		if len(result.Chunks) == 0 {
			return nil
		}
		done, last, err := scanChunks(result.Chunks, ts, hw, fn)
		if done || err != nil {
			return err
		}
		next = last + 1
	}
	return nil
}

// scanChunks calls fn for the batches that reach ts.
func scanChunks(chunks [][]byte, ts, hw int64, fn func([]byte) (bool, error)) (done bool, last int64, err error) {
	for _, chunk := range chunks {
		for rest := chunk; len(rest) > 0; {
			batch, after, ok := nextBatch(rest)
			if !ok || batch.baseOffset() >= hw {
				return true, last, nil
			}
			if batch.maxTimestamp() >= ts {
				if done, err = fn(batch); done || err != nil {
					return done, last, err
				}
			}
			rest, last = after, batch.lastOffset()
		}
	}
	return false, last, nil
}

// findTimestamp returns an offset at or after next at which to look for a batch
// that reaches ts: the first extent or tail entry whose largest timestamp does. -1
// if there is none below hw.
func (s *Store) findTimestamp(st *stream, next, hw, ts int64) (offset int64, err error) {
	// The tail comes first: what leaves it meanwhile is among the extents.
	offset = st.findTimestampInTail(next, hw, ts)
	err = s.eachExtent(st.id, next, func(x extent) bool {
		if x.base >= hw {
			return false
		}
		if x.maxTimestamp < ts {
			return true
		}
		if at := max(x.base, next); offset < 0 || at < offset {
			offset = at
		}
		return false
	})
	return offset, err
}

func (st *stream) findTimestampInTail(next, hw, ts int64) (offset int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, e := range st.mu.tail {
		if e.last >= next && e.maxTimestamp >= ts && e.base < hw {
			return max(e.base, next)
		}
	}
	return -1
}

// MaxTimestampBatch returns the first batch that holds the largest timestamp below
// the high watermark; ok is false for an empty stream.
func (s *Store) MaxTimestampBatch(ctx context.Context, id StreamID) (batch []byte, ok bool, err error) {
	st, err := s.acquire(id)
	if err != nil {
		return nil, false, err
	}
	defer s.release(st)
	st.mu.Lock()
	start, hw := st.mu.row.start, st.mu.hw
	largest := int64(math.MinInt64)
	for _, e := range st.mu.tail {
		if e.last >= start && e.base < hw {
			largest = max(largest, e.maxTimestamp)
		}
	}
	st.mu.Unlock()
	err = s.eachExtent(id, start, func(x extent) bool {
		if x.base < hw {
			largest = max(largest, x.maxTimestamp)
		}
		return true
	})
	if err != nil || largest == math.MinInt64 {
		return nil, false, err
	}
	err = s.ScanTimestamp(ctx, id, largest, func(b []byte) (bool, error) {
		batch, ok = b, true
		return true, nil
	})
	return batch, ok, err
}
