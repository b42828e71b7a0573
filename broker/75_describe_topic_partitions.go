package broker

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// DescribeTopicPartitions (key 75), v0 (KIP-966).
//
// Behaviour:
//   - Topics come in order of their names, whatever the order of the request, each once. An empty list asks for all
//     topics (not for named streams).
//   - A page holds at most the partitions that the request allows, at least 1 and at most 2000. The cursor of a page that
//     is cut names the first partition that is missing; a request with that cursor goes on there, also if the topic is
//     gone meanwhile.
//   - Nothing is created.
//   - A tag with a prefix lists the named streams under it instead, and another adds to each stream its offsets and
//     settings (package ext). Paging is the same: the cursor names the first stream of the next page. Streams that are
//     made behind the cursor meanwhile come along, those that are made before it do not.
func init() { register(kafkaproto.KeyDescribeTopicPartitions, direct(handleDescribeTopicPartitions)) }

// maxDescribedPartitions is Kafka's max.request.partition.size.limit.
const maxDescribedPartitions = 2000

func handleDescribeTopicPartitions(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeTopicPartitionsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	if prefix, ok := ext.Tag(&req.UnknownTags, ext.TagPrefix); ok {
		return b.describePrefix(req, resp, string(prefix))
	}
	_, details := ext.Tag(&req.UnknownTags, ext.TagDetails)
	names, err := b.describedNames(req)
	if err != nil {
		return describeError(req, resp, err), nil
	}
	room := min(max(req.ResponsePartitionLimit, 1), maxDescribedPartitions)
	for _, name := range names {
		var from int32
		if req.Cursor != nil && name == req.Cursor.Topic {
			from = req.Cursor.Partition
		}
		if room == 0 {
			resp.NextCursor = nextCursor(name, from)
			break
		}
		t, next := b.describeTopicPartitions(name, from, room)
		if details && t.ErrorCode == 0 && isStreamName(name) {
			b.addDetails(&t)
		}
		room -= int32(len(t.Partitions))
		resp.Topics = append(resp.Topics, t)
		if next > 0 {
			resp.NextCursor = nextCursor(name, next)
			break
		}
	}
	return resp, nil
}

// describedNames returns the names to describe, in order, from the cursor on.
func (b *Broker) describedNames(req *kmsg.DescribeTopicPartitionsRequest) ([]string, *kafkaproto.Error) {
	names := b.topics.load().names()
	if len(req.Topics) > 0 {
		names = make([]string, len(req.Topics))
		for i := range req.Topics {
			names[i] = req.Topics[i].Topic
		}
		slices.Sort(names)
		names = slices.Compact(names)
	}
	if req.Cursor == nil {
		return names, nil
	}
	if req.Cursor.Partition < 0 {
		return nil, kafkaproto.ErrInvalidRequest
	}
	at, _ := slices.BinarySearchFunc(names, req.Cursor.Topic, cmp.Compare[string])
	return names[at:], nil
}

// describeError answers a request that is wrong as a whole: the reply has room for errors of topics only.
func describeError(req *kmsg.DescribeTopicPartitionsRequest, resp *kmsg.DescribeTopicPartitionsResponse, err *kafkaproto.Error) kmsg.Response {
	for i := range req.Topics {
		t := kmsg.NewDescribeTopicPartitionsResponseTopic()
		t.Topic, t.ErrorCode = &req.Topics[i].Topic, err.Code
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func nextCursor(topic string, partition int32) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	c := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	c.Topic, c.Partition = topic, partition
	return &c
}

// describeTopicPartitions describes up to room partitions of one topic, starting at from. next is the first partition
// that did not fit, 0 if all did.
func (b *Broker) describeTopicPartitions(name string, from, room int32) (d kmsg.DescribeTopicPartitionsResponseTopic, next int32) {
	d = kmsg.NewDescribeTopicPartitionsResponseTopic()
	d.Topic = kmsg.StringPtr(name)
	t, err := b.topics.byName(name)
	if err != nil {
		d.ErrorCode = err.Code
		return d, 0
	}
	d.TopicID, d.IsInternal, d.AuthorizedOperations = t.id, isInternal(name), topicOperations
	end := int32(len(t.partitions))
	if end-from > room {
		end = from + room
		next = end
	}
	for n := from; n < end; n++ {
		d.Partitions = append(d.Partitions, b.describePartition(n))
	}
	return d, next
}

// addDetails adds offsets and settings to the description of a stream, which becomes an error if it is gone by now.
func (b *Broker) addDetails(t *kmsg.DescribeTopicPartitionsResponseTopic) {
	id, _ := topicID(t.TopicID).stream()
	info, err := b.store.Describe(id)
	if err != nil {
		t.ErrorCode, t.Partitions = storeError(err).Code, nil
		return
	}
	t.UnknownTags.Set(ext.TagDetails, streamDetails(&info).Encode())
}

func streamDetails(info *streamstore.StreamInfo) *ext.Details {
	d := &ext.Details{
		Start: info.Start, Next: info.HighWatermark,
		Created: info.Created, LastWrite: info.LastWrite,
		Retention: info.Settings.Retention, RetentionBytes: info.Settings.RetentionBytes, TTL: -1,
		Closed: info.Closed, ContentType: info.Settings.ContentType,
	}
	if info.Settings.TTL > 0 {
		d.TTL = info.Settings.TTL
	}
	return d
}

// describePrefix answers with a page of the streams under a prefix.
func (b *Broker) describePrefix(req *kmsg.DescribeTopicPartitionsRequest, resp *kmsg.DescribeTopicPartitionsResponse, prefix string) (kmsg.Response, error) {
	_, details := ext.Tag(&req.UnknownTags, ext.TagDetails)
	limit := int(min(max(req.ResponsePartitionLimit, 1), maxDescribedPartitions))
	from := ""
	if req.Cursor != nil {
		from = req.Cursor.Topic
	}
	err := listStreams(b.store, prefix, from, func(info *streamstore.StreamInfo) bool {
		if len(resp.Topics) == limit {
			resp.NextCursor = nextCursor(info.Name, 0)
			return false
		}
		t := b.describeStreamInfo(info)
		if details {
			t.UnknownTags.Set(ext.TagDetails, streamDetails(info).Encode())
		}
		resp.Topics = append(resp.Topics, t)
		return true
	})
	return resp, err // the reply has no field for the error of a whole request
}

func (b *Broker) describeStreamInfo(info *streamstore.StreamInfo) kmsg.DescribeTopicPartitionsResponseTopic {
	d := kmsg.NewDescribeTopicPartitionsResponseTopic()
	d.Topic = kmsg.StringPtr(info.Name)
	d.TopicID, d.AuthorizedOperations = streamTopicID(info.ID), topicOperations
	d.Partitions = []kmsg.DescribeTopicPartitionsResponseTopicPartition{b.describePartition(0)}
	return d
}

func (b *Broker) describePartition(n int32) kmsg.DescribeTopicPartitionsResponseTopicPartition {
	p := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
	p.Partition, p.LeaderID, p.LeaderEpoch = n, b.opts.NodeID, leaderEpoch
	p.Replicas, p.ISR = b.self, b.self
	p.EligibleLeaderReplicas, p.LastKnownELR = []int32{}, []int32{}
	return p
}
