package duty

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"
)

// Result is the line that a client program prints.
type Result struct {
	Duty   string `json:"duty"`
	Result string `json:"result"` // OK, Fail or NA
	Detail string `json:"detail"`
}

// Results of a duty.
const (
	OK   = "ok"
	Fail = "fail"
	NA   = "n/a"
)

// timeLimit ends a duty that hangs with an error that says where.
const timeLimit = 80 * time.Second

// Main is the main function of a client program in Go.
func Main(open func(brokers string) Client) {
	brokers := flag.String("brokers", "", "`ADDRESS` of the broker")
	name := flag.String("duty", "", "`NAME` of the duty")
	prefix := flag.String("topic-prefix", "", "what the names of topic and group begin with")
	flag.Parse()
	client := open(*brokers)
	result := Result{Duty: *name, Result: OK}
	if *name == "version" {
		result.Detail = client.Version()
	} else {
		result.Result, result.Detail = run(client, *name, *prefix+*name)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if result.Result == Fail {
		os.Exit(1)
	}
}

func run(client Client, name, topic string) (result, detail string) {
	i := slices.IndexFunc(Duties, func(d Duty) bool { return d.Name == name })
	if i < 0 {
		return Fail, "there is no such duty"
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	err := Duties[i].Run(ctx, Env{client, topic, topic})
	var reason NotApplicable
	switch {
	case err == nil:
		return OK, ""
	case errors.As(err, &reason):
		return NA, string(reason)
	default:
		return Fail, err.Error()
	}
}

// ModuleVersion is the version of a module that the program was built with, without the leading v.
func ModuleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version[1:]
		}
	}
	return "unknown"
}
