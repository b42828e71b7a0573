package objstore_test

import (
	"slices"
	"testing"

	"github.com/brookletmq/brooklet/objstore"
)

func TestMemoryDamage(t *testing.T) {
	m := objstore.NewMemory()
	mustCreate(t, m, "b", "0123456789")
	mustCreate(t, m, "a", "x")
	if got := m.Names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("Names: %v", got)
	}
	if err := m.Corrupt("b", 9); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, m, "b"); got[:9] != "012345678" || got[9] != '9'^0xff {
		t.Errorf("after Corrupt: %q", got)
	}
	if err := m.Truncate("b", 4); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, m, "b"); got != "0123" {
		t.Errorf("after Truncate: %q", got)
	}
	_, err := m.GetRange(t.Context(), "b", 0, 5)
	wantErr(t, err, objstore.ErrTruncated)
	wantErr(t, m.Corrupt("b", 4), objstore.ErrName)
	wantErr(t, m.Truncate("none", 0), objstore.ErrNotFound)
}
