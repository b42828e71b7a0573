package main

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// suiteRecords are produced and consumed per test of kgo; its own default is 500 000.
const suiteRecords = 20_000

//go:embed franz_go_skips.txt
var franzSkips string

// franzSuite is the package kgo of franz-go with its integration tests.
func franzSuite() *suite {
	const module = "github.com/twmb/franz-go"
	version := duty.ModuleVersion(module)
	return &suite{
		name: "franz-go-tests", heading: "The tests of franz-go",
		about: "The integration tests of the client library franz-go.",
		env: &environment{
			name: "franz-go-tests", files: map[string]string{"version": version},
			steps: append(copyModule(module, "v"+version), []string{"sh", "-c", "cd source/pkg/kgo && go test -c -o ../../../kgo.test ."}),
		},
		programs: []testProgram{{
			name: "kgo", skips: parseSkips(franzSkips), dir: "source/pkg/kgo", binary: "kgo.test", sources: "source/pkg/kgo/*_test.go",
			environ: func(_ context.Context, _ *environment, addr string) ([]string, func(), error) {
				return []string{"KGO_SEEDS=" + addr, "KGO_TEST_RF=1", fmt.Sprintf("KGO_TEST_RECORDS=%d", suiteRecords), "KGO_LOG_LEVEL=none"}, func() {}, nil
			},
		}},
	}
}

//go:embed kfake_skips.txt
var kfakeSkips string

//go:embed kafka_tests_skips.txt
var kafkaTestsSkips string

// kfakeVersion is what the module kfake is pinned to; it has no tags.
const kfakeVersion = "v0.0.0-20260918054303-01f206a7e32c"

// standIn takes the place of the package kfake.
const standIn = "tests/compat/internal/kfake"

// kfakeSuite are the tests of franz-go's fake broker. They make the fake themselves, with functions of the package that
// they are in, so they cannot be told to use another broker; but what they need of it is little. They are compiled with a
// stand-in for the package that starts brooklet processes.
func kfakeSuite(binary string) *suite {
	environ := func(context.Context, *environment, string) ([]string, func(), error) {
		path, err := filepath.Abs(binary)
		return []string{"BROOKLET_BINARY=" + path}, func() {}, err
	}
	skips, kafkaSkips := parseSkips(kfakeSkips), parseSkips(kafkaTestsSkips)
	return &suite{
		name: "kfake-tests", heading: "The tests of kfake",
		about: "The tests of franz-go's fake broker kfake, made for a real one: each starts a broker of its own.",
		env: &environment{
			name: "kfake-tests", files: map[string]string{"version": kfakeVersion},
			steps:   append(copyModule("github.com/twmb/franz-go/pkg/kfake", kfakeVersion), kfakeModule()),
			refresh: buildKfake(skips, kafkaSkips),
		},
		programs: []testProgram{
			{name: "kfake", skips: skips, dir: "tests", binary: "kfake.test", sources: "source/*_test.go", environ: environ},
			{name: "kafka_tests", skips: kafkaSkips, dir: "tests/kafka_tests", binary: "kafka_tests.test", sources: "source/kafka_tests/*_test.go", environ: environ},
		},
	}
}

// kfakeModule is a step that makes the module file for the tests. They are written for the client beside them in their
// repository, which is newer than the one that their module asks for.
func kfakeModule() []string {
	get := "go get"
	for _, module := range []string{"github.com/twmb/franz-go", "github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kmsg"} {
		get += " " + module + "@v" + duty.ModuleVersion(module)
	}
	return []string{"sh", "-c", "mkdir module && cp source/go.mod source/go.sum module && cd module && " + get}
}

// buildKfake puts the stand-in and the tests that apply together as a module, and compiles them.
func buildKfake(skips, kafkaSkips []skip) func(context.Context, *environment) error {
	return func(ctx context.Context, e *environment) error {
		if err := runStep(ctx, e.dir, []string{"sh", "-c", "rm -rf tests && mkdir -p tests/kafka_tests && cp module/* tests"}); err != nil {
			return err
		}
		if err := copySources(standIn)(ctx, &environment{dir: filepath.Join(e.dir, "tests")}); err != nil {
			return err
		}
		for _, p := range []struct {
			folder string
			skips  []skip
		}{{"", skips}, {"kafka_tests", kafkaSkips}} {
			if err := copyTests(filepath.Join(e.dir, "source", p.folder), filepath.Join(e.dir, "tests", p.folder), p.skips); err != nil {
				return err
			}
		}
		for _, build := range []string{"go test -c -o ../kfake.test .", "go test -c -o ../kafka_tests.test ./kafka_tests"} {
			if err := runStep(ctx, filepath.Join(e.dir, "tests"), strings.Fields(build)); err != nil {
				return err
			}
		}
		return nil
	}
}
