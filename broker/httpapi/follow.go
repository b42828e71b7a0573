package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

// follower sends the records of one stream as events, those that there are and those that come. If the stream is deleted
// it waits for another one of its name.
type follower struct {
	s      *Server
	x      *exchange
	t      *target
	rq     *readRequest
	watch  *watcher
	events *eventStream

	// next is the offset of the next record, once located.
	next    int64
	located bool
}

// The id of a record's event: <offset>.<stream id, hexadecimal>. A reader that comes back with it goes on behind that
// record; if another stream has the name now, at that one's start, because it has seen none of its records.

// eventID is the id of the event of a record.
func eventID(offset int64, stream string) string {
	return strconv.FormatInt(offset, 10) + "." + stream
}

func parseEventID(text string) (offset int64, id streamstore.StreamID, err error) {
	number, stream, _ := strings.Cut(text, ".")
	offset, err1 := strconv.ParseInt(number, 10, 64)
	n, err2 := strconv.ParseUint(stream, 16, 64)
	if err := errors.Join(err1, err2); err != nil || offset < 0 {
		return 0, 0, badCursor.new("%s is %q, which is no id of an event of this stream", headerLastEventID, shorten(text))
	}
	return offset, streamstore.StreamID(n), nil
}

// follow answers GET with live=sse.
func (s *Server) follow(x *exchange, t *target, rq *readRequest) error {
	if rq.to != endless || rq.limit != 0 || rq.maxBytes != 0 {
		return badRequest.new("an event stream has no end: to, limit and max_bytes do not go with it")
	}
	if rq.form != "" && rq.form != formJSON && rq.form != formRaw {
		return badRequest.new("events have format json or raw, not %s", rq.form)
	}
	f := &follower{s: s, x: x, t: t, rq: rq}
	x.live = liveSSE
	var err error
	if f.watch, err = s.watch(t); err != nil {
		return err
	}
	defer f.watch.close()
	gap, err := f.begin()
	if err != nil {
		return err
	}
	if done, err := f.alreadyOver(); done || err != nil {
		return err
	}
	s.m.followers.WithLabelValues(liveSSE).Inc()
	defer s.m.followers.WithLabelValues(liveSSE).Dec()
	if f.events, err = x.openEvents(); err == nil {
		defer f.events.close()
		err = f.run(gap)
	}
	x.cut(err)
	return nil
}

// begin finds the offset to begin at. gap, if not nil, is an event about records that the reader has missed.
func (f *follower) begin() (gap []byte, err error) {
	if text := f.x.r.Header.Get(headerLastEventID); text != "" {
		return f.resume(text)
	}
	if f.t.id == 0 {
		if f.rq.from.kind == atOffset && f.rq.from.n > 0 && !f.rq.clamp {
			return nil, errOutOfRange(f.rq.from.n, streamstore.Offsets{})
		}
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(f.x.r.Context(), readTimeout)
	defer cancel()
	f.next, err = f.s.locate(ctx, f.t.id, f.rq.from, f.rq.clamp)
	f.located = err == nil
	if err != nil {
		return nil, readProblem(err, streamstore.Offsets{})
	}
	o, err := f.s.store.Offsets(f.t.id)
	f.describe(o)
	return nil, err
}

// resume goes on behind the record that a reader has seen last.
func (f *follower) resume(lastEventID string) (gap []byte, err error) {
	offset, id, err := parseEventID(lastEventID)
	if err != nil || f.t.id == 0 {
		return nil, err
	}
	o, err := f.s.store.Offsets(f.t.id)
	if err != nil {
		return nil, err
	}
	f.describe(o)
	f.located = true
	f.next = offset + 1
	switch {
	case f.t.id != id:
		f.next = o.Start
	case f.next > o.Next && f.rq.clamp:
		f.next = o.HighWatermark
	case f.next > o.Next:
		return nil, errOutOfRange(f.next, o)
	case f.next < o.Start:
		gap = gapEvent(f.t.name, f.next, o.Start)
		f.next = o.Start
	}
	return gap, nil
}

func (f *follower) describe(o streamstore.Offsets) {
	f.x.Header().Set(headerStreamID, formatID(f.t.id))
	f.x.setOffset(headerStartOffset, o.Start)
	f.x.setOffset(headerEndOffset, o.HighWatermark)
}

// alreadyOver answers 204 to a reader that comes back although it has seen the end of a closed stream: that is how a
// browser is told to stop.
func (f *follower) alreadyOver() (done bool, err error) {
	if !f.located || f.x.r.Header.Get(headerLastEventID) == "" {
		return false, nil
	}
	done, err = f.s.atEnd(f.t.id, f.next)
	if done && err == nil {
		f.x.Header().Set(headerClosed, "true")
		f.x.Header().Set("Cache-Control", cacheNever)
		f.x.WriteHeader(http.StatusNoContent)
	}
	return done, err
}

// gapEvent tells that the records at offsets from to to-1 are not there to be read.
func gapEvent(stream string, from, to int64) []byte {
	return jsonEvent(eventGap, map[string]any{"stream": stream, "from": from, "to": to})
}

func jsonEvent(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // nothing that is passed can fail
	}
	return appendEvent(nil, "", name, text)
}

// run sends events until the client is gone, the stream has ended, or the server stops. The error is why the connection
// cannot go on.
func (f *follower) run(first []byte) error {
	if first != nil {
		if err := f.events.send(first); err != nil {
			return err
		}
	}
	ctx := f.x.r.Context()
	for {
		more, err := f.burst(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if more {
			if f.s.isDraining() {
				return nil
			}
			continue
		}
		if f.located {
			over, err := f.s.atEnd(f.t.id, f.next)
			if err == nil && over {
				return f.events.send(jsonEvent(eventClosed, map[string]any{"next_offset": f.next}))
			}
		}
		select {
		case <-f.watch.ready():
			err = f.watch.take()
		case <-f.events.idle.C:
			err = f.events.beat()
		case <-f.s.draining:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// burst sends the records that there are, some burstBytes of them. more tells that it is worth another look at once.
func (f *follower) burst(ctx context.Context) (more bool, err error) {
	if f.t.id == 0 {
		f.located = false
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(readTimeout, f.s.opts.Heartbeat))
	defer cancel()
	if !f.located {
		if err := f.locate(ctx); err != nil {
			return f.readFailed(err)
		}
	}
	o, err := f.s.store.Offsets(f.t.id)
	switch {
	case err != nil:
		return f.readFailed(err)
	case f.next < o.Start:
		from := f.next
		f.next = o.Start
		return true, f.events.send(gapEvent(f.t.name, from, o.Start))
	case f.next >= o.HighWatermark:
		return false, nil
	}
	held, err := f.s.hold(ctx, replyCopies*burstBytes)
	if err != nil {
		return true, f.events.beat() // no memory yet
	}
	defer held.release()
	b := takeBuffers()
	defer putBuffers(b)
	stream, count := formatID(f.t.id), 0
	at, err := f.s.eachRecord(ctx, f.t.id, f.next, endless, burstBytes, func(r *kafkaproto.RecordView) verdict {
		b.events = appendRecordEvent(b.events, eventID(r.Offset, stream), r, "", f.rq, &b.scratch)
		count++
		return b.flush(f.events)
	})
	if err != nil {
		return f.readFailed(err)
	}
	f.next = at.next
	f.s.m.records.WithLabelValues(recordsOut).Add(float64(count))
	return at.next < at.HighWatermark, b.rest(f.events)
}

// positionInNew is where a reader begins in a stream that did not exist when it came. All of it is new to the reader,
// unless that asked for a time.
func positionInNew(p position) position {
	if p.kind == atTime {
		return p
	}
	return position{kind: atStart}
}

// locate finds where to begin in a stream that did not exist when the reader came.
func (f *follower) locate(ctx context.Context) (err error) {
	f.next, err = f.s.locate(ctx, f.t.id, positionInNew(f.rq.from), true)
	f.located = err == nil
	return err
}

// readFailed deals with an error of a read: it goes on if it can, else it says why the events end.
func (f *follower) readFailed(err error) (more bool, _ error) {
	if e, ok := errors.AsType[*unreadableError](err); ok {
		f.next = e.next
		return true, f.events.send(gapEvent(f.t.name, e.offset, e.next))
	}
	switch {
	case errors.Is(err, streamstore.ErrNoStream):
		if err := f.watch.lost(); err != nil {
			return false, err
		}
		f.located = false
		return true, f.events.send(jsonEvent(eventDeleted, map[string]any{"stream": f.t.name}))
	case errors.Is(err, streamstore.ErrOffsetOutOfRange): // trimmed meanwhile
		return true, nil
	case errors.Is(err, context.DeadlineExceeded): // the bucket is slow
		return true, f.events.beat()
	case errors.Is(err, context.Canceled):
		return false, err
	}
	return false, f.events.fail(err)
}

// fail sends an error as the last event, and returns it.
func (e *eventStream) fail(err error) error {
	p := asProblem(err)
	return errors.Join(fmt.Errorf("the event stream cannot go on: %w", err), e.send(jsonEvent(eventError, p)))
}
