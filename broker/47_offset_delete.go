package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// OffsetDelete (key 47), v0 (KIP-496).
//
// Behaviour: removes committed offsets; the reply leaves when that is durable. Of a group of consumers those of topics
// that a member reads are refused with GROUP_SUBSCRIBED_TO_TOPIC; a group with members of another kind is
// NON_EMPTY_GROUP. A partition without a commit is no error, one that does not exist is UNKNOWN_TOPIC_OR_PARTITION.
func init() { register(kafkaproto.KeyOffsetDelete, handleOffsetDelete) }

func handleOffsetDelete(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.OffsetDeleteRequest)
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	partitions, codes := b.checkOffsetDelete(req, resp)
	pending := b.groups.DeleteOffsets(req.Group, partitions)
	return func(ctx context.Context) (kmsg.Response, error) {
		result, err := pending.Wait(ctx)
		if err != nil {
			return nil, err
		}
		if resp.ErrorCode = errorCode(result.Err); result.Err != nil {
			resp.Topics = nil
			return resp, nil
		}
		for i, kerr := range result.Errs {
			*codes[i] = errorCode(kerr)
		}
		return resp, nil
	}, nil
}

// checkOffsetDelete fills the reply and returns the partitions that exist, with where their error codes belong.
func (b *Broker) checkOffsetDelete(req *kmsg.OffsetDeleteRequest, resp *kmsg.OffsetDeleteResponse) ([]groups.Partition, []*int16) {
	var partitions []groups.Partition
	var codes []*int16
	resp.Topics = make([]kmsg.OffsetDeleteResponseTopic, len(req.Topics))
	for i := range req.Topics {
		t, rt := &req.Topics[i], &resp.Topics[i]
		rt.Default()
		rt.Topic = t.Topic
		rt.Partitions = make([]kmsg.OffsetDeleteResponseTopicPartition, len(t.Partitions))
		found, kerr := b.groupTopic(req.Version, t.Topic, topicID{})
		for j := range t.Partitions {
			rp := &rt.Partitions[j]
			rp.Default()
			rp.Partition = t.Partitions[j].Partition
			if kerr != nil {
				rp.ErrorCode = kerr.Code
				continue
			}
			if _, ok := found.partition(rp.Partition); !ok {
				rp.ErrorCode = kafkaproto.ErrUnknownTopicOrPartition.Code
				continue
			}
			codes = append(codes, &rp.ErrorCode)
			partitions = append(partitions, groups.Partition{Topic: t.Topic, Partition: rp.Partition})
		}
	}
	return partitions, codes
}
