package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// cluster is a broker that commands are run against.
type cluster struct {
	t       *testing.T
	address string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	p := start(t, command(t, serveArgs(t.TempDir(), "--node-id", "3")...))
	return &cluster{t, p.address("serving Kafka clients")}
}

// run runs a command as the program would and returns what it prints, with what differs from run to run replaced.
func (c *cluster) run(args ...string) (string, error) {
	c.t.Helper()
	return c.runRaw(append(slices.Clone(args), "--brokers", c.address)...)
}

func (c *cluster) runRaw(args ...string) (string, error) {
	c.t.Helper()
	app := newApp()
	var out bytes.Buffer
	app.Writer = &out
	err := app.RunContext(c.t.Context(), flagsFirst(app.Commands, append([]string{"brooklet"}, args...)))
	return steady(out.String()), err
}

var (
	topicIDs    = regexp.MustCompile(`( |")[A-Za-z0-9_-]{22}(\n|")`)
	trailing    = regexp.MustCompile(` +\n`)
	memberUUIDs = regexp.MustCompile(`-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

const sameMember = "-00000000-0000-0000-0000-000000000000"

// steady replaces random ids.
func steady(text string) string {
	text = memberUUIDs.ReplaceAllString(text, sameMember) // as long, because columns are as wide as their cells
	text = topicIDs.ReplaceAllString(text, "$1<id>$2")
	return trailing.ReplaceAllString(text, "\n")
}

// want checks what a command prints, word for word.
func (c *cluster) want(want string, args ...string) {
	c.t.Helper()
	got, err := c.run(args...)
	if err != nil {
		c.t.Fatalf("brooklet %s: %v", strings.Join(args, " "), err)
	}
	if want = strings.TrimPrefix(want, "\n"); got != want {
		c.t.Errorf("brooklet %s prints\n%s\nwant\n%s", strings.Join(args, " "), got, want)
	}
}

// wantError checks exit code and error of a command.
func (c *cluster) wantError(code int, want string, args ...string) (out string) {
	c.t.Helper()
	out, err := c.run(args...)
	checkError(c.t, err, code, want, args)
	return out
}

func checkError(t *testing.T, err error, code int, want string, args []string) {
	t.Helper()
	exit := &exitError{err: err, code: exitFailure}
	errors.As(err, &exit)
	if err == nil || exit.code != code || !strings.Contains(err.Error(), want) {
		t.Errorf("brooklet %s: error %v with exit code %d, want %q with %d", strings.Join(args, " "), err, exit.code, want, code)
	}
}

func (c *cluster) produce(topic string, partition int32, values ...string) {
	c.t.Helper()
	client := newClient(c.t, c.address, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v)}
		if err := client.ProduceSync(c.t.Context(), r).FirstErr(); err != nil {
			c.t.Fatal(i, err)
		}
	}
}

// commit commits offsets for a group without members: partition by partition, from 0 on.
func (c *cluster) commit(group, topic string, offsets ...int64) {
	c.t.Helper()
	var all kadm.Offsets
	for p, o := range offsets {
		all.AddOffset(topic, int32(p), o, -1)
	}
	if err := kadm.NewClient(newClient(c.t, c.address)).CommitAllOffsets(c.t.Context(), group, all); err != nil {
		c.t.Fatal(err)
	}
}

func TestFlagsFirst(t *testing.T) {
	for args, want := range map[string]string{
		"brooklet":             "brooklet",
		"brooklet topics":      "brooklet topics",
		"brooklet topics list": "brooklet topics list",
		"brooklet topics create a --partitions 3 b":     "brooklet topics create --partitions 3 -- a b",
		"brooklet topics create a -p=3 --dry-run b":     "brooklet topics create -p=3 --dry-run -- a b",
		"brooklet topics create a -- --partitions":      "brooklet topics create -- a --partitions",
		"brooklet topics create a --partitions":         "brooklet topics create --partitions -- a",
		"brooklet topics create - --nonsense b":         "brooklet topics create --nonsense -- - b",
		"brooklet topics add-partitions a -p 3":         "brooklet topics add-partitions -p 3 -- a",
		"brooklet topics topics list":                   "brooklet topics topics list",
		"brooklet groups reset-offsets g --shift-by -5": "brooklet groups reset-offsets --shift-by -5 -- g",
		"brooklet serve x --listen :1":                  "brooklet serve x --listen :1",
		"brooklet nonsense --brokers x":                 "brooklet nonsense --brokers x",
	} {
		got := strings.Join(flagsFirst(newApp().Commands, strings.Fields(args)), " ")
		if got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

func TestSplitBrokers(t *testing.T) {
	for text, want := range map[string][]string{
		"h:1": {"h:1"}, "h:1, [::1]:2": {"h:1", "[::1]:2"}, "": nil, "h": nil, ":1": nil, "h:0": nil, "h:1,": nil, "h:99999": nil,
	} {
		if got, err := splitBrokers(text); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// Commands that cannot reach a broker say so within their time, and wrong flags are found before.
func TestClientCommandsWithoutBroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it accepts connections, and nobody answers on them
	c := &cluster{t: t}
	for _, tc := range []struct {
		code int
		want string
		args string
	}{
		{exitFailure, "no broker answers at 127.0.0.1:1 ", "topics list --brokers 127.0.0.1:1"},
		{exitFailure, fmt.Sprintf("no answer from %s within 200ms", l.Addr()), "groups list --timeout 200ms --brokers " + l.Addr().String()},
		{exitSettings, "write host:port", "topics list --brokers localhost"},
		{exitSettings, "write table or json", "topics list --output yaml"},
		{exitSettings, "write 1ms or more", "topics list --timeout 0s"},
		{exitSettings, `"extra" belongs to no flag`, "topics list extra"},
		{exitSettings, "see brooklet topics create --help", "topics create --nonsense x"},
		{exitSettings, `no command "make"; brooklet topics --help`, "topics make"},
		{exitSettings, "name one or more topics", "topics describe"},
		{exitSettings, "--partitions is 0", "topics create a --partitions 0"},
		{exitSettings, "write NAME=VALUE", "topics create a --config retention.ms"},
		{exitSettings, "set --partitions", "topics alter a"},
		{exitSettings, "set --partitions", "topics alter a --partitions -1"},
		{exitSettings, "say where to: --to-offset, --to-time, --to-latest", "topics trim a"},
		{exitSettings, "exclude each other", "topics trim a --to-latest --to-offset 3"},
		{exitSettings, "one topic or stream, not 2", "topics trim a b --to-latest"},
		{exitSettings, "name what has the configs", "configs describe"},
		{exitSettings, "name what has the configs", "configs describe group g"},
		{exitSettings, "name the topic", "configs describe topic"},
		{exitSettings, `"b" is one argument too many`, "configs describe topic a b"},
		{exitSettings, "name the configs to change", "configs set topic a"},
		{exitSettings, "write NAME=VALUE", "configs set topic a retention.ms"},
		{exitSettings, "write the name alone", "configs unset topic a retention.ms=1"},
		{exitSettings, "name a group", "groups reset-offsets"},
		{exitSettings, "one group, not 2", "groups reset-offsets g h --to-latest"},
		{exitSettings, "say where to", "groups reset-offsets g"},
		{exitSettings, "exclude each other", "groups reset-offsets g --to-earliest --to-latest"},
		{exitSettings, "--dry-run and --execute", "groups reset-offsets g --to-earliest --dry-run --execute"},
		{exitSettings, "write 0 or more", "groups reset-offsets g --to-offset -1"},
		{exitSettings, "write a time such as", "groups reset-offsets g --to-time yesterday"},
		{exitSettings, "name the topics with --topic", "groups delete-offsets g"},
	} {
		args := strings.Fields(tc.args)
		_, err := c.runRaw(args...)
		checkError(t, err, tc.code, tc.want, args)
	}
}

func TestBrokersVariable(t *testing.T) {
	c := startCluster(t)
	t.Setenv(brokersVariable, c.address)
	if out, err := c.runRaw("topics", "list"); err != nil || !strings.HasPrefix(out, "TOPIC") {
		t.Error(out, err)
	}
}
