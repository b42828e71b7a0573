package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/objstore"
)

// fastRetry keeps tests over real sockets quick.
var fastRetry = objstore.RetryPolicy{
	Base: time.Millisecond, Max: 5 * time.Millisecond,
	ThrottledBase: time.Millisecond, ThrottledMax: 5 * time.Millisecond,
}

func open(t *testing.T, address string) objstore.Bucket {
	t.Helper()
	b, err := objstore.Open(t.Context(), objstore.Options{URL: address, Retry: fastRetry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// forEachRemote runs test over each provider that speaks to a service.
func forEachRemote(t *testing.T, test func(t *testing.T, f *fakeStore, start func(t *testing.T, f *fakeStore, prefix string) string)) {
	for name, start := range map[string]func(*testing.T, *fakeStore, string) string{
		"s3": startS3, "gcs": startGCS, "azure": startAzure,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFakeStore(), start) })
	}
}

func TestMemoryBucket(t *testing.T) { testBucket(t, open(t, "mem://")) }

func TestBareMemoryBucket(t *testing.T) { testBucket(t, objstore.NewMemory()) }

func TestFilesystemBucket(t *testing.T) { testBucket(t, open(t, "file://"+t.TempDir()+"/a/b")) }

func TestRemoteBuckets(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start func(*testing.T, *fakeStore, string) string) {
		b := open(t, start(t, f, "some/prefix"))
		testBucket(t, b)
		if b.Local() {
			t.Error("a remote bucket says it is local")
		}
		for _, name := range f.names() {
			if !strings.HasPrefix(name, "some/prefix/") {
				t.Errorf("object %q is outside of the prefix", name)
			}
		}
		if n := f.count(http.MethodHead); n != 0 {
			t.Errorf("%d HEAD requests; one request per read is enough", n)
		}
	})
}

func TestRemoteBucketsWithoutPrefix(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start func(*testing.T, *fakeStore, string) string) {
		testBucket(t, open(t, start(t, f, "")))
	})
}

// testBucket is the contract of Bucket, in order of its methods. b must be empty.
func testBucket(t *testing.T, b objstore.Bucket) {
	t.Run("create", func(t *testing.T) { testCreate(t, b) })
	t.Run("create race", func(t *testing.T) { testCreateRace(t, b) })
	t.Run("get", func(t *testing.T) { testGet(t, b) })
	t.Run("get range", func(t *testing.T) { testGetRange(t, b) })
	t.Run("list", func(t *testing.T) { testList(t, b) })
	t.Run("delete", func(t *testing.T) { testDelete(t, b) })
	t.Run("names", func(t *testing.T) { testNames(t, b) })
	t.Run("context", func(t *testing.T) { testContext(t, b) })
}

func mustCreate(t *testing.T, b objstore.Bucket, name, data string) {
	t.Helper()
	if err := b.Create(t.Context(), name, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

func mustGet(t *testing.T, b objstore.Bucket, name string) string {
	t.Helper()
	data, err := b.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func testCreate(t *testing.T, b objstore.Bucket) {
	data := []byte("first")
	if err := b.Create(t.Context(), "create/a b+c%20ü", data); err != nil {
		t.Fatal(err)
	}
	if string(data) != "first" {
		t.Fatalf("data was changed to %q", data)
	}
	copy(data, "XXXXX") // must not be retained
	err := b.Create(t.Context(), "create/a b+c%20ü", []byte("second"))
	wantErr(t, err, objstore.ErrExists)
	if errors.Is(err, objstore.ErrAmbiguous) {
		t.Errorf("ambiguous without an earlier failure: %v", err)
	}
	if got := mustGet(t, b, "create/a b+c%20ü"); got != "first" {
		t.Fatalf("object is %q", got)
	}
}

func testCreateRace(t *testing.T, b objstore.Bucket) {
	var wg sync.WaitGroup
	var winners atomic.Int32
	var winner atomic.Value
	for i := range 8 {
		wg.Go(func() {
			data := strings.Repeat(fmt.Sprint(i), 100_000)
			err := b.Create(t.Context(), "race/deep/er/object", []byte(data))
			switch {
			case err == nil:
				winners.Add(1)
				winner.Store(data)
			case !errors.Is(err, objstore.ErrExists):
				t.Error(err)
			default: // who lost can read the whole object at once
				if got, err := b.Get(t.Context(), "race/deep/er/object"); err != nil || len(got) != 100_000 {
					t.Errorf("loser reads %d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	if winners.Load() != 1 {
		t.Fatalf("%d creates of one name succeeded", winners.Load())
	}
	if mustGet(t, b, "race/deep/er/object") != winner.Load() {
		t.Fatal("the object is not the winner's")
	}
}

func testGet(t *testing.T, b objstore.Bucket) {
	_, err := b.Get(t.Context(), "get/none")
	wantErr(t, err, objstore.ErrNotFound)

	for _, size := range []int{0, 1, 4096, 3<<20 + 1} {
		name := fmt.Sprintf("get/%d", size)
		want := bytes.Repeat([]byte{0xa5, 0, 0xff}, size/3+1)[:size]
		if err := b.Create(t.Context(), name, want); err != nil {
			t.Fatal(err)
		}
		got, err := b.Get(t.Context(), name)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("size %d: got %d bytes, %v", size, len(got), err)
		}
		clear(got) // the slice is the caller's; the object must not notice
		if again := mustGet(t, b, name); again != string(want) {
			t.Fatalf("size %d: object changed with the slice", size)
		}
	}
	_, err = b.Get(t.Context(), "get")
	wantErr(t, err, objstore.ErrNotFound) // a folder is no object
}

func testGetRange(t *testing.T, b objstore.Bucket) {
	mustCreate(t, b, "range/x", "0123456789")
	for _, c := range []struct {
		off, length int64
		want        string
		err         error
	}{
		{0, 10, "0123456789", nil},
		{0, 1, "0", nil},
		{9, 1, "9", nil},
		{3, 4, "3456", nil},
		{5, 0, "", nil},
		{8, 3, "", objstore.ErrTruncated},
		{0, 11, "", objstore.ErrTruncated},
		{10, 1, "", objstore.ErrTruncated},
		{1 << 40, 1, "", objstore.ErrTruncated},
		{-1, 1, "", objstore.ErrName},
		{0, -1, "", objstore.ErrName},
	} {
		got, err := b.GetRange(t.Context(), "range/x", c.off, c.length)
		if !errors.Is(err, c.err) || string(got) != c.want {
			t.Errorf("GetRange(%d, %d) = %q, %v; want %q, %v", c.off, c.length, got, err, c.want, c.err)
		}
	}
	_, err := b.GetRange(t.Context(), "range/none", 0, 1)
	wantErr(t, err, objstore.ErrNotFound)
}

func list(t *testing.T, b objstore.Bucket, dir, after string) []string {
	t.Helper()
	var got []string
	err := b.List(t.Context(), dir, after, func(o objstore.ObjectInfo) error {
		got = append(got, fmt.Sprintf("%s:%d", o.Name, o.Size))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func testList(t *testing.T, b objstore.Bucket) {
	var want []string
	for i := range 10 {
		name := fmt.Sprintf("list/dir/%02d", i)
		mustCreate(t, b, name, strings.Repeat("x", i))
		want = append(want, fmt.Sprintf("%s:%d", name, i))
	}
	for _, name := range []string{"list/dir.x", "list/dir/below/00", "list/dir0"} {
		mustCreate(t, b, name, "x")
	}
	for _, c := range []struct {
		dir, after string
		want       []string
	}{
		{"list/dir", "", want},
		{"list/dir", "list/dir/04", want[5:]},
		{"list/dir", "list/dir/04a", want[5:]},
		{"list/dir", "list/dir/09", nil},
		{"list/dir", "list/dir/below/zz", nil},
		{"list/dir", "a", want},
		{"list", "", []string{"list/dir.x:1", "list/dir0:1"}},
		{"list/dir/below", "", []string{"list/dir/below/00:1"}},
		{"list/nothing", "", nil},
		{"list/di", "", nil},
	} {
		if got := list(t, b, c.dir, c.after); !slices.Equal(got, c.want) {
			t.Errorf("List(%q, %q) = %v, want %v", c.dir, c.after, got, c.want)
		}
	}
	mustCreate(t, b, "top", "x")
	if got := list(t, b, "", ""); !slices.Equal(got, []string{"top:1"}) {
		t.Errorf("List of the top: %v", got)
	}

	stop := errors.New("enough")
	seen := 0
	err := b.List(t.Context(), "list/dir", "", func(objstore.ObjectInfo) error {
		seen++
		return stop
	})
	if err != stop || seen != 1 {
		t.Errorf("List stopped by its function: %v after %d", err, seen)
	}
	err = b.List(t.Context(), "list/dir", "", func(o objstore.ObjectInfo) error {
		_, err := b.Get(t.Context(), o.Name)
		return errors.Join(err, b.Delete(t.Context(), o.Name))
	})
	if err != nil {
		t.Errorf("List with a function that uses the bucket: %v", err)
	}
	if got := list(t, b, "list/dir", ""); got != nil {
		t.Errorf("left after deleting all: %v", got)
	}
}

func testDelete(t *testing.T, b objstore.Bucket) {
	mustCreate(t, b, "delete/dir/x", "1")
	for _, name := range []string{"delete/none", "delete/dir", "none/none", "delete/dir/x/y"} {
		if err := b.Delete(t.Context(), name); err != nil {
			t.Errorf("Delete(%q) without such an object: %v", name, err)
		}
	}
	if got := mustGet(t, b, "delete/dir/x"); got != "1" {
		t.Fatalf("object is %q", got)
	}
	if err := b.Delete(t.Context(), "delete/dir/x"); err != nil {
		t.Fatal(err)
	}
	_, err := b.Get(t.Context(), "delete/dir/x")
	wantErr(t, err, objstore.ErrNotFound)
	mustCreate(t, b, "delete/dir/x", "2")
	if got := mustGet(t, b, "delete/dir/x"); got != "2" {
		t.Fatalf("object is %q", got)
	}
}

func testNames(t *testing.T, b objstore.Bucket) {
	for _, name := range []string{
		"", "/", "a/", "/a", "a//b", "..", "a/../b", "a/.", "a\x00b", "a\nb", "a\xffb", strings.Repeat("x", 1025),
	} {
		if err := b.Create(t.Context(), name, nil); !errors.Is(err, objstore.ErrName) {
			t.Errorf("Create(%q): %v", name, err)
		}
	}
}

func testContext(t *testing.T, b objstore.Bucket) {
	mustCreate(t, b, "context/x", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := b.Get(ctx, "context/x")
	_, rangeErr := b.GetRange(ctx, "context/x", 0, 1)
	for op, err := range map[string]error{
		"create":    b.Create(ctx, "context/y", nil),
		"get":       getErr,
		"get range": rangeErr,
		"list":      b.List(ctx, "context", "", func(objstore.ObjectInfo) error { return nil }),
		"delete":    b.Delete(ctx, "context/x"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a canceled context: %v", op, err)
		}
	}
	if got := mustGet(t, b, "context/x"); got != "1" {
		t.Fatalf("object is %q", got)
	}
}
