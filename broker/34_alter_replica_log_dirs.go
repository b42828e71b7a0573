package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// AlterReplicaLogDirs (key 34), v1 and v2 (KIP-113).
//
// Behaviour: there is one directory, the one that DescribeLogDirs reports. Moving a partition there succeeds, because it is
// there already; any other directory is LOG_DIR_NOT_FOUND.
//
// Versions: 2 is flexible; nothing else changed.
func init() { register(kafkaproto.KeyAlterReplicaLogDirs, direct(handleAlterReplicaLogDirs)) }

func handleAlterReplicaLogDirs(b *Broker, _ context.Context, r *kafkaproto.Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.AlterReplicaLogDirsRequest)
	resp := req.ResponseKind().(*kmsg.AlterReplicaLogDirsResponse)
	for i := range req.Dirs {
		for j := range req.Dirs[i].Topics {
			asked := &req.Dirs[i].Topics[j]
			t := kmsg.NewAlterReplicaLogDirsResponseTopic()
			t.Topic = asked.Topic
			for _, partition := range asked.Partitions {
				p := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				p.Partition = partition
				p.ErrorCode, _ = errorFields(b.checkLogDir(req.Dirs[i].Dir, asked.Topic, partition))
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
	}
	return resp, nil
}

func (b *Broker) checkLogDir(dir, topic string, partition int32) *kafkaproto.Error {
	if dir != logDir {
		return errLogDirNotFound
	}
	_, err := b.namedPartition(topic, partition)
	return err
}
