package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DeleteAcls (key 31), v1 to v3 (KIP-140): each filter is SECURITY_DISABLED, as from a Kafka broker that has no
// authorizer.
//
// Versions:
//
//	1  pattern type (KIP-290)     2  flexible     3  user resource (KIP-373)
func init() { register(kafkaproto.KeyDeleteACLs, direct(handleDeleteACLs)) }

func handleDeleteACLs(_ *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DeleteACLsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
	refusal := kmsg.NewDeleteACLsResponseResult()
	refusal.ErrorCode, refusal.ErrorMessage = errorFields(errNoAuthorizer)
	for range req.Filters {
		resp.Results = append(resp.Results, refusal)
	}
	return resp, nil
}
