package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

// CreateTopics (key 19), v0 to v7.
//
// Behaviour:
//   - The rules are those of Kafka's ReplicationControlManager and class Topic. All topics of a request that pass are
//     created in one transaction of the store; one that does not pass leaves the others alone.
//   - A name with a slash creates a named stream with settings: one partition, of Kafka's configs only retention.ms and
//     retention.bytes, and the configs that only streams have (topic_config.go).
//   - A replication factor of -1 or any factor of at least 1 is accepted, and one replica is reported. The object store
//     replicates; refusing the factor 3 that many tools ask for by default would help nobody.
//   - A manual assignment must be this broker alone for each partition.
//   - An existing topic is TOPIC_ALREADY_EXISTS whatever else is wrong, because tools that create their topics at every
//     start take that for success.
//
// Versions:
//
//	1  validateOnly, messages           5  partitions, factor and configs in the reply (KIP-525)
//	4  -1 for defaults (KIP-464)        6  THROTTLING_QUOTA_EXCEEDED (KIP-599), never sent here
//	                                    7  topic ids in the reply (KIP-516)
//
// Left out on purpose: create policies and quotas.
func init() { register(kafkaproto.KeyCreateTopics, direct(handleCreateTopics)) }

// oneReplica is the replication factor that is always reported.
const oneReplica = 1

func handleCreateTopics(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.CreateTopicsRequest)
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	ctx, cancel := adminContext(ctx, req.TimeoutMillis)
	defer cancel()

	topics, repeated := distinct(req.Topics, func(t *kmsg.CreateTopicsRequestTopic) string { return t.Topic })
	wanted := make([]creation, len(topics))
	errs := make([]*kafkaproto.Error, len(topics))
	for i, t := range topics {
		if repeated[t.Topic] {
			errs[i] = errRepeated(t.Topic)
		} else {
			wanted[i], errs[i] = b.checkCreation(t)
		}
	}
	made, errs := b.topics.create(ctx, wanted, errs, causeRequest, req.ValidateOnly)
	for i, t := range topics {
		resp.Topics = append(resp.Topics, creationReply(t.Topic, &wanted[i], made[i], errs[i]))
	}
	return resp, nil
}

// checkCreation checks one topic of a request, in Kafka's order.
func (b *Broker) checkCreation(t *kmsg.CreateTopicsRequestTopic) (creation, *kafkaproto.Error) {
	w := creation{name: t.Topic, partitions: t.NumPartitions}
	if t.Topic == clusterMetadata {
		return w, kafkaproto.ErrInvalidRequest.WithMessage("creation of the internal topic %s is prohibited", t.Topic)
	}
	if _, err := b.topics.byName(t.Topic); err == nil {
		return w, kafkaproto.ErrTopicAlreadyExists.WithMessage("topic %q already exists", t.Topic)
	} else if err != kafkaproto.ErrUnknownTopicOrPartition {
		return w, err
	}
	var err *kafkaproto.Error
	if w.overrides, err = creationOverrides(t.Configs); err != nil {
		return w, err
	}
	if w.config, err = b.topics.defaultsFor(t.Topic).newConfig(w.overrides); err != nil {
		return w, err
	}
	if w.config.closed {
		return w, kafkaproto.ErrInvalidConfig.WithMessage("a stream cannot be created closed: create it first, then set %s", ext.ConfigClosed)
	}
	w.partitions, err = b.creationPartitions(t)
	return w, err
}

// creationOverrides collects the configs. Of a config named twice the last value holds, as in Kafka.
func creationOverrides(configs []kmsg.CreateTopicsRequestTopicConfig) (map[string]string, *kafkaproto.Error) {
	overrides := make(map[string]string, len(configs))
	for _, c := range configs {
		if c.Value == nil {
			return nil, kafkaproto.ErrInvalidConfig.WithMessage("Null value not supported for topic configs: %s", c.Name)
		}
		overrides[c.Name] = *c.Value
	}
	return overrides, nil
}

// creationPartitions returns how many partitions the topic gets.
func (b *Broker) creationPartitions(t *kmsg.CreateTopicsRequestTopic) (int32, *kafkaproto.Error) {
	n := t.NumPartitions
	switch {
	case len(t.ReplicaAssignment) > 0:
		if t.ReplicationFactor != -1 || n != -1 {
			return 0, kafkaproto.ErrInvalidRequest.WithMessage("with a manual assignment, the number of partitions and the replication factor must be -1")
		}
		if err := b.checkCreationAssignment(t.ReplicaAssignment); err != nil {
			return 0, err
		}
		n = int32(len(t.ReplicaAssignment))
	case t.ReplicationFactor < -1 || t.ReplicationFactor == 0:
		return 0, kafkaproto.ErrInvalidReplicationFactor.WithMessage("replication factor is %d: it must be larger than 0, or -1 for the default", t.ReplicationFactor)
	case n < -1 || n == 0:
		return 0, kafkaproto.ErrInvalidPartitions.WithMessage("number of partitions is %d: it must be larger than 0, or -1 for the default", n)
	case n == -1 && !isStreamName(t.Topic):
		return b.opts.DefaultPartitions, nil
	}
	if isStreamName(t.Topic) {
		if n > 1 {
			return 0, kafkaproto.ErrInvalidPartitions.WithMessage("%q names a stream, which has one partition, not %d", t.Topic, n)
		}
		return 1, nil
	}
	return n, nil
}

// checkCreationAssignment checks that the partitions are 0 to n-1 and each is assigned to this broker.
func (b *Broker) checkCreationAssignment(assignment []kmsg.CreateTopicsRequestTopicReplicaAssignment) *kafkaproto.Error {
	seen := make([]bool, len(assignment))
	for _, a := range assignment {
		if a.Partition < 0 || int(a.Partition) >= len(assignment) || seen[a.Partition] {
			return kafkaproto.ErrInvalidReplicaAssignment.WithMessage("partitions of a manual assignment must be 0 to %d, each once; found %d", len(assignment)-1, a.Partition)
		}
		seen[a.Partition] = true
		if err := b.checkReplicas(a.Replicas); err != nil {
			return err
		}
	}
	return nil
}

// checkReplicas checks the brokers that a manual assignment gives to one partition.
func (b *Broker) checkReplicas(replicas []int32) *kafkaproto.Error {
	if len(replicas) != 1 || replicas[0] != b.opts.NodeID {
		return kafkaproto.ErrInvalidReplicaAssignment.WithMessage("a partition must be assigned to broker %d, the only one, and nothing else; found %v", b.opts.NodeID, replicas)
	}
	return nil
}

// creationReply answers for one topic. made is nil for one that was only checked.
func creationReply(name string, w *creation, made *topic, err *kafkaproto.Error) kmsg.CreateTopicsResponseTopic {
	t := kmsg.NewCreateTopicsResponseTopic()
	t.Topic = name
	t.ErrorCode, t.ErrorMessage = errorFields(err)
	if err != nil {
		return t
	}
	if made != nil {
		t.TopicID = made.id
	}
	t.NumPartitions, t.ReplicationFactor = w.partitions, oneReplica
	for _, def := range w.config.defaults.defs() {
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name = def.name
		c.Value = kmsg.StringPtr(w.config.value(c.Name))
		c.Source = int8(w.config.source(c.Name))
		t.Configs = append(t.Configs, c)
	}
	return t
}
