package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto/ext"
)

// Client reads and writes streams. Its methods are safe for concurrent use. It runs nothing while it has nothing to do,
// but for what franz-go's client runs.
type Client struct {
	kafka  *kgo.Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	append appender

	mu      sync.Mutex
	checked bool // the broker has announced the extensions
}

// New returns a client. The options are franz-go's: kgo.SeedBrokers says where the broker is (the default is
// 127.0.0.1:9092), kgo.DialTLSConfig, kgo.SASL and kgo.Dialer how to reach it. Options for producing and consuming through
// franz-go itself have no effect here. New does not connect; the first request does.
func New(opts ...kgo.Opt) (*Client, error) {
	kafka, err := kgo.NewClient(append([]kgo.Opt{kgo.ClientID("brooklet-go")}, opts...)...)
	if err != nil {
		return nil, err
	}
	c := &Client{kafka: kafka}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.append.init(c)
	return c, nil
}

// Close ends the client. Appends that have not been acknowledged, and everything else under way, end with an error; call
// Flush before to wait for the appends.
func (c *Client) Close() {
	c.append.close()
	c.cancel()
	c.kafka.Close()
	c.append.senders.Wait()
}

// Kafka returns the client that this one uses, for what Kafka has and streams do not need, such as consumer groups.
func (c *Client) Kafka() *kgo.Client { return c.kafka }

// check makes sure that the broker knows the tagged fields: another would carry a conditional append out without its
// condition.
func (c *Client) check(ctx context.Context) error {
	c.mu.Lock()
	checked := c.checked
	c.mu.Unlock()
	if checked {
		return nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "brooklet-go", "1"
	resp, err := request[*kmsg.ApiVersionsResponse](ctx, c.kafka, req)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return fmt.Errorf("asking for the broker's versions: %w", err)
	}
	if ext.AnnouncedVersion(&resp.UnknownTags) < 1 {
		return ErrNotBrooklet
	}
	c.mu.Lock()
	c.checked = true
	c.mu.Unlock()
	return nil
}

// request sends a request to any broker.
func request[R kmsg.Response](ctx context.Context, kafka *kgo.Client, req kmsg.Request) (resp R, err error) {
	got, err := kafka.Request(ctx, req)
	if err != nil {
		if errors.Is(err, kgo.ErrClientClosed) {
			err = ErrClientClosed
		}
		return resp, err
	}
	resp, ok := got.(R)
	if !ok {
		return resp, fmt.Errorf("%s was answered with a %T", kmsg.NameForKey(req.Key()), got)
	}
	return resp, nil
}

// Produce and Fetch are sent in the last versions that name topics, so that nobody has to look up ids first, and none is
// needed for streams that do not exist yet. These types only change the highest version.
type (
	produceByName struct{ *kmsg.ProduceRequest }
	fetchByName   struct{ *kmsg.FetchRequest }
)

func (produceByName) MaxVersion() int16 { return 12 }
func (fetchByName) MaxVersion() int16   { return 12 }

// Timeout lets franz-go wait for the answer for as long as the broker may take.
func (f fetchByName) Timeout() int32 { return f.MaxWaitMillis }

// backoff is the wait before try n, counted from 1, with a random part so that clients do not come back all at once.
func backoff(n int) time.Duration {
	const first, most = 20 * time.Millisecond, time.Second
	d := min(first<<min(n-1, 10), most)
	return d/2 + rand.N(d/2+1)
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
