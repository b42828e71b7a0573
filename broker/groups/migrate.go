package groups

import (
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// MigrationPolicy says which groups with members may change between the two protocols (group.consumer.migration.policy).
// Groups without members always may.
type MigrationPolicy string

const (
	MigrationBidirectional MigrationPolicy = "bidirectional"
	// MigrationUpgrade lets a classic group become a consumer group, when a member of that kind joins.
	MigrationUpgrade MigrationPolicy = "upgrade"
	// MigrationDowngrade lets a consumer group become a classic one, when only members that use JoinGroup are left.
	MigrationDowngrade MigrationPolicy = "downgrade"
	MigrationDisabled  MigrationPolicy = "disabled"
)

func (p MigrationPolicy) valid() bool {
	return p == MigrationBidirectional || p == MigrationUpgrade || p == MigrationDowngrade || p == MigrationDisabled
}

// becomeConsumer makes a group without members a consumer group. Epochs go on from its generations.
func (g *group) becomeConsumer() {
	for id := range g.pending {
		g.removePending(id)
	}
	g.phase.alarm.stop()
	if g.state != Empty {
		g.setState(Empty)
	}
	g.consumer = newConsumerGroup(g.generation)
	g.consumer.targetEpoch = g.generation
	g.stored, g.unsaved, g.headChanged = true, false, true
	g.protocolType, g.protocol, g.leader = consumerProtocol, "", ""
}

// becomeClassic makes a consumer group without members a classic one. Generations go on from its epochs.
func (g *group) becomeClassic() {
	g.generation, g.consumer = g.consumer.epoch, nil
	g.unsaved = true
	g.enqueue(&write{changes: g.forgetRows(g.emptyRow()), done: g.emptySaved})
}

// forgetRows returns the changes that put a classic group in the place of a consumer group.
func (g *group) forgetRows(head Change) []Change {
	changes := []Change{head}
	for id := range g.changedRows {
		changes = append(changes, Change{Key: memberKey(g.name, id)})
	}
	g.headChanged, g.changedRows = false, nil
	return changes
}

// takeWaiters returns those who wait for a flush that is queued, which has nothing left to write then.
func (g *group) takeWaiters() []func(error) {
	waiters := g.waiters
	if g.queuedFlush != nil {
		g.queuedFlush.taken = true
	}
	g.queuedFlush, g.waiters = nil, nil
	return waiters
}

// upgrade makes a classic group with members a consumer group, whose members go on with JoinGroup (Kafka:
// convertToConsumerGroup). They keep what they are assigned.
func (g *group) upgrade() *kafkaproto.Error {
	refuse := func(why string) *kafkaproto.Error {
		return kafkaproto.ErrGroupIDNotFound.WithMessage("Group %s is not a consumer group, and cannot become one: %s.", g.name, why)
	}
	policy := g.c.opts.MigrationPolicy
	switch {
	case policy != MigrationBidirectional && policy != MigrationUpgrade:
		return refuse("the migration policy is " + string(policy))
	case g.protocolType != consumerProtocol:
		return refuse("its protocol type is " + g.protocolType)
	case len(g.members) > g.c.opts.ConsumerMaxSize:
		return refuse("it has too many members")
	}
	members := g.inOrder()
	adopted := make([]adoption, len(members))
	for i, m := range members {
		if why, err := g.readMember(m, &adopted[i]); err != nil {
			return err
		} else if why != "" {
			return refuse(why)
		}
	}
	cg := newConsumerGroup(g.generation)
	cg.targetEpoch = g.generation
	rebalancing := g.state != Stable
	g.refuseWaiting(kafkaproto.ErrRebalanceInProgress)
	g.forgetClassic()
	g.consumer, g.headChanged, g.stored, g.unsaved = cg, true, true, false
	for i, m := range members {
		g.adopt(m, &adopted[i])
	}
	if rebalancing {
		g.adoptOwned(members, adopted)
	}
	_, _ = g.lookAtTopics() // logged; the next heartbeat tries again
	g.updateConsumerState()
	g.c.log.Info("classic group becomes a consumer group", zap.String("group", g.name), zap.Int("members", len(members)))
	return nil
}

// ownMetadata is what a member says of itself for a protocol, or for any if it does not list that because it joined since.
func (m *member) ownMetadata(protocol string) []byte {
	if metadata, ok := metadataFor(m.protocols, protocol); ok {
		return metadata
	}
	return m.protocols[0].Metadata
}

// adoption is what a classic member has told of itself: all that must be known before its group becomes a consumer group.
type adoption struct {
	subscription clientSubscription
	// assigned is what the leader has assigned to it, owned what it said it holds when it joined.
	assigned, owned assignment
}

// readMember fills in what a member has told of itself, or returns why it cannot be used. What cannot be read is not taken
// for nothing: the member would go on with partitions that others are given. The error is for clients.
func (g *group) readMember(m *member, a *adoption) (why string, err *kafkaproto.Error) {
	var bad error
	if a.subscription, bad = parseSubscription(m.ownMetadata(g.protocol)); bad != nil {
		return "the metadata of member " + m.id + " cannot be read", nil
	}
	assigned, bad := parseAssignment(m.assignment)
	if bad != nil {
		return "the assignment of member " + m.id + " cannot be read", nil
	}
	if a.assigned, err = g.partitionsOf(assigned); err != nil {
		return "", err
	}
	a.owned, err = g.partitionsOf(a.subscription.owned)
	return "", err
}

// adopt makes a classic member one of a consumer group. A partition that the leader has given to two is the first one's.
func (g *group) adopt(m *member, a *adoption) {
	held := a.assigned.filter(g.consumer.free)
	c := &consumerMember{
		id: m.id, instanceID: m.instanceID, clientID: m.clientID, clientHost: m.clientHost, rackID: a.subscription.rack,
		rebalanceTimeout: m.rebalanceTimeout, topics: sortedNames(a.subscription.topics),
		epoch: g.generation, previousEpoch: g.generation, target: held,
		classic: &classicMember{m.sessionTimeout, m.protocols},
	}
	g.addConsumer(c)
	g.consumer.own(c, held, nil)
	g.keepConsumerAlive(c)
}

// adoptOwned leaves members what they said they hold when they joined the rebalance that is under way: members that
// rebalance cooperatively hold on to it, and it is not in their assignments any more once the leader is to assign anew.
func (g *group) adoptOwned(members []*member, adopted []adoption) {
	for i, m := range members {
		c := g.consumer.members[m.id]
		c.target = c.assigned.union(adopted[i].owned.filter(g.consumer.free))
		g.consumer.own(c, c.target, nil)
	}
}

// free tells whether nobody holds a partition.
func (cg *consumerGroup) free(p topicPartition) bool { return cg.owners[p].member == nil }

// partitionsOf finds the partitions of topics named by clients. Those that do not exist are left out. The error is for
// clients.
func (g *group) partitionsOf(topics []namedPartitions) (assignment, *kafkaproto.Error) {
	var all []topicPartition
	for _, named := range topics {
		t, ok, err := g.c.topics.Topic(named.topic)
		if err != nil {
			g.c.log.Warn("a topic that a member holds cannot be read", zap.String("group", g.name), zap.String("topic", named.topic), zap.Error(err))
			return nil, kafkaproto.ErrCoordinatorNotAvailable
		}
		if !ok {
			continue
		}
		for _, p := range named.partitions {
			if p >= 0 && p < t.Partitions {
				all = append(all, topicPartition{t.ID, p})
			}
		}
	}
	return newAssignment(all), nil
}

// forgetClassic drops all that the group knows as a classic one. Nothing waits any more.
func (g *group) forgetClassic() {
	g.stopTimers()
	for id := range g.pending {
		g.removePending(id)
	}
	g.c.m.members.Sub(float64(len(g.members)))
	g.members, g.static, g.supported = nil, nil, nil
	g.awaitingJoin, g.unsynced, g.metadataBytes, g.storing = 0, 0, 0, 0
	g.leader, g.protocol = "", ""
}

// mayDowngrade tells whether a consumer group is to become a classic one: only members that use JoinGroup are left.
func (g *group) mayDowngrade() bool {
	cg, policy := g.consumer, g.c.opts.MigrationPolicy
	return len(cg.members) > 0 && cg.classic == len(cg.members) && len(cg.members) <= g.c.opts.MaxSize &&
		(policy == MigrationBidirectional || policy == MigrationDowngrade)
}

// downgrade makes a consumer group of members that use JoinGroup a classic one, and starts a rebalance (Kafka:
// convertToClassicGroup).
func (g *group) downgrade() {
	cg := g.consumer
	members := cg.inOrder()
	g.c.log.Info("consumer group becomes a classic group", zap.String("group", g.name), zap.Int("members", len(members)))
	g.consumer, g.generation, g.protocolType = nil, cg.epoch, consumerProtocol
	g.c.m.members.Sub(float64(len(members)))
	for _, m := range members {
		m.stopTimers()
		g.add(&member{
			id: m.id, instanceID: m.instanceID, clientID: m.clientID, clientHost: m.clientHost,
			sessionTimeout: m.classic.sessionTimeout, rebalanceTimeout: m.rebalanceTimeout,
			protocols: m.classic.protocols, assignment: cg.topics.encodeFor(m, m.assigned.union(m.revoking)),
		})
		g.changed(m)
	}
	g.protocol = g.chooseProtocol()
	g.setState(Stable)
	head := Change{groupKey(g.name), g.row(true, nil).encode()}
	// If this fails the group is still what it was when the broker starts again, and its members find out by their epochs.
	waiters := g.takeWaiters()
	g.enqueue(&write{changes: g.forgetRows(head), done: func(err error) {
		if err != nil {
			waiters = append(waiters, g.waiters...) // they wait for this: nothing else is there to be flushed
			g.waiters = nil
		}
		for _, done := range waiters {
			done(err)
		}
	}})
	for _, m := range g.members {
		g.keepAlive(m)
	}
	g.prepareRebalance("the group became a classic one")
}

// joinConsumer lets a member that uses JoinGroup take part in a consumer group (Kafka: classicGroupJoinToConsumerGroup).
// It is answered at once, with what it was told to revoke taken away; nobody is the leader.
func (g *group) joinConsumer(r *JoinRequest) *Pending[JoinResult] {
	fail := func(err *kafkaproto.Error) *Pending[JoinResult] { return answered(joinError(r.MemberID, err)) }
	cg := g.consumer
	m := cg.members[r.MemberID]
	static, known := cg.static[r.InstanceID], false
	if r.InstanceID != "" {
		_, known = cg.static[r.InstanceID]
	}
	switch {
	case m == nil && !known && len(cg.members) >= g.c.opts.ConsumerMaxSize, !cg.hasRoom(r):
		return answered(joinError("", kafkaproto.ErrGroupMaxSizeReached))
	case !cg.supports(r.ProtocolType, r.Protocols):
		return fail(kafkaproto.ErrInconsistentGroupProtocol)
	case r.InstanceID != "" && r.MemberID != "" && !known:
		return fail(kafkaproto.ErrUnknownMemberID)
	case r.InstanceID != "" && r.MemberID != "" && static != r.MemberID:
		return fail(kafkaproto.ErrFencedInstanceID)
	case r.InstanceID == "" && r.MemberID == "" && r.RequireMemberID:
		return g.giveMemberID(r)
	case m == nil && r.MemberID != "" && !g.removePending(r.MemberID):
		// It was removed. Kafka takes it for a new member, which goes on with partitions that are others' until it syncs.
		return fail(kafkaproto.ErrUnknownMemberID)
	}
	s, err := parseSubscription(r.Protocols[0].Metadata)
	if err != nil {
		return fail(kafkaproto.ErrInconsistentGroupProtocol)
	}
	owned, kerr := g.partitionsOf(s.owned)
	if kerr != nil {
		return fail(kerr)
	}
	if r.MemberID == "" && known {
		if p := g.downgradeFor(cg.members[static], r); p != nil {
			return p
		}
		m = g.replaceConsumer(cg.members[static], newMemberID(r.InstanceID))
	}
	return g.joinClassic(m, r, &s, owned)
}

// hasRoom tells whether the group has room for what a member that uses JoinGroup brings, in place of what it brought
// before.
func (cg *consumerGroup) hasRoom(r *JoinRequest) bool {
	size := protocolBytes(r.Protocols)
	old := cg.members[r.MemberID]
	if old == nil && r.InstanceID != "" {
		old = cg.members[cg.static[r.InstanceID]]
	}
	if old != nil {
		size -= old.size()
	}
	return size <= 0 || cg.metadataBytes+size <= maxGroupMetadata
}

// downgradeFor makes the group a classic one if old is the last member that does not use JoinGroup, and r takes its place.
func (g *group) downgradeFor(old *consumerMember, r *JoinRequest) *Pending[JoinResult] {
	cg := g.consumer
	if old.classic != nil || cg.classic+1 < len(cg.members) {
		return nil
	}
	alone := len(cg.members) == 1
	g.fence(old, "it was replaced by a member that uses JoinGroup")
	if alone {
		g.becomeClassic()
	}
	if g.consumer != nil {
		return nil // the policy does not allow it
	}
	return g.join(r)
}

// supports tells whether a member with these protocols leaves a protocol that all members list who use JoinGroup.
func (cg *consumerGroup) supports(protocolType string, protocols []Protocol) bool {
	if protocolType != consumerProtocol || len(protocols) == 0 {
		return false
	}
	for _, p := range protocols {
		if cg.supported[p.Name] == cg.classic {
			return true
		}
	}
	return false
}

// joinClassic lets a member that uses JoinGroup join or rejoin; m is nil for a new one. owned is what it says it holds.
func (g *group) joinClassic(m *consumerMember, r *JoinRequest, s *clientSubscription, owned assignment) *Pending[JoinResult] {
	cg := g.consumer
	added := m == nil
	if added {
		id := r.MemberID
		if id == "" {
			name := r.InstanceID
			if name == "" {
				name = r.ClientID
			}
			id = newMemberID(name)
		}
		m = &consumerMember{id: id, instanceID: r.InstanceID}
		g.addConsumer(m)
	}
	changed := added || m.regex != "" || !equalNames(m.topics, s.topics)
	cg.count(m, -1)
	m.rackID, m.clientID, m.clientHost, m.rebalanceTimeout = s.rack, r.ClientID, r.ClientHost, r.RebalanceTimeout
	m.topics, m.regex, m.pattern, m.assignor = sortedNames(s.topics), "", nil, ""
	m.classic = &classicMember{r.SessionTimeout, cloneProtocols(r.Protocols)}
	cg.count(m, 1)
	m.rebalance.stop()
	g.changed(m)
	if changed {
		g.bumpEpoch("a member joined or changed its subscription")
	}
	_ = g.updateTarget() // logged; the member goes on with the target that it has
	g.reconcile(m, &owned)
	g.updateConsumerState()
	m.join.stop()
	g.keepConsumerAlive(m)
	g.awaitSync(m)
	return g.joinedClassic(m)
}

func equalNames(sorted, names []string) bool {
	other := sortedNames(names)
	if len(sorted) != len(other) {
		return false
	}
	for i := range sorted {
		if sorted[i] != other[i] {
			return false
		}
	}
	return true
}

// joinedClassic answers when the member is stored.
func (g *group) joinedClassic(m *consumerMember) *Pending[JoinResult] {
	p := newPending[JoinResult]()
	result := JoinResult{Generation: m.epoch, ProtocolType: consumerProtocol, Protocol: m.classic.protocols[0].Name, MemberID: m.id}
	g.flush(func(err error) {
		if err != nil {
			result = joinError(m.id, asKafkaError(err))
		}
		p.answer(result)
	})
	return p
}

// awaitSync fences a member that does not send SyncGroup in time; awaitJoin one that does not rejoin.
func (g *group) awaitSync(m *consumerMember) {
	g.setAlarm(&m.sync, m.rebalanceTimeout, func() { g.expire(m, "it did not sync in time") })
}

func (g *group) awaitJoin(m *consumerMember) {
	if m.join.timer == nil {
		g.setAlarm(&m.join, m.rebalanceTimeout, func() { g.expire(m, "it did not rejoin in time") })
	}
}

// checkClassic finds a member of a consumer group that uses the classic protocol.
func (g *group) checkClassic(memberID, instanceID string) (*consumerMember, *kafkaproto.Error) {
	cg := g.consumer
	if instanceID != "" {
		owner, ok := cg.static[instanceID]
		switch {
		case !ok:
			return nil, kafkaproto.ErrUnknownMemberID
		case owner != memberID:
			return nil, kafkaproto.ErrFencedInstanceID
		}
	}
	m := cg.members[memberID]
	if m == nil || m.classic == nil {
		return nil, kafkaproto.ErrUnknownMemberID
	}
	return m, nil
}

// syncConsumer tells a member that uses SyncGroup what the broker has assigned to it (Kafka:
// classicGroupSyncToConsumerGroup).
func (g *group) syncConsumer(r *SyncRequest) SyncResult {
	m, err := g.checkClassic(r.MemberID, r.InstanceID)
	switch {
	case err != nil:
		return SyncResult{Err: err}
	case r.Generation != m.epoch:
		return SyncResult{Err: kafkaproto.ErrIllegalGeneration}
	}
	g.refreshTopics()
	g.flush(nil)
	protocol := m.classic.protocols[0].Name
	switch {
	case r.ProtocolType != nil && *r.ProtocolType != consumerProtocol || r.Protocol != nil && *r.Protocol != protocol:
		return SyncResult{Err: kafkaproto.ErrInconsistentGroupProtocol}
	case g.consumer.epoch > m.epoch && m.state != unrevoked:
		g.awaitJoin(m)
		return SyncResult{Err: kafkaproto.ErrRebalanceInProgress}
	}
	if g.consumer.topics.byName == nil {
		return SyncResult{Err: kafkaproto.ErrCoordinatorNotAvailable} // topics without names would be missing
	}
	m.sync.stop()
	g.keepConsumerAlive(m)
	return SyncResult{ProtocolType: consumerProtocol, Protocol: protocol, Assignment: g.consumer.topics.encodeFor(m, m.assigned)}
}

// heartbeatConsumer answers a Heartbeat (Kafka: classicGroupHeartbeatToConsumerGroup): the member must rejoin to catch up
// with the group, to say that it has revoked, or to get partitions that have become free.
func (g *group) heartbeatConsumer(r *HeartbeatRequest) *kafkaproto.Error {
	m, err := g.checkClassic(r.MemberID, r.InstanceID)
	switch {
	case err != nil:
		return err
	case r.Generation != m.epoch:
		return kafkaproto.ErrIllegalGeneration
	}
	g.keepConsumerAlive(m)
	g.refreshTopics()
	g.flush(nil)
	cg := g.consumer
	if m.epoch < cg.epoch || m.state == unrevoked || m.state == unreleased && !cg.waitsForOthers(m) {
		g.awaitJoin(m)
		return kafkaproto.ErrRebalanceInProgress
	}
	return nil
}

// leaveConsumer removes a member that uses LeaveGroup, or a static one that an administrator names.
func (g *group) leaveConsumer(l *LeavingMember) *kafkaproto.Error {
	id := l.MemberID
	if id == "" && l.InstanceID != "" {
		id = g.consumer.static[l.InstanceID]
	}
	if l.InstanceID == "" && g.removePending(id) {
		return nil
	}
	m, err := g.checkClassic(id, l.InstanceID)
	if err != nil {
		return err
	}
	g.dropConsumer(m)
	return nil
}

// leaveConsumers removes members that use LeaveGroup, in one rebalance.
func (g *group) leaveConsumers(members []LeavingMember) []*kafkaproto.Error {
	errs := make([]*kafkaproto.Error, len(members))
	before := len(g.consumer.members)
	for i := range members {
		errs[i] = g.leaveConsumer(&members[i])
	}
	if len(g.consumer.members) < before {
		g.bumpEpoch("members left")
		g.flush(nil)
	}
	return errs
}
