package objstore

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestReadObject(t *testing.T) {
	for _, size := range []int{0, 1, firstRead, preallocate, preallocate + 1, 3*preallocate + 7} {
		want := bytes.Repeat([]byte{1, 2, 3}, size/3+1)[:size]
		for _, announced := range []int64{-1, int64(size)} {
			got, err := readObject(bytes.NewReader(want), announced)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, announced %d: %d bytes, %v", size, announced, len(got), err)
			}
		}
	}
}

// A store that announces more than it sends costs no more memory than it sends.
func TestReadObjectAllocatesByWhatArrives(t *testing.T) {
	_, err := readObject(bytes.NewReader(make([]byte, 10)), 1<<40)
	if !errors.Is(err, ErrTruncated) || !transient(err) {
		t.Errorf("short object: %v", err)
	}
}

func TestReadRange(t *testing.T) {
	got, err := readRange(iotest.OneByteReader(bytes.NewReader([]byte("012345"))), 5)
	if err != nil || string(got) != "01234" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := readRange(iotest.DataErrReader(bytes.NewReader([]byte("01234"))), 5); err != nil {
		t.Errorf("the end together with the last bytes: %v", err)
	}
	_, err = readRange(bytes.NewReader([]byte("0123")), 5)
	if !errors.Is(err, ErrTruncated) || transient(err) {
		t.Errorf("an object that is too short: %v", err)
	}
	_, err = readRange(io.MultiReader(bytes.NewReader([]byte("01")), iotest.ErrReader(io.ErrUnexpectedEOF)), 5)
	if !errors.Is(err, ErrTruncated) || !transient(err) {
		t.Errorf("a transfer that broke off: %v", err)
	}
}

func TestBackoffBounds(t *testing.T) {
	var o Options
	o.EnsureDefaults()
	for failed := 1; failed < 100; failed++ {
		if w := o.Retry.wait(failed, false); w < 0 || w > min(o.Retry.Base<<min(failed-1, 10), o.Retry.Max) {
			t.Errorf("wait %v after %d failures", w, failed)
		}
		if w := o.Retry.wait(failed, true); w < o.Retry.ThrottledBase/2 || w > o.Retry.ThrottledMax {
			t.Errorf("wait %v after %d throttled attempts", w, failed)
		}
	}
}

func TestInDir(t *testing.T) {
	for _, c := range []struct {
		name, dir string
		want      bool
	}{
		{"a/b", "a", true}, {"a", "", true}, {"a/b", "", false}, {"a/b/c", "a", false}, {"a/", "a", false},
		{"a", "a", false}, {"ab", "a", false}, {"ab/c", "a", false}, {"a/b/c", "a/b", true}, {"", "", false},
	} {
		if got := inDir(c.name, c.dir); got != c.want {
			t.Errorf("inDir(%q, %q) = %v", c.name, c.dir, got)
		}
	}
}
