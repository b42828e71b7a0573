package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// healthcheckCommand is for containers, whose images hold no curl.
func healthcheckCommand() *cli.Command {
	return &cli.Command{
		Name:         "healthcheck",
		Usage:        "ask a running broker whether it serves requests; exit code 0 means yes",
		OnUsageError: usageError,
		Before:       noArguments,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "admin", Value: defaultAdminListen, EnvVars: []string{"BROOKLET_ADMIN_LISTEN"},
				Usage: "`ADDRESS` of the broker's admin endpoint"},
			&cli.DurationFlag{Name: "timeout", Value: 3 * time.Second, Usage: "longest time to wait for the answer"},
		},
		Action: func(c *cli.Context) error {
			return checkHealth(c.App.Writer, c.String("admin"), c.Duration("timeout"))
		},
	}
}

func checkHealth(out io.Writer, address string, timeout time.Duration) error {
	client := http.Client{Timeout: timeout}
	resp, err := client.Get("http://" + address + "/readyz")
	if err != nil {
		return fmt.Errorf("no answer from the admin endpoint (is --admin-listen of the broker the same address?): %w", err)
	}
	defer resp.Body.Close()
	const longestReason = 4 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestReason))
	if err != nil {
		return fmt.Errorf("the admin endpoint broke its answer off: %w", err)
	}
	reason := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", reason)
	}
	_, err = fmt.Fprintln(out, reason)
	return err
}
