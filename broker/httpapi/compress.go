package httpapi

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// compressFrom is the smallest body that is worth compressing, in bytes.
const compressFrom = 1 << 10

var (
	gzipWriters = sync.Pool{New: func() any {
		w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
		if err != nil {
			panic(err) // the level is valid
		}
		return w
	}}
	compressedBodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// compressed returns the body with gzip if the client takes that and it pays. The result is valid until release.
func (x *exchange) compressed(body []byte) (_ []byte, release func(), err error) {
	x.Header().Add("Vary", "Accept-Encoding")
	if len(body) < compressFrom || !acceptsGzip(x.r.Header.Get("Accept-Encoding")) {
		return body, func() {}, nil
	}
	out := compressedBodies.Get().(*bytes.Buffer)
	out.Reset()
	w := gzipWriters.Get().(*gzip.Writer)
	w.Reset(out)
	if _, err = w.Write(body); err == nil {
		err = w.Close()
	}
	gzipWriters.Put(w)
	if err != nil {
		return nil, nil, err
	}
	x.Header().Set("Content-Encoding", "gzip")
	return out.Bytes(), func() {
		if out.Cap() <= 1<<20 {
			compressedBodies.Put(out)
		}
	}, nil
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3).
func acceptsGzip(header string) bool {
	other := false
	for part := range strings.SplitSeq(header, ",") {
		coding, parameters, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip", "x-gzip":
			return quality(parameters) > 0
		case "*":
			other = quality(parameters) > 0
		}
	}
	return other
}

// quality reads the q parameter of an entry of an Accept header, 1 if there is none.
func quality(parameters string) float64 {
	for parameter := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0
		}
		return q
	}
	return 1
}
