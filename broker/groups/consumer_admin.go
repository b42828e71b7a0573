package groups

import "github.com/brookletmq/brooklet/kafkaproto"

// ConsumerDescription describes a consumer group (KIP-848).
type ConsumerDescription struct {
	State State
	// Epoch of the group, and AssignmentEpoch of its members' targets.
	Epoch, AssignmentEpoch int32
	// Assignor is the one that most members would like.
	Assignor string
	Members  []ConsumerMemberDescription
}

// ConsumerMemberDescription describes a member of a consumer group.
type ConsumerMemberDescription struct {
	MemberID, InstanceID, RackID, ClientID, ClientHost string
	Epoch                                              int32
	Topics                                             []string
	Regex                                              string
	// Assignment is what the member may use, Target what it shall have in the end. Names of topics that are gone are "".
	Assignment, Target []TopicPartitions
	// Classic: the member uses JoinGroup.
	Classic bool
}

// DescribeConsumer describes a consumer group. Errors: GROUP_ID_NOT_FOUND if there is none of that type, and those of the
// storage.
func (c *Coordinator) DescribeConsumer(group string) (ConsumerDescription, *kafkaproto.Error) {
	if len(group) > maxGroupID {
		return ConsumerDescription{}, kafkaproto.ErrGroupIDNotFound
	}
	g, err := c.enter(group)
	if err != nil {
		return ConsumerDescription{}, asKafkaError(err)
	}
	defer c.leave(g)
	if g.consumer == nil {
		why := "Group %s is not a consumer group."
		if g.state == Dead {
			why = "Group %s not found."
		}
		return ConsumerDescription{}, kafkaproto.ErrGroupIDNotFound.WithMessage(why, group)
	}
	if g.hasConsumers() {
		g.refreshTopics()
		g.flush(nil)
	}
	cg := g.consumer
	d := ConsumerDescription{State: g.state, Epoch: cg.epoch, AssignmentEpoch: cg.targetEpoch, Assignor: cg.assignor()}
	for _, m := range cg.inOrder() {
		d.Members = append(d.Members, ConsumerMemberDescription{
			MemberID: m.id, InstanceID: m.instanceID, RackID: m.rackID, ClientID: m.clientID, ClientHost: m.clientHost,
			Epoch: m.epoch, Topics: m.topics, Regex: m.regex, Classic: m.classic != nil,
			Assignment: cg.topics.describe(m.assigned), Target: cg.topics.describe(m.target),
		})
	}
	return d, nil
}

// subscription adds the topics that members read. Before the first look after a restart it is not known what expressions
// match: it may be any topic.
func (cg *consumerGroup) subscription(s *subscription) {
	for _, m := range cg.members {
		s.unknown = s.unknown || m.pattern != nil && cg.topics.matches[m.regex] == nil
		for _, t := range m.topics {
			s.topics[t] = true
		}
	}
	for _, matched := range cg.topics.matches {
		for _, t := range matched {
			s.topics[t] = true
		}
	}
}

// checkConsumerCommit tells whether a member of a consumer group may commit (Kafka: ConsumerGroup.validateOffsetCommit).
// One that has not heard of its newest epoch may commit for what it has held since the epoch that it knows (KIP-1251);
// errs says for what it may not.
func (g *group) checkConsumerCommit(r *CommitRequest, errs []*kafkaproto.Error) *kafkaproto.Error {
	m := g.consumer.members[r.MemberID]
	switch {
	case m == nil:
		return kafkaproto.ErrUnknownMemberID
	case m.classic != nil:
		m, err := g.checkClassic(r.MemberID, r.InstanceID)
		if err == nil && r.Generation != m.epoch {
			err = kafkaproto.ErrIllegalGeneration
		}
		if err == nil {
			g.keepConsumerAlive(m)
		}
		return err
	case !r.GroupIDNotFound:
		return kafkaproto.ErrUnsupportedVersion.WithMessage("OffsetCommit version 9 or above must be used by members using the modern group protocol")
	case r.Generation == m.epoch:
		return nil
	case r.Generation > m.epoch || r.Generation < 0:
		return kafkaproto.ErrStaleMemberEpoch
	}
	for i := range r.Offsets {
		o := &r.Offsets[i]
		held := g.consumer.owners[topicPartition{o.TopicID, o.Partition}]
		if held.member != m || r.Generation < held.epoch {
			errs[i] = kafkaproto.ErrStaleMemberEpoch
		}
	}
	return nil
}

// CheckFetch tells whether a member of a consumer group may fetch offsets (Kafka: ConsumerGroup.validateOffsetFetch).
// Whoever does not say that it is a member may, and so may anybody for another group. Errors: UNKNOWN_MEMBER_ID,
// STALE_MEMBER_EPOCH, ILLEGAL_GENERATION for a member that uses JoinGroup, and those of the storage.
func (c *Coordinator) CheckFetch(group string, memberID *string, epoch int32) *kafkaproto.Error {
	if memberID == nil && epoch < 0 || !validGroupID(group) {
		return nil
	}
	g, err := c.enter(group)
	if err != nil {
		return asKafkaError(err)
	}
	defer c.leave(g)
	if g.consumer == nil {
		return nil
	}
	m := g.consumer.members[deref(memberID)]
	switch {
	case m == nil:
		return kafkaproto.ErrUnknownMemberID
	case m.epoch == epoch:
		return nil
	case m.classic != nil:
		return kafkaproto.ErrIllegalGeneration
	}
	return kafkaproto.ErrStaleMemberEpoch
}
