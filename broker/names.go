package broker

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// maxTopicName is the longest topic name, in bytes (Kafka class Topic).
const maxTopicName = 249

// topicStreams is the prefix of the streams that hold topic partitions.
const topicStreams = "topics/"

// partitionStream names the stream of a partition: topics/orders/0.
func partitionStream(topic string, partition int32) string {
	return topicStreams + topic + "/" + strconv.Itoa(int(partition))
}

func isStreamName(name string) bool { return ext.IsStream(name) }

// checkName checks a topic name by Kafka's rules, or a stream name by the store's rules and against the names that are
// the broker's own. The error is INVALID_TOPIC_EXCEPTION with a message that names the rule.
func checkName(name string) *kafkaproto.Error {
	if isStreamName(name) {
		return checkStreamName(name)
	}
	return checkTopicName(name)
}

func checkTopicName(name string) *kafkaproto.Error {
	invalid := kafkaproto.ErrInvalidTopic
	switch {
	case name == "":
		return invalid.WithMessage("topic name is empty")
	case name == "." || name == "..":
		return invalid.WithMessage("topic name %q is not allowed", name)
	case len(name) > maxTopicName:
		return invalid.WithMessage("topic name has %d characters, the limit is %d", len(name), maxTopicName)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return invalid.WithMessage("topic name %q has a character other than ASCII letters and digits, '.', '_' and '-' (or '/', which makes it the name of a stream)", name)
		}
	}
	return nil
}

func checkStreamName(name string) *kafkaproto.Error {
	if err := streamstore.ValidateName(name); err != nil {
		return kafkaproto.ErrInvalidTopic.WithMessage("%v", err)
	}
	switch {
	case name[0] == '_':
		return kafkaproto.ErrInvalidTopic.WithMessage("stream name %q begins with '_': such names are the broker's own", name)
	case strings.HasPrefix(name, topicStreams):
		return kafkaproto.ErrInvalidTopic.WithMessage("stream name %q lies under %q, which holds the partitions of topics: use the topic's name", name, topicStreams)
	}
	return nil
}

// foldName maps names that Kafka does not allow side by side to one: '.' and '_' are the same in metric names. Stream
// names are not folded.
func foldName(name string) string {
	if isStreamName(name) {
		return name
	}
	return strings.ReplaceAll(name, ".", "_")
}

// topicID identifies a topic for as long as it lives (KIP-516): a random UUID, so that a topic that is made again under
// an old name is not taken for the old one. All zero means none.
//
// A named stream's topic id is made from its stream id, which is never reused either:
//
//	0        8               16
//	| tag    | stream id, big endian
type topicID [16]byte

// streamTag begins the topic ids of named streams. Byte 6, where a UUID has its version, is not that of a random one.
var streamTag = [8]byte{'b', 'k', 'l', 's', 't', 'r', 'm', 0}

// streamTopicID returns the topic id of a named stream.
func streamTopicID(id streamstore.StreamID) topicID {
	var t topicID
	copy(t[:8], streamTag[:])
	binary.BigEndian.PutUint64(t[8:], uint64(id))
	return t
}

// stream returns the stream id in the topic id of a named stream.
func (t topicID) stream() (streamstore.StreamID, bool) {
	if [8]byte(t[:8]) != streamTag {
		return 0, false
	}
	id := streamstore.StreamID(binary.BigEndian.Uint64(t[8:]))
	return id, id != 0
}

// String returns the id as Kafka's tools print it: 22 characters of base64url.
func (t topicID) String() string { return base64.RawURLEncoding.EncodeToString(t[:]) }

// newTopicID makes a random UUID (version 4). As in Kafka (class Uuid) its text never begins with '-', which command
// line tools would take for an option.
func newTopicID() topicID {
	for {
		var t topicID
		rand.Read(t[:]) // never fails
		t[6] = t[6]&0x0f | 0x40
		t[8] = t[8]&0x3f | 0x80
		if t.String()[0] != '-' {
			return t
		}
	}
}
