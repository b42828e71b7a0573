package harness

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
)

// Sniffer sees which requests a client sends, if the client dials with it.
type Sniffer struct {
	mu   sync.Mutex
	sent map[int16][]int16
}

// Dial connects like [net.Dialer.DialContext].
func (s *Sniffer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &sniffedConn{Conn: nc, sniffer: s}, nil
}

// Versions returns the versions in which requests of an API key were sent, ascending.
func (s *Sniffer) Versions(key int16) []int16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent[key])
}

func (s *Sniffer) note(key, version int16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		s.sent = make(map[int16][]int16)
	}
	if i, found := slices.BinarySearch(s.sent[key], version); !found {
		s.sent[key] = slices.Insert(s.sent[key], i, version)
	}
}

// sniffedConn follows the frames of what is written. Clients write from one goroutine at a time.
type sniffedConn struct {
	net.Conn
	sniffer *Sniffer
	head    []byte // the first bytes of a frame
	rest    int    // bytes of the frame still to come
}

func (c *sniffedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.follow(p[:n])
	return n, err
}

func (c *sniffedConn) follow(p []byte) {
	const headBytes = 8 // size, key, version
	for len(p) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(p))
			p, c.rest = p[n:], c.rest-n
			continue
		}
		n := min(headBytes-len(c.head), len(p))
		c.head, p = append(c.head, p[:n]...), p[n:]
		if len(c.head) == headBytes {
			c.sniffer.note(int16(binary.BigEndian.Uint16(c.head[4:])), int16(binary.BigEndian.Uint16(c.head[6:])))
			c.rest = int(binary.BigEndian.Uint32(c.head)) - 4
			c.head = c.head[:0]
		}
	}
}
