package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// LeaveGroup (key 13), v0 to v5.
//
// Behaviour: a member that leaves is removed at once and the others rebalance. From v3 a request may name many, and a
// static member by its instance id alone, as administrators do; each has an error of its own. Before that the error of
// the one member is at the top.
//
// Versions: 3 many members (KIP-345); 4 flexible; 5 reason (KIP-800).
func init() { register(kafkaproto.KeyLeaveGroup, direct(handleLeaveGroup)) }

func handleLeaveGroup(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.LeaveGroupRequest)
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	errs, err := b.groups.Leave(req.Group, leavingMembers(req))
	resp.ErrorCode = errorCode(err)
	switch {
	case err != nil:
	case req.Version < 3:
		resp.ErrorCode = errorCode(errs[0])
	default:
		for i := range errs {
			m := kmsg.NewLeaveGroupResponseMember()
			m.MemberID, m.InstanceID = req.Members[i].MemberID, req.Members[i].InstanceID
			m.ErrorCode = errorCode(errs[i])
			resp.Members = append(resp.Members, m)
		}
	}
	return resp, nil
}

func leavingMembers(req *kmsg.LeaveGroupRequest) []groups.LeavingMember {
	if req.Version < 3 {
		return []groups.LeavingMember{{MemberID: req.MemberID}}
	}
	members := make([]groups.LeavingMember, len(req.Members))
	for i := range req.Members {
		m := &req.Members[i]
		members[i] = groups.LeavingMember{MemberID: m.MemberID, InstanceID: optional(m.InstanceID), Reason: optional(m.Reason)}
	}
	return members
}
