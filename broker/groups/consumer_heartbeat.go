package groups

import (
	"slices"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// ConsumerHeartbeatRequest is a ConsumerGroupHeartbeat request (KIP-848). A nil field means what it was before. The
// coordinator keeps none of its slices.
type ConsumerHeartbeatRequest struct {
	Group string
	// MemberID may be "" in a join if MemberIDRequired is false: the member is given one.
	MemberID         string
	MemberIDRequired bool // v1
	// MemberEpoch is 0 to join, -1 to leave, -2 for a static member that leaves and may come back, and otherwise the
	// epoch of the last answer.
	MemberEpoch int32
	// InstanceID makes a static member (KIP-345).
	InstanceID, RackID *string
	// RebalanceTimeout is how long the member may take to revoke partitions. Negative is what it was before.
	RebalanceTimeout time.Duration
	// Topics and Regex are what the member subscribes to: the topics of either. Regex is an RE2 expression that must
	// match the whole name.
	Topics []string
	Regex  *string
	// Assignor is the one that the member would like.
	Assignor *string
	// Owned are the partitions that the member holds; their topics are given by id.
	Owned []TopicPartitions
	// ClientID and ClientHost are shown in descriptions.
	ClientID, ClientHost string
}

// TopicPartitions are partitions of a topic.
type TopicPartitions struct {
	// Topic is the name. It is "" in requests, and for a topic that does not exist any more.
	Topic      string
	TopicID    [16]byte
	Partitions []int32
}

// ConsumerHeartbeatResult is the answer to a ConsumerHeartbeatRequest.
type ConsumerHeartbeatResult struct {
	Err         *kafkaproto.Error
	MemberID    string
	MemberEpoch int32
	// Interval is the time to the next heartbeat.
	Interval time.Duration
	// Assignment is what the member may use from now on. It means something if HasAssignment is set.
	Assignment    []TopicPartitions
	HasAssignment bool
}

const (
	joinEpoch  = 0
	leaveEpoch = -1
)

// ConsumerHeartbeat lets a member join, leave, or tell that it is alive and what it holds, and tells it what it is
// assigned (KIP-848; Kafka: GroupMetadataManager.consumerGroupHeartbeat). The answer comes when what it says is durable.
// The first join makes the group; a classic group of consumers becomes one of this kind, and its members go on with
// JoinGroup. Errors: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_MAX_SIZE_REACHED,
// GROUP_ID_NOT_FOUND if the group is a classic one that cannot be converted, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
// UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, COORDINATOR_NOT_AVAILABLE if topics cannot be read, NOT_COORDINATOR for a join when the coordinator drains, and those of the
// storage.
func (c *Coordinator) ConsumerHeartbeat(r *ConsumerHeartbeatRequest) *Pending[ConsumerHeartbeatResult] {
	fail := func(err *kafkaproto.Error) *Pending[ConsumerHeartbeatResult] {
		return answered(ConsumerHeartbeatResult{Err: err})
	}
	if err := c.checkConsumerHeartbeat(r); err != nil {
		return fail(err)
	}
	pattern, kerr := parsePattern(deref(r.Regex))
	if kerr != nil {
		return fail(kerr)
	}
	var owned *assignment
	if r.Owned != nil {
		all := flatten(r.Owned)
		owned = &all
	}
	g, err := c.enter(r.Group)
	if err != nil {
		return fail(asKafkaError(err))
	}
	defer c.leave(g)
	b := &beat{g: g, r: r, pattern: pattern, owned: owned}
	switch {
	case r.MemberEpoch == leaveEpoch || r.MemberEpoch == staticLeave:
		kerr = b.leave()
	case r.MemberEpoch == joinEpoch && c.draining.Load():
		kerr = kafkaproto.ErrNotCoordinator
	default:
		kerr = b.heartbeat()
	}
	if kerr != nil {
		g.flush(nil) // a refused join may have converted the group
		return fail(kerr)
	}
	return b.answer()
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkConsumerHeartbeat checks what does not depend on the group (Kafka: throwIfConsumerGroupHeartbeatRequestIsInvalid).
func (c *Coordinator) checkConsumerHeartbeat(r *ConsumerHeartbeatRequest) *kafkaproto.Error {
	invalid := kafkaproto.ErrInvalidRequest.WithMessage
	empty := func(s *string) bool { return s != nil && *s == "" }
	switch {
	case !validGroupID(r.Group):
		return invalid("GroupId can't be empty, nor longer than %d bytes.", maxGroupID)
	case empty(r.InstanceID):
		return invalid("InstanceId can't be empty.")
	case empty(r.RackID):
		return invalid("RackId can't be empty.")
	case r.MemberID == "" && (r.MemberIDRequired || r.MemberEpoch != joinEpoch):
		return invalid("MemberId can't be empty.")
	case len(r.MemberID) > maxMemberID || len(deref(r.InstanceID)) > maxMemberID:
		return invalid("MemberId and InstanceId can't be longer than %d bytes.", maxMemberID)
	case r.MemberEpoch < staticLeave:
		return invalid("MemberEpoch is invalid.")
	case r.MemberEpoch == staticLeave && r.InstanceID == nil:
		return invalid("InstanceId can't be null.")
	case r.MemberEpoch == joinEpoch && r.RebalanceTimeout < 0:
		return invalid("RebalanceTimeoutMs must be provided in first request.")
	case r.MemberEpoch == joinEpoch && (r.Owned == nil || len(r.Owned) > 0):
		return invalid("TopicPartitions must be empty when (re-)joining.")
	case r.MemberEpoch == joinEpoch && len(r.Topics) == 0 && deref(r.Regex) == "":
		return invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be set to a non-empty value when (re-)joining.")
	case r.Assignor != nil && assignors[*r.Assignor] == nil:
		return kafkaproto.ErrUnsupportedAssignor.WithMessage("ServerAssignor %q is not supported. Supported assignors: %s, %s.", *r.Assignor, uniformAssignor, rangeAssignor)
	}
	return nil
}

// maxMemberID is the longest id of a member or instance, in bytes: what strings of old versions can hold.
const maxMemberID = 1<<15 - 1

// beat is one request on its way through a group.
type beat struct {
	g       *group
	r       *ConsumerHeartbeatRequest
	pattern *topicPattern
	// owned is what the member says it holds, nil if it says nothing.
	owned *assignment
	// m is the member, once it is known.
	m *consumerMember
	// result is the answer, when all went well.
	result ConsumerHeartbeatResult
}

// heartbeat deals with a member that joins or is there.
func (b *beat) heartbeat() *kafkaproto.Error {
	g, r := b.g, b.r
	if err := b.enterGroup(); err != nil {
		return err
	}
	if !b.fits() {
		return kafkaproto.ErrGroupMaxSizeReached.WithMessage("The subscriptions of the group's members are larger than %d bytes in all.", maxGroupMetadata)
	}
	if err := b.findMember(); err != nil {
		return err
	}
	m := b.m
	had := m.assigned
	if b.update() {
		g.bumpEpoch("a member joined or changed its subscription")
	} else {
		g.refreshTopics()
	}
	if err := g.updateTarget(); err != nil && g.consumer.targetEpoch == 0 {
		g.dropConsumer(m) // there never was a target, so no epoch that it could be told
		g.updateConsumerState()
		return kafkaproto.ErrCoordinatorNotAvailable.WithMessage("The topics cannot be read now.")
	}
	if g.reconcile(m, b.owned) {
		g.updateConsumerState()
	}
	g.keepConsumerAlive(m)
	full := r.MemberEpoch == joinEpoch || r.RebalanceTimeout >= 0 && (r.Topics != nil || r.Regex != nil) && r.Owned != nil
	b.result = ConsumerHeartbeatResult{MemberID: m.id, MemberEpoch: m.epoch, Interval: g.c.opts.ConsumerHeartbeatInterval}
	if full || !m.assigned.equal(had) {
		b.result.HasAssignment = true
		b.result.Assignment = g.consumer.topics.describe(m.assigned)
	}
	return nil
}

// enterGroup makes sure that the group is of the right kind.
func (b *beat) enterGroup() *kafkaproto.Error {
	g := b.g
	switch {
	case g.consumer != nil:
		return nil
	case b.r.MemberEpoch != joinEpoch:
		return kafkaproto.ErrUnknownMemberID
	case len(g.members) > 0:
		return g.upgrade()
	}
	g.becomeConsumer()
	return nil
}

// findMember finds the member or makes one.
func (b *beat) findMember() *kafkaproto.Error {
	g, r := b.g, b.r
	if r.InstanceID != nil {
		if old := g.consumer.members[g.consumer.static[*r.InstanceID]]; old != nil {
			return b.findStatic(old)
		}
		if r.MemberEpoch != joinEpoch {
			return kafkaproto.ErrUnknownMemberID.WithMessage("Instance id %s is unknown.", *r.InstanceID)
		}
	}
	if m := g.consumer.members[r.MemberID]; m != nil {
		b.m = m
		return b.checkEpoch()
	}
	if r.MemberEpoch != joinEpoch {
		return kafkaproto.ErrUnknownMemberID
	}
	return b.newMember(nil)
}

// findStatic finds a static member whose instance id belongs to old. Whoever joins takes the place of one that has left
// for a while, or that uses the classic protocol.
func (b *beat) findStatic(old *consumerMember) *kafkaproto.Error {
	r := b.r
	switch {
	case old.id == r.MemberID && old.epoch != staticLeave:
		b.m = old
		return b.checkEpoch()
	case r.MemberEpoch != joinEpoch && old.id != r.MemberID:
		return kafkaproto.ErrFencedInstanceID.WithMessage("Static member %s with instance id %s was fenced by member %s.", r.MemberID, *r.InstanceID, old.id)
	case r.MemberEpoch != joinEpoch:
		return kafkaproto.ErrFencedMemberEpoch.WithMessage("The static member has left. It must join again.")
	case old.classic == nil && old.epoch != staticLeave:
		return kafkaproto.ErrUnreleasedInstanceID.WithMessage("Static member %s with instance id %s cannot join the group because the instance id is owned by member %s.", r.MemberID, *r.InstanceID, old.id)
	}
	return b.newMember(old)
}

// newMember makes a member, in the place of old unless that is nil.
func (b *beat) newMember(old *consumerMember) *kafkaproto.Error {
	g, r := b.g, b.r
	cg := g.consumer
	if old == nil && len(cg.members) >= g.c.opts.ConsumerMaxSize {
		return kafkaproto.ErrGroupMaxSizeReached.WithMessage("The consumer group has reached its maximum capacity of %d members.", g.c.opts.ConsumerMaxSize)
	}
	id := r.MemberID
	if id == "" {
		id = newMemberID("")[1:]
	}
	if old != nil && old.id != id && cg.members[id] != nil {
		return kafkaproto.ErrInvalidRequest.WithMessage("Member %s is in the group already, and cannot be instance %s as well.", id, old.instanceID)
	}
	m := &consumerMember{id: id, instanceID: deref(r.InstanceID)}
	if old != nil {
		m = g.replaceConsumer(old, id)
	}
	b.m = m
	if old == nil {
		g.addConsumer(m)
	}
	return nil
}

// replaceConsumer gives the place of a static member to one with another id, which has to reach the target anew.
func (g *group) replaceConsumer(old *consumerMember, id string) *consumerMember {
	m := *old
	m.id, m.epoch, m.previousEpoch, m.state = id, 0, 0, settled
	m.assigned, m.revoking = nil, nil
	m.session, m.rebalance, m.join, m.sync = lease{}, alarm{}, alarm{}, alarm{}
	m.change, m.stored = 0, 0
	assigned := old.assigned
	g.dropConsumer(old)
	g.addConsumer(&m)
	g.consumer.own(&m, assigned, nil)
	return &m
}

// checkEpoch checks the epoch of a member that is there. One that joins again has lost an answer or its partitions; it
// holds none. One at the epoch before has lost an answer, if it holds nothing that it must not.
func (b *beat) checkEpoch() *kafkaproto.Error {
	m, epoch := b.m, b.r.MemberEpoch
	switch {
	case epoch == m.epoch || epoch == joinEpoch:
		return nil
	case epoch > m.epoch:
		return kafkaproto.ErrFencedMemberEpoch.WithMessage("The consumer group member has a greater member epoch (%d) than the one known by the group coordinator (%d). The member must abandon all its partitions and rejoin.", epoch, m.epoch)
	case epoch == m.previousEpoch && b.owned != nil && b.owned.subsetOf(m.assigned):
		return nil
	}
	return kafkaproto.ErrFencedMemberEpoch.WithMessage("The consumer group member has a smaller member epoch (%d) than the one known by the group coordinator (%d). The member must abandon all its partitions and rejoin.", epoch, m.epoch)
}

// fits tells whether the group has room for what the request brings.
func (b *beat) fits() bool {
	cg, regex := b.g.consumer, deref(b.r.Regex)
	size := cg.metadataBytes + len(regex) + cg.patternBytes(regex, b.pattern) + len(b.r.MemberID) + len(b.r.ClientID)
	for _, t := range b.r.Topics {
		size += len(t)
	}
	if m := cg.members[b.r.MemberID]; m != nil {
		size -= m.size()
	}
	return size <= maxGroupMetadata
}

// update takes over what the request says about the member, and returns whether its subscription has changed.
func (b *beat) update() bool {
	g, r, m := b.g, b.r, b.m
	before := *m
	if r.InstanceID != nil {
		m.instanceID = *r.InstanceID
	}
	if r.RackID != nil {
		m.rackID = *r.RackID
	}
	if r.RebalanceTimeout >= 0 {
		m.rebalanceTimeout = r.RebalanceTimeout
	}
	if r.Topics != nil {
		m.topics = sortedNames(r.Topics)
	}
	if r.Regex != nil {
		g.consumer.setRegex(m, *r.Regex, b.pattern)
	}
	if r.Assignor != nil {
		m.assignor = *r.Assignor
	}
	m.clientID, m.clientHost, m.classic = r.ClientID, r.ClientHost, nil
	subscription := m.regex != before.regex || !slices.Equal(m.topics, before.topics)
	if subscription || m.differsFrom(&before) {
		b.g.consumer.count(&before, -1)
		b.g.consumer.count(m, 1)
		delete(g.consumer.static, before.instanceID)
		if m.instanceID != "" {
			g.consumer.static[m.instanceID] = m.id
		}
		if before.classic != nil {
			m.join.stop()
			m.sync.stop()
		}
		g.changed(m)
	}
	return subscription
}

// differsFrom compares what is stored and no subscription.
func (m *consumerMember) differsFrom(o *consumerMember) bool {
	return m.instanceID != o.instanceID || m.rackID != o.rackID || m.rebalanceTimeout != o.rebalanceTimeout ||
		m.assignor != o.assignor || m.clientID != o.clientID || m.clientHost != o.clientHost || m.classic != o.classic
}

func sortedNames(names []string) []string {
	sorted := append([]string(nil), names...) // nil for none
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

func flatten(topics []TopicPartitions) assignment {
	var all []topicPartition
	for _, t := range topics {
		for _, p := range t.Partitions {
			all = append(all, topicPartition{t.TopicID, p})
		}
	}
	return newAssignment(all)
}

// describe names the topics of an assignment.
func (md *subscribedMetadata) describe(a assignment) []TopicPartitions {
	topics := []TopicPartitions{}
	a.byTopic(func(topic [16]byte, partitions []int32) {
		topics = append(topics, TopicPartitions{md.names[topic], topic, partitions})
	})
	return topics
}

// leave deals with a member that leaves (Kafka: consumerGroupLeave). A static one that means to come back keeps its
// partitions until its session ends.
func (b *beat) leave() *kafkaproto.Error {
	g, r := b.g, b.r
	if g.consumer == nil {
		return kafkaproto.ErrGroupIDNotFound.WithMessage("Group %s is not a consumer group.", r.Group)
	}
	id := r.MemberID
	if r.InstanceID != nil {
		owner, ok := g.consumer.static[*r.InstanceID]
		switch {
		case !ok:
			return kafkaproto.ErrUnknownMemberID.WithMessage("Instance id %s is unknown.", *r.InstanceID)
		case owner != id:
			return kafkaproto.ErrFencedInstanceID.WithMessage("Static member %s with instance id %s was fenced by member %s.", id, *r.InstanceID, owner)
		}
	}
	m := g.consumer.members[id]
	if m == nil {
		return kafkaproto.ErrUnknownMemberID
	}
	b.result = ConsumerHeartbeatResult{MemberID: id, MemberEpoch: r.MemberEpoch}
	if r.MemberEpoch == staticLeave {
		m.rebalance.stop()
		m.setEpoch(staticLeave)
		m.state = settled
		g.consumer.own(m, m.assigned, nil)
		g.changed(m)
		g.updateConsumerState()
	} else {
		g.fence(m, "it left")
	}
	return nil
}

// answer returns the result, when all that it is about is durable.
func (b *beat) answer() *Pending[ConsumerHeartbeatResult] {
	g := b.g
	if b.m != nil && b.m.change == b.m.stored {
		g.flush(nil) // what has changed is about others
		return answered(b.result)
	}
	p := newPending[ConsumerHeartbeatResult]()
	g.flush(func(err error) {
		if err != nil {
			b.result = ConsumerHeartbeatResult{Err: asKafkaError(err)}
		}
		p.answer(b.result)
	})
	return p
}
