package streamstore

import (
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/objstore/faulty"
)

// gaugesOf returns the gauges and counters of a registry that have no labels.
func gaugesOf(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// The metrics tell how far the bucket is behind, and that it has caught up.
func TestFlushLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := faulty.New(objstore.NewMemory(), 1)
		registry := prometheus.NewRegistry()
		p := startProcess(t, bucket, vfs.NewCrashableMem(), func(o *Options) { o.Registerer = registry })
		id := mustCreate(t, p.Store, "s")
		flushOne(t, p.Store)
		want := func(when string, lag float64, unflushed bool) {
			t.Helper()
			got := gaugesOf(t, registry)
			if got["brooklet_streamstore_flush_lag_seconds"] != lag {
				t.Errorf("%s: lag %v s, want %v", when, got["brooklet_streamstore_flush_lag_seconds"], lag)
			}
			if bytes := got["brooklet_streamstore_unflushed_bytes"]; (bytes > 0) != unflushed || bytes < 0 {
				t.Errorf("%s: %v bytes unflushed", when, bytes)
			}
		}
		synctest.Wait()
		want("at rest", 0, false)
		hold := newGate(t)
		gateCreates(bucket, map[uint64]*gate{3: hold}, nil)
		mustWait(t, mustAppend(t, p.Store, id, simpleBatch("x")))
		time.Sleep(2 * time.Second)
		want("before the flush", 2, true)
		time.Sleep(20 * time.Second)
		want("while the bucket hangs", 22, true)
		hold.open()
		flushOne(t, p.Store)
		synctest.Wait()
		want("when it has caught up", 0, false)
	})
}

// Metrics come in the order of their names: a help text that leans on that of another one says nothing. Nor does one in
// words that only this package has.
func TestMetricHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		startProcess(t, objstore.NewMemory(), vfs.NewCrashableMem(), func(o *Options) { o.Registerer = registry })
		families, err := registry.Gather()
		if err != nil || len(families) == 0 {
			t.Fatalf("%d metrics, %v", len(families), err)
		}
		vague := regexp.MustCompile(`\b(those (commits|objects)|then\.|shard)`)
		for _, f := range families {
			if word := vague.FindString(f.GetHelp()); word != "" {
				t.Errorf("%s: %q in %q", f.GetName(), word, f.GetHelp())
			}
		}
	})
}
