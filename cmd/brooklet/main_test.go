package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runMain makes the test binary behave as brooklet.
const runMain = "TEST_RUNS_BROOKLET"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// testTimeout is how long a test waits for an event that must come.
const testTimeout = 30 * time.Second

// process is a broker that runs as a process of its own.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string   // of standard error; closed at its end
	ended chan struct{} // closed when the process has ended
	err   error         // of Wait, once ended is closed
}

// command is brooklet with arguments; the environment's settings do not reach it.
func command(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, envPrefix) {
			cmd.Env = append(cmd.Env, line)
		}
	}
	cmd.Env = append(cmd.Env, runMain+"=1")
	return cmd
}

// serveArgs runs a broker on ports of the system's choice.
func serveArgs(dataDir string, args ...string) []string {
	return append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json",
		"--data-dir", dataDir}, args...)
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, lines: make(chan string, 10_000), ended: make(chan struct{})}
	go func() {
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		p.err = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-p.ended
	})
	return p
}

// await returns the next log line with message.
func (p *process) await(message string) map[string]any {
	p.t.Helper()
	deadline := time.After(testTimeout)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the process ended without saying %q", message)
			}
			p.t.Log(line)
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
				return fields
			}
		case <-deadline:
			p.t.Fatalf("the process does not say %q", message)
		}
	}
}

// address awaits the log line of a listener.
func (p *process) address(message string) string {
	p.t.Helper()
	return p.await(message)["listen"].(string)
}

// exit waits for the end and returns the exit code and the rest of standard error.
func (p *process) exit() (int, string) {
	p.t.Helper()
	var rest []string
	deadline := time.After(testTimeout)
	for {
		select {
		case line, ok := <-p.lines:
			if ok {
				rest = append(rest, line)
				continue
			}
			<-p.ended
			var exit *exec.ExitError
			if p.err != nil && !errors.As(p.err, &exit) {
				p.t.Fatal(p.err)
			}
			return p.cmd.ProcessState.ExitCode(), strings.Join(rest, "\n")
		case <-deadline:
			p.t.Fatal("the process does not end")
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code, rest := p.exit(); code != 0 {
		p.t.Fatalf("exit code %d after SIGTERM:\n%s", code, rest)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func bucketURL(dir string) string { return "file://" + filepath.ToSlash(dir) }
