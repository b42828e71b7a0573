package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeAcls (key 29), v1 to v3 (KIP-140): SECURITY_DISABLED, as from a Kafka broker that has no authorizer.
//
// Versions:
//
//	1  pattern type (KIP-290)     2  flexible     3  user resource (KIP-373)
func init() { register(kafkaproto.KeyDescribeACLs, direct(handleDescribeACLs)) }

// errNoAuthorizer answers every request about access control lists. Tools know Kafka's text.
var errNoAuthorizer = kafkaproto.ErrSecurityDisabled.WithMessage("No Authorizer is configured.")

func handleDescribeACLs(_ *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	resp := r.Response().(*kmsg.DescribeACLsResponse)
	resp.ErrorCode, resp.ErrorMessage = errorFields(errNoAuthorizer)
	return resp, nil
}
