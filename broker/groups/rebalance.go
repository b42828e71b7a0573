package groups

import (
	"time"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// prepareRebalance starts a join phase. It ends when all members have joined, or after the largest of their rebalance
// timeouts. A group that was empty waits for more members first.
func (g *group) prepareRebalance(reason string) {
	g.c.log.Debug("rebalance begins", zap.String("group", g.name), zap.Int32("generation", g.generation),
		zap.Stringer("state", g.state), zap.Int("members", len(g.members)), zap.String("reason", reason))
	if g.state == CompletingRebalance {
		g.failSyncs(kafkaproto.ErrRebalanceInProgress)
	}
	g.forgetUnsynced()
	delay := g.c.opts.InitialRebalanceDelay
	g.phase.initial = g.state == Empty && delay > 0
	g.phase.began, g.phase.extended = time.Now(), false
	g.setState(PreparingRebalance)
	if !g.phase.initial {
		delay = g.rebalanceTimeout()
	}
	g.setAlarm(&g.phase.alarm, delay, g.joinPhaseEnds)
	g.tryCompleteJoin()
}

// joinPhaseEnds is called when the time of the phase is up. While members keep coming, an initial phase goes on for
// another delay, up to the largest rebalance timeout in all.
func (g *group) joinPhaseEnds() {
	left := g.rebalanceTimeout() - time.Since(g.phase.began)
	if g.phase.initial && g.phase.extended && left > 0 {
		g.phase.extended = false
		g.setAlarm(&g.phase.alarm, min(g.c.opts.InitialRebalanceDelay, left), g.joinPhaseEnds)
		return
	}
	g.completeJoin()
}

// rebalanceTimeout is the largest of all members.
func (g *group) rebalanceTimeout() time.Duration {
	var largest time.Duration
	for _, m := range g.members {
		largest = max(largest, m.rebalanceTimeout)
	}
	return largest
}

// tryCompleteJoin ends the join phase if nobody is missing. It may be called in any state.
func (g *group) tryCompleteJoin() {
	if g.state == PreparingRebalance && !g.phase.initial && g.awaitingJoin == len(g.members) && len(g.pending) == 0 {
		g.completeJoin()
	}
}

// completeJoin ends the join phase (Kafka: onCompleteJoin). Dynamic members that did not rejoin are out. Static ones stay
// until their session or the wait for their SyncGroup ends, because they come back with the same place. If only such are
// left, and none of them has joined, the phase begins anew.
func (g *group) completeJoin() {
	for _, m := range g.members {
		if m.joining == nil && m.instanceID == "" {
			g.c.m.expiredMembers.Inc()
			g.remove(m)
		}
	}
	if len(g.members) > 0 && g.members[g.leader].joining == nil && !g.electLeader(func(m *member) bool { return m.joining != nil }) {
		g.phase.initial = false
		g.setAlarm(&g.phase.alarm, g.rebalanceTimeout(), g.joinPhaseEnds)
		return
	}
	g.phase.alarm.stop()
	g.phase.initial = false
	g.generation++
	g.c.m.rebalances.Inc()
	if len(g.members) == 0 {
		g.becomeEmpty()
		return
	}
	g.protocol = g.chooseProtocol()
	g.setState(CompletingRebalance)
	g.c.log.Debug("join phase complete", zap.String("group", g.name), zap.Int32("generation", g.generation),
		zap.Int("members", len(g.members)), zap.String("protocol", g.protocol))
	for _, m := range g.members {
		g.answerJoin(m, g.joinResult(m))
		m.fresh, m.unsynced = false, true
		g.keepAlive(m)
	}
	g.unsynced = len(g.members)
	g.setAlarm(&g.sync, g.rebalanceTimeout(), g.syncsMissing)
}

// becomeEmpty stores that the group has no members any more.
func (g *group) becomeEmpty() {
	g.protocol = ""
	g.setState(Empty)
	g.stored, g.unsaved = true, true
	g.enqueue(&write{changes: []Change{g.emptyRow()}, done: g.emptySaved})
}

// emptyRow is the change that stores the group without members. Those of a consumer group have rows of their own.
func (g *group) emptyRow() Change {
	if cg := g.consumer; cg != nil {
		row := consumerRow{since: g.since, epoch: cg.epoch, targetEpoch: cg.targetEpoch, topicsHash: cg.topics.hash, members: len(cg.members)}
		return Change{groupKey(g.name), row.encode()}
	}
	return Change{groupKey(g.name), g.row(false, nil).encode()}
}

func (g *group) emptySaved(err error) {
	if err == nil {
		g.unsaved = false
	}
}

// chooseProtocol returns the protocol that most members rank first among those that all list. Among equals it is the one
// that the leader prefers.
func (g *group) chooseProtocol() string {
	votes := map[string]int{}
	for _, m := range g.members {
		for _, p := range m.protocols {
			if g.supported[p.Name] == len(g.members) {
				votes[p.Name]++
				break
			}
		}
	}
	best := ""
	for _, p := range g.members[g.leader].protocols {
		if votes[p.Name] > votes[best] {
			best = p.Name
		}
	}
	return best
}

// syncsMissing removes the members that have not sent SyncGroup in time (Kafka: onExpirePendingSync).
func (g *group) syncsMissing() {
	for _, m := range g.members {
		if m.unsynced {
			g.c.m.expiredMembers.Inc()
			g.remove(m)
		}
	}
	g.prepareRebalance("members did not sync in time")
}

// forgetUnsynced waits for no SyncGroup any more.
func (g *group) forgetUnsynced() {
	g.sync.stop()
	g.unsynced = 0
	for _, m := range g.members {
		m.unsynced = false
	}
}

// failSyncs answers all SyncGroup requests that wait with an error.
func (g *group) failSyncs(err *kafkaproto.Error) {
	for _, m := range g.members {
		m.assignment = nil
		if g.answerSync(m, SyncResult{Err: err}) {
			g.keepAlive(m)
		}
	}
}
