package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/kafkaproto"
)

// ConsumerGroupDescribe (key 69), v0 to v1 (KIP-848).
//
// Behaviour:
//   - A group that does not exist, or is a classic one, is GROUP_ID_NOT_FOUND. A group that is named twice is described
//     once.
//   - Topics that are gone are left out of assignments.
//
// Versions: 1 type of members (KIP-1099).
func init() { register(kafkaproto.KeyConsumerGroupDescribe, direct(handleConsumerGroupDescribe)) }

// Types of members in descriptions.
const (
	memberTypeClassic  = 0
	memberTypeConsumer = 1
)

func handleConsumerGroupDescribe(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ConsumerGroupDescribeRequest)
	resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
	asked, _ := distinct(req.Groups, func(name *string) string { return *name })
	for _, name := range asked {
		g := b.describeConsumerGroup(*name)
		if req.IncludeAuthorizedOperations && g.ErrorCode == 0 {
			g.AuthorizedOperations = groupOperations
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

func (b *Broker) describeConsumerGroup(name string) kmsg.ConsumerGroupDescribeResponseGroup {
	rg := kmsg.NewConsumerGroupDescribeResponseGroup()
	rg.Group = name
	d, err := b.groups.DescribeConsumer(name)
	rg.ErrorCode, rg.ErrorMessage = errorFields(err)
	if err != nil {
		return rg
	}
	rg.State, rg.Epoch, rg.AssignmentEpoch, rg.AssignorName = d.State.String(), d.Epoch, d.AssignmentEpoch, d.Assignor
	for i := range d.Members {
		rg.Members = append(rg.Members, describedConsumer(&d.Members[i]))
	}
	return rg
}

func describedConsumer(m *groups.ConsumerMemberDescription) kmsg.ConsumerGroupDescribeResponseGroupMember {
	rm := kmsg.NewConsumerGroupDescribeResponseGroupMember()
	rm.MemberID, rm.InstanceID, rm.RackID, rm.MemberEpoch = m.MemberID, nullable(m.InstanceID), nullable(m.RackID), m.Epoch
	rm.ClientID, rm.ClientHost = m.ClientID, m.ClientHost
	rm.SubscribedTopics, rm.SubscribedTopicRegex = m.Topics, nullable(m.Regex)
	rm.Assignment, rm.TargetAssignment = describedAssignment(m.Assignment), describedAssignment(m.Target)
	rm.MemberType = memberTypeConsumer
	if m.Classic {
		rm.MemberType = memberTypeClassic
	}
	return rm
}

func describedAssignment(topics []groups.TopicPartitions) kmsg.Assignment {
	var a kmsg.Assignment
	for _, t := range topics {
		if t.Topic == "" {
			continue
		}
		tp := kmsg.NewAssignmentTopicPartition()
		tp.Topic, tp.TopicID, tp.Partitions = t.Topic, t.TopicID, t.Partitions
		a.TopicPartitions = append(a.TopicPartitions, tp)
	}
	return a
}
