package broker

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// tagged is a Produce request for one partition with tags.
func (d *dataBroker) tagged(where at, batch []byte, tags func(*kmsg.Tags)) *kmsg.ProduceRequest {
	req := produceRequest(acksAll, where, batch)
	tags(&req.Topics[0].Partitions[0].UnknownTags)
	return req
}

func expecting(offset int64) func(*kmsg.Tags) {
	return func(tags *kmsg.Tags) { ext.SetInt64(tags, ext.TagExpectedOffset, offset) }
}

// produceTagged sends it and returns the answer, and the next offset in its tag, -1 if there is none.
func (d *dataBroker) produceTagged(req *kmsg.ProduceRequest) (p kmsg.ProduceResponseTopicPartition, next int64) {
	d.t.Helper()
	p = call[*kmsg.ProduceResponse](d, req, 12).Topics[0].Partitions[0]
	next, ok, err := ext.Int64(&p.UnknownTags, ext.TagNextOffset)
	wantNoError(d.t, err)
	if !ok {
		next = -1
	}
	return p, next
}

// A request that writes to many streams makes those that are missing in few transactions, and answers for each by itself.
func TestProduceMakesManyStreams(t *testing.T) {
	const streams = 2*streamsPerTransaction + 10
	d := newDataBroker(t, nil)
	call[*kmsg.ProduceResponse](d, produceRequest(acksAll, at{topic: "users/3"}, d.batchOf(1, 10)), 12)
	before := d.store.Stats().AppendNumber
	req := produceRequest(acksAll, at{topic: "users/0"}, d.batchOf(1, 10))
	add := func(name string) {
		req.Topics = append(req.Topics, produceRequest(acksAll, at{topic: name}, d.batchOf(1, 10)).Topics...)
	}
	for i := 1; i < streams; i++ {
		add(fmt.Sprintf("users/%d", i))
	}
	add("users/0") // again
	add("_own/x")
	add("orders")
	resp := call[*kmsg.ProduceResponse](d, req, 12)
	for i, topic := range resp.Topics[:streams] {
		want := int64(0)
		if i == 3 {
			want = 1 // it was there
		}
		p := topic.Partitions[0]
		wantEqual(t, [2]int64{int64(p.ErrorCode), p.BaseOffset}, [2]int64{0, want}, "%s", topic.Topic)
	}
	last := resp.Topics[streams:]
	wantEqual(t, last[0].Partitions[0].BaseOffset, int64(1), "a stream named twice")
	wantEqual(t, last[1].Partitions[0].ErrorCode, kerr.InvalidTopicException.Code, "a name of the broker's own")
	wantEqual(t, last[2].Partitions[0].ErrorCode, kerr.UnknownTopicOrPartition.Code, "a topic")
	wantEqual(t, d.store.Stats().AppendNumber-before, uint64(streams+1+3), "appends, and transactions that made streams")
}

// An append with an expected offset gets exactly that offset, or is refused with the real one.
func TestProduceExpectedOffset(t *testing.T) {
	d := newDataBroker(t, nil)
	stream := at{topic: "sessions/alice"}
	for _, step := range []struct {
		expected   int64
		base, next int64
		code       int16
	}{
		{3, -1, 0, ext.CodeConflict}, // the stream is made, and is empty
		{0, 0, -1, 0},
		{0, -1, 2, ext.CodeConflict},
		{3, -1, 2, ext.CodeConflict},
		{2, 2, -1, 0},
		{-2, -1, -1, kerr.InvalidRequest.Code},
	} {
		p, next := d.produceTagged(d.tagged(stream, d.batchOf(2, 10), expecting(step.expected)))
		wantEqual(t, [3]int64{int64(step.code), step.base, step.next}, [3]int64{int64(p.ErrorCode), p.BaseOffset, next}, "expecting %d", step.expected)
	}
	wantEqual(t, int64(4), d.listOffset("sessions/alice", timestampLatest).Offset)

	short := d.tagged(stream, d.batchOf(1, 10), func(tags *kmsg.Tags) { tags.Set(ext.TagExpectedOffset, []byte{1}) })
	p, _ := d.produceTagged(short)
	wantEqual(t, kerr.InvalidRequest.Code, p.ErrorCode, "a tag that ends early")

	// A retry of an idempotent append is the same append, although the offset is taken by now: by itself.
	batch := makeBatch(t, kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: 77}}, valuesAt(time.Now(), 1, 10)...)
	for range 2 {
		p, _ := d.produceTagged(d.tagged(stream, slices.Clone(batch), expecting(4)))
		wantEqual(t, [2]int64{0, 4}, [2]int64{int64(p.ErrorCode), p.BaseOffset})
	}

	// Topics can be appended to like that as well.
	d.createTopic("orders", 1)
	p, next := d.produceTagged(d.tagged(at{topic: "orders"}, d.batchOf(1, 10), expecting(1)))
	wantEqual(t, [2]int64{int64(ext.CodeConflict), 0}, [2]int64{int64(p.ErrorCode), next})
}

// A batch may be its stream's last. Whoever writes then is told where the stream ends; reading goes on.
func TestProduceCloses(t *testing.T) {
	d := newDataBroker(t, nil)
	stream := at{topic: "jobs/7"}
	closing := func(tags *kmsg.Tags) { tags.Set(ext.TagClose, nil) }
	p, _ := d.produceTagged(d.tagged(stream, d.batchOf(3, 10), closing))
	wantZero(t, p.ErrorCode)
	for _, tags := range []func(*kmsg.Tags){closing, expecting(3), func(*kmsg.Tags) {}} {
		p, next := d.produceTagged(d.tagged(stream, d.batchOf(1, 10), tags))
		wantEqual(t, [2]int64{int64(ext.CodeClosed), 3}, [2]int64{int64(p.ErrorCode), next})
	}
	if kerr.IsRetriable(kerr.ErrorForCode(ext.CodeClosed)) || kerr.IsRetriable(kerr.ErrorForCode(ext.CodeConflict)) {
		t.Error("clients would try again for ever")
	}
	got := partitionsOf(call[*kmsg.FetchResponse](d, fetchRequest(from("jobs/7", 0, 0)), 12))[stream]
	wantEqual(t, [][2]int64{{0, 2}}, offsetsIn(t, got.RecordBatches))

	d.createTopic("orders", 1)
	p, _ = d.produceTagged(d.tagged(at{topic: "orders"}, d.batchOf(1, 10), closing))
	wantEqual(t, kerr.InvalidRequest.Code, p.ErrorCode, "a topic cannot be closed")
}

// One request may append to very many streams, which are made on the way, with one wait for all of them; each has its own
// result.
func TestProduceManyStreams(t *testing.T) {
	const streams = 1000
	synctest.Test(t, func(t *testing.T) {
		const flush = time.Second
		d := newDataBroker(t, func(o *dataOptions) {
			o.store.Durability, o.store.FlushInterval = streamstore.Remote, flush
		})
		req := produceRequest(acksAll, at{topic: "users/0"}, d.batchOf(1, 10))
		for i := 1; i < streams; i++ {
			addProduce(req, at{topic: fmt.Sprintf("users/%d", i)}, d.batchOf(i%3+1, 10))
		}
		ext.SetInt64(&req.Topics[500].Partitions[0].UnknownTags, ext.TagExpectedOffset, 9)
		began := time.Now()
		resp := call[*kmsg.ProduceResponse](d, req, 12)
		wantAtMost(t, time.Since(began), 2*flush, "the request waits for each stream by itself")
		wantLen(t, resp.Topics, streams)
		for i, rt := range resp.Topics {
			code, base := int16(0), int64(0)
			if i == 500 {
				code, base = ext.CodeConflict, -1
			}
			p := rt.Partitions[0]
			wantEqual(t, [2]int64{int64(code), base}, [2]int64{int64(p.ErrorCode), p.BaseOffset}, rt.Topic)
		}
		wantEqual(t, int64(3), d.listOffset("users/998", timestampLatest).Offset)
	})
}

// A request for more streams than are read ahead at a time appends to each in request order, whether they are in memory
// or not, and a repeated request of a producer is recognised in each.
func TestProduceManyColdStreams(t *testing.T) {
	const streams = 2*readAhead + 100
	m := newMachine()
	// produce appends two records to each stream, to the first one twice, and wants them at an offset.
	produce := func(sequence int32, offset int64) {
		d := openDataBroker(t, m, nil)
		defer d.stop()
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = acksAll, 30_000
		for i := range streams + 1 {
			producer := kafkaproto.ProducerState{ID: 7, Sequence: sequence}
			if i%streams == 0 {
				producer.Sequence *= 2
			}
			if i == streams {
				producer.Sequence += 2
			}
			batch := makeBatch(t, kafkaproto.BatchOptions{Producer: &producer}, kafkaproto.Record{Value: []byte("a")}, kafkaproto.Record{Value: []byte("b")})
			addProduce(req, at{topic: fmt.Sprintf("users/%d", i%streams)}, batch)
		}
		resp := call[*kmsg.ProduceResponse](d, req, 12)
		wantLen(t, resp.Topics, streams+1)
		for i, rt := range resp.Topics {
			want := offset
			if i%streams == 0 {
				want *= 2
			}
			if i == streams {
				want += 2
			}
			wantEqual(t, [2]int64{0, want}, [2]int64{int64(rt.Partitions[0].ErrorCode), rt.Partitions[0].BaseOffset}, "entry %d, %s", i, rt.Topic)
		}
	}
	produce(0, 0)
	produce(2, 2)
	produce(2, 2) // sent again
	produce(4, 4)
}

// All calls are made once, and a panic arrives where it is dealt with.
func TestInParallel(t *testing.T) {
	for _, n := range []int{0, 1, readsEach, 10 * readsEach} {
		called := make([]atomic.Int32, n)
		inParallel(n, func(i int) { called[i].Add(1) })
		for i := range called {
			wantEqual(t, int32(1), called[i].Load(), "call %d of %d", i, n)
		}
	}
	defer func() { wantEqual(t, any("stop"), recover()) }()
	inParallel(10*readsEach, func(i int) {
		if i == 5*readsEach {
			panic("stop")
		}
	})
}

// Settings of a stream are configs: at its creation, in descriptions and in changes.
func TestStreamSettings(t *testing.T) {
	d := newDataBroker(t, nil)
	d.mustCreate("jobs/1", 1, ext.ConfigTTL, "60000", ext.ConfigContentType, "application/json", configRetentionMs, "5000")
	want := streamstore.Settings{Retention: 5 * time.Second, RetentionBytes: -1, TTL: time.Minute, ContentType: "application/json"}
	wantEqual(t, want, d.settingsOf("jobs/1", 0))
	wantEqual(t, map[string]string{ext.ConfigTTL: "60000", ext.ConfigContentType: "application/json", configRetentionMs: "5000"}, d.overridesOf("jobs/1"))

	d.mustAlter("jobs/1", nil, ext.ConfigTTL, "-1", ext.ConfigContentType, "text/plain")
	want.TTL, want.ContentType = 0, "text/plain"
	wantEqual(t, want, d.settingsOf("jobs/1", 0))

	d.mustAlter("jobs/1", nil, ext.ConfigClosed, "true")
	d.mustAlter("jobs/1", kafkaproto.ErrInvalidConfig, ext.ConfigClosed, "false")
	d.mustAlter("jobs/1", nil, configRetentionMs, "6000")
	wantEqual(t, "true", d.overridesOf("jobs/1")[ext.ConfigClosed], "other configs change without opening it")
	p, next := d.produceTagged(produceRequest(acksAll, at{topic: "jobs/1"}, d.batchOf(1, 10)))
	wantEqual(t, [2]int64{int64(ext.CodeClosed), 0}, [2]int64{int64(p.ErrorCode), next})
	// What replaces all configs leaves it closed as well.
	replace := kmsg.NewPtrAlterConfigsRequest()
	r := kmsg.NewAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, "jobs/1"
	replace.Resources = append(replace.Resources, r)
	wantZero(t, call[*kmsg.AlterConfigsResponse](d, replace, 2).Resources[0].ErrorCode)
	wantEqual(t, map[string]string{ext.ConfigClosed: "true"}, d.overridesOf("jobs/1"))

	for _, bad := range [][2]string{{ext.ConfigTTL, "0"}, {ext.ConfigTTL, "soon"}, {ext.ConfigContentType, "größe"}, {ext.ConfigClosed, "true"}, {ext.ConfigClosed, "maybe"}} {
		resp := call[*kmsg.CreateTopicsResponse](d, creating("jobs/2", 1, bad[0], bad[1]), 7)
		wantEqual(t, kerr.InvalidConfig.Code, resp.Topics[0].ErrorCode, "%v", bad)
	}
	resp := call[*kmsg.CreateTopicsResponse](d, creating("orders", 1, ext.ConfigTTL, "5"), 7)
	wantEqual(t, kerr.InvalidConfig.Code, resp.Topics[0].ErrorCode, "topics do not have the configs of streams")
}

// What Kafka's configs do not tell of stays when they are changed, one by one or all.
func TestAlteringKeepsOtherSettings(t *testing.T) {
	d := newDataBroker(t, nil)
	d.mustCreate("jobs/1", 1)
	id, err := d.store.Lookup("jobs/1")
	wantNoError(t, err)
	expires := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	txn := streamstore.NewTxn()
	txn.Reconfigure(id, func(s *streamstore.Settings) error { s.ExpiresAt = expires; return nil })
	_, err = d.store.Commit(t.Context(), txn)
	wantNoError(t, err)
	d.mustAlter("jobs/1", nil, configRetentionMs, "5000")
	info, err := d.store.Describe(id)
	wantNoError(t, err)
	wantEqual(t, 5*time.Second, info.Settings.Retention)
	wantEqual(t, true, info.Settings.ExpiresAt.Equal(expires))
}

// overridesOf returns what DescribeConfigs shows as set.
func (d *dataBroker) overridesOf(name string) map[string]string {
	d.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, name
	req.Resources = append(req.Resources, r)
	resp := call[*kmsg.DescribeConfigsResponse](d, req, 4)
	wantZero(d.t, resp.Resources[0].ErrorCode)
	set := map[string]string{}
	for _, c := range resp.Resources[0].Configs {
		if c.Source == kmsg.ConfigSourceDynamicTopicConfig {
			set[c.Name] = *c.Value
		}
	}
	return set
}

// mustAlter sets configs (name, value, ...) and wants an error, nil for none.
func (d *dataBroker) mustAlter(name string, want *kafkaproto.Error, configs ...string) {
	d.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, name
	for i := 0; i < len(configs); i += 2 {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = configs[i], kmsg.StringPtr(configs[i+1])
		r.Configs = append(r.Configs, c)
	}
	req.Resources = append(req.Resources, r)
	resp := call[*kmsg.IncrementalAlterConfigsResponse](d, req, 1)
	wantCode(d.t, fmt.Sprint(configs), resp.Resources[0].ErrorCode, want)
}

// listing asks for streams under a prefix, page after page.
func (d *dataBroker) listing(prefix string, limit int32) (names []string, pages int) {
	d.t.Helper()
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.UnknownTags.Set(ext.TagPrefix, []byte(prefix))
	req.ResponsePartitionLimit = limit
	for pages = 1; ; pages++ {
		resp := call[*kmsg.DescribeTopicPartitionsResponse](d, req, 0)
		wantAtMost(d.t, len(resp.Topics), int(limit))
		for _, rt := range resp.Topics {
			wantZero(d.t, rt.UnknownTags.Len(), "details that were not asked for")
			names = append(names, *rt.Topic)
		}
		if resp.NextCursor == nil {
			return names, pages
		}
		req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: resp.NextCursor.Topic, Partition: resp.NextCursor.Partition}
	}
}

// Streams are listed by prefix in pages, without the partitions of topics and the broker's own streams.
func TestListStreams(t *testing.T) {
	d := newDataBroker(t, nil)
	d.createTopic("orders", 2000)
	var all []string
	for i := range 25 {
		all = append(all, fmt.Sprintf("users/%02d", i))
	}
	all = append(all, "a/b", "topicsx/y", "topics-/y", "ü/ß", "usersx/1", "^/x", "`/x")
	for _, name := range all {
		d.mustCreate(name, 1)
	}
	_, err := d.store.Ensure(t.Context(), "_own/state", streamstore.DefaultSettings())
	wantNoError(t, err)
	slices.Sort(all)

	for _, limit := range []int32{1, 2, 7, 25, 1000} {
		names, _ := d.listing("", limit)
		wantEqual(t, all, names, "in pages of %d", limit)
		names, pages := d.listing("users/", limit)
		wantLen(t, names, 25)
		wantEqual(t, (25+int(limit)-1)/int(limit), pages)
	}
	for prefix, n := range map[string]int{"users/1": 10, "users": 26, "nobody/": 0, "topics": 2, "topics/": 0, "_": 0, "orders": 0} {
		names, _ := d.listing(prefix, 100)
		wantLen(t, names, n, "under %q", prefix)
	}

	// Behind a name comes what is greater, also when nothing has that name.
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.UnknownTags.Set(ext.TagPrefix, []byte("users/"))
	req.ResponsePartitionLimit = 1
	for after, want := range map[string]string{"users/03": "users/04", "users/03x": "users/04", "a": "users/00"} {
		req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: after + "\x00"}
		wantEqual(t, want, *call[*kmsg.DescribeTopicPartitionsResponse](d, req, 0).Topics[0].Topic)
	}
}

// One request tells offsets and settings of many streams.
func TestListStreamDetails(t *testing.T) {
	d := newDataBroker(t, nil)
	d.mustCreate("jobs/1", 1, ext.ConfigTTL, "60000", ext.ConfigContentType, "application/json", configRetentionBytes, "77")
	d.produce(at{topic: "jobs/1"}, d.batchOf(5, 10))
	d.deleteRecords(at{topic: "jobs/1"}, 2)
	d.mustAlter("jobs/1", nil, ext.ConfigClosed, "true")
	d.produce(at{topic: "jobs/2"}, d.batchOf(1, 10))

	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.UnknownTags.Set(ext.TagDetails, nil)
	req.UnknownTags.Set(ext.TagPrefix, []byte("jobs/"))
	req.ResponsePartitionLimit = 10
	listed := call[*kmsg.DescribeTopicPartitionsResponse](d, req, 0)
	named := kmsg.NewPtrDescribeTopicPartitionsRequest()
	named.UnknownTags.Set(ext.TagDetails, nil)
	named.ResponsePartitionLimit = 10
	for _, name := range []string{"jobs/1", "jobs/2", "jobs/3"} {
		named.Topics = append(named.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: name})
	}
	described := call[*kmsg.DescribeTopicPartitionsResponse](d, named, 0)
	wantEqual(t, kerr.UnknownTopicOrPartition.Code, described.Topics[2].ErrorCode, "a stream that does not exist")
	for _, topics := range [][]kmsg.DescribeTopicPartitionsResponseTopic{listed.Topics[:2], described.Topics[:2]} {
		var got [2]ext.Details
		for i := range got {
			wantZero(t, topics[i].ErrorCode)
			wantNotZero(t, topics[i].TopicID)
			value, _ := ext.Tag(&topics[i].UnknownTags, ext.TagDetails)
			var err error
			got[i], err = ext.DecodeDetails(value)
			wantNoError(t, err)
			wantAtMost(t, time.Since(got[i].Created), time.Minute)
			wantAtMost(t, time.Since(got[i].LastWrite), time.Minute)
			got[i].Created, got[i].LastWrite = time.Time{}, time.Time{}
		}
		wantEqual(t, ext.Details{Start: 2, Next: 5, Retention: -1, RetentionBytes: 77, TTL: time.Minute, Closed: true, ContentType: "application/json"}, got[0])
		wantEqual(t, ext.Details{Start: 0, Next: 1, Retention: -1, RetentionBytes: -1, TTL: -1}, got[1])
	}
}

// Looking at a stream that was not written to does not make it, and a reader gets its first record.
func TestUnwrittenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		const name = "sessions/new"
		stream := at{topic: name}
		for version := int16(4); version <= 11; version++ { // before, replies have no epoch
			for _, timestamp := range []int64{timestampEarliest, timestampLatest} {
				resp := call[*kmsg.ListOffsetsResponse](d, listOffsetsRequest(lookUp{stream, timestamp, -1}), version)
				wantFound(t, resp.Topics[0].Partitions[0], 0, -1)
			}
			resp := call[*kmsg.ListOffsetsResponse](d, listOffsetsRequest(lookUp{stream, 5, -1}), version)
			wantFound(t, resp.Topics[0].Partitions[0], -1, -1)
		}
		got := partitionsOf(call[*kmsg.FetchResponse](d, fetchRequest(from(name, 0, 5)), 12))[stream]
		wantEqual(t, kerr.OffsetOutOfRange.Code, got.ErrorCode, "it has no offset 5")
		resp := call[*kmsg.FetchResponse](d, fetchRequest(fetchOf{at: at{topic: name, partition: 1}}), 12)
		wantEqual(t, kerr.UnknownTopicOrPartition.Code, resp.Topics[0].Partitions[0].ErrorCode, "it has no partition 1")

		id := d.openSession(12, from(name, 0, 0), from("sessions/never", 0, 0))
		waits := []<-chan *kmsg.FetchResponse{
			d.fetchInBackground(waiting(inSession(fetchRequest(), id, 1), time.Hour, 1), 12),            // in a session
			d.fetchInBackground(waiting(fetchRequest(from(name, 0, 0)), time.Hour, 1), 12),              // outside any
			d.fetchInBackground(waiting(fetchRequest(fetchOf{at: stream, epoch: -1}), time.Hour, 1), 4), // before there were any
		}
		synctest.Wait()
		_, err := d.store.Lookup(name)
		wantErrorIs(t, err, streamstore.ErrNoStream, "reading has made the stream")

		d.produce(stream, d.batchOf(1, 10))
		for i, wait := range waits {
			got := partitionsOf(<-wait)
			wantEqual(t, [][2]int64{{0, 0}}, offsetsIn(t, got[stream].RecordBatches), "fetch %d", i)
		}
		// The session goes on as any other, over a deletion too: then the offset is one that the name does not have.
		next := d.fetchInBackground(waiting(inSession(fetchRequest(from(name, 0, 1)), id, 2), time.Hour, 1), 12)
		synctest.Wait()
		d.mustDelete(name)
		wantEqual(t, kerr.OffsetOutOfRange.Code, partitionsOf(<-next)[stream].ErrorCode)
		next = d.fetchInBackground(waiting(inSession(fetchRequest(from(name, 0, 0)), id, 3), time.Hour, 1), 12)
		synctest.Wait()
		d.produce(stream, d.batchOf(2, 10))
		wantEqual(t, [][2]int64{{0, 1}}, offsetsIn(t, partitionsOf(<-next)[stream].RecordBatches))
	})
}

// following is a full request that follows a prefix.
func following(prefix string, fromEnd bool, parts ...fetchOf) *kmsg.FetchRequest {
	req := inSession(fetchRequest(parts...), 0, sessionEpochInitial)
	req.UnknownTags.Set(ext.TagFollow, (&ext.Follow{Prefix: prefix, FromEnd: fromEnd}).Encode())
	return req
}

// followedPart is what a reply says about one stream.
type followedPart struct {
	name     string
	code     int16
	position int64 // -1: not told
	offsets  [][2]int64
}

func followedParts(t testing.TB, resp *kmsg.FetchResponse) (parts []followedPart) {
	t.Helper()
	wantZero(t, resp.ErrorCode)
	for at, p := range partitionsOf(resp) {
		position, ok, err := ext.Int64(&p.UnknownTags, ext.TagPosition)
		wantNoError(t, err)
		if !ok {
			position = -1
		}
		parts = append(parts, followedPart{at.topic, p.ErrorCode, position, offsetsIn(t, p.RecordBatches)})
	}
	slices.SortFunc(parts, func(a, b followedPart) int { return cmp.Compare(a.name, b.name) })
	return parts
}

// One session follows all streams under a prefix, those included that are made, deleted and made again later.
func TestFollowPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		for name, records := range map[string]int{"u/a": 2, "u/b": 3, "v/x": 1, "u/c": 1} {
			d.produce(at{topic: name}, d.batchOf(records, 10))
		}
		d.createTopic("orders", 1)
		d.deleteRecords(at{topic: "u/b"}, 1)
		first := call[*kmsg.FetchResponse](d, following("u/", false, from("u/c", 0, 1)), 12)
		wantEqual(t, []followedPart{{"u/a", 0, 0, [][2]int64{{0, 1}}}, {"u/b", 0, 1, [][2]int64{{0, 2}}}, {"u/c", 0, -1, nil}}, followedParts(t, first))
		id, epoch := first.SessionID, int32(0)
		wantNotZero(t, id)
		// next begins a fetch that tells what was read, and do makes what it waits for.
		next := func(do func(), moved ...fetchOf) []followedPart {
			t.Helper()
			epoch++
			reply := d.fetchInBackground(waiting(inSession(fetchRequest(moved...), id, epoch), time.Hour, 1), 12)
			synctest.Wait()
			do()
			return followedParts(t, <-reply)
		}
		produce := func(name string) func() { return func() { d.produce(at{topic: name}, d.batchOf(1, 10)) } }

		wantEqual(t, []followedPart{{"u/a", 0, -1, [][2]int64{{2, 2}}}}, next(produce("u/a"), from("u/a", 0, 2), from("u/b", 0, 3)))
		wantEqual(t, []followedPart{{"u/new", 0, 0, [][2]int64{{0, 0}}}}, next(produce("u/new"), from("u/a", 0, 3)))
		wantEqual(t, []followedPart{{"u/c", 0, -1, [][2]int64{{1, 1}}}}, next(produce("u/c"), from("u/new", 0, 1)))
		wantEqual(t, []followedPart{{"u/new", kerr.UnknownTopicOrPartition.Code, -1, nil}}, next(func() { d.mustDelete("u/new") }, from("u/c", 0, 2)))
		wantEqual(t, []followedPart{{"u/new", 0, 0, [][2]int64{{0, 0}}}}, next(produce("u/new")))

		// What the client has not read yet is trimmed away.
		wantEqual(t, []followedPart{{"u/a", 0, -1, [][2]int64{{3, 3}}}}, next(produce("u/a"), from("u/new", 0, 1)))
		d.produce(at{topic: "u/a"}, d.batchOf(1, 10))
		d.deleteRecords(at{topic: "u/a"}, 5)
		wantEqual(t, []followedPart{{"u/a", 0, 5, [][2]int64{{5, 5}}}}, next(produce("u/a")))

		// Other streams are not looked at, and nothing is forgotten meanwhile.
		d.produce(at{topic: "v/x"}, d.batchOf(1, 10))
		before := d.reads()
		wantLen(t, next(func() {
			d.produce(at{topic: "v/x"}, d.batchOf(1, 10))
			d.produce(at{topic: "orders"}, d.batchOf(1, 10))
			d.produce(at{topic: "u/d"}, d.batchOf(1, 10))
		}, from("u/a", 0, 6)), 1)
		wantAtMost(t, d.reads()-before, 2)
	})
}

// An offset is one of a certain stream: another one that has its name now is read from its start.
func TestFollowPrefixStreamID(t *testing.T) {
	d := newDataBroker(t, nil)
	d.produce(at{topic: "u/a"}, d.batchOf(2, 10))
	idOf := func(resp *kmsg.FetchResponse) int64 {
		p := partitionsOf(resp)[at{topic: "u/a"}]
		id, ok, err := ext.Int64(&p.UnknownTags, ext.TagStreamID)
		wantNoError(t, err)
		wantEqual(t, true, ok)
		return id
	}
	with := func(id int64, req *kmsg.FetchRequest) *kmsg.FetchRequest {
		ext.SetInt64(&req.Topics[0].Partitions[0].UnknownTags, ext.TagStreamID, id)
		return req
	}
	first := call[*kmsg.FetchResponse](d, following("u/", false), 12)
	old := idOf(first)
	again := call[*kmsg.FetchResponse](d, with(old, following("u/", false, from("u/a", 0, 1))), 12)
	wantEqual(t, []followedPart{{"u/a", 0, -1, [][2]int64{{0, 1}}}}, followedParts(t, again), "the same stream")
	d.mustDelete("u/a")
	d.produce(at{topic: "u/a"}, d.batchOf(3, 10))
	want := []followedPart{{"u/a", 0, 0, [][2]int64{{0, 2}}}}
	other := call[*kmsg.FetchResponse](d, with(old, following("u/", false, from("u/a", 0, 2))), 12)
	wantEqual(t, want, followedParts(t, other), "another one")
	wantEqual(t, true, idOf(other) != old)
	// In a session: the client tells what it has read of the stream before it learns that there is another one.
	inSession := inSession(with(old, fetchRequest(from("u/a", 0, 2))), other.SessionID, 1)
	wantEqual(t, want, followedParts(t, call[*kmsg.FetchResponse](d, inSession, 12)), "in a session")
}

// From the end: what is there when the session begins is not read, what is made later is read from its start. The
// first reply names the position in each stream, so that the client can go on from there in another session.
func TestFollowPrefixFromEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDataBroker(t, nil)
		d.produce(at{topic: "u/a"}, d.batchOf(2, 10))
		d.mustCreate("u/empty", 1)
		first := call[*kmsg.FetchResponse](d, following("u/", true), 12)
		wantEqual(t, []followedPart{{"u/a", 0, 2, nil}, {"u/empty", 0, 0, nil}}, followedParts(t, first))
		reply := d.fetchInBackground(waiting(inSession(fetchRequest(), first.SessionID, 1), time.Hour, 1), 12)
		synctest.Wait()
		d.produce(at{topic: "u/new"}, d.batchOf(1, 10))
		wantEqual(t, []followedPart{{"u/new", 0, 0, [][2]int64{{0, 0}}}}, followedParts(t, <-reply))
	})
}

// A prefix without streams is waited for; outside a session as well.
func TestFollowPrefixWithoutStreams(t *testing.T) {
	for _, epoch := range []int32{sessionEpochInitial, sessionEpochFinal} {
		synctest.Test(t, func(t *testing.T) {
			d := newDataBroker(t, nil)
			reply := d.fetchInBackground(waiting(inSession(following("u/", false), 0, epoch), time.Hour, 1), 12)
			synctest.Wait()
			d.produce(at{topic: "u/a"}, d.batchOf(1, 10))
			resp := <-reply
			wantEqual(t, []followedPart{{"u/a", 0, 0, [][2]int64{{0, 0}}}}, followedParts(t, resp))
			wantEqual(t, epoch == sessionEpochInitial, resp.SessionID != 0)
		})
	}
}

func TestFollowPrefixErrors(t *testing.T) {
	d := newDataBroker(t, nil)
	d.fetches.sessions.maxPerSession = 3
	d.createTopic("orders", 1)
	for i := range 4 {
		d.produce(at{topic: fmt.Sprintf("u/%d", i)}, d.batchOf(1, 10))
	}
	short := inSession(fetchRequest(), 0, 0)
	short.UnknownTags.Set(ext.TagFollow, []byte{0, 9, 'u'})
	for what, test := range map[string]struct {
		req     *kmsg.FetchRequest
		version int16
		want    int16
	}{
		"too many streams":      {following("u/", false), 12, kerr.PolicyViolation.Code},
		"few enough":            {following("u/1", false), 12, 0},
		"by ids":                {following("u/1", false), 13, kerr.InvalidRequest.Code},
		"a stream elsewhere":    {following("u/1", false, from("u/2", 0, 0)), 12, kerr.InvalidRequest.Code},
		"a topic":               {following("", false, from("orders", 0, 0)), 12, kerr.InvalidRequest.Code},
		"a tag that ends early": {short, 12, kerr.InvalidRequest.Code},
	} {
		resp := call[*kmsg.FetchResponse](d, test.req, test.version)
		wantEqual(t, test.want, resp.ErrorCode, what)
	}

	// A session that grows too large ends, and its client is told why when it begins anew.
	resp := call[*kmsg.FetchResponse](d, following("w/", false), 12)
	for i := range 4 {
		d.produce(at{topic: fmt.Sprintf("w/%d", i)}, d.batchOf(1, 10))
	}
	codes := []int16{}
	for epoch := int32(1); epoch <= 2; epoch++ {
		codes = append(codes, d.next(12, resp.SessionID, epoch).ErrorCode)
	}
	wantEqual(t, []int16{0, kerr.FetchSessionIDNotFound.Code}, codes)
	wantEqual(t, kerr.PolicyViolation.Code, call[*kmsg.FetchResponse](d, following("w/", false), 12).ErrorCode)
	wantZero(t, len(d.fetches.sessions.mu.byID)-1, "the session of few streams")
}

func TestApiVersionsAnnouncesExtensions(t *testing.T) {
	d := newDataBroker(t, nil)
	for version := int16(0); version <= 5; version++ {
		resp := call[*kmsg.ApiVersionsResponse](d, kmsg.NewPtrApiVersionsRequest(), version)
		want := int16(ext.Version)
		if version < 3 {
			want = 0 // has no tags
		}
		wantEqual(t, want, ext.AnnouncedVersion(&resp.UnknownTags), "v%d", version)
	}
}
