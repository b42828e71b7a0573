package groups

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Listing is a group in a list.
type Listing struct {
	Group, ProtocolType string
	State               State
}

// List returns all groups of both types, in order of their names.
func (c *Coordinator) List() ([]Listing, error) {
	all, err := c.ListTypes()
	listings := make([]Listing, len(all))
	for i := range all {
		listings[i] = all[i].Listing
	}
	return listings, err
}

// TypedListing is a group in a list, with its type.
type TypedListing struct {
	Listing
	// Consumer: the broker assigns the partitions (KIP-848). Otherwise it is a classic group.
	Consumer bool
}

// ListTypes is List, with the types of the groups.
func (c *Coordinator) ListTypes() ([]TypedListing, error) {
	live := map[string]TypedListing{}
	c.each(func(g *group) {
		live[g.name] = TypedListing{Listing{g.name, g.protocolType, g.state}, g.consumer != nil}
	})
	var all []TypedListing
	err := c.storage.Scan([]byte(groupPrefix), func(key, value []byte) error {
		name := strings.TrimPrefix(string(key), groupPrefix)
		if _, ok := live[name]; ok {
			return nil
		}
		// Those with members are live. Those that cannot be read are not usable, as was logged at the start.
		if isConsumerRow(value) {
			if _, err := decodeConsumerRow(value); err == nil {
				all = append(all, TypedListing{Listing{name, consumerProtocol, Empty}, true})
			}
			return nil
		}
		if row, _, err := decodeGroupHead(value); err == nil {
			all = append(all, TypedListing{Listing: Listing{name, row.protocolType, Empty}})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, l := range live {
		if l.State != Dead {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b TypedListing) int { return cmp.Compare(a.Group, b.Group) })
	return all, nil
}

// Description describes a group.
type Description struct {
	State        State
	ProtocolType string
	// Protocol is "" unless the group is Stable.
	Protocol string
	Members  []MemberDescription
}

// MemberDescription describes a member. Metadata and Assignment are nil unless the group is Stable.
type MemberDescription struct {
	MemberID, InstanceID, ClientID, ClientHost string
	Metadata, Assignment                       []byte
}

// Describe describes a classic group. One that does not exist, or is a consumer group, is Dead.
func (c *Coordinator) Describe(group string) (Description, *kafkaproto.Error) {
	if len(group) > maxGroupID {
		return Description{}, nil
	}
	g, err := c.enter(group)
	if err != nil {
		return Description{}, asKafkaError(err)
	}
	defer c.leave(g)
	if g.consumer != nil {
		return Description{}, nil
	}
	d := Description{State: g.state, ProtocolType: g.protocolType}
	if g.state == Stable {
		d.Protocol = g.protocol
	}
	for _, m := range g.inOrder() {
		described := MemberDescription{MemberID: m.id, InstanceID: m.instanceID, ClientID: m.clientID, ClientHost: m.clientHost}
		if g.state == Stable {
			described.Metadata, described.Assignment = m.metadata(g.protocol), m.assignment
		}
		d.Members = append(d.Members, described)
	}
	return d, nil
}

// DeleteGroup removes a group with its offsets. One whose rows cannot be read is removed whatever members it has: nothing
// else can be done with it. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, and those of the storage.
func (c *Coordinator) DeleteGroup(group string) *Pending[*kafkaproto.Error] {
	if len(group) > maxGroupID {
		return answered(kafkaproto.ErrGroupIDNotFound)
	}
	if c.closed.Load() {
		return answered(kafkaproto.ErrCoordinatorNotAvailable)
	}
	g := c.hold(group)
	defer c.leave(g)
	switch err := g.load(); {
	case errors.Is(err, errBadRow):
		c.log.Warn("a group whose rows cannot be read is deleted", zap.String("group", group), zap.Error(err))
		g.loaded = true // from now on there is none: who comes next makes it anew
		return g.delete()
	case err != nil:
		return answered(asKafkaError(err))
	}
	switch g.state {
	case Dead:
		return answered(kafkaproto.ErrGroupIDNotFound)
	case Empty:
		return g.delete()
	}
	return answered(kafkaproto.ErrNonEmptyGroup)
}

func (g *group) delete() *Pending[*kafkaproto.Error] {
	p := newPending[*kafkaproto.Error]()
	for id := range g.pending {
		g.removePending(id)
	}
	g.vanish()
	g.enqueue(&write{
		prepare: func() ([]Change, error) {
			changes, err := g.removeRows(nil)
			if err != nil {
				return nil, err
			}
			err = g.c.storage.Scan(offsetsKey(g.name), func(key, _ []byte) error {
				changes = append(changes, Change{Key: slices.Clone(key)})
				return nil
			})
			return changes, err
		},
		done: func(err error) {
			if err == nil {
				p.answer(nil)
				return
			}
			g.reappear()
			p.answer(asKafkaError(err))
		},
	})
	return p
}

// vanish makes the group one that does not exist. The removal of its rows is to be queued before the lock is released.
func (g *group) vanish() {
	g.setState(Dead)
	g.stored, g.unsaved = false, false
	g.consumer, g.headChanged, g.changedRows = nil, false, nil
	g.generation, g.protocolType, g.protocol, g.leader = 0, "", "", ""
}

// reappear undoes vanish after the removal has failed, unless the group was made again meanwhile.
func (g *group) reappear() {
	if g.state != Dead {
		return
	}
	if g.loaded = false; g.load() == nil {
		g.c.m.count(g.state, 1)
	}
}

// Partition names a partition of a topic.
type Partition struct {
	Topic     string
	Partition int32
}

// DeleteOffsets removes committed offsets. The answer has an error for each, or one for all. Errors: INVALID_GROUP_ID,
// GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP if the group has members whose subscriptions are not known,
// GROUP_SUBSCRIBED_TO_TOPIC for one, and those of the storage.
func (c *Coordinator) DeleteOffsets(group string, partitions []Partition) *Pending[DeletedOffsets] {
	fail := func(err *kafkaproto.Error) *Pending[DeletedOffsets] { return answered(DeletedOffsets{Err: err}) }
	if !validGroupID(group) {
		return fail(kafkaproto.ErrInvalidGroupID)
	}
	g, err := c.enter(group)
	if err != nil {
		return fail(asKafkaError(err))
	}
	defer c.leave(g)
	switch {
	case g.state == Dead:
		return fail(kafkaproto.ErrGroupIDNotFound)
	case g.state != Empty && g.protocolType != consumerProtocol:
		return fail(kafkaproto.ErrNonEmptyGroup)
	}
	return g.deleteOffsets(partitions)
}

// DeletedOffsets is the answer to DeleteOffsets.
type DeletedOffsets struct {
	// Err is for all; Errs is nil then.
	Err  *kafkaproto.Error
	Errs []*kafkaproto.Error
}

func (g *group) deleteOffsets(partitions []Partition) *Pending[DeletedOffsets] {
	subscribed := g.subscription()
	errs := make([]*kafkaproto.Error, len(partitions))
	var changes []Change
	for i, p := range partitions {
		if subscribed.has(p.Topic) {
			errs[i] = kafkaproto.ErrGroupSubscribedToTopic
			continue
		}
		changes = append(changes, Change{Key: offsetKey(g.name, p.Topic, p.Partition)})
	}
	if len(changes) == 0 {
		return answered(DeletedOffsets{Errs: errs})
	}
	p := newPending[DeletedOffsets]()
	g.enqueue(&write{changes: changes, done: func(err error) {
		if err != nil {
			p.answer(DeletedOffsets{Err: asKafkaError(err)})
			return
		}
		p.answer(DeletedOffsets{Errs: errs})
	}})
	return p
}

// subscription is the set of topics that the members of a group read.
type subscription struct {
	topics map[string]bool
	// unknown: the members' metadata cannot be read. They may read any topic.
	unknown bool
}

func (s *subscription) has(topic string) bool { return s.unknown || s.topics[topic] }

// subscription reads the members' metadata. Of a member that does not list the protocol of the generation, because it
// joined since, any of what it lists must do.
func (g *group) subscription() *subscription {
	s := &subscription{topics: map[string]bool{}}
	if g.consumer != nil {
		g.consumer.subscription(s)
	}
	if len(g.members) > 0 && g.protocolType != consumerProtocol {
		s.unknown = true
	}
	for _, m := range g.members {
		metadata, ok := metadataFor(m.protocols, g.protocol)
		if !ok {
			metadata = m.protocols[0].Metadata
		}
		if subscribedTopics(metadata, func(topic []byte) { s.topics[string(topic)] = true }) != nil {
			s.unknown = true
		}
	}
	return s
}
