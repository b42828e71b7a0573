package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/client"
)

// runWith runs a command with standard input, and returns what it prints to both outputs.
func (c *cluster) runWith(input string, args ...string) (out, errOut string, err error) {
	c.t.Helper()
	app := newApp()
	var stdout, stderr bytes.Buffer
	app.Reader, app.Writer, app.ErrWriter = strings.NewReader(input), &stdout, &stderr
	err = app.RunContext(c.t.Context(), flagsFirst(app.Commands, append([]string{"brooklet"}, append(slices.Clone(args), "--brokers", c.address)...)))
	return stdout.String(), stderr.String(), err
}

// mustRun is runWith for commands that must work.
func (c *cluster) mustRun(input string, args ...string) string {
	c.t.Helper()
	out, _, err := c.runWith(input, args...)
	if err != nil {
		c.t.Fatalf("brooklet %s: %v", strings.Join(args, " "), err)
	}
	return out
}

var (
	seconds    = regexp.MustCompile(`"seconds":[0-9.e-]+`)
	times      = regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`)
	timestamps = regexp.MustCompile(`"timestamp":[0-9]+`)
)

func (c *cluster) wantRun(want, input string, args ...string) {
	c.t.Helper()
	got := c.mustRun(input, args...)
	got = seconds.ReplaceAllString(got, `"seconds":<s>`)
	got = times.ReplaceAllString(got, "<time>")
	got = timestamps.ReplaceAllString(got, `"timestamp":<ms>`)
	if want = strings.TrimPrefix(want, "\n"); got != want {
		c.t.Errorf("brooklet %s prints\n%s\nwant\n%s", strings.Join(args, " "), got, want)
	}
}

func TestStreamCommands(t *testing.T) {
	c := startCluster(t)
	c.wantRun("2 records appended to sessions/alice at offset 0\n", "", "append", "sessions/alice", "signed in", "two\nlines")
	c.wantRun("3 records appended to sessions/alice at offset 2\n", "a\r\n\nb\nc", "append", "sessions/alice")
	c.wantRun("1 record appended to sessions/alice at offset 5\n", "all\nof it\n", "append", "sessions/alice", "--format", "raw", "--key", "k")
	c.wantRun("signed in\ntwo\nlines\na\nb\nc\nall\nof it\n\n", "", "read", "sessions/alice")
	c.wantRun("bc", "", "read", "sessions/alice", "--from", "3", "-n", "2", "-o", "raw")
	c.wantRun(`{"stream":"sessions/alice","offset":4,"timestamp":<ms>,"value":"c"}
{"stream":"sessions/alice","offset":5,"timestamp":<ms>,"key":"k","value":"all\nof it\n"}
`, "", "tail", "sessions/alice", "-n", "2", "-o", "json")
	c.wantRun("a\nb\n", "", "tail", "-f", "sessions/alice", "--from", "2", "--limit", "2")
	c.wantRun("", "", "read", "sessions/alice", "--from", "2099-01-01T00:00:00Z")
	c.wantError(exitFailure, `stream "sessions/bob": stream does not exist`, "read", "sessions/bob")
	c.wantError(exitFailure, `stream "sessions/alice": the next offset is 6, not 3 as expected`, "append", "sessions/alice", "x", "--expect", "3")
	c.wantRun("1 record appended to sessions/alice at offset 6, which is closed now\n", "", "append", "sessions/alice", "bye", "--expect", "6", "--close")
	c.wantError(exitFailure, `stream "sessions/alice" is closed: it ends at offset 7`, "append", "sessions/alice", "x")

	c.wantRun("stream \"jobs/1\" created\nstream \"jobs/2\" created\n", "", "create", "jobs/1", "jobs/2", "--ttl", "1d", "--content-type", "text/plain", "--retention", "36h", "--retention-bytes", "1000")
	c.wantError(exitFailure, `stream "jobs/1": stream exists already`, "create", "jobs/1")
	c.wantError(exitSettings, `--ttl is "0s": write a time of 1ms or more`, "create", "jobs/3", "--ttl", "0s")
	for _, size := range []string{"many", "-2", ""} {
		c.wantError(exitSettings, fmt.Sprintf("--retention-bytes is %q: write a size such as 64MiB, 1GB or 1048588", size), "create", "jobs/3", "--retention-bytes", size)
	}
	for size, want := range map[string]string{"10MB": "10000000", "64KiB": "65536", "-1": "-1"} {
		c.mustRun("", "create", "sizes/"+size, "--retention-bytes", size)
		if got := c.mustRun("", "describe", "sizes/"+size, "-o", "json"); !strings.Contains(got, `"retention_bytes": `+want) {
			t.Errorf("--retention-bytes %s: %s", size, got)
		}
	}
	c.wantRun("3 streams under \"sizes/\" deleted\n", "", "rm", "-r", "sizes/", "--yes")
	c.wantRun("stream \"jobs/1\" closed\n", "", "close", "jobs/1")
	c.wantRun(`
stream           jobs/1
state            closed
offsets          0 to 0
records          0
created          <time>
last write       <time>
retention        36h0m0s
retention bytes  1000
time to live     24h0m0s
content type     text/plain
`, "", "describe", "jobs/1")
	c.wantRun(`TOPIC           PARTITION  START
sessions/alice  0          3
`, "", "trim", "sessions/alice", "--to-offset", "3")
	c.wantRun("jobs/1\njobs/2\nsessions/alice\n", "", "ls")
	c.wantRun("jobs/2\n", "", "ls", "jobs/", "--after", "jobs/1")
	c.wantRun(`       START         NEXT  LAST WRITE            STATE   STREAM
           3            7  <time>  closed  sessions/alice
`, "", "ls", "-l", "sessions/")
	c.wantRun(`{"name":"jobs/1","start_offset":0,"next_offset":0,"created":"<time>","last_write":"<time>","closed":true,"retention_ms":129600000,"retention_bytes":1000,"ttl_ms":86400000,"content_type":"text/plain"}
`, "", "ls", "--limit", "1", "-o", "json")

	c.wantRun("stream \"jobs/2\" would be deleted\n", "", "rm", "jobs/2", "--dry-run")
	c.wantRun("2 streams under \"jobs/\" would be deleted\n", "", "rm", "-r", "jobs/", "--dry-run")
	c.wantError(exitSettings, "add --yes", "rm", "-r", "jobs/")
	c.wantRun("2 streams under \"jobs/\" deleted\n", "", "rm", "-r", "jobs/", "--yes")
	c.wantError(exitFailure, `stream "jobs/2": stream does not exist`, "rm", "sessions/alice", "jobs/2")
	c.wantRun("", "", "ls")
	c.wantRun("{\n  \"prefix\": \"\",\n  \"streams\": 0\n}\n", "", "rm", "-r", "", "-o", "json")
}

// Commands on streams leave topics alone, one that is named beside streams included.
func TestStreamCommandsRefuseTopics(t *testing.T) {
	c := startCluster(t)
	c.want("topic \"orders\" created\n", "topics", "create", "orders")
	c.produce("orders", 0, "a")
	c.mustRun("", "append", "a/b", "x")
	const topic = `"orders" is the name of a topic: a stream's has a slash, such as users/orders`
	for _, test := range []struct {
		want string
		args []string
	}{
		{topic + "; for topics there is brooklet topics delete", []string{"rm", "orders"}},
		{topic, []string{"rm", "a/b", "orders"}},
		{topic, []string{"rm", "orders", "--dry-run"}},
		{topic + "; for topics there is brooklet topics create", []string{"create", "orders"}},
		{topic + "; for topics there is brooklet topics describe", []string{"describe", "a/b", "orders"}},
		{topic + "; for topics there is brooklet topics trim", []string{"trim", "orders", "--to-latest"}},
		{`"orders:0" is the name of a topic`, []string{"trim", "orders:0", "--to-latest"}},
		{topic, []string{"close", "orders"}},
		{topic, []string{"read", "orders"}},
		{topic, []string{"tail", "orders"}},
		{topic, []string{"append", "orders", "x"}},
		{"names that begin with _ or topics/ are the broker's own", []string{"rm", "topics/orders/0"}},
		{"name one prefix, not 2", []string{"rm", "-r", "a/", "b/"}},
	} {
		c.wantError(exitSettings, test.want, test.args...)
	}
	c.wantRun("x\n", "", "read", "a/b")
	c.want("TOPIC   PARTITION  START\norders  0          1\n", "topics", "trim", "orders", "--to-latest")
}

func TestAppendRoutes(t *testing.T) {
	c := startCluster(t)
	c.wantRun("3 records appended to 2 streams\n", `{"user":{"id":7},"event":"in"}
{"user":{"id":"a b"},"event":"in"}

{"user":{"id":7},"event":"out"}
`, "append", "--format", "json", "--stream", "users/{user.id}", "--key-field", "event")
	c.wantRun("{\"stream\":\"users/7\",\"offset\":1,\"timestamp\":<ms>,\"key\":\"out\",\"value\":\"{\\\"user\\\":{\\\"id\\\":7},\\\"event\\\":\\\"out\\\"}\"}\n", "",
		"read", "users/7", "--from", "1", "-o", "json")
	c.wantRun("users/7\nusers/a b\n", "", "ls", "users/")
	c.wantRun("{\"records\":4,\"streams\":3,\"skipped_lines\":0,\"bytes\":49,\"seconds\":<s>}\n", "from blk_1 to blk_-2\nblk_1 blk_1\nread blk_3 done\n",
		"append", "-o", "json", "--match", "blk_(?P<block>-?[0-9]+)", "--all-matches", "--stream", "hdfs/{block}")
	c.wantRun("from blk_1 to blk_-2\nblk_1 blk_1\n", "", "read", "hdfs/1")
	c.wantRun("from blk_1 to blk_-2\n", "", "read", "hdfs/-2")
	c.wantRun("2 records appended to 2 streams\n", "x;1;y\nx;2;y\n", "append", "--delimiter", ";", "--stream", "d/{2}")
	c.wantRun("2 records appended to 1 stream\n", "a  b\tc d\nq w c r", "append", "--stream", "w/{{{3}}}")
	c.wantRun("w/{c}\n", "", "ls", "w/")

	// Bad lines are named, and what came before them is written.
	for i, test := range []struct{ input, want string }{
		{"{\"id\":1}\n{\"id\":null}\n{\"id\":3}\n", `line 2: field "id" is null, no text or number`},
		{"{\"id\":1}\n{\"other\":2}\n", `line 2: it has no field "id"`},
		{"{\"id\":1}\n{\"id\":2\n", "line 2: it is no JSON object"},
		{"{\"id\":1}\n[1]\n", "line 2: it is no JSON object"},
		{"{\"id\":1}\n{\"id\":\"\"}\n", `line 2: field "id" is empty`},
		{"{\"id\":1}\n{\"id\":\"..\"}\n", "line 2: invalid stream name"},
		{"{\"id\":1}\n{\"id\":\"a//b\"}\n", "line 2: invalid stream name"},
	} {
		stream := fmt.Sprintf("bad/%d", i)
		_, _, err := c.runWith(test.input, "append", "--format", "json", "--stream", stream+"/{id}")
		checkError(t, err, exitFailure, test.want, []string{"append"})
		checkError(t, err, exitFailure, "(written before: 1 record)", []string{"append"})
		c.wantRun("{\"id\":1}\n", "", "read", stream+"/1")
		out, errOut, err := c.runWith(test.input+"{\"id\":4}\n", "append", "--format", "json", "--stream", stream+"/{id}", "--skip-bad")
		if err != nil || !strings.Contains(out, ", 1 line skipped") || !strings.Contains(errOut, test.want) {
			t.Errorf("with --skip-bad: %v, %q, %q", err, out, errOut)
		}
		c.wantRun("{\"id\":4}\n", "", "read", stream+"/4")
	}
	_, _, err := c.runWith("no match\n", "append", "--match", "x(.)", "--stream", "m/{1}")
	checkError(t, err, exitFailure, `line 1: it does not match "x(.)": no match`, nil)

	// What the broker refuses is told with its line, too.
	c.mustRun("", "append", "closed/2", "last", "--close")
	_, _, err = c.runWith("1\n2\n3\n", "append", "--stream", "closed/{1}")
	checkError(t, err, exitFailure, `line 2: stream "closed/2" is closed: it ends at offset 1`, nil)

	for _, test := range []struct {
		want string
		args []string
	}{
		{"name the stream, or how to find it", []string{"append"}},
		{"name the stream, or how to find it", []string{"append", "a/b", "--stream", "a/{1}"}},
		{"--format is \"xml\"", []string{"append", "a/b", "--format", "xml"}},
		{"is the name of a topic", []string{"append", "orders"}},
		{`--stream: "users" is the name of a topic`, []string{"append", "--stream", "users", "--format", "json"}},
		{"--stream: invalid stream name", []string{"append", "--stream", "users//"}},
		{"fields of plain lines are numbered", []string{"append", "--stream", "a/{user}"}},
		{"is no group of the expression", []string{"append", "--stream", "a/{user}", "--match", "(.)"}},
		{"has a { that names no field", []string{"append", "--stream", "a/{user"}},
		{"has a } without a {", []string{"append", "--stream", "a/}"}},
		{"error parsing regexp", []string{"append", "--stream", "a/{1}", "--match", "("}},
		{"--match is for plain lines", []string{"append", "--stream", "a/{1}", "--match", "(.)", "--format", "json"}},
		{"--all-matches needs --match", []string{"append", "--stream", "a/{1}", "--all-matches"}},
		{"--expect and --close are for one stream", []string{"append", "--stream", "a/{1}", "--close"}},
		{"name one stream, not 0", []string{"read"}},
		{"--from is \"soon\"", []string{"read", "a/b", "--from", "soon"}},
		{"--limit is -3: write 1 or more", []string{"read", "a/b", "-n", "-3"}},
		{"--limit is 0: write 1 or more", []string{"tail", "a/b", "--limit", "0"}},
		{"--limit is -3: write 1 or more", []string{"tail", "-f", "--prefix", "a/", "--limit", "-3"}},
		{"--limit is 0: write 1 or more", []string{"ls", "--limit", "0"}},
		{"--limit is -3: write 1 or more", []string{"ls", "a/", "--limit", "-3"}},
		{"--prefix needs -f", []string{"tail", "--prefix", "a/"}},
		{"--output is \"xml\": write text or json or raw", []string{"tail", "a/b", "-o", "xml"}},
	} {
		c.wantError(exitSettings, test.want, test.args...)
	}
}

// A run of tail that keeps a cursor goes on where the last one ended.
func TestTailPrefixCursor(t *testing.T) {
	c := startCluster(t)
	file := filepath.Join(t.TempDir(), "cursor")
	var printed []string
	for run := range 4 {
		for s := range 3 {
			c.mustRun("", "append", fmt.Sprintf("t/%d", s), fmt.Sprintf("%d-%d", s, run))
		}
		out := c.mustRun("", "tail", "-f", "--prefix", "t/", "--from", "start", "--cursor", file, "--limit", "3")
		printed = append(printed, strings.Fields(out)...)
	}
	if files, err := os.ReadDir(filepath.Dir(file)); err != nil || len(files) != 1 {
		t.Errorf("beside the cursor: %v, %v", files, err)
	}
	slices.Sort(printed)
	var want []string
	for s := range 3 {
		for run := range 4 {
			want = append(want, fmt.Sprintf("%d-%d", s, run))
		}
	}
	if !slices.Equal(printed, want) {
		t.Errorf("printed %v, want %v", printed, want)
	}
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.wantError(exitFailure, "not a cursor", "tail", "-f", "--prefix", "t/", "--cursor", file)

	// One that cannot be saved is found before anything is printed.
	file = filepath.Join(t.TempDir(), "none", "cursor")
	if out := c.wantError(exitFailure, "cursor "+file+": ", "tail", "-f", "--prefix", "t/", "--from", "start", "--cursor", file); out != "" {
		t.Errorf("without a place for the cursor: %q is printed", out)
	}
}

// Records that other clients wrote are printed whatever they hold.
func TestReadAnything(t *testing.T) {
	c := startCluster(t)
	streams, err := client.New(kgo.SeedBrokers(c.address))
	if err != nil {
		t.Fatal(err)
	}
	defer streams.Close()
	if _, err := streams.Append(t.Context(), "any/thing", client.Record{Key: []byte{0xff}, Headers: []client.Header{{Key: "h"}, {Key: "i", Value: []byte("<&>")}}},
		client.Record{Value: []byte{}}); err != nil {
		t.Fatal(err)
	}
	c.wantRun(`{"stream":"any/thing","offset":0,"timestamp":<ms>,"key_base64":"/w==","headers":[{"key":"h"},{"key":"i","value":"<&>"}]}
{"stream":"any/thing","offset":1,"timestamp":<ms>,"value":""}
`, "", "read", "any/thing", "--output", "json")
}

func TestReadRefusesDeadBroker(t *testing.T) {
	out, err := (&cluster{t, "127.0.0.1:1"}).run("read", "a/b", "--timeout", "100ms")
	if exit := new(exitError); errors.As(err, &exit) || err == nil || !strings.Contains(err.Error(), "no broker answers at 127.0.0.1:1") {
		t.Errorf("%q, %v", out, err)
	}
}
