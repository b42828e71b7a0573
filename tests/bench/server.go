package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a running broker.
type server struct {
	cmd   *exec.Cmd
	addr  string
	admin string
	log   *bytes.Buffer
	done  chan error
}

// startServer runs the binary on dir and waits until it is ready.
func startServer(ctx context.Context, dir string, args ...string) (*server, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{addr: addr, admin: admin, log: &bytes.Buffer{}, done: make(chan error, 1)}
	args = append([]string{"serve", "--data-dir", filepath.Join(dir, "data"), "--listen", addr, "--admin-listen", admin, "--http-listen", "off"}, args...)
	s.cmd = exec.CommandContext(ctx, *brooklet, args...)
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if *verbose {
		s.cmd.Stdout, s.cmd.Stderr = os.Stderr, os.Stderr
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s (make build makes it): %w", *brooklet, err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	return s, s.awaitReady(ctx)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (s *server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-s.done:
			return fmt.Errorf("the broker ended: %w\n%s", err, s.log)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if response, err := http.Get("http://" + s.admin + "/readyz"); err == nil {
				response.Body.Close()
				if response.StatusCode == http.StatusOK {
					return nil
				}
			}
		}
	}
}

// stop ends the broker in good order.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := <-s.done; err != nil {
		return fmt.Errorf("stopping: %w\n%s", err, s.log)
	}
	return nil
}

// cpu is the processor time that the broker has used.
func (s *server) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// Fields after the command name in parentheses; user and system time are the
	// 14th and 15th of all, in ticks of 1/100 s (proc(5)).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// liveHeap is the broker's live heap after a garbage collection, in bytes.
func (s *server) liveHeap() (int64, error) {
	response, err := http.Get("http://" + s.admin + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "# HeapAlloc = "); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("no HeapAlloc in the heap profile of %s (status %s)", s.admin, response.Status)
}

// written is how many bytes the broker has caused to be written to disk.
func (s *server) written() (int64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(stat)) {
		if value, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("no write_bytes in /proc/pid/io")
}

// residentBytes is the broker's memory in RAM.
func (s *server) residentBytes() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS in /proc/pid/status")
}

// metric is the value of a metric, whose name includes its labels.
func (s *server) metric(name string) (float64, error) {
	value, ok, err := s.findMetric(name)
	if err == nil && !ok {
		err = fmt.Errorf("no metric %s at %s", name, s.admin)
	}
	return value, err
}

// metricOr is metric for one that need not be there.
func (s *server) metricOr(name string, absent float64) (float64, error) {
	value, ok, err := s.findMetric(name)
	if !ok {
		value = absent
	}
	return value, err
}

func (s *server) findMetric(name string) (value float64, ok bool, err error) {
	response, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		return 0, false, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(string(body)) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return value, err == nil, err
		}
	}
	return 0, false, nil
}

// awaitFlushed waits until all that was appended is in the bucket.
func (s *server) awaitFlushed(ctx context.Context) error {
	return s.awaitMetric(ctx, "brooklet_streamstore_unflushed_appends", func(left float64) bool { return left == 0 })
}

// awaitMetric waits until a metric has a value that is wanted.
func (s *server) awaitMetric(ctx context.Context, name string, wanted func(float64) bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		value, err := s.metric(name)
		if err != nil || wanted(value) {
			return err
		}
		select {
		case err := <-s.done:
			return fmt.Errorf("the broker ended: %w\n%s", err, s.log)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
