package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

func TestProduceAcks(t *testing.T) {
	d := newDataBroker(t, nil)
	topic := d.createTopic("orders", 2)
	for version := int16(3); version <= 13; version++ {
		for _, acks := range []int16{acksLeader, acksAll} {
			where := at{topic: "orders"}
			if version >= 13 {
				where = at{id: topic.id}
			}
			resp := call[*kmsg.ProduceResponse](d, produceRequest(acks, where, d.batchOf(2, 10), d.batchOf(1, 10)), version)
			wantLen(t, resp.Topics, 1)
			wantLen(t, resp.Topics[0].Partitions, 2)
			next := int64(version-3) * 2
			if acks == acksAll {
				next++
			}
			for i, p := range resp.Topics[0].Partitions {
				wantInt(t, i, p.Partition)
				wantZero(t, p.ErrorCode)
				wantEqual(t, next*int64(2-i), p.BaseOffset, "v%d acks=%d", version, acks)
				wantInt(t, -1, p.LogAppendTime)
				if version >= 5 {
					wantZero(t, p.LogStartOffset)
				}
				wantEqual(t, kmsg.NewProduceResponseTopicPartitionCurrentLeader(), p.CurrentLeader)
			}
			wantLen(t, resp.Brokers, 0)
		}
	}
}

func TestProduceInvalidAcks(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	resp := call[*kmsg.ProduceResponse](d, produceRequest(2, at{topic: "orders"}, d.batchOf(1, 10), d.batchOf(1, 10)), 9)
	wantLen(t, resp.Topics[0].Partitions, 2)
	for _, p := range resp.Topics[0].Partitions {
		wantEqual(t, kerr.InvalidRequiredAcks.Code, p.ErrorCode)
		wantInt(t, -1, p.BaseOffset)
	}
	o, err := d.store.Offsets(d.topicNamed("orders").partitions[0])
	wantNoError(t, err)
	wantZero(t, o.Next, "nothing was written")
}

// A small batch beside a large refused one must not keep the request's buffer in memory.
func TestProduceDetachesSmallBatches(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	for _, bad := range []bool{false, true} {
		small, large := d.batchOf(1, 10), d.batchOf(1, 10_000)
		if bad {
			large[len(large)-1]++
		}
		frame := produceRequest(acksAll, at{topic: "orders"}, small, large)
		p := &produce{b: d.Broker, req: frame, frame: len(small) + len(large), resp: frame.ResponseKind().(*kmsg.ProduceResponse), deadline: time.Now().Add(time.Minute), now: time.Now().UnixMilli()}
		p.ack = streamstore.AckDurable
		p.layOut()
		p.append(t.Context())
		kept := &p.checked[0].records[0] == &frame.Topics[0].Partitions[0].Records[0]
		wantEqual(t, !bad, kept, "large batch refused: %v", bad)
	}
}

func TestProduceWithoutAcks(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	reply, err := d.start(produceRequest(acksNone, at{topic: "orders"}, d.batchOf(3, 10)), 9)
	wantNoError(t, err)
	wantNil(t, reply, "there is no response")

	bad := d.batchOf(1, 10)
	bad[len(bad)-1]++
	reply, err = d.start(produceRequest(acksNone, at{topic: "orders"}, bad, d.batchOf(4, 10)), 9)
	wantErrorIs(t, err, kafkaproto.ErrCorruptMessage, "closing the connection is the only way to tell")
	wantNil(t, reply)

	for p, next := range []int64{3, 4} {
		o, err := d.store.Offsets(d.topicNamed("orders").partitions[p])
		wantNoError(t, err)
		wantEqual(t, next, o.Next, "one partition's error does not touch the others")
	}
}

// edited returns batch after an edit, with a CRC that fits.
func edited(batch []byte, edit func(b []byte)) []byte {
	edit(batch)
	kafkaproto.RecordBatch(batch).SetCRC()
	return batch
}

// Each fault is answered where it is, with Kafka's code, and does not fail the partitions around it.
func TestProduceErrorsArePerPartition(t *testing.T) {
	d := newDataBroker(t, func(o *dataOptions) { o.broker.AutoCreateTopics = false })
	d.createTopic("orders", 20, "max.message.bytes", "2000", "message.timestamp.before.max.ms", "60000", "message.timestamp.after.max.ms", "60000")
	now := time.Now()
	stamped := func(ts time.Time) []byte {
		return makeBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Timestamp: ts.UnixMilli(), Value: []byte("v")})
	}
	idempotent := kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 9, Epoch: 1, Sequence: 5}}
	stale := kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 9, Epoch: 0, Sequence: 0}}
	record := valuesAt(now, 1, 10)[0]
	cases := []struct {
		name  string
		batch []byte
		code  int16
	}{
		{"good", d.batchOf(1, 10), 0},
		{"null records", nil, kerr.InvalidRecord.Code},
		{"two batches", append(d.batchOf(1, 10), d.batchOf(1, 10)...), kerr.InvalidRecord.Code},
		{"magic 1", edited(d.batchOf(1, 10), func(b []byte) { b[16] = 1 }), kerr.InvalidRecord.Code},
		{"flipped bit", func() []byte { b := d.batchOf(1, 10); b[len(b)-1] ^= 1; return b }(), kerr.CorruptMessage.Code},
		{"too large", d.batchOf(1, 2000), kerr.MessageTooLarge.Code},
		{"record count", edited(d.batchOf(1, 10), func(b []byte) { b[60] = 7 }), kerr.InvalidRecord.Code},
		{"control", makeBatch(t, kafkaproto.BatchOptions{Control: true}, record), kerr.InvalidRecord.Code},
		{"too old", stamped(now.Add(-2 * time.Minute)), kerr.InvalidTimestamp.Code},
		{"from the future", stamped(now.Add(2 * time.Minute)), kerr.InvalidTimestamp.Code},
		{"no timestamp", makeBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Timestamp: -1}), 0},
		{"log append time", edited(d.batchOf(1, 10), func(b []byte) { b[22] |= 8 }), kerr.InvalidTimestamp.Code},
		{"transactional", makeBatch(t, kafkaproto.BatchOptions{Transactional: true, Producer: idempotent.Producer}, record), kerr.InvalidTxnState.Code},
		{"good again", d.batchOf(1, 10), 0},
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = acksAll, 10_000
	for i, c := range cases {
		addProduce(req, at{topic: "orders", partition: int32(i)}, c.batch)
	}
	addProduce(req, at{topic: "orders", partition: 20}, d.batchOf(1, 10))
	addProduce(req, at{topic: "orders", partition: -1}, d.batchOf(1, 10))
	addProduce(req, at{topic: "missing"}, d.batchOf(1, 10))
	addProduce(req, at{topic: "no/such/stream"}, d.batchOf(1, 10))
	addProduce(req, at{topic: "_private/stream"}, d.batchOf(1, 10))
	addProduce(req, at{topic: "bad name"}, d.batchOf(1, 10))
	resp := call[*kmsg.ProduceResponse](d, req, 9)

	check := func(name string, p kmsg.ProduceResponseTopicPartition, code int16) {
		wantEqual(t, code, p.ErrorCode, name)
		if code == 0 {
			wantZero(t, p.BaseOffset, name)
			wantNil(t, p.ErrorMessage, name)
			return
		}
		wantInt(t, -1, p.BaseOffset, name)
		wantInt(t, -1, p.LogStartOffset, name)
		wantNotNil(t, p.ErrorMessage, name)
	}
	for i, c := range cases {
		check(c.name, resp.Topics[0].Partitions[i], c.code)
	}
	check("partition 20", resp.Topics[0].Partitions[len(cases)], kerr.UnknownTopicOrPartition.Code)
	check("partition -1", resp.Topics[0].Partitions[len(cases)+1], kerr.UnknownTopicOrPartition.Code)
	for i, code := range []int16{kerr.UnknownTopicOrPartition.Code, kerr.UnknownTopicOrPartition.Code, kerr.InvalidTopicException.Code, kerr.InvalidTopicException.Code} {
		check(resp.Topics[i+1].Topic, resp.Topics[i+1].Partitions[0], code)
	}

	// Rules of idempotent producers.
	for i, step := range []struct {
		opts kafkaproto.BatchOptions
		code int16
	}{
		{idempotent, 0},
		{kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 9, Epoch: 1, Sequence: 7}}, kerr.OutOfOrderSequenceNumber.Code},
		{stale, kerr.InvalidProducerEpoch.Code},
		{kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 9, Epoch: 1, Sequence: 6}}, 0},
	} {
		resp := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "orders", partition: 19}, makeBatch(t, step.opts, record)), 9)
		wantEqual(t, step.code, resp.Topics[0].Partitions[0].ErrorCode, "step %d", i)
	}
}

func TestProduceZstdNeedsV7(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	for version, code := range map[int16]int16{6: kerr.UnsupportedCompressionType.Code, 7: 0} {
		batch := makeBatch(t, kafkaproto.BatchOptions{Codec: kafkaproto.CodecZstd}, valuesAt(time.Now(), 1, 100)...)
		resp := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "orders"}, batch), version)
		wantEqual(t, code, resp.Topics[0].Partitions[0].ErrorCode, "v%d", version)
	}
}

func TestProduceUnknownTopicID(t *testing.T) {
	d := newDataBroker(t, nil)
	topic := d.createTopic("orders", 1)
	d.mustDelete(topic.name)
	for _, id := range []topicID{{}, {1}, topic.id, streamTopicID(12345)} {
		resp := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{id: id}, d.batchOf(1, 10)), 13)
		wantEqual(t, kerr.UnknownTopicID.Code, resp.Topics[0].Partitions[0].ErrorCode)
		wantEqual(t, [16]byte(id), resp.Topics[0].TopicID)
	}
}

// A retry gets its first answer and is stored once.
func TestProduceDuplicates(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	batch := func(sequence int32, now time.Time) []byte {
		return makeBatch(t, kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 7, Sequence: sequence}}, valuesAt(now, 3, 10)...)
	}
	now := time.Now()
	for i := range int32(5) {
		p := d.produce(at{topic: "orders"}, batch(3*i, now.Add(time.Duration(i)*time.Second)))
		wantInt(t, 3*i, p.BaseOffset)
		wantInt(t, -1, p.LogAppendTime)
	}
	for i := range int32(5) {
		p := d.produce(at{topic: "orders"}, batch(3*i, now.Add(time.Minute)))
		wantInt(t, 3*i, p.BaseOffset)
		wantEqual(t, now.Add(time.Duration(i)*time.Second).UnixMilli(), p.LogAppendTime, "the time of the original")
	}
	o, err := d.store.Offsets(d.topicNamed("orders").partitions[0])
	wantNoError(t, err)
	wantInt(t, 15, o.HighWatermark)
}

func TestProduceLogAppendTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1, "message.timestamp.type", "LogAppendTime")
		now := time.Now()
		ancient := makeBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Timestamp: 1, Value: []byte("v")})
		p := d.produce(at{topic: "orders"}, ancient)
		wantEqual(t, now.UnixMilli(), p.LogAppendTime)

		resp := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 0)), 12)
		stored := kafkaproto.RecordBatch(resp.Topics[0].Partitions[0].RecordBatches)
		wantEqual(t, true, stored.IsLogAppendTime())
		wantEqual(t, now.UnixMilli(), stored.MaxTimestamp())
		wantEqual(t, stored.CRC(), stored.ComputeCRC())
	})
}

func TestProduceCreatesNamedStream(t *testing.T) {
	d := newDataBroker(t, nil)
	p := d.produce(at{topic: "sessions/alice"}, d.batchOf(2, 10))
	wantZero(t, p.BaseOffset)
	p = d.produce(at{topic: "sessions/alice"}, d.batchOf(1, 10))
	wantInt(t, 2, p.BaseOffset)

	resp := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "sessions/alice", partition: 1}, d.batchOf(1, 10)), 9)
	wantEqual(t, kerr.UnknownTopicOrPartition.Code, resp.Topics[0].Partitions[0].ErrorCode, "a stream has one partition")

	resp = call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "plain"}, d.batchOf(1, 10)), 9)
	wantEqual(t, kerr.UnknownTopicOrPartition.Code, resp.Topics[0].Partitions[0].ErrorCode, "topics are made by metadata requests")
}

func TestProduceWithoutAutoCreate(t *testing.T) {
	d := newDataBroker(t, func(o *dataOptions) { o.broker.AutoCreateTopics = false })
	resp := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "sessions/alice"}, d.batchOf(1, 10)), 9)
	wantEqual(t, kerr.UnknownTopicOrPartition.Code, resp.Topics[0].Partitions[0].ErrorCode)
}

// Requests take effect in the order in which they were read, though nobody has waited for the first reply yet.
func TestProducePipelined(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	var replies []kafkaproto.Reply
	for i := range 10 {
		reply, err := d.start(produceRequest(acksAll, at{topic: "orders"}, d.batchOf(1, 10*i+1)), 9)
		wantNoError(t, err)
		replies = append(replies, reply)
	}
	for i, reply := range replies {
		resp := finish[*kmsg.ProduceResponse](t, reply, 9)
		wantInt(t, i, resp.Topics[0].Partitions[0].BaseOffset)
	}
}

// remoteBroker acknowledges when records are in the bucket.
func remoteBroker(t testing.TB, edit func(*dataOptions)) *dataBroker {
	return newDataBroker(t, func(o *dataOptions) {
		o.store.Durability = streamstore.Remote
		if edit != nil {
			edit(o)
		}
	})
}

func TestProduceTimesOutWaitingForAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, nil)
		d.createTopic("orders", 1)
		d.bucket.SetDelay(objstore.OpCreate, 10*time.Second, 10*time.Second)
		req := produceRequest(acksAll, at{topic: "orders"}, d.batchOf(1, 10))
		req.TimeoutMillis = 2000
		began := time.Now()
		p := call[*kmsg.ProduceResponse](d, req, 9).Topics[0].Partitions[0]
		wantEqual(t, 2*time.Second, time.Since(began))
		wantEqual(t, kerr.RequestTimedOut.Code, p.ErrorCode)
		wantInt(t, -1, p.BaseOffset)

		// acks=1 waits for the local disk only.
		began = time.Now()
		p = call[*kmsg.ProduceResponse](d, produceRequest(acksLeader, at{topic: "orders"}, d.batchOf(1, 10)), 9).Topics[0].Partitions[0]
		wantZero(t, p.ErrorCode)
		wantInt(t, 1, p.BaseOffset)
		wantLess(t, time.Since(began), time.Second)
	})
}

func TestProduceBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, func(o *dataOptions) {
			o.store.MaxBatchBytes = 1 << 20
			o.store.FlushBytes = 1 << 20
			o.store.MaxUnflushedBytes = 2 << 20
		})
		d.createTopic("orders", 1)
		d.bucket.SetDelay(objstore.OpCreate, time.Minute, time.Minute)
		var last *kmsg.ProduceResponse
		for range 3 {
			began := time.Now()
			reply, err := d.start(withTimeout(produceRequest(acksLeader, at{topic: "orders"}, d.batchOf(1, 900<<10)), 5*time.Second), 9)
			wantNoError(t, err)
			last = finish[*kmsg.ProduceResponse](t, reply, 9)
			wantAtMost(t, time.Since(began), 5*time.Second)
		}
		wantEqual(t, kerr.NotEnoughReplicas.Code, last.Topics[0].Partitions[0].ErrorCode)
		wantEqual(t, true, kerr.IsRetriable(kerr.ErrorForCode(last.Topics[0].Partitions[0].ErrorCode)))
	})
}

func withTimeout(req *kmsg.ProduceRequest, timeout time.Duration) *kmsg.ProduceRequest {
	req.TimeoutMillis = int32(timeout / time.Millisecond)
	return req
}

// A timeout of 0 leaves time for the write itself, as in Kafka.
func TestProduceTimeoutZero(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	for _, acks := range []int16{acksLeader, acksAll} {
		resp := call[*kmsg.ProduceResponse](d, withTimeout(produceRequest(acks, at{topic: "orders"}, d.batchOf(1, 10)), 0), 9)
		wantZero(t, resp.Topics[0].Partitions[0].ErrorCode)
	}
}

func TestProduceReplyEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, nil)
		d.createTopic("orders", 1)
		reply, err := d.start(produceRequest(acksAll, at{topic: "orders"}, d.batchOf(1, 10)), 9)
		wantNoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = reply(ctx)
		wantErrorIs(t, err, context.Canceled)
	})
}

func BenchmarkProduce(b *testing.B) {
	for _, partitions := range []int{1, 100} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			d := newDataBroker(b, nil)
			d.createTopic("orders", int32(partitions))
			batch := d.batchOf(1, 1000)
			b.ReportAllocs()
			b.SetBytes(int64(partitions * len(batch)))
			for b.Loop() {
				req := kmsg.NewPtrProduceRequest()
				req.SetVersion(9)
				req.Acks, req.TimeoutMillis = acksNone, 10_000
				rt := kmsg.NewProduceRequestTopic()
				rt.Topic = "orders"
				frame := make([]byte, 0, partitions*len(batch))
				for p := range partitions {
					frame = append(frame, batch...)
					rt.Partitions = append(rt.Partitions, kmsg.ProduceRequestTopicPartition{Partition: int32(p), Records: frame[p*len(batch) : (p+1)*len(batch)]})
				}
				req.Topics = append(req.Topics, rt)
				if _, err := d.Handle(b.Context(), &kafkaproto.Request{Conn: &kafkaproto.ConnInfo{}, Key: 0, Version: 9, Body: req}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestProduceTimeoutIsBounded(t *testing.T) {
	for millis, want := range map[int32]time.Duration{
		-1:            minProduceTimeout,
		0:             minProduceTimeout,
		2000:          2 * time.Second,
		math.MaxInt32: maxProduceTimeout,
	} {
		wantEqual(t, want, produceTimeout(millis), "%d ms", millis)
	}
}

// A client that asks for weeks waits as long as one may.
func TestProduceWaitIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, nil)
		d.createTopic("orders", 1)
		d.bucket.SetDelay(objstore.OpCreate, 2*maxProduceTimeout, 2*maxProduceTimeout)
		req := produceRequest(acksAll, at{topic: "orders"}, d.batchOf(1, 10))
		req.TimeoutMillis = math.MaxInt32
		began := time.Now()
		p := call[*kmsg.ProduceResponse](d, req, 9).Topics[0].Partitions[0]
		wantEqual(t, maxProduceTimeout, time.Since(began))
		wantEqual(t, kerr.RequestTimedOut.Code, p.ErrorCode)
	})
}

func TestProduceMaxMessageBytesZero(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("closed", 1, "max.message.bytes", "0")
	p := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "closed"}, d.batchOf(1, 0)), 9).Topics[0].Partitions[0]
	wantEqual(t, kerr.MessageTooLarge.Code, p.ErrorCode)
}

// Only Kafka's admin tools may write to internal topics, as in Kafka (class ReplicaManager).
func TestProduceToInternalTopics(t *testing.T) {
	d := newDataBroker(t, nil)
	for _, name := range []string{"__consumer_offsets", "__transaction_state", "__share_group_state", "__mine"} {
		internal := name != "__mine"
		topic := d.createTopic(name, 1)
		for version, where := range map[int16]at{9: {topic: name}, 13: {id: topic.id}} {
			for client, allowed := range map[string]bool{"": !internal, "console-producer": !internal, adminClientID: true} {
				req := produceRequest(acksAll, where, d.batchOf(1, 10))
				req.SetVersion(version)
				reply, err := d.Handle(t.Context(), &kafkaproto.Request{Conn: &kafkaproto.ConnInfo{}, Version: version, ClientID: client, Body: req})
				wantNoError(t, err)
				code := int16(0)
				if !allowed {
					code = kerr.InvalidTopicException.Code
				}
				p := finish[*kmsg.ProduceResponse](t, reply, version).Topics[0].Partitions[0]
				wantEqual(t, code, p.ErrorCode, "%s v%d by %q", name, version, client)
			}
		}
	}
}

// Some producers write the last record's time where the largest belongs; look-ups by time must find the record all the same.
func TestProduceCorrectsMaxTimestamp(t *testing.T) {
	d := newDataBroker(t, nil)
	now := time.Now().UnixMilli()
	lie := func(largest int64) []byte {
		batch := kafkaproto.RecordBatch(makeBatch(t, kafkaproto.BatchOptions{}, recordsAt(now-2000, largest, now-1000)...))
		binary.BigEndian.PutUint64(batch[35:], uint64(now-1000)) // maxTimestamp
		batch.SetCRC()
		return batch
	}
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, lie(now))
	wantFound(t, d.listOffset("orders", now), 1, now)
	stored := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 0)), 12).Topics[0].Partitions[0].RecordBatches
	wantEqual(t, now, kafkaproto.RecordBatch(stored).MaxTimestamp())
	offsetsIn(t, stored) // the checksum is right

	// The true time obeys the topic's limits too.
	d.createTopic("strict", 1, "message.timestamp.after.max.ms", "60000")
	p := call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "strict"}, lie(now+3_600_000)), 9).Topics[0].Partitions[0]
	wantEqual(t, kerr.InvalidTimestamp.Code, p.ErrorCode)
}
