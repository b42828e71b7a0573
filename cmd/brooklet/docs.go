package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

// docsCommand writes the reference of all settings, so that it cannot differ from the program.
func docsCommand() *cli.Command {
	return &cli.Command{
		Name:         "docs",
		Usage:        "write the reference of all settings to a file",
		ArgsUsage:    "FILE",
		Hidden:       true, // for the build of the project
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return cli.Exit(errors.New("name one file to write"), exitSettings)
			}
			return os.WriteFile(c.Args().First(), configurationPage(), 0o644)
		},
	}
}

const configurationIntro = `<!-- Made from the program by "make docs". Change cmd/brooklet/settings.go instead. -->

# Configuration

Each setting of ` + "`brooklet serve`" + ` is a flag and an environment variable; the flag wins. An empty variable counts as
unset, and a variable that begins with ` + "`BROOKLET_`" + ` but is no setting is reported at start.

Sizes are written ` + "`64MiB`" + ` (powers of 1024), ` + "`1GB`" + ` (powers of 1000) or as plain bytes; times ` + "`250ms`, `5s`, `24h` or `7d`" + `;
switches ` + "`--flag=false`" + `.

All settings are checked before anything is opened. If some are wrong, all of them are listed with what to write
instead, and the exit code is 2.
`

const configurationMemory = `
The defaults come from the memory that the process may use: the least of ` + "`GOMEMLIMIT`" + `, the memory limit of its control
group (version 2) and the machine's memory. They are printed at start. Sizes that are set by hand are checked together
with the others; if they do not fit into the limit, the broker says so and does not start. Unless ` + "`GOMEMLIMIT`" + ` is set, the
garbage collector is told to stay below 90 % of the limit.
`

// configurationPage is docs/configuration.md.
func configurationPage() []byte {
	var page bytes.Buffer
	page.WriteString(configurationIntro)
	options := new(settings).options()
	for _, category := range categories {
		fmt.Fprintf(&page, "\n## %s\n", category)
		if category == categoryMemory {
			page.WriteString(configurationMemory)
		}
		page.WriteString("\n| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n")
		for _, o := range options {
			if o.category == category {
				fmt.Fprintf(&page, "| `--%s` | `%s` | %s | %s |\n", o.name, o.env(), markdownDefault(o), markdownUsage(o))
			}
		}
	}
	return page.Bytes()
}

// markdownDefault shows values as code and descriptions as text.
func markdownDefault(o *option) string {
	switch {
	case o.fallback != "":
		return o.fallback
	case o.text == "":
		return "none"
	}
	return "`" + o.text + "`"
}

// markdownUsage is the help text without the mark of the value.
func markdownUsage(o *option) string {
	text := strings.ReplaceAll(o.usage, "`", "")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
