package broker

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
)

// lookUp names a partition and what to look up in it.
type lookUp struct {
	at
	timestamp int64
	epoch     int32
}

func listOffsetsRequest(lookUps ...lookUp) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	for _, l := range lookUps {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = l.topic
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = l.partition, l.timestamp, l.epoch
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}
	return req
}

// listOffset looks one timestamp up in partition 0.
func (d *dataBroker) listOffset(topic string, timestamp int64) kmsg.ListOffsetsResponseTopicPartition {
	d.t.Helper()
	resp := call[*kmsg.ListOffsetsResponse](d, listOffsetsRequest(lookUp{at{topic: topic}, timestamp, -1}), 11)
	return resp.Topics[0].Partitions[0]
}

func wantFound(t *testing.T, p kmsg.ListOffsetsResponseTopicPartition, offset, timestamp int64, about ...any) {
	t.Helper()
	wantZero(t, p.ErrorCode, about...)
	wantEqual(t, [2]int64{offset, timestamp}, [2]int64{p.Offset, p.Timestamp}, about...)
	epoch := int32(leaderEpoch)
	if offset < 0 {
		epoch = -1
	}
	wantEqual(t, epoch, p.LeaderEpoch, about...)
}

func recordsAt(timestamps ...int64) []kafkaproto.Record {
	records := make([]kafkaproto.Record, len(timestamps))
	for i, ts := range timestamps {
		records[i] = kafkaproto.Record{Timestamp: ts, Value: []byte("value")}
	}
	return records
}

// A look-up by time ends at a record, also in the middle of a compressed batch.
func TestListOffsetsByTimestamp(t *testing.T) {
	const base = 1_000_000
	for _, codec := range []kafkaproto.Codec{kafkaproto.CodecNone, kafkaproto.CodecGzip, kafkaproto.CodecSnappy, kafkaproto.CodecLZ4, kafkaproto.CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			d := newDataBroker(t, nil)
			d.createTopic("orders", 1)
			opts := kafkaproto.BatchOptions{Codec: codec}
			rising := make([]int64, 10)
			for i := range rising {
				rising[i] = base + 10*int64(i)
			}
			d.produce(at{topic: "orders"}, makeBatch(t, opts, recordsAt(rising...)...))
			// Offsets 10 to 13, out of order; the largest timestamp of all comes twice.
			d.produce(at{topic: "orders"}, makeBatch(t, opts, recordsAt(base+500, base+200, base+900, base+900)...))
			for _, test := range []struct{ target, offset, timestamp int64 }{
				{0, 0, base},
				{base, 0, base},
				{base + 45, 5, base + 50},
				{base + 50, 5, base + 50},
				{base + 90, 9, base + 90},
				{base + 91, 10, base + 500},
				{base + 501, 12, base + 900},
				{base + 900, 12, base + 900},
				{base + 901, -1, -1},
				{timestampMax, 12, base + 900},
			} {
				wantFound(t, d.listOffset("orders", test.target), test.offset, test.timestamp, "target %d", test.target)
			}

			// Trimmed records are not found, though their batch is still stored.
			d.deleteRecords(at{topic: "orders"}, 5)
			wantFound(t, d.listOffset("orders", base+20), 5, base+50)
			wantFound(t, d.listOffset("orders", base+60), 6, base+60)
			d.deleteRecords(at{topic: "orders"}, 13)
			wantFound(t, d.listOffset("orders", 0), 13, base+900)
			wantFound(t, d.listOffset("orders", timestampMax), 13, base+900)
			d.deleteRecords(at{topic: "orders"}, -1)
			wantFound(t, d.listOffset("orders", 0), -1, -1)
			wantFound(t, d.listOffset("orders", timestampMax), -1, -1)
		})
	}
}

// When the record with the largest timestamp of its batch is trimmed, the largest that is left may be elsewhere.
func TestListOffsetsMaxTimestampAfterTrim(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(900, 100)...))
	d.produce(at{topic: "orders"}, makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(200, 300)...))
	d.produce(at{topic: "orders"}, makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(250)...))
	wantFound(t, d.listOffset("orders", timestampMax), 0, 900)
	d.deleteRecords(at{topic: "orders"}, 1)
	wantFound(t, d.listOffset("orders", timestampMax), 3, 300)
	wantFound(t, d.listOffset("orders", 500), -1, -1)
}

func TestListOffsetsLogAppendTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1, "message.timestamp.type", "LogAppendTime")
		first := time.Now().UnixMilli()
		d.produce(at{topic: "orders"}, makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(1, 2, 3)...))
		time.Sleep(time.Second)
		d.produce(at{topic: "orders"}, makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(1, 2, 3)...))
		wantFound(t, d.listOffset("orders", 2), 0, first)
		wantFound(t, d.listOffset("orders", first+1), 3, d.listOffset("orders", timestampMax).Timestamp)
	})
}

func TestListOffsetsSpecialTimestamps(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	d.produce(at{topic: "orders"}, makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(5, 6, 7)...))
	d.deleteRecords(at{topic: "orders"}, 1)
	for _, test := range []struct {
		timestamp         int64
		since             int16 // first version
		offset, atTime    int64
		emptyOffset       int64
		emptyOffsetAtTime int64
	}{
		{timestampLatest, 1, 3, -1, 0, -1},
		{timestampEarliest, 1, 1, -1, 0, -1},
		{timestampMax, 7, 2, 7, -1, -1},
		{timestampEarliestLocal, 8, 1, -1, 0, -1},
		{timestampLatestTiered, 9, -1, -1, -1, -1},
		{timestampEarliestPendingUpload, 11, -1, -1, -1, -1},
		{-7, 12, 0, 0, 0, 0},
	} {
		for version := int16(1); version <= 11; version++ {
			for _, isolation := range []int8{0, isolationReadCommitted} {
				about := fmt.Sprintf("timestamp %d v%d isolation %d", test.timestamp, version, isolation)
				req := listOffsetsRequest(lookUp{at{topic: "orders"}, test.timestamp, -1}, lookUp{at{topic: "orders", partition: 1}, test.timestamp, -1})
				req.IsolationLevel = isolation
				resp := call[*kmsg.ListOffsetsResponse](d, req, version)
				full, empty := resp.Topics[0].Partitions[0], resp.Topics[1].Partitions[0]
				if version < test.since {
					for _, p := range []kmsg.ListOffsetsResponseTopicPartition{full, empty} {
						wantEqual(t, kerr.UnsupportedVersion.Code, p.ErrorCode, about)
						wantEqual(t, [2]int64{-1, -1}, [2]int64{p.Offset, p.Timestamp}, about)
					}
					continue
				}
				wantZero(t, full.ErrorCode, about)
				wantEqual(t, [2]int64{test.offset, test.atTime}, [2]int64{full.Offset, full.Timestamp}, about)
				wantEqual(t, [2]int64{test.emptyOffset, test.emptyOffsetAtTime}, [2]int64{empty.Offset, empty.Timestamp}, about)
			}
		}
	}
}

func TestListOffsetsErrors(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 3)
	resp := call[*kmsg.ListOffsetsResponse](d, listOffsetsRequest(
		lookUp{at{topic: "orders"}, timestampLatest, -1},
		lookUp{at{topic: "orders", partition: 1}, timestampLatest, -1},
		lookUp{at{topic: "orders"}, timestampEarliest, -1},
		lookUp{at{topic: "orders", partition: 2}, timestampLatest, 1},
		lookUp{at{topic: "orders", partition: 3}, timestampLatest, -1},
		lookUp{at{topic: "missing"}, timestampLatest, -1},
	), 6)
	for i, code := range []int16{
		kerr.InvalidRequest.Code, // named twice
		0,
		kerr.InvalidRequest.Code,
		kerr.UnknownLeaderEpoch.Code,
		kerr.UnknownTopicOrPartition.Code,
		kerr.UnknownTopicOrPartition.Code,
	} {
		p := resp.Topics[i].Partitions[0]
		wantEqual(t, code, p.ErrorCode, "entry %d", i)
		if code != 0 {
			wantEqual(t, [2]int64{-1, -1}, [2]int64{p.Offset, p.Timestamp}, "entry %d", i)
			wantInt(t, -1, p.LeaderEpoch, "entry %d", i)
		}
	}
}

func TestListOffsetsObeysTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 1)
		d.bucket.SetDelay(objstore.OpGetRange, time.Minute, time.Minute)
		d.bucket.SetDelay(objstore.OpGet, time.Minute, time.Minute)
		for version, timeout := range map[int16]time.Duration{10: 2 * time.Second, 9: listOffsetsTimeout} {
			req := listOffsetsRequest(lookUp{at{topic: "orders"}, 0, -1})
			req.TimeoutMillis = 2000
			began := time.Now()
			p := call[*kmsg.ListOffsetsResponse](d, req, version).Topics[0].Partitions[0]
			wantEqual(t, timeout, time.Since(began))
			wantEqual(t, kerr.RequestTimedOut.Code, p.ErrorCode)
		}
	})
}

func TestListOffsetsWaitIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 1)
		d.bucket.SetDelay(objstore.OpGetRange, time.Hour, time.Hour)
		d.bucket.SetDelay(objstore.OpGet, time.Hour, time.Hour)
		req := listOffsetsRequest(lookUp{at{topic: "orders"}, 1, -1})
		req.TimeoutMillis = math.MaxInt32
		began := time.Now()
		call[*kmsg.ListOffsetsResponse](d, req, 11)
		wantEqual(t, maxListOffsetsTimeout, time.Since(began))
	})
}
