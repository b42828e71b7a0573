package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Position says where reading begins. The zero value is Start.
type Position struct {
	kind positionKind
	at   int64 // an offset, or milliseconds since 1970
}

type positionKind int8

const (
	fromStart positionKind = iota
	fromEnd
	fromOffset
	fromTime
)

// Start is the first record that the stream still has.
func Start() Position { return Position{} }

// End is behind the last record that the stream has now.
func End() Position { return Position{kind: fromEnd} }

// At is the record at this offset, which the stream must have, or be about to get next.
func At(offset int64) Position { return Position{kind: fromOffset, at: offset} }

// Since is the first record whose timestamp is at or after t, in milliseconds; behind the last if there is none.
func Since(t time.Time) Position { return Position{kind: fromTime, at: t.UnixMilli()} }

// Timestamps that ListOffsets takes for something else.
const (
	timestampLatest   = -1
	timestampEarliest = -2
)

const (
	// fetchBytes bounds the records that one request brings.
	fetchBytes = 8 << 20
	// fetchWait is how long a broker holds a request of a follower before it answers that there is nothing.
	fetchWait = 20 * time.Second
)

// Read returns the records of a stream from a position to where the stream ended when it was asked first. Records that
// are trimmed away meanwhile make it fail with an *OutOfRangeError, and so does At with an offset that there is not. A
// stream that does not exist has no records. An error ends the sequence.
func (c *Client) Read(ctx context.Context, stream string, from Position) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		if err := c.read(ctx, c.kafka, stream, from, false, yield); err != nil {
			yield(nil, err)
		}
	}
}

// Follow returns the records of a stream from a position on, and then those that come, until ctx ends. It may begin before
// the stream exists. It reconnects for as long as it takes, and neither misses nor repeats a record; to go on later, begin
// At the offset behind the last record. If it falls behind so far that what comes next was trimmed away, or if the stream is
// deleted, it ends with an *OutOfRangeError, which tells what there is. When ctx ends, it ends with the error of ctx.
func (c *Client) Follow(ctx context.Context, stream string, from Position) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		ctx, own, done, err := c.ownConnection(ctx)
		if err == nil {
			defer done()
			err = c.read(ctx, own, stream, from, true, yield)
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// ownConnection returns a client with the same options for a follower, whose requests would hold up others on the same
// connection, and a context that ends with Close as well. Both last until done is called.
func (c *Client) ownConnection(ctx context.Context) (_ context.Context, own *kgo.Client, done func(), err error) {
	if c.ctx.Err() != nil {
		return nil, nil, nil, ErrClientClosed
	}
	if own, err = kgo.NewClient(c.kafka.Opts()...); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClientClosed) })
	return ctx, own, func() {
		stop()
		cancel(nil)
		own.Close()
	}, nil
}

// errStopped: the loop over the records was left.
var errStopped = errors.New("stopped")

// read is Read and Follow.
func (c *Client) read(ctx context.Context, kafka *kgo.Client, stream string, from Position, follow bool, yield func(*Record, error) bool) error {
	if err := c.check(ctx); err != nil {
		return err
	}
	next, err := c.resolve(ctx, stream, from)
	if err != nil {
		return err
	}
	r := reader{c: c, kafka: kafka, stream: stream, next: next, end: -1, follow: follow, yield: yield}
	for tries := 0; ; {
		progress, err := r.fetch(ctx)
		switch {
		case err == nil && r.done():
			return nil
		case err == nil:
			tries = 0
			continue
		case errors.Is(err, errStopped):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !worthReconnecting(err):
			return err
		case !follow && !isKafka(err):
			return err // franz-go has retried
		}
		if progress {
			tries = 0
		}
		tries++
		if err := sleep(ctx, backoff(tries)); err != nil {
			return context.Cause(ctx)
		}
	}
}

// resolve returns the offset of a position.
func (c *Client) resolve(ctx context.Context, stream string, p Position) (int64, error) {
	switch p.kind {
	case fromOffset:
		return p.at, nil
	case fromEnd:
		return c.listOffset(ctx, stream, timestampLatest)
	case fromTime:
		offset, err := c.listOffset(ctx, stream, max(p.at, 0))
		if err != nil || offset >= 0 {
			return offset, err
		}
		return c.listOffset(ctx, stream, timestampLatest)
	}
	return c.listOffset(ctx, stream, timestampEarliest)
}

// listOffset looks up a timestamp, in milliseconds since 1970 or one with a meaning of its own.
func (c *Client) listOffset(ctx context.Context, stream string, timestamp int64) (offset int64, err error) {
	err = retry(ctx, func() error {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -1
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = stream
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Timestamp = timestamp
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		resp, err := request[*kmsg.ListOffsetsResponse](ctx, c.kafka, req)
		if err != nil {
			return err
		}
		found := &resp.Topics[0].Partitions[0]
		offset = found.Offset
		return streamError(stream, found.ErrorCode, nil)
	})
	return offset, err
}

// reader reads one stream.
type reader struct {
	c      *Client
	kafka  *kgo.Client
	stream string
	next   int64 // offset of the next record
	end    int64 // where a Read ends, -1: not known yet
	follow bool
	yield  func(*Record, error) bool
}

func (r *reader) done() bool { return !r.follow && r.end >= 0 && r.next >= r.end }

// fetch reads on once. progress tells that records came.
func (r *reader) fetch(ctx context.Context) (progress bool, err error) {
	req := newFetch(r.follow)
	req.SessionEpoch = -1
	req.Topics = append(req.Topics, fetchTopic(r.stream, r.next))
	resp, err := request[*kmsg.FetchResponse](ctx, r.kafka, fetchByName{req})
	if err != nil {
		return false, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return false, fmt.Errorf("stream %q: %w", r.stream, err)
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return false, nil
	}
	p := &resp.Topics[0].Partitions[0]
	switch p.ErrorCode {
	case 0:
	case kerr.OffsetOutOfRange.Code:
		return false, r.c.outOfRange(ctx, r.stream, r.next)
	default:
		return false, streamError(r.stream, p.ErrorCode, nil)
	}
	if r.end < 0 {
		r.end = p.HighWatermark
	}
	before, stopped := r.next, false
	r.next, err = decode(r.stream, p.RecordBatches, r.next, func(record *Record) bool {
		if !r.follow && record.Offset >= r.end {
			return false
		}
		stopped = !r.yield(record, nil)
		return !stopped
	})
	if stopped {
		err = errStopped
	}
	return r.next > before, err
}

func newFetch(wait bool) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MinBytes, req.MaxBytes = 1, fetchBytes
	if wait {
		req.MaxWaitMillis = int32(fetchWait.Milliseconds())
	}
	return req
}

func fetchTopic(stream string, offset int64) kmsg.FetchRequestTopic {
	t := kmsg.NewFetchRequestTopic()
	t.Topic = stream
	p := kmsg.NewFetchRequestTopicPartition()
	p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = offset, fetchBytes, -1
	t.Partitions = append(t.Partitions, p)
	return t
}
