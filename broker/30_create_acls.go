package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// CreateAcls (key 30), v1 to v3 (KIP-140): each creation is SECURITY_DISABLED, as from a Kafka broker that has no
// authorizer.
//
// Versions:
//
//	1  pattern type (KIP-290)     2  flexible     3  user resource (KIP-373)
func init() { register(kafkaproto.KeyCreateACLs, direct(handleCreateACLs)) }

func handleCreateACLs(_ *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.CreateACLsRequest)
	resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
	refusal := kmsg.NewCreateACLsResponseResult()
	refusal.ErrorCode, refusal.ErrorMessage = errorFields(errNoAuthorizer)
	for range req.Creations {
		resp.Results = append(resp.Results, refusal)
	}
	return resp, nil
}
