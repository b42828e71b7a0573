package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func produce(t *testing.T, broker, topic string, values ...string) {
	t.Helper()
	client := newClient(t, broker)
	var records []*kgo.Record
	for _, v := range values {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(v)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// consume reads n records from the start.
func consume(t *testing.T, broker, topic string, n int) (values []string) {
	t.Helper()
	client := newClient(t, broker, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for len(values) < n {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

func newClient(t *testing.T, broker string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(broker), kgo.AllowAutoTopicCreation())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestKilledBrokerRecovers(t *testing.T) {
	dir := t.TempDir()
	first := start(t, command(t, serveArgs(dir, "--flush-interval", "1h")...))
	produce(t, first.address("serving Kafka clients"), "sessions/alice", "a", "b", "c")
	first.signal(syscall.SIGKILL)
	first.exit()

	second := start(t, command(t, serveArgs(dir)...))
	if n := second.await("recovered")["tail_appends"].(float64); n == 0 {
		t.Error("the unflushed appends were not found")
	}
	if got := consume(t, second.address("serving Kafka clients"), "sessions/alice", 3); strings.Join(got, "") != "abc" {
		t.Errorf("records after the restart: %v", got)
	}
	second.stop()
}

// What a stopped broker acknowledged is in the bucket: another machine can go on from there.
func TestStopFlushesToBucket(t *testing.T) {
	bucket := bucketURL(t.TempDir())
	first := start(t, command(t, serveArgs(t.TempDir(), "--bucket", bucket, "--flush-interval", "1h")...))
	produce(t, first.address("serving Kafka clients"), "orders", "a", "b")
	first.stop()

	second := start(t, command(t, serveArgs(t.TempDir(), "--bucket", bucket)...))
	if got := consume(t, second.address("serving Kafka clients"), "orders", 2); strings.Join(got, "") != "ab" {
		t.Errorf("records on the other machine: %v", got)
	}
	second.stop()
}

func TestFolderInUse(t *testing.T) {
	for name, c := range map[string]struct {
		durability   string
		dirs, bucket [2]string // of the first and of the second broker; no bucket: the default
		want         string
	}{
		"data directory": {durability: "remote", dirs: [2]string{"a", "a"}, bucket: [2]string{"x", "y"},
			want: "--data-dir {}/a is in use by another process"},
		"bucket": {durability: "local", dirs: [2]string{"a", "b"}, bucket: [2]string{"x", "x"},
			want: "--bucket: with local durability only one store may use the bucket folder"},
		"both": {durability: "local", dirs: [2]string{"a", "a"},
			want: "bucket in --data-dir {}/a: with local durability only one store may use the bucket folder"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			run := func(i int) *process {
				args := serveArgs(filepath.Join(base, c.dirs[i]), "--durability", c.durability)
				if c.bucket[i] != "" {
					args = append(args, "--bucket", bucketURL(filepath.Join(base, c.bucket[i])))
				}
				return start(t, command(t, args...))
			}
			first := run(0)
			first.await("serving Kafka clients")
			want := strings.ReplaceAll(c.want, "{}", base)
			if code, text := run(1).exit(); code != exitFailure || !strings.Contains(text, want) {
				t.Errorf("exit code %d, want %q in:\n%s", code, want, text)
			}
			first.stop()
		})
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, setting := range []string{"--listen", "--admin-listen", "--http-listen"} {
		code, text := start(t, command(t, serveArgs(t.TempDir(), setting, l.Addr().String())...)).exit()
		if code != exitFailure || !strings.Contains(text, setting+" "+l.Addr().String()+": another process listens there already") {
			t.Errorf("%s: exit code %d:\n%s", setting, code, text)
		}
	}
}

// Whoever uses Kafka only need not care that another process has the port of the stream API.
func TestDefaultHTTPAddressInUse(t *testing.T) {
	if l, err := net.Listen("tcp", defaultHTTPListen); err == nil { // else another process has it already
		defer l.Close()
	}
	p := start(t, command(t, serveArgs(t.TempDir(), "--http-listen", defaultHTTPListen)...))
	p.await("no stream API over HTTP: another process has its default address; set --http-listen to a free address, or to off")
	produce(t, p.address("serving Kafka clients"), "orders", "a")
	p.stop()
}

func TestHTTPOff(t *testing.T) {
	p := start(t, command(t, serveArgs(t.TempDir(), "--http-listen", "off")...))
	for line := range p.lines {
		if strings.Contains(line, "serving HTTP clients") {
			t.Fatalf("it serves HTTP: %s", line)
		}
		if strings.Contains(line, "serving Kafka clients") {
			break
		}
	}
	p.stop()
}

// What one door appends the other reads; pages of listed origins only may use the one for them.
func TestHTTPDoor(t *testing.T) {
	p := start(t, command(t, serveArgs(t.TempDir(), "--http-origins", "https://a.example, https://b.example")...))
	url := "http://" + p.address("serving HTTP clients") + "/v1/streams/sessions/alice"
	resp, err := http.Post(url, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	if got := consume(t, p.address("serving Kafka clients"), "sessions/alice", 1); got[0] != "hello" {
		t.Errorf("records over Kafka: %v", got)
	}
	for origin, want := range map[string]string{"https://b.example": "https://b.example", "https://c.example": ""} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("origin %s: allowed is %q", origin, got)
		}
	}
	for origin, want := range map[string]int{"https://b.example": http.StatusOK, "https://c.example": http.StatusForbidden} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("by a page"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("an append by a page of %s: %d, want %d", origin, resp.StatusCode, want)
		}
	}
	p.stop()
}

func TestWrongSettings(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"values": {serveArgs(t.TempDir(), "--flush-interval", "5", "--listen", ":9092", "--bucket", "s4://x", "--block-cache-bytes", "1000GiB"),
			[]string{"4 settings are wrong", "--flush-interval", "--advertise", "--bucket", "--block-cache-bytes 1000GiB"}},
		"unknown flag":    {serveArgs(t.TempDir(), "--lisen", "x"), []string{"-lisen", "brooklet serve --help"}},
		"stray word":      {serveArgs(t.TempDir(), "--auto-create-topics", "false"), []string{`"false" belongs to no flag`, "--flag=false"}},
		"unknown command": {[]string{"server"}, []string{`no command "server"`}},
	} {
		code, text := start(t, command(t, c.args...)).exit()
		if code != exitSettings {
			t.Errorf("%s: exit code %d, want %d", name, code, exitSettings)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in:\n%s", name, want, text)
			}
		}
	}
}

// A bucket that is out of reach is waited for: alive, not ready, and stopped by a signal.
func TestBucketOutOfReach(t *testing.T) {
	asked := make(chan struct{}, 1)
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	defer bucket.Close()
	url := "s3://bucket?region=none&insecure=true&path_style=true&access_key=me&secret_key=hidden&endpoint=" + strings.TrimPrefix(bucket.URL, "http://")
	p := start(t, command(t, serveArgs(t.TempDir(), "--bucket", url)...))
	admin := "http://" + p.address("admin endpoint")
	<-asked
	if code, body := get(t, admin+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d %s", code, body)
	}
	if code, body := get(t, admin+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "recovering: waiting for the bucket") {
		t.Errorf("/readyz answers %d %s", code, body)
	}
	p.stop()
}

// The broker that lost its bucket to another one ends with a code that keeps service managers from restarting it.
func TestFencedBrokerEnds(t *testing.T) {
	shared := []string{"--bucket", bucketURL(t.TempDir()), "--durability", "remote", "--flush-interval", "10ms"}
	dir := t.TempDir()
	first := start(t, command(t, serveArgs(dir, shared...)...))
	broker := first.address("serving Kafka clients")
	produce(t, broker, "orders", "before")
	second := start(t, command(t, serveArgs(t.TempDir(), shared...)...))
	second.await("serving Kafka clients")

	// It finds out when it flushes.
	newClient(t, broker).Produce(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("after")}, nil)
	code, text := first.exit()
	if code != exitFenced || !strings.Contains(text, "another broker has opened the same bucket") || !strings.Contains(text, dir) {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	second.stop()
}

// timeout(1) sends its signal twice in a row; that must not cut the stop short.
func TestTwinSignals(t *testing.T) {
	p := start(t, command(t, serveArgs(t.TempDir(), "--flush-interval", "1h")...))
	produce(t, p.address("serving Kafka clients"), "orders", "a")
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGTERM)
	p.await("stopped")
	if code, rest := p.exit(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, rest)
	}
}

func TestAdminEndpoint(t *testing.T) {
	cmd := command(t, serveArgs(t.TempDir())...)
	cmd.Env = append(cmd.Env, "BROOKLET_LISTENER=misspelt")
	p := start(t, cmd)
	if name := p.await("this environment variable is no setting and has no effect; brooklet serve --help lists those that are")["variable"]; name != "BROOKLET_LISTENER" {
		t.Errorf("warned about %v", name)
	}
	admin := p.address("admin endpoint")
	broker := p.address("serving Kafka clients")
	produce(t, broker, "orders", "a")
	if code, body := get(t, "http://"+admin+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz answers %d %s", code, body)
	}
	_, metrics := get(t, "http://"+admin+"/metrics")
	for _, name := range []string{"brooklet_build_info{", "brooklet_broker_topics 1", "go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
	if out, err := command(t, "healthcheck", "--admin", admin).Output(); err != nil || strings.TrimSpace(string(out)) != "ready" {
		t.Errorf("healthcheck: %q, %v", out, err)
	}
	p.stop()
	if err := command(t, "healthcheck", "--admin", admin).Run(); err == nil {
		t.Error("healthcheck finds a broker that was stopped healthy")
	}
}

func TestVersion(t *testing.T) {
	out, err := command(t, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "brooklet ") || !strings.Contains(string(out), "go1.") {
		t.Errorf("version prints %q, %v", out, err)
	}
}

func TestDiskErrorsAreExplained(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EAGAIN: "is in use by another process",
		syscall.EACCES: "may not write there",
		syscall.EROFS:  "is read-only",
		syscall.ENOSPC: "the disk is full",
		syscall.EIO:    "--data-dir /data: ",
	} {
		cause := &os.PathError{Op: "open", Path: "/data/db/LOCK", Err: errno}
		err := explainDisk("/data", fmt.Errorf("opening: %w", cause))
		if !strings.Contains(err.Error(), want) || !errors.Is(err, errno) {
			t.Errorf("%v is explained as: %v", errno, err)
		}
	}
}
