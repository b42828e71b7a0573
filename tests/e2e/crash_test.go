package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

// producerLoad writes the numbers 0, 1, 2, … to each partition of a topic until it is told to stop.
type producerLoad struct {
	topic string
	// acked counts acknowledged records of all partitions.
	acked atomic.Int64
	// ends are the numbers of acknowledged records per partition, valid after stop.
	ends []int64
	stop func() error
}

// startLoad starts an idempotent producer that does not give up. Its acknowledgements must come in order, each with the
// offset that is the record's number.
func startLoad(t *testing.T, b *harness.Broker, topic string, partitions int) *producerLoad {
	t.Helper()
	// Errors of connections go on for as long as the broker is down.
	c := newKgo(t, b.Addr, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic), kgo.MaxBufferedRecords(1000),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MetadataMinAge(50*time.Millisecond), kgo.AllowAutoTopicCreation())
	l := &producerLoad{topic: topic, ends: make([]int64, partitions)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
			cancel()
		default:
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := int64(0); ctx.Err() == nil; i++ {
			for p := range partitions {
				// The promise is called in order, one at a time per partition.
				c.Produce(context.Background(), &kgo.Record{Partition: int32(p), Value: strconv.AppendInt(nil, i, 10)}, func(r *kgo.Record, err error) {
					switch {
					case err != nil:
						fail(fmt.Errorf("record %s of partition %d: %w", r.Value, p, err))
					case r.Offset != l.ends[p]:
						fail(fmt.Errorf("record %s of partition %d is acknowledged at offset %d, want %d", r.Value, p, r.Offset, l.ends[p]))
					}
					l.ends[p]++
					l.acked.Add(1)
				})
			}
		}
	}()
	l.stop = func() error {
		cancel()
		<-done
		flush, end := context.WithTimeout(context.Background(), stepTimeout)
		defer end()
		err := c.Flush(flush)
		c.Close()
		select {
		case first := <-failed:
			return first
		default:
			return err
		}
	}
	return l
}

// await waits for n more acknowledgements.
func (l *producerLoad) await(t *testing.T, n int64) {
	t.Helper()
	target := l.acked.Load() + n
	until(t, "acknowledgements under load", func() bool { return l.acked.Load() >= target })
}

// check reads all partitions and wants exactly what was acknowledged, in order.
func (l *producerLoad) check(t *testing.T, b *harness.Broker) {
	t.Helper()
	if err := l.stop(); err != nil {
		t.Fatalf("producing under load: %v", err)
	}
	for p, end := range l.ends {
		if got := endOffset(t, b, l.topic, int32(p)); got != end {
			t.Errorf("partition %d ends at %d, but %d records were acknowledged", p, got, end)
		}
		for i, r := range consume(t, b, l.topic, int32(p), kgo.NewOffset().AtStart(), int(end)) {
			if string(r.Value) != strconv.Itoa(i) || r.Offset != int64(i) {
				t.Fatalf("partition %d: record %q at offset %d, want %d", p, r.Value, r.Offset, i)
			}
		}
	}
	t.Logf("%d records acknowledged", l.acked.Load())
}

// TestKill kills the broker again and again while records are produced.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, durability string
		// loseDisk removes the data directory each time.
		loseDisk bool
	}{
		{"local durability", "local", false},
		{"remote durability", "remote", false},
		{"remote durability, disk lost", "remote", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := harness.Start(t, harness.Config{Flags: []string{"--durability", test.durability, "--flush-interval", "50ms"}})
			createTopic(t, b, "load", 3)
			load := startLoad(t, b, "load", 3)
			streams := startLoad(t, b, "load/stream", 1)
			const kills = 8
			for range kills {
				load.await(t, 500)
				streams.await(t, 100)
				b.Kill()
				if test.loseDisk {
					if err := os.RemoveAll(b.DataDir); err != nil {
						t.Fatal(err)
					}
				}
				b.Start()
			}
			load.await(t, 500)
			load.check(t, b)
			streams.check(t, b)
			b.Stop()
			b.Start() // and once more in order
			if got := endOffset(t, b, "load", 0); got != load.ends[0] {
				t.Errorf("after a restart the partition ends at %d, want %d", got, load.ends[0])
			}
		})
	}
}

// TestRestartFollowed restarts the broker in order while one client writes and another follows.
func TestRestartFollowed(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{})
	createTopic(t, b, "followed", 1)
	load := startLoad(t, b, "followed", 1)
	f := follower{c: newKgo(t, b.Addr, kgo.MetadataMinAge(50*time.Millisecond), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"followed": {0: kgo.NewOffset().AtStart()}}))}
	for range 3 {
		f.read(t, 300)
		b.Stop()
		b.Start()
	}
	f.read(t, 300)
	load.check(t, b)
}

// follower reads what a producerLoad writes.
type follower struct {
	c    *kgo.Client
	next int64
}

// read reads n records or more, which must continue where the last ended.
func (f *follower) read(t *testing.T, n int) {
	t.Helper()
	records, err := pollRecords(testContext(t), f.c, n)
	if err != nil {
		t.Fatalf("following: %v", err)
	}
	for _, r := range records {
		if r.Offset != f.next || string(r.Value) != strconv.FormatInt(f.next, 10) {
			t.Fatalf("the follower got record %q at offset %d, want %d", r.Value, r.Offset, f.next)
		}
		f.next++
	}
}

// TestDrain stops the broker while produce requests and a fetch wait for their answers.
func TestDrain(t *testing.T) {
	t.Parallel()
	// Requests wait for the bucket, so they are under way when the signal comes.
	b := harness.Start(t, harness.Config{Flags: []string{"--durability", "remote", "--flush-interval", "2s"}})
	createTopic(t, b, "drain", 2)

	produce := produceRequest(9, "drain", 0, oneRecord())
	c := harness.Dial(t, b.Addr)
	for range 5 {
		c.Send(produce)
	}
	fetch := fetchRequest(11, "drain", 1, 0)
	fetch.MaxWaitMillis = 60_000
	waiting := harness.Dial(t, b.Addr)
	waiting.Send(fetch)
	until(t, "the requests have been read", func() bool {
		return b.Metric(`brooklet_kafkaproto_requests_total{api="Produce"}`) == 5 && b.Metric(`brooklet_kafkaproto_requests_total{api="Fetch"}`) == 1
	})

	b.Signal(syscall.SIGTERM)
	for i := range 5 {
		resp := harness.Await[*kmsg.ProduceResponse](c, produce, int32(i+1))
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != int64(i) {
			t.Errorf("produce %d: error %d, offset %d", i, p.ErrorCode, p.BaseOffset)
		}
	}
	harness.Await[*kmsg.FetchResponse](waiting, fetch, 1)
	mustClose(t, c, stepTimeout)
	mustClose(t, waiting, stepTimeout)
	if code := b.WaitExit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	b.Start()
	if got := endOffset(t, b, "drain", 0); got != 5 {
		t.Errorf("after the restart the partition ends at %d, want 5", got)
	}
}

// TestIdempotentRetryAfterKill sends a batch again after the broker that acknowledged it was killed.
func TestIdempotentRetryAfterKill(t *testing.T) {
	t.Parallel()
	for _, durability := range []string{"local", "remote"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			b := harness.Start(t, harness.Config{Flags: []string{"--durability", durability, "--flush-interval", "50ms"}})
			createTopic(t, b, "retry", 1)
			id := harness.Do[*kmsg.InitProducerIDResponse](harness.Dial(t, b.Addr), (&subject{name: "retry"}).request(int16(kmsg.InitProducerID), 4)).ProducerID
			batches := make([][]byte, 3)
			for i := range batches {
				batches[i] = harness.Idempotent(oneRecord(), id, 0, int32(i))
			}
			c := harness.Dial(t, b.Addr)
			for i, batch := range batches {
				if got := produceBatch(t, c, "retry", 0, slices.Clone(batch)); got != int64(i) {
					t.Fatalf("batch %d is at offset %d", i, got)
				}
			}
			b.Kill()
			b.Start()
			c = harness.Dial(t, b.Addr)
			for i, batch := range batches {
				if got := produceBatch(t, c, "retry", 0, slices.Clone(batch)); got != int64(i) {
					t.Errorf("batch %d, sent again, is at offset %d", i, got)
				}
			}
			if got := endOffset(t, b, "retry", 0); got != int64(len(batches)) {
				t.Errorf("the partition ends at %d, want %d", got, len(batches))
			}
			if next := harness.Do[*kmsg.InitProducerIDResponse](c, (&subject{name: "retry"}).request(int16(kmsg.InitProducerID), 4)).ProducerID; next <= id {
				t.Errorf("producer id %d after %d: ids must not be given twice", next, id)
			}
		})
	}
}
