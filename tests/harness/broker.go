package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Limits of waits. They are far above what is needed, for machines that are busy.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
	httpTimeout  = 30 * time.Second
)

// Config says how a broker is run. The zero value is a broker with defaults and new folders.
type Config struct {
	// DataDir and BucketDir are created when the broker starts. Default: new temporary folders.
	DataDir, BucketDir string
	// Flags are added to the command line and win over those of the harness.
	Flags []string
	// Env are NAME=value lines added to the environment.
	Env []string
}

// Broker is a brooklet process, or several one after the other: a broker that was stopped or killed can be started
// again.
type Broker struct {
	// DataDir and BucketDir are the folders that the broker uses.
	DataDir, BucketDir string

	// Addr and Admin are the addresses (host:port) of the Kafka listener and of the admin endpoint. They stay the same
	// when the broker is started again.
	Addr, Admin string
	// HTTP is the address of the stream API. Like the others it stays the same.
	HTTP string

	tb  testing.TB
	cfg Config
	log *logBuffer

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended and its log was read
}

// Start runs a broker until the test ends, and returns when it is ready.
func Start(tb testing.TB, cfg Config) *Broker {
	tb.Helper()
	b := New(tb, cfg)
	b.Start()
	return b
}

// New returns a broker that is not running yet.
func New(tb testing.TB, cfg Config) *Broker {
	tb.Helper()
	if brokerBinary == "" {
		tb.Fatal("harness: the test program's TestMain must call harness.Main")
	}
	b := &Broker{
		tb: tb, cfg: cfg, log: newLogBuffer(),
		DataDir: cfg.DataDir, BucketDir: cfg.BucketDir,
		Addr: "127.0.0.1:0", Admin: "127.0.0.1:0", HTTP: "127.0.0.1:0",
	}
	if b.DataDir == "" {
		b.DataDir = filepath.Join(tb.TempDir(), "data")
	}
	if b.BucketDir == "" {
		b.BucketDir = filepath.Join(tb.TempDir(), "bucket")
	}
	tb.Cleanup(func() {
		b.Kill()
		if tb.Failed() {
			tb.Logf("log of the broker at %s:\n%s", b.Addr, b.log.tail(100))
		}
	})
	return b
}

// Start runs the process and waits until it is ready.
func (b *Broker) Start() {
	b.tb.Helper()
	if err := b.TryStart(); err != nil {
		b.tb.Fatalf("harness: %v", err)
	}
}

// TryStart is Start for brokers that may refuse to run. The error holds the exit code or what the probe said.
func (b *Broker) TryStart() error {
	b.tb.Helper()
	b.Spawn()
	return b.AwaitReady()
}

// AwaitReady waits until the process that runs is ready. The error is as that of TryStart.
func (b *Broker) AwaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var line LogLine
	for _, wait := range []struct {
		message string
		addr    *string
	}{{"admin endpoint", &b.Admin}, {"serving HTTP clients", &b.HTTP}, {"serving Kafka clients", &b.Addr}} {
		var err error
		if line, err = b.awaitLine(ctx, wait.message); err != nil {
			return err
		}
		*wait.addr = line.Fields["listen"]
	}
	status, body, err := b.get(ctx, "/readyz")
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("a broker that says it serves clients must be ready; the probe says %d %q %v", status, body, err)
	}
	return nil
}

// Spawn starts the process and does not wait until it is ready.
func (b *Broker) Spawn() {
	b.tb.Helper()
	if b.Running() {
		b.tb.Fatal("harness: the broker runs already")
	}
	args := []string{
		"serve", "--listen", b.Addr, "--admin-listen", b.Admin, "--http-listen", b.HTTP, "--data-dir", b.DataDir, "--bucket", "file://" + b.BucketDir,
		"--log-format", "json",
	}
	b.cmd = exec.Command(brokerBinary, append(args, b.cfg.Flags...)...)
	b.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "BROOKLET_") }), b.cfg.Env...)
	b.cmd.SysProcAttr = processAttributes()
	stderr, err := b.cmd.StderrPipe()
	if err != nil {
		b.tb.Fatalf("harness: %v", err)
	}
	if err := b.cmd.Start(); err != nil {
		b.tb.Fatalf("harness: starting the broker: %v", err)
	}
	b.exited = make(chan struct{})
	b.log.begin()
	go func(cmd *exec.Cmd, exited chan struct{}) {
		defer close(exited)
		b.log.read(stderr)
		_ = cmd.Wait() // ProcessState tells how it ended
	}(b.cmd, b.exited)
}

// Running tells whether the process has been started and has not ended.
func (b *Broker) Running() bool {
	if b.exited == nil {
		return false
	}
	select {
	case <-b.exited:
		return false
	default:
		return true
	}
}

// Kill ends the process as kill -9 does and waits until it is gone. It does nothing if none runs.
func (b *Broker) Kill() {
	if b.Running() {
		_ = b.cmd.Process.Kill() // fails only if it has just ended
		<-b.exited
	}
}

// Stop ends the process with SIGTERM and fails the test unless it ends in order.
func (b *Broker) Stop() {
	b.tb.Helper()
	b.Signal(syscall.SIGTERM)
	if code := b.WaitExit(); code != 0 {
		b.tb.Fatalf("harness: exit code %d after SIGTERM, want 0", code)
	}
}

// Pid is the id of the process that was started last.
func (b *Broker) Pid() int { return b.cmd.Process.Pid }

// Exited is closed when the process, started at least once, has ended.
func (b *Broker) Exited() <-chan struct{} { return b.exited }

// Signal sends a signal to the process.
func (b *Broker) Signal(s syscall.Signal) {
	b.tb.Helper()
	if err := b.cmd.Process.Signal(s); err != nil {
		b.tb.Fatalf("harness: sending %v: %v", s, err)
	}
}

// WaitExit waits until the process ends by itself and returns its exit code, -1 after a signal.
func (b *Broker) WaitExit() int {
	b.tb.Helper()
	select {
	case <-b.exited:
		return b.cmd.ProcessState.ExitCode()
	case <-time.After(stopTimeout):
		b.tb.Fatalf("harness: the broker still runs after %v", stopTimeout)
		return -1
	}
}

// awaitLine returns the first line of this process with the message. It fails when the process ends without one.
func (b *Broker) awaitLine(ctx context.Context, message string) (LogLine, error) {
	for {
		changed := b.log.changed()
		for _, line := range b.log.current() {
			if line.Message == message {
				return line, nil
			}
		}
		select {
		case <-changed:
		case <-b.exited:
			return LogLine{}, fmt.Errorf("the broker ended with exit code %d: %s", b.cmd.ProcessState.ExitCode(), b.log.tail(5))
		case <-ctx.Done():
			return LogLine{}, fmt.Errorf("no log line %q: %w", message, ctx.Err())
		}
	}
}

// Log returns the lines that the running process, or the last one, has logged.
func (b *Broker) Log() []LogLine { return b.log.current() }

// Get fetches a path of the admin endpoint.
func (b *Broker) Get(path string) (status int, body string) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), httpTimeout)
	defer cancel()
	status, body, err := b.get(ctx, path)
	if err != nil {
		b.tb.Fatalf("harness: %v", err)
	}
	return status, body
}

func (b *Broker) get(ctx context.Context, path string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.Admin+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// Metric returns the value of a series, written as name{label="value"}.
func (b *Broker) Metric(name string) float64 {
	b.tb.Helper()
	_, body := b.Get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				b.tb.Fatalf("harness: metric %s: %v", name, err)
			}
			return v
		}
	}
	b.tb.Fatalf("harness: there is no series %s", name)
	return 0
}

// PeakMemory is the largest resident size that the process has had, in bytes.
func (b *Broker) PeakMemory() int64 {
	b.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
	if err != nil {
		b.tb.Fatalf("harness: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	b.tb.Fatal("harness: no VmHWM in /proc")
	return 0
}

// LogLine is one line of a broker's log. Lines that are not JSON have a message only.
type LogLine struct {
	Level, Message string
	// Fields are the fields of the line as text.
	Fields map[string]string
	// Text is the whole line.
	Text string
}

func parseLogLine(text string) LogLine {
	line := LogLine{Message: text, Text: text}
	var fields map[string]any
	if json.Unmarshal([]byte(text), &fields) != nil {
		return line
	}
	line.Fields = make(map[string]string, len(fields))
	for name, value := range fields {
		line.Fields[name] = fmt.Sprint(value)
	}
	line.Level, line.Message = line.Fields["level"], line.Fields["msg"]
	return line
}

// logBuffer keeps what a broker has logged.
type logBuffer struct {
	mu    sync.Mutex
	lines []LogLine
	first int           // of the current process
	news  chan struct{} // closed and replaced when a line comes
}

func newLogBuffer() *logBuffer { return &logBuffer{news: make(chan struct{})} }

// begin marks the start of a process.
func (l *logBuffer) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = len(l.lines)
}

func (l *logBuffer) read(r io.Reader) {
	const longestLine = 1 << 20
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		l.add(parseLogLine(lines.Text()))
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		l.add(LogLine{Text: "harness: reading the log: " + err.Error()})
	}
}

func (l *logBuffer) add(line LogLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	close(l.news)
	l.news = make(chan struct{})
}

// changed is closed when a line comes.
func (l *logBuffer) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.news
}

// current returns the lines of the current process.
func (l *logBuffer) current() []LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines[l.first:])
}

// tail returns the last n lines of all processes.
func (l *logBuffer) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text strings.Builder
	for _, line := range l.lines[max(len(l.lines)-n, 0):] {
		text.WriteString(line.Text + "\n")
	}
	return text.String()
}
