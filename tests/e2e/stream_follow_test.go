package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	streamclient "github.com/brookletmq/brooklet/client"
	"github.com/brookletmq/brooklet/tests/harness"
)

// badNetwork dials connections that are slow to read from, and that break after a while.
type badNetwork struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func (n *badNetwork) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return &badConn{Conn: conn, left: 500 + n.rand.IntN(500_000)}, nil
}

// badConn breaks after so many bytes, often in the middle of a reply. Now and then that are more than a reply has, or nobody
// would ever get one.
type badConn struct {
	net.Conn
	left int
}

func (c *badConn) Read(b []byte) (int, error) {
	const atOnce, pause = 2000, 100 * time.Microsecond
	if c.left <= 0 {
		c.Close()
		return 0, net.ErrClosed
	}
	time.Sleep(pause) // a slow reader; nothing is awaited
	n, err := c.Conn.Read(b[:min(len(b), atOnce, c.left)])
	c.left -= n
	return n, err
}

// Followers begin before there is a stream, read over connections that break, and are stopped and resumed from what they
// have stored, while the broker is killed again and again. Each must get every record once.
func TestFollowersExactlyOnce(t *testing.T) {
	t.Parallel()
	for _, durability := range []string{"local", "remote"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			const streams, each, kills = 12, 120, 4
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			b := harness.Start(t, harness.Config{Flags: []string{"--durability", durability, "--flush-interval", "20ms"}})
			quick := []kgo.Opt{kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MetadataMinAge(50 * time.Millisecond)}
			bad := badNetwork{rand: rand.New(rand.NewPCG(seed, 1))}
			reader := newStreamClient(t, b, append(quick, kgo.Dialer(bad.dial))...)
			writer := newStreamClient(t, b, quick...)
			ctx, cancel := context.WithTimeout(context.Background(), 2*stepTimeout)
			defer cancel()

			var running sync.WaitGroup
			running.Go(func() { followOne(ctx, t, reader, "x/0", each) })
			running.Go(func() { followAll(ctx, t, reader, rand.New(rand.NewPCG(seed, 2)), "x/", streams, each) })
			for i := range each {
				batches := make([]streamclient.Batch, 0, streams)
				for s := range streams {
					batches = append(batches, streamclient.Batch{Stream: fmt.Sprintf("x/%d", s), Records: []streamclient.Record{{Value: fmt.Append(nil, i)}}})
				}
				for _, r := range writer.AppendBatches(ctx, batches...) {
					if r.Err != nil || r.First != int64(i) {
						t.Fatalf("record %d: %+v", i, r)
					}
				}
				if i%(each/kills) == each/kills/2 {
					b.Kill()
					b.Start()
				}
			}
			running.Wait()
		})
	}
}

// followOne follows a stream to its record n-1, and begins again now and then behind what it has.
func followOne(ctx context.Context, t *testing.T, c *streamclient.Client, stream string, n int64) {
	next := int64(0)
	for next < n {
		from := streamclient.At(next)
		for r, err := range c.Follow(ctx, stream, from) {
			if err != nil {
				t.Errorf("following %s from %d: %v", stream, next, err)
				return
			}
			if r.Offset != next || string(r.Value) != fmt.Sprint(next) {
				t.Errorf("%s: record %q at %d, want %d", stream, r.Value, r.Offset, next)
				return
			}
			if next++; next == n || next%40 == 0 {
				break
			}
		}
	}
}

// followAll does the same for all streams under a prefix, with a cursor that is stored as text.
func followAll(ctx context.Context, t *testing.T, c *streamclient.Client, random *rand.Rand, prefix string, streams int, n int64) {
	next := make(map[string]int64)
	stored, err := new(streamclient.Cursor).MarshalText()
	if err != nil {
		t.Error(err)
		return
	}
	for total := int64(0); total < int64(streams)*n; {
		var cursor streamclient.Cursor
		if err := cursor.UnmarshalText(stored); err != nil {
			t.Error(err)
			return
		}
		stop := total + 1 + random.Int64N(400)
		for r, err := range c.FollowPrefix(ctx, prefix, &cursor) {
			if err != nil {
				t.Errorf("following %s after %d records: %v", prefix, total, err)
				return
			}
			if r.Offset != next[r.Stream] || string(r.Value) != fmt.Sprint(r.Offset) {
				t.Errorf("%s: record %q at %d, want %d", r.Stream, r.Value, r.Offset, next[r.Stream])
				return
			}
			next[r.Stream]++
			if stored, err = cursor.MarshalText(); err != nil {
				t.Error(err)
				return
			}
			if total++; total == stop || total == int64(streams)*n {
				break
			}
		}
	}
}
