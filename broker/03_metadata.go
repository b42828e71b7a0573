package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Metadata (key 3), v0 to v13.
//
// Behaviour:
//   - This broker is the only one, the controller, and the leader and only replica of every partition.
//   - "All topics" (v0: an empty list; from v1: null) lists real topics. Named streams are answered when they are named:
//     there may be millions. From v1 an empty list asks for no topic.
//   - Every topic of the request is answered once, in order of the request, with its own error if need be.
//   - A named topic that does not exist is created if the broker's setting and the request both allow it (below v4 a
//     request always does). The answer waits for the creation, so it holds the new topic; one that takes too long is
//     LEADER_NOT_AVAILABLE, which clients retry.
//   - A named stream that does not exist is answered as an empty one without an id, see unwritten.go, and not created, but
//     for v13: the Java producers from 4.1 on, which send it, name topics by id alone in what follows, if there is one or
//     not. So a stream is created there under the rule for topics.
//
// Versions:
//
//	1  null for all, controller, rack, internal     8  authorized operations (KIP-430)
//	2  cluster id                                  10  topic ids in replies (KIP-516)
//	4  auto-create flag (KIP-204)                  11  no more cluster authorized operations (KIP-700)
//	5  offline replicas                            12  topics by id (KIP-516)
//	7  leader epoch (KIP-320)                      13  error at top (KIP-1102), never set here
//
// Left out on purpose: LISTENER_NOT_FOUND (there is one listener).
func init() { register(kafkaproto.KeyMetadata, direct(handleMetadata)) }

// metadataOfProducersByID is the first version that producers send which cannot write to a topic without an id.
const metadataOfProducersByID = 13

func handleMetadata(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.MetadataRequest)
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	b.describeNode(resp)
	if req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = clusterOperations
	}
	if wantsAllTopics(req) {
		s := b.topics.load()
		for _, name := range s.names() {
			resp.Topics = append(resp.Topics, b.metadataTopic(req, s.byName[name]))
		}
		return resp, nil
	}
	for _, a := range b.findTopics(ctx, req) {
		if a.err != nil {
			resp.Topics = append(resp.Topics, metadataError(req, a))
		} else {
			resp.Topics = append(resp.Topics, b.metadataTopic(req, a.topic))
		}
	}
	return resp, nil
}

func wantsAllTopics(req *kmsg.MetadataRequest) bool {
	if req.Version == 0 {
		return len(req.Topics) == 0
	}
	return req.Topics == nil
}

func (b *Broker) describeNode(resp *kmsg.MetadataResponse) {
	n := kmsg.NewMetadataResponseBroker()
	n.NodeID, n.Host, n.Port, n.Rack = b.opts.NodeID, b.opts.AdvertisedHost, b.opts.AdvertisedPort, b.rack()
	resp.Brokers = append(resp.Brokers, n)
	resp.ClusterID = kmsg.StringPtr(b.clusterID)
	resp.ControllerID = b.opts.NodeID
}

// rack returns the rack as replies carry it.
func (b *Broker) rack() *string {
	if b.opts.Rack == "" {
		return nil
	}
	return kmsg.StringPtr(b.opts.Rack)
}

// metadataAnswer is what was found for one topic of a request, which gave a name or an id.
type metadataAnswer struct {
	name  *string
	id    topicID
	topic *topic
	err   *kafkaproto.Error
}

// findTopics finds the topics of a request that names some, and creates missing ones where that is allowed. Topics that
// are named twice are answered once, which also bounds the reply by what the catalogue holds.
func (b *Broker) findTopics(ctx context.Context, req *kmsg.MetadataRequest) []metadataAnswer {
	answers := make([]metadataAnswer, 0, len(req.Topics))
	type key struct {
		name string
		id   topicID
	}
	seen := make(map[key]bool, len(req.Topics))
	for i := range req.Topics {
		a := metadataAnswer{name: req.Topics[i].Topic, id: req.Topics[i].TopicID}
		k := key{id: a.id}
		if a.id == (topicID{}) && a.name != nil {
			k.name = *a.name
		}
		if seen[k] {
			continue
		}
		seen[k] = true
		a.topic, a.err = b.findTopic(req, a)
		answers = append(answers, a)
	}
	if b.opts.AutoCreateTopics && (req.AllowAutoTopicCreation || req.Version < 4) {
		b.createMissing(ctx, answers)
	}
	return answers
}

func (b *Broker) findTopic(req *kmsg.MetadataRequest, a metadataAnswer) (*topic, *kafkaproto.Error) {
	switch {
	case req.Version < 12 && (a.name == nil || a.id != topicID{}):
		return nil, kafkaproto.ErrInvalidRequest.WithMessage("topics can be asked for by id from version 12 on")
	case a.id != topicID{}:
		return b.topics.byID(a.id)
	case a.name == nil:
		return nil, kafkaproto.ErrInvalidRequest.WithMessage("a topic has neither name nor id")
	}
	t, err := b.topics.byName(*a.name)
	if b.topics.isUnwritten(*a.name, err) && !(req.AllowAutoTopicCreation && req.Version >= metadataOfProducersByID) {
		return unwrittenStream(*a.name), nil
	}
	return t, err
}

// createMissing creates the topics that were asked for by name and not found.
func (b *Broker) createMissing(ctx context.Context, answers []metadataAnswer) {
	var names []string
	var at []int
	for i := range answers {
		if answers[i].err == kafkaproto.ErrUnknownTopicOrPartition {
			names, at = append(names, *answers[i].name), append(at, i)
		}
	}
	topics, errs := b.topics.autoCreateAll(ctx, names)
	for j, i := range at {
		answers[i].topic, answers[i].err = topics[j], errs[j]
	}
}

func metadataError(req *kmsg.MetadataRequest, a metadataAnswer) kmsg.MetadataResponseTopic {
	t := kmsg.NewMetadataResponseTopic()
	t.ErrorCode = a.err.Code
	t.TopicID = a.id
	t.Topic = a.name
	if t.Topic == nil && req.Version < 12 { // where it may not be null
		t.Topic = kmsg.StringPtr("")
	}
	return t
}

func (b *Broker) metadataTopic(req *kmsg.MetadataRequest, t *topic) kmsg.MetadataResponseTopic {
	m := kmsg.NewMetadataResponseTopic()
	m.Topic = kmsg.StringPtr(t.name)
	m.TopicID = t.id
	m.IsInternal = isInternal(t.name)
	if req.IncludeTopicAuthorizedOperations {
		m.AuthorizedOperations = topicOperations
	}
	m.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(t.partitions))
	for i := range m.Partitions {
		p := &m.Partitions[i]
		p.Default()
		p.Partition, p.Leader, p.LeaderEpoch = int32(i), b.opts.NodeID, leaderEpoch
		p.Replicas, p.ISR = b.self, b.self
	}
	return m
}

// isInternal tells the names that Kafka marks as internal (class Topic), so that tools treat them as they do there.
func isInternal(name string) bool {
	return name == "__consumer_offsets" || name == "__transaction_state" || name == "__share_group_state"
}

// Authorized operations, as Kafka reports them when it has no authorizer (class AclEntry): a bit for each operation that
// the resource supports, numbered as in Kafka's AclOperation.
const (
	topicOperations   = 1<<opRead | 1<<opWrite | 1<<opCreate | 1<<opDelete | 1<<opAlter | 1<<opDescribe | 1<<opDescribeConfigs | 1<<opAlterConfigs
	clusterOperations = 1<<opCreate | 1<<opAlter | 1<<opDescribe | 1<<opClusterAction | 1<<opDescribeConfigs | 1<<opAlterConfigs | 1<<opIdempotentWrite
)

const (
	opRead            = int32(kmsg.ACLOperationRead)
	opWrite           = int32(kmsg.ACLOperationWrite)
	opCreate          = int32(kmsg.ACLOperationCreate)
	opDelete          = int32(kmsg.ACLOperationDelete)
	opAlter           = int32(kmsg.ACLOperationAlter)
	opDescribe        = int32(kmsg.ACLOperationDescribe)
	opClusterAction   = int32(kmsg.ACLOperationClusterAction)
	opDescribeConfigs = int32(kmsg.ACLOperationDescribeConfigs)
	opAlterConfigs    = int32(kmsg.ACLOperationAlterConfigs)
	opIdempotentWrite = int32(kmsg.ACLOperationIdempotentWrite)
)
