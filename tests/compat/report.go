package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// printTable prints what came of each client and duty.
func printTable(w io.Writer, reports []*report) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var heading []string
	for _, rep := range reports {
		if tasks := chosenTasks(rep); !slices.Equal(tasks, heading) {
			heading = tasks
			fmt.Fprintf(table, "\n\t%s\n", strings.Join(tasks, "\t"))
		}
		cells := []string{rep.job.title() + " " + rep.version}
		for _, task := range heading {
			cells = append(cells, mark(rep.outcomes[task]))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // to standard output; there is nobody else to tell
	var passed, failures, skipped int
	for _, rep := range reports {
		for _, o := range rep.outcomes {
			switch o.result {
			case duty.OK:
				passed++
			case duty.Fail:
				failures++
			default:
				skipped++
			}
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", passed, failures, skipped)
}

// chosenTasks are those that were run.
func chosenTasks(rep *report) []string {
	return slices.DeleteFunc(rep.job.tasks(), func(task string) bool {
		_, ok := rep.outcomes[task]
		return !ok
	})
}

func mark(o outcome) string {
	if o.result == duty.Fail {
		return "FAIL"
	}
	return o.result
}

const pageIntro = `<!-- Written by "make compat" from what it has seen. -->

# Compatibility

What these clients do against the broker binary, with its defaults, each from a process of its own. ` + "`make compat`" + ` runs it
all again, and ` + "`go run ./tests/compat -client NAME -duty NAME`" + ` a part of it. What the clients write is read back by themselves
and by a second client.

`

// writePage writes the page for users. It has nothing in it that differs between two runs with the same results.
func writePage(path string, reports []*report) error {
	var page strings.Builder
	page.WriteString(pageIntro)
	writeClients(&page, reports)
	for _, rep := range reports {
		if section, ok := rep.job.(interface{ section(*report) string }); ok {
			page.WriteString(section.section(rep))
		}
	}
	return os.WriteFile(path, []byte(page.String()), 0o644)
}

func writeClients(page *strings.Builder, reports []*report) {
	var notes []string
	page.WriteString("| client | version |")
	for _, d := range duty.Duties {
		fmt.Fprintf(page, " %s |", d.Name)
	}
	page.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(duty.Duties)) + "\n")
	for _, rep := range reports {
		c, ok := rep.job.(*client)
		if !ok {
			continue
		}
		fmt.Fprintf(page, "| %s (%s) | %s |", c.name, c.language, rep.version)
		for _, d := range duty.Duties {
			o := rep.outcomes[d.Name]
			fmt.Fprintf(page, " %s |", mark(o))
			if o.result == duty.NA {
				notes = append(notes, fmt.Sprintf("- %s, %s: %s\n", c.name, d.Name, o.detail))
			}
		}
		page.WriteString("\n")
	}
	page.WriteString("\nThe duties:\n\n")
	for _, d := range duty.Duties {
		fmt.Fprintf(page, "- **%s**: %s\n", d.Name, d.Checks)
	}
	if len(notes) > 0 {
		page.WriteString("\nNot applicable:\n\n")
		page.WriteString(strings.Join(slices.Compact(notes), ""))
	}
}

// writeOutcomes is a table of the tasks of one job.
func writeOutcomes(page *strings.Builder, rep *report, what string) {
	fmt.Fprintf(page, "\n| %s | result | |\n| --- | --- | --- |\n", what)
	for _, task := range rep.job.tasks() {
		o := rep.outcomes[task]
		detail := ""
		if o.result == duty.NA {
			detail = o.detail
		}
		fmt.Fprintf(page, "| %s | %s | %s |\n", task, cmp.Or(mark(o), "not run"), detail)
	}
}
