package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/client"
)

// Prefixes of the streams that come and go.
const (
	churnPrefix  = "churn/"
	mortalPrefix = "mortal/"
)

// churn makes streams, trims them, deletes them and makes them again under the same names, and makes others that delete
// themselves. What was trimmed or deleted must never come back.
type churn struct {
	r       *round
	rng     *rand.Rand
	client  *client.Client
	streams map[string]*churned
	made    int
	deleted int
}

// churned is what is known of a stream.
type churned struct {
	life    int      // how often the name was used before
	values  []string // that it has, from offset 0 on
	start   int64    // that it was trimmed to
	exists  bool
	unknown bool // the outcome of the last thing done to it; nothing more is done
}

func (r *round) startChurn() *churn {
	// A request is made once, so that the outcome of a deletion is either known or the end of this name.
	c := &churn{r: r, rng: r.fork(), client: r.streamClient(kgo.RequestRetries(0)), streams: make(map[string]*churned)}
	r.load.Go(func() {
		for r.pause(c.rng, 60*time.Millisecond) {
			c.step()
		}
	})
	return c
}

// streamClient is a client for streams that finds the broker that serves.
func (r *round) streamClient(opts ...kgo.Opt) *client.Client {
	c, err := client.New(patient(r.front.addr(), opts...)...)
	if err != nil {
		panic(err) // the options are right
	}
	r.t.Cleanup(c.Close)
	return c
}

// step does one thing to one stream.
func (c *churn) step() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if c.rng.IntN(8) == 0 {
		c.mortal(ctx)
		return
	}
	name := fmt.Sprint(churnPrefix, c.rng.IntN(c.made+2))
	s := c.streams[name]
	switch {
	case s == nil:
		s = &churned{}
		c.streams[name] = s
		c.made++
		c.append(ctx, name, s)
	case s.unknown:
	case !s.exists:
		s.life, s.values, s.start = s.life+1, nil, 0
		c.append(ctx, name, s)
	case c.rng.IntN(3) == 0:
		c.append(ctx, name, s)
	case c.rng.IntN(2) == 0:
		c.trim(ctx, name, s)
	default:
		c.delete(ctx, name, s)
	}
}

// append writes where the stream must end. Another end means that something came back, or is lost.
func (c *churn) append(ctx context.Context, name string, s *churned) {
	var records []client.Record
	next := int64(len(s.values))
	for range 1 + c.rng.IntN(4) {
		s.values = append(s.values, fmt.Sprintf("%s life %d record %d", name, s.life, len(s.values)))
		records = append(records, client.Record{Value: []byte(s.values[len(s.values)-1])})
	}
	_, err := c.client.AppendIf(ctx, client.NextIs(next), name, records...)
	var conflict *client.ConflictError
	if errors.As(err, &conflict) {
		c.r.fault("%s, life %d: it must end at %d, but does at %d", name, s.life, next, conflict.Next)
	}
	s.exists, s.unknown = true, err != nil
}

func (c *churn) trim(ctx context.Context, name string, s *churned) {
	to := s.start + c.rng.Int64N(int64(len(s.values))-s.start+1)
	start, err := c.client.Trim(ctx, name, to)
	if err == nil && start != to {
		c.r.fault("%s: trimmed to %d, and the broker says %d", name, to, start)
	}
	s.start, s.unknown = to, err != nil
}

func (c *churn) delete(ctx context.Context, name string, s *churned) {
	errs, err := c.client.Delete(ctx, name)
	s.exists, s.unknown = false, err != nil || errs[0] != nil
	if !s.unknown {
		c.deleted++
	}
}

// mortal makes a stream that deletes itself.
func (c *churn) mortal(ctx context.Context) {
	c.made++
	name := fmt.Sprint(mortalPrefix, c.made)
	if err := c.client.Create(ctx, name, client.TTL(time.Second)); err == nil {
		_, _ = c.client.Append(ctx, name, client.Record{Value: []byte(name)}) // whether or not it works, the stream must go
	}
}

// check holds the broker to what is known. The load has ended.
func (c *churn) check() {
	c.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	reader := c.r.streamClient()
	listed := make(map[string]client.Info)
	for info, err := range reader.List(ctx, churnPrefix, "") {
		if err != nil {
			c.r.t.Fatalf("listing %s: %v", churnPrefix, err)
		}
		listed[info.Stream] = info
	}
	for _, name := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[name]
		info, exists := listed[name]
		delete(listed, name)
		switch {
		case s.unknown && !exists:
		case exists != s.exists && !s.unknown:
			c.r.fault("%s, life %d: is there: %v, want %v", name, s.life, exists, s.exists)
		case exists:
			c.checkStream(ctx, reader, name, s, info)
		}
	}
	for name := range listed {
		c.r.fault("%s is there, and nobody made it", name)
	}
	c.awaitMortals(ctx, reader)
}

func (c *churn) checkStream(ctx context.Context, reader *client.Client, name string, s *churned, info client.Info) {
	if n := int64(len(s.values)); !s.unknown && (info.Start != s.start || info.Next != n) {
		c.r.fault("%s, life %d: has %d to %d, want %d to %d", name, s.life, info.Start, info.Next, s.start, n)
	}
	next := info.Start
	for rec, err := range reader.Read(ctx, name, client.Start()) {
		if err != nil {
			c.r.t.Fatalf("reading %s: %v", name, err)
		}
		if rec.Offset != next || rec.Offset >= int64(len(s.values)) || string(rec.Value) != s.values[rec.Offset] {
			c.r.fault("%s, life %d: has %q at %d, want %q", name, s.life, rec.Value, rec.Offset, s.values[min(next, int64(len(s.values)-1))])
		}
		next++
	}
	if next != info.Next {
		c.r.fault("%s, life %d: reading ends at %d, not %d", name, s.life, next, info.Next)
	}
}

// awaitMortals waits until all streams whose time is over are gone.
func (c *churn) awaitMortals(ctx context.Context, reader *client.Client) {
	c.r.t.Helper()
	for {
		var left []string
		for info, err := range reader.List(ctx, mortalPrefix, "") {
			if err != nil {
				c.r.t.Fatalf("listing %s: %v", mortalPrefix, err)
			}
			left = append(left, info.Stream)
		}
		if len(left) == 0 {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			c.r.t.Fatalf("%d streams have not deleted themselves within %v, such as %s", len(left), patience, left[0])
		}
	}
}
