package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// stop ends what start began, within the drain timeout:
//
//  1. The readiness probe fails and waiting fetches answer.
//  2. The servers of Kafka and HTTP clients finish the requests they have read and close their connections. Connections
//     whose client does not take its replies are cut when two thirds of the time are over.
//  3. What is only on the disk is flushed to the bucket, so that another machine could go on from there.
//  4. The store, the bucket and the admin endpoint are closed.
//
// If a handler does not return even then, the store is left as it is: it may still be in use, and a store that is not
// closed is one that recovers as after a crash.
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
	if err := n.shutDownServers(ctx); err != nil {
		return err
	}
	n.broker.Close()
	return nil
}

// shutDownServers drains the Kafka server and the one of the stream API. Replies that wait until their records are in the
// bucket need not wait for the next flush interval.
func (n *node) shutDownServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.settings.drainTimeout*2/3)
	defer cancel()
	flushing, stopFlushing := context.WithCancel(ctx)
	defer stopFlushing()
	go n.flushUntil(flushing)
	httpDone := make(chan error, 1)
	go func() { httpDone <- n.shutDownHTTP(ctx) }()
	var err error
	if n.kafka != nil {
		err = n.kafka.Shutdown(ctx)
	}
	if err := <-httpDone; err != nil {
		n.log.Warn("HTTP clients that did not take their replies were cut", zap.Duration("after", n.settings.drainTimeout*2/3), zap.Error(err))
	}
	switch {
	case errors.Is(err, kafkaproto.ErrHandlersRunning):
		return fmt.Errorf("requests do not end; what they wrote is recovered at the next start: %w", err)
	case err != nil:
		n.log.Warn("clients that did not take their replies were cut", zap.Duration("after", n.settings.drainTimeout*2/3), zap.Error(err))
	}
	return nil
}

func (n *node) shutDownHTTP(ctx context.Context) error {
	if n.http == nil {
		return nil
	}
	return n.http.Shutdown(ctx)
}

// drainFlushInterval is the time between flushes while the Kafka server drains.
const drainFlushInterval = 50 * time.Millisecond

func (n *node) flushUntil(ctx context.Context) {
	tick := time.NewTicker(drainFlushInterval)
	defer tick.Stop()
	for n.store.Flush(ctx) == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
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
