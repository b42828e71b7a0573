package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

// FollowPrefix returns the records of all streams whose names begin with prefix, and then those that come, in streams that
// are made later too, until ctx ends. Records of one stream come in order; streams are not ordered among each other.
//
// The cursor says where to begin, and is moved on before each record is handed out: stored while the loop is at a record,
// it continues behind that record, in this program or another. Nil begins at the start of every stream.
//
//	for r, err := range c.FollowPrefix(ctx, "sessions/", cursor) {
//		if err != nil { return err }
//		handle(r)
//		store(cursor.MarshalText())
//	}
//
// It reconnects for as long as it takes, and neither misses nor repeats a record. Records that were trimmed away before
// they could be read are passed over. A stream that is deleted and made again, be it while nobody follows, is read from its
// start. The error that ends
// the sequence is that of ctx, ErrTooManyStreams, or a refusal of the broker.
func (c *Client) FollowPrefix(ctx context.Context, prefix string, cursor *Cursor) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		if err := c.followPrefix(ctx, prefix, cursor, yield); err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// CursorSince returns a cursor for FollowPrefix that begins, in each stream that there is under the prefix, at the first
// record whose timestamp is at or after t, in milliseconds, and behind the last if there is none. Streams that are made
// later are read from their start. It takes two requests for every 2,000 streams.
func (c *Client) CursorSince(ctx context.Context, prefix string, t time.Time) (*Cursor, error) {
	cursor := new(Cursor)
	var page []Info
	for info, err := range c.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		if page = append(page, info); len(page) == listPage {
			if err := c.placeSince(ctx, cursor, page, t); err != nil {
				return nil, err
			}
			page = page[:0]
		}
	}
	return cursor, c.placeSince(ctx, cursor, page, t)
}

// placeSince adds the positions in some streams to a cursor. A stream that was deleted meanwhile is left out.
func (c *Client) placeSince(ctx context.Context, cursor *Cursor, streams []Info, t time.Time) error {
	if len(streams) == 0 {
		return nil
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	ends := make(map[string]int64, len(streams))
	for i := range streams {
		ends[streams[i].Stream] = streams[i].Next
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = streams[i].Stream
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Timestamp = max(t.UnixMilli(), 0)
		rt.Partitions = append(rt.Partitions, p)
		req.Topics = append(req.Topics, rt)
	}
	return retry(ctx, func() error {
		resp, err := request[*kmsg.ListOffsetsResponse](ctx, c.kafka, req)
		if err != nil {
			return err
		}
		for i := range resp.Topics {
			rt := &resp.Topics[i]
			for j := range rt.Partitions {
				found := &rt.Partitions[j]
				switch err := streamError(rt.Topic, found.ErrorCode, nil); {
				case errors.Is(err, ErrNoStream):
				case err != nil:
					return err
				case found.Offset >= 0:
					cursor.set(rt.Topic, place{next: found.Offset})
				default:
					cursor.set(rt.Topic, place{next: ends[rt.Topic]})
				}
			}
		}
		return nil
	})
}

func (c *Client) followPrefix(ctx context.Context, prefix string, cursor *Cursor, yield func(*Record, error) bool) error {
	if err := c.check(ctx); err != nil {
		return err
	}
	if cursor == nil {
		cursor = new(Cursor)
	}
	for stream := range cursor.next {
		if !strings.HasPrefix(stream, prefix) {
			return fmt.Errorf("the cursor names the stream %q, which does not lie under the prefix %q", stream, prefix)
		}
	}
	ctx, own, done, err := c.ownConnection(ctx)
	if err != nil {
		return err
	}
	defer done()
	f := prefixFollower{kafka: own, prefix: prefix, cursor: cursor, yield: yield}
	for tries := 0; ; {
		err := f.fetch(ctx)
		switch {
		case err == nil:
			tries = 0
			continue
		case errors.Is(err, errStopped), !worthReconnecting(err) && ctx.Err() == nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		f.begin()
		tries++
		if err := sleep(ctx, backoff(tries)); err != nil {
			return context.Cause(ctx)
		}
	}
}

// prefixFollower keeps a fetch session (KIP-227) that follows a prefix.
type prefixFollower struct {
	kafka  *kgo.Client
	prefix string
	cursor *Cursor
	yield  func(*Record, error) bool

	session, epoch int32 // epoch 0: the next request begins a session
	// moved are the streams whose position the broker does not know yet.
	moved map[string]struct{}
	// ids are those of the streams of the session, as far as the broker has told them.
	ids map[string]int64
}

// begin leaves the session: the next request names everything.
func (f *prefixFollower) begin() { f.session, f.epoch, f.moved, f.ids = 0, 0, nil, nil }

// fetch reads on once.
func (f *prefixFollower) fetch(ctx context.Context) error {
	resp, err := request[*kmsg.FetchResponse](ctx, f.kafka, fetchByName{f.request()})
	if err != nil {
		return err
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case err == nil:
	case errors.Is(err, kerr.PolicyViolation):
		return fmt.Errorf("%w: %q", ErrTooManyStreams, f.prefix)
	case errors.Is(err, kerr.FetchSessionIDNotFound), errors.Is(err, kerr.InvalidFetchSessionEpoch):
		f.begin()
		return nil
	default:
		return fmt.Errorf("following %q: %w", f.prefix, err)
	}
	f.moved = make(map[string]struct{})
	if f.session = resp.SessionID; f.session == 0 {
		f.epoch = 0
	} else if f.epoch++; f.epoch < 0 {
		f.epoch = 1
	}
	return f.take(resp)
}

func (f *prefixFollower) request() *kmsg.FetchRequest {
	req := newFetch(true)
	req.SessionID, req.SessionEpoch = f.session, f.epoch
	if f.epoch > 0 {
		for stream := range f.moved {
			req.Topics = append(req.Topics, followedTopic(stream, f.cursor.next[stream]))
		}
		return req
	}
	if f.cursor.fromEnd {
		req.MaxWaitMillis = 0 // the first answer tells where that is
	}
	req.UnknownTags.Set(ext.TagFollow, (&ext.Follow{Prefix: f.prefix, FromEnd: f.cursor.fromEnd}).Encode())
	for stream, p := range f.cursor.next {
		req.Topics = append(req.Topics, followedTopic(stream, p))
	}
	return req
}

// followedTopic is fetchTopic with the id of the stream, so that the broker reads another one of that name from its start.
func followedTopic(stream string, p place) kmsg.FetchRequestTopic {
	t := fetchTopic(stream, p.next)
	if p.id != 0 {
		ext.SetInt64(&t.Partitions[0].UnknownTags, ext.TagStreamID, p.id)
	}
	return t
}

// take hands out what a reply has. The positions come first, so that a cursor from the end is complete before any record.
func (f *prefixFollower) take(resp *kmsg.FetchResponse) error {
	first := f.cursor.fromEnd
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			tags := &t.Partitions[j].UnknownTags
			if id, ok, _ := ext.Int64(tags, ext.TagStreamID); ok {
				f.identify(t.Topic, id)
			}
			if position, ok, _ := ext.Int64(tags, ext.TagPosition); ok {
				f.place(t.Topic, position, first)
			}
		}
	}
	f.cursor.fromEnd = false
	var failed error
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			if err := f.takeStream(t.Topic, &t.Partitions[j]); errors.Is(err, errStopped) {
				return err
			} else if err != nil {
				failed = err
			}
		}
	}
	return failed
}

// place notes the position that the broker has chosen. One at the beginning needs no note: it is where a stream that the
// cursor does not know begins.
func (f *prefixFollower) place(stream string, position int64, first bool) {
	if _, known := f.cursor.next[stream]; known || first || position > 0 {
		f.cursor.set(stream, place{position, f.ids[stream]})
	}
}

// identify notes the id of a stream of the session.
func (f *prefixFollower) identify(stream string, id int64) {
	if f.ids == nil {
		f.ids = make(map[string]int64)
	}
	f.ids[stream] = id
	if p, known := f.cursor.next[stream]; known {
		f.cursor.set(stream, place{p.next, id})
	}
}

func (f *prefixFollower) takeStream(stream string, p *kmsg.FetchResponseTopicPartition) error {
	switch p.ErrorCode {
	case 0:
	case kerr.UnknownTopicOrPartition.Code:
		delete(f.cursor.next, stream)
		delete(f.ids, stream)
		delete(f.moved, stream)
		return nil
	case kerr.OffsetOutOfRange.Code:
		return nil // trimmed while it was read; the broker goes on at the start
	default:
		return streamError(stream, p.ErrorCode, nil)
	}
	stopped := false
	next, err := decode(stream, p.RecordBatches, f.cursor.next[stream].next, func(r *Record) bool {
		f.advance(stream, r.Offset+1)
		stopped = !f.yield(r, nil)
		return !stopped
	})
	if stopped {
		return errStopped
	}
	if next > f.cursor.next[stream].next {
		f.advance(stream, next)
	}
	return err
}

func (f *prefixFollower) advance(stream string, next int64) {
	f.cursor.set(stream, place{next, f.ids[stream]})
	f.moved[stream] = struct{}{}
}
