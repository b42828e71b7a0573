package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

// docsCommand writes the files that list all settings, so that they cannot differ from the program.
func docsCommand() *cli.Command {
	return &cli.Command{
		Name:         "docs",
		Usage:        "write the files that list all settings",
		Hidden:       true, // for the build of the project
		OnUsageError: usageError,
		Subcommands: []*cli.Command{
			writerCommand("configuration", "write docs/configuration.md", configurationPage),
			writerCommand("environment", "write deploy/brooklet.env", environmentFile),
		},
	}
}

func writerCommand(name, usage string, content func() []byte) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "FILE", OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return wrongSettings(errors.New("name one file to write"))
			}
			return os.WriteFile(c.Args().First(), content(), 0o644)
		},
	}
}

const configurationIntro = `<!-- Made from the program by "make docs". Change cmd/brooklet/settings.go instead. -->

# Configuration

Each setting of ` + "`brooklet serve`" + ` is a flag and an environment variable; the flag wins. An empty variable counts as
unset, and a variable that begins with ` + "`BROOKLET_`" + ` but is no setting is reported at start.

Sizes are written ` + "`64MiB`" + ` (powers of 1024), ` + "`1GB`" + ` (powers of 1000) or as plain bytes; times ` + "`250ms`, `5s`, `24h` or `7d`" + `;
switches ` + "`--flag=false`" + `.

All settings are checked before anything is served. If some are wrong, all of them are listed with what to write
instead, and the exit code is 2.
`

const configurationMemory = `
The defaults come from the memory that the process may use: the least of ` + "`GOMEMLIMIT`" + `, the memory limit of its control
group (version 2) and the machine's memory. They are printed at start. Sizes that are set by hand are checked together
with the others; if they do not fit into the limit, the broker says so and does not start. Unless ` + "`GOMEMLIMIT`" + ` is set, the
garbage collector is told to stay below 90 % of the limit.
`

const configurationExit = `
## Exit codes

| code | meaning |
| --- | --- |
| 0 | stopped by a signal; everything is in the bucket or on the disk |
| 1 | could not start, or could not go on (a disk failed, for example) |
| 2 | wrong settings |
| 3 | another broker has opened the same bucket and serves it now; starting again would take it back |
`

// configurationPage is docs/configuration.md.
func configurationPage() []byte {
	var page bytes.Buffer
	page.WriteString(configurationIntro)
	eachCategory(func(category string, options []*option) {
		fmt.Fprintf(&page, "\n## %s\n", category)
		if category == categoryMemory {
			page.WriteString(configurationMemory)
		}
		page.WriteString("\n| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n")
		for _, o := range options {
			fmt.Fprintf(&page, "| `--%s` | `%s` | %s | %s |\n", o.name, o.env(), markdownDefault(o), o.sentence())
		}
	})
	page.WriteString(configurationExit)
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

const environmentIntro = `# Settings of the Brooklet service: remove the # in front of those that differ from the default shown. Relative
# paths begin at /var/lib/brooklet. After a change: systemctl restart brooklet
#
# Credentials of a bucket are best given by the environment of its provider, for example
# AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; keep this file readable by root only then.
`

// environmentFile is deploy/brooklet.env: every setting, commented out.
func environmentFile() []byte {
	var file bytes.Buffer
	file.WriteString(environmentIntro)
	eachCategory(func(category string, options []*option) {
		fmt.Fprintf(&file, "\n## %s\n", category)
		for _, o := range options {
			fmt.Fprintf(&file, "\n%s", wrapComment(o.sentence()))
			if o.fallback != "" {
				fmt.Fprintf(&file, "# Default: %s.\n", o.fallback)
			}
			fmt.Fprintf(&file, "#%s=%s\n", o.env(), o.text)
		}
	})
	return file.Bytes()
}

// wrapComment writes text as comment lines of at most 120 characters.
func wrapComment(text string) string {
	var out strings.Builder
	line := "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 120 {
			out.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	return out.String() + line + "\n"
}

func eachCategory(fn func(category string, options []*option)) {
	all := new(settings).options()
	for _, category := range categories {
		var options []*option
		for _, o := range all {
			if o.category == category {
				options = append(options, o)
			}
		}
		fn(category, options)
	}
}

// sentence is the help text without the mark of the value.
func (o *option) sentence() string {
	text := strings.ReplaceAll(o.usage, "`", "")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
