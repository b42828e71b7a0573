package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// ConsumerGroupHeartbeat (key 68), v0 to v1 (KIP-848).
//
// Behaviour:
//   - See groups.Coordinator.ConsumerHeartbeat. The reply leaves when what it says is durable.
//   - Topics and named streams can be subscribed to by name; regular expressions, in the syntax of RE2, match topics only.
//   - Racks are kept and shown, and nothing hangs on them: all partitions are at one place.
//
// Versions: 1 regular expressions, and the member id is the client's (KIP-1082).
func init() { register(kafkaproto.KeyConsumerGroupHeartbeat, handleConsumerGroupHeartbeat) }

func handleConsumerGroupHeartbeat(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.ConsumerGroupHeartbeatRequest)
	pending := b.groups.ConsumerHeartbeat(consumerHeartbeat(r, req))
	return func(ctx context.Context) (kmsg.Response, error) {
		result, err := pending.Wait(ctx)
		if err != nil {
			return nil, err
		}
		return consumerHeartbeatReply(req, &result), nil
	}, nil
}

func consumerHeartbeat(r *kafkaproto.Request, req *kmsg.ConsumerGroupHeartbeatRequest) *groups.ConsumerHeartbeatRequest {
	heartbeat := &groups.ConsumerHeartbeatRequest{
		Group:            req.Group,
		MemberID:         req.MemberID,
		MemberIDRequired: req.Version >= 1,
		MemberEpoch:      req.MemberEpoch,
		InstanceID:       req.InstanceID,
		RackID:           req.RackID,
		RebalanceTimeout: time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond,
		Topics:           req.SubscribedTopicNames,
		Regex:            req.SubscribedTopicRegex,
		Assignor:         req.ServerAssignor,
		ClientID:         r.ClientID,
		ClientHost:       clientHost(r.Conn),
	}
	if req.Topics == nil {
		return heartbeat
	}
	heartbeat.Owned = make([]groups.TopicPartitions, len(req.Topics))
	for i := range req.Topics {
		heartbeat.Owned[i] = groups.TopicPartitions{TopicID: req.Topics[i].TopicID, Partitions: req.Topics[i].Partitions}
	}
	return heartbeat
}

func consumerHeartbeatReply(req *kmsg.ConsumerGroupHeartbeatRequest, result *groups.ConsumerHeartbeatResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	resp.ErrorCode, resp.ErrorMessage = errorFields(result.Err)
	if result.Err != nil {
		return resp
	}
	resp.MemberID, resp.MemberEpoch = kmsg.StringPtr(result.MemberID), result.MemberEpoch
	resp.HeartbeatIntervalMillis = int32(result.Interval.Milliseconds())
	if !result.HasAssignment {
		return resp
	}
	resp.Assignment = &kmsg.ConsumerGroupHeartbeatResponseAssignment{}
	for _, t := range result.Assignment {
		rt := kmsg.NewConsumerGroupHeartbeatResponseAssignmentTopic()
		rt.TopicID, rt.Partitions = t.TopicID, t.Partitions
		resp.Assignment.Topics = append(resp.Assignment.Topics, rt)
	}
	return resp
}
