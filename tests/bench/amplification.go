package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

var ampScale = flag.Float64("scale", 0.1, "size of the scenario amplification: 1 appends 10 GB to each set of 1, 1000 and 1000000 streams")

// The shape of benchAmplification at full size, and the broker's settings for it, which are its defaults. A smaller one
// has fewer streams, smaller flushes and compacts earlier, so that as many objects and levels come about.
const (
	ampBytes           = 10e9
	ampFlushBytes      = 32 << 20
	ampCompactionBytes = 1 << 30
	ampRequestBytes    = 512 << 10
	ampReads           = 50 // streams that are read
	ampOff             = 1 << 50
)

// benchAmplification: what is written to the bucket and to the local disk per byte appended, and what is read from the
// bucket per byte of history returned, before and after compaction. Compaction waits until all is appended and the first
// reads are done; what it merges is the same as if it had kept pace.
func benchAmplification(ctx context.Context, work string) error {
	total := int64(ampBytes * *ampScale)
	fmt.Printf("\namplification: %d MB of records of 1 KiB; cold reads of up to %d whole streams\n", total/1e6, ampReads)
	fmt.Printf("%-10s %28s %32s %32s\n", "", "written per byte appended to", "read before: bytes and requests", "read after: bytes and requests")
	fmt.Printf("%-10s %9s %9s %8s %16s %15s %16s %15s\n", "streams", "log", "segments", "disk", "per byte", "per MB", "per byte", "per MB")
	for _, streams := range []int{1, int(1000 * *ampScale), int(1e6 * *ampScale)} {
		a := amplification{ctx: ctx, streams: max(streams, 1), total: total}
		if err := a.run(work); err != nil {
			return err
		}
	}
	return nil
}

// amplification is the measurement with one number of streams.
type amplification struct {
	ctx      context.Context
	streams  int
	total    int64 // bytes to append
	dir      string
	batch    []byte
	records  int // of a batch
	rounds   int // batches of each stream
	appended int64
}

func ampStream(i int) string { return fmt.Sprintf("amp/%07d", i) }

func (a *amplification) start(compactionBytes int64) (*server, error) {
	return startServer(a.ctx, a.dir, "--bucket", "file://"+filepath.Join(a.dir, "bucket"),
		"--flush-bytes", fmt.Sprint(max(int64(ampFlushBytes**ampScale), 64<<10)),
		"--flush-interval", "10m", "--compaction-bandwidth", fmt.Sprint(1<<40),
		"--compaction-bytes", fmt.Sprint(compactionBytes))
}

// phase runs a broker, and returns what it has written to the bucket and to disk.
func (a *amplification) phase(compactionBytes int64, use func(s *server) error) (bucket, disk float64, err error) {
	s, err := a.start(compactionBytes)
	if err != nil {
		return 0, 0, err
	}
	if err = use(s); err == nil {
		bucket, err = s.metric(`brooklet_objstore_transferred_bytes_total{op="create"}`)
	}
	if err == nil {
		var written int64
		written, err = s.written()
		disk = float64(written) - bucket // the bucket is a folder of the same disk
	}
	return bucket, disk, errors.Join(err, s.stop())
}

func (a *amplification) run(work string) (err error) {
	if a.dir, err = freshDir(work, "amplification"); err != nil {
		return err
	}
	defer os.RemoveAll(a.dir)
	// As many records a batch as make a request of all streams large enough; one where there are many streams.
	size := min(max(ampRequestBytes/a.streams, 1024), 16<<10)
	a.batch = makeBatch(size)
	a.records = int(binary.BigEndian.Uint32(a.batch[57:])) // record count of the RecordBatch v2
	a.rounds = int(max(1, a.total/int64(a.streams*len(a.batch))))
	a.appended = int64(a.rounds) * int64(a.streams) * int64(len(a.batch))
	log, disk1, err := a.phase(ampOff, a.load)
	if err != nil {
		return err
	}
	var before, after coldReads
	if _, _, err = a.phase(ampOff, func(s *server) error { return before.measure(a, s) }); err != nil {
		return err
	}
	segments, disk2, err := a.phase(max(int64(ampCompactionBytes**ampScale), 1<<20), a.awaitCompaction)
	if err != nil {
		return err
	}
	if _, _, err = a.phase(ampOff, func(s *server) error { return after.measure(a, s) }); err != nil {
		return err
	}
	per := func(n float64) float64 { return n / float64(a.appended) }
	fmt.Printf("%-10d %9.2f %9.2f %8.2f %16.2f %15.1f %16.2f %15.1f\n", a.streams, per(log), per(segments), per(disk1+disk2),
		before.bytesPerByte(), before.requestsPerMB(), after.bytesPerByte(), after.requestsPerMB())
	return nil
}

// load appends to all streams in rounds, as many as fit into each request.
func (a *amplification) load(s *server) error {
	perRequest := max(1, ampRequestBytes/len(a.batch))
	var round atomic.Int64 // of all streams
	requests := (a.streams + perRequest - 1) / perRequest
	err := atOnce(loadConnections, func(int) error {
		c, err := dial(s.addr)
		if err != nil {
			return err
		}
		defer c.Close()
		var reply []byte
		for {
			k := int(round.Add(1) - 1)
			if k >= a.rounds*requests || a.ctx.Err() != nil {
				return a.ctx.Err()
			}
			req := newProduceRequest()
			for i := k % requests * perRequest; i < min((k%requests+1)*perRequest, a.streams); i++ {
				addToProduce(req, ampStream(i), 0, a.batch)
			}
			if _, err := c.Write(frame(req)); err != nil {
				return err
			}
			if reply, err = c.readReply(reply); err != nil {
				return err
			}
			if err := checkProduceReply(reply); err != nil {
				return err
			}
		}
	})
	return err // stopping the broker flushes the rest
}

// awaitCompaction waits until the broker has looked twice for something to compact and found nothing.
func (a *amplification) awaitCompaction(s *server) error {
	const quiet = 25 * time.Second // it looks every 10 s
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, since := -1., time.Now()
	for time.Since(since) < quiet {
		select {
		case <-tick.C:
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
		written, err := s.metric(`brooklet_objstore_transferred_bytes_total{op="create"}`)
		if err != nil {
			return err
		}
		if written != last {
			last, since = written, time.Now()
		}
	}
	return nil
}

// coldReads are reads of whole streams from the bucket.
type coldReads struct{ returned, read, requests float64 }

func (r *coldReads) bytesPerByte() float64  { return r.read / r.returned }
func (r *coldReads) requestsPerMB() float64 { return r.requests / (r.returned / mb) }

func (r *coldReads) measure(a *amplification, s *server) error {
	requests, err1 := s.metric(`brooklet_objstore_operations_total{op="get_range"}`)
	bytes, err2 := s.metric(`brooklet_objstore_transferred_bytes_total{op="get_range"}`)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	n := min(a.streams, ampReads)
	for i := range n {
		to := int64(a.rounds * a.records)
		to = min(to, int64(200e6)/int64(len(a.batch))*int64(a.records)) // a part of a long one will do
		got, err := consume(a.ctx, s.addr, ampStream(i*(a.streams/n)), 0, 0, to, 1<<20)
		if err != nil {
			return err
		}
		r.returned += float64(got)
	}
	after, err1 := s.metric(`brooklet_objstore_operations_total{op="get_range"}`)
	bytesAfter, err2 := s.metric(`brooklet_objstore_transferred_bytes_total{op="get_range"}`)
	r.requests, r.read = after-requests, bytesAfter-bytes
	return errors.Join(err1, err2)
}
