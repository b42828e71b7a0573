package groups

import (
	"bytes"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// CommitRequest is an OffsetCommit request, without the partitions that do not exist.
type CommitRequest struct {
	// Group may be "": very old clients commit to it.
	Group                string
	MemberID, InstanceID string
	// Generation is negative for one that is not a member: a simple consumer or an administrator.
	Generation int32
	// GroupIDNotFound: the client knows the errors of KIP-848 and sends the epoch of a member of a consumer group as the
	// generation (v9).
	GroupIDNotFound bool
	Offsets         []OffsetCommit
}

// OffsetCommit is one offset to commit.
type OffsetCommit struct {
	Topic     string
	TopicID   [16]byte
	Partition int32
	Offset    int64
	// LeaderEpoch is -1 if it is not known.
	LeaderEpoch int32
	Metadata    string
}

// Commit commits offsets; the answer, one error for each, comes when they are durable. Errors: OFFSET_METADATA_TOO_LARGE
// and STALE_MEMBER_EPOCH for one; for all INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
// GROUP_ID_NOT_FOUND, REBALANCE_IN_PROGRESS, UNSUPPORTED_VERSION for a member of a consumer group before v9, and those of
// the storage.
func (c *Coordinator) Commit(r *CommitRequest) *Pending[[]*kafkaproto.Error] {
	if len(r.Offsets) == 0 {
		return answered([]*kafkaproto.Error{})
	}
	errs := make([]*kafkaproto.Error, len(r.Offsets))
	fail := func(err *kafkaproto.Error) *Pending[[]*kafkaproto.Error] {
		failAll(errs, err)
		return answered(errs)
	}
	if len(r.Group) > maxGroupID {
		return fail(kafkaproto.ErrInvalidGroupID)
	}
	g, err := c.enter(r.Group)
	if err != nil {
		return fail(asKafkaError(err))
	}
	defer c.leave(g)
	if err := g.checkCommit(r, errs); err != nil {
		return fail(err)
	}
	changes := c.encodeOffsets(r, errs)
	if len(changes) == 0 {
		return answered(errs)
	}
	committed := len(changes)
	p := newPending[[]*kafkaproto.Error]()
	g.commit(changes, func(err error) {
		if err != nil {
			failAll(errs, asKafkaError(err))
		} else {
			c.m.commits.Add(float64(committed))
		}
		p.answer(errs)
	})
	return p
}

// failAll sets the errors that are not set.
func failAll(errs []*kafkaproto.Error, err *kafkaproto.Error) {
	for i := range errs {
		if errs[i] == nil {
			errs[i] = err
		}
	}
}

// checkCommit tells whether the sender may commit (Kafka: validateOffsetCommit). While a rebalance is prepared members
// may: they are told of it by their heartbeats, and commit what they have done before they rejoin.
func (g *group) checkCommit(r *CommitRequest, errs []*kafkaproto.Error) *kafkaproto.Error {
	if r.Generation < 0 && (g.state == Empty || g.state == Dead) {
		return nil
	}
	if g.state == Dead {
		if r.GroupIDNotFound {
			return kafkaproto.ErrGroupIDNotFound
		}
		return kafkaproto.ErrIllegalGeneration
	}
	if g.consumer != nil {
		return g.checkConsumerCommit(r, errs)
	}
	m, err := g.check(r.MemberID, r.InstanceID)
	switch {
	case err != nil:
		return err
	case r.Generation != g.generation:
		return kafkaproto.ErrIllegalGeneration
	case g.state == CompletingRebalance:
		return kafkaproto.ErrRebalanceInProgress
	}
	g.keepAlive(m)
	return nil
}

// encodeOffsets returns the rows to write, and sets the errors of those that cannot be.
func (c *Coordinator) encodeOffsets(r *CommitRequest, errs []*kafkaproto.Error) []Change {
	now := time.Now()
	changes := make([]Change, 0, len(r.Offsets)+1)
	for i := range r.Offsets {
		o := &r.Offsets[i]
		if errs[i] != nil {
			continue
		}
		if tooLong(o.Metadata, c.opts.MaxOffsetMetadata) {
			errs[i] = kafkaproto.ErrOffsetMetadataTooLarge
			continue
		}
		row := offsetRow{offset: o.Offset, leaderEpoch: o.LeaderEpoch, committed: now, topicID: o.TopicID, metadata: o.Metadata}
		changes = append(changes, Change{offsetKey(r.Group, o.Topic, o.Partition), row.encode()})
	}
	return changes
}

// tooLong tells whether s has more than limit UTF-16 code units.
func tooLong(s string, limit int) bool {
	if len(s) <= limit {
		return false
	}
	units := 0
	for len(s) > 0 && units <= limit {
		r, n := utf8.DecodeRuneInString(s)
		if units++; r > 0xffff {
			units++
		}
		s = s[n:]
	}
	return units > limit
}

// commit writes offsets, and the row of the group if it has none.
func (g *group) commit(changes []Change, done func(error)) {
	if g.state == Dead {
		g.setState(Empty)
	}
	g.flush(nil) // a consumer group whose row could not be written: offsets without one are never cleaned up
	withRow := !g.stored || g.unsaved && g.state == Empty
	if withRow {
		changes = append(changes, g.emptyRow())
	}
	g.enqueue(&write{changes: changes, done: func(err error) {
		if withRow && err == nil && g.state != Dead {
			g.stored, g.unsaved = true, false
		}
		done(err)
	}})
}

// CommittedOffset is an offset that a group has committed.
type CommittedOffset struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// Committed returns the offset that a group has committed for a partition; ok is false if there is none. id is that of
// the topic now: an offset of an earlier topic of the same name does not count. It may not be durable yet: call
// [Coordinator.Confirm] before it is shown to anyone.
func (c *Coordinator) Committed(group, topic string, id [16]byte, partition int32) (o CommittedOffset, ok bool, err error) {
	value, ok, err := c.storage.Get(offsetKey(group, topic, partition))
	if err != nil || !ok {
		return CommittedOffset{}, false, err
	}
	row, err := decodeOffsetRow(value)
	if err != nil {
		return CommittedOffset{}, false, fmt.Errorf("groups: offset of group %q, topic %q, partition %d: %w", group, topic, partition, err)
	}
	if row.topicID != id {
		return CommittedOffset{}, false, nil
	}
	return row.result(), true, nil
}

func (r *offsetRow) result() CommittedOffset {
	return CommittedOffset{Offset: r.offset, LeaderEpoch: r.leaderEpoch, Metadata: r.metadata}
}

// AllCommitted calls fn with each offset that a group has committed, of topics that exist, topic by topic. They may not be
// durable yet, as with Committed.
func (c *Coordinator) AllCommitted(group string, fn func(topic string, id [16]byte, partition int32, o CommittedOffset)) error {
	known := topicIDs{topics: c.topics}
	return c.scanOffsets(group, func(topic string, partition int32, row *offsetRow) error {
		id, ok, err := known.get(topic)
		if err == nil && ok && id == row.topicID {
			fn(topic, id, partition, row.result())
		}
		return err
	})
}

// scanOffsets calls fn with each offset row of a group.
func (c *Coordinator) scanOffsets(group string, fn func(topic string, partition int32, row *offsetRow) error) error {
	prefix := offsetsKey(group)
	return c.storage.Scan(prefix, func(key, value []byte) error {
		topic, partition, err := parseOffsetKey(bytes.TrimPrefix(key, prefix))
		if err != nil {
			return fmt.Errorf("groups: offset of group %q: %w", group, err)
		}
		row, err := decodeOffsetRow(value)
		if err != nil {
			return fmt.Errorf("groups: offset of group %q, topic %q, partition %d: %w", group, topic, partition, err)
		}
		return fn(topic, partition, &row)
	})
}

// topicIDs asks for each topic once as long as the same one is asked for.
type topicIDs struct {
	topics Topics
	asked  bool
	name   string
	id     [16]byte
	exists bool
}

func (t *topicIDs) get(name string) (id [16]byte, ok bool, err error) {
	if t.asked && t.name == name {
		return t.id, t.exists, nil
	}
	if id, ok, err = t.topics.TopicID(name); err != nil {
		return id, false, err
	}
	t.asked, t.name, t.id, t.exists = true, name, id, ok
	return id, ok, nil
}
