package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"1048588": 1048588, "64MiB": 64 << 20, "64 mib": 64 << 20, "1GB": 1e9, "1.5GiB": 3 << 29, "8k": 8000, "0": 0,
	} {
		if got, err := parseBytes(text, 0, math.MaxInt64); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for text, reason := range map[string]string{
		"":          "write a size such as 64MiB",
		"many":      "write a size such as 64MiB",
		"-1":        "write a size such as 64MiB",
		"64MiBs":    "write a size such as 64MiB",
		"1MiB":      "write a size from 2MiB to 1GiB",
		"2GiB":      "write a size from 2MiB to 1GiB",
		"10000PiB":  "write a size from 2MiB to 1GiB",
		"99999 EiB": "write a size",
	} {
		if got, err := parseBytes(text, 2*mib, gib); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("parseBytes(%q) = %d, %v; want an error that says %q", text, got, err, reason)
		}
	}
}

func TestFormatBytesIsReadBack(t *testing.T) {
	for _, n := range []int64{0, 1, 1000, 1024, 1048588, 64 << 20, 3 << 29, 100 * gib, gib + 1} {
		if got, err := parseBytes(formatBytes(n), 0, math.MaxInt64); err != nil || got != n {
			t.Errorf("%d is written %q and read as %d, %v", n, formatBytes(n), got, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"250ms": 250 * time.Millisecond, "5s": 5 * time.Second, "1h30m": 90 * time.Minute, "7d": 7 * day, "0s": 0,
	} {
		if got, err := parseDuration(text, 0); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
		if got := formatDuration(want); got != text {
			t.Errorf("formatDuration(%v) = %q, want %q", want, got, text)
		}
	}
	for _, text := range []string{"", "5", "d", "1.5d", "-2s", "-2d", "999999999d", "soon"} {
		if got, err := parseDuration(text, 0); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestParseRetention(t *testing.T) {
	for text, want := range map[string]time.Duration{"forever": -1, "-1": -1, "30d": 30 * day, "1ms": time.Millisecond} {
		if got, err := parseRetention(text); err != nil || got != want {
			t.Errorf("parseRetention(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"0s", "1us", "never", "-2h"} {
		if got, err := parseRetention(text); err == nil {
			t.Errorf("parseRetention(%q) = %v, want an error", text, got)
		}
	}
}

func TestOptionsAreDescribed(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range new(settings).options() {
		if o.category == "" || o.usage == "" || strings.HasSuffix(o.usage, ".") {
			t.Errorf("--%s: category %q, usage %q", o.name, o.category, o.usage)
		}
		if seen[o.name] {
			t.Errorf("--%s is defined twice", o.name)
		}
		seen[o.name] = true
		if err := o.problem(); err != nil {
			t.Error("default:", err)
		}
	}
}

// parse runs an app with the options of s.
func parse(t *testing.T, s *settings, args ...string) []*option {
	t.Helper()
	options := s.options()
	app := &cli.App{Name: "test", Action: noArguments, ExitErrHandler: func(*cli.Context, error) {}}
	for _, o := range options {
		app.Flags = append(app.Flags, o.flag())
	}
	if err := app.Run(append([]string{"test"}, args...)); err != nil {
		t.Fatal(err)
	}
	return options
}

func TestFlagWinsOverVariable(t *testing.T) {
	t.Setenv("BROOKLET_RACK", "from-variable")
	t.Setenv("BROOKLET_NODE_ID", "7")
	t.Setenv("BROOKLET_FLUSH_BYTES", "") // counts as unset
	t.Setenv("BROOKLET_IDLE_TIMEOUT", "wrong but overruled")
	var s settings
	options := parse(t, &s, "--rack", "from-flag", "--auto-create-topics=no", "--idle-timeout", "1m")
	if err := s.complete(options); err != nil {
		t.Fatal(err)
	}
	if s.rack != "from-flag" || s.nodeID != 7 || s.flushBytes != 32*mib || s.autoCreateTopics || s.idleTimeout != time.Minute {
		t.Errorf("settings are %+v", s)
	}
}
