package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

func TestReadTestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log := `=== RUN   TestA
--- PASS: TestA (0.00s)
--- FAIL: TestB (1.00s)
--- PASS: TestC (0.00s)
    --- PASS: TestC/one (0.00s)
    log --- FAIL: TestD
    --- SKIP: TestB/two (0.00s)
PASS
`
	if err := os.WriteFile(path, []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	bad, passed, err := readTestLog(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"FAIL TestB (1.00s)", "SKIP TestB/two (0.00s)"}; passed != 2 || !slices.Equal(bad, want) {
		t.Errorf("%d passed, bad are %q; want 2 and %q", passed, bad, want)
	}
}

func TestSkipsHaveReasons(t *testing.T) {
	for name, text := range map[string]string{"kgo": franzSkips, "kfake": kfakeSkips, "kafka_tests": kafkaTestsSkips, "sarama": saramaSkips} {
		lines := 0
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				lines++
			}
		}
		skips := parseSkips(text)
		if len(skips) != lines {
			t.Errorf("%s: %d of %d lines are a test with a reason", name, len(skips), lines)
		}
		for _, s := range skips {
			if _, err := regexp.Compile(s.test); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestCopyTestsLeavesOut(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": `package a

import (
	"os"
	"testing"
	"example.com/codec/v4"
)

// TestKept uses a helper.
func TestKept(t *testing.T) { help(t).method() }

// TestLeft uses the insides of the package.
func TestLeft(t *testing.T) { inside(codec.X, os.Args) }
`,
		"b_test.go": `package a

type helper struct{ *testing.T }

func (helper) method() {}

func help(t *testing.T) helper { return helper{t} }

func inside(any, any) { unexported() }
`,
		"c_test.go": `package a

func TestAlsoLeft(t *testing.T) {}
`,
	} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTests(from, to, parseSkips("TestLeft: why\nTestAlsoLeft: why\n")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a_test.go": "package a import ( \"testing\" ) // TestKept uses a helper. func TestKept(t *testing.T) { help(t).method() }",
		"b_test.go": "package a type helper struct{ *testing.T } func (helper) method() {} func help(t *testing.T) helper { return helper{t} }",
	} {
		text, err := os.ReadFile(filepath.Join(to, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(string(text)), " "); got != want {
			t.Errorf("%s is\n%s\nwant\n%s", name, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "c_test.go")); !os.IsNotExist(err) {
		t.Errorf("a file without tests that apply: %v", err)
	}
	p := testProgram{sources: "*_test.go", skips: parseSkips("TestGone: why\n")}
	if _, err := p.chosen(from); err == nil {
		t.Error("a test that is not there can be listed as skipped")
	}
}

// Names become parts of topics and groups, and -client and -duty choose by them.
func TestNamesAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, j := range jobs("") {
		if seen[j.title()] {
			t.Errorf("%s appears twice", j.title())
		}
		seen[j.title()] = true
		tasks := j.tasks()
		slices.Sort(tasks)
		if len(slices.Compact(tasks)) != len(j.tasks()) {
			t.Errorf("a task of %s appears twice", j.title())
		}
	}
}

func TestInstallRunsStepsOnce(t *testing.T) {
	in, err := newInstaller(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	step := []string{"sh", "-c", "cat text >> runs"}
	install := func(text string) string {
		t.Helper()
		in.done = make(map[string]error) // as in the next run of the program
		e := &environment{name: "e", files: map[string]string{"text": text}, steps: [][]string{step}}
		if err := in.install(context.Background(), e); err != nil {
			t.Fatal(err)
		}
		runs, err := os.ReadFile(filepath.Join(e.dir, "runs"))
		if err != nil {
			t.Fatal(err)
		}
		return string(runs)
	}
	if got := install("a"); got != "a" {
		t.Errorf("the step wrote %q, want a", got)
	}
	if got := install("a"); got != "a" {
		t.Errorf("after another install it is %q; what is there must not be installed again", got)
	}
	twin := &environment{name: "e"}
	if err := in.install(context.Background(), twin); err != nil || twin.dir == "" {
		t.Errorf("another environment of the same name is in folder %q, %v", twin.dir, err)
	}
	if got := install("b"); got != "b" {
		t.Errorf("after a change it is %q; the folder must be made anew", got)
	}
}

func TestMissingProgramFails(t *testing.T) {
	in, err := newInstaller(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// No packages to install it from: the error must not depend on the network.
	in.programs["no-such-program"] = os.ErrNotExist
	e := &environment{name: "e", programs: []program{{check: []string{"no-such-program"}}}}
	if err := in.install(context.Background(), e); err == nil {
		t.Error("an environment without its program counts as installed")
	}
}

func TestClientResults(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"ok", `echo '{"duty": "gzip", "result": "ok"}'`, duty.OK},
		{"not applicable", `echo '{"duty": "gzip", "result": "n/a", "detail": "no gzip"}'`, duty.NA},
		{"failed", `echo '{"duty": "gzip", "result": "fail"}'; exit 1`, duty.Fail},
		{"chatter before the result", `echo hello; echo '{"duty": "gzip", "result": "ok"}'`, duty.OK},
		{"no result", `exit 0`, duty.Fail},
		{"crash after the result", `echo '{"duty": "gzip", "result": "ok"}'; exit 3`, duty.Fail},
		{"failure with exit code 0", `echo '{"duty": "gzip", "result": "fail"}'`, duty.Fail},
		{"another duty", `echo '{"duty": "lz4", "result": "ok"}'`, duty.Fail},
		{"unknown result", `echo '{"duty": "gzip", "result": ""}'`, duty.Fail},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &client{env: &environment{dir: t.TempDir()}, command: []string{"sh", "-c", test.script}}
			if got := c.call(context.Background(), "", "gzip", ""); got.result != test.want {
				t.Errorf("the outcome is %+v, want %s", got, test.want)
			}
		})
	}
}

func TestToolTasksNeedEarlierOnes(t *testing.T) {
	earlier := map[string]bool{"": true}
	for _, task := range toolTasks {
		if !earlier[task.needs] {
			t.Errorf("%s needs %q, which is not before it", task.name, task.needs)
		}
		earlier[task.name] = true
	}
}

func TestReadVitest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	report := `{"testResults": [{"message": "", "assertionResults": [
		{"status": "passed", "fullName": "A b"}, {"status": "failed", "fullName": "A c", "failureMessages": ["why"]},
		{"status": "skipped", "fullName": "A d"}, {"status": "skipped", "fullName": "` + durableLeftOut + `e"}]},
		{"message": "cannot be loaded", "assertionResults": []}]}`
	if err := os.WriteFile(path, []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	passed, bad, err := readVitest(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"failed A c: why", "skipped A d: ", "cannot be loaded"}; passed != 1 || !slices.Equal(bad, want) {
		t.Errorf("%d passed, bad are %q; want 1 and %q", passed, bad, want)
	}
}
