package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// brokerBinary is the path of the built broker, set by Main.
var brokerBinary string

// Main builds the binary, runs the tests of m, and returns the exit code for TestMain.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "brooklet-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "brooklet")
	build := exec.Command("go", "build", "-o", path, "github.com/brookletmq/brooklet/cmd/brooklet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile does
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "harness: building the binary:", err)
		return 1
	}
	brokerBinary = path
	return m.Run()
}

// Command is a run of the built binary with other arguments than those of a broker.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, brokerBinary, args...)
}
