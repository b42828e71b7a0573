package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// SyncGroup (key 14), v0 to v5.
//
// Behaviour: see groups.Coordinator.Sync. The reply waits until the leader's assignment is there and durable. From v5 the
// protocol must be named (INCONSISTENT_GROUP_PROTOCOL).
//
// Versions: 3 instance id (KIP-345); 4 flexible; 5 protocol type and name (KIP-559).
func init() { register(kafkaproto.KeySyncGroup, handleSyncGroup) }

func handleSyncGroup(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.SyncGroupRequest)
	if req.Version >= 5 && (req.ProtocolType == nil || req.Protocol == nil) {
		result := groups.SyncResult{Err: kafkaproto.ErrInconsistentGroupProtocol}
		return func(context.Context) (kmsg.Response, error) { return syncReply(req, &result), nil }, nil
	}
	pending := b.groups.Sync(syncRequest(req))
	return func(ctx context.Context) (kmsg.Response, error) {
		result, err := pending.Wait(ctx)
		if err != nil {
			return nil, err
		}
		return syncReply(req, &result), nil
	}, nil
}

func syncRequest(req *kmsg.SyncGroupRequest) *groups.SyncRequest {
	sync := &groups.SyncRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: optional(req.InstanceID), Generation: req.Generation,
		ProtocolType: req.ProtocolType, Protocol: req.Protocol,
	}
	for i := range req.GroupAssignment {
		a := &req.GroupAssignment[i]
		sync.Assignments = append(sync.Assignments, groups.Assignment{MemberID: a.MemberID, Data: a.MemberAssignment})
	}
	return sync
}

func syncReply(req *kmsg.SyncGroupRequest, result *groups.SyncResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	resp.ErrorCode, resp.MemberAssignment = errorCode(result.Err), result.Assignment
	if result.Err == nil {
		resp.ProtocolType, resp.Protocol = kmsg.StringPtr(result.ProtocolType), kmsg.StringPtr(result.Protocol)
	}
	return resp
}
