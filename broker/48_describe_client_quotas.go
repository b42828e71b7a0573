package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeClientQuotas (key 48), v0 and v1 (KIP-546): there are no quotas, so no filter matches any.
//
// Versions: 1 is flexible; nothing else changed.
func init() { register(kafkaproto.KeyDescribeClientQuotas, direct(handleDescribeClientQuotas)) }

func handleDescribeClientQuotas(_ *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	resp := r.Response().(*kmsg.DescribeClientQuotasResponse)
	resp.Entries = []kmsg.DescribeClientQuotasResponseEntry{} // null is for errors
	return resp, nil
}
