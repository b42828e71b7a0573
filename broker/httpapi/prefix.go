package httpapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/streamstore"
)

const (
	// cursorInterval is the time between two cursor events while there is news.
	cursorInterval = time.Second
	// smallCursor is the number of streams up to which a cursor is so small that it follows every burst.
	smallCursor = 64
	// listPageSize is what a reader of a prefix looks at a time of the streams that there are.
	listPageSize = 1000
)

// prefixFollower sends the records of all streams under a prefix as events, those included that are made later.
//
// The order is that of each stream; between streams there is none. Record events carry stream and offset and no id. Every
// now and then comes a cursor event, whose id is the position in all streams at that moment: a reader that comes back with
// it misses nothing, and gets again at most the records behind the last cursor it has seen.
type prefixFollower struct {
	s      *Server
	x      *exchange
	prefix string
	rq     *readRequest
	watch  *streamstore.PrefixWatch
	events *eventStream

	streams map[streamstore.StreamID]*followed
	// queue holds the streams that may have records to send, each once.
	queue []*followed
	// stale tells that records were sent since the last cursor, which was sent at cursorAt.
	stale    bool
	cursorAt time.Time
	ids      []streamstore.StreamID // scratch
}

// followed is a stream that a prefixFollower reads.
type followed struct {
	id     streamstore.StreamID
	name   string
	next   int64
	queued bool
}

// followPrefix answers GET on all streams with live=sse.
func (s *Server) followPrefix(x *exchange, prefix string, rq *readRequest) error {
	f := &prefixFollower{s: s, x: x, prefix: prefix, rq: rq, streams: map[streamstore.StreamID]*followed{}}
	x.live = livePrefix
	resume, err := f.resumeAt()
	if err != nil {
		return err
	}
	f.watch = s.store.WatchPrefix(prefix) // before the look at what there is, so that nothing falls between
	defer f.watch.Close()
	gaps, err := f.begin(resume)
	if err != nil {
		return err
	}
	s.m.followers.WithLabelValues(livePrefix).Inc()
	defer s.m.followers.WithLabelValues(livePrefix).Dec()
	if f.events, err = x.openEvents(); err == nil {
		defer f.events.close()
		err = f.run(gaps)
	}
	x.cut(err)
	return nil
}

// resumeAt reads the cursor that the reader comes back with, nil if there is none. The one of the last event wins over the
// one in the address, which a browser sends again each time.
func (f *prefixFollower) resumeAt() (cursor, error) {
	text := f.x.r.Header.Get(headerLastEventID)
	if text == "" {
		text = f.rq.cursor
	}
	if text == "" {
		return nil, nil
	}
	return decodeCursor(text, f.prefix, f.s.opts.MaxFollowedStreams)
}

// begin looks at the streams that there are. gaps are events about records that the reader has missed.
func (f *prefixFollower) begin(resume cursor) (gaps []byte, err error) {
	err = f.eachStream(func(info *streamstore.StreamInfo) error {
		w, err := f.add(info)
		if err != nil {
			return err
		}
		next, seen := resume[info.ID]
		switch {
		case resume == nil && f.rq.from.kind == atTail:
			w.next = info.HighWatermark
		case seen && next < info.Start:
			gaps = append(gaps, gapEvent(info.Name, next, info.Start)...)
		case seen:
			w.next = next
		}
		if w.next < info.HighWatermark {
			f.push(w)
		}
		return nil
	})
	f.stale = true // a first cursor, so that streams made later are told from those that there are
	return gaps, err
}

// eachStream calls fn with all streams under the prefix.
func (f *prefixFollower) eachStream(fn func(*streamstore.StreamInfo) error) error {
	for after, more := "", true; more; {
		var infos []streamstore.StreamInfo
		var err error
		if infos, more, err = f.s.listStreams(f.prefix, after, listPageSize); err != nil {
			return err
		}
		for i := range infos {
			after = infos[i].Name
			if err := fn(&infos[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// add begins to follow a stream, at its start.
func (f *prefixFollower) add(info *streamstore.StreamInfo) (*followed, error) {
	if limit := f.s.opts.MaxFollowedStreams; len(f.streams) >= limit {
		return nil, tooManyStreams.new("more than %d streams begin with %q: narrow the prefix", limit, f.prefix).with("limit", limit)
	}
	w := &followed{id: info.ID, name: info.Name, next: info.Start}
	f.streams[info.ID] = w
	return w, nil
}

func (f *prefixFollower) push(w *followed) {
	if !w.queued {
		w.queued = true
		f.queue = append(f.queue, w)
	}
}

// run sends events until the client is gone or the server stops. The error is why the connection cannot go on.
func (f *prefixFollower) run(first []byte) error {
	if first != nil {
		if err := f.events.send(first); err != nil {
			return err
		}
	}
	if err := f.sendCursor(); err != nil {
		return err
	}
	ctx := f.x.r.Context()
	due := time.NewTimer(cursorInterval)
	defer due.Stop()
	for {
		if err := f.sendQueued(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		if f.stale && len(f.streams) <= smallCursor {
			if err := f.sendCursor(); err != nil {
				return err
			}
		}
		var dueAt <-chan time.Time
		if f.stale {
			due.Reset(time.Until(f.cursorAt.Add(cursorInterval)))
			dueAt = due.C
		}
		var err error
		select {
		case <-f.watch.Ready():
			err = f.news()
		case <-dueAt:
			err = f.sendCursor()
		case <-f.events.idle.C:
			err = f.events.beat()
		case <-f.s.draining:
			return f.leave()
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// leave ends the events in order: the client can go on exactly here.
func (f *prefixFollower) leave() error {
	if !f.stale {
		return nil
	}
	return f.sendCursor()
}

// sendQueued sends the records of the streams in the queue, one burst of each at a time, so that none waits for all of
// another.
func (f *prefixFollower) sendQueued(ctx context.Context) error {
	for len(f.queue) > 0 && ctx.Err() == nil {
		if f.s.isDraining() {
			return f.leave()
		}
		w := f.queue[0]
		f.queue = f.queue[1:]
		w.queued = false
		more, err := f.burst(ctx, w)
		if err != nil {
			return err
		}
		if more {
			f.push(w)
		}
		if f.stale && time.Since(f.cursorAt) >= cursorInterval {
			if err := f.sendCursor(); err != nil {
				return err
			}
		}
		if len(f.queue) == 0 {
			f.queue = nil // its memory is for bursts only
		}
	}
	return nil
}

// news notes the streams that have news.
func (f *prefixFollower) news() error {
	var lost bool
	if f.ids, lost = f.watch.Take(f.ids[:0]); lost {
		return f.look()
	}
	for _, id := range f.ids {
		w := f.streams[id]
		if w == nil {
			info, err := f.s.store.Describe(id)
			if errors.Is(err, streamstore.ErrNoStream) || err == nil && info.Name[0] == '_' {
				continue
			}
			if err == nil {
				w, err = f.add(&info)
			}
			if err != nil {
				return f.events.fail(err)
			}
		}
		f.push(w)
	}
	return nil
}

// look looks at all streams, after there was more news than a watch keeps.
func (f *prefixFollower) look() error {
	err := f.eachStream(func(info *streamstore.StreamInfo) (err error) {
		w := f.streams[info.ID]
		if w == nil {
			if w, err = f.add(info); err != nil {
				return err
			}
		}
		f.push(w)
		return nil
	})
	if err != nil {
		return f.events.fail(err)
	}
	return nil
}

// burst sends the records of one stream, some burstBytes of them. more tells that it is worth another look.
func (f *prefixFollower) burst(ctx context.Context, w *followed) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(readTimeout, f.s.opts.Heartbeat))
	defer cancel()
	o, err := f.s.store.Offsets(w.id)
	switch {
	case err != nil:
		return f.readFailed(w, err)
	case w.next < o.Start:
		from := w.next
		w.next, f.stale = o.Start, true
		return true, f.events.send(gapEvent(w.name, from, o.Start))
	case w.next >= o.HighWatermark:
		return false, nil
	}
	held, err := f.s.hold(ctx, replyCopies*burstBytes)
	if err != nil {
		return true, f.events.beat() // no memory yet
	}
	defer held.release()
	b := takeBuffers()
	defer putBuffers(b)
	count := 0
	at, err := f.s.eachRecord(ctx, w.id, w.next, endless, burstBytes, func(r *kafkaproto.RecordView) verdict {
		b.events = appendRecordEvent(b.events, "", r, w.name, f.rq, &b.scratch)
		count++
		return b.flush(f.events)
	})
	if err != nil {
		return f.readFailed(w, err)
	}
	if w.next == at.next {
		return false, nil
	}
	w.next, f.stale = at.next, true
	f.s.m.records.WithLabelValues(recordsOut).Add(float64(count))
	return at.next < at.HighWatermark, b.rest(f.events)
}

// readFailed deals with an error of a read of one stream.
func (f *prefixFollower) readFailed(w *followed, err error) (more bool, _ error) {
	if e, ok := errors.AsType[*unreadableError](err); ok {
		w.next, f.stale = e.next, true
		return true, f.events.send(gapEvent(w.name, e.offset, e.next))
	}
	switch {
	case errors.Is(err, streamstore.ErrNoStream):
		delete(f.streams, w.id)
		f.stale = true
		return false, f.events.send(jsonEvent(eventDeleted, map[string]any{"stream": w.name}))
	case errors.Is(err, streamstore.ErrOffsetOutOfRange): // trimmed meanwhile
		return true, nil
	case errors.Is(err, context.DeadlineExceeded): // the bucket is slow
		return true, f.events.beat()
	case errors.Is(err, context.Canceled):
		return false, err
	}
	return false, f.events.fail(err)
}

// sendCursor sends the position in all streams.
func (f *prefixFollower) sendCursor() error {
	c := make(cursor, len(f.streams))
	for id, w := range f.streams {
		c[id] = w.next
	}
	f.stale, f.cursorAt = false, time.Now()
	data := []byte(`{"streams":` + strconv.Itoa(len(c)) + `}`)
	return f.events.send(appendEvent(nil, c.encode(f.prefix), eventCursor, data))
}
