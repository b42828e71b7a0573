package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// JoinGroup (key 11), v0 to v9.
//
// Behaviour: see groups.Coordinator.Join. The reply waits until all members have joined, and holds up those behind it on
// the connection, as in Kafka. If the connection dies the member stays until its session ends. A member whose metadata makes
// that of its group larger than 32 MiB is GROUP_MAX_SIZE_REACHED, where Kafka fails the whole group.
//
// Versions:
//
//	1  rebalance timeout (KIP-62)           7  protocol type in the reply (KIP-559)
//	4  MEMBER_ID_REQUIRED (KIP-394)         8  reason (KIP-800)
//	5  instance id (KIP-345)                9  skip assignment (KIP-814)
func init() { register(kafkaproto.KeyJoinGroup, handleJoinGroup) }

func handleJoinGroup(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.JoinGroupRequest)
	pending := b.groups.Join(joinRequest(r, req))
	return func(ctx context.Context) (kmsg.Response, error) {
		result, err := pending.Wait(ctx)
		if err != nil {
			return nil, err
		}
		return joinReply(req, &result), nil
	}, nil
}

func joinRequest(r *kafkaproto.Request, req *kmsg.JoinGroupRequest) *groups.JoinRequest {
	join := &groups.JoinRequest{
		Group:           req.Group,
		MemberID:        req.MemberID,
		InstanceID:      optional(req.InstanceID),
		ClientID:        r.ClientID,
		ClientHost:      clientHost(r.Conn),
		SessionTimeout:  time.Duration(req.SessionTimeoutMillis) * time.Millisecond,
		ProtocolType:    req.ProtocolType,
		RequireMemberID: req.Version >= 4,
		SkipAssignment:  req.Version >= 9,
		Reason:          optional(req.Reason),
	}
	if req.Version >= 1 {
		join.RebalanceTimeout = time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond
	}
	for i := range req.Protocols {
		join.Protocols = append(join.Protocols, groups.Protocol{Name: req.Protocols[i].Name, Metadata: req.Protocols[i].Metadata})
	}
	return join
}

func joinReply(req *kmsg.JoinGroupRequest, result *groups.JoinResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.ErrorCode = errorCode(result.Err)
	resp.Generation, resp.LeaderID, resp.MemberID = result.Generation, result.LeaderID, result.MemberID
	resp.SkipAssignment = result.SkipAssignment
	if result.Err == nil {
		resp.ProtocolType, resp.Protocol = kmsg.StringPtr(result.ProtocolType), kmsg.StringPtr(result.Protocol)
	}
	for i := range result.Members {
		m := kmsg.NewJoinGroupResponseMember()
		m.MemberID, m.InstanceID, m.ProtocolMetadata = result.Members[i].MemberID, nullable(result.Members[i].InstanceID), result.Members[i].Metadata
		resp.Members = append(resp.Members, m)
	}
	return resp
}
