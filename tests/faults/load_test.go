package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The topics of a round. The one with a slash is a stream.
const (
	exactTopic   = "exact"
	looseTopic   = "loose"
	trimmedTopic = "trimmed"
	exactStream  = "exact/stream"
)

// partitions of the topics. Streams have one.
var partitions = map[string]int{exactTopic: 3, looseTopic: 2, trimmedTopic: 1, exactStream: 1}

// valueOf is record n of a partition. Its number can be read off it, and every byte follows from the number.
func valueOf(topic string, partition int32, n int) []byte {
	value := fmt.Appendf(nil, "%d %s %d ", n, topic, partition)
	return append(value, bytes.Repeat([]byte{'a' + byte(n%26)}, n*7919%900)...)
}

// numberOf is the reverse of valueOf.
func numberOf(topic string, partition int32, value []byte) (int, error) {
	text, _, _ := bytes.Cut(value, []byte(" "))
	n, err := strconv.Atoi(string(text))
	if err != nil || !bytes.Equal(value, valueOf(topic, partition, n)) {
		return 0, fmt.Errorf("%s/%d has a record %.60q that nobody sent", topic, partition, value)
	}
	return n, nil
}

// patient are options of clients that find a broker soon after it is there again, and go on for as long as it takes.
func patient(addr string, opts ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.MetadataMinAge(50 * time.Millisecond), kgo.RequestRetries(1 << 20), kgo.RetryTimeout(time.Hour),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DialTimeout(5 * time.Second),
		kgo.AlwaysRetryEOF(), // the front closes connections when there is no broker
	}, opts...)
}

func (r *round) client(opts ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(patient(r.front.addr(), opts...)...)
	if err != nil {
		panic(err) // the options are right
	}
	r.t.Cleanup(client.Close)
	return client
}

// writer sends records 0, 1, 2, … to each partition of a topic.
type writer struct {
	r      *round
	topic  string
	client *kgo.Client
	// exact writers are alone in their topic and idempotent: record n must be acknowledged at offset n.
	exact bool

	mu   sync.Mutex
	sent []int     // records handed to the client, per partition
	ends [][]int64 // per partition the offset at which record n was acknowledged, -1 for not (yet)
	acks int
	last []int64 // per partition the last acknowledged offset
}

func (r *round) startWriter(topic string, exact bool, opts ...kgo.Opt) *writer {
	n := partitions[topic]
	w := &writer{r: r, topic: topic, exact: exact, sent: make([]int, n), ends: make([][]int64, n), last: make([]int64, n)}
	for p := range w.last {
		w.last[p] = -1
	}
	w.client = r.client(append(opts, kgo.DefaultProduceTopic(topic), kgo.MaxBufferedRecords(40), kgo.ProducerLinger(time.Millisecond))...)
	r.load.Go(func() {
		for r.loading.Err() == nil {
			for p := range n {
				w.send(int32(p))
			}
		}
		flushing, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.client.Flush(flushing); err != nil {
			r.fault("%s: what was sent is not acknowledged after %v: %v", topic, patience, err)
		}
	})
	return w
}

func (w *writer) send(p int32) {
	w.mu.Lock()
	n := w.sent[p]
	w.sent[p]++
	w.ends[p] = append(w.ends[p], -1)
	w.mu.Unlock()
	w.client.Produce(context.Background(), &kgo.Record{Partition: p, Value: valueOf(w.topic, p, n)}, func(rec *kgo.Record, err error) { w.acknowledge(p, n, rec, err) })
}

func (w *writer) acknowledge(p int32, n int, rec *kgo.Record, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && w.exact:
		w.r.fault("%s/%d: record %d failed: %v", w.topic, p, n, err)
	case err != nil: // it may be there or not
	case w.exact && rec.Offset != int64(n):
		w.r.fault("%s/%d: record %d was acknowledged at offset %d", w.topic, p, n, rec.Offset)
	case rec.Offset <= w.last[p]:
		w.r.fault("%s/%d: record %d was acknowledged at offset %d, after one at %d", w.topic, p, n, rec.Offset, w.last[p])
	default:
		w.ends[p][n], w.last[p] = rec.Offset, rec.Offset
		w.acks++
		w.r.progress.broadcast()
	}
}

func (w *writer) acknowledged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acks
}

// trimmer moves the start of a topic forward all the time.
type trimmer struct {
	least, most int64 // the start lies between what was acknowledged and what was asked for
}

func (r *round) startTrimmer(w *writer) *trimmer {
	tr := &trimmer{}
	admin := kadm.NewClient(r.client(kgo.RequestRetries(0)))
	rng := r.fork()
	r.load.Go(func() {
		for r.pause(rng, 150*time.Millisecond) {
			w.mu.Lock()
			end := w.last[0] + 1
			w.mu.Unlock()
			if end <= tr.most {
				continue
			}
			to := tr.most + 1 + rng.Int64N(end-tr.most)
			tr.most = to
			var offsets kadm.Offsets
			offsets.Add(kadm.Offset{Topic: trimmedTopic, Partition: 0, At: to})
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			answers, err := admin.DeleteRecords(ctx, offsets)
			cancel()
			if answer, ok := answers.Lookup(trimmedTopic, 0); err == nil && ok && answer.Err == nil {
				if answer.LowWatermark < to {
					r.fault("%s: trimmed to %d, and the broker says %d", trimmedTopic, to, answer.LowWatermark)
				}
				tr.least = to
			}
		}
	})
	return tr
}

// journal is what consumers have seen, and holds each to what the others saw.
type journal struct {
	mu   sync.Mutex
	seen map[string]map[int64]uint64 // topic and partition -> offset -> hash of the value
}

func partitionName(topic string, p int32) string { return fmt.Sprintf("%s/%d", topic, p) }

// note checks a record and remembers it. It returns the record's number.
func (j *journal) note(rec *kgo.Record) (int, error) {
	n, err := numberOf(rec.Topic, rec.Partition, rec.Value)
	if err != nil {
		return 0, err
	}
	h := fnv.New64a()
	h.Write(rec.Value)
	j.mu.Lock()
	defer j.mu.Unlock()
	name := partitionName(rec.Topic, rec.Partition)
	if j.seen[name] == nil {
		j.seen[name] = make(map[int64]uint64)
	}
	if before, ok := j.seen[name][rec.Offset]; ok && before != h.Sum64() {
		return 0, fmt.Errorf("%s: offset %d has record %d, another consumer saw another one there", name, rec.Offset, n)
	}
	j.seen[name][rec.Offset] = h.Sum64()
	if exact := rec.Topic == exactTopic || rec.Topic == exactStream; exact && rec.Offset != int64(n) {
		return 0, fmt.Errorf("%s: record %d is at offset %d", name, n, rec.Offset)
	}
	return n, nil
}

// end is the offset after the last that anyone has seen.
func (j *journal) end(name string) (end int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for offset := range j.seen[name] {
		end = max(end, offset+1)
	}
	return end
}

// followed are the topics that consumers read.
var followed = []string{exactTopic, looseTopic, exactStream}

// reader reads partitions from their start, without gaps.
type reader struct {
	r      *round
	client *kgo.Client
	next   map[string]int64
}

func (r *round) newReader(topics ...string) *reader {
	from := make(map[string]map[int32]kgo.Offset)
	for _, topic := range topics {
		from[topic] = make(map[int32]kgo.Offset)
		for p := range partitions[topic] {
			from[topic][int32(p)] = kgo.NewOffset().AtStart()
		}
	}
	// An offset out of range must be seen here: a consumer is never ahead of what is durable.
	client := r.client(kgo.ConsumePartitions(from), kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(200*time.Millisecond), kgo.FetchMaxBytes(1<<20))
	return &reader{r: r, client: client, next: make(map[string]int64)}
}

// poll reads what there is next.
func (c *reader) poll(ctx context.Context) {
	fetches := c.client.PollFetches(ctx)
	fetches.EachError(func(topic string, p int32, err error) {
		if errors.Is(err, kerr.OffsetOutOfRange) {
			c.r.fault("%s/%d: reading at %d: %v", topic, p, c.next[partitionName(topic, p)], err)
		}
	})
	fetches.EachRecord(func(rec *kgo.Record) {
		name := partitionName(rec.Topic, rec.Partition)
		if rec.Offset != c.next[name] {
			c.r.fault("%s: a consumer got offset %d after %d", name, rec.Offset, c.next[name]-1)
		}
		c.next[name] = rec.Offset + 1
		if _, err := c.r.journal.note(rec); err != nil {
			c.r.fault("%v", err)
		}
	})
}

// startFollower reads what is new.
func (r *round) startFollower() {
	c := r.newReader(followed...)
	r.load.Go(func() {
		for r.loading.Err() == nil {
			c.poll(r.loading)
		}
	})
}

// startRereader reads from the start up to what has been seen, again and again.
func (r *round) startRereader() {
	rng := r.fork()
	r.load.Go(func() {
		for r.pause(rng, 300*time.Millisecond) {
			topic := followed[rng.IntN(len(followed))]
			name := partitionName(topic, 0)
			c := r.newReader(topic)
			for end := r.journal.end(name); c.next[name] < end && r.loading.Err() == nil; {
				c.poll(r.loading)
			}
			c.client.Close()
		}
	})
}

// pause waits for a random time, and reports whether the load goes on.
func (r *round) pause(rng *rand.Rand, most time.Duration) bool {
	timer := time.NewTimer(time.Duration(rng.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.loading.Done():
		return false
	}
}
