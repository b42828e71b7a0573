package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// OffsetCommit (key 8), v2 to v10.
//
// Behaviour:
//   - Offsets of topics and of named streams can be committed. The reply leaves when they are durable; commits of a group
//     take effect in the order in which they are read.
//   - Without a member id and generation anybody may commit to a group that has no members; that makes the group if need
//     be (a simple consumer).
//   - A request without partitions is answered at once, and makes no group.
//
// Versions:
//
//	2  retention time, which is ignored; 5 does not have it     9  consumer groups (KIP-848)
//	6  leader epoch (KIP-320)                                  10  topic ids (KIP-848)
//	7  instance id (KIP-345)
//
// Left out on purpose: v0, which has no groups, and v1, whose commit time nothing uses any more.
func init() { register(kafkaproto.KeyOffsetCommit, handleOffsetCommit) }

func handleOffsetCommit(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.OffsetCommitRequest)
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	commit := groups.CommitRequest{
		Group:           req.Group,
		MemberID:        req.MemberID,
		InstanceID:      optional(req.InstanceID),
		Generation:      req.Generation,
		GroupIDNotFound: req.Version >= 9,
	}
	codes := b.checkOffsetCommit(req, resp, &commit)
	pending := b.groups.Commit(&commit)
	return func(ctx context.Context) (kmsg.Response, error) {
		errs, err := pending.Wait(ctx)
		for i := range errs {
			*codes[i] = errorCode(errs[i])
		}
		return resp, err
	}, nil
}

// checkOffsetCommit fills the reply and the commit with the partitions that exist. It returns where the error codes of
// those belong.
func (b *Broker) checkOffsetCommit(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, commit *groups.CommitRequest) []*int16 {
	var codes []*int16
	resp.Topics = make([]kmsg.OffsetCommitResponseTopic, len(req.Topics))
	for i := range req.Topics {
		t, rt := &req.Topics[i], &resp.Topics[i]
		rt.Default()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		rt.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(t.Partitions))
		found, kerr := b.groupTopic(req.Version, t.Topic, t.TopicID)
		for j := range t.Partitions {
			p, rp := &t.Partitions[j], &rt.Partitions[j]
			rp.Default()
			rp.Partition = p.Partition
			if kerr != nil {
				rp.ErrorCode = kerr.Code
				continue
			}
			if _, ok := found.partition(p.Partition); !ok {
				rp.ErrorCode = kafkaproto.ErrUnknownTopicOrPartition.Code
				continue
			}
			codes = append(codes, &rp.ErrorCode)
			commit.Offsets = append(commit.Offsets, groups.OffsetCommit{
				Topic: found.name, TopicID: found.id, Partition: p.Partition,
				Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: optional(p.Metadata),
			})
		}
	}
	return codes
}
