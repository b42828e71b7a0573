package main

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLatencies(t *testing.T) {
	var l latencies
	if got := l.quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := l.quantile(q); got < want || float64(got) > 1.03*float64(want) {
			t.Errorf("quantile %v is %v, want %v to 3%% more", q, got, want)
		}
	}
	l.add(time.Hour)
	l.add(-time.Second) // a clock that was set back
	if got := l.quantile(1); got < 10*time.Minute {
		t.Errorf("an hour counts as %v", got)
	}
}

func TestBucketUse(t *testing.T) {
	const metrics = `
# TYPE brooklet_objstore_operations_total counter
brooklet_objstore_operations_total{op="create"} 100
brooklet_objstore_operations_total{op="get"} 3
brooklet_objstore_operations_total{op="get_range"} 40
brooklet_objstore_operations_total{op="list"} 5
brooklet_objstore_operations_total{op="delete"} 6
# TYPE brooklet_objstore_retries_total counter
brooklet_objstore_retries_total{op="create"} 7
# TYPE brooklet_objstore_transferred_bytes_total counter
brooklet_objstore_transferred_bytes_total{op="create"} 1e9
brooklet_objstore_transferred_bytes_total{op="get"} 10
brooklet_objstore_transferred_bytes_total{op="get_range"} 20
# TYPE brooklet_objstore_listed_objects_total counter
brooklet_objstore_listed_objects_total 2500
`
	got, err := parseBucketUse(strings.NewReader(metrics))
	want := bucketUse{Puts: 107, Gets: 43, Lists: 7, Deletes: 6, BytesIn: 1e9, BytesOut: 30}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := parseBucketUse(strings.NewReader("go_goroutines 3\n")); err == nil {
		t.Error("metrics of another program: no error")
	}
}

// The bill of the example that S3's price page gives for 10,000,000 PUT and GET requests,
// and one GB a second kept for a second.
func TestCost(t *testing.T) {
	run := time.Hour
	perRun := 10e6 / hoursPerMonth
	items := costOf(bucketUse{Puts: perRun, Gets: perRun, Deletes: 5, BytesIn: 3600e9}, run, time.Second, 52)
	want := map[string]float64{"PUT requests": 50, "GET requests": 4, "LIST requests": 0, "DELETE requests": 0, "machine": 52, "bytes kept for 1s": 0.023}
	for _, c := range items {
		if w, ok := want[c.Item]; !ok || math.Abs(c.Dollars-w) > 1e-6 {
			t.Errorf("%s costs %v, want %v", c.Item, c.Dollars, w)
		}
	}
	if len(items) != len(want) {
		t.Errorf("%d items, want %d", len(items), len(want))
	}
	rows := costTable(items).rows
	for i, want := range [][]string{
		{"PUT requests", "10000000 requests", "5 per million", "50.00"},
		{"LIST requests", "0 requests", "5 per million", "0.00"},
		{"GET requests", "10000000 requests", "0.4 per million", "4.00"},
		{"DELETE requests", "3650 requests", "0 per million", "0.00"},
		{"machine", "1 machine", "52 per machine", "52.00"},
	} {
		if !slices.Equal(rows[i], want) {
			t.Errorf("row %q, want %q", rows[i], want)
		}
	}
	if last := rows[len(rows)-1]; last[2] != "0.023 per GB" {
		t.Errorf("bytes kept: %q", last)
	}
	total := rows[len(rows)-2]
	if total[0] != "total without bytes kept" || total[3] != "106.00" {
		t.Errorf("total %q", total)
	}
}

// The command loads a broker, follows what it writes, and bills what the broker's metrics say.
func TestBench(t *testing.T) {
	p := start(t, command(t, serveArgs(t.TempDir())...))
	admin := p.address("admin endpoint")
	c := &cluster{t, p.address("serving Kafka clients")}
	out, err := c.run("bench", "--streams", "20", "--followers", "5", "--rate", "500kB", "--record-bytes", "500", "--duration", "1s",
		"--cost", "--admin", admin, "--machine-dollars", "1", "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var report benchReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if report.Records < 900 || report.Failed != 0 || report.AckP50 <= 0 || report.AckP99 < report.AckP50 {
		t.Errorf("report %+v", report)
	}
	if report.Delivered == 0 || report.DeliveryP50 <= 0 {
		t.Errorf("nothing was delivered: %+v", report)
	}
	if report.BucketRequests == nil || !slices.ContainsFunc(report.Cost, func(c costItem) bool { return c.Dollars == 1 }) {
		t.Errorf("no bill: %+v", report)
	}
}

func TestBenchFlags(t *testing.T) {
	c := &cluster{t, "127.0.0.1:1"}
	for flag, value := range map[string]string{"--rate": "0", "--record-bytes": "7", "--duration": "1ms", "--followers": "1001", "--streams": "0", "--kept": "x", "--prefix": "nop"} {
		c.wantError(exitSettings, flag, "bench", flag, value)
	}
	c.wantError(exitSettings, "more than the 3000 bytes", "bench", "--record-bytes", "3001", "--rate", "1kB", "--duration", "3s")
	c.wantError(exitFailure, "no broker answers", "bench", "--timeout", "1s")
}

// Without the metrics of the broker there is no bill, and it is not the broker's own address that is wrong.
func TestBenchAdmin(t *testing.T) {
	p := start(t, command(t, serveArgs(t.TempDir())...))
	other := p.address("serving HTTP clients")
	c := &cluster{t, p.address("serving Kafka clients")}
	for _, admin := range []string{"127.0.0.1:1", other} {
		args := []string{"bench", "--cost", "--admin", admin, "--duration", "1s"}
		_, err := c.run(args...)
		checkError(t, err, exitFailure, admin, args)
		if err != nil && (!strings.Contains(err.Error(), "--admin") || strings.Contains(err.Error(), c.address)) {
			t.Errorf("error %v", err)
		}
	}
}

// What was measured before an interrupt is reported; the command fails because it is not what was asked for.
func TestBenchInterrupted(t *testing.T) {
	p := start(t, command(t, serveArgs(t.TempDir())...))
	admin := p.address("admin endpoint")
	c := &cluster{t, p.address("serving Kafka clients")}
	cmd := command(t, "bench", "--brokers", c.address, "--streams", "5", "--followers", "2", "--rate", "100kB", "--duration", "1h", "--cost", "--admin", admin, "--output", "json")
	var out bytes.Buffer
	cmd.Stdout = &out
	bench := start(t, cmd)
	for end := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		if list, err := c.run("ls", "bench/"); err == nil && strings.Contains(list, "bench/") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing is written")
		}
	}
	bench.signal(syscall.SIGINT)
	if code, stderr := bench.exit(); code != exitFailure || stderr != "brooklet: interrupted" {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	var report benchReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	if report.Records == 0 || report.Failed > 0 || report.Seconds > testTimeout.Seconds() || report.BucketRequests == nil {
		t.Errorf("report %+v", report)
	}
}
