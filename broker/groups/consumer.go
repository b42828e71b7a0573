package groups

import (
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// consumerGroup is what a group has more if the broker assigns its partitions (KIP-848; Kafka: ConsumerGroup). A group is
// one of these, or a classic group, never both: then group.members is empty.
type consumerGroup struct {
	// epoch grows with every change of what members subscribe to or of the topics that exist. targetEpoch is the epoch
	// that the members' targets are of; it is not larger.
	epoch, targetEpoch int32
	members            map[string]*consumerMember
	// static has the member id of each instance id.
	static map[string]string
	// owners has who holds each partition, assigned or not yet revoked, and since which epoch of that member. No
	// partition has two: that is what reconciliation is about.
	owners map[topicPartition]owner
	// classic counts the members that use JoinGroup; supported counts those of them that list a protocol.
	classic   int
	supported map[string]int
	// patterns are those of the members, by their expressions.
	patterns map[string]*topicPattern
	// metadataBytes is the size of what members have sent, and of patterns.
	metadataBytes int
	topics        subscribedMetadata
	// adopted tells that rows of members of an earlier life of the group may be there. The next write removes them.
	adopted bool
}

type owner struct {
	member *consumerMember
	// epoch of the member when it was given the partition. Commits of older epochs are not about this ownership.
	epoch int32
}

// reconciliation is how far a member is with its target (Kafka: MemberState).
type reconciliation byte

const (
	// settled: it has all it was to have at its epoch.
	settled reconciliation = iota
	// unrevoked: it was told to give up partitions and has not said that it did.
	unrevoked
	// unreleased: it is at the newest epoch but other members hold partitions of its target.
	unreleased
)

// staticLeave is the epoch of a static member that has left and may come back.
const staticLeave = -2

// consumerMember is a member of a consumerGroup.
type consumerMember struct {
	id, instanceID, rackID, clientID, clientHost string
	rebalanceTimeout                             time.Duration
	// topics subscribed to by name, sorted and distinct.
	topics []string
	// regex subscribes to all topics whose whole name it matches. pattern is nil if it is "", or cannot be used.
	regex   string
	pattern *topicPattern
	// assignor that the member would like; "" for any.
	assignor string
	// classic is nil unless the member uses JoinGroup.
	classic *classicMember

	// epoch is that of the target which the member has reached, or reaches as soon as it has revoked; 0 before its
	// first, staticLeave when it is away. previousEpoch is the one before.
	epoch, previousEpoch int32
	state                reconciliation
	// assigned are the partitions that the member may use; revoking those that it must give up; target those that it
	// shall have in the end.
	assigned, revoking, target assignment

	session lease
	// rebalance fires when the member has not revoked in time; join and sync when a classic member has not rejoined or
	// has not sent SyncGroup in time.
	rebalance, join, sync alarm

	// change numbers the changes of the member's row; stored is the newest that is durable.
	change, stored uint64
}

// classicMember is what is known of a member that uses JoinGroup, SyncGroup and Heartbeat.
type classicMember struct {
	sessionTimeout time.Duration
	protocols      []Protocol
}

func newConsumerGroup(epoch int32) *consumerGroup {
	return &consumerGroup{
		epoch: epoch, members: map[string]*consumerMember{}, static: map[string]string{},
		owners: map[topicPartition]owner{}, supported: map[string]int{},
		patterns: map[string]*topicPattern{}, adopted: true,
	}
}

// size is what a member makes the broker remember, in bytes, but for its assignments.
func (m *consumerMember) size() int {
	n := len(m.id) + len(m.instanceID) + len(m.rackID) + len(m.clientID) + len(m.regex)
	for _, t := range m.topics {
		n += len(t)
	}
	if m.classic != nil {
		n += protocolBytes(m.classic.protocols)
	}
	return n
}

// count adds a member to the sums that the group keeps, or takes it out.
func (cg *consumerGroup) count(m *consumerMember, n int) {
	cg.metadataBytes += n * m.size()
	cg.countPattern(m.regex, m.pattern, n)
	if m.classic == nil {
		return
	}
	cg.classic += n
	for _, p := range m.classic.protocols {
		if cg.supported[p.Name] += n; cg.supported[p.Name] == 0 {
			delete(cg.supported, p.Name)
		}
	}
}

// hasConsumers tells whether the group is a consumer group with members.
func (g *group) hasConsumers() bool { return g.consumer != nil && len(g.consumer.members) > 0 }

// inOrder returns the members in order of their ids.
func (cg *consumerGroup) inOrder() []*consumerMember {
	members := make([]*consumerMember, 0, len(cg.members))
	for _, m := range cg.members {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b *consumerMember) int { return strings.Compare(a.id, b.id) })
	return members
}

// own notes that m holds these partitions and no others.
func (cg *consumerGroup) own(m *consumerMember, assigned, revoking assignment) {
	held := assigned.union(revoking)
	for _, before := range []assignment{m.assigned, m.revoking} {
		for _, p := range before {
			if cg.owners[p].member == m && !held.has(p) {
				delete(cg.owners, p)
			}
		}
	}
	for _, p := range held {
		if cg.owners[p].member != m {
			cg.owners[p] = owner{m, m.epoch}
		}
	}
	m.assigned, m.revoking = assigned, revoking
}

// addConsumer makes m a member.
func (g *group) addConsumer(m *consumerMember) {
	cg := g.consumer
	cg.members[m.id] = m
	if m.instanceID != "" {
		cg.static[m.instanceID] = m.id
	}
	cg.count(m, 1)
	g.c.m.members.Inc()
	g.changed(m)
}

// dropConsumer takes a member out and frees its partitions.
func (g *group) dropConsumer(m *consumerMember) {
	cg := g.consumer
	m.stopTimers()
	cg.own(m, nil, nil)
	cg.count(m, -1)
	delete(cg.members, m.id)
	if cg.static[m.instanceID] == m.id {
		delete(cg.static, m.instanceID)
	}
	g.c.m.members.Dec()
	g.changed(m)
}

// fence removes a member, and makes the group a classic one if only members of that kind are left.
func (g *group) fence(m *consumerMember, reason string) {
	g.c.log.Debug("member of a consumer group is removed", zap.String("group", g.name), zap.String("member", m.id), zap.String("reason", reason))
	g.dropConsumer(m)
	if g.mayDowngrade() {
		g.downgrade() // at the epoch that the members know, so that their heartbeats tell them to rejoin
		return
	}
	g.bumpEpoch(reason)
}

// bumpEpoch starts a rebalance: the members' targets are computed anew when the next of them is heard of.
func (g *group) bumpEpoch(reason string) {
	cg := g.consumer
	cg.epoch++
	g.c.m.rebalances.Inc()
	g.headChanged = true
	g.c.log.Debug("consumer group has a new epoch", zap.String("group", g.name), zap.Int32("epoch", cg.epoch),
		zap.Int("members", len(cg.members)), zap.String("reason", reason))
	g.updateConsumerState()
}

// updateConsumerState sets the state by what the members are (Kafka: ConsumerGroup.maybeUpdateGroupState).
func (g *group) updateConsumerState() {
	if state := g.consumerState(); state != g.state {
		g.setState(state)
	}
}

func (g *group) consumerState() State {
	cg := g.consumer
	switch {
	case len(cg.members) == 0:
		return Empty
	case cg.epoch > cg.targetEpoch:
		return Assigning
	}
	for _, m := range cg.members {
		if !m.reconciledTo(cg.targetEpoch) {
			return Reconciling
		}
	}
	return Stable
}

func (m *consumerMember) reconciledTo(epoch int32) bool {
	return m.state == settled && m.epoch == epoch
}

// lease is a time that is put off again and again. The alarm is set to fire at fires, which is not after deadline: putting
// it off moves the deadline only.
type lease struct {
	alarm           alarm
	fires, deadline time.Time
}

// renew lets fn be called after d, and not before.
func (g *group) renew(l *lease, d time.Duration, fn func()) {
	l.deadline = time.Now().Add(d)
	if l.alarm.timer == nil || l.fires.After(l.deadline) {
		g.setLease(l, d, fn)
	}
}

func (g *group) setLease(l *lease, d time.Duration, fn func()) {
	l.fires = time.Now().Add(d)
	g.setAlarm(&l.alarm, d, func() {
		if left := time.Until(l.deadline); left > 0 {
			g.setLease(l, left, fn)
			return
		}
		fn()
	})
}

// keepConsumerAlive starts the session of a member anew.
func (g *group) keepConsumerAlive(m *consumerMember) {
	timeout := g.c.opts.ConsumerSessionTimeout
	if m.classic != nil {
		timeout = m.classic.sessionTimeout
	}
	g.renew(&m.session, timeout, func() { g.expire(m, "its session ended") })
}

// expire fences a member that was not heard of, and stores that.
func (g *group) expire(m *consumerMember, reason string) {
	g.c.m.expiredMembers.Inc()
	g.fence(m, reason)
	g.flush(nil)
}

func (m *consumerMember) stopTimers() {
	m.session.alarm.stop()
	m.rebalance.stop()
	m.join.stop()
	m.sync.stop()
}

// resumeConsumers starts the timers of the members that a group was loaded with.
func (g *group) resumeConsumers() {
	for _, m := range g.consumer.members {
		g.keepConsumerAlive(m)
		if m.state == unrevoked && m.classic == nil {
			g.awaitRevocation(m)
		}
	}
}

// awaitRevocation fences a member that does not revoke in time.
func (g *group) awaitRevocation(m *consumerMember) {
	g.setAlarm(&m.rebalance, m.rebalanceTimeout, func() { g.expire(m, "it did not revoke partitions in time") })
}
