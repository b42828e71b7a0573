package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// Versions of the conformance tests of the protocol Durable Streams and of what runs them.
const (
	durableVersion = "0.3.6"
	vitestVersion  = "4.1.12"
)

// durableLeftOut begins the names of the tests that the package does not run by default: subscriptions are not served.
const durableLeftOut = "Reserved subscription APIs "

// durableSuite are the conformance tests of the protocol Durable Streams, run against a broker of their own.
type durableSuite struct {
	binary string
	env    *environment
}

const durablePackage = "@durable-streams/server-conformance-tests"

// durableTest is the file that vitest runs. The package has a program that does as much, but it tells vitest to run a file
// below node_modules, where vitest looks for none.
const durableTest = `import { runConformanceTests } from "` + durablePackage + `"
runConformanceTests({ baseUrl: process.env.CONFORMANCE_TEST_URL, longPollTimeoutMs: 20000 })
`

func newDurableSuite(binary string) *durableSuite {
	manifest, err := json.MarshalIndent(map[string]any{"private": true, "dependencies": map[string]string{
		durablePackage: durableVersion, "vitest": vitestVersion,
	}}, "", "  ")
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return &durableSuite{
		binary: binary,
		env: &environment{
			name: "durable-streams", programs: []program{npmProgram},
			files:   map[string]string{"package.json": string(manifest), "durable.test.mjs": durableTest},
			steps:   [][]string{{"npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"}},
			refresh: linkNode,
		},
	}
}

func (s *durableSuite) title() string   { return "durable-streams" }
func (s *durableSuite) tasks() []string { return []string{"server"} }

func (s *durableSuite) install(ctx context.Context, in *installer) error {
	return in.install(ctx, s.env)
}

func (s *durableSuite) version(context.Context) (string, error) { return durableVersion, nil }

func (s *durableSuite) run(ctx context.Context, _, _ string) outcome {
	ctx, cancel := context.WithTimeout(ctx, suiteTimeout)
	defer cancel()
	// A test asks as a web page of another origin does.
	b, err := startBroker(ctx, s.binary, "--http-listen", "127.0.0.1:0", "--http-origins", "*")
	if err != nil {
		return failed(err, "")
	}
	defer b.stop()
	address, err := b.httpAddr(ctx)
	if err != nil {
		return failed(err, b.logTail())
	}
	report := filepath.Join(s.env.dir, "report.json")
	if err := os.RemoveAll(report); err != nil {
		return failed(err, "")
	}
	arguments := []string{
		"node_modules/vitest/vitest.mjs", "run", "durable.test.mjs", "--testTimeout=60000", "--reporter=json", "--outputFile=" + report,
	}
	cmd := command(ctx, s.env.dir, "./node", arguments...)
	cmd.Env = append(os.Environ(), "CONFORMANCE_TEST_URL=http://"+address+"/ds")
	var printed output
	cmd.Stdout, cmd.Stderr = &printed, &printed
	runErr := cmd.Run()
	passed, bad, err := readVitest(report)
	switch {
	case err != nil:
		return failed(errors.Join(runErr, err), printed.String())
	case runErr != nil || len(bad) > 0 || passed == 0:
		return failed(fmt.Errorf("%d tests passed, %d did not (exit: %v)", passed, len(bad), runErr), strings.Join(bad, "\n"))
	}
	return outcome{result: duty.OK, passed: passed}
}

// readVitest reads vitest's report: how many tests have passed, and what came of those that should have.
func readVitest(path string) (passed int, bad []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, nil, err
	}
	var report struct {
		TestResults []struct {
			Message          string
			AssertionResults []struct {
				Status, FullName string
				FailureMessages  []string
			}
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, file := range report.TestResults {
		if file.Message != "" {
			bad = append(bad, file.Message)
		}
		for _, test := range file.AssertionResults {
			switch {
			case test.Status == "passed":
				passed++
			case test.Status == "skipped" && strings.HasPrefix(test.FullName, durableLeftOut):
			default:
				bad = append(bad, test.Status+" "+test.FullName+": "+strings.Join(test.FailureMessages, "; "))
			}
		}
	}
	return passed, bad, nil
}

func (s *durableSuite) section(rep *report) string {
	var page strings.Builder
	o := rep.outcomes["server"]
	fmt.Fprintf(&page, "\n## The conformance tests of Durable Streams\n\nThe tests that the protocol publishes for servers, against `/ds/`. Version %s.\n\nServer: %s", rep.version, mark(o))
	if o.result == duty.OK {
		fmt.Fprintf(&page, ", %d tests", o.passed)
	}
	page.WriteString(". The tests of subscriptions, which the package leaves out by default and which are not served, are not run.\n")
	return page.String()
}

// httpAddr waits for the address at which the broker serves HTTP.
func (b *broker) httpAddr(ctx context.Context) (string, error) {
	select {
	case addr := <-b.listenHTTP:
		return addr, nil
	case <-b.ended:
		return "", errors.New("the broker ended")
	case <-time.After(startTimeout):
		return "", fmt.Errorf("the broker does not serve HTTP after %v", startTimeout)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
