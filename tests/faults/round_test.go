package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

var (
	faultsSeed     = flag.Uint64("faults.seed", 0, "run rounds with this seed only")
	faultsKills    = flag.Int("faults.kills", 21, "kills, shared by the scenarios")
	faultsTime     = flag.Duration("faults.time", 0, "run rounds with ever new seeds for this long")
	faultsScenario = flag.String("faults.scenario", "", "only scenarios whose names contain this")
	faultsFlags    = flag.String("faults.flags", "", "more flags for all brokers, separated by spaces")
	faultsLog      = flag.Bool("faults.log", false, "print what is done to the brokers")
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// scenario is a kind of cluster.
type scenario struct {
	name       string
	durability string
	s3         bool // else a folder
}

var scenarios = []scenario{
	{"folder-local", "local", false},
	{"s3-local", "local", true},
	{"s3-remote", "remote", true},
}

// TestKills kills brokers; see the package's comment.
func TestKills(t *testing.T) {
	t.Parallel()
	switch {
	case *faultsTime > 0:
		for end := time.Now().Add(*faultsTime); time.Now().Before(end) && !t.Failed(); {
			runRounds(t, rand.Uint64())
		}
	case *faultsSeed != 0:
		runRounds(t, *faultsSeed)
	default:
		runRounds(t, rand.Uint64())
	}
}

func runRounds(t *testing.T, seed uint64) {
	for i, sc := range scenarios {
		if !strings.Contains(sc.name, *faultsScenario) {
			continue
		}
		t.Run(fmt.Sprintf("%s/seed=%d", sc.name, seed), func(t *testing.T) {
			t.Logf("repeat with: go test ./tests/faults -run TestKills -faults.scenario %s -faults.seed %d -faults.kills %d", sc.name, seed, *faultsKills)
			newRound(t, sc, seed+uint64(i)).run(max(*faultsKills/len(scenarios), 1))
		})
	}
}

// Limits of what a broker may take once nothing is in its way.
const (
	patience  = 60 * time.Second
	longStall = 30 * time.Second // of the bucket; only soaks have the time for it
	exitTaken = 3                // exit code of a broker whose bucket was opened by another one
)

// generation is one broker process in its time.
type generation struct {
	addr string
	// replaced is when the next one began to take over, 0 if that waits for this one's end.
	replaced atomic.Int64
}

// round is one cluster under load.
type round struct {
	t     *testing.T
	sc    scenario
	rng   *rand.Rand // of the goroutine of the test
	forks *rand.Rand // seeds of others, guarded by mu
	began time.Time
	s3    *s3
	front *front
	// bucket is its URL, folder its path if it is a folder.
	bucket, folder string
	nodes          [2]*harness.Broker // each with a disk of its own; the second one is used when a broker is replaced
	at             int                // of nodes, which serves

	mu       sync.Mutex
	gen      *generation
	faults   int
	progress progress
	journal  journal

	inventory inventory
	rebuilt   int          // starts from a checkpoint
	zombie    atomic.Int64 // when a second broker began to take over; 0 when the first one has ended

	load    sync.WaitGroup
	loading context.Context // ends with the load
	unload  context.CancelFunc
}

// progress wakes those that wait for acknowledgements.
type progress struct {
	mu      sync.Mutex
	changed chan struct{}
}

func (p *progress) wait() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

func (p *progress) broadcast() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

func newRound(t *testing.T, sc scenario, seed uint64) *round {
	r := &round{
		t: t, sc: sc, rng: rand.New(rand.NewPCG(seed, 1)), forks: rand.New(rand.NewPCG(seed, 2)), began: time.Now(),
		s3: newS3(t, seed), front: newFront(t), journal: journal{seen: make(map[string]map[int64]uint64)},
	}
	r.loading, r.unload = context.WithCancel(context.Background())
	t.Cleanup(r.unload)
	r.folder = filepath.Join(t.TempDir(), "bucket")
	r.bucket = "file://" + r.folder
	if sc.s3 {
		r.bucket = r.s3.url()
	}
	for i := range r.nodes {
		flags := []string{
			"--bucket", r.bucket, "--durability", sc.durability, "--advertise", r.front.addr(),
			"--flush-interval", (time.Duration(5+r.rng.IntN(200)) * time.Millisecond).String(), "--flush-bytes", "64KiB",
			"--tail-cache-bytes", "8MiB", "--segment-cache-bytes", "8MiB", "--retention-check-interval", "1s",
			// Small, so that all of it happens within a round.
			"--compaction-bytes", "64KiB", "--compaction-interval", "100ms", "--delete-grace", "1s", "--disk-cache-bytes", "64MiB",
			"--checkpoint-interval", "1s", "--checkpoint-commits", strconv.Itoa(2 + r.rng.IntN(15)), "--checkpoint-bytes", "4KiB",
		}
		r.nodes[i] = harness.New(t, harness.Config{Flags: append(flags, strings.Fields(*faultsFlags)...)})
	}
	return r
}

func (r *round) node() *harness.Broker { return r.nodes[r.at] }

// now is the time since the round began, in nanoseconds.
func (r *round) now() int64 { return int64(time.Since(r.began)) }

func (r *round) logf(format string, args ...any) {
	if *faultsLog {
		r.t.Logf("%6.2fs "+format, append([]any{time.Since(r.began).Seconds()}, args...)...)
	}
}

// fault fails the test. The first few tell what is wrong.
func (r *round) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.faults++; r.faults <= 10 {
		r.t.Errorf("%6.2fs "+format, append([]any{time.Since(r.began).Seconds()}, args...)...)
	}
}

// fork is a generator for another goroutine.
func (r *round) fork() *rand.Rand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.New(rand.NewPCG(r.forks.Uint64(), r.forks.Uint64()))
}

func (r *round) current() *generation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gen
}

// serving makes clients find the broker that is ready now.
func (r *round) serving() {
	r.mu.Lock()
	r.gen = &generation{addr: r.node().Addr}
	r.mu.Unlock()
	r.front.serve(r.node().Addr)
}

func (r *round) run(kills int) {
	r.node().Start()
	r.serving()
	admin := kadm.NewClient(r.client())
	for _, topic := range []string{exactTopic, looseTopic, trimmedTopic} {
		if _, err := admin.CreateTopic(r.loading, int32(partitions[topic]), 1, nil, topic); err != nil {
			r.t.Fatalf("creating %s: %v", topic, err)
		}
	}
	exact := r.startWriter(exactTopic, true)
	loose := r.startWriter(looseTopic, false, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	stream := r.startWriter(exactStream, true, kgo.AllowAutoTopicCreation())
	trimmed := r.startWriter(trimmedTopic, true)
	trim := r.startTrimmer(trimmed)
	r.startFollower()
	r.startRereader()
	var hots []*hot
	for i := range hotStreams {
		hots = append(hots, r.startHot(fmt.Sprint("hot/", i)))
	}
	churn := r.startChurn()
	r.startInventory()
	all := []*writer{exact, loose, stream, trimmed}
	for i := range kills {
		r.setWeather()
		r.front.cut(r.rng.Float64()/3, r.rng)
		r.pause(r.rng, 700*time.Millisecond)
		if i%3 == 0 {
			r.s3.calm()
			r.await(all)
		}
		r.disrupt()
		if r.t.Failed() {
			break
		}
	}
	r.s3.calm()
	r.await(all)
	r.awaitHousekeeping()
	r.unload()
	r.load.Wait()
	r.check(all, trim, hots, churn)
	r.t.Logf("%.1fs, acknowledged: %d exact, %d loose, %d stream, %d trimmed; %d streams made, %d deletions; %d starts from a checkpoint; the bucket: made %v, gone %v, %s",
		time.Since(r.began).Seconds(), exact.acks, loose.acks, stream.acks, trimmed.acks, churn.made, churn.deleted,
		r.rebuilt, r.inventory.made, r.inventory.gone, r.s3.faultsMet())
}

// setWeather decides how the bucket behaves next.
func (r *round) setWeather() {
	if !r.sc.s3 || r.rng.IntN(4) == 0 {
		r.s3.calm()
		return
	}
	w := weather{stall: time.Duration(1+r.rng.IntN(1000)) * time.Millisecond}
	if *faultsTime > 0 && r.rng.IntN(6) == 0 {
		w.stall = longStall
	}
	for f := refuse; f < numFaults; f++ {
		if r.rng.IntN(3) == 0 {
			w.shares[f] = r.rng.Float64() / 6
		}
	}
	w.shares[throttle] /= 4 // each costs a client a second
	if r.rng.IntN(8) == 0 {
		w = weather{} // the service is down
		w.shares[hangUp] = 1
	}
	r.logf("weather %v", w)
	r.s3.setWeather(w, time.Duration(r.rng.IntN(2000))*time.Millisecond)
}

// await waits until each writer has made some progress.
func (r *round) await(writers []*writer) {
	r.t.Helper()
	const records = 20
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for _, w := range writers {
		for target := w.acknowledged() + records; ; {
			changed := r.progress.wait()
			if w.acknowledged() >= target || r.t.Failed() {
				break
			}
			select {
			case <-changed:
			case <-r.node().Exited():
				r.t.Fatalf("the broker has ended by itself: %s", lastLine(r.node()))
			case <-deadline.C:
				r.t.Fatalf("%s: no %d acknowledgements within %v, with nothing in the way", w.topic, records, patience)
			}
		}
	}
}

func lastLine(b *harness.Broker) string {
	lines := b.Log()
	if len(lines) == 0 {
		return "nothing was logged"
	}
	return lines[len(lines)-1].Text
}

// disrupt does one bad thing to the broker, and returns when one serves again.
func (r *round) disrupt() {
	r.t.Helper()
	remote := r.sc.durability == "remote"
	switch x := r.rng.IntN(10); {
	case remote && x < 2:
		r.takeOver(false)
		return
	case remote && x < 4:
		r.takeOver(true)
		return
	case remote && x < 7:
		r.logf("kill, and lose the disk")
		r.node().Kill()
		r.loseDisk()
	case remote && x < 8:
		r.logf("kill, and start on the other disk")
		r.node().Kill()
		r.at = 1 - r.at
	case !remote && x < 3:
		// What was acknowledged is in the bucket when the broker has ended in order, and not before.
		r.logf("stop, and lose the disk")
		r.s3.calm()
		r.node().Stop()
		r.loseDisk()
	default:
		r.logf("kill")
		r.node().Kill()
	}
	for r.rng.IntN(3) == 0 {
		r.logf("kill while it starts")
		r.node().Spawn()
		r.pause(r.rng, 300*time.Millisecond)
		r.node().Kill()
	}
	r.node().Spawn()
	r.ready()
}

func (r *round) loseDisk() {
	if err := os.RemoveAll(r.node().DataDir); err != nil {
		r.t.Fatal(err)
	}
}

// ready waits for the broker that was started and sends clients to it.
func (r *round) ready() {
	r.t.Helper()
	if err := r.node().AwaitReady(); err != nil {
		r.t.Fatalf("the broker does not start: %v", err)
	}
	r.rebuilt += rebuilt(r.node())
	r.serving()
}

// takeOver starts a second broker while the first one runs, or is stopped and goes on later. The first one must end by
// itself, and not acknowledge anything more.
func (r *round) takeOver(asleep bool) {
	r.t.Helper()
	r.logf("take over, asleep: %v", asleep)
	old := r.node()
	gen := r.current()
	zombie, err := harness.TryDial(r.t, old.Addr)
	if err != nil {
		r.t.Fatalf("connecting to the broker: %v", err)
	}
	defer zombie.Close()
	if asleep {
		old.Signal(syscall.SIGSTOP)
	}
	gen.replaced.Store(r.now())
	r.zombie.Store(gen.replaced.Load())
	r.at = 1 - r.at
	r.node().Spawn()
	r.ready()
	if asleep {
		old.Signal(syscall.SIGCONT)
	}
	r.s3.calm()
	// It finds out with its next commit; this is one, unless it has found out before.
	if resp, err := zombie.Try(produceRequest("zombie", []byte("late"))); err == nil {
		if p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode == 0 {
			r.fault("a broker that was replaced has acknowledged an append")
		}
	}
	code := old.WaitExit()
	r.zombie.Store(0)
	if code != exitTaken {
		r.t.Fatalf("a broker that was replaced ended with exit code %d, want %d: %s", code, exitTaken, lastLine(old))
	}
}
