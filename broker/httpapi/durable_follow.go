package httpapi

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/brookletmq/brooklet/streamstore"
)

// durableFollower sends a stream as events.
type durableFollower struct {
	s      *Server
	x      *exchange
	d      *durableStream
	rq     *durableRequest
	watch  *watcher
	events *eventStream
	next   int64
	over   bool // the end of a closed stream was sent
}

// durableLifetime is how long an event stream lasts. Clients come back by themselves.
const durableLifetime = 60 * time.Second

// durableFollow answers GET with live=sse.
func (s *Server) durableFollow(x *exchange, d *durableStream, rq *durableRequest) (err error) {
	f := &durableFollower{s: s, x: x, d: d, rq: rq}
	x.live = liveSSE
	if f.watch, err = s.watch(d.target); err != nil {
		return err
	}
	defer f.watch.close()
	if f.next, err = s.locate(x.r.Context(), d.id, rq.from, false); err != nil {
		return err
	}
	// The first read may fail in a way that the client can be told of, while there is a head to say it in.
	first, err := f.burst()
	if err != nil {
		return err
	}
	if !d.isText() {
		x.Header().Set(headerDurableEncoding, "base64")
	}
	s.m.followers.WithLabelValues(liveSSE).Inc()
	defer s.m.followers.WithLabelValues(liveSSE).Dec()
	if f.events, err = x.openEvents(); err == nil {
		defer f.events.close()
		err = f.run(first)
	}
	if errors.Is(err, streamstore.ErrNoStream) {
		err = nil // deleted; the client learns it when it comes back
	}
	x.cut(err)
	return nil
}

// run sends events until the stream ends or the connection has lasted long enough.
func (f *durableFollower) run(events []byte) error {
	lifetime := time.NewTimer(durableLifetime)
	defer lifetime.Stop()
	alive, stop := f.keepAlive()
	defer stop()
	for {
		for len(events) > 0 {
			if err := f.events.send(events); err != nil || f.over {
				return err
			}
			var err error
			if events, err = f.more(); err != nil {
				return err
			}
		}
		var err error
		select {
		case <-f.watch.ready():
			if err = f.watch.take(); err == nil {
				events, err = f.more()
			}
		case <-f.events.idle.C:
			err = f.events.beat()
		case <-alive:
			f.s.keepAlive(f.x, f.d.id)
		case <-lifetime.C:
			return nil
		case <-f.s.draining:
			return nil
		case <-f.x.r.Context().Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// keepAlive ticks when the stream's time to live is to be extended.
func (f *durableFollower) keepAlive() (<-chan time.Time, func()) {
	ttl := f.d.info.Settings.TTL
	if ttl <= 0 || ttl > 2*durableLifetime {
		return nil, func() {}
	}
	ticker := time.NewTicker(max(ttl/4, 10*time.Millisecond))
	return ticker.C, ticker.Stop
}

// more is burst for a reader that has been sent all before. There is nothing if the stream has nothing new.
func (f *durableFollower) more() ([]byte, error) {
	o, err := f.s.store.Offsets(f.d.id)
	if err != nil {
		return nil, err
	}
	over, err := f.s.atEnd(f.d.id, f.next)
	if err != nil || o.HighWatermark <= f.next && !over || f.s.isDraining() {
		return nil, err
	}
	return f.burst()
}

// burst makes the next events: data, if there is any, and what the protocol calls control.
func (f *durableFollower) burst() ([]byte, error) {
	held, err := f.s.hold(f.x.r.Context(), replyCopies*chunkSlack*burstBytes)
	if err != nil {
		return nil, err
	}
	defer held.release()
	b := takeBuffers()
	defer putBuffers(b)
	c, err := f.s.durableChunk(f.x.r.Context(), f.d, f.next, burstBytes, b.scratch)
	b.scratch = c.body
	if err != nil {
		return nil, err
	}
	f.next, f.over = c.next, c.atEnd
	var events []byte
	if c.count > 0 {
		events = f.appendChunk(events, c.body)
	}
	return appendDurableEvent(events, "control", f.control(&c)), nil
}

func (f *durableFollower) appendChunk(dst, body []byte) []byte {
	if f.d.isText() {
		return appendDurableEvent(dst, "data", body)
	}
	encoded := appendBase64(nil, body)
	return appendDurableEvent(dst, "data", encoded[1:len(encoded)-1])
}

// appendDurableEvent is appendEvent without the space behind the colon of data, which readers need not expect, unless the
// line begins with one: they take one away.
func appendDurableEvent(dst []byte, name string, data []byte) []byte {
	dst = append(append(append(dst, "event: "...), name...), '\n')
	for line := range sseLines(data) {
		dst = append(dst, "data:"...)
		if len(line) > 0 && line[0] == ' ' {
			dst = append(dst, ' ')
		}
		dst = append(append(dst, line...), '\n')
	}
	return append(dst, '\n')
}

// control is the data of a control event.
func (f *durableFollower) control(c *durableChunk) []byte {
	members := struct {
		Next     string `json:"streamNextOffset"`
		Cursor   string `json:"streamCursor,omitempty"`
		UpToDate bool   `json:"upToDate,omitempty"`
		Closed   bool   `json:"streamClosed,omitempty"`
	}{Next: formatDurable(c.next), UpToDate: c.upToDate(), Closed: c.atEnd}
	if !c.atEnd {
		members.Cursor = nextCursor(time.Now(), f.rq.cursor)
	}
	text, err := json.Marshal(members)
	if err != nil {
		panic(errors.Join(errors.New("httpapi: a control event is always JSON"), err))
	}
	return text
}
