package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// OffsetForLeaderEpoch (key 23), v2 to v4: where the records of a leader epoch end. Clients compare the answer with
// their position to find out whether records they have read were cut off (KIP-320).
//
// Behaviour: all records belong to one epoch (see leaderEpoch), so the end of that one is the end of the partition, and
// no other is known: epoch and offset -1. The end is the high watermark, not the next offset as in Kafka, because
// records above it are not durable, and an answer that covers them could hide their loss.
//
// Versions: 2 the leader epoch that the client knows (KIP-320); 3 the replica id, which is ignored; 4 flexible.
func init() { register(int16(kmsg.OffsetForLeaderEpoch), direct(offsetForLeaderEpoch)) }

func offsetForLeaderEpoch(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.OffsetForLeaderEpochRequest)
	resp := r.Response().(*kmsg.OffsetForLeaderEpochResponse)
	for i := range req.Topics {
		t := &req.Topics[i]
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		for j := range t.Partitions {
			rt.Partitions = append(rt.Partitions, b.epochEnd(t.Topic, &t.Partitions[j]))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}

// epochEnd answers for one partition.
func (b *Broker) epochEnd(name string, p *kmsg.OffsetForLeaderEpochRequestTopicPartition) kmsg.OffsetForLeaderEpochResponseTopicPartition {
	rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
	rp.Partition = p.Partition
	stream, kerr := b.namedPartition(name, p.Partition)
	unwritten := b.isUnwritten(partitionKey{name: name, partition: p.Partition}, false, kerr)
	if kerr == nil || unwritten {
		kerr = checkLeaderEpoch(p.CurrentLeaderEpoch)
	}
	if kerr != nil {
		rp.ErrorCode = kerr.Code
		return rp
	}
	if p.LeaderEpoch != leaderEpoch {
		return rp
	}
	var o streamstore.Offsets
	var err error
	if !unwritten {
		o, err = b.store.Offsets(stream)
	}
	if kerr := storeError(err); kerr != nil {
		rp.ErrorCode = kerr.Code
		return rp
	}
	rp.LeaderEpoch, rp.EndOffset = leaderEpoch, o.HighWatermark
	return rp
}
