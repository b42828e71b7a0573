package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// The raw client sends requests that were encoded beforehand, so that its own work
// is small beside the broker's.

func randomBytes(n int) []byte {
	b := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(b)
	return b
}

// makeBatch encodes a RecordBatch v2 of about size bytes with records of 1 KiB.
func makeBatch(size int) []byte {
	const valueBytes = 1000 // 1 KiB with the record's own header, roughly
	value := randomBytes(valueBytes)
	records, n := []byte(nil), int32(0)
	for len(records) < size-1100 || n == 0 {
		records = appendRecord(records, n, value)
		n++
	}
	return encodeBatch(records, n)
}

// makeRecordBatch encodes a RecordBatch v2 of one record with a value of size bytes, which are the last ones but one of
// the batch.
func makeRecordBatch(size int) []byte { return encodeBatch(appendRecord(nil, 0, randomBytes(size)), 1) }

func appendRecord(records []byte, delta int32, value []byte) []byte {
	record := kmsg.NewRecord()
	record.OffsetDelta, record.Value = delta, value
	// Length counts what follows it, and takes one to three bytes itself.
	body := record.AppendTo(nil)
	record.Length = int32(len(body) - 1)
	body = record.AppendTo(nil)
	_, n := binary.Varint(body)
	record.Length = int32(len(body) - n)
	return record.AppendTo(records)
}

func encodeBatch(records []byte, n int32) []byte {
	batch := kmsg.NewRecordBatch()
	batch.PartitionLeaderEpoch, batch.Magic = -1, 2
	batch.FirstTimestamp = time.Now().UnixMilli()
	batch.MaxTimestamp = batch.FirstTimestamp
	batch.ProducerID, batch.ProducerEpoch, batch.FirstSequence = -1, -1, -1
	batch.Records, batch.NumRecords, batch.LastOffsetDelta = records, n, n-1
	b := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	sealBatch(b)
	return b
}

// sealBatch writes the checksum.
func sealBatch(b []byte) { binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame encodes a request with correlation id 0.
func frame(req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, 0)
}

const produceVersion = 11

func produceFrame(topic string, partition int32, batch []byte) []byte {
	req := newProduceRequest()
	addToProduce(req, topic, partition, batch)
	return frame(req)
}

func newProduceRequest() *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = produceVersion, -1, 30000
	return req
}

func addToProduce(req *kmsg.ProduceRequest, topic string, partition int32, batch []byte) {
	t, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	t.Topic, p.Partition, p.Records = topic, partition, batch
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
}

// conn is one connection of the raw client.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(addr string) (*conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReaderSize(c, 1<<20)}, nil
}

// readReply reads one reply into buf, grown if need be, without its size.
func (c *conn) readReply(buf []byte) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.r, size[:]); err != nil {
		return buf, err
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	_, err := io.ReadFull(c.r, buf[:n])
	return buf[:n], err
}

// produceLoad keeps inflight produce requests on their way on each of several
// connections, round robin over the partitions, until the time is over or limit bytes
// are acknowledged.
type produceLoad struct {
	addr        string
	topic       string
	partitions  int
	batch       []byte
	connections int
	inflight    int
	limit       int64
}

func (l produceLoad) run(ctx context.Context, d time.Duration) (bytes int64, took time.Duration, err error) {
	frames := make([][]byte, l.partitions)
	for p := range frames {
		frames[p] = produceFrame(l.topic, int32(p), l.batch)
	}
	var total atomic.Int64
	failures := make(chan error, l.connections)
	started := time.Now()
	end := started.Add(d)
	for i := range l.connections {
		go func() { failures <- l.connection(ctx, frames, i, end, &total) }()
	}
	for range l.connections {
		err = errors.Join(err, <-failures)
	}
	return total.Load(), time.Since(started), err
}

func (l produceLoad) connection(ctx context.Context, frames [][]byte, first int, end time.Time, total *atomic.Int64) error {
	c, err := dial(l.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	var reply []byte
	next, waiting := first, 0
	for sending := true; sending || waiting > 0; {
		sending = sending && time.Now().Before(end) && total.Load() < l.limit && ctx.Err() == nil
		if sending && waiting < l.inflight {
			if _, err := c.Write(frames[next%len(frames)]); err != nil {
				return err
			}
			next += l.connections
			waiting++
			continue
		}
		if waiting == 0 {
			break
		}
		if reply, err = c.readReply(reply); err != nil {
			return err
		}
		waiting--
		if err := checkProduceReply(reply); err != nil {
			return err
		}
		total.Add(int64(len(l.batch)))
	}
	return nil
}

func checkProduceReply(reply []byte) error {
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = produceVersion
	if err := resp.ReadFrom(reply[5:]); err != nil { // correlation id, no tags
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("produce to %s/%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return nil
}

const fetchVersion = 12

// consume reads partition p of topic from offset from up to offset to with one
// request at a time and returns the bytes of record batches.
func consume(ctx context.Context, addr, topic string, p int32, from, to int64, maxBytes int32) (bytes int64, err error) {
	c, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var reply []byte
	for from < to {
		if _, err := c.Write(fetchFrame(topic, p, from, maxBytes)); err != nil {
			return bytes, err
		}
		if reply, err = c.readReply(reply); err != nil {
			return bytes, err
		}
		records, err := fetchedRecords(reply)
		if err != nil {
			return bytes, err
		}
		next, err := nextOffset(records, from)
		if err != nil {
			return bytes, err
		}
		bytes += int64(len(records))
		from = next
	}
	return bytes, nil
}

func fetchFrame(topic string, p int32, offset int64, maxBytes int32) []byte {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = fetchVersion, 500, 1, maxBytes
	req.SessionEpoch = -1
	t, part := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic = topic
	part.Partition, part.FetchOffset, part.PartitionMaxBytes = p, offset, maxBytes
	t.Partitions = append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	return frame(req)
}

func fetchedRecords(reply []byte) ([]byte, error) {
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = fetchVersion
	if err := resp.ReadFrom(reply[5:]); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("fetch: %d topics in the reply, error %v", len(resp.Topics), kerr.ErrorForCode(resp.ErrorCode))
	}
	part := resp.Topics[0].Partitions[0]
	return part.RecordBatches, kerr.ErrorForCode(part.ErrorCode)
}

// nextOffset is the offset after the last whole batch.
func nextOffset(records []byte, from int64) (int64, error) {
	for len(records) > 0 {
		if len(records) < 61 {
			return 0, errors.New("fetch: a cut batch")
		}
		size := 12 + int(binary.BigEndian.Uint32(records[8:]))
		if size > len(records) {
			return 0, errors.New("fetch: a cut batch")
		}
		from = int64(binary.BigEndian.Uint64(records)) + int64(binary.BigEndian.Uint32(records[23:])) + 1
		records = records[size:]
	}
	return from, nil
}

// createTopic makes a topic that keeps its records.
func createTopic(ctx context.Context, addr, topic string, partitions int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MaxVersions(kversion.Stable()))
	if err != nil {
		return err
	}
	defer client.Close()
	size := fmt.Sprint(16 << 20)
	_, err = kadm.NewClient(client).CreateTopic(ctx, int32(partitions), 1, map[string]*string{"max.message.bytes": &size}, topic)
	return err
}

// endOffset is the high watermark of a partition.
func endOffset(ctx context.Context, addr, topic string, p int32) (int64, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	offsets, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	o, _ := offsets.Lookup(topic, p)
	return o.Offset, o.Err
}
