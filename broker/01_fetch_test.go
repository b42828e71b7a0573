package broker

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// Clients act on every field of a fetch reply, so one that is not set must hold the protocol's default, not zero.
func TestFetchReplyFields(t *testing.T) {
	d := newDataBroker(t, nil)
	topic := d.createTopic("orders", 2)
	d.produce(at{topic: "orders"}, d.batchOf(3, 10))
	for _, version := range []int16{4, 5, 7, 9, 11, 12, 13, 16, 18} {
		for _, isolation := range []int8{0, isolationReadCommitted} {
			t.Run(fmt.Sprintf("v%d/isolation%d", version, isolation), func(t *testing.T) {
				known := at{topic: "orders"}
				unknown := at{topic: "missing"}
				if version >= 13 {
					known, unknown = at{id: topic.id}, at{id: topicID{1}}
				}
				empty := known
				empty.partition = 1
				req := fetchRequest(fetchOf{at: known, epoch: -1}, fetchOf{at: empty, epoch: -1}, fetchOf{at: unknown, epoch: -1})
				req.IsolationLevel = isolation
				resp := call[*kmsg.FetchResponse](d, req, version)
				wantZero(t, resp.ErrorCode)
				wantZero(t, resp.SessionID)
				wantLen(t, resp.Brokers, 0)
				got := partitionsOf(resp)
				wantLen(t, got, 3)

				data := got[known]
				wantZero(t, data.ErrorCode)
				wantInt(t, 3, data.HighWatermark)
				wantInt(t, 3, data.LastStableOffset)
				wantEqual(t, [][2]int64{{0, 2}}, offsetsIn(t, data.RecordBatches))

				none := got[empty]
				wantZero(t, none.ErrorCode)
				wantZero(t, none.HighWatermark)
				wantNotNil(t, none.RecordBatches, "records are empty, not null")
				wantLen(t, none.RecordBatches, 0)

				failed := got[unknown]
				if version >= 13 {
					wantEqual(t, kerr.UnknownTopicID.Code, failed.ErrorCode)
				} else {
					wantEqual(t, kerr.UnknownTopicOrPartition.Code, failed.ErrorCode)
				}
				wantInt(t, -1, failed.HighWatermark)
				wantInt(t, -1, failed.LogStartOffset)
				wantNotNil(t, failed.RecordBatches)

				for _, p := range got {
					wantInt(t, -1, p.PreferredReadReplica)
					wantEqual(t, kmsg.NewFetchResponseTopicPartitionCurrentLeader(), p.CurrentLeader)
					wantEqual(t, kmsg.NewFetchResponseTopicPartitionDivergingEpoch(), p.DivergingEpoch)
					wantLen(t, p.AbortedTransactions, 0)
				}
				wantEqual(t, isolation == isolationReadCommitted, data.AbortedTransactions != nil)
				if version >= 5 {
					wantZero(t, data.LogStartOffset)
					wantZero(t, none.LogStartOffset)
				}
			})
		}
	}
}

func TestFetchOffsets(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	d.produce(at{topic: "orders"}, d.batchOf(5, 10))
	for _, test := range []struct {
		offset int64
		code   int16
		ranges [][2]int64
	}{
		{0, 0, [][2]int64{{0, 9}, {10, 14}}},
		{7, 0, [][2]int64{{0, 9}, {10, 14}}}, // from the batch that contains it
		{10, 0, [][2]int64{{10, 14}}},
		{15, 0, nil},
		{16, kerr.OffsetOutOfRange.Code, nil},
		{-1, kerr.OffsetOutOfRange.Code, nil},
	} {
		resp := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, test.offset)), 12)
		p := resp.Topics[0].Partitions[0]
		wantEqual(t, test.code, p.ErrorCode, "offset %d", test.offset)
		wantEqual(t, test.ranges, offsetsIn(t, p.RecordBatches), "offset %d", test.offset)
	}
}

func TestFetchLeaderEpoch(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	for epoch, code := range map[int32]int16{
		-1: 0,
		0:  0,
		-2: kerr.FencedLeaderEpoch.Code,
		1:  kerr.UnknownLeaderEpoch.Code,
	} {
		resp := call[*kmsg.FetchResponse](d, fetchRequest(fetchOf{at: at{topic: "orders"}, epoch: epoch}), 12)
		wantEqual(t, code, resp.Topics[0].Partitions[0].ErrorCode, "epoch %d", epoch)
	}
}

// KIP-110: a client that speaks an older version cannot know the codec.
// As in Kafka, the topic's configuration decides: clients of that time exist that produce zstd and read it.
func TestFetchZstdNeedsV10(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.createTopic("configured", 1, "compression.type", "zstd")
	for topic, old := range map[string]int16{"orders": 0, "configured": kerr.UnsupportedCompressionType.Code} {
		d.produce(at{topic: topic}, makeBatch(t, kafkaproto.BatchOptions{Codec: kafkaproto.CodecZstd}, valuesAt(time.Now(), 10, 100)...))
		for version, code := range map[int16]int16{4: old, 9: old, 10: 0} {
			resp := call[*kmsg.FetchResponse](d, fetchRequest(from(topic, 0, 0)), version)
			wantEqual(t, code, resp.Topics[0].Partitions[0].ErrorCode, "%s v%d", topic, version)
		}
	}
}

// A batch larger than every limit must not block its reader, wherever its partition stands in the request.
func TestFetchFirstBatchExceedsLimits(t *testing.T) {
	d := newDataBroker(t, func(o *dataOptions) { o.broker.MaxMessageBytes = 4 << 20 })
	d.createTopic("orders", 3)
	d.produce(at{topic: "orders", partition: 1}, d.batchOf(1, 2<<20))
	d.produce(at{topic: "orders", partition: 2}, d.batchOf(1, 10))
	var parts []fetchOf
	for p := range int32(3) {
		parts = append(parts, fetchOf{at: at{topic: "orders", partition: p}, maxBytes: 1 << 10})
	}
	for _, version := range []int16{4, 12} {
		req := fetchRequest(parts...)
		req.MaxBytes = 1 << 10
		got := partitionsOf(call[*kmsg.FetchResponse](d, req, version))
		wantLen(t, got, 3, "every partition of a full request is answered")
		wantLess(t, 2<<20, len(got[at{topic: "orders", partition: 1}].RecordBatches))
		last := got[at{topic: "orders", partition: 2}]
		wantLen(t, last.RecordBatches, 0, "what comes after the first batch obeys the limits")
		wantInt(t, 1, last.HighWatermark)
	}
}

func TestFetchPartitionLimit(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	batch := d.batchOf(1, 1000)
	for range 10 {
		d.produce(at{topic: "orders"}, append([]byte(nil), batch...))
	}
	resp := call[*kmsg.FetchResponse](d, fetchRequest(fetchOf{at: at{topic: "orders"}, maxBytes: int32(3*len(batch) + 10)}), 12)
	wantEqual(t, [][2]int64{{0, 0}, {1, 1}, {2, 2}}, offsetsIn(t, resp.Topics[0].Partitions[0].RecordBatches), "whole batches only")
}

// One fetch over thousands of partitions obeys the limit of the whole request, and a session serves each partition once
// before it serves any a second time.
func TestFetchManyPartitionsAreCappedAndRotate(t *testing.T) {
	const partitions, size, limit = 5000, 1 << 10, 50 << 10
	d := newDataBroker(t, func(o *dataOptions) { o.broker.FetchMaxBytes = limit })
	d.createTopic("orders", partitions)
	parts := make([]fetchOf, partitions)
	produced := kmsg.NewPtrProduceRequest()
	produced.Acks, produced.TimeoutMillis = acksAll, 30_000
	for p := range parts {
		parts[p] = fetchOf{at: at{topic: "orders", partition: int32(p)}, maxBytes: 10 << 20}
		for range 2 {
			addProduce(produced, parts[p].at, d.batchOf(1, size))
		}
	}
	for _, p := range call[*kmsg.ProduceResponse](d, produced, 9).Topics[0].Partitions {
		wantZero(t, p.ErrorCode)
	}

	seen := map[int32]int{}
	fetches := 0
	req := inSession(fetchRequest(parts...), 0, sessionEpochInitial)
	for len(seen) < partitions && fetches < partitions {
		resp := call[*kmsg.FetchResponse](d, req, 12)
		wantZero(t, resp.ErrorCode)
		wantAtMost(t, recordBytes(resp), limit)
		fetches++
		for where, p := range partitionsOf(resp) {
			wantZero(t, p.ErrorCode)
			if len(p.RecordBatches) > 0 {
				seen[where.partition]++
			}
		}
		req = inSession(fetchRequest(), resp.SessionID, int32(fetches))
	}
	wantLen(t, seen, partitions)
	inPartition := 2 * len(d.batchOf(1, size))
	again := 0
	for _, times := range seen {
		again += times - 1
	}
	wantAtMost(t, again, limit/inPartition+1, "only the last fetch may come round to partitions served before")
	// Each fetch but the last fills its limit to within one partition's data.
	wantAtMost(t, fetches, partitions*inPartition/(limit-inPartition)+1)
	// Only the first fetch, which must name all partitions, may look at those it does not serve.
	wantLess(t, d.reads(), 2*partitions)
}

func TestFetchIsWokenByData(t *testing.T) {
	for name, epoch := range map[string]int32{"full": sessionEpochFinal, "session": sessionEpochInitial} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDataBroker(t, nil)
				d.createTopic("orders", 3)
				parts := []fetchOf{from("orders", 0, 0), from("orders", 1, 0), from("orders", 2, 0)}
				req := inSession(waiting(fetchRequest(parts...), time.Minute, 1), 0, epoch)
				began := time.Now()
				done := d.fetchInBackground(req, 12)

				synctest.Wait()
				wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes), "waiting holds no memory")
				time.Sleep(10 * time.Second)
				select {
				case <-done:
					t.Fatal("answered without data")
				default:
				}
				d.produce(at{topic: "orders", partition: 1}, d.batchOf(2, 10))
				resp := <-done
				wantLess(t, time.Since(began), 11*time.Second)
				wantEqual(t, [][2]int64{{0, 1}}, offsetsIn(t, partitionsOf(resp)[at{topic: "orders", partition: 1}].RecordBatches))
			})
		})
	}
}

// Data that arrives after a partition was read and before it is watched wakes nobody; it is found all the same.
func TestFetchMissesNothingBeforeItsWatch(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	req := waiting(fetchRequest(emptyParts("orders", 2)...), time.Minute, 1)
	req.SetVersion(12)
	s, _ := d.fetches.sessions.begin(req, nil)
	f := newFetch(d.Broker, req, s)
	defer f.end()
	f.pass(t.Context())
	wantEqual(t, false, f.due())
	d.produce(at{topic: "orders", partition: 1}, d.batchOf(1, 10))
	wantEqual(t, true, s.startWatch(d.store))
	f.pass(t.Context())
	wantEqual(t, true, f.due())
	wantEqual(t, false, s.startWatch(d.store))
}

func TestFetchMinBytesTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 2)
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(from("orders", 0, 0), from("orders", 1, 0)), 500*time.Millisecond, 1<<20), 12)
		wantEqual(t, 500*time.Millisecond, time.Since(began))
		wantLess(t, 0, recordBytes(resp), "what there is comes along")
	})
}

// Data that arrives bit by bit is gathered until there is enough of it.
func TestFetchGathersMinBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 2)
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 0), from("orders", 1, 0)), time.Minute, 3000), 12)
		for i := range 3 {
			synctest.Wait()
			wantLen(t, done, 0)
			d.produce(at{topic: "orders", partition: int32(i / 2)}, d.batchOf(1, 1000))
		}
		got := partitionsOf(<-done)
		wantEqual(t, [][2]int64{{0, 0}, {1, 1}}, offsetsIn(t, got[at{topic: "orders"}].RecordBatches))
		wantEqual(t, [][2]int64{{0, 0}}, offsetsIn(t, got[at{topic: "orders", partition: 1}].RecordBatches))
	})
}

func TestFetchAnswersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		for name, req := range map[string]*kmsg.FetchRequest{
			"no partitions":   fetchRequest(),
			"min bytes 0":     waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 0),
			"partition error": waiting(fetchRequest(from("orders", 0, 0), from("orders", 1, 0)), time.Minute, 1),
			"max wait 0":      waiting(fetchRequest(from("orders", 0, 0)), 0, 1),
			"max wait below":  waiting(fetchRequest(from("orders", 0, 0)), -time.Second, 1),
		} {
			if name == "no partitions" {
				waiting(req, time.Minute, 1)
			}
			began := time.Now()
			call[*kmsg.FetchResponse](d, req, 12)
			wantZero(t, time.Since(began), name)
		}
	})
}

func TestFetchAnswersWhenDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		began := time.Now()
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1), 12)
		synctest.Wait()
		d.Drain()
		<-done
		wantZero(t, time.Since(began))
	})
}

func TestFetchEndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		reply, err := d.start(waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1), 12)
		wantNoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := reply(ctx); done <- err }()
		synctest.Wait()
		cancel()
		wantErrorIs(t, <-done, context.Canceled)
		wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
	})
}

func TestFetchAfterTrimInsideBatch(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	wantZero(t, d.deleteRecords(at{topic: "orders"}, 5).ErrorCode)

	p := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 5)), 12).Topics[0].Partitions[0]
	wantZero(t, p.ErrorCode)
	wantInt(t, 5, p.LogStartOffset)
	wantEqual(t, [][2]int64{{0, 9}}, offsetsIn(t, p.RecordBatches))

	p = call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 3)), 12).Topics[0].Partitions[0]
	wantEqual(t, kerr.OffsetOutOfRange.Code, p.ErrorCode)
}

// A trim above the position of a fetch that waits ends the wait.
func TestFetchWaitEndsByTrim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		d.produce(at{topic: "orders"}, d.batchOf(10, 10))
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 2)), time.Minute, 1<<20), 12)
		synctest.Wait()
		d.deleteRecords(at{topic: "orders"}, 5)
		wantEqual(t, kerr.OffsetOutOfRange.Code, (<-done).Topics[0].Partitions[0].ErrorCode)
	})
}

// coldBroker has one topic whose records are in the bucket only.
func coldBroker(t *testing.T, partitions int32) *dataBroker {
	m := newMachine()
	d := openDataBroker(t, m, nil)
	d.createTopic("orders", partitions)
	for p := range partitions {
		d.produce(at{topic: "orders", partition: p}, d.batchOf(10, 1000))
	}
	wantNoError(t, d.store.Flush(context.Background()))
	d.stop()
	m.disk = vfs.NewMem() // another machine: nothing is cached
	return openDataBroker(t, m, nil)
}

// Reads from the bucket obey max wait, and what was read in vain serves the next fetch.
func TestFetchColdReadObeysMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 1)
		d.bucket.SetDelay(objstore.OpGetRange, 3*time.Second, 3*time.Second)
		d.bucket.SetDelay(objstore.OpGet, 3*time.Second, 3*time.Second)
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(from("orders", 0, 0)), 500*time.Millisecond, 1), 12)
		wantEqual(t, 500*time.Millisecond, time.Since(began))
		p := resp.Topics[0].Partitions[0]
		wantZero(t, p.ErrorCode)
		wantLen(t, p.RecordBatches, 0)
		wantInt(t, 10, p.HighWatermark)

		time.Sleep(5 * time.Second)
		began = time.Now()
		resp = call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 0)), 12)
		wantLess(t, 0, recordBytes(resp))
		wantZero(t, time.Since(began))
	})
}

// A reply that has what it needs does not wait for another partition's cold data.
func TestFetchColdReadDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 2)
		d.produce(at{topic: "orders"}, d.batchOf(1, 10)) // in the tail
		d.bucket.SetDelay(objstore.OpGetRange, 3*time.Second, 3*time.Second)
		d.bucket.SetDelay(objstore.OpGet, 3*time.Second, 3*time.Second)
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(from("orders", 0, 10), from("orders", 1, 0)), time.Minute, 1), 12)
		wantEqual(t, fetchReadGrace, time.Since(began))
		wantEqual(t, [][2]int64{{10, 10}}, offsetsIn(t, partitionsOf(resp)[at{topic: "orders"}].RecordBatches))
	})
}

// Clients know few errors of Fetch: what the bucket does wrong is told as one that they retry.
func TestFetchBucketFails(t *testing.T) {
	d := coldBroker(t, 1)
	d.bucket.SetRate(objstore.OpGetRange, faulty.Before, 1)
	d.bucket.SetRate(objstore.OpGet, faulty.Before, 1)
	for version, code := range map[int16]int16{5: kerr.NotLeaderForPartition.Code, 6: kerr.KafkaStorageError.Code, 12: kerr.KafkaStorageError.Code} {
		p := call[*kmsg.FetchResponse](d, waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1), version).Topics[0].Partitions[0]
		wantEqual(t, code, p.ErrorCode, "v%d", version)
	}
	p := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 10)), 12).Topics[0].Partitions[0]
	wantZero(t, p.ErrorCode, "what needs no bucket goes on")
}

// An error of one partition is told at once, whatever else is still on its way.
func TestFetchErrorDoesNotWaitForColdRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 1)
		d.bucket.SetDelay(objstore.OpGetRange, 3*time.Second, 3*time.Second)
		d.bucket.SetDelay(objstore.OpGet, 3*time.Second, 3*time.Second)
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(from("orders", 1, 0), from("orders", 0, 0)), time.Minute, 1), 12)
		wantEqual(t, fetchReadGrace, time.Since(began))
		wantEqual(t, kerr.UnknownTopicOrPartition.Code, partitionsOf(resp)[at{topic: "orders", partition: 1}].ErrorCode)
	})
}

// Replies in flight hold no more memory than they may; a fetch that gets none is answered empty at max wait.
func TestFetchMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		d := newDataBroker(t, func(o *dataOptions) {
			o.broker.MaxMessageBytes = 2 * size
			o.broker.FetchMaxBytes = 2 * size
			o.broker.FetchMemory = 3 * replyCopies * size
		})
		d.createTopic("orders", 1)
		d.produce(at{topic: "orders"}, d.batchOf(1, size-100))
		get := func() kmsg.Response {
			reply, err := d.start(waiting(fetchRequest(from("orders", 0, 0)), 500*time.Millisecond, 1), 12)
			wantNoError(t, err)
			resp, err := reply(t.Context())
			wantNoError(t, err)
			return resp
		}
		var held []kmsg.Response
		for range 3 {
			began := time.Now()
			resp := get()
			wantNotZero(t, len(resp.(*fetchReply).Topics[0].Partitions[0].RecordBatches))
			wantZero(t, time.Since(began))
			wantAtMost(t, testutil.ToFloat64(d.fetches.m.memoryBytes), float64(d.opts.FetchMemory))
			held = append(held, resp)
		}
		began := time.Now()
		starved := get().(*kmsg.FetchResponse).Topics[0].Partitions[0]
		wantEqual(t, 500*time.Millisecond, time.Since(began))
		wantZero(t, starved.ErrorCode)
		wantLen(t, starved.RecordBatches, 0)
		wantInt(t, 1, testutil.ToFloat64(d.fetches.m.memoryWaits))
		wantInt(t, 1, testutil.ToFloat64(d.fetches.m.memoryEmpty))

		// One that waits gets the memory of a reply that leaves.
		done := make(chan kmsg.Response, 1)
		go func() { done <- get() }()
		synctest.Wait()
		held[0].(kafkaproto.Releaser).Release()
		resp := <-done
		wantNotZero(t, len(resp.(*fetchReply).Topics[0].Partitions[0].RecordBatches))

		for _, r := range append(held[1:], resp) {
			r.(kafkaproto.Releaser).Release()
		}
		wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
	})
}

// A batch larger than the whole budget gets through, alone.
func TestFetchBatchLargerThanMemory(t *testing.T) {
	d := newDataBroker(t, func(o *dataOptions) {
		o.broker.MaxMessageBytes = 4 << 20
		o.broker.FetchMaxBytes = 1 << 20
		o.broker.FetchMemory = 1 << 20
	})
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, d.batchOf(1, 3<<20))
	resp := call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 0)), 12)
	wantLess(t, 3<<20, recordBytes(resp))
	wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
}

// However much data comes while a reader waits for more, none is read twice.
func TestFetchReadsOnce(t *testing.T) {
	for name, epoch := range map[string]int32{"full": sessionEpochFinal, "session": sessionEpochInitial} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const batches = 300
				d := newDataBroker(t, nil)
				d.createTopic("orders", 1)
				done := d.fetchInBackground(inSession(waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1<<20), 0, epoch), 12)
				sent := 0
				for range batches {
					batch := d.batchOf(2, 100)
					sent += len(batch)
					d.produce(at{topic: "orders"}, batch)
					synctest.Wait()
				}
				wantLen(t, done, 0)
				resp := <-done
				var want [][2]int64
				for i := range int64(batches) {
					want = append(want, [2]int64{2 * i, 2*i + 1})
				}
				wantEqual(t, want, offsetsIn(t, resp.Topics[0].Partitions[0].RecordBatches))
				wantInt(t, batches*2, resp.Topics[0].Partitions[0].HighWatermark)
				wantInt(t, sent, testutil.ToFloat64(d.fetches.m.readBytes))
				wantAtMost(t, d.reads(), batches+2)
				wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
			})
		})
	}
}

// What was read of a topic that is deleted and made again while the reader waits is not mixed with the new one's.
func TestFetchWaitEndsByDeletion(t *testing.T) {
	for name, test := range map[string]struct{ watched, again bool }{
		"deleted":                     {watched: true},
		"made again":                  {watched: true, again: true},
		"deleted before the watch":    {},
		"made again before the watch": {again: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDataBroker(t, nil)
			d.createTopic("orders", 1)
			d.produce(at{topic: "orders"}, d.batchOf(10, 10))
			req := waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1<<20)
			req.SetVersion(12)
			s, kafkaErr := d.fetches.sessions.begin(req, nil)
			wantNil(t, kafkaErr)
			f := newFetch(d.Broker, req, s)
			defer f.end()
			f.pass(t.Context())
			wantLess(t, 0, f.bytes)
			if test.watched {
				wantEqual(t, true, s.startWatch(d.store))
			}
			d.mustDelete("orders")
			var want [][2]int64
			if test.again {
				d.createTopic("orders", 1)
				d.produce(at{topic: "orders"}, d.batchOf(20, 10))
				want = [][2]int64{{0, 19}}
			}
			s.startWatch(d.store)
			s.takeNews()
			f.pass(t.Context())
			wantEqual(t, !test.again, f.failed)
			p := f.topics()[0].Partitions[0]
			wantEqual(t, want, offsetsIn(t, p.RecordBatches))
			if !test.again {
				wantEqual(t, kerr.UnknownTopicOrPartition.Code, p.ErrorCode)
			}
			wantEqual(t, len(p.RecordBatches)*replyCopies, int(testutil.ToFloat64(d.fetches.m.memoryBytes)))
		})
	}
}

func TestFetchWaitIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		req := waiting(fetchRequest(from("orders", 0, 0)), 0, 1)
		req.MaxWaitMillis = math.MaxInt32
		began := time.Now()
		call[*kmsg.FetchResponse](d, req, 12)
		wantEqual(t, maxFetchWait, time.Since(began))
	})
}

// slowBucket makes every read of the bucket take that long.
func (d *dataBroker) slowBucket(least, most time.Duration) {
	d.bucket.SetDelay(objstore.OpGetRange, least, most)
	d.bucket.SetDelay(objstore.OpGet, least, most)
}

// Cold partitions are read together: eight take as long as one.
func TestFetchColdReadsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 8
		d := coldBroker(t, partitions)
		d.slowBucket(100*time.Millisecond, 100*time.Millisecond)
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(emptyParts("orders", partitions)...), time.Minute, partitions*10_000), 12)
		wantEqual(t, 100*time.Millisecond, time.Since(began))
		for where, p := range partitionsOf(resp) {
			wantEqual(t, [][2]int64{{0, 9}}, offsetsIn(t, p.RecordBatches), "partition %d", where.partition)
		}
		wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
	})
}

// More cold partitions than are read at a time are read in turn.
func TestFetchColdReadsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 3*maxColdReads - 1
		d := coldBroker(t, partitions)
		d.slowBucket(100*time.Millisecond, 100*time.Millisecond)
		parts := emptyParts("orders", partitions)
		for i := range parts {
			parts[i].maxBytes = 64 << 10
		}
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(parts...), time.Minute, partitions*10_000), 12)
		wantEqual(t, 300*time.Millisecond, time.Since(began))
		wantLess(t, partitions*10_000, recordBytes(resp))
	})
}

// Data in memory comes first, wherever its partition stands in the request.
func TestFetchServesWhatIsAtHandFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 9
		d := coldBroker(t, partitions)
		d.produce(at{topic: "orders", partition: partitions - 1}, d.batchOf(1, 10))
		d.slowBucket(3*time.Second, 3*time.Second)
		parts := emptyParts("orders", partitions)
		parts[partitions-1].offset = 10
		began := time.Now()
		resp := call[*kmsg.FetchResponse](d, waiting(fetchRequest(parts...), time.Minute, 1), 12)
		wantEqual(t, fetchReadGrace, time.Since(began))
		got := partitionsOf(resp)
		wantLen(t, got, partitions)
		wantEqual(t, [][2]int64{{10, 10}}, offsetsIn(t, got[at{topic: "orders", partition: partitions - 1}].RecordBatches))
		wantInt(t, 10, got[at{topic: "orders"}].HighWatermark)
	})
}

// One slow read does not keep the others from leaving, and a session gets its data with a later reply.
func TestFetchSlowReadHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 5
		d := coldBroker(t, partitions)
		d.slowBucket(100*time.Millisecond, time.Minute)
		began := time.Now()
		req := waiting(inSession(fetchRequest(emptyParts("orders", partitions)...), 0, sessionEpochInitial), 2*time.Minute, 1)
		got := map[int32]int{}
		for epoch := int32(1); len(got) < partitions; epoch++ {
			resp := call[*kmsg.FetchResponse](d, req, 12)
			wantLess(t, 0, recordBytes(resp), "no reply leaves without data")
			if epoch == 1 {
				wantLess(t, time.Since(began), 50*time.Second)
				wantLess(t, len(got), partitions)
			}
			var moved []fetchOf
			for where, p := range partitionsOf(resp) {
				if len(p.RecordBatches) > 0 {
					got[where.partition]++
					moved = append(moved, from("orders", where.partition, 10))
				}
			}
			req = waiting(inSession(fetchRequest(moved...), resp.SessionID, epoch), 2*time.Minute, 1)
		}
		for p, times := range got {
			wantEqual(t, 1, times, "partition %d", p)
		}
		wantAtMost(t, time.Since(began), time.Minute)
	})
}

// Of cold batches that are larger than the reply may be, one comes along, and the next fetch brings another.
func TestFetchColdBatchesExceedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 3)
		d.slowBucket(100*time.Millisecond, 100*time.Millisecond)
		parts := emptyParts("orders", 3)
		req := waiting(inSession(fetchRequest(parts...), 0, sessionEpochInitial), time.Minute, 1)
		seen := map[int32]bool{}
		for epoch := int32(1); epoch <= 3; epoch++ {
			req.MaxBytes = 100
			resp := call[*kmsg.FetchResponse](d, req, 12)
			for where, p := range partitionsOf(resp) {
				if len(p.RecordBatches) > 0 {
					wantEqual(t, [][2]int64{{0, 9}}, offsetsIn(t, p.RecordBatches))
					seen[where.partition] = true
				}
			}
			wantLen(t, seen, int(epoch))
			req = waiting(inSession(fetchRequest(), resp.SessionID, epoch), time.Minute, 1)
		}
	})
}

// News of a partition that is being read from the bucket are not lost.
func TestFetchNewsDuringColdRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 1)
		d.slowBucket(100*time.Millisecond, 100*time.Millisecond)
		batch := d.batchOf(1, 1000)
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 0)), time.Minute, int32(10_000+len(batch))), 12)
		synctest.Wait()
		d.produce(at{topic: "orders"}, batch)
		began := time.Now()
		resp := <-done
		wantAtMost(t, time.Since(began), 100*time.Millisecond)
		wantEqual(t, [][2]int64{{0, 9}, {10, 10}}, offsetsIn(t, resp.Topics[0].Partitions[0].RecordBatches))
	})
}

func TestFetchDeletionDuringColdRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coldBroker(t, 1)
		d.slowBucket(time.Second, time.Second)
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1), 12)
		synctest.Wait()
		d.mustDelete("orders")
		wantEqual(t, kerr.UnknownTopicOrPartition.Code, (<-done).Topics[0].Partitions[0].ErrorCode)
	})
}

// Connections that ask for much and do not read must not take the memory that others need.
func TestFetchSlowReadersStarveNobody(t *testing.T) {
	d := newDataBroker(t, func(o *dataOptions) { o.broker.FetchMemory = 64 << 20 })
	d.createTopic("orders", 2)
	batch := d.batchOf(1, 900<<10)
	for range 10 {
		d.produce(at{topic: "orders"}, append([]byte(nil), batch...))
	}
	d.produce(at{topic: "orders", partition: 1}, d.batchOf(1, 900<<10))
	get := func(req *kmsg.FetchRequest) kmsg.Response {
		reply, err := d.start(req, 12)
		wantNoError(t, err)
		resp, err := reply(t.Context())
		wantNoError(t, err)
		return resp
	}
	var held []kmsg.Response
	for i := range 12 {
		greedy := fetchRequest(fetchOf{at: at{topic: "orders"}, maxBytes: 55 << 20})
		greedy.MaxBytes = 55 << 20
		resp := get(greedy)
		n := len(resp.(*fetchReply).Topics[0].Partitions[0].RecordBatches)
		wantLess(t, 0, n, "greedy fetch %d", i)
		wantAtMost(t, n*replyCopies, 64<<20/memoryShare)
		held = append(held, resp)
	}
	for range 3 {
		resp := get(fetchRequest(from("orders", 1, 0)))
		wantLen(t, resp.(*fetchReply).Topics[0].Partitions[0].RecordBatches, len(batch))
		resp.(kafkaproto.Releaser).Release()
	}
	for _, resp := range held {
		resp.(kafkaproto.Releaser).Release()
	}
	wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
	wantZero(t, testutil.ToFloat64(d.fetches.m.memoryWaits))
}

// A fetch that waits for memory ends when the broker drains.
func TestFetchWaitForMemoryEndsByDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		all := reservation{pool: d.fetches.memory}
		all.settle(0, int(d.opts.FetchMemory)/replyCopies)
		began := time.Now()
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 0)), time.Minute, 1), 12)
		synctest.Wait()
		d.Drain()
		wantZero(t, recordBytes(<-done))
		wantZero(t, time.Since(began))
		all.release()
		wantZero(t, testutil.ToFloat64(d.fetches.m.memoryBytes))
	})
}

// A fetch that finds nothing to read waits for news, and not for memory, however little there is.
func TestFetchAtTheEndTakesNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		all := reservation{pool: d.fetches.memory}
		all.settle(0, int(d.opts.FetchMemory)/replyCopies)
		began := time.Now()
		wantZero(t, recordBytes(call[*kmsg.FetchResponse](d, fetchRequest(from("orders", 0, 1)), 12)))
		wantZero(t, time.Since(began), "a fetch that does not wait")
		done := d.fetchInBackground(waiting(fetchRequest(from("orders", 0, 1)), time.Minute, 1), 12)
		synctest.Wait()
		wantZero(t, testutil.ToFloat64(d.fetches.m.memoryWaits))
		wantZero(t, testutil.ToFloat64(d.fetches.m.memoryEmpty))
		all.release()
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		wantLess(t, 0, recordBytes(<-done))
		resp := call[*kmsg.FetchResponse](d, fetchRequest(fetchOf{at: at{topic: "orders"}, offset: 2, epoch: 7}), 12)
		wantEqual(t, kerr.UnknownLeaderEpoch.Code, resp.Topics[0].Partitions[0].ErrorCode, "checks come first all the same")
	})
}

func TestFetchNamedStream(t *testing.T) {
	d := newDataBroker(t, nil)
	d.produce(at{topic: "sessions/alice"}, d.batchOf(2, 10))
	stream := d.topicNamed("sessions/alice")
	for version, where := range map[int16]at{12: {topic: "sessions/alice"}, 13: {id: stream.id}} {
		resp := call[*kmsg.FetchResponse](d, fetchRequest(fetchOf{at: where, epoch: -1}), version)
		wantEqual(t, [][2]int64{{0, 1}}, offsetsIn(t, resp.Topics[0].Partitions[0].RecordBatches), "v%d", version)
	}
	d.mustDelete(stream.name)
	resp := call[*kmsg.FetchResponse](d, fetchRequest(fetchOf{at: at{id: stream.id}, epoch: -1}), 13)
	wantEqual(t, kafkaproto.ErrUnknownTopicID.Code, resp.Topics[0].Partitions[0].ErrorCode)
}

func TestJoinChunks(t *testing.T) {
	one := []byte("one")
	if &one[0] != &joinChunks([][]byte{one}, 3)[0] {
		t.Fatal("a single chunk was copied")
	}
	wantEqual(t, "onetwo", string(joinChunks([][]byte{one, []byte("two")}, 6)))
}
