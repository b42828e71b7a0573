package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

const suiteTimeout = 15 * time.Minute

// suite is a test suite of somebody else's, compiled from the source in the module cache. Each of its tasks is a test
// program.
type suite struct {
	name, heading string
	// about introduces the suite on the page.
	about    string
	env      *environment
	programs []testProgram
}

// testProgram is a compiled package of tests.
type testProgram struct {
	name  string
	skips []skip
	// dir is where it runs, binary what, and sources a pattern for the files whose tests are run; all are below the folder
	// of the environment.
	dir, binary, sources string
	// environ returns what it needs in its environment, or sets up more and returns how to end that.
	environ func(ctx context.Context, e *environment, addr string) (lines []string, stop func(), err error)
}

// skip is a test that is not run, or a subtest with its path, as a pattern.
type skip struct{ test, reason string }

// copyModule are the steps that bring the source of a module, and leave it in the folder source.
func copyModule(module, version string) [][]string {
	return [][]string{
		{"sh", "-c", "go mod download -json " + module + "@" + version + " > module.json"},
		{"sh", "-c", `cp -r "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' module.json)" source && chmod -R u+w source`},
	}
}

// requiredVersion returns the version of a module that go.mod asks for, which need not be part of this program.
func requiredVersion(module string) string {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return "unknown" // which cannot be downloaded
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "v")
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

func (s *suite) title() string { return s.name }

func (s *suite) tasks() []string {
	var names []string
	for _, p := range s.programs {
		names = append(names, p.name)
	}
	return names
}

func (s *suite) install(ctx context.Context, in *installer) error { return in.install(ctx, s.env) }

func (s *suite) version(context.Context) (string, error) { return s.env.files["version"], nil }

func (s *suite) run(ctx context.Context, addr, task string) outcome {
	ctx, cancel := context.WithTimeout(ctx, suiteTimeout)
	defer cancel()
	p := s.programs[slices.Index(s.tasks(), task)]
	lines, stop, err := p.environ(ctx, s.env, addr)
	if err != nil {
		return failed(err, "")
	}
	defer stop()
	log, err := os.Create(filepath.Join(s.env.dir, p.name+".log"))
	if err != nil {
		return failed(err, "")
	}
	defer log.Close()
	names, err := p.chosen(s.env.dir)
	if err != nil {
		return failed(err, "")
	}
	cmd := command(ctx, filepath.Join(s.env.dir, p.dir), filepath.Join(s.env.dir, p.binary),
		"-test.v", "-test.timeout", (suiteTimeout - time.Minute).String(),
		"-test.run", "^("+strings.Join(names, "|")+")$", "-test.skip", skipPattern(p.skips))
	cmd.Env = append(os.Environ(), lines...)
	cmd.Stdout, cmd.Stderr = log, log
	runErr := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // brokers that tests which panicked have left; mostly none
	}
	bad, passed, err := readTestLog(log.Name())
	if err != nil {
		return failed(err, "")
	}
	if runErr != nil || len(bad) > 0 || passed != len(names) {
		return failed(fmt.Errorf("%d of %d tests passed (exit: %v); %s", passed, len(names), runErr, log.Name()), strings.Join(bad, "\n"))
	}
	return outcome{result: duty.OK, passed: passed}
}

// chosen returns the names of the tests that are run. A list of skips must not outlive what it lists.
func (p *testProgram) chosen(dir string) ([]string, error) {
	names, err := testNames(filepath.Join(dir, p.sources))
	if err != nil {
		return nil, err
	}
	for _, k := range p.skips {
		test, _, sub := strings.Cut(k.test, "/")
		i := slices.Index(names, test)
		switch {
		case i < 0:
			return nil, fmt.Errorf("%s is listed as skipped, but there is no such test, or it is listed twice", k.test)
		case !sub:
			names = slices.Delete(names, i, i+1)
		}
	}
	return names, nil
}

// skipPattern is what go test takes for tests to skip.
func skipPattern(skips []skip) string {
	var patterns []string
	for _, k := range skips {
		patterns = append(patterns, "^"+strings.ReplaceAll(k.test, "/", "$/^")+"$")
	}
	return strings.Join(patterns, "|")
}

// resultLine is a line of go test -v about a test that has ended. Other lines of a log may look like one but for the
// time.
var resultLine = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (Test.* \([0-9.]+s\))$`)

// readTestLog finds the tests that failed or were skipped in a log of go test -v, and counts those that passed, without
// subtests.
func readTestLog(path string) (bad []string, passed int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		m := resultLine.FindStringSubmatch(lines.Text())
		switch {
		case m == nil:
		case m[1] != "PASS":
			bad = append(bad, m[1]+" "+m[2])
		case !strings.HasPrefix(lines.Text(), " "):
			passed++
		}
	}
	return bad, passed, lines.Err()
}

func (s *suite) section(rep *report) string {
	var page strings.Builder
	fmt.Fprintf(&page, "\n## %s\n\n%s Version %s.\n", s.heading, s.about, rep.version)
	for _, p := range s.programs {
		o := rep.outcomes[p.name]
		fmt.Fprintf(&page, "\nPackage %s: %s", p.name, mark(o))
		if o.result == duty.OK {
			fmt.Fprintf(&page, ", %d tests", o.passed)
		}
		page.WriteString(". Not run are:\n\n")
		writeSkips(&page, p.skips)
	}
	return page.String()
}

// writeSkips lists the tests that are not run by their reasons.
func writeSkips(page *strings.Builder, skips []skip) {
	var reasons []string
	tests := make(map[string][]string)
	for _, k := range skips {
		if tests[k.reason] == nil {
			reasons = append(reasons, k.reason)
		}
		tests[k.reason] = append(tests[k.reason], "`"+k.test+"`")
	}
	for _, r := range reasons {
		fmt.Fprintf(page, "- %s: %s\n", r, strings.Join(tests[r], ", "))
	}
}
