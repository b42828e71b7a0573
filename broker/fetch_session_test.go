package broker

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// openSession sends a full request for a new session and returns its id.
func (d *dataBroker) openSession(version int16, parts ...fetchOf) int32 {
	d.t.Helper()
	resp := call[*kmsg.FetchResponse](d, inSession(fetchRequest(parts...), 0, sessionEpochInitial), version)
	wantZero(d.t, resp.ErrorCode)
	wantLen(d.t, partitionsOf(resp), len(parts), "a full reply names every partition")
	wantLess(d.t, 0, resp.SessionID)
	return resp.SessionID
}

// next is an incremental request; parts are what the client changes.
func (d *dataBroker) next(version int16, id, epoch int32, parts ...fetchOf) *kmsg.FetchResponse {
	d.t.Helper()
	return call[*kmsg.FetchResponse](d, inSession(fetchRequest(parts...), id, epoch), version)
}

func emptyParts(topic string, n int) []fetchOf {
	parts := make([]fetchOf, n)
	for p := range parts {
		parts[p] = from(topic, int32(p), 0)
	}
	return parts
}

// The cost of an incremental fetch follows the partitions with news, not those in the session.
func TestSessionReadsOnlyWhatChanged(t *testing.T) {
	const partitions = 5000
	d := newDataBroker(t, nil)
	d.createTopic("orders", partitions)
	id := d.openSession(12, emptyParts("orders", partitions)...)
	wantEqual(t, partitions, d.reads())

	before := d.reads()
	resp := d.next(12, id, 1)
	wantZero(t, resp.ErrorCode)
	wantLen(t, resp.Topics, 0)
	wantEqual(t, id, resp.SessionID)
	wantEqual(t, before, d.reads(), "nothing has changed, nothing is read")

	for _, p := range []int32{7, 4242} {
		d.produce(at{topic: "orders", partition: p}, d.batchOf(1, 10))
	}
	got := partitionsOf(d.next(12, id, 2))
	wantEqual(t, before+2, d.reads())
	wantLen(t, got, 2)
	wantEqual(t, [][2]int64{{0, 0}}, offsetsIn(t, got[at{topic: "orders", partition: 7}].RecordBatches))

	// A client that does not move its position gets the same data again, as in Kafka; here 4242 has been consumed.
	got = partitionsOf(d.next(12, id, 3, from("orders", 4242, 1)))
	wantLen(t, got, 1)
	wantEqual(t, [][2]int64{{0, 0}}, offsetsIn(t, got[at{topic: "orders", partition: 7}].RecordBatches))

	before = d.reads()
	wantLen(t, d.next(12, id, 4, from("orders", 7, 1)).Topics, 0)
	wantEqual(t, before+1, d.reads(), "only the partition that the client has moved is read")
	wantLen(t, d.next(12, id, 5).Topics, 0)
	wantEqual(t, before+1, d.reads())
}

// 1,000 consumers must cost two requests a second each and not one look at a partition.
func TestIdleSessionsWakeAtMaxWaitOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions, partitions, seconds = 20, 50, 10
		d := newDataBroker(t, nil)
		d.createTopic("orders", partitions)
		done := make(chan int, sessions)
		began := time.Now()
		for range sessions {
			go func() {
				id := d.openSession(12, emptyParts("orders", partitions)...)
				fetches := 0
				for time.Since(began) < seconds*time.Second {
					fetches++
					resp := call[*kmsg.FetchResponse](d, waiting(inSession(fetchRequest(), id, int32(fetches)), 500*time.Millisecond, 1), 12)
					if resp.ErrorCode != 0 || len(resp.Topics) != 0 {
						fetches = -1
						break
					}
				}
				done <- fetches
			}()
		}
		for range sessions {
			wantEqual(t, 2*seconds, <-done)
		}
		wantEqual(t, sessions*partitions, d.reads(), "the first, full requests only")
	})
}

func TestSessionReportsOnlyChanges(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2)
	d.produce(at{topic: "orders"}, d.batchOf(10, 10))
	id := d.openSession(12, from("orders", 0, 10), from("orders", 1, 0))

	// A start offset that moved is reported, once.
	wantZero(t, d.deleteRecords(at{topic: "orders"}, 5).ErrorCode)
	got := partitionsOf(d.next(12, id, 1))
	wantLen(t, got, 1)
	wantInt(t, 5, got[at{topic: "orders"}].LogStartOffset)
	wantLen(t, d.next(12, id, 2).Topics, 0)

	// A new position alone is not.
	wantLen(t, d.next(12, id, 3, fetchOf{at: at{topic: "orders"}, offset: 10, maxBytes: 10}).Topics, 0)

	// Errors are reported until they are gone.
	for epoch := int32(4); epoch < 6; epoch++ {
		got = partitionsOf(d.next(12, id, epoch, from("orders", 0, 99)))
		wantEqual(t, kerr.OffsetOutOfRange.Code, got[at{topic: "orders"}].ErrorCode)
	}
	got = partitionsOf(d.next(12, id, 6))
	wantEqual(t, kerr.OffsetOutOfRange.Code, got[at{topic: "orders"}].ErrorCode)
	got = partitionsOf(d.next(12, id, 7, from("orders", 0, 10)))
	wantZero(t, got[at{topic: "orders"}].ErrorCode)
	wantInt(t, 10, got[at{topic: "orders"}].HighWatermark)
	wantLen(t, d.next(12, id, 8).Topics, 0)
}

func TestSessionForgetsAndAdds(t *testing.T) {
	d := newDataBroker(t, nil)
	topic := d.createTopic("orders", 3)
	id := d.openSession(13, fetchOf{at: at{id: topic.id}}, fetchOf{at: at{id: topic.id, partition: 1}})

	req := inSession(fetchRequest(fetchOf{at: at{id: topic.id, partition: 2}}), id, 1)
	forgotten := kmsg.NewFetchRequestForgottenTopic()
	forgotten.TopicID, forgotten.Partitions = topic.id, []int32{0, 77}
	req.ForgottenTopics = append(req.ForgottenTopics, forgotten)
	resp := call[*kmsg.FetchResponse](d, req, 13)
	wantZero(t, resp.ErrorCode)
	wantLen(t, partitionsOf(resp), 1, "the new partition is reported")

	for p := range int32(3) {
		d.produce(at{id: topic.id, partition: p}, d.batchOf(1, 10))
	}
	got := partitionsOf(d.next(13, id, 2))
	wantLen(t, got, 2)
	wantZero(t, len(got[at{id: topic.id}].RecordBatches))

	// It is not told any more what happens to the forgotten one.
	d.produce(at{id: topic.id}, d.batchOf(1, 10))
	wantLen(t, d.fetches.sessions.mu.byID[id].watch.Take(nil), 0)

	// A session without partitions ends.
	req = inSession(fetchRequest(), id, 3)
	forgotten.Partitions = []int32{1, 2}
	req.ForgottenTopics = []kmsg.FetchRequestForgottenTopic{forgotten}
	resp = call[*kmsg.FetchResponse](d, req, 13)
	wantZero(t, resp.ErrorCode)
	wantZero(t, resp.SessionID)
	wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(13, id, 4).ErrorCode)
	wantZero(t, testutil.ToFloat64(d.fetches.m.sessionPartitions))
}

func TestSessionErrors(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 1)
	id := d.openSession(12, from("orders", 0, 0))
	for name, test := range map[string]struct {
		version   int16
		id, epoch int32
		code      int16
	}{
		"unknown id":     {12, id ^ 1, 1, kerr.FetchSessionIDNotFound.Code},
		"no id":          {12, 0, 1, kerr.FetchSessionIDNotFound.Code},
		"epoch ahead":    {12, id, 2, kerr.InvalidFetchSessionEpoch.Code},
		"epoch negative": {12, id, -2, kerr.InvalidFetchSessionEpoch.Code},
		"topic ids":      {13, id, 1, kerr.FetchSessionTopicIDError.Code},
	} {
		resp := call[*kmsg.FetchResponse](d, inSession(fetchRequest(), test.id, test.epoch), test.version)
		wantEqual(t, test.code, resp.ErrorCode, name)
		wantLen(t, resp.Topics, 0, name)
		wantZero(t, resp.SessionID, name)
	}
	wantZero(t, d.next(12, id, 1).ErrorCode, "errors leave the session as it was")
	wantEqual(t, kerr.InvalidFetchSessionEpoch.Code, d.next(12, id, 1).ErrorCode)
}

func TestSessionEndsByItsClient(t *testing.T) {
	for name, epoch := range map[string]int32{"closed": sessionEpochFinal, "replaced": sessionEpochInitial} {
		t.Run(name, func(t *testing.T) {
			d := newDataBroker(t, nil)
			d.createTopic("orders", 1)
			id := d.openSession(12, from("orders", 0, 0))
			resp := call[*kmsg.FetchResponse](d, inSession(fetchRequest(from("orders", 0, 0)), id, epoch), 12)
			wantZero(t, resp.ErrorCode)
			wantLen(t, partitionsOf(resp), 1)
			wantEqual(t, epoch == sessionEpochInitial, resp.SessionID != 0)
			wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, id, 1).ErrorCode)
		})
	}
}

func TestSessionEpochWraps(t *testing.T) {
	wantInt(t, 2, nextSessionEpoch(1))
	wantInt(t, 1, nextSessionEpoch(math.MaxInt32))
}

func TestSessionOfDeletedTopic(t *testing.T) {
	d := newDataBroker(t, nil)
	byName, byID := d.createTopic("orders", 1), d.createTopic("events", 1)
	for _, topic := range []*topic{byName, byID} {
		d.produce(at{topic: topic.name}, d.batchOf(10, 10))
	}
	nameSession := d.openSession(12, from("orders", 0, 10))
	idSession := d.openSession(13, fetchOf{at: at{id: byID.id}, offset: 10})

	d.mustDelete(byName.name)
	d.mustDelete(byID.name)
	for epoch := int32(1); epoch < 3; epoch++ {
		wantEqual(t, kerr.UnknownTopicOrPartition.Code, d.next(12, nameSession, epoch).Topics[0].Partitions[0].ErrorCode)
		wantEqual(t, kerr.UnknownTopicID.Code, d.next(13, idSession, epoch).Topics[0].Partitions[0].ErrorCode)
	}

	// Made again: the name means the new topic, where the old position is out of range; the id stays unknown.
	d.createTopic("orders", 1)
	d.createTopic("events", 1)
	wantEqual(t, kerr.OffsetOutOfRange.Code, d.next(12, nameSession, 3).Topics[0].Partitions[0].ErrorCode)
	wantEqual(t, kerr.UnknownTopicID.Code, d.next(13, idSession, 3).Topics[0].Partitions[0].ErrorCode)
	p := d.next(12, nameSession, 4, from("orders", 0, 0)).Topics[0].Partitions[0]
	wantZero(t, p.ErrorCode)
	wantZero(t, p.HighWatermark)

	// The session watches the new topic.
	d.produce(at{topic: "orders"}, d.batchOf(1, 10))
	wantEqual(t, [][2]int64{{0, 0}}, offsetsIn(t, d.next(12, nameSession, 5).Topics[0].Partitions[0].RecordBatches))
}

// A topic that is deleted and made again between two fetches is noticed although there is no moment of absence.
func TestSessionOfRecreatedTopic(t *testing.T) {
	d := newDataBroker(t, nil)
	old := d.createTopic("orders", 1)
	id := d.openSession(12, from("orders", 0, 0))
	d.mustDelete(old.name)
	d.createTopic("orders", 1)
	d.produce(at{topic: "orders"}, d.batchOf(3, 10))
	got := partitionsOf(d.next(12, id, 1))
	wantEqual(t, [][2]int64{{0, 2}}, offsetsIn(t, got[at{topic: "orders"}].RecordBatches))
}

func TestDeletedTopicWakesFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		topic := d.createTopic("orders", 1)
		done := d.fetchInBackground(waiting(fetchRequest(fetchOf{at: at{id: topic.id}}), time.Minute, 1), 13)
		synctest.Wait()
		d.mustDelete(topic.name)
		wantEqual(t, kerr.UnknownTopicID.Code, (<-done).Topics[0].Partitions[0].ErrorCode)
	})
}

func TestSessionSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, func(o *dataOptions) { o.broker.FetchSessionSlots = 2 })
		d.createTopic("orders", 3)
		full := func(parts int) int32 {
			return call[*kmsg.FetchResponse](d, inSession(fetchRequest(emptyParts("orders", parts)...), 0, sessionEpochInitial), 12).SessionID
		}
		first, second := full(1), full(2)
		wantNotZero(t, first)
		wantNotZero(t, second)
		wantZero(t, full(3), "no slot is free, and the sessions are new")

		// A session that has had its slot for a while gives way to a larger one, though it is in use.
		time.Sleep(sessionIdleEviction)
		wantZero(t, d.next(12, first, 1).ErrorCode)
		wantZero(t, d.next(12, second, 1).ErrorCode)
		time.Sleep(time.Second)
		wantZero(t, full(1), "not to one of the same size")
		third := full(3)
		wantNotZero(t, third)
		wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, first, 2).ErrorCode)
		wantZero(t, d.next(12, second, 2).ErrorCode)
		wantZero(t, d.next(12, third, 1).ErrorCode)

		// Idle sessions give way to anyone.
		time.Sleep(sessionIdleEviction + time.Second)
		wantNotZero(t, full(1))
		wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, second, 3).ErrorCode)
		wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, third, 2).ErrorCode)
		wantInt(t, 3, testutil.ToFloat64(d.fetches.m.sessionEvictions))
		wantInt(t, 1, testutil.ToFloat64(d.fetches.m.sessions))
		wantInt(t, 1, testutil.ToFloat64(d.fetches.m.sessionPartitions))
	})
}

func TestSessionPartitionsAreBounded(t *testing.T) {
	d := newDataBroker(t, nil)
	d.fetches.sessions.maxPartitions = 4
	d.createTopic("orders", 9)
	id := d.openSession(12, emptyParts("orders", 3)...)
	resp := call[*kmsg.FetchResponse](d, inSession(fetchRequest(emptyParts("orders", 2)...), 0, sessionEpochInitial), 12)
	wantZero(t, resp.ErrorCode)
	wantZero(t, resp.SessionID, "refused: the client goes on with full requests")
	wantLen(t, partitionsOf(resp), 2)

	resp = d.next(12, id, 1, emptyParts("orders", 5)...)
	wantEqual(t, kerr.FetchSessionIDNotFound.Code, resp.ErrorCode)
	wantZero(t, testutil.ToFloat64(d.fetches.m.sessionPartitions))
}

// A session that is removed while a fetch uses it serves that fetch to its end.
func TestSessionRemovedWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 1)
		id := d.openSession(12, from("orders", 0, 0))
		done := d.fetchInBackground(waiting(inSession(fetchRequest(), id, 1), time.Minute, 1), 12)
		synctest.Wait()
		wantEqual(t, kerr.InvalidFetchSessionEpoch.Code, d.next(12, id, 2).ErrorCode, "in use by another connection")
		call[*kmsg.FetchResponse](d, inSession(fetchRequest(), id, sessionEpochFinal), 12)
		wantLen(t, done, 0)
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		wantEqual(t, [][2]int64{{0, 0}}, offsetsIn(t, (<-done).Topics[0].Partitions[0].RecordBatches))
		wantZero(t, testutil.ToFloat64(d.fetches.m.sessions))
	})
}

// A client whose connection dies may come back for its session. What the lost reply held must not be lost with it: the
// session is gone, and the client starts over.
func TestSessionEndsWithALostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.createTopic("orders", 2)
		id := d.openSession(12, emptyParts("orders", 2)...)
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		reply, err := d.start(waiting(inSession(fetchRequest(), id, 1), time.Minute, 1000), 12)
		wantNoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := reply(ctx); done <- err }()
		synctest.Wait()
		cancel()
		wantErrorIs(t, <-done, context.Canceled)
		wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, id, 2).ErrorCode)
		wantZero(t, testutil.ToFloat64(d.fetches.m.sessionPartitions))
	})
}

// A session that ends, or loses its slot, is told no more news: streams would notify clients long gone for ever.
func TestSessionClosesItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, func(o *dataOptions) { o.broker.FetchSessionSlots = 2 })
		d.createTopic("orders", 2)
		open := func() *fetchSession {
			return d.fetches.sessions.mu.byID[d.openSession(12, emptyParts("orders", 2)...)]
		}
		closed, evicted := open(), open()
		call[*kmsg.FetchResponse](d, inSession(fetchRequest(), closed.id, sessionEpochFinal), 12)
		time.Sleep(sessionIdleEviction + time.Second)
		alive := open()
		d.produce(at{topic: "orders"}, d.batchOf(1, 10))
		for s, news := range map[*fetchSession]int{closed: 0, evicted: 0, alive: 1} {
			wantLen(t, s.watch.Take(nil), news)
		}
	})
}

// The queue against a plain list, under random operations.
func TestPartitionQueue(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			all := make([]*fetchPartition, 20)
			for i := range all {
				all[i] = &fetchPartition{watchKey: i}
			}
			var q partitionQueue
			var model []*fetchPartition
			for range 2000 {
				i := rng.IntN(len(all))
				switch rng.IntN(6) {
				case 0, 1, 2:
					q.push(all[i])
					if !slices.Contains(model, all[i]) {
						model = append(model, all[i])
					}
				case 3:
					var want *fetchPartition
					if len(model) > 0 {
						want, model = model[0], model[1:]
					}
					wantPopped(t, &q, want)
				case 4: // pop some and put them back
					var taken []*fetchPartition
					for range min(rng.IntN(4), len(model)) {
						taken = append(taken, q.pop())
					}
					q.unpop(taken)
				case 5:
					q.drop(all[i])
					model = slices.DeleteFunc(model, func(p *fetchPartition) bool { return p == all[i] })
					all[i] = &fetchPartition{watchKey: i}
				}
				wantEqual(t, len(model), q.len())
			}
			for _, want := range model {
				wantPopped(t, &q, want)
			}
			wantPopped(t, &q, nil)
		})
	}
}

func wantPopped(t *testing.T, q *partitionQueue, want *fetchPartition) {
	t.Helper()
	if got := q.pop(); got != want {
		t.Fatalf("popped %p, want %p", got, want)
	}
}

// A client that forgets and adds partitions for ever without reading them must not make the queue grow.
func TestPartitionQueueIsBounded(t *testing.T) {
	var q partitionQueue
	for range 10 {
		q.push(&fetchPartition{})
	}
	for range 10_000 {
		p := &fetchPartition{}
		q.push(p)
		q.drop(p)
	}
	wantEqual(t, 10, q.len())
	wantLess(t, len(q.items), 30)
}

func BenchmarkSessionIdlePartitions(b *testing.B) {
	for _, partitions := range []int{50, 5000} {
		b.Run(fmt.Sprint(partitions), func(b *testing.B) {
			d := newDataBroker(b, nil)
			d.createTopic("orders", int32(partitions))
			id := d.openSession(12, emptyParts("orders", partitions)...)
			req := inSession(fetchRequest(), id, 0)
			b.ReportAllocs()
			for b.Loop() {
				req.SessionEpoch = nextSessionEpoch(req.SessionEpoch)
				if resp, err := d.fetch(b.Context(), req, nil, nil); err != nil || resp.(*kmsg.FetchResponse).ErrorCode != 0 {
					b.Fatal(resp, err)
				}
			}
		})
	}
}

// A client cannot fill the cache with partitions that do not exist, or with one session.
func TestSessionMustDeserveItsSlot(t *testing.T) {
	d := newDataBroker(t, nil)
	d.fetches.sessions.maxPerSession = 3
	topic := d.createTopic("orders", 5)
	session := func(version int16, parts ...fetchOf) int32 {
		resp := call[*kmsg.FetchResponse](d, inSession(fetchRequest(parts...), 0, sessionEpochInitial), version)
		wantZero(t, resp.ErrorCode)
		wantLen(t, partitionsOf(resp), len(parts), "it is answered all the same")
		return resp.SessionID
	}
	wantZero(t, session(12, from("missing", 0, 0)))
	wantZero(t, session(12, from("orders", 0, 0), from("orders", 5, 0)))
	wantZero(t, session(13, fetchOf{at: at{id: topicID{1}}}))
	wantZero(t, session(12, emptyParts("orders", 4)...))
	wantZero(t, testutil.ToFloat64(d.fetches.m.sessionPartitions))
	wantNotZero(t, session(13, fetchOf{at: at{id: topic.id}}))

	id := session(12, emptyParts("orders", 3)...)
	wantNotZero(t, id)
	wantZero(t, d.next(12, id, 1, from("orders", 2, 0)).ErrorCode)
	wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, id, 2, from("orders", 3, 0)).ErrorCode, "it has grown too large")
	wantInt(t, 1, testutil.ToFloat64(d.fetches.m.sessionPartitions))
}

// beginSession starts a session on a connection and leaves it idle. The id is 0 if it got no slot.
func (d *dataBroker) beginSession(gone <-chan struct{}, parts ...fetchOf) int32 {
	d.t.Helper()
	req := inSession(fetchRequest(parts...), 0, sessionEpochInitial)
	req.SetVersion(12)
	resp, err := d.fetch(d.t.Context(), req, gone, nil)
	wantNoError(d.t, err)
	return resp.(*kmsg.FetchResponse).SessionID
}

// When the cache is full, sessions without a connection give way at once, before those that are idle for a while.
func TestSessionsGiveWayWhenShort(t *testing.T) {
	for name, limit := range map[string]func(*fetchSessions){
		"slots":      func(c *fetchSessions) { c.slots = 3 },
		"partitions": func(c *fetchSessions) { c.maxPartitions = 6 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDataBroker(t, nil)
				d.createTopic("orders", 2)
				limit(d.fetches.sessions)
				parts := emptyParts("orders", 2)
				gone := make(chan struct{})
				idle := d.beginSession(nil, parts...)
				time.Sleep(time.Second)
				orphan, busy := d.beginSession(gone, parts...), d.beginSession(nil, parts...)
				wantNotZero(t, busy)
				time.Sleep(shortIdleEviction - time.Second)
				done := d.fetchInBackground(waiting(inSession(fetchRequest(), busy, 1), 10*time.Minute, 1), 12)
				synctest.Wait()
				wantZero(t, d.beginSession(nil, parts...), "nobody has been idle for long enough")

				close(gone)
				time.Sleep(time.Millisecond)
				second := d.beginSession(nil, parts...)
				wantNotZero(t, second)
				wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, orphan, 1).ErrorCode)

				third := d.beginSession(nil, parts...)
				wantNotZero(t, third)
				wantEqual(t, kerr.FetchSessionIDNotFound.Code, d.next(12, idle, 1).ErrorCode)
				wantZero(t, d.next(12, second, 1).ErrorCode)
				wantZero(t, d.next(12, third, 1).ErrorCode)

				// One that is in use keeps its slot.
				time.Sleep(sessionIdleEviction + time.Second)
				wantNotZero(t, d.beginSession(nil, parts...))
				d.produce(at{topic: "orders"}, d.batchOf(1, 10))
				wantEqual(t, busy, (<-done).SessionID)
				wantZero(t, d.next(12, busy, 2).ErrorCode)
			})
		})
	}
}
