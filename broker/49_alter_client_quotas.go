package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// AlterClientQuotas (key 49), v0 and v1 (KIP-546).
//
// Behaviour: a quota that was accepted and not enforced would be worse than none, so each entry is refused with
// INVALID_REQUEST, also if it would only be validated.
//
// Versions: 1 is flexible; nothing else changed.
func init() { register(kafkaproto.KeyAlterClientQuotas, direct(handleAlterClientQuotas)) }

var errQuotasNotServed = kafkaproto.ErrInvalidRequest.WithMessage("client quotas are not served by this broker")

func handleAlterClientQuotas(_ *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.AlterClientQuotasRequest)
	resp := req.ResponseKind().(*kmsg.AlterClientQuotasResponse)
	code, message := errorFields(errQuotasNotServed)
	for i := range req.Entries {
		e := kmsg.NewAlterClientQuotasResponseEntry()
		e.ErrorCode, e.ErrorMessage = code, message
		for _, asked := range req.Entries[i].Entity {
			named := kmsg.NewAlterClientQuotasResponseEntryEntity()
			named.Type, named.Name = asked.Type, asked.Name
			e.Entity = append(e.Entity, named)
		}
		resp.Entries = append(resp.Entries, e)
	}
	return resp, nil
}
