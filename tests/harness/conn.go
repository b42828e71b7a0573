package harness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// replyTimeout bounds the wait for one reply.
const replyTimeout = 30 * time.Second

// Conn is one connection on which single requests are sent, each in the version that it is set to.
type Conn struct {
	net.Conn
	tb          testing.TB
	formatter   *kmsg.RequestFormatter
	correlation int32
}

// Dial connects to a broker until the test ends.
func Dial(tb testing.TB, addr string) *Conn {
	tb.Helper()
	c, err := TryDial(tb, addr)
	if err != nil {
		tb.Fatalf("harness: %v", err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// TryDial is Dial for brokers that may be gone. The caller closes the connection.
func TryDial(tb testing.TB, addr string) (*Conn, error) {
	nc, err := net.DialTimeout("tcp", addr, replyTimeout)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: nc, tb: tb, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("harness"))}, nil
}

// Try sends req and returns its reply, or an error when the connection or the broker fails.
func (c *Conn) Try(req kmsg.Request) (kmsg.Response, error) {
	if _, err := c.Write(c.Frame(req)); err != nil {
		return nil, err
	}
	resp, correlation, err := c.Receive(req)
	if err == nil && correlation != c.correlation {
		err = fmt.Errorf("correlation id %d, want %d", correlation, c.correlation)
	}
	return resp, err
}

// Frame returns req as it goes over the wire, size first.
func (c *Conn) Frame(req kmsg.Request) []byte {
	c.correlation++
	return c.formatter.AppendRequest(nil, req, c.correlation)
}

// Send sends a request and does not wait for the reply.
func (c *Conn) Send(req kmsg.Request) {
	c.tb.Helper()
	if _, err := c.Write(c.Frame(req)); err != nil {
		c.tb.Fatalf("harness: sending %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
}

// Receive waits for the next reply and reads it as that to req. It returns the correlation id that the reply carries.
func (c *Conn) Receive(req kmsg.Request) (resp kmsg.Response, correlation int32, err error) {
	frame, err := c.ReadFrame(replyTimeout)
	if err != nil {
		return nil, 0, err
	}
	if len(frame) < 4 {
		return nil, 0, fmt.Errorf("reply of %d bytes", len(frame))
	}
	correlation, body := int32(binary.BigEndian.Uint32(frame)), frame[4:]
	resp = req.ResponseKind()
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		if len(body) == 0 || body[0] != 0 {
			return nil, 0, errors.New("a reply header of version 1 ends in a count of tags, 0 here")
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, 0, fmt.Errorf("reply of %d bytes: %w", len(frame), err)
	}
	if again := resp.AppendTo(nil); len(again) != len(body) {
		return nil, 0, fmt.Errorf("reply of %d bytes, of which %d are its fields", len(body), len(again))
	}
	return resp, correlation, nil
}

// ReadFrame reads one reply, without its size.
func (c *Conn) ReadFrame(timeout time.Duration) ([]byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, frame); err != nil {
		return nil, fmt.Errorf("reply of %d bytes cut: %w", len(frame), err)
	}
	return frame, nil
}

// Do sends req and returns its reply. A fault fails the test.
func Do[T kmsg.Response](c *Conn, req kmsg.Request) T {
	c.tb.Helper()
	c.Send(req)
	return Await[T](c, req, c.correlation)
}

// Await returns the next reply, which must be that to req with the correlation id.
func Await[T kmsg.Response](c *Conn, req kmsg.Request, correlation int32) T {
	c.tb.Helper()
	resp, got, err := c.Receive(req)
	if err == nil && got != correlation {
		err = fmt.Errorf("correlation id %d, want %d", got, correlation)
	}
	if err != nil {
		c.tb.Fatalf("harness: reply to %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp.(T)
}

// Correlation is the id of the request sent last.
func (c *Conn) Correlation() int32 { return c.correlation }
