package e2e

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

// TestTwoOnOneDisk starts a second broker on the data directory of the first.
func TestTwoOnOneDisk(t *testing.T) {
	t.Parallel()
	first := harness.Start(t, harness.Config{})
	second := harness.New(t, harness.Config{DataDir: first.DataDir})
	err := second.TryStart()
	if err == nil {
		t.Fatal("a second broker runs on the same data directory")
	}
	if code := second.WaitExit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	mustSay(t, err, "in use by another process", first.DataDir)
	createTopic(t, first, "still-here", 1) // the first is unharmed
}

// A broker that cannot listen to clients takes nothing over from the one that serves them.
func TestOccupiedAddressTakesNothingOver(t *testing.T) {
	t.Parallel()
	flags := []string{"--durability", "remote", "--flush-interval", "50ms"}
	first := harness.Start(t, harness.Config{Flags: flags})
	createTopic(t, first, "kept", 1)
	for _, occupied := range [][]string{{"--listen", first.Addr}, {"--http-listen", first.HTTP}} {
		second := harness.New(t, harness.Config{BucketDir: first.BucketDir, Flags: append(occupied, flags...)})
		if err := second.TryStart(); err == nil {
			t.Fatalf("a broker runs with %v, which is taken", occupied)
		}
		log := second.Log()
		mustSay(t, errors.New(log[len(log)-1].Text), occupied[0], "another process listens there")
		// Fenced, it could not acknowledge this.
		c := harness.Dial(t, first.Addr)
		resp := harness.Do[*kmsg.ProduceResponse](c, produceRequest(9, "kept", 0, oneRecord()))
		if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
			t.Errorf("after a broker with %v: %v", occupied, kerr.ErrorForCode(code))
		}
	}
}

// TestTakeover starts a second broker, with a disk of its own, on the bucket of the first.
func TestTakeover(t *testing.T) {
	t.Parallel()
	const exitFenced = 3
	flags := []string{"--durability", "remote", "--flush-interval", "50ms"}
	first := harness.Start(t, harness.Config{Flags: flags})
	createTopic(t, first, "taken", 1)

	// Every acknowledgement of the first broker counts, also those during the takeover.
	var acked atomic.Int64
	stopped := make(chan error, 1)
	c := harness.Dial(t, first.Addr)
	go func() {
		for {
			req := produceRequest(9, "taken", 0, oneRecord())
			if _, err := c.Write(c.Frame(req)); err != nil {
				stopped <- err
				return
			}
			resp, _, err := c.Receive(req)
			if err != nil {
				stopped <- err
				return
			}
			if p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode == 0 {
				acked.Store(p.BaseOffset + 1)
			} else {
				stopped <- errors.New("refused")
				return
			}
		}
	}()
	until(t, "records before the takeover", func() bool { return acked.Load() >= 5 })

	second := harness.Start(t, harness.Config{BucketDir: first.BucketDir, Flags: flags})
	if code := first.WaitExit(); code != exitFenced {
		t.Errorf("the first broker ended with exit code %d, want %d", code, exitFenced)
	}
	log := first.Log()
	mustSay(t, errors.New(log[len(log)-1].Text), "another broker has opened the same bucket", first.DataDir)
	<-stopped
	end := endOffset(t, second, "taken", 0)
	if end < acked.Load() {
		t.Errorf("the second broker has %d records, the first acknowledged %d", end, acked.Load())
	}
	consume(t, second, "taken", 0, kgo.NewOffset().AtStart(), int(end))
	if got := produceBatch(t, harness.Dial(t, second.Addr), "taken", 0, oneRecord()); got != end {
		t.Errorf("the second broker goes on at offset %d, want %d", got, end)
	}
}

// mustSay wants all texts in an error.
func mustSay(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}
