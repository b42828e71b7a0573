package objstore

import (
	"errors"
	"fmt"
	"io"
)

const (
	// firstRead is what is allocated for an object of unknown size, in bytes.
	firstRead = 32 << 10
	// preallocate bounds what is allocated on the mere word of a store, in bytes.
	preallocate = 1 << 20
)

// readObject reads r to its end. size is its length if known, else -1; memory grows with the bytes that arrive. An object
// of another size is an error. HTTP clients check announced lengths themselves.
func readObject(r io.Reader, size int64) ([]byte, error) {
	// One byte more than the size, so that the end is seen without growing.
	first := min(size+1, preallocate)
	if size < 0 {
		first = firstRead
	}
	data := make([]byte, 0, first)
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
