package broker

import (
	"context"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// autoCreateTimeout bounds how long a request waits for the creation of something that it only named.
const autoCreateTimeout = 15 * time.Second

// autoCreate is byName for a request that may create what it names. It creates nothing if the broker's setting forbids
// it. A creation that takes too long goes on, and the answer is LEADER_NOT_AVAILABLE, which clients retry.
//
// A topic is durable when autoCreate returns. A named stream may not be, so that the first write to a stream costs one
// wait and not two: an append is ordered behind the creation of its stream and acknowledged after it.
func (c *catalogue) autoCreate(ctx context.Context, name string) (*topic, *kafkaproto.Error) {
	topics, errs := c.autoCreateAll(ctx, []string{name})
	return topics[0], errs[0]
}

// autoCreateAll is autoCreate for many different names. For each it returns a topic or an error.
func (c *catalogue) autoCreateAll(ctx context.Context, names []string) ([]*topic, []*kafkaproto.Error) {
	ctx, cancel := context.WithTimeout(ctx, autoCreateTimeout)
	defer cancel()
	topics := make([]*topic, len(names))
	errs := make([]*kafkaproto.Error, len(names))
	var missing []creation
	var at []int
	streams := 0
	for i, name := range names {
		topics[i], errs[i] = c.byName(name)
		switch {
		case errs[i] != kafkaproto.ErrUnknownTopicOrPartition || !c.opts.AutoCreateTopics:
		case !isStreamName(name):
			missing, at = append(missing, c.newCreation(name)), append(at, i)
		case streams == maxPartitionsPerRequest:
			errs[i] = errTooManyPartitions
		default:
			streams++
			topics[i], errs[i] = c.ensureStream(ctx, name)
		}
	}
	made, failed := c.create(ctx, missing, make([]*kafkaproto.Error, len(missing)), causeAuto, false)
	for j, i := range at {
		topics[i], errs[i] = made[j], failed[j]
		if failed[j] == kafkaproto.ErrTopicAlreadyExists { // made by another request since we looked
			topics[i], errs[i] = c.byName(names[i])
		}
		errs[i] = creationPending(errs[i])
	}
	return topics, errs
}

// newCreation is a topic or named stream with the broker's defaults.
func (c *catalogue) newCreation(name string) creation {
	w := creation{name: name, partitions: c.opts.DefaultPartitions, config: c.defaultsFor(name).plain}
	if isStreamName(name) {
		w.partitions = 1
	}
	return w
}

// ensureStream makes a named stream with default settings unless it exists. The name was checked. It does not wait until
// the stream is durable.
func (c *catalogue) ensureStream(ctx context.Context, name string) (*topic, *kafkaproto.Error) {
	id, err := c.store.Ensure(ctx, name, streamstore.DefaultSettings())
	if err != nil {
		return nil, creationPending(storeError(err))
	}
	c.m.streamsCreated.WithLabelValues(causeAuto).Inc()
	return c.describeStream(id)
}

// creationPending turns errors of a creation that a later try may find done into the one that clients of metadata and
// produce requests wait and retry for.
func creationPending(err *kafkaproto.Error) *kafkaproto.Error {
	switch err {
	case kafkaproto.ErrRequestTimedOut, errBackpressure, errAdminBackpressure:
		return kafkaproto.ErrLeaderNotAvailable
	}
	return err
}
