package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// ElectLeaders (key 43), v0 to v2.
//
// Behaviour:
//   - This broker leads every partition and is its preferred leader, so no election is ever needed: a partition that
//     exists is ELECTION_NOT_NEEDED, one that does not UNKNOWN_TOPIC_OR_PARTITION.
//   - A null list of topics asks for all partitions; as in Kafka, those that need no election are left out then.
//   - Errors of partitions come without a message: the code says it all, and replies stay in proportion to requests.
//
// Versions:
//
//	0  KIP-183     1  election type, error at top (KIP-460)     2  flexible
func init() { register(kafkaproto.KeyElectLeaders, direct(handleElectLeaders)) }

// Election types (Kafka class ElectionType).
const (
	electionPreferred = 0
	electionUnclean   = 1
)

func handleElectLeaders(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ElectLeadersRequest)
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	if req.ElectionType != electionPreferred && req.ElectionType != electionUnclean {
		resp.ErrorCode = kafkaproto.ErrInvalidRequest.Code
		return resp, nil
	}
	for i := range req.Topics {
		t := kmsg.NewElectLeadersResponseTopic()
		t.Topic = req.Topics[i].Topic
		for _, partition := range req.Topics[i].Partitions {
			p := kmsg.NewElectLeadersResponseTopicPartition()
			p.Partition = partition
			if _, err := b.namedPartition(t.Topic, partition); err != nil {
				p.ErrorCode = err.Code
			} else {
				p.ErrorCode = errElectionNotNeeded.Code
			}
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp, nil
}
