package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeProducers (key 61), v0: the idempotent producers that have state in a partition (KIP-664).
//
// Behaviour: one entry per producer id whose state has not expired, with its epoch and the last sequence number and
// timestamp. No producer has a transaction open, because transactions are not served.
func init() { register(int16(kmsg.DescribeProducers), direct(describeProducers)) }

func describeProducers(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeProducersRequest)
	resp := r.Response().(*kmsg.DescribeProducersResponse)
	for i := range req.Topics {
		t := &req.Topics[i]
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = t.Topic
		for _, partition := range t.Partitions {
			rt.Partitions = append(rt.Partitions, b.partitionProducers(t.Topic, partition))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}

func (b *Broker) partitionProducers(name string, partition int32) kmsg.DescribeProducersResponseTopicPartition {
	rp := kmsg.NewDescribeProducersResponseTopicPartition()
	rp.Partition = partition
	active, kerr := b.activeProducers(name, partition)
	rp.ErrorCode, rp.ErrorMessage = errorFields(kerr)
	rp.ActiveProducers = active
	return rp
}

func (b *Broker) activeProducers(name string, partition int32) ([]kmsg.DescribeProducersResponseTopicPartitionActiveProducer, *kafkaproto.Error) {
	stream, kerr := b.namedPartition(name, partition)
	if kerr != nil {
		return nil, kerr
	}
	producers, err := b.store.Producers(stream)
	if err != nil {
		return nil, storeError(err)
	}
	active := make([]kmsg.DescribeProducersResponseTopicPartitionActiveProducer, 0, len(producers))
	for _, p := range producers {
		a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		a.ProducerID = p.ProducerID
		a.ProducerEpoch = int32(p.Epoch)
		a.LastSequence = p.LastSequence
		a.LastTimestamp = p.LastTimestamp
		a.CoordinatorEpoch = -1 // none has ever written to the partition
		active = append(active, a)
	}
	return active, nil
}
