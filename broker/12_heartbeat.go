package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// Heartbeat (key 12), v0 to v4. Behaviour: see groups.Coordinator.Heartbeat.
//
// Versions: 3 instance id (KIP-345); 4 flexible.
func init() { register(kafkaproto.KeyHeartbeat, direct(handleHeartbeat)) }

func handleHeartbeat(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.HeartbeatRequest)
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	resp.ErrorCode = errorCode(b.groups.Heartbeat(&groups.HeartbeatRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: optional(req.InstanceID), Generation: req.Generation,
	}))
	return resp, nil
}
