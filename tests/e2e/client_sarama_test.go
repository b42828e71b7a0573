package e2e

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/brookletmq/brooklet/tests/harness"
)

// saramaClient is IBM's sarama. The version that it is told decides which requests it sends.
type saramaClient struct {
	addr    string
	sniffer *harness.Sniffer
	version sarama.KafkaVersion
}

func openSarama(addr string, s *harness.Sniffer) client {
	return saramaClient{addr, s, sarama.DefaultVersion}
}

func openSarama011(addr string, s *harness.Sniffer) client {
	return saramaClient{addr, s, sarama.V0_11_0_0}
}

func openSaramaNewest(addr string, s *harness.Sniffer) client {
	return saramaClient{addr, s, sarama.MaxVersion}
}

// saramaDialer is a sniffer with the signature that sarama wants.
type saramaDialer struct{ *harness.Sniffer }

func (d saramaDialer) Dial(network, addr string) (net.Conn, error) {
	return d.Sniffer.Dial(context.Background(), network, addr)
}

func (s saramaClient) config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = s.version
	c.Net.Proxy.Enable, c.Net.Proxy.Dialer = true, saramaDialer{s.sniffer}
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.MaxMessageBytes = 8 << 20
	c.Consumer.Fetch.Default = 4 << 20
	c.Consumer.MaxWaitTime = 50 * time.Millisecond // closing waits for it
	c.Metadata.AllowAutoTopicCreation = false
	return c
}

func (s saramaClient) produce(_ context.Context, topic string, o produceOptions, records []record) error {
	c := s.config()
	c.Producer.Compression = sarama.CompressionCodec(o.codec)
	c.Metadata.AllowAutoTopicCreation = o.autoCreate
	if o.idempotent {
		c.Producer.Idempotent = true
		c.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer([]string{s.addr}, c)
	if err != nil {
		return err
	}
	sent := make([]*sarama.ProducerMessage, len(records))
	for i, r := range records {
		sent[i] = &sarama.ProducerMessage{Topic: topic, Partition: r.partition, Key: saramaBytes(r.key), Value: saramaBytes(r.value), Timestamp: r.time}
		for _, h := range r.headers {
			sent[i].Headers = append(sent[i].Headers, sarama.RecordHeader{Key: []byte(h.key), Value: h.value})
		}
	}
	return errors.Join(producer.SendMessages(sent), producer.Close())
}

func saramaBytes(b []byte) sarama.Encoder {
	if b == nil {
		return nil
	}
	return sarama.ByteEncoder(b)
}

func (s saramaClient) consume(ctx context.Context, topic string, partition int32, from position, n int) (records []record, err error) {
	offset := from.offset
	if !from.at.IsZero() {
		if offset, err = s.offset(ctx, topic, partition, from); err != nil {
			return nil, err
		}
	}
	consumer, err := sarama.NewConsumer([]string{s.addr}, s.config())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	p, err := consumer.ConsumePartition(topic, partition, offset)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for len(records) < n {
		select {
		case m := <-p.Messages():
			r := record{partition: m.Partition, key: m.Key, value: m.Value, time: m.Timestamp, offset: m.Offset}
			for _, h := range m.Headers {
				r.headers = append(r.headers, header{string(h.Key), h.Value})
			}
			records = append(records, r)
		case <-ctx.Done():
			return records, ctx.Err()
		}
	}
	return records, nil
}

func (s saramaClient) offset(_ context.Context, topic string, partition int32, at position) (int64, error) {
	c, err := sarama.NewClient([]string{s.addr}, s.config())
	if err != nil {
		return 0, err
	}
	special := at.offset // sarama's constants are the protocol's
	if !at.at.IsZero() {
		special = at.at.UnixMilli()
	}
	offset, err := c.GetOffset(topic, partition, special)
	return offset, errors.Join(err, c.Close())
}

func (saramaClient) isTooLarge(err error) bool {
	var all sarama.ProducerErrors
	return errors.As(err, &all) && slices.ContainsFunc(all, func(e *sarama.ProducerError) bool { return errors.Is(e, sarama.ErrMessageSizeTooLarge) })
}
