package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// OffsetFetch (key 9), v1 to v10.
//
// Behaviour:
//   - Every partition that is asked for is in the reply. One without a commit has offset -1 and no error, whether the
//     group or topic exists or not.
//   - Null topics (v2) ask for all that the group has committed, but for topics that are gone.
//   - Offsets are read when the reply is due, so that a commit earlier on the connection is seen.
//   - A reply tells of nothing that may still be lost with the broker: it waits for a commit that is being written. If
//     that fails the error is COORDINATOR_NOT_AVAILABLE, as for the commit.
//   - A group that is named twice (v8) is answered once, with INVALID_REQUEST.
//
// Versions:
//
//	2  all topics, error at top           8  many groups (KIP-709)
//	5  leader epoch (KIP-320)             9  member id and epoch of a consumer group (KIP-848)
//	7  require stable (KIP-447)          10  topic ids (KIP-848)
//
// Left out on purpose: v0, which has no groups. Without transactions no offset is unstable, so require stable changes
// nothing.
func init() { register(kafkaproto.KeyOffsetFetch, handleOffsetFetch) }

func handleOffsetFetch(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.OffsetFetchRequest)
	return func(ctx context.Context) (kmsg.Response, error) { return b.offsetFetch(ctx, req) }, nil
}

func (b *Broker) offsetFetch(ctx context.Context, req *kmsg.OffsetFetchRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	if req.Version < 8 {
		return resp, b.offsetFetchOne(ctx, req, resp)
	}
	asked, repeated := distinct(req.Groups, func(g *kmsg.OffsetFetchRequestGroup) string { return g.Group })
	for _, g := range asked {
		if repeated[g.Group] {
			rg := kmsg.NewOffsetFetchResponseGroup()
			rg.Group, rg.ErrorCode = g.Group, kafkaproto.ErrInvalidRequest.Code
			resp.Groups = append(resp.Groups, rg)
			continue
		}
		resp.Groups = append(resp.Groups, b.fetchGroupOffsets(req.Version, g))
	}
	return resp, b.confirmOffsets(ctx, resp.Groups)
}

// confirmOffsets waits until the offsets of these groups are durable, and puts errors in the place of those that may never
// be. The error is that of ctx.
func (b *Broker) confirmOffsets(ctx context.Context, fetched []kmsg.OffsetFetchResponseGroup) error {
	confirmed := make([]*groups.Pending[*kafkaproto.Error], len(fetched))
	for i := range fetched {
		confirmed[i] = b.groups.Confirm(fetched[i].Group)
	}
	for i := range fetched {
		kerr, err := confirmed[i].Wait(ctx)
		if err != nil {
			return err
		}
		if rg := &fetched[i]; kerr != nil && rg.ErrorCode == 0 {
			rg.ErrorCode = kerr.Code
			for j := range rg.Topics {
				refuseOffsets(&rg.Topics[j], kerr.Code)
			}
		}
	}
	return nil
}

func refuseOffsets(rt *kmsg.OffsetFetchResponseGroupTopic, code int16) {
	for i := range rt.Partitions {
		rp := fetchedOffset(rt.Partitions[i].Partition, groups.CommittedOffset{Offset: -1, LeaderEpoch: -1})
		rp.ErrorCode = code
		rt.Partitions[i] = rp
	}
}

// offsetFetchOne answers in the form of before v8. The error is that of ctx.
func (b *Broker) offsetFetchOne(ctx context.Context, req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse) error {
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = req.Group
	if req.Topics != nil {
		g.Topics = make([]kmsg.OffsetFetchRequestGroupTopic, len(req.Topics))
	}
	for i := range req.Topics {
		g.Topics[i].Default()
		g.Topics[i].Topic, g.Topics[i].Partitions = req.Topics[i].Topic, req.Topics[i].Partitions
	}
	fetched := []kmsg.OffsetFetchResponseGroup{b.fetchGroupOffsets(req.Version, &g)}
	if err := b.confirmOffsets(ctx, fetched); err != nil {
		return err
	}
	rg := &fetched[0]
	resp.ErrorCode = rg.ErrorCode
	for i := range rg.Topics {
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = rg.Topics[i].Topic
		for j := range rg.Topics[i].Partitions {
			p := &rg.Topics[i].Partitions[j]
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return nil
}

func (b *Broker) fetchGroupOffsets(version int16, g *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	rg := kmsg.NewOffsetFetchResponseGroup()
	rg.Group = g.Group
	if version >= 9 {
		if rg.ErrorCode = errorCode(b.groups.CheckFetch(g.Group, g.MemberID, g.MemberEpoch)); rg.ErrorCode != 0 {
			return rg
		}
	}
	if g.Topics == nil && version >= 2 {
		b.fetchAllOffsets(&rg)
		return rg
	}
	for i := range g.Topics {
		rg.Topics = append(rg.Topics, b.fetchTopicOffsets(version, g.Group, &g.Topics[i]))
	}
	return rg
}

func (b *Broker) fetchAllOffsets(rg *kmsg.OffsetFetchResponseGroup) {
	err := b.groups.AllCommitted(rg.Group, func(topic string, id [16]byte, partition int32, o groups.CommittedOffset) {
		if n := len(rg.Topics); n == 0 || rg.Topics[n-1].Topic != topic {
			rt := kmsg.NewOffsetFetchResponseGroupTopic()
			rt.Topic, rt.TopicID = topic, id
			rg.Topics = append(rg.Topics, rt)
		}
		rt := &rg.Topics[len(rg.Topics)-1]
		rt.Partitions = append(rt.Partitions, fetchedOffset(partition, o))
	})
	if err != nil {
		b.log.Error("offsets of a group cannot be read", zap.String("group", rg.Group), zap.Error(err))
		rg.Topics, rg.ErrorCode = nil, coordinatorError(err).Code
	}
}

func (b *Broker) fetchTopicOffsets(version int16, group string, t *kmsg.OffsetFetchRequestGroupTopic) kmsg.OffsetFetchResponseGroupTopic {
	rt := kmsg.NewOffsetFetchResponseGroupTopic()
	rt.Topic, rt.TopicID = t.Topic, t.TopicID
	found, kerr := b.groupTopic(version, t.Topic, t.TopicID)
	if kerr == kafkaproto.ErrUnknownTopicOrPartition {
		kerr = nil // no commit
	}
	for _, partition := range t.Partitions {
		rp := fetchedOffset(partition, groups.CommittedOffset{Offset: -1, LeaderEpoch: -1})
		if found != nil {
			o, ok, err := b.groups.Committed(group, found.name, found.id, partition)
			if ok {
				rp = fetchedOffset(partition, o)
			}
			if kerr = coordinatorError(err); err != nil {
				b.log.Error("offset of a group cannot be read", zap.Error(err))
			}
		}
		if kerr != nil {
			rp.ErrorCode = kerr.Code
		}
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}

func fetchedOffset(partition int32, o groups.CommittedOffset) kmsg.OffsetFetchResponseGroupTopicPartition {
	rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = partition, o.Offset, o.LeaderEpoch, kmsg.StringPtr(o.Metadata)
	return rp
}
