package broker

import (
	"context"
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// groupRows keeps the rows of the group coordinator in the store's key-value space.
type groupRows struct{ store *streamstore.Store }

var _ groups.Storage = groupRows{}

func (r groupRows) Get(key []byte) (value []byte, ok bool, err error) { return r.store.Get(key) }

func (r groupRows) Scan(prefix []byte, fn func(key, value []byte) error) error {
	return r.store.Scan(prefix, fn)
}

func (r groupRows) Commit(ctx context.Context, changes []groups.Change) error {
	txn := streamstore.NewTxn()
	for _, c := range changes {
		if c.Value == nil {
			txn.Unset(c.Key)
		} else {
			txn.Set(c.Key, c.Value)
		}
	}
	if _, err := r.store.Commit(ctx, txn); err != nil {
		return coordinatorError(err)
	}
	return nil
}

// coordinatorError translates an error of the store for clients of the coordinator. Whatever a retry may cure is an error
// that makes them look for the coordinator again, and then retry.
func coordinatorError(err error) *kafkaproto.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, streamstore.ErrFenced):
		return kafkaproto.ErrNotCoordinator
	case errors.Is(err, streamstore.ErrBackpressure), errors.Is(err, streamstore.ErrFailed), errors.Is(err, streamstore.ErrClosed),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return kafkaproto.ErrCoordinatorNotAvailable
	}
	return storeError(err)
}

// groupTopics tells the coordinator which topics and named streams exist.
type groupTopics struct{ catalogue *catalogue }

var _ groups.Topics = groupTopics{}

func (t groupTopics) TopicID(name string) (id [16]byte, ok bool, err error) {
	topic, kerr := t.catalogue.byName(name)
	switch {
	case kerr == nil:
		return topic.id, true, nil
	case isUnknownTopic(kerr):
		return id, false, nil
	}
	return id, false, kerr
}

func (t groupTopics) Topic(name string) (groups.Topic, bool, error) {
	topic, kerr := t.catalogue.byName(name)
	switch {
	case kerr == nil:
		return groups.Topic{ID: topic.id, Partitions: int32(len(topic.partitions))}, true, nil
	case isUnknownTopic(kerr):
		return groups.Topic{}, false, nil
	}
	return groups.Topic{}, false, kerr
}

func (t groupTopics) Names() []string { return t.catalogue.load().names() }

func (t groupTopics) Version() uint64 { return t.catalogue.version.Load() }

// isUnknownTopic tells the errors of a name or id that nothing has from those of the store.
func isUnknownTopic(err *kafkaproto.Error) bool {
	return err == kafkaproto.ErrUnknownTopicOrPartition || err == kafkaproto.ErrUnknownTopicID || err.Code == kafkaproto.ErrInvalidTopic.Code
}

// groupTopic finds the topic that an offset request names, by name or from v10 by id.
func (b *Broker) groupTopic(version int16, name string, id topicID) (*topic, *kafkaproto.Error) {
	if version >= 10 {
		return b.topics.byID(id)
	}
	t, err := b.topics.byName(name)
	if err != nil && isUnknownTopic(err) {
		return nil, kafkaproto.ErrUnknownTopicOrPartition // also for a name that nothing can have, as Kafka has it
	}
	return t, err
}

// errorCode returns the code of e, 0 for nil.
func errorCode(e *kafkaproto.Error) int16 {
	if e == nil {
		return 0
	}
	return e.Code
}

// optional returns a nullable string, where the coordinator takes no string and an empty one for the same.
func optional(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// nullable is the inverse of optional.
func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return kmsg.StringPtr(s)
}

// clientHost returns the address of a client as Kafka's descriptions show it.
func clientHost(c *kafkaproto.ConnInfo) string {
	if c == nil || c.Remote == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(c.Remote.String())
	if err != nil {
		host = c.Remote.String()
	}
	return "/" + host
}
