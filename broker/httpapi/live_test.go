package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLongPollAnswersWithTheNextRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "one")
		answers := make(chan *answer, 1)
		go func() {
			a, err := d.try("GET", streamsPath+"/a/b?from=1&live=long-poll", "")
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
		synctest.Wait()
		began := time.Now()
		d.append("a/b", "two")
		p := (<-answers).page(t)
		wantEqual(t, "values", p.values(), "two")
		wantEqual(t, "next offset", p.NextOffset, 2)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the poll answered after %v", took)
		}
		d.stop()
	})
}

func TestLongPollTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "one")
		for path, status := range map[string]int{
			"/a/b?from=1&live=long-poll&timeout=7000":               200,
			"/a/none?live=long-poll&timeout=7000":                   200,
			"/a/b?from=1&live=long-poll&timeout=7000&format=ndjson": 204,
			"/a/b?from=1&live=long-poll&timeout=7000&format=raw":    204,
			"/a/none?live=long-poll&timeout=7000&format=batches":    204,
		} {
			began := time.Now()
			a := d.ask(status, "GET", streamsPath+path, "")
			if took := time.Since(began); took < 7*time.Second || took > 8*time.Second {
				t.Errorf("%s: answered after %v", path, took)
			}
			if status == 200 {
				p := a.page(t)
				wantEqual(t, path, len(p.Records), 0)
			}
		}
		d.stop()
	})
}

// Waiting for a stream that does not exist yet is waiting for its first record.
func TestWaitingForAStreamThatDoesNotExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		positions := []string{"", "&from=0", "&from=tail", "&from=-1", "&from=7&clamp=true"}
		polled := make(chan *answer, len(positions))
		for _, from := range positions {
			go func() {
				a, err := d.try("GET", streamsPath+"/new/one?live=long-poll"+from, "")
				if err != nil {
					t.Error(err)
				}
				polled <- a
			}()
		}
		events := d.follow(streamsPath + "/new/one?live=sse&from=tail")
		synctest.Wait()
		d.append("new/another", "no")
		d.append("new/one", "first")
		events.wantValues("first")
		for range positions {
			wantEqual(t, "poll", (<-polled).page(t).values(), "first")
		}
		d.append("new/one", "second")
		events.wantValues("second")
		a := d.ask(416, "GET", streamsPath+"/new/two?live=sse&from=3", "")
		a.wantProblem(t, outOfRange)
		d.stop()
	})
}

func TestPollAndEventsOfAClosedStreamEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "one")
		events := d.follow(streamsPath + "/a/b?live=sse")
		events.wantValues("one")
		d.ask(200, "POST", streamsPath+"/a/b?close=true", "last")
		last := events.wantValues("last")
		closed := events.want(eventClosed)
		wantEqual(t, "closed", closed.data, `{"next_offset":2}`)
		if _, err := events.next(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		// What tells a browser to stop connecting again.
		d.ask(204, "GET", streamsPath+"/a/b?live=sse", "", "Last-Event-ID", last.id)
		began := time.Now()
		p := d.ask(200, "GET", streamsPath+"/a/b?from=2&live=long-poll", "").page(t)
		if !p.Closed || time.Since(began) > time.Second {
			t.Errorf("closed %v after %v", p.Closed, time.Since(began))
		}
		d.stop()
	})
}

// An event stream lives far longer than any write timeout, and a sign of life comes at least every 60 s.
func TestEventsOutliveTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "one")
		events := d.follow(streamsPath + "/a/b?live=sse")
		events.wantValues("one")
		go func() {
			time.Sleep(30 * time.Minute)
			d.append("a/b", "two")
		}()
		began := time.Now()
		events.wantValues("two")
		if took := time.Since(began); took < 30*time.Minute {
			t.Fatalf("it took %v", took)
		}
		if min := int(30 * time.Minute / (60 * time.Second)); events.comments < min {
			t.Errorf("%d signs of life in 30 minutes", events.comments)
		}
		d.stop()
	})
}

// Whatever a record holds, it makes one event, whose name and id are the server's.
func TestLineBreaksDoNotForgeEvents(t *testing.T) {
	d := openDoor(t, nil)
	forged := []string{
		"a\nevent: control\ndata: x\n\nevent: cursor\nid: 99\n\n",
		"a\revent: control\r\rid: 99\r",
		"a\r\nevent: control\r\n\r\nid: 99\r\n",
		"\n", "\r", "\r\n", "\n\r", "", "data: x", ": comment", "\ufeffid: 7", "a\u2028b\u0085c",
	}
	d.append("a/b", forged...)
	for _, format := range []string{"json", "raw"} {
		events := d.follow(streamsPath + "/a/b?live=sse&format=" + format)
		for i, want := range forged {
			ev := events.want("")
			got := ev.data
			if format == "json" {
				got = *decode[gotRecord](t, ev.data).Value
			} else {
				want = strings.ReplaceAll(strings.ReplaceAll(want, "\r\n", "\n"), "\r", "\n")
			}
			wantEqual(t, fmt.Sprintf("%s %d", format, i), got, want)
			if !strings.HasPrefix(ev.id, fmt.Sprintf("%d.", i)) {
				t.Errorf("the id of event %d is %q", i, ev.id)
			}
		}
	}
}

func TestRawEventsOfBytesThatAreNotText(t *testing.T) {
	d := openDoor(t, nil)
	d.ask(200, "POST", streamsPath+"/a/b", "\xff\n\xfe")
	d.ask(200, "POST", streamsPath+"/a/b", `{"records":[{"key":"k"}]}`, "Content-Type", jsonType)
	events := d.follow(streamsPath + "/a/b?live=sse&format=raw")
	wantEqual(t, "data", events.want(eventBase64).data, "/wr+")
	wantEqual(t, "data", events.want(eventNull).data, "")
}

func TestEventsGoOnBehindTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "one", "two", "three")
		first := d.follow(streamsPath + "/a/b?live=sse&from=start")
		last := first.wantValues("one", "two")
		first.close()
		d.append("a/b", "four")
		second := d.follow(streamsPath+"/a/b?live=sse&from=start", "Last-Event-ID", last.id)
		last = second.wantValues("three", "four")
		// Trimmed meanwhile: the reader is told what it has missed.
		second.close()
		d.append("a/b", "five", "six", "seven")
		d.ask(200, "PATCH", streamsPath+"/a/b", `{"start_offset":6}`, "Content-Type", jsonType)
		third := d.follow(streamsPath+"/a/b?live=sse", "Last-Event-ID", last.id)
		wantEqual(t, "gap", third.want(eventGap).data, `{"from":4,"stream":"a/b","to":6}`)
		third.wantValues("seven")
		// Another stream of the name: all of it is new.
		d.ask(204, "DELETE", streamsPath+"/a/b", "")
		third.want(eventDeleted)
		d.append("a/b", "anew")
		last = third.wantValues("anew")
		fourth := d.follow(streamsPath+"/a/b?live=sse", "Last-Event-ID", "5.77")
		fourth.wantValues("anew")
		for _, id := range []string{"x", "5.", "-3.1", "5.zz"} {
			d.ask(400, "GET", streamsPath+"/a/b?live=sse", "", "Last-Event-ID", id).wantProblem(t, badCursor)
		}
		id := strings.TrimPrefix(last.id, "0.")
		d.ask(416, "GET", streamsPath+"/a/b?live=sse", "", "Last-Event-ID", "7."+id).wantProblem(t, outOfRange)
		d.stop()
	})
}

// A reader that does not read is cut and can go on later; meanwhile it delays nobody, and nothing of it stays.
func TestSlowReaderIsCutAndDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "first")
		base := runtime.NumGoroutine()
		var others []*eventReader
		arrived := make(chan string, 100)
		for range 20 {
			e := d.followWith(d.newClient(), streamsPath+"/a/b?live=sse&from=tail")
			others = append(others, e)
			go func() {
				for {
					ev, err := e.next()
					if err != nil {
						return
					}
					arrived <- *decode[gotRecord](t, ev.data).Value
				}
			}()
		}
		// Takes the head of the reply and the first event, and then nothing more.
		conn, err := d.listen.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s/a/b?live=sse&from=start HTTP/1.1\r\nHost: x\r\n\r\n", streamsPath)
		readUntil(t, conn, `"value":"first"`)
		large := strings.Repeat("x", 100_000)
		for i := range 5 {
			began := time.Now()
			d.append("a/b", fmt.Sprint(i)+large)
			for range others {
				wantEqual(t, "value", <-arrived, fmt.Sprint(i)+large)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("a reader that reads got its record after %v", took)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the connection was not closed: %v", err)
		}
		conn.Close()
		wantEqual(t, "slow clients", gather(t, d, "brooklet_http_slow_clients_cut_total"), 1)
		d.follow(streamsPath+"/a/b?live=sse", "Last-Event-ID", "0."+streamID(d, "a/b")).wantValues("0" + large)
		for _, e := range others {
			e.close()
		}
		d.client.CloseIdleConnections()
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if now := runtime.NumGoroutine(); now > base+10 {
			t.Errorf("%d goroutines, %d before", now, base)
		}
		d.stop()
	})
}

func readUntil(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	var got strings.Builder
	buf := make([]byte, 1)
	for !strings.Contains(got.String(), text) {
		if _, err := conn.Read(buf); err != nil {
			t.Fatal(err)
		}
		got.Write(buf)
	}
}

func streamID(d *door, name string) string {
	d.t.Helper()
	id, err := d.store.Lookup(name)
	if err != nil {
		d.t.Fatal(err)
	}
	return formatID(id)
}

// gather returns the value of a metric without labels.
func gather(t *testing.T, d *door, name string) float64 {
	t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// No proxy may keep events back, and each burst leaves at once.
func TestEventsPassThroughProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		for _, path := range []string{"/a/b?live=sse", "?prefix=a/&live=sse"} {
			events := d.follow(streamsPath+path, "Accept-Encoding", "gzip")
			for name, want := range map[string]string{
				"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Content-Encoding": "", "Content-Length": "",
			} {
				wantEqual(t, name, events.resp.Header.Get(name), want)
			}
		}
		if h := d.server.opts.Heartbeat; h >= time.Minute {
			t.Errorf("heartbeat %v", h)
		}
		events := d.follow(streamsPath + "/a/c?live=sse")
		for i := range 10 {
			d.append("a/c", fmt.Sprint(i))
			sent := time.Now()
			events.wantValues(fmt.Sprint(i))
			if took := time.Since(sent); took > 100*time.Millisecond {
				t.Errorf("event %d came after %v", i, took)
			}
			time.Sleep(time.Second)
		}
		d.stop()
	})
}

// Browsers ask for event streams by Accept alone.
func TestAcceptOpensAnEventStream(t *testing.T) {
	d := openDoor(t, nil)
	d.append("a/b", "one")
	d.follow(streamsPath+"/a/b", "Accept", "text/event-stream").wantValues("one")
	e := d.follow(streamsPath+"?prefix=a/", "Accept", "text/event-stream")
	e.want(eventCursor)
	e.wantValues("one")
}

func TestDrainEndsLiveReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("a/b", "one")
		single := d.follow(streamsPath + "/a/b?live=sse")
		single.wantValues("one")
		prefix := d.follow(streamsPath + "?prefix=a/&live=sse&from=tail")
		cursor := prefix.want(eventCursor)
		polled := make(chan *answer, 1)
		go func() {
			a, err := d.try("GET", streamsPath+"/a/b?from=tail&live=long-poll&timeout=300000", "")
			if err != nil {
				t.Error(err)
			}
			polled <- a
		}()
		synctest.Wait()
		began := time.Now()
		down := make(chan error, 1)
		go func() { down <- d.server.Shutdown(context.Background()) }()
		for _, e := range []*eventReader{single, prefix} {
			if _, err := e.next(); err != io.EOF {
				t.Errorf("the events ended with %v", err)
			}
		}
		if err := <-down; err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		wantEqual(t, "records of the poll", len((<-polled).page(t).Records), 0)
		if cursor.id == "" {
			t.Error("no cursor to go on with")
		}
		d.stop()
	})
}

// HTTP/2 without TLS carries many readers over one connection.
func TestHTTP2(t *testing.T) {
	d := openDoor(t, nil)
	client := d.newClient()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client.Transport.(*http.Transport).Protocols = &protocols
	var readers []*eventReader
	for range 50 {
		e := d.followWith(client, streamsPath+"/a/b?live=sse")
		wantEqual(t, "protocol", e.resp.Proto, "HTTP/2.0")
		readers = append(readers, e)
	}
	d.append("a/b", "one")
	for _, e := range readers {
		e.wantValues("one")
	}
}
