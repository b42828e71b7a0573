package kafkaproto

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// readBufferBytes is the buffer each connection has while it is open. Requests
	// larger than this are read straight into their frame.
	readBufferBytes = 4 << 10
	// firstFrameBytes is allocated for a frame before any of it has arrived.
	firstFrameBytes = 64 << 10
	// readStepBytes must arrive within FrameTimeout.
	readStepBytes = 64 << 10
)

// frameReader cuts a connection's bytes into frames: a size as int32 and that many
// bytes. It decides what to read by what the first bytes say, before it has room for
// the rest.
type frameReader struct {
	br       *bufio.Reader
	versions *Versions
	maxBytes int
	// maxControlBytes bounds frames other than Produce.
	maxControlBytes int
	// setDeadline bounds the reads that follow.
	setDeadline func(time.Time)
	timeout     time.Duration
	first       bool // nothing has been read yet
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
	if h.key != KeyProduce && h.size > f.maxControlBytes {
		return malformed(malformedSize, "request of %d bytes with API key %d; only Produce may have more than %d", h.size, h.key, f.maxControlBytes)
	}
	return nil
}

// readBody reads the rest of the frame into memory that is charged to l first. The
// buffer grows with what has arrived and is at most eight times as large: a frame
// that is announced and never sent costs firstFrameBytes.
func (f *frameReader) readBody(ctx context.Context, size int, frames *budget, l *lease) ([]byte, error) {
	if int64(size) > frames.capacity {
		return nil, budgetError(size, errOverBudget)
	}
	room := min(size, firstFrameBytes)
	if err := frames.acquire(ctx, l, int64(room)); err != nil {
		return nil, budgetError(size, err)
	}
	buf := make([]byte, room)
	for n := 0; ; {
		step := min(len(buf)-n, readStepBytes)
		f.setDeadline(time.Now().Add(f.timeout))
		if _, err := io.ReadFull(f.br, buf[n:n+step]); err != nil {
			return nil, cutFrame(err)
		}
		if n += step; n == size {
			return buf, nil
		}
		if n < len(buf) {
			continue
		}
		if room = 4 * len(buf); size <= 2*room {
			room = size // spares one more copy for a little more
		}
		if err := l.grow(ctx, int64(room-len(buf))); err != nil {
			return nil, budgetError(size, err)
		}
		grown := make([]byte, room)
		copy(grown, buf)
		buf = grown
	}
}

// budgetError makes the refusal out of an error of the memory budget.
func budgetError(size int, err error) error {
	if errors.Is(err, errOverBudget) {
		return malformed(malformedSize, "request of %d bytes: %w; raise the limit on request memory or send smaller requests", size, err)
	}
	return err
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
