package e2e

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

// subject is what valid requests are about: a topic with one partition and at least one record.
type subject struct {
	name string
	id   [16]byte
	// fresh is the number of topics made so far by requests that create.
	fresh int
}

func newSubject(t *testing.T, b *harness.Broker, name string) *subject {
	t.Helper()
	made := createTopic(t, b, name, 1)
	produceBatch(t, harness.Dial(t, b.Addr), name, 0, oneRecord())
	return &subject{name: name, id: made.ID}
}

func oneRecord() []byte {
	return harness.Batch(noCompression, harness.Record{Key: []byte("key"), Value: []byte("value"), Timestamp: day.UnixMilli()})
}

// request returns a request that succeeds. Fields that a version does not have are not sent.
func (s *subject) request(key, version int16) kmsg.Request {
	req, _ := s.tryRequest(key, version)
	return req
}

// tryRequest returns a well-formed request and whether it succeeds. Some need more than one connection can prepare, such
// as membership of a group.
func (s *subject) tryRequest(key, version int16) (req kmsg.Request, succeeds bool) {
	req = kmsg.RequestForKey(key)
	fill(reflect.ValueOf(req).Elem())
	req.SetVersion(version)
	switch r := req.(type) {
	case *kmsg.ProduceRequest:
		r.TransactionID = nil
		r.Acks, r.TimeoutMillis = -1, 10_000
		r.Topics[0].Topic, r.Topics[0].TopicID = s.name, s.id
		r.Topics[0].Partitions[0].Records = oneRecord()
	case *kmsg.FetchRequest:
		r.ReplicaID, r.ReplicaState.ID = -1, -1
		r.MaxBytes, r.MinBytes, r.MaxWaitMillis = 1<<20, 1, 500
		r.SessionID, r.SessionEpoch, r.ForgottenTopics = 0, -1, nil
		r.Topics[0].Topic, r.Topics[0].TopicID = s.name, s.id
		r.Topics[0].Partitions[0].PartitionMaxBytes = 1 << 20
	case *kmsg.ListOffsetsRequest:
		r.ReplicaID = -1
		r.Topics[0].Topic = s.name
		r.Topics[0].Partitions[0].Timestamp = day.UnixMilli()
	case *kmsg.MetadataRequest:
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &s.name
		r.Topics = []kmsg.MetadataRequestTopic{topic}
	case *kmsg.OffsetCommitRequest: // of a consumer that is in no group
		r.Group, r.Generation, r.MemberID, r.InstanceID, r.RetentionTimeMillis = s.name, -1, "", nil, -1
		r.Topics[0].Topic, r.Topics[0].TopicID = s.name, s.id
	case *kmsg.OffsetFetchRequest:
		r.Group, r.Topics[0].Topic = s.name, s.name
		r.Groups[0].Group, r.Groups[0].MemberID, r.Groups[0].MemberEpoch = s.name, nil, -1
		r.Groups[0].Topics[0].Topic, r.Groups[0].Topics[0].TopicID = s.name, s.id
	case *kmsg.FindCoordinatorRequest:
		r.CoordinatorType = 0
	case *kmsg.ApiVersionsRequest:
		r.ClusterID, r.NodeID = nil, -1 // of a client that does not know the cluster yet
	case *kmsg.CreateTopicsRequest:
		s.fresh++
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = s.freshName(), 1, 1
		r.Topics, r.TimeoutMillis = []kmsg.CreateTopicsRequestTopic{topic}, 10_000
	case *kmsg.DeleteTopicsRequest:
		name := s.freshName() // made by the CreateTopics before
		r.TopicNames, r.TimeoutMillis = []string{name}, 10_000
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = &name
		r.Topics = []kmsg.DeleteTopicsRequestTopic{topic}
	case *kmsg.DeleteRecordsRequest:
		r.TimeoutMillis = 10_000
		r.Topics[0].Topic = s.name
		r.Topics[0].Partitions[0].Offset = 0
	case *kmsg.InitProducerIDRequest:
		r.TransactionalID, r.ProducerID, r.ProducerEpoch = nil, -1, -1
	case *kmsg.OffsetForLeaderEpochRequest:
		r.ReplicaID = -1
		r.Topics[0].Topic = s.name
		r.Topics[0].Partitions[0].CurrentLeaderEpoch, r.Topics[0].Partitions[0].LeaderEpoch = -1, 0
	case *kmsg.DescribeConfigsRequest:
		r.Resources[0].ResourceType, r.Resources[0].ResourceName, r.Resources[0].ConfigNames = kmsg.ConfigResourceTypeTopic, s.name, nil
	case *kmsg.AlterConfigsRequest:
		r.Resources[0].ResourceType, r.Resources[0].ResourceName = kmsg.ConfigResourceTypeTopic, s.name
		r.Resources[0].Configs[0].Name, r.Resources[0].Configs[0].Value = "retention.ms", kmsg.StringPtr("-1")
	case *kmsg.DescribeLogDirsRequest:
		r.Topics[0].Topic = s.name
	case *kmsg.CreatePartitionsRequest:
		r.TimeoutMillis, r.ValidateOnly = 10_000, true
		r.Topics[0].Topic, r.Topics[0].Count, r.Topics[0].Assignment = s.name, 2, nil
	case *kmsg.IncrementalAlterConfigsRequest:
		r.Resources[0].ResourceType, r.Resources[0].ResourceName = kmsg.ConfigResourceTypeTopic, s.name
		r.Resources[0].Configs[0].Name, r.Resources[0].Configs[0].Value = "retention.ms", kmsg.StringPtr("-1")
	case *kmsg.DescribeClusterRequest:
		r.EndpointType = 1
	case *kmsg.DescribeProducersRequest:
		r.Topics[0].Topic = s.name
	case *kmsg.DescribeTopicPartitionsRequest:
		r.Topics[0].Topic, r.ResponsePartitionLimit, r.Cursor = s.name, 100, nil
	default:
		return req, false
	}
	return req, true
}

func (s *subject) freshName() string { return fmt.Sprintf("%s-%d", s.name, s.fresh) }

// fill gives every string a letter and every array one element, so that a frame has every kind of field. Numbers get
// their defaults, which for partitions is 0.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.Type().Elem().Kind() == reflect.String || v.Type().Elem().Kind() == reflect.Struct {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		}
	case reflect.Struct:
		if d, ok := v.Addr().Interface().(interface{ Default() }); ok {
			d.Default()
		}
		if v.Type() == reflect.TypeFor[kmsg.Tags]() {
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.String:
		v.SetString("x")
	}
}

// errorCodes returns the errors in a response, by field path.
func errorCodes(resp kmsg.Response) map[string]error {
	found := make(map[string]error)
	collectErrors(found, "", reflect.ValueOf(resp).Elem())
	return found
}

func collectErrors(found map[string]error, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			name := path + "." + v.Type().Field(i).Name
			if code, ok := v.Field(i).Interface().(int16); ok && v.Type().Field(i).Name == "ErrorCode" {
				if err := kerr.ErrorForCode(code); err != nil {
					found[name] = err
				}
				continue
			}
			collectErrors(found, name, v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			collectErrors(found, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	}
}
