package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/brookletmq/brooklet/streamstore"
)

func TestProblemsAreReportedTogether(t *testing.T) {
	t.Setenv("BROOKLET_DEFAULT_PARTITIONS", "none")
	var s settings
	err := s.complete(parse(t, &s, "--listen", "localhost", "--admin-listen", "1:2:3", "--flush-interval", "5",
		"--durability", "eventual", "--max-message-bytes", "2MiB", "--max-frame-bytes", "1MiB", "--data-dir", "",
		"--flush-bytes", "1GiB", "--max-unflushed-bytes", "512MiB", "--auto-create-topics=maybe", "--log-level", "loud"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`--listen is "localhost": write host:port`,
		`--admin-listen is "1:2:3": write host:port`,
		`--flush-interval (or BROOKLET_FLUSH_INTERVAL) is "5": write a number with a unit, such as 250ms`,
		`--durability (or BROOKLET_DURABILITY) is "eventual": write one of auto, local, remote`,
		`--default-partitions (or BROOKLET_DEFAULT_PARTITIONS) is "none": write a whole number from 1 to 10000`,
		`--max-message-bytes 2MiB does not fit into --max-frame-bytes 1MiB: raise the second or lower the first`,
		`--data-dir is empty`,
		`--max-unflushed-bytes 512MiB is less than --flush-bytes 1GiB`,
		`--auto-create-topics (or BROOKLET_AUTO_CREATE_TOPICS) is "maybe": write true or false`,
		`--log-level (or BROOKLET_LOG_LEVEL) is "loud": write debug, info, warn or error`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not reported: %s", want)
		}
	}
	if n := strings.Count(settingsError(err).Error(), "\n"); n != 10 {
		t.Errorf("%d problems are listed, want 10:\n%v", n, settingsError(err))
	}
}

func TestAdvertisedAddress(t *testing.T) {
	for _, c := range []struct{ listen, advertise, want, reason string }{
		{listen: "127.0.0.1:9092", want: "127.0.0.1:9092"},
		{listen: "[::1]:9092", want: "[::1]:9092"},
		{listen: "127.0.0.1:0", want: "127.0.0.1:0"}, // replaced by the port that the system chooses
		{listen: ":9092", advertise: "broker-1:19092", want: "broker-1:19092"},
		{listen: "0.0.0.0:9092", advertise: "[2001:db8::1]:9092", want: "[2001:db8::1]:9092"},
		{listen: ":9092", reason: "set --advertise to a host:port"},
		{listen: "0.0.0.0:9092", reason: "set --advertise to a host:port"},
		{listen: "[::]:9092", reason: "set --advertise to a host:port"},
		{listen: ":9092", advertise: "0.0.0.0:9092", reason: "--advertise 0.0.0.0:9092 is nothing that a client can connect to"},
		{listen: ":9092", advertise: ":9092", reason: "--advertise :9092 is nothing"},
		{listen: ":9092", advertise: "broker-1:0", reason: "--advertise broker-1:0 is nothing"},
		{listen: ":9092", advertise: "broker-1", reason: `--advertise is "broker-1": write host:port`},
		{listen: "localhost:kafka", reason: `--listen is "localhost:kafka": the port is "kafka"`},
		{listen: "localhost:70000", reason: "write a number from 0 to 65535"},
	} {
		s := settings{listen: c.listen, advertise: c.advertise}
		got, err := s.advertised()
		switch {
		case c.reason == "" && (err != nil || got.String() != c.want):
			t.Errorf("listen %s, advertise %s: %s, %v; want %s", c.listen, c.advertise, got, err, c.want)
		case c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("listen %s, advertise %s: error %v; want %s", c.listen, c.advertise, err, c.reason)
		}
	}
}

func TestDurabilityFollowsBucket(t *testing.T) {
	folder := "file://" + t.TempDir()
	remote := "s3://bucket/prefix?region=eu-central-1&endpoint=127.0.0.1:1&access_key=me&secret_key=hidden"
	for _, c := range []struct {
		bucket, durability string
		want               streamstore.Durability
	}{
		{folder, "auto", streamstore.Local},
		{folder, "remote", streamstore.Remote},
		{remote, "auto", streamstore.Remote},
		{remote, "local", streamstore.Local},
	} {
		s := settings{bucket: c.bucket, durability: c.durability}
		if err := s.completeBucket(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.storeDurability(); got != c.want {
			t.Errorf("%s, %s: %v, want %v", c.bucket, c.durability, got, c.want)
		}
		if strings.Contains(s.bucketLocation, "hidden") {
			t.Errorf("location %s shows the secret", s.bucketLocation)
		}
	}
}

func TestBucketIsInDataDirByDefault(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	s := settings{dataDir: dir}
	if err := s.completePaths(); err != nil {
		t.Fatal(err)
	}
	if err := s.completeBucket(t.Context()); err != nil {
		t.Fatal(err)
	}
	if entries, err := filepath.Glob(filepath.Join(dir, "bucket")); err != nil || len(entries) != 1 {
		t.Errorf("bucket folder: %v, %v", entries, err)
	}
}

func TestUnknownVariables(t *testing.T) {
	got := unknownVariables([]string{"PATH=/bin", "BROOKLET_LISTEN=:1", "BROOKLET_LISTENER=:2", "BROOKLET_BROKERS=h:1", "BROOKLET_=", "MY_BROOKLET_X=1"}, new(settings).options())
	if want := []string{"BROOKLET_", "BROOKLET_LISTENER"}; !slices.Equal(got, want) {
		t.Errorf("unknown variables %v, want %v", got, want)
	}
}
