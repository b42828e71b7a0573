package broker

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// ListGroups (key 16), v0 to v5.
//
// Behaviour: all groups, in order of names, also those that only have offsets. An empty filter lets all pass; the names
// of states and types are compared without regard to case.
//
// Versions: 3 flexible; 4 filter by state (KIP-518); 5 filter by type (KIP-848), "classic" or "consumer".
func init() { register(kafkaproto.KeyListGroups, direct(handleListGroups)) }

const (
	groupTypeClassic  = "classic"
	groupTypeConsumer = "consumer"
)

func handleListGroups(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ListGroupsRequest)
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	all, err := b.groups.ListTypes()
	if err != nil {
		b.log.Error("groups cannot be listed", zap.Error(err))
		resp.ErrorCode = coordinatorError(err).Code
		return resp, nil
	}
	for _, l := range all {
		if g := listedGroup(l); passes(req.StatesFilter, g.GroupState) && passes(req.TypesFilter, g.GroupType) {
			resp.Groups = append(resp.Groups, g)
		}
	}
	return resp, nil
}

func passes(filter []string, name string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, name) })
}

func listedGroup(l groups.TypedListing) kmsg.ListGroupsResponseGroup {
	g := kmsg.NewListGroupsResponseGroup()
	g.Group, g.ProtocolType, g.GroupState, g.GroupType = l.Group, l.ProtocolType, l.State.String(), groupTypeClassic
	if l.Consumer {
		g.GroupType = groupTypeConsumer
	}
	return g
}
