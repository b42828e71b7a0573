package broker

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// InitProducerId (key 22), v0 to v5.
//
// Behaviour:
//   - Without a transactional id the producer gets an id that no producer of this store ever had, and epoch 0, whatever
//     id and epoch it says it has (v3, KIP-360): as in Kafka, an idempotent producer starts afresh.
//   - An id or an epoch without the other is INVALID_REQUEST.
//   - A transactional id is INVALID_REQUEST: transactions are not served. The code is fatal to clients, as it should be,
//     and points to the broker's log.
//   - When the store cannot give ids now, COORDINATOR_LOAD_IN_PROGRESS makes clients try again.
//
// Versions:
//
//	2  flexible                            4  PRODUCER_FENCED (KIP-588), never sent here
//	3  producer id and epoch (KIP-360)     5  TRANSACTION_ABORTABLE (KIP-890), never sent here
func init() { register(kafkaproto.KeyInitProducerID, direct(handleInitProducerID)) }

// initProducerIDTimeout bounds the wait for a new block of ids; the request carries no time of its own.
const initProducerIDTimeout = 15 * time.Second

func handleInitProducerID(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.InitProducerIDRequest)
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	err := checkInitProducerID(req)
	b.warnTransactions(r, err == errTxnNotServed)
	if err == nil {
		resp.ProducerID, err = b.newProducerID(ctx)
	}
	if err != nil {
		resp.ErrorCode = err.Code
		return resp, nil
	}
	resp.ProducerEpoch = 0
	return resp, nil
}

func checkInitProducerID(req *kmsg.InitProducerIDRequest) *kafkaproto.Error {
	if (req.ProducerID == -1) != (req.ProducerEpoch == -1) {
		return kafkaproto.ErrInvalidRequest
	}
	switch {
	case req.TransactionalID == nil:
		return nil
	case *req.TransactionalID == "":
		return kafkaproto.ErrInvalidRequest
	}
	return errTxnNotServed
}

func (b *Broker) newProducerID(ctx context.Context) (int64, *kafkaproto.Error) {
	ctx, cancel := context.WithTimeout(ctx, initProducerIDTimeout)
	defer cancel()
	id, err := b.producers.allocate(ctx)
	if err == nil {
		return id, nil
	}
	if errors.Is(err, errBadRow) { // the store reports its own troubles
		b.log.Error("producer ids cannot be handed out", zap.Error(err))
	}
	return -1, kafkaproto.ErrCoordinatorLoadInProgress
}
