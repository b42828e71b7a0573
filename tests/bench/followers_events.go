package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// askEvents asks for the events of the one stream of a connection, from its end on. The time is for fetches.
func (c *followerConn) askEvents(time.Duration) error {
	_, err := fmt.Fprintf(c, "GET /v1/streams/%s?from=tail&live=sse&format=raw HTTP/1.1\r\nHost: bench\r\n\r\n", entityName(c.streams[0]))
	c.next[0] = -1
	return err
}

// eventsBuffer is what a follower reads at a time.
const eventsBuffer = 16 << 10

// followEvents takes events until the connection ends. A follower that waits has no buffer: it waits for one byte.
func (c *followerConn) followEvents() error {
	if err := c.takeHead(); err != nil {
		return err
	}
	var rest []byte // an event that has not come whole
	for {
		if len(rest) == 0 {
			rest = c.size[:1]
			if _, err := c.Read(rest); err != nil {
				return err
			}
		}
		var err error
		if rest, err = c.takeEvents(rest); err != nil {
			return err
		}
	}
}

// takeHead reads the head of the reply, which comes in one piece with the first bytes of its body.
func (c *followerConn) takeHead() error {
	head := make([]byte, 2<<10)
	n, err := c.Read(head)
	if err == nil && !strings.HasPrefix(string(head[:n]), "HTTP/1.1 200 ") {
		err = fmt.Errorf("a reply that is no event stream: %q", head[:n])
	}
	return err
}

// takeEvents reads what has come behind rest and returns what is left of it. The events are not parsed as a browser would:
// what is not an event with an id, and every record is one, is passed over.
func (c *followerConn) takeEvents(rest []byte) ([]byte, error) {
	buf := replies.Get().(*[]byte)
	defer replies.Put(buf)
	*buf = append(slices.Grow((*buf)[:0], len(rest)+eventsBuffer), rest...)
	n, err := c.Read((*buf)[len(*buf) : len(*buf)+eventsBuffer])
	if err != nil {
		return nil, err
	}
	events := (*buf)[:len(*buf)+n]
	now := time.Since(c.f.start)
	for {
		_, event, found := bytes.Cut(events, []byte("id: "))
		if !found {
			return nil, nil // the ends of chunks, and signs of life
		}
		event, after, whole := bytes.Cut(event, []byte("\n\n"))
		if !whole {
			return bytes.Clone(events), nil
		}
		if err := c.event(event, now); err != nil {
			return nil, err
		}
		events = after
	}
}

// event takes an event without the beginning of its id: the offset, what follows it, and the value.
func (c *followerConn) event(event []byte, now time.Duration) error {
	id, value, ok := bytes.Cut(event, []byte("\ndata: "))
	offset, _, _ := strings.Cut(string(id), ".")
	at, err := strconv.ParseInt(offset, 10, 64)
	if !ok || err != nil || len(value) != ingestRecord {
		return errors.Join(err, fmt.Errorf("an event that was not expected: %q", event))
	}
	if c.next[0] >= 0 && at != c.next[0] {
		return fmt.Errorf("offset %d came, %d was due", at, c.next[0])
	}
	c.next[0] = at + 1
	return c.f.note(value, now)
}
