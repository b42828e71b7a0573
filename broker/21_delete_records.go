package broker

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// DeleteRecords (key 21), v0 to v2: trims partitions and named streams, that is, moves their start offsets up.
//
// Behaviour:
//   - Offset -1 means the high watermark. An offset above it, or another negative one, is OFFSET_OUT_OF_RANGE. One at or
//     below the start offset changes nothing.
//   - The answer is the start offset after the trim, the low watermark, and comes when the trim is durable. The
//     request's timeout, 60 s at most, bounds the wait (REQUEST_TIMED_OUT; the trim is done all the same).
//   - Trimming is by record: a batch that holds records on both sides of the offset stays whole until all are trimmed.
//
// Versions: 1 and 2 change no behaviour (throttling after the answer, KIP-219; flexible encoding, KIP-482).
//
// Left out on purpose: POLICY_VIOLATION for topics that are compacted only; there are none yet.
func init() { register(int16(kmsg.DeleteRecords), handleDeleteRecords) }

// deleteToHighWatermark asks for everything that can be read to be deleted.
const deleteToHighWatermark = -1

// trim is one partition of a request and what came of it.
type trim struct {
	stream streamstore.StreamID
	offset int64
	err    *kafkaproto.Error
}

func handleDeleteRecords(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.DeleteRecordsRequest)
	return func(ctx context.Context) (kmsg.Response, error) {
		trims := b.checkTrims(req)
		commit, cancel := adminContext(ctx, req.TimeoutMillis)
		defer cancel()
		b.trimAll(commit, trims)
		return b.deleteRecordsReply(req, trims), ctx.Err()
	}, nil
}

// checkTrims returns the trims of a request in its order, those that cannot be done with an error.
func (b *Broker) checkTrims(req *kmsg.DeleteRecordsRequest) []trim {
	var trims []trim
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			trims = append(trims, b.checkTrim(t.Topic, &t.Partitions[j]))
		}
	}
	return trims
}

func (b *Broker) checkTrim(name string, p *kmsg.DeleteRecordsRequestTopicPartition) trim {
	stream, kerr := b.namedPartition(name, p.Partition)
	if kerr != nil {
		return trim{err: kerr}
	}
	o, err := b.store.Offsets(stream)
	if err != nil {
		return trim{err: storeError(err)}
	}
	offset := p.Offset
	if offset == deleteToHighWatermark {
		offset = o.HighWatermark
	}
	if offset < 0 || offset > o.HighWatermark {
		return trim{err: kafkaproto.ErrOffsetOutOfRange}
	}
	return trim{stream: stream, offset: offset}
}

// trimAll does the trims in one transaction. If a stream was deleted meanwhile that is refused as a whole, and each trim
// is done alone, so that the failure is told to the one it belongs to. After any other error the transaction may be on its
// way, and the error is that of all.
func (b *Broker) trimAll(ctx context.Context, trims []trim) {
	txn, n := streamstore.NewTxn(), 0
	for i := range trims {
		if trims[i].err == nil {
			txn.Trim(trims[i].stream, trims[i].offset)
			n++
		}
	}
	if n == 0 {
		return
	}
	_, err := b.store.Commit(ctx, txn)
	if err == nil {
		return
	}
	alone := n > 1 && errors.Is(err, streamstore.ErrNoStream)
	for i := range trims {
		if trims[i].err != nil {
			continue
		}
		if alone {
			one := streamstore.NewTxn()
			one.Trim(trims[i].stream, trims[i].offset)
			_, err = b.store.Commit(ctx, one)
		}
		trims[i].err = adminError(err)
	}
}

func (b *Broker) deleteRecordsReply(req *kmsg.DeleteRecordsRequest, trims []trim) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	for i := range req.Topics {
		t := &req.Topics[i]
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		for j := range t.Partitions {
			rt.Partitions = append(rt.Partitions, b.deletedRecords(t.Partitions[j].Partition, &trims[0]))
			trims = trims[1:]
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) deletedRecords(partition int32, t *trim) kmsg.DeleteRecordsResponseTopicPartition {
	rp := kmsg.NewDeleteRecordsResponseTopicPartition()
	rp.Partition = partition
	rp.LowWatermark = -1
	kerr := t.err
	if kerr == nil {
		o, err := b.store.Offsets(t.stream)
		if kerr = storeError(err); kerr == nil {
			rp.LowWatermark = o.Start
		}
	}
	rp.ErrorCode, _ = errorFields(kerr)
	return rp
}
