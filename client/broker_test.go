package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/broker"
	"github.com/brookletmq/brooklet/client"
	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

// testBroker is a broker in this process. It can be stopped and started again with what it had stored.
type testBroker struct {
	addr   string
	edit   func(*broker.Options)
	frames int // largest request, 0: the default
	disk   vfs.FS
	bucket objstore.Bucket
	stop   func()
}

// newBroker starts a broker on a free port.
func newBroker(edit func(*broker.Options)) (*testBroker, error) {
	b := &testBroker{addr: "127.0.0.1:0", edit: edit, disk: vfs.NewMem(), bucket: objstore.NewMemory()}
	return b, b.start()
}

// newBrokerWithFrames is newBroker that takes requests of so many bytes only.
func newBrokerWithFrames(edit func(*broker.Options), bytes int) (*testBroker, error) {
	b := &testBroker{addr: "127.0.0.1:0", edit: edit, frames: bytes, disk: vfs.NewMem(), bucket: objstore.NewMemory()}
	return b, b.start()
}

func (b *testBroker) start() error {
	listener, err := net.Listen("tcp", b.addr)
	if err != nil {
		return err
	}
	b.addr = listener.Addr().String()
	ctx := context.Background()
	store, err := streamstore.Open(ctx, streamstore.Options{Dir: "data", FS: b.disk, Bucket: b.bucket, MinFreeBytes: -1})
	if err != nil {
		return err
	}
	opts := broker.Options{AdvertisedHost: "127.0.0.1", AdvertisedPort: int32(listener.Addr().(*net.TCPAddr).Port), AutoCreateTopics: true, Store: store}
	if b.edit != nil {
		b.edit(&opts)
	}
	handler, err := broker.New(ctx, opts)
	if err != nil {
		return err
	}
	server, err := kafkaproto.NewServer(kafkaproto.Options{Versions: handler.Versions(), MaxFrameBytes: b.frames}, handler)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	b.stop = sync.OnceFunc(func() {
		handler.Drain()
		drain, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // followers hold their connections
		defer cancel()
		_ = server.Shutdown(drain)
		<-served
		handler.Close()
		if err := store.Close(); err != nil {
			panic(err)
		}
	})
	return nil
}

// startBroker is newBroker for tests.
func startBroker(t testing.TB, edit func(*broker.Options)) *testBroker {
	t.Helper()
	b, err := newBroker(edit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *testBroker) restart(t testing.TB) {
	t.Helper()
	b.stop()
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
}

// exampleAddr is the broker of the examples.
var exampleAddr string

func TestMain(m *testing.M) {
	b, err := newBroker(nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	exampleAddr = b.addr
	code := m.Run()
	b.stop()
	os.Exit(code)
}

// dialer dials connections that can be cut.
type dialer struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	cuts  int
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		d.conns = make(map[net.Conn]struct{})
	}
	d.conns[conn] = struct{}{}
	return conn, nil
}

func (d *dialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for conn := range d.conns {
		conn.Close()
		delete(d.conns, conn)
		d.cuts++
	}
}

// newClient returns a client that lives as long as the test, and gives up and comes back quickly.
func newClient(t testing.TB, b *testBroker, opts ...kgo.Opt) *client.Client {
	t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(b.addr), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
		kgo.RetryTimeout(5 * time.Second), kgo.MetadataMinAge(20 * time.Millisecond)}, opts...)
	c, err := client.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// testContext ends with the test or when it hangs.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the test hangs"))
	t.Cleanup(cancel)
	return ctx
}
