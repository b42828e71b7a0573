// Command kcat carries out the duties of the compatibility run with the program kcat, which is built on librdkafka.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

func main() {
	duty.Main(func(brokers string) duty.Client { return client{brokers} })
}

type client struct{ brokers string }

var versions = regexp.MustCompile(`Version (\S+) .*librdkafka (\S+)`)

func (client) Version() string {
	text, err := exec.Command("kcat", "-V").CombinedOutput()
	found := versions.FindSubmatch(text)
	if err != nil || found == nil {
		return "unknown"
	}
	return fmt.Sprintf("%s (librdkafka %s)", found[1], found[2])
}

// Lacks: kcat gives all records of a run the same headers and the time of the clock.
func (client) Lacks() duty.Lacks { return duty.Lacks{Headers: true, Times: true} }

// command is kcat with arguments.
func (c client) command(ctx context.Context, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-b", c.brokers}, arguments...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // for orderly leaving
	return cmd
}

// separator stands between key and value in input and output; -Z makes an empty key null.
const separator = "\t"

func (c client) Produce(ctx context.Context, topic string, o duty.ProduceOptions, records []duty.Record) error {
	byPartition := make(map[int32]*bytes.Buffer)
	for _, r := range records {
		if byPartition[r.Partition] == nil {
			byPartition[r.Partition] = new(bytes.Buffer)
		}
		fmt.Fprintf(byPartition[r.Partition], "%s%s%s\n", r.Key, separator, r.Value)
	}
	for partition, input := range byPartition {
		cmd := c.command(ctx, "-P", "-t", topic, "-p", fmt.Sprint(partition), "-z", o.Codec, "-Z", "-K", separator,
			"-X", "acks=all", "-X", "linger.ms=50", "-X", fmt.Sprintf("enable.idempotence=%v", o.Idempotent))
		cmd.Stdin = input
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
	}
	return nil
}

// format prints partition, key length (-1 for null), key and value.
const format = "%p %K %k" + separator + "%s\n"

func (c client) Consume(ctx context.Context, topic string, from time.Time, n int) ([]duty.Record, error) {
	start := "beginning"
	if !from.IsZero() {
		start = "s@" + strconv.FormatInt(from.UnixMilli(), 10)
	}
	cmd := c.command(ctx, "-C", "-q", "-t", topic, "-p", "0", "-o", start, "-c", fmt.Sprint(n), "-f", format)
	return read(cmd)
}

func read(cmd *exec.Cmd) ([]duty.Record, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	var records []duty.Record
	for line := range strings.Lines(string(output)) {
		r, err := parse(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return records, err
		}
		records = append(records, r)
	}
	return records, nil
}

func parse(line string) (duty.Record, error) {
	var r duty.Record
	fields, value, ok := strings.Cut(line, separator)
	parts := strings.SplitN(fields, " ", 3)
	if !ok || len(parts) != 3 {
		return r, fmt.Errorf("kcat printed %q", line)
	}
	partition, err := strconv.Atoi(parts[0])
	if err != nil {
		return r, fmt.Errorf("kcat printed %q: %w", line, err)
	}
	r.Partition, r.Value = int32(partition), []byte(value)
	if parts[1] != "-1" {
		r.Key = []byte(parts[2])
	}
	return r, nil
}

func (c client) groupArguments(group, topic string) []string {
	return []string{
		"-G", group, "-f", format, "-u", "-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=500", topic,
	}
}

func (c client) ReadAndCommit(ctx context.Context, group, topic string, n int) ([]duty.Record, error) {
	return read(c.command(ctx, append([]string{"-c", fmt.Sprint(n)}, c.groupArguments(group, topic)...)...))
}

// member is a kcat that runs until it is closed.
type member struct {
	cmd     *exec.Cmd
	leave   context.CancelFunc
	readers sync.WaitGroup

	mu         sync.Mutex
	partitions []int32
	records    []duty.Record
	problems   []error
}

func (c client) Join(ctx context.Context, group, topic string) (duty.Member, error) {
	ctx, cancel := context.WithCancel(ctx)
	m := &member{cmd: c.command(ctx, c.groupArguments(group, topic)...), leave: cancel}
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := m.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	m.readers.Go(func() { scan(bufio.NewScanner(stdout), m.addRecord) })
	m.readers.Go(func() { scan(bufio.NewScanner(stderr), m.addMessage) })
	return m, nil
}

func scan(lines *bufio.Scanner, f func(string)) {
	for lines.Scan() {
		f(lines.Text())
	}
}

func (m *member) addRecord(line string) {
	r, err := parse(line)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.problems = append(m.problems, err)
		return
	}
	m.records = append(m.records, r)
}

var (
	rebalanced = regexp.MustCompile(`rebalanced .*(assigned|revoked): (.*)`)
	partition  = regexp.MustCompile(`\[(\d+)\]`)
)

// addMessage takes lines such as "% Group g rebalanced (memberid m): assigned: t [0], t [1]".
func (m *member) addMessage(line string) {
	found := rebalanced.FindStringSubmatch(line)
	if found == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitions = nil
	if found[1] == "revoked" {
		return
	}
	for _, p := range partition.FindAllStringSubmatch(found[2], -1) {
		n, _ := strconv.Atoi(p[1]) // digits
		m.partitions = append(m.partitions, int32(n))
	}
	slices.Sort(m.partitions)
}

func (m *member) Partitions() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.partitions)
}

func (m *member) Records() []duty.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.records)
}

func (m *member) Close(context.Context) error {
	m.leave()
	m.readers.Wait()
	if err := m.cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return errors.Join(m.problems...)
}

func (client) Admin(context.Context) (duty.Admin, error) {
	return nil, duty.NotApplicable("it has no administration commands")
}
