package broker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// Fetch (key 1), v4 to v18.
//
// Behaviour:
//   - A reply leaves when it has min bytes, when a partition has an error, at max wait, or when the broker drains.
//     Waiting costs nothing: the partitions are registered in a watch, and none is looked at before it has news.
//   - What was read for a reply that waits for more stays with it; only what comes later is read then. Max wait is 5
//     minutes at most.
//   - Whole batches are returned, the first one being that which contains the fetch offset. The first batch of the
//     first partition with data comes whatever its size (KIP-74), also when partitions before it are empty.
//   - A request outside a session is served in the order of its partitions; rotating them is up to the client, as in
//     Kafka. A session rotates: partitions that were served go behind those that were not.
//   - Records held for replies in flight are bounded by Options.FetchMemory, see fetchMemory. Min bytes yields to it.
//   - A named stream that was not written to yet is an empty stream, see unwritten.go; a tag makes a session follow all
//     streams under a prefix, see fetch_follow.go.
//   - Partitions whose records are at hand are served first. Those that have to be read from the bucket are read together,
//     maxColdReads at a time; what was not read in time is read on in the background, for the next try.
//
// Versions:
//
//	 5  log start offset                       12  last fetched epoch, diverging epoch (KIP-595)
//	 7  sessions (KIP-227)                     13  topic ids (KIP-516)
//	 9  current leader epoch (KIP-320)         15  replica state in a tag (KIP-903)
//	10  zstd (KIP-110)                         16  node endpoints (KIP-951)
//	11  rack, preferred replica (KIP-392)      17, 18  fields of followers (KIP-853, KIP-1166)
//
// Left out on purpose: fetches of followers (there are none), diverging epochs (records are never cut off, see
// leaderEpoch), preferred replicas, and aborted transactions, because transactions are not served: the last stable
// offset is the high watermark.
func init() { register(int16(kmsg.Fetch), handleFetch) }

const (
	// fetchReadGrace is how long a read from the bucket may hold up a reply that could leave without it, so that a
	// client that does not want to wait makes progress on cold data all the same.
	fetchReadGrace = 20 * time.Millisecond
	// maxFetchWait bounds max wait: the client's number may be days, and requests behind it on the connection wait too.
	maxFetchWait = 5 * time.Minute
	// maxColdReads bounds the reads from the bucket that one fetch waits for at a time.
	maxColdReads = 16
	// minColdRead is what one of them may bring at least if the reply has room, in bytes. It leaves half of what it
	// could have to others.
	minColdRead = 1 << 20

	isolationReadCommitted = 1

	zstdFetchFrom = 10 // first version whose clients know zstd (KIP-110)
)

// fetcher is what all fetches share.
type fetcher struct {
	sessions *fetchSessions
	memory   *fetchMemory
	m        *fetchMetrics
	log      *zap.Logger // for what may happen very often: a few lines a minute
}

func newFetcher(opts *Options, exists func(key partitionKey, byID bool) bool) *fetcher {
	m := newFetchMetrics(opts.Registerer)
	return &fetcher{
		sessions: newFetchSessions(opts.Store, opts.FetchSessionSlots, exists, m),
		memory:   newFetchMemory(opts.FetchMemory, m),
		m:        m,
		log: opts.Logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
			return zapcore.NewSamplerWithOptions(c, time.Minute, 5, 0)
		})),
	}
}

// close ends all sessions. No fetch may run any more.
func (f *fetcher) close() { f.sessions.close() }

type fetchMetrics struct {
	sessions          prometheus.Gauge
	sessionPartitions prometheus.Gauge
	sessionEvictions  prometheus.Counter
	partitionReads    prometheus.Counter
	readBytes         prometheus.Counter
	memoryBytes       prometheus.Gauge
	memoryWaits       prometheus.Counter
	memoryEmpty       prometheus.Counter
}

func newFetchMetrics(reg prometheus.Registerer) *fetchMetrics {
	f := promauto.With(reg) // nil registers nothing
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "brooklet", Subsystem: "broker", Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge { return f.NewGauge(prometheus.GaugeOpts(opts(name, help))) }
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	return &fetchMetrics{
		sessions:          gauge("fetch_sessions", "Incremental fetch sessions."),
		sessionPartitions: gauge("fetch_session_partitions", "Partitions of all incremental fetch sessions."),
		sessionEvictions:  counter("fetch_session_evictions_total", "Fetch sessions that lost their slot, idle or to a larger one."),
		partitionReads:    counter("fetch_partition_reads_total", "Partitions looked at for a fetch, whether they had data or not."),
		readBytes:         counter("fetch_read_bytes_total", "Records read for fetches, whether they were sent or not."),
		memoryBytes:       gauge("fetch_memory_bytes", "Memory reserved for the records of fetch replies in flight."),
		memoryWaits:       counter("fetch_memory_waits_total", "Fetches that had to wait for memory."),
		memoryEmpty:       counter("fetch_memory_empty_total", "Fetches answered without records because replies in flight held the memory for them."),
	}
}

// handleFetch leaves everything to the reply, which may wait: requests of a session follow each other there too.
func handleFetch(b *Broker, conn context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.FetchRequest)
	hurry := r.Conn.Draining()
	return func(ctx context.Context) (kmsg.Response, error) { return b.fetch(ctx, req, conn.Done(), hurry) }, nil
}

// fetch serves one request. It answers at once when hurry is closed; gone is closed when the connection ends.
func (b *Broker) fetch(ctx context.Context, req *kmsg.FetchRequest, gone, hurry <-chan struct{}) (kmsg.Response, error) {
	s, kerr := b.fetches.sessions.begin(req, gone)
	if kerr != nil {
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ErrorCode = kerr.Code
		return resp, nil
	}
	f := newFetch(b, req, s)
	f.hurry = hurry
	defer f.end()
	if err := f.run(ctx); err != nil {
		return nil, err
	}
	return f.reply(), nil
}

// end gives back what the fetch holds. A session whose fetch came to no reply, because its connection died, does not
// know any more what its client has; the client starts a new one.
func (f *fetch) end() {
	if !f.replied {
		f.b.fetches.sessions.remove(f.s.id)
	}
	f.b.fetches.sessions.end(f.s)
	f.memory.release()
	if f.timer != nil {
		f.timer.Stop()
	}
}

// fetch is one request being served. It has three kinds of partitions at any time: those in the session's queue, which
// are to be looked at; those being read from the bucket; and the others, which wait for news.
type fetch struct {
	b     *Broker
	req   *kmsg.FetchRequest
	s     *fetchSession
	full  bool            // the reply names every partition
	hurry <-chan struct{} // closed when the reply is due at once

	began              time.Time
	maxWait            time.Duration
	minBytes, maxBytes int
	readCommitted      bool

	results []fetchResult
	bytes   int  // of all results
	failed  bool // a result is an error
	stopped bool // no room or memory for more, though there may be data
	starved bool // stopped for want of memory
	dueAt   time.Time
	timer   *time.Timer
	// unread have data that did not come along. They go to the front of the queue when the fetch is over, those that
	// were served to its end.
	unread  []*fetchPartition
	memory  reservation
	replied bool // the session is ready for its next request

	cold coldReads
}

// fetchResult is what the reply says about one partition.
type fetchResult struct {
	p    *fetchPartition
	err  *kafkaproto.Error
	read streamstore.ReadResult
}

// coldReads are the reads from the bucket that a fetch waits for.
type coldReads struct {
	n       int // that have not landed yet
	claimed int // bytes of records that those may bring
	blocked bool
	landed  chan coldRead
	ctx     context.Context // of the reads
	stop    context.CancelFunc
}

// coldRead is one of them, when it is done.
type coldRead struct {
	p      *fetchPartition
	stream streamstore.StreamID
	limit  int // bytes of records taken for it
	read   streamstore.ReadResult
	err    error
}

func newFetch(b *Broker, req *kmsg.FetchRequest, s *fetchSession) *fetch {
	maxBytes := min(max(int(req.MaxBytes), 0), b.opts.FetchMaxBytes)
	return &fetch{
		b:             b,
		req:           req,
		s:             s,
		full:          isFullFetch(req),
		began:         time.Now(),
		maxWait:       min(time.Duration(req.MaxWaitMillis)*time.Millisecond, maxFetchWait),
		minBytes:      min(int(req.MinBytes), maxBytes),
		maxBytes:      maxBytes,
		readCommitted: req.IsolationLevel == isolationReadCommitted,
		memory:        reservation{pool: b.fetches.memory},
	}
}

// run reads until the reply is due. An error means that the connection is gone.
func (f *fetch) run(ctx context.Context) error {
	defer f.gatherCold()
	f.s.takeNews()
	for {
		f.pass(ctx)
		if f.due() && f.cold.n == 0 {
			return ctx.Err()
		}
		if !f.due() && f.s.startWatch(f.b.store) {
			continue
		}
		if !f.wait(ctx) {
			return ctx.Err()
		}
	}
}

// due reports whether the reply may leave before its time is up.
func (f *fetch) due() bool {
	return f.maxWait <= 0 || f.bytes >= f.minBytes || f.failed || f.stopped || f.s.isEmpty()
}

// wait returns true when there is something to read, or when a read from the bucket is done, and false when the reply
// must leave.
func (f *fetch) wait(ctx context.Context) bool {
	var news, followed <-chan struct{}
	if !f.due() {
		news = f.s.watch.Ready()
		if f.s.follow != nil {
			followed = f.s.follow.watch.Ready()
		}
	}
	if left := time.Until(f.deadline()); f.timer == nil {
		f.timer = time.NewTimer(left)
	} else {
		f.timer.Reset(left)
	}
	select {
	case <-news:
		f.s.takeNews()
		return true
	case <-followed:
		f.s.takeNews()
		return true
	case c := <-f.cold.landed:
		f.land(c)
		return true
	case <-f.timer.C:
	case <-f.b.draining:
	case <-f.hurry:
	case <-ctx.Done():
	}
	return false
}

// deadline is when the reply leaves whatever it has. One that is due but for reads from the bucket waits for those a
// little.
func (f *fetch) deadline() time.Time {
	if f.cold.n == 0 {
		return f.began.Add(f.maxWait)
	}
	end := f.began.Add(max(f.maxWait, fetchReadGrace))
	if !f.due() {
		return end
	}
	if f.dueAt.IsZero() {
		f.dueAt = time.Now()
	}
	if grace := f.dueAt.Add(fetchReadGrace); grace.Before(end) {
		return grace
	}
	return end
}

// pass serves the queued partitions with what is at hand, and starts to read from the bucket what is not, until the queue
// is empty, the reply is full, or it takes a cold read that lands to go on.
func (f *fetch) pass(ctx context.Context) {
	for !f.stopped && !f.cold.blocked && f.cold.n < maxColdReads {
		p := f.s.queue.pop()
		if p == nil {
			return
		}
		if p.cold {
			p.again = true
			continue
		}
		f.serve(ctx, p)
	}
}

// serve reads one partition, from where its result in this fetch ends.
func (f *fetch) serve(ctx context.Context, p *fetchPartition) {
	room := f.maxBytes - f.bytes - f.cold.claimed
	if room <= 0 && f.bytes+f.cold.claimed > 0 {
		f.stop(p)
		return
	}
	limit := max(min(room, int(p.maxBytes)-f.heldOf(p)), 0)
	if o, ok := f.atEnd(p); ok {
		f.b.fetches.m.partitionReads.Inc()
		f.accept(p, streamstore.ReadResult{Offsets: o}, nil, false)
		return
	}
	granted, ok := f.reserve(ctx, limit)
	if !ok {
		f.starved = f.cold.n == 0
		f.stop(p)
		return
	}
	f.b.fetches.m.partitionReads.Inc()
	read, kerr, cold := f.readAtHand(p, granted)
	if cold {
		part := min(granted, max(granted/2, minColdRead))
		f.memory.settle(granted, part)
		f.startCold(ctx, p, part)
		return
	}
	f.memory.settle(granted, read.Bytes)
	f.accept(p, read, kerr, limit == room || granted < limit)
}

// atEnd tells that there is nothing to read of p, where its stream ends then, and takes no memory for that: of many
// followers that ask at a time, nearly all find nothing. Whatever is not plain is left to the read.
func (f *fetch) atEnd(p *fetchPartition) (o streamstore.Offsets, ok bool) {
	if f.heldOf(p) > 0 || f.locate(p) != nil || p.stream == 0 {
		return o, false
	}
	o, err := f.b.store.Offsets(p.stream)
	return o, err == nil && f.position(p) == o.HighWatermark
}

// reserve takes memory for n bytes of records, or less, waiting for it if the fetch holds nothing.
func (f *fetch) reserve(ctx context.Context, n int) (granted int, ok bool) {
	granted, ok = f.memory.take(n)
	if ok || f.memory.bytes > 0 || f.cold.n > 0 {
		return granted, ok
	}
	f.b.fetches.m.memoryWaits.Inc()
	w := f.memory.wait(n)
	timer := time.NewTimer(time.Until(f.began.Add(max(f.maxWait, fetchReadGrace))))
	defer timer.Stop()
	select {
	case <-w.ready:
	case <-timer.C:
	case <-f.b.draining:
	case <-f.hurry:
	case <-ctx.Done():
	}
	return w.leave()
}

// accept puts what was read of p, or the error, into its result. noRoom tells that the next batch, if there is one, did
// not come because the reply has no room for it, rather than because of p's own limit.
func (f *fetch) accept(p *fetchPartition, read streamstore.ReadResult, kerr *kafkaproto.Error, noRoom bool) {
	held := f.heldOf(p)
	f.b.fetches.m.readBytes.Add(float64(read.Bytes))
	switch {
	case kerr != nil && held > 0 && kerr.Code == kafkaproto.ErrKafkaStorageError.Code:
		f.stopped = true // what was read is good; the next fetch meets the error
	case kerr != nil:
		f.fail(p, kerr)
	case held > 0 && read.Start > p.offset:
		f.memory.settle(read.Bytes, 0)
		f.fail(p, storeError(streamstore.ErrOffsetOutOfRange)) // trimmed meanwhile
	case read.Bytes > 0:
		f.add(p, read)
	default:
		f.acceptEmpty(p, read, noRoom)
	}
}

// fail makes an error the result of p.
func (f *fetch) fail(p *fetchPartition, kerr *kafkaproto.Error) {
	f.withdraw(p)
	f.failed = true
	f.report(p, fetchResult{p: p, err: kerr})
}

// add appends records to the result of p, and queues p if the reply waits for more of them.
func (f *fetch) add(p *fetchPartition, read streamstore.ReadResult) {
	f.bytes += read.Bytes
	if f.heldOf(p) > 0 {
		r := &f.results[p.result].read
		r.Chunks, r.Bytes, r.Offsets = append(r.Chunks, read.Chunks...), r.Bytes+read.Bytes, read.Offsets
	} else {
		f.report(p, fetchResult{p: p, read: read})
	}
	if !f.due() && f.position(p) < read.HighWatermark {
		f.s.queue.push(p)
	}
}

// acceptEmpty deals with a partition that returned no data: either there is none, or its next batch did not fit.
func (f *fetch) acceptEmpty(p *fetchPartition, read streamstore.ReadResult, noRoom bool) {
	switch {
	case f.heldOf(p) > 0:
		f.results[p.result].read.Offsets = read.Offsets
	case f.full || p.result >= 0 || read.HighWatermark != p.sentHighWatermark || read.Start != p.sentStart:
		f.report(p, fetchResult{p: p, read: read})
	}
	switch {
	case f.position(p) >= read.HighWatermark:
	case noRoom:
		f.stop(p)
	default:
		f.putOff(p)
	}
}

// stop ends the reading, at least until a cold read lands that may not need what was set aside for it; p is the first
// partition that has to wait.
func (f *fetch) stop(p *fetchPartition) {
	if f.cold.n > 0 {
		f.cold.blocked = true
		f.s.queue.unpop([]*fetchPartition{p})
		return
	}
	f.stopped = true
	f.putOff(p)
}

// putOff leaves the data of p to the next fetch, unless some of it comes along with this one.
func (f *fetch) putOff(p *fetchPartition) {
	if p.unread || f.heldOf(p) > 0 {
		return
	}
	p.unread = true
	f.unread = append(f.unread, p)
}

// report sets the result of p.
func (f *fetch) report(p *fetchPartition, r fetchResult) {
	if p.result >= 0 {
		f.results[p.result] = r
		return
	}
	p.result = len(f.results)
	f.results = append(f.results, r)
}

// heldOf returns the bytes of records in the result of p.
func (f *fetch) heldOf(p *fetchPartition) int {
	if p.result < 0 {
		return 0
	}
	return f.results[p.result].read.Bytes
}

// position is the offset behind the records in the result of p.
func (f *fetch) position(p *fetchPartition) int64 {
	if f.heldOf(p) == 0 {
		return p.offset
	}
	chunks := f.results[p.result].read.Chunks
	return nextOffset(chunks[len(chunks)-1])
}

// nextOffset returns the offset behind the last of batches back to back.
func nextOffset(chunk []byte) int64 {
	next := int64(0)
	for len(chunk) > 0 {
		batch, rest, err := kafkaproto.NextBatch(chunk)
		if err != nil {
			break // cannot be: the store returns whole batches
		}
		next, chunk = batch.LastOffset()+1, rest
	}
	return next
}

// withdraw takes back what was read of p.
func (f *fetch) withdraw(p *fetchPartition) {
	held := f.heldOf(p)
	if held == 0 {
		return
	}
	f.bytes -= held
	f.memory.settle(held, 0)
	r := &f.results[p.result]
	r.read.Bytes, r.read.Chunks = 0, nil
}

// noWait is a context for reads that take only what is at hand. What they lack is fetched in the background all the same.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// readAtHand finds the partition's stream, if that is not known, and reads what is in memory or on the local disk. cold
// tells that the next batch is in the bucket.
func (f *fetch) readAtHand(p *fetchPartition, limit int) (read streamstore.ReadResult, kerr *kafkaproto.Error, cold bool) {
	if p.stream == 0 {
		f.withdraw(p) // of a stream that is gone
	}
	for again := true; ; again = false {
		if kerr := f.locate(p); kerr != nil {
			return read, kerr, false
		}
		if p.stream == 0 {
			read.Offsets, kerr = f.offsets(p)
			return read, kerr, false
		}
		read, err := f.b.store.Read(noWait, p.stream, f.position(p), f.readOptions(limit))
		switch {
		case err == nil:
			return read, nil, false
		case f.s.follow != nil && errors.Is(err, streamstore.ErrOffsetOutOfRange) && f.heldOf(p) == 0 && f.moveIntoRange(p):
			continue
		case errors.Is(err, noWait.Err()):
			return streamstore.ReadResult{}, nil, true
		case errors.Is(err, streamstore.ErrNoStream) && again:
			f.lose(p)
		default:
			return streamstore.ReadResult{}, f.readError(err), false
		}
	}
}

func (f *fetch) readOptions(limit int) streamstore.ReadOptions {
	return streamstore.ReadOptions{MaxBytes: limit, MinOneBatch: f.bytes == 0}
}

// lose forgets the stream of p, which was deleted, and perhaps made anew under the same name, and what was read of it.
func (f *fetch) lose(p *fetchPartition) {
	f.s.detach(p)
	f.withdraw(p)
	if f.s.follow != nil {
		p.offset, p.chosen = 0, true
	}
}

// startCold reads p from the bucket, up to limit bytes, which are reserved. The read lands in f.cold.landed.
func (f *fetch) startCold(ctx context.Context, p *fetchPartition, limit int) {
	if f.cold.landed == nil {
		f.cold.landed = make(chan coldRead, maxColdReads)
		f.cold.ctx, f.cold.stop = context.WithCancel(ctx)
	}
	p.cold = true
	f.cold.n++
	f.cold.claimed += limit
	c := coldRead{p: p, stream: p.stream, limit: limit}
	store, offset, opts := f.b.store, f.position(p), f.readOptions(limit)
	ctx, landed := f.cold.ctx, f.cold.landed
	go func() {
		c.read, c.err = store.Read(ctx, c.stream, offset, opts)
		landed <- c
	}()
}

// land takes the result of a cold read.
func (f *fetch) land(c coldRead) {
	f.cold.n--
	f.cold.claimed -= c.limit
	f.cold.blocked = false
	c.p.cold = false
	if c.p.again {
		c.p.again = false
		f.s.queue.push(c.p)
	}
	if c.stream != c.p.stream { // it could not be watched, because it was deleted
		c.err = streamstore.ErrNoStream
	}
	if c.err != nil {
		c.read = streamstore.ReadResult{}
	}
	f.memory.settle(c.limit, c.read.Bytes)
	switch {
	case c.err == nil && c.read.Bytes > c.limit && f.bytes > 0:
		// It was to be the first batch of the reply, and is too large to be another.
		f.memory.settle(c.read.Bytes, 0)
		f.stop(c.p)
	case c.err == nil:
		f.accept(c.p, c.read, nil, false)
	case errors.Is(c.err, streamstore.ErrNoStream):
		f.lose(c.p)
		f.s.queue.push(c.p)
	case f.cold.ctx.Err() != nil && errors.Is(c.err, f.cold.ctx.Err()):
		f.putOff(c.p)
	default:
		f.accept(c.p, c.read, f.readError(c.err), false)
	}
}

// gatherCold ends the cold reads and takes what they have.
func (f *fetch) gatherCold() {
	if f.cold.landed == nil {
		return
	}
	f.cold.stop()
	for f.cold.n > 0 {
		f.land(<-f.cold.landed)
	}
}

// readError translates an error of a read. Clients of Fetch know few errors, and give up on the others; a bucket that
// fails is KAFKA_STORAGE_ERROR, after which they try again.
func (f *fetch) readError(err error) *kafkaproto.Error {
	kerr := partitionError(err, f.s.usesTopicIDs)
	switch kerr.Code {
	case kafkaproto.ErrUnknownServerError.Code, kafkaproto.ErrRequestTimedOut.Code:
		kerr = kafkaproto.ErrKafkaStorageError
	}
	if kerr.Code == kafkaproto.ErrKafkaStorageError.Code {
		f.b.fetches.log.Warn("fetch cannot read records", zap.Error(err))
	}
	return kerr
}

// locate makes sure that p has a stream, unless it is of a named stream that was not written to yet, and checks the leader epoch that the client knows.
func (f *fetch) locate(p *fetchPartition) *kafkaproto.Error {
	if p.stream == 0 {
		if kerr := f.find(p); kerr != nil {
			return kerr
		}
	}
	if f.s.follow != nil {
		p.startIfAnother()
	}
	if f.req.Version < zstdFetchFrom && p.stream != 0 {
		if kerr := f.checkCodec(p); kerr != nil {
			return kerr
		}
	}
	return checkLeaderEpoch(p.leaderEpoch)
}

// find looks for the stream of p. It leaves p without one, and returns nil, if p is to wait for the stream to be made.
func (f *fetch) find(p *fetchPartition) *kafkaproto.Error {
	for {
		stream, kerr := f.b.lookupPartition(p.name, p.id, f.s.usesTopicIDs, p.partition)
		switch {
		case kerr == nil:
			if err := f.s.attach(p, stream); err != nil {
				return partitionError(err, f.s.usesTopicIDs)
			}
			return nil
		case f.s.follow != nil || !f.b.isUnwritten(p.partitionKey, f.s.usesTopicIDs, kerr):
			return kerr
		case !f.s.await(p):
			return nil
		}
		// It may have been made between the look-up and the wait.
	}
}

// checkCodec refuses topics that are configured to hold zstd to clients of a time before it. Batches that producers
// compressed with zstd by themselves are served to all, as Kafka does: some clients of that time can read them.
func (f *fetch) checkCodec(p *fetchPartition) *kafkaproto.Error {
	t, kerr := f.b.lookupTopic(p.name, p.id, f.s.usesTopicIDs)
	if kerr == nil && t.config.value("compression.type") == "zstd" {
		return errZstdTooNew
	}
	return kerr
}

// lookupTopic finds a topic that a request names by id or by name.
func (b *Broker) lookupTopic(name string, id topicID, byID bool) (*topic, *kafkaproto.Error) {
	if byID {
		return b.topics.byID(id)
	}
	return b.topics.byName(name)
}

// lookupPartition returns the stream of a partition of the topic that a request names.
func (b *Broker) lookupPartition(name string, id topicID, byID bool, partition int32) (streamstore.StreamID, *kafkaproto.Error) {
	t, kerr := b.lookupTopic(name, id, byID)
	if kerr != nil {
		return 0, kerr
	}
	stream, ok := t.partition(partition)
	if !ok {
		return 0, errUnknownPartition
	}
	return stream, nil
}

// hasPartition tells whether there is a partition that a request names.
func (b *Broker) hasPartition(key partitionKey, byID bool) bool {
	_, err := b.lookupPartition(key.name, key.id, byID, key.partition)
	return err == nil || b.isUnwritten(key, byID, err)
}

// namedPartition is lookupPartition for the APIs that know topic names only.
func (b *Broker) namedPartition(name string, partition int32) (streamstore.StreamID, *kafkaproto.Error) {
	return b.lookupPartition(name, topicID{}, false, partition)
}

// partitionError translates an error of the store about the stream of a partition. One that was found by its topic and
// is gone was deleted meanwhile, a moment before the catalogue says so.
func partitionError(err error, byID bool) *kafkaproto.Error {
	if byID && errors.Is(err, streamstore.ErrNoStream) {
		return kafkaproto.ErrUnknownTopicID
	}
	return storeError(err)
}

var (
	errUnknownPartition = kafkaproto.ErrUnknownTopicOrPartition.WithMessage("the topic has no such partition")
	errFencedEpoch      = kafkaproto.ErrFencedLeaderEpoch.WithMessage("the client's leader epoch is older than the leader's; refresh the metadata")
	errUnknownEpoch     = kafkaproto.ErrUnknownLeaderEpoch.WithMessage("the client's leader epoch is newer than the leader's; refresh the metadata")
	errZstdTooNew       = kafkaproto.ErrUnsupportedCompressionType.WithMessage("the records are compressed with zstd, which needs Fetch v10 or later")
)

// checkLeaderEpoch compares the leader epoch that a client knows (KIP-320). -1 skips the check.
func checkLeaderEpoch(known int32) *kafkaproto.Error {
	switch {
	case known == -1 || known == leaderEpoch:
		return nil
	case known < leaderEpoch:
		return errFencedEpoch
	default:
		return errUnknownEpoch
	}
}

// reply ends the fetch: it fills the response and leaves the session as the next request will find it.
func (f *fetch) reply() kmsg.Response {
	f.s.queue.unpop(f.unread)
	for _, p := range f.unread {
		p.unread = false
	}
	if f.full {
		f.reportUnread()
	}
	for i := range f.results {
		if r := &f.results[i]; r.err != nil || r.read.Bytes > 0 {
			f.s.queue.push(r.p)
		}
	}
	f.noteMemory()
	resp := f.req.ResponseKind().(*kmsg.FetchResponse)
	if !f.s.isEmpty() {
		resp.SessionID = f.s.id
	}
	resp.Topics = f.topics()
	f.forgetDeleted()
	f.replied = true
	return f.memory.attach(resp)
}

// noteMemory tells operators of a reply without records that would have some if there had been memory for them.
func (f *fetch) noteMemory() {
	if !f.starved || f.bytes > 0 {
		return
	}
	f.b.fetches.m.memoryEmpty.Inc()
	f.b.fetches.log.Warn("fetch answered without records: replies that clients are slow to read hold the memory for them",
		zap.Int64("fetch_memory_bytes", f.b.opts.FetchMemory))
}

// reportUnread adds the partitions that a full reply must name although it had no room for their data.
func (f *fetch) reportUnread() {
	for _, p := range f.s.partitions {
		if p == nil || p.result >= 0 {
			continue
		}
		r := fetchResult{p: p}
		if r.err = f.locate(p); r.err == nil {
			r.read.Offsets, r.err = f.offsets(p)
		}
		f.report(p, r)
	}
}

func (f *fetch) offsets(p *fetchPartition) (o streamstore.Offsets, kerr *kafkaproto.Error) {
	var err error
	if p.stream != 0 {
		o, err = f.b.store.Offsets(p.stream)
	}
	switch {
	case err != nil:
		return o, partitionError(err, f.s.usesTopicIDs)
	case p.offset < o.Start || p.offset > o.Next:
		return o, storeError(streamstore.ErrOffsetOutOfRange)
	}
	return o, nil
}

// topics groups the results by topic, in the order in which the session got its partitions. Like Kafka's, a reply may
// name a topic more than once.
func (f *fetch) topics() []kmsg.FetchResponseTopic {
	slices.SortFunc(f.results, func(a, b fetchResult) int { return cmp.Compare(a.p.watchKey, b.p.watchKey) })
	partitions := make([]kmsg.FetchResponseTopicPartition, len(f.results))
	var topics []kmsg.FetchResponseTopic
	for i := range f.results {
		p := f.results[i].p
		if n := len(topics); n == 0 || topics[n-1].Topic != p.name || topics[n-1].TopicID != p.id {
			t := kmsg.NewFetchResponseTopic()
			t.Topic, t.TopicID = p.name, p.id
			t.Partitions = partitions[i:i:len(partitions)]
			topics = append(topics, t)
		}
		t := &topics[len(topics)-1]
		t.Partitions = append(t.Partitions, f.partition(&f.results[i]))
		p.result = -1
	}
	return topics
}

// noTransactions is the list of aborted transactions for readers of committed records.
var noTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}

// partition fills the reply of one partition and notes what it says.
func (f *fetch) partition(r *fetchResult) kmsg.FetchResponseTopicPartition {
	p := r.p
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.Partition = p.partition
	rp.RecordBatches = []byte{} // null makes old clients fail
	if r.err != nil {
		rp.ErrorCode = r.err.Code
		if r.err.Code == kafkaproto.ErrKafkaStorageError.Code && f.req.Version < 6 {
			rp.ErrorCode = kafkaproto.ErrNotLeaderOrFollower.Code
		}
		rp.HighWatermark = -1
		p.sentHighWatermark, p.sentStart = -1, -1
		return rp
	}
	if p.chosen {
		p.chosen = false
		ext.SetInt64(&rp.UnknownTags, ext.TagPosition, p.offset)
	}
	if f.s.follow != nil && p.sentID != p.stream {
		p.sentID = p.stream
		ext.SetInt64(&rp.UnknownTags, ext.TagStreamID, int64(p.stream))
	}
	p.sentHighWatermark, p.sentStart = r.read.HighWatermark, r.read.Start
	rp.HighWatermark = r.read.HighWatermark
	rp.LastStableOffset = r.read.HighWatermark
	rp.LogStartOffset = r.read.Start
	if f.readCommitted {
		rp.AbortedTransactions = noTransactions
	}
	if r.read.Bytes > 0 {
		rp.RecordBatches = joinChunks(r.read.Chunks, r.read.Bytes)
		r.read.Chunks = nil
	}
	return rp
}

// joinChunks returns the bytes of the chunks in one piece; a single chunk is not copied.
func joinChunks(chunks [][]byte, bytes int) []byte {
	if len(chunks) == 1 {
		return chunks[0]
	}
	joined := make([]byte, 0, bytes)
	for _, c := range chunks {
		joined = append(joined, c...)
	}
	return joined
}
