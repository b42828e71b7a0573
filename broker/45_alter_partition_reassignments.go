package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// AlterPartitionReassignments (key 45, which kmsg calls AlterPartitionAssignments), v0 and v1 (KIP-455).
//
// Behaviour:
//   - A partition's one replica is this broker, for good. Assigning it there again is done at once and changes nothing;
//     any other assignment is INVALID_REPLICA_ASSIGNMENT.
//   - Nothing is ever in progress, so a cancellation (null replicas) is NO_REASSIGNMENT_IN_PROGRESS.
//
// Versions: 1 whether the replication factor may change (KIP-860), which it cannot here.
func init() {
	register(kafkaproto.KeyAlterPartitionAssignments, direct(handleAlterPartitionReassignments))
}

func handleAlterPartitionReassignments(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.AlterPartitionAssignmentsRequest)
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	resp.AllowReplicationFactorChange = req.AllowReplicationFactorChange
	for i := range req.Topics {
		t := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			asked := &req.Topics[i].Partitions[j]
			p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			p.Partition = asked.Partition
			p.ErrorCode, p.ErrorMessage = errorFields(b.checkReassignment(t.Topic, asked))
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp, nil
}

func (b *Broker) checkReassignment(topic string, p *kmsg.AlterPartitionAssignmentsRequestTopicPartition) *kafkaproto.Error {
	if _, err := b.namedPartition(topic, p.Partition); err != nil {
		return err
	}
	if p.Replicas == nil {
		return errNoReassignmentInProgress
	}
	return b.checkReplicas(p.Replicas)
}
