// Command bench measures the broker on this machine and prints each figure beside
// its reference from the same run, because machines are noisy: a ratio holds where
// a bare rate does not.
//
// It starts the given binary as a user does and talks to it over loopback, so that
// client and broker share the machine's cores. Run it with: make bench
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"
)

var (
	brooklet      = flag.String("brooklet", "bin/brooklet", "the binary to measure")
	dir           = flag.String("dir", "", "folder for data; default: a new one in the system's temporary folder")
	duration      = flag.Duration("time", 8*time.Second, "time per produce scenario, and per part of the scenario followers")
	only          = flag.String("only", "", "comma-separated scenarios: produce,consume,latency,idle,groups,streams,followers,amplification; default all")
	streamCount   = flag.Int("streams", 100_000, "largest number of streams in the scenarios streams and followers; the full size is 1000000")
	followerCount = flag.Int("followers", 2000, "readers that wait for records in the scenario followers; the full size is 50000")
	perConnection = flag.Int("per-connection", 1, "streams that each connection of the scenario followers follows; more than one where the limit of open files is below the number of followers")
	ingestRate    = flag.Int("ingest", 20, "MB/s that the scenario followers writes")
	verbose       = flag.Bool("v", false, "pass the broker's log through")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	work := *dir
	if work == "" {
		made, err := os.MkdirTemp("", "brooklet-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(made)
		work = made
	}
	fmt.Printf("%d cores, %s, data in %s\n", runtime.NumCPU(), runtime.Version(), work)
	scenarios := []struct {
		name string
		run  func(context.Context, string) error
	}{
		{"produce", benchProduce},
		{"consume", benchConsume},
		{"latency", benchLatency},
		{"idle", benchIdle},
		{"groups", benchGroups},
		{"streams", benchStreams},
		{"followers", benchFollowers},
		{"amplification", benchAmplification},
	}
	for _, s := range scenarios {
		if *only != "" && !strings.Contains(","+*only+",", ","+s.name+",") {
			continue
		}
		if err := s.run(ctx, work); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

const mb = 1e6

func rate(bytes int64, took time.Duration) float64 { return float64(bytes) / mb / took.Seconds() }
