package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/broker"
	"github.com/brookletmq/brooklet/client"
)

func value(format string, args ...any) client.Record {
	return client.Record{Value: fmt.Appendf(nil, format, args...)}
}

func mustAppend(t testing.TB, c *client.Client, stream string, records ...client.Record) int64 {
	t.Helper()
	offset, err := c.Append(testContext(t), stream, records...)
	if err != nil {
		t.Fatal(err)
	}
	return offset
}

// readAll returns the values of a stream.
func readAll(t testing.TB, c *client.Client, stream string, from client.Position) (values []string) {
	t.Helper()
	for r, err := range c.Read(testContext(t), stream, from) {
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, string(r.Value))
	}
	return values
}

func wantEqual(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// Records come back as they were written.
func TestAppendRead(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	now := time.UnixMilli(time.Now().UnixMilli())
	records := []client.Record{
		{Value: []byte("a"), Timestamp: now},
		{Key: []byte("k"), Timestamp: now.Add(time.Second)},
		{Key: []byte{}, Value: []byte{}, Headers: []client.Header{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Value: []byte{}}}, Timestamp: now},
		{Value: []byte(strings.Repeat("compressed ", 1000)), Timestamp: now},
	}
	if offset := mustAppend(t, c, "s/a", records...); offset != 0 {
		t.Fatalf("the first record is at %d", offset)
	}
	for i := range records {
		records[i].Stream, records[i].Offset = "s/a", int64(i)
	}
	var got []client.Record
	for r, err := range c.Read(testContext(t), "s/a", client.Start()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, *r)
	}
	wantEqual(t, "records", got, records)

	mustAppend(t, c, "s/a", value("last"))
	for position, want := range map[client.Position]int{client.Start(): 5, client.At(3): 2, client.At(5): 0, client.End(): 0, client.Since(now.Add(time.Second)): 4,
		client.Since(now.Add(time.Hour)): 0} {
		if got := len(readAll(t, c, "s/a", position)); got != want {
			t.Errorf("from %+v: %d records, want %d", position, got, want)
		}
	}
	wantEqual(t, "records of a stream that does not exist", len(readAll(t, c, "s/none", client.Start())), 0)
	for _, err := range c.Read(testContext(t), "s/a", client.At(9)) {
		var outOfRange *client.OutOfRangeError
		if !errors.As(err, &outOfRange) || *outOfRange != (client.OutOfRangeError{Stream: "s/a", Offset: 9, Start: 0, Next: 5}) {
			t.Errorf("from offset 9: %v", err)
		}
	}
}

// The error names offsets that can be read, as far as there are some.
func TestOutOfRangeError(t *testing.T) {
	for want, err := range map[string]client.OutOfRangeError{
		`stream "s/a" has no offset 0: it holds 2 to 5`:                       {Stream: "s/a", Offset: 0, Start: 2, Next: 6},
		`stream "s/a" has no offset 7: it holds 5 to 5`:                       {Stream: "s/a", Offset: 7, Start: 5, Next: 6},
		`stream "s/a" has no offset 1: it is empty, and its next offset is 0`: {Stream: "s/a", Offset: 1},
		`stream "s/a" has no offset 0: it is empty, and its next offset is 6`: {Stream: "s/a", Offset: 0, Start: 6, Next: 6},
	} {
		wantEqual(t, "error", err.Error(), want)
	}
}

func TestAppendErrors(t *testing.T) {
	b := startBroker(t, nil)
	c := newClient(t, b)
	ctx := testContext(t)
	mustAppend(t, c, "s/a", value("0"), value("1"))
	_, err := c.AppendIf(ctx, client.NextIs(1), "s/a", value("x"))
	if conflict := new(client.ConflictError); !errors.As(err, &conflict) || *conflict != (client.ConflictError{Stream: "s/a", Expected: 1, Next: 2}) {
		t.Errorf("conflict: %v", err)
	}
	if offset, err := c.AppendIf(ctx, client.NextIs(2), "s/a", value("2")); offset != 2 || err != nil {
		t.Errorf("appended at %d, %v", offset, err)
	}
	r := c.AppendBatches(ctx,
		client.Batch{Stream: "s/a", Records: []client.Record{value("3")}, If: client.NextIs(3)},
		client.Batch{Stream: "s/a", Records: []client.Record{value("x")}, If: client.NextIs(3)},
		client.Batch{Stream: "s/b", Records: []client.Record{value("0")}},
		client.Batch{Stream: "s/a", Records: []client.Record{value("4"), value("5")}, Close: true},
		client.Batch{Stream: "s/a", Records: []client.Record{value("x")}},
		client.Batch{Stream: "a//b", Records: []client.Record{value("x")}},
		client.Batch{Stream: "s/empty"},
	)
	var conflict *client.ConflictError
	var closed *client.ClosedError
	if r[0].Err != nil || !errors.As(r[1].Err, &conflict) || r[2].Err != nil || r[3].First != 4 || r[3].Next != 6 || r[3].Err != nil ||
		!errors.As(r[4].Err, &closed) || closed.Next != 6 || !errors.Is(r[5].Err, client.ErrInvalidName) || r[6].Err == nil {
		t.Errorf("results: %+v", r)
	}
	wantEqual(t, "records", readAll(t, c, "s/a", client.Start()), []string{"0", "1", "2", "3", "4", "5"})
	wantEqual(t, "records", readAll(t, c, "s/b", client.Start()), []string{"0"})
	if _, err := c.Append(ctx, "s/big", client.Record{Value: make([]byte, 2<<20)}); err == nil || strings.Contains(err.Error(), "closed") {
		// It compresses to little: what counts is what is stored.
		wantEqual(t, "error", err, nil)
	}
	incompressible := make([]byte, 2<<20)
	for i := range incompressible {
		incompressible[i] = byte(rand.Uint32())
	}
	if _, err := c.Append(ctx, "s/big", client.Record{Value: incompressible}); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("a record beyond the limit: %v", err)
	}
	if _, err := c.Append(ctx, "s/big", client.Record{Value: make([]byte, 65<<20)}); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("a record beyond any limit: %v", err)
	}
	wantEqual(t, "the stream goes on", mustAppend(t, c, "s/big", value("small")), int64(1))

	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Append(done, "s/a", value("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	c.Close()
	if _, err := c.Append(ctx, "s/a", value("x")); !errors.Is(err, client.ErrClientClosed) {
		t.Errorf("with a closed client: %v", err)
	}

	closedDoor := newClient(t, startBroker(t, func(o *broker.Options) { o.AutoCreateTopics = false }))
	if _, err := closedDoor.Append(ctx, "s/a", value("x")); !errors.Is(err, client.ErrNoStream) {
		t.Errorf("to a broker that makes no streams: %v", err)
	}
}

// A request that is too large for the broker is answered with a closed connection only. It does not hold up appends to
// other streams.
func TestRequestTooLargeHoldsUpNothingElse(t *testing.T) {
	b, err := newBrokerWithFrames(nil, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.stop() })
	c := newClient(t, b)
	ctx, cancel := context.WithCancel(testContext(t))
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	ended := make(chan client.Result, 1)
	if err := c.AppendAsync(ctx, client.Batch{Stream: "s/large", Records: []client.Record{{Value: noise}}}, func(r client.Result) { ended <- r }); err != nil {
		t.Fatal(err)
	}
	var batches []client.Batch
	for i := range 1000 { // together too large as well
		batches = append(batches, client.Batch{Stream: fmt.Sprintf("s/%d", i), Records: []client.Record{{Value: noise[i<<10 : (i+4)<<10]}}})
	}
	for _, r := range c.AppendBatches(testContext(t), batches...) {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
	cancel()
	if r := <-ended; !errors.Is(r.Err, context.Canceled) {
		t.Errorf("the large one: %v", r.Err)
	}
}

// Many goroutines append to many streams while connections break and the broker restarts. Each stream must have each
// record once, in order, at the offset that its writer was told.
func TestAppendExactlyOnce(t *testing.T) {
	const writers, streams, each = 8, 5, 300
	b := startBroker(t, nil)
	var d dialer
	c := newClient(t, b, kgo.Dialer(d.dial))
	ctx := testContext(t)
	done := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(5+rand.IntN(20)) * time.Millisecond):
			}
			if i%10 == 9 {
				b.restart(t)
			} else {
				d.cut()
			}
		}
	})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			last := make(map[string]int64)
			for i := range each {
				stream := fmt.Sprintf("w/%d", (w+i)%streams)
				offset, err := c.Append(ctx, stream, value("%d-%d", w, i))
				if before, ok := last[stream]; err != nil || ok && offset <= before {
					t.Errorf("record %d of writer %d: offset %d after %d, %v", i, w, offset, before, err)
					return
				}
				last[stream] = offset
			}
		})
	}
	wg.Wait()
	close(done)
	chaos.Wait()
	seen := make(map[string]bool)
	for s := range streams {
		var last [writers]int
		for i := range last {
			last[i] = -1
		}
		for _, v := range readAll(t, c, fmt.Sprintf("w/%d", s), client.Start()) {
			var w, i int
			if _, err := fmt.Sscanf(v, "%d-%d", &w, &i); err != nil || seen[v] || i <= last[w] {
				t.Fatalf("stream %d has %q again, or after %d", s, v, last[w])
			}
			seen[v], last[w] = true, i
		}
	}
	wantEqual(t, "records", len(seen), writers*each)
	t.Logf("%d connections were cut", d.cuts)
}

// Asynchronous appends keep their order per stream and share requests and batches. So many streams that their state is
// dropped on the way are no different.
func TestAppendAsync(t *testing.T) {
	const streams, each = 20_000, 3
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	next := make(map[string]int64)
	for i := range streams * each {
		err := c.AppendAsync(ctx, client.Batch{Stream: fmt.Sprintf("n/%d", i%streams), Records: []client.Record{value("%d", i/streams)}}, func(r client.Result) {
			if r.Err != nil || r.First != next[r.Stream] {
				t.Errorf("%+v, want it at %d", r, next[r.Stream])
			}
			next[r.Stream] = r.Next
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	n := 0
	for info, err := range c.List(ctx, "n/", "") {
		if err != nil || info.Next != each {
			t.Fatalf("%+v, %v", info, err)
		}
		n++
	}
	wantEqual(t, "streams", n, streams)
	wantEqual(t, "records", readAll(t, c, "n/77", client.Start()), []string{"0", "1", "2"})
}

// To a broker a stream is a topic, and what is done to a stream it does to a topic as well. The client does not.
func TestTopicsAreLeftAlone(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	admin := kadm.NewClient(c.Kafka())
	if _, err := admin.CreateTopic(ctx, 1, -1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := c.Kafka().ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, client.ErrInvalidName) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("create", c.Create(ctx, "payments"))
	check("configure", c.Configure(ctx, "orders", client.RetentionBytes(1)))
	_, err := c.Trim(ctx, "orders", 1)
	check("trim", err)
	_, err = c.CloseStream(ctx, "orders")
	check("close", err)
	_, err = c.Delete(ctx, "s/1", "orders")
	check("delete", err)
	topics, err := admin.ListTopics(ctx)
	if err != nil || !slices.Equal(topics.Names(), []string{"orders"}) {
		t.Errorf("topics: %v, %v", topics.Names(), err)
	}
	if start, err := admin.ListStartOffsets(ctx, "orders"); err != nil || start["orders"][0].Offset != 0 {
		t.Errorf("start offset: %v, %v", start, err)
	}
}

func TestStreams(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check("create", c.Create(ctx, "j/1", client.TTL(time.Hour), client.ContentType("text/plain"), client.Retention(time.Minute), client.RetentionBytes(99)), nil)
	check("create again", c.Create(ctx, "j/1"), client.ErrExists)
	check("create with a bad name", c.Create(ctx, "j//1"), client.ErrInvalidName)
	check("configure", c.Configure(ctx, "j/1", client.TTL(-1), client.ContentType("application/json")), nil)
	check("configure none", c.Configure(ctx, "j/2", client.TTL(-1)), client.ErrNoStream)
	if err := c.Configure(ctx, "j/1", client.TTL(0)); err == nil {
		t.Error("a time to live of 0 is accepted")
	}
	mustAppend(t, c, "j/1", value("0"), value("1"), value("2"))
	start, err := c.Trim(ctx, "j/1", 2)
	check("trim", err, nil)
	wantEqual(t, "start", start, int64(2))
	_, err = c.Trim(ctx, "j/1", 7)
	if e := new(client.OutOfRangeError); !errors.As(err, &e) || *e != (client.OutOfRangeError{Stream: "j/1", Offset: 7, Start: 2, Next: 3}) {
		t.Errorf("trim beyond the end: %v", err)
	}
	_, err = c.Trim(ctx, "j/2", 0)
	check("trim none", err, client.ErrNoStream)
	next, err := c.CloseStream(ctx, "j/1")
	check("close", err, nil)
	wantEqual(t, "end", next, int64(3))
	_, err = c.CloseStream(ctx, "j/2")
	check("close none", err, client.ErrNoStream)
	info, err := c.Describe(ctx, "j/1")
	check("describe", err, nil)
	if time.Since(info.Created) > time.Hour || time.Since(info.LastWrite) > time.Hour {
		t.Errorf("times of %+v", info)
	}
	info.Created, info.LastWrite = time.Time{}, time.Time{}
	wantEqual(t, "info", info, client.Info{Stream: "j/1", Start: 2, Next: 3, Closed: true, Retention: time.Minute, RetentionBytes: 99, TTL: -1, ContentType: "application/json"})
	_, err = c.Describe(ctx, "j/2")
	check("describe none", err, client.ErrNoStream)
	errs, err := c.Delete(ctx, "j/1", "j/2")
	check("delete", err, nil)
	check("delete one", errs[0], nil)
	check("delete none", errs[1], client.ErrNoStream)
	_, err = c.Describe(ctx, "j/1")
	check("describe what was deleted", err, client.ErrNoStream)
}

func TestList(t *testing.T) {
	const n = 4500 // three pages
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	var batches []client.Batch
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("l/%06d", i))
		batches = append(batches, client.Batch{Stream: want[i], Records: []client.Record{value("x")}})
	}
	for _, r := range c.AppendBatches(ctx, batches...) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	list := func(prefix, after string, most int) (names []string) {
		for info, err := range c.List(ctx, prefix, after) {
			if err != nil {
				t.Fatal(err)
			}
			if names = append(names, info.Stream); len(names) == most {
				break
			}
		}
		return names
	}
	wantEqual(t, "all", list("", "", 0), want)
	wantEqual(t, "some", list("l/0000", "l/000050", 0), want[51:100])
	wantEqual(t, "few", list("l/", want[n-3], 1), want[n-2:n-1])
	wantEqual(t, "none", list("m", "", 0), []string(nil))
}

// A follower that begins before its stream exists gets every record once, whatever happens to connections and broker.
func TestFollow(t *testing.T) {
	const n = 200
	b := startBroker(t, nil)
	var d dialer
	follower, writer := newClient(t, b, kgo.Dialer(d.dial)), newClient(t, b)
	ctx := testContext(t)
	var wrote sync.WaitGroup
	wrote.Go(func() {
		for i := range n {
			if _, err := writer.Append(ctx, "f/a", value("%d", i)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	next := 0
	for r, err := range follower.Follow(ctx, "f/a", client.Start()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != int64(next) || string(r.Value) != fmt.Sprint(next) {
			t.Fatalf("record %q at %d, want %d", r.Value, r.Offset, next)
		}
		if next++; next == n {
			break
		}
		switch {
		case next%100 == 50:
			b.restart(t)
		case next%10 == 5:
			d.cut()
		}
	}
	wrote.Wait()
	wantEqual(t, "records", next, n)
}

// The loop ends with its context, with Close, with an offset that is gone, and by being left; nothing is left running.
func TestFollowEnds(t *testing.T) {
	b := startBroker(t, nil)
	writer := newClient(t, b)
	mustAppend(t, writer, "f/a", value("0"), value("1"), value("2"))
	if _, err := writer.Trim(testContext(t), "f/a", 0); err != nil { // opens the connection that it needs later
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	c := newClient(t, b)
	for name, follow := range map[string]func(context.Context, *client.Client) func(func(*client.Record, error) bool){
		"stream": func(ctx context.Context, c *client.Client) func(func(*client.Record, error) bool) {
			return c.Follow(ctx, "f/a", client.Start())
		},
		"prefix": func(ctx context.Context, c *client.Client) func(func(*client.Record, error) bool) {
			return c.FollowPrefix(ctx, "f/", nil)
		},
	} {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		n := 0
		for r, err := range follow(ctx, c) {
			if n++; n <= 3 && (err != nil || r.Offset != int64(n-1)) || n == 4 && !errors.Is(err, context.Canceled) || n > 4 {
				t.Fatalf("%s: step %d: %v, %v", name, n, r, err)
			}
			if n == 3 {
				cancel()
			}
		}
		wantEqual(t, name+" steps", n, 4)
		for range follow(testContext(t), c) {
			break
		}
		closing := newClient(t, b)
		n = 0
		for _, err := range follow(testContext(t), closing) {
			if n++; n == 3 {
				go closing.Close()
			}
			if n == 4 && !errors.Is(err, client.ErrClientClosed) {
				t.Errorf("%s: after Close: %v", name, err)
			}
		}
		wantEqual(t, name+" steps", n, 4)
	}
	if _, err := writer.Trim(testContext(t), "f/a", 2); err != nil {
		t.Fatal(err)
	}
	for _, err := range c.Follow(testContext(t), "f/a", client.At(1)) {
		if e := new(client.OutOfRangeError); !errors.As(err, &e) || e.Start != 2 || e.Next != 3 {
			t.Errorf("from a trimmed offset: %v", err)
		}
	}
	c.Close()
	deadline := time.Now().Add(30 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // goroutines of connections end a moment after them
	}
	if after := runtime.NumGoroutine(); after > before {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before\n%s", after, before, buf[:runtime.Stack(buf, true)])
	}
}

// A follower of a prefix is stopped again and again, and resumed from the stored cursor, while streams are written to,
// made, trimmed (not beyond what it has read) and while connections break and the broker restarts. It must get each record
// once, in the order of its stream.
func TestFollowPrefixExactlyOnce(t *testing.T) {
	const streams, each = 30, 40
	for _, form := range []string{"text", "binary"} {
		t.Run(form, func(t *testing.T) {
			b := startBroker(t, nil)
			var d dialer
			writer, follower := newClient(t, b), newClient(t, b, kgo.Dialer(d.dial))
			ctx := testContext(t)
			wrote := make(chan error, 1)
			go func() {
				for i := range each {
					for s := range streams {
						if i == 0 && s%3 == 0 {
							continue // those begin later
						}
						if _, err := writer.Append(ctx, fmt.Sprintf("p/%d", s), value("%d", i)); err != nil {
							wrote <- err
							return
						}
					}
					if i%10 == 9 {
						b.restart(t)
					}
				}
				wrote <- nil
			}()
			got := make(map[string][]string)
			total, want := 0, streams*each-streams/3
			var stored []byte
			for total < want {
				var cursor client.Cursor
				if stored != nil {
					if err := load(&cursor, form, stored); err != nil {
						t.Fatal(err)
					}
				}
				stop := total + 1 + rand.IntN(100)
				for r, err := range follower.FollowPrefix(ctx, "p/", &cursor) {
					if err != nil {
						t.Fatal(err)
					}
					if int(r.Offset) != len(got[r.Stream]) {
						t.Fatalf("record %d of %s after %d others", r.Offset, r.Stream, len(got[r.Stream]))
					}
					got[r.Stream] = append(got[r.Stream], string(r.Value))
					if total++; total%50 == 0 {
						d.cut()
					}
					if total >= min(stop, want) {
						break
					}
				}
				var err error
				if stored, err = save(&cursor, form); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
			for s := range streams {
				values := got[fmt.Sprintf("p/%d", s)]
				first := 0
				if s%3 == 0 {
					first = 1
				}
				for i, v := range values {
					if v != fmt.Sprint(i+first) {
						t.Fatalf("record %d of stream %d is %q", i, s, v)
					}
				}
				wantEqual(t, "records of a stream", len(values), each-first)
			}
		})
	}
}

func save(c *client.Cursor, form string) ([]byte, error) {
	if form == "text" {
		return c.MarshalText()
	}
	return c.MarshalBinary()
}

func load(c *client.Cursor, form string, b []byte) error {
	if form == "text" {
		return c.UnmarshalText(b)
	}
	return c.UnmarshalBinary(b)
}

// From the end: old records are left out, and those of streams that are made later are not; the cursor keeps both over a
// restart of the follower.
func TestFollowPrefixFromEnd(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	for s := range 5 {
		mustAppend(t, c, fmt.Sprintf("e/%d", s), value("old"), value("old"))
	}
	cursor := client.FromEnd()
	began := make(chan struct{})
	go func() {
		<-began
		mustAppend(t, c, "e/3", value("new"))
	}()
	// Until the cursor knows where the end is, nothing tells that following has begun but a record.
	go func() {
		for i := 0; ; i++ {
			if _, err := c.Append(ctx, "e/begin", value("%d", i)); err != nil {
				return
			}
			select {
			case <-began:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	once := sync.OnceFunc(func() { close(began) })
	for r, err := range c.FollowPrefix(ctx, "e/", cursor) {
		if err != nil {
			t.Fatal(err)
		}
		once()
		if r.Stream == "e/3" {
			wantEqual(t, "record", string(r.Value), "new")
			break
		} else if r.Stream != "e/begin" {
			t.Fatalf("got %q of %s", r.Value, r.Stream)
		}
	}
	known := maps.Collect(cursor.All())
	delete(known, "e/begin")
	wantEqual(t, "cursor", known, map[string]int64{"e/0": 2, "e/1": 2, "e/2": 2, "e/3": 3, "e/4": 2})

	mustAppend(t, c, "e/1", value("meanwhile"))
	mustAppend(t, c, "e/new", value("first"))
	var got []string
	for r, err := range c.FollowPrefix(ctx, "e/", cursor) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream == "e/begin" {
			continue
		}
		if got = append(got, r.Stream+" "+string(r.Value)); len(got) == 2 {
			break
		}
	}
	slices.Sort(got)
	wantEqual(t, "records", got, []string{"e/1 meanwhile", "e/new first"})
}

// A stream that is deleted and made again is read anew, and one that is trimmed goes on at its start.
func TestFollowPrefixDeleted(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	mustAppend(t, c, "d/a", value("first"), value("second"))
	var cursor client.Cursor
	var got []string
	for r, err := range c.FollowPrefix(ctx, "d/", &cursor) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(r.Offset, " ", string(r.Value)))
		switch len(got) {
		case 2:
			if errs, err := c.Delete(ctx, "d/a"); err != nil || errs[0] != nil {
				t.Fatal(errs, err)
			}
			mustAppend(t, c, "d/a", value("again"))
		case 3:
			mustAppend(t, c, "d/a", value("1"), value("2"), value("3"))
		}
		if len(got) == 4 {
			break
		}
	}
	if _, err := c.Trim(ctx, "d/a", 3); err != nil {
		t.Fatal(err)
	}
	for r, err := range c.FollowPrefix(ctx, "d/", &cursor) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(r.Offset, " ", string(r.Value)))
		break
	}
	wantEqual(t, "records", got, []string{"0 first", "1 second", "0 again", "1 1", "3 3"})
}

// A stream that was deleted and made again while nobody followed is another one, however many records it has, and however
// the cursor was kept meanwhile.
func TestFollowPrefixMadeAgainMeanwhile(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	for _, form := range []string{"", "text", "binary"} {
		for _, fromEnd := range []bool{false, true} {
			prefix := fmt.Sprintf("m%s%v/", form, fromEnd)
			cursor := new(client.Cursor)
			if fromEnd {
				mustAppend(t, c, prefix+"a", value("x"))
				mustAppend(t, c, prefix+"kept", value("x"))
				cursor = client.FromEnd()
			}
			records := func(n int) (got []string) {
				for r, err := range c.FollowPrefix(ctx, prefix, cursor) {
					if err != nil {
						t.Error(err)
						break
					}
					if got = append(got, fmt.Sprint(r.Stream[len(prefix):], r.Offset, " ", string(r.Value))); len(got) == n {
						break
					}
				}
				slices.Sort(got)
				return got
			}
			first := make(chan []string, 1)
			go func() { first <- records(1) }()
			if !fromEnd {
				mustAppend(t, c, prefix+"a", value("x"))
			} else {
				// Once the position is known the follower waits, and this is its first record.
				for len(first) == 0 {
					mustAppend(t, c, prefix+"kept", value("y"))
				}
			}
			<-first
			if form != "" {
				text, err := save(cursor, form)
				if err != nil {
					t.Fatal(err)
				}
				cursor = new(client.Cursor)
				if err := load(cursor, form, text); err != nil {
					t.Fatal(err)
				}
			}
			if errs, err := c.Delete(ctx, prefix+"a"); err != nil || errs[0] != nil {
				t.Fatal(errs, err)
			}
			mustAppend(t, c, prefix+"a", value("1"), value("2"), value("3"))
			if errs, err := c.Delete(ctx, prefix+"kept"); fromEnd && (err != nil || errs[0] != nil) {
				t.Fatal(errs, err)
			}
			wantEqual(t, prefix, records(3), []string{"a0 1", "a1 2", "a2 3"})
		}
	}
}

func TestCursorSince(t *testing.T) {
	c := newClient(t, startBroker(t, nil))
	ctx := testContext(t)
	at := func(second int64, v string) client.Record {
		return client.Record{Value: []byte(v), Timestamp: time.Unix(second, 0)}
	}
	mustAppend(t, c, "since/a", at(10, "a10"), at(20, "a20"), at(30, "a30"))
	mustAppend(t, c, "since/old", at(5, "old5"))
	mustAppend(t, c, "since/young", at(25, "young25"))
	mustAppend(t, c, "other/x", at(25, "x"))
	if err := c.Create(ctx, "since/empty"); err != nil {
		t.Fatal(err)
	}
	cursor, err := c.CursorSince(ctx, "since/", time.Unix(20, 0))
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "positions", maps.Collect(cursor.All()), map[string]int64{"since/a": 1, "since/old": 1, "since/young": 0, "since/empty": 0})
	mustAppend(t, c, "since/old", at(1, "old1"))
	mustAppend(t, c, "since/empty", at(2, "empty2"))
	mustAppend(t, c, "since/new", at(3, "new3"))
	var got []string
	for r, err := range c.FollowPrefix(ctx, "since/", cursor) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, string(r.Value)); len(got) == 6 {
			break
		}
	}
	slices.Sort(got)
	wantEqual(t, "records", got, []string{"a20", "a30", "empty2", "new3", "old1", "young25"})
}

func TestCursor(t *testing.T) {
	b := startBroker(t, nil)
	c := newClient(t, b)
	for _, stream := range []string{"c/a", "c/ab", "c/größe", "c/b"} {
		mustAppend(t, c, stream, value("x"))
	}
	var cursor client.Cursor
	n := 0
	for range c.FollowPrefix(testContext(t), "c/", &cursor) {
		if n++; n == 4 {
			break
		}
	}
	for _, cursor := range []*client.Cursor{&cursor, {}, client.FromEnd()} {
		for _, form := range []string{"text", "binary"} {
			b, err := save(cursor, form)
			if err != nil {
				t.Fatal(err)
			}
			var read client.Cursor
			if err := load(&read, form, b); err != nil || !reflect.DeepEqual(maps.Collect(read.All()), maps.Collect(cursor.All())) {
				t.Errorf("%s: %v, %v, want %v", b, &read, err, cursor)
			}
			again, _ := save(&read, form)
			wantEqual(t, form, string(again), string(b))
			for cut := range b {
				_ = load(&read, form, b[:cut]) // must not crash
			}
		}
	}
	for _, bad := range []string{"", "{}", `{"from":"start","next":{"c/a":-1}}`, "1"} {
		if err := new(client.Cursor).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is read as a cursor", bad)
		}
	}
	for _, err := range c.FollowPrefix(testContext(t), "other/", &cursor) {
		if err == nil || !strings.Contains(err.Error(), "c/") {
			t.Errorf("with the cursor of another prefix: %v", err)
		}
	}
}

// A broker that cannot be reached is an error, not a wait for ever.
func TestUnreachable(t *testing.T) {
	b := startBroker(t, nil)
	b.stop()
	c := newClient(t, b, kgo.RetryTimeout(50*time.Millisecond))
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s/a", value("x")); err == nil || ctx.Err() != nil {
		t.Errorf("append: %v", err)
	}
	for _, err := range c.Follow(ctx, "s/a", client.Start()) {
		if err == nil || ctx.Err() != nil {
			t.Errorf("follow: %v", err)
		}
	}
}
