package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// notifySocket stands in for systemd's.
type notifySocket struct {
	t    *testing.T
	conn *net.UnixConn
}

func listenNotify(t *testing.T, name string) notifySocket {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return notifySocket{t, conn}
}

// await returns the datagrams up to one with the line want.
func (s notifySocket) await(want string) (seen []string) {
	s.t.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		s.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := s.conn.Read(buf)
		if err != nil {
			s.t.Fatalf("waiting for %s: %v; seen %q", want, err, seen)
		}
		seen = append(seen, string(buf[:n]))
		for line := range strings.Lines(seen[len(seen)-1]) {
			if strings.TrimSpace(line) == want {
				return seen
			}
		}
	}
}

func TestServiceManagerIsNotified(t *testing.T) {
	for kind, name := range map[string]string{
		"path":     filepath.Join(t.TempDir(), "notify"),
		"abstract": fmt.Sprintf("@brooklet-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	} {
		t.Run(kind, func(t *testing.T) {
			socket := listenNotify(t, name)
			cmd := command(t, serveArgs(t.TempDir())...)
			cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+name, "WATCHDOG_USEC=100000")
			p := start(t, cmd)
			seen := socket.await("READY=1")
			if !strings.Contains(strings.Join(seen, "\n"), "STATUS=replaying the commit log") {
				t.Errorf("no progress is shown: %q", seen)
			}
			socket.await("WATCHDOG=1")
			socket.await("WATCHDOG=1")
			p.signal(syscall.SIGTERM)
			socket.await("STOPPING=1")
			if code, rest := p.exit(); code != 0 {
				t.Errorf("exit code %d:\n%s", code, rest)
			}
		})
	}
}

func readUnit(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/brooklet.service")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func setting(t *testing.T, unit, name string) string {
	t.Helper()
	match := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(unit)
	if match == nil {
		t.Fatalf("the unit has no %s", name)
	}
	return match[1]
}

func TestUnitFitsTheProgram(t *testing.T) {
	unit := readUnit(t)
	var s settings
	s.options() // fills the defaults in
	stop, err := time.ParseDuration(setting(t, unit, "TimeoutStopSec"))
	if err != nil || stop <= s.drainTimeout {
		t.Errorf("TimeoutStopSec %v (%v) must be longer than the drain timeout %v", stop, err, s.drainTimeout)
	}
	if got, want := setting(t, unit, "RestartPreventExitStatus"), fmt.Sprint(exitSettings, exitFenced); got != want {
		t.Errorf("RestartPreventExitStatus=%s, want %s", got, want)
	}
}

func TestUnitIsVerified(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("systemd-analyze is needed here:", err)
		}
		t.Skip("systemd-analyze is not installed")
	}
	// The program named in the unit need not be installed where the tests run.
	unit := strings.Replace(readUnit(t), "ExecStart=/usr/local/bin/brooklet ", "ExecStart="+os.Args[0]+" ", 1)
	path := filepath.Join(t.TempDir(), "brooklet.service")
	if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	const mostExposure = "20" // of 100, by the rules of the tool
	for _, args := range [][]string{{"verify", path}, {"security", "--offline=true", "--threshold=" + mostExposure, path}} {
		out, err := exec.Command(tool, args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}
