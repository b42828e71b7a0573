package objstore

import (
	"errors"
	"fmt"
	"io"
)

// preallocate bounds what is allocated on the mere word of a server, in bytes.
const preallocate = 1 << 20

// readObject reads r to its end. size is the length that the store announced, or
// negative when it announced none; memory grows with the bytes that arrive. An object
// that does not have the announced size is an error.
func readObject(r io.Reader, size int64) ([]byte, error) {
	data := make([]byte, 0, max(512, min(size+1, preallocate)))
	for {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, brokenBody(err)
		}
	}
	if size >= 0 && int64(len(data)) != size {
		return nil, fmt.Errorf("%w: %d of %d bytes: %w", ErrTruncated, len(data), size, io.ErrUnexpectedEOF)
	}
	return data, nil
}

// readRange reads the length bytes that a range request for them is answered with.
func readRange(r io.Reader, length int64) ([]byte, error) {
	data := make([]byte, length)
	for n := 0; n < len(data); {
		m, err := r.Read(data[n:])
		n += m
		if n == len(data) {
			break
		}
		if err == io.EOF { // the store sent all it has
			return nil, fmt.Errorf("%w: %d of %d bytes", ErrTruncated, n, length)
		}
		if err != nil {
			return nil, brokenBody(err)
		}
	}
	return data, nil
}

// brokenBody marks the errors of a transfer that ended before its announced end.
func brokenBody(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: transfer broke off: %w", ErrTruncated, err)
	}
	return err
}
