package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/tests/harness"
)

// cutter is an HTTP client whose connections can be cut.
type cutter struct {
	*http.Client
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newCutter(t *testing.T) *cutter {
	c := &cutter{conns: map[net.Conn]struct{}{}}
	var dialer net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if err == nil {
			c.mu.Lock()
			c.conns[conn] = struct{}{}
			c.mu.Unlock()
		}
		return conn, err
	}}
	c.Client = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

// cut closes some of the connections.
func (c *cutter) cut(share float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		if rand.Float64() < share {
			conn.Close()
			delete(c.conns, conn)
		}
	}
}

// send sends a request once and returns the body of a reply with the wanted status.
func (c *cutter) send(ctx context.Context, method, url, body string, status int, headers ...string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("%s %s: %w: %s", method, url, statusError(resp.StatusCode), text)
	}
	return string(text), err
}

// statusError is a reply with a status that was not wanted.
type statusError int

func (e statusError) Error() string { return "status " + strconv.Itoa(int(e)) }

// permanent tells that a retry of an append cannot help.
func permanent(err error) bool {
	status, ok := errors.AsType[statusError](err)
	return ok && status < 500
}

// httpRecord is a record as readers get it.
type httpRecord struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"`
	Value  string `json:"value"`
}

// followEvents follows an event stream over however many connections it takes, until fn says that it has seen all. fn gets
// each record; a cursor or the end of a connection calls it with nil.
func (c *cutter) followEvents(ctx context.Context, url string, fn func(r *httpRecord) (done bool, err error)) error {
	lastID := ""
	for ctx.Err() == nil {
		done, err := c.followOnce(ctx, url, &lastID, fn)
		if done || err != nil && permanent(err) {
			return err
		}
		time.Sleep(10 * time.Millisecond) // the broker may be down
	}
	return ctx.Err()
}

// errMissed is what a reader says that did not get what it should. No retry helps.
type errMissed struct{ error }

func (c *cutter) followOnce(ctx context.Context, url string, lastID *string, fn func(*httpRecord) (bool, error)) (done bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return true, err
	}
	if *lastID != "" {
		r.Header.Set("Last-Event-ID", *lastID)
	}
	resp, err := c.Do(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return true, fmt.Errorf("%s: %w", url, statusError(resp.StatusCode))
	}
	if _, err := fn(nil); err != nil {
		return true, err
	}
	id, name, data := "", "", ""
	for in := bufio.NewReader(resp.Body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return false, err
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			id = value
		case "event":
			name = value
		case "data":
			data = value
		case "":
			if id != "" {
				*lastID = id
			}
			if data != "" && name == "" {
				var record httpRecord
				if err := json.Unmarshal([]byte(data), &record); err != nil {
					return true, err
				}
				if done, err := fn(&record); done || err != nil {
					return true, err
				}
			} else if name != "" && name != "cursor" {
				return true, errMissed{fmt.Errorf("event %s: %s", name, data)}
			}
			id, name, data = "", "", ""
		}
	}
}

// Writers with sequence numbers and readers with the id of their last event lose nothing and get nothing twice, whatever
// happens in between: a broker that is killed, connections that are cut, readers that are slow.
func TestHTTPExactlyOnce(t *testing.T) {
	const streams, records = 4, 250
	b := harness.Start(t, harness.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*stepTimeout)
	defer cancel()
	url := "http://" + b.HTTP + "/v1/streams"
	client := newCutter(t)
	acked := make(chan struct{}, streams*records)
	errs := make(chan error, 3*streams+1)
	var all sync.WaitGroup
	run := func(what string, fn func() error) {
		all.Go(func() {
			if err := fn(); err != nil {
				errs <- fmt.Errorf("%s: %w", what, err)
				cancel()
			}
		})
	}
	for n := range streams {
		name := fmt.Sprintf("load/%d", n)
		run("writer of "+name, func() error {
			for i := range records {
				for {
					_, err := client.send(ctx, "POST", url+"/"+name, strconv.Itoa(i), http.StatusOK,
						"Producer-Id", "writer", "Producer-Epoch", "0", "Producer-Seq", strconv.Itoa(i))
					if err == nil {
						break
					}
					if ctx.Err() != nil || permanent(err) {
						return err
					}
					time.Sleep(10 * time.Millisecond)
				}
				acked <- struct{}{}
			}
			return nil
		})
		slow := n == 0
		run("reader of "+name, func() error {
			next := 0
			return client.followEvents(ctx, url+"/"+name+"?live=sse", func(r *httpRecord) (bool, error) {
				if r == nil {
					return false, nil
				}
				if r.Offset != int64(next) || r.Value != strconv.Itoa(next) {
					return true, errMissed{fmt.Errorf("got %+v, want record %d", r, next)}
				}
				if next++; slow {
					time.Sleep(3 * time.Millisecond)
				}
				return next == records, nil
			})
		})
	}
	run("reader of the prefix", func() error {
		next, total := map[string]int64{}, 0
		return client.followEvents(ctx, url+"?prefix=load/&live=sse", func(r *httpRecord) (bool, error) {
			switch {
			case r == nil || r.Offset < next[r.Stream]: // seen before a connection was cut
				return false, nil
			case r.Offset > next[r.Stream] || r.Value != strconv.FormatInt(r.Offset, 10):
				return true, errMissed{fmt.Errorf("got %+v, want offset %d", r, next[r.Stream])}
			}
			next[r.Stream]++
			total++
			return total == streams*records, nil
		})
	})
	for i := 1; i <= streams*records && ctx.Err() == nil; i++ {
		select {
		case <-acked:
		case <-ctx.Done():
		}
		if i%40 == 0 {
			client.cut(0.5)
		}
		if i%250 == 0 && i < streams*records {
			b.Kill()
			b.Start()
		}
	}
	all.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	for n := range streams {
		text, err := client.send(t.Context(), "GET", fmt.Sprintf("%s/load/%d?describe", url, n), "", http.StatusOK)
		if err != nil || !strings.Contains(text, fmt.Sprintf(`"end_offset":%d,`, records)) {
			t.Errorf("stream %d: %v %s", n, err, text)
		}
	}
}

// A stop in order ends the connections of readers who wait.
func TestHTTPStop(t *testing.T) {
	b := harness.Start(t, harness.Config{})
	url := "http://" + b.HTTP + "/v1/streams"
	client := newCutter(t)
	ctx := testContext(t)
	if _, err := client.send(ctx, "POST", url+"/a/b", "one", http.StatusOK); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 3)
	for _, path := range []string{"/a/b?live=sse&from=tail", "?prefix=a/&live=sse&from=tail", "/a/b?live=long-poll&from=tail&timeout=300000"} {
		if strings.Contains(path, "sse") {
			resp, err := client.Get(url + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			go func() {
				_, err := io.Copy(io.Discard, resp.Body)
				ends <- err
			}()
			continue
		}
		go func() {
			_, err := client.send(ctx, "GET", url+path, "", http.StatusOK)
			ends <- err
		}()
	}
	for { // until all three wait
		if status, text := b.Get("/metrics"); status == http.StatusOK && strings.Contains(text, `brooklet_http_followers{kind="long-poll"} 1`) {
			break
		}
	}
	b.Signal(syscall.SIGTERM)
	for range cap(ends) {
		if err := <-ends; err != nil {
			t.Errorf("a reader that waited: %v", err)
		}
	}
	if code := b.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// One stream, two doors.
func TestHTTPAndKafkaShareStreams(t *testing.T) {
	b := harness.Start(t, harness.Config{})
	url := "http://" + b.HTTP + "/v1/streams"
	client := newCutter(t)
	ctx := testContext(t)
	for topic, path := range map[string]string{"sessions/alice": "sessions/alice", "orders": "topics/orders/0"} {
		c := newKgo(t, b.Addr, kgo.AllowAutoTopicCreation(), kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond))
		large := strings.Repeat("by Kafka ", 100)
		record := &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(large), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}
		if err := c.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if _, err := client.send(ctx, "POST", url+"/"+path+"?key=k2&header=h2=v2", "by HTTP", http.StatusOK); err != nil {
			t.Fatal(err)
		}
		text, err := client.send(ctx, "GET", url+"/"+path, "", http.StatusOK)
		for _, want := range []string{`"key":"k","value":"` + large + `","headers":[["h","v"]]`, `"key":"k2","value":"by HTTP","headers":[["h2","v2"]]`} {
			if err != nil || !strings.Contains(text, want) {
				t.Errorf("%s over HTTP: %v %s, want %s", path, err, text, want)
			}
		}
		var got []string
		for len(got) < 2 {
			fetches := c.PollFetches(ctx)
			if err := fetches.Err0(); err != nil {
				t.Fatal(err)
			}
			fetches.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Key)+"="+string(r.Value)+string(r.Headers[0].Value)) })
		}
		if want := fmt.Sprint([]string{"k=" + large + "v", "k2=by HTTPv2"}); fmt.Sprint(got) != want {
			t.Errorf("%s over Kafka: %v", topic, got)
		}
	}
	text, err := client.send(ctx, "DELETE", url+"/topics/orders/0", "", http.StatusConflict)
	if err != nil {
		t.Errorf("deleting a partition of a topic: %v %s", err, text)
	}
}

// httpGet returns the body of a reply.
func httpGet(t *testing.T, b *harness.Broker, path string) string {
	t.Helper()
	text, err := newCutter(t).send(testContext(t), http.MethodGet, "http://"+b.HTTP+"/v1/streams"+path, "", http.StatusOK)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// readByHTTPPages reads page by page.
func readByHTTPPages(t *testing.T, b *harness.Broker, streams []string, _ int) map[string][]string {
	values := map[string][]string{}
	for _, stream := range streams {
		for from := int64(0); ; {
			var page struct {
				Records    []httpRecord
				NextOffset int64 `json:"next_offset"`
			}
			if err := json.Unmarshal([]byte(httpGet(t, b, fmt.Sprintf("/%s?from=%d&limit=7", stream, from))), &page); err != nil {
				t.Fatal(err)
			}
			if len(page.Records) == 0 {
				break
			}
			for _, r := range page.Records {
				values[stream] = append(values[stream], r.Value)
			}
			from = page.NextOffset
		}
	}
	return values
}

// readByHTTPLines reads each stream in one reply.
func readByHTTPLines(t *testing.T, b *harness.Broker, streams []string, _ int) map[string][]string {
	values := map[string][]string{}
	for _, stream := range streams {
		for line := range strings.Lines(httpGet(t, b, "/"+stream+"?format=ndjson")) {
			var r httpRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			values[stream] = append(values[stream], r.Value)
		}
	}
	return values
}

// readByHTTPEvents follows some of the streams, each up to the end that it has now.
func readByHTTPEvents(t *testing.T, b *harness.Broker, streams []string, _ int) map[string][]string {
	values := map[string][]string{}
	for i, stream := range streams {
		if i%10 != 0 {
			continue
		}
		var info struct {
			End int `json:"end_offset"`
		}
		if err := json.Unmarshal([]byte(httpGet(t, b, "/"+stream+"?describe")), &info); err != nil {
			t.Fatal(err)
		}
		err := newCutter(t).followEvents(testContext(t), "http://"+b.HTTP+"/v1/streams/"+stream+"?live=sse", func(r *httpRecord) (bool, error) {
			if r != nil {
				values[stream] = append(values[stream], r.Value)
			}
			return len(values[stream]) == info.End, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return values
}

// readByHTTPPrefix follows the prefix that all streams share.
func readByHTTPPrefix(t *testing.T, b *harness.Broker, streams []string, records int) map[string][]string {
	prefix, _, _ := strings.Cut(streams[0], "/")
	values, got := map[string][]string{}, 0
	err := newCutter(t).followEvents(testContext(t), "http://"+b.HTTP+"/v1/streams?prefix="+prefix+"/&live=sse", func(r *httpRecord) (bool, error) {
		if r != nil {
			values[r.Stream] = append(values[r.Stream], r.Value)
			got++
		}
		return got == records, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return values
}
