package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// ListPartitionReassignments (key 46), v0 (KIP-455): none is ever in progress. As in Kafka, topics and partitions that do
// not exist are left out without an error.
func init() {
	register(kafkaproto.KeyListPartitionReassignments, direct(handleListPartitionReassignments))
}

func handleListPartitionReassignments(_ *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	return r.Response(), nil
}
