package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
	"github.com/brookletmq/brooklet/streamstore"
)

// machine is what survives a server: a disk and a bucket, both in memory.
type machine struct {
	disk   vfs.FS
	bucket objstore.Bucket
}

func newMachine() *machine { return &machine{disk: vfs.NewMem(), bucket: objstore.NewMemory()} }

// door is a server over a store of its own, reached through connections in memory, so that it works on fake time.
type door struct {
	t      testing.TB
	server *Server
	store  *streamstore.Store
	bucket *faulty.Bucket
	reg    *prometheus.Registry
	listen *memoryListener
	client *http.Client
	// stop closes server and store. It runs at the end of the test at the latest.
	stop func()
}

type doorOptions struct {
	http  Options
	store streamstore.Options
}

func openDoor(t testing.TB, edit func(*doorOptions)) *door { return newMachine().open(t, edit) }

func (m *machine) open(t testing.TB, edit func(*doorOptions)) *door {
	t.Helper()
	bucket := faulty.New(m.bucket, 1)
	reg := prometheus.NewRegistry()
	opts := doorOptions{
		http:  Options{AutoCreate: true, AllowedOrigins: []string{"*"}, Topics: testTopics{}, Registerer: reg},
		store: streamstore.Options{Dir: "data", FS: m.disk, Bucket: bucket, MinFreeBytes: -1, BlockCacheBytes: 1 << 20},
	}
	if edit != nil {
		edit(&opts)
	}
	store, err := streamstore.Open(context.Background(), opts.store)
	if err != nil {
		t.Fatal(err)
	}
	opts.http.Store = store
	server, err := New(opts.http)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, server: server, store: store, bucket: bucket, reg: reg, listen: newMemoryListener()}
	d.client = d.newClient()
	served := make(chan error, 1)
	go func() { served <- server.Serve(d.listen) }()
	d.stop = sync.OnceFunc(func() {
		d.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != http.ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(d.stop)
	return d
}

// newClient returns a client with connections of its own. It asks for no compression unless told to.
func (d *door) newClient() *http.Client {
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return d.listen.dial(ctx) },
		DisableCompression: true,
	}
	d.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// testTopics are the topic orders with two partitions, stamped with its own time and an internal one.
type testTopics struct{}

func (testTopics) Partition(topic string, partition int32) (Rules, bool) {
	rules := Rules{MaxBatchBytes: 1 << 20, BeforeMax: endless, AfterMax: 3600_000}
	switch {
	case topic == "orders" && partition < 2:
	case topic == "stamped" && partition == 0:
		rules.LogAppendTime = true
	case topic == "__internal" && partition == 0:
		rules.ReadOnly = true
	default:
		return Rules{}, false
	}
	return rules, true
}

// memoryListener hands out connections in memory.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return memoryAddr{} }

func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory" }

// answer is a reply whose body was read.
type answer struct {
	*http.Response
	body string
}

// try sends a request. Headers are name, value, ...
func (d *door) try(method, path, body string, headers ...string) (*answer, error) {
	d.t.Helper()
	resp, err := d.send(method, path, strings.NewReader(body), headers...)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	a := &answer{resp, string(text)}
	var decoded *string
	if resp.Header.Get("Content-Encoding") == "" && method != http.MethodHead {
		decoded = &a.body
	}
	if err == nil {
		contract.check(d.t, resp.Request, resp, decoded)
	}
	return a, err
}

func (d *door) send(method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	return d.sendWith(d.t.Context(), d.client, method, path, body, headers...)
}

func (d *door) sendWith(ctx context.Context, client *http.Client, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	d.t.Helper()
	if reader, ok := body.(*strings.Reader); ok && reader.Len() == 0 {
		body = http.NoBody
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://broker.test"+path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return client.Do(r)
}

// ask sends a request, which must be answered with the status.
func (d *door) ask(status int, method, path, body string, headers ...string) *answer {
	d.t.Helper()
	a, err := d.try(method, path, body, headers...)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.StatusCode != status {
		d.t.Fatalf("%s %s: status %d, want %d: %s", method, path, a.StatusCode, status, a.body)
	}
	return a
}

const jsonType = "application/json"

// append appends values to a stream as JSON.
func (d *door) append(name string, values ...string) *answer {
	d.t.Helper()
	return d.ask(200, "POST", streamsPath+"/"+name, recordsBody(values...), "Content-Type", jsonType)
}

func recordsBody(values ...string) string {
	records := make([]map[string]string, len(values))
	for i, v := range values {
		records[i] = map[string]string{"value": v}
	}
	body, _ := json.Marshal(map[string]any{"records": records})
	return string(body)
}

// gotRecord is a record as readers see it.
type gotRecord struct {
	Stream      string          `json:"stream"`
	Offset      int64           `json:"offset"`
	Timestamp   int64           `json:"timestamp"`
	Key         *string         `json:"key"`
	KeyBase64   *string         `json:"key_base64"`
	Value       *string         `json:"value"`
	ValueBase64 *string         `json:"value_base64"`
	ValueJSON   json.RawMessage `json:"value_json"`
	Headers     [][]any         `json:"headers"`
}

type gotPage struct {
	Records    []gotRecord `json:"records"`
	NextOffset int64       `json:"next_offset"`
	Closed     bool        `json:"closed"`
}

// page decodes a reply of records as JSON.
func (a *answer) page(t testing.TB) gotPage {
	t.Helper()
	return decode[gotPage](t, a.body)
}

// values are the texts of a page's values.
func (p gotPage) values() string {
	var texts []string
	for _, r := range p.Records {
		switch {
		case r.Value != nil:
			texts = append(texts, *r.Value)
		case r.ValueBase64 != nil:
			texts = append(texts, "base64:"+*r.ValueBase64)
		default:
			texts = append(texts, "null")
		}
	}
	return strings.Join(texts, " ")
}

func decode[T any](t testing.TB, text string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// wantProblem checks that a reply is a problem of a kind, and returns its members.
func (a *answer) wantProblem(t testing.TB, kind *problemKind) map[string]any {
	t.Helper()
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("Content-Type %q of a problem: %s", got, a.body)
	}
	members := decode[map[string]any](t, a.body)
	if members["code"] != kind.code || members["status"] != float64(kind.status) || members["type"] != problemType+kind.code ||
		members["detail"] == "" || members["title"] != kind.title || a.StatusCode != kind.status {
		t.Fatalf("status %d, %s; want the problem %s", a.StatusCode, a.body, kind.code)
	}
	return members
}

func wantHeaders(t testing.TB, a *answer, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := a.Header.Get(pairs[i]); got != pairs[i+1] {
			t.Errorf("%s is %q, want %q", pairs[i], got, pairs[i+1])
		}
	}
}

func wantEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// event is one event of an event stream.
type event struct{ id, name, data string }

// eventReader reads an event stream as the standard says.
type eventReader struct {
	t        testing.TB
	resp     *http.Response
	in       *bufio.Reader
	cancel   context.CancelFunc
	comments int
	lastID   string
}

// follow opens an event stream, which must be answered with 200.
func (d *door) follow(path string, headers ...string) *eventReader {
	d.t.Helper()
	return d.followWith(d.client, path, headers...)
}

func (d *door) followWith(client *http.Client, path string, headers ...string) *eventReader {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := d.sendWith(ctx, client, "GET", path, http.NoBody, headers...)
	if err != nil {
		d.t.Fatal(err)
	}
	e := newEventReader(d.t, resp.Body)
	e.resp, e.cancel = resp, cancel
	d.t.Cleanup(e.close)
	contract.check(d.t, resp.Request, resp, nil)
	if resp.StatusCode != 200 {
		text, _ := io.ReadAll(resp.Body)
		d.t.Fatalf("GET %s: status %d: %s", path, resp.StatusCode, text)
	}
	return e
}

func newEventReader(t testing.TB, in io.Reader) *eventReader {
	return &eventReader{t: t, in: bufio.NewReader(in)}
}

func (e *eventReader) close() {
	e.cancel()
	e.resp.Body.Close()
}

// next returns the next event; io.EOF at the end.
func (e *eventReader) next() (event, error) {
	var ev event
	var data []string
	for {
		line, err := e.line()
		if err != nil {
			return ev, err
		}
		if line == "" {
			if data != nil {
				ev.data = strings.Join(data, "\n")
				return ev, nil
			}
			ev, data = event{}, nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "":
			e.comments++
		case "id":
			ev.id, e.lastID = value, value
		case "event":
			ev.name = value
		case "data":
			data = append(data, value)
		}
	}
}

// line reads a line that ends in LF, CR or CRLF.
func (e *eventReader) line() (string, error) {
	var line []byte
	for {
		c, err := e.in.ReadByte()
		if err != nil {
			return "", err
		}
		switch c {
		case '\n':
			return string(line), nil
		case '\r':
			if next, err := e.in.Peek(1); err == nil && next[0] == '\n' {
				e.in.ReadByte()
			}
			return string(line), nil
		}
		line = append(line, c)
	}
}

// want reads the next event, which must have this name.
func (e *eventReader) want(name string) event {
	e.t.Helper()
	ev, err := e.next()
	if err != nil {
		e.t.Fatalf("no event %q: %v", name, err)
	}
	if ev.name != name {
		e.t.Fatalf("event %+v, want %q", ev, name)
	}
	return ev
}

// wantValues reads record events with these values.
func (e *eventReader) wantValues(values ...string) (last event) {
	e.t.Helper()
	for _, want := range values {
		last = e.want("")
		if got := decode[gotRecord](e.t, last.data); got.Value == nil || *got.Value != want {
			e.t.Fatalf("event %+v, want the value %q", last, want)
		}
	}
	return last
}

// buildBatch builds a batch.
func buildBatch(t testing.TB, opts kafkaproto.BatchOptions, records ...kafkaproto.Record) kafkaproto.RecordBatch {
	t.Helper()
	b := kafkaproto.NewBuilder(opts)
	for _, r := range records {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// appendTo appends a batch in the store.
func (d *door) appendTo(name string, batch kafkaproto.RecordBatch) {
	d.t.Helper()
	id, err := d.store.Ensure(d.t.Context(), name, streamstore.DefaultSettings())
	if err != nil {
		d.t.Fatal(err)
	}
	done, err := d.store.Append(d.t.Context(), streamstore.AppendRequest{Stream: id, Batch: bytes.Clone(batch), Expected: streamstore.AnyOffset, Ack: streamstore.AckDurable})
	if err == nil {
		err = done.Wait(d.t.Context())
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// numbered are n different values.
func numbered(prefix string, n int) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return values
}
