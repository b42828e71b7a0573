package e2e

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/brookletmq/brooklet/tests/harness"
)

// kafkaGo is segmentio's kafka-go. Its writer and its reader are different stacks; the reader sends the older requests.
type kafkaGo struct {
	addr    string
	sniffer *harness.Sniffer
}

func openKafkaGo(addr string, s *harness.Sniffer) client { return kafkaGo{addr, s} }

// transport returns one that knows topic. By default it learns topics from the list of all, where named streams are not,
// and its writer would wait for ever to see a stream there.
func (k kafkaGo) transport(topic string) *kafka.Transport {
	return &kafka.Transport{Dial: k.sniffer.Dial, MetadataTopics: []string{topic}}
}

func (k kafkaGo) produce(ctx context.Context, topic string, o produceOptions, records []record) error {
	transport := k.transport(topic)
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP(k.addr), Topic: topic, Transport: transport,
		RequiredAcks: kafka.RequireAll, Compression: kafka.Compression(o.codec), AllowAutoTopicCreation: o.autoCreate,
		BatchSize: len(records), BatchBytes: 8 << 20, BatchTimeout: time.Millisecond,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return int(m.WriterData.(int32)) }),
	}
	sent := make([]kafka.Message, len(records))
	for i, r := range records {
		sent[i] = kafka.Message{WriterData: r.partition, Key: r.key, Value: r.value, Time: r.time}
		for _, h := range r.headers {
			sent[i].Headers = append(sent[i].Headers, kafka.Header{Key: h.key, Value: h.value})
		}
	}
	return errors.Join(w.WriteMessages(ctx, sent...), w.Close())
}

func (k kafkaGo) consume(ctx context.Context, topic string, partition int32, from position, n int) (records []record, err error) {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{k.addr}, Topic: topic, Partition: int(partition), MaxBytes: 8 << 20, MaxWait: 100 * time.Millisecond,
		Dialer: &kafka.Dialer{DialFunc: k.sniffer.Dial},
	})
	defer func() { err = errors.Join(err, r.Close()) }()
	if from.at.IsZero() {
		err = r.SetOffset(from.offset) // the library's constants are the protocol's
	} else {
		err = r.SetOffsetAt(ctx, from.at)
	}
	if err != nil {
		return nil, err
	}
	for len(records) < n {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return records, err
		}
		got := record{partition: int32(m.Partition), key: m.Key, value: m.Value, time: m.Time, offset: m.Offset}
		for _, h := range m.Headers {
			got.headers = append(got.headers, header{h.Key, h.Value})
		}
		records = append(records, got)
	}
	return records, nil
}

func (k kafkaGo) offset(ctx context.Context, topic string, partition int32, at position) (int64, error) {
	transport := k.transport(topic)
	defer transport.CloseIdleConnections()
	c := kafka.Client{Addr: kafka.TCP(k.addr), Transport: transport}
	request := kafka.OffsetRequest{Partition: int(partition), Timestamp: at.offset}
	if !at.at.IsZero() {
		request = kafka.TimeOffsetOf(int(partition), at.at)
	}
	resp, err := c.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {request}}})
	if err != nil {
		return 0, err
	}
	p := resp.Topics[topic][0]
	switch {
	case p.Error != nil:
		return 0, p.Error
	case at == earliest:
		return p.FirstOffset, nil
	case at == latest:
		return p.LastOffset, nil
	}
	for offset := range p.Offsets {
		return offset, nil
	}
	return 0, errors.New("no offset for that time")
}

func (kafkaGo) isTooLarge(err error) bool {
	var all kafka.WriteErrors
	if errors.As(err, &all) {
		return slices.ContainsFunc(all, func(err error) bool { return errors.Is(err, kafka.MessageSizeTooLarge) })
	}
	return errors.Is(err, kafka.MessageSizeTooLarge)
}
