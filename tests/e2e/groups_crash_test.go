package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/tests/harness"
)

const (
	crashGroup      = "crash"
	crashTopic      = "worked-on"
	crashPartitions = 4
)

// TestGroupKill kills the broker again and again while a group works. Members process records, commit them and wait for
// the acknowledgement.
func TestGroupKill(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, durability string
		kills            int
		// loseDisk removes the data directory each time.
		loseDisk bool
	}{
		{"local durability", "local", 10, false},
		{"remote durability, disk lost", "remote", 5, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := harness.Start(t, harness.Config{Flags: []string{"--durability", test.durability, "--flush-interval", "50ms"}})
			createTopic(t, b, crashTopic, crashPartitions)
			j := newJournal(t)
			stopProducing := j.produce(b)
			// The dynamic member is there all the time. The static one dies with each broker and comes again: it must go on
			// from what it has committed.
			dynamic, static := j.join(b), j.join(b, kgo.InstanceID("static"))
			stopWatching := j.watch(b)
			for i := range test.kills {
				j.awaitCommits(2*crashPartitions, crashPartitions)
				if i == test.kills/2 && !test.loseDisk {
					// This one finds the group in a rebalance.
					dynamic.stop()
					dynamic = j.join(b)
				}
				b.Kill()
				if test.loseDisk {
					if err := os.RemoveAll(b.DataDir); err != nil {
						t.Fatal(err)
					}
				}
				static.stop()
				static = j.join(b, kgo.InstanceID("static"))
				b.Start()
			}
			j.awaitCommits(2*crashPartitions, crashPartitions)
			ends := stopProducing()
			until(t, "all records are committed", func() bool { return j.committedAll(ends) })
			dynamic.stop()
			static.stop()
			stopWatching()
			j.report(ends)
		})
	}
}

// TestConsumerGroupKill is the same with a group whose partitions the broker assigns (KIP-848): its members go on where
// they were, in whatever state of a reconciliation it died.
func TestConsumerGroupKill(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, durability string
		kills            int
		// loseDisk removes the data directory each time.
		loseDisk bool
	}{
		{"local durability", "local", 10, false},
		{"remote durability, disk lost", "remote", 5, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := harness.Start(t, harness.Config{Flags: []string{
				"--durability", test.durability, "--flush-interval", "50ms",
				// The session outlasts any pause of the broker, so that no member is taken for dead that only waits.
				"--group-consumer-heartbeat-interval", "200ms", "--group-consumer-session-timeout", "10s",
			}})
			createTopic(t, b, crashTopic, crashPartitions)
			j := newJournal(t)
			j.member = []kgo.Opt{kgo.ServerSideBalancer()}
			stopProducing := j.produce(b)
			dynamic, static := j.join(b), j.join(b, kgo.InstanceID("static"))
			stopWatching := j.watch(b)
			for i := range test.kills {
				j.awaitCommits(2*crashPartitions, crashPartitions)
				switch i % 5 {
				case 1, 4: // the static member is away when the broker dies, and its partitions wait for it
					static.stop()
				case 2: // the broker dies while the partitions of one that has left go to one that has come
					dynamic.stop()
					dynamic = j.join(b)
				}
				b.Kill()
				if test.loseDisk {
					if err := os.RemoveAll(b.DataDir); err != nil {
						t.Fatal(err)
					}
				}
				switch i % 5 {
				case 1, 4:
					static = j.join(b, kgo.InstanceID("static"))
				case 3: // a member dies with the broker, which finds out when its session ends
					dynamic.die()
					dynamic = j.join(b)
				}
				b.Start()
			}
			j.awaitCommits(2*crashPartitions, crashPartitions)
			j.checkConsumerGroup(b)
			ends := stopProducing()
			until(t, "all records are committed", func() bool { return j.committedAll(ends) })
			dynamic.stop()
			static.stop()
			stopWatching()
			j.report(ends)
		})
	}
}

// checkConsumerGroup makes sure that the members did not fall back to the classic protocol.
func (j *journal) checkConsumerGroup(b *harness.Broker) {
	j.t.Helper()
	ctx := testContext(j.t)
	described, err := newAdmin(j.t, b.Addr).DescribeConsumerGroups(ctx, crashGroup)
	if err == nil {
		err = described.Error()
	}
	if err != nil {
		j.t.Fatalf("describing the group: %v", err)
	}
	if n := len(described[crashGroup].Members); n != 2 {
		j.t.Errorf("the group has %d members, want 2", n)
	}
}

// journal knows what a group has done and holds it to what committing promises.
type journal struct {
	t *testing.T
	// member are options of all members.
	member []kgo.Opt

	mu sync.Mutex
	// processed and committed are the ends, per partition, of what any member has processed and of what an acknowledged
	// commit covers; never is committed above processed.
	processed, committed [crashPartitions]int64
	commits              [crashPartitions]int
	// observed is the end of what is committed as far as any broker has said. None speaks of a commit that may be lost.
	observed [crashPartitions]int64
	// handled counts records as they are processed, resumed how often a member began to read a partition.
	handled, resumed int
	faults           int
}

func newJournal(t *testing.T) *journal { return &journal{t: t} }

// fault fails the test. The first few tell what is wrong.
func (j *journal) fault(format string, args ...any) {
	if j.faults++; j.faults <= 10 {
		j.t.Errorf(format, args...)
	}
}

// produce writes the numbers 0, 1, 2, … to each partition until it is told to stop, and then returns where each ends.
func (j *journal) produce(b *harness.Broker) (stop func() (ends [crashPartitions]int64)) {
	c := newKgo(j.t, b.Addr, append(patient(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(crashTopic))...)
	ctx, cancel := context.WithCancel(context.Background())
	j.t.Cleanup(cancel)
	done := make(chan struct{})
	var next int64
	var failure error
	go func() {
		defer close(done)
		for ctx.Err() == nil && failure == nil {
			records := make([]*kgo.Record, crashPartitions)
			for p := range records {
				records[p] = &kgo.Record{Partition: int32(p), Value: strconv.AppendInt(nil, next, 10)}
			}
			failure = c.ProduceSync(context.Background(), records...).FirstErr()
			next++
		}
	}()
	return func() (ends [crashPartitions]int64) {
		j.t.Helper()
		cancel()
		select {
		case <-done:
		case <-time.After(stepTimeout):
			j.t.Fatalf("a record was not acknowledged within %v", stepTimeout)
		}
		if failure != nil {
			j.t.Fatalf("producing: %v", failure)
		}
		for p := range ends {
			ends[p] = next
		}
		return ends
	}
}

// patient are options of clients that find a broker soon after it is there again.
func patient() []kgo.Opt {
	return []kgo.Opt{
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.RequestRetries(1 << 20), // the time bounds them
	}
}

// worker is a member of the group.
type worker struct {
	j *journal
	c *kgo.Client
	// next is the offset that must come next, of partitions read since they were assigned. It is guarded by the
	// journal's mutex.
	next   map[int32]int64
	cancel context.CancelFunc
	done   chan struct{}
	// disconnect makes the client unable to send anything more.
	disconnect context.CancelFunc
}

// join starts a member. A dynamic one leaves the group when it stops; a static one stays until its session ends.
func (j *journal) join(b *harness.Broker, opts ...kgo.Opt) *worker {
	w := &worker{j: j, next: make(map[int32]int64), done: make(chan struct{})}
	life, disconnect := context.WithCancel(context.Background())
	j.t.Cleanup(disconnect)
	w.disconnect = disconnect
	w.c = newKgo(j.t, b.Addr, append(append(append(patient(), j.member...), opts...),
		kgo.WithContext(life), kgo.ConsumerGroup(crashGroup), kgo.ConsumeTopics(crashTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		// The session outlasts any pause of the broker, so that no member is taken for dead that only waits.
		kgo.SessionTimeout(10*time.Second), kgo.HeartbeatInterval(200*time.Millisecond), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) { w.forget(assigned[crashTopic]) }),
	)...)
	ctx, cancel := context.WithCancel(context.Background())
	j.t.Cleanup(cancel)
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.work(ctx)
	}()
	return w
}

func (w *worker) forget(partitions []int32) {
	w.j.mu.Lock()
	defer w.j.mu.Unlock()
	for _, p := range partitions {
		delete(w.next, p)
	}
}

// work processes few records at a time, so that there are many commits.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		// There may be none, but errors of connections, which the client gets over.
		records := w.c.PollRecords(ctx, 25).Records()
		w.process(records)
		// A commit that fails may have been made: the broker or the member has died, or there is a new generation.
		if w.c.CommitRecords(ctx, records...) == nil {
			w.j.acknowledged(records)
		}
		w.c.AllowRebalance()
	}
}

func (w *worker) process(records []*kgo.Record) {
	j := w.j
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range records {
		next, going := w.next[r.Partition]
		switch {
		case going && r.Offset != next:
			j.fault("partition %d: a member got offset %d after %d", r.Partition, r.Offset, next-1)
		case !going:
			j.resumed++
		}
		if committed := j.committed[r.Partition]; r.Offset < committed {
			j.fault("partition %d: offset %d is processed again, but the group has committed %d", r.Partition, r.Offset, committed)
		}
		if processed := j.processed[r.Partition]; r.Offset > processed {
			j.fault("partition %d: offset %d is processed, but %d to %d were skipped", r.Partition, r.Offset, processed, r.Offset-1)
		}
		if string(r.Value) != strconv.FormatInt(r.Offset, 10) {
			j.fault("partition %d: record %q at offset %d", r.Partition, r.Value, r.Offset)
		}
		w.next[r.Partition] = r.Offset + 1
		j.processed[r.Partition] = max(j.processed[r.Partition], r.Offset+1)
		j.handled++
	}
}

// acknowledged notes a commit of records.
func (j *journal) acknowledged(records []*kgo.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var seen [crashPartitions]bool
	for _, r := range records {
		if !seen[r.Partition] {
			seen[r.Partition] = true
			j.commits[r.Partition]++
		}
		j.committed[r.Partition] = max(j.committed[r.Partition], r.Offset+1)
	}
}

// die ends the member without telling the broker.
func (w *worker) die() {
	w.j.t.Helper()
	w.disconnect()
	w.stop()
}

// stop ends the member and waits until it works no more.
func (w *worker) stop() {
	w.j.t.Helper()
	w.cancel()
	select {
	case <-w.done:
	case <-time.After(stepTimeout):
		w.j.t.Fatalf("a member still works after %v", stepTimeout)
	}
	w.c.CloseAllowingRebalance()
}

// watch asks for the committed offsets over and over.
func (j *journal) watch(b *harness.Broker) (stop func()) {
	admin := kadm.NewClient(newKgo(j.t, b.Addr, patient()...))
	ctx, cancel := context.WithCancel(context.Background())
	j.t.Cleanup(cancel)
	done := make(chan struct{})
	questions := 0
	go func() {
		defer close(done)
		for tick := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-tick {
			least := j.leastCommitted()
			answer, err := admin.FetchOffsets(ctx, crashGroup)
			if err == nil {
				err = answer.Error()
			}
			if err != nil {
				continue // the broker is down
			}
			questions++
			j.compare(answer, least)
		}
	}()
	return func() {
		cancel()
		<-done
		if questions == 0 {
			j.t.Error("the committed offsets were never answered")
		}
	}
}

// leastCommitted returns what a question asked now must be answered with at least, by the running broker or a later one.
func (j *journal) leastCommitted() [crashPartitions]int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	least := j.observed
	for p, committed := range j.committed {
		least[p] = max(least[p], committed)
	}
	return least
}

// compare checks an answer. Committed offsets never go back, whichever broker tells of them, are never below what was
// acknowledged before the question, nor above what was processed before the answer.
func (j *journal) compare(answer kadm.OffsetResponses, least [crashPartitions]int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, low := range least {
		at := int64(0)
		if o, ok := answer.Lookup(crashTopic, int32(p)); ok {
			at = o.At
		}
		if at < low || at > j.processed[p] {
			j.fault("partition %d: the broker says that %d is committed; it must be from %d to %d", p, at, low, j.processed[p])
		}
		j.observed[p] = max(j.observed[p], at)
	}
}

// awaitCommits waits for n more acknowledged commits in all, of at least so many partitions.
func (j *journal) awaitCommits(n, partitions int) {
	j.t.Helper()
	j.mu.Lock()
	begin := j.commits
	j.mu.Unlock()
	until(j.t, fmt.Sprintf("%d commits in %d partitions", n, partitions), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		total, moved := 0, 0
		for p, commits := range j.commits {
			total += commits - begin[p]
			moved += min(commits-begin[p], 1)
		}
		return total >= n && moved >= partitions
	})
}

func (j *journal) committedAll(ends [crashPartitions]int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.committed == ends
}

// report checks that nothing beyond the ends was processed, so all was, and says how much was processed again.
func (j *journal) report(ends [crashPartitions]int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	total, commits := 0, 0
	for p, end := range ends {
		if j.processed[p] != end {
			j.t.Errorf("partition %d: processed up to %d, produced up to %d", p, j.processed[p], end)
		}
		total += int(end)
		commits += j.commits[p]
	}
	j.t.Logf("%d records, %d commits of a partition, %d times a member began to read one, %d records processed again",
		total, commits, j.resumed, j.handled-total)
}
