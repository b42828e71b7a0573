package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/tests/harness"
)

// kcat runs kcat against a broker.
type kcat struct {
	addr string
}

// findKcat skips the test where kcat is not installed, but not in CI, where it must be.
func findKcat(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("kcat"); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("kcat is not installed: apt-get install kcat")
	}
	t.Skip("kcat is not installed: apt-get install kcat")
}

// run returns what kcat writes to standard output; input is what it reads.
func (k kcat) run(t *testing.T, input []byte, args ...string) []byte {
	t.Helper()
	output, err := k.try(testContext(t), input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func (k kcat) try(ctx context.Context, input []byte, args ...string) ([]byte, error) {
	var output, faults bytes.Buffer
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-b", k.addr}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &output, &faults
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("kcat %s: %w: %s", strings.Join(args, " "), err, faults.Bytes())
	}
	return output.Bytes(), nil
}

// readAll reads a topic to its end, each record in a format of kcat.
func (k kcat) readAll(t *testing.T, topic, format string, args ...string) []byte {
	t.Helper()
	return k.run(t, nil, append([]string{"-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", format}, args...)...)
}

func TestKcat(t *testing.T) {
	t.Parallel()
	findKcat(t)
	b := harness.Start(t, harness.Config{})
	k := kcat{b.Addr}
	for _, test := range []struct {
		name string
		run  func(*testing.T, kcat)
	}{
		{"log file", testKcatFile},
		{"keys and headers", testKcatKeys},
		{"times", testKcatTimes},
		{"list", testKcatList},
		{"stream", testKcatStream},
		{"follow", testKcatFollow},
		{"reader before writer", testKcatEarly},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, k)
		})
	}
}

// logFile returns the lines of a log, the same ones each time.
func logFile(lines int) []byte {
	var file bytes.Buffer
	noise := incompressible(2 * lines)
	for i := range lines {
		fmt.Fprintf(&file, "2024-02-29T12:00:%02d.%03dZ host-%d app[%d]: GET /items/%x took %dms\n", i/1000%60, i%1000, i%7, i%311, noise[2*i:2*i+2], noise[2*i])
	}
	return file.Bytes()
}

func testKcatFile(t *testing.T, k kcat) {
	const lines = 100_000
	content := logFile(lines)
	path := filepath.Join(t.TempDir(), "app.log")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, codec := range codecNames {
		t.Run(codec, func(t *testing.T) {
			topic := "kcat-file-" + codec
			k.run(t, nil, "-P", "-t", topic, "-z", codec, "-l", path)
			if got := k.readAll(t, topic, "%s\n"); !bytes.Equal(got, content) {
				t.Errorf("%d bytes with %d lines came back, want %d bytes with %d lines, unchanged", len(got), bytes.Count(got, []byte("\n")), len(content), lines)
			}
		})
	}
}

func testKcatKeys(t *testing.T, k kcat) {
	k.run(t, []byte("a:1\nb:2\na:3\n"), "-P", "-t", "kcat-keys", "-K", ":", "-H", "color=blue", "-H", "empty=")
	want := "0 a=1 color=blue,empty=\n1 b=2 color=blue,empty=\n2 a=3 color=blue,empty=\n"
	if got := string(k.readAll(t, "kcat-keys", "%o %k=%s %h\n")); got != want {
		t.Errorf("kcat read:\n%swant:\n%s", got, want)
	}
	k.run(t, []byte("gone:\n"), "-P", "-t", "kcat-keys", "-K", ":", "-Z") // a null value
	if got, want := string(k.run(t, nil, "-C", "-t", "kcat-keys", "-o", "3", "-e", "-q", "-f", "%k %S\n")), "gone -1\n"; got != want {
		t.Errorf("kcat read %q, want %q", got, want)
	}
}

// testKcatTimes asks for offsets by time. kcat gives records the time at which they are sent.
func testKcatTimes(t *testing.T, k kcat) {
	k.run(t, []byte("one\ntwo\n"), "-P", "-t", "kcat-times")
	between := time.Now().Add(time.Millisecond)
	until(t, "the clock has moved", func() bool { return time.Now().After(between.Add(time.Millisecond)) })
	k.run(t, []byte("three\n"), "-P", "-t", "kcat-times")
	for _, query := range []struct {
		at   int64
		want string
	}{
		{0, "kcat-times [0] offset 0"},
		{between.UnixMilli(), "kcat-times [0] offset 2"},
		{time.Now().Add(time.Hour).UnixMilli(), "kcat-times [0] offset -1"},
		{-2, "kcat-times [0] offset 0"},
		{-1, "kcat-times [0] offset 3"},
	} {
		if got := strings.TrimSpace(string(k.run(t, nil, "-Q", "-t", fmt.Sprintf("kcat-times:0:%d", query.at)))); got != query.want {
			t.Errorf("time %d: kcat says %q, want %q", query.at, got, query.want)
		}
	}
	if got, want := string(k.run(t, nil, "-C", "-t", "kcat-times", "-o", fmt.Sprintf("s@%d", between.UnixMilli()), "-e", "-q")), "three\n"; got != want {
		t.Errorf("reading from a time: %q, want %q", got, want)
	}
	if got, want := string(k.run(t, nil, "-C", "-t", "kcat-times", "-o", "-1", "-e", "-q")), "three\n"; got != want {
		t.Errorf("reading the last record: %q, want %q", got, want)
	}
}

func testKcatList(t *testing.T, k kcat) {
	k.run(t, []byte("x\n"), "-P", "-t", "kcat-list")
	var list struct {
		Brokers []struct{ Name string }
		Topics  []struct {
			Topic      string
			Partitions []struct{ Leader int }
		}
	}
	if err := json.Unmarshal(k.run(t, nil, "-L", "-J", "-t", "kcat-list"), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Brokers) != 1 || list.Brokers[0].Name != k.addr || len(list.Topics) != 1 || len(list.Topics[0].Partitions) != 1 {
		t.Errorf("kcat lists %+v, want one broker at %s and one topic with one partition", list, k.addr)
	}
	if all := string(k.run(t, nil, "-L")); !strings.Contains(all, `topic "kcat-list" with 1 partitions`) {
		t.Errorf("kcat does not list the topic:\n%s", all)
	}
}

func testKcatStream(t *testing.T, k kcat) {
	for _, name := range []string{"sessions/alice", "sessions/bob", "a/b/c/d"} {
		k.run(t, []byte("hello\n"+name+"\n"), "-P", "-t", name, "-z", "zstd")
		if got, want := string(k.readAll(t, name, "%t [%p] %o %s\n")), fmt.Sprintf("%[1]s [0] 0 hello\n%[1]s [0] 1 %[1]s\n", name); got != want {
			t.Errorf("kcat read %q, want %q", got, want)
		}
	}
	if all := string(k.run(t, nil, "-L")); strings.Contains(all, "sessions/alice") {
		t.Error("streams are listed among the topics")
	}
}

// testKcatFollow lets one kcat wait for what another writes.
func testKcatFollow(t *testing.T, k kcat) {
	k.run(t, []byte("first\n"), "-P", "-t", "kcat/follow")
	ctx := testContext(t)
	var got []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = k.try(ctx, nil, "-C", "-t", "kcat/follow", "-o", "beginning", "-c", "3", "-q")
	}()
	k.run(t, []byte("second\nthird\n"), "-P", "-t", "kcat/follow")
	<-done
	if want := "first\nsecond\nthird\n"; err != nil || string(got) != want {
		t.Errorf("the follower read %q, %v, want %q", got, err, want)
	}
}

// testKcatEarly reads a stream that is written to later.
func testKcatEarly(t *testing.T, k kcat) {
	type result struct {
		output []byte
		err    error
	}
	done := make(chan result, 1)
	go func() {
		output, err := k.try(testContext(t), nil, "-C", "-t", "early/kcat", "-o", "beginning", "-c", "2", "-q", "-u")
		done <- result{output, err}
	}()
	// It does not matter to the test when kcat begins to read, but most of the time it is before this.
	k.run(t, []byte("first\n"), "-P", "-t", "early/other")
	k.run(t, []byte("first\n"), "-P", "-t", "early/kcat")
	k.run(t, []byte("second\n"), "-P", "-t", "early/kcat")
	if r := <-done; r.err != nil || string(r.output) != "first\nsecond\n" {
		t.Errorf("kcat reads %q, %v", r.output, r.err)
	}
}
