package groups

import (
	"bytes"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// SyncRequest is a SyncGroup request. The coordinator keeps none of its slices.
type SyncRequest struct {
	Group, MemberID, InstanceID string
	Generation                  int32
	// ProtocolType and Protocol must be those of the generation. Nil is not checked (before v5).
	ProtocolType, Protocol *string
	// Assignments come from the leader; those of others are not looked at.
	Assignments []Assignment
}

// Assignment is what the leader gives to a member.
type Assignment struct {
	MemberID string
	Data     []byte
}

// SyncResult is the answer to a SyncRequest.
type SyncResult struct {
	Err *kafkaproto.Error
	// ProtocolType and Protocol are "" with an error.
	ProtocolType, Protocol string
	Assignment             []byte
}

// Sync gives a member its assignment once the leader has sent it and it is stored. Errors: INVALID_GROUP_ID,
// UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS,
// NOT_COORDINATOR when the coordinator drains, and those of the storage.
func (c *Coordinator) Sync(r *SyncRequest) *Pending[SyncResult] {
	fail := func(err *kafkaproto.Error) *Pending[SyncResult] { return answered(SyncResult{Err: err}) }
	if !validGroupID(r.Group) {
		return fail(kafkaproto.ErrInvalidGroupID)
	}
	g, err := c.enter(r.Group)
	if err != nil {
		return fail(asKafkaError(err))
	}
	defer c.leave(g)
	if g.consumer != nil {
		return answered(g.syncConsumer(r))
	}
	m, kerr := g.checkSync(r)
	switch {
	case kerr != nil:
		return fail(kerr)
	case g.state == PreparingRebalance:
		return fail(kafkaproto.ErrRebalanceInProgress)
	case g.state == Stable:
		g.synced(m)
		g.keepAlive(m)
		return answered(g.syncResult(m))
	case c.draining.Load():
		return fail(kafkaproto.ErrNotCoordinator)
	}
	return g.waitForAssignment(m, r)
}

func (g *group) checkSync(r *SyncRequest) (*member, *kafkaproto.Error) {
	m, err := g.check(r.MemberID, r.InstanceID)
	switch {
	case err != nil:
		return nil, err
	case r.Generation != g.generation:
		return nil, kafkaproto.ErrIllegalGeneration
	case r.ProtocolType != nil && *r.ProtocolType != g.protocolType || r.Protocol != nil && *r.Protocol != g.protocol:
		return nil, kafkaproto.ErrInconsistentGroupProtocol
	}
	return m, nil
}

func (g *group) syncResult(m *member) SyncResult {
	return SyncResult{ProtocolType: g.protocolType, Protocol: g.protocol, Assignment: m.assignment}
}

// waitForAssignment makes the request wait in CompletingRebalance. The leader's starts the end of the rebalance.
func (g *group) waitForAssignment(m *member, r *SyncRequest) *Pending[SyncResult] {
	p := newPending[SyncResult]()
	g.answerSync(m, SyncResult{Err: kafkaproto.ErrRebalanceInProgress}) // an earlier one was given up by the client
	m.syncing = p
	g.synced(m)
	if m.id == g.leader && g.storing != g.generation {
		g.storeAssignments(r.Assignments)
	}
	return p
}

// storeAssignments stores the group with what the leader assigned, and then hands it out. Members that the leader left
// out get an empty assignment.
func (g *group) storeAssignments(assignments []Assignment) {
	generation := g.generation
	byMember := make(map[string][]byte, len(g.members))
	for _, a := range assignments {
		if _, ok := g.members[a.MemberID]; ok {
			byMember[a.MemberID] = bytes.Clone(a.Data)
		}
	}
	g.storing = generation
	g.enqueue(&write{
		changes: []Change{{groupKey(g.name), g.row(true, byMember).encode()}},
		done: func(err error) {
			// A rebalance that began meanwhile has answered the requests.
			if g.state != CompletingRebalance || g.generation != generation {
				return
			}
			g.storing = 0
			if err != nil {
				g.failSyncs(asKafkaError(err))
				g.prepareRebalance("the assignment could not be stored")
				return
			}
			g.stored = true
			g.handOut(byMember)
		},
	})
}

func (g *group) handOut(assignments map[string][]byte) {
	g.setState(Stable)
	for _, m := range g.members {
		m.assignment = assignments[m.id]
		if g.answerSync(m, g.syncResult(m)) {
			g.keepAlive(m)
		}
	}
	g.c.log.Debug("rebalance complete", zap.String("group", g.name), zap.Int32("generation", g.generation), zap.Int("members", len(g.members)))
}
