package streamstore

import (
	"slices"
	"testing"

	"github.com/brookletmq/brooklet/objstore"
)

func TestAppendReadReopen(t *testing.T) {
	bucket := objstore.NewMemory()
	opts := testOptions(bucket)
	s := mustOpen(t, opts)
	id := mustCreate(t, s, "users/alice")
	want := []string{"a", "b", "c"}
	for i, p := range want {
		a := mustAppend(t, s, id, simpleBatch(p))
		mustWait(t, a)
		if a.BaseOffset != int64(i) {
			t.Fatalf("append %d got offset %d", i, a.BaseOffset)
		}
	}
	check := func(when string) {
		t.Helper()
		got, err := s.Lookup("users/alice")
		if err != nil || got != id {
			t.Fatalf("%s: Lookup = %d, %v; want %d", when, got, err, id)
		}
		if got := payloads(readAll(t, s, id, 0)); !slices.Equal(got, want) {
			t.Fatalf("%s: read %q, want %q", when, got, want)
		}
	}
	check("after append")
	mustClose(t, s)
	s = mustOpen(t, opts)
	if s.Recovery().TailAppends != 4 {
		t.Errorf("recovered %d tail appends, want 4: a creation and three batches", s.Recovery().TailAppends)
	}
	check("after reopening with an unflushed tail")
	mustFlush(t, s)
	check("after flush")
	mustClose(t, s)
	s = mustOpen(t, opts)
	check("after reopening with an empty tail")
	mustClose(t, s)
	opts.FS = testOptions(bucket).FS
	s = mustOpen(t, opts)
	check("after losing the disk")
	mustWait(t, mustAppend(t, s, id, simpleBatch("d")))
	want = append(want, "d")
	check("after appending on the new disk")
	mustClose(t, s)
}
