package streamstore

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// Transactions that were not in the bucket are set aside like appends are.
func TestTransactionsAreSetAside(t *testing.T) {
	bucket := objstore.NewMemory()
	opts := testOptions(bucket)
	first := mustOpen(t, opts)
	id := mustCreate(t, first, "a")
	mustWait(t, mustAppend(t, first, id, simpleBatch("one")))
	txn := NewTxn()
	txn.Set([]byte("key"), []byte("value"))
	if _, err := first.Commit(context.Background(), txn); err != nil {
		t.Fatal(err)
	}
	mustClose(t, first)
	mustClose(t, mustOpen(t, testOptions(bucket))) // on another disk

	again := openTest(t, opts)
	r := again.Recovery()
	if r.SetAsideAppends != 3 {
		t.Fatalf("%d entries set aside, want a creation, an append and a setting: %+v", r.SetAsideAppends, r)
	}
	records := readAside(t, opts.FS, r.SetAside)
	if len(records) != 3 || records[0].stream != "" || records[1].stream != "a" || records[2].stream != "" {
		t.Fatalf("set aside: %+v", records)
	}
	for _, i := range []int{0, 2} {
		if m, err := decodeMutation(records[i].batch[1:]); err != nil || len(m.rows) == 0 {
			t.Errorf("transaction %d: %+v, %v", i, m, err)
		}
	}
	if _, err := opts.FS.Stat(again.opts.outdatedDir()); err == nil {
		t.Error("the outdated database is still there")
	}
}

// An Open that failed leaves nothing behind that hinders the next one with the same
// registerer.
func TestOpenAgainAfterFailure(t *testing.T) {
	bucket := faulty.New(objstore.NewMemory(), 1)
	opts := testOptions(bucket)
	opts.Registerer = prometheus.NewRegistry()
	bucket.Fail(faulty.Rule{Op: objstore.OpList, Kind: faulty.Stall})
	ctx, cancel := context.WithCancel(context.Background())
	bucket.SetHooks(func(objstore.Op, string) { cancel() }, nil)
	if _, err := Open(ctx, opts); !errors.Is(err, context.Canceled) {
		t.Fatalf("Open with a stalled bucket: %v", err)
	}
	openTest(t, opts)
}
