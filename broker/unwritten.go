package broker

import (
	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// A named stream comes to exist when it is written to. Until then readers see it as an empty stream, and none is made for
// them: names that are only looked at leave nothing behind. This is so while streams may be made by writing to them
// (Options.AutoCreateTopics); otherwise a name that does not exist is an error, as for topics.
//
//   - Metadata describes it as a topic with partition 0 and without a topic id. Clients then name it in their requests,
//     and adopt the id once there is one. An id made from the name would not do: a topic whose id changes counts as
//     deleted and made again, and franz-go, for one, gives it up. Java producers from 4.1 on do not look whether there is
//     an id: a request such as theirs makes the stream (see Metadata).
//   - ListOffsets and OffsetForLeaderEpoch answer as for an empty partition.
//   - Fetch by name waits for the first record. Any offset but 0 is out of range.
//   - Requests that describe or change things, such as DescribeTopicPartitions, DescribeConfigs, DeleteRecords and
//     DeleteTopics, tell the truth: UNKNOWN_TOPIC_OR_PARTITION.

// isUnwritten tells whether a partition that was not found, with the error err, is that of a named stream that may come to
// exist.
func (b *Broker) isUnwritten(key partitionKey, byID bool, err *kafkaproto.Error) bool {
	return !byID && key.partition == 0 && b.topics.isUnwritten(key.name, err)
}

func (c *catalogue) isUnwritten(name string, err *kafkaproto.Error) bool {
	return err == kafkaproto.ErrUnknownTopicOrPartition && c.opts.AutoCreateTopics && isStreamName(name)
}

// unwrittenStream is how metadata shows such a stream: with a partition, and without ids.
func unwrittenStream(name string) *topic {
	return &topic{name: name, partitions: make([]streamstore.StreamID, 1), stream: true}
}
