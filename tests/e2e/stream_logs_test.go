package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	streamclient "github.com/brookletmq/brooklet/client"
	"github.com/brookletmq/brooklet/tests/harness"
)

// brooklet runs the program with standard input and returns what it prints.
func brooklet(t *testing.T, b *harness.Broker, input []byte, args ...string) []byte {
	t.Helper()
	var output, faults bytes.Buffer
	cmd := harness.Command(testContext(t), append(args, "--brokers", b.Addr)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &output, &faults
	if err := cmd.Run(); err != nil {
		t.Fatalf("brooklet %s: %v: %s", strings.Join(args, " "), err, faults.Bytes())
	}
	return output.Bytes()
}

// entityLog is a log whose lines belong to entities, each to be routed to a stream of its own.
type entityLog struct {
	name string
	// args of brooklet append.
	args []string
	// line makes a line, and names the streams that it belongs to.
	line func(r *rand.Rand, i int) (line string, streams []string)
}

// The shapes are those of logs of a file system of blocks and of a machine of nodes, and of events in JSON.
var entityLogs = []entityLog{
	{"blocks", []string{"--match", `blk_(?P<block>-?[0-9]+)`, "--all-matches", "--stream", "blocks/{block}"},
		func(r *rand.Rand, i int) (string, []string) {
			ids := []string{fmt.Sprint(r.IntN(400) - 200)}
			line := fmt.Sprintf("081109 2036%02d %d INFO dfs.DataNode$PacketResponder: Received block blk_%s of size %d", i%60, r.IntN(1000), ids[0], r.IntN(1<<26))
			for r.IntN(10) == 0 {
				ids = append(ids, fmt.Sprint(r.IntN(400)-200))
				line += " and blk_" + ids[len(ids)-1]
			}
			slices.Sort(ids)
			return line, under("blocks/", slices.Compact(ids))
		}},
	{"nodes", []string{"--stream", "nodes/{4}"},
		func(r *rand.Rand, i int) (string, []string) {
			node := fmt.Sprintf("R%02d-M%d-N%X-C:J%02d-U%02d", r.IntN(4), r.IntN(2), r.IntN(4), r.IntN(3), r.IntN(2))
			return fmt.Sprintf("- 11178383%02d 2005.06.03 %s 2005-06-03-15.42.50.%06d %s RAS KERNEL INFO instruction cache parity error corrected", i%100, node, i, node),
				[]string{"nodes/" + node}
		}},
	{"events", []string{"--format", "json", "--stream", "tenants/{tenant}/users/{user.id}", "--key-field", "user.id"},
		func(r *rand.Rand, i int) (string, []string) {
			tenant, user := r.IntN(5), r.IntN(60)
			return fmt.Sprintf(`{"n":%d,"tenant":"t%d","user":{"id":%d},"text":"größe \"%d\""}`, i, tenant, user, i), []string{fmt.Sprintf("tenants/t%d/users/%d", tenant, user)}
		}},
}

func under(prefix string, names []string) (streams []string) {
	for _, name := range names {
		streams = append(streams, prefix+name)
	}
	return streams
}

// A door is a way to read streams. It returns the values of each.
type door struct {
	name string
	read func(t *testing.T, b *harness.Broker, streams []string, records int) map[string][]string
	// joined: the values of a stream come as one, because the door knows no records.
	joined bool
}

var doors = []door{
	{name: "Kafka", read: readByKafka},
	{name: "Go client", read: readByClient},
	{name: "brooklet read", read: readByCommand},
	{name: "brooklet tail", read: readByTail},
	{name: "HTTP pages", read: readByHTTPPages},
	{name: "HTTP lines", read: readByHTTPLines},
	{name: "HTTP events", read: readByHTTPEvents},
	{name: "HTTP events of the prefix", read: readByHTTPPrefix},
	{name: "Durable Streams", read: readByDurableStreams, joined: true},
}

// readByKafka reads as any client of Kafka does.
func readByKafka(t *testing.T, b *harness.Broker, streams []string, records int) map[string][]string {
	offsets := make(map[string]map[int32]kgo.Offset)
	for _, stream := range streams {
		offsets[stream] = map[int32]kgo.Offset{0: kgo.NewOffset().AtStart()}
	}
	got, err := pollRecords(testContext(t), newKgo(t, b.Addr, kgo.ConsumePartitions(offsets)), records)
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string][]string)
	for _, r := range got {
		values[r.Topic] = append(values[r.Topic], string(r.Value))
	}
	return values
}

func newStreamClient(t *testing.T, b *harness.Broker, opts ...kgo.Opt) *streamclient.Client {
	t.Helper()
	c, err := streamclient.New(append([]kgo.Opt{kgo.SeedBrokers(b.Addr)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func readByClient(t *testing.T, b *harness.Broker, streams []string, _ int) map[string][]string {
	c := newStreamClient(t, b)
	values := make(map[string][]string)
	for _, stream := range streams {
		for r, err := range c.Read(testContext(t), stream, streamclient.Start()) {
			if err != nil {
				t.Fatal(err)
			}
			values[stream] = append(values[stream], string(r.Value))
		}
	}
	return values
}

// readByCommand reads a part of the streams, because each takes a process.
func readByCommand(t *testing.T, b *harness.Broker, streams []string, _ int) map[string][]string {
	values := make(map[string][]string)
	for i, stream := range streams {
		if i%10 == 0 {
			values[stream] = strings.Split(strings.TrimSuffix(string(brooklet(t, b, nil, "read", stream)), "\n"), "\n")
		}
	}
	return values
}

// readByTail follows the prefix that all streams share.
func readByTail(t *testing.T, b *harness.Broker, streams []string, records int) map[string][]string {
	prefix, _, _ := strings.Cut(streams[0], "/")
	out := brooklet(t, b, nil, "tail", "-f", "--prefix", prefix+"/", "--from", "start", "--limit", fmt.Sprint(records), "--output", "json")
	values := make(map[string][]string)
	for line := range bytes.Lines(out) {
		var r struct{ Stream, Value string }
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		values[r.Stream] = append(values[r.Stream], r.Value)
	}
	return values
}

// Every line of a log is in the stream of each entity that it names, in the order of the log, by whichever door it is
// read, also after the broker was killed.
func TestLogsByEntity(t *testing.T) {
	t.Parallel()
	for _, log := range entityLogs {
		t.Run(log.name, func(t *testing.T) {
			t.Parallel()
			const lines = 2000
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			b := harness.Start(t, harness.Config{})
			var input bytes.Buffer
			want, records := make(map[string][]string), 0
			for i := range lines {
				line, streams := log.line(r, i)
				input.WriteString(line + "\n")
				for _, stream := range streams {
					want[stream] = append(want[stream], line)
					records++
				}
			}
			out := brooklet(t, b, input.Bytes(), append([]string{"append"}, log.args...)...)
			if said := fmt.Sprintf("%d records appended to %d streams\n", records, len(want)); string(out) != said {
				t.Errorf("append says %q, want %q", out, said)
			}
			b.Kill()
			b.Start()
			streams := slices.Sorted(maps.Keys(want))
			for _, door := range doors {
				got := door.read(t, b, streams, records)
				if len(got) < len(want)/10 {
					t.Errorf("%s: %d of %d streams", door.name, len(got), len(want))
				}
				for stream, values := range got {
					want := want
					if door.joined {
						want = map[string][]string{stream: {strings.Join(want[stream], "")}}
					}
					if !slices.Equal(values, want[stream]) {
						t.Fatalf("%s: stream %s holds\n%s\nwant\n%s", door.name, stream, strings.Join(values, "\n"), strings.Join(want[stream], "\n"))
					}
				}
			}
		})
	}
}
