package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

// Info describes a stream.
type Info struct {
	Stream string
	// Start is the first offset that can be read, Next the one behind the last record that can.
	Start, Next int64
	// Created is when the stream was made, LastWrite when its newest record was written, or when it was made.
	Created, LastWrite time.Time
	// Closed: the stream takes no more records.
	Closed bool
	// Retention is how long records are kept, RetentionBytes how many bytes of them at least. Negative: no limit.
	Retention      time.Duration
	RetentionBytes int64
	// TTL is how long after its last write the stream is deleted. Negative: never.
	TTL time.Duration
	// ContentType is the media type of the records' values, or "".
	ContentType string
}

// Setting is a setting of a stream to be made by Create or Configure.
type Setting struct{ config, value string }

// Retention drops records that are older than d, in milliseconds of at least 1. Negative: never.
func Retention(d time.Duration) Setting { return Setting{"retention.ms", configMillis(d)} }

// RetentionBytes drops the oldest records while n bytes or more remain without them. Negative: never.
func RetentionBytes(n int64) Setting {
	return Setting{"retention.bytes", strconv.FormatInt(max(n, -1), 10)}
}

// TTL deletes the stream when nothing was written to it for d, in milliseconds of at least 1. Negative: never.
func TTL(d time.Duration) Setting { return Setting{ext.ConfigTTL, configMillis(d)} }

// ContentType notes the media type of the records' values, printable ASCII of at most 255 bytes.
func ContentType(mediaType string) Setting { return Setting{ext.ConfigContentType, mediaType} }

func configMillis(d time.Duration) string {
	if d < 0 {
		return "-1"
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// adminTimeout is how long a broker may take for a change.
const adminTimeout = 30 * time.Second

// retry calls try until it succeeds, until its error is one that another try cannot cure, or until ctx ends.
func retry(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if err == nil || !worthReconnecting(err) || !isKafka(err) {
			return err
		}
		if ctxErr := sleep(ctx, backoff(n)); ctxErr != nil {
			return err
		}
	}
}

// isKafka tells an error that a broker has answered with. Errors of connections were retried by franz-go already.
func isKafka(err error) bool {
	var answered *kerr.Error
	return errors.As(err, &answered)
}

// Create makes an empty stream with settings. It is needed for streams with settings only: others are made by writing to
// them. The error is ErrExists, ErrInvalidName, that of a setting, or that of the connection.
func (c *Client) Create(ctx context.Context, stream string, settings ...Setting) error {
	if err := checkStream(stream); err != nil {
		return err
	}
	if err := c.check(ctx); err != nil {
		return err
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(adminTimeout.Milliseconds())
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = stream, 1, -1
	for i := range settings {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = settings[i].config, &settings[i].value
		t.Configs = append(t.Configs, config)
	}
	req.Topics = append(req.Topics, t)
	resp, err := request[*kmsg.CreateTopicsResponse](ctx, c.kafka, req)
	if err != nil {
		return err
	}
	return streamError(stream, resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage)
}

// Configure changes the settings that are given and leaves the others. The error is ErrNoStream, ErrInvalidName, that of a
// setting, or that of the connection.
func (c *Client) Configure(ctx context.Context, stream string, settings ...Setting) error {
	if err := checkStream(stream); err != nil {
		return err
	}
	if err := c.check(ctx); err != nil {
		return err
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, stream
	for i := range settings {
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value = settings[i].config, &settings[i].value
		r.Configs = append(r.Configs, config)
	}
	req.Resources = append(req.Resources, r)
	return retry(ctx, func() error {
		resp, err := request[*kmsg.IncrementalAlterConfigsResponse](ctx, c.kafka, req)
		if err != nil {
			return err
		}
		return streamError(stream, resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage)
	})
}

// CloseStream closes a stream for good: it takes no more records, and can be read as before. It returns the offset behind
// the last record. Closing a closed stream changes nothing. The error is ErrNoStream or that of the connection.
func (c *Client) CloseStream(ctx context.Context, stream string) (next int64, err error) {
	if err := c.Configure(ctx, stream, Setting{ext.ConfigClosed, "true"}); err != nil {
		return 0, err
	}
	info, err := c.Describe(ctx, stream)
	return info.Next, err
}

// Trim deletes the records before an offset, for good, and returns the first offset that is left. An offset at or below
// that changes nothing. The error is ErrNoStream, *OutOfRangeError if the stream ends before the offset, or that of the
// connection.
func (c *Client) Trim(ctx context.Context, stream string, before int64) (start int64, err error) {
	if err := checkStream(stream); err != nil {
		return 0, err
	}
	if before < 0 {
		return 0, fmt.Errorf("stream %q cannot be trimmed to the negative offset %d", stream, before)
	}
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = int32(adminTimeout.Milliseconds())
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic = stream
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Offset = before
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	err = retry(ctx, func() error {
		resp, err := request[*kmsg.DeleteRecordsResponse](ctx, c.kafka, req)
		if err != nil {
			return err
		}
		start = resp.Topics[0].Partitions[0].LowWatermark
		if code := resp.Topics[0].Partitions[0].ErrorCode; code != kerr.OffsetOutOfRange.Code {
			return streamError(stream, code, nil)
		}
		return c.outOfRange(ctx, stream, before)
	})
	return start, err
}

// outOfRange makes the error for an offset that a stream does not have.
func (c *Client) outOfRange(ctx context.Context, stream string, offset int64) error {
	start, err := c.listOffset(ctx, stream, timestampEarliest)
	if err != nil {
		return err
	}
	next, err := c.listOffset(ctx, stream, timestampLatest)
	if err != nil {
		return err
	}
	return &OutOfRangeError{Stream: stream, Offset: offset, Start: start, Next: next}
}

// Delete deletes streams with all their records, all of those that can be in one step. A name can be used again at once,
// for a new stream. The result holds an error or nil for each stream, ErrNoStream among them; the error of all is
// ErrInvalidName, with which nothing is deleted, or that of the connection.
func (c *Client) Delete(ctx context.Context, streams ...string) ([]error, error) {
	errs := make([]error, len(streams))
	if len(streams) == 0 {
		return errs, nil
	}
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	at := make(map[string]int, len(streams))
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(adminTimeout.Milliseconds())
	for i := range streams {
		if err := checkStream(streams[i]); err != nil {
			return nil, err
		}
		if _, twice := at[streams[i]]; twice {
			return nil, fmt.Errorf("stream %q is to be deleted twice", streams[i])
		}
		at[streams[i]] = i
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = &streams[i]
		req.Topics = append(req.Topics, t)
		req.TopicNames = append(req.TopicNames, streams[i])
	}
	resp, err := request[*kmsg.DeleteTopicsResponse](ctx, c.kafka, req)
	if err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.Topic == nil {
			continue
		}
		if n, ok := at[*t.Topic]; ok {
			errs[n] = streamError(*t.Topic, t.ErrorCode, t.ErrorMessage)
		}
	}
	return errs, nil
}

// Describe returns what there is to know about a stream. The error is ErrNoStream, ErrInvalidName or that of the
// connection.
func (c *Client) Describe(ctx context.Context, stream string) (Info, error) {
	if err := c.check(ctx); err != nil {
		return Info{}, err
	}
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.UnknownTags.Set(ext.TagDetails, nil)
	req.ResponsePartitionLimit = 1
	req.Topics = append(req.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: stream})
	resp, err := request[*kmsg.DescribeTopicPartitionsResponse](ctx, c.kafka, req)
	if err != nil {
		return Info{}, err
	}
	return newInfo(stream, &resp.Topics[0])
}

// checkStream refuses the names of topics: to a broker a stream is a topic, and it would change or delete a real one as
// well.
func checkStream(name string) error {
	if !ext.IsStream(name) {
		return noStream(name)
	}
	return nil
}

func noStream(name string) error {
	return fmt.Errorf("%w %q: a topic is no stream, its name has a slash", ErrInvalidName, name)
}

func newInfo(stream string, t *kmsg.DescribeTopicPartitionsResponseTopic) (Info, error) {
	if t.ErrorCode != 0 {
		return Info{}, streamError(stream, t.ErrorCode, nil)
	}
	value, ok := ext.Tag(&t.UnknownTags, ext.TagDetails)
	if !ok {
		return Info{}, noStream(stream)
	}
	d, err := ext.DecodeDetails(value)
	if err != nil {
		return Info{}, fmt.Errorf("stream %q: description by the broker: %w", stream, err)
	}
	return Info{
		Stream: stream, Start: d.Start, Next: d.Next, Created: d.Created, LastWrite: d.LastWrite, Closed: d.Closed,
		Retention: d.Retention, RetentionBytes: d.RetentionBytes, TTL: d.TTL, ContentType: d.ContentType,
	}, nil
}

// listPage is how many streams are asked for at a time, the most that a broker sends.
const listPage = 2000

// List returns the streams whose names begin with prefix, in order of their bytes, those behind the name after only. It
// asks the broker page by page while the loop runs, so streams that come or go meanwhile may be among them or not. An error
// ends the sequence.
func (c *Client) List(ctx context.Context, prefix, after string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := c.check(ctx); err != nil {
			yield(Info{}, err)
			return
		}
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.UnknownTags.Set(ext.TagPrefix, []byte(prefix))
		req.UnknownTags.Set(ext.TagDetails, nil)
		req.ResponsePartitionLimit = listPage
		if after != "" {
			req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: after + "\x00"}
		}
		for {
			resp, err := request[*kmsg.DescribeTopicPartitionsResponse](ctx, c.kafka, req)
			if err != nil {
				yield(Info{}, err)
				return
			}
			for i := range resp.Topics {
				t := &resp.Topics[i]
				if t.Topic == nil {
					continue
				}
				info, err := newInfo(*t.Topic, t)
				if !yield(info, err) || err != nil {
					return
				}
			}
			if resp.NextCursor == nil {
				return
			}
			req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: resp.NextCursor.Topic}
		}
	}
}
