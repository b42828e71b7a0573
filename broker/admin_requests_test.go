package broker

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

func TestCreateTopicsRules(t *testing.T) {
	assigned := func(replicas ...int32) []kmsg.CreateTopicsRequestTopicReplicaAssignment {
		return []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: replicas}}
	}
	for _, tc := range []struct {
		what string
		name string
		edit func(*kmsg.CreateTopicsRequestTopic)
		want *kafkaproto.Error
	}{
		{what: "plain", name: "ok"},
		{what: "default partitions", name: "ok", edit: func(c *kmsg.CreateTopicsRequestTopic) { c.NumPartitions = -1 }},
		{what: "factor 3", name: "ok", edit: func(c *kmsg.CreateTopicsRequestTopic) { c.ReplicationFactor = 3 }},
		{what: "name", name: "a b", want: kafkaproto.ErrInvalidTopic},
		{what: "reserved stream name", name: "_own/x", want: kafkaproto.ErrInvalidTopic},
		{what: "partition stream name", name: "topics/ok/0", want: kafkaproto.ErrInvalidTopic},
		{what: "collision", name: "taken_name", want: kafkaproto.ErrInvalidTopic},
		{what: "exists", name: "taken.name", want: kafkaproto.ErrTopicAlreadyExists},
		{what: "exists, with a bad config", name: "taken.name", want: kafkaproto.ErrTopicAlreadyExists, edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "cleanup.policy", Value: kmsg.StringPtr("compact")}}
		}},
		{what: "stream exists", name: "taken/stream", want: kafkaproto.ErrTopicAlreadyExists},
		{what: "cluster metadata", name: "__cluster_metadata", want: kafkaproto.ErrInvalidRequest},
		{what: "factor 0", name: "ok", want: kafkaproto.ErrInvalidReplicationFactor, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.ReplicationFactor = 0 }},
		{what: "factor -2 before partitions", name: "ok", want: kafkaproto.ErrInvalidReplicationFactor, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.ReplicationFactor, c.NumPartitions = -2, 0 }},
		{what: "partitions 0", name: "ok", want: kafkaproto.ErrInvalidPartitions, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.NumPartitions = 0 }},
		{what: "partitions -2", name: "ok", want: kafkaproto.ErrInvalidPartitions, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.NumPartitions = -2 }},
		{what: "too many partitions", name: "ok", want: kafkaproto.ErrPolicyViolation, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.NumPartitions = math.MaxInt32 }},
		{what: "stream of 2 partitions", name: "a/b", want: kafkaproto.ErrInvalidPartitions, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.NumPartitions = 2 }},
		{what: "unknown config", name: "ok", want: kafkaproto.ErrInvalidConfig, edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "no.such", Value: kmsg.StringPtr("1")}}
		}},
		{what: "null config", name: "ok", want: kafkaproto.ErrInvalidConfig, edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms"}}
		}},
		{what: "assignment", name: "ok", edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.NumPartitions, c.ReplicationFactor, c.ReplicaAssignment = -1, -1, assigned(1)
		}},
		{what: "assignment and partitions", name: "ok", want: kafkaproto.ErrInvalidRequest, edit: func(c *kmsg.CreateTopicsRequestTopic) { c.ReplicaAssignment = assigned(1) }},
		{what: "assignment to an unknown broker", name: "ok", want: kafkaproto.ErrInvalidReplicaAssignment, edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.NumPartitions, c.ReplicaAssignment = -1, assigned(2)
		}},
		{what: "assignment to two brokers", name: "ok", want: kafkaproto.ErrInvalidReplicaAssignment, edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.NumPartitions, c.ReplicaAssignment = -1, assigned(1, 1)
		}},
		{what: "assignment with a hole", name: "ok", want: kafkaproto.ErrInvalidReplicaAssignment, edit: func(c *kmsg.CreateTopicsRequestTopic) {
			c.NumPartitions, c.ReplicaAssignment = -1, assigned(1)
			c.ReplicaAssignment[0].Partition = 1
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			b := newAdminBroker(t, nil)
			b.mustCreate("taken.name", 1)
			b.mustCreate("taken/stream", 1)
			for _, validateOnly := range []bool{true, false} {
				req := creating(tc.name, 1)
				req.ValidateOnly = validateOnly
				if tc.edit != nil {
					tc.edit(&req.Topics[0])
				}
				resp := ask[*kmsg.CreateTopicsResponse](b, 7, req)
				got := resp.Topics[0]
				wantCode(t, "validate only: "+strconv.FormatBool(validateOnly), got.ErrorCode, tc.want)
				_, err := b.topics.byName(tc.name)
				switch {
				case tc.want != nil:
					if got.ErrorMessage == nil || *got.ErrorMessage == "" || got.NumPartitions != -1 || got.ReplicationFactor != -1 {
						t.Errorf("failed answer: %+v", got)
					}
				case validateOnly && (err == nil || got.TopicID != [16]byte{}):
					t.Error("validation created the topic")
				case !validateOnly && (err != nil || got.TopicID == [16]byte{}):
					t.Errorf("created, but %v and id %v", err, got.TopicID)
				case got.NumPartitions != 1 || got.ReplicationFactor != 1 || len(got.Configs) != len(topicConfigs):
					t.Errorf("answer: %+v", got)
				}
			}
		})
	}
}

// One topic that cannot be created leaves the others alone; a name that comes twice is answered once.
func TestCreateTopicsTogether(t *testing.T) {
	b := newAdminBroker(t, nil)
	req := creating("a", 2)
	for _, name := range []string{"twice", "bad name", "twice", "dir/stream", "b.c", "b_c"} {
		req.Topics = append(req.Topics, creating(name, 1).Topics[0])
	}
	resp := ask[*kmsg.CreateTopicsResponse](b, 5, req)
	want := []struct {
		name string
		err  *kafkaproto.Error
	}{
		{"a", nil}, {"twice", kafkaproto.ErrInvalidRequest}, {"bad name", kafkaproto.ErrInvalidTopic},
		{"dir/stream", nil}, {"b.c", nil}, {"b_c", kafkaproto.ErrInvalidTopic},
	}
	if len(resp.Topics) != len(want) {
		t.Fatalf("%d answers, want %d", len(resp.Topics), len(want))
	}
	for i, w := range want {
		if resp.Topics[i].Topic != w.name {
			t.Errorf("answer %d is for %q, want %q", i, resp.Topics[i].Topic, w.name)
		}
		wantCode(t, w.name, resp.Topics[i].ErrorCode, w.err)
	}
	if got := testutil.ToFloat64(b.m.topics); got != 2 {
		t.Errorf("%v topics in the metrics, want 2", got)
	}
	if got := testutil.ToFloat64(b.m.partitions); got != 3 {
		t.Errorf("%v partitions in the metrics, want 3", got)
	}
}

func TestCreateTopicsLimitsPartitionsOfARequest(t *testing.T) {
	b := newAdminBroker(t, nil)
	req := creating("a", maxPartitionsPerRequest-1)
	req.ValidateOnly = true
	req.Topics = append(req.Topics, creating("b", 1).Topics[0], creating("c", 1).Topics[0])
	resp := ask[*kmsg.CreateTopicsResponse](b, 4, req)
	wantCode(t, "a", resp.Topics[0].ErrorCode, nil)
	wantCode(t, "b", resp.Topics[1].ErrorCode, nil)
	wantCode(t, "c", resp.Topics[2].ErrorCode, kafkaproto.ErrPolicyViolation)
}

func TestCreateTopicsReportsConfigs(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.MaxMessageBytes = 5000 })
	got := map[string]kmsg.CreateTopicsResponseTopicConfig{}
	for _, c := range b.mustCreate("orders", 1, "retention.ms", " 1000 ").Configs {
		got[c.Name] = c
	}
	for name, want := range map[string]struct {
		value  string
		source kmsg.ConfigSource
	}{
		"retention.ms":      {"1000", kmsg.ConfigSourceDynamicTopicConfig},
		"max.message.bytes": {"5000", kmsg.ConfigSourceStaticBrokerConfig},
		"cleanup.policy":    {"delete", kmsg.ConfigSourceDefaultConfig},
	} {
		if c := got[name]; c.Value == nil || *c.Value != want.value || kmsg.ConfigSource(c.Source) != want.source {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
	}
	if s := b.settingsOf("orders", 0); s.Retention != time.Second {
		t.Errorf("settings of the stream: %+v", s)
	}
}

func TestDeleteTopics(t *testing.T) {
	b := newAdminBroker(t, nil)
	byName, byID := b.mustCreate("by-name", 2), b.mustCreate("by-id", 1)
	both, twice := b.mustCreate("both", 1), b.mustCreate("twice", 1)
	stream := b.mustCreate("a/stream", 1)
	partition, _ := b.topics.byName("by-name")

	req := kmsg.NewPtrDeleteTopicsRequest()
	add := func(name string, id [16]byte) {
		d := kmsg.NewDeleteTopicsRequestTopic()
		if d.TopicID = id; name != "" {
			d.Topic = &name
		}
		req.Topics = append(req.Topics, d)
	}
	add("by-name", [16]byte{})
	add("", byID.TopicID)
	add("both", both.TopicID)
	add("twice", [16]byte{})
	add("", twice.TopicID)
	add("", stream.TopicID)
	add("missing", [16]byte{})
	add("", [16]byte{9})
	add("", [16]byte{})
	resp := ask[*kmsg.DeleteTopicsResponse](b, 6, req)
	want := []struct {
		what string
		err  *kafkaproto.Error
		id   [16]byte
	}{
		{"by-name", nil, byName.TopicID},
		{"by-id", nil, byID.TopicID},
		{"both", kafkaproto.ErrInvalidRequest, both.TopicID},
		{"twice", kafkaproto.ErrInvalidRequest, twice.TopicID},
		{"a/stream", nil, stream.TopicID},
		{"missing", kafkaproto.ErrUnknownTopicOrPartition, [16]byte{}},
		{"", kafkaproto.ErrUnknownTopicID, [16]byte{9}},
		{"", kafkaproto.ErrInvalidRequest, [16]byte{}},
	}
	if len(resp.Topics) != len(want) {
		t.Fatalf("%d answers, want %d", len(resp.Topics), len(want))
	}
	for i, w := range want {
		got := resp.Topics[i]
		wantCode(t, strconv.Itoa(i)+" "+w.what, got.ErrorCode, w.err)
		if (got.Topic == nil) != (w.what == "") || got.Topic != nil && *got.Topic != w.what || got.TopicID != w.id {
			t.Errorf("answer %d names %v %v, want %q %v", i, got.Topic, got.TopicID, w.what, w.id)
		}
	}
	for _, name := range []string{"both", "twice"} {
		if _, err := b.topics.byName(name); err != nil {
			t.Errorf("%s was deleted", name)
		}
	}
	for _, id := range partition.partitions {
		if _, err := b.store.Describe(id); err == nil {
			t.Errorf("stream %d of the deleted topic is still there", id)
		}
	}
}

func TestCreatePartitions(t *testing.T) {
	assigned := func(replicas ...int32) kmsg.CreatePartitionsRequestTopicAssignment {
		return kmsg.CreatePartitionsRequestTopicAssignment{Replicas: replicas}
	}
	for _, tc := range []struct {
		name       string
		count      int32
		assignment []kmsg.CreatePartitionsRequestTopicAssignment
		want       *kafkaproto.Error
	}{
		{name: "orders", count: 5},
		{name: "orders", count: 3, want: kafkaproto.ErrInvalidPartitions},
		{name: "orders", count: 1, want: kafkaproto.ErrInvalidPartitions},
		{name: "orders", count: -1, want: kafkaproto.ErrInvalidPartitions},
		{name: "orders", count: math.MaxInt32, want: kafkaproto.ErrPolicyViolation},
		{name: "missing", count: 2, want: kafkaproto.ErrUnknownTopicOrPartition},
		{name: "a/stream", count: 2, want: kafkaproto.ErrInvalidPartitions},
		{name: "orders", count: 4, assignment: []kmsg.CreatePartitionsRequestTopicAssignment{assigned(1)}},
		{name: "orders", count: 5, assignment: []kmsg.CreatePartitionsRequestTopicAssignment{assigned(1)}, want: kafkaproto.ErrInvalidReplicaAssignment},
		{name: "orders", count: 4, assignment: []kmsg.CreatePartitionsRequestTopicAssignment{assigned(2)}, want: kafkaproto.ErrInvalidReplicaAssignment},
	} {
		b := newAdminBroker(t, nil)
		b.mustCreate("orders", 3, "retention.ms", "7000")
		b.mustCreate("a/stream", 1)
		before, _ := b.topics.byName("orders")
		for _, validateOnly := range []bool{true, false} {
			req := kmsg.NewPtrCreatePartitionsRequest()
			req.ValidateOnly = validateOnly
			req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: tc.name, Count: tc.count, Assignment: tc.assignment}}
			resp := ask[*kmsg.CreatePartitionsResponse](b, 3, req)
			wantCode(t, tc.name, resp.Topics[0].ErrorCode, tc.want)
			after, _ := b.topics.byName("orders")
			if tc.want != nil || validateOnly {
				if after != before {
					t.Errorf("%+v (validate only: %v) changed the topic", tc, validateOnly)
				}
				continue
			}
			if len(after.partitions) != int(tc.count) || after.id != before.id || !slices.Equal(after.partitions[:3], before.partitions) {
				t.Errorf("%+v: before %v, after %v", tc, before, after)
			}
			if s := b.settingsOf("orders", tc.count-1); s.Retention != 7*time.Second {
				t.Errorf("new partition has settings %+v", s)
			}
		}
	}
}

func TestCreatePartitionsNamedTwice(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 1)
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "orders", Count: 2}, {Topic: "orders", Count: 3}}
	resp := ask[*kmsg.CreatePartitionsResponse](b, 1, req)
	if len(resp.Topics) != 1 {
		t.Fatalf("%d answers", len(resp.Topics))
	}
	wantCode(t, "orders", resp.Topics[0].ErrorCode, kafkaproto.ErrInvalidRequest)
}

// altering is an IncrementalAlterConfigs request for one topic.
func altering(name string, configs ...kmsg.IncrementalAlterConfigsRequestResourceConfig) *kmsg.IncrementalAlterConfigsRequest {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: name, Configs: configs}}
	return req
}

func edit(op kmsg.IncrementalAlterConfigOp, name, value string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
	return kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: name, Op: op, Value: &value}
}

func TestIncrementalAlterConfigs(t *testing.T) {
	const (
		set      = kmsg.IncrementalAlterConfigOpSet
		del      = kmsg.IncrementalAlterConfigOpDelete
		add      = kmsg.IncrementalAlterConfigOpAppend
		subtract = kmsg.IncrementalAlterConfigOpSubtract
		replicas = "leader.replication.throttled.replicas"
	)
	null := func(op kmsg.IncrementalAlterConfigOp, name string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
		return kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: name, Op: op}
	}
	type edits = []kmsg.IncrementalAlterConfigsRequestResourceConfig
	for what, tc := range map[string]struct {
		edits edits
		want  map[string]string // values after it
		err   *kafkaproto.Error
	}{
		"set":                     {edits{edit(set, "retention.ms", "9000")}, map[string]string{"retention.ms": "9000"}, nil},
		"delete":                  {edits{null(del, "retention.ms")}, map[string]string{"retention.ms": "604800000"}, nil},
		"delete unset":            {edits{null(del, "flush.ms")}, map[string]string{"retention.ms": "5000"}, nil},
		"append":                  {edits{edit(add, replicas, "1:1")}, map[string]string{replicas: "0:1,1:1"}, nil},
		"append what is there":    {edits{edit(add, replicas, "0:1")}, map[string]string{replicas: "0:1"}, nil},
		"append to default":       {edits{edit(add, "cleanup.policy", "delete")}, map[string]string{"cleanup.policy": "delete"}, nil},
		"subtract":                {edits{edit(subtract, replicas, "0:1,2:2")}, map[string]string{replicas: ""}, nil},
		"subtract to nothing":     {edits{edit(subtract, "cleanup.policy", "delete")}, nil, kafkaproto.ErrInvalidConfig},
		"append to a number":      {edits{edit(add, "retention.ms", "1")}, nil, kafkaproto.ErrInvalidConfig},
		"unknown":                 {edits{edit(set, "no.such", "1")}, nil, kafkaproto.ErrInvalidConfig},
		"unknown list":            {edits{edit(add, "no.such", "1")}, nil, kafkaproto.ErrInvalidConfig},
		"compact":                 {edits{edit(set, "cleanup.policy", "compact,delete")}, nil, kafkaproto.ErrInvalidConfig},
		"null":                    {edits{null(set, "retention.ms")}, nil, kafkaproto.ErrInvalidRequest},
		"twice":                   {edits{edit(set, "retention.ms", "1"), edit(set, "retention.ms", "2")}, nil, kafkaproto.ErrInvalidRequest},
		"unknown operation":       {edits{edit(9, "retention.ms", "1")}, nil, kafkaproto.ErrInvalidRequest},
		"one of two is not valid": {edits{edit(set, "retention.ms", "9000"), edit(set, "segment.ms", "0")}, nil, kafkaproto.ErrInvalidConfig},
	} {
		t.Run(what, func(t *testing.T) {
			b := newAdminBroker(t, nil)
			b.mustCreate("orders", 2, "retention.ms", "5000", replicas, "0:1")
			before, _ := b.topics.byName("orders")
			for _, validateOnly := range []bool{true, false} {
				req := altering("orders", tc.edits...)
				req.ValidateOnly = validateOnly
				resp := ask[*kmsg.IncrementalAlterConfigsResponse](b, 1, req)
				wantCode(t, what, resp.Resources[0].ErrorCode, tc.err)
				after, _ := b.topics.byName("orders")
				if validateOnly || tc.err != nil {
					if after != before {
						t.Errorf("config changed to %v", after.config.overrides)
					}
					continue
				}
				for name, value := range tc.want {
					if got := after.config.value(name); got != value {
						t.Errorf("%s is %q, want %q", name, got, value)
					}
				}
				for p := range after.partitions {
					if got := b.settingsOf("orders", int32(p)); got != after.config.settings() {
						t.Errorf("partition %d has settings %+v, want %+v", p, got, after.config.settings())
					}
				}
			}
		})
	}
}

func TestAlterConfigsReplacesAll(t *testing.T) {
	m := newMachine()
	b := m.open(t, nil)
	b.mustCreate("orders", 1, "retention.ms", "5000", "segment.ms", "77")
	req := kmsg.NewPtrAlterConfigsRequest()
	req.Resources = []kmsg.AlterConfigsRequestResource{{
		ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "orders",
		Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: "max.message.bytes", Value: kmsg.StringPtr("100")}},
	}}
	resp := ask[*kmsg.AlterConfigsResponse](b, 1, req)
	wantCode(t, "orders", resp.Resources[0].ErrorCode, nil)
	b.stop()
	b = m.open(t, nil)
	got, _ := b.topics.byName("orders")
	if len(got.config.overrides) != 1 || got.config.maxMessageBytes != 100 {
		t.Errorf("configs after restart: %v", got.config.overrides)
	}
	if s := b.settingsOf("orders", 0); s.Retention != defaultRetention {
		t.Errorf("retention was not reset: %+v", s)
	}
}

// refusedResource is one whose configs cannot be described or altered, and why.
type refusedResource struct {
	kind kmsg.ConfigResourceType
	name string
	want *kafkaproto.Error
}

// refusedResources are those whose configs can be neither described nor altered.
var refusedResources = []refusedResource{
	{kmsg.ConfigResourceTypeTopic, "missing", kafkaproto.ErrUnknownTopicOrPartition},
	{kmsg.ConfigResourceTypeTopic, "a b", kafkaproto.ErrInvalidTopic},
	{kmsg.ConfigResourceTypeBrokerLogger, "2", kafkaproto.ErrInvalidRequest},
	{kmsg.ConfigResourceTypeGroupConfig, "", kafkaproto.ErrInvalidRequest},
	{kmsg.ConfigResourceTypeClientMetrics, "", kafkaproto.ErrInvalidRequest},
	{kmsg.ConfigResourceType(64), "x", kafkaproto.ErrInvalidRequest},
}

// What cannot be altered is refused alike by both requests.
func TestAlterConfigsResources(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("twice", 1)
	for _, tc := range slices.Concat(refusedResources, []refusedResource{
		{kmsg.ConfigResourceTypeTopic, "", kafkaproto.ErrInvalidRequest},
		{kmsg.ConfigResourceTypeBroker, "", kafkaproto.ErrInvalidRequest},
		{kmsg.ConfigResourceTypeBroker, "1", kafkaproto.ErrInvalidRequest},
		{kmsg.ConfigResourceTypeBrokerLogger, "1", kafkaproto.ErrInvalidRequest},
		{kmsg.ConfigResourceTypeGroupConfig, "g", kafkaproto.ErrInvalidRequest},
		{kmsg.ConfigResourceTypeClientMetrics, "m", kafkaproto.ErrInvalidRequest},
	}) {
		incremental := kmsg.NewPtrIncrementalAlterConfigsRequest()
		incremental.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: tc.kind, ResourceName: tc.name}}
		r1 := ask[*kmsg.IncrementalAlterConfigsResponse](b, 0, incremental).Resources[0]
		wantCode(t, tc.name, r1.ErrorCode, tc.want)
		whole := kmsg.NewPtrAlterConfigsRequest()
		whole.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: tc.kind, ResourceName: tc.name}}
		r2 := ask[*kmsg.AlterConfigsResponse](b, 2, whole).Resources[0]
		wantCode(t, tc.name, r2.ErrorCode, tc.want)
		if r1.ResourceType != tc.kind || r1.ResourceName != tc.name || r2.ResourceType != tc.kind || r2.ResourceName != tc.name {
			t.Errorf("%+v: answers are for %+v and %+v", tc, r1, r2)
		}
	}
	twice := altering("twice")
	twice.Resources = append(twice.Resources, twice.Resources[0])
	resp := ask[*kmsg.IncrementalAlterConfigsResponse](b, 1, twice)
	if len(resp.Resources) != 1 {
		t.Fatalf("%d answers", len(resp.Resources))
	}
	wantCode(t, "twice", resp.Resources[0].ErrorCode, kafkaproto.ErrInvalidRequest)
}

// kafka-reassign-partitions clears the throttles of all brokers when it has verified a reassignment.
func TestDeletingBrokerConfigsChangesNothing(t *testing.T) {
	b := newAdminBroker(t, nil)
	const name = "leader.replication.throttled.rate"
	reset := kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: name, Op: kmsg.IncrementalAlterConfigOpDelete}
	for _, tc := range []struct {
		what, broker string
		configs      []kmsg.IncrementalAlterConfigsRequestResourceConfig
		want         *kafkaproto.Error
	}{
		{"this broker", "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{reset}, nil},
		{"all brokers", "", []kmsg.IncrementalAlterConfigsRequestResourceConfig{reset}, nil},
		{"another broker", "2", []kmsg.IncrementalAlterConfigsRequestResourceConfig{reset}, kafkaproto.ErrInvalidRequest},
		{"and setting one", "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{reset, edit(kmsg.IncrementalAlterConfigOpSet, "num.partitions", "2")}, kafkaproto.ErrInvalidRequest},
	} {
		req := altering(tc.broker, tc.configs...)
		req.Resources[0].ResourceType = kmsg.ConfigResourceTypeBroker
		resp := ask[*kmsg.IncrementalAlterConfigsResponse](b, 1, req)
		wantCode(t, tc.what, resp.Resources[0].ErrorCode, tc.want)
	}
}

// A named stream has retention and nothing else.
func TestStreamConfigs(t *testing.T) {
	m := newMachine()
	b := m.open(t, nil)
	b.mustCreate("sessions/alice", -1, "retention.ms", "5000", "cleanup.policy", "delete")
	if got := b.settingsOf("sessions/alice", 0); got != (streamstore.Settings{Retention: 5 * time.Second, RetentionBytes: -1}) {
		t.Errorf("created with %+v", got)
	}
	set := kmsg.IncrementalAlterConfigOpSet
	resp := ask[*kmsg.IncrementalAlterConfigsResponse](b, 1, altering("sessions/alice", edit(set, "retention.bytes", "100"), edit(kmsg.IncrementalAlterConfigOpDelete, "retention.ms", "")))
	wantCode(t, "alter", resp.Resources[0].ErrorCode, nil)
	b.stop()
	b = m.open(t, nil)
	if got := b.settingsOf("sessions/alice", 0); got != (streamstore.Settings{Retention: -1, RetentionBytes: 100}) {
		t.Errorf("altered to %+v", got)
	}
	configs := describe(b, kmsg.ConfigResourceTypeTopic, "sessions/alice")
	if c := configs["retention.bytes"]; *c.Value != "100" || c.Source != kmsg.ConfigSourceDynamicTopicConfig {
		t.Errorf("retention.bytes: %+v", c)
	}
	if c := configs["retention.ms"]; *c.Value != "-1" || c.Source != kmsg.ConfigSourceStaticBrokerConfig {
		t.Errorf("retention.ms: %+v", c)
	}
	resp = ask[*kmsg.IncrementalAlterConfigsResponse](b, 1, altering("sessions/alice", edit(set, "max.message.bytes", "100")))
	wantCode(t, "max.message.bytes", resp.Resources[0].ErrorCode, kafkaproto.ErrInvalidConfig)
	if msg := *resp.Resources[0].ErrorMessage; !strings.Contains(msg, "max.message.bytes") || !strings.Contains(msg, "retention.ms") {
		t.Errorf("message: %s", msg)
	}
}

// describe returns all configs of a resource by name, as DescribeConfigs v4 with synonyms and documentation reports them.
func describe(b *adminBroker, kind kmsg.ConfigResourceType, name string, keys ...string) map[string]kmsg.DescribeConfigsResponseResourceConfig {
	b.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.IncludeSynonyms, req.IncludeDocumentation = true, true
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kind, ResourceName: name, ConfigNames: keys}}
	r := ask[*kmsg.DescribeConfigsResponse](b, 4, req).Resources[0]
	wantCode(b.t, "describe "+name, r.ErrorCode, nil)
	m := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
	for _, c := range r.Configs {
		if _, ok := m[c.Name]; ok {
			b.t.Errorf("%s is reported twice", c.Name)
		}
		m[c.Name] = c
	}
	return m
}

func TestDescribeConfigsOfTopic(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.DefaultRetention = time.Hour })
	b.mustCreate("orders", 1, "retention.ms", "5000")
	got := describe(b, kmsg.ConfigResourceTypeTopic, "orders")
	for i := range topicConfigs {
		def := &topicConfigs[i]
		c, ok := got[def.name]
		if !ok || c.Value == nil || c.Documentation == nil || *c.Documentation == "" || c.ConfigType != def.kind || c.ReadOnly || c.IsSensitive || len(c.ConfigSynonyms) == 0 {
			t.Errorf("%s: %+v", def.name, c)
		}
	}
	retention := got["retention.ms"]
	if *retention.Value != "5000" || retention.Source != kmsg.ConfigSourceDynamicTopicConfig {
		t.Errorf("retention.ms: %+v", retention)
	}
	type synonym struct {
		name, value string
		source      kmsg.ConfigSource
	}
	var synonyms []synonym
	for _, s := range retention.ConfigSynonyms {
		synonyms = append(synonyms, synonym{s.Name, *s.Value, s.Source})
	}
	if want := []synonym{
		{"retention.ms", "5000", kmsg.ConfigSourceDynamicTopicConfig},
		{"log.retention.ms", "3600000", kmsg.ConfigSourceStaticBrokerConfig},
		{"log.retention.ms", "604800000", kmsg.ConfigSourceDefaultConfig},
	}; !slices.Equal(synonyms, want) {
		t.Errorf("synonyms %v, want %v", synonyms, want)
	}
	if some := describe(b, kmsg.ConfigResourceTypeTopic, "orders", "cleanup.policy", "no.such"); len(some) != 1 || *some["cleanup.policy"].Value != "delete" {
		t.Errorf("asked for one config, got %v", some)
	}
}

func TestDescribeConfigsOfBroker(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.DefaultPartitions, o.NodeID, o.Rack = 7, 3, "r1" })
	got := describe(b, kmsg.ConfigResourceTypeBroker, "3")
	for name, want := range map[string]string{
		"num.partitions": "7", "node.id": "3", "broker.rack": "r1", "auto.create.topics.enable": "true", "message.max.bytes": "1048588",
		"log.retention.ms": "604800000", "log.retention.hours": "168", "inter.broker.protocol.version": "4.0-IV3", "default.replication.factor": "1",
		"advertised.listeners": "PLAINTEXT://broker.test:9092", "log.cleanup.policy": "delete", "group.max.session.timeout.ms": "1800000",
	} {
		if c := got[name]; c.Value == nil || *c.Value != want {
			t.Errorf("%s is %v, want %s", name, c.Value, want)
		}
	}
	for name, c := range got {
		if !c.ReadOnly || len(c.ConfigSynonyms) == 0 || c.Documentation == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if n := got["num.partitions"]; n.Source != kmsg.ConfigSourceStaticBrokerConfig || len(n.ConfigSynonyms) != 2 {
		t.Errorf("num.partitions: %+v", n)
	}
	if dynamic := describe(b, kmsg.ConfigResourceTypeBroker, ""); len(dynamic) != 0 {
		t.Errorf("cluster-wide dynamic configs: %v", dynamic)
	}
}

// v0 has no source; it tells instead whether a config is at its default.
func TestDescribeConfigsV0(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 1, "retention.ms", "5000")
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "orders"}}
	for _, c := range ask[*kmsg.DescribeConfigsResponse](b, 0, req).Resources[0].Configs {
		if c.IsDefault == (c.Name == "retention.ms") || c.Value == nil {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
}

func TestDescribeConfigsOfOthers(t *testing.T) {
	b := newAdminBroker(t, nil)
	for kind, name := range map[kmsg.ConfigResourceType]string{
		kmsg.ConfigResourceTypeBrokerLogger: "1", kmsg.ConfigResourceTypeGroupConfig: "g", kmsg.ConfigResourceTypeClientMetrics: "m",
	} {
		if got := describe(b, kind, name); len(got) != 0 {
			t.Errorf("%v %s: %v", kind, name, got)
		}
	}
}

func TestDescribeConfigsRefuses(t *testing.T) {
	b := newAdminBroker(t, nil)
	for _, tc := range slices.Concat(refusedResources, []refusedResource{
		{kmsg.ConfigResourceTypeTopic, "", kafkaproto.ErrInvalidTopic},
		{kmsg.ConfigResourceTypeBroker, "2", kafkaproto.ErrInvalidRequest},
		{kmsg.ConfigResourceTypeBroker, "x", kafkaproto.ErrInvalidRequest},
	}) {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: tc.kind, ResourceName: tc.name}}
		r := ask[*kmsg.DescribeConfigsResponse](b, 1, req).Resources[0]
		wantCode(t, tc.name, r.ErrorCode, tc.want)
		if r.ResourceType != tc.kind || r.ResourceName != tc.name || r.ErrorMessage == nil {
			t.Errorf("%+v: %+v", tc, r)
		}
	}
}

// A reply must not grow with how often a request names the same thing.
func TestDescribeConfigsAnswersOnce(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 1)
	req := kmsg.NewPtrDescribeConfigsRequest()
	for range 100 {
		req.Resources = append(req.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "orders"})
	}
	if n := len(ask[*kmsg.DescribeConfigsResponse](b, 4, req).Resources); n != 1 {
		t.Errorf("%d answers", n)
	}
}

func TestDescribeLogDirs(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("b", 2)
	b.mustCreate("a", 1)
	b.mustCreate("dir/stream", 1)
	sizes := func(topics []kmsg.DescribeLogDirsRequestTopic) map[string]int {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Topics = topics
		resp := ask[*kmsg.DescribeLogDirsResponse](b, 5, req)
		if len(resp.Dirs) != 1 || resp.ErrorCode != 0 || resp.Dirs[0].ErrorCode != 0 || resp.Dirs[0].TotalBytes != -1 || resp.Dirs[0].Dir == "" {
			t.Fatalf("%+v", resp)
		}
		m := map[string]int{}
		for _, topic := range resp.Dirs[0].Topics {
			m[topic.Topic] += len(topic.Partitions)
		}
		return m
	}
	if got := sizes(nil); len(got) != 2 || got["a"] != 1 || got["b"] != 2 {
		t.Errorf("all: %v", got)
	}
	if got := sizes([]kmsg.DescribeLogDirsRequestTopic{{Topic: "b", Partitions: []int32{1, 9, 1}}, {Topic: "b", Partitions: []int32{0}}, {Topic: "missing", Partitions: []int32{0}}, {Topic: "dir/stream", Partitions: []int32{0}}}); len(got) != 2 || got["b"] != 1 || got["dir/stream"] != 1 {
		t.Errorf("some: %v", got)
	}
}

// A store that takes no writes now makes changes of topics time out, an error that admin clients retry.
func TestChangesUnderBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := remoteBroker(t, func(o *dataOptions) {
			o.store.MaxBatchBytes = 1 << 20
			o.store.FlushBytes = 1 << 20
			o.store.MaxUnflushedBytes = 2 << 20
		})
		d.createTopic("orders", 1)
		d.bucket.SetDelay(objstore.OpCreate, time.Hour, time.Hour)
		for size := 900 << 10; ; {
			req := withTimeout(produceRequest(acksLeader, at{topic: "orders"}, d.batchOf(1, size)), time.Second)
			p := call[*kmsg.ProduceResponse](d, req, 9).Topics[0].Partitions[0]
			if p.ErrorCode == 0 {
				continue
			}
			wantCode(t, "Produce", p.ErrorCode, kafkaproto.ErrNotEnoughReplicas)
			if size == 0 {
				break // not the least change has room
			}
			size /= 2
		}
		req := creating("more", 1)
		req.TimeoutMillis = 1000
		created := call[*kmsg.CreateTopicsResponse](d, req, 7).Topics[0]
		wantCode(t, "CreateTopics", created.ErrorCode, kafkaproto.ErrRequestTimedOut)
		trimmed := deleteRecordsRequest(trimTo{at{topic: "orders"}, 0})
		trimmed.TimeoutMillis = 1000
		wantEqual(t, errBackpressure.Message, adminError(streamstore.ErrBackpressure).Message, "a store that does not wait says why")
		wantCode(t, "DeleteRecords", call[*kmsg.DeleteRecordsResponse](d, trimmed, 2).Topics[0].Partitions[0].ErrorCode, kafkaproto.ErrRequestTimedOut)
	})
}
