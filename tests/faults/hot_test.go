package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/client"
	"github.com/brookletmq/brooklet/tests/harness"
)

const (
	hotStreams = 2
	hotClients = 3 // per stream
	// hotPause is the longest pause between two operations of a client. It bounds the length of the histories.
	hotPause = 40 * time.Millisecond
)

// hot is a stream whose history is checked.
type hot struct {
	r       *round
	name    string
	history history
	known   atomic.Int64 // the highest end that anyone has seen
}

func (r *round) startHot(name string) *hot {
	h := &hot{r: r, name: name}
	for i := range hotClients {
		c := &hotClient{hot: h, id: i, rng: r.fork()}
		r.load.Go(c.run)
	}
	s := &swapper{hot: h, id: hotClients, rng: r.fork(), client: r.streamClient()}
	r.load.Go(s.run)
	return h
}

// hotClient makes one operation at a time.
type hotClient struct {
	*hot
	id   int
	rng  *rand.Rand
	conn *harness.Conn
	gen  *generation // that the connection leads to
	sent int
}

func (c *hotClient) run() {
	defer c.disconnect()
	for c.r.pause(c.rng, hotPause) {
		if !c.connect() {
			continue
		}
		switch x := c.rng.IntN(4); x {
		case 0:
			c.read()
		case 1:
			c.end()
		default:
			c.append()
		}
	}
}

func (c *hotClient) connect() bool {
	if c.conn != nil {
		return true
	}
	gen := c.r.current()
	conn, err := harness.TryDial(c.r.t, gen.addr)
	if err != nil {
		return false
	}
	c.conn, c.gen = conn, gen
	return true
}

func (c *hotClient) disconnect() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// ask sends a request. Without an answer the connection is given up: what comes over it later belongs to this request.
func (c *hotClient) ask(o *operation, req kmsg.Request) kmsg.Response {
	o.client, o.call = c.id, c.r.now()
	resp, err := c.conn.Try(req)
	o.answer = c.r.now()
	if err != nil {
		c.disconnect()
		return nil
	}
	return resp
}

// observed records a read. A broker that has been replaced may not know it yet, and then tells of what was true when the
// next one began to take over, at the latest.
func (c *hotClient) observed(o operation) {
	if replaced := c.gen.replaced.Load(); replaced != 0 {
		o.call = min(o.call, replaced)
	}
	c.history.add(o)
}

func (c *hotClient) append() {
	c.sent++
	o := operation{kind: opAppend, value: fmt.Sprintf("%d.%d", c.id, c.sent), unknown: true}
	resp, _ := c.ask(&o, produceRequest(c.name, []byte(o.value))).(*kmsg.ProduceResponse)
	if resp != nil {
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode == 0 {
			o.unknown, o.offset = false, p.BaseOffset
			c.know(p.BaseOffset + 1)
		}
	}
	c.history.add(o)
}

func (c *hotClient) read() {
	o := operation{kind: opRead, offset: c.rng.Int64N(c.known.Load() + 1)}
	resp, _ := c.ask(&o, fetchRequest(c.name, o.offset)).(*kmsg.FetchResponse)
	if resp == nil {
		return
	}
	p := resp.Topics[0].Partitions[0]
	switch err := kerr.ErrorForCode(p.ErrorCode); {
	case err == nil:
	case err == kerr.OffsetOutOfRange: // a broker that was replaced does not know the offset
	default:
		return // it does not say what there is
	}
	if len(p.RecordBatches) > 0 {
		value, err := valueAt(p.RecordBatches, o.offset)
		if err != nil {
			c.r.fault("%s: reading offset %d: %v", c.name, o.offset, err)
			return
		}
		o.value = value
		c.know(o.offset + 1)
	} else if p.ErrorCode == 0 && p.HighWatermark > o.offset {
		return // the record did not come out of the bucket in time
	}
	c.observed(o)
}

func (c *hotClient) end() {
	o := operation{kind: opEnd}
	resp, _ := c.ask(&o, endRequest(c.name)).(*kmsg.ListOffsetsResponse)
	if resp == nil {
		return
	}
	p := resp.Topics[0].Partitions[0]
	switch kerr.ErrorForCode(p.ErrorCode) {
	case nil:
		o.offset = p.Offset
		c.know(o.offset)
		c.observed(o)
	case kerr.UnknownTopicOrPartition:
		c.observed(o) // nothing was appended yet
	}
}

// swapper appends on conditions, one at a time, with the Go client, which tries again by itself until it knows the
// outcome.
type swapper struct {
	*hot
	id     int
	rng    *rand.Rand
	client *client.Client
	sent   int
}

func (s *swapper) run() {
	for s.r.pause(s.rng, hotPause) {
		s.append()
	}
}

func (s *swapper) append() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.sent++
	o := operation{
		client: s.id, kind: opAppend, value: fmt.Sprintf("%d.%d", s.id, s.sent), unknown: true,
		condition: true, demanded: max(0, s.known.Load()+int64(s.rng.IntN(4)/3)-int64(s.rng.IntN(4)/3)),
	}
	zombie := s.r.zombie.Load()
	o.call = s.r.now()
	offset, err := s.client.AppendIf(ctx, client.NextIs(o.demanded), s.name, client.Record{Value: []byte(o.value)})
	o.answer = s.r.now()
	if zombie == 0 {
		zombie = s.r.zombie.Load()
	}
	var conflict *client.ConflictError
	switch {
	case err == nil:
		o.unknown, o.offset = false, offset
		s.know(offset + 1)
	case errors.As(err, &conflict):
		o.unknown, o.kind, o.offset = false, opConflict, conflict.Next
		if s.know(conflict.Next); zombie != 0 { // see hotClient.observed
			o.call = min(o.call, zombie)
		}
	}
	s.history.add(o)
}

// know remembers that the stream has reached an end.
func (h *hot) know(end int64) {
	for {
		known := h.known.Load()
		if known >= end || h.known.CompareAndSwap(known, end) {
			return
		}
	}
}

// check holds the history to what the stream has in the end.
func (h *hot) check(final []*kgo.Record) {
	h.history.mu.Lock()
	defer h.history.mu.Unlock()
	sent := make(map[string]bool)
	for _, o := range h.history.ops {
		if o.kind == opAppend {
			sent[o.value] = true
		}
	}
	var values []string
	for i, rec := range final {
		if value := string(rec.Value); !sent[value] || rec.Offset != int64(i) || slices.Contains(values, value) {
			h.r.fault("%s: offset %d has %q, which nobody sent, or is there twice", h.name, rec.Offset, value)
		}
		values = append(values, string(rec.Value))
	}
	ops := slices.Clone(h.history.ops)
	last := h.r.now()
	ops = append(ops, operation{client: hotClients + 1, kind: opEnd, offset: int64(len(values)), call: last, answer: last})
	if ok, what := linearizable(ops, values); !ok {
		h.r.fault("%s: the history is not linearizable: %s", h.name, what)
	}
	conflicts := 0
	for _, o := range ops {
		if o.kind == opConflict {
			conflicts++
		}
	}
	h.r.t.Logf("%s: %d operations, %d conflicts, %d records", h.name, len(ops), conflicts, len(values))
}

func produceRequest(topic string, value []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, -1, 10_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = harness.Batch(kgo.NoCompression(), harness.Record{Value: value, Timestamp: 1_700_000_000_000})
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func fetchRequest(topic string, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.SessionEpoch = 11, 1<<20, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = offset, 1<<10, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func endRequest(topic string) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 5
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp, p.CurrentLeaderEpoch = -1, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// valueAt returns the value of the record at offset, the first one of uncompressed batches with one record each.
func valueAt(batches []byte, offset int64) (string, error) {
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(batches); err != nil {
		return "", err
	}
	if batch.FirstOffset != offset || batch.NumRecords != 1 {
		return "", fmt.Errorf("the first batch has %d records from %d on", batch.NumRecords, batch.FirstOffset)
	}
	var rec kmsg.Record
	if err := rec.ReadFrom(batch.Records); err != nil {
		return "", err
	}
	return string(rec.Value), nil
}
