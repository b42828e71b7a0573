package groups

import (
	"maps"
	"slices"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// add makes m a member. Its id and instance id are not in the group; the first member is the leader.
func (g *group) add(m *member) {
	if g.members == nil {
		g.members, g.static, g.supported = map[string]*member{}, map[string]string{}, map[string]int{}
	}
	g.joined++
	m.number = g.joined
	g.members[m.id] = m
	if m.instanceID != "" {
		g.static[m.instanceID] = m.id
	}
	if g.leader == "" {
		g.leader = m.id
	}
	if m.joining != nil {
		g.awaitingJoin++
	}
	g.support(m, 1)
	g.c.m.members.Inc()
}

// remove ends a membership; requests of the member that wait are answered with UNKNOWN_MEMBER_ID, which makes a client
// that is still there join anew. The rebalance is the caller's business.
func (g *group) remove(m *member) {
	m.session.stop()
	g.answerJoin(m, joinError("", kafkaproto.ErrUnknownMemberID))
	g.answerSync(m, SyncResult{Err: kafkaproto.ErrUnknownMemberID})
	g.synced(m)
	g.support(m, -1)
	delete(g.members, m.id)
	if m.instanceID != "" {
		delete(g.static, m.instanceID)
	}
	if g.leader == m.id {
		g.leader = ""
		g.electLeader(func(*member) bool { return true })
	}
	g.c.m.members.Dec()
}

// support counts what a member lists, once more or once less.
func (g *group) support(m *member, n int) {
	g.metadataBytes += n * m.size()
	for _, p := range m.protocols {
		if g.supported[p.Name] += n; g.supported[p.Name] == 0 {
			delete(g.supported, p.Name)
		}
	}
}

// electLeader makes the member that came first among those that qualify the leader.
func (g *group) electLeader(qualifies func(*member) bool) bool {
	var first *member
	for _, m := range g.members {
		if qualifies(m) && (first == nil || m.number < first.number) {
			first = m
		}
	}
	if first != nil {
		g.leader = first.id
	}
	return first != nil
}

// inOrder returns the members in the order in which they came.
func (g *group) inOrder() []*member {
	return slices.SortedFunc(maps.Values(g.members), func(a, b *member) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
}

// update replaces what a known member said of itself, and makes p its JoinGroup that waits. An earlier one was given up
// by the client, or comes from a second client with the same member id.
func (g *group) update(m *member, r *JoinRequest, p *Pending[JoinResult]) {
	g.answerJoin(m, joinError(m.id, kafkaproto.ErrRebalanceInProgress))
	g.support(m, -1)
	m.protocols = cloneProtocols(r.Protocols)
	m.clientID, m.clientHost = r.ClientID, r.ClientHost
	m.sessionTimeout, m.rebalanceTimeout = r.SessionTimeout, r.RebalanceTimeout
	g.support(m, 1)
	m.joining = p
	g.awaitingJoin++
}

// rename gives a member another id.
func (g *group) rename(m *member, id string) {
	g.support(m, -1)
	delete(g.members, m.id)
	if g.leader == m.id {
		g.leader = id
	}
	m.id = id
	g.members[id] = m
	g.static[m.instanceID] = id
	g.support(m, 1)
}

// answerJoin answers the JoinGroup of a member if one waits.
func (g *group) answerJoin(m *member, r JoinResult) {
	if m.joining != nil {
		m.joining.answer(r)
		m.joining = nil
		g.awaitingJoin--
	}
}

// answerSync answers the SyncGroup of a member if one waits.
func (g *group) answerSync(m *member, r SyncResult) bool {
	if m.syncing == nil {
		return false
	}
	m.syncing.answer(r)
	m.syncing = nil
	return true
}

// synced notes that a member need not be waited for.
func (g *group) synced(m *member) {
	if m.unsynced {
		m.unsynced = false
		if g.unsynced--; g.unsynced == 0 {
			g.sync.stop()
		}
	}
}

// check finds the member that a request comes from. Errors: FENCED_INSTANCE_ID if the instance id belongs to another
// member now, UNKNOWN_MEMBER_ID if there is no such member (Kafka: validateCurrentMember).
func (g *group) check(memberID, instanceID string) (*member, *kafkaproto.Error) {
	if instanceID != "" {
		current, ok := g.static[instanceID]
		switch {
		case !ok:
			return nil, kafkaproto.ErrUnknownMemberID
		case current != memberID:
			return nil, kafkaproto.ErrFencedInstanceID
		}
	}
	m, ok := g.members[memberID]
	if !ok {
		return nil, kafkaproto.ErrUnknownMemberID
	}
	return m, nil
}

// keepAlive starts the session of a member anew.
func (g *group) keepAlive(m *member) { g.expireAfter(m, m.sessionTimeout) }

func (g *group) expireAfter(m *member, d time.Duration) {
	m.deadline = time.Now().Add(d)
	if m.session.timer == nil || m.sessionAlarm.After(m.deadline) {
		g.setSession(m, d)
	}
}

func (g *group) setSession(m *member, d time.Duration) {
	m.sessionAlarm = time.Now().Add(d)
	g.setAlarm(&m.session, d, func() { g.sessionEnds(m) })
}

// sessionEnds removes a member that was not heard of until its deadline. One whose request waits here is alive, as far
// as can be known; its session starts anew with the answer. A member that has never been answered has no session but the
// time it may wait.
func (g *group) sessionEnds(m *member) {
	if left := time.Until(m.deadline); left > 0 {
		g.setSession(m, left)
		return
	}
	if !m.fresh && (m.joining != nil || m.syncing != nil) {
		return
	}
	g.c.m.expiredMembers.Inc()
	g.removeAndRebalance(m, "a member's session ended")
}

// removeAndRebalance removes a member and lets the others go on (Kafka: removeMemberAndUpdateGroup).
func (g *group) removeAndRebalance(m *member, reason string) {
	g.remove(m)
	switch g.state {
	case Stable, CompletingRebalance:
		g.prepareRebalance(reason)
	case PreparingRebalance:
		g.tryCompleteJoin()
	}
}

// addPending remembers an id that was handed out, for as long as a session.
func (g *group) addPending(id string, d time.Duration) {
	if g.pending == nil {
		g.pending = map[string]*alarm{}
	}
	a := &alarm{}
	g.pending[id] = a
	g.c.m.pendingMembers.Inc()
	g.setAlarm(a, d, func() {
		g.removePending(id)
		g.tryCompleteJoin()
	})
}

func (g *group) removePending(id string) bool {
	a, ok := g.pending[id]
	if ok {
		a.stop()
		delete(g.pending, id)
		g.c.m.pendingMembers.Dec()
	}
	return ok
}
