package groups

import (
	"bytes"
	"sync"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// State of a group.
type State int8

const (
	// Dead: the group does not exist.
	Dead State = iota
	// Empty: it has no members, perhaps offsets.
	Empty
	// PreparingRebalance: it waits until its members have joined.
	PreparingRebalance
	// CompletingRebalance: it waits for the leader's assignment, and until that is stored.
	CompletingRebalance
	// Stable: its members have their assignments.
	Stable
	// Assigning: a consumer group has a new epoch, whose assignment is computed at the next heartbeat.
	Assigning
	// Reconciling: members of a consumer group have not got all of their assignments.
	Reconciling
	numStates
)

var stateNames = [numStates]string{"Dead", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling"}

// String returns the name that clients know the state by.
func (s State) String() string { return stateNames[s] }

// Protocol is a way of assigning that a member can take part in, and what it tells the leader about itself then.
type Protocol struct {
	Name     string
	Metadata []byte
}

// group is one group in memory.
type group struct {
	c    *Coordinator
	name string
	// users is how many goroutines are in the group or on their way into it. Guarded by the mutex of the shard.
	users int

	// mu guards all that follows.
	mu     sync.Mutex
	loaded bool
	// stored tells that the group has a row, or that one is queued behind which none removes it.
	stored bool
	// unsaved tells that the row still has members that the group has lost: it could not be written, and is written
	// again with the next change or clean-up.
	unsaved bool
	state   State
	// since is when the group became empty.
	since      time.Time
	generation int32
	// protocolType is that of the members; an empty group keeps the last. "" if it never had members.
	protocolType string
	// protocol is the one chosen when the last join phase was complete; "" for an empty group.
	protocol string
	// leader is the id of a member, "" if there is none.
	leader  string
	members map[string]*member
	// static has the member id of each instance id.
	static map[string]string
	// pending are the ids that were handed out and whose member has not joined.
	pending map[string]*alarm
	// supported counts the members that list a protocol. No entry is zero.
	supported map[string]int
	// awaitingJoin counts the members with a JoinGroup that waits, unsynced those that have yet to send SyncGroup.
	awaitingJoin, unsynced int
	// metadataBytes is the size of ids and protocols of all members.
	metadataBytes int
	// joined numbers members in the order in which they came.
	joined uint64

	phase joinPhase
	// sync fires when members have had enough time to send SyncGroup.
	sync alarm
	// storing is the generation whose assignment is being stored.
	storing int32

	// consumer is nil unless the broker assigns the partitions (KIP-848). The members are there then.
	consumer *consumerGroup
	// headChanged and changedRows tell which rows of a consumer group are not what is stored: its own, and those of the
	// members of these ids, or that had them. waiters are called when a write that is queued (queuedFlush) has made all
	// durable that came before.
	headChanged bool
	changedRows map[string]bool
	queuedFlush *rowBatch
	waiters     []func(error)

	queue   []*write
	writing bool
	// doubtful: the last write has failed, so what the storage shows may not be durable. The group stays in memory until
	// a write has succeeded.
	doubtful bool
	// confirming are called when the write that is on its way has returned.
	confirming []func(error)
}

// joinPhase is how far PreparingRebalance is.
type joinPhase struct {
	alarm alarm
	// initial tells that the group was empty before: the phase lasts until the alarm, whoever has joined, and longer
	// if members keep coming.
	initial bool
	began   time.Time
	// extended tells that a member came since the alarm was set.
	extended bool
}

// member of a group.
type member struct {
	id, instanceID, clientID, clientHost string
	sessionTimeout, rebalanceTimeout     time.Duration
	protocols                            []Protocol
	assignment                           []byte
	number                               uint64
	// fresh: it has not completed a join phase, so it cannot have sent heartbeats.
	fresh bool
	// joining and syncing are its requests that wait. While one does, its session does not end.
	joining  *Pending[JoinResult]
	syncing  *Pending[SyncResult]
	unsynced bool
	// session is set to fire at sessionAlarm, which is not after deadline, when the session ends: heartbeats move the
	// deadline only.
	session                alarm
	sessionAlarm, deadline time.Time
}

// alarm is a timer of a group. It is set and stopped by who holds the group's lock, and calls its function with the group
// locked. One that was stopped or set again does not fire for the earlier time.
type alarm struct{ timer *time.Timer }

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

func (g *group) setAlarm(a *alarm, d time.Duration, fn func()) {
	a.stop()
	if g.c.closed.Load() {
		return
	}
	var mine *time.Timer
	mine = time.AfterFunc(d, func() {
		if !g.c.reenter(g) {
			return
		}
		defer g.c.leave(g)
		if a.timer == mine { // set under the lock, before the function could enter
			a.timer = nil
			fn()
		}
	})
	a.timer = mine
}

// load reads the row of the group unless that was done.
func (g *group) load() error {
	if g.loaded {
		return nil
	}
	value, ok, err := g.c.storage.Get(groupKey(g.name))
	if err != nil {
		return err
	}
	switch {
	case ok && isConsumerRow(value):
		if err := g.loadConsumer(value); err != nil {
			return err
		}
	case ok:
		row, err := decodeGroupRow(value)
		if err != nil {
			return err
		}
		g.restore(&row)
	}
	g.loaded = true
	g.resume()
	return nil
}

// restore makes the group what its row says. Groups that exist are counted in the metrics when the coordinator starts.
func (g *group) restore(r *groupRow) {
	g.stored, g.state = true, Empty
	g.since, g.generation = r.since, r.generation
	g.protocolType, g.protocol, g.leader = r.protocolType, r.protocol, r.leader
	if len(r.members) == 0 {
		return
	}
	g.state = Stable
	for i := range r.members {
		m := &r.members[i]
		g.add(&member{
			id: m.id, instanceID: m.instanceID, clientID: m.clientID, clientHost: m.clientHost,
			sessionTimeout: m.sessionTimeout, rebalanceTimeout: m.rebalanceTimeout,
			protocols: m.protocols, assignment: m.assignment,
		})
	}
}

// resume starts the timers of the members that a group was loaded with.
func (g *group) resume() {
	if g.consumer != nil {
		g.resumeConsumers()
	}
	for _, m := range g.members {
		g.keepAlive(m)
	}
	if len(g.members) > g.c.opts.MaxSize {
		g.prepareRebalance("the group is larger than it may be")
	}
}

// row returns what is to be stored, with the members or without.
func (g *group) row(members bool, assignments map[string][]byte) *groupRow {
	r := &groupRow{since: g.since, generation: g.generation, protocolType: g.protocolType, protocol: g.protocol}
	if !members {
		return r
	}
	r.leader = g.leader
	r.members = make([]memberRow, 0, len(g.members))
	for _, m := range g.inOrder() {
		assignment := m.assignment
		if assignments != nil {
			assignment = assignments[m.id]
		}
		r.members = append(r.members, memberRow{
			id: m.id, instanceID: m.instanceID, clientID: m.clientID, clientHost: m.clientHost,
			sessionTimeout: m.sessionTimeout, rebalanceTimeout: m.rebalanceTimeout,
			protocols: m.protocols, assignment: assignment,
		})
	}
	return r
}

func (g *group) setState(s State) {
	g.c.m.count(g.state, -1)
	g.c.m.count(s, 1)
	if g.state = s; s == Empty {
		g.since = time.Now()
	}
}

// stopTimers ends all that would happen by itself.
func (g *group) stopTimers() {
	g.phase.alarm.stop()
	g.sync.stop()
	for _, m := range g.members {
		m.session.stop()
	}
	if g.consumer != nil {
		for _, m := range g.consumer.members {
			m.stopTimers()
		}
	}
	for _, a := range g.pending {
		a.stop()
	}
}

// refuseWaiting answers the requests that wait with an error.
func (g *group) refuseWaiting(err *kafkaproto.Error) {
	for _, m := range g.members {
		g.answerJoin(m, joinError(m.id, err))
		g.answerSync(m, SyncResult{Err: err})
	}
}

// size of what a member makes the broker remember, in bytes.
func (m *member) size() int {
	n := len(m.id) + len(m.instanceID) + len(m.clientID)
	return n + protocolBytes(m.protocols)
}

func protocolBytes(protocols []Protocol) int {
	n := 0
	for _, p := range protocols {
		n += len(p.Name) + len(p.Metadata)
	}
	return n
}

// metadataFor returns what a member says of itself for a protocol, if it lists it.
func metadataFor(protocols []Protocol, name string) (metadata []byte, ok bool) {
	for _, p := range protocols {
		if p.Name == name {
			return p.Metadata, true
		}
	}
	return nil, false
}

// metadata returns what the member says of itself for the protocol of the generation. It lists that, unless it joined
// since.
func (m *member) metadata(protocol string) []byte {
	metadata, _ := metadataFor(m.protocols, protocol)
	return metadata
}

// matches tells whether the member lists exactly these protocols.
func (m *member) matches(protocols []Protocol) bool {
	if len(m.protocols) != len(protocols) {
		return false
	}
	for i, p := range protocols {
		if m.protocols[i].Name != p.Name || !bytes.Equal(m.protocols[i].Metadata, p.Metadata) {
			return false
		}
	}
	return true
}
