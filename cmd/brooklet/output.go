package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// output prints what a command has found: tables for people, or one JSON value for programs. The names of JSON fields
// are part of the program's interface: fields may be added, but not renamed or removed.
type output struct {
	w    io.Writer
	json bool
}

func newOutput(w io.Writer, format string) (output, error) {
	if format != outputTable && format != outputJSON {
		return output{}, fmt.Errorf("--output is %q: write %s or %s", format, outputTable, outputJSON)
	}
	return output{w, format == outputJSON}, nil
}

// print writes value as JSON, or the tables with an empty line between them.
func (o output) print(value any, tables ...*table) error {
	if o.json {
		e := json.NewEncoder(o.w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(value)
	}
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(o.w)
		}
		if err := t.write(o.w); err != nil {
			return err
		}
	}
	return nil
}

// note writes a line for people; programs find what it says in the JSON value.
func (o output) note(format string, args ...any) {
	if !o.json {
		fmt.Fprintf(o.w, format+"\n", args...)
	}
}

// table is rows of cells below a header. Without a header it is names with values.
type table struct {
	header []string
	rows   [][]string
}

func newTable(header ...string) *table { return &table{header: header} }

// add appends a row. Cells are shown as fmt.Sprint does; an empty one is a dash.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if row[i] = cell(fmt.Sprint(c)); row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// cell keeps text from a broker within its cell, whatever it holds.
func cell(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

func (t *table) write(w io.Writer) error {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows := t.rows
	if len(t.header) > 0 {
		rows = append([][]string{t.header}, rows...)
	}
	for _, row := range rows {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	return columns.Flush()
}
