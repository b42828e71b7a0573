package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeGroups (key 15), v0 to v6.
//
// Behaviour:
//   - Members' metadata and assignments are shown while the group is Stable.
//   - A group that does not exist, or is no classic one, has the state Dead; from v6 that comes with GROUP_ID_NOT_FOUND and a message.
//   - A group that is named twice is described once.
//
// Versions: 3 authorized operations (KIP-430); 4 instance id (KIP-345); 5 flexible; 6 GROUP_ID_NOT_FOUND (KIP-1043).
func init() { register(kafkaproto.KeyDescribeGroups, direct(handleDescribeGroups)) }

// groupOperations: see topicOperations.
const groupOperations = 1<<opRead | 1<<opDelete | 1<<opDescribe

func handleDescribeGroups(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeGroupsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	asked, _ := distinct(req.Groups, func(name *string) string { return *name })
	for _, name := range asked {
		g := b.describeGroup(req.Version, *name)
		if req.IncludeAuthorizedOperations && g.ErrorCode == 0 {
			g.AuthorizedOperations = groupOperations
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

func (b *Broker) describeGroup(version int16, name string) kmsg.DescribeGroupsResponseGroup {
	rg := kmsg.NewDescribeGroupsResponseGroup()
	rg.Group = name
	d, err := b.groups.Describe(name)
	if err == nil && d.State == groups.Dead && version >= 6 {
		err = kafkaproto.ErrGroupIDNotFound.WithMessage("group %q not found", name)
	}
	rg.ErrorCode, rg.ErrorMessage = errorFields(err)
	if err == nil || d.State == groups.Dead && err.Code == kafkaproto.ErrGroupIDNotFound.Code {
		rg.State = d.State.String()
	}
	rg.ProtocolType, rg.Protocol = d.ProtocolType, d.Protocol
	for i := range d.Members {
		rg.Members = append(rg.Members, describedMember(&d.Members[i]))
	}
	return rg
}

func describedMember(m *groups.MemberDescription) kmsg.DescribeGroupsResponseGroupMember {
	rm := kmsg.NewDescribeGroupsResponseGroupMember()
	rm.MemberID, rm.InstanceID, rm.ClientID, rm.ClientHost = m.MemberID, nullable(m.InstanceID), m.ClientID, m.ClientHost
	rm.ProtocolMetadata, rm.MemberAssignment = m.Metadata, m.Assignment
	return rm
}
