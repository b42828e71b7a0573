package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// Forms of records in bodies, and their media types.
const (
	formJSON    = "json"
	formNDJSON  = "ndjson"
	formBatches = "batches"
	formRaw     = "raw"

	mediaJSON    = "application/json"
	mediaNDJSON  = "application/x-ndjson"
	mediaBatches = "application/vnd.brooklet.batches"
	mediaBytes   = "application/octet-stream"
)

const (
	// maxProducerName bounds Producer-Id, in bytes.
	maxProducerName = 256
	// streamedBatch is the size from which the records of an NDJSON body are appended although more are at hand.
	streamedBatch = 256 << 10
)

// conditions are what an append depends on, and what comes with it.
type conditions struct {
	// expected is the offset that the first record must get, or streamstore.AnyOffset.
	expected int64
	// mustExist: the stream is not made by this append.
	mustExist bool
	// producer, if not nil, makes the append idempotent. Its sequence counts appends.
	producer *kafkaproto.ProducerState
	// close closes the stream behind the records.
	close bool
}

// atomic tells that all records of the request must be one batch.
func (c *conditions) atomic() bool {
	return c.expected != streamstore.AnyOffset || c.producer != nil || c.close
}

// appended is what became of the records of a request.
type appended struct {
	// first and next are the offset of the first record and the one after the last, streamstore.UnknownOffset if a
	// duplicate is so old that its offsets are forgotten.
	first, next int64
	records     int
	duplicate   bool
	// last is the last batch; when it is durable all are.
	last streamstore.Appended
}

// append answers POST: it appends the records of the body.
func (s *Server) append(x *exchange) error {
	q := newQuery(x.r)
	closing := q.flag("close")
	form := q.choice("format", formJSON, formNDJSON, formBatches, formRaw)
	raw := rawRecord(q)
	if err := q.done(); err != nil {
		return err
	}
	t, err := s.target(streamName(x.r))
	if err != nil {
		return err
	}
	c, err := readConditions(x.r)
	if err != nil {
		return err
	}
	if c.close = closing; closing {
		if err := t.own("close"); err != nil {
			return err
		}
	}
	if form == "" {
		if form, err = s.bodyForm(t, x.r.Header.Get("Content-Type")); err != nil {
			return err
		}
	}
	if raw.given && form != formRaw {
		return badRequest.new("key, timestamp and header parameters belong to a raw body; a body of form %s carries them in its records", form)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), s.opts.AppendTimeout)
	defer cancel()
	a := &appender{s: s, x: x, target: t, conditions: c}
	switch form {
	case formJSON:
		err = a.appendJSON(ctx)
	case formNDJSON:
		err = a.appendLines(x.r.Context())
	case formBatches:
		err = a.appendBatches(x.r.Context())
	default:
		err = a.appendRaw(ctx, raw)
	}
	return a.reply(err)
}

// bodyForm tells by its media type what form a body has.
func (s *Server) bodyForm(t *target, contentType string) (string, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil && contentType != "" {
		return "", badMediaType.new("Content-Type %q cannot be understood: %v", contentType, err)
	}
	switch media {
	case mediaJSON:
		return formJSON, nil
	case mediaNDJSON:
		return formNDJSON, nil
	case mediaBatches:
		return formBatches, nil
	case mediaBytes, "":
		return formRaw, nil
	}
	if t.id == 0 {
		return formRaw, nil
	}
	info, err := s.store.Describe(t.id)
	if err != nil {
		return "", err
	}
	own, _, _ := mime.ParseMediaType(info.Settings.ContentType)
	if own != "" && own != media {
		return "", badMediaType.new("the stream's content type is %q, the body's %q: send that, or one of %s, %s, %s and %s",
			info.Settings.ContentType, media, mediaBytes, mediaJSON, mediaNDJSON, mediaBatches)
	}
	return formRaw, nil
}

// readConditions reads the conditions in the head of a request.
func readConditions(r *http.Request) (*conditions, error) {
	c := &conditions{expected: streamstore.AnyOffset}
	if r.Header.Get("If-None-Match") != "" {
		return nil, badRequest.new(`an append knows no If-None-Match: to append to a new stream only, send If-Match: "0"`)
	}
	if match := strings.Join(r.Header.Values("If-Match"), ","); match == "*" {
		c.mustExist = true
	} else if match != "" {
		text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(match), "W/"), `"`), `"`)
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, badRequest.new("If-Match is %q: write the offset that the first record must get, such as \"42\", or *", match)
		}
		c.expected = n
	}
	var err error
	c.producer, err = readProducer(r.Header)
	return c, err
}

// readProducer reads the headers of an idempotent producer, nil if there are none.
func readProducer(h http.Header) (*kafkaproto.ProducerState, error) {
	name, epoch, seq := h.Get(headerProducerID), h.Get(headerProducerEpoch), h.Get(headerProducerSeq)
	if name == "" && epoch == "" && seq == "" {
		return nil, nil
	}
	if name == "" || epoch == "" || seq == "" {
		return nil, badRequest.new("%s, %s and %s go together", headerProducerID, headerProducerEpoch, headerProducerSeq)
	}
	if len(name) > maxProducerName {
		return nil, badRequest.new("%s has %d bytes, the limit is %d", headerProducerID, len(name), maxProducerName)
	}
	e, err := strconv.ParseUint(epoch, 10, 15)
	if err != nil {
		return nil, badRequest.new("%s is %q: write a number from 0 to %d", headerProducerEpoch, epoch, math.MaxInt16)
	}
	n, err := strconv.ParseUint(seq, 10, 31)
	if err != nil {
		return nil, badRequest.new("%s is %q: write a number from 0 to %d", headerProducerSeq, seq, math.MaxInt32)
	}
	return &kafkaproto.ProducerState{ID: streamstore.NamedProducer(name), Epoch: int16(e), Sequence: int32(n)}, nil
}

// appender appends the records of one request.
type appender struct {
	s *Server
	x *exchange
	*target
	*conditions

	result appended
	// held is the memory for a body that is read piece by piece.
	held *holding
}

// appendJSON appends a body of JSON: {"records": [...]}.
func (a *appender) appendJSON(ctx context.Context) error {
	body, release, err := a.x.readBody()
	if err != nil {
		return err
	}
	defer release()
	if err := checkText(body); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	b := takeBuilder(a.producer)
	defer putBuilder(b)
	err = eachRecordIn(body, func(i int, in *recordIn) error {
		if err := a.add(b, in, now); err != nil {
			return asProblem(err).with("record", i)
		}
		if b.Size() > a.rules.MaxBatchBytes {
			return a.batchTooLarge(int64(b.Size()))
		}
		return nil
	})
	if _, ok := errors.AsType[*problem](err); err != nil && !ok {
		err = badRequest.new(`the body is not {"records": [...]}: %v`, err)
	}
	if err != nil {
		return err
	}
	return a.appendBuilt(ctx, b)
}

// add adds a record to a batch.
func (a *appender) add(b *kafkaproto.Builder, in *recordIn, now int64) error {
	r, err := in.record(now)
	if err != nil {
		return badRecord.new("%v", err)
	}
	return b.Append(r)
}

// appendRaw appends one record whose value is the body.
func (a *appender) appendRaw(ctx context.Context, raw rawParameters) error {
	body, release, err := a.x.readBody()
	if err != nil {
		return err
	}
	defer release()
	b := takeBuilder(a.producer)
	defer putBuilder(b)
	raw.record.Value = body
	if raw.record.Timestamp == 0 {
		raw.record.Timestamp = time.Now().UnixMilli()
	}
	if err := b.Append(raw.record); err != nil {
		return err
	}
	return a.appendBuilt(ctx, b)
}

// rawParameters are the parts of a record beside its value, from the query.
type rawParameters struct {
	record kafkaproto.Record
	given  bool
}

// rawRecord reads key, timestamp and headers of a raw record.
func rawRecord(q *query) (raw rawParameters) {
	if key, ok := q.text("key"); ok {
		raw.record.Key, raw.given = []byte(key), true
	}
	if text, ok := q.text("timestamp"); ok {
		raw.given = true
		ts, err := parseTime(text)
		if err != nil {
			q.fail("timestamp", "%v", err)
		}
		raw.record.Timestamp = ts
	}
	for _, h := range q.list("header") {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			q.fail("header", "it is %q; write name=value", shorten(h))
		}
		raw.given = true
		raw.record.Headers = append(raw.record.Headers, kafkaproto.Header{Key: name, Value: []byte(value)})
	}
	return raw
}

// parseTime reads milliseconds since 1970, or a time in the form of RFC 3339.
func parseTime(text string) (ms int64, err error) {
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms >= 0 {
		return ms, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.UnixMilli() < 0 {
		return 0, fmt.Errorf("it is %q; write milliseconds since 1970, or a time such as 2025-01-31T12:00:00Z", shorten(text))
	}
	return at.UnixMilli(), nil
}

// appendLines appends a body of NDJSON. If the append depends on a condition all records are one batch. Otherwise they
// are appended as they come, in batches of what is at hand, and the body may be of any length.
func (a *appender) appendLines(ctx context.Context) error {
	if a.atomic() {
		body, release, err := a.x.readBody()
		if err != nil {
			return err
		}
		defer release()
		return a.eachLine(ctx, bufio.NewReaderSize(bytes.NewReader(body), firstBody), false)
	}
	in, err := a.x.body()
	if err != nil {
		return err
	}
	held, err := a.s.hold(ctx, bodyCopies*int64(streamedBatch+firstBody))
	if err != nil {
		return err
	}
	defer held.release()
	a.held = held
	return a.eachLine(ctx, bufio.NewReaderSize(in, firstBody), true)
}

// eachLine reads lines and appends them: what is at hand if streamed, else all at once. Empty lines are skipped.
func (a *appender) eachLine(ctx context.Context, in *bufio.Reader, streamed bool) error {
	b := takeBuilder(a.producer)
	defer putBuilder(b)
	number := 0
	for {
		number++
		line, err := a.readLine(in)
		last := err == io.EOF
		if err != nil && !last {
			return asProblem(bodyProblem(err)).with("line", number)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if streamed && b.Count() > 0 && b.Size()+len(line)+lineOverhead > a.rules.MaxBatchBytes {
				if err := a.appendBuilt(ctx, b); err != nil {
					return err
				}
				b.Reset(kafkaproto.BatchOptions{})
			}
			if err := a.addLine(b, line); err != nil {
				return asProblem(err).with("line", number)
			}
		}
		if last && (b.Count() > 0 || a.result.records == 0) {
			return a.appendBuilt(ctx, b)
		}
		if last {
			return nil
		}
		if streamed && b.Count() > 0 && (in.Buffered() == 0 || b.Size() >= min(streamedBatch, a.rules.MaxBatchBytes/2)) {
			if err := a.appendBuilt(ctx, b); err != nil {
				return err
			}
			b.Reset(kafkaproto.BatchOptions{})
		}
	}
}

// lineOverhead is by how much a record may be larger than its line, in bytes.
const lineOverhead = 64

// readLine returns the next line. It is valid until the next call. The last may come with io.EOF.
func (a *appender) readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		if int64(len(long)) > a.s.opts.MaxBodyBytes {
			return nil, tooLarge.new("a line has more than %d bytes", a.s.opts.MaxBodyBytes).with("limit", a.s.opts.MaxBodyBytes)
		}
		if a.held != nil {
			if err := a.held.grow(bodyCopies * int64(streamedBatch+2*cap(long))); err != nil {
				return nil, err
			}
		}
		line, err = in.ReadSlice('\n')
		long = append(long, line...)
	}
	return long, err
}

func (a *appender) addLine(b *kafkaproto.Builder, line []byte) error {
	if err := checkText(line); err != nil {
		return err
	}
	var in recordIn
	if err := strictJSON(line, &in); err != nil {
		return badRecord.new("it is not a record: %v", err)
	}
	if err := a.add(b, &in, time.Now().UnixMilli()); err != nil {
		return err
	}
	if b.Size() > a.rules.MaxBatchBytes {
		return a.batchTooLarge(int64(b.Size()))
	}
	return nil
}

// batchHeadBytes is the part of a batch that tells its length: base offset and length field.
const batchHeadBytes = 12

// appendBatches appends a body of record batches back to back, each as it is but for its offsets. Each batch is an
// append of its own; If-Match holds for the first, and the others must follow it.
func (a *appender) appendBatches(ctx context.Context) error {
	in, err := a.x.body()
	if err != nil {
		return err
	}
	held, err := a.s.hold(ctx, int64(max(a.rules.MaxBatchBytes, firstBody)))
	if err != nil {
		return err
	}
	defer held.release()
	reader := bufio.NewReader(in)
	for count := 0; ; count++ {
		batch, err := a.readBatch(reader)
		if err == io.EOF && count > 0 {
			return nil
		}
		if err == io.EOF {
			return badRecord.new("the body holds no record batch")
		}
		if err == nil && a.producer != nil && count > 0 {
			return badRecord.new("with %s the body must be one batch", headerProducerID)
		}
		if err == nil && a.close {
			// The batch that closes the stream is the last one: look before it is appended.
			if _, more := reader.Peek(1); more == nil {
				return badRecord.new("with close=true the body must be one batch")
			}
		}
		if err == nil {
			err = a.appendBatch(ctx, batch)
		}
		if err != nil {
			return asProblem(err).with("batch", count)
		}
	}
}

// readBatch reads one batch. io.EOF: there is none.
func (a *appender) readBatch(in *bufio.Reader) (kafkaproto.RecordBatch, error) {
	head, err := in.Peek(batchHeadBytes)
	if len(head) == 0 && err == io.EOF {
		return nil, io.EOF
	}
	if err != nil {
		return nil, bodyProblem(err)
	}
	size := int64(int32(binary.BigEndian.Uint32(head[8:]))) + batchHeadBytes
	if size < kafkaproto.BatchOverhead {
		return nil, badRecord.new("a record batch cannot have %d bytes: a header alone takes %d", size, kafkaproto.BatchOverhead)
	}
	if size > int64(a.rules.MaxBatchBytes) {
		return nil, a.batchTooLarge(size)
	}
	batch := make(kafkaproto.RecordBatch, size)
	if _, err := io.ReadFull(in, batch); err != nil {
		return nil, bodyProblem(err)
	}
	batch.SetBaseOffset(0)
	if a.producer != nil {
		batch.SetProducer(*a.producer)
	}
	return batch, nil
}

func (a *appender) batchTooLarge(size int64) error {
	return tooLarge.new("the records take %d bytes or more as one batch, the limit is %d: send fewer in one request", size, a.rules.MaxBatchBytes).with("limit", a.rules.MaxBatchBytes)
}

var builders = sync.Pool{New: func() any { return new(kafkaproto.Builder) }}

// largestPooled is the largest builder that is kept, in bytes.
const largestPooled = 1 << 20

func takeBuilder(producer *kafkaproto.ProducerState) *kafkaproto.Builder {
	b := builders.Get().(*kafkaproto.Builder)
	b.Reset(kafkaproto.BatchOptions{Producer: producer})
	return b
}

func putBuilder(b *kafkaproto.Builder) {
	if b.Size() <= largestPooled {
		builders.Put(b)
	}
}

// appendBuilt appends the records in b as one batch.
func (a *appender) appendBuilt(ctx context.Context, b *kafkaproto.Builder) error {
	if b.Count() == 0 {
		return badRecord.new("the request has no records")
	}
	if b.Size() > a.rules.MaxBatchBytes {
		return a.batchTooLarge(int64(b.Size()))
	}
	batch, err := b.Build()
	if err != nil {
		return err
	}
	return a.appendBatch(ctx, batch)
}

// appendBatch appends one batch, which it keeps, and notes the result. It does not wait until the batch is durable.
func (a *appender) appendBatch(ctx context.Context, batch kafkaproto.RecordBatch) error {
	ctx, cancel := context.WithTimeout(ctx, a.s.opts.AppendTimeout)
	defer cancel()
	count := int(batch.RecordCount())
	done, err := a.s.appendBatch(ctx, a.target, batch, a.conditions)
	if err != nil {
		return err
	}
	r := &a.result
	if r.records == 0 {
		r.first, r.duplicate = done.BaseOffset, done.Duplicate
	}
	r.records += count
	r.next = streamstore.UnknownOffset
	if done.BaseOffset != streamstore.UnknownOffset {
		r.next = done.LastOffset + 1
	}
	r.last = done
	if a.expected != streamstore.AnyOffset {
		a.expected = r.next
	}
	return nil
}

// reply waits until what was appended is durable, and answers. err is why not all was appended.
func (a *appender) reply(err error) error {
	r := &a.result
	if r.records == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(a.x.r.Context(), a.s.opts.AppendTimeout)
	defer cancel()
	if lost := r.last.Wait(ctx); lost != nil {
		return lost
	}
	a.s.m.records.WithLabelValues(recordsIn).Add(float64(r.records))
	if err != nil {
		// What came before the failure is in the stream, and the client must not send it again.
		return asProblem(err).with("appended_records", r.records).withOffset(headerNextOffset, "next_offset", r.next)
	}
	out := appendResult{Stream: a.name, Records: r.records, Duplicate: r.duplicate, Closed: a.close}
	h := a.x.Header()
	h.Set(headerStreamID, formatID(a.id))
	if r.next != streamstore.UnknownOffset {
		out.FirstOffset, out.NextOffset = &r.first, &r.next
		a.x.setOffset(headerNextOffset, r.next)
	}
	if a.close {
		h.Set(headerClosed, "true")
	}
	return a.x.writeJSON(http.StatusOK, &out)
}

// appendResult is the answer to an append.
type appendResult struct {
	Stream string `json:"stream"`
	// FirstOffset and NextOffset are absent of a duplicate whose offsets are forgotten.
	FirstOffset *int64 `json:"first_offset,omitempty"`
	NextOffset  *int64 `json:"next_offset,omitempty"`
	Records     int    `json:"records"`
	Duplicate   bool   `json:"duplicate"`
	Closed      bool   `json:"closed,omitempty"`
}

// formatID writes the id of a stream.
func formatID(id streamstore.StreamID) string { return strconv.FormatUint(uint64(id), 16) }

// appendBatch checks a batch by the rules of its stream and appends it, making the stream if it does not exist and may be
// made. The batch belongs to the store afterwards. It does not wait until the batch is durable: Appended.Wait does, in the
// sense of the store's durability.
func (s *Server) appendBatch(ctx context.Context, t *target, batch kafkaproto.RecordBatch, c *conditions) (streamstore.Appended, error) {
	if err := checkBatch(t, batch); err != nil {
		return streamstore.Appended{}, err
	}
	for again := true; ; again = false {
		if err := s.ensure(ctx, t, c); err != nil {
			return streamstore.Appended{}, err
		}
		done, err := s.store.Append(ctx, streamstore.AppendRequest{
			Stream:   t.id,
			Batch:    batch,
			Expected: c.expected,
			Ack:      streamstore.AckDurable,
			Close:    c.close,
		})
		if again && !t.topic && errors.Is(err, streamstore.ErrNoStream) {
			t.id = 0 // deleted meanwhile; the next one has that name anew
			continue
		}
		if errors.Is(err, streamstore.ErrConflict) || errors.Is(err, streamstore.ErrStreamClosed) {
			// What the answer tells of the stream must not be lost any more.
			wait, cancel := context.WithTimeout(ctx, s.opts.AppendTimeout)
			defer cancel()
			if lost := done.Wait(wait); lost != nil {
				err = lost
			}
		}
		return done, err
	}
}

// ensure makes the stream of t if it does not exist. It is durable before the first append to it is.
func (s *Server) ensure(ctx context.Context, t *target, c *conditions) (err error) {
	switch {
	case t.id != 0:
		return nil
	case c.mustExist, !s.opts.AutoCreate, t.topic:
		return errNoStream(t.name)
	case c.expected > 0:
		return &streamstore.ConflictError{Expected: c.expected, Next: 0}
	}
	t.id, err = s.store.Ensure(ctx, t.name, streamstore.DefaultSettings())
	return err
}

// checkBatch holds a batch to the rules of its stream.
func checkBatch(t *target, batch kafkaproto.RecordBatch) error {
	switch {
	case t.rules.ReadOnly:
		return reservedName.new("%q belongs to a topic of Kafka's own, which takes no records from clients", t.name)
	case t.rules.MaxBatchBytes == 0:
		return tooLarge.new("the topic's max.message.bytes is 0: it takes no records")
	case batch.IsTransactional():
		return badRecord.new("the batch belongs to a Kafka transaction, which needs the Kafka protocol")
	}
	limits := kafkaproto.BatchLimits{MaxBytes: t.rules.MaxBatchBytes}
	now := time.Now().UnixMilli()
	if !t.rules.LogAppendTime {
		limits.Now, limits.TimestampBeforeMax, limits.TimestampAfterMax = now, t.rules.BeforeMax, t.rules.AfterMax
	}
	if err := kafkaproto.ValidateBatch(batch, limits); err != nil {
		return err
	}
	if t.rules.LogAppendTime {
		kafkaproto.PatchLogAppendTime(batch, now)
		return nil
	}
	if kafkaproto.PatchMaxTimestamp(batch) {
		return kafkaproto.ValidateBatch(batch, limits) // the true time may lie out of bounds
	}
	return nil
}
