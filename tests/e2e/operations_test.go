package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

// writeStreams makes streams by appending one small record to each, many in one request.
func writeStreams(t *testing.T, b *harness.Broker, prefix string, streams int) {
	t.Helper()
	const perRequest = 1000
	c := harness.Dial(t, b.Addr)
	batch := oneRecord()
	for first := 0; first < streams; first += perRequest {
		req := produceRequest(12, "", 0, batch)
		topic := req.Topics[0]
		req.Topics = nil
		for i := first; i < min(first+perRequest, streams); i++ {
			topic.Topic = fmt.Sprintf("%s/%d", prefix, i)
			req.Topics = append(req.Topics, topic)
		}
		for field, err := range errorCodes(harness.Do[*kmsg.ProduceResponse](c, req)) {
			t.Fatalf("writing streams: %s: %v", field, err)
		}
	}
	awaitFlush(t, b)
}

// TestMemoryOfIdleStreams makes 100,000 streams that nobody uses afterwards. They may cost disk only: no goroutine, no
// place in the table of streams in use, and no memory beyond what the writes themselves have filled.
func TestMemoryOfIdleStreams(t *testing.T) {
	t.Parallel()
	// Small caches, and a collector that runs often, so that the heap in use is close to what is reachable.
	b := harness.Start(t, harness.Config{
		Flags: append([]string{"--flush-interval", "100ms"}, smallMemory...),
		Env:   []string{"GOGC=20"},
	})
	const (
		streams = 100_000
		// afterWriting is for caches (48 MiB) and a memtable of the database (128 MiB), which the writes fill.
		afterWriting = 176 << 20
		// afterRestarts is for noise: about 80 bytes for each stream.
		afterRestarts = 8 << 20
		// inUse is above the number of streams lately used that are remembered.
		inUse = 10_000
		// moreGoroutines are for the database's own work.
		moreGoroutines = 50
	)
	writeStreams(t, b, "few", 10)
	few, goroutines := settledHeap(t, b, 64<<20), b.Metric("go_goroutines")
	writeStreams(t, b, "many", streams)
	many := settledHeap(t, b, few+afterWriting)
	if n := b.Metric("brooklet_streamstore_streams_in_memory"); n > inUse {
		t.Errorf("%.0f streams are in memory", n)
	}
	if n := b.Metric("go_goroutines"); n > goroutines+moreGoroutines {
		t.Errorf("%.0f goroutines, with 10 streams there were %.0f", n, goroutines)
	}
	for range 2 { // the first start reads the database's log into a memtable, the second finds tables
		b.Stop()
		b.Start()
	}
	again := settledHeap(t, b, few+afterRestarts)
	t.Logf("heap: %d KiB with 10 streams, %d KiB after writing %d, %d KiB after restarts", int64(few)>>10, int64(many)>>10, streams, int64(again)>>10)
	if end := endOffset(t, b, "many/99999", 0); end != 1 {
		t.Errorf("the last stream ends at %d, want 1", end)
	}
}

// settledHeap returns the bytes of live objects once they are at most limit. Each scrape makes some garbage, so the
// collector runs again and again.
func settledHeap(t *testing.T, b *harness.Broker, limit float64) float64 {
	t.Helper()
	var heap float64
	until(t, fmt.Sprintf("the heap is at most %.0f bytes", limit), func() bool {
		heap = b.Metric("go_memstats_heap_alloc_bytes")
		return heap <= limit
	})
	return heap
}

// TestProbesAndMetrics looks at the admin endpoint of a broker with many topics and streams.
func TestProbesAndMetrics(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: []string{"--flush-interval", "100ms"}})
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := b.Get(path); status != http.StatusOK {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	if status, _ := b.Get("/no-such-path"); status != http.StatusNotFound {
		t.Errorf("an unknown path: status %d", status)
	}

	const each = 5000
	warmUp(t, b)
	_, before := b.Get("/metrics")
	writeStreams(t, b, "metered", each)
	admin := newAdmin(t, b.Addr)
	names := make([]string, each)
	for i := range names {
		names[i] = fmt.Sprintf("metered-%d", i)
	}
	made, err := admin.CreateTopics(testContext(t), 1, 1, nil, names...)
	if err := errors.Join(err, made.Error()); err != nil {
		t.Fatal(err)
	}
	_, after := b.Get("/metrics")
	const largest = 256 << 10
	if len(after) > largest || countSeries(after) > countSeries(before) {
		t.Errorf("a scrape has %d bytes and %d series, with %d topics and streams fewer it had %d bytes and %d series",
			len(after), countSeries(after), 2*each, len(before), countSeries(before))
	}
	if strings.Contains(after, "metered") {
		t.Error("names of topics or streams are in the metrics")
	}
	t.Logf("a scrape has %d bytes and %d series", len(after), countSeries(after))
}

// warmUp uses each kind of thing once, so that all series are there.
func warmUp(t *testing.T, b *harness.Broker) {
	t.Helper()
	createTopic(t, b, "warm-up", 1)
	writeStreams(t, b, "warm", 1)
	consume(t, b, "warm/0", 0, kgo.NewOffset().AtStart(), 1)
}

func countSeries(scrape string) int {
	n := 0
	for line := range strings.Lines(scrape) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// TestSettings starts the broker with settings that are wrong. All of them must be named at once.
func TestSettings(t *testing.T) {
	t.Parallel()
	const exitSettings = 2
	b := harness.New(t, harness.Config{Flags: []string{"--flush-interval", "soon", "--durability", "perhaps", "--max-message-bytes", "-1"}})
	err := b.TryStart()
	if err == nil {
		t.Fatal("the broker runs with wrong settings")
	}
	if code := b.WaitExit(); code != exitSettings {
		t.Errorf("exit code %d, want %d", code, exitSettings)
	}
	mustSay(t, err, "--flush-interval", "--durability", "--max-message-bytes", "BROOKLET_FLUSH_INTERVAL")
}
