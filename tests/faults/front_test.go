package faults

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// front is the address that clients know. It forwards each connection to the broker that serves at the moment, and what
// is connected stays connected when the next one takes over: a client may talk to a broker that has been replaced and
// does not know it yet.
type front struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	conns  map[net.Conn]struct{}
}

func newFront(t testing.TB) *front {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{listener: listener, conns: make(map[net.Conn]struct{})}
	go f.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		f.cut(1, rand.New(rand.NewPCG(0, 0)))
	})
	return f
}

func (f *front) addr() string { return f.listener.Addr().String() }

// serve forwards new connections to a broker from now on.
func (f *front) serve(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
}

// cut ends a share of all connections, so that answers get lost on their way.
func (f *front) cut(share float64, rng *rand.Rand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for nc := range f.conns {
		if rng.Float64() < share {
			_ = nc.Close()
		}
	}
}

func (f *front) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		go f.forward(client)
	}
}

func (f *front) forward(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	broker, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	f.mu.Lock()
	f.conns[client] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.conns, client)
		f.mu.Unlock()
	}()
	var copying sync.WaitGroup
	for _, way := range [][2]net.Conn{{broker, client}, {client, broker}} {
		copying.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the end of one way is the end of both
			_ = client.Close()
			_ = broker.Close()
		})
	}
	copying.Wait()
}
