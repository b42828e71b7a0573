package groups

import "slices"

// reconcile takes a member as far towards its target as is possible now (Kafka: CurrentAssignmentBuilder). owned is what
// the member says it holds, nil if it says nothing. It returns whether the member changed.
//
//	              nothing to revoke, all free
//	settled ─────────────────────────────────────▶ settled, at the epoch of the target
//	   │  ▲          some held by others                      ▲
//	   │  └───────────────▶ unreleased ───────────────────────┤ others let go of them
//	   │ something to revoke    ▲                             │
//	   └────────▶ unrevoked ────┴─────────────────────────────┘ owned has none of them any more
//
// A member that has something to revoke stays at its epoch and gets nothing new until it does not hold that any more. A
// partition is given out only when nobody holds it.
func (g *group) reconcile(m *consumerMember, owned *assignment) bool {
	cg := g.consumer
	epoch := m.epoch
	switch {
	case m.reconciledTo(cg.targetEpoch):
		return false
	case m.state == unrevoked && (owned == nil || owned.overlaps(m.revoking)):
		return false
	case m.state == unrevoked:
		// The epoch by which it has revoked ends here; a newer target may make it revoke again.
		epoch = min(epoch+1, cg.targetEpoch)
	}
	before := *m
	g.step(m, epoch, owned)
	if m.state == before.state && m.epoch == before.epoch && m.assigned.equal(before.assigned) && m.revoking.equal(before.revoking) {
		m.previousEpoch = before.previousEpoch
		return false
	}
	g.changed(m)
	return true
}

func (g *group) step(m *consumerMember, epoch int32, owned *assignment) {
	cg := g.consumer
	keep := m.assigned.intersect(m.target)
	revoke := m.assigned.minus(m.target)
	if len(revoke) > 0 && (owned == nil || owned.overlaps(revoke)) {
		m.setEpoch(epoch)
		m.state = unrevoked
		cg.own(m, keep, revoke)
		if m.classic == nil {
			g.awaitRevocation(m)
		}
		return
	}
	missing := m.target.minus(keep)
	free := missing.filter(func(p topicPartition) bool {
		holder := cg.owners[p].member
		return holder == nil || holder == m
	})
	m.setEpoch(cg.targetEpoch)
	m.state = settled
	if len(free) < len(missing) {
		m.state = unreleased
	}
	cg.own(m, keep.union(free), nil)
	m.rebalance.stop()
}

func (m *consumerMember) setEpoch(epoch int32) { m.previousEpoch, m.epoch = m.epoch, epoch }

// waitsForOthers tells whether other members hold something that the member misses.
func (cg *consumerGroup) waitsForOthers(m *consumerMember) bool {
	return slices.ContainsFunc(m.target.minus(m.assigned), func(p topicPartition) bool {
		holder := cg.owners[p].member
		return holder != nil && holder != m
	})
}
