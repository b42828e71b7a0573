package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// dutyTimeout is for a child process; the programs give up by themselves before, with a better message.
const dutyTimeout = 100 * time.Second

// job is something with results of its own: a client, the tools of Kafka, or a suite of tests.
type job interface {
	title() string
	// tasks are the names of what it can do.
	tasks() []string
	install(ctx context.Context, in *installer) error
	// version is asked after install.
	version(ctx context.Context) (string, error)
	// run carries out one task. The names of all topics and groups that it makes begin with compat.
	run(ctx context.Context, addr, task string) outcome
}

// outcome is what a task has come to.
type outcome struct {
	result string // duty.OK, duty.Fail or duty.NA
	detail string // why it is not OK
	output string // what the client printed, for failures
	passed int    // how many tests of a suite
}

func failed(err error, output string) outcome {
	return outcome{result: duty.Fail, detail: err.Error(), output: output}
}

// report is what is known of a job after the run.
type report struct {
	job      job
	version  string
	outcomes map[string]outcome
}

func main() {
	var (
		binary   = flag.String("broker", "bin/brooklet", "`FILE` to run as broker")
		cache    = flag.String("cache", ".tools/compat", "`FOLDER` for clients and their libraries")
		only     = flag.String("client", "", "`NAMES` of clients to run, separated by commas; all by default")
		task     = flag.String("duty", "", "`NAMES` of duties to run, separated by commas; all by default")
		parallel = flag.Int("parallel", runtime.NumCPU(), "`NUMBER` of clients that run at the same time")
		page     = flag.String("write", "docs/compatibility.md", "`FILE` that a full run writes")
		list     = flag.Bool("list", false, "print the names of clients and duties")
	)
	flag.Parse()
	if *list {
		for _, j := range jobs(*binary) {
			fmt.Printf("%s: %s\n", j.title(), strings.Join(j.tasks(), " "))
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := runner{clients: split(*only), duties: split(*task), parallel: *parallel}
	reports, err := r.run(ctx, *binary, *cache)
	if err == nil {
		printTable(os.Stdout, reports)
		full := len(r.clients) == 0 && len(r.duties) == 0
		if full && ctx.Err() == nil {
			err = writePage(*page, reports)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
	if ctx.Err() != nil || anyFailed(reports) {
		os.Exit(1)
	}
}

func split(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, ",")
}

// jobs are all of them, in the order of the tables. Some start brokers of their own, of a binary.
func jobs(binary string) []job {
	var all []job
	for _, c := range clients() {
		all = append(all, c)
	}
	return append(all, kafkaTools(), franzSuite(), kfakeSuite(binary), saramaSuite(binary), newDurableSuite(binary), versityStore(binary))
}

// runner runs jobs against one broker.
type runner struct {
	clients, duties []string // all if empty
	parallel        int

	installer *installer
	broker    *broker
	printing  sync.Mutex
}

func (r *runner) run(ctx context.Context, binary, cache string) ([]*report, error) {
	var chosen []*report
	for _, j := range jobs(binary) {
		if len(r.clients) == 0 || slices.Contains(r.clients, j.title()) {
			chosen = append(chosen, &report{job: j, outcomes: make(map[string]outcome)})
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("there is no such client; -list names them")
	}
	var err error
	if r.installer, err = newInstaller(cache); err != nil {
		return nil, err
	}
	if r.broker, err = startBroker(ctx, binary); err != nil {
		return nil, err
	}
	defer r.broker.stop()
	var running sync.WaitGroup
	slots := make(chan struct{}, max(r.parallel, 1))
	for _, rep := range chosen {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			r.runJob(ctx, rep)
		})
	}
	running.Wait()
	return chosen, nil
}

// runJob fills in a report.
func (r *runner) runJob(ctx context.Context, rep *report) {
	err := rep.job.install(ctx, r.installer)
	if err == nil {
		rep.version, err = rep.job.version(ctx)
	}
	for _, task := range rep.job.tasks() {
		if len(r.duties) > 0 && !slices.Contains(r.duties, task) {
			continue
		}
		if err != nil {
			rep.outcomes[task] = outcome{result: duty.Fail, detail: "not installed"}
			continue
		}
		start := time.Now()
		o := rep.job.run(ctx, r.broker.addr, task)
		rep.outcomes[task] = o
		r.print(rep.job, task, o, time.Since(start))
	}
	if err != nil {
		r.print(rep.job, "installation", failed(err, ""), 0)
	}
}

// print tells how a task went: a line, and more if it failed.
func (r *runner) print(j job, task string, o outcome, took time.Duration) {
	r.printing.Lock()
	defer r.printing.Unlock()
	fmt.Fprintf(os.Stderr, "%-4s %s %s (%.1fs)", o.result, j.title(), task, took.Seconds())
	if o.detail != "" {
		fmt.Fprintf(os.Stderr, ": %s", o.detail)
	}
	fmt.Fprintln(os.Stderr)
	if o.result == duty.Fail {
		fmt.Fprintf(os.Stderr, "--- the client printed\n%s\n--- the broker's log ends with\n%s---\n", lastLines(o.output, outputLines), r.broker.logTail())
	}
}

// outputLines are printed of what a client that failed has said.
const outputLines = 60

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

func anyFailed(reports []*report) bool {
	for _, rep := range reports {
		for _, o := range rep.outcomes {
			if o.result == duty.Fail {
				return true
			}
		}
	}
	return false
}

func (c *client) title() string { return c.name }

func (c *client) tasks() []string {
	var names []string
	for _, d := range duty.Duties {
		names = append(names, d.Name)
	}
	return names
}

func (c *client) install(ctx context.Context, in *installer) error { return in.install(ctx, c.env) }

func (c *client) version(ctx context.Context) (string, error) {
	o := c.call(ctx, "", "version", "")
	if o.result != duty.OK {
		return "", fmt.Errorf("asking for the version: %s\n%s", o.detail, o.output)
	}
	return o.detail, nil
}

func (c *client) run(ctx context.Context, addr, task string) outcome {
	prefix := "compat-" + c.name + "-"
	if task == "stream" {
		prefix = "compat/" + c.name + "/"
	}
	if err := prepare(ctx, addr, task, prefix+task); err != nil {
		return failed(fmt.Errorf("preparing: %w", err), "")
	}
	o := c.call(ctx, addr, task, prefix)
	if o.result == duty.OK {
		if err := check(ctx, addr, task, prefix+task, c.lacks); err != nil {
			return failed(err, o.output)
		}
	}
	return o
}

// call runs the client program.
func (c *client) call(ctx context.Context, addr, task, prefix string) outcome {
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	arguments := append(slices.Clone(c.command[1:]), "--brokers", addr, "--duty", task, "--topic-prefix", prefix)
	cmd := command(ctx, c.env.dir, c.command[0], arguments...)
	var stdout, stderr output
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return failed(fmt.Errorf("the program did not end: %w", ctx.Err()), stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	var result duty.Result
	if jsonErr := json.Unmarshal([]byte(lines[len(lines)-1]), &result); jsonErr != nil {
		return failed(fmt.Errorf("no result: %w", errors.Join(err, jsonErr)), stdout.String()+stderr.String())
	}
	if wantOK := result.Result == duty.OK || result.Result == duty.NA; result.Duty != task || wantOK != (err == nil) {
		return failed(fmt.Errorf("the result %+v does not fit: %v", result, err), stderr.String())
	}
	return outcome{result: result.Result, detail: result.Detail, output: stderr.String()}
}
