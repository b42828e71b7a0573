package broker

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
)

// trimTo names a partition and the offset to trim it to.
type trimTo struct {
	at
	offset int64
}

func deleteRecordsRequest(trims ...trimTo) *kmsg.DeleteRecordsRequest {
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 10_000
	for _, tr := range trims {
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic = tr.topic
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = tr.partition, tr.offset
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}
	return req
}

// deleteRecords trims one partition.
func (d *dataBroker) deleteRecords(where at, offset int64) kmsg.DeleteRecordsResponseTopicPartition {
	d.t.Helper()
	resp := call[*kmsg.DeleteRecordsResponse](d, deleteRecordsRequest(trimTo{where, offset}), 2)
	return resp.Topics[0].Partitions[0]
}

func TestDeleteRecords(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	for _, step := range []struct {
		offset int64
		code   int16
		low    int64
	}{
		{4, 0, 4},
		{2, 0, 4}, // lower is a no-op
		{4, 0, 4},
		{11, kerr.OffsetOutOfRange.Code, -1},
		{-2, kerr.OffsetOutOfRange.Code, -1},
		{-1, 0, 10}, // the high watermark
		{10, 0, 10},
	} {
		p := d.deleteRecords(at{topic: "orders"}, step.offset)
		wantEqual(t, step.code, p.ErrorCode, "offset %d", step.offset)
		wantEqual(t, step.low, p.LowWatermark, "offset %d", step.offset)
	}
	rp := d.produce(at{topic: "orders"}, d.batchOf(1, 10))
	wantInt(t, 10, rp.BaseOffset, "offsets go on")
	wantInt(t, 10, rp.LogStartOffset)
}

// The trims of a request are one transaction, but one that is refused does not keep the others from being done.
func TestDeleteRecordsPerPartition(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	d.produce(at{topic: "sessions/alice"}, d.batchOf(10, 10))
	for version := range int16(3) {
		resp := call[*kmsg.DeleteRecordsResponse](d, deleteRecordsRequest(
			trimTo{at{topic: "orders"}, int64(version) + 3},
			trimTo{at{topic: "orders", partition: 1}, 1},
			trimTo{at{topic: "orders", partition: 2}, 0},
			trimTo{at{topic: "missing"}, 0},
			trimTo{at{topic: "sessions/alice"}, int64(version) + 5},
		), version)
		for i, want := range []struct {
			code int16
			low  int64
		}{
			{0, int64(version) + 3},
			{kerr.OffsetOutOfRange.Code, -1},
			{kerr.UnknownTopicOrPartition.Code, -1},
			{kerr.UnknownTopicOrPartition.Code, -1},
			{0, int64(version) + 5},
		} {
			p := resp.Topics[i].Partitions[0]
			wantEqual(t, want.code, p.ErrorCode, "v%d part %d", version, i)
			wantEqual(t, want.low, p.LowWatermark, "v%d part %d", version, i)
		}
	}
}

// A stream that is deleted after it was checked fails alone.
func TestDeleteRecordsOfStreamDeletedMeanwhile(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.createTopic("gone", 1)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	d.produce(at{topic: "gone"}, d.batchOf(10, 10))
	trims := d.checkTrims(deleteRecordsRequest(trimTo{at{topic: "gone"}, 5}, trimTo{at{topic: "orders"}, 5}))
	d.mustDelete("gone")
	d.trimAll(t.Context(), trims)
	wantCode(t, "gone", trims[0].err.Code, kafkaproto.ErrUnknownTopicOrPartition)
	wantNil(t, trims[1].err)
	wantInt(t, 5, d.startOf("orders"))
}

func (d *dataBroker) startOf(topic string) int64 {
	d.t.Helper()
	o, err := d.store.Offsets(d.topicNamed(topic).partitions[0])
	wantNoError(d.t, err)
	return o.Start
}

func TestDeleteRecordsTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, nil)
		d.createTopic("orders", 1)
		d.produce(at{topic: "orders"}, d.batchOf(10, 10))
		d.bucket.SetDelay(objstore.OpCreate, 30*time.Second, 30*time.Second)
		began := time.Now()
		p := d.deleteRecords(at{topic: "orders"}, 5)
		wantEqual(t, 10*time.Second, time.Since(began))
		wantEqual(t, kerr.RequestTimedOut.Code, p.ErrorCode)
	})
}

// The start offset and what lies below it survive a restart.
func TestTrimInsideBatchSurvivesRestart(t *testing.T) {
	m := newMachine()
	for round := range 2 {
		d := openDataBroker(t, m, nil)
		if round == 0 {
			d.createTopic("orders", 1)
			d.produce(at{topic: "orders"}, d.batchOf(10, 10))
			wantInt(t, 5, d.deleteRecords(at{topic: "orders"}, 5).LowWatermark)
		}
		wantInt(t, 5, d.listOffset("orders", timestampEarliest).Offset)
		wantInt(t, 5, d.listOffset("orders", 0).Offset, "a look-up by time finds nothing below the start")
		p := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 3)), 12).Topics[0].Partitions[0]
		wantEqual(t, kerr.OffsetOutOfRange.Code, p.ErrorCode)
		p = call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 5)), 12).Topics[0].Partitions[0]
		wantInt(t, 5, p.LogStartOffset)
		wantEqual(t, [][2]int64{{0, 9}}, offsetsIn(t, p.RecordBatches))
		d.stop()
	}
}

// After a timeout the trims are on their way: doing them again would write them twice, and wait twice.
func TestDeleteRecordsTimesOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, nil)
		d.createTopic("orders", 3)
		var trims []trimTo
		for p := range int32(3) {
			d.produce(at{topic: "orders", partition: p}, d.batchOf(10, 10))
			trims = append(trims, trimTo{at{topic: "orders", partition: p}, 5})
		}
		d.bucket.SetDelay(objstore.OpCreate, 2*maxAdminTimeout, 2*maxAdminTimeout)
		req := deleteRecordsRequest(trims...)
		req.TimeoutMillis = math.MaxInt32
		began, before := time.Now(), d.store.Stats().AppendNumber
		resp := call[*kmsg.DeleteRecordsResponse](d, req, 2)
		wantEqual(t, maxAdminTimeout, time.Since(began), "the wait is capped")
		wantEqual(t, before+1, d.store.Stats().AppendNumber, "one transaction")
		for _, rt := range resp.Topics {
			wantEqual(t, kerr.RequestTimedOut.Code, rt.Partitions[0].ErrorCode)
		}
	})
}
