package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// stop ends what start began, within the drain timeout:
//
//  1. The readiness probe fails and waiting fetches answer.
//  2. The Kafka server finishes the requests it has read and closes its connections.
//  3. What is only on the disk is flushed to the bucket, so that another machine could go on from there.
//  4. The store, the bucket and the admin endpoint are closed.
//
// If requests had to be cut, the store is left as it is: they may still be using it, and a store that is not closed is
// one that recovers as after a crash.
func (n *node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), n.settings.drainTimeout)
	defer cancel()
	n.notify.stopping("finishing requests")
	err := n.stopKafka(ctx)
	if err == nil {
		err = n.stopStore(ctx)
	}
	if n.bucket != nil {
		err = errors.Join(err, n.bucket.Close())
	}
	if n.admin != nil {
		err = errors.Join(err, n.admin.Close())
	}
	return err
}

func (n *node) stopKafka(ctx context.Context) error {
	if n.broker == nil {
		n.setState(errors.New("stopping"))
		if n.listener != nil {
			return n.listener.Close()
		}
		return nil
	}
	n.broker.Drain()
	if n.kafka != nil {
		if err := n.kafka.Shutdown(ctx); err != nil {
			return fmt.Errorf("requests were cut after --drain-timeout %s; what they wrote is recovered at the next start: %w", n.settings.drainTimeout, err)
		}
	}
	n.broker.Close()
	return nil
}

func (n *node) stopStore(ctx context.Context) error {
	if n.store == nil {
		return nil
	}
	if n.store.Err() == nil {
		n.notify.status("flushing to the bucket")
		err := n.store.Flush(ctx)
		if failure := n.store.Err(); failure != nil {
			return errors.Join(explainFailure(failure, n.settings.dataDir), n.store.Close())
		}
		if err != nil {
			n.log.Warn("not everything could be flushed to the bucket; the rest stays in the data directory and is flushed after the next start",
				zap.String("data_dir", n.settings.dataDir), zap.Error(err))
		}
	}
	return n.store.Close()
}
