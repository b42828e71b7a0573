package streamstore

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// runRetention moves the start offsets of streams past what has expired and
// forgets idle producers, again and again until ctx ends.
func (s *Store) runRetention(ctx context.Context) {
	ticker := time.NewTicker(s.opts.RetentionInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		case <-ticker.C:
		}
		if err := s.Expire(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("retention", zap.Error(err))
		}
	}
}

// Expire makes one pass of retention now.
func (s *Store) Expire(ctx context.Context) error {
	return errors.Join(s.expireRecords(ctx), s.expireProducers(ctx))
}

// expireRecords looks at the streams whose settings let records expire. Records
// expire by whole extents.
func (s *Store) expireRecords(ctx context.Context) error {
	for next := StreamID(0); ; next++ {
		batch, err := s.expiringStreams(next)
		if err != nil || len(batch) == 0 {
			return err
		}
		for i := range batch {
			if err := s.expireStream(ctx, batch[i].id, &batch[i].row); err != nil {
				return err
			}
		}
		next = batch[len(batch)-1].id
	}
}

type expiringStream struct {
	id  StreamID
	row streamRow
}

// expiringBatch bounds the streams that one step of retention looks at: the database's
// snapshot is not held while appends are waited for.
const expiringBatch = 1000

// expiringStreams returns the next streams from id on whose records can expire.
func (s *Store) expiringStreams(id StreamID) (batch []expiringStream, err error) {
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: streamKey(id), UpperBound: []byte{prefixStream + 1}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, iter.Error(), iter.Close()) }()
	for valid := iter.First(); valid && len(batch) < expiringBatch; valid = iter.Next() {
		row, err := decodeStreamRow(iter.Value())
		if err != nil {
			return nil, err
		}
		if row.settings.expires() || row.settings.mortal() {
			batch = append(batch, expiringStream{StreamID(keyNumber(iter.Key(), 0)), row})
		}
	}
	return batch, nil
}

func (s *Store) expireStream(ctx context.Context, id StreamID, row *streamRow) error {
	t := NewTxn()
	dies, err := s.stageDeath(t, id, row)
	if err == nil && !dies && row.settings.expires() {
		err = s.stageExpiry(t, id, row)
	}
	if err != nil || len(t.ops) == 0 {
		return err
	}
	_, _, err = s.queueTxn(ctx, t)
	switch {
	case errors.Is(err, ErrNoStream), errors.Is(err, ErrOffsetOutOfRange), errors.Is(err, ErrConflict), errors.Is(err, errChanged):
		return nil // deleted, written to or changed meanwhile, or flushed before it is synced: the next pass
	case err != nil:
		return err
	}
	s.metrics.expired.Inc()
	return nil
}

// stageDeath deletes a stream whose time to live is over, or whose end of life has
// come.
func (s *Store) stageDeath(t *Txn, id StreamID, row *streamRow) (dies bool, err error) {
	now := s.opts.Now()
	if over := row.settings.ExpiresAt; !over.IsZero() && !now.Before(over) {
		t.deleteOver(id, row)
		return true, nil
	}
	if row.settings.TTL <= 0 || now.UnixMilli()-row.touched <= row.settings.TTL.Milliseconds() {
		return false, nil
	}
	info, err := s.Describe(id)
	if errors.Is(err, ErrNoStream) {
		return true, nil
	}
	if err != nil || !info.Expired(now) {
		return false, err
	}
	t.deleteIdle(id, row, info.Next)
	return true, nil
}

// stageExpiry trims what has expired.
func (s *Store) stageExpiry(t *Txn, id StreamID, row *streamRow) error {
	start, written, err := s.expiredUpTo(id, row)
	if err != nil || start <= row.start {
		return err
	}
	t.expire(id, row, start, written)
	return nil
}

// expiredUpTo is the offset up to which the stream's extents have expired, and when
// the last of them was written, ms.
func (s *Store) expiredUpTo(id StreamID, row *streamRow) (start, written int64, err error) {
	total := int64(0)
	if row.settings.RetentionBytes >= 0 {
		if total, err = s.StreamBytes(id); err != nil {
			if errors.Is(err, ErrNoStream) {
				err = nil
			}
			return row.start, 0, err
		}
	}
	start = row.start
	oldest := s.opts.Now().UnixMilli() - row.settings.retentionMillis()
	err = s.eachExtent(id, row.start, func(x extent) bool {
		old := row.settings.Retention >= 0 && x.agesFrom() < oldest
		excess := row.settings.RetentionBytes >= 0 && total-x.length >= row.settings.RetentionBytes
		if !old && !excess {
			return false
		}
		total -= x.length
		start, written = x.last+1, x.written
		return true
	})
	return start, written, err
}

// agesFrom is when the extent's age begins, ms since 1970: at its largest timestamp,
// but no later than when it was written, so that a record from the future does not
// hold up what lies behind it; when no record has a timestamp, when it was written.
func (x *extent) agesFrom() int64 {
	if x.maxTimestamp < 0 {
		return x.written
	}
	return min(x.maxTimestamp, x.written)
}

// expireProducers forgets producers that have been idle for longer than their
// state is kept.
func (s *Store) expireProducers(ctx context.Context) error {
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixProducer}, UpperBound: []byte{prefixProducer + 1}})
	if err != nil {
		return err
	}
	defer iter.Close()
	var expired []producerRef
	now := s.opts.Now()
	for valid := iter.First(); valid && ctx.Err() == nil; valid = iter.Next() {
		state, err := decodeProducerState(iter.Value())
		if err != nil {
			return err
		}
		if state.expired(now, s.opts.ProducerExpiry) {
			expired = append(expired, producerRef{StreamID(keyNumber(iter.Key(), 0)), int64(keyNumber(iter.Key(), 1))})
		}
		if len(expired) == maxExpiredProducers {
			if err := s.queueExpiredProducers(ctx, expired); err != nil {
				return err
			}
			expired = nil
		}
	}
	if len(expired) > 0 {
		if err := s.queueExpiredProducers(ctx, expired); err != nil {
			return err
		}
	}
	return errors.Join(iter.Error(), ctx.Err())
}

// maxExpiredProducers is how many producers one transaction forgets.
const maxExpiredProducers = 1000

func (s *Store) queueExpiredProducers(ctx context.Context, expired []producerRef) error {
	size := int64(len(expired)*16 + tailEntryOverhead)
	if err := s.admit(ctx, size, true); err != nil {
		return err
	}
	entry := &tailEntry{size: size, producer: noProducer, appended: s.opts.Now().UnixMilli(), txn: &mutation{expired: expired}, durable: make(chan struct{})}
	if err := s.queue.push(entry); err != nil {
		s.unflushed.Release(size)
		return err
	}
	return nil
}
