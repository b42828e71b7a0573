package main

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

const (
	suiteTimeout = 15 * time.Minute
	// suiteRecords are produced and consumed per test; the library's own default is 500 000.
	suiteRecords = 20_000
)

//go:embed franz_go_skips.txt
var franzSkips string

// suite is the package kgo of franz-go with its integration tests, compiled from the source in the module cache.
type suite struct {
	env   *environment
	skips []skip
}

// skip is a test that is not run, or a subtest with its path, as a pattern.
type skip struct{ test, reason string }

func franzSuite() *suite {
	const module = "github.com/twmb/franz-go"
	return &suite{
		skips: parseSkips(franzSkips),
		env: &environment{
			name:  "franz-go-tests",
			files: map[string]string{"version": duty.ModuleVersion(module)},
			steps: [][]string{
				{"go", "mod", "download", module},
				{"sh", "-c", "cp -r \"$(go list -m -f '{{.Dir}}' " + module + ")\" source && chmod -R u+w source"},
				{"sh", "-c", "cd source/pkg/kgo && go test -c -o ../../../kgo.test ."},
			},
		},
	}
}

func parseSkips(text string) []skip {
	var skips []skip
	for line := range strings.Lines(text) {
		if test, reason, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "#") {
			skips = append(skips, skip{test, reason})
		}
	}
	return skips
}

func (s *suite) title() string { return "franz-go-tests" }

func (s *suite) tasks() []string { return []string{"kgo"} }

func (s *suite) install(ctx context.Context, in *installer) error { return in.install(ctx, s.env) }

func (s *suite) version(context.Context) (string, error) { return s.env.files["version"], nil }

func (s *suite) run(ctx context.Context, addr, _ string) outcome {
	ctx, cancel := context.WithTimeout(ctx, suiteTimeout)
	defer cancel()
	var patterns []string
	for _, k := range s.skips {
		patterns = append(patterns, "^"+strings.ReplaceAll(k.test, "/", "$/^")+"$")
	}
	cmd := command(ctx, filepath.Join(s.env.dir, "source", "pkg", "kgo"), filepath.Join(s.env.dir, "kgo.test"),
		"-test.v", "-test.skip", strings.Join(patterns, "|"), "-test.timeout", (suiteTimeout - time.Minute).String())
	cmd.Env = append(os.Environ(), "KGO_SEEDS="+addr, "KGO_TEST_RF=1", fmt.Sprintf("KGO_TEST_RECORDS=%d", suiteRecords), "KGO_LOG_LEVEL=none")
	log, err := os.Create(filepath.Join(s.env.dir, "log"))
	if err != nil {
		return failed(err, "")
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	runErr := cmd.Run()
	bad, passed, err := readTestLog(log.Name())
	if err != nil {
		return failed(err, "")
	}
	if runErr != nil || len(bad) > 0 || passed == 0 {
		return failed(fmt.Errorf("%d tests passed (exit: %v); %s", passed, runErr, log.Name()), strings.Join(bad, "\n"))
	}
	return outcome{result: duty.OK}
}

// readTestLog finds the tests that failed or were skipped in a log of go test -v, and counts those that passed.
func readTestLog(path string) (bad []string, passed int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		result, test, ok := strings.Cut(strings.TrimSpace(lines.Text()), ": Test")
		switch {
		case !ok:
		case result == "--- PASS":
			passed++
		case result == "--- FAIL" || result == "--- SKIP":
			bad = append(bad, result[len("--- "):]+" Test"+test)
		}
	}
	return bad, passed, lines.Err()
}

func (s *suite) section(rep *report) string {
	var page strings.Builder
	fmt.Fprintf(&page, "\n## The tests of franz-go\n\nThe integration tests of the package kgo, version %s: %s. Not run are:\n\n", rep.version, mark(rep.outcomes["kgo"]))
	for _, k := range s.skips {
		fmt.Fprintf(&page, "- `%s`: %s\n", k.test, k.reason)
	}
	return page.String()
}
