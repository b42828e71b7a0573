package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"

	"github.com/brookletmq/brooklet/client"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

func benchCommand() *cli.Command {
	c := clientCommand(cli.Command{
		Name:  "bench",
		Usage: "load a broker with appends to many streams, and tell speed, delay and cost",
		Description: "Writes records at a rate to streams chosen at random, follows some of the streams, and measures how long\n" +
			"acknowledgements and deliveries take. With --cost it reads from the broker's metrics what that took of the bucket\n" +
			"and prints what a month of it costs at the list prices of Amazon S3 and EC2, item by item. Let it run until some GiB are\n" +
			"written, so that compaction takes part. Ctrl-C ends it early, with a report of what was measured until then.\n\n" +
			"The streams that it makes are left in place; remove them with: brooklet rm --prefix bench/\n\n" +
			"Examples:\n   brooklet bench --streams 1000 --rate 5MB --duration 1m\n   brooklet bench --streams 1000000 --followers 1000 --rate 20MB --cost",
	}, nil, nil)
	c.Flags = append(c.Flags,
		&cli.IntFlag{Name: "streams", Value: 1000, Usage: "`NUMBER` of streams to write to"},
		&cli.StringFlag{Name: "prefix", Value: "bench/", Usage: "`PREFIX` of their names"},
		&cli.StringFlag{Name: "rate", Value: "1MB", Usage: "`BYTES` of records a second"},
		&cli.StringFlag{Name: "record-bytes", Value: "1KiB", Usage: "`BYTES` of a record's value"},
		&cli.StringFlag{Name: "duration", Value: "30s", Usage: "`TIME` to write for"},
		&cli.IntFlag{Name: "followers", Usage: "`NUMBER` of streams to follow, each over a connection of its own"},
		&cli.BoolFlag{Name: "cost", Usage: "tell what a month of this costs"},
		&cli.StringFlag{Name: "admin", Value: defaultAdminListen, EnvVars: []string{"BROOKLET_ADMIN_LISTEN"}, Usage: "`ADDRESS` of the broker's --admin-listen, for --cost"},
		&cli.StringFlag{Name: "kept", Value: "7d", Usage: "`TIME` for which records are kept, for --cost"},
		&cli.Float64Flag{Name: "machine-dollars", Value: defaultMachineDollars,
			Usage: "`DOLLARS` a month for the broker's machine, for --cost (the default is a " + defaultMachineName + ")"},
	)
	c.Before = noArguments
	c.Action = runBench
	return c
}

// bench is a run of the command.
type bench struct {
	streams     int
	prefix      string
	rate        int64
	recordBytes int64
	duration    time.Duration
	followers   int
	cost        bool
	admin       string
	kept        time.Duration
	machine     float64

	brokers []string
	client  *client.Client
	payload []byte // random; records are cut out of it

	sent, acked, delivered atomic.Int64
	failed                 atomic.Int64
	failure                atomic.Pointer[error] // the first
	acks, deliveries       latencies
}

func newBench(c *cli.Context) (*bench, error) {
	b := &bench{
		streams: c.Int("streams"), prefix: c.String("prefix"), followers: c.Int("followers"),
		cost: c.Bool("cost"), admin: c.String("admin"), machine: c.Float64("machine-dollars"),
	}
	var errs []error
	read := func(name string, parse func(string) error) {
		if err := parse(c.String(name)); err != nil {
			errs = append(errs, fmt.Errorf("--%s is %q: %w", name, c.String(name), err))
		}
	}
	read("rate", func(s string) (err error) { b.rate, err = parseBytes(s, 1, math.MaxInt64); return err })
	read("record-bytes", func(s string) (err error) { b.recordBytes, err = parseBytes(s, benchStamp, 16<<20); return err })
	read("duration", func(s string) (err error) { b.duration, err = parseDuration(s, time.Second); return err })
	read("kept", func(s string) (err error) { b.kept, err = parseDuration(s, time.Second); return err })
	if b.streams < 1 {
		errs = append(errs, fmt.Errorf("--streams is %d: write 1 or more", b.streams))
	}
	if b.followers < 0 || b.followers > b.streams {
		errs = append(errs, fmt.Errorf("--followers is %d: write 0 to the number of --streams, %d", b.followers, b.streams))
	}
	if !ext.IsStream(b.prefix) {
		errs = append(errs, fmt.Errorf("--prefix is %q: write one with a slash, such as %q, because names of streams have one", b.prefix, b.prefix+"/"))
	}
	if total := float64(b.rate) * b.duration.Seconds(); len(errs) == 0 && total < float64(b.recordBytes) {
		errs = append(errs, fmt.Errorf("--record-bytes is %d: a single record is more than the %.0f bytes that --rate and --duration allow in all", b.recordBytes, total))
	}
	return b, errors.Join(errs...)
}

// benchStamp is the size of the time at the start of each value: ns since 1970.
const benchStamp = 8

// benchReport is the result in JSON output. Times are in milliseconds.
type benchReport struct {
	Seconds        float64       `json:"seconds"`
	Streams        int           `json:"streams"`
	RecordBytes    int64         `json:"record_bytes"`
	Records        int64         `json:"records"` // acknowledged
	Failed         int64         `json:"failed"`
	RecordsPerSec  float64       `json:"records_per_second"`
	BytesPerSec    float64       `json:"bytes_per_second"`
	AckP50         float64       `json:"ack_p50_ms"`
	AckP99         float64       `json:"ack_p99_ms"`
	Followers      int           `json:"followers"`
	Delivered      int64         `json:"delivered"`
	DeliveryP50    float64       `json:"delivery_p50_ms"`
	DeliveryP99    float64       `json:"delivery_p99_ms"`
	BucketRequests *bucketUse    `json:"bucket_requests,omitempty"`
	Cost           []costItem    `json:"cost,omitempty"`
	tookWriting    time.Duration // for the cost
}

func runBench(c *cli.Context) error {
	out, err := newOutput(c.App.Writer, c.String("output"))
	if err != nil {
		return wrongSettings(err)
	}
	brokers, err := splitBrokers(c.String("brokers"))
	if err != nil {
		return wrongSettings(err)
	}
	b, err := newBench(c)
	if err != nil {
		return wrongSettings(err)
	}
	b.brokers = brokers
	if b.client, err = client.New(kgo.SeedBrokers(brokers...), kgo.ClientID("brooklet-bench")); err != nil {
		return wrongSettings(err)
	}
	defer b.client.Close()
	report, err := b.run(c.Context, c.Duration("timeout"))
	if errors.Is(err, context.Canceled) && c.Context.Err() != nil {
		err = errors.New("interrupted")
	}
	if report != nil {
		err = errors.Join(out.print(report, report.tables()...), err)
	}
	return err
}

// run returns what was measured also with an error, if that comes once records are written.
func (b *bench) run(ctx context.Context, timeout time.Duration) (*benchReport, error) {
	brokers := strings.Join(b.brokers, ",")
	// Says soon that there is no broker, or that it is another one.
	reach, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := b.client.Describe(reach, b.stream(0)); err != nil && !errors.Is(err, client.ErrNoStream) {
		return nil, connectionError(err, brokers, timeout)
	}
	b.payload = make([]byte, 2*b.recordBytes+1<<16)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(b.payload) // never fails
	// An interrupt ends the writing. What is on its way then is still waited for, and measured.
	whole := context.WithoutCancel(ctx)
	following, stopFollowing := context.WithCancel(whole)
	var followers sync.WaitGroup
	for i := range b.followers {
		followers.Go(func() { b.follow(following, b.stream(i)) })
	}
	defer followers.Wait()
	defer stopFollowing()
	var before bucketUse
	if b.cost {
		var err error
		if before, err = readBucketUse(ctx, b.admin, timeout); err != nil {
			return nil, err
		}
	}
	took, err := b.write(ctx, timeout)
	err = connectionError(err, brokers, timeout)
	if err != nil && b.acked.Load() == 0 {
		return nil, err
	}
	report := b.report(took)
	if b.cost {
		after, failed := readBucketUse(whole, b.admin, timeout)
		if failed != nil {
			return report, errors.Join(err, failed)
		}
		used := after.since(before)
		report.BucketRequests = &used
		report.Cost = costOf(used, took, b.kept, b.machine)
	}
	return report, err
}

// stream is the name of a stream. The digits of a number come in a fixed order that is not
// that of the numbers: names of users and devices are not made in their order either.
func (b *bench) stream(i int) string { return fmt.Sprintf("%s%08x", b.prefix, uint32(i)*0x9e3779b1) }

// benchTick is how often records are sent.
const benchTick = 10 * time.Millisecond

// write appends records at the rate until the duration is over or ctx ends, and returns how
// long it did. In the end it waits for the broker's answers no longer than timeout.
func (b *bench) write(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	appending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(timeout, stop) })()
	began := time.Now()
	ticker := time.NewTicker(benchTick)
	defer ticker.Stop()
	perSecond := float64(b.rate) / float64(b.recordBytes)
	for passed := time.Duration(0); passed < b.duration && ctx.Err() == nil; passed = time.Since(began) {
		// The first one is due at once, so that there is one however slow the rate is.
		for due := 1 + int64(passed.Seconds()*perSecond); b.sent.Load() < due && ctx.Err() == nil; {
			if err := b.append(appending); err != nil {
				return time.Since(began), err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(appending, timeout)
	defer cancel()
	err := b.client.Flush(last)
	took := time.Since(began)
	if err != nil {
		return took, fmt.Errorf("%d of %d records are not acknowledged: %w", b.sent.Load()-b.acked.Load()-b.failed.Load(), b.sent.Load(), err)
	}
	if err := b.failure.Load(); err != nil && b.acked.Load() == 0 {
		return took, *err
	}
	return took, ctx.Err()
}

func (b *bench) append(ctx context.Context) error {
	b.sent.Add(1)
	value := make([]byte, b.recordBytes)
	copy(value, b.payload[rand.IntN(len(b.payload)-len(value)):])
	began := time.Now()
	binary.BigEndian.PutUint64(value, uint64(began.UnixNano()))
	batch := client.Batch{Stream: b.stream(rand.IntN(b.streams)), Records: []client.Record{{Value: value}}}
	return b.client.AppendAsync(ctx, batch, func(r client.Result) {
		if r.Err != nil {
			b.failed.Add(1)
			b.failure.CompareAndSwap(nil, &r.Err)
			return
		}
		b.acked.Add(1)
		b.acks.add(time.Since(began))
	})
}

func (b *bench) follow(ctx context.Context, stream string) {
	for r, err := range b.client.Follow(ctx, stream, client.End()) {
		if err != nil {
			if ctx.Err() == nil {
				b.failure.CompareAndSwap(nil, &err)
			}
			return
		}
		if len(r.Value) >= benchStamp {
			b.delivered.Add(1)
			b.deliveries.add(time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(r.Value)))))
		}
	}
}

func (b *bench) report(took time.Duration) *benchReport {
	records := b.acked.Load()
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return &benchReport{
		Seconds: took.Seconds(), Streams: b.streams, RecordBytes: b.recordBytes,
		Records: records, Failed: b.failed.Load(),
		RecordsPerSec: float64(records) / took.Seconds(), BytesPerSec: float64(records*b.recordBytes) / took.Seconds(),
		AckP50: ms(b.acks.quantile(0.5)), AckP99: ms(b.acks.quantile(0.99)),
		Followers: b.followers, Delivered: b.delivered.Load(),
		DeliveryP50: ms(b.deliveries.quantile(0.5)), DeliveryP99: ms(b.deliveries.quantile(0.99)),
		tookWriting: took,
	}
}

func (r *benchReport) tables() []*table {
	t := newTable()
	t.add("streams", r.Streams)
	t.add("written", fmt.Sprintf("%d records of %d bytes in %.1f s", r.Records, r.RecordBytes, r.Seconds))
	t.add("rate", fmt.Sprintf("%.0f records/s, %s/s", r.RecordsPerSec, humanize.Bytes(uint64(r.BytesPerSec))))
	t.add("acknowledged after", fmt.Sprintf("p50 %.1f ms, p99 %.1f ms", r.AckP50, r.AckP99))
	if r.Failed > 0 {
		t.add("failed", fmt.Sprintf("%d records", r.Failed))
	}
	if r.Followers > 0 {
		t.add("delivered", fmt.Sprintf("%d records to %d followers", r.Delivered, r.Followers))
		t.add("delivered after", fmt.Sprintf("p50 %.1f ms, p99 %.1f ms", r.DeliveryP50, r.DeliveryP99))
	}
	if r.BucketRequests == nil {
		return []*table{t}
	}
	u := r.BucketRequests
	t.add("bucket requests", fmt.Sprintf("%.0f PUT, %.0f GET, %.0f LIST, %.0f DELETE", u.Puts, u.Gets, u.Lists, u.Deletes))
	t.add("bucket bytes", fmt.Sprintf("%s written (%.2f per byte of records), %s read",
		humanize.Bytes(uint64(u.BytesIn)), u.BytesIn/max(1, r.BytesPerSec*r.Seconds), humanize.Bytes(uint64(u.BytesOut))))
	return []*table{t, costTable(r.Cost)}
}

// latencies counts durations in buckets that grow by 2%, from 1 µs to 10 min.
type latencies struct {
	total   atomic.Int64
	buckets [latencyBuckets]atomic.Int64
}

const (
	latencyGrowth  = 1.02
	latencyBuckets = 1024 // 1 µs * 1.02^1024 is 10 min
)

func (l *latencies) add(d time.Duration) {
	i := int(math.Log(max(1, float64(d)/float64(time.Microsecond))) / math.Log(latencyGrowth))
	l.buckets[min(i, latencyBuckets-1)].Add(1)
	l.total.Add(1)
}

// quantile is the duration below which the part q of all lies, within 2%; 0 if there are
// none.
func (l *latencies) quantile(q float64) time.Duration {
	rest := int64(math.Ceil(q * float64(l.total.Load())))
	if rest == 0 {
		return 0
	}
	for i := range l.buckets {
		if rest -= l.buckets[i].Load(); rest <= 0 {
			return time.Duration(math.Pow(latencyGrowth, float64(i+1)) * float64(time.Microsecond))
		}
	}
	return 0
}
