package httpapi

import (
	"bytes"
	"iter"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// An event stream (text/event-stream, WHATWG HTML, 9.2). Event names and ids are this package's own; whatever users wrote
// is only ever data, and each of its lines has a data: prefix of its own.
//
//	event      data
//	message    a record: JSON, or with format=raw the value, if that is text
//	base64     with format=raw a value that is not UTF-8, as base64
//	null       with format=raw a null value; the data is empty
//	cursor     of a reader of a prefix: {"streams": n}; its id is the position in all streams
//	gap        {"stream", "from", "to"}: the records at these offsets were trimmed, or cannot be decoded
//	deleted    {"stream"}: the stream was deleted
//	closed     {"next_offset"}: the stream is closed and this was its last record; the event stream ends
//	error      problem details; the event stream ends
const (
	eventBase64  = "base64"
	eventNull    = "null"
	eventCursor  = "cursor"
	eventGap     = "gap"
	eventDeleted = "deleted"
	eventClosed  = "closed"
	eventError   = "error"
)

const (
	// burstBytes is what an event stream reads and sends at a time.
	burstBytes = 64 << 10
	// reconnectMs is what clients are told to wait before they connect again, in milliseconds.
	reconnectMs = 2000
)

// appendEvent appends an event. id and name may be empty; neither may hold line breaks.
func appendEvent(dst []byte, id, name string, data []byte) []byte {
	if id != "" {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	return append(appendData(dst, data), '\n')
}

// appendData appends the data lines of an event.
func appendData(dst, data []byte) []byte {
	for line := range sseLines(data) {
		dst = append(append(append(dst, "data: "...), line...), '\n')
	}
	return dst
}

// sseLines are the lines of data, one at least. LF, CR and CRLF end a line, as they do for whoever reads the events.
func sseLines(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for {
			i := bytes.IndexAny(data, "\r\n")
			if i < 0 {
				yield(data)
				return
			}
			if !yield(data[:i]) {
				return
			}
			if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
				i++
			}
			data = data[i+1:]
		}
	}
}

// appendRecordEvent appends the event of a record. stream, if not empty, is the name of its stream.
func appendRecordEvent(dst []byte, id string, r *kafkaproto.RecordView, stream string, rq *readRequest, scratch *[]byte) []byte {
	if rq.form == formRaw {
		switch {
		case r.Value == nil:
			return appendEvent(dst, id, eventNull, nil)
		case utf8.Valid(r.Value):
			return appendEvent(dst, id, "", r.Value)
		}
		encoded := appendBase64((*scratch)[:0], r.Value)
		*scratch = encoded
		return appendEvent(dst, id, eventBase64, encoded[1:len(encoded)-1])
	}
	*scratch = appendRecord((*scratch)[:0], r, stream, rq.values)
	return appendEvent(dst, id, "", *scratch)
}

// eventStream writes an event stream. It holds memory only while it writes.
type eventStream struct {
	x *exchange
	// idle receives when it is time for a sign of life.
	idle *time.Timer
}

// openEvents sends the head of an event stream. No proxy may keep the events back, change or compress them.
func (x *exchange) openEvents() (*eventStream, error) {
	h := x.Header()
	h.Set("Content-Type", mediaEvents)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	x.WriteHeader(http.StatusOK)
	e := &eventStream{x: x, idle: time.NewTimer(x.s.opts.Heartbeat)}
	return e, e.send([]byte("retry: " + strconv.Itoa(reconnectMs) + "\n\n"))
}

func (e *eventStream) close() { e.idle.Stop() }

// send writes events and sends them off.
func (e *eventStream) send(events []byte) error {
	if _, err := e.x.Write(events); err != nil {
		return err
	}
	e.idle.Reset(e.x.s.opts.Heartbeat)
	return e.x.flush()
}

// beat sends a comment, which clients ignore.
func (e *eventStream) beat() error { return e.send([]byte(":\n\n")) }

// buffers are for the events of one burst.
type buffers struct {
	events, scratch []byte
	flushed         bool
	err             error // of sending
}

// flush sends the events if there are many. A burst then ends with its batch, however long that is.
func (b *buffers) flush(e *eventStream) verdict {
	if len(b.events) >= burstBytes {
		b.err = e.send(b.events)
		b.events, b.flushed = b.events[:0], true
	}
	switch {
	case b.err != nil:
		return takenAll
	case b.flushed:
		return lastBatch
	}
	return taken
}

// rest sends what is left at the end of a burst, and returns the first error of sending.
func (b *buffers) rest(e *eventStream) error {
	if b.err != nil || len(b.events) == 0 {
		return b.err
	}
	return e.send(b.events)
}

var eventBuffers = sync.Pool{New: func() any { return new(buffers) }}

func takeBuffers() *buffers {
	b := eventBuffers.Get().(*buffers)
	*b = buffers{events: b.events[:0], scratch: b.scratch[:0]}
	return b
}

func putBuffers(b *buffers) {
	if cap(b.events)+cap(b.scratch) <= 4*burstBytes {
		eventBuffers.Put(b)
	}
}
