package httpapi

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/brookletmq/brooklet/streamstore"
)

// topicStreams is the prefix of the streams that hold partitions of Kafka topics: topics/<topic>/<partition>.
const topicStreams = "topics/"

// target is a stream that a request names.
type target struct {
	name string
	// id is 0 as long as the stream does not exist.
	id    streamstore.StreamID
	rules Rules
	// topic marks a partition of a Kafka topic.
	topic bool
}

// checkName refuses names that no stream can have and those that are the broker's own.
func checkName(name string) error {
	if err := streamstore.ValidateName(name); err != nil {
		return err
	}
	if name[0] == '_' {
		return reservedName.new("the name %q begins with '_': such streams are the broker's own", name)
	}
	return nil
}

// target finds the stream of a name. A named stream that does not exist has the id 0; a partition of a topic must exist.
func (s *Server) target(name string) (*target, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	t := &target{name: name, rules: Rules{MaxBatchBytes: s.opts.MaxBatchBytes, BeforeMax: math.MaxInt64, AfterMax: math.MaxInt64}}
	if strings.HasPrefix(name, topicStreams) {
		if err := s.partition(t); err != nil {
			return nil, err
		}
	}
	id, err := s.store.Lookup(name)
	if errors.Is(err, streamstore.ErrNoStream) && !t.topic {
		return t, nil
	}
	t.id = id
	return t, err
}

// existing is target for requests that need the stream to exist.
func (s *Server) existing(name string) (*target, error) {
	t, err := s.target(name)
	if err == nil && t.id == 0 {
		return nil, errNoStream(name)
	}
	return t, err
}

func errNoStream(name string) *problem { return noStream.new("there is no stream %q", name) }

// partition makes t the target of a partition of a topic.
func (s *Server) partition(t *target) error {
	topic, number, _ := strings.Cut(t.name[len(topicStreams):], "/")
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != number {
		return badName.new("names under %q belong to partitions of Kafka topics: write %stopic/number", topicStreams, topicStreams)
	}
	rules, ok := s.opts.Topics.Partition(topic, int32(n))
	if !ok {
		return noStream.new("there is no Kafka topic %q with a partition %d: topics are made through the Kafka protocol", topic, n)
	}
	t.rules, t.topic = rules, true
	return nil
}

// own refuses changes of the streams of topics that only the Kafka protocol may make.
func (t *target) own(change string) error {
	if t.topic {
		return topicStream.new("%q is a partition of a Kafka topic: %s it through the Kafka protocol", t.name, change)
	}
	return nil
}

// streamName is what follows the prefix of all streams in the address of a request, percent-decoded.
func streamName(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, streamsPath+"/") }
