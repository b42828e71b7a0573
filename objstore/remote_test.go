package objstore_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/objstore"
)

type starter = func(*testing.T, *fakeStore, string) string

func tryOpen(t *testing.T, address string) error {
	t.Helper()
	b, err := objstore.Open(t.Context(), objstore.Options{URL: address, Retry: fastRetry})
	if err == nil {
		b.Close()
	}
	return err
}

func TestOpenRefusesStoresWithoutCreateIfAbsent(t *testing.T) {
	for name, break_ := range map[string]func(*fakeStore){
		"overwrites":                 func(f *fakeStore) { f.ignoreCondition = true },
		"overwrites and says exists": func(f *fakeStore) { f.claimCondition = true },
	} {
		t.Run(name, func(t *testing.T) {
			forEachRemote(t, func(t *testing.T, f *fakeStore, start starter) {
				break_(f)
				address := start(t, f, "")
				err := tryOpen(t, address)
				wantErr(t, err, objstore.ErrUnsupported)
				if !strings.Contains(err.Error(), "conditional writes") || !strings.Contains(err.Error(), "://data") {
					t.Errorf("the message does not name the store and what is needed: %v", err)
				}
				if names := f.names(); len(names) != 0 {
					t.Errorf("the probe left %v behind", names)
				}
			})
		})
	}
}

func TestOpenRefusesUnfitStores(t *testing.T) {
	for name, c := range map[string]struct {
		break_ func(*fakeStore)
		say    string
	}{
		"no range requests": {func(f *fakeStore) { f.ignoreRange = true }, "range requests"},
		"lost object": {func(f *fakeStore) {
			// The second create must still find it.
			f.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet {
					return false
				}
				w.WriteHeader(http.StatusNotFound)
				return true
			}
		}, "right after it was created"},
		"condition not implemented": {func(f *fakeStore) {
			f.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("If-None-Match") == "" {
					return false
				}
				w.WriteHeader(http.StatusNotImplemented)
				return true
			}
		}, "create objects only if absent"},
		"not permitted": {func(f *fakeStore) { f.failFirst(1000, http.StatusForbidden) }, "check the credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeStore()
			c.break_(f)
			err := tryOpen(t, startS3(t, f, ""))
			if err == nil || !strings.Contains(err.Error(), c.say) {
				t.Errorf("Open: %v; want it to say %q", err, c.say)
			}
		})
	}
}

func TestOpenNamesMissingBucket(t *testing.T) {
	f := newFakeStore()
	address := strings.Replace(startS3(t, f, ""), "s3://data", "s3://other", 1)
	wantErr(t, tryOpen(t, address), objstore.ErrNoBucket)

	f = newFakeStore()
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/token") {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	}
	wantErr(t, tryOpen(t, startGCS(t, f, "")), objstore.ErrNoBucket)
}

func TestOpenWaitsForThrottledStore(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start starter) {
		// More failures than one call makes attempts.
		f.failFirst(12, http.StatusServiceUnavailable)
		mustCreate(t, open(t, start(t, f, "")), "x", "1")
	})
}

func TestOpenWaitsForUnreachableStore(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start starter) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			if n++; n == 12 {
				cancel()
			}
			hangUp(w)
			return true
		}
		_, err := objstore.Open(ctx, objstore.Options{URL: start(t, f, ""), Retry: fastRetry})
		wantErr(t, err, context.Canceled)
	})
}

// An answer that is lost after the object was stored is followed by an attempt that
// finds its own work, and the error says that this may be so.
func TestLostAnswer(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start starter) {
		b := open(t, start(t, f, ""))
		var lose bool
		f.mu.Lock()
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			if !lose {
				return false
			}
			lose = false
			hangUp(w)
			return true
		}
		f.mu.Unlock()

		// The store commits, then the connection is cut.
		cut := false
		f.mu.Lock()
		f.afterCreate = func(string) {
			if !cut {
				cut = true
				panic(http.ErrAbortHandler)
			}
		}
		f.mu.Unlock()
		err := b.Create(t.Context(), "lost", []byte("mine"))
		wantErr(t, err, objstore.ErrExists)
		wantErr(t, err, objstore.ErrAmbiguous)
		if got := mustGet(t, b, "lost"); got != "mine" {
			t.Fatalf("object is %q", got)
		}

		// The connection is cut before the store does anything.
		f.mu.Lock()
		lose = true
		f.mu.Unlock()
		mustCreate(t, b, "not lost", "mine")
	})
}

// S3 answers 409 when another conditional request on the name is in flight.
func TestConflictIsTriedAgain(t *testing.T) {
	f := newFakeStore()
	b := open(t, startS3(t, f, ""))
	f.mu.Lock()
	f.failFirst(2, http.StatusConflict)
	f.mu.Unlock()
	mustCreate(t, b, "x", "1")
}

func TestBrokenBodyIsTriedAgain(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start starter) {
		retry := fastRetry
		retry.MaxAttempts = 2
		b, err := objstore.Open(t.Context(), objstore.Options{
			URL: start(t, f, ""), Retry: retry, Timeouts: objstore.Timeouts{Request: 300 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		mustCreate(t, b, "x", "0123456789")
		breaks := 0
		f.mu.Lock()
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			if breaks == 0 {
				return false
			}
			breaks--
			w.Header().Set("Content-Length", "10")
			w.Header().Set("Content-Range", "bytes 0-9/10")
			w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			w.Header().Set("X-Goog-Generation", "1")
			w.WriteHeader(http.StatusPartialContent)
			if breaks == 0 { // the last; a client that goes on from there asks for the rest
				w.Write([]byte("01234"))
			}
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		f.mu.Unlock()
		const always = 1 << 30
		for _, n := range []int{1, always} {
			f.mu.Lock()
			breaks = n
			f.mu.Unlock()
			data, err := b.GetRange(t.Context(), "x", 0, 10)
			if n == 1 && (err != nil || string(data) != "0123456789") {
				t.Errorf("after one broken transfer: %q, %v", data, err)
			}
			// The GCS client goes on inside one attempt, for as long as that may take.
			if n > 1 && (data != nil || !errors.Is(err, objstore.ErrTruncated) && !errors.Is(err, objstore.ErrTimeout)) {
				t.Errorf("when all transfers break off: %q, %v", data, err)
			}
		}
	})
}

// The caller's context ends a request that hangs, at once and by its own name; the
// limit of an attempt is another error.
func TestHangingStore(t *testing.T) {
	forEachRemote(t, func(t *testing.T, f *fakeStore, start starter) {
		hang := make(chan struct{})
		arrived := make(chan struct{}, 100)
		f.mu.Lock()
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/token") {
				return false
			}
			if r.Method == http.MethodGet {
				arrived <- struct{}{}
			}
			<-hang
			return false
		}
		f.mu.Unlock()
		b, err := objstore.Open(t.Context(), objstore.Options{
			URL: start(t, f, ""), Retry: objstore.RetryPolicy{MaxAttempts: 1}, SkipProbe: true,
			Timeouts: objstore.Timeouts{Request: 50 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		t.Cleanup(func() { close(hang) }) // before the server is closed
		wantErr(t, b.Create(t.Context(), "x", nil), objstore.ErrTimeout)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		_, err = b.Get(ctx, "x")
		wantErr(t, err, context.Canceled)
	})
}
