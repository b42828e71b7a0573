package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/tests/harness"
)

// askDurable sends a request of the Durable Streams protocol and returns the body of the reply, which has the status, and
// its head.
func askDurable(t *testing.T, b *harness.Broker, status int, method, address, body string, headers ...string) (string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(testContext(t), method, "http://"+b.HTTP+"/ds/"+address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s %s: %s %v, want %d: %s", method, address, resp.Status, err, status, got)
	}
	return string(got), resp.Header
}

// readDurable reads a stream from its beginning to where it is up to date.
func readDurable(t *testing.T, b *harness.Broker, stream string) string {
	t.Helper()
	var all strings.Builder
	for offset := "-1"; ; {
		body, head := askDurable(t, b, http.StatusOK, http.MethodGet, stream+"?offset="+offset, "")
		all.WriteString(body)
		if head.Get("Stream-Up-To-Date") == "true" {
			return all.String()
		}
		offset = head.Get("Stream-Next-Offset")
	}
}

func readByDurableStreams(t *testing.T, b *harness.Broker, streams []string, _ int) map[string][]string {
	values := make(map[string][]string)
	for _, stream := range streams {
		values[stream] = []string{readDurable(t, b, stream)}
	}
	return values
}

// What is written to a stream by the Durable Streams protocol is a record for clients of Kafka, and the reverse, also
// after a crash; a producer's retry after it is known again.
func TestDurableStreamsAndKafka(t *testing.T) {
	b := harness.Start(t, harness.Config{})
	const stream = "notes/today"
	text := []string{"Content-Type", "text/plain"}
	producer := append([]string{"Producer-Id", "writer", "Producer-Epoch", "0", "Producer-Seq", "0"}, text...)
	askDurable(t, b, http.StatusCreated, http.MethodPut, stream, "", text...)
	askDurable(t, b, http.StatusOK, http.MethodPost, stream, "from HTTP\n", producer...)
	kafka := newKgo(t, b.Addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{stream: {0: kgo.NewOffset().AtStart()}}))
	if err := kafka.ProduceSync(testContext(t), &kgo.Record{Topic: stream, Key: []byte("k"), Value: []byte("from Kafka\n")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.Kill()
	b.Start()
	askDurable(t, b, http.StatusNoContent, http.MethodPost, stream, "from HTTP\n", producer...) // a retry
	askDurable(t, b, http.StatusNoContent, http.MethodPost, stream, "the end\n", append([]string{"Stream-Closed", "true"}, text...)...)
	if got, want := readDurable(t, b, stream), "from HTTP\nfrom Kafka\nthe end\n"; got != want {
		t.Errorf("Durable Streams read %q, want %q", got, want)
	}
	records, err := pollRecords(testContext(t), kafka, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"from HTTP\n", "from Kafka\n", "the end\n"} {
		if r := records[i]; string(r.Value) != want || r.Offset != int64(i) {
			t.Errorf("Kafka reads %q at %d, want %q at %d", r.Value, r.Offset, want, i)
		}
	}
	askDurable(t, b, http.StatusConflict, http.MethodPost, stream, "late\n", text...)
}
