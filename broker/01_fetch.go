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
	"golang.org/x/sync/semaphore"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// Fetch (key 1), v4 to v18.
//
// Behaviour:
//   - A reply leaves when it has min bytes, when a partition has an error, at max wait, or when the broker drains.
//     Waiting costs nothing: the partitions are registered in a watch, and none is looked at before it has news.
//   - Whole batches are returned, the first one being that which contains the fetch offset. The first batch of the
//     first partition with data comes whatever its size (KIP-74), also when partitions before it are empty.
//   - A request outside a session is served in the order of its partitions; rotating them is up to the client, as in
//     Kafka. A session rotates: partitions that were served go behind those that were not.
//   - Records held for replies in flight are bounded by Options.FetchMemory.
//   - Reads from the bucket obey max wait too: what was not read in time is read on in the background, for the next try.
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
	// replyCopies is how often the records of a reply are in memory at the worst moment: gathered, and encoded.
	replyCopies = 2

	isolationReadCommitted = 1
)

// fetcher is what all fetches share.
type fetcher struct {
	sessions *fetchSessions
	// memory bounds the records of replies in flight; memoryBytes is all of it.
	memory      *semaphore.Weighted
	memoryBytes int64
	m           *fetchMetrics
	log         *zap.Logger // for what may happen very often: a few lines a minute
}

func newFetcher(opts *Options) *fetcher {
	m := newFetchMetrics(opts.Registerer)
	return &fetcher{
		sessions:    newFetchSessions(opts.Store, opts.FetchSessionSlots, m),
		memory:      semaphore.NewWeighted(opts.FetchMemory),
		memoryBytes: opts.FetchMemory,
		m:           m,
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
	memoryBytes       prometheus.Gauge
	memoryWaits       prometheus.Counter
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
		memoryBytes:       gauge("fetch_memory_bytes", "Memory reserved for the records of fetch replies in flight."),
		memoryWaits:       counter("fetch_memory_waits_total", "Fetches that had to wait for memory."),
	}
}

// handleFetch leaves everything to the reply, which may wait: requests of a session follow each other there too.
func handleFetch(b *Broker, _ context.Context, r *kafkaproto.Request) (kafkaproto.Reply, error) {
	req := r.Body.(*kmsg.FetchRequest)
	hurry := r.Conn.Draining()
	return func(ctx context.Context) (kmsg.Response, error) { return b.fetch(ctx, req, hurry) }, nil
}

// fetch serves one request. It answers at once when hurry is closed.
func (b *Broker) fetch(ctx context.Context, req *kmsg.FetchRequest, hurry <-chan struct{}) (kmsg.Response, error) {
	s, kerr := b.fetches.sessions.begin(req)
	if kerr != nil {
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ErrorCode = kerr.Code
		return resp, nil
	}
	f := newFetch(b, req, s)
	defer f.end()
	if err := f.run(ctx, hurry); err != nil {
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
}

// fetch is one request being served.
type fetch struct {
	b    *Broker
	req  *kmsg.FetchRequest
	s    *fetchSession
	full bool // the reply names every partition

	maxWait            time.Duration
	minBytes, maxBytes int
	readCommitted      bool

	results []fetchResult
	bytes   int  // of all results
	failed  bool // a result is an error
	stopped bool // no room, memory or time for more, though there may be data
	// served returned data or an error and go to the end of the queue when the fetch is over; unread have data that
	// did not come along and go to its front.
	served, unread []*fetchPartition
	memory         reservation
	replied        bool // the session is ready for its next request
}

// fetchResult is what the reply says about one partition.
type fetchResult struct {
	p    *fetchPartition
	err  *kafkaproto.Error
	read streamstore.ReadResult
}

func newFetch(b *Broker, req *kmsg.FetchRequest, s *fetchSession) *fetch {
	maxBytes := min(max(int(req.MaxBytes), 0), b.opts.FetchMaxBytes)
	return &fetch{
		b:             b,
		req:           req,
		s:             s,
		full:          isFullFetch(req),
		maxWait:       time.Duration(req.MaxWaitMillis) * time.Millisecond,
		minBytes:      min(int(req.MinBytes), maxBytes),
		maxBytes:      maxBytes,
		readCommitted: req.IsolationLevel == isolationReadCommitted,
		memory:        reservation{pool: b.fetches},
	}
}

// run reads until the reply is due. An error means that the connection is gone.
func (f *fetch) run(ctx context.Context, hurry <-chan struct{}) error {
	wait, cancel := context.WithTimeout(ctx, max(f.maxWait, fetchReadGrace))
	defer cancel()
	f.s.takeNews()
	f.pass(wait)
	if f.due() {
		return ctx.Err()
	}
	timer := time.NewTimer(f.maxWait)
	defer timer.Stop()
	for !f.due() {
		if !f.s.startWatch(f.b.store) {
			select {
			case <-f.s.watch.Ready():
			case <-timer.C:
				return ctx.Err()
			case <-f.b.draining:
				return ctx.Err()
			case <-hurry:
				return ctx.Err()
			case <-ctx.Done():
				return ctx.Err()
			}
			f.s.takeNews()
		}
		f.pass(wait)
	}
	return ctx.Err()
}

// due reports whether the reply may leave before its time is up.
func (f *fetch) due() bool {
	return f.maxWait <= 0 || f.bytes >= f.minBytes || f.failed || f.stopped || len(f.s.byKey) == 0
}

// pass serves the queued partitions until the queue is empty or the reply is full.
func (f *fetch) pass(ctx context.Context) {
	grace := false
	for !f.stopped {
		p := f.s.queue.pop()
		if p == nil {
			return
		}
		if !grace && f.due() {
			// The reply need not wait any more: what is at hand may come along.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, fetchReadGrace)
			defer cancel()
			grace = true
		}
		f.serve(ctx, p)
	}
}

// serve reads one partition, instead of what was read of it before in this fetch.
func (f *fetch) serve(ctx context.Context, p *fetchPartition) {
	f.withdraw(p)
	room := f.maxBytes - f.bytes
	if f.bytes > 0 && room <= 0 {
		f.stop(p)
		return
	}
	limit := min(room, max(int(p.maxBytes), 0))
	if !f.memory.reserve(ctx, limit, f.bytes == 0) {
		f.stop(p)
		return
	}
	f.b.fetches.m.partitionReads.Inc()
	read, kerr, timedOut := f.read(ctx, p, streamstore.ReadOptions{MaxBytes: limit, MinOneBatch: f.bytes == 0})
	f.memory.settle(limit, read.Bytes)
	switch {
	case timedOut:
		f.stop(p)
	case kerr != nil:
		f.failed = true
		f.report(p, fetchResult{p: p, err: kerr})
		f.served = append(f.served, p)
	case read.Bytes > 0:
		f.bytes += read.Bytes
		f.report(p, fetchResult{p: p, read: read})
		f.served = append(f.served, p)
	default:
		f.serveEmpty(p, read, limit == room)
	}
}

// serveEmpty deals with a partition that returned no data: either there is none, or its next batch did not fit.
func (f *fetch) serveEmpty(p *fetchPartition, read streamstore.ReadResult, noRoom bool) {
	if f.full || p.result >= 0 || read.HighWatermark != p.sentHighWatermark || read.Start != p.sentStart {
		f.report(p, fetchResult{p: p, read: read})
	}
	if p.offset >= read.HighWatermark {
		return
	}
	if noRoom {
		f.stop(p)
		return
	}
	f.unread = append(f.unread, p)
}

// stop ends the reading; p is the first one that has to wait for the next fetch.
func (f *fetch) stop(p *fetchPartition) {
	f.stopped = true
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

// withdraw takes back what an earlier pass read of p.
func (f *fetch) withdraw(p *fetchPartition) {
	if p.result < 0 {
		return
	}
	r := &f.results[p.result]
	if r.read.Bytes == 0 {
		return
	}
	f.bytes -= r.read.Bytes
	f.memory.settle(r.read.Bytes, 0)
	r.read.Bytes, r.read.Chunks = 0, nil
}

// read finds the partition's stream, if that is not known, and reads from it. A read that takes longer than ctx is no
// error.
func (f *fetch) read(ctx context.Context, p *fetchPartition, opts streamstore.ReadOptions) (read streamstore.ReadResult, kerr *kafkaproto.Error, timedOut bool) {
	for again := true; ; again = false {
		if kerr := f.locate(p); kerr != nil {
			return read, kerr, false
		}
		read, err := f.b.store.Read(ctx, p.stream, p.offset, opts)
		switch {
		case err == nil:
			if f.req.Version < 10 && holdsZstd(read.Chunks) {
				return streamstore.ReadResult{}, errZstdTooNew, false
			}
			return read, nil, false
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return streamstore.ReadResult{}, nil, true
		case errors.Is(err, streamstore.ErrNoStream) && again:
			// Deleted, and perhaps made anew under the same name.
			f.s.detach(p)
		default:
			return streamstore.ReadResult{}, f.readError(err), false
		}
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

// locate makes sure that p has a stream, and checks the leader epoch that the client knows.
func (f *fetch) locate(p *fetchPartition) *kafkaproto.Error {
	if p.stream == 0 {
		stream, kerr := f.b.lookupPartition(p.name, p.id, f.s.usesTopicIDs, p.partition)
		if kerr != nil {
			return kerr
		}
		if err := f.s.attach(p, stream); err != nil {
			return partitionError(err, f.s.usesTopicIDs)
		}
	}
	return checkLeaderEpoch(p.leaderEpoch)
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

// holdsZstd looks at the headers of batches back to back.
func holdsZstd(chunks [][]byte) bool {
	for _, chunk := range chunks {
		for len(chunk) > 0 {
			batch, rest, err := kafkaproto.NextBatch(chunk)
			if err != nil {
				return false
			}
			if batch.Codec() == kafkaproto.CodecZstd {
				return true
			}
			chunk = rest
		}
	}
	return false
}

// reply ends the fetch: it fills the response and leaves the session as the next request will find it.
func (f *fetch) reply() kmsg.Response {
	f.s.queue.unpop(f.unread)
	if f.full {
		f.reportUnread()
	}
	for _, p := range f.served {
		f.s.queue.push(p)
	}
	resp := f.req.ResponseKind().(*kmsg.FetchResponse)
	if len(f.s.byKey) > 0 {
		resp.SessionID = f.s.id
	}
	resp.Topics = f.topics()
	f.replied = true
	return f.memory.attach(resp)
}

// reportUnread adds the partitions that a full reply must name although it had no room for their data.
func (f *fetch) reportUnread() {
	for _, p := range f.s.partitions {
		if p.result >= 0 {
			continue
		}
		r := fetchResult{p: p}
		if r.err = f.locate(p); r.err == nil {
			r.read.Offsets, r.err = f.offsets(p)
		}
		f.report(p, r)
	}
}

func (f *fetch) offsets(p *fetchPartition) (streamstore.Offsets, *kafkaproto.Error) {
	o, err := f.b.store.Offsets(p.stream)
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

// reservation is what one fetch holds of the memory for replies, in bytes of records. It never exceeds the whole
// pool, so that a batch larger than the pool still gets through, alone.
type reservation struct {
	pool  *fetcher
	bytes int // records, asked for
	held  int64
}

// reserve asks for n bytes of records. Only with wait, which must mean that the fetch holds nothing yet, does it wait
// until ctx ends: fetches that held memory and waited for more could wait for each other.
func (r *reservation) reserve(ctx context.Context, n int, wait bool) bool {
	want := r.weight(r.bytes+n) - r.held
	if !r.pool.memory.TryAcquire(want) {
		if !wait {
			return false
		}
		r.pool.m.memoryWaits.Inc()
		if r.pool.memory.Acquire(ctx, want) != nil {
			return false
		}
	}
	r.bytes += n
	r.hold(r.held + want)
	return true
}

// settle replaces a reservation of n bytes by what was really used. A first batch larger than n may take more than
// there is: one batch per fetch is the price of not blocking its reader for good.
func (r *reservation) settle(n, used int) {
	r.bytes += used - n
	want := r.weight(r.bytes)
	switch {
	case want < r.held:
		r.pool.memory.Release(r.held - want)
		r.hold(want)
	case want > r.held && r.pool.memory.TryAcquire(want-r.held):
		r.hold(want)
	}
}

func (r *reservation) weight(records int) int64 {
	return min(int64(records)*replyCopies, r.pool.memoryBytes)
}

func (r *reservation) hold(n int64) {
	r.pool.m.memoryBytes.Add(float64(n - r.held))
	r.held = n
}

func (r *reservation) release() {
	r.pool.memory.Release(r.held)
	r.hold(0)
	r.bytes = 0
}

// attach hands the reservation over to the response, which holds it until it is written or dropped.
func (r *reservation) attach(resp *kmsg.FetchResponse) kmsg.Response {
	if r.held == 0 {
		return resp
	}
	out := &fetchReply{FetchResponse: resp, memory: *r}
	r.held, r.bytes = 0, 0
	return out
}

// fetchReply is a response with records and the memory reserved for them.
type fetchReply struct {
	*kmsg.FetchResponse
	memory reservation
}

// Release implements [kafkaproto.Releaser].
func (r *fetchReply) Release() { r.memory.release() }

// AppendTo makes room for the records first, so that appending does not copy them again and again.
func (r *fetchReply) AppendTo(dst []byte) []byte {
	return r.FetchResponse.AppendTo(slices.Grow(dst, r.memory.bytes+r.memory.bytes/64))
}
