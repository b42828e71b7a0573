package kafkaproto

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// waitForever answers fetches when the connection ends, and everything else at once.
func waitForever(_ context.Context, r *Request) (Reply, error) {
	if r.Key != KeyFetch {
		return now(r), nil
	}
	return func(ctx context.Context) (kmsg.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, nil
}

func fetchOf(partitions int) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = "topic"
	topic.Partitions = make([]kmsg.FetchRequestTopicPartition, partitions)
	req.Topics = append(req.Topics, topic)
	return req
}

// servedAtOnce fails unless a new connection gets small requests answered without any
// waiting.
func (h *harness) servedAtOnce() {
	h.t.Helper()
	begin := time.Now()
	c := h.dial()
	c.request(kmsg.NewPtrApiVersionsRequest(), 0, 1)
	c.expect(1, kmsg.NewPtrApiVersionsResponse(), 0)
	c.request(kmsg.NewPtrMetadataRequest(), 9, 2)
	c.expect(2, kmsg.NewPtrMetadataResponse(), 9)
	c.request(produceRequest(9, 1, 1, make([]byte, 1000)), 9, 3)
	c.expect(3, kmsg.NewPtrProduceResponse(), 9)
	c.Close()
	if d := time.Since(begin); d != 0 {
		h.t.Errorf("small requests took %v", d)
	}
}

// fill takes all of a pool until the returned function is called.
func fill(t *testing.T, p pool) (empty func()) {
	t.Helper()
	var leases []*lease
	for _, b := range []*budget{p.small, p.large} {
		for range 4 {
			l := new(lease)
			mustTake(t, b, l, b.capacity/4)
			leases = append(leases, l)
		}
		l := new(lease)
		mustTake(t, b, l, b.capacity) // the turn
		leases = append(leases, l)
	}
	return func() {
		for _, l := range leases {
			l.release()
		}
	}
}

// A request that waits for long and, behind it, one that looks as if it needed all
// memory to be decoded.
func TestHostileControlFrameBehindAWaitingFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, smallMemory(), waitForever)
		size := h.srv.opts.MaxControlFrameBytes
		var hostile []*client
		for range 10 {
			c := h.dial()
			c.request(fetchOf(30), 11, 1)
			b := binary.BigEndian.AppendUint32(nil, uint32(size))
			b = append(b, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff)
			c.send(append(b, make([]byte, size-10)...))
			hostile = append(hostile, c)
		}
		h.servedAtOnce()
		for _, c := range hostile {
			c.Close()
		}
		synctest.Wait()
		h.servedAtOnce()
		if n := h.srv.mem.decoding.inUse(); n != 0 {
			t.Errorf("%d bytes held for decoding", n)
		}
	})
}

func TestTooManyElements(t *testing.T) {
	wide := fetchOf(10)
	wide.Topics = make([]kmsg.FetchRequestTopic, maxElements)
	names := kmsg.NewPtrMetadataRequest()
	for range maxElements + 1 {
		names.Topics = append(names.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr("")})
	}
	tagged := kmsg.NewPtrMetadataRequest()
	for range 50_000 {
		topic := kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr("")}
		topic.UnknownTags.Set(100, nil)
		tagged.Topics = append(tagged.Topics, topic)
	}
	for name, tc := range map[string]struct {
		req     kmsg.Request
		version int16
		ok      bool
	}{
		"as many as there may be": {fetchOf(maxElements / 4), 11, true},
		"topics and partitions":   {wide, 12, true},
		"names":                   {names, 9, false},
		"unknown tags":            {tagged, 9, false}, // few elements, many bytes
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{}, answerAll)
				c := h.dial()
				c.request(tc.req, tc.version, 1)
				if tc.ok {
					c.expect(1, tc.req.ResponseKind(), tc.version)
					return
				}
				c.expectClosed()
				synctest.Wait()
				h.oneLine("ask for less at a time")
				if h.malformed(malformedShape) != 1 {
					t.Error("not counted")
				}
			})
		})
	}
}

// Frames that are announced and hardly begun cost nothing, and many that are begun do
// not take the room of small ones.
func TestBegunFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, smallMemory(), answerAll)
		begin := func(n int) {
			for range 520 {
				b := binary.BigEndian.AppendUint32(nil, 70_000)
				b = append(b, 0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff)
				h.dial().send(append(b, make([]byte, n)...))
			}
			synctest.Wait()
		}
		begin(0)
		if n := h.srv.mem.requestBytes(); n != 0 {
			t.Errorf("%d bytes charged for 520 frames that have not begun", n)
		}
		h.servedAtOnce()
		begin(9000)
		if n := h.srv.mem.requestBytes(); n == 0 || n > 520*2*9000 {
			t.Errorf("%d bytes charged for 520 frames of which 9000 bytes were sent", n)
		}
		h.servedAtOnce()
	})
}

// Of a request that waits, only what it decoded to is kept, unless that has slices of
// the frame.
func TestWaitingRequestsKeepTheirFrameIfTheyMust(t *testing.T) {
	join := kmsg.NewPtrJoinGroupRequest()
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: make([]byte, 30_000)}}
	for _, tc := range []struct {
		req       kmsg.Request
		version   int16
		keepFrame bool
	}{{fetchOf(2000), 11, false}, {join, 5, true}} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
				return func(ctx context.Context) (kmsg.Response, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}, nil
			})
			c := h.dial()
			frame := frameOf(tc.req, tc.version, 1)
			c.send(frame)
			synctest.Wait()
			want := measure(tc.req).bytes + int64(len("tester"))
			if tc.keepFrame {
				want += int64(len(frame) - 4)
			}
			if n := h.srv.mem.decoded.inUse(); n != want {
				t.Errorf("%d bytes charged while it waits, want %d", n, want)
			}
			if n := h.srv.mem.frames.inUse(); n != 0 {
				t.Errorf("%d bytes of frames charged while it waits", n)
			}
		})
	}
}

// fillFields gives every field a value, and every array an element.
func fillFields(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillFields(v.Index(0))
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "Version" && v.Field(i).CanSet() && v.Type().Field(i).Name != "UnknownTags" {
				fillFields(v.Field(i))
			}
		}
	}
}

// A request that is said not to use its frame must survive what happens to the frame.
func TestRequestsThatDoNotUseTheirFrame(t *testing.T) {
	aliasing := map[int16]bool{}
	eachServed(func(key, version int16) {
		req := newRequest(key, version)
		fillFields(reflect.ValueOf(req).Elem())
		frame := frameOf(req, version, 1)[4:]
		decoded, err := decodeAll(frame)
		if err != nil {
			t.Fatalf("%s v%d: %v", kmsg.NameForKey(key), version, err)
		}
		if measure(decoded).aliases {
			aliasing[key] = true
			return
		}
		before := decoded.AppendTo(nil)
		for i := range frame {
			frame[i] = 0xa5
		}
		if !bytes.Equal(before, decoded.AppendTo(nil)) {
			t.Errorf("%s v%d changes with its frame", kmsg.NameForKey(key), version)
		}
	})
	for _, key := range []int16{KeyProduce, KeyJoinGroup, KeySyncGroup} {
		if !aliasing[key] {
			t.Errorf("%s does not use its frame", kmsg.NameForKey(key))
		}
		delete(aliasing, key)
	}
	if len(aliasing) != 0 {
		t.Errorf("keys %v use their frames", aliasing)
	}
	tagged := kmsg.NewPtrMetadataRequest()
	tagged.UnknownTags.Set(7, []byte("x"))
	if !measure(tagged).aliases {
		t.Error("an unknown tag is a slice of the frame")
	}
}

// Pipelines of all kinds of requests work and are answered in order, whatever the
// number of requests that are started at the same time.
func TestMixedPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started []int32
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			started = append(started, r.CorrelationID)
			return func(context.Context) (kmsg.Response, error) {
				time.Sleep(time.Second)
				return r.Response(), nil
			}, nil
		})
		c := h.dial()
		pipeline := []struct {
			req     kmsg.Request
			version int16
		}{
			{kmsg.NewPtrMetadataRequest(), 9},
			{fetchOf(1), 11},
			{kmsg.NewPtrListOffsetsRequest(), 5},
			{fetchOf(40_000), 11}, // waits to be alone
			{produceRequest(9, 1, 1, nil), 9},
			{kmsg.NewPtrHeartbeatRequest(), 3},
			{kmsg.NewPtrOffsetCommitRequest(), 7},
			{kmsg.NewPtrMetadataRequest(), 0},
			{produceRequest(3, 1, 1, nil), 3},
		}
		var frames []byte
		for i, p := range pipeline {
			frames = append(frames, frameOf(p.req, p.version, int32(i))...)
		}
		var sending sync.WaitGroup
		defer sending.Wait()
		sending.Go(func() {
			if _, err := c.Write(frames); err != nil {
				t.Error(err)
			}
		})
		for i, p := range pipeline {
			c.expect(int32(i), p.req.ResponseKind(), p.version)
		}
		for i, id := range started {
			if int(id) != i {
				t.Fatalf("started in the order %v", started)
			}
		}
	})
}

func TestControlRequestsInFlightAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		h := start(t, Options{}, func(ctx context.Context, r *Request) (Reply, error) {
			started++
			return waitForever(ctx, r)
		})
		c := h.dial()
		for range 4 {
			c.request(produceRequest(9, 1, 1, nil), 9, 1)
			c.expect(1, kmsg.NewPtrProduceResponse(), 9)
		}
		started = 0
		go func() {
			for range 20 {
				_, _ = c.Write(frameOf(fetchOf(1), 11, 1))
			}
		}()
		synctest.Wait()
		if started != maxControlInFlight {
			t.Errorf("%d started, want %d", started, maxControlInFlight)
		}
		// Produce is what a connection may have many of.
		p := h.dial()
		p.request(fetchOf(1), 11, 1)
		for range 30 {
			p.request(produceRequest(9, 1, 1, nil), 9, 1)
		}
		synctest.Wait()
		if started != maxControlInFlight+31 {
			t.Errorf("%d of 30 Produce requests started behind a fetch", started-maxControlInFlight-1)
		}
	})
}

// One whose requests wait, so that it is not read, must be seen to leave.
func TestCloseIsNoticedWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{MaxInFlight: 2}, waitForever)
		c := h.dial()
		for range 3 {
			c.request(fetchOf(1), 11, 1)
		}
		synctest.Wait()
		c.Close()
		synctest.Wait()
		if n := h.closedFor(closedByClient); n != 1 {
			t.Errorf("%d connections closed", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, waitForever)
		c := h.dial()
		for range maxControlInFlight + 1 {
			c.request(fetchOf(1), 11, 1)
		}
		synctest.Wait()
		c.Close()
		synctest.Wait()
		if n := h.closedFor(closedByClient); n != 1 {
			t.Errorf("%d connections closed", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		defer fill(t, h.srv.mem.decoded)()
		c := h.dial()
		c.request(fetchOf(1000), 11, 1)
		synctest.Wait()
		c.Close()
		synctest.Wait()
		if n := h.closedFor(closedByClient); n != 1 {
			t.Errorf("%d connections closed", n)
		}
	})
}

func TestWaitForMemory(t *testing.T) {
	large := frameOf(produceRequest(9, 1, 1, make([]byte, 1<<20)), 9, 1)
	for name, tc := range map[string]struct {
		pool         func(m *memory) pool
		frame        []byte
		resp         kmsg.Response
		othersServed bool // nobody holds memory to decode for long, so nothing is kept free
	}{
		"of frames":   {func(m *memory) pool { return m.frames }, large, kmsg.NewPtrProduceResponse(), true},
		"to decode":   {func(m *memory) pool { return m.decoding }, frameOf(fetchOf(1000), 9, 1), kmsg.NewPtrFetchResponse(), false},
		"for decoded": {func(m *memory) pool { return m.decoded }, frameOf(fetchOf(1000), 9, 1), kmsg.NewPtrFetchResponse(), true},
	} {
		t.Run(name+", in vain", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{}, answerAll)
				defer fill(t, tc.pool(h.srv.mem))()
				c := h.dial()
				go c.Write(tc.frame)
				begin := time.Now()
				c.expectClosed()
				if d := time.Since(begin); d != memoryTimeout {
					t.Errorf("closed after %v", d)
				}
				synctest.Wait()
				h.oneLine("raise the limit on request memory", "reason=request_memory")
				if h.closedFor(closedMemory) != 1 {
					t.Error("not counted")
				}
			})
		})
		t.Run(name+", with success", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// What the server waits for is not held against the client.
				h := start(t, Options{FrameTimeout: 5 * time.Second}, answerAll)
				empty := fill(t, tc.pool(h.srv.mem))
				defer empty()
				c := h.dial()
				go c.Write(tc.frame)
				time.Sleep(memoryTimeout - time.Second)
				if tc.othersServed {
					h.servedAtOnce()
				}
				empty()
				c.expect(1, tc.resp, 9)
			})
		})
	}
}

// bulky is a handler that makes large responses to Metadata at once, as most handlers
// do, and counts them.
type bulky struct {
	size int
	mu   sync.Mutex
	made int
}

func (b *bulky) handle(_ context.Context, r *Request) (Reply, error) {
	resp := r.Response()
	if m, ok := resp.(*kmsg.MetadataResponse); ok {
		m.ClusterID = kmsg.StringPtr(strings.Repeat("x", 30_000))
		for range b.size / 30_000 {
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic = m.ClusterID
			m.Topics = append(m.Topics, topic)
		}
		b.mu.Lock()
		b.made++
		b.mu.Unlock()
	}
	return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
}

// Connections that ask for a lot and do not read.
func TestUnreadResponsesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections = 50
		handler := &bulky{size: 1 << 20}
		h := start(t, smallMemory(), handler.handle)
		learn := h.dial()
		learn.request(kmsg.NewPtrMetadataRequest(), 2, 1)
		learn.expect(1, kmsg.NewPtrMetadataResponse(), 2)
		synctest.Wait()
		handler.made = 0
		for range connections {
			c := h.dial()
			c.send(bytes.Repeat(frameOf(kmsg.NewPtrMetadataRequest(), 2, 1), 64))
		}
		synctest.Wait()
		if handler.made > connections {
			t.Errorf("%d responses made for %d connections that do not read", handler.made, connections)
		}
		pool := h.srv.mem.responses.large
		if held, most := h.srv.mem.responseBytes(), pool.capacity+responseFactor<<21; held < 1<<20 || held > most {
			t.Errorf("%d bytes of responses are charged, at most %d may be", held, most)
		}
		// Those with small responses are not concerned.
		c := h.dial()
		c.request(kmsg.NewPtrApiVersionsRequest(), 0, 1)
		c.expect(1, kmsg.NewPtrApiVersionsResponse(), 0)
		c.request(produceRequest(9, 1, 1, nil), 9, 2)
		c.expect(2, kmsg.NewPtrProduceResponse(), 9)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := h.closedFor(closedWrite) + h.closedFor(closedMemory); n != connections {
			t.Errorf("%d connections cut", n)
		}
		if n := h.srv.mem.responseBytes(); n != 0 {
			t.Errorf("%d bytes of responses still charged", n)
		}
	})
}

// A response that turns out larger than expected waits for the rest on the writer.
func TestResponseThatFindsNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := &bulky{size: 1 << 20}
		h := start(t, Options{}, handler.handle)
		empty := fill(t, h.srv.mem.responses)
		defer empty()
		c := h.dial()
		c.request(kmsg.NewPtrMetadataRequest(), 2, 1)
		begin := time.Now()
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Error(n, err)
		}
		if d := time.Since(begin); d != memoryTimeout {
			t.Errorf("cut after %v", d)
		}
		synctest.Wait()
		h.oneLine("a response of ", "reason=request_memory")
	})
}

// Fetches with records hold memory of their own, which is not counted twice.
func TestResponsesWithMemoryOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			resp := ownResponse{kmsg.NewPtrFetchResponse()}
			topic, part := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
			part.RecordBatches = make([]byte, 1<<20)
			topic.Partitions = append(topic.Partitions, part)
			resp.Topics = append(resp.Topics, topic)
			return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
		})
		defer fill(t, h.srv.mem.responses)()
		c := h.dial()
		c.request(fetchOf(1), 11, 1)
		c.expect(1, kmsg.NewPtrFetchResponse(), 11)
	})
}

type ownResponse struct{ *kmsg.FetchResponse }

func (ownResponse) Release() {}

func TestExpectation(t *testing.T) {
	var e expectation
	e.learn(0, 1000)
	e.learn(10, 80_000)
	if e.of(0) != 1000 || e.of(2) != 2000 {
		t.Error(e.of(0), e.of(2))
	}
	for range 100 {
		e.learn(0, 100)
		e.learn(1, 80)
	}
	if e.of(0) > 110 || e.of(1) > 100 {
		t.Error("never forgets", e.of(0), e.of(1))
	}
}

func TestLargeBuffersDoNotStayWithSmallResponses(t *testing.T) {
	large := make([]byte, 100, 1<<20)
	fitting := fetchBuffers.fit(&large)
	if len(*fitting) != 100 || cap(*fitting) > smallBuffer {
		t.Errorf("a buffer of %d for %d bytes", cap(*fitting), len(*fitting))
	}
	full := make([]byte, 1<<20)
	if same := fetchBuffers.fit(&full); same != &full {
		t.Error("copied without need")
	}
}

// A large response must not be made, and held, while an earlier request of the same
// connection waits for news.
func TestLargeResponsesAreNotMadeEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := &bulky{size: 1 << 20}
		h := start(t, Options{}, func(ctx context.Context, r *Request) (Reply, error) {
			if r.Key == KeyFetch {
				return func(context.Context) (kmsg.Response, error) {
					time.Sleep(time.Minute)
					return r.Response(), nil
				}, nil
			}
			return handler.handle(ctx, r)
		})
		c := h.dial()
		c.request(kmsg.NewPtrMetadataRequest(), 2, 1)
		c.expect(1, kmsg.NewPtrMetadataResponse(), 2)
		c.request(fetchOf(1), 11, 2)
		c.request(kmsg.NewPtrMetadataRequest(), 2, 3)
		synctest.Wait()
		if handler.made != 1 || h.srv.mem.responseBytes() != 0 {
			t.Errorf("%d responses made, %d bytes charged", handler.made, h.srv.mem.responseBytes())
		}
		c.expect(2, kmsg.NewPtrFetchResponse(), 11)
		c.expect(3, kmsg.NewPtrMetadataResponse(), 2)
	})
}

// There must be room for a response that is likely to be large before it is made.
func TestLargeResponsesWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := &bulky{size: 1 << 20}
		h := start(t, Options{}, handler.handle)
		c := h.dial()
		c.request(kmsg.NewPtrMetadataRequest(), 2, 1)
		c.expect(1, kmsg.NewPtrMetadataResponse(), 2)
		synctest.Wait()
		empty := fill(t, h.srv.mem.responses)
		defer empty()
		c.request(kmsg.NewPtrMetadataRequest(), 2, 2)
		synctest.Wait()
		if handler.made != 1 {
			t.Error("made without room")
		}
		empty()
		c.expect(2, kmsg.NewPtrMetadataResponse(), 2)
	})
}

// While a response is written, at a peer's leisure, its request is not kept.
func TestRequestsAreNotKeptWhileTheirResponseIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		c := h.dial()
		c.request(fetchOf(2000), 11, 1)
		synctest.Wait()
		if n := h.srv.mem.requestBytes(); n != 0 {
			t.Errorf("%d bytes charged", n)
		}
		c.expect(1, kmsg.NewPtrFetchResponse(), 11)
	})
}
