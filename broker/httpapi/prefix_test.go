package httpapi

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// next skips cursors and returns the next event of another kind.
func (e *eventReader) nextRecord(t testing.TB) gotRecord {
	t.Helper()
	for {
		ev, err := e.next()
		if err != nil {
			t.Fatal(err)
		}
		switch ev.name {
		case "":
			return decode[gotRecord](t, ev.data)
		case eventCursor:
		default:
			t.Fatalf("event %+v", ev)
		}
	}
}

func TestPrefixFollowsPresentAndFutureStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("s/a", "a0", "a1")
		d.append("s/b", "b0")
		d.append("t/x", "no")
		all := d.follow(streamsPath + "?prefix=s/&live=sse")
		tail := d.follow(streamsPath + "?prefix=s/&live=sse&from=tail")
		first := tail.want(eventCursor)
		wantEqual(t, "data of the first cursor", first.data, `{"streams":2}`)
		got := map[string][]string{}
		note := func(r gotRecord) {
			if int64(len(got[r.Stream])) != r.Offset {
				t.Fatalf("%+v after %v", r, got[r.Stream])
			}
			got[r.Stream] = append(got[r.Stream], *r.Value)
		}
		for range 3 {
			note(all.nextRecord(t))
		}
		d.append("s/new", "n0")
		d.append("s/a", "a2")
		d.append("t/x", "no")
		d.append("s/new", "n1")
		for range 3 {
			note(all.nextRecord(t))
		}
		want := "map[s/a:[a0 a1 a2] s/b:[b0] s/new:[n0 n1]]"
		wantEqual(t, "records", fmt.Sprint(got), want)
		for range 3 {
			r := tail.nextRecord(t)
			if *r.Value == "a0" || *r.Value == "b0" {
				t.Errorf("%+v was there before", r)
			}
		}
		d.stop()
	})
}

// However often a reader is cut, wherever, it misses no record, and gets twice only what came behind the last cursor that
// it has seen.
func TestPrefixCursorMissesNothing(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testPrefixCursor(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func testPrefixCursor(t *testing.T, rng *rand.Rand) {
	d := openDoor(t, nil)
	fromTail := rng.IntN(2) == 0
	path := streamsPath + "?prefix=s/&live=sse"
	appended := map[string]int{}
	appendSome := func() {
		for range rng.IntN(40) {
			name := fmt.Sprintf("s/%d", rng.IntN(1+rng.IntN(100)))
			n := 1 + rng.IntN(3)
			d.append(name, numbered("v", n)...)
			appended[name] += n
		}
	}
	appendSome()
	begin := map[string]int{}
	if fromTail {
		path += "&from=tail"
		for name, n := range appended {
			begin[name] = n
		}
	}
	// seen is how far the reader has come over all connections, settled what its last cursor stands for.
	seen, settled := maps.Clone(begin), maps.Clone(begin)
	lastID := ""
	const rounds = 12
	for round := range rounds {
		var headers []string
		if lastID != "" {
			headers = []string{"Last-Event-ID", lastID}
		}
		e := d.follow(path, headers...)
		lastID = e.want(eventCursor).id
		at := maps.Clone(settled) // on this connection
		for events := rng.IntN(60); events > 0 || round == rounds-1; events-- {
			if caughtUp(seen, appended) && round == rounds-1 {
				break
			}
			if caughtUp(at, appended) {
				appendSome()
				time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
			}
			if caughtUp(at, appended) {
				break
			}
			ev, err := e.next()
			if err != nil {
				t.Fatal(err)
			}
			if ev.name == eventCursor {
				lastID, settled = ev.id, maps.Clone(at)
				continue
			}
			wantEqual(t, "id of a record", ev.id, "")
			r := decode[gotRecord](t, ev.data)
			if int(r.Offset) != at[r.Stream] {
				t.Fatalf("round %d: %s at %d, want %d", round, r.Stream, r.Offset, at[r.Stream])
			}
			at[r.Stream]++
			seen[r.Stream] = max(seen[r.Stream], at[r.Stream])
		}
		e.close()
		synctest.Wait()
		if round < rounds-2 {
			appendSome()
		}
	}
	if !caughtUp(seen, appended) {
		t.Errorf("seen %v of %v", seen, appended)
	}
	d.stop()
}

func caughtUp(seen, appended map[string]int) bool {
	for name, n := range appended {
		if seen[name] < n {
			return false
		}
	}
	return true
}

// A cursor comes at least every second while there is news, however many streams there are.
func TestPrefixCursorComesEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		for i := range smallCursor + 40 {
			d.append(fmt.Sprintf("s/%d", i), "x")
		}
		e := d.follow(streamsPath + "?prefix=s/&live=sse&from=tail")
		e.want(eventCursor)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 100 {
				d.append(fmt.Sprintf("s/%d", i), "y")
				time.Sleep(100 * time.Millisecond)
			}
		}()
		last, cursors := time.Now(), 0
		for range 100 {
			for {
				ev, err := e.next()
				if err != nil {
					t.Fatal(err)
				}
				if ev.name == "" {
					break
				}
				cursors++
				last = time.Now()
			}
			if since := time.Since(last); since > 1200*time.Millisecond {
				t.Fatalf("no cursor for %v", since)
			}
		}
		if cursors < 8 || cursors > 12 {
			t.Errorf("%d cursors in 10 seconds", cursors)
		}
		<-done
		d.stop()
	})
}

func TestPrefixTooManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, func(o *doorOptions) { o.http.MaxFollowedStreams = 3 })
		for i := range 3 {
			d.append(fmt.Sprintf("s/%d", i), "x")
		}
		e := d.follow(streamsPath + "?prefix=s/&live=sse&from=tail")
		e.want(eventCursor)
		d.append("s/3", "x")
		ev := e.want(eventError)
		wantEqual(t, "code", decode[map[string]any](t, ev.data)["code"].(string), "too-many-streams")
		d.ask(422, "GET", streamsPath+"?prefix=s/&live=sse", "").wantProblem(t, tooManyStreams)
		d.follow(streamsPath + "?prefix=s/1&live=sse")
		d.stop()
	})
}

func TestPrefixTellsWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("s/a", numbered("a", 5)...)
		d.append("s/b", "b0")
		e := d.follow(streamsPath + "?prefix=s/&live=sse&from=tail")
		cursor := e.want(eventCursor)
		d.ask(204, "DELETE", streamsPath+"/s/b", "")
		wantEqual(t, "deleted", e.want(eventDeleted).data, `{"stream":"s/b"}`)
		e.close()
		d.append("s/b", "again")
		d.append("s/a", "a5", "a6")
		d.ask(200, "PATCH", streamsPath+"/s/a", `{"start_offset":6}`, "Content-Type", jsonType)
		e = d.follow(streamsPath+"?prefix=s/&live=sse&from=tail", "Last-Event-ID", cursor.id)
		wantEqual(t, "gap", e.want(eventGap).data, `{"from":5,"stream":"s/a","to":6}`)
		got := map[string]string{}
		for range 2 {
			r := e.nextRecord(t)
			got[r.Stream] = *r.Value
		}
		wantEqual(t, "records", fmt.Sprint(got), "map[s/a:a6 s/b:again]")
		d.stop()
	})
}

func TestCursor(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		c := cursor{}
		for range rng.IntN(20) {
			c[streamstore.StreamID(rng.Uint64()>>rng.IntN(60))] = rng.Int64() >> rng.IntN(60)
		}
		text := c.encode("s/")
		got, err := decodeCursor(text, "s/", 20)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c) {
			t.Fatalf("%v %v, want %v", got, err, c)
		}
		if _, err := decodeCursor(text, "t/", 20); err == nil {
			t.Fatal("a cursor of another prefix was taken")
		}
		damaged := []byte(text)
		at := rng.IntN(len(damaged))
		damaged[at] ^= 1 << rng.IntN(6)
		if _, err := decodeCursor(string(damaged), "s/", 20); err == nil {
			t.Fatalf("a damaged cursor was taken: %s for %s", damaged, text)
		}
	}
	d := openDoor(t, nil)
	for _, text := range []string{"x", "!!", "AAAAAAAAAAAAAAAA"} {
		d.ask(400, "GET", streamsPath+"?prefix=s/&live=sse", "", "Last-Event-ID", text).wantProblem(t, badCursor)
		d.ask(400, "GET", streamsPath+"?prefix=s/&live=sse&cursor="+text, "").wantProblem(t, badCursor)
	}
}

// Size of a cursor: what users must plan their proxies' header limits by.
func TestCursorIsCompact(t *testing.T) {
	c := cursor{}
	for i := range 10_000 {
		c[streamstore.StreamID(1<<40+i)] = 1000
	}
	if n := len(c.encode("s/")); n > 5*10_000 {
		t.Errorf("%d bytes for 10,000 streams", n)
	}
}

func TestBatchesThatCannotBeDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDoor(t, nil)
		d.append("s/a", "before")
		// Well-formed to the store, which does not look into it: compressed records that are none.
		bad := buildBatch(t, kafkaproto.BatchOptions{}, kafkaproto.Record{Value: []byte("x")}, kafkaproto.Record{Value: []byte("y")})
		bad[22] = byte(kafkaproto.CodecGzip)
		bad.SetCRC()
		d.appendTo("s/a", bad)
		d.append("s/a", "behind")
		p := d.ask(200, "GET", streamsPath+"/s/a", "").page(t)
		wantEqual(t, "values", p.values(), "before")
		wantEqual(t, "next", p.NextOffset, 1)
		a := d.ask(500, "GET", streamsPath+"/s/a?from=1", "")
		members := a.wantProblem(t, unreadableBatch)
		wantEqual(t, "where to go on", members["next_offset"], any(float64(3)))
		wantHeaders(t, a, headerNextOffset, "3")
		wantEqual(t, "values", d.ask(200, "GET", streamsPath+"/s/a?from=3", "").page(t).values(), "behind")
		for _, path := range []string{"/s/a?live=sse", "?prefix=s/&live=sse"} {
			e := d.follow(streamsPath + path)
			if path[0] == '?' {
				e.want(eventCursor)
			}
			e.wantValues("before")
			for {
				ev, err := e.next()
				if err != nil {
					t.Fatal(err)
				}
				if ev.name == eventCursor {
					continue
				}
				wantEqual(t, "event", ev.name, eventGap)
				wantEqual(t, "gap", ev.data, `{"from":1,"stream":"s/a","to":3}`)
				break
			}
			wantEqual(t, "value", *e.nextRecord(t).Value, "behind")
		}
		d.stop()
	})
}
