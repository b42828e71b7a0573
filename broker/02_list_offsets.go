package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// ListOffsets (key 2), v1 to v11.
//
// Behaviour:
//   - A timestamp finds the first record at or after it, in offset order, with that record's own timestamp, also in the
//     middle of a compressed batch and when the timestamps of a batch do not rise. Trimmed records are not found.
//   - Negative timestamps ask for special offsets, see specialOffset.
//   - Nothing found is offset -1 and timestamp -1 without an error.
//   - A partition that is named twice is INVALID_REQUEST, at each place.
//   - Looking up a timestamp may read from the bucket, so it is done in the reply and bounded by the request's timeout, 60 s
//     at most.
//
// Versions:
//
//	2  isolation level (KIP-98)            8  earliest local offset, -4 (KIP-405)
//	4  leader epoch (KIP-320)              9  latest tiered offset, -5 (KIP-1005)
//	7  max timestamp, -3 (KIP-734)        10  timeout (KIP-1075)
//	                                      11  earliest pending upload, -6 (KIP-1023)
//
// Left out on purpose: v0 (several offsets per partition). The isolation level changes nothing, because without
// transactions the last stable offset is the high watermark; the debugging replica id -2 sees no more than others,
// because records above the high watermark may yet be lost.
func init() { register(int16(kmsg.ListOffsets), handleListOffsets) }

// Special timestamps.
const (
	timestampLatest                = -1
	timestampEarliest              = -2
	timestampMax                   = -3
	timestampEarliestLocal         = -4
	timestampLatestTiered          = -5
	timestampEarliestPendingUpload = -6
)

// listOffsetsTimeout bounds the look-ups of a request that brings no timeout: Kafka's default request.timeout.ms.
const listOffsetsTimeout = 30 * time.Second

// maxListOffsetsTimeout bounds what a request may ask for: requests behind it on the connection wait as long.
const maxListOffsetsTimeout = maxAdminTimeout

// foundOffset is the answer for one partition. An offset of -1 is nothing found.
type foundOffset struct {
	offset, timestamp int64
}

var nothingFound = foundOffset{offset: -1, timestamp: -1}

func handleListOffsets(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.ListOffsetsRequest)
	return func(ctx context.Context) (kmsg.Response, error) { return b.listOffsets(ctx, req) }, nil
}

func (b *Broker) listOffsets(ctx context.Context, req *kmsg.ListOffsetsRequest) (kmsg.Response, error) {
	timeout := listOffsetsTimeout
	if req.Version >= 10 && req.TimeoutMillis > 0 {
		timeout = min(time.Duration(req.TimeoutMillis)*time.Millisecond, maxListOffsetsTimeout)
	}
	lookup, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	resp.Topics = make([]kmsg.ListOffsetsResponseTopic, 0, len(req.Topics))
	twice := duplicatePartitions(req)
	for i := range req.Topics {
		t := &req.Topics[i]
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		rt.Partitions = make([]kmsg.ListOffsetsResponseTopicPartition, 0, len(t.Partitions))
		for j := range t.Partitions {
			p := &t.Partitions[j]
			found, kerr := nothingFound, errNamedTwice
			if !twice[partitionKey{name: t.Topic, partition: p.Partition}] {
				found, kerr = b.listOffset(lookup, req.Version, t.Topic, p)
			}
			rt.Partitions = append(rt.Partitions, listOffsetsReply(p.Partition, found, kerr))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, ctx.Err()
}

var errNamedTwice = kafkaproto.ErrInvalidRequest.WithMessage("the request names the partition more than once")

// duplicatePartitions returns the partitions that a request names more than once; nil if there is none.
func duplicatePartitions(req *kmsg.ListOffsetsRequest) map[partitionKey]bool {
	if len(req.Topics) == 1 && len(req.Topics[0].Partitions) == 1 {
		return nil
	}
	seen := make(map[partitionKey]bool)
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			key := partitionKey{name: req.Topics[i].Topic, partition: req.Topics[i].Partitions[j].Partition}
			_, again := seen[key]
			seen[key] = again
		}
	}
	return seen
}

func listOffsetsReply(partition int32, found foundOffset, kerr *kafkaproto.Error) kmsg.ListOffsetsResponseTopicPartition {
	rp := kmsg.NewListOffsetsResponseTopicPartition()
	rp.Partition = partition
	if kerr != nil {
		rp.ErrorCode = kerr.Code
		return rp
	}
	rp.Offset, rp.Timestamp = found.offset, found.timestamp
	if found.offset >= 0 {
		rp.LeaderEpoch = leaderEpoch
	}
	return rp
}

// listOffset answers for one partition.
func (b *Broker) listOffset(ctx context.Context, version int16, name string, p *kmsg.ListOffsetsRequestTopicPartition) (foundOffset, *kafkaproto.Error) {
	stream, kerr := b.namedPartition(name, p.Partition)
	unwritten := b.isUnwritten(partitionKey{name: name, partition: p.Partition}, false, kerr)
	if kerr != nil && !unwritten {
		return nothingFound, kerr
	}
	if kerr := checkLeaderEpoch(p.CurrentLeaderEpoch); kerr != nil {
		return nothingFound, kerr
	}
	if unwritten {
		if p.Timestamp >= 0 || p.Timestamp == timestampMax && version >= 7 {
			return nothingFound, nil
		}
		return specialOffset(version, p.Timestamp, streamstore.Offsets{})
	}
	offsets, err := b.store.Offsets(stream)
	if err != nil {
		return nothingFound, storeError(err)
	}
	if p.Timestamp >= 0 {
		return b.firstAtOrAfter(ctx, stream, p.Timestamp, offsets)
	}
	if p.Timestamp == timestampMax && version >= 7 {
		return b.largestTimestamp(ctx, stream, offsets)
	}
	return specialOffset(version, p.Timestamp, offsets)
}

// specialOffset answers for a negative timestamp that needs no look at records. One that is unknown, or newer than the
// version of the request, is UNSUPPORTED_VERSION.
func specialOffset(version int16, timestamp int64, o streamstore.Offsets) (foundOffset, *kafkaproto.Error) {
	switch {
	case timestamp == timestampLatest:
		return foundOffset{o.HighWatermark, -1}, nil
	case timestamp == timestampEarliest, timestamp == timestampEarliestLocal && version >= 8:
		return foundOffset{o.Start, -1}, nil
	case timestamp == timestampLatestTiered && version >= 9, timestamp == timestampEarliestPendingUpload && version >= 11:
		return nothingFound, nil // what Kafka answers for a topic without tiered storage
	}
	return nothingFound, kafkaproto.ErrUnsupportedVersion
}

// firstAtOrAfter finds the first record whose timestamp is at or after target.
func (b *Broker) firstAtOrAfter(ctx context.Context, stream streamstore.StreamID, target int64, o streamstore.Offsets) (foundOffset, *kafkaproto.Error) {
	found := nothingFound
	err := b.store.ScanTimestamp(ctx, stream, target, func(batch []byte) (bool, error) {
		offset, ts, ok, err := kafkaproto.FindTimestamp(batch, target, o.Start)
		if ok {
			found = foundOffset{offset, ts}
		}
		return ok, err
	})
	return found, storeError(err)
}

// largestTimestamp finds the first record that has the largest timestamp. The batch with the largest one answers,
// unless the record that has it was trimmed: then other batches may have larger ones than what is left of that one.
func (b *Broker) largestTimestamp(ctx context.Context, stream streamstore.StreamID, o streamstore.Offsets) (foundOffset, *kafkaproto.Error) {
	batch, ok, err := b.store.MaxTimestampBatch(ctx, stream)
	if err != nil || !ok {
		return nothingFound, storeError(err)
	}
	if kafkaproto.RecordBatch(batch).BaseOffset() >= o.Start {
		return maxTimestampOf(nothingFound, batch, o.Start)
	}
	found := nothingFound
	err = b.store.ScanTimestamp(ctx, stream, 0, func(batch []byte) (bool, error) {
		if kafkaproto.RecordBatch(batch).MaxTimestamp() <= found.timestamp {
			return false, nil
		}
		var kerr *kafkaproto.Error
		if found, kerr = maxTimestampOf(found, batch, o.Start); kerr != nil {
			return true, kerr
		}
		return false, nil
	})
	return found, storeError(err)
}

// maxTimestampOf returns the first record at or above start with the largest timestamp of batch, or best if that is as
// large.
func maxTimestampOf(best foundOffset, batch []byte, start int64) (foundOffset, *kafkaproto.Error) {
	offset, ts, ok, err := kafkaproto.MaxTimestamp(batch, start)
	if err != nil {
		return nothingFound, storeError(err)
	}
	if ok && ts > best.timestamp {
		return foundOffset{offset, ts}, nil
	}
	return best, nil
}
