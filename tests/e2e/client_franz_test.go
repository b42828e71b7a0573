package e2e

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/brookletmq/brooklet/tests/harness"
)

// franz is franz-go.
type franz struct{ opts []kgo.Opt }

func openFranz(addr string, s *harness.Sniffer) client {
	return franz{[]kgo.Opt{kgo.SeedBrokers(addr), kgo.Dialer(s.Dial)}}
}

func openFranz011(addr string, s *harness.Sniffer) client {
	return franz{[]kgo.Opt{kgo.SeedBrokers(addr), kgo.Dialer(s.Dial), kgo.MaxVersions(kversion.V0_11_0())}}
}

var franzCodecs = []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}

func (f franz) with(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, f.opts...)...)
}

func (f franz) produce(ctx context.Context, topic string, o produceOptions, records []record) error {
	opts := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(franzCodecs[o.codec]), kgo.ProducerBatchMaxBytes(8 << 20)}
	if !o.idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	if o.autoCreate {
		opts = append(opts, kgo.AllowAutoTopicCreation())
	}
	c, err := f.with(opts...)
	if err != nil {
		return err
	}
	defer c.Close()
	sent := make([]*kgo.Record, len(records))
	for i, r := range records {
		sent[i] = &kgo.Record{Topic: topic, Partition: r.partition, Key: r.key, Value: r.value, Timestamp: r.time}
		for _, h := range r.headers {
			sent[i].Headers = append(sent[i].Headers, kgo.RecordHeader{Key: h.key, Value: h.value})
		}
	}
	return c.ProduceSync(ctx, sent...).FirstErr()
}

func (f franz) consume(ctx context.Context, topic string, partition int32, from position, n int) ([]record, error) {
	offset := kgo.NewOffset().At(from.offset)
	if !from.at.IsZero() {
		offset = kgo.NewOffset().AfterMilli(from.at.UnixMilli())
	}
	c, err := f.with(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: offset}}))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	got, err := pollRecords(ctx, c, n)
	if err != nil {
		return nil, err
	}
	records := make([]record, n)
	for i, r := range got[:n] {
		records[i] = record{partition: r.Partition, key: r.Key, value: r.Value, time: r.Timestamp, offset: r.Offset}
		for _, h := range r.Headers {
			records[i].headers = append(records[i].headers, header{h.Key, h.Value})
		}
	}
	return records, nil
}

func (f franz) offset(ctx context.Context, topic string, partition int32, at position) (int64, error) {
	c, err := f.with()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	var listed kadm.ListedOffsets
	switch {
	case !at.at.IsZero():
		listed, err = admin.ListOffsetsAfterMilli(ctx, at.at.UnixMilli(), topic)
	case at == earliest:
		listed, err = admin.ListStartOffsets(ctx, topic)
	default:
		listed, err = admin.ListEndOffsets(ctx, topic)
	}
	found, _ := listed.Lookup(topic, partition)
	return found.Offset, errors.Join(err, found.Err)
}

func (f franz) isTooLarge(err error) bool { return errors.Is(err, kerr.MessageTooLarge) }
