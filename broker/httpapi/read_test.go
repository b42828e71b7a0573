package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

func TestReadPositions(t *testing.T) {
	d := openDoor(t, nil)
	for i := range 10 {
		d.ask(200, "POST", fmt.Sprintf("%s/a/b?timestamp=%d", streamsPath, 1000+100*i), fmt.Sprint(i))
	}
	d.ask(200, "PATCH", streamsPath+"/a/b", `{"start_offset":2}`, "Content-Type", jsonType)
	for query, want := range map[string]string{
		"":                          "2 3 4 5 6 7 8 9",
		"from=start":                "2 3 4 5 6 7 8 9",
		"from=7":                    "7 8 9",
		"from=10":                   "",
		"from=tail":                 "",
		"from=-3":                   "7 8 9",
		"from=-100":                 "2 3 4 5 6 7 8 9",
		"from=3&to=5":               "3 4",
		"from=3&to=3":               "",
		"to=4":                      "2 3",
		"from=3&limit=2":            "3 4",
		"limit=1":                   "2",
		"max_bytes=1":               "2",
		"time=1450":                 "5 6 7 8 9",
		"time=1400":                 "4 5 6 7 8 9",
		"time=0":                    "2 3 4 5 6 7 8 9",
		"time=1970-01-01T00:00:01Z": "2 3 4 5 6 7 8 9",
		"time=2000-01-01T00:00:00Z": "",
		"from=0&clamp=true":         "2 3 4 5 6 7 8 9",
		"from=99&clamp":             "",
	} {
		for _, form := range []string{formJSON, formNDJSON} {
			a := d.ask(200, "GET", streamsPath+"/a/b?format="+form+"&"+query, "")
			var p gotPage
			if form == formJSON {
				p = a.page(t)
				wantHeaders(t, a, headerStartOffset, "2", headerEndOffset, "10", headerNextOffset, fmt.Sprint(p.NextOffset))
			} else {
				for line := range strings.Lines(a.body) {
					p.Records = append(p.Records, decode[gotRecord](t, line))
				}
			}
			if query == "max_bytes=1" && form == formNDJSON {
				p.Records = p.Records[:1]
			}
			wantEqual(t, form+" "+query, p.values(), want)
		}
	}
	for _, query := range []string{"from=x", "from=1&time=5", "time=x", "limit=0", "max_bytes=0", "to=-1", "live=poll", "timeout=x", "id=0", "id=x", "values=xml", "fron=1", "clamp=2",
		"live=sse&limit=5", "live=sse&to=5", "live=sse&format=ndjson"} {
		d.ask(400, "GET", streamsPath+"/a/b?"+query, "").wantProblem(t, badRequest)
	}
	d.ask(404, "GET", streamsPath+"/a/none", "").wantProblem(t, noStream)
}

// A position outside the stream is one error in every kind of read, and with clamp the nearer end: at the tail a reader
// waits for what comes.
func TestPositionsOutsideTheStream(t *testing.T) {
	d := openDoor(t, nil)
	d.ask(201, "PUT", streamsPath+"/a/empty", "")
	d.append("a/full", numbered("v", 5)...)
	d.ask(200, "PATCH", streamsPath+"/a/full", `{"start_offset":3}`, "Content-Type", jsonType)
	kinds := []string{"", "&format=ndjson", "&format=batches", "&format=raw", "&live=long-poll&timeout=0", "&live=sse"}
	for _, kind := range kinds {
		for _, c := range []struct {
			name       string
			from       int
			start, end string
		}{{"empty", 1, "0", "0"}, {"full", 2, "3", "5"}, {"full", 6, "3", "5"}} {
			a := d.ask(416, "GET", fmt.Sprintf("%s/a/%s?from=%d%s", streamsPath, c.name, c.from, kind), "")
			members := a.wantProblem(t, outOfRange)
			wantHeaders(t, a, headerStartOffset, c.start, headerEndOffset, c.end)
			wantEqual(t, "offsets", fmt.Sprint(members["start_offset"], members["end_offset"]), c.start+" "+c.end)
		}
	}
	for _, c := range []struct {
		name string
		from int
	}{{"empty", 0}, {"empty", 7}, {"full", 99}} {
		e := d.follow(fmt.Sprintf("%s/a/%s?from=%d&clamp=true&live=sse", streamsPath, c.name, c.from))
		polled := make(chan *answer, 1)
		go func() {
			a, err := d.try("GET", fmt.Sprintf("%s/a/%s?from=%d&clamp=true&live=long-poll", streamsPath, c.name, c.from), "")
			if err != nil {
				t.Error(err)
			}
			polled <- a
		}()
		awaitFollowers(t, d, liveLongPoll, 1)
		d.append("a/"+c.name, "new")
		e.wantValues("new")
		wantEqual(t, "poll", (<-polled).page(t).values(), "new")
		e.close()
		d.ask(204, "DELETE", streamsPath+"/a/"+c.name, "")
		d.ask(201, "PUT", streamsPath+"/a/"+c.name, "")
	}
}

// awaitFollowers waits until so many readers wait for records.
func awaitFollowers(t *testing.T, d *door, kind string, n float64) {
	t.Helper()
	for {
		families, err := d.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "brooklet_http_followers" {
				continue
			}
			for _, m := range f.GetMetric() {
				if m.GetLabel()[0].GetValue() == kind && m.GetGauge().GetValue() == n {
					return
				}
			}
		}
		if t.Context().Err() != nil {
			t.Fatal("they do not come")
		}
	}
}

// Records below the start offset are never shown, also if they share a batch with others.
func TestTrimInsideABatch(t *testing.T) {
	m := newMachine()
	d := m.open(t, nil)
	d.append("a/b", numbered("v", 10)...)
	d.ask(200, "PATCH", streamsPath+"/a/b", `{"start_offset":5}`, "Content-Type", jsonType)
	for range 2 {
		wantEqual(t, "values", d.ask(200, "GET", streamsPath+"/a/b", "").page(t).values(), strings.Join(numbered("v", 10)[5:], " "))
		d.ask(416, "GET", streamsPath+"/a/b?from=3", "").wantProblem(t, outOfRange)
		batches := []byte(d.ask(200, "GET", streamsPath+"/a/b?format=batches", "").body)
		if strings.Contains(string(batches), "v4") {
			t.Error("a trimmed record is in the batches")
		}
		batch, rest, err := kafkaproto.NextBatch(batches)
		if err != nil || len(rest) != 0 || batch.BaseOffset() != 5 || batch.RecordCount() != 5 || batch.CRC() != batch.ComputeCRC() {
			t.Errorf("%v %v, %d bytes more", batch, err, len(rest))
		}
		e := d.follow(streamsPath + "/a/b?live=sse")
		e.wantValues("v5")
		e.close()
		e = d.follow(streamsPath + "?prefix=a/&live=sse")
		e.want(eventCursor)
		e.wantValues("v5")
		e.close()
		wantEqual(t, "by time", *d.ask(200, "GET", streamsPath+"/a/b?time=0", "").page(t).Records[0].Value, "v5")
		d.stop()
		d = m.open(t, nil)
	}
}

// Pages put together are the whole, whatever their size.
func TestPages(t *testing.T) {
	d := openDoor(t, nil)
	want := numbered(strings.Repeat("v", 30), 300)
	for i := 0; i < len(want); i += 30 {
		d.append("a/b", want[i:i+30]...)
	}
	for _, query := range []string{"&limit=7", "&max_bytes=1000", "&max_bytes=500&limit=3", "&limit=30", "&limit=1000"} {
		var got []string
		for from := int64(0); from < 300; {
			p := d.ask(200, "GET", fmt.Sprintf("%s/a/b?from=%d%s", streamsPath, from, query), "").page(t)
			if len(p.Records) == 0 || p.NextOffset != from+int64(len(p.Records)) {
				t.Fatalf("%d records from %d, next %d", len(p.Records), from, p.NextOffset)
			}
			from = p.NextOffset
			got = append(got, p.values())
		}
		wantEqual(t, query, strings.Join(got, " "), strings.Join(want, " "))
	}
	a := d.ask(200, "GET", streamsPath+"/a/b?format=ndjson&from=10&limit=5", "")
	wantEqual(t, "lines", strings.Count(a.body, "\n"), 5)
	wantEqual(t, "trailer", a.Trailer.Get(headerNextOffset), "15")
}

// Once a record is read at its offset it stays that, so a client that has it need not get it again.
func TestConditionalReads(t *testing.T) {
	d := openDoor(t, nil)
	d.append("a/b", numbered("v", 5)...)
	path := streamsPath + "/a/b?from=1&to=3"
	first := d.ask(200, "GET", path, "")
	tag := first.Header.Get("ETag")
	wantHeaders(t, first, "Cache-Control", cacheChecked)
	a := d.ask(304, "GET", path, "", "If-None-Match", `"other", `+tag)
	wantEqual(t, "body", a.body, "")
	wantHeaders(t, a, "ETag", tag, headerNextOffset, "3", headerEndOffset, "5")
	d.append("a/b", "more")
	d.ask(304, "GET", path, "", "If-None-Match", tag)
	// The same range in another form, an open range that has grown, and another stream of the name are other bodies.
	d.ask(200, "GET", path+"&values=base64", "", "If-None-Match", tag)
	open := d.ask(200, "GET", streamsPath+"/a/b?from=1", "").Header.Get("ETag")
	d.ask(304, "GET", streamsPath+"/a/b?from=1", "", "If-None-Match", open)
	d.append("a/b", "more")
	d.ask(200, "GET", streamsPath+"/a/b?from=1", "", "If-None-Match", open)
	d.ask(200, "PATCH", streamsPath+"/a/b", `{"closed":true}`, "Content-Type", jsonType)
	closed := d.ask(200, "GET", streamsPath+"/a/b?from=1", "", "If-None-Match", open)
	wantHeaders(t, closed, headerClosed, "true")

	// With the stream's id the range may be used without asking, and nobody but the client may keep it.
	id := "&id=" + streamID(d, "a/b")
	wantHeaders(t, d.ask(200, "GET", path+id, ""), "Cache-Control", cacheImmutable)
	for _, open := range []string{"?from=1", "?to=3", "?from=1&to=99", "?from=1&to=3&limit=1"} {
		wantHeaders(t, d.ask(200, "GET", streamsPath+"/a/b"+open+id, ""), "Cache-Control", cacheChecked)
	}
	d.ask(204, "DELETE", streamsPath+"/a/b", "")
	d.append("a/b", numbered("w", 5)...)
	wantEqual(t, "values", d.ask(200, "GET", path, "", "If-None-Match", tag).page(t).values(), "w1 w2")
	d.ask(409, "GET", path+id, "").wantProblem(t, streamReplaced)
	for _, live := range []string{path + "&live=long-poll", streamsPath + "?prefix=a/"} {
		if got := d.ask(200, "GET", live, "").Header.Get("Cache-Control"); strings.Contains(got, "max-age") {
			t.Errorf("%s: Cache-Control %q", live, got)
		}
	}
}

func TestAccept(t *testing.T) {
	offers := []string{mediaJSON, mediaNDJSON, mediaBatches, mediaBytes}
	for accept, want := range map[string]int{
		"": 0, "*/*": 0, "application/*": 0, mediaNDJSON: 1, "text/html": -1, mediaBatches + ";q=0.5, " + mediaNDJSON + ";q=0.4": 2,
		"*/*;q=0.1, " + mediaBytes: 3, "application/json;q=0, */*": 1, "application/json;q=0": -1, "text/html, */*;q=0.8": 0, "APPLICATION/X-NDJSON": 1,
	} {
		wantEqual(t, accept, bestOffer(accept, offers), want)
	}
}

// --- streams ---

func TestCreateIsIdempotent(t *testing.T) {
	d := openDoor(t, nil)
	path := streamsPath + "/a/b"
	settings := `{"retention_ms":86400000,"retention_bytes":1000000,"ttl_ms":3600000,"content_type":"text/plain; charset=utf-8"}`
	a := d.ask(201, "PUT", path, settings, "Content-Type", jsonType)
	wantHeaders(t, a, "Location", path, headerNextOffset, "0", headerStreamID, streamID(d, "a/b"))
	var made, again map[string]any
	made = decode[map[string]any](t, a.body)
	for name, want := range map[string]any{"name": "a/b", "retention_ms": 86400000.0, "retention_bytes": 1000000.0, "ttl_ms": 3600000.0, "content_type": "text/plain; charset=utf-8", "closed": false, "start_offset": 0.0} {
		wantEqual(t, name, made[name], want)
	}
	again = decode[map[string]any](t, d.ask(200, "PUT", path, settings, "Content-Type", jsonType).body)
	if !reflect.DeepEqual(made, again) {
		t.Errorf("%v, then %v", made, again)
	}
	a = d.ask(409, "PUT", path, `{"retention_ms":5}`, "Content-Type", jsonType)
	members := a.wantProblem(t, streamExists)
	wantEqual(t, "settings told", members["stream"].(map[string]any)["ttl_ms"], any(3600000.0))
	d.ask(409, "PUT", path, "").wantProblem(t, streamExists)
	d.ask(412, "PUT", path, settings, "Content-Type", jsonType, "If-None-Match", "*").wantProblem(t, preconditionNo)
	d.ask(201, "PUT", path+"2", "", "If-None-Match", "*")
	d.ask(200, "PUT", path+"2", "")
	d.ask(400, "PUT", path, "", "If-Match", "*").wantProblem(t, badRequest)
	d.ask(400, "PUT", path, "", "If-None-Match", `"5"`).wantProblem(t, badRequest)
	for _, bad := range []string{`{"retention_ms":0}`, `{"retention_ms":-1}`, `{"retention_ms":"1d"}`, `{"ttl_ms":1.5}`, `{"ttl_ms":9223372036854775807}`, `{"retention_bytes":-1}`, `{"content_type":"no media type"}`, `{"content_type":"a/b\nc"}`} {
		d.ask(400, "PUT", path+"3", bad, "Content-Type", jsonType).wantProblem(t, badSettings)
	}
	for _, bad := range []string{`{"retention":5}`, `[]`, `{`, `{} {}`} {
		d.ask(400, "PUT", path+"3", bad, "Content-Type", jsonType).wantProblem(t, badRequest)
	}
	d.ask(404, "HEAD", path+"3", "")
	d.ask(201, "PUT", path+"3", `{"retention_ms":null,"ttl_ms":null}`, "Content-Type", jsonType)
}

func TestChange(t *testing.T) {
	d := openDoor(t, nil)
	path := streamsPath + "/a/b"
	d.append("a/b", numbered("v", 5)...)
	patch := func(status int, body string) *answer {
		t.Helper()
		return d.ask(status, "PATCH", path, body, "Content-Type", "application/merge-patch+json")
	}
	got := decode[map[string]any](t, patch(200, `{"ttl_ms":1000000,"content_type":"text/plain","start_offset":2}`).body)
	wantEqual(t, "stream", fmt.Sprint(got["ttl_ms"], got["content_type"], got["start_offset"], got["retention_ms"]), "1e+06text/plain2 <nil>")
	got = decode[map[string]any](t, patch(200, `{"retention_ms":5000000,"ttl_ms":null}`).body)
	wantEqual(t, "stream", fmt.Sprint(got["ttl_ms"], got["content_type"], got["retention_ms"]), "<nil>text/plain5e+06")
	// A trim backwards changes nothing, one beyond the end is refused, and with it all of the change.
	got = decode[map[string]any](t, patch(200, `{"start_offset":1}`).body)
	wantEqual(t, "start", got["start_offset"], any(2.0))
	a := patch(416, `{"start_offset":6,"closed":true}`)
	a.wantProblem(t, outOfRange)
	wantHeaders(t, a, headerEndOffset, "5")
	patch(400, `{}`).wantProblem(t, badRequest)
	patch(400, `{"start_offset":-1}`).wantProblem(t, badRequest)
	patch(400, `{"start":1}`).wantProblem(t, badRequest)
	patch(400, `{"ttl_ms":0}`).wantProblem(t, badSettings)
	d.ask(400, "PATCH", path, `{"closed":true}`, "Content-Type", jsonType, "If-Match", `"5"`).wantProblem(t, badRequest)
	patch(200, `{"closed":false}`)
	d.ask(200, "POST", path, "v5")
	// Closed for ever.
	for range 2 {
		got = decode[map[string]any](t, patch(200, `{"closed":true}`).body)
		wantEqual(t, "closed", got["closed"], any(true))
	}
	patch(409, `{"closed":false}`).wantProblem(t, streamClosed)
	a = d.ask(409, "POST", path, "late")
	a.wantProblem(t, streamClosed)
	wantHeaders(t, a, headerClosed, "true", headerNextOffset, "6")
	p := d.ask(200, "GET", path, "").page(t)
	wantEqual(t, "closed", p.Closed, true)
	wantEqual(t, "closed before the end", d.ask(200, "GET", path+"?limit=1", "").page(t).Closed, false)
	d.ask(404, "PATCH", streamsPath+"/a/none", `{"closed":true}`, "Content-Type", jsonType).wantProblem(t, noStream)
}

// Changes of different settings at the same time are all made: each here was planned before any other was made.
func TestChangesAtTheSameTime(t *testing.T) {
	d := openDoor(t, nil)
	d.ask(201, "PUT", streamsPath+"/a/b", "")
	target, err := d.server.existing("a/b")
	if err != nil {
		t.Fatal(err)
	}
	info, err := d.store.Describe(target.id)
	if err != nil {
		t.Fatal(err)
	}
	var txns []*streamstore.Txn
	for _, body := range []string{`{"ttl_ms":7000}`, `{"retention_ms":8000}`, `{"retention_bytes":9000}`, `{"content_type":"text/plain"}`} {
		var change streamChange
		if err := strictJSON([]byte(body), &change); err != nil {
			t.Fatal(err)
		}
		txn, err := change.plan(target, &info)
		if err != nil {
			t.Fatal(err)
		}
		txns = append(txns, txn)
	}
	for _, txn := range txns {
		if _, err := d.store.Commit(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	a := d.ask(200, "GET", streamsPath+"/a/b?describe", "")
	if want := `"retention_ms":8000,"retention_bytes":9000,"ttl_ms":7000,"content_type":"text/plain"`; !strings.Contains(a.body, want) {
		t.Errorf("%s; want %s", a.body, want)
	}
}

func TestCloseWithTheLastAppend(t *testing.T) {
	d := openDoor(t, nil)
	headers := append(producer("p", 0, 0), "If-Match", `"0"`)
	for i := range 3 { // a repeat gets its answer although the stream is closed
		a := d.ask(200, "POST", streamsPath+"/a/b?close=true", "last", headers...)
		wantEqual(t, "duplicate", strings.Contains(a.body, `"duplicate":true`), i > 0)
		wantHeaders(t, a, headerClosed, "true")
	}
	wantEqual(t, "closed", d.ask(200, "GET", streamsPath+"/a/b", "").page(t).Closed, true)
	d.ask(400, "POST", streamsPath+"/a/c?close=true", `{"records":[]}`, "Content-Type", jsonType).wantProblem(t, badRecord)
}

func TestDescribe(t *testing.T) {
	d := openDoor(t, nil)
	d.append("a/b", "one", "two")
	d.ask(200, "PATCH", streamsPath+"/a/b", `{"start_offset":1,"content_type":"text/plain"}`, "Content-Type", jsonType)
	a := d.ask(200, "GET", streamsPath+"/a/b?describe", "")
	info := decode[map[string]any](t, a.body)
	wantEqual(t, "offsets", fmt.Sprint(info["start_offset"], info["end_offset"], info["next_offset"]), "1 2 2")
	if info["bytes"].(float64) < 60 {
		t.Errorf("%v bytes", info["bytes"])
	}
	head := d.ask(200, "HEAD", streamsPath+"/a/b", "")
	wantHeaders(t, head, headerStartOffset, "1", headerEndOffset, "2", headerNextOffset, "2", headerStreamID, info["id"].(string), "Content-Type", "text/plain")
	wantEqual(t, "body", head.body, "")
	for _, path := range []string{"/a/none?describe", "/a/none"} {
		d.ask(404, "GET", streamsPath+path, "").wantProblem(t, noStream)
	}
	d.ask(404, "HEAD", streamsPath+"/a/none", "")
	d.ask(400, "GET", streamsPath+"/a/b?describe&from=1", "").wantProblem(t, badRequest)
}

func TestDelete(t *testing.T) {
	d := openDoor(t, nil)
	d.append("a/b", "one")
	a := d.ask(204, "DELETE", streamsPath+"/a/b", "")
	wantEqual(t, "body", a.body, "")
	d.ask(404, "DELETE", streamsPath+"/a/b", "").wantProblem(t, noStream)
	d.ask(404, "GET", streamsPath+"/a/b", "").wantProblem(t, noStream)
	d.append("a/b", "two")
	p := d.ask(200, "GET", streamsPath+"/a/b", "").page(t)
	wantEqual(t, "values of the new stream", fmt.Sprint(p.values(), "@", p.Records[0].Offset), "two@0")
}

func TestNames(t *testing.T) {
	d := openDoor(t, nil)
	for path, name := range map[string]string{
		"a/b": "a/b", "a%2Fc": "a/c", "a/%C3%BC%20x": "a/ü x", "single": "single", "a/100%25": "a/100%", "a/q%3Fx": "a/q?x", "a/plus+x": "a/plus+x",
	} {
		a := d.ask(200, "POST", streamsPath+"/"+path, "x")
		wantEqual(t, path, decode[appendResult](t, a.body).Stream, name)
		if _, err := d.store.Lookup(name); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		made := d.ask(201, "PUT", streamsPath+"/new/"+path, "")
		again := d.ask(200, "GET", made.Header.Get("Location")+"?describe", "")
		wantEqual(t, "Location of "+path, decode[map[string]any](t, again.body)["name"], any("new/"+name))
	}
	for _, path := range []string{"a//b", "/a", "a/", "a/../b", "a/./b", "a/%00", "a/%FF", strings.Repeat("x", 1025), "a/..", "%2e%2e/x"} {
		for _, method := range []string{"GET", "PUT", "POST", "DELETE", "PATCH"} {
			a := d.ask(400, method, streamsPath+"/"+path, "")
			a.wantProblem(t, badName)
		}
		d.ask(400, "HEAD", streamsPath+"/"+path, "")
	}
	d.ask(403, "HEAD", streamsPath+"/_own/x", "")
	for _, method := range []string{"GET", "PUT", "POST", "DELETE", "PATCH"} {
		d.ask(403, method, streamsPath+"/_own/x", "").wantProblem(t, reservedName)
	}
	d.ask(403, "GET", streamsPath+"/_own/x?live=sse", "").wantProblem(t, reservedName)
	d.ask(403, "GET", streamsPath+"?prefix=_o", "").wantProblem(t, reservedName)
	d.ask(403, "GET", streamsPath+"?prefix=_o&live=sse", "").wantProblem(t, reservedName)
}

func TestList(t *testing.T) {
	d := openDoor(t, nil)
	var want []string
	for _, name := range append(numbered("s/", 25), "Z", "zz/1", "t/x") {
		d.ask(201, "PUT", streamsPath+"/"+name, "")
		want = append(want, name)
	}
	for _, name := range []string{"_own/1", "_own/2", "_zz"} {
		if _, err := d.store.Ensure(t.Context(), name, streamstore.DefaultSettings()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	for _, limit := range []int{1, 2, 7, 28, 1000} {
		var got []string
		after := ""
		for {
			page := decode[struct {
				Streams []map[string]any `json:"streams"`
				Next    string           `json:"next"`
			}](t, d.ask(200, "GET", fmt.Sprintf("%s?limit=%d&after=%s", streamsPath, limit, after), "").body)
			if len(page.Streams) > limit {
				t.Fatalf("%d streams with limit %d", len(page.Streams), limit)
			}
			for _, s := range page.Streams {
				got = append(got, s["name"].(string))
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %v, want %v", limit, got, want)
		}
	}
	page := decode[listPage](t, d.ask(200, "GET", streamsPath+"?prefix=s/1", "").body)
	wantEqual(t, "streams under s/1", len(page.Streams), 11)
	wantEqual(t, "none", d.ask(200, "GET", streamsPath+"?prefix=nothing", "").body, `{"streams":[]}`+"\n")
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "lim=1", "live=long-poll", "live=sse&from=5", "live=sse&limit=5"} {
		d.ask(400, "GET", streamsPath+"?"+query, "").wantProblem(t, badRequest)
	}
}

// --- HTTP itself ---

func TestAddressesAndMethods(t *testing.T) {
	d := openDoor(t, nil)
	for _, path := range []string{"/v1", "/page", "/page/", "/page/page.mjs", "/v1/stream", "/v2/streams/a", "/v1/streams/"} {
		d.ask(404, "GET", path, "").wantProblem(t, noRoute)
	}
	a := d.ask(405, "TRACE", streamsPath+"/a/b", "")
	a.wantProblem(t, wrongMethod)
	wantHeaders(t, a, "Allow", "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS")
	a = d.ask(405, "DELETE", streamsPath, "")
	a.wantProblem(t, wrongMethod)
	wantHeaders(t, a, "Allow", "GET, OPTIONS")
}

// Pages of other origins can read all headers of the protocol, also of errors, and send all that requests have.
func TestCORS(t *testing.T) {
	d := openDoor(t, nil)
	d.append("a/b", "one")
	origin := []string{"Origin", "https://app.example.com"}
	for _, c := range []struct {
		status       int
		method, path string
		headers      []string
	}{
		{200, "GET", "/a/b", nil}, {404, "GET", "/a/none", nil}, {416, "GET", "/a/b?from=9", nil}, {405, "TRACE", "/a/b", nil}, {204, "DELETE", "/a/b", nil},
		{412, "POST", "/a/b", []string{"If-Match", "9"}}, {200, "POST", "/a/b", nil}, {200, "HEAD", "/a/b", nil}, {400, "GET", "/_x?x=%zz", nil}, {304, "GET", "/a/b", []string{"If-None-Match", "*"}},
	} {
		if c.path == "/_x?x=%zz" {
			c.status = 403
		}
		a := d.ask(c.status, c.method, streamsPath+c.path, "", append(origin, c.headers...)...)
		wantHeaders(t, a, "Access-Control-Allow-Origin", "*")
		exposed := strings.Split(a.Header.Get("Access-Control-Expose-Headers"), ", ")
		for name := range a.Header {
			if (strings.HasPrefix(name, "Brooklet-") || name == "Etag" && a.StatusCode != 200 || name == "Retry-After" || name == "Location") &&
				!slices.ContainsFunc(exposed, func(e string) bool { return http.CanonicalHeaderKey(e) == name }) {
				t.Errorf("%s %s: %s cannot be read", c.method, c.path, name)
			}
		}
	}
	for _, name := range []string{headerStreamID, headerStartOffset, headerEndOffset, headerNextOffset, headerClosed, headerRecord, "ETag", "Retry-After"} {
		if !strings.Contains(exposedHeaders+",", name+",") {
			t.Errorf("%s is not exposed", name)
		}
	}
	e := d.follow(streamsPath+"/a/b?live=sse", origin...)
	wantEqual(t, "event stream", e.resp.Header.Get("Access-Control-Allow-Origin"), "*")
	for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"} {
		a := d.ask(204, "OPTIONS", streamsPath+"/a/b", "", append(origin, "Access-Control-Request-Method", method,
			"Access-Control-Request-Headers", "last-event-id, authorization, producer-id, producer-epoch, producer-seq, if-match, if-none-match, content-type, content-encoding, accept")...)
		if !slices.Contains(strings.Split(a.Header.Get("Access-Control-Allow-Methods"), ", "), method) {
			t.Errorf("%s is not allowed: %q", method, a.Header.Get("Access-Control-Allow-Methods"))
		}
		for _, name := range strings.Split("last-event-id, authorization, producer-id, producer-epoch, producer-seq, if-match, if-none-match, content-type, content-encoding, accept", ", ") {
			if !slices.Contains(strings.Split(strings.ToLower(a.Header.Get("Access-Control-Allow-Headers")), ", "), name) {
				t.Errorf("%s is not allowed", name)
			}
		}
	}
}

func TestOriginsThatAreNotAllowed(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.AllowedOrigins = []string{"https://app.example.com"} })
	a := d.ask(404, "GET", streamsPath+"/a/b", "", "Origin", "https://app.example.com")
	wantHeaders(t, a, "Access-Control-Allow-Origin", "https://app.example.com", "Vary", "Origin")
	a = d.ask(404, "GET", streamsPath+"/a/b", "", "Origin", "https://evil.example.com")
	wantHeaders(t, a, "Access-Control-Allow-Origin", "", "Vary", "Origin")
	a = d.ask(204, "OPTIONS", streamsPath+"/a/b", "", "Origin", "https://evil.example.com", "Access-Control-Request-Method", "PUT")
	wantHeaders(t, a, "Access-Control-Allow-Methods", "", "Allow", "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS")
	none := openDoor(t, func(o *doorOptions) { o.http.AllowedOrigins = nil })
	wantHeaders(t, none.ask(404, "GET", streamsPath+"/a/b", "", "Origin", "https://app.example.com"), "Access-Control-Allow-Origin", "")
}

// A page of another origin cannot change anything, also by a request that browsers send without asking first.
func TestPagesOfOtherOriginsChangeNothing(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.AllowedOrigins = []string{"https://app.example.com"} })
	path := streamsPath + "/a/b"
	for _, headers := range [][]string{
		{"Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site"},
		{"Origin", "https://evil.example.com"},
		{"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
	} {
		d.ask(403, "POST", path, "x", append(headers, "Content-Type", "text/plain")...).wantProblem(t, foreignOrigin)
		d.ask(403, "PUT", path, "", headers...).wantProblem(t, foreignOrigin)
		d.ask(403, "DELETE", path, "", headers...).wantProblem(t, foreignOrigin)
	}
	d.ask(404, "GET", path, "")
	d.ask(200, "POST", path, "x", "Origin", "https://app.example.com", "Sec-Fetch-Site", "cross-site")
	d.ask(200, "POST", path, "x", "Origin", "http://example.com", "Sec-Fetch-Site", "same-origin")
	d.ask(200, "POST", path, "x")
	open := openDoor(t, nil)
	open.ask(200, "POST", path, "x", "Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site")
}

// A listener for this machine only is not to be reached by a name that somebody else has made to stand for it.
func TestHostsOfALocalListener(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.AllowedOrigins = []string{"http://broker.example.com:8080"} })
	for address, local := range map[string]bool{"127.0.0.1:0": true, "0.0.0.0:0": false} {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		server, err := New(d.server.opts.withoutRegisterer())
		if err != nil {
			t.Fatal(err)
		}
		go func() { served <- server.Serve(l) }()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		for host, here := range map[string]bool{
			"127.0.0.1:" + port: true, "localhost:" + port: true, "LOCALHOST": true, "a.localhost": true, "[::1]:8080": true, "[::1]": true, "10.0.0.7": true,
			"broker.example.com:8080": true, "broker.example.com": false, "evil.example.com": false, "evil.example.com:" + port: false, "127.0.0.1.evil.example.com": false,
		} {
			req, err := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:"+port+streamsPath, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host, req.Close = host, true
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			want := 200
			if local && !here {
				want = 403
			}
			if resp.StatusCode != want {
				t.Errorf("listening on %s, host %s: %d, want %d", address, host, resp.StatusCode, want)
			}
		}
		if err := server.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	}
}

func (o Options) withoutRegisterer() Options {
	o.Registerer = nil
	return o
}

func TestConnectionsAreLimited(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.MaxConnections = 2 })
	clients := []*http.Client{d.newClient(), d.newClient(), d.newClient()}
	ask := func(c *http.Client) error {
		resp, err := d.sendWith(t.Context(), c, "GET", streamsPath, http.NoBody)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		return err
	}
	for _, c := range clients[:2] {
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(clients[2]); err == nil {
		t.Error("a third connection was served")
	}
	wantEqual(t, "refused", gather(t, d, "brooklet_http_connections_refused_total") >= 1, true)
	clients[0].CloseIdleConnections()
	for gather(t, d, "brooklet_http_connections") != 1 {
		runtime.Gosched()
	}
	if err := ask(clients[2]); err != nil {
		t.Errorf("after another one ended: %v", err)
	}
}

// What is stored may have been written by anybody, and does not run as a page of this origin.
func TestRawValuesDoNotRunInBrowsers(t *testing.T) {
	d := openDoor(t, nil)
	d.ask(201, "PUT", streamsPath+"/a/b", `{"content_type":"text/html"}`, "Content-Type", mediaJSON)
	d.append("a/b", "<script>alert(1)</script>")
	wantHeaders(t, d.ask(200, "GET", streamsPath+"/a/b?format=raw", ""), "Content-Type", "text/html",
		"Content-Security-Policy", "sandbox; default-src 'none'", "X-Content-Type-Options", "nosniff")
	wantHeaders(t, d.ask(200, "GET", streamsPath+"/a/b", ""), "X-Content-Type-Options", "nosniff")
}

// A range that ends before it begins is empty, and reading goes on where it began.
func TestRangeThatEndsBeforeItBegins(t *testing.T) {
	d := openDoor(t, nil)
	d.ask(200, "POST", streamsPath+"/a/b", `{"records":[{"value":"0"},{"value":"1"},{"value":"2"},{"value":"3"}]}`, "Content-Type", mediaJSON)
	a := d.ask(200, "GET", streamsPath+"/a/b?from=3&to=1", "")
	wantEqual(t, "reply", a.body, `{"records":[],"next_offset":3,"closed":false}`+"\n")
	for _, form := range []string{formNDJSON, formBatches} {
		for _, to := range []string{"1", "3"} {
			a := d.ask(200, "GET", streamsPath+"/a/b?from=3&to="+to+"&format="+form, "")
			wantEqual(t, form, a.body, "")
			wantEqual(t, form, a.Trailer.Get(headerNextOffset), "3")
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	o := Options{MaxBatchBytes: -1, MaxBodyBytes: -1, MaxReadBytes: -1, MaxFollowedStreams: -1, AppendTimeout: -1, IOTimeout: -1, Heartbeat: 61e9, MaxConnections: -1, AllowedOrigins: []string{""}}
	o.EnsureDefaults()
	err := o.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 9 {
		t.Errorf("%v", err)
	}
}
