package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// versityVersion is the release of the S3 server that is built.
const versityVersion = "v1.8.0"

// objectStore runs brokers on an S3 server that is not ours, Versity's S3 gateway, with remote durability: what is
// acknowledged must then outlive the broker and its disk.
type objectStore struct {
	env    *environment
	binary string
	// clients carry out their duties against a broker on the store.
	clients []*client
}

func versityStore(binary string) *objectStore {
	s := &objectStore{
		binary: binary,
		env: &environment{
			name: "versitygw",
			// A folder below the module's, but "go install" of a version does not look at the module.
			steps: [][]string{{"sh", "-c", `GOBIN="$PWD" CGO_ENABLED=0 go install github.com/versity/versitygw/cmd/versitygw@` + versityVersion}},
		},
	}
	for _, c := range clients() {
		if c.name == "kcat" || c.name == "franz-go" {
			s.clients = append(s.clients, c)
		}
	}
	return s
}

// storeTasks are what is done on the store beside the duties of clients, by name.
var storeTasks = []struct {
	name, checks string
	run          func(*storeRun, context.Context) error
}{
	{"create-if-absent", "of eight creations of one object at the same time exactly one wins, a hundred times", (*storeRun).createIfAbsent},
	{"empty disk", "a broker that was stopped and lost its disk has all records, and goes on at their offsets", (*storeRun).emptyDisk},
	{"kill -9", "a broker is killed six times under load, three times together with its disk; an idempotent producer goes on, and each record is there once, in order, at the offset that was acknowledged", (*storeRun).kill},
	{"takeover", "a second broker on the same bucket takes over under load: the first acknowledges nothing more and exits with code 3, and the second has all that was acknowledged", (*storeRun).takeOver},
}

func (s *objectStore) title() string { return "versitygw" }

func (s *objectStore) tasks() []string {
	var names []string
	for _, t := range storeTasks {
		names = append(names, t.name)
	}
	for _, c := range s.clients {
		names = append(names, c.name)
	}
	return names
}

func (s *objectStore) install(ctx context.Context, in *installer) error {
	for _, c := range s.clients {
		if err := c.install(ctx, in); err != nil {
			return err
		}
	}
	return in.install(ctx, s.env)
}

func (s *objectStore) version(context.Context) (string, error) { return versityVersion[1:], nil }

func (s *objectStore) run(ctx context.Context, _, task string) outcome {
	r, err := s.start(ctx)
	if err != nil {
		return failed(err, "")
	}
	defer r.stop()
	for _, t := range storeTasks {
		if t.name == task {
			if err := t.run(r, ctx); err != nil {
				return failed(err, r.server.log.String())
			}
			return outcome{result: duty.OK}
		}
	}
	for _, c := range s.clients {
		if c.name == task {
			return r.duties(ctx, c)
		}
	}
	return failed(errors.New("there is no such task"), "")
}

// section is what the page says of the store.
func (s *objectStore) section(rep *report) string {
	var page strings.Builder
	fmt.Fprintf(&page, "\n## On an S3 server\n\nWith `--durability remote` on a bucket of Versity's S3 gateway, version %s.\n\n| | result | |\n| --- | --- | --- |\n", rep.version)
	for _, t := range storeTasks {
		fmt.Fprintf(&page, "| %s | %s | %s |\n", t.name, mark(rep.outcomes[t.name]), t.checks)
	}
	for _, c := range s.clients {
		fmt.Fprintf(&page, "| %s | %s | all duties of the first table |\n", c.name, mark(rep.outcomes[c.name]))
	}
	return page.String()
}

// storeServer is a running S3 server.
type storeServer struct {
	cmd  *exec.Cmd
	addr string
	log  output
}

// storeRun is a server with an empty bucket and the brokers that use it.
type storeRun struct {
	server  storeServer
	binary  string
	dir     string
	brokers []*broker
}

const (
	storeUser, storePassword = "compat", "compat-secret"
	storeBucket              = "data"
)

// start runs a server on an empty folder.
func (s *objectStore) start(ctx context.Context) (*storeRun, error) {
	dir, err := os.MkdirTemp("", "brooklet-compat-s3-")
	if err != nil {
		return nil, err
	}
	r := &storeRun{binary: s.binary, dir: dir}
	objects, properties := filepath.Join(dir, "objects"), filepath.Join(dir, "properties")
	err = errors.Join(os.MkdirAll(filepath.Join(objects, storeBucket), 0o755), os.MkdirAll(properties, 0o755))
	if err == nil {
		r.server.addr, err = freeAddress()
	}
	if err == nil {
		// Properties of objects lie in files of their own: not every file system has extended attributes.
		r.server.cmd = command(context.Background(), dir, filepath.Join(s.env.dir, "versitygw"),
			"--port", r.server.addr, "--access", storeUser, "--secret", storePassword, "--quiet", "posix", "--sidecar", properties, objects)
		r.server.cmd.Stdout, r.server.cmd.Stderr = &r.server.log, &r.server.log
		err = r.server.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := r.server.await(ctx); err != nil {
		r.stop()
		return nil, fmt.Errorf("the S3 server does not answer: %w\n%s", err, r.server.log.String())
	}
	return r, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *storeServer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for tick := time.Tick(20 * time.Millisecond); ; {
		nc, err := net.Dial("tcp", s.addr)
		if err == nil {
			return nc.Close()
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

func (r *storeRun) stop() {
	for _, b := range r.brokers {
		b.kill()
	}
	_ = r.server.cmd.Process.Kill() // it may have ended by itself
	_ = r.server.cmd.Wait()         // killed
	if err := os.RemoveAll(r.dir); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
	}
}

// url is the address of a prefix of the bucket.
func (r *storeRun) url(prefix string) string {
	return fmt.Sprintf("s3://%s/%s?endpoint=http://%s&region=us-east-1&path_style=true&access_key=%s&secret_key=%s",
		storeBucket, prefix, r.server.addr, storeUser, storePassword)
}

func (r *storeRun) data(disk string) string { return filepath.Join(r.dir, "disks", disk) }

// broker starts one on a disk, at an address.
func (r *storeRun) broker(ctx context.Context, disk, listen string) (*broker, error) {
	b, err := launchBroker(ctx, r.binary, listen, r.data(disk), "--bucket", r.url("brooklet"), "--durability", "remote", "--flush-interval", "20ms")
	if err == nil {
		r.brokers = append(r.brokers, b)
	}
	return b, err
}

func (r *storeRun) createIfAbsent(ctx context.Context) error {
	bucket, err := objstore.Open(ctx, objstore.Options{URL: r.url("race")})
	if err != nil {
		return err
	}
	defer bucket.Close()
	for i := range 100 {
		var creators sync.WaitGroup
		var won atomic.Int32
		failures := make(chan error, 8)
		for c := range cap(failures) {
			creators.Go(func() {
				err := bucket.Create(ctx, fmt.Sprint("object-", i), fmt.Append(nil, c))
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, objstore.ErrExists):
					failures <- err
				}
			})
		}
		creators.Wait()
		close(failures)
		for err := range failures {
			return err
		}
		if n := won.Load(); n != 1 {
			return fmt.Errorf("object %d was created %d times", i, n)
		}
	}
	return nil
}

func (r *storeRun) duties(ctx context.Context, c *client) outcome {
	b, err := r.broker(ctx, "duties", "127.0.0.1:0")
	if err != nil {
		return failed(err, r.server.log.String())
	}
	for _, task := range c.tasks() {
		if o := c.run(ctx, b.addr, task); o.result == duty.Fail {
			o.detail = task + ": " + o.detail
			o.output += "\n" + b.logTail()
			return o
		}
	}
	return outcome{result: duty.OK}
}

const storeTopic = "compat-s3"

func (r *storeRun) emptyDisk(ctx context.Context) error {
	b, err := r.broker(ctx, "first", "127.0.0.1:0")
	if err != nil {
		return err
	}
	end := int64(0)
	for round := range 3 {
		w := startWriter(b.addr, end)
		if end, err = w.finish(ctx, 1000); err != nil {
			return err
		}
		b.stop()
		if code := b.cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("the broker ended with code %d\n%s", code, b.logTail())
		}
		if b, err = r.broker(ctx, fmt.Sprint("empty-", round), "127.0.0.1:0"); err != nil {
			return err
		}
		if err := readBack(ctx, b.addr, end); err != nil {
			return fmt.Errorf("after round %d: %w\n%s", round, err, b.logTail())
		}
	}
	return nil
}

func (r *storeRun) kill(ctx context.Context) error {
	b, err := r.broker(ctx, "killed", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w := startWriter(b.addr, 0)
	for i := range 6 {
		if err := w.await(ctx, 500); err != nil {
			return errors.Join(err, errors.New(b.logTail()))
		}
		b.kill()
		if i%2 == 1 {
			if err := os.RemoveAll(r.data("killed")); err != nil {
				return err
			}
		}
		if b, err = r.broker(ctx, "killed", b.addr); err != nil {
			return err
		}
	}
	end, err := w.finish(ctx, 500)
	if err != nil {
		return err
	}
	return readBack(ctx, b.addr, end)
}

// exitTakenOver is the exit code of a broker whose bucket another one has opened.
const exitTakenOver = 3

func (r *storeRun) takeOver(ctx context.Context) error {
	old, err := r.broker(ctx, "old", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w := startWriter(old.addr, 0)
	if err := w.await(ctx, 500); err != nil {
		return err
	}
	b, err := r.broker(ctx, "new", "127.0.0.1:0")
	if err != nil {
		return err
	}
	select {
	case <-old.ended:
	case <-time.After(stopTimeout):
		return fmt.Errorf("the first broker still runs %v after the second has taken over", stopTimeout)
	}
	if code := old.cmd.ProcessState.ExitCode(); code != exitTakenOver {
		return fmt.Errorf("the first broker ended with code %d, want %d\n%s", code, exitTakenOver, old.logTail())
	}
	// What was under way may be in the log or not; the rest is, and the next record comes behind it.
	acknowledged, sent := w.abandon()
	end, err := endOffset(ctx, b.addr)
	if err != nil {
		return err
	}
	if end < acknowledged || end > sent {
		return fmt.Errorf("the second broker has %d records; %d were acknowledged by the first, and %d sent to it", end, acknowledged, sent)
	}
	if end, err = startWriter(b.addr, end).finish(ctx, 500); err != nil {
		return err
	}
	return readBack(ctx, b.addr, end)
}

// writer is an idempotent producer that writes the numbers first, first+1, … to storeTopic until it is stopped, and holds
// the broker to the offset of each being its number.
type writer struct {
	client       *kgo.Client
	stopping     chan struct{}
	done         chan struct{} // closed when it sends no more
	sent         atomic.Int64
	acknowledged atomic.Int64

	mu      sync.Mutex
	failure error
	changed chan struct{} // closed and replaced with each acknowledgement
}

func startWriter(addr string, first int64) *writer {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(storeTopic), kgo.AllowAutoTopicCreation(),
		kgo.MaxBufferedRecords(500), kgo.MetadataMinAge(50*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }))
	if err != nil {
		panic(err) // the options are right
	}
	w := &writer{client: client, stopping: make(chan struct{}), done: make(chan struct{}), changed: make(chan struct{})}
	w.sent.Store(first)
	w.acknowledged.Store(first)
	go func() {
		defer close(w.done)
		for i := first; ; i++ {
			select {
			case <-w.stopping:
				return
			default:
			}
			w.sent.Store(i + 1)
			client.Produce(context.Background(), &kgo.Record{Value: strconv.AppendInt(nil, i, 10)}, func(rec *kgo.Record, err error) { w.acknowledge(i, rec, err) })
		}
	}()
	return w
}

func (w *writer) acknowledge(i int64, rec *kgo.Record, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failure != nil:
		return
	case err != nil:
		w.failure = fmt.Errorf("record %d: %w", i, err)
	case rec.Offset != i:
		w.failure = fmt.Errorf("record %d was acknowledged at offset %d", i, rec.Offset)
	default:
		w.acknowledged.Store(i + 1)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits for n more acknowledgements.
func (w *writer) await(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for target := w.acknowledged.Load() + n; ; {
		w.mu.Lock()
		failure, changed := w.failure, w.changed
		w.mu.Unlock()
		if failure != nil || w.acknowledged.Load() >= target {
			return failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for acknowledgements: %w", ctx.Err())
		}
	}
}

// finish waits for n more acknowledgements, then for those of all that was sent, and returns how many there are.
func (w *writer) finish(ctx context.Context, n int64) (end int64, err error) {
	err = w.await(ctx, n)
	close(w.stopping)
	if err == nil {
		flushing, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		err = w.client.Flush(flushing)
	}
	w.client.Close()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		err = w.failure
	}
	return w.acknowledged.Load(), err
}

// abandon ends the writer whose broker is gone.
func (w *writer) abandon() (acknowledged, sent int64) {
	close(w.stopping)
	w.client.Close()
	<-w.done
	return w.acknowledged.Load(), w.sent.Load()
}

// endOffset is the high watermark of storeTopic.
func endOffset(ctx context.Context, addr string) (int64, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	offsets, err := kadm.NewClient(client).ListEndOffsets(ctx, storeTopic)
	if err == nil {
		err = offsets.Error()
	}
	end, _ := offsets.Lookup(storeTopic, 0)
	return end.Offset, err
}

// readBack reads storeTopic from its start and wants the numbers below end, each at its offset, and nothing more.
func readBack(ctx context.Context, addr string, end int64) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if got, err := endOffset(ctx, addr); err != nil || got != end {
		return fmt.Errorf("the stream ends at %d, want %d (%v)", got, end, err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		storeTopic: {0: kgo.NewOffset().AtStart()},
	}))
	if err != nil {
		return err
	}
	defer client.Close()
	for next := int64(0); next < end; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("reading it back, after %d of %d records: %w", next, end, err)
		}
		for rec := range fetches.RecordsAll() {
			if rec.Offset != next || string(rec.Value) != strconv.FormatInt(next, 10) {
				return fmt.Errorf("record %q is at offset %d, want %d", rec.Value, rec.Offset, next)
			}
			next++
		}
	}
	return nil
}
