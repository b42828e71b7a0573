package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The shape of benchStreams: an entity is a stream of a few small records, as of a user or a device, that were not
// written together.
const (
	mostEntityRecords = 4
	leastRecordBytes  = 100
	mostRecordBytes   = 300
	// streamsPerRequest is how many streams one Produce request of the load names, and loadConnections and loadInflight
	// how many such requests are on their way.
	streamsPerRequest = 500
	loadConnections   = 4
	loadInflight      = 2
	// entityReads is how many entities each look reads, one after the other.
	entityReads = 2000
	// smallestStreams is where the comparison begins: the number of streams grows tenfold up to -streams.
	smallestStreams = 10_000
)

func entityName(i int) string { return fmt.Sprintf("users/%07d", i) }

// entityRecords is how many records stream i has, 1 to mostEntityRecords.
func entityRecords(i int) int { return 1 + i%mostEntityRecords }

// smallBatches are batches of one record of 100 to 300 bytes to pick from, so that encoding them is no part of the load.
func smallBatches() [][]byte {
	batches := make([][]byte, 101)
	for i := range batches {
		batches[i] = makeRecordBatch(leastRecordBytes + i*(mostRecordBytes-leastRecordBytes)/(len(batches)-1))
	}
	return batches
}

// benchStreams: whether a stream costs the same among a million as among ten thousand. For each number of streams it
// measures appending to streams that the broker makes as it goes, reading single entities, starting, and what idle
// streams take. Beside each figure stands its reference of the same run: Pebble alone with the same records, round trips
// of ApiVersions between the reads, a broker without streams.
func benchStreams(ctx context.Context, work string) error {
	fmt.Printf("\nstreams of 1 to %d records of %d to %d bytes, %d streams a request, made by writing to them\n",
		mostEntityRecords, leastRecordBytes, mostRecordBytes, streamsPerRequest)
	empty, err := emptyBroker(ctx, work)
	if err != nil {
		return err
	}
	fmt.Printf("  empty broker: start-up %v, heap %.1f MB, RSS %.1f MB\n", empty.startUp.Round(time.Millisecond), float64(empty.heap)/mb, float64(empty.rss)/mb)
	for n := min(smallestStreams, *streamCount); ; n = min(n*10, *streamCount) {
		e := entities{ctx: ctx, n: n, rounds: mostEntityRecords, batches: smallBatches(), empty: empty}
		if err := e.run(work); err != nil {
			return err
		}
		if n == *streamCount {
			return nil
		}
	}
}

// resting is a broker that nobody uses.
type resting struct {
	startUp time.Duration
	heap    int64 // without the database's memtables and block cache, which have a size of their own
	rss     int64 // all of it
}

// start starts a broker, and measures that and what it takes once it is there.
func (r *resting) start(ctx context.Context, dir string, args ...string) (*server, error) {
	started := time.Now()
	s, err := startServer(ctx, dir, args...)
	if err != nil {
		return s, err
	}
	r.startUp = time.Since(started)
	return s, r.measure(s)
}

// measure takes the broker's memory.
func (r *resting) measure(s *server) error {
	var err1, err2 error
	if r.heap, err1 = s.liveHeap(); err1 == nil {
		for _, cache := range []string{"memtable", "block_cache"} {
			bytes, err := s.metric("brooklet_streamstore_" + cache + "_bytes")
			r.heap, err1 = r.heap-int64(bytes), errors.Join(err1, err)
		}
	}
	r.rss, err2 = s.residentBytes()
	return errors.Join(err1, err2)
}

func emptyBroker(ctx context.Context, work string) (r resting, err error) {
	dir, err := freshDir(work, "empty")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	s, err := r.start(ctx, dir)
	if err != nil {
		return r, err
	}
	return r, s.stop()
}

// entities is the measurement with n streams.
type entities struct {
	ctx     context.Context
	n       int
	rounds  int // records of a stream at most
	batches [][]byte
	empty   resting
	dir     string
	bucket  string
	extra   map[int]int64 // bytes that readTail added to streams
}

func (e *entities) run(work string) (err error) {
	if e.dir, err = freshDir(work, "streams"); err != nil {
		return err
	}
	defer os.RemoveAll(e.dir)
	e.bucket, e.extra = filepath.Join(e.dir, "bucket"), map[int]int64{}
	fmt.Printf("\n%d streams, %d records\n", e.n, e.records())
	reference, err := e.pebbleReference(work)
	if err != nil {
		return err
	}
	s, err := startServer(e.ctx, e.dir, "--bucket", "file://"+e.bucket)
	if err != nil {
		return err
	}
	if err := errors.Join(e.load(s, reference), e.readTail(s), s.stop()); err != nil {
		return err
	}
	if err := e.restart("restart"); err != nil {
		return err
	}
	if err := e.restart("restart, warm"); err != nil { // the position of the first restart's claim is the only news
		return err
	}
	if err := os.RemoveAll(filepath.Join(e.dir, "data")); err != nil {
		return err
	}
	return e.restart("empty disk")
}

func (e *entities) records() (sum int) {
	for i := range e.n {
		sum += entityRecords(i)
	}
	return sum
}

// batchOf is the batch of the k-th record of stream i.
func (e *entities) batchOf(i, k int) []byte { return e.batches[(i*7+k*31)%len(e.batches)] }

// entityBytes is the size of all batches of stream i.
func (e *entities) entityBytes(i int) (sum int64) {
	sum = e.extra[i]
	for k := range entityRecords(i) {
		sum += int64(len(e.batchOf(i, k)))
	}
	return sum
}

// eachRequest calls fn with the streams of each request of the load: in rounds, so that the records of a stream lie apart.
func (e *entities) eachRequest(connection int, fn func(k int, streams []int) error) error {
	streams := make([]int, 0, streamsPerRequest)
	for k := range e.rounds {
		for from := connection * streamsPerRequest; from < e.n; from += loadConnections * streamsPerRequest {
			streams = streams[:0]
			for i := from; i < min(from+streamsPerRequest, e.n); i++ {
				if k < entityRecords(i) {
					streams = append(streams, i)
				}
			}
			if len(streams) == 0 {
				continue
			}
			if err := fn(k, streams); err != nil {
				return err
			}
		}
	}
	return nil
}

// load writes all records, waits until they are in the bucket, and tells what that took.
func (e *entities) load(s *server, reference float64) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	started := time.Now()
	var bytes atomic.Int64
	err = atOnce(loadConnections, func(i int) error { return e.loadConnection(s.addr, i, &bytes) })
	if err != nil {
		return err
	}
	took := time.Since(started)
	after, err := s.cpu()
	if err != nil {
		return err
	}
	r := float64(e.records()) / took.Seconds()
	fmt.Printf("  %-22s %9.0f records/s  %6.1f MB/s  Pebble alone %9.0f records/s  ratio %.2f  CPU %.1f us/record\n", "append", r,
		rate(bytes.Load(), took), reference, r/reference, float64((after-before).Microseconds())/float64(e.records()))
	return s.awaitFlushed(e.ctx)
}

func (e *entities) loadConnection(addr string, connection int, bytes *atomic.Int64) error {
	c, err := dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	var reply []byte
	waiting := 0
	receive := func() error {
		waiting--
		if reply, err = c.readReply(reply); err != nil {
			return err
		}
		return checkProduceReply(reply)
	}
	err = e.eachRequest(connection, func(k int, streams []int) error {
		if waiting == loadInflight {
			if err := receive(); err != nil {
				return err
			}
		}
		waiting++
		req := newProduceRequest()
		for _, i := range streams {
			batch := e.batchOf(i, k)
			addToProduce(req, entityName(i), 0, batch)
			bytes.Add(int64(len(batch)))
		}
		if _, err := c.Write(frame(req)); err != nil {
			return err
		}
		return e.ctx.Err()
	})
	for err == nil && waiting > 0 {
		err = receive()
	}
	return err
}

// pebbleReference has Pebble alone take the same records, as rows of one batch for each request of the load, synced, and
// dropped again as the broker does when they are in the bucket. It returns records a second.
func (e *entities) pebbleReference(work string) (float64, error) {
	dir, err := freshDir(work, "reference")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	db, err := openReference(dir)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	const dropAfter = 64_000
	var next atomic.Int64
	started := time.Now()
	err = atOnce(loadConnections*loadInflight, func(w int) error {
		odd := 0
		return e.eachRequest(w/loadInflight, func(k int, streams []int) error {
			if odd++; odd%loadInflight != w%loadInflight {
				return nil
			}
			batch := db.NewBatch()
			first := next.Add(int64(len(streams))) - int64(len(streams))
			for j, i := range streams {
				if err := batch.Set(tailKey(first+int64(j)), e.batchOf(i, k), nil); err != nil {
					return err
				}
			}
			if to := first - dropAfter; to > 0 {
				if err := batch.DeleteRange(tailKey(to), tailKey(to+int64(len(streams))), nil); err != nil {
					return err
				}
			}
			return errors.Join(db.Apply(batch, pebble.Sync), batch.Close(), e.ctx.Err())
		})
	})
	return float64(e.records()) / time.Since(started).Seconds(), err
}

// readTail reads the newest record of entities right after it was written.
func (e *entities) readTail(s *server) error {
	const reads = entityReads / 4 // each writes a record before
	c, err := dial(s.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	l := newLook(c)
	var reply []byte
	for range reads {
		i := rand.IntN(e.n)
		req := newProduceRequest()
		addToProduce(req, entityName(i), 0, e.batchOf(i, 0))
		if _, err := c.Write(frame(req)); err != nil {
			return err
		}
		if reply, err = c.readReply(reply); err != nil {
			return err
		}
		base, err := producedOffset(reply)
		if err != nil {
			return err
		}
		if err := l.entity(entityName(i), base, base+1); err != nil {
			return err
		}
		e.extra[i] += int64(len(e.batchOf(i, 0)))
	}
	l.print("read at the tail")
	return e.ctx.Err()
}

// restart starts the broker again and reads entities that it has not seen since.
func (e *entities) restart(what string) (err error) {
	var r resting
	s, err := r.start(e.ctx, e.dir, "--bucket", "file://"+e.bucket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	fmt.Printf("  %-22s %9v  (empty broker %v)\n", what+": start-up", r.startUp.Round(time.Millisecond), e.empty.startUp.Round(time.Millisecond))
	database, err := s.metric("brooklet_streamstore_database_disk_bytes")
	if err != nil {
		return err
	}
	bucket, err := folderBytes(e.bucket)
	if err != nil {
		return err
	}
	perStream := func(v int64) float64 { return float64(v) / float64(e.n) }
	fmt.Printf("  %-22s %9.1f B heap  %.1f B RSS  %.0f B local disk  %.0f B bucket (records and their batch headers: %.0f B)\n", "  per idle stream",
		perStream(r.heap-e.empty.heap), perStream(r.rss-e.empty.rss), perStream(int64(database)), perStream(bucket), perStream(e.allBytes()))
	return e.readCold(s)
}

func (e *entities) allBytes() (sum int64) {
	for i := range e.n {
		sum += e.entityBytes(i)
	}
	return sum
}

// readCold reads all records of random entities, and tells how many bytes that took from the bucket.
func (e *entities) readCold(s *server) error {
	const fetched = "brooklet_streamstore_segment_read_bytes_total"
	c, err := dial(s.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	before, err := s.metric(fetched)
	if err != nil {
		return err
	}
	l := newLook(c)
	own := int64(0)
	seen := map[int]bool{}
	for len(seen) < min(entityReads, e.n/2) {
		i := rand.IntN(e.n)
		if seen[i] {
			continue
		}
		seen[i] = true
		own += e.entityBytes(i)
		if err := l.entity(entityName(i), 0, int64(entityRecords(i))); err != nil {
			return err
		}
	}
	after, err := s.metric(fetched)
	if err != nil {
		return err
	}
	l.print("  read, first touch")
	fmt.Printf("  %-22s %9.2f x own bytes\n", "  fetched from bucket", (after-before)/float64(own))
	return e.ctx.Err()
}

// look reads entities over one connection, with a round trip of ApiVersions after each for reference.
type look struct {
	c                *conn
	reply            []byte
	reads, roundTrip []time.Duration
	err              error
}

func newLook(c *conn) *look { return &look{c: c} }

// entity reads the records from one offset up to another.
func (l *look) entity(name string, from, to int64) error {
	started := time.Now()
	for from < to {
		reply, err := l.do(fetchFrame(name, 0, from, fetchBytes))
		if err != nil {
			return err
		}
		records, err := fetchedRecords(reply)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if from, err = nextOffset(records, from); err != nil {
			return err
		}
		if time.Since(started) > time.Minute {
			return fmt.Errorf("%s: no records at offset %d of %d after a minute", name, from, to)
		}
	}
	l.reads = append(l.reads, time.Since(started))
	return l.trip()
}

// trip makes one round trip of ApiVersions.
func (l *look) trip() error {
	started := time.Now()
	_, err := l.do(apiVersionsFrame)
	l.roundTrip = append(l.roundTrip, time.Since(started))
	return err
}

func (l *look) do(frame []byte) ([]byte, error) {
	if _, err := l.c.Write(frame); err != nil {
		return nil, err
	}
	var err error
	l.reply, err = l.c.readReply(l.reply)
	return l.reply, err
}

func (l *look) print(what string) {
	reads, trips := percentiles(l.reads, 0.5, 0.99), percentiles(l.roundTrip, 0.5, 0.99)
	fmt.Printf("  %-22s %9v p50  %v p99  (round trip of ApiVersions %v p50  %v p99)\n", what, micros(reads[0]), micros(reads[1]), micros(trips[0]), micros(trips[1]))
}

func micros(d time.Duration) time.Duration { return d.Round(time.Microsecond) }

var apiVersionsFrame = frame(kmsg.NewPtrApiVersionsRequest())

// producedOffset is the offset of the batch that a Produce request of one partition wrote.
func producedOffset(reply []byte) (int64, error) {
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = produceVersion
	if err := resp.ReadFrom(reply[5:]); err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, errors.New("produce: the reply is not about one partition")
	}
	p := resp.Topics[0].Partitions[0]
	return p.BaseOffset, kerr.ErrorForCode(p.ErrorCode)
}

// atOnce calls fn n times at once, and returns what failed.
func atOnce(n int, fn func(i int) error) error {
	failures := make(chan error, n)
	for i := range n {
		go func() { failures <- fn(i) }()
	}
	var err error
	for range n {
		err = errors.Join(err, <-failures)
	}
	return err
}

// folderBytes is the size of all files in a folder.
func folderBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}
