package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeQuorum (key 55), v0 to v2 (KIP-595).
//
// Behaviour:
//   - Tools ask it of every cluster to find the controllers, so it is answered although there is no quorum: this node is
//     the leader and only voter of the cluster's metadata, which it keeps in the store. The store's epoch stands for
//     that of the leader and the number of its newest durable commit for the offset that all voters have.
//   - As in Kafka the request names partition 0 of __cluster_metadata and nothing else; whatever else it names is
//     UNKNOWN_TOPIC_OR_PARTITION.
//   - Times of the last fetch are unknown: -1. The leader has nobody to fetch from.
//
// Versions:
//
//	1  fetch times (KIP-836)     2  directory ids, addresses of nodes, messages (KIP-853)
func init() { register(kafkaproto.KeyDescribeQuorum, direct(handleDescribeQuorum)) }

// clusterMetadata is the topic in which Kafka keeps its metadata. It cannot be created or read here.
const clusterMetadata = "__cluster_metadata"

func handleDescribeQuorum(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeQuorumRequest)
	resp := req.ResponseKind().(*kmsg.DescribeQuorumResponse)
	for i := range req.Topics {
		t := kmsg.NewDescribeQuorumResponseTopic()
		t.Topic = req.Topics[i].Topic
		for _, asked := range req.Topics[i].Partitions {
			p := kmsg.NewDescribeQuorumResponseTopicPartition()
			p.Partition = asked.Partition
			p.ErrorCode = kafkaproto.ErrUnknownTopicOrPartition.Code
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	if asksForMetadata(req) {
		resp.Topics[0].Partitions[0] = b.metadataPartition()
		resp.Nodes = append(resp.Nodes, b.quorumNode())
	}
	return resp, nil
}

func asksForMetadata(req *kmsg.DescribeQuorumRequest) bool {
	return len(req.Topics) == 1 && req.Topics[0].Topic == clusterMetadata &&
		len(req.Topics[0].Partitions) == 1 && req.Topics[0].Partitions[0].Partition == 0
}

func (b *Broker) metadataPartition() kmsg.DescribeQuorumResponseTopicPartition {
	stats := b.store.Stats()
	self := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
	self.ReplicaID, self.LogEndOffset = b.opts.NodeID, int64(stats.Commit)
	self.LastFetchTimestamp, self.LastCaughtUpTimestamp = -1, -1
	p := kmsg.NewDescribeQuorumResponseTopicPartition()
	p.LeaderID, p.LeaderEpoch, p.HighWatermark = b.opts.NodeID, int32(stats.Epoch), self.LogEndOffset
	p.CurrentVoters = append(p.CurrentVoters, self)
	return p
}

func (b *Broker) quorumNode() kmsg.DescribeQuorumResponseNode {
	l := kmsg.NewDescribeQuorumResponseNodeListener()
	l.Name, l.Host, l.Port = "PLAINTEXT", b.opts.AdvertisedHost, uint16(b.opts.AdvertisedPort)
	n := kmsg.NewDescribeQuorumResponseNode()
	n.NodeID, n.Listeners = b.opts.NodeID, append(n.Listeners, l)
	return n
}
