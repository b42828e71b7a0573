package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestOffsetForLeaderEpoch(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	for _, test := range []struct {
		where          at
		current, epoch int32
		code           int16
		wantEpoch      int32
		wantEnd        int64
	}{
		{at{topic: "orders"}, -1, 0, 0, 0, 10},
		{at{topic: "orders"}, 0, 0, 0, 0, 10},
		{at{topic: "orders"}, -1, 1, 0, -1, -1},
		{at{topic: "orders"}, -1, -1, 0, -1, -1},
		{at{topic: "orders"}, 1, 0, kerr.UnknownLeaderEpoch.Code, -1, -1},
		{at{topic: "orders"}, -2, 0, kerr.FencedLeaderEpoch.Code, -1, -1},
		{at{topic: "orders", partition: 1}, -1, 0, kerr.UnknownTopicOrPartition.Code, -1, -1},
		{at{topic: "missing"}, -1, 0, kerr.UnknownTopicOrPartition.Code, -1, -1},
	} {
		for version := int16(2); version <= 4; version++ {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = test.where.topic
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = test.where.partition, test.current, test.epoch
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
			p := call[*kmsg.OffsetForLeaderEpochResponse](d, req, version).Topics[0].Partitions[0]
			wantEqual(t, test.code, p.ErrorCode, "%+v v%d", test, version)
			wantEqual(t, test.wantEpoch, p.LeaderEpoch, "%+v v%d", test, version)
			wantEqual(t, test.wantEnd, p.EndOffset, "%+v v%d", test, version)
			wantEqual(t, test.where.partition, p.Partition)
		}
	}
}
