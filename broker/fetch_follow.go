package broker

import (
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// fetchFollow makes a fetch session follow all named streams under a prefix (ext.TagFollow). The session's partitions are
// those streams: the ones that exist when it begins, and each that is made later, from its first news on. The client names
// only the streams that it has read before, and learns of the others from the replies, where a tag tells the offset that
// the broker has chosen to read them from.
//
//   - A followed stream is never out of range: one that was trimmed goes on at its start offset.
//   - An offset of another stream than the one that has the name now, as the client tells by its id (ext.TagStreamID), is
//     one of a stream that was deleted: the new one is read from its start.
//   - A followed stream that is deleted is reported once, as UNKNOWN_TOPIC_OR_PARTITION, and then forgotten. One that is
//     made again under its name is read from its start.
//   - More streams than one session may have are POLICY_VIOLATION, the error of the whole reply.
type fetchFollow struct {
	ext.Follow
	store    *streamstore.Store
	watch    *streamstore.PrefixWatch
	byStream map[streamstore.StreamID]*fetchPartition
	news     []streamstore.StreamID // scratch space
	maxBytes int32                  // of each partition
}

// fetchFollowVersion is the one version that can follow: it is flexible, and its replies name topics.
const fetchFollowVersion = 12

// followedBytes is what a reply may hold of one stream that the broker has added, Kafka's max.partition.fetch.bytes.
const followedBytes = 1 << 20

var (
	errBadFollow        = kafkaproto.ErrInvalidRequest.WithMessage("a fetch that follows a prefix needs version %d and a well-formed tag", fetchFollowVersion)
	errFollowOther      = kafkaproto.ErrInvalidRequest.WithMessage("a fetch that follows a prefix can name streams under it only")
	errTooManyFollowed  = kafkaproto.ErrPolicyViolation.WithMessage("more streams lie under the prefix than one fetch can follow; follow a longer prefix")
	errFollowUnreadable = kafkaproto.ErrKafkaStorageError
)

// startFollowing does what a full request asks for with its tag, if it has one. The caller closes the session's watches
// after an error.
func (c *fetchSessions) startFollowing(s *fetchSession, req *kmsg.FetchRequest) *kafkaproto.Error {
	value, ok := ext.Tag(&req.UnknownTags, ext.TagFollow)
	if !ok {
		return nil
	}
	follow, err := ext.DecodeFollow(value)
	if err != nil || req.Version != fetchFollowVersion {
		return errBadFollow
	}
	for key := range s.byKey {
		if !strings.HasPrefix(key.name, follow.Prefix) || key.partition != 0 || !isStreamName(key.name) {
			return errFollowOther
		}
	}
	s.follow = &fetchFollow{
		Follow:   follow,
		store:    c.store,
		watch:    c.store.WatchPrefix(follow.Prefix),
		byStream: make(map[streamstore.StreamID]*fetchPartition),
		maxBytes: min(req.MaxBytes, followedBytes),
	}
	if err := s.addFollowed(follow.FromEnd, c.maxPerSession); err != nil {
		return errFollowUnreadable
	}
	if len(s.byKey) > c.maxPerSession {
		return errTooManyFollowed
	}
	return nil
}

// addFollowed adds the streams under the prefix that the session does not have, most of them at once.
func (s *fetchSession) addFollowed(fromEnd bool, most int) error {
	return listStreams(s.follow.store, s.follow.Prefix, "", func(info *streamstore.StreamInfo) bool {
		if _, ok := s.byKey[partitionKey{name: info.Name}]; !ok {
			p := s.addStream(info)
			if fromEnd {
				p.offset = info.HighWatermark
			}
		}
		return len(s.byKey) <= most
	})
}

// addStream makes the session read a stream that it does not have from its start.
func (s *fetchSession) addStream(info *streamstore.StreamInfo) *fetchPartition {
	p := s.partition(partitionKey{name: info.Name})
	p.offset, p.maxBytes, p.leaderEpoch, p.chosen = info.Start, s.follow.maxBytes, -1, true
	p.sentHighWatermark, p.sentStart = -1, -1
	_ = s.attach(p, info.ID) // fails only with a watch of single streams
	s.queue.push(p)
	return p
}

// takeFollowed queues the streams under the prefix that have news, and adds those that are new.
func (s *fetchSession) takeFollowed() {
	f := s.follow
	var lost bool
	f.news, lost = f.watch.Take(f.news[:0])
	for _, id := range f.news {
		if p := f.byStream[id]; p != nil {
			s.queue.push(p)
			continue
		}
		info, err := f.store.Describe(id)
		if err != nil || !isStreamName(info.Name) || checkStreamName(info.Name) != nil {
			continue // deleted again, or not to be reached by its name
		}
		s.meet(&info)
	}
	if !lost {
		return
	}
	for _, p := range s.partitions {
		if p != nil {
			s.queue.push(p)
		}
	}
	_ = s.addFollowed(false, maxSessionPartitions) // a stream that is missed has news again, or is found by the next session
}

// meet deals with a stream that has its first news in this session.
func (s *fetchSession) meet(info *streamstore.StreamInfo) {
	p, ok := s.byKey[partitionKey{name: info.Name}]
	if !ok {
		s.addStream(info)
		return
	}
	if p.stream != 0 { // the stream was deleted and made again
		s.detach(p)
		p.offset, p.chosen = 0, true
	}
	s.queue.push(p)
}

// startIfAnother moves a followed partition to the start if the client's offset belongs to another stream than the one
// that has the name now.
func (p *fetchPartition) startIfAnother() {
	if p.of != 0 && p.stream != 0 && p.of != p.stream {
		p.offset, p.chosen = 0, true
	}
	p.of = 0
}

// moveIntoRange gives a followed partition a position that can be read: the start of its stream. It reports false if
// the stream is gone.
func (f *fetch) moveIntoRange(p *fetchPartition) bool {
	o, err := f.b.store.Offsets(p.stream)
	if err != nil {
		return false
	}
	p.offset, p.chosen = o.Start, true
	return true
}

// forgetDeleted takes the streams that the reply has reported as deleted out of a session that follows a prefix.
func (f *fetch) forgetDeleted() {
	if f.s.follow == nil {
		return
	}
	for i := range f.results {
		if r := &f.results[i]; r.err == kafkaproto.ErrUnknownTopicOrPartition {
			f.s.forget(r.p.partitionKey)
		}
	}
}
