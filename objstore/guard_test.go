package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
	"github.com/prometheus/client_golang/prometheus"
)

// wrapped returns a faulty memory bucket and the same with manners. For tests in a
// synctest bubble, with the default policy.
func wrapped(t *testing.T, reg prometheus.Registerer) (*faulty.Bucket, objstore.Bucket) {
	t.Helper()
	f := faulty.New(objstore.NewMemory(), 1)
	b, err := objstore.Wrap(f, objstore.Options{Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	return f, b
}

func TestRetriesUntilSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		for _, op := range []objstore.Op{objstore.OpCreate, objstore.OpGet, objstore.OpGetRange, objstore.OpList, objstore.OpDelete} {
			f.Fail(faulty.Rule{Op: op, Kind: faulty.Before, Times: 4})
		}
		mustCreate(t, b, "d/x", "123")
		mustGet(t, b, "d/x")
		if data, err := b.GetRange(t.Context(), "d/x", 1, 1); err != nil || string(data) != "2" {
			t.Errorf("GetRange: %q, %v", data, err)
		}
		if got := list(t, b, "d", ""); len(got) != 1 {
			t.Errorf("List: %v", got)
		}
		if err := b.Delete(t.Context(), "d/x"); err != nil {
			t.Error(err)
		}
	})
}

func TestGivesUpAfterMaxAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		f.Fail(faulty.Rule{Kind: faulty.Before, Times: -1})
		_, err := b.Get(t.Context(), "x")
		wantErr(t, err, faulty.ErrInjected)
		if n := f.Calls(objstore.OpGet); n != 5 {
			t.Errorf("%d attempts, want 5", n)
		}
		if !objstore.Retriable(err) {
			t.Error("the caller may try again")
		}
	})
}

func TestGivesUpAfterMaxElapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		f.Fail(faulty.Rule{Kind: faulty.Stall, Times: -1})
		start := time.Now()
		err := b.Create(t.Context(), "x", nil)
		wantErr(t, err, objstore.ErrTimeout)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("an attempt's limit looks like the end of the caller's context")
		}
		// The second attempt begins before 30 s have passed, a third would not.
		if took, n := time.Since(start), f.Calls(objstore.OpCreate); n != 2 || took < 30*time.Second || took > 31*time.Second {
			t.Errorf("%d attempts in %v", n, took)
		}
	})
}

func TestAnswersAreNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		mustCreate(t, b, "x", "1")
		wantErr(t, b.Create(t.Context(), "x", nil), objstore.ErrExists)
		_, err := b.Get(t.Context(), "none")
		wantErr(t, err, objstore.ErrNotFound)
		_, err = b.GetRange(t.Context(), "x", 0, 2)
		wantErr(t, err, objstore.ErrTruncated)
		if c, g, r := f.Calls(objstore.OpCreate), f.Calls(objstore.OpGet), f.Calls(objstore.OpGetRange); c != 2 || g != 1 || r != 1 {
			t.Errorf("creates %d, gets %d, range gets %d", c, g, r)
		}
	})
}

func TestAmbiguousCreate(t *testing.T) {
	for _, kind := range []faulty.Kind{faulty.After, faulty.StallAfter} {
		t.Run(kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, b := wrapped(t, nil)
				f.FailNext(objstore.OpCreate, kind)
				err := b.Create(t.Context(), "x", []byte("mine"))
				wantErr(t, err, objstore.ErrExists)
				wantErr(t, err, objstore.ErrAmbiguous)
				if objstore.Retriable(err) {
					t.Error("nothing is gained by trying again")
				}
			})
		})
	}
}

func TestThrottledBacksOffLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		took := map[faulty.Kind]time.Duration{}
		for _, kind := range []faulty.Kind{faulty.Before, faulty.Throttle} {
			f.Fail(faulty.Rule{Kind: kind, Times: 4})
			start := time.Now()
			mustCreate(t, b, kind.String(), "")
			took[kind] = time.Since(start)
		}
		// At most 0.1+0.2+0.4+0.8 s; at least half of 1+2+4+8 s.
		if took[faulty.Before] > 1500*time.Millisecond || took[faulty.Throttle] < 7500*time.Millisecond {
			t.Errorf("waits: %v", took)
		}
	})
}

func TestContextEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		f.ThrottleFor(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := b.Get(ctx, "x")
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, err, objstore.ErrThrottled) // what it was waiting for
		if took := time.Since(start); took != 300*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// A listing that breaks off goes on after the last name; fn sees each name once.
func TestListResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		for i := range 100 {
			mustCreate(t, b, fmt.Sprintf("d/%03d", i), "")
		}
		// More failures than attempts: each makes headway, which starts the count anew.
		f.Fail(faulty.Rule{Op: objstore.OpList, Kind: faulty.Truncate, Times: 7})
		got := list(t, b, "d", "")
		for i, line := range got {
			if want := fmt.Sprintf("d/%03d:0", i); line != want {
				t.Fatalf("line %d is %s", i, line)
			}
		}
		if len(got) != 100 {
			t.Errorf("%d lines", len(got))
		}
	})
}

// The time of fn is not the time of the store.
func TestListLimitsPausesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		mustCreate(t, b, "d/1", "")
		mustCreate(t, b, "d/2", "")
		n := 0
		err := b.List(t.Context(), "d", "", func(objstore.ObjectInfo) error {
			time.Sleep(time.Hour)
			n++
			return nil
		})
		if err != nil || n != 2 || f.Calls(objstore.OpList) != 1 {
			t.Errorf("slow function: %v after %d names", err, n)
		}
		f.Fail(faulty.Rule{Op: objstore.OpList, Kind: faulty.Stall, Times: -1})
		err = b.List(t.Context(), "d", "", func(objstore.ObjectInfo) error { return nil })
		wantErr(t, err, objstore.ErrTimeout)
	})
}

// unordered lists two names the wrong way round, as S3 directory buckets may.
type unordered struct{ objstore.Bucket }

func (unordered) List(_ context.Context, dir, _ string, fn func(objstore.ObjectInfo) error) error {
	for _, name := range []string{dir + "/2", dir + "/1"} {
		if err := fn(objstore.ObjectInfo{Name: name}); err != nil {
			return err
		}
	}
	return nil
}

func TestListOutOfOrderIsRefused(t *testing.T) {
	b, err := objstore.Wrap(unordered{objstore.NewMemory()}, objstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = b.List(t.Context(), "d", "", func(objstore.ObjectInfo) error { return nil })
	wantErr(t, err, objstore.ErrUnsupported)
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		f, b := wrapped(t, reg)
		if got := gather(t, reg); len(got) != 5*(3+9)+5+1 {
			t.Errorf("%d series at start, want all of them", len(got))
		}
		f.FailNext(objstore.OpCreate, faulty.Before)
		mustCreate(t, b, "x", "12345")
		mustGet(t, b, "x")
		mustCreate(t, f, "d/1", "")
		mustCreate(t, f, "d/2", "")
		b.GetRange(t.Context(), "x", 0, 3)
		b.Get(t.Context(), "none")
		b.Create(t.Context(), "x", nil)
		list(t, b, "d", "")
		got := gather(t, reg)
		for series, want := range map[string]float64{
			"operations_total create":            2,
			"listed_objects_total":               2,
			"retries_total create":               1,
			"failures_total exists create":       1,
			"transferred_bytes_total create":     5,
			"operations_total get":               2,
			"failures_total not_found get":       1,
			"transferred_bytes_total get":        5,
			"transferred_bytes_total get_range":  3,
			"operation_duration_seconds list":    1,
			"failures_total other create":        0,
			"operation_duration_seconds create":  2,
			"transferred_bytes_total list":       0,
			"failures_total rejected get_range":  0,
			"operations_total delete":            0,
			"failures_total throttled get_range": 0,
			"operation_duration_seconds delete":  0,
			"failures_total timeout list":        0,
			"operation_duration_seconds get":     2,
			"failures_total canceled list":       0,
			"operations_total list":              1,
			"failures_total truncated get":       0,
			"failures_total denied get":          0,
			"retries_total get":                  0,
		} {
			if v, ok := got["brooklet_objstore_"+series]; !ok || v != want {
				t.Errorf("%s = %v, want %v", series, v, want)
			}
		}
		if _, err := objstore.Wrap(b, objstore.Options{Registerer: reg}); err == nil {
			t.Error("two buckets on one registerer would mix their numbers")
		}
	})
}

// gather returns counters, and the counts of histograms, by name and label values.
func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

func TestOptionsValidate(t *testing.T) {
	_, err := objstore.Wrap(objstore.NewMemory(), objstore.Options{
		Timeouts: objstore.Timeouts{Get: -1}, Retry: objstore.RetryPolicy{MaxAttempts: -1},
	})
	if err == nil || !strings.Contains(err.Error(), "Timeouts.Get") || !strings.Contains(err.Error(), "Retry.MaxAttempts") {
		t.Errorf("Validate: %v", err)
	}
}

// What a probe says of a store that is merely unwell: nothing, until it is well again.
func TestProbeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		f.ThrottleFor(5 * time.Minute)
		start := time.Now()
		if err := objstore.Probe(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 5*time.Minute || took > 7*time.Minute {
			t.Errorf("took %v", took)
		}
		if n := f.Calls(objstore.OpCreate); n > 5*60 {
			t.Errorf("%d requests to a throttled store", n)
		}

		f.Fail(faulty.Rule{Kind: faulty.After, Times: 20})
		if err := objstore.Probe(t.Context(), b); err != nil {
			t.Errorf("lost answers: %v", err)
		}
	})
}

func TestProbeOfCorruptingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := wrapped(t, nil)
		f.FailNext(objstore.OpGet, faulty.Corrupt)
		wantErr(t, objstore.Probe(t.Context(), b), objstore.ErrUnsupported)
	})
}

func TestRetriable(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, true},
		{objstore.ErrThrottled, true},
		{objstore.ErrTimeout, true},
		{objstore.ErrTruncated, false},
		{fmt.Errorf("%w: %w", objstore.ErrTruncated, io.ErrUnexpectedEOF), true},
		{objstore.ErrExists, false},
		{objstore.ErrNotFound, false},
		{objstore.ErrDenied, false},
		{context.Canceled, false},
	} {
		if got := objstore.Retriable(c.err); got != c.want {
			t.Errorf("Retriable(%v) = %v", c.err, got)
		}
	}
}
