package kafkaproto

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// readBufferBytes is the buffer each connection has while it is open. A request is
	// given memory of its own when this much of it, or all, has arrived.
	readBufferBytes = 4 << 10
	// firstFrameBytes is the first buffer of a frame that is larger.
	firstFrameBytes = 2 * readBufferBytes
	// readStepBytes is read at once, at most.
	readStepBytes = 64 << 10
	// minRate is what a peer must keep up to send a request or take a response, in
	// bytes per second. Less is fine for as long as the timeout lasts.
	minRate = 256 << 10
)

// pace is the deadline of a peer that must move on: it is timeout from the start, and
// whatever is transferred moves it as far as minRate needs for that, but never beyond
// timeout from now. So a stalled peer has timeout, and a slow one has timeout and what
// the whole takes at minRate.
type pace struct {
	timeout  time.Duration
	deadline time.Time
}

func startPace(timeout time.Duration) pace {
	return pace{timeout: timeout, deadline: time.Now().Add(timeout)}
}

// moved tells of n bytes transferred.
func (p *pace) moved(n int) {
	most := time.Now().Add(p.timeout)
	p.deadline = p.deadline.Add(time.Duration(n) * time.Second / minRate)
	if p.deadline.After(most) {
		p.deadline = most
	}
}

// excuse moves the deadline by the time since begin, which was not the peer's.
func (p *pace) excuse(begin time.Time) { p.deadline = p.deadline.Add(time.Since(begin)) }

// frameReader cuts a connection's bytes into frames: a size as int32 and that many
// bytes. It decides what to read by what the first bytes say, before it has room for
// the rest.
type frameReader struct {
	br       *bufio.Reader
	versions *Versions
	maxBytes int
	// maxControlBytes bounds frames other than Produce and those of bulkWalks.
	maxControlBytes int
	// setDeadline bounds the reads that follow.
	setDeadline func(time.Time)
	timeout     time.Duration // see pace
	first       bool          // nothing has been read yet
}

// frameHead is what is known of a frame before it is read.
type frameHead struct {
	size         int
	key, version int16
	// tooNew marks an ApiVersions request of a version that is not served. Its body
	// cannot be parsed, but it must be answered (KIP-511).
	tooNew bool
}

// readHead reads the size and looks at key and version. The caller has seen to it
// that a first byte is there. Errors are *parseError, or those of reading.
func (f *frameReader) readHead() (frameHead, error) {
	f.setDeadline(time.Now().Add(f.timeout))
	b, err := f.br.Peek(4)
	if err != nil {
		return frameHead{}, cutFrame(err)
	}
	if hint, ok := describeForeign(b); ok && f.first {
		return frameHead{}, malformed(malformedForeign, "not the Kafka protocol: %s", hint)
	}
	f.first = false
	size := int(int32(binary.BigEndian.Uint32(b)))
	if size < minFrameBytes || size > f.maxBytes {
		return frameHead{}, malformed(malformedSize, "request of %d bytes; a request has at least %d and, by configuration, at most %d", size, minFrameBytes, f.maxBytes)
	}
	if b, err = f.br.Peek(8); err != nil {
		return frameHead{}, cutFrame(err)
	}
	w := wire{b: b[4:]}
	h := frameHead{size: size, key: w.int16(), version: w.int16()}
	if _, err := f.br.Discard(4); err != nil {
		return frameHead{}, cutFrame(err)
	}
	return h, f.check(&h)
}

func (f *frameReader) check(h *frameHead) error {
	low, high, ok := f.versions.Range(h.key)
	switch {
	case !ok:
		return malformed(malformedKey, "API key %d is not served", h.key)
	case f.versions.supports(h.key, h.version):
	case h.key == KeyApiVersions:
		h.tooNew = true
	default:
		return malformed(malformedVersion, "version %d of API key %d is not served, versions %d to %d are", h.version, h.key, low, high)
	}
	if _, bulk := bulkWalks[h.key]; h.key != KeyProduce && !bulk && h.size > f.maxControlBytes {
		return malformed(malformedSize, "request of %d bytes with API key %d; by configuration such requests have at most %d", h.size, h.key, f.maxControlBytes)
	}
	return nil
}

// readBody reads the rest of the frame into memory for which it asks charge first. A
// frame that is announced and never sent costs nothing, since its first bytes stay in
// the connection's read buffer; then the buffer grows with what has arrived, and is at
// most four times as large.
func (f *frameReader) readBody(size int, charge func(n int) error) ([]byte, error) {
	pace := startPace(f.timeout)
	f.setDeadline(pace.deadline)
	if _, err := f.br.Peek(min(size, readBufferBytes)); err != nil {
		return nil, cutFrame(err)
	}
	var frame []byte
	room := min(size, firstFrameBytes)
	for n := 0; ; {
		if n == len(frame) {
			begin := time.Now()
			if err := charge(room - n); err != nil {
				return nil, err
			}
			pace.excuse(begin)
			grown := make([]byte, room)
			copy(grown, frame)
			frame, room = grown, nextRoom(room, size)
		}
		step := min(len(frame)-n, readStepBytes)
		f.setDeadline(pace.deadline)
		if _, err := io.ReadFull(f.br, frame[n:n+step]); err != nil {
			return nil, cutFrame(err)
		}
		pace.moved(step)
		if n += step; n == size {
			return frame, nil
		}
	}
}

// nextRoom is the size of the buffer that follows one of room bytes that is full.
// Early on little has been sent, so little is given.
func nextRoom(room, size int) int {
	if room < readStepBytes {
		return min(2*room, size)
	}
	if room *= 4; size <= 2*room {
		return size // spares one more copy for a little more
	}
	return room
}

// cutFrame words the end of input inside a frame.
func cutFrame(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return malformed(malformedCut, "%w in the middle of a request", errClosedByPeer)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: the rest of a request did not arrive", err)
	}
	return err
}
