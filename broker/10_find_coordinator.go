package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// FindCoordinator (key 10), v0 to v6.
//
// Behaviour:
//   - The coordinator of every group is this broker.
//   - A transactional id, a share group and an unknown type are refused with INVALID_REQUEST and a message, for
//     transactions and share groups are not served. COORDINATOR_NOT_AVAILABLE would say "later": clients would ask again
//     until they time out, instead of failing with the reason.
//
// Versions:
//
//	1  key type and message (KIP-98)     5  TRANSACTION_ABORTABLE (KIP-890), never sent here
//	4  many keys in one request (KIP-699)     6  share groups (KIP-932)
func init() { register(kafkaproto.KeyFindCoordinator, direct(handleFindCoordinator)) }

// Types of coordinator keys.
const (
	coordinatorGroup = 0
	coordinatorTxn   = 1
)

func handleFindCoordinator(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.FindCoordinatorRequest)
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	err := checkCoordinatorType(req.CoordinatorType)
	if err != nil {
		b.warnTransactions(r, req.CoordinatorType == coordinatorTxn)
	}
	if req.Version >= 4 {
		for _, key := range req.CoordinatorKeys {
			resp.Coordinators = append(resp.Coordinators, b.coordinator(key, err))
		}
		return resp, nil
	}
	c := b.coordinator(req.CoordinatorKey, err)
	resp.NodeID, resp.Host, resp.Port = c.NodeID, c.Host, c.Port
	resp.ErrorCode, resp.ErrorMessage = c.ErrorCode, c.ErrorMessage
	return resp, nil
}

func checkCoordinatorType(t int8) *kafkaproto.Error {
	switch t {
	case coordinatorGroup:
		return nil
	case coordinatorTxn:
		return errTxnNotServed
	}
	return kafkaproto.ErrInvalidRequest.WithMessage("coordinators of type %d are not served by this broker", t)
}

func (b *Broker) coordinator(key string, err *kafkaproto.Error) kmsg.FindCoordinatorResponseCoordinator {
	c := kmsg.NewFindCoordinatorResponseCoordinator()
	c.Key = key
	if err != nil {
		c.NodeID, c.Port = -1, -1
		c.ErrorCode, c.ErrorMessage = errorFields(err)
		return c
	}
	c.NodeID, c.Host, c.Port = b.opts.NodeID, b.opts.AdvertisedHost, b.opts.AdvertisedPort
	return c
}

// errTxnNotServed answers every request of a transactional producer. Clients take it as fatal at once.
var errTxnNotServed = kafkaproto.ErrInvalidRequest.WithMessage("transactions are not served by this broker: unset transactional.id")

// warnTransactions logs once that a client wants transactions: some replies have no room for the reason, and what their
// code makes clients say ends with "see the broker logs".
func (b *Broker) warnTransactions(r *kafkaproto.Request, wanted bool) {
	if wanted {
		b.txnWarning.Do(func() {
			b.log.Warn("a client asks for transactions, which are not served; logged once", zap.String("client", r.ClientID))
		})
	}
}
