package groups

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// JoinRequest is a JoinGroup request. The coordinator keeps none of its slices.
type JoinRequest struct {
	Group string
	// MemberID is "" for one that has none yet.
	MemberID string
	// InstanceID makes a static member (KIP-345). "" is none.
	InstanceID string
	// ClientID begins new member ids, and is shown with ClientHost in descriptions.
	ClientID, ClientHost string
	SessionTimeout       time.Duration
	// RebalanceTimeout is how long the member may take to rejoin. Zero or less means SessionTimeout, as v0 has it.
	RebalanceTimeout time.Duration
	ProtocolType     string
	// Protocols in order of preference. Of those with the same name the first counts.
	Protocols []Protocol
	// RequireMemberID: a dynamic member without an id is given one to join with (KIP-394, v4).
	RequireMemberID bool
	// SkipAssignment: the client knows JoinResult.SkipAssignment (KIP-814, v9).
	SkipAssignment bool
	// Reason is the client's, for the log.
	Reason string
}

// JoinResult is the answer to a JoinRequest.
type JoinResult struct {
	Err *kafkaproto.Error
	// Generation is -1 with an error.
	Generation int32
	// ProtocolType and Protocol are "" with an error.
	ProtocolType, Protocol string
	LeaderID               string
	// MemberID is the member's own. With MEMBER_ID_REQUIRED it is the one to join with.
	MemberID string
	// SkipAssignment tells the leader that the members have their assignments already.
	SkipAssignment bool
	// Members is what the leader assigns by; nil for others.
	Members []JoinedMember
}

// JoinedMember is what the leader is told about a member.
type JoinedMember struct {
	MemberID, InstanceID string
	Metadata             []byte
}

func joinError(memberID string, err *kafkaproto.Error) JoinResult {
	return JoinResult{Err: err, Generation: -1, MemberID: memberID}
}

// Join makes a member of the group, or lets one rejoin. Errors: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT,
// GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID,
// NOT_COORDINATOR when the coordinator drains, and those of the storage.
func (c *Coordinator) Join(r *JoinRequest) *Pending[JoinResult] {
	if err := c.checkJoin(r); err != nil {
		return answered(joinError(r.MemberID, err))
	}
	g, err := c.enter(r.Group)
	if err != nil {
		return answered(joinError(r.MemberID, asKafkaError(err)))
	}
	defer c.leave(g)
	if c.draining.Load() {
		return answered(joinError(r.MemberID, kafkaproto.ErrNotCoordinator))
	}
	if g.hasConsumers() {
		return g.joinConsumer(r)
	}
	if g.consumer != nil {
		g.becomeClassic()
	}
	p := g.join(r)
	g.tryCompleteJoin()
	return p
}

// checkJoin checks what does not depend on the group, and tidies the request.
func (c *Coordinator) checkJoin(r *JoinRequest) *kafkaproto.Error {
	switch {
	case !validGroupID(r.Group):
		return kafkaproto.ErrInvalidGroupID
	case r.SessionTimeout < c.opts.MinSessionTimeout || r.SessionTimeout > c.opts.MaxSessionTimeout:
		return kafkaproto.ErrInvalidSessionTimeout
	case len(r.Protocols) > maxProtocols:
		return kafkaproto.ErrInconsistentGroupProtocol
	}
	if r.RebalanceTimeout <= 0 {
		r.RebalanceTimeout = r.SessionTimeout
	}
	r.Protocols = distinctProtocols(r.Protocols)
	return nil
}

// validGroupID tells whether a group of this id can have members. Offsets can also be committed to the group "", for the
// sake of very old clients.
func validGroupID(id string) bool { return id != "" && len(id) <= maxGroupID }

func distinctProtocols(protocols []Protocol) []Protocol {
	seen := make(map[string]bool, len(protocols))
	distinct := protocols[:0:0]
	for _, p := range protocols {
		if !seen[p.Name] {
			seen[p.Name] = true
			distinct = append(distinct, p)
		}
	}
	return distinct
}

func cloneProtocols(protocols []Protocol) []Protocol {
	clones := make([]Protocol, len(protocols))
	for i, p := range protocols {
		clones[i] = Protocol{Name: p.Name, Metadata: bytes.Clone(p.Metadata)}
	}
	return clones
}

func (g *group) join(r *JoinRequest) *Pending[JoinResult] {
	fail := func(err *kafkaproto.Error) *Pending[JoinResult] { return answered(joinError(r.MemberID, err)) }
	if g.state == Dead && r.MemberID != "" {
		return fail(kafkaproto.ErrUnknownMemberID)
	}
	if !g.accepts(r) {
		g.turnAway(r.MemberID)
		return answered(joinError("", kafkaproto.ErrGroupMaxSizeReached))
	}
	if !g.supports(r.ProtocolType, r.Protocols) {
		return fail(kafkaproto.ErrInconsistentGroupProtocol)
	}
	if g.state == Dead {
		g.setState(Empty)
	}
	switch {
	case r.MemberID == "":
		return g.joinNew(r)
	case r.InstanceID == "" && g.removePending(r.MemberID):
		return g.joinMember(r, r.MemberID)
	}
	m, err := g.check(r.MemberID, r.InstanceID)
	if err != nil {
		return fail(err)
	}
	return g.rejoin(m, r)
}

// accepts tells whether there is room for whoever sends r. While a rebalance is prepared those that have joined already
// count, so that in a group that is too large the last to rejoin are turned away (Kafka: acceptJoiningMember). A static
// member that comes again takes the place that it had.
func (g *group) accepts(r *JoinRequest) bool {
	m := g.members[r.MemberID]
	if r.MemberID == "" && r.InstanceID != "" {
		m = g.members[g.static[r.InstanceID]]
	}
	if !g.hasRoom(m, r) {
		return false
	}
	limit := g.c.opts.MaxSize
	switch g.state {
	case PreparingRebalance:
		return m != nil && m.joining != nil || g.awaitingJoin < limit
	case CompletingRebalance, Stable:
		return m != nil || len(g.members) < limit
	}
	return true
}

// hasRoom tells whether the metadata of all members stays within bounds with that of r. m is the member it replaces.
func (g *group) hasRoom(m *member, r *JoinRequest) bool {
	size := g.metadataBytes + protocolBytes(r.Protocols) + len(r.ClientID) + 2*len(r.InstanceID)
	if m != nil {
		size -= m.size()
	}
	return size <= maxGroupMetadata
}

// turnAway forgets a member that does not fit any more.
func (g *group) turnAway(id string) {
	g.removePending(id)
	if m, ok := g.members[id]; ok {
		g.removeAndRebalance(m, "a member was turned away")
	}
}

// supports tells whether a member with these protocols leaves the group with one that all members list.
func (g *group) supports(protocolType string, protocols []Protocol) bool {
	if g.state == Dead || g.state == Empty || len(g.members) == 0 {
		return protocolType != "" && len(protocols) > 0
	}
	if protocolType != g.protocolType {
		return false
	}
	for _, p := range protocols {
		if g.supported[p.Name] == len(g.members) {
			return true
		}
	}
	return false
}

func (g *group) joinNew(r *JoinRequest) *Pending[JoinResult] {
	if r.InstanceID != "" {
		id := newMemberID(r.InstanceID)
		if old, ok := g.static[r.InstanceID]; ok {
			return g.replaceStatic(g.members[old], id, r)
		}
		return g.joinMember(r, id)
	}
	if r.RequireMemberID {
		return g.giveMemberID(r)
	}
	return g.joinMember(r, newMemberID(r.ClientID))
}

// giveMemberID gives out an id to join with.
func (g *group) giveMemberID(r *JoinRequest) *Pending[JoinResult] {
	if len(g.pending) >= maxPendingMembers {
		return answered(joinError("", kafkaproto.ErrGroupMaxSizeReached))
	}
	id := newMemberID(r.ClientID)
	g.addPending(id, r.SessionTimeout)
	return answered(joinError(id, kafkaproto.ErrMemberIDRequired))
}

// maxMemberName bounds, in bytes, how much of a client id or instance id goes into a member id, which must fit the
// strings of old versions.
const maxMemberName = 1024

// newMemberID makes an id as Kafka does: a name and a random UUID.
func newMemberID(name string) string {
	if len(name) > maxMemberName {
		name = strings.ToValidUTF8(name[:maxMemberName], "")
	}
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", name, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// joinMember adds a member and starts a rebalance unless one is being prepared (Kafka: addMemberAndRebalance).
func (g *group) joinMember(r *JoinRequest, id string) *Pending[JoinResult] {
	p := newPending[JoinResult]()
	if len(g.members) == 0 {
		g.protocolType = r.ProtocolType
	}
	m := &member{
		id: id, instanceID: r.InstanceID, clientID: r.ClientID, clientHost: r.ClientHost,
		sessionTimeout: r.SessionTimeout, rebalanceTimeout: r.RebalanceTimeout,
		protocols: cloneProtocols(r.Protocols), fresh: true, joining: p,
	}
	g.add(m)
	g.expireAfter(m, newMemberTimeout)
	if g.state == PreparingRebalance {
		g.phase.extended = true
	} else {
		g.prepareRebalance("a member joined")
	}
	return p
}

// rejoin answers a known member (Kafka: doCurrentMemberJoinGroup). One that says nothing new is told the generation
// again, for it may have missed the answer. The leader of a Stable group asks for a rebalance by joining: something it
// assigns by has changed that its metadata does not show.
func (g *group) rejoin(m *member, r *JoinRequest) *Pending[JoinResult] {
	same := m.matches(r.Protocols)
	switch {
	case g.state == CompletingRebalance && same, g.state == Stable && same && m.id != g.leader && m.joining == nil:
		g.keepAlive(m)
		return answered(g.joinResult(m))
	}
	p := newPending[JoinResult]()
	g.update(m, r, p)
	if g.state != PreparingRebalance {
		g.prepareRebalance("a member rejoined")
	}
	return p
}

// replaceStatic lets a new client take over the membership of an instance id, in any state (Kafka:
// updateStaticMemberAndRebalance).
func (g *group) replaceStatic(m *member, id string, r *JoinRequest) *Pending[JoinResult] {
	leader := g.leader
	g.answerJoin(m, joinError(m.id, kafkaproto.ErrFencedInstanceID))
	g.answerSync(m, SyncResult{Err: kafkaproto.ErrFencedInstanceID})
	g.rename(m, id)
	p := newPending[JoinResult]()
	g.update(m, r, p)
	g.keepAlive(m)
	switch {
	case g.state == PreparingRebalance:
	case g.state == Stable && g.chooseProtocol() == g.protocol:
		g.storeReplaced(m, leader, r.SkipAssignment)
	default:
		// In CompletingRebalance the leader may assign to the old id.
		g.prepareRebalance("a static member came again")
	}
	return p
}

// storeReplaced answers a static member that came again in a Stable group, once its new id is stored: no rebalance. Its
// client must not assign even if it is the leader, because nobody would get what it assigns. Clients that know
// SkipAssignment are told so. Others are told the leader's id of before, which is not theirs (KIP-814).
func (g *group) storeReplaced(m *member, leader string, skip bool) {
	p, generation := m.joining, g.generation
	g.enqueue(&write{
		changes: []Change{{groupKey(g.name), g.row(true, nil).encode()}},
		done: func(err error) {
			// A rebalance that began meanwhile answers when it is complete.
			if m.joining != p || g.state != Stable || g.generation != generation {
				return
			}
			if err != nil {
				g.answerJoin(m, joinError("", asKafkaError(err)))
				g.keepAlive(m)
				return
			}
			result := g.joinResult(m)
			if skip {
				result.SkipAssignment = m.id == g.leader
			} else {
				result.LeaderID, result.Members = leader, nil
			}
			g.answerJoin(m, result)
			g.keepAlive(m)
		},
	})
}

// joinResult is what a member is told about the present generation.
func (g *group) joinResult(m *member) JoinResult {
	r := JoinResult{Generation: g.generation, ProtocolType: g.protocolType, Protocol: g.protocol, LeaderID: g.leader, MemberID: m.id}
	if m.id == g.leader {
		r.Members = make([]JoinedMember, 0, len(g.members))
		for _, m := range g.inOrder() {
			r.Members = append(r.Members, JoinedMember{MemberID: m.id, InstanceID: m.instanceID, Metadata: m.metadata(g.protocol)})
		}
	}
	return r
}
