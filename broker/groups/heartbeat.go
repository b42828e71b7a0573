package groups

import "github.com/brookletmq/brooklet/kafkaproto"

// HeartbeatRequest is a Heartbeat request.
type HeartbeatRequest struct {
	Group, MemberID, InstanceID string
	Generation                  int32
}

// Heartbeat starts the session of a member anew, and tells it by REBALANCE_IN_PROGRESS when it must rejoin. Other errors:
// INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
//
// While the group waits for the leader's assignment the answer is no error: an error would make members rejoin, and the
// rebalance begin again, for ever.
func (c *Coordinator) Heartbeat(r *HeartbeatRequest) *kafkaproto.Error {
	if !validGroupID(r.Group) {
		return kafkaproto.ErrInvalidGroupID
	}
	g, err := c.enter(r.Group)
	if err != nil {
		return asKafkaError(err)
	}
	defer c.leave(g)
	if g.consumer != nil {
		return g.heartbeatConsumer(r)
	}
	m, kerr := g.check(r.MemberID, r.InstanceID)
	switch {
	case kerr != nil:
		return kerr
	case r.Generation != g.generation:
		return kafkaproto.ErrIllegalGeneration
	}
	g.keepAlive(m)
	if g.state == PreparingRebalance {
		return kafkaproto.ErrRebalanceInProgress
	}
	return nil
}

// LeavingMember names a member that leaves.
type LeavingMember struct {
	// MemberID may be "" with an InstanceID: an administrator removes whoever that is.
	MemberID, InstanceID string
	Reason               string
}

// Leave removes members. The errors are one for each: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID; or one for all:
// INVALID_GROUP_ID and those of the storage.
func (c *Coordinator) Leave(group string, members []LeavingMember) ([]*kafkaproto.Error, *kafkaproto.Error) {
	if !validGroupID(group) {
		return nil, kafkaproto.ErrInvalidGroupID
	}
	g, err := c.enter(group)
	if err != nil {
		return nil, asKafkaError(err)
	}
	defer c.leave(g)
	if g.consumer != nil {
		return g.leaveConsumers(members), nil
	}
	errs := make([]*kafkaproto.Error, len(members))
	for i := range members {
		errs[i] = g.memberLeaves(&members[i])
	}
	return errs, nil
}

func (g *group) memberLeaves(l *LeavingMember) *kafkaproto.Error {
	id := l.MemberID
	if id == "" {
		id = g.static[l.InstanceID]
	}
	if l.InstanceID == "" && g.removePending(id) {
		g.tryCompleteJoin()
		return nil
	}
	m, err := g.check(id, l.InstanceID)
	if err != nil {
		return err
	}
	g.removeAndRebalance(m, "a member left")
	return nil
}
