package streamstore

import (
	"testing"

	"github.com/brookletmq/brooklet/objstore"
)

// Who waits for a name has news when a stream of that name gets its first record, and nobody else has.
func TestWatchName(t *testing.T) {
	s := openTest(t, testOptions(objstore.NewMemory()))
	w, other := s.NewWatch(), s.NewWatch()
	defer w.Close()
	defer other.Close()
	w.AddName("a/b", 7)
	other.AddName("a/b/c", 1)
	other.AddName("a", 2)

	id := mustCreate(t, s, "a/b")
	mustWait(t, mustAppend(t, s, id, simpleBatch("first")))
	<-w.Ready()
	if keys := w.Take(nil); len(keys) != 1 || keys[0] != 7 {
		t.Errorf("news of %v, want of 7", keys)
	}
	if _, err := s.Lookup("a/b"); err != nil {
		t.Errorf("the name has news and no stream: %v", err)
	}
	if keys := other.Take(nil); len(keys) != 0 {
		t.Errorf("watches of other names have news: %v", keys)
	}

	w.Remove(7)
	other.Close()
	if n := s.prefixes.names.waiting.Load(); n != 0 || len(s.prefixes.names.byName) != 0 {
		t.Errorf("%d names are watched after the last watch has ended", n)
	}
}
