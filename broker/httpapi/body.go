package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

const (
	// firstBody is what is read of a body whose length is not known before more memory is taken for it, in bytes.
	firstBody = 64 << 10
	// bodyCopies is how often the bytes of a body are in memory at the worst moment: read, decoded, and as a batch.
	bodyCopies = 3
)

// earlier is the earlier of two times, of which end may be zero for none.
func earlier(t, end time.Time) time.Time {
	if end.IsZero() || t.Before(end) {
		return t
	}
	return end
}

// body returns the body of the request, decompressed. Each part of it must come within the I/O timeout.
func (x *exchange) body() (io.Reader, error) { return x.bodyUntil(time.Time{}) }

// bodyUntil is body, and all of it must have come by end, unless that is zero.
func (x *exchange) bodyUntil(end time.Time) (io.Reader, error) {
	plain := &bodyReader{x: x, end: end}
	switch coding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); coding {
	case "", "identity":
		return plain, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, bodyProblem(err)
		}
		return z, nil
	default:
		return nil, badMediaType.new("Content-Encoding %q is not known: send gzip, or the body as it is", coding).withHeader("Accept-Encoding", "gzip")
	}
}

// bodyReader reads the body as it comes off the connection.
type bodyReader struct {
	x *exchange
	// end is when the whole body must be there; zero: no such time.
	end time.Time
}

func (b *bodyReader) Read(p []byte) (n int, err error) {
	// A read deadline that stayed would end what the server reads of this connection later.
	_ = b.x.rc.SetReadDeadline(earlier(time.Now().Add(b.x.s.opts.IOTimeout), b.end))
	n, err = b.x.r.Body.Read(p)
	_ = b.x.rc.SetReadDeadline(time.Time{})
	b.x.received += int64(n)
	return n, err
}

// bodyProblem tells why a body could not be read.
func bodyProblem(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return bodyTimeout.new("no more of the body came for too long")
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return badRequest.new("the body is not gzip, as its Content-Encoding says: %v", err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return badRequest.new("the body ends too early")
	}
	if _, ok := errors.AsType[*problem](err); ok {
		return err
	}
	return badRequest.new("the body cannot be read: %v", err)
}

// readBody reads the whole body into memory, at most MaxBodyBytes of it after decompression. release gives the memory
// back.
func (x *exchange) readBody() (body []byte, release func(), err error) {
	limit := x.s.opts.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, nil, x.bodyTooLarge()
	}
	size, most := int64(firstBody), limit
	if x.r.ContentLength >= 0 {
		most = x.r.ContentLength
		if x.r.Header.Get("Content-Encoding") == "" {
			size = x.r.ContentLength + 1 // room to see the end
		}
	}
	held, err := x.s.hold(x.r.Context(), size*bodyCopies)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			held.release()
		}
	}()
	in, err := x.bodyUntil(time.Now().Add(x.s.timeFor(most)))
	if err != nil {
		return nil, nil, err
	}
	body = make([]byte, 0, size)
	for {
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			return nil, nil, x.bodyTooLarge()
		}
		if err == io.EOF {
			return body, held.release, nil
		}
		if err != nil {
			return nil, nil, bodyProblem(err)
		}
		if len(body) < cap(body) {
			continue
		}
		larger := min(2*int64(cap(body)), limit+1)
		if err := held.grow(larger * bodyCopies); err != nil {
			return nil, nil, err
		}
		body = append(make([]byte, 0, larger), body...)
	}
}

func (x *exchange) bodyTooLarge() error {
	limit := x.s.opts.MaxBodyBytes
	return tooLarge.new("the body has more than %d bytes, after decompression: send the records in several requests, or as NDJSON, whose length is not limited", limit).with("limit", limit)
}

// checkLength refuses a body where none is wanted.
func (x *exchange) noBody() error {
	if x.r.ContentLength == 0 || x.r.Body == http.NoBody {
		return nil
	}
	return badRequest.new("%s takes no body", x.r.Method)
}
