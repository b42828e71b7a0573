package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// UnregisterBroker (key 64), v0 (KIP-631).
//
// Behaviour: a broker is part of the cluster as long as it runs, and it is the only one. Its own id is refused with
// INVALID_REQUEST, any other is BROKER_ID_NOT_REGISTERED.
func init() { register(kafkaproto.KeyUnregisterBroker, direct(handleUnregisterBroker)) }

func handleUnregisterBroker(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.UnregisterBrokerRequest)
	resp := req.ResponseKind().(*kmsg.UnregisterBrokerResponse)
	err := errBrokerIDNotRegistered.WithMessage("no broker with id %d is registered: this broker, %d, is the only one", req.BrokerID, b.opts.NodeID)
	if req.BrokerID == b.opts.NodeID {
		err = kafkaproto.ErrInvalidRequest.WithMessage("broker %d is the only one and cannot be unregistered while it runs: stop it instead", req.BrokerID)
	}
	resp.ErrorCode, resp.ErrorMessage = errorFields(err)
	return resp, nil
}
