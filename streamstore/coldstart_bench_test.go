package streamstore

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/brookletmq/brooklet/objstore"
)

var coldStreams = flag.Int("coldstart.streams", 0, "BenchmarkColdStart: this many streams instead of 10,000 and 100,000")

// BenchmarkColdStart opens a store of many streams, with one small record each, whose
// bucket is a folder: with an empty disk from a checkpoint, and with its disk intact. It
// reports the bytes fetched from the bucket.
//
//	go test ./streamstore -run '^$' -bench ColdStart -benchtime 1x -coldstart.streams 1000000
func BenchmarkColdStart(b *testing.B) {
	counts := []int{10_000, 100_000}
	if *coldStreams > 0 {
		counts = []int{*coldStreams}
	}
	for _, count := range counts {
		b.Run(fmt.Sprintf("streams=%d", count), func(b *testing.B) {
			bucket, err := objstore.Open(context.Background(), objstore.Options{URL: "file://" + b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer bucket.Close()
			disk := b.TempDir()
			fillForColdStart(b, bucket, disk, count)
			b.Run("empty", func(b *testing.B) { benchmarkOpen(b, bucket, "", count) })
			b.Run("intact", func(b *testing.B) { benchmarkOpen(b, bucket, disk, count) })
		})
	}
}

func benchmarkOpts(bucket objstore.Bucket, dir string) Options {
	return Options{Dir: dir, FS: vfs.Default, Bucket: bucket, CheckpointCommits: 1 << 30, CheckpointInterval: 1e6 * time.Hour}
}

func fillForColdStart(b *testing.B, bucket objstore.Bucket, dir string, count int) {
	b.Helper()
	s := mustOpen(b, benchmarkOpts(bucket, dir))
	const group = 1000
	for from := 0; from < count; from += group {
		txn := NewTxn()
		for i := from; i < min(from+group, count); i++ {
			txn.Create(fmt.Sprintf("sessions/user-%09d", i), DefaultSettings())
		}
		result, _, err := s.queueTxn(context.Background(), txn)
		if err != nil {
			b.Fatal(err)
		}
		for _, id := range result.Created {
			mustAppend(b, s, id, simpleBatch("a small record"))
		}
	}
	mustFlush(b, s)
	mustCheckpoint(b, s)
	mustClose(b, s)
}

func benchmarkOpen(b *testing.B, bucket objstore.Bucket, dir string, count int) {
	for range b.N {
		at := dir
		if dir == "" {
			at = b.TempDir()
		}
		s := mustOpen(b, benchmarkOpts(bucket, at))
		b.StopTimer()
		r := s.Recovery()
		b.ReportMetric(float64(r.FetchedBytes), "fetched-bytes")
		b.ReportMetric(r.Took.Seconds(), "s/open")
		if (dir == "") != (r.Checkpoint > 0) {
			b.Errorf("recovery: %+v", r)
		}
		if _, err := s.Lookup(fmt.Sprintf("sessions/user-%09d", count-1)); err != nil {
			b.Error(err)
		}
		mustClose(b, s)
		b.StartTimer()
	}
}
