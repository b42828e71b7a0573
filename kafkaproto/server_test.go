package kafkaproto

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

type handlerFunc func(ctx context.Context, r *Request) (Reply, error)

func (f handlerFunc) Handle(ctx context.Context, r *Request) (Reply, error) { return f(ctx, r) }

// now answers at once with an empty response.
func now(r *Request) Reply {
	return func(context.Context) (kmsg.Response, error) { return r.Response(), nil }
}

func answerAll(_ context.Context, r *Request) (Reply, error) { return now(r), nil }

func allVersions(t testing.TB) *Versions {
	t.Helper()
	var keys []int16
	for _, r := range served {
		keys = append(keys, r.key)
	}
	v, err := NewVersions(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// smallMemory are options with the least request memory and the largest frames that go
// with it.
func smallMemory() Options {
	frame, control := FrameLimits(minMaxRequestMemory)
	return Options{MaxRequestMemory: minMaxRequestMemory, MaxFrameBytes: int(frame), MaxControlFrameBytes: int(control)}
}

// harness is a server and the things a test looks at.
type harness struct {
	t    testing.TB
	srv  *Server
	logs *observer.ObservedLogs
	lis  *pipeListener
	done chan error
}

// pipeListener hands out in-memory connections, whose deadlines follow the fake clock
// of a synctest bubble.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// start runs a server. It is shut down when the test ends.
func start(t testing.TB, opts Options, h handlerFunc) *harness {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	opts.Logger = zap.New(core)
	if opts.Versions == nil {
		opts.Versions = allVersions(t)
	}
	srv, err := NewServer(opts, h)
	if err != nil {
		t.Fatal(err)
	}
	hs := &harness{
		t: t, srv: srv, logs: logs,
		lis:  &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})},
		done: make(chan error, 1),
	}
	go func() { hs.done <- srv.Serve(hs.lis) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = srv.Shutdown(ctx)
		if err := <-hs.done; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
		srv.conns.Wait()
		if n := srv.mem.requestBytes() + srv.mem.responseBytes() + srv.mem.decoding.inUse(); n != 0 {
			t.Errorf("%d bytes of request memory were not given back", n)
		}
	})
	return hs
}

// dial opens a connection.
func (h *harness) dial() *client {
	h.t.Helper()
	mine, theirs := net.Pipe()
	h.lis.conns <- theirs
	h.t.Cleanup(func() { _ = mine.Close() })
	return &client{t: h.t, Conn: mine}
}

// lines returns the messages logged at Info and above.
func (h *harness) lines() []observer.LoggedEntry {
	return h.logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zapcore.InfoLevel }).All()
}

// oneLine fails unless exactly one line was logged, and it contains all of want.
func (h *harness) oneLine(want ...string) {
	h.t.Helper()
	lines := h.lines()
	if len(lines) != 1 {
		h.t.Fatalf("%d log lines, want one: %v", len(lines), lines)
	}
	text := lines[0].Message
	for k, v := range lines[0].ContextMap() {
		if s, ok := v.(string); ok {
			text += " " + k + "=" + s
		}
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			h.t.Errorf("log line %q lacks %q", text, w)
		}
	}
}

func (h *harness) closedFor(r closeReason) int {
	return int(testutil.ToFloat64(h.srv.metrics.closed[r]))
}

func (h *harness) malformed(k malformedKind) int {
	return int(testutil.ToFloat64(h.srv.metrics.malformed[k]))
}

// client is the other end of a connection.
type client struct {
	t testing.TB
	net.Conn
}

func frameOf(req kmsg.Request, version int16, id int32) []byte {
	req.SetVersion(version)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("tester")).AppendRequest(nil, req, id)
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) request(req kmsg.Request, version int16, id int32) {
	c.t.Helper()
	c.send(frameOf(req, version, id))
}

// receive reads one response frame.
func (c *client) receive() (id int32, body []byte) {
	c.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		c.t.Fatalf("reading a response: %v", err)
	}
	body = make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, body); err != nil {
		c.t.Fatal(err)
	}
	return int32(binary.BigEndian.Uint32(body)), body[4:]
}

// expect reads the response to request id into resp.
func (c *client) expect(id int32, resp kmsg.Response, version int16) {
	c.t.Helper()
	got, body := c.receive()
	if got != id {
		c.t.Fatalf("response to request %d, want %d", got, id)
	}
	resp.SetVersion(version)
	if resp.IsFlexible() && resp.Key() != KeyApiVersions {
		if body[0] != 0 {
			c.t.Fatalf("response header has tags")
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatal(err)
	}
}

// expectClosed fails if the server sends anything but the end of the connection.
func (c *client) expectClosed() {
	c.t.Helper()
	var b [1]byte
	if n, err := c.Read(b[:]); n != 0 || (!errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed)) {
		c.t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
}

func TestAnswersAreInRequestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started []int32
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			started = append(started, r.CorrelationID)
			wait := time.Duration(0)
			if r.Key == KeyFetch {
				wait = 5 * time.Second
			}
			return func(context.Context) (kmsg.Response, error) {
				time.Sleep(wait)
				return r.Response(), nil
			}, nil
		})
		c := h.dial()
		begin := time.Now()
		c.request(kmsg.NewPtrFetchRequest(), 11, 1)
		c.request(kmsg.NewPtrMetadataRequest(), 9, 2)
		c.request(kmsg.NewPtrFetchRequest(), 16, 3)
		c.request(kmsg.NewPtrProduceRequest(), 9, 4)
		synctest.Wait()
		if len(started) != 4 {
			t.Fatalf("%d requests started while the first one waits", len(started))
		}
		c.expect(1, kmsg.NewPtrFetchResponse(), 11)
		if d := time.Since(begin); d != 5*time.Second {
			t.Errorf("first answer after %v", d)
		}
		c.expect(2, kmsg.NewPtrMetadataResponse(), 9)
		c.expect(3, kmsg.NewPtrFetchResponse(), 16)
		c.expect(4, kmsg.NewPtrProduceResponse(), 9)
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("last answer after %v", d)
		}
	})
}

func TestAcksZeroHasNoAnswerAndKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			if p, ok := r.Body.(*kmsg.ProduceRequest); ok && p.Acks == 0 {
				return nil, nil
			}
			return now(r), nil
		})
		c := h.dial()
		silent, loud := kmsg.NewPtrProduceRequest(), kmsg.NewPtrProduceRequest()
		loud.Acks = -1
		for id := range int32(50) {
			c.request(silent, 9, 1000+id)
			c.request(loud, 9, id)
			c.request(silent, 3, 2000+id)
			c.expect(id, kmsg.NewPtrProduceResponse(), 9)
		}
	})
}

func TestTooNewApiVersionsIsAnsweredAndTheConnectionLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		c := h.dial()
		_, high, _ := h.srv.opts.Versions.Range(KeyApiVersions)
		for id, version := range []int16{high + 1, 99, 32767, -1} {
			// The body of a version from the future is arbitrary.
			b := []byte{0, 0, 0, 0, 0, 18, byte(uint16(version) >> 8), byte(version), 0, 0, 0, byte(id), 0, 3, 'a', 'b', 'c', 0xff, 0xfe, 0xfd}
			binary.BigEndian.PutUint32(b, uint32(len(b)-4))
			c.send(b)
			resp := kmsg.NewPtrApiVersionsResponse()
			c.expect(int32(id), resp, 0)
			if resp.ErrorCode != ErrUnsupportedVersion.Code {
				t.Errorf("v%d: error %d", version, resp.ErrorCode)
			}
			if len(resp.ApiKeys) != 1 || resp.ApiKeys[0].ApiKey != 18 || resp.ApiKeys[0].MaxVersion != high || resp.ApiKeys[0].MinVersion != 0 {
				t.Errorf("v%d: %v", version, resp.ApiKeys)
			}
		}
		c.request(kmsg.NewPtrMetadataRequest(), 12, 77)
		c.expect(77, kmsg.NewPtrMetadataResponse(), 12)
		if len(h.lines()) != 0 {
			t.Error(h.lines())
		}
	})
}

func TestApiVersionsResponseHeaderHasNoTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			resp := r.Response().(*kmsg.ApiVersionsResponse)
			resp.ApiKeys = allVersions(t).ApiKeys(r.Version)
			return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
		})
		c := h.dial()
		for v := int16(0); v <= 5; v++ {
			c.request(kmsg.NewPtrApiVersionsRequest(), v, int32(v))
			resp := kmsg.NewPtrApiVersionsResponse()
			c.expect(int32(v), resp, v)
			if len(resp.ApiKeys) != len(served) || resp.ErrorCode != 0 {
				t.Errorf("v%d: %+v", v, resp)
			}
		}
	})
}

func TestClientSoftwareIsKnownToLaterRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var infos []*ConnInfo
		var clients []string
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			infos, clients = append(infos, r.Conn), append(clients, r.ClientID)
			return now(r), nil
		})
		c := h.dial()
		hello := kmsg.NewPtrApiVersionsRequest()
		hello.ClientSoftwareName, hello.ClientSoftwareVersion = "apache-kafka-java", "4.1.0"
		c.request(kmsg.NewPtrMetadataRequest(), 0, 1)
		c.expect(1, kmsg.NewPtrMetadataResponse(), 0)
		c.request(hello, 3, 2)
		c.expect(2, kmsg.NewPtrApiVersionsResponse(), 3)
		c.request(kmsg.NewPtrMetadataRequest(), 0, 3)
		c.expect(3, kmsg.NewPtrMetadataResponse(), 0)
		hello.ClientSoftwareName = "bad name\n"
		c.request(hello, 3, 4)
		c.expect(4, kmsg.NewPtrApiVersionsResponse(), 3)
		if infos[0].ClientSoftwareName != "" || infos[1].ClientSoftwareName != "apache-kafka-java" ||
			infos[2].ClientSoftwareVersion != "4.1.0" || infos[3].ClientSoftwareName != "" {
			t.Error("client software not taken from ApiVersions")
		}
		if infos[0].ID != infos[3].ID || infos[0].ID == 0 || clients[0] != "tester" {
			t.Error(infos[0].ID, infos[3].ID, clients)
		}
	})
}

func TestUnsupportedRequestsCloseWithOneLine(t *testing.T) {
	for _, tc := range []struct {
		name         string
		key, version int16
		kind         malformedKind
		want         []string
	}{
		{"unknown key", 999, 0, malformedKey, []string{"API key 999"}},
		{"negative key", -5, 0, malformedKey, []string{"API key -5"}},
		{"key not registered", 4, 0, malformedKey, []string{"API key 4"}},
		{"version too old", KeyFetch, 3, malformedVersion, []string{"version 3", "API key 1", "4 to 18"}},
		{"version too new", KeyMetadata, 14, malformedVersion, []string{"version 14", "0 to 13"}},
		{"Produce v0, advertised and not served", KeyProduce, 0, malformedVersion, []string{"version 0"}},
		{"ListOffsets v0", KeyListOffsets, 0, malformedVersion, []string{"version 0", "1 to 11"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{}, answerAll)
				c := h.dial()
				c.request(kmsg.NewPtrApiVersionsRequest(), 0, 1)
				c.expect(1, kmsg.NewPtrApiVersionsResponse(), 0)
				b := []byte{0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff}
				binary.BigEndian.PutUint16(b[4:], uint16(tc.key))
				binary.BigEndian.PutUint16(b[6:], uint16(tc.version))
				go c.Write(b) // it is not read to its end
				c.expectClosed()
				synctest.Wait()
				h.oneLine(append(tc.want, "client_id=\"tester\"")...)
				if h.closedFor(closedUnsupported) != 1 || h.malformed(tc.kind) != 1 {
					t.Error("not counted")
				}
			})
		})
	}
}

func TestForeignProtocolsAreNamed(t *testing.T) {
	for _, tc := range []struct{ name, bytes, want string }{
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "looks like an HTTP request"},
		{"HTTP POST", "POST /topics HTTP/1.1\r\n", "looks like an HTTP request"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "looks like HTTP/2"},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "looks like a TLS ClientHello: this listener is plaintext"},
		{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", "looks like an SSH client"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{MaxFrameBytes: maxMaxFrameBytes}, answerAll)
				c := h.dial()
				go c.Write([]byte(tc.bytes))
				c.expectClosed()
				synctest.Wait()
				h.oneLine(tc.want)
				if h.malformed(malformedForeign) != 1 || h.closedFor(closedMalformed) != 1 {
					t.Error("not counted")
				}
			})
		})
	}
}

func TestImpossibleSizes(t *testing.T) {
	for _, size := range []uint32{0, 9, 100<<20 + 1, 2 << 30, 1<<31 - 1, 1<<32 - 1} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, Options{}, answerAll)
			c := h.dial()
			go c.Write(binary.BigEndian.AppendUint32(nil, size))
			c.expectClosed()
			synctest.Wait()
			h.oneLine("request of ", "bytes")
			if h.malformed(malformedSize) != 1 {
				t.Error("not counted")
			}
		})
	}
}

func TestOnlyProduceMayBeLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		c := h.dial()
		b := binary.BigEndian.AppendUint32(nil, 4<<20+1)
		go c.Write(append(b, 0, 3, 0, 9, 0, 0, 0, 0))
		c.expectClosed()
		synctest.Wait()
		h.oneLine("such requests have at most 4194304")
	})
}

func TestSilentClientIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{FirstByteTimeout: 7 * time.Second}, answerAll)
		begin := time.Now()
		c := h.dial()
		c.expectClosed()
		if d := time.Since(begin); d != 7*time.Second {
			t.Errorf("after %v", d)
		}
		synctest.Wait()
		h.oneLine("sent nothing")
		if h.closedFor(closedFirstByte) != 1 {
			t.Error("not counted")
		}
	})
}

func TestIdleClientIsCutButNotWhileAnAnswerIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{IdleTimeout: time.Minute}, func(_ context.Context, r *Request) (Reply, error) {
			return func(context.Context) (kmsg.Response, error) {
				time.Sleep(150 * time.Second)
				return r.Response(), nil
			}, nil
		})
		c := h.dial()
		begin := time.Now()
		c.request(kmsg.NewPtrFetchRequest(), 4, 1)
		c.expect(1, kmsg.NewPtrFetchResponse(), 4)
		c.expectClosed()
		if d := time.Since(begin); d != 210*time.Second {
			t.Errorf("closed after %v, want a minute after the answer", d)
		}
		synctest.Wait()
		if h.closedFor(closedIdle) != 1 || len(h.lines()) != 0 {
			t.Error("an idle client is no event", h.lines())
		}
	})
}

func TestHalfFrames(t *testing.T) {
	whole := frameOf(kmsg.NewPtrMetadataRequest(), 9, 1)
	for _, cut := range []int{1, 3, 4, 7, 8, 13, len(whole) - 1} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, Options{FrameTimeout: 5 * time.Second}, answerAll)
			stuck, gone := h.dial(), h.dial()
			stuck.send(whole[:cut])
			gone.send(whole[:cut])
			gone.Close()
			begin := time.Now()
			stuck.expectClosed()
			if d := time.Since(begin); d != 5*time.Second {
				t.Errorf("cut at %d: closed after %v", cut, d)
			}
			synctest.Wait()
			if h.closedFor(closedFrame) != 1 || h.closedFor(closedByClient) != 1 || h.malformed(malformedCut) != 1 {
				t.Errorf("cut at %d: not counted", cut)
			}
		})
	}
}

// A frame that arrives in bits is fine as long as it moves, above the least rate for as
// long as it takes, and below it for a while.
func TestSlowFrames(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  int
		every time.Duration // for readStepBytes
		ok    bool
	}{
		{"above the least rate", 8 << 20, 250 * time.Millisecond, true},
		{"below it, small", 256 << 10, 1 * time.Second, true},
		{"below it, large", 8 << 20, 1 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{FrameTimeout: 5 * time.Second}, answerAll)
				c := h.dial()
				b := frameOf(produceRequest(9, 1, 1, make([]byte, tc.size)), 9, 1)
				begin := time.Now()
				for len(b) > 0 {
					time.Sleep(tc.every)
					n, err := c.Write(b[:min(len(b), readStepBytes)])
					if err != nil {
						break
					}
					b = b[n:]
				}
				if tc.ok {
					c.expect(1, kmsg.NewPtrProduceResponse(), 9)
					return
				}
				// It was given FrameTimeout and what it had sent by then was worth.
				if d := time.Since(begin); d < 5*time.Second || d > 8*time.Second {
					t.Errorf("cut after %v", d)
				}
				synctest.Wait()
				h.oneLine("did not arrive")
			})
		})
	}
}

// What was sent fast is no credit for a stall later on.
func TestStallInALargeFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{FrameTimeout: 5 * time.Second}, answerAll)
		c := h.dial()
		b := frameOf(produceRequest(9, 1, 1, make([]byte, 20<<20)), 9, 1)
		c.send(b[:19<<20])
		begin := time.Now()
		c.expectClosed()
		if d := time.Since(begin); d != 5*time.Second {
			t.Errorf("cut after %v", d)
		}
	})
}

// A client that announces 50 MB and dribbles must cost next to nothing and be cut.
func TestDribblingClientHoldsNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		c := h.dial()
		b := binary.BigEndian.AppendUint32(nil, 50<<20)
		n := allocated(func() {
			c.send(append(b, 0, 0, 0, 9, 0, 0, 0, 0))
			synctest.Wait()
		})
		if n > 1<<20 {
			t.Errorf("allocated %d bytes for 12 received", n)
		}
		if held := h.srv.mem.requestBytes(); held > 0 {
			t.Errorf("%d bytes charged for 12 received", held)
		}
		var dribble sync.WaitGroup
		defer dribble.Wait()
		dribble.Go(func() {
			for {
				time.Sleep(20 * time.Second)
				if _, err := c.Write([]byte{0}); err != nil {
					return
				}
			}
		})
		begin := time.Now()
		c.expectClosed()
		if d := time.Since(begin); d > time.Minute {
			t.Errorf("held on for %v", d)
		}
		synctest.Wait()
		h.oneLine("did not arrive")
	})
}

func TestClientThatDoesNotReadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{WriteTimeout: 10 * time.Second, MaxInFlight: 4}, answerAll)
		c := h.dial()
		begin := time.Now()
		sent := 0
		for {
			if _, err := c.Write(frameOf(kmsg.NewPtrMetadataRequest(), 0, 1)); err != nil {
				break
			}
			sent++
		}
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("cut after %v", d)
		}
		// One more than in flight may have gone into the read buffer.
		if sent > 200 {
			t.Errorf("%d requests were taken from a client that does not read", sent)
		}
		synctest.Wait()
		h.oneLine("does not read its responses")
		if h.closedFor(closedWrite) != 1 {
			t.Error("not counted")
		}
	})
}

// held is a response that counts its releases.
type held struct {
	*kmsg.MetadataResponse
	released *atomic.Int32
}

func (h held) Release() { h.released.Add(1) }

func TestResponsesAreReleasedWhenWrittenOrDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released atomic.Int32
		h := start(t, Options{WriteTimeout: 10 * time.Second, MaxInFlight: 4}, func(_ context.Context, r *Request) (Reply, error) {
			resp := held{r.Response().(*kmsg.MetadataResponse), &released}
			return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
		})
		c := h.dial()
		c.request(kmsg.NewPtrMetadataRequest(), 0, 1)
		synctest.Wait()
		if n := released.Load(); n != 0 {
			t.Fatalf("released %d times before the client has read the response", n)
		}
		c.expect(1, kmsg.NewPtrMetadataResponse(), 0)
		synctest.Wait()
		if n := released.Load(); n != 1 {
			t.Fatalf("released %d times after it was written", n)
		}
		c.request(kmsg.NewPtrMetadataRequest(), 0, 2)
		time.Sleep(11 * time.Second) // the client does not read: it is cut
		synctest.Wait()
		if n := released.Load(); n != 2 {
			t.Fatalf("released %d times after a second response was dropped", n)
		}
	})
}

// A client may be slow with a large response as long as it keeps up the least rate.
func TestSlowReaders(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  int
		pause time.Duration // after each writeStepBytes
		ok    bool
	}{
		{"above the least rate", 8 << 20, 900 * time.Millisecond, true},
		{"below it, small", 1 << 20, 2 * time.Second, true},
		{"below it, large", 32 << 20, 2 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{WriteTimeout: 11 * time.Second}, func(_ context.Context, r *Request) (Reply, error) {
					resp := r.Response().(*kmsg.FetchResponse)
					topic, part := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
					part.RecordBatches = make([]byte, tc.size)
					topic.Partitions = append(topic.Partitions, part)
					resp.Topics = append(resp.Topics, topic)
					return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
				})
				c := h.dial()
				begin := time.Now()
				c.request(kmsg.NewPtrFetchRequest(), 12, 1)
				slow := &client{t: t, Conn: slowConn{c.Conn, tc.pause, writeStepBytes}}
				if tc.ok {
					resp := kmsg.NewPtrFetchResponse()
					slow.expect(1, resp, 12)
					if len(resp.Topics[0].Partitions[0].RecordBatches) != tc.size {
						t.Error("cut short")
					}
					return
				}
				n, _ := io.Copy(io.Discard, slow)
				if d := time.Since(begin); n >= int64(tc.size) || d > 40*time.Second {
					t.Errorf("cut after %d bytes and %v", n, d)
				}
				synctest.Wait()
				h.oneLine("does not read its responses, or slower than 256 KiB/s")
				if n := h.srv.mem.responseBytes(); n != 0 {
					t.Errorf("%d bytes still charged", n)
				}
			})
		})
	}
}

// slowConn reads at most step bytes after each pause.
type slowConn struct {
	net.Conn
	pause time.Duration
	step  int
}

func (c slowConn) Read(b []byte) (int, error) {
	time.Sleep(c.pause)
	return c.Conn.Read(b[:min(len(b), c.step)])
}

func TestRequestsInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedN, release := 0, make(chan struct{})
		h := start(t, Options{MaxInFlight: 3}, func(_ context.Context, r *Request) (Reply, error) {
			startedN++
			return func(context.Context) (kmsg.Response, error) {
				<-release
				return r.Response(), nil
			}, nil
		})
		c := h.dial()
		go func() {
			for id := range int32(10) {
				_, _ = c.Write(frameOf(kmsg.NewPtrMetadataRequest(), 0, id))
			}
		}()
		synctest.Wait()
		if startedN != 3 {
			t.Errorf("%d started, want 3", startedN)
		}
		close(release)
		for id := range int32(10) {
			c.expect(id, kmsg.NewPtrMetadataResponse(), 0)
		}
	})
}

func TestConnectionLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{MaxConnections: 2}, answerAll)
		first, second := h.dial(), h.dial()
		third := h.dial()
		third.expectClosed()
		for _, c := range []*client{first, second} {
			c.request(kmsg.NewPtrMetadataRequest(), 0, 1)
			c.expect(1, kmsg.NewPtrMetadataResponse(), 0)
		}
		synctest.Wait()
		h.oneLine("all 2 connections are in use")
		if h.closedFor(closedLimit) != 1 {
			t.Error("not counted")
		}
		first.Close()
		synctest.Wait()
		fourth := h.dial()
		fourth.request(kmsg.NewPtrMetadataRequest(), 0, 1)
		fourth.expect(1, kmsg.NewPtrMetadataResponse(), 0)
	})
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{MaxConnectionsPerIP: 1}, answerAll)
		h.dial()
		h.dial().expectClosed()
		synctest.Wait()
		h.oneLine("from this address")
	})
}

func TestLogLinesPerHostAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		abuse := func(n int) {
			for range n {
				c := h.dial()
				go c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
				c.expectClosed()
				synctest.Wait()
			}
		}
		abuse(100)
		if n := len(h.lines()); n != logPerWindow {
			t.Errorf("%d lines for 100 bad connections", n)
		}
		time.Sleep(logWindow)
		abuse(1)
		last := h.lines()[len(h.lines())-1]
		if n := last.ContextMap()["similar_suppressed"]; n != int64(100-logPerWindow) {
			t.Errorf("next line tells of %v suppressed", n)
		}
	})
}

func TestHandlerErrorClosesAfterEarlierAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			if r.CorrelationID == 2 {
				return nil, errors.New("no such luck")
			}
			return func(context.Context) (kmsg.Response, error) {
				time.Sleep(time.Second)
				return r.Response(), nil
			}, nil
		})
		c := h.dial()
		c.request(kmsg.NewPtrMetadataRequest(), 0, 1)
		c.request(kmsg.NewPtrMetadataRequest(), 0, 2)
		c.expect(1, kmsg.NewPtrMetadataResponse(), 0)
		c.expectClosed()
		synctest.Wait()
		h.oneLine("no such luck", "Metadata v0")
		if h.closedFor(closedHandler) != 1 {
			t.Error("not counted")
		}
	})
}

func TestFailingRepliesCloseTheConnection(t *testing.T) {
	for name, reply := range map[string]Reply{
		"error":         func(context.Context) (kmsg.Response, error) { return nil, errors.New("no such luck") },
		"foreign reply": func(context.Context) (kmsg.Response, error) { return kmsg.NewPtrFetchResponse(), nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{}, func(context.Context, *Request) (Reply, error) { return reply, nil })
				c := h.dial()
				c.request(kmsg.NewPtrMetadataRequest(), 0, 1)
				c.expectClosed()
				synctest.Wait()
				h.oneLine("Metadata v0")
				if h.closedFor(closedHandler) != 1 {
					t.Error("not counted")
				}
			})
		})
	}
}

func TestPanicsCloseOneConnection(t *testing.T) {
	handlers := map[string]handlerFunc{
		"in Handle": func(_ context.Context, r *Request) (Reply, error) {
			if r.CorrelationID == 13 {
				panic("boom")
			}
			return now(r), nil
		},
		"in the reply": func(_ context.Context, r *Request) (Reply, error) {
			if r.CorrelationID == 13 {
				return func(context.Context) (kmsg.Response, error) { panic("boom") }, nil
			}
			return now(r), nil
		},
		"in encoding": func(_ context.Context, r *Request) (Reply, error) {
			if r.CorrelationID == 13 {
				return func(context.Context) (kmsg.Response, error) { return (*kmsg.MetadataResponse)(nil), nil }, nil
			}
			return now(r), nil
		},
	}
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, Options{}, handler)
				other, c := h.dial(), h.dial()
				c.request(kmsg.NewPtrMetadataRequest(), 0, 13)
				c.expectClosed()
				synctest.Wait()
				h.oneLine("panic", "stack=")
				if h.closedFor(closedPanic) != 1 {
					t.Error("not counted")
				}
				other.request(kmsg.NewPtrMetadataRequest(), 0, 1)
				other.expect(1, kmsg.NewPtrMetadataResponse(), 0)
			})
		})
	}
}

func TestContextEndsWhenTheClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			return func(ctx context.Context) (kmsg.Response, error) {
				<-ctx.Done()
				ended <- ctx.Err()
				return nil, ctx.Err()
			}, nil
		})
		c := h.dial()
		c.request(kmsg.NewPtrFetchRequest(), 4, 1)
		synctest.Wait()
		c.Close()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if h.closedFor(closedByClient) != 1 || len(h.lines()) != 0 {
			t.Error("a client that leaves is no event", h.lines())
		}
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			return func(ctx context.Context) (kmsg.Response, error) {
				if r.Key == KeyFetch { // a long poll answers early
					select {
					case <-r.Conn.Draining():
					case <-time.After(time.Hour):
						t.Error("not told to answer")
					}
				} else {
					time.Sleep(3 * time.Second) // durability does not hurry
				}
				return r.Response(), ctx.Err()
			}, nil
		})
		busy, idle, half := h.dial(), h.dial(), h.dial()
		busy.request(kmsg.NewPtrFetchRequest(), 4, 1)
		busy.request(kmsg.NewPtrProduceRequest(), 9, 2)
		idle.request(kmsg.NewPtrProduceRequest(), 9, 1)
		idle.expect(1, kmsg.NewPtrProduceResponse(), 9)
		half.send([]byte{0, 0, 0, 100, 0, 0, 0, 9, 1, 2})
		synctest.Wait()
		begin := time.Now()
		drained := make(chan error, 1)
		go func() { drained <- h.srv.Shutdown(context.Background()) }()
		busy.expect(1, kmsg.NewPtrFetchResponse(), 4)
		busy.expect(2, kmsg.NewPtrProduceResponse(), 9)
		for _, c := range []*client{busy, idle, half} {
			c.expectClosed()
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("drained after %v", d)
		}
		if h.closedFor(closedDrain) != 3 || len(h.lines()) != 0 {
			t.Error(h.closedFor(closedDrain), h.lines())
		}
	})
}

func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
			return func(ctx context.Context) (kmsg.Response, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, nil
		})
		c := h.dial()
		c.request(kmsg.NewPtrProduceRequest(), 9, 1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 9*time.Second)
		defer cancel()
		begin := time.Now()
		if err := h.srv.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if d := time.Since(begin); d != 9*time.Second {
			t.Errorf("gave up after %v", d)
		}
		c.expectClosed()
	})
}

// A handler that blocks for back-pressure must not keep a drain from ending.
func TestDrainEndsBlockedHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, func(ctx context.Context, _ *Request) (Reply, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		c := h.dial()
		c.request(kmsg.NewPtrProduceRequest(), 9, 1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := h.srv.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if n := h.closedFor(closedDrain); n != 1 {
			t.Errorf("closed for %d drains", n)
		}
	})
}

func TestServeAfterShutdown(t *testing.T) {
	h := start(t, Options{}, answerAll)
	if err := h.srv.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	if err := h.srv.Serve(l); !errors.Is(err, ErrServerClosed) {
		t.Fatal(err)
	}
	<-l.closed
}

// failingListener fails a few times before it works.
type failingListener struct {
	*pipeListener
	failures int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, errors.New("too many open files")
	}
	return l.pipeListener.Accept()
}

func TestAcceptErrorsAreSurvived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Options{}, answerAll)
		l := &failingListener{&pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}, 5}
		served := make(chan error, 1)
		go func() { served <- h.srv.Serve(l) }()
		mine, theirs := net.Pipe()
		l.conns <- theirs
		c := &client{t: t, Conn: mine}
		c.request(kmsg.NewPtrMetadataRequest(), 0, 1)
		c.expect(1, kmsg.NewPtrMetadataResponse(), 0)
		mine.Close()
		l.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		h := start(t, Options{Registerer: reg}, answerAll)
		c := h.dial()
		frame := frameOf(kmsg.NewPtrMetadataRequest(), 9, 1)
		c.send(frame)
		_, body := c.receive()
		synctest.Wait()
		api := h.srv.metrics.api[KeyMetadata]
		if n := testutil.ToFloat64(api.requestBytes); n != float64(len(frame)-4) {
			t.Errorf("request bytes %v", n)
		}
		if n := testutil.ToFloat64(api.responseBytes); n != float64(len(body)+8) {
			t.Errorf("response bytes %v", n)
		}
		if n := testutil.ToFloat64(h.srv.metrics.connections); n != 1 {
			t.Errorf("open connections %v", n)
		}
		c.Close()
		synctest.Wait()
		if n := testutil.ToFloat64(h.srv.metrics.connections); n != 0 {
			t.Errorf("open connections %v", n)
		}
		problems, err := testutil.GatherAndLint(reg)
		if err != nil || len(problems) != 0 {
			t.Error(problems, err)
		}
		got, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got {
			if !strings.HasPrefix(f.GetName(), "brooklet_kafkaproto_") {
				t.Errorf("metric %s", f.GetName())
			}
		}
	})
}

func TestOptionsValidateReportsEverything(t *testing.T) {
	_, err := NewServer(Options{
		MaxFrameBytes: 1 << 30, MaxRequestMemory: 1, MaxConnections: -1, MaxConnectionsPerIP: -1, MaxInFlight: -1,
		MaxControlFrameBytes: 1, FirstByteTimeout: -1, IdleTimeout: -1, FrameTimeout: -1, WriteTimeout: -1,
	}, handlerFunc(answerAll))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"Versions", "MaxFrameBytes", "MaxControlFrameBytes", "MaxRequestMemory", "MaxConnections ", "MaxConnectionsPerIP", "MaxInFlight",
		"FirstByteTimeout", "IdleTimeout", "FrameTimeout", "WriteTimeout",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

func TestFrameLimitsGoWithTheMemory(t *testing.T) {
	opts := smallMemory()
	opts.Versions = allVersions(t)
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		t.Fatal(err)
	}
	opts.MaxFrameBytes++
	opts.MaxControlFrameBytes++
	err := opts.Validate()
	for _, want := range []string{
		"MaxFrameBytes is 16777217, but MaxRequestMemory of 67108864 allows 16777216: lower MaxFrameBytes, or raise MaxRequestMemory to 67108868",
		"MaxControlFrameBytes is 262145, but MaxRequestMemory of 67108864 allows 262144",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	defaults := Options{Versions: opts.Versions}
	defaults.EnsureDefaults()
	if err := defaults.Validate(); err != nil {
		t.Error(err)
	}
}
