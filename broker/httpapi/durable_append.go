package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// maxStreamSeq bounds Stream-Seq, in bytes.
const maxStreamSeq = 256

// durableAppend is a POST.
type durableAppend struct {
	*durableStream
	s        *Server
	x        *exchange
	producer *kafkaproto.ProducerState
	closing  bool
	hasSeq   bool
	seq      string // Stream-Seq
}

// durableAppend answers POST: it appends the body, closes the stream, or both.
func (s *Server) durableAppend(x *exchange) error {
	d, err := s.durableExisting(durableName(x.r))
	if err != nil {
		return err
	}
	a := &durableAppend{durableStream: d, s: s, x: x, closing: saysTrue(x.r.Header, headerDurableClosed)}
	if err := a.readHeaders(); err != nil {
		return err
	}
	body, release, err := x.readBody()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	switch {
	case len(body) > 0:
		err = a.append(ctx, body)
	case a.closing:
		err = a.closeOnly(ctx)
	default:
		err = badRequest.new("the body is empty: nothing is to be appended. To close the stream, send %s: true", headerDurableClosed)
	}
	if err != nil {
		return durableProblem(err)
	}
	return nil
}

func (a *durableAppend) readHeaders() (err error) {
	h := a.x.r.Header
	if _, given := h[headerProducerID]; given && h.Get(headerProducerID) == "" {
		return badRequest.new("%s is empty", headerProducerID)
	}
	if a.producer, err = readProducer(h); err != nil {
		return err
	}
	a.seq = h.Get(headerDurableSeq)
	_, a.hasSeq = h[http.CanonicalHeaderKey(headerDurableSeq)]
	if len(a.seq) > maxStreamSeq {
		return badRequest.new("%s has %d bytes, the limit is %d", headerDurableSeq, len(a.seq), maxStreamSeq)
	}
	if a.closing {
		return a.own("close")
	}
	return nil
}

// append appends the body as one batch, and closes the stream in one step with it if that is wanted.
func (a *durableAppend) append(ctx context.Context, body []byte) error {
	// A producer may repeat the append that closed the stream: the store knows whether it does.
	if a.info.Closed && a.producer == nil {
		return &streamstore.StreamClosedError{Next: a.info.Next}
	}
	if !a.info.Closed {
		if err := a.checkContentType(); err != nil {
			return err
		}
	}
	batch, err := a.s.durableBatch(a.target, body, a.isJSON(), a.producer)
	if err != nil {
		return err
	}
	done, leave, err := a.appendInOrder(ctx, batch)
	if err != nil {
		return a.explain(ctx, err)
	}
	if err := done.Wait(ctx); err != nil {
		return err
	}
	leave()
	a.s.m.records.WithLabelValues(recordsIn).Add(float64(batch.RecordCount()))
	return a.reply(done)
}

// checkContentType holds the body to the content type of the stream. One that has none takes whatever comes.
func (a *durableAppend) checkContentType() error {
	sent := a.x.r.Header.Get("Content-Type")
	switch {
	case sent == "":
		return badRequest.new("Content-Type is missing: the stream's is %q", a.contentType())
	case a.info.Settings.ContentType != "" && durableMedia(sent) != a.media():
		return durableMismatch.new("the Content-Type is %q, the stream's is %q", shorten(sent), a.contentType())
	}
	return nil
}

// explain makes the protocol's error of one of the store. It returns nil if the request was answered: it had been carried
// out before.
func (a *durableAppend) explain(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*streamstore.SequenceError](err); ok {
		known, ok, stateErr := a.s.store.Producer(a.id, a.producer.ID)
		if stateErr != nil {
			return stateErr
		}
		if ok && a.producer.Epoch > known.Epoch {
			return badRequest.new("%s %d is new, so %s must be 0, not %d", headerProducerEpoch, a.producer.Epoch, headerProducerSeq, e.Got)
		}
		return a.sequenceGap(e.Got, e.Expected)
	}
	if e, ok := errors.AsType[*streamstore.StreamClosedError](err); ok {
		mine, rowErr := a.s.closedBy(a.id, a.producer)
		if rowErr != nil {
			return rowErr
		}
		if mine {
			return a.replyClosed(e.Next)
		}
	}
	return err
}

func (a *durableAppend) sequenceGap(got, expected int32) error {
	return asProblem(&streamstore.SequenceError{Got: got, Expected: expected}).
		withHeader(headerProducerExpects, strconv.Itoa(int(expected))).
		withHeader(headerProducerGot, strconv.Itoa(int(got)))
}

// reply answers an append that is durable.
func (a *durableAppend) reply(done streamstore.Appended) error {
	info, err := a.s.store.Describe(a.id)
	if err != nil {
		return err
	}
	next := done.LastOffset + 1
	if done.BaseOffset == streamstore.UnknownOffset {
		next = info.HighWatermark
	}
	h := a.x.Header()
	h.Set(headerDurableNext, formatDurable(next))
	if info.Closed {
		h.Set(headerDurableClosed, "true")
	}
	status := http.StatusNoContent
	if a.producer != nil {
		if !done.Duplicate {
			status = http.StatusOK
		} else {
			a.s.keepAlive(a.x, a.id)
		}
		if err := a.producerHeader(done.Duplicate); err != nil {
			return err
		}
	}
	if status == http.StatusOK {
		h.Set("Content-Length", "0")
	}
	a.x.WriteHeader(status)
	return nil
}

// producerHeader tells how far the producer is: its own request, or if that is a duplicate the newest one.
func (a *durableAppend) producerHeader(duplicate bool) error {
	if a.producer == nil {
		return nil
	}
	seq := a.producer.Sequence
	if duplicate {
		known, ok, err := a.s.store.Producer(a.id, a.producer.ID)
		if err != nil {
			return err
		}
		if ok {
			seq = max(seq, known.LastSequence)
		}
	}
	a.x.Header().Set(headerProducerEpoch, strconv.Itoa(int(a.producer.Epoch)))
	a.x.Header().Set(headerProducerSeq, strconv.Itoa(int(seq)))
	return nil
}

// closeOnly closes the stream without an append. It may be repeated. A producer's request takes a number of its sequence,
// as an append does; the store's own state of producers goes with batches, so this last number has a row of its own.
func (a *durableAppend) closeOnly(ctx context.Context) error {
	w := a.s.durable.writers.enter(a.id)
	defer a.s.durable.writers.leave(a.id, w)
	w.mu.Lock()
	defer w.mu.Unlock()
	info, err := a.s.store.Describe(a.id)
	if err != nil {
		return err
	}
	duplicate, err := a.checkProducer()
	if err != nil {
		return err
	}
	if info.Closed {
		return a.replyClosed(info.Next)
	}
	if duplicate {
		a.x.Header().Set(headerDurableNext, formatDurable(info.HighWatermark))
		if err := a.producerHeader(true); err != nil {
			return err
		}
		a.x.WriteHeader(http.StatusNoContent)
		return nil
	}
	txn := streamstore.NewTxn()
	txn.Close(a.id)
	txn.Touch(a.id)
	if a.producer != nil {
		txn.Set(idRow(rowCloser, a.id), closer(*a.producer).encode())
	}
	if _, err := a.s.store.Commit(ctx, txn); err != nil {
		return err
	}
	if info, err = a.s.store.Describe(a.id); err != nil {
		return err
	}
	return a.replyClosed(info.Next)
}

func (a *durableAppend) replyClosed(next int64) error {
	a.x.Header().Set(headerDurableNext, formatDurable(next))
	a.x.Header().Set(headerDurableClosed, "true")
	if err := a.producerHeader(true); err != nil {
		return err
	}
	a.x.WriteHeader(http.StatusNoContent)
	return nil
}

// checkProducer applies the rules of producers to a request without a batch.
func (a *durableAppend) checkProducer() (duplicate bool, err error) {
	if a.producer == nil {
		return false, nil
	}
	mine, err := a.s.closedBy(a.id, a.producer)
	if mine || err != nil {
		return mine, err
	}
	known, ok, err := a.s.store.Producer(a.id, a.producer.ID)
	epoch, seq := a.producer.Epoch, a.producer.Sequence
	switch {
	case err != nil:
		return false, err
	case !ok && seq != 0:
		return false, a.sequenceGap(seq, 0)
	case !ok:
		return false, nil
	case epoch < known.Epoch:
		return false, &streamstore.ProducerEpochError{Got: epoch, Current: known.Epoch}
	case epoch > known.Epoch && seq != 0:
		return false, badRequest.new("%s %d is new, so %s must be 0, not %d", headerProducerEpoch, epoch, headerProducerSeq, seq)
	case epoch > known.Epoch:
		return false, nil
	case seq > known.LastSequence+1:
		return false, a.sequenceGap(seq, known.LastSequence+1)
	}
	return seq <= known.LastSequence, nil
}

// appendInOrder appends a batch. With Stream-Seq the appends to a stream are checked one after the other; the new value is
// written in one step with the batch. Until that is durable only memory knows it: call leave then, and never if it does not
// become durable, so that the value stays known.
func (a *durableAppend) appendInOrder(ctx context.Context, batch kafkaproto.RecordBatch) (done streamstore.Appended, leave func(), err error) {
	leave = func() {}
	if err := checkBatch(a.target, batch); err != nil {
		return done, leave, err
	}
	rq := streamstore.AppendRequest{
		Stream: a.id, Batch: batch, Expected: streamstore.AnyOffset, Ack: streamstore.AckDurable, Close: a.closing, FromZero: true,
	}
	if !a.hasSeq {
		done, err = a.s.store.Append(ctx, rq)
		return done, leave, err
	}
	w := a.s.durable.writers.enter(a.id)
	leave = func() { a.s.durable.writers.leave(a.id, w) }
	if done, err = a.appendNext(ctx, w, rq); err != nil {
		leave()
	}
	return done, leave, err
}

func (a *durableAppend) appendNext(ctx context.Context, w *writers, rq streamstore.AppendRequest) (done streamstore.Appended, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.loaded {
		value, ok, err := a.s.store.Get(idRow(rowSeq, a.id))
		if err != nil {
			return done, err
		}
		w.loaded, w.any, w.last = true, ok, string(value)
	}
	if w.any && a.seq <= w.last {
		// What a producer repeats is a duplicate, whatever its Stream-Seq; the store finds that out.
		duplicate, err := a.checkProducer()
		if err != nil {
			return done, err
		}
		if !duplicate {
			return done, durableRegress.new("%s is %q, but %q was appended before: it must be larger, byte by byte", headerDurableSeq, shorten(a.seq), shorten(w.last))
		}
	}
	rq.Rows = []streamstore.Row{{Key: idRow(rowSeq, a.id), Value: []byte(a.seq)}}
	if done, err = a.s.store.Append(ctx, rq); err == nil && !done.Duplicate {
		w.any, w.last = true, a.seq
	}
	return done, err
}

// writers is what the writers of one stream share while there are any.
type writers struct {
	users int // guarded by writersTable.mu

	mu sync.Mutex
	// last is the largest Stream-Seq, once loaded.
	loaded, any bool
	last        string
}

// writersTable has the streams to which appends that depend on Stream-Seq are under way.
type writersTable struct {
	mu sync.Mutex
	m  map[streamstore.StreamID]*writers
}

func (t *writersTable) enter(id streamstore.StreamID) *writers {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.m[id]
	if w == nil {
		if t.m == nil {
			t.m = map[streamstore.StreamID]*writers{}
		}
		w = &writers{}
		t.m[id] = w
	}
	w.users++
	return w
}

func (t *writersTable) leave(id streamstore.StreamID, w *writers) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(t.m, id)
	}
}

// durableState is what a server keeps in memory for Durable Streams.
type durableState struct {
	writers  writersTable
	changes  atomic.Int64
	sweeping atomic.Bool
}

// errNoMessages: the body is an empty JSON array.
var errNoMessages = badRequest.new("the body is an empty array: there are no messages in it")

// durableBatch makes the batch of a body: one record, or of a JSON stream one for each message. An array stands for its
// elements, one level deep.
func (s *Server) durableBatch(t *target, body []byte, isJSON bool, producer *kafkaproto.ProducerState) (kafkaproto.RecordBatch, error) {
	b := takeBuilder(producer)
	defer putBuilder(b)
	now := time.Now().UnixMilli()
	add := func(value []byte) error {
		err := b.Append(kafkaproto.Record{Timestamp: now, Value: value})
		if err == nil && b.Size() > t.rules.MaxBatchBytes {
			err = tooLarge.new("the body takes %d bytes or more as a record batch, the limit is %d: send it in pieces", b.Size(), t.rules.MaxBatchBytes).with("limit", t.rules.MaxBatchBytes)
		}
		return err
	}
	var err error
	if isJSON {
		err = eachMessage(body, add)
	} else {
		err = add(body)
	}
	if err != nil {
		return nil, err
	}
	return b.Build()
}

// eachMessage calls fn with each message of a JSON body.
func eachMessage(body []byte, fn func([]byte) error) error {
	body = bytes.TrimSpace(body)
	if !utf8.Valid(body) || !json.Valid(body) {
		return badRecord.new("the body is not JSON, which the stream's content type is")
	}
	if body[0] != '[' {
		return fn(body)
	}
	count := 0
	for element := range jsonElements(body) {
		count++
		if err := fn(element); err != nil {
			return err
		}
	}
	if count == 0 {
		return errNoMessages
	}
	return nil
}

// jsonElements are the elements of an array, which is valid, each as it is written.
func jsonElements(array []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		depth, from, inString := 0, 1, false
		for i := 1; i < len(array); i++ {
			switch c := array[i]; {
			case inString:
				if c == '\\' {
					i++
				} else if c == '"' {
					inString = false
				}
			case c == '"':
				inString = true
			case depth == 0 && (c == ',' || c == ']'):
				element := bytes.TrimSpace(array[from:i])
				if len(element) > 0 && !yield(element) {
					return
				}
				from = i + 1
			case c == '[' || c == '{':
				depth++
			case c == ']' || c == '}':
				depth--
			}
		}
	}
}
