package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// askMetadata asks for the named topics; no names at all means the null list.
func askMetadata(b *adminBroker, version int16, create bool, names ...string) *kmsg.MetadataResponse {
	b.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = create
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	return ask[*kmsg.MetadataResponse](b, version, req)
}

func topicNames(resp *kmsg.MetadataResponse) (names []string) {
	for _, t := range resp.Topics {
		names = append(names, *t.Topic)
	}
	return names
}

// Version 0 asks for all topics with an empty list; from version 1 that asks for none, and null for all. Broker,
// controller and cluster id are there in any case.
func TestMetadataAllAndNone(t *testing.T) {
	for _, topics := range [][]string{nil, {"a", "b"}} {
		b := newAdminBroker(t, func(o *Options) { o.NodeID, o.Rack = 5, "r1" })
		for _, name := range topics {
			b.mustCreate(name, 1)
		}
		b.mustCreate("dir/stream", 1) // named streams are not among "all topics"
		for version := int16(0); version <= 13; version++ {
			for _, list := range [][]kmsg.MetadataRequestTopic{nil, {}} {
				if version == 0 && list == nil {
					continue // cannot be encoded
				}
				req := kmsg.NewPtrMetadataRequest()
				req.Topics = list
				resp := ask[*kmsg.MetadataResponse](b, version, req)
				what := fmt.Sprintf("v%d, %d topics, null %v", version, len(topics), list == nil)
				want := topics
				if version > 0 && list != nil {
					want = nil
				}
				if got := topicNames(resp); !slices.Equal(got, want) {
					t.Errorf("%s: topics %v, want %v", what, got, want)
				}
				if len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != 5 || resp.Brokers[0].Host != "broker.test" || resp.Brokers[0].Port != 9092 {
					t.Errorf("%s: brokers %+v", what, resp.Brokers)
				}
				if version >= 1 && (resp.ControllerID != 5 || *resp.Brokers[0].Rack != "r1") {
					t.Errorf("%s: controller %d, rack %v", what, resp.ControllerID, resp.Brokers[0].Rack)
				}
				if version >= 2 && *resp.ClusterID != b.ClusterID() {
					t.Errorf("%s: cluster id %v", what, resp.ClusterID)
				}
			}
		}
	}
}

func TestMetadataOfTopic(t *testing.T) {
	b := newAdminBroker(t, nil)
	created := b.mustCreate("orders", 2)
	for version := int16(0); version <= 13; version++ {
		got := askMetadata(b, version, false, "orders").Topics[0]
		if got.ErrorCode != 0 || *got.Topic != "orders" || len(got.Partitions) != 2 || got.IsInternal {
			t.Fatalf("v%d: %+v", version, got)
		}
		if version >= 10 && got.TopicID != created.TopicID {
			t.Errorf("v%d: id %v, want %v", version, got.TopicID, created.TopicID)
		}
		if got.AuthorizedOperations != math.MinInt32 {
			t.Errorf("v%d: operations %d that nobody asked for", version, got.AuthorizedOperations)
		}
		for i, p := range got.Partitions {
			if p.ErrorCode != 0 || p.Partition != int32(i) || p.Leader != 1 || !slices.Equal(p.Replicas, []int32{1}) || !slices.Equal(p.ISR, []int32{1}) || len(p.OfflineReplicas) != 0 {
				t.Errorf("v%d: %+v", version, p)
			}
			if version >= 7 && p.LeaderEpoch != leaderEpoch {
				t.Errorf("v%d: leader epoch %d", version, p.LeaderEpoch)
			}
		}
	}
}

func TestMetadataAnswersEveryTopic(t *testing.T) {
	b := newAdminBroker(t, nil)
	orders := b.mustCreate("orders", 1)
	stream := b.mustCreate("dir/stream", 1)
	req := kmsg.NewPtrMetadataRequest()
	add := func(name string, id [16]byte) {
		rt := kmsg.NewMetadataRequestTopic()
		if rt.TopicID = id; name != "" {
			rt.Topic = &name
		}
		req.Topics = append(req.Topics, rt)
	}
	add("missing", [16]byte{})
	add("orders", [16]byte{})
	add("missing", [16]byte{})
	add("a b", [16]byte{})
	add("", orders.TopicID)
	add("", stream.TopicID)
	add("", [16]byte{9})
	add("", [16]byte{})
	resp := ask[*kmsg.MetadataResponse](b, 12, req)
	want := []struct {
		name string
		id   [16]byte
		err  *kafkaproto.Error
	}{
		{"missing", [16]byte{}, kafkaproto.ErrUnknownTopicOrPartition},
		{"orders", orders.TopicID, nil},
		{"a b", [16]byte{}, kafkaproto.ErrInvalidTopic},
		{"orders", orders.TopicID, nil},
		{"dir/stream", stream.TopicID, nil},
		{"", [16]byte{9}, kafkaproto.ErrUnknownTopicID},
		{"", [16]byte{}, kafkaproto.ErrInvalidRequest},
	}
	if len(resp.Topics) != len(want) {
		t.Fatalf("%d answers, want %d", len(resp.Topics), len(want))
	}
	for i, w := range want {
		got := resp.Topics[i]
		wantCode(t, fmt.Sprint(i, " ", w.name), got.ErrorCode, w.err)
		if (got.Topic == nil) != (w.name == "") || got.Topic != nil && *got.Topic != w.name || got.TopicID != w.id {
			t.Errorf("answer %d names %v %v, want %q %v", i, got.Topic, got.TopicID, w.name, w.id)
		}
	}
	// Before version 12 a topic cannot be asked for by id, and a name in a reply cannot be null.
	early := ask[*kmsg.MetadataResponse](b, 10, req)
	for i, w := range []*kafkaproto.Error{kafkaproto.ErrUnknownTopicOrPartition, nil, kafkaproto.ErrInvalidTopic, kafkaproto.ErrInvalidRequest} {
		wantCode(t, fmt.Sprint("v10 ", i), early.Topics[i].ErrorCode, w)
		if early.Topics[i].Topic == nil {
			t.Errorf("v10 answer %d has no name", i)
		}
	}
}

// A topic is created if the broker and the request both allow it; below version 4 a request always does. A stream is
// created for clients that need its id to write; for others it only looks as if it were there, if it may be made by writing
// to it.
func TestMetadataAutoCreate(t *testing.T) {
	for _, tc := range []struct {
		broker  bool
		version int16
		request bool
		want    *kafkaproto.Error
	}{
		{true, 3, false, nil},
		{true, 4, true, nil},
		{true, 13, true, nil},
		{true, 4, false, kafkaproto.ErrUnknownTopicOrPartition},
		{true, 13, false, kafkaproto.ErrUnknownTopicOrPartition},
		{false, 3, false, kafkaproto.ErrUnknownTopicOrPartition},
		{false, 13, true, kafkaproto.ErrUnknownTopicOrPartition},
	} {
		b := newAdminBroker(t, func(o *Options) { o.AutoCreateTopics, o.DefaultPartitions = tc.broker, 3 })
		resp := askMetadata(b, tc.version, tc.request, "orders", "dir/stream", "a b")
		got := resp.Topics[0]
		wantCode(t, fmt.Sprintf("%+v %s", tc, *got.Topic), got.ErrorCode, tc.want)
		if tc.want == nil && (len(got.Partitions) != 3 || tc.version >= 10 && got.TopicID == [16]byte{}) {
			t.Errorf("%+v: %+v", tc, got)
		}
		stream := resp.Topics[1]
		if tc.broker {
			wantCode(t, fmt.Sprintf("%+v stream", tc), stream.ErrorCode, nil)
			wantLen(t, stream.Partitions, 1)
		} else {
			wantCode(t, fmt.Sprintf("%+v stream", tc), stream.ErrorCode, kafkaproto.ErrUnknownTopicOrPartition)
		}
		needsID := tc.broker && tc.request && tc.version >= 13
		if hasID := stream.TopicID != [16]byte{}; hasID != needsID {
			t.Errorf("%+v: the stream has id %x", tc, stream.TopicID)
		}
		if _, err := b.store.Lookup("dir/stream"); errors.Is(err, streamstore.ErrNoStream) == needsID {
			t.Errorf("%+v: looking up the stream: %v", tc, err)
		}
		wantCode(t, "a b", resp.Topics[2].ErrorCode, kafkaproto.ErrInvalidTopic)
		askMetadata(b, 4, true)
		if n := len(b.topics.load().byName); (n == 1) != (tc.want == nil) {
			t.Errorf("%+v: %d topics", tc, n)
		}
	}
}

func TestMetadataAuthorizedOperations(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 1)
	for version := int16(8); version <= 13; version++ {
		req := kmsg.NewPtrMetadataRequest()
		req.IncludeClusterAuthorizedOperations, req.IncludeTopicAuthorizedOperations = true, true
		resp := ask[*kmsg.MetadataResponse](b, version, req)
		// As a Kafka broker without an authorizer answers.
		if got := resp.Topics[0].AuthorizedOperations; got != 3576 {
			t.Errorf("v%d: topic operations %d, want 3576", version, got)
		}
		if got := resp.AuthorizedOperations; version <= 10 && got != 8096 {
			t.Errorf("v%d: cluster operations %d, want 8096", version, got)
		}
	}
}

func TestDescribeTopicPartitionsPages(t *testing.T) {
	b := newAdminBroker(t, nil)
	counts := map[string]int32{"a": 3, "b": 1, "c": 2}
	for name, n := range counts {
		b.mustCreate(name, n)
	}
	b.mustCreate("dir/stream", 1)
	type part struct {
		topic     string
		partition int32
	}
	var all []part
	for _, name := range []string{"a", "b", "c"} {
		for p := range counts[name] {
			all = append(all, part{name, p})
		}
	}
	for limit := int32(-1); limit <= 7; limit++ {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit = limit
		var got []part
		for pages := 0; ; pages++ {
			resp := ask[*kmsg.DescribeTopicPartitionsResponse](b, 0, req)
			n := 0
			for _, topic := range resp.Topics {
				wantCode(t, *topic.Topic, topic.ErrorCode, nil)
				for _, p := range topic.Partitions {
					got = append(got, part{*topic.Topic, p.Partition})
					if n++; p.LeaderID != 1 || p.LeaderEpoch != leaderEpoch || len(p.ISR) != 1 || len(p.Replicas) != 1 {
						t.Errorf("%+v", p)
					}
				}
			}
			if n > int(max(limit, 1)) {
				t.Errorf("limit %d: a page of %d", limit, n)
			}
			if resp.NextCursor == nil {
				break
			}
			if pages > len(all) {
				t.Fatalf("limit %d: no end", limit)
			}
			req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: resp.NextCursor.Topic, Partition: resp.NextCursor.Partition}
		}
		if !slices.Equal(got, all) {
			t.Errorf("limit %d: got %v, want %v", limit, got, all)
		}
	}
}

func TestDescribeTopicPartitionsByName(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("a", 1)
	stream := b.mustCreate("dir/stream", 1)
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.ResponsePartitionLimit = 2000
	for _, name := range []string{"missing", "dir/stream", "a", "missing", "a b"} {
		req.Topics = append(req.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: name})
	}
	resp := ask[*kmsg.DescribeTopicPartitionsResponse](b, 0, req)
	want := []struct {
		name string
		err  *kafkaproto.Error
	}{{"a", nil}, {"a b", kafkaproto.ErrInvalidTopic}, {"dir/stream", nil}, {"missing", kafkaproto.ErrUnknownTopicOrPartition}}
	if len(resp.Topics) != len(want) {
		t.Fatalf("%d answers, want %d", len(resp.Topics), len(want))
	}
	for i, w := range want {
		if *resp.Topics[i].Topic != w.name {
			t.Errorf("answer %d is for %q, want %q", i, *resp.Topics[i].Topic, w.name)
		}
		wantCode(t, w.name, resp.Topics[i].ErrorCode, w.err)
	}
	if resp.Topics[2].TopicID != stream.TopicID {
		t.Errorf("stream has id %v, want %v", resp.Topics[2].TopicID, stream.TopicID)
	}
	req.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: "a", Partition: -1}
	for _, topic := range ask[*kmsg.DescribeTopicPartitionsResponse](b, 0, req).Topics {
		wantCode(t, "bad cursor", topic.ErrorCode, kafkaproto.ErrInvalidRequest)
	}
	// A cursor whose topic has gone, or lost its partition, goes on behind it.
	req = kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.ResponsePartitionLimit = 10
	for _, cursor := range []kmsg.DescribeTopicPartitionsRequestCursor{{Topic: "0", Partition: 3}, {Topic: "a", Partition: 7}} {
		req.Cursor = &cursor
		resp := ask[*kmsg.DescribeTopicPartitionsResponse](b, 0, req)
		if len(resp.Topics) != 1 || resp.NextCursor != nil || len(resp.Topics[0].Partitions) != map[string]int{"0": 1, "a": 0}[cursor.Topic] {
			t.Errorf("cursor %+v: %+v", cursor, resp)
		}
	}
}

// Metadata of one topic is asked for all the time: it costs a fixed number of allocations.
func BenchmarkMetadata(bm *testing.B) {
	b := newAdminBroker(bm, nil)
	b.mustCreate("orders", 12)
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(12)
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = kmsg.StringPtr("orders")
	req.Topics = append(req.Topics, rt)
	r := &kafkaproto.Request{Key: req.Key(), Version: 12, Body: req}
	bm.ReportAllocs()
	for bm.Loop() {
		if _, err := b.Handle(context.Background(), r); err != nil {
			bm.Fatal(err)
		}
	}
}
