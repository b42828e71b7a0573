package groups

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// memberPrefix begins the keys of the rows of consumer groups' members, with names escaped as in those of offsets:
//
//	group-member/<group>/<member id>
const memberPrefix = "group-member/"

// membersKey is the prefix of the keys of a group's members.
func membersKey(group string) []byte {
	return append(appendEscaped([]byte(memberPrefix), group), '/')
}

func memberKey(group, id string) []byte { return appendEscaped(membersKey(group), id) }

// consumerRow is what is stored about a consumer group under the key of a group; the version tells it from a classic
// group. It is written with the rows of the members that change with it.
//
//	0      1                 9       13             17           25
//	| 0x02 | since, unix ms  | epoch | target epoch | topics hash | members
//	         int64             int32   int32          uint64        uvarint, their number
//
// Integers are big endian. since is when the group became empty, and without meaning while it has members. The hash is
// that of the topics that the epoch was made for.
type consumerRow struct {
	since              time.Time // whole milliseconds
	epoch, targetEpoch int32
	topicsHash         uint64
	members            int
}

const (
	consumerRowVersion = 2
	consumerRowSize    = 25 // without members
)

// isConsumerRow tells whether the row of a group is that of a consumer group.
func isConsumerRow(b []byte) bool { return len(b) > 0 && b[0] == consumerRowVersion }

func (r *consumerRow) encode() []byte {
	b := append(make([]byte, 0, consumerRowSize+3), consumerRowVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(r.since.UnixMilli()))
	b = binary.BigEndian.AppendUint32(b, uint32(r.epoch))
	b = binary.BigEndian.AppendUint32(b, uint32(r.targetEpoch))
	b = binary.BigEndian.AppendUint64(b, r.topicsHash)
	return binary.AppendUvarint(b, uint64(r.members))
}

// decodeConsumerRow is the inverse of encode. The error wraps errBadRow.
func decodeConsumerRow(b []byte) (consumerRow, error) {
	if err := checkVersion(b, consumerRowVersion); err != nil {
		return consumerRow{}, err
	}
	if len(b) < consumerRowSize {
		return consumerRow{}, fmt.Errorf("%w: %d bytes, more than %d expected", errBadRow, len(b), consumerRowSize)
	}
	d := &rowReader{b: b[consumerRowSize:]}
	r := consumerRow{
		since:       time.UnixMilli(int64(binary.BigEndian.Uint64(b[1:]))),
		epoch:       int32(binary.BigEndian.Uint32(b[9:])),
		targetEpoch: int32(binary.BigEndian.Uint32(b[13:])),
		topicsHash:  binary.BigEndian.Uint64(b[17:]),
	}
	members := d.uvarint()
	r.members = int(members)
	if d.bad || len(d.b) > 0 || members > 1<<31-1 || r.epoch < 0 || r.targetEpoch > r.epoch {
		return r, fmt.Errorf("%w: its numbers make no sense", errBadRow)
	}
	return r, nil
}

// The row of a member, version 1:
//
//	0      1                  5
//	| 0x01 | epoch  | previous epoch | state | instance id, rack id, client id, client host, regex, assignor,
//	         int32    int32            byte    rebalance timeout ms, topics, assigned, revoking, target, classic
//
//	topics      uvarint count, then the names
//	assignment  uvarint count of topics, then for each the id (16 bytes), a uvarint count and the partitions (uvarint)
//	classic     nothing, or for a member that uses JoinGroup: session timeout ms, protocols (uvarint count, then for
//	            each name and metadata)
//
// Integers are big endian, milliseconds are uvarints; strings and bytes are a uvarint length and the bytes.
const (
	memberRowVersion = 1
	memberRowHead    = 10
)

func (m *consumerMember) encode() []byte {
	b := append(make([]byte, 0, 128+m.size()+3*(len(m.assigned)+len(m.revoking)+len(m.target))), memberRowVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(m.epoch))
	b = binary.BigEndian.AppendUint32(b, uint32(m.previousEpoch))
	b = append(b, byte(m.state))
	for _, s := range []string{m.instanceID, m.rackID, m.clientID, m.clientHost, m.regex, m.assignor} {
		b = appendBytes(b, s)
	}
	b = binary.AppendUvarint(b, uint64(m.rebalanceTimeout.Milliseconds()))
	b = binary.AppendUvarint(b, uint64(len(m.topics)))
	for _, t := range m.topics {
		b = appendBytes(b, t)
	}
	for _, a := range []assignment{m.assigned, m.revoking, m.target} {
		b = appendAssignment(b, a)
	}
	if m.classic == nil {
		return b
	}
	b = binary.AppendUvarint(b, uint64(m.classic.sessionTimeout.Milliseconds()))
	b = binary.AppendUvarint(b, uint64(len(m.classic.protocols)))
	for _, p := range m.classic.protocols {
		b = appendBytes(b, p.Name)
		b = appendBytes(b, p.Metadata)
	}
	return b
}

func appendAssignment(b []byte, a assignment) []byte {
	topics := 0
	a.byTopic(func([16]byte, []int32) { topics++ })
	b = binary.AppendUvarint(b, uint64(topics))
	a.byTopic(func(topic [16]byte, partitions []int32) {
		b = append(b, topic[:]...)
		b = binary.AppendUvarint(b, uint64(len(partitions)))
		for _, p := range partitions {
			b = binary.AppendUvarint(b, uint64(p))
		}
	})
	return b
}

// decodeMember is the inverse of encode, but for the pattern, which restore makes. The error wraps errBadRow.
func decodeMember(id string, b []byte) (*consumerMember, error) {
	if err := checkVersion(b, memberRowVersion); err != nil {
		return nil, err
	}
	if len(b) < memberRowHead {
		return nil, fmt.Errorf("%w: %d bytes, at least %d expected", errBadRow, len(b), memberRowHead)
	}
	m := &consumerMember{
		id:            id,
		epoch:         int32(binary.BigEndian.Uint32(b[1:])),
		previousEpoch: int32(binary.BigEndian.Uint32(b[5:])),
		state:         reconciliation(b[9]),
	}
	d := &rowReader{b: b[memberRowHead:]}
	for _, s := range []*string{&m.instanceID, &m.rackID, &m.clientID, &m.clientHost, &m.regex, &m.assignor} {
		*s = d.string()
	}
	m.rebalanceTimeout = d.millis()
	for range d.count(1) {
		m.topics = append(m.topics, d.string())
	}
	for _, a := range []*assignment{&m.assigned, &m.revoking, &m.target} {
		*a = d.assignment()
	}
	if len(d.b) > 0 {
		m.classic = d.classic()
	}
	if d.bad || len(d.b) > 0 || m.state > unreleased || m.epoch < staticLeave {
		return nil, fmt.Errorf("%w: it is cut short or its values make no sense", errBadRow)
	}
	return m, nil
}

func (d *rowReader) assignment() assignment {
	var all []topicPartition
	for range d.count(17) {
		if len(d.b) < 16 {
			d.bad, d.b = true, nil
			break
		}
		topic := [16]byte(d.b)
		d.b = d.b[16:]
		for range d.count(1) {
			p := d.uvarint()
			d.bad = d.bad || p > 1<<31-1
			all = append(all, topicPartition{topic, int32(p)})
		}
	}
	return newAssignment(all)
}

func (d *rowReader) classic() *classicMember {
	c := &classicMember{sessionTimeout: d.millis()}
	for range d.count(2) {
		c.protocols = append(c.protocols, Protocol{Name: d.string(), Metadata: bytes.Clone(d.bytes())})
	}
	d.bad = d.bad || len(c.protocols) == 0
	return c
}

// loadConsumer makes the group the consumer group that its rows say.
func (g *group) loadConsumer(head []byte) error {
	r, err := decodeConsumerRow(head)
	if err != nil {
		return err
	}
	cg := newConsumerGroup(r.epoch)
	cg.targetEpoch, cg.topics.hash, cg.adopted = r.targetEpoch, r.topicsHash, false
	prefix := membersKey(g.name)
	err = g.c.storage.Scan(prefix, func(key, value []byte) error {
		id, err := unescape(bytes.TrimPrefix(key, prefix))
		if err != nil {
			return err
		}
		m, err := decodeMember(id, value)
		if err != nil {
			return fmt.Errorf("member %q: %w", id, err)
		}
		return cg.restore(m)
	})
	if err != nil {
		return err
	}
	if len(cg.members) != r.members {
		return fmt.Errorf("%w: it has %d members, %d rows of members are there", errBadRow, r.members, len(cg.members))
	}
	g.consumer, g.stored, g.protocolType, g.generation, g.since = cg, true, consumerProtocol, r.epoch, r.since
	g.state = Empty
	if r.members > 0 {
		g.state = g.consumerState()
	}
	g.c.m.members.Add(float64(r.members))
	return nil
}

// restore adds a member that was stored. No partition may have two holders.
func (cg *consumerGroup) restore(m *consumerMember) error {
	for _, held := range []assignment{m.assigned, m.revoking} {
		for _, p := range held {
			if other := cg.owners[p].member; other != nil {
				return fmt.Errorf("%w: partition %d of topic %x belongs to the members %q and %q", errBadRow, p.partition, p.topic, other.id, m.id)
			}
			cg.owners[p] = owner{m, m.epoch}
		}
	}
	if _, taken := cg.static[m.instanceID]; taken {
		return fmt.Errorf("%w: instance %q has two members", errBadRow, m.instanceID)
	}
	if m.instanceID != "" {
		cg.static[m.instanceID] = m.id
	}
	cg.members[m.id] = m
	pattern, _ := parsePattern(m.regex) // one that another release has let pass matches nothing
	cg.setRegex(m, m.regex, pattern)
	cg.count(m, 1)
	return nil
}

// changed notes that the row of a member is not what is stored.
func (g *group) changed(m *consumerMember) {
	if g.changedRows == nil {
		g.changedRows = map[string]bool{}
	}
	g.changedRows[m.id] = true
	m.change++
}

// rowBatch is the rows of members that are written together, and the head of the group with them.
type rowBatch struct {
	taken   bool
	group   *consumerGroup
	head    bool
	rows    map[string]bool
	changes map[*consumerMember]uint64
	waiters []func(error)
}

// flush writes all rows of a consumer group that have changed, in one transaction, and calls done, which may be nil, when
// everything is durable that has happened so far, or could not be written. What could not be written is written with the
// next changes.
func (g *group) flush(done func(error)) {
	if !g.unwritten() && !g.writing {
		if done != nil {
			done(nil)
		}
		return
	}
	if done != nil {
		g.waiters = append(g.waiters, done)
	}
	if g.queuedFlush != nil || !g.unwritten() && done == nil {
		return
	}
	g.stored = g.stored || g.consumer != nil
	b := &rowBatch{}
	g.queuedFlush = b
	g.enqueue(&write{
		prepare: func() ([]Change, error) { return g.takeRows(b) },
		done:    func(err error) { g.rowsWritten(b, err) },
	})
}

// unwritten tells whether rows of members or of the consumer group are to be written.
func (g *group) unwritten() bool { return g.headChanged || len(g.changedRows) > 0 }

// take moves what is to be written to b.
func (b *rowBatch) take(g *group) {
	if b.taken {
		return
	}
	b.taken, b.group, b.head, b.rows, b.waiters = true, g.consumer, g.headChanged, g.changedRows, g.waiters
	g.queuedFlush, g.headChanged, g.changedRows, g.waiters = nil, false, nil, nil
}

// takeRows encodes all rows that have changed. It is called by the writer.
func (g *group) takeRows(b *rowBatch) ([]Change, error) {
	g.mu.Lock()
	b.take(g)
	changes := make([]Change, 0, len(b.rows)+1)
	b.changes = make(map[*consumerMember]uint64, len(b.rows))
	known := map[string]bool{}
	for id := range b.rows {
		c := Change{Key: memberKey(g.name, id)}
		if m := b.group.member(id); m != nil {
			c.Value = m.encode()
			b.changes[m] = m.change
		}
		changes = append(changes, c)
	}
	adopted := b.group != nil && b.group.adopted
	if adopted {
		for id := range b.group.members {
			known[id] = true
		}
	}
	if b.group != nil && (b.head || len(b.rows) > 0) {
		changes = append(changes, g.emptyRow())
	}
	g.mu.Unlock()
	if !adopted {
		return changes, nil
	}
	prefix := membersKey(g.name)
	err := g.c.storage.Scan(prefix, func(key, _ []byte) error {
		if id, err := unescape(bytes.TrimPrefix(key, prefix)); err != nil || !known[id] {
			changes = append(changes, Change{Key: bytes.Clone(key)})
		}
		return nil
	})
	return changes, err
}

// member returns the member of an id, nil if there is none.
func (cg *consumerGroup) member(id string) *consumerMember {
	if cg == nil {
		return nil
	}
	return cg.members[id]
}

func (g *group) rowsWritten(b *rowBatch, err error) {
	b.take(g) // if it did not come to prepare
	switch {
	case err == nil:
		for m, change := range b.changes {
			m.stored = max(m.stored, change)
		}
		if b.group != nil {
			b.group.adopted = false
		}
	case g.state != Dead && g.consumer == b.group:
		// Rows of an earlier life of the group are not removed without its row: they would be missing there.
		g.headChanged = g.headChanged || b.head && g.consumer != nil
		for id := range b.rows {
			if g.changedRows == nil {
				g.changedRows = map[string]bool{}
			}
			g.changedRows[id] = true
		}
	}
	for _, done := range b.waiters {
		done(err)
	}
}
