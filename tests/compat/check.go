package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// prepare makes the topics that a duty expects.
func prepare(ctx context.Context, addr, name, topic string) error {
	if name != "group" {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(ctx, duty.Partitions, 1, nil, topic)
	return err
}

// written says what a duty has left in its topic; others are not checked.
var written = map[string]struct {
	records int
	codec   uint8 // as in the attributes of a batch
}{
	"roundtrip": {300, 0}, "gzip": {300, 1}, "snappy": {300, 2}, "lz4": {300, 3}, "zstd": {300, 4},
	"idempotent": {300, 0}, "stream": {300, 0},
}

// check reads what a client has written with another client, so that a client that misreads its own mistakes is found
// out, and looks whether it has compressed what it should.
func check(ctx context.Context, addr, name, topic string, lacks duty.Lacks) error {
	want, ok := written[name]
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {0: kgo.NewOffset().AtStart()},
	}))
	if err != nil {
		return err
	}
	defer client.Close()
	var records []duty.Record
	compressed := 0
	for len(records) < want.records {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("reading it back with franz-go: %w; got %d records", err, len(records))
		}
		for r := range fetches.RecordsAll() {
			// A client may leave a small batch uncompressed if compression does not make it smaller.
			switch codec := r.Attrs.CompressionType(); codec {
			case want.codec:
				compressed++
			case 0:
			default:
				return fmt.Errorf("record %d was sent with codec %d, want %d", r.Offset, codec, want.codec)
			}
			if idempotent := r.ProducerID >= 0; name == "idempotent" && !idempotent {
				return fmt.Errorf("record %d was sent without a producer id", r.Offset)
			}
			records = append(records, convert(r))
		}
	}
	if compressed < want.records/2 {
		return fmt.Errorf("%d of %d records were sent with codec %d", compressed, want.records, want.codec)
	}
	if err := duty.Compare(records, duty.Records(0, want.records), lacks); err != nil {
		return fmt.Errorf("reading it back with franz-go: %w", err)
	}
	return nil
}

func convert(r *kgo.Record) duty.Record {
	d := duty.Record{Partition: r.Partition, Key: r.Key, Value: r.Value, Time: r.Timestamp}
	for _, h := range r.Headers {
		d.Headers = append(d.Headers, duty.Header(h))
	}
	return d
}
