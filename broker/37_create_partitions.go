package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// CreatePartitions (key 37), v0 to v3.
//
// Behaviour:
//   - Counts only grow. All topics of a request that pass are extended in one transaction of the store.
//   - A manual assignment must give each new partition to this broker alone.
//   - A named stream has one partition for good: INVALID_PARTITIONS.
//
// Versions:
//
//	2  flexible     3  THROTTLING_QUOTA_EXCEEDED (KIP-599), never sent here
func init() { register(kafkaproto.KeyCreatePartitions, direct(handleCreatePartitions)) }

func handleCreatePartitions(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.CreatePartitionsRequest)
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	ctx, cancel := adminContext(ctx, req.TimeoutMillis)
	defer cancel()

	topics, repeated := distinct(req.Topics, func(t *kmsg.CreatePartitionsRequestTopic) string { return t.Topic })
	names := make([]string, len(topics))
	totals := make([]int32, len(topics))
	errs := make([]*kafkaproto.Error, len(topics))
	for i, t := range topics {
		names[i], totals[i] = t.Topic, t.Count
		if repeated[t.Topic] {
			errs[i] = errRepeated(t.Topic)
		} else {
			errs[i] = b.checkExtension(t)
		}
	}
	errs = b.topics.extend(ctx, names, totals, errs, req.ValidateOnly)
	for i, name := range names {
		a := kmsg.NewCreatePartitionsResponseTopic()
		a.Topic = name
		a.ErrorCode, a.ErrorMessage = errorFields(errs[i])
		resp.Topics = append(resp.Topics, a)
	}
	return resp, nil
}

func (b *Broker) checkExtension(t *kmsg.CreatePartitionsRequestTopic) *kafkaproto.Error {
	found, err := b.topics.byName(t.Topic)
	if err != nil {
		return err
	}
	if found.stream {
		return kafkaproto.ErrInvalidPartitions.WithMessage("%q is a stream, which has one partition", t.Topic)
	}
	if err := found.checkGrowth(t.Count); err != nil {
		return err
	}
	if t.Assignment == nil {
		return nil
	}
	added := int(t.Count) - len(found.partitions)
	if len(t.Assignment) != added {
		return kafkaproto.ErrInvalidReplicaAssignment.WithMessage("the manual assignment has %d partitions, but %d are added to %q", len(t.Assignment), added, t.Topic)
	}
	for _, a := range t.Assignment {
		if err := b.checkReplicas(a.Replicas); err != nil {
			return err
		}
	}
	return nil
}
