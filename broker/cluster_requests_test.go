package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Requests that in Kafka concern several brokers, or a security that this broker does not have.

func TestElectLeaders(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 2)
	b.mustCreate("dir/stream", 1)
	for version := int16(0); version <= 2; version++ {
		for election := int8(0); election <= 2; election++ {
			req := kmsg.NewPtrElectLeadersRequest()
			req.ElectionType = election
			req.Topics = []kmsg.ElectLeadersRequestTopic{
				{Topic: "orders", Partitions: []int32{1, 0, 2, -1}},
				{Topic: "dir/stream", Partitions: []int32{0}},
				{Topic: "missing", Partitions: []int32{0}},
			}
			resp := ask[*kmsg.ElectLeadersResponse](b, version, req)
			what := fmt.Sprintf("v%d, election %d", version, election)
			if version > 0 && election > 1 {
				wantCode(t, what, resp.ErrorCode, kafkaproto.ErrInvalidRequest)
				wantLen(t, resp.Topics, 0, what)
				continue
			}
			wantCode(t, what, resp.ErrorCode, nil)
			wantLen(t, resp.Topics, 3, what)
			needed := func(topic, partition int, want *kafkaproto.Error) {
				asked, p := req.Topics[topic], resp.Topics[topic].Partitions[partition]
				wantEqual(t, asked.Topic, resp.Topics[topic].Topic, what)
				wantEqual(t, asked.Partitions[partition], p.Partition, what)
				wantCode(t, fmt.Sprintf("%s: %s %d", what, asked.Topic, p.Partition), p.ErrorCode, want)
			}
			needed(0, 0, errElectionNotNeeded)
			needed(0, 1, errElectionNotNeeded)
			needed(0, 2, kafkaproto.ErrUnknownTopicOrPartition)
			needed(0, 3, kafkaproto.ErrUnknownTopicOrPartition)
			needed(1, 0, errElectionNotNeeded)
			needed(2, 0, kafkaproto.ErrUnknownTopicOrPartition)
		}
	}
	all := kmsg.NewPtrElectLeadersRequest() // no list of topics
	resp := ask[*kmsg.ElectLeadersResponse](b, 2, all)
	wantCode(t, "all partitions", resp.ErrorCode, nil)
	wantLen(t, resp.Topics, 0)
}

func TestAlterPartitionReassignments(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.NodeID = 3 })
	b.mustCreate("orders", 2)
	for _, tc := range []struct {
		what      string
		topic     string
		partition int32
		replicas  []int32
		want      *kafkaproto.Error
	}{
		{"to where it is", "orders", 1, []int32{3}, nil},
		{"cancel", "orders", 0, nil, errNoReassignmentInProgress},
		{"to another broker", "orders", 0, []int32{1}, kafkaproto.ErrInvalidReplicaAssignment},
		{"to one broker more", "orders", 0, []int32{3, 1}, kafkaproto.ErrInvalidReplicaAssignment},
		{"twice", "orders", 0, []int32{3, 3}, kafkaproto.ErrInvalidReplicaAssignment},
		{"to nowhere", "orders", 0, []int32{}, kafkaproto.ErrInvalidReplicaAssignment},
		{"unknown partition", "orders", 2, []int32{3}, kafkaproto.ErrUnknownTopicOrPartition},
		{"cancel of an unknown topic", "missing", 0, nil, kafkaproto.ErrUnknownTopicOrPartition},
	} {
		for version := int16(0); version <= 1; version++ {
			req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
			p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
			p.Partition, p.Replicas = tc.partition, tc.replicas
			req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: tc.topic, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{p}}}
			resp := ask[*kmsg.AlterPartitionAssignmentsResponse](b, version, req)
			wantCode(t, tc.what, resp.ErrorCode, nil)
			got := resp.Topics[0].Partitions[0]
			wantCode(t, tc.what, got.ErrorCode, tc.want)
			wantEqual(t, tc.want == nil, got.ErrorMessage == nil, tc.what)
			wantEqual(t, tc.topic, resp.Topics[0].Topic)
			wantEqual(t, tc.partition, got.Partition)
		}
	}
}

func TestListPartitionReassignments(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 2)
	req := kmsg.NewPtrListPartitionReassignmentsRequest()
	for _, topics := range [][]kmsg.ListPartitionReassignmentsRequestTopic{nil, {{Topic: "orders", Partitions: []int32{0}}, {Topic: "missing", Partitions: []int32{0}}}} {
		req.Topics = topics
		resp := ask[*kmsg.ListPartitionReassignmentsResponse](b, 0, req)
		wantCode(t, "list", resp.ErrorCode, nil)
		wantLen(t, resp.Topics, 0)
	}
}

// A tool moves partitions to a directory that it has seen in DescribeLogDirs.
func TestAlterReplicaLogDirs(t *testing.T) {
	b := newAdminBroker(t, nil)
	b.mustCreate("orders", 1)
	dirs := ask[*kmsg.DescribeLogDirsResponse](b, 4, kmsg.NewPtrDescribeLogDirsRequest()).Dirs
	wantLen(t, dirs, 1)
	for version := int16(1); version <= 2; version++ {
		req := kmsg.NewPtrAlterReplicaLogDirsRequest()
		req.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{
			{Dir: dirs[0].Dir, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "orders", Partitions: []int32{0, 1}}}},
			{Dir: "/other", Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "orders", Partitions: []int32{0}}}},
		}
		resp := ask[*kmsg.AlterReplicaLogDirsResponse](b, version, req)
		wantLen(t, resp.Topics, 2)
		wantCode(t, "where it is", resp.Topics[0].Partitions[0].ErrorCode, nil)
		wantCode(t, "unknown partition", resp.Topics[0].Partitions[1].ErrorCode, kafkaproto.ErrUnknownTopicOrPartition)
		wantCode(t, "elsewhere", resp.Topics[1].Partitions[0].ErrorCode, errLogDirNotFound)
	}
}

func TestDescribeQuorum(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.NodeID = 3 })
	b.mustCreate("orders", 1)
	asking := func(topic string, partitions ...int32) *kmsg.DescribeQuorumRequest {
		req := kmsg.NewPtrDescribeQuorumRequest()
		rt := kmsg.NewDescribeQuorumRequestTopic()
		rt.Topic = topic
		for _, p := range partitions {
			rp := kmsg.NewDescribeQuorumRequestTopicPartition()
			rp.Partition = p
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
		return req
	}
	for version := int16(0); version <= 2; version++ {
		resp := ask[*kmsg.DescribeQuorumResponse](b, version, asking(clusterMetadata, 0))
		wantCode(t, "quorum", resp.ErrorCode, nil)
		p := resp.Topics[0].Partitions[0]
		wantCode(t, "partition", p.ErrorCode, nil)
		wantEqual(t, int32(3), p.LeaderID)
		wantLess(t, 0, p.LeaderEpoch)
		wantLess(t, 0, p.HighWatermark)
		wantLen(t, p.CurrentVoters, 1)
		wantEqual(t, int32(3), p.CurrentVoters[0].ReplicaID)
		wantEqual(t, p.HighWatermark, p.CurrentVoters[0].LogEndOffset)
		wantLen(t, p.Observers, 0)
		if version >= 2 {
			wantLen(t, resp.Nodes, 1)
			wantEqual(t, int32(3), resp.Nodes[0].NodeID)
			wantEqual(t, "broker.test", resp.Nodes[0].Listeners[0].Host)
			wantEqual(t, uint16(9092), resp.Nodes[0].Listeners[0].Port)
		}
	}
	for what, req := range map[string]*kmsg.DescribeQuorumRequest{
		"another topic": asking("orders", 0), "another partition": asking(clusterMetadata, 1), "two partitions": asking(clusterMetadata, 0, 1),
	} {
		resp := ask[*kmsg.DescribeQuorumResponse](b, 2, req)
		wantLen(t, resp.Topics[0].Partitions, len(req.Topics[0].Partitions), what)
		for _, p := range resp.Topics[0].Partitions {
			wantCode(t, what, p.ErrorCode, kafkaproto.ErrUnknownTopicOrPartition)
		}
		wantLen(t, resp.Nodes, 0, what)
	}
}

func TestUpdateFeatures(t *testing.T) {
	b := newAdminBroker(t, nil)
	current := b.features()[len(b.features())-1]
	wantEqual(t, "metadata.version", current.name)
	update := func(name string, level int16) kmsg.UpdateFeaturesRequestFeatureUpdate {
		return kmsg.UpdateFeaturesRequestFeatureUpdate{Feature: name, MaxVersionLevel: level, UpgradeType: 1}
	}
	same := update(current.name, current.level)
	for _, tc := range []struct {
		what    string
		updates []kmsg.UpdateFeaturesRequestFeatureUpdate
		want    *kafkaproto.Error
	}{
		{"nothing", nil, nil},
		{"the same level", []kmsg.UpdateFeaturesRequestFeatureUpdate{same}, nil},
		{"a lower level", []kmsg.UpdateFeaturesRequestFeatureUpdate{update(current.name, current.min)}, errInvalidUpdateVersion},
		{"a higher level", []kmsg.UpdateFeaturesRequestFeatureUpdate{update(current.name, current.max+1)}, errInvalidUpdateVersion},
		{"a negative level", []kmsg.UpdateFeaturesRequestFeatureUpdate{update(current.name, -1)}, errInvalidUpdateVersion},
		{"all or none", []kmsg.UpdateFeaturesRequestFeatureUpdate{same, update("transaction.version", 2)}, errInvalidUpdateVersion},
	} {
		for version := int16(0); version <= 2; version++ {
			req := kmsg.NewPtrUpdateFeaturesRequest()
			req.FeatureUpdates = tc.updates
			resp := ask[*kmsg.UpdateFeaturesResponse](b, version, req)
			wantCode(t, tc.what, resp.ErrorCode, tc.want)
			wantEqual(t, tc.want == nil, resp.ErrorMessage == nil, tc.what)
			results := len(tc.updates)
			if version >= 2 || tc.want != nil {
				results = 0
			}
			wantLen(t, resp.Results, results, "%s, v%d", tc.what, version)
			for i, r := range resp.Results {
				wantEqual(t, tc.updates[i].Feature, r.Feature)
				wantCode(t, tc.what, r.ErrorCode, nil)
			}
		}
	}
}

func TestUnregisterBroker(t *testing.T) {
	b := newAdminBroker(t, nil)
	for id, want := range map[int32]*kafkaproto.Error{1: kafkaproto.ErrInvalidRequest, 2: errBrokerIDNotRegistered, -1: errBrokerIDNotRegistered} {
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = id
		resp := ask[*kmsg.UnregisterBrokerResponse](b, 0, req)
		wantCode(t, fmt.Sprint(id), resp.ErrorCode, want)
		wantNotNil(t, resp.ErrorMessage)
	}
}

func TestListConfigResources(t *testing.T) {
	b := newAdminBroker(t, func(o *Options) { o.NodeID = 3 })
	b.mustCreate("orders", 1)
	b.mustCreate("audit", 1)
	b.mustCreate("dir/stream", 1)
	const topic, broker, logger, metrics, group = 2, 4, 8, 16, 32
	for _, tc := range []struct {
		version int16
		types   []int8
		want    []string
		err     *kafkaproto.Error
	}{
		{0, nil, nil, nil},
		{1, nil, []string{"2 audit", "2 orders", "4 3", "8 3"}, nil},
		{1, []int8{broker}, []string{"4 3"}, nil},
		{1, []int8{logger, topic, topic}, []string{"2 audit", "2 orders", "8 3"}, nil},
		{1, []int8{metrics, group}, nil, nil},
		{1, []int8{topic, 1}, nil, kafkaproto.ErrUnsupportedVersion},
	} {
		req := kmsg.NewPtrListConfigResourcesRequest()
		req.ResourceTypes = tc.types
		resp := ask[*kmsg.ListConfigResourcesResponse](b, tc.version, req)
		wantCode(t, fmt.Sprint(tc.types), resp.ErrorCode, tc.err)
		var got []string
		for _, r := range resp.ConfigResources {
			got = append(got, fmt.Sprintf("%d %s", r.Type, r.Name))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("v%d, types %v: %v, want %v", tc.version, tc.types, got, tc.want)
		}
	}
}

func TestClientQuotas(t *testing.T) {
	b := newAdminBroker(t, nil)
	for version := int16(0); version <= 1; version++ {
		described := ask[*kmsg.DescribeClientQuotasResponse](b, version, kmsg.NewPtrDescribeClientQuotasRequest())
		wantCode(t, "describe", described.ErrorCode, nil)
		if described.Entries == nil || len(described.Entries) > 0 { // Java clients fail on null
			t.Errorf("entries: %#v", described.Entries)
		}
		req := kmsg.NewPtrAlterClientQuotasRequest()
		req.Entries = []kmsg.AlterClientQuotasRequestEntry{{
			Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: kmsg.StringPtr("alice")}, {Type: "client-id"}},
			Ops:    []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 1}},
		}}
		altered := ask[*kmsg.AlterClientQuotasResponse](b, version, req)
		wantLen(t, altered.Entries, 1)
		wantCode(t, "alter", altered.Entries[0].ErrorCode, kafkaproto.ErrInvalidRequest)
		wantNotNil(t, altered.Entries[0].ErrorMessage)
		wantEqual(t, []kmsg.AlterClientQuotasResponseEntryEntity{{Type: "user", Name: kmsg.StringPtr("alice")}, {Type: "client-id"}}, altered.Entries[0].Entity)
	}
}

// As Kafka without an authorizer: one error per entry of the request.
func TestACLsAreDisabled(t *testing.T) {
	b := newAdminBroker(t, nil)
	for version := int16(1); version <= 3; version++ {
		described := ask[*kmsg.DescribeACLsResponse](b, version, kmsg.NewPtrDescribeACLsRequest())
		wantCode(t, "describe", described.ErrorCode, kafkaproto.ErrSecurityDisabled)
		wantNotNil(t, described.ErrorMessage)

		creating := kmsg.NewPtrCreateACLsRequest()
		creating.Creations = make([]kmsg.CreateACLsRequestCreation, 2)
		created := ask[*kmsg.CreateACLsResponse](b, version, creating)
		wantLen(t, created.Results, 2)
		for _, r := range created.Results {
			wantCode(t, "create", r.ErrorCode, kafkaproto.ErrSecurityDisabled)
		}

		deleting := kmsg.NewPtrDeleteACLsRequest()
		deleting.Filters = make([]kmsg.DeleteACLsRequestFilter, 2)
		deleted := ask[*kmsg.DeleteACLsResponse](b, version, deleting)
		wantLen(t, deleted.Results, 2)
		for _, r := range deleted.Results {
			wantCode(t, "delete", r.ErrorCode, kafkaproto.ErrSecurityDisabled)
		}
	}
}
