package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

// Batch is what one append writes to one stream: all of its records or none, without others in between.
type Batch struct {
	Stream  string
	Records []Record // at least one
	// If is a condition. The zero value is none.
	If Condition
	// Close closes the stream in one step with the append: its records are the stream's last.
	Close bool
}

// Condition of an append.
type Condition struct {
	set  bool
	next int64
}

// NextIs is the condition that the first record of the append gets this offset: compare and append. Otherwise the append
// fails with a *ConflictError, which tells the offset that would have been right. NextIs(0) demands that the stream is
// empty and always was.
func NextIs(offset int64) Condition { return Condition{set: true, next: offset} }

// Result is what became of an append. The error is nil, or
//
//   - *ConflictError, *ClosedError, ErrTooLarge, ErrInvalidName, ErrNoStream (the broker makes no streams by itself), or another refusal
//     of the broker: nothing was written;
//   - that of the context, or ErrClientClosed: the records may have been written all the same.
type Result struct {
	Stream string
	// First is the offset of the first record, Next the one behind the last.
	First, Next int64
	Err         error
}

// Append writes records to a stream, all of them or none, and returns the offset of the first when they are durable. See
// Result for the errors.
func (c *Client) Append(ctx context.Context, stream string, records ...Record) (offset int64, err error) {
	r := c.AppendBatches(ctx, Batch{Stream: stream, Records: records})[0]
	return r.First, r.Err
}

// AppendIf is Append with a condition, such as NextIs(7).
func (c *Client) AppendIf(ctx context.Context, condition Condition, stream string, records ...Record) (offset int64, err error) {
	r := c.AppendBatches(ctx, Batch{Stream: stream, Records: records, If: condition})[0]
	return r.First, r.Err
}

// AppendBatches writes to many streams in as few requests as possible, and returns a result for each batch, in their
// order. Batches of the same stream are written in that order, too; an error of one does not keep the others back.
func (c *Client) AppendBatches(ctx context.Context, batches ...Batch) []Result {
	results := make([]Result, len(batches))
	ops := make([]*op, len(batches))
	for i := range batches {
		ops[i] = newOp(ctx, batches[i], nil)
		if err := c.append.submit(ops[i]); err != nil {
			ops[i] = nil
			results[i] = Result{Stream: batches[i].Stream, First: -1, Next: -1, Err: err}
		}
	}
	for i, o := range ops {
		if o != nil {
			results[i] = o.wait()
		}
	}
	return results
}

// AppendAsync begins an append and returns. done, which may be nil, is called with the result, in the order of the appends
// to a stream, and must neither block nor use the client. AppendAsync itself blocks while 64 MiB of records wait for the broker. Its error, that of
// ctx or ErrClientClosed, means that nothing was begun and that done will not be called. The records must not be changed
// until done is called. If ctx ends, an append that was not sent yet is given up.
func (c *Client) AppendAsync(ctx context.Context, batch Batch, done func(Result)) error {
	return c.append.submit(newOp(ctx, batch, done))
}

// Flush waits until every append begun before has its result.
func (c *Client) Flush(ctx context.Context) error { return c.append.flush(ctx) }

const (
	// maxBuffered bounds the bytes of records that wait for the broker or its answer.
	maxBuffered = 64 << 20
	// maxBatch bounds the bytes of a batch that several appends share. One append is never split.
	maxBatch = 512 << 10
	// maxRequest bounds the bytes of a request that several streams share, and maxRequestStreams their number.
	maxRequest        = 4 << 20
	maxRequestStreams = 4000
	// maxRequests is how many requests are in flight at a time, of different streams.
	maxRequests = 4
	// While a request is in flight another one leaves when so many bytes wait, or after so long: small requests one behind
	// the other cost more than they bring.
	enoughBytes = 256 << 10
	enoughTime  = 5 * time.Millisecond
	// compressFrom is the size of batches, in bytes, from which they are compressed.
	compressFrom = 1 << 10
	// suspiciousFrom: after so many requests without an answer a batch goes in requests of at most maxSuspicious bytes,
	// half of the least that a broker can be configured to take, or alone if it is larger.
	suspiciousFrom = 2
	maxSuspicious  = 512 << 10
	// maxAppend bounds the bytes of one append: no broker takes a larger batch.
	maxAppend = 64 << 20
	// fewLanes: as many idle lanes are kept at least.
	fewLanes = 1 << 14
	// produceTimeout is how long a broker may take for a request.
	produceTimeout = 30 * time.Second
)

// op is one append.
type op struct {
	ctx    context.Context
	batch  Batch
	size   int
	done   func(Result)  // may be nil
	ended  chan struct{} // closed when result is set
	result Result
}

func newOp(ctx context.Context, b Batch, done func(Result)) *op {
	o := &op{ctx: ctx, batch: b, size: kafkaproto.BatchOverhead, done: done, ended: make(chan struct{})}
	for i := range b.Records {
		o.size += b.Records[i].size()
	}
	return o
}

// wait returns the result, or the error of the context when that ends first.
func (o *op) wait() Result {
	select {
	case <-o.ended:
		return o.result
	case <-o.ctx.Done():
	}
	select {
	case <-o.ended:
		return o.result
	default:
		return Result{Stream: o.batch.Stream, First: -1, Next: -1, Err: o.ctx.Err()}
	}
}

// alone tells an append that cannot share a batch with others.
func (o *op) alone() bool { return o.batch.If.set || o.batch.Close }

// lane is the appends to one stream. At most one request holds a batch of it at a time, so their order needs no more care;
// what comes meanwhile gathers and leaves as one batch.
type lane struct {
	stream string
	queue  []*op
	// current is what a request holds, or shall hold again.
	current *sealed
	busy    bool // in ready, held by a sender, or waiting to try again
	held    bool // by a sender

	// producer is the id under which the lane's batches are numbered, -1: none yet. sequence is the next number.
	producer int64
	sequence int32
}

// sealed is a batch that is or was sent. It is never changed: a retry is the same bytes, which the broker recognises.
type sealed struct {
	ops      []*op
	records  int32
	size     int
	bytes    []byte // nil: not built yet
	attempts int
	// unanswered counts the requests in a row that failed as a whole.
	unanswered int
	// uncertain: an attempt may have been carried out.
	uncertain bool
}

// appender sends appends.
//
// A sender is a goroutine that takes batches of lanes that are ready, sends them in one request, hands out the results,
// and goes on until no lane is ready. There is none while there is nothing to do.
type appender struct {
	c       *Client
	room    *semaphore.Weighted
	senders sync.WaitGroup

	mu struct {
		sync.Mutex
		lanes      map[string]*lane
		sweepAt    int     // number of lanes at which idle ones are dropped
		ready      []*lane // in order
		readyBytes int
		sending    int // senders
		timer      bool
		pending    int           // appends without a result
		idle       chan struct{} // closed when pending becomes 0; nil if nobody waits
		producer   int64         // for new lanes, -1: none yet
		closed     bool
	}
}

func (a *appender) init(c *Client) {
	a.c = c
	a.room = semaphore.NewWeighted(maxBuffered)
	a.mu.lanes = make(map[string]*lane)
	a.mu.sweepAt = fewLanes
	a.mu.producer = -1
}

// submit gives an append its place.
func (a *appender) submit(o *op) error {
	if len(o.batch.Records) == 0 {
		return fmt.Errorf("stream %q: an append needs at least one record", o.batch.Stream)
	}
	if o.size > maxAppend {
		return fmt.Errorf("stream %q: %w: it has about %d bytes, and the most that any broker takes is %d; --max-message-bytes says what this one does", o.batch.Stream, ErrTooLarge, o.size, maxAppend)
	}
	if err := a.c.check(o.ctx); err != nil {
		return err
	}
	o.size = min(o.size, maxBuffered)
	if err := a.room.Acquire(o.ctx, int64(o.size)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		a.room.Release(int64(o.size))
		return ErrClientClosed
	}
	l := a.laneLocked(o.batch.Stream)
	l.queue = append(l.queue, o)
	a.mu.pending++
	if l.busy {
		a.mu.readyBytes += o.size
	} else {
		a.readyLocked(l, o.size)
	}
	a.kickLocked()
	return nil
}

func (a *appender) laneLocked(stream string) *lane {
	l := a.mu.lanes[stream]
	if l == nil {
		if len(a.mu.lanes) >= a.mu.sweepAt {
			a.sweepLocked()
		}
		l = &lane{stream: stream, producer: -1}
		a.mu.lanes[stream] = l
	}
	return l
}

// sweepLocked drops idle lanes. What they would have numbered next is forgotten with them, so later lanes get a new
// producer id, under which every stream begins at 0.
func (a *appender) sweepLocked() {
	for stream, l := range a.mu.lanes {
		if !l.busy {
			delete(a.mu.lanes, stream)
		}
	}
	a.mu.sweepAt = max(fewLanes, 2*len(a.mu.lanes))
	a.mu.producer = -1
}

// readyLocked queues a lane for the senders; bytes of it are new.
func (a *appender) readyLocked(l *lane, bytes int) {
	l.busy = true
	a.mu.ready = append(a.mu.ready, l)
	a.mu.readyBytes += bytes
}

// kickLocked starts a sender if it is worth it.
func (a *appender) kickLocked() {
	switch {
	case len(a.mu.ready) == 0 || a.mu.sending == maxRequests || a.mu.closed:
	case a.mu.sending == 0 || a.mu.readyBytes >= enoughBytes:
		a.startLocked()
	case !a.mu.timer:
		a.mu.timer = true
		time.AfterFunc(enoughTime, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.mu.timer = false
			if len(a.mu.ready) > 0 && a.mu.sending < maxRequests && !a.mu.closed {
				a.startLocked()
			}
		})
	}
}

func (a *appender) startLocked() {
	a.mu.sending++
	a.senders.Go(a.send)
}

// send is a sender.
func (a *appender) send() {
	for {
		lanes := a.take()
		if lanes == nil {
			return
		}
		if err := a.build(lanes); err != nil {
			a.failAll(lanes, err, false)
			continue
		}
		resp, err := request[*kmsg.ProduceResponse](a.c.ctx, a.c.kafka, produceByName{produceRequest(lanes)})
		if err != nil {
			a.failAll(lanes, err, true)
			continue
		}
		a.settle(lanes, resp)
	}
}

// take returns the lanes for one request, each with its batch in current. Nil ends the sender.
func (a *appender) take() (lanes []*lane) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size, most := 0, maxRequest
	for len(a.mu.ready) > 0 && size < most && len(lanes) < maxRequestStreams && !a.mu.closed {
		l := a.mu.ready[0]
		if l.suspicious() {
			most = maxSuspicious
			if len(lanes) > 0 && size+l.current.size > most {
				break
			}
		}
		a.mu.ready[0] = nil
		a.mu.ready = a.mu.ready[1:]
		if !a.sealLocked(l) {
			l.busy = false
			continue
		}
		l.held = true
		size += l.current.size
		lanes = append(lanes, l)
	}
	if len(lanes) == 0 {
		a.mu.sending--
	} else if a.mu.readyBytes >= enoughBytes {
		a.kickLocked()
	}
	return lanes
}

// suspicious tells that requests with the lane's batch get no answers. The reason may be their size: brokers close the
// connection of a request that is too large for them. It goes in small requests then, or alone, so as not to hold up others
// for ever.
func (l *lane) suspicious() bool { return l.current != nil && l.current.unanswered >= suspiciousFrom }

// sealLocked puts the next batch of a lane into current, unless there is one. It reports false if nothing is left to send.
func (a *appender) sealLocked(l *lane) bool {
	if s := l.current; s != nil {
		if !s.abandoned() {
			return true
		}
		// Nobody waits for it any more, and whether it was written is not known, so neither is what its number would be.
		a.endLocked(l, func(o *op, _ int64) Result { return failure(o, o.ctx.Err()) })
		a.renumberLocked(l)
	}
	s := &sealed{}
	for len(l.queue) > 0 {
		o := l.queue[0]
		if o.ctx.Err() == nil && len(s.ops) > 0 && (s.size+o.size > maxBatch || o.alone() || s.ops[0].alone()) {
			break
		}
		l.queue[0] = nil
		l.queue = l.queue[1:]
		a.mu.readyBytes -= o.size
		if err := o.ctx.Err(); err != nil {
			a.finishLocked(o, failure(o, err))
			continue
		}
		s.ops = append(s.ops, o)
		s.size += o.size
		s.records += int32(len(o.batch.Records))
	}
	if len(s.ops) == 0 {
		return false
	}
	l.current = s
	return true
}

// abandoned tells that nobody waits for a batch.
func (s *sealed) abandoned() bool {
	for _, o := range s.ops {
		if o.ctx.Err() == nil {
			return false
		}
	}
	return true
}

// build makes the batches that are not built yet. The lanes belong to the sender.
func (a *appender) build(lanes []*lane) error {
	var b kafkaproto.Builder
	now := time.Now()
	for _, l := range lanes {
		s := l.current
		if s.bytes != nil {
			continue
		}
		if l.producer < 0 {
			id, err := a.producerID()
			if err != nil {
				return err
			}
			l.producer, l.sequence = id, 0
		}
		opts := kafkaproto.BatchOptions{Producer: &kafkaproto.ProducerState{ID: l.producer, Sequence: l.sequence}}
		if s.size >= compressFrom {
			opts.Codec = kafkaproto.CodecSnappy
		}
		b.Reset(opts)
		for _, o := range s.ops {
			for i := range o.batch.Records {
				if err := o.batch.Records[i].appendTo(&b, now); err != nil {
					return err
				}
			}
		}
		batch, err := b.Build()
		if err != nil {
			return err
		}
		s.bytes = batch
	}
	return nil
}

// producerID returns the id for new lanes.
func (a *appender) producerID() (int64, error) {
	a.mu.Lock()
	id := a.mu.producer
	a.mu.Unlock()
	if id >= 0 {
		return id, nil
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := request[*kmsg.InitProducerIDResponse](a.c.ctx, a.c.kafka, req)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return 0, fmt.Errorf("asking for a producer id: %w", err)
	}
	a.mu.Lock()
	a.mu.producer = resp.ProducerID
	a.mu.Unlock()
	return resp.ProducerID, nil
}

func produceRequest(lanes []*lane) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, int32(produceTimeout.Milliseconds())
	req.Topics = make([]kmsg.ProduceRequestTopic, len(lanes))
	partitions := make([]kmsg.ProduceRequestTopicPartition, len(lanes))
	for i, l := range lanes {
		p := &partitions[i]
		p.Default()
		p.Records = l.current.bytes
		if first := &l.current.ops[0].batch; first.If.set || first.Close {
			if first.If.set {
				ext.SetInt64(&p.UnknownTags, ext.TagExpectedOffset, first.If.next)
			}
			if first.Close {
				p.UnknownTags.Set(ext.TagClose, nil)
			}
		}
		req.Topics[i].Default()
		req.Topics[i].Topic = l.stream
		req.Topics[i].Partitions = partitions[i : i+1 : i+1]
	}
	return req
}

// failAll deals with a request that got no answer.
func (a *appender) failAll(lanes []*lane, err error, sent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	again := worthReconnecting(err) && !a.mu.closed
	if a.mu.closed || errors.Is(err, context.Canceled) {
		err = ErrClientClosed
	}
	for _, l := range lanes {
		l.held = false
		l.current.uncertain = l.current.uncertain || sent
		l.current.unanswered++
		if again {
			a.againLocked(l)
			continue
		}
		a.endLocked(l, func(o *op, _ int64) Result { return failure(o, err) })
		a.renumberLocked(l)
		a.nextLocked(l)
	}
}

// settle hands out the results of a request.
func (a *appender) settle(lanes []*lane, resp *kmsg.ProduceResponse) {
	answers := make(map[string]*kmsg.ProduceResponseTopicPartition, len(resp.Topics))
	for i := range resp.Topics {
		if t := &resp.Topics[i]; len(t.Partitions) > 0 {
			answers[t.Topic] = &t.Partitions[0]
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range lanes {
		l.held = false
		if p := answers[l.stream]; p != nil {
			a.settleLocked(l, p)
		} else {
			l.current.uncertain = true
			a.againLocked(l)
		}
	}
}

func (a *appender) settleLocked(l *lane, p *kmsg.ProduceResponseTopicPartition) {
	s := l.current
	switch {
	case p.ErrorCode == 0:
		l.sequence = int32((int64(l.sequence) + int64(s.records)) & (1<<31 - 1))
		a.endLocked(l, func(o *op, at int64) Result {
			return Result{Stream: l.stream, First: p.BaseOffset + at, Next: p.BaseOffset + at + int64(len(o.batch.Records))}
		})
	case worthRetrying(p.ErrorCode):
		s.uncertain = s.uncertain || p.ErrorCode != kerr.NotEnoughReplicas.Code // which means that nothing was written
		a.againLocked(l)
		return
	case lostSequence(p.ErrorCode) && !s.uncertain:
		// The broker does not know what was numbered before. This batch was refused, so it can be numbered anew.
		s.bytes = nil
		a.renumberLocked(l)
		a.againLocked(l)
		return
	default:
		a.endLocked(l, func(o *op, _ int64) Result { return failure(o, appendError(o, p)) })
		if s.uncertain || lostSequence(p.ErrorCode) {
			a.renumberLocked(l)
		}
	}
	a.nextLocked(l)
}

// renumberLocked makes a lane number its next batch from 0, under a producer id that the stream has not seen: under the old
// one the broker might take it for another batch.
func (a *appender) renumberLocked(l *lane) { l.producer, a.mu.producer = -1, -1 }

// lostSequence tells the errors of a batch whose number is not the next one to the broker.
func lostSequence(code int16) bool {
	return code == kerr.OutOfOrderSequenceNumber.Code || code == kerr.InvalidProducerEpoch.Code || code == kerr.UnknownProducerID.Code
}

// appendError is the error of an append that was refused.
func appendError(o *op, p *kmsg.ProduceResponseTopicPartition) error {
	next, ok, _ := ext.Int64(&p.UnknownTags, ext.TagNextOffset)
	switch {
	case ok && p.ErrorCode == ext.CodeConflict:
		return &ConflictError{Stream: o.batch.Stream, Expected: o.batch.If.next, Next: next}
	case ok && p.ErrorCode == ext.CodeClosed:
		return &ClosedError{Stream: o.batch.Stream, Next: next}
	}
	return streamError(o.batch.Stream, p.ErrorCode, p.ErrorMessage)
}

func failure(o *op, err error) Result {
	return Result{Stream: o.batch.Stream, First: -1, Next: -1, Err: err}
}

// againLocked sends the lane's batch again after a while.
func (a *appender) againLocked(l *lane) {
	if a.mu.closed {
		a.endLocked(l, func(o *op, _ int64) Result { return failure(o, ErrClientClosed) })
		return
	}
	l.current.attempts++
	time.AfterFunc(backoff(l.current.attempts), func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.mu.closed {
			return // close has ended its appends
		}
		a.readyLocked(l, 0)
		a.kickLocked()
	})
}

// nextLocked lets the lane go on behind a batch that has its result.
func (a *appender) nextLocked(l *lane) {
	if len(l.queue) > 0 {
		a.mu.ready = append(a.mu.ready, l)
		a.kickLocked()
	} else {
		l.busy, l.queue = false, nil
	}
}

// endLocked gives the appends of the lane's batch their results; at is the number of records before an append in it.
func (a *appender) endLocked(l *lane, result func(o *op, at int64) Result) {
	at := int64(0)
	for _, o := range l.current.ops {
		a.finishLocked(o, result(o, at))
		at += int64(len(o.batch.Records))
	}
	l.current = nil
}

func (a *appender) finishLocked(o *op, r Result) {
	o.result = r
	close(o.ended)
	if o.done != nil {
		o.done(r)
	}
	a.room.Release(int64(o.size))
	if a.mu.pending--; a.mu.pending == 0 && a.mu.idle != nil {
		close(a.mu.idle)
		a.mu.idle = nil
	}
}

func (a *appender) flush(ctx context.Context) error {
	a.mu.Lock()
	if a.mu.pending == 0 {
		a.mu.Unlock()
		return nil
	}
	if a.mu.idle == nil {
		a.mu.idle = make(chan struct{})
	}
	idle := a.mu.idle
	a.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends what no request holds; the senders end the rest.
func (a *appender) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return
	}
	a.mu.closed = true
	end := func(o *op, _ int64) Result { return failure(o, ErrClientClosed) }
	for _, l := range a.mu.lanes {
		if l.current != nil && !l.held {
			a.endLocked(l, end)
		}
		for _, o := range l.queue {
			a.finishLocked(o, end(o, 0))
		}
		l.queue = nil
	}
}
