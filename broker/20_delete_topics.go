package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DeleteTopics (key 20), v0 to v6.
//
// Behaviour:
//   - Topics are deleted with all their records, named streams likewise, all of a request in one transaction of the
//     store. A topic that is made again under the same name is a new one, with another id.
//   - Exactly one of name and id must be given (v6). A topic that is named twice is INVALID_REQUEST and stays.
//
// Versions:
//
//	3  TOPIC_DELETION_DISABLED (KIP-322), never sent here     6  topics by id (KIP-516)
//	5  messages (KIP-599)
func init() { register(kafkaproto.KeyDeleteTopics, direct(handleDeleteTopics)) }

// deletion is one topic of a DeleteTopics request: what the request gave, and what was found.
type deletion struct {
	name  *string
	id    topicID
	topic *topic
	err   *kafkaproto.Error
}

func handleDeleteTopics(b *Broker, ctx context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DeleteTopicsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	ctx, cancel := adminContext(ctx, req.TimeoutMillis)
	defer cancel()
	deletions := b.checkDeletions(requestedDeletions(req))
	b.deleteTopics(ctx, deletions)
	for i := range deletions {
		resp.Topics = append(resp.Topics, deletions[i].reply())
	}
	return resp, nil
}

func requestedDeletions(req *kmsg.DeleteTopicsRequest) []deletion {
	var deletions []deletion
	if req.Version < 6 {
		for i := range req.TopicNames {
			deletions = append(deletions, deletion{name: &req.TopicNames[i]})
		}
		return deletions
	}
	for i := range req.Topics {
		deletions = append(deletions, deletion{name: req.Topics[i].Topic, id: req.Topics[i].TopicID})
	}
	return deletions
}

// checkDeletions finds the topics. Topics that are given more than once, be it by name and by id, are answered once.
func (b *Broker) checkDeletions(all []deletion) []deletion {
	for i := range all {
		all[i].topic, all[i].err = b.findDeletion(&all[i])
	}
	type key struct {
		name string
		id   topicID
	}
	firsts, repeated := distinct(all, func(d *deletion) key {
		switch {
		case d.topic != nil:
			return key{id: d.topic.id}
		case d.name != nil:
			return key{name: *d.name, id: d.id}
		}
		return key{id: d.id}
	})
	deletions := make([]deletion, len(firsts))
	for i, d := range firsts {
		deletions[i] = *d
		if d.topic != nil && repeated[key{id: d.topic.id}] {
			deletions[i].err = errRepeated(d.topic.name)
		}
	}
	return deletions
}

func (b *Broker) findDeletion(d *deletion) (*topic, *kafkaproto.Error) {
	switch {
	case d.name != nil && d.id != topicID{}:
		return nil, kafkaproto.ErrInvalidRequest.WithMessage("both a topic name and a topic id are given: give one")
	case d.name != nil:
		return b.topics.byName(*d.name)
	case d.id != topicID{}:
		return b.topics.byID(d.id)
	}
	return nil, kafkaproto.ErrInvalidRequest.WithMessage("neither a topic name nor a topic id is given")
}

func (b *Broker) deleteTopics(ctx context.Context, deletions []deletion) {
	topics := make([]*topic, len(deletions))
	errs := make([]*kafkaproto.Error, len(deletions))
	for i, d := range deletions {
		topics[i], errs[i] = d.topic, d.err
	}
	for i, err := range b.topics.delete(ctx, topics, errs) {
		deletions[i].err = err
	}
}

// reply names the topic by name and id once it was found, else as the request did.
func (d *deletion) reply() kmsg.DeleteTopicsResponseTopic {
	t := kmsg.NewDeleteTopicsResponseTopic()
	t.Topic, t.TopicID = d.name, d.id
	if d.topic != nil {
		t.Topic, t.TopicID = kmsg.StringPtr(d.topic.name), d.topic.id
	}
	t.ErrorCode, t.ErrorMessage = errorFields(d.err)
	return t
}
