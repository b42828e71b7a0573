package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

const textType = "text/plain"

// make makes a stream of the protocol.
func (d *door) make(name string, headers ...string) *answer {
	d.t.Helper()
	return d.ask(201, "PUT", "/ds/"+name, "", append([]string{"Content-Type", textType}, headers...)...)
}

// put appends to a stream of the protocol.
func (d *door) put(status int, name, body string, headers ...string) *answer {
	d.t.Helper()
	return d.ask(status, "POST", "/ds/"+name, body, append([]string{"Content-Type", textType}, headers...)...)
}

// wantText reads all of a stream.
func (d *door) wantText(name, want string) *answer {
	d.t.Helper()
	a := d.ask(200, "GET", "/ds/"+name+"?offset=-1", "")
	if a.body != want {
		d.t.Errorf("%s has %q, want %q", name, a.body, want)
	}
	return a
}

func asProducer(id string, epoch, seq int) []string {
	return []string{headerProducerID, id, headerProducerEpoch, strconv.Itoa(epoch), headerProducerSeq, strconv.Itoa(seq)}
}

func TestDurableOffsets(t *testing.T) {
	last := ""
	for _, n := range []int64{0, 1, 9, 10, 99, 1 << 40, 9999999999999999} {
		text := formatDurable(n)
		if got, err := parseDurable(text); err != nil || got != n {
			t.Errorf("%s is read as %d, %v", text, got, err)
		}
		if text <= last {
			t.Errorf("%s does not sort behind %s", text, last)
		}
		last = text
	}
	for _, text := range []string{"", "-2", "0", "1,2", "0000000000000000_000000000000000", "000000000000000x_0000000000000000",
		"+000000000000000_0000000000000000", "0000000000000000_0000000000000001", "0000000000000000-0000000000000000"} {
		if n, err := parseDurable(text); err == nil {
			t.Errorf("%q is read as %d", text, n)
		}
	}
}

func TestDurableCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		a := d.ask(201, "PUT", "/ds/a/b", "first", "Content-Type", "Text/Plain; charset=utf-8", headerDurableTTL, "60")
		wantHeaders(t, a, "Location", "http://broker.test/ds/a/b", headerDurableNext, formatDurable(1), headerDurableClosed, "")
		d.wantText("a/b", "first")
		again := func(status int, headers ...string) {
			t.Helper()
			d.ask(status, "PUT", "/ds/a/b", "other", headers...)
		}
		again(200, "Content-Type", "text/plain", headerDurableTTL, "60")
		again(409, "Content-Type", "text/plain")
		again(409, "Content-Type", "text/plain", headerDurableTTL, "61")
		again(409, "Content-Type", "text/html", headerDurableTTL, "60")
		again(409, headerDurableTTL, "60")
		again(409, "Content-Type", "text/plain", headerDurableTTL, "60", headerDurableClosed, "true")
		again(409, "Content-Type", "text/plain", headerDurableTTL, "60", headerForkedFrom, "/ds/a/b")
		d.wantText("a/b", "first")
		for _, ttl := range []string{"-1", "01", "+1", "1.0", "1e3", "", "x", "9223372037"} {
			d.ask(400, "PUT", "/ds/bad", "", headerDurableTTL, ttl)
		}
		for _, at := range []string{"", "tomorrow", "2030-01-01"} {
			d.ask(400, "PUT", "/ds/bad", "", headerDurableExpires, at)
		}
		d.ask(400, "PUT", "/ds/bad", "", headerDurableExpires, "2100-01-01T00:00:00Z", headerDurableTTL, "5")
		d.ask(404, "HEAD", "/ds/bad", "")
		d.ask(403, "PUT", "/ds/_own", "")
		d.ask(403, "PUT", "/ds/__ds/subscriptions/x", "")
		d.ask(404, "PUT", "/ds/topics/missing/0", "")
		d.ask(405, "PATCH", "/ds/a/b", "")
		// The whole content of a stream that is closed from the beginning.
		wantHeaders(t, d.ask(201, "PUT", "/ds/done", "[1,2]", "Content-Type", jsonType, headerDurableClosed, "TRUE"), headerDurableClosed, "true", headerDurableNext, formatDurable(2))
		wantHeaders(t, d.wantText("done", "[1,2]"), headerDurableClosed, "true")
		d.ask(201, "PUT", "/ds/none", "[]", "Content-Type", jsonType, headerDurableClosed, "yes")
		wantHeaders(t, d.wantText("none", "[]"), headerDurableClosed, "")
		d.ask(400, "PUT", "/ds/bad", "{", "Content-Type", jsonType)
		d.ask(404, "HEAD", "/ds/bad", "")
		d.wantNoNursery()
	})
}

// wantNoNursery checks that nothing is left of streams that were being made.
func (d *door) wantNoNursery() {
	d.t.Helper()
	if infos, err := d.store.List(nurseryPrefix, "", 10); err != nil || len(infos) > 0 {
		d.t.Errorf("left in the nursery: %v, %v", infos, err)
	}
}

func TestDurableAppend(t *testing.T) {
	d := openDoor(t, nil)
	d.make("s")
	a := d.put(204, "s", "one")
	wantHeaders(t, a, headerDurableNext, formatDurable(1))
	d.put(204, "s", "two", "Content-Encoding", "identity")
	d.wantText("s", "onetwo")
	d.put(400, "s", "")
	d.ask(400, "POST", "/ds/s", "x")
	d.ask(409, "POST", "/ds/s", "x", "Content-Type", "text/html")
	d.put(404, "missing", "x")
	d.put(413, "s", strings.Repeat("x", 2<<20))
	d.wantText("s", "onetwo")

	d.ask(201, "PUT", "/ds/json", "", "Content-Type", jsonType)
	for _, c := range []struct {
		body   string
		status int
	}{
		{`{"a": 1}`, 204}, {` [ "x,]\"[" , [1, [2]] , {"b":[]}, null ,1e400]`, 204}, {`[[[1,2]]]`, 204}, {`"text"`, 204},
		{`[]`, 400}, {`[1,]`, 400}, {`{`, 400}, {`1 2`, 400}, {"\"\xff\"", 400}, {" ", 400},
	} {
		d.ask(c.status, "POST", "/ds/json", c.body, "Content-Type", "application/json; charset=utf-8")
	}
	a = d.wantText("json", `[{"a": 1},"x,]\"[",[1, [2]],{"b":[]},null,1e400,[[1,2]],"text"]`)
	wantHeaders(t, a, headerDurableNext, formatDurable(8), headerDurableUpToDate, "true", "Content-Type", jsonType,
		"X-Content-Type-Options", "nosniff", "Cross-Origin-Resource-Policy", "cross-origin", "Content-Security-Policy", dataPolicy)
}

// A producer's appends are there once, whatever is repeated; state and records survive together.
func TestDurableProducers(t *testing.T) {
	m := newMachine()
	d := m.open(t, nil)
	d.make("s")
	wantHeaders(t, d.put(200, "s", "a", asProducer("p", 0, 0)...), headerProducerEpoch, "0", headerProducerSeq, "0")
	d.put(200, "s", "b", asProducer("p", 0, 1)...)
	wantHeaders(t, d.put(204, "s", "a", asProducer("p", 0, 0)...), headerProducerSeq, "1", headerDurableNext, formatDurable(1))
	wantHeaders(t, d.put(409, "s", "x", asProducer("p", 0, 5)...), headerProducerExpects, "2", headerProducerGot, "5")
	wantHeaders(t, d.put(409, "s", "x", asProducer("q", 0, 3)...), headerProducerExpects, "0", headerProducerGot, "3")
	d.put(400, "s", "x", asProducer("p", 1, 1)...)
	// What was refused has used up no number.
	d.ask(409, "POST", "/ds/s", "x", append([]string{"Content-Type", "text/html"}, asProducer("p", 0, 2)...)...)
	d.stop()
	d = m.open(t, nil)
	d.put(204, "s", "b", asProducer("p", 0, 1)...)
	d.put(200, "s", "c", asProducer("p", 0, 2)...)
	d.put(200, "s", "d", asProducer("p", 1, 0)...)
	wantHeaders(t, d.put(403, "s", "x", asProducer("p", 0, 3)...), headerProducerEpoch, "1")
	d.put(400, "s", "x", headerProducerID, "p")
	d.put(400, "s", "x", headerProducerID, "", headerProducerEpoch, "0", headerProducerSeq, "0")
	for _, number := range []string{"-1", "x", "1.5", "+1", "2147483648"} {
		d.put(400, "s", "x", headerProducerID, "p", headerProducerEpoch, "0", headerProducerSeq, number)
		d.put(400, "s", "x", headerProducerID, "p", headerProducerEpoch, number, headerProducerSeq, "0")
	}
	d.wantText("s", "abcd")

	d.ask(201, "PUT", "/ds/json", "", "Content-Type", jsonType)
	d.ask(400, "POST", "/ds/json", "{", append([]string{"Content-Type", jsonType}, asProducer("p", 0, 0)...)...)
	d.ask(200, "POST", "/ds/json", "[1,2,3]", append([]string{"Content-Type", jsonType}, asProducer("p", 0, 0)...)...)
	d.ask(200, "POST", "/ds/json", "4", append([]string{"Content-Type", jsonType}, asProducer("p", 0, 1)...)...)
	d.wantText("json", "[1,2,3,4]")
}

// Stream-Seq must rise, byte by byte, also over a restart and for many writers at once.
func TestDurableStreamSeq(t *testing.T) {
	m := newMachine()
	d := m.open(t, nil)
	d.make("s")
	d.put(204, "s", "a", headerDurableSeq, "09")
	d.put(409, "s", "x", headerDurableSeq, "09")
	d.put(409, "s", "x", headerDurableSeq, "08")
	d.put(204, "s", "b", headerDurableSeq, "10")
	d.put(409, "s", "x", headerDurableSeq, "")
	d.put(204, "s", "c") // an append without is none of its business
	d.put(400, "s", "x", headerDurableSeq, strings.Repeat("x", maxStreamSeq+1))
	d.stop()
	d = m.open(t, nil)
	d.put(409, "s", "x", headerDurableSeq, "10")
	d.put(204, "s", "d", headerDurableSeq, "2")
	// What a producer repeats is a duplicate whatever its Stream-Seq.
	d.put(200, "s", "e", append(asProducer("p", 0, 0), headerDurableSeq, "3")...)
	d.put(204, "s", "e", append(asProducer("p", 0, 0), headerDurableSeq, "3")...)
	d.put(409, "s", "x", append(asProducer("p", 0, 1), headerDurableSeq, "3")...)
	d.put(200, "s", "f", append(asProducer("p", 0, 1), headerDurableSeq, "4")...)
	d.wantText("s", "abcdef")

	d.make("race")
	statuses := make(chan int)
	for i := range 20 {
		go func() {
			a, err := d.try("POST", "/ds/race", "x", "Content-Type", textType, headerDurableSeq, fmt.Sprint(100+i/2))
			if err != nil {
				t.Error(err)
			}
			statuses <- a.StatusCode
		}()
	}
	appended := 0
	for range 20 {
		switch status := <-statuses; status {
		case 204:
			appended++
		case 409:
		default:
			t.Errorf("status %d", status)
		}
	}
	a := d.ask(200, "GET", "/ds/race", "")
	if len(a.body) != appended || appended == 0 || appended > 10 {
		t.Errorf("%d appends were taken, %d are there, of 10 numbers", appended, len(a.body))
	}
	if len(d.server.durable.writers.m) > 0 {
		t.Errorf("%d streams are still kept in memory", len(d.server.durable.writers.m))
	}
}

func TestDurableClose(t *testing.T) {
	m := newMachine()
	d := m.open(t, nil)
	closing := []string{headerDurableClosed, "true"}
	for _, name := range []string{"s", "last", "producer", "only"} {
		d.make(name)
	}
	d.put(204, "s", "a")
	d.put(204, "s", "b", headerDurableClosed, "yes") // no value but true means anything
	for range 2 {
		wantHeaders(t, d.ask(204, "POST", "/ds/s", "", closing...), headerDurableNext, formatDurable(2), headerDurableClosed, "true")
	}
	for _, headers := range [][]string{nil, closing, asProducer("p", 0, 0)} {
		wantHeaders(t, d.put(409, "s", "x", headers...), headerDurableClosed, "true", headerDurableNext, formatDurable(2))
	}
	// Closed comes before another content type, so that the client learns it.
	wantHeaders(t, d.ask(409, "POST", "/ds/s", "x", "Content-Type", "text/html"), headerDurableClosed, "true")
	wantHeaders(t, d.put(204, "last", "end", closing...), headerDurableClosed, "true")
	d.ask(404, "POST", "/ds/missing", "", closing...)

	with := func(id string, epoch, seq int) []string { return append(asProducer(id, epoch, seq), closing...) }
	d.put(200, "producer", "end", with("p", 0, 0)...)
	d.put(200, "only", "a", asProducer("p", 2, 0)...)
	d.ask(403, "POST", "/ds/only", "", with("p", 1, 1)...)
	d.ask(409, "POST", "/ds/only", "", with("p", 2, 2)...)
	d.ask(400, "POST", "/ds/only", "", with("p", 3, 1)...)
	d.ask(409, "POST", "/ds/only", "", with("q", 0, 1)...)
	wantHeaders(t, d.ask(204, "POST", "/ds/only", "", with("p", 2, 0)...), headerDurableClosed, "") // that was an append
	wantHeaders(t, d.ask(204, "POST", "/ds/only", "", with("p", 2, 1)...), headerDurableClosed, "true", headerProducerSeq, "1")
	d.stop()
	d = m.open(t, nil)
	wantHeaders(t, d.put(204, "producer", "other", with("p", 0, 0)...), headerDurableClosed, "true", headerDurableNext, formatDurable(1))
	d.put(409, "producer", "x", with("p", 0, 1)...)
	d.put(409, "producer", "x", with("q", 0, 0)...)
	wantHeaders(t, d.ask(204, "POST", "/ds/only", "", with("p", 2, 1)...), headerDurableClosed, "true")
	d.put(204, "only", "x", with("p", 2, 1)...)
	d.put(409, "only", "x", with("p", 2, 2)...)
	d.wantText("only", "a")
	d.wantText("producer", "end")
	wantHeaders(t, d.wantText("last", "end"), headerDurableClosed, "true")
	wantHeaders(t, d.ask(200, "HEAD", "/ds/s", ""), headerDurableClosed, "true", headerDurableNext, formatDurable(2), "Cache-Control", "no-store", "Content-Type", textType)
}

func TestDurableCatchUp(t *testing.T) {
	d := openDoor(t, nil)
	d.make("s")
	a := d.ask(200, "GET", "/ds/s", "")
	wantHeaders(t, a, headerDurableNext, formatDurable(0), headerDurableUpToDate, "true", "Content-Length", "0", "Content-Type", textType)
	d.put(204, "s", "abc")
	d.put(204, "s", "def")
	wantHeaders(t, d.ask(200, "GET", "/ds/s?offset="+formatDurable(1)+"&unknown=1", ""), headerDurableNext, formatDurable(2), "Cache-Control", cacheChecked)
	for _, query := range []string{"offset=", "offset=-1&offset=-1", "offset=x", "offset=-2", "offset=" + formatDurable(3), "live=x&offset=-1", "live=sse", "live=long-poll"} {
		d.ask(400, "GET", "/ds/s?"+query, "")
	}
	a = d.ask(200, "GET", "/ds/s?offset=now", "")
	wantHeaders(t, a, headerDurableNext, formatDurable(2), headerDurableUpToDate, "true", "Cache-Control", "no-store", "ETag", "")
	wantEqual(t, "what is there now", a.body, "")

	// The tag changes with what is behind it: records, and the end.
	tag := d.wantText("s", "abcdef").Header.Get("ETag")
	wantHeaders(t, d.ask(304, "GET", "/ds/s?offset=-1", "", "If-None-Match", tag), headerDurableNext, formatDurable(2), "ETag", tag)
	d.ask(200, "GET", "/ds/s?offset=-1", "", "If-None-Match", `"other"`)
	d.ask(204, "POST", "/ds/s", "", headerDurableClosed, "true")
	wantHeaders(t, d.ask(200, "GET", "/ds/s?offset=-1", "", "If-None-Match", tag), headerDurableClosed, "true")

	// Large streams come in parts, of which only the last says that it is.
	d.make("large")
	want := ""
	for i := range 12 {
		part := strings.Repeat(string(rune('a'+i)), 100<<10)
		want += part
		d.put(204, "large", part)
	}
	d.ask(204, "POST", "/ds/large", "", headerDurableClosed, "true")
	got, offset, parts := "", durableBegin, 0
	for {
		a := d.ask(200, "GET", "/ds/large?offset="+offset, "")
		got, offset = got+a.body, a.Header.Get(headerDurableNext)
		parts++
		if a.Header.Get(headerDurableUpToDate) == "true" {
			wantHeaders(t, a, headerDurableClosed, "true")
			break
		}
		wantHeaders(t, a, headerDurableClosed, "", "Cache-Control", cacheDurable)
	}
	if got != want || parts < 2 {
		t.Errorf("%d bytes in %d parts, want %d in some", len(got), parts, len(want))
	}
	a = d.ask(200, "GET", "/ds/large?offset="+offset, "")
	wantHeaders(t, a, headerDurableClosed, "true", headerDurableUpToDate, "true", headerDurableNext, offset)
	wantEqual(t, "what is behind the end", a.body, "")

	// What was trimmed is gone.
	d.ask(200, "PATCH", "/v1/streams/s", `{"start_offset":1}`, "Content-Type", jsonType)
	d.ask(410, "GET", "/ds/s?offset="+formatDurable(0), "")
	d.wantText("s", "def")
}

// One name space: what came through any door is read through this one, and the reverse.
func TestDurableBesideOtherDoors(t *testing.T) {
	d := openDoor(t, nil)
	d.make("a/b")
	d.put(204, "a/b", "one")
	wantEqual(t, "over /v1", d.ask(200, "GET", "/v1/streams/a/b", "").page(t).values(), "one")
	d.append("a/b", "two", "three")
	d.wantText("a/b", "onetwothree")

	// Batches as Kafka's clients write them, in a partition of a topic and in a stream without content type.
	batch := func() kafkaproto.RecordBatch {
		return buildBatch(t, kafkaproto.BatchOptions{Codec: kafkaproto.CodecGzip},
			kafkaproto.Record{Key: []byte("k"), Value: []byte(`{"x":1}`)}, kafkaproto.Record{Value: nil}, kafkaproto.Record{Value: []byte("y")})
	}
	d.appendTo("topics/orders/0", batch())
	d.appendTo("kafka", batch())
	for _, name := range []string{"topics/orders/0", "kafka"} {
		a := d.wantText(name, `{"x":1}y`)
		wantHeaders(t, a, headerDurableNext, formatDurable(3), "Content-Type", mediaBytes)
		d.put(204, name, "z") // whatever its content type
		d.wantText(name, `{"x":1}yz`)
	}
	d.ask(409, "DELETE", "/ds/topics/orders/0", "")
	d.ask(409, "POST", "/ds/topics/orders/0", "", headerDurableClosed, "true")
	d.put(404, "topics/missing/0", "x")

	// In a JSON stream what is not JSON is a string, and cannot break out of the array.
	d.ask(201, "PUT", "/ds/json", `{"x":1}`, "Content-Type", jsonType)
	d.appendTo("json", buildBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Value: nil}, kafkaproto.Record{Value: []byte(`],"forged":[`)},
		kafkaproto.Record{Value: []byte{0xff}}, kafkaproto.Record{Value: []byte{}}))
	a := d.ask(200, "GET", "/ds/json", "")
	var values []any
	if err := json.Unmarshal([]byte(a.body), &values); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if got := fmt.Sprintf("%q", values); got != `[map["x":%!q(float64=1)] <nil> "],\"forged\":[" "/w==" ""]` {
		t.Errorf("%s", got)
	}

	// Settings are the same, too.
	d.ask(201, "PUT", "/v1/streams/v1", `{"content_type":"text/plain","ttl_ms":1500}`, "Content-Type", jsonType)
	wantHeaders(t, d.ask(200, "HEAD", "/ds/v1", ""), "Content-Type", textType, headerDurableTTL, "2")
}

// A stream lives on while it is read or written; HEAD is neither. One whose time is over is gone, and makes room.
func TestDurableTimeToLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, func(o *doorOptions) { o.store.RetentionInterval = 1000 * time.Hour })
		for _, name := range []string{"idle", "read", "written", "followed"} {
			d.make(name, headerDurableTTL, "60")
		}
		over := time.Now().Add(100 * time.Second)
		d.make("fixed", headerDurableExpires, over.In(time.FixedZone("", 3600)).Format(time.RFC3339Nano))
		wantHeaders(t, d.ask(200, "HEAD", "/ds/fixed", ""), headerDurableExpires, over.UTC().Format(time.RFC3339Nano), headerDurableTTL, "")
		wantHeaders(t, d.ask(200, "HEAD", "/ds/idle", ""), headerDurableTTL, "60", headerDurableExpires, "")
		alive := func(name string, want int) {
			t.Helper()
			d.ask(want, "HEAD", "/ds/"+name, "")
		}
		for range 3 {
			time.Sleep(30 * time.Second)
			d.ask(200, "GET", "/ds/read", "")
			d.put(204, "written", "x")
			d.put(204, "fixed", "x")
			e := d.follow("/ds/followed?offset=-1&live=sse")
			for range 2 {
				e.want("control")
				break
			}
			e.close()
		}
		alive("idle", 404)
		for _, name := range []string{"read", "written", "followed", "fixed"} {
			alive(name, 200)
		}
		time.Sleep(11 * time.Second)
		alive("fixed", 404)
		for _, a := range []*answer{
			d.ask(404, "GET", "/ds/idle", ""), d.put(404, "idle", "x"), d.ask(404, "DELETE", "/ds/idle", ""),
			d.ask(404, "GET", "/ds/idle?offset=-1&live=sse", ""),
		} {
			a.wantProblem(t, noStream)
		}
		// Its name is free, for a stream with other settings and for one with content, and old records do not come back.
		id, err := d.store.Lookup("idle")
		if err != nil {
			t.Fatal(err)
		}
		d.make("idle")
		if other, err := d.store.Lookup("idle"); err != nil || other == id {
			t.Errorf("the new stream is %d, %v; the old one was %d", other, err, id)
		}
		d.ask(201, "PUT", "/ds/fixed", "new", "Content-Type", textType)
		d.wantText("fixed", "new")
		// One that is followed all the time lives on although nothing is asked anew.
		d.make("short", headerDurableTTL, "4")
		e := d.follow("/ds/short?offset=-1&live=sse")
		e.want("control")
		go func() { // takes the signs of life
			_, _ = e.next()
		}()
		time.Sleep(30 * time.Second)
		alive("short", 200)
		e.close()
		time.Sleep(5 * time.Second)
		alive("short", 404)
	})
}

func TestDurableLongPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.make("s")
		d.put(204, "s", "old")
		at := "/ds/s?live=long-poll&offset="
		a := d.ask(200, "GET", at+durableBegin, "")
		wantEqual(t, "what is there", a.body, "old")
		cursor := a.Header.Get(headerDurableCursor)
		if n, err := strconv.Atoi(cursor); err != nil || n < 0 {
			t.Errorf("cursor %q", cursor)
		}
		// A cursor that comes back in the same interval gets a higher one.
		next := d.ask(200, "GET", at+durableBegin+"&cursor="+cursor, "").Header.Get(headerDurableCursor)
		before, _ := strconv.Atoi(cursor)
		if after, err := strconv.Atoi(next); err != nil || after <= before {
			t.Errorf("cursor %s after %s", next, cursor)
		}
		for _, offset := range []string{durableNow, formatDurable(1)} {
			began := time.Now()
			a = d.ask(204, "GET", at+offset, "")
			wantHeaders(t, a, headerDurableNext, formatDurable(1), headerDurableUpToDate, "true", "Content-Type", "")
			wantEqual(t, "wait", time.Since(began), durablePollTimeout)
			if a.Header.Get(headerDurableCursor) == "" {
				t.Error("no cursor")
			}
		}
		// It ends with what comes, and at once when nothing can come any more.
		replies := make(chan *answer)
		ask := func(offset string) {
			a, err := d.try("GET", at+offset, "")
			if err != nil {
				t.Error(err)
			}
			replies <- a
		}
		go ask(durableNow)
		synctest.Wait()
		d.put(204, "s", "new")
		if a := <-replies; a.StatusCode != 200 || a.body != "new" {
			t.Errorf("status %d, %q", a.StatusCode, a.body)
		}
		began := time.Now()
		go ask(formatDurable(2))
		synctest.Wait()
		d.ask(204, "POST", "/ds/s", "", headerDurableClosed, "true")
		a = <-replies
		for range 2 {
			wantEqual(t, "status", a.StatusCode, 204)
			wantHeaders(t, a, headerDurableClosed, "true", headerDurableUpToDate, "true", headerDurableCursor, "", headerDurableNext, formatDurable(2))
			a = d.ask(204, "GET", at+durableNow, "")
		}
		wantEqual(t, "wait at the end", time.Since(began), 0)
	})
}

// Records come as data, each with the position behind it; the end of the stream is told, and the connection ends.
func TestDurableEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.make("s")
		type control struct {
			Next     string `json:"streamNextOffset"`
			Cursor   string `json:"streamCursor"`
			UpToDate bool   `json:"upToDate"`
			Closed   bool   `json:"streamClosed"`
		}
		wantControl := func(e *eventReader, next int64, closed bool) {
			t.Helper()
			c := decode[control](t, e.want("control").data)
			if c.Next != formatDurable(next) || !c.UpToDate || c.Closed != closed || (c.Cursor == "") != closed {
				t.Errorf("control %+v, want the offset %d, closed %v", c, next, closed)
			}
		}
		e := d.follow("/ds/s?offset=-1&live=sse")
		for header, want := range map[string]string{
			"Content-Type": mediaEvents, "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", headerDurableEncoding: "", "Content-Length": "",
		} {
			wantEqual(t, header, e.resp.Header.Get(header), want)
		}
		wantControl(e, 0, false)
		// Nothing that users write becomes an event of its own, and nothing of it is lost.
		forged := " first\revent: control\r\ndata: {}\n\n\nid: 7\n :x\n"
		d.put(204, "s", forged)
		if got, want := e.want("data").data, strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(forged); got != want {
			t.Errorf("data %q, want %q", got, want)
		}
		wantControl(e, 1, false)
		d.put(204, "s", "end", headerDurableClosed, "true")
		wantEqual(t, "data", e.want("data").data, "end")
		wantControl(e, 2, true)
		if ev, err := e.next(); err != io.EOF {
			t.Errorf("%+v, %v after the end", ev, err)
		}
		// Who comes to the end of a closed stream is told so.
		for _, offset := range []string{formatDurable(2), durableNow} {
			e = d.follow("/ds/s?live=sse&offset=" + offset)
			wantControl(e, 2, true)
			if _, err := e.next(); err != io.EOF {
				t.Errorf("%v after the end", err)
			}
		}

		d.ask(201, "PUT", "/ds/bytes", "\x00\xff", "Content-Type", "application/x-thing")
		e = d.follow("/ds/bytes?offset=-1&live=sse")
		wantEqual(t, headerDurableEncoding, e.resp.Header.Get(headerDurableEncoding), "base64")
		wantEqual(t, "data", e.want("data").data, "AP8=")
		e.close()
		d.ask(201, "PUT", "/ds/json", "[1,\n{\"a\":\r\n2}]", "Content-Type", jsonType)
		e = d.follow("/ds/json?offset=-1&live=sse")
		wantEqual(t, "data", e.want("data").data, "[1,{\"a\":\n2}]")
		e.want("control")

		// A connection lasts a minute, with signs of life on the way, and can be taken up where it was.
		began := time.Now()
		if ev, err := e.next(); err != io.EOF || e.comments < 3 {
			t.Errorf("%+v, %v, %d signs of life", ev, err, e.comments)
		}
		wantEqual(t, "lifetime", time.Since(began), durableLifetime)
		// It ends when the stream is deleted, and when the server stops.
		e = d.follow("/ds/json?live=sse&offset=" + formatDurable(2))
		e.want("control")
		d.ask(204, "DELETE", "/ds/json", "")
		if _, err := e.next(); err != io.EOF {
			t.Errorf("%v after the stream was deleted", err)
		}
		e = d.follow("/ds/bytes?live=sse&offset=now")
		e.want("control")
		d.server.Drain()
		if _, err := e.next(); err != io.EOF {
			t.Errorf("%v after the server was told to stop", err)
		}
	})
}

// A batch that cannot be decoded ends no reader in a loop: it is told where to go on.
func TestDurableUnreadable(t *testing.T) {
	d := openDoor(t, nil)
	d.make("s")
	bad := buildBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Value: []byte("x")})
	bad[len(bad)-3] ^= 0x55
	bad.SetCRC()
	d.appendTo("s", bad)
	d.put(204, "s", "good")
	for _, query := range []string{"?offset=-1", "?offset=-1&live=sse", "?offset=-1&live=long-poll"} {
		wantHeaders(t, d.ask(500, "GET", "/ds/s"+query, ""), headerDurableNext, formatDurable(1))
	}
	wantEqual(t, "what follows", d.ask(200, "GET", "/ds/s?offset="+formatDurable(1), "").body, "good")
}

// Web pages of other origins can read and send every header of the protocol, also with errors.
func TestDurableOtherOrigins(t *testing.T) {
	d := openDoor(t, nil)
	d.make("s")
	a := d.ask(204, "OPTIONS", "/ds/s", "", "Origin", "https://app", "Access-Control-Request-Method", "PUT")
	allowed, methods := a.Header.Get("Access-Control-Allow-Headers"), a.Header.Get("Access-Control-Allow-Methods")
	for _, header := range []string{"Content-Type", "Authorization", "If-None-Match", "Last-Event-ID", headerDurableSeq, headerDurableClosed, headerDurableTTL,
		headerDurableExpires, headerForkedFrom, headerForkOffset, headerForkSubOffset, headerProducerID, headerProducerEpoch, headerProducerSeq} {
		if !strings.Contains(allowed, header) {
			t.Errorf("%s may not be sent", header)
		}
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE"} {
		if !strings.Contains(methods, method) {
			t.Errorf("%s is not allowed", method)
		}
	}
	for _, status := range []int{204, 409} {
		exposed := d.put(status, "s", "x", headerDurableSeq, "1", "Origin", "https://app").Header.Get("Access-Control-Expose-Headers")
		for _, header := range []string{headerDurableNext, headerDurableCursor, headerDurableClosed, headerDurableUpToDate, headerDurableTTL,
			headerDurableExpires, headerDurableEncoding, headerProducerEpoch, headerProducerSeq, headerProducerExpects, headerProducerGot, "ETag", "Location"} {
			if !strings.Contains(exposed, header) {
				t.Errorf("with %d: %s may not be read", status, header)
			}
		}
	}
}

// fork makes a fork.
func (d *door) fork(status int, name, source string, headers ...string) *answer {
	d.t.Helper()
	return d.ask(status, "PUT", "/ds/"+name, "", append([]string{headerForkedFrom, "/ds/" + source}, headers...)...)
}

func TestDurableFork(t *testing.T) {
	d := openDoor(t, nil)
	d.make("a", headerDurableTTL, "100")
	d.put(200, "a", "one", asProducer("p", 0, 0)...)
	d.put(200, "a", "two", append(asProducer("p", 0, 1), headerDurableSeq, "9")...)
	d.put(200, "a", "three", asProducer("p", 0, 2)...)
	wantHeaders(t, d.fork(201, "all", "a"), headerDurableNext, formatDurable(3), "Content-Type", textType)
	wantHeaders(t, d.ask(200, "HEAD", "/ds/all", ""), headerDurableTTL, "100")
	at := func(n int64, more ...string) []string { return append(more, headerForkOffset, formatDurable(n)) }
	d.fork(201, "some", "a", at(2, headerDurableTTL, "7")...)
	d.wantText("some", "onetwo")
	d.put(204, "some", "!")
	d.put(204, "a", "four")
	wantHeaders(t, d.wantText("some", "onetwo!"), headerDurableNext, formatDurable(3))
	d.wantText("all", "onetwothree")
	wantEqual(t, "behind the fork", d.ask(200, "GET", "/ds/some?offset="+formatDurable(2), "").body, "!")
	// Writers begin anew.
	d.put(200, "some", "x", asProducer("p", 0, 0)...)
	d.put(204, "some", "y", headerDurableSeq, "1")

	// The same again is no fork more.
	d.fork(200, "some", "a", at(2, headerDurableTTL, "7")...)
	d.fork(200, "all", "a")
	d.fork(409, "some", "a", at(1)...)
	d.fork(409, "some", "all", at(2)...)
	d.fork(409, "some", "a", at(2, headerDurableTTL, "8")...)
	d.fork(409, "a", "all")

	// Inside a value.
	d.ask(201, "PUT", "/ds/piece", "+", headerForkedFrom, "/a", headerForkOffset, formatDurable(1), headerForkSubOffset, "2")
	d.wantText("piece", "onetw+")
	d.fork(200, "piece", "a", at(1, headerForkSubOffset, "2")...)
	d.fork(409, "piece", "a", at(1, headerForkSubOffset, "1")...)
	d.fork(201, "whole", "a", at(1, headerForkSubOffset, "3")...)
	d.wantText("whole", "onetwo")
	d.fork(201, "chain", "piece", at(1, headerForkSubOffset, "1")...)
	d.wantText("chain", "onet")
	d.ask(201, "PUT", "/ds/json", "[1,2,3]", "Content-Type", jsonType)
	d.fork(201, "json2", "json", at(0, headerForkSubOffset, "2")...)
	d.wantText("json2", "[1,2]")
	for _, bad := range [][]string{
		at(1, headerForkSubOffset, "4"), at(4, headerForkSubOffset, "1"), at(9), at(0, headerForkSubOffset, "-1"), at(0, headerForkSubOffset, "01"),
		{headerForkSubOffset, "1"}, {headerForkOffset, "x"}, {headerForkOffset, durableNow},
	} {
		d.fork(400, "bad", "a", bad...)
	}
	d.fork(400, "bad", "json", at(0, headerForkSubOffset, "4")...)
	d.ask(400, "PUT", "/ds/bad", "", headerForkOffset, formatDurable(0))
	d.ask(400, "PUT", "/ds/bad", "", headerForkSubOffset, "0")
	d.fork(404, "bad", "missing")
	d.fork(409, "bad", "json", "Content-Type", textType)
	d.ask(404, "HEAD", "/ds/bad", "")
	d.wantNoNursery()

	// A closed source, and one that was trimmed: the fork is open, at the same offsets.
	d.ask(204, "POST", "/ds/a", "", headerDurableClosed, "true")
	d.ask(200, "PATCH", "/v1/streams/a", `{"start_offset":2}`, "Content-Type", jsonType)
	wantHeaders(t, d.fork(201, "late", "a"), headerDurableClosed, "", headerDurableNext, formatDurable(4))
	d.wantText("late", "threefour")
	wantEqual(t, "at its offset", d.ask(200, "GET", "/ds/late?offset="+formatDurable(3), "").body, "four")
	d.ask(410, "GET", "/ds/late?offset="+formatDurable(1), "")
	d.fork(400, "bad", "a", at(1)...)
	d.put(204, "late", "five")

	// A partition of a topic can be a source; batches of many records are cut.
	d.appendTo("topics/orders/1", buildBatch(t, kafkaproto.BatchOptions{Codec: kafkaproto.CodecZstd},
		kafkaproto.Record{Value: []byte("a")}, kafkaproto.Record{Value: []byte("b")}, kafkaproto.Record{Value: []byte("c")}))
	d.fork(201, "orders", "topics/orders/1", at(2)...)
	d.wantText("orders", "ab")
}

// A stream keeps its name while there are forks of it, or of its forks, whatever door they are deleted by.
func TestDurableForksOfDeletedStreams(t *testing.T) {
	m := newMachine()
	d := m.open(t, nil)
	d.make("a")
	d.put(204, "a", "x")
	d.fork(201, "b", "a")
	d.fork(201, "c", "b")
	d.ask(204, "DELETE", "/ds/b", "")
	d.ask(204, "DELETE", "/ds/a", "")
	gone := func(name string) {
		t.Helper()
		d.ask(410, "HEAD", "/ds/"+name, "")
		d.ask(410, "GET", "/ds/"+name, "").wantProblem(t, durableGone)
		d.put(410, name, "x")
		d.ask(410, "DELETE", "/ds/"+name, "")
		d.ask(409, "PUT", "/ds/"+name, "")
		d.fork(409, "more", name)
	}
	gone("a")
	gone("b")
	d.stop()
	d = m.open(t, nil)
	gone("a")
	gone("b")
	d.wantText("c", "x")
	d.ask(204, "DELETE", "/v1/streams/c", "")
	for _, name := range []string{"a", "b", "c"} {
		d.ask(404, "HEAD", "/ds/"+name, "")
	}
	d.make("a")
	d.wantText("a", "")

	// Another door may use the name of a stream that is gone.
	d.fork(201, "f", "a")
	d.ask(204, "DELETE", "/ds/a", "")
	gone("a")
	d.append("a", "new")
	d.wantText("a", "new")

	// Nothing stays of streams that are no more.
	d.ask(204, "DELETE", "/v1/streams/f", "")
	d.ask(204, "DELETE", "/v1/streams/a", "")
	d.make("seq")
	d.put(204, "seq", "x", headerDurableSeq, "1")
	if err := d.server.sweepRows(); err != nil {
		t.Fatal(err)
	}
	d.put(409, "seq", "x", headerDurableSeq, "1")
	var rows []string
	err := d.store.Scan([]byte("durable/"), func(key, _ []byte) error { rows = append(rows, fmt.Sprintf("%q", key)); return nil })
	if err != nil || len(rows) != 1 || !strings.Contains(rows[0], rowSeq) {
		t.Errorf("rows %v, %v; want that of seq", rows, err)
	}
	d.ask(204, "DELETE", "/ds/seq", "")
	if _, ok, err := d.store.Get([]byte(rowSeq)); ok || err != nil {
		t.Error("the row of a deleted stream is there")
	}
}

// A fork that a crash has left half made cannot be seen, and is removed in time.
func TestDurableForkCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		d := m.open(t, func(o *doorOptions) { o.store.RetentionInterval = 1000 * time.Hour })
		d.make("a")
		d.put(204, "a", "x")
		source, err := d.server.forkSource(&forkRequest{source: "a"})
		if err != nil {
			t.Fatal(err)
		}
		id, err := d.server.nursery(t.Context(), source)
		if err == nil {
			err = d.server.fillDurable(t.Context(), t.Context(), id, source, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		d.stop()
		d = m.open(t, func(o *doorOptions) { o.store.RetentionInterval = 1000 * time.Hour })
		if a := d.ask(200, "GET", "/v1/streams", ""); strings.Contains(a.body, "_ds") {
			t.Errorf("listed: %s", a.body)
		}
		if err := d.store.Expire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.store.Describe(id); err != nil {
			t.Errorf("a copy under way was removed: %v", err)
		}
		time.Sleep(nurseryTTL + time.Minute)
		if err := d.store.Expire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.store.Describe(id); !errors.Is(err, streamstore.ErrNoStream) {
			t.Errorf("after its time to live: %v", err)
		}
	})
}

// A copy of a source that is deleted, or trimmed, while it is made leaves nothing.
func TestDurableForkOfVanishingSource(t *testing.T) {
	d := openDoor(t, nil)
	d.make("a")
	d.put(204, "a", "x")
	d.put(204, "a", "y")
	for name, change := range map[string]func(id streamstore.StreamID) *streamstore.Txn{
		"trimmed": func(id streamstore.StreamID) *streamstore.Txn {
			txn := streamstore.NewTxn()
			txn.Trim(id, 1)
			return txn
		},
		"deleted": func(id streamstore.StreamID) *streamstore.Txn {
			txn := streamstore.NewTxn()
			txn.Delete(id)
			return txn
		},
	} {
		if name == "deleted" {
			d.ask(200, "HEAD", "/ds/a", "")
		}
		d.make(name)
		d.put(204, name, "x")
		d.put(204, name, "y")
		source, err := d.server.forkSource(&forkRequest{source: name})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.store.Commit(t.Context(), change(source.id)); err != nil {
			t.Fatal(err)
		}
		target := &durableStream{target: &target{name: "fork-" + name}}
		_, err = d.server.makeDurable(context.Background(), context.Background(), target, streamstore.DefaultSettings(), source, false, nil)
		if err == nil {
			t.Errorf("%s: a fork was made", name)
		}
		d.ask(404, "HEAD", "/ds/fork-"+name, "")
	}
	d.wantNoNursery()
}
