package broker

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

func TestDescribeProducers(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	now := time.Now()
	for sequence := int32(0); sequence < 6; sequence += 3 {
		opts := kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 7, Epoch: 2, Sequence: sequence}}
		d.produce(at{topic: "orders"}, makeBatch(t, opts, valuesAt(now, 3, 10)...))
	}
	d.produce(at{topic: "orders", partition: 1}, d.batchOf(1, 10)) // not idempotent

	req := kmsg.NewPtrDescribeProducersRequest()
	for topic, partitions := range map[string][]int32{"orders": {0, 1, 2}, "missing": {0}} {
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = topic, partitions
		req.Topics = append(req.Topics, rt)
	}
	got := map[at]kmsg.DescribeProducersResponseTopicPartition{}
	for _, rt := range call[*kmsg.DescribeProducersResponse](d, req, 0).Topics {
		for _, rp := range rt.Partitions {
			got[at{topic: rt.Topic, partition: rp.Partition}] = rp
		}
	}
	wantLen(t, got, 4)
	for _, unknown := range []at{{topic: "orders", partition: 2}, {topic: "missing"}} {
		wantEqual(t, kerr.UnknownTopicOrPartition.Code, got[unknown].ErrorCode)
		wantNotNil(t, got[unknown].ErrorMessage)
	}
	wantZero(t, got[at{topic: "orders", partition: 1}].ErrorCode)
	wantLen(t, got[at{topic: "orders", partition: 1}].ActiveProducers, 0)

	active := got[at{topic: "orders"}].ActiveProducers
	wantLen(t, active, 1)
	want := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
	want.ProducerID, want.ProducerEpoch, want.LastSequence = 7, 2, 5
	want.LastTimestamp = now.UnixMilli()
	want.CoordinatorEpoch, want.CurrentTxnStartOffset = -1, -1
	wantEqual(t, want, active[0])
}
