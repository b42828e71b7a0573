package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// connections and inflight of the raw producers: as many requests on their way as
// sixteen ordinary producers have.
const (
	connections = 16
	inflight    = 4
)

func freshDir(work, name string) (string, error) {
	dir := filepath.Join(work, name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// benchProduce: acks=all with local durability, against Pebble alone.
func benchProduce(ctx context.Context, work string) error {
	fmt.Printf("\nproduce, records of 1 KiB, acks=all, local durability, %d connections with %d requests in flight\n", connections, inflight)
	fmt.Printf("%-12s %-10s %10s %10s %8s %10s\n", "batch", "partitions", "MB/s", "Pebble", "ratio", "CPU s/GB")
	for _, size := range []int{16 << 10, 1 << 20} {
		for _, partitions := range []int{1, 16, 256} {
			reference, err := pebbleReference(ctx, work, size)
			if err != nil {
				return err
			}
			if err := produceOnce(ctx, work, size, partitions, reference); err != nil {
				return err
			}
		}
	}
	return benchOrdinaryProducer(ctx, work)
}

func pebbleReference(ctx context.Context, work string, size int) (float64, error) {
	dir, err := freshDir(work, "reference")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	return pebbleAlone(ctx, dir, size, connections*inflight, *duration/2)
}

// withServer runs a broker on a new folder with the topic "bench", hands it to use, and
// stops it.
func withServer(ctx context.Context, work, name string, partitions int, use func(s *server, dir string) error) error {
	dir, err := freshDir(work, name)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	if err = createTopic(ctx, s.addr, "bench", partitions); err == nil {
		err = use(s, dir)
	}
	return errors.Join(err, s.stop())
}

// cpuPerGB calls work, which returns bytes, and tells what the broker used for a GB.
func (s *server) cpuPerGB(work func() (bytes int64, err error)) (seconds float64, err error) {
	before, err := s.cpu()
	if err != nil {
		return 0, err
	}
	bytes, err := work()
	if err != nil {
		return 0, err
	}
	after, err := s.cpu()
	return (after - before).Seconds() / (float64(bytes) / 1e9), err
}

func produceOnce(ctx context.Context, work string, size, partitions int, reference float64) error {
	return withServer(ctx, work, "produce", partitions, func(s *server, _ string) error {
		load := produceLoad{s.addr, "bench", partitions, makeBatch(size), connections, inflight, math.MaxInt64}
		var r float64
		cpu, err := s.cpuPerGB(func() (int64, error) {
			bytes, took, err := load.run(ctx, *duration)
			r = rate(bytes, took)
			return bytes, err
		})
		if err != nil {
			return err
		}
		fmt.Printf("%-12s %-10d %10.0f %10.0f %8.2f %10.2f\n", kib(size), partitions, r, reference, r/reference, cpu)
		return nil
	})
}

func kib(n int) string { return fmt.Sprintf("%d KiB", n>>10) }

// benchOrdinaryProducer shows what an unchanged franz-go producer reaches.
func benchOrdinaryProducer(ctx context.Context, work string) error {
	for _, partitions := range []int{1, 16} {
		err := withServer(ctx, work, "ordinary", partitions, func(s *server, _ string) error {
			var r float64
			cpu, err := s.cpuPerGB(func() (int64, error) {
				bytes, took, err := ordinaryProducer(ctx, s.addr)
				r = rate(bytes, took)
				return bytes, err
			})
			if err != nil {
				return err
			}
			fmt.Printf("%-12s %-10d %10.0f %10s %8s %10.2f\n", "franz-go", partitions, r, "", "", cpu)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func ordinaryProducer(ctx context.Context, addr string) (bytes int64, took time.Duration, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("bench"), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return 0, 0, err
	}
	defer client.Close()
	value := randomBytes(1000)
	var acked atomic.Int64
	var failure atomic.Pointer[error]
	started := time.Now()
	for end := started.Add(*duration); time.Now().Before(end) && ctx.Err() == nil && failure.Load() == nil; {
		client.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failure.Store(&err)
				return
			}
			acked.Add(int64(len(value)))
		})
	}
	if err := client.Flush(ctx); err != nil {
		return 0, 0, err
	}
	if err := failure.Load(); err != nil {
		return 0, 0, *err
	}
	return acked.Load(), time.Since(started), nil
}

const (
	consumePartitions = 16
	consumeBytes      = 192 << 20 // fits the tail cache and the segment cache
	fetchBytes        = 1 << 20
)

// benchConsume reads the same records from the tail cache, from the bucket and from
// the segment cache, against the rate at which they were produced.
func benchConsume(ctx context.Context, work string) error {
	dir, err := freshDir(work, "consume")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	if err := createTopic(ctx, s.addr, "bench", consumePartitions); err != nil {
		return errors.Join(err, s.stop())
	}
	produced, err := produceAmount(ctx, s.addr, consumeBytes)
	if err != nil {
		return errors.Join(err, s.stop())
	}
	fmt.Printf("\nconsume %d MiB in %d partitions, fetches of %s, one connection a partition\n", consumeBytes>>20, consumePartitions, kib(fetchBytes))
	fmt.Printf("%-16s %10s %14s %10s\n", "from", "MB/s", "over produce", "CPU s/GB")
	fmt.Printf("%-16s %10.0f\n", "(produce)", produced)
	if err := consumeAll(ctx, s, "tail", produced); err != nil {
		return errors.Join(err, s.stop())
	}
	if err := s.stop(); err != nil {
		return err
	}
	if s, err = startServer(ctx, dir); err != nil {
		return err
	}
	for _, from := range []string{"bucket", "segment cache"} {
		if err := consumeAll(ctx, s, from, produced); err != nil {
			return errors.Join(err, s.stop())
		}
	}
	return s.stop()
}

// produceAmount produces about total bytes and returns the rate in MB/s.
func produceAmount(ctx context.Context, addr string, total int64) (float64, error) {
	load := produceLoad{addr, "bench", consumePartitions, makeBatch(16 << 10), connections, inflight, total}
	bytes, took, err := load.run(ctx, time.Hour)
	return rate(bytes, took), err
}

func consumeAll(ctx context.Context, s *server, from string, produced float64) error {
	ends := make([]int64, consumePartitions)
	for p := range ends {
		end, err := endOffset(ctx, s.addr, "bench", int32(p))
		if err != nil {
			return err
		}
		ends[p] = end
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	var bytes atomic.Int64
	var wg sync.WaitGroup
	failures := make([]error, consumePartitions)
	started := time.Now()
	for p, end := range ends {
		wg.Add(1)
		go func() {
			defer wg.Done()
			n, err := consume(ctx, s.addr, "bench", int32(p), 0, end, fetchBytes)
			bytes.Add(n)
			failures[p] = err
		}()
	}
	wg.Wait()
	took := time.Since(started)
	if err := errors.Join(failures...); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	r := rate(bytes.Load(), took)
	fmt.Printf("%-16s %10.0f %14.1f %10.2f\n", from, r, r/produced, (after-before).Seconds()/(float64(bytes.Load())/1e9))
	return nil
}

// benchLatency: from the call to produce until the consumer has the record.
func benchLatency(ctx context.Context, work string) error {
	const perSecond = 2000
	return withServer(ctx, work, "latency", 16, func(s *server, dir string) error {
		measuring, stopSyncs := context.WithCancel(ctx)
		defer stopSyncs()
		syncsDone := make(chan syncResult, 1)
		go func() { syncsDone <- syncLatency(measuring, dir) }()
		latencies, err := measureLatency(ctx, s.addr, perSecond, *duration)
		stopSyncs()
		syncs := <-syncsDone
		if err := errors.Join(err, syncs.err); err != nil {
			return err
		}
		fmt.Printf("\nlatency from produce to consume, %d records/s of 1 KiB, franz-go on both sides, local durability\n", perSecond)
		fmt.Printf("%-28s %10s %10s %10s %10s\n", "", "p50", "p99", "p99.9", "max")
		printPercentiles("produce to consume", latencies)
		printPercentiles("reference: write and fsync", syncs.list)
		return nil
	})
}

func printPercentiles(name string, list []time.Duration) {
	p := percentiles(list, 0.5, 0.99, 0.999, 1)
	for i := range p {
		p[i] = p[i].Round(10 * time.Microsecond)
	}
	fmt.Printf("%-28s %10v %10v %10v %10v\n", name, p[0], p[1], p[2], p[3])
}

// percentiles sorts list and returns what these parts of it do not exceed; zeros if it is empty.
func percentiles(list []time.Duration, parts ...float64) []time.Duration {
	slices.Sort(list)
	p := make([]time.Duration, len(parts))
	for i, part := range parts {
		if len(list) > 0 {
			p[i] = list[min(int(part*float64(len(list))), len(list)-1)]
		}
	}
	return p
}

func measureLatency(ctx context.Context, addr string, perSecond int, d time.Duration) ([]time.Duration, error) {
	total := int(d.Seconds() * float64(perSecond))
	consumer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics("bench"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	producer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("bench"), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	started := time.Now()
	go func() {
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for range total {
			<-ticker.C
			value := randomBytes(1000)
			binary.BigEndian.PutUint64(value, uint64(time.Since(started)))
			producer.Produce(ctx, &kgo.Record{Value: value}, nil)
		}
	}()
	latencies := make([]time.Duration, 0, total)
	for len(latencies) < total {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		now := time.Since(started)
		fetches.EachRecord(func(r *kgo.Record) {
			latencies = append(latencies, now-time.Duration(binary.BigEndian.Uint64(r.Value)))
		})
	}
	return latencies[min(perSecond, total/2):], nil // without the first second: connections are being made
}

type syncResult struct {
	list []time.Duration
	err  error
}

// syncLatency is what the disk takes for 1 KiB, measured beside the broker until ctx
// ends: on a shared machine the disk has its moments too.
func syncLatency(ctx context.Context, dir string) (r syncResult) {
	file, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return syncResult{err: err}
	}
	defer file.Close()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	value := randomBytes(1024)
	for {
		select {
		case <-ctx.Done():
			return r
		case <-ticker.C:
		}
		started := time.Now()
		_, err1 := file.Write(value)
		err2 := file.Sync()
		if r.err = errors.Join(err1, err2); r.err != nil {
			return r
		}
		r.list = append(r.list, time.Since(started))
	}
}

// idleRecords is how many records the streams of benchIdle hold together.
const idleRecords = 100_000

// benchIdle: what streams cost that nobody touches. Both brokers have taken the same
// number of records, so that the database's caches and logs are the same and only the
// number of streams differs.
func benchIdle(ctx context.Context, work string) error {
	fmt.Printf("\nidle streams: %d records of 1 KiB spread over them, then a restart\n", idleRecords)
	fmt.Printf("%-10s %12s %14s %12s %20s\n", "streams", "heap MB", "start-up", "appends/s", "written/appended")
	for _, n := range []int{10, 100_000} {
		dir, err := freshDir(work, "idle")
		if err != nil {
			return err
		}
		if err := idleOnce(ctx, dir, n); err != nil {
			return err
		}
		os.RemoveAll(dir)
	}
	return nil
}

func idleOnce(ctx context.Context, dir string, streams int) error {
	s, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	before, err := s.written()
	if err != nil {
		return errors.Join(err, s.stop())
	}
	started := time.Now()
	bytes, err := touchStreams(ctx, s.addr, streams, idleRecords)
	if err != nil {
		return errors.Join(err, s.stop())
	}
	perSecond := float64(idleRecords) / time.Since(started).Seconds()
	after, err := s.written()
	if err != nil {
		return errors.Join(err, s.stop())
	}
	if err := s.stop(); err != nil {
		return err
	}
	started = time.Now()
	if s, err = startServer(ctx, dir); err != nil {
		return err
	}
	startUp := time.Since(started)
	heap, err := s.liveHeap()
	if err != nil {
		return errors.Join(err, s.stop())
	}
	fmt.Printf("%-10d %12.1f %14v %12.0f %20.2f\n", streams, float64(heap)/mb,
		startUp.Round(time.Millisecond), perSecond, float64(after-before)/float64(bytes))
	return s.stop()
}

// touchStreams writes batches of one record round robin to streams and returns their
// bytes.
func touchStreams(ctx context.Context, addr string, streams, n int) (bytes int64, err error) {
	batch := makeBatch(1024)
	failures := make(chan error, connections)
	for i := range connections {
		go func() {
			failures <- func() error {
				c, err := dial(addr)
				if err != nil {
					return err
				}
				defer c.Close()
				var reply []byte
				waiting := 0
				for k := i; k < n || waiting > 0; {
					if k < n && waiting < 64 {
						if _, err := c.Write(produceFrame(fmt.Sprintf("idle/%d", k%streams), 0, batch)); err != nil {
							return err
						}
						k += connections
						waiting++
						continue
					}
					if reply, err = c.readReply(reply); err != nil {
						return err
					}
					if err := checkProduceReply(reply); err != nil {
						return err
					}
					waiting--
				}
				return ctx.Err()
			}()
		}()
	}
	for range connections {
		err = errors.Join(err, <-failures)
	}
	return int64(n * len(batch)), err
}
