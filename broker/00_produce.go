package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// Produce (key 0), v3 to v13. v0 to v2 are advertised, because old clients of librdkafka look at them before they
// compress, and refused.
//
// Behaviour:
//   - Each partition takes exactly one batch, checked by kafkaproto.ValidateBatch without looking at its records. A
//     partition's error concerns that partition only.
//   - Appends happen where the request is read, in request order; the reply waits for the acknowledgements. acks=1 is
//     synced to the local disk, acks=all is what the store's durability says.
//   - The request's timeout, 100 ms to 60 s, bounds both waits: for room in the store (NOT_ENOUGH_REPLICAS, nothing was
//     written) and for the acknowledgement (REQUEST_TIMED_OUT, it may be written). Clients retry both.
//   - acks=0 has no reply. If a partition fails the connection is closed, the only way to tell the client.
//   - A retried idempotent batch gets the offset and timestamp of the first try.
//   - A topic name with a slash is a named stream, and is made by writing to it if topics may be created automatically.
//     Topics are not: their clients ask for metadata first.
//   - Kafka's internal topics take records from the client id of its admin tools only.
//   - A batch may carry the offset that it must get, and may close its stream (tags of package ext). One that does not get
//     its offset is OPERATION_NOT_ATTEMPTED, one for a closed stream POLICY_VIOLATION, both with the offset that is next
//     in a tag. A repeated batch of an idempotent producer is answered as before, whatever it expects.
//   - The header of an uncompressed batch gets the largest timestamp of its records if the producer wrote another.
//
// Versions:
//
//	5  log start offset in the reply           10  leader hints (KIP-951)
//	7  zstd (KIP-110)                          11  TRANSACTION_ABORTABLE (KIP-890)
//	8  record errors, message (KIP-467)        12  partitions join transactions by themselves (KIP-890)
//	9  flexible                                13  topic ids (KIP-516)
//
// Left out on purpose: transactions (INVALID_TXN_STATE), errors of single records (batches are refused whole), leader
// hints (this broker leads everything it knows), recompression, and the largest timestamp of compressed batches, which is
// believed: to check it they would have to be expanded.
func init() { register(int16(kmsg.Produce), handleProduce) }

const (
	acksNone   = 0
	acksLeader = 1
	acksAll    = -1

	produceTopicIDsFrom = 13 // first version that names topics by id only

	// minProduceTimeout replaces shorter timeouts. In Kafka even a timeout of 0 leaves time for the leader's own write,
	// so clients that send 0 exist.
	minProduceTimeout = 100 * time.Millisecond
	// maxProduceTimeout replaces longer timeouts: requests behind this one on the connection wait as long.
	maxProduceTimeout = maxAdminTimeout

	// adminClientID is the client id that may write to internal topics (Kafka's class AdminUtils).
	adminClientID = "__admin_client"
)

var (
	errInternalTopic    = kafkaproto.ErrInvalidTopic.WithMessage("the topic is Kafka's own: producers cannot write to it")
	errBadOffsetTag     = kafkaproto.ErrInvalidRequest.WithMessage("the tagged field with the expected offset is not an int64 of 0 or more")
	errOnlyStreamsClose = kafkaproto.ErrInvalidRequest.WithMessage("a partition of a topic cannot be closed: only named streams can")
	errNothingAllowed   = kafkaproto.ErrMessageTooLarge.WithMessage("the topic's max.message.bytes is 0: it takes no records")
)

var errNoTransactions = kafkaproto.ErrInvalidTxnState.WithMessage("this broker serves no transactions; produce without a transactional id")

// produce is one request being served.
type produce struct {
	b        *Broker
	req      *kmsg.ProduceRequest
	ack      streamstore.Ack
	now      int64 // the broker's clock, milliseconds since 1970
	deadline time.Time
	// admin: the request may write to internal topics.
	admin bool

	frame   int // size of the request, bytes
	resp    *kmsg.ProduceResponse
	checked []checkedBatch
	pending []pendingAppend
	// failure is the first partition that failed.
	failure *kafkaproto.Error
}

// checkedBatch is a batch that may be appended.
type checkedBatch struct {
	stream        streamstore.StreamID
	logAppendTime bool
	records       []byte
	expected      int64 // or streamstore.AnyOffset
	close         bool
	reply         *kmsg.ProduceResponseTopicPartition
}

// pendingAppend is a partition whose acknowledgement is still to come.
type pendingAppend struct {
	appended streamstore.Appended
	reply    *kmsg.ProduceResponseTopicPartition
}

func handleProduce(b *Broker, ctx context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.ProduceRequest)
	now := time.Now()
	p := &produce{
		b:        b,
		req:      req,
		now:      now.UnixMilli(),
		deadline: now.Add(produceTimeout(req.TimeoutMillis)),
		admin:    r.ClientID == adminClientID,
		frame:    r.Size,
		resp:     r.Response().(*kmsg.ProduceResponse),
	}
	p.layOut()
	var kerr *kafkaproto.Error
	if p.ack, kerr = ackOf(req.Acks); kerr != nil {
		p.refuse(kerr)
		return p.reply, nil
	}
	p.append(ctx)
	if req.Acks != acksNone {
		return p.reply, nil
	}
	if p.failure != nil {
		return nil, fmt.Errorf("broker: produce with acks=0 failed, which only a closed connection can tell the client: %w", p.failure)
	}
	return nil, nil
}

// produceTimeout is how long a request may wait that asks for so many milliseconds.
func produceTimeout(millis int32) time.Duration {
	return min(max(time.Duration(millis)*time.Millisecond, minProduceTimeout), maxProduceTimeout)
}

// ackOf translates the acks field.
func ackOf(acks int16) (streamstore.Ack, *kafkaproto.Error) {
	switch acks {
	case acksNone:
		return streamstore.AckNone, nil
	case acksLeader:
		return streamstore.AckLocal, nil
	case acksAll:
		return streamstore.AckDurable, nil
	}
	return 0, kafkaproto.ErrInvalidRequiredAcks.WithMessage("acks is %d; it must be -1 (all), 0 or 1", acks)
}

// layOut gives the response the topics and partitions of the request, in its order. They do not move any more.
func (p *produce) layOut() {
	total := 0
	p.resp.Topics = make([]kmsg.ProduceResponseTopic, len(p.req.Topics))
	for i := range p.req.Topics {
		in, out := &p.req.Topics[i], &p.resp.Topics[i]
		out.Topic, out.TopicID = in.Topic, in.TopicID
		out.Partitions = make([]kmsg.ProduceResponseTopicPartition, len(in.Partitions))
		for j := range in.Partitions {
			out.Partitions[j].Default()
			out.Partitions[j].Partition = in.Partitions[j].Partition
			out.Partitions[j].BaseOffset = -1
		}
		total += len(in.Partitions)
	}
	p.checked, p.pending = make([]checkedBatch, 0, total), make([]pendingAppend, 0, total)
}

// refuse answers every partition with one error.
func (p *produce) refuse(kerr *kafkaproto.Error) {
	for i := range p.resp.Topics {
		p.refuseTopic(&p.resp.Topics[i], kerr)
	}
}

func (p *produce) refuseTopic(out *kmsg.ProduceResponseTopic, kerr *kafkaproto.Error) {
	for j := range out.Partitions {
		p.fail(&out.Partitions[j], kerr)
	}
}

func (p *produce) fail(out *kmsg.ProduceResponseTopicPartition, kerr *kafkaproto.Error) {
	if p.failure == nil {
		p.failure = kerr
	}
	out.ErrorCode, out.ErrorMessage = errorFields(kerr)
	out.BaseOffset, out.LogAppendTime, out.LogStartOffset = -1, -1, -1
}

// append checks the batches of all partitions and appends those that pass: those of one partition in request order.
// Afterwards each partition has its error, or is pending.
func (p *produce) append(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, p.deadline)
	defer cancel()
	p.makeStreams(ctx, p.checkTopics())
	p.detach()
	for rest := p.checked; len(rest) > 0; {
		n := min(len(rest), readAhead)
		p.appendBatches(ctx, rest[:n])
		rest = rest[n:]
	}
}

// A request for many streams is taken in steps of readAhead. Of each step, what is not in memory is read first, by several
// goroutines: one after the other these reads, four of the local database for each stream, would be nearly all of the
// request's time. The steps bound what a request keeps in memory at a time.
const (
	readAhead = 1024
	// readers is how many goroutines read at most, readsEach for how many streams one is worth it.
	readers, readsEach = 4, 16
)

// inParallel calls do for 0 to n-1, from several goroutines if that is worth it. A panic of one of them is the caller's.
func inParallel(n int, do func(i int)) {
	if n < 2*readsEach { // the usual request pays nothing
		for i := range n {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var panicked atomic.Pointer[any]
	work := func() {
		defer func() {
			if r := recover(); r != nil {
				next.Store(int64(n))
				panicked.Store(&r)
			}
		}()
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			do(int(i))
		}
	}
	var others sync.WaitGroup
	for range min(n/readsEach, readers) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	if r := panicked.Load(); r != nil {
		panic(*r)
	}
}

// checkTopics finds the topics of the request and checks what they are to take. It returns which are named streams that
// do not exist yet; these are left to makeStreams.
func (p *produce) checkTopics() (missing []int) {
	type found struct {
		topic *topic
		err   *kafkaproto.Error
	}
	step := make([]found, min(len(p.req.Topics), readAhead))
	for from := 0; from < len(p.req.Topics); from += len(step) {
		step = step[:min(len(step), len(p.req.Topics)-from)]
		inParallel(len(step), func(i int) {
			step[i].topic, step[i].err = p.topic(&p.req.Topics[from+i])
		})
		for i, f := range step {
			if p.b.topics.isUnwritten(p.req.Topics[from+i].Topic, f.err) {
				missing = append(missing, from+i)
				continue
			}
			p.checkTopic(from+i, f.topic, f.err)
		}
	}
	return missing
}

// appendBatches appends checked batches in their order.
func (p *produce) appendBatches(ctx context.Context, batches []checkedBatch) {
	// What the store refuses, or has no time for any more, need not be read.
	if len(batches) > readsEach && ctx.Err() == nil && p.b.store.Err() == nil {
		pins := make([]streamstore.Pin, len(batches))
		inParallel(len(batches), func(i int) {
			pins[i] = p.b.store.Pin(batches[i].stream, kafkaproto.RecordBatch(batches[i].records).ProducerID())
		})
		defer func() {
			for _, pin := range pins {
				pin.Release()
			}
		}()
	}
	for i := range batches {
		if kerr := p.appendBatch(ctx, &batches[i]); kerr != nil {
			p.fail(batches[i].reply, kerr)
		}
	}
}

// detach copies the batches out of the request's buffer if they are less than half of it. The store keeps the batches
// in memory and counts their bytes; without this a small batch beside a large refused one would keep the whole buffer.
func (p *produce) detach() {
	total := 0
	for i := range p.checked {
		total += len(p.checked[i].records)
	}
	if 2*total >= p.frame {
		return
	}
	for i := range p.checked {
		p.checked[i].records = bytes.Clone(p.checked[i].records)
	}
}

// topic finds the topic of a part of the request.
func (p *produce) topic(in *kmsg.ProduceRequestTopic) (*topic, *kafkaproto.Error) {
	t, kerr := p.b.lookupTopic(in.Topic, in.TopicID, p.req.Version >= produceTopicIDsFrom)
	if kerr == nil && !p.admin && isInternal(t.name) {
		return nil, errInternalTopic
	}
	return t, kerr
}

// makeStreams makes the named streams that do not exist yet, all at once, and goes on with what they are to take.
func (p *produce) makeStreams(ctx context.Context, missing []int) {
	if len(missing) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, autoCreateTimeout)
	defer cancel()
	names := make([]string, len(missing))
	for j, i := range missing {
		names[j] = p.req.Topics[i].Topic
	}
	topics, errs := p.b.topics.ensureStreams(ctx, names)
	for j, i := range missing {
		p.checkTopic(i, topics[j], errs[j])
	}
}

// checkTopic checks the batches for topic i of the request, which is t unless kerr says that there is none.
func (p *produce) checkTopic(i int, t *topic, kerr *kafkaproto.Error) {
	in, out := &p.req.Topics[i], &p.resp.Topics[i]
	if kerr != nil {
		p.refuseTopic(out, kerr)
		return
	}
	for j := range in.Partitions {
		if kerr := p.checkPartition(t, &in.Partitions[j], &out.Partitions[j]); kerr != nil {
			p.fail(&out.Partitions[j], kerr)
		}
	}
}

// checkPartition finds the stream of one partition and checks its batch.
func (p *produce) checkPartition(t *topic, in *kmsg.ProduceRequestTopicPartition, out *kmsg.ProduceResponseTopicPartition) *kafkaproto.Error {
	stream, ok := t.partition(in.Partition)
	if !ok {
		return errUnknownPartition
	}
	if err := p.check(t.config, in.Records); err != nil {
		return storeError(err)
	}
	c := checkedBatch{stream: stream, logAppendTime: t.config.logAppendTime, records: in.Records, expected: streamstore.AnyOffset, reply: out}
	if in.UnknownTags.Len() > 0 {
		if kerr := c.readTags(t, &in.UnknownTags); kerr != nil {
			return kerr
		}
	}
	p.checked = append(p.checked, c)
	return nil
}

// readTags takes what Brooklet's own tagged fields ask for.
func (c *checkedBatch) readTags(t *topic, tags *kmsg.Tags) *kafkaproto.Error {
	expected, ok, err := ext.Int64(tags, ext.TagExpectedOffset)
	switch {
	case err != nil || ok && expected < 0:
		return errBadOffsetTag
	case ok:
		c.expected = expected
	}
	if _, c.close = ext.Tag(tags, ext.TagClose); c.close && !t.stream {
		return errOnlyStreamsClose
	}
	return nil
}

// appendBatch appends a checked batch and fills the reply with where it went.
func (p *produce) appendBatch(ctx context.Context, c *checkedBatch) *kafkaproto.Error {
	if c.logAppendTime {
		kafkaproto.PatchLogAppendTime(c.records, p.now)
	}
	appended, err := p.b.store.Append(ctx, streamstore.AppendRequest{
		Stream:   c.stream,
		Batch:    c.records,
		Expected: c.expected,
		Ack:      p.ack,
		Close:    c.close,
	})
	if err != nil {
		if tellNext(c.reply, err) {
			p.pending = append(p.pending, pendingAppend{appended, c.reply}) // what it tells must be durable as well
		}
		return partitionError(err, p.req.Version >= produceTopicIDsFrom)
	}
	c.reply.BaseOffset, c.reply.LogStartOffset = appended.BaseOffset, appended.StartOffset
	if c.logAppendTime || appended.Duplicate {
		c.reply.LogAppendTime = appended.Timestamp
	}
	p.pending = append(p.pending, pendingAppend{appended, c.reply})
	return nil
}

// tellNext puts into a reply where the stream ends, if that is why the append was refused, and reports whether it is.
func tellNext(reply *kmsg.ProduceResponseTopicPartition, err error) bool {
	if conflict, ok := errors.AsType[*streamstore.ConflictError](err); ok {
		ext.SetInt64(&reply.UnknownTags, ext.TagNextOffset, conflict.Next)
		return true
	}
	if closed, ok := errors.AsType[*streamstore.StreamClosedError](err); ok {
		ext.SetInt64(&reply.UnknownTags, ext.TagNextOffset, closed.Next)
		return true
	}
	return false
}

// check validates one records field by the rules of its topic.
func (p *produce) check(c *topicConfig, records []byte) error {
	limits := kafkaproto.BatchLimits{MaxBytes: c.maxMessageBytes, ProduceVersion: p.req.Version}
	if !c.logAppendTime {
		limits.Now = p.now
		limits.TimestampBeforeMax, limits.TimestampAfterMax = c.timestampBeforeMs, c.timestampAfterMs
	}
	if err := kafkaproto.ValidateBatch(records, limits); err != nil {
		return err
	}
	if c.maxMessageBytes == 0 { // which is no limit to ValidateBatch
		return errNothingAllowed
	}
	if !c.logAppendTime && kafkaproto.PatchMaxTimestamp(records) {
		// The true time may lie out of bounds.
		if err := kafkaproto.ValidateBatch(records, limits); err != nil {
			return err
		}
	}
	if kafkaproto.RecordBatch(records).IsTransactional() {
		return errNoTransactions
	}
	return nil
}

// reply waits for the acknowledgements until the request's time is up.
func (p *produce) reply(ctx context.Context) (kmsg.Response, error) {
	wait, cancel := context.WithDeadline(ctx, p.deadline)
	defer cancel()
	for i := range p.pending {
		a := &p.pending[i]
		if err := a.appended.Wait(wait); err != nil {
			p.fail(a.reply, storeError(err))
			a.reply.UnknownTags = kmsg.Tags{}
		}
	}
	return p.resp, ctx.Err()
}
