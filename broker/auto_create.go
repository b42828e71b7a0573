package broker

import (
	"context"
	"slices"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// autoCreateTimeout bounds how long a request waits for the creation of something that it only named.
const autoCreateTimeout = 15 * time.Second

// autoCreateAll is byName for a request that may create what it names, for many different names. It creates nothing if
// the broker's setting forbids it. A creation that takes too long goes on, and the answer is LEADER_NOT_AVAILABLE, which
// clients retry. For each name it returns a topic or an error.
//
// A topic is durable when autoCreateAll returns. A named stream may not be, so that the first write to a stream costs one
// wait and not two: an append is ordered behind the creation of its stream and acknowledged after it.
func (c *catalogue) autoCreateAll(ctx context.Context, names []string) ([]*topic, []*kafkaproto.Error) {
	ctx, cancel := context.WithTimeout(ctx, autoCreateTimeout)
	defer cancel()
	topics := make([]*topic, len(names))
	errs := make([]*kafkaproto.Error, len(names))
	var missing []creation
	var streams []string
	var at, streamsAt []int
	for i, name := range names {
		topics[i], errs[i] = c.byName(name)
		switch {
		case errs[i] != kafkaproto.ErrUnknownTopicOrPartition || !c.opts.AutoCreateTopics:
		case !isStreamName(name):
			missing, at = append(missing, c.newCreation(name)), append(at, i)
		case len(streams) == maxPartitionsPerRequest:
			errs[i] = errTooManyPartitions
		default:
			streams, streamsAt = append(streams, name), append(streamsAt, i)
		}
	}
	ensured, refused := c.ensureStreams(ctx, streams)
	for j, i := range streamsAt {
		topics[i], errs[i] = ensured[j], refused[j]
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

// streamsPerTransaction bounds the streams that one transaction makes: others wait while it looks for their names.
const streamsPerTransaction = 256

// ensureStreams makes those of the named streams that do not exist, with default settings. The names were checked, and
// may repeat. It does not wait until the streams are durable. For each name it returns a topic or an error.
func (c *catalogue) ensureStreams(ctx context.Context, names []string) ([]*topic, []*kafkaproto.Error) {
	topics := make([]*topic, 0, len(names))
	errs := make([]*kafkaproto.Error, 0, len(names))
	for part := range slices.Chunk(names, streamsPerTransaction) {
		ids, err := c.store.EnsureAll(ctx, part, streamstore.DefaultSettings())
		for i := range part {
			if err != nil {
				topics, errs = append(topics, nil), append(errs, creationPending(storeError(err)))
				continue
			}
			c.m.streamsCreated.WithLabelValues(causeAuto).Inc()
			t, kerr := c.describeStream(ids[i])
			topics, errs = append(topics, t), append(errs, kerr)
		}
	}
	return topics, errs
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
