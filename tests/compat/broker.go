package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
	logLines     = 40 // of the broker's log that are printed with a failure
)

// broker is a running brooklet process.
type broker struct {
	addr   string
	dir    string // removed by stop; "" for none
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended and its log was read
	listen chan string   // gets the address that is served
	// listenHTTP gets the address at which HTTP is served, if it is.
	listenHTTP chan string

	mu  sync.Mutex
	log []string
}

// startBroker runs a broker with a folder of its own, which stop removes. The flags come after those that all brokers have.
func startBroker(ctx context.Context, binary string, flags ...string) (*broker, error) {
	dir, err := os.MkdirTemp("", "brooklet-compat-")
	if err != nil {
		return nil, err
	}
	b, err := launchBroker(ctx, binary, "127.0.0.1:0", filepath.Join(dir, "data"), flags...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	b.dir = dir
	return b, nil
}

// launchBroker runs a broker at an address, on a data folder that the caller keeps.
func launchBroker(ctx context.Context, binary, listen, data string, flags ...string) (*broker, error) {
	b := &broker{ended: make(chan struct{}), listen: make(chan string, 1), listenHTTP: make(chan string, 1)}
	b.cmd = exec.Command(binary, append([]string{"serve",
		"--listen", listen, "--admin-listen", "127.0.0.1:0", "--http-listen", "off", "--data-dir", data,
		"--auto-create-topics", "--default-retention", "forever", // the records of the duties are years old
		"--log-format", "json"}, flags...)...)
	b.cmd.Env = withoutSettings(os.Environ())
	stderr, err := b.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the broker: %w", err)
	}
	go b.readLog(stderr)
	select {
	case b.addr = <-b.listen:
		return b, nil
	case <-b.ended:
		err = fmt.Errorf("the broker ended: %v\n%s", b.cmd.ProcessState, b.logTail())
	case <-time.After(startTimeout):
		err = fmt.Errorf("the broker does not serve clients after %v\n%s", startTimeout, b.logTail())
	case <-ctx.Done():
		err = ctx.Err()
	}
	b.stop()
	return nil, err
}

func withoutSettings(environment []string) []string {
	var kept []string
	for _, line := range environment {
		if !strings.HasPrefix(line, "BROOKLET_") {
			kept = append(kept, line)
		}
	}
	return kept
}

func (b *broker) readLog(stderr io.Reader) {
	defer close(b.ended)
	lines := bufio.NewReader(stderr)
	for {
		text, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		var line struct{ Msg, Listen string }
		if json.Unmarshal([]byte(text), &line) == nil {
			switch line.Msg {
			case "serving Kafka clients":
				b.listen <- line.Listen
			case "serving HTTP clients":
				b.listenHTTP <- line.Listen
			}
		}
		b.mu.Lock()
		b.log = append(b.log, text)
		b.mu.Unlock()
	}
	_ = b.cmd.Wait() // ProcessState tells how it ended
}

// logTail returns the last lines of the log.
func (b *broker) logTail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.log[max(len(b.log)-logLines, 0):], "")
}

// kill ends the process as kill -9 does.
func (b *broker) kill() {
	_ = b.cmd.Process.Kill() // it may have ended by itself
	<-b.ended
}

// stop ends the process, the hard way if need be, and removes its folder if it has one of its own.
func (b *broker) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-b.ended:
	case <-time.After(stopTimeout):
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
	if b.dir == "" {
		return
	}
	if err := os.RemoveAll(b.dir); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
	}
}

// output collects what a child process prints, up to a limit.
type output struct{ bytes.Buffer }

const outputLimit = 1 << 20

func (o *output) Write(p []byte) (int, error) {
	if room := outputLimit - o.Len(); room > 0 {
		o.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// command returns a child process that is ended with all of its own children when ctx is done.
func command(ctx context.Context, dir, name string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
