package kafkaproto

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
)

// startTCP runs a server on a loopback port until the test ends.
func startTCP(t testing.TB, opts Options, h handlerFunc) (*Server, string) {
	t.Helper()
	if opts.Versions == nil {
		opts.Versions = allVersions(t)
	}
	opts.Logger = zap.NewNop()
	srv, err := NewServer(opts, h)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, ErrServerClosed) {
			t.Error(err)
		}
		if n := srv.mem.requestBytes() + srv.mem.responseBytes() + srv.mem.decoding.inUse(); n != 0 {
			t.Errorf("%d bytes of request memory were not given back", n)
		}
	})
	return srv, l.Addr().String()
}

func dialTCP(t testing.TB, addr string) *client {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return &client{t: t, Conn: nc}
}

// echo answers Produce with the offset that is in the record it carries, so that a
// mix-up of answers shows.
func echo(_ context.Context, r *Request) (Reply, error) {
	p, ok := r.Body.(*kmsg.ProduceRequest)
	if !ok {
		return now(r), nil
	}
	if p.Acks == 0 {
		return nil, nil
	}
	return func(context.Context) (kmsg.Response, error) {
		resp := r.Response().(*kmsg.ProduceResponse)
		for _, t := range p.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic = t.Topic
			for _, part := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition = part.Partition
				rp.BaseOffset = RecordBatch(part.Records).MaxTimestamp()
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil
	}, nil
}

// Many connections pipeline requests of all sizes; every answer must be the right
// one, and frames must keep their bytes until their own answer.
func TestPipelinesOverTCP(t *testing.T) {
	_, addr := startTCP(t, smallMemory(), echo)
	for conn := range 8 {
		t.Run(fmt.Sprintf("connection %d", conn), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, uint64(conn)))
			c := dialTCP(t, addr)
			const n = 60
			var frames [][]byte
			for id := range n {
				size := rng.IntN(200)
				if id%20 == 0 {
					size = 300_000 + rng.IntN(1_000_000)
				}
				batch := build(t, BatchOptions{}, Record{Timestamp: int64(conn*1000 + id), Value: make([]byte, size)})
				frames = append(frames, frameOf(produceRequest(9, 1, 1, batch), 9, int32(id)))
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer c.Close() // unblocks the writer if the test fails
			wg.Go(func() {
				for _, f := range frames {
					if _, err := c.Write(f); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for id := range n {
				resp := kmsg.NewPtrProduceResponse()
				c.expect(int32(id), resp, 9)
				if got := resp.Topics[0].Partitions[0].BaseOffset; got != int64(conn*1000+id) {
					t.Errorf("request %d got the answer of %d", id, got)
				}
			}
		})
	}
}

func TestRandomBytesOverTCP(t *testing.T) {
	_, addr := startTCP(t, Options{}, answerAll)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	good := seedFrames(t)
	for i := range 300 {
		c := dialTCP(t, addr)
		b := make([]byte, rng.IntN(600))
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		if i%2 == 0 { // a good request with one byte changed
			b = frameOf(kmsg.NewPtrMetadataRequest(), 9, 1)
			g := good[rng.IntN(len(good))]
			b = append(b, 0, 0, byte(len(g)>>8), byte(len(g)))
			b = append(b, g...)
			b[rng.IntN(len(b))] = byte(rng.Uint32())
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		// The server answers what it understood and closes; a reset is a close too.
		if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Fatalf("the connection hangs after %x", b)
		}
	}
	c := dialTCP(t, addr)
	c.request(kmsg.NewPtrMetadataRequest(), 9, 7)
	c.expect(7, kmsg.NewPtrMetadataResponse(), 9)
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// A real client negotiates and gets answers in the newest versions.
func TestFranzClient(t *testing.T) {
	versions := allVersions(t)
	_, addr := startTCP(t, Options{}, func(_ context.Context, r *Request) (Reply, error) {
		resp := r.Response()
		if av, ok := resp.(*kmsg.ApiVersionsResponse); ok {
			av.ApiKeys = versions.ApiKeys(r.Version)
		}
		if m, ok := resp.(*kmsg.MetadataResponse); ok {
			m.ClusterID = kmsg.StringPtr(r.Conn.ClientSoftwareName)
		}
		return func(context.Context) (kmsg.Response, error) { return resp, nil }, nil
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, cl)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Version != 13 || resp.ClusterID == nil || *resp.ClusterID != "kgo" {
		t.Fatalf("v%d, client software %v", resp.Version, resp.ClusterID)
	}
}

func BenchmarkProduceRoundTrip(b *testing.B) {
	for _, bench := range []struct {
		name string
		size int
	}{{"1KiB", 1 << 10}, {"1MiB", 1 << 20}} {
		b.Run(bench.name, func(b *testing.B) {
			_, addr := startTCP(b, Options{}, echo)
			c := dialTCP(b, addr)
			frame := frameOf(produceRequest(9, 1, 1, build(b, BatchOptions{}, Record{Value: make([]byte, bench.size)})), 9, 1)
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			for b.Loop() {
				c.send(frame)
				c.receive()
			}
		})
	}
}

func BenchmarkFetchResponse(b *testing.B) {
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(16)
	topic := kmsg.NewFetchResponseTopic()
	for range 10 {
		p := kmsg.NewFetchResponseTopicPartition()
		p.RecordBatches = make([]byte, 100<<10)
		topic.Partitions = append(topic.Partitions, p)
	}
	resp.Topics = append(resp.Topics, topic)
	b.SetBytes(1000 << 10)
	b.ReportAllocs()
	for b.Loop() {
		buf := fetchBuffers.get()
		out, err := appendResponse((*buf)[:0], resp, 1)
		if err != nil {
			b.Fatal(err)
		}
		*buf = out
		fetchBuffers.put(buf)
	}
}
