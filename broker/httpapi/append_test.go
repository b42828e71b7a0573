package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
	"github.com/brookletmq/brooklet/streamstore"
)

func TestAppendRaw(t *testing.T) {
	d := openDoor(t, nil)
	a := d.ask(200, "POST", streamsPath+"/a/b?key=k%C3%A9&timestamp=2025-01-31T12:00:00.5Z&header=x=1&header=x=2%3D3", "va\x00lue")
	wantEqual(t, "answer", a.body, `{"stream":"a/b","first_offset":0,"next_offset":1,"records":1,"duplicate":false}`+"\n")
	wantHeaders(t, a, headerNextOffset, "1", headerStreamID, streamID(d, "a/b"))
	r := d.ask(200, "GET", streamsPath+"/a/b", "").page(t).Records[0]
	wantEqual(t, "record", fmt.Sprint(*r.Key, r.Timestamp, *r.Value, r.Headers), fmt.Sprint("ké", int64(1738324800500), "va\x00lue", [][]any{{"x", "1"}, {"x", "2=3"}}))
	a = d.ask(200, "GET", streamsPath+"/a/b?format=raw", "")
	wantEqual(t, "raw value", a.body, "va\x00lue")
	wantHeaders(t, a, headerRecord, "offset=0&timestamp=1738324800500&key=k%C3%A9&header=x%3D1&header=x%3D2%3D3", "Content-Type", mediaBytes)
	// What a raw read tells of a record appends it again.
	parts, _ := url.ParseQuery(a.Header.Get(headerRecord))
	parts.Del("offset")
	d.ask(200, "POST", streamsPath+"/a/b?"+parts.Encode(), a.body)
	again := d.ask(200, "GET", streamsPath+"/a/b?from=1&format=raw", "")
	wantHeaders(t, again, headerRecord, strings.Replace(a.Header.Get(headerRecord), "offset=0", "offset=1", 1))
	// An empty value is not a null one.
	d.ask(200, "POST", streamsPath+"/a/b", "")
	wantEqual(t, "empty value", *d.ask(200, "GET", streamsPath+"/a/b?from=2", "").page(t).Records[0].Value, "")
	for _, query := range []string{"timestamp=x", "timestamp=-5", "timestamp=1969-01-01T00:00:00Z", "header=x", "kay=1", "key=1&key=2", "close=perhaps", "format=xml", "key=%zz"} {
		d.ask(400, "POST", streamsPath+"/a/b?"+query, "x").wantProblem(t, badRequest)
	}
	d.ask(400, "POST", streamsPath+"/a/b?key=k", "{}", "Content-Type", jsonType).wantProblem(t, badRequest)
}

func TestAppendJSON(t *testing.T) {
	d := openDoor(t, nil)
	body := `{"records":[
		{"key":"k","value":"text \ud83d\ude00 \u2028","headers":[["h","v"],["h",null],["b",{"base64":"/w=="}],[{"base64":"/g=="},"x"]],"timestamp":7},
		{"key_base64":"/w==","value_base64":"","timestamp":"1970-01-01T00:00:01Z"},
		{"value_json":{"a": [1, 2.50, "x"]},"offset":77,"stream":"elsewhere"},
		{"key":null,"value":null}, {}
	]}`
	a := d.ask(200, "POST", streamsPath+"/a/b", body, "Content-Type", "application/json; charset=utf-8")
	wantHeaders(t, a, headerNextOffset, "5")
	got := d.ask(200, "GET", streamsPath+"/a/b?limit=2", "").body
	want := `{"records":[{"offset":0,"timestamp":7,"key":"k","value":"text 😀 \u2028","headers":[["h","v"],["h",null],["b",{"base64":"/w=="}],[{"base64":"/g=="},"x"]]},` +
		`{"offset":1,"timestamp":1000,"key_base64":"/w==","value":""}],"next_offset":2,"closed":false}` + "\n"
	wantEqual(t, "page", got, want)
	rest := d.ask(200, "GET", streamsPath+"/a/b?from=2", "").page(t)
	wantEqual(t, "values", rest.values(), `{"a":[1,2.50,"x"]} null null`)
	if age := time.Now().UnixMilli() - rest.Records[0].Timestamp; age < 0 || age > 60_000 {
		t.Errorf("the record without a timestamp got %d", rest.Records[0].Timestamp)
	}
	r := d.ask(200, "GET", streamsPath+"/a/b?from=2&limit=1&values=json", "").page(t).Records[0]
	wantEqual(t, "JSON value", string(r.ValueJSON), `{"a":[1,2.50,"x"]}`)
	r = d.ask(200, "GET", streamsPath+"/a/b?from=2&limit=1&values=base64", "").page(t).Records[0]
	wantEqual(t, "base64 value", *r.ValueBase64, "eyJhIjpbMSwyLjUwLCJ4Il19")
}

func TestRecordsThatAreRefused(t *testing.T) {
	d := openDoor(t, nil)
	for body, kind := range map[string]*problemKind{
		``:                                                  badRequest,
		`[]`:                                                badRequest,
		`{"records":[{"value":"a"}]} x`:                     badRequest,
		`{"records":[{"val":"a"}]}`:                         badRequest,
		`{"record":[]}`:                                     badRequest,
		`{"records":[{"value":"a\xff"}]}`:                   badRequest,
		"{\"records\":[{\"value\":\"a\xff\"}]}":             badRequest,
		`{"records":[{"value":"\ud800"}]}`:                  badRequest,
		`{"records":[{"value":"\udc00x"}]}`:                 badRequest,
		`{"records":[{"value":"\ud800\ud800"}]}`:            badRequest,
		`{"records":[{"value":5}]}`:                         badRequest,
		`{"records":[{"key_base64":"%"}]}`:                  badRequest,
		`{"records":[{"key_base64":"/x=="}]}`:               badRequest,
		`{"records":[{"timestamp":1.5}]}`:                   badRequest,
		`{"records":[{"timestamp":"yesterday"}]}`:           badRequest,
		`{"records":[{"headers":[["a"]]}]}`:                 badRequest,
		`{"records":[{"headers":[[null,"a"]]}]}`:            badRequest,
		`{"records":[{"headers":{"a":"b"}}]}`:               badRequest,
		`{"records":[{"value":"a","value_base64":"YQ=="}]}`: badRecord,
		`{"records":[{"key":"a","key_base64":"YQ=="}]}`:     badRecord,
		`{"records":[{"value":"a","value_json":null}]}`:     badRecord,
		`{"records":[]}`:                                    badRecord,
		`{}`:                                                badRecord,
	} {
		a, err := d.try("POST", streamsPath+"/a/b", body, "Content-Type", jsonType)
		if err != nil {
			t.Fatal(err)
		}
		if a.StatusCode != 400 {
			t.Errorf("%s: status %d", body, a.StatusCode)
			continue
		}
		a.wantProblem(t, kind)
	}
	members := d.ask(400, "POST", streamsPath+"/a/b", `{"records":[{},{},{"value":"a","value_base64":"YQ=="}]}`, "Content-Type", jsonType).wantProblem(t, badRecord)
	wantEqual(t, "index of the record", members["record"], any(2.0))
	if _, err := d.store.Lookup("a/b"); err == nil {
		t.Error("a refused append has made the stream")
	}
}

// Any record comes back as it was, in every form, and can be appended again from what a reader got.
func TestRecordsComeBackInEveryForm(t *testing.T) {
	d := openDoor(t, nil)
	rng := rand.New(rand.NewPCG(1, 1))
	some := func() []byte {
		switch rng.IntN(4) {
		case 0:
			return nil
		case 1:
			b := make([]byte, rng.IntN(20))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return b
		case 2:
			return []byte(`{"json": [1, null]}`)
		}
		runes := make([]rune, rng.IntN(20))
		for i := range runes {
			runes[i] = rune(rng.IntN(1 << (1 + rng.IntN(20))))
		}
		return []byte(string(runes))
	}
	var records []kafkaproto.Record
	for range 500 {
		r := kafkaproto.Record{Timestamp: rng.Int64N(1 << 45), Key: some(), Value: some()}
		for range rng.IntN(3) {
			r.Headers = append(r.Headers, kafkaproto.Header{Key: string(some()), Value: some()})
		}
		records = append(records, r)
	}
	d.appendTo("from/origin", buildBatch(t, kafkaproto.BatchOptions{Codec: kafkaproto.CodecZstd}, records...))
	want := d.storedRecords("from/origin")
	wantEqual(t, "records", len(want), 500)
	for _, form := range []string{formJSON, formNDJSON, formBatches} {
		for _, values := range []string{"auto", "base64"} {
			got := d.ask(200, "GET", streamsPath+"/from/origin?max_bytes=2000000&format="+form+"&values="+values, "")
			body := got.body
			if form == formJSON {
				var page map[string]json.RawMessage
				if err := json.Unmarshal([]byte(body), &page); err != nil {
					t.Fatal(err)
				}
				body = `{"records":` + string(page["records"]) + `}`
			}
			copied := "copy/" + form + values
			d.ask(200, "POST", streamsPath+"/"+copied+"?format="+form, body)
			for i, r := range d.storedRecords(copied) {
				if r != want[i] {
					t.Fatalf("%s %s: record %d is %s, want %s", form, values, i, r, want[i])
				}
			}
		}
	}
}

// storedRecords returns the records of a stream, each in one comparable text.
func (d *door) storedRecords(name string) []string {
	d.t.Helper()
	id, err := d.store.Lookup(name)
	if err != nil {
		d.t.Fatal(err)
	}
	var all []string
	_, err = d.server.eachRecord(d.t.Context(), id, 0, endless, 1<<20, func(r *kafkaproto.RecordView) verdict {
		text := fmt.Sprintf("%d %d %q %v %q %v", r.Offset, r.Timestamp, r.Key, r.Key == nil, r.Value, r.Value == nil)
		for name, value := range r.Headers() {
			text += fmt.Sprintf(" %q=%q %v", name, value, value == nil)
		}
		all = append(all, text)
		return taken
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return all
}

// Lines are appended as they come: readers have the first before the last is sent.
func TestNDJSONIsAppendedAsItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		events := d.follow(streamsPath + "/a/b?live=sse")
		in, out := io.Pipe()
		answers := make(chan *http.Response, 1)
		go func() {
			resp, err := d.sendWith(t.Context(), d.newClient(), "POST", streamsPath+"/a/b", in, "Content-Type", mediaNDJSON)
			if err != nil {
				t.Error(err)
			}
			answers <- resp
		}()
		for i := range 10 {
			fmt.Fprintf(out, "{\"value\":\"v%d\"}\n\n", i)
			events.wantValues(fmt.Sprint("v", i))
			time.Sleep(10 * time.Second) // less than the I/O timeout, together far more
		}
		out.Close()
		resp := <-answers
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		wantEqual(t, "answer", string(body), `{"stream":"a/b","first_offset":0,"next_offset":10,"records":10,"duplicate":false}`+"\n")
		d.stop()
	})
}

func TestBodyThatDoesNotComeIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		for _, form := range []string{formNDJSON, formJSON, formRaw, formBatches} {
			in, out := io.Pipe()
			began := time.Now()
			resp, err := d.sendWith(t.Context(), d.newClient(), "POST", streamsPath+"/a/b?format="+form, in)
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			body, _ := io.ReadAll(resp.Body)
			a := &answer{resp, string(body)}
			a.wantProblem(t, bodyTimeout)
			if took := time.Since(began); took > time.Minute {
				t.Errorf("%s: after %v", form, took)
			}
			resp.Body.Close()
			out.Close()
		}
		d.stop()
	})
}

func TestNDJSONFailureTellsWhatWasAppended(t *testing.T) {
	d := openDoor(t, nil)
	lines := strings.Repeat(`{"value":"`+strings.Repeat("x", 1000)+"\"}\n", 2000)
	members := d.ask(400, "POST", streamsPath+"/a/b", lines+"{\"valeu\":1}\n", "Content-Type", mediaNDJSON).wantProblem(t, badRecord)
	wantEqual(t, "line", members["line"], any(2001.0))
	head := d.ask(200, "HEAD", streamsPath+"/a/b", "")
	wantEqual(t, "records appended", fmt.Sprint(members["appended_records"]), head.Header.Get(headerNextOffset))
	wantEqual(t, "next offset", members["next_offset"], members["appended_records"])
	// With a condition the lines are one batch: all or none.
	d.ask(400, "POST", streamsPath+"/a/c", "{\"value\":\"x\"}\n{\"valeu\":1}\n", "Content-Type", mediaNDJSON, "If-Match", "0").wantProblem(t, badRecord)
	d.ask(404, "HEAD", streamsPath+"/a/c", "")
	d.ask(413, "POST", streamsPath+"/a/c", lines, "Content-Type", mediaNDJSON, "If-Match", "0").wantProblem(t, tooLarge)
	d.ask(404, "HEAD", streamsPath+"/a/c", "")
}

func TestCompareAndAppend(t *testing.T) {
	d := openDoor(t, nil)
	path := streamsPath + "/a/b"
	a := d.ask(412, "POST", path, "x", "If-Match", `"1"`)
	a.wantProblem(t, preconditionNo)
	wantHeaders(t, a, headerNextOffset, "0")
	d.ask(404, "HEAD", path, "")
	d.ask(404, "POST", path, "x", "If-Match", "*").wantProblem(t, noStream)
	for i, tag := range []string{`"0"`, `1`, `W/"2"`, `"3"`} {
		a := d.ask(200, "POST", path, "x", "If-Match", tag)
		wantHeaders(t, a, headerNextOffset, fmt.Sprint(i+1))
	}
	a = d.ask(412, "POST", path, "x", "If-Match", `"3"`)
	members := a.wantProblem(t, preconditionNo)
	wantEqual(t, "next offset", members["next_offset"], any(4.0))
	wantEqual(t, "expected offset", members["expected_offset"], any(3.0))
	wantHeaders(t, a, headerNextOffset, "4")
	d.ask(200, "POST", path, "x", "If-Match", "*")
	for _, bad := range []string{`"x"`, `"-1"`, `"1","2"`, `""`} {
		d.ask(400, "POST", path, "x", "If-Match", bad).wantProblem(t, badRequest)
	}
	d.ask(400, "POST", path, "x", "If-None-Match", "*").wantProblem(t, badRequest)
	wantEqual(t, "records", d.ask(200, "HEAD", path, "").Header.Get(headerNextOffset), "5")
}

// producer are the headers of an idempotent producer.
func producer(name string, epoch, seq int) []string {
	return []string{headerProducerID, name, headerProducerEpoch, fmt.Sprint(epoch), headerProducerSeq, fmt.Sprint(seq)}
}

func TestIdempotentProducer(t *testing.T) {
	m := newMachine()
	d := m.open(t, nil)
	path := streamsPath + "/a/b"
	post := func(status int, value string, headers ...string) *answer {
		t.Helper()
		return d.ask(status, "POST", path, recordsBody(value, value+"'"), append(headers, "Content-Type", jsonType)...)
	}
	post(200, "a", producer("p", 0, 0)...)
	post(200, "b", producer("p", 0, 1)...)
	first := post(200, "b", producer("p", 0, 1)...)
	wantEqual(t, "repeat", first.body, `{"stream":"a/b","first_offset":2,"next_offset":4,"records":2,"duplicate":true}`+"\n")
	members := post(409, "d", producer("p", 0, 3)...).wantProblem(t, sequenceGap)
	wantEqual(t, "expected", members["expected_seq"], any(2.0))
	// A refused append leaves the producer as it was: the corrected one has the same number.
	d.ask(400, "POST", path, `{"records":[{"valeu":1}]}`, append(producer("p", 0, 2), "Content-Type", jsonType)...)
	d.ask(412, "POST", path, "x", append(producer("p", 0, 2), "If-Match", "77")...)
	d.ask(413, "POST", path, strings.Repeat("x", 2<<20), producer("p", 0, 2)...)
	post(200, "c", producer("p", 0, 2)...)
	// Another producer, and another stream, count by themselves.
	post(200, "q", producer("q", 0, 0)...)
	d.ask(200, "POST", streamsPath+"/a/other", "x", producer("p", 0, 0)...)
	// Data and state are one: after a restart repeats are still repeats.
	d.stop()
	d = m.open(t, nil)
	again := post(200, "b", producer("p", 0, 1)...)
	wantEqual(t, "repeat after restart", again.body, first.body)
	post(200, "c", producer("p", 0, 2)...)
	post(200, "d", producer("p", 0, 3)...)
	// A new life of the producer ends the old one.
	post(409, "e", producer("p", 1, 5)...).wantProblem(t, sequenceGap)
	post(200, "e", producer("p", 1, 0)...)
	members = post(403, "f", producer("p", 0, 4)...).wantProblem(t, epochFenced)
	wantEqual(t, "current epoch", members["current_epoch"], any(1.0))
	wantEqual(t, "values", d.ask(200, "GET", path, "").page(t).values(), "a a' b b' c c' q q' d d' e e'")
	for _, bad := range [][]string{
		{headerProducerID, "p"}, {headerProducerID, "p", headerProducerEpoch, "0"}, {headerProducerSeq, "0"},
		producer("p", -1, 0), producer("p", 0, -1), producer("p", 1<<15, 0), {headerProducerID, "p", headerProducerEpoch, "0", headerProducerSeq, "2147483648"},
		producer(strings.Repeat("p", maxProducerName+1), 0, 0),
	} {
		d.ask(400, "POST", path, "x", bad...).wantProblem(t, badRequest)
	}
	// Long forgotten offsets are a duplicate all the same.
	for seq := 1; seq < 10; seq++ {
		post(200, "g", producer("p", 1, seq)...)
	}
	wantEqual(t, "old repeat", post(200, "g", producer("p", 1, 1)...).body, `{"stream":"a/b","records":2,"duplicate":true}`+"\n")
}

// An idempotent append whose record state was lost with a crash before it was durable can be sent again.
func TestProducerStateSurvivesACrashWithItsRecords(t *testing.T) {
	m := newMachine()
	for seq := range 20 {
		d := m.open(t, nil)
		for range 2 {
			d.ask(200, "POST", streamsPath+"/a/b", fmt.Sprint(seq), producer("p", 0, seq)...)
		}
		if seq > 0 {
			d.ask(200, "POST", streamsPath+"/a/b", fmt.Sprint(seq-1), producer("p", 0, seq-1)...)
		}
		d.stop()
	}
	d := m.open(t, nil)
	wantEqual(t, "values", d.ask(200, "GET", streamsPath+"/a/b", "").page(t).values(), strings.Join(numbered("", 20), " "))
}

func TestBatches(t *testing.T) {
	d := openDoor(t, nil)
	var all []byte
	var want []string
	for i, codec := range []kafkaproto.Codec{kafkaproto.CodecNone, kafkaproto.CodecGzip, kafkaproto.CodecSnappy, kafkaproto.CodecLZ4, kafkaproto.CodecZstd} {
		var records []kafkaproto.Record
		for j := range 3 {
			v := fmt.Sprintf("%d-%d", i, j)
			records = append(records, kafkaproto.Record{Value: []byte(v), Timestamp: 5})
			want = append(want, v)
		}
		all = append(all, buildBatch(t, kafkaproto.BatchOptions{Codec: codec}, records...)...)
	}
	post := func(status int, path string, body []byte, headers ...string) *answer {
		t.Helper()
		return d.ask(status, "POST", streamsPath+path, string(body), append(headers, "Content-Type", mediaBatches)...)
	}
	a := post(200, "/a/b", all, "If-Match", "0")
	wantEqual(t, "answer", a.body, `{"stream":"a/b","first_offset":0,"next_offset":15,"records":15,"duplicate":false}`+"\n")
	wantEqual(t, "values", d.ask(200, "GET", streamsPath+"/a/b", "").page(t).values(), strings.Join(want, " "))
	// What comes out goes in elsewhere, byte by byte but for offsets and the epoch of the leader.
	got := d.ask(200, "GET", streamsPath+"/a/b", "", "Accept", mediaBatches)
	wantHeaders(t, got, "Content-Type", mediaBatches)
	wantEqual(t, "trailer", got.Trailer.Get(headerNextOffset), "15")
	wantEqual(t, "bytes", len(got.body), len(all))
	post(200, "/a/c", []byte(got.body))
	wantEqual(t, "copy", d.ask(200, "GET", streamsPath+"/a/c?format=batches", "").body, got.body)
	// A range is cut to its records.
	part := d.ask(200, "GET", streamsPath+"/a/b?format=batches&from=4&to=8", "")
	post(200, "/a/d", []byte(part.body))
	wantEqual(t, "part", d.ask(200, "GET", streamsPath+"/a/d", "").page(t).values(), strings.Join(want[4:8], " "))
	// Idempotent: one batch.
	one := buildBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Value: []byte("x")}, kafkaproto.Record{Value: []byte("y")})
	for i := range 3 {
		a := post(200, "/a/e", one, producer("p", 0, 0)...)
		wantEqual(t, "duplicate", strings.Contains(a.body, `"duplicate":true`), i > 0)
	}
	post(400, "/a/e", append(bytes.Clone(one), one...), producer("p", 0, 1)...).wantProblem(t, badRecord)

	damaged := bytes.Clone(one)
	damaged[len(damaged)-1] ^= 1
	control := buildBatch(t, kafkaproto.BatchOptions{Control: true}, kafkaproto.Record{Value: []byte("x")})
	transactional := buildBatch(t, kafkaproto.BatchOptions{Transactional: true, Producer: &kafkaproto.ProducerState{ID: 5}}, kafkaproto.Record{Value: []byte("x")})
	huge := bytes.Clone(one)
	huge[8] = 0x7f
	negative := bytes.Clone(one)
	negative[8] = 0xff
	for name, c := range map[string]struct {
		body   []byte
		status int
	}{
		"damaged": {damaged, 400}, "control": {control, 400}, "transactional": {transactional, 400}, "empty": {nil, 400},
		"cut": {one[:len(one)-1], 400}, "cut head": {one[:5], 400}, "too large": {huge, 413}, "negative": {negative, 400},
	} {
		a, err := d.try("POST", streamsPath+"/a/f", string(c.body), "Content-Type", mediaBatches)
		if err != nil || a.StatusCode != c.status {
			t.Errorf("%s: %v %v, want %d", name, a, err, c.status)
		}
	}
	d.ask(404, "HEAD", streamsPath+"/a/f", "")
	a = post(400, "/a/g", append(bytes.Clone(one), damaged...))
	members := a.wantProblem(t, badRecord)
	wantEqual(t, "appended before the failure", fmt.Sprint(members["appended_records"], members["batch"]), "2 1")
}

func TestTopicPartitions(t *testing.T) {
	d := openDoor(t, nil)
	path := streamsPath + "/topics/orders/1"
	for _, name := range []string{"topics/orders/1", "topics/stamped/0", "topics/__internal/0"} {
		if _, err := d.store.Ensure(t.Context(), name, streamstore.DefaultSettings()); err != nil {
			t.Fatal(err)
		}
	}
	d.append("topics/orders/1", "one", "two")
	wantEqual(t, "values", d.ask(200, "GET", path, "").page(t).values(), "one two")
	d.ask(200, "PATCH", path, `{"start_offset":1}`, "Content-Type", jsonType)
	for _, c := range []struct{ method, path, body string }{
		{"DELETE", path, ""}, {"PUT", path, ""}, {"PATCH", path, `{"ttl_ms":5}`}, {"PATCH", path, `{"closed":true}`}, {"POST", path + "?close=true", "x"},
	} {
		var headers []string
		if c.method == "PATCH" {
			headers = []string{"Content-Type", jsonType}
		}
		d.ask(409, c.method, c.path, c.body, headers...).wantProblem(t, topicStream)
	}
	for _, name := range []string{"orders/2", "none/0"} {
		for _, method := range []string{"GET", "POST", "PUT"} {
			d.ask(404, method, streamsPath+"/topics/"+name, "").wantProblem(t, noStream)
		}
	}
	for _, name := range []string{"orders", "orders/x", "orders/01", "orders/0/1", "orders/-1"} {
		d.ask(400, "GET", streamsPath+"/topics/"+name, "").wantProblem(t, badName)
	}
	d.ask(403, "POST", streamsPath+"/topics/__internal/0", "x").wantProblem(t, reservedName)
	d.ask(200, "POST", streamsPath+"/topics/stamped/0?timestamp=5", "x")
	r := d.ask(200, "GET", streamsPath+"/topics/stamped/0", "").page(t).Records[0]
	if age := time.Now().UnixMilli() - r.Timestamp; age < 0 || age > 60_000 {
		t.Errorf("the record has the timestamp %d", r.Timestamp)
	}
	late := time.Now().Add(2 * time.Hour).UnixMilli()
	d.ask(400, "POST", path+"?timestamp="+fmt.Sprint(late), "x").wantProblem(t, badRecord)
}

func TestWithoutAutomaticCreation(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.AutoCreate = false })
	d.ask(404, "POST", streamsPath+"/a/b", "x").wantProblem(t, noStream)
	d.ask(201, "PUT", streamsPath+"/a/b", "")
	d.ask(200, "POST", streamsPath+"/a/b", "x")
}

func TestMediaTypesOfAppends(t *testing.T) {
	d := openDoor(t, nil)
	d.ask(201, "PUT", streamsPath+"/a/png", `{"content_type":"image/png"}`, "Content-Type", jsonType)
	d.ask(200, "POST", streamsPath+"/a/png", "x", "Content-Type", "image/png")
	d.ask(200, "POST", streamsPath+"/a/png", "x", "Content-Type", mediaBytes)
	d.ask(415, "POST", streamsPath+"/a/png", "x", "Content-Type", "image/gif").wantProblem(t, badMediaType)
	d.ask(415, "POST", streamsPath+"/a/png", "x", "Content-Type", "nonsense/").wantProblem(t, badMediaType)
	d.ask(415, "POST", streamsPath+"/a/png", "x", "Content-Encoding", "br").wantProblem(t, badMediaType)
	d.ask(415, "PUT", streamsPath+"/a/x", "{}", "Content-Type", "text/plain").wantProblem(t, badMediaType)
	d.ask(415, "PATCH", streamsPath+"/a/png", "{}", "Content-Type", "text/plain").wantProblem(t, badMediaType)
	d.ask(406, "GET", streamsPath, "", "Accept", "text/html").wantProblem(t, notAcceptable)
	a := d.ask(200, "GET", streamsPath+"/a/png", "", "Accept", "image/png")
	wantHeaders(t, a, "Content-Type", "image/png")
	d.ask(406, "GET", streamsPath+"/a/png", "", "Accept", "image/gif").wantProblem(t, notAcceptable)
	// A stream that holds JSON shows it as JSON.
	d.ask(201, "PUT", streamsPath+"/a/json", `{"content_type":"application/json"}`, "Content-Type", jsonType)
	d.ask(200, "POST", streamsPath+"/a/json?format=raw", `{"a": 1}`, "Content-Type", jsonType)
	wantEqual(t, "value", string(d.ask(200, "GET", streamsPath+"/a/json", "").page(t).Records[0].ValueJSON), `{"a": 1}`)
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestCompression(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.MaxBodyBytes, o.http.MaxBatchBytes = 1<<20, 4<<20 })
	text := strings.Repeat("compressible ", 1000)
	d.ask(200, "POST", streamsPath+"/a/b", gzipped(t, text), "Content-Encoding", "gzip")
	wantEqual(t, "value", d.ask(200, "GET", streamsPath+"/a/b?format=raw", "").body, text)
	a := d.ask(200, "GET", streamsPath+"/a/b?format=raw", "", "Accept-Encoding", "br;q=1, gzip;q=0.5")
	wantHeaders(t, a, "Content-Encoding", "gzip", "Content-Type", mediaBytes)
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	wantEqual(t, "body", string(plain), text)
	wantEqual(t, "error", err, nil)
	wantHeaders(t, d.ask(200, "GET", streamsPath+"/a/b?format=raw", "", "Accept-Encoding", "gzip;q=0, *;q=1"), "Content-Encoding", "")
	// A body that grows beyond the limit when it is expanded is refused, whatever it claims.
	bomb := gzipped(t, strings.Repeat("x", 100<<20))
	for _, form := range []string{formRaw, formJSON} {
		d.ask(413, "POST", streamsPath+"/a/c?format="+form, bomb, "Content-Encoding", "gzip").wantProblem(t, tooLarge)
	}
	d.ask(413, "POST", streamsPath+"/a/c?format=ndjson", bomb, "Content-Encoding", "gzip").wantProblem(t, tooLarge)
	d.ask(400, "POST", streamsPath+"/a/c", "not gzip", "Content-Encoding", "gzip").wantProblem(t, badRequest)
	d.ask(400, "POST", streamsPath+"/a/c", gzipped(t, text)[:50], "Content-Encoding", "gzip").wantProblem(t, badRequest)
	d.ask(404, "HEAD", streamsPath+"/a/c", "")
}

func TestSizeLimits(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.MaxBodyBytes, o.http.MaxBatchBytes = 10_000, 5_000 })
	members := d.ask(413, "POST", streamsPath+"/a/b", strings.Repeat("x", 6_000)).wantProblem(t, tooLarge)
	wantEqual(t, "limit", members["limit"], any(5000.0))
	members = d.ask(413, "POST", streamsPath+"/a/b", strings.Repeat("x", 20_000)).wantProblem(t, tooLarge)
	wantEqual(t, "limit", members["limit"], any(10000.0))
	chunked := io.MultiReader(strings.NewReader(strings.Repeat("x", 20_000)))
	resp, err := d.send("POST", streamsPath+"/a/b", chunked)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	wantEqual(t, "status of a body without a length", resp.StatusCode, 413)
	// Many records that fit one by one.
	lines := strings.Repeat(`{"value":"`+strings.Repeat("x", 900)+"\"}\n", 100)
	d.ask(200, "POST", streamsPath+"/a/b", lines, "Content-Type", mediaNDJSON)
	wantEqual(t, "records", d.ask(200, "HEAD", streamsPath+"/a/b", "").Header.Get(headerEndOffset), "100")
}

// Lines that fit one by one are appended, however they fall into batches.
func TestNDJSONBatchesFit(t *testing.T) {
	d := openDoor(t, func(o *doorOptions) { o.http.MaxBatchBytes = 10_000 })
	rng := rand.New(rand.NewPCG(1, 1))
	var lines strings.Builder
	for range 300 {
		fmt.Fprintf(&lines, "{\"value\":%q}\n", strings.Repeat("x", rng.IntN(9_900)))
	}
	d.ask(200, "POST", streamsPath+"/a/b", lines.String(), "Content-Type", mediaNDJSON)
	wantEqual(t, "records", d.ask(200, "HEAD", streamsPath+"/a/b", "").Header.Get(headerEndOffset), "300")
}

// While the bucket does not answer, appends wait, and fail with what makes clients try again; nothing of them is written.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, func(o *doorOptions) {
			o.store.MaxUnflushedBytes, o.store.FlushBytes, o.store.MaxBatchBytes = 100_000, 50_000, 50_000
			o.http.AppendTimeout = 10 * time.Second
		})
		d.bucket.SetRate(objstore.OpCreate, faulty.Throttle, 1)
		for range 20 {
			a, err := d.try("POST", streamsPath+"/a/b", strings.Repeat("x", 20_000))
			if err != nil {
				t.Fatal(err)
			}
			if a.StatusCode == 200 {
				continue
			}
			a.wantProblem(t, busy)
			wantHeaders(t, a, "Retry-After", retryAfter)
			d.bucket.Heal()
			time.Sleep(time.Minute)
			d.ask(200, "POST", streamsPath+"/a/b", "x")
			d.stop()
			return
		}
		t.Error("no append was refused")
	})
}
