package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// DescribeLogDirs (key 35), v1 to v5.
//
// Behaviour:
//   - There is one directory, the object store. A partition's size is the stored bytes of its live records.
//   - A null list of topics asks for all topics (not for named streams); topics and partitions that do not exist are left
//     out, as in Kafka.
//
// Versions:
//
//	3  error at top               5  cordoned directories (KIP-1066), never so here
//	4  volume sizes (KIP-827), unknown here: -1
func init() { register(kafkaproto.KeyDescribeLogDirs, direct(handleDescribeLogDirs)) }

// logDir is the name of the one directory. Tools show it as it is.
const logDir = "/object-store"

func handleDescribeLogDirs(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeLogDirsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	dir := kmsg.NewDescribeLogDirsResponseDir()
	dir.Dir = logDir
	for _, w := range b.wantedLogs(req) {
		t, err := b.logSizes(w)
		if err != nil {
			dir.ErrorCode, dir.Topics = err.Code, nil
			break
		}
		if len(t.Partitions) > 0 {
			dir.Topics = append(dir.Topics, t)
		}
	}
	resp.Dirs = append(resp.Dirs, dir)
	return resp, nil
}

// wantedLog is one topic whose sizes are asked for.
type wantedLog struct {
	topic *topic
	// partitions in any order; nil for all.
	partitions []int32
}

func (b *Broker) wantedLogs(req *kmsg.DescribeLogDirsRequest) []wantedLog {
	var wanted []wantedLog
	if req.Topics == nil {
		s := b.topics.load()
		for _, name := range s.names() {
			wanted = append(wanted, wantedLog{topic: s.byName[name]})
		}
		return wanted
	}
	firsts, _ := distinct(req.Topics, func(t *kmsg.DescribeLogDirsRequestTopic) string { return t.Topic })
	for _, t := range firsts {
		if found, err := b.topics.byName(t.Topic); err == nil {
			wanted = append(wanted, wantedLog{found, t.Partitions})
		}
	}
	return wanted
}

func (b *Broker) logSizes(w wantedLog) (kmsg.DescribeLogDirsResponseDirTopic, *kafkaproto.Error) {
	t := kmsg.NewDescribeLogDirsResponseDirTopic()
	t.Topic = w.topic.name
	wanted := make(map[int32]bool, len(w.partitions))
	for _, p := range w.partitions {
		wanted[p] = true
	}
	for i, id := range w.topic.partitions {
		if w.partitions != nil && !wanted[int32(i)] {
			continue
		}
		size, err := b.store.StreamBytes(id)
		if e := storeError(err); e == kafkaproto.ErrUnknownTopicOrPartition {
			continue // deleted meanwhile
		} else if e != nil {
			return t, e
		}
		p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		p.Partition, p.Size = int32(i), size
		t.Partitions = append(t.Partitions, p)
	}
	return t, nil
}
