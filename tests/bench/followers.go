package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// followWait is how long a follower's fetch may wait for news. The first one waits for a part of it, so that at any
	// time some ask again.
	followWait = 30 * time.Second
	// idleTime is how long the followers are watched without news, the time between two signs of life of event streams.
	idleTime = 15 * time.Second
	// connectionsPerAddress is how many connections come from one address of the loopback network, well below the number
	// of ephemeral ports that Linux gives to each.
	connectionsPerAddress = 5_000
	// spareFiles are the open files of each process beside the followers' connections.
	spareFiles = 500
	// ingestTick is the time between two Produce requests, which go to ingestConnections in turn.
	ingestTick        = 5 * time.Millisecond
	ingestConnections = 4
	ingestRecord      = 1000 // bytes of a value, 1 KiB with what is around it
)

// benchFollowers: many readers, each of a stream of its own, while records come in for random ones of all streams. It
// measures the time from before a record is sent until its follower has it, and what followers cost the broker. The
// references are of the same run: the acknowledgements of the same records, round trips of ApiVersions meanwhile, the same
// ingest without followers.
func benchFollowers(ctx context.Context, work string) error {
	dir, err := freshDir(work, "followers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	kafka := followers{entities: entities{ctx: ctx, n: *streamCount, rounds: 1, batches: smallBatches()}, count: min(*followerCount, *streamCount), perConnection: *perConnection}
	if err := kafka.checkFiles(); err != nil {
		return err
	}
	// The broker fills itself once, and serves each kind of followers after a start.
	if err := kafka.fill(dir); err != nil {
		return err
	}
	if err := kafka.serve(dir, "Kafka, fetches that wait"); err != nil {
		return err
	}
	most, err := mostConnections()
	if err != nil {
		return err
	}
	http := followers{entities: kafka.entities, count: min(kafka.count, most), perConnection: 1, events: true}
	return http.serve(dir, "HTTP, event streams")
}

// serve measures one kind of followers.
func (f *followers) serve(dir, kind string) error {
	fmt.Printf("\nfollowers by %s: %d on %d connections, of %d streams, into which come %d MB/s of 1 KiB records\n", kind, f.count, f.connections(), f.n, *ingestRate)
	var err error
	if f.http, err = freeAddress(); err != nil {
		return err
	}
	s, err := startServer(f.ctx, dir, "--max-connections", fmt.Sprint(f.connections()+spareFiles), "--http-listen", f.http)
	if err != nil {
		return err
	}
	return errors.Join(f.run(s), s.stop())
}

// fill makes the streams with a broker that is stopped then, so that its memory does not count.
func (f *followers) fill(dir string) error {
	s, err := startServer(f.ctx, dir)
	if err != nil {
		return err
	}
	var unused atomic.Int64
	err = atOnce(loadConnections, func(i int) error { return f.loadConnection(s.addr, i, &unused) })
	return errors.Join(err, s.stop())
}

// followers is the measurement.
type followers struct {
	entities
	count         int
	perConnection int
	events        bool   // they follow by event streams over HTTP, else by Kafka's fetches
	http          string // address of HTTP
	open          []*followerConn
	start         time.Time // of the clock in the records
	got           latencies // of deliveries
}

func (f *followers) connections() int { return (f.count + f.perConnection - 1) / f.perConnection }

// mostConnections is how many fit into the limit of open files.
func mostConnections() (int, error) {
	files, err := mostFiles()
	return files - spareFiles, err
}

// checkFiles checks that there are files enough.
func (f *followers) checkFiles() error {
	most, err := mostConnections()
	if err == nil && f.connections() > most {
		err = fmt.Errorf("%d connections and %d other files do not fit into the limit of open files: raise it (ulimit -Hn), or let each connection follow more streams, with -per-connection %d",
			f.connections(), spareFiles, (f.count+most-1)/most)
	}
	return err
}

// followed is the stream of follower i: they are spread over all streams.
func (f *followers) followed(i int) int { return i * f.step() }

func (f *followers) step() int { return f.n / f.count }

func (f *followers) isFollowed(stream int) bool {
	return stream%f.step() == 0 && stream/f.step() < f.count
}

func (f *followers) run(s *server) error {
	f.start = time.Now()
	defer f.close()
	if err := f.connect(s); err != nil {
		return err
	}
	if err := f.idle(s); err != nil {
		return err
	}
	with, err := f.ingest(s)
	if err != nil {
		return err
	}
	with.print("ingest with followers")
	p := percentiles(with.delivered, 0.5, 0.99, 1)
	fmt.Printf("  %-26s %.0f/s  p50 %v  p99 %v  max %v  (acknowledged p50 %v p99 %v; ApiVersions p50 %v p99 %v)\n", "delivered", float64(len(with.delivered))/with.took.Seconds(), tenths(p[0]), tenths(p[1]), tenths(p[2]),
		tenths(with.acked[0]), tenths(with.acked[1]), tenths(with.trips[0]), tenths(with.trips[1]))
	f.close()
	without, err := f.ingest(s)
	if err != nil {
		return err
	}
	without.print("ingest without followers")
	return nil
}

func tenths(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// latencies are collected from many goroutines.
type latencies struct {
	mu   sync.Mutex
	list []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	l.list = append(l.list, d)
	l.mu.Unlock()
}

// take returns what was collected and begins anew.
func (l *latencies) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

func (l *latencies) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list)
}

// followerConn is a connection that follows a few streams, by one fetch at a time, or one stream by its events.
type followerConn struct {
	*net.TCPConn
	f       *followers
	streams []int
	next    []int64
	size    [4]byte // here and not in a buffer: a follower that waits has none
	err     error   // why it ended, set before ended is closed
	ended   chan struct{}
}

// connect opens the followers' connections, a few at a time, and tells what they take when all of them wait.
func (f *followers) connect(s *server) error {
	var before, after resting
	if err := before.measure(s); err != nil {
		return err
	}
	waiting, err := s.metricOr(f.waiting(), 0)
	if err != nil {
		return err
	}
	cpu, err := s.cpu()
	if err != nil {
		return err
	}
	started := time.Now()
	f.open = make([]*followerConn, f.connections())
	const dialers = 16
	err = atOnce(dialers, func(d int) error {
		for i := d; i < len(f.open) && f.ctx.Err() == nil; i += dialers {
			if err := f.dial(s.addr, i); err != nil {
				return err
			}
		}
		return f.ctx.Err()
	})
	if err != nil {
		return err
	}
	if err := s.awaitMetric(f.ctx, f.waiting(), func(v float64) bool { return v >= waiting+float64(f.connections()) }); err != nil {
		return err
	}
	took := time.Since(started)
	used, err := s.cpu()
	if err != nil {
		return err
	}
	if err := after.measure(s); err != nil {
		return err
	}
	each := float64(f.count)
	fmt.Printf("  %-26s %.0f/s, CPU %v each; each takes %.1f KB of heap and %.1f KB of RSS\n", "followers connect", each/took.Seconds(),
		((used - cpu) / time.Duration(f.count)).Round(time.Microsecond), float64(after.heap-before.heap)/each/1e3, float64(after.rss-before.rss)/each/1e3)
	return nil
}

// waiting is the metric that grows by one with each connection whose request has arrived.
func (f *followers) waiting() string {
	if f.events {
		return `brooklet_http_followers{kind="sse"}`
	}
	return `brooklet_kafkaproto_requests_total{api="Fetch"}`
}

// dial opens connection i and asks for what is new in its streams.
func (f *followers) dial(addr string, i int) error {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i/connectionsPerAddress))}
	if f.events {
		addr = f.http
	}
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return err
	}
	tcp, err := net.DialTCP("tcp", from, to)
	if err != nil {
		return err
	}
	c := &followerConn{TCPConn: tcp, f: f, ended: make(chan struct{})}
	for j := i * f.perConnection; j < min((i+1)*f.perConnection, f.count); j++ {
		stream := f.followed(j)
		c.streams, c.next = append(c.streams, stream), append(c.next, int64(f.rounds)) // behind what was loaded
	}
	f.open[i] = c
	ask, follow := c.ask, c.follow
	if f.events {
		ask, follow = c.askEvents, c.followEvents
	}
	if err := ask(rand.N(followWait)); err != nil {
		return err
	}
	go func() {
		defer close(c.ended)
		c.err = follow()
	}()
	return nil
}

// close ends all followers.
func (f *followers) close() {
	for _, c := range f.open {
		if c != nil {
			c.Close()
			<-c.ended
		}
	}
	f.open = nil
}

// failure is why a follower has ended, nil if none has.
func (f *followers) failure() error {
	for _, c := range f.open {
		select {
		case <-c.ended:
			return fmt.Errorf("a follower ended: %w", c.err)
		default:
		}
	}
	return nil
}

// ask sends a fetch that waits for news.
func (c *followerConn) ask(wait time.Duration) error {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.SessionEpoch = fetchVersion, -1
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = int32(wait.Milliseconds()), 1, fetchBytes
	for i, stream := range c.streams {
		t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
		t.Topic, p.FetchOffset, p.PartitionMaxBytes = entityName(stream), c.next[i], fetchBytes
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	_, err := c.Write(frame(req))
	return err
}

// replies holds buffers of followers that have news.
var replies = sync.Pool{New: func() any { return new([]byte) }}

// follow takes replies until the connection ends.
func (c *followerConn) follow() error {
	for {
		if _, err := io.ReadFull(c, c.size[:]); err != nil {
			return err
		}
		if err := c.take(int(binary.BigEndian.Uint32(c.size[:]))); err != nil {
			return err
		}
		if err := c.ask(followWait); err != nil {
			return err
		}
	}
}

// take reads a reply of n bytes and notes how long its records took.
func (c *followerConn) take(n int) error {
	buf := replies.Get().(*[]byte)
	defer replies.Put(buf)
	*buf = slices.Grow((*buf)[:0], n)[:n]
	if _, err := io.ReadFull(c, *buf); err != nil {
		return err
	}
	now := time.Since(c.f.start)
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = fetchVersion
	if err := resp.ReadFrom((*buf)[5:]); err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	for i := range resp.Topics {
		name, part := resp.Topics[i].Topic, &resp.Topics[i].Partitions[0]
		if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(part.RecordBatches) == 0 {
			continue
		}
		at := slices.IndexFunc(c.streams, func(stream int) bool { return entityName(stream) == name })
		if at < 0 {
			return fmt.Errorf("records of %s came unasked", name)
		}
		next, err := c.f.records(part.RecordBatches, c.next[at], now)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.next[at] = next
	}
	return nil
}

// records notes the latencies of batches, which must begin at an offset and have no gaps, and returns the offset behind.
func (f *followers) records(batches []byte, next int64, now time.Duration) (int64, error) {
	for ; len(batches) > 0; next++ {
		if len(batches) < len(ingestTemplate) || 12+int(binary.BigEndian.Uint32(batches[8:])) != len(ingestTemplate) {
			return 0, errors.New("a batch came that was not sent")
		}
		if base := int64(binary.BigEndian.Uint64(batches)); base != next {
			return 0, fmt.Errorf("offset %d came, %d was due", base, next)
		}
		if err := f.note(batches[stampAt:], now); err != nil {
			return 0, err
		}
		batches = batches[len(ingestTemplate):]
	}
	return next, nil
}

// note notes the latency of a record that has arrived now, whose value begins with a stamp.
func (f *followers) note(value []byte, now time.Duration) error {
	sent, err := strconv.ParseInt(string(value[:stampBytes]), 16, 64)
	f.got.add(now - time.Duration(sent))
	return err
}

// ingestTemplate is a batch of one record with a value of ingestRecord bytes, text, which only the number of headers
// follows. The value begins with a stamp, the time of sending: nanoseconds since followers.start, hexadecimal.
var ingestTemplate = encodeBatch(appendRecord(nil, 0, randomText(ingestRecord)), 1)

const stampBytes = 16

var stampAt = len(ingestTemplate) - 1 - ingestRecord

func stamp(batch []byte, at time.Duration) {
	copy(batch[stampAt:], fmt.Sprintf("%0*x", stampBytes, int64(at)))
	sealBatch(batch)
}

// randomText is random hexadecimal digits.
func randomText(n int) []byte { return hex.AppendEncode(nil, randomBytes(n))[:n] }

// idle tells what the followers cost when there is no news.
func (f *followers) idle(s *server) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	started := time.Now()
	select {
	case <-f.ctx.Done():
		return f.ctx.Err()
	case <-time.After(idleTime):
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	fmt.Printf("  %-26s %.1f%% of a core\n", "followers without news", 100*(after-before).Seconds()/time.Since(started).Seconds())
	return f.failure()
}

// ingested is what happened during an ingest.
type ingested struct {
	bytes, records int64
	took           time.Duration
	cpu            time.Duration   // of the broker
	acked, trips   []time.Duration // p50 and p99
	delivered      []time.Duration
}

func (r *ingested) print(what string) {
	fmt.Printf("  %-26s %.1f MB/s of %d  acknowledged p50 %v  p99 %v  ApiVersions p50 %v  p99 %v  CPU %.0f%% of a core\n", what, rate(r.bytes, r.took), *ingestRate,
		tenths(r.acked[0]), tenths(r.acked[1]), tenths(r.trips[0]), tenths(r.trips[1]), 100*r.cpu.Seconds()/r.took.Seconds())
}

// ingest writes to random streams at the rate wanted and waits until the followers have what is theirs.
func (f *followers) ingest(s *server) (r ingested, err error) {
	before, err := s.cpu()
	if err != nil {
		return r, err
	}
	f.got.take()
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	trips := make(chan *look, 1)
	go func() { trips <- roundTrips(ctx, s.addr) }()
	in, err := newIngest(f, s.addr)
	if err != nil {
		return r, err
	}
	started := time.Now()
	err = in.run(ctx)
	r.took = time.Since(started)
	stop()
	l := <-trips
	if err := errors.Join(err, l.err, f.failure(), f.ctx.Err()); err != nil {
		return r, err
	}
	if err := f.awaitDeliveries(in.due); err != nil {
		return r, err
	}
	after, err := s.cpu()
	r.cpu, r.records, r.bytes = after-before, in.sent, in.sent*int64(len(ingestTemplate))
	r.acked, r.trips = percentiles(in.acked.take(), 0.5, 0.99), percentiles(l.roundTrip, 0.5, 0.99)
	r.delivered = f.got.take()
	return r, err
}

// awaitDeliveries waits until the followers have all records that are due to them.
func (f *followers) awaitDeliveries(due int) error {
	if f.open == nil {
		return nil
	}
	const patience = time.Minute
	for end := time.Now().Add(patience); f.got.len() < due; {
		if err := errors.Join(f.failure(), f.ctx.Err()); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d records were delivered, and no more within %v", f.got.len(), due, patience)
		}
		time.Sleep(ingestTick)
	}
	if n := f.got.len(); n != due {
		return fmt.Errorf("%d records were delivered, %d were due", n, due)
	}
	return nil
}

// roundTrips measures those of ApiVersions, a hundred a second, until ctx ends.
func roundTrips(ctx context.Context, addr string) *look {
	l := &look{}
	if l.c, l.err = dial(addr); l.err != nil {
		return l
	}
	defer l.c.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return l
		case <-tick.C:
		}
		if l.err = l.trip(); l.err != nil {
			return l
		}
	}
}

// ingest is what comes in at a steady rate.
type ingest struct {
	f     *followers
	conns []*ingestConn
	sent  int64 // records
	due   int   // of them, to followers
	acked latencies
}

// ingestConn sends requests and takes their replies, in order.
type ingestConn struct {
	*conn
	sentAt chan time.Time
	done   chan error
}

func newIngest(f *followers, addr string) (*ingest, error) {
	in := &ingest{f: f}
	for range ingestConnections {
		c, err := dial(addr)
		if err != nil {
			return nil, err
		}
		i := &ingestConn{conn: c, sentAt: make(chan time.Time, 1024), done: make(chan error, 1)}
		in.conns = append(in.conns, i)
		go func() { i.done <- i.acknowledge(&in.acked) }()
	}
	return in, nil
}

func (c *ingestConn) acknowledge(l *latencies) (err error) {
	defer c.Close()
	var reply []byte
	for sent := range c.sentAt {
		if err != nil {
			continue
		}
		if reply, err = c.readReply(reply); err == nil {
			l.add(time.Since(sent))
			err = checkProduceReply(reply)
		}
	}
	return err
}

// run sends for *duration.
func (in *ingest) run(ctx context.Context) error {
	records := *ingestRate * int(ingestTick) * 1000 * 1000 / len(ingestTemplate) / int(time.Second)
	tick := time.NewTicker(ingestTick)
	defer tick.Stop()
	var err error
	for n, end := 0, time.Now().Add(*duration); err == nil && time.Now().Before(end); n++ {
		select {
		case <-tick.C:
			err = in.send(in.conns[n%len(in.conns)], records)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, c := range in.conns {
		close(c.sentAt)
		err = errors.Join(err, <-c.done)
	}
	return err
}

// send writes one request with a record for each of so many streams.
func (in *ingest) send(c *ingestConn, records int) error {
	req := newProduceRequest()
	now := time.Now()
	batches := make([]byte, 0, records*len(ingestTemplate))
	chosen := make(map[int]bool, records)
	for len(chosen) < records {
		stream := rand.IntN(in.f.n)
		if chosen[stream] {
			continue
		}
		chosen[stream] = true
		from := len(batches)
		batches = append(batches, ingestTemplate...)
		batch := batches[from:]
		stamp(batch, now.Sub(in.f.start))
		addToProduce(req, entityName(stream), 0, batch)
		if in.f.isFollowed(stream) {
			in.due++
		}
	}
	in.sent += int64(records)
	c.sentAt <- now
	_, err := c.Write(frame(req))
	return err
}
