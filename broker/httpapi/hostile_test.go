package httpapi

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Small text that decodes to much memory is refused before it takes that.
func TestBodiesThatGrowInMemory(t *testing.T) {
	d := openDoor(t, nil)
	const size = 2 << 20
	repeat := func(text string) string { return strings.Repeat(text, size/len(text)) }
	for name, c := range map[string]struct {
		form, body string
		status     int
		most       uint64 // bytes allocated, freed ones included, for each byte of the body
	}{
		"records":           {formJSON, `{"records":[` + repeat(`{},`) + `{}]}`, 413, 40},
		"lines":             {formNDJSON, repeat("{}\n"), 413, 100}, // a decoder a line
		"headers":           {formJSON, `{"records":[{"headers":[` + repeat(`["",""],`) + `["",""]]}]}`, 400, 40},
		"parts of a header": {formJSON, `{"records":[{"headers":[[` + repeat(`"",`) + `""]]}]}`, 400, 40},
		"nested":            {formJSON, `{"records":[{"value_json":` + repeat(`[`) + `}]}`, 400, 40},
		"many keys":         {formJSON, `{` + repeat(`"records":[],`) + `"records":[]}`, 400, 40},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var headers []string
		if c.form == formNDJSON {
			headers = []string{"If-Match", "0"} // one batch
		}
		d.ask(c.status, "POST", streamsPath+"/a/b?format="+c.form, c.body, headers...)
		runtime.ReadMemStats(&after)
		// The client in this process copies the body, too.
		if used := after.TotalAlloc - before.TotalAlloc; used > c.most*size {
			t.Errorf("%s: a body of %d bytes took %d", name, size, used)
		}
	}
}

// A reader that wants all of a batch decodes it once, however large it is and however small the pieces are that it sends.
func TestALargeBatchIsDecodedOnce(t *testing.T) {
	var records []kafkaproto.Record
	for range 2000 {
		records = append(records, kafkaproto.Record{Value: bytes.Repeat([]byte("x"), 10_000)})
	}
	batch := buildBatch(t, kafkaproto.BatchOptions{Codec: kafkaproto.CodecZstd}, records...)
	d := openDoor(t, nil)
	d.appendTo("a/b", batch)
	d.appendTo("a/b", batch)
	id, err := d.store.Lookup("a/b")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	at, err := d.server.eachRecord(t.Context(), id, 0, endless, 1<<20, func(*kafkaproto.RecordView) verdict {
		count++
		return lastBatch
	})
	if err != nil || count != 2000 || at.next != 2000 {
		t.Errorf("%d records, next %d, %v", count, at.next, err)
	}
	for _, path := range []string{"/a/b?live=sse", "?prefix=a/&live=sse"} {
		e := d.follow(streamsPath + path)
		for i := range 4000 {
			if r := e.nextRecord(t); r.Offset != int64(i) || len(*r.Value) != 10_000 {
				t.Fatalf("%s: offset %d, %d bytes, want offset %d", path, r.Offset, len(*r.Value), i)
			}
		}
		e.close()
	}
	lines := d.ask(200, "GET", streamsPath+"/a/b?format=ndjson&limit=3000", "")
	wantEqual(t, "lines", strings.Count(lines.body, "\n"), 3000)
	wantEqual(t, "next offset", lines.Trailer.Get(headerNextOffset), "3000")
}

// Requests wait for memory, and those that cannot have it are told to come again.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "x")
		held, err := d.server.hold(t.Context(), d.server.opts.Memory)
		if err != nil {
			t.Fatal(err)
		}
		answers := make(chan *answer, 2)
		for _, method := range []string{"GET", "POST"} {
			go func() {
				a, err := d.try(method, streamsPath+"/a/b", "")
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
		}
		synctest.Wait()
		if len(answers) != 0 {
			t.Error("a request was answered without memory")
		}
		held.release()
		for range 2 {
			wantEqual(t, "status", (<-answers).StatusCode, 200)
		}
		wantEqual(t, "waits", gather(t, d, "brooklet_http_memory_waits_total"), 2)
		d.stop()
	})
}

// Whoever waits for memory is answered in the end, and clients that are slow on purpose do not keep it.
func TestSlowClientsDoNotKeepMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 256 << 10
		d := openDoor(t, func(o *doorOptions) {
			o.http.MaxBodyBytes, o.http.MaxReadBytes, o.http.Memory = limit, limit, 4*limit
			o.http.MaxBatchBytes = 2 * limit
		})
		d.append("a/b", strings.Repeat("x", limit/2))
		held, err := d.server.hold(t.Context(), d.server.opts.Memory)
		if err != nil {
			t.Fatal(err)
		}
		d.ask(503, "POST", streamsPath+"/a/b", "x").wantProblem(t, busy)
		held.release()

		drip, in := net.Pipe()
		d.listen.conns <- in
		began := time.Now()
		fmt.Fprintf(drip, "POST %s/a/b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", streamsPath, limit)
		go func() {
			for {
				if _, err := drip.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		resp, err := http.ReadResponse(bufio.NewReader(drip), nil)
		if err != nil || resp.StatusCode != bodyTimeout.status || time.Since(began) > time.Minute {
			t.Errorf("a body that drips: %v, %v after %v", resp, err, time.Since(began))
		}
		drip.Close()

		sip, out := net.Pipe()
		d.listen.conns <- out
		began = time.Now()
		fmt.Fprintf(sip, "GET %s/a/b HTTP/1.1\r\nHost: x\r\n\r\n", streamsPath)
		buf := make([]byte, 1<<10)
		for err = error(nil); err == nil; time.Sleep(time.Second) {
			_, err = sip.Read(buf)
		}
		if time.Since(began) > time.Minute {
			t.Errorf("a reply that is sipped was cut after %v", time.Since(began))
		}
		sip.Close()
		d.stop()
	})
}

// FuzzRecords: any body is refused or makes records that come back as they were written.
func FuzzRecords(f *testing.F) {
	for _, body := range []string{
		`{"records":[{"key":"a","value":"b","headers":[["c","d"],["e",null],[{"base64":"/w=="},"x"]],"timestamp":5,"offset":1,"stream":"x"}]}`,
		`{"records":[{"value_json":{"a":[1,2.5e3,null]}},{"key_base64":"AAE=","value_base64":""},{"value":"\ud83d\ude00\u2028"}]}`,
		`{"records":[]}`, `{}`, `[]`, `{"records":[{}]}x`, `{"records":[{"timestamp":"2025-01-31T12:00:00Z"}]}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		first := recordsOf(t, body)
		if first == nil {
			return
		}
		again := append([]byte(`{"records":[`), bytes.Join(first, []byte(","))...)
		second := recordsOf(t, append(again, "]}"...))
		if len(first) != len(second) {
			t.Fatalf("%d records became %d: %q", len(first), len(second), first)
		}
		for i := range first {
			if !bytes.Equal(first[i], second[i]) {
				t.Fatalf("%s became %s", first[i], second[i])
			}
		}
	})
}

// recordsOf takes a body as an append does, and returns its records as a reader gets them; nil if it is refused.
func recordsOf(t *testing.T, body []byte) (texts [][]byte) {
	t.Helper()
	if checkText(body) != nil {
		return nil
	}
	b := new(kafkaproto.Builder)
	err := eachRecordIn(body, func(_ int, in *recordIn) error {
		r, err := in.record(1)
		if err == nil {
			err = b.Append(r)
		}
		return err
	})
	if err != nil || b.Count() == 0 {
		return nil
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	it := kafkaproto.NewRecordIterator(batch, expandLimits)
	defer it.Close()
	for it.Next() {
		texts = append(texts, appendRecord(nil, it.Record(), "", valuesAuto))
	}
	if it.Err() != nil {
		t.Fatal(it.Err())
	}
	return texts
}

// FuzzEventData: whatever the data of an event, a reader gets it as one event, with the three line endings as one.
func FuzzEventData(f *testing.F) {
	for _, data := range []string{"", "a", "a\nb", "a\r\nb\rc\n", "\n\n", "\r\n\r\n", "data: x\n\nid: 5", "\x00\xff"} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text := appendEvent(nil, "7", "", data)
		text = appendEvent(text, "8", "end", []byte("."))
		e := newEventReader(t, bytes.NewReader(text))
		want := strings.ReplaceAll(strings.ReplaceAll(string(data), "\r\n", "\n"), "\r", "\n")
		if ev, err := e.next(); err != nil || ev != (event{"7", "", want}) {
			t.Fatalf("%+v %v, want %q", ev, err, want)
		}
		if ev, err := e.next(); err != nil || ev != (event{"8", "end", "."}) {
			t.Fatalf("then %+v %v", ev, err)
		}
	})
}

// BenchmarkIdleFollower tells what a reader costs that waits for a record.
func BenchmarkIdleFollower(b *testing.B) {
	d := openDoor(b, nil)
	d.append("a/b", "x")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	const n = 2000
	for b.Loop() {
		conns := make([]net.Conn, n)
		for i := range conns {
			conn, err := d.listen.dial(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			conns[i] = conn
			fmt.Fprintf(conn, "GET %s/a/b?live=sse&from=tail HTTP/1.1\r\nHost: x\r\n\r\n", streamsPath)
			var got []byte
			buf := make([]byte, 512)
			for !bytes.Contains(got, []byte("retry: 2000\n\n\r\n")) {
				k, err := conn.Read(buf)
				if err != nil {
					b.Fatal(err)
				}
				got = append(got, buf[:k]...)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/n, "B/follower")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/n, "goroutines/follower")
		began := time.Now()
		done := make(chan struct{})
		for _, conn := range conns {
			go func() {
				buf := make([]byte, 4096)
				var got []byte
				for !bytes.Contains(got, []byte(`"value":"y"`)) {
					k, err := conn.Read(buf)
					if err != nil {
						b.Error(err)
						break
					}
					got = append(got, buf[:k]...)
				}
				done <- struct{}{}
			}()
		}
		d.append("a/b", "y")
		for range conns {
			<-done
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-wake-all")
		for _, conn := range conns {
			conn.Close()
		}
	}
}
