package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// DeleteGroups (key 42), v0 to v3.
//
// Behaviour: a group without members is deleted with its offsets; the reply leaves when that is durable. One with members
// is NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND. A group that is named twice is answered once.
//
// Versions: 2 flexible; 3 message (KIP-1331).
func init() { register(kafkaproto.KeyDeleteGroups, handleDeleteGroups) }

func handleDeleteGroups(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.DeleteGroupsRequest)
	asked, _ := distinct(req.Groups, func(name *string) string { return *name })
	pending := make([]*groups.Pending[*kafkaproto.Error], len(asked))
	for i, name := range asked {
		pending[i] = b.groups.DeleteGroup(*name)
	}
	return func(ctx context.Context) (kmsg.Response, error) {
		resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
		for i, name := range asked {
			kerr, err := pending[i].Wait(ctx)
			if err != nil {
				return nil, err
			}
			g := kmsg.NewDeleteGroupsResponseGroup()
			g.Group = *name
			g.ErrorCode, g.ErrorMessage = errorFields(kerr)
			resp.Groups = append(resp.Groups, g)
		}
		return resp, nil
	}, nil
}
