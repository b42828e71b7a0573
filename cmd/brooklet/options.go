package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"
)

const envPrefix = "BROOKLET_"

// An option is one setting: a flag, an environment variable, a help text, and the field it fills. The flag wins over
// the variable. As a [cli.Generic] it accepts any text and keeps the error, because the flag package stops at the
// first value that it cannot read and people want to hear of all of them.
type option struct {
	name     string
	category string
	usage    string // one sentence; the word in backticks stands for the value
	text     string // as given, or the default
	fallback string // what help says is the default; text if empty
	isBool   bool
	parse    func(text string) error
	given    bool
	err      error
}

// Set takes a text; what is wrong with it is reported by problem.
func (o *option) Set(text string) error {
	o.text, o.given = text, true
	o.err = o.parse(text)
	return nil
}

// String is the current text.
func (o *option) String() string { return o.text }

// IsBoolFlag lets --name stand for --name=true.
func (o *option) IsBoolFlag() bool { return o.isBool }

func (o *option) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

func (o *option) defaultText() string {
	if o.fallback != "" {
		return o.fallback
	}
	return o.text
}

func (o *option) flag() cli.Flag {
	return &cli.GenericFlag{Name: o.name, Category: o.category, Usage: o.usage, EnvVars: []string{o.env()},
		DefaultText: o.defaultText(), Value: o}
}

// problem names the setting, what it is, and what to write instead.
func (o *option) problem() error {
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("--%s (or %s) is %q: %w", o.name, o.env(), o.text, o.err)
}

// newOption makes an option that fills field, now with its default and later with what parse makes of the text.
func newOption[T any](name string, field *T, fallback string, parse func(string) (T, error), usage string) *option {
	o := &option{name: name, usage: usage, text: fallback}
	o.parse = func(text string) error {
		v, err := parse(text)
		if err == nil {
			*field = v
		}
		return err
	}
	if err := o.parse(fallback); err != nil {
		panic(fmt.Sprintf("default of --%s: %v", name, err))
	}
	return o
}

func textOption(name string, field *string, fallback, usage string) *option {
	return newOption(name, field, fallback, func(text string) (string, error) { return text, nil }, usage)
}

func boolOption(name string, field *bool, fallback bool, usage string) *option {
	o := newOption(name, field, strconv.FormatBool(fallback), parseBool, usage)
	o.isBool = true
	return o
}

func intOption(name string, field *int, fallback, low, high int, usage string) *option {
	return newOption(name, field, strconv.Itoa(fallback), func(text string) (int, error) { return parseInt(text, low, high) }, usage)
}

func durationOption(name string, field *time.Duration, fallback, low time.Duration, usage string) *option {
	return newOption(name, field, formatDuration(fallback), func(text string) (time.Duration, error) { return parseDuration(text, low) }, usage)
}

func bytesOption(name string, field *int64, fallback, low, high int64, usage string) *option {
	return newOption(name, field, formatBytes(fallback), func(text string) (int64, error) { return parseBytes(text, low, high) }, usage)
}

func choiceOption(name string, field *string, choices []string, usage string) *option {
	return newOption(name, field, choices[0], func(text string) (string, error) {
		if !slices.Contains(choices, text) {
			return "", fmt.Errorf("write one of %s", strings.Join(choices, ", "))
		}
		return text, nil
	}, usage)
}

// derived makes the default of an option one that is found at start: its field is zero until then.
func derived[T comparable](o *option, field *T, description string) *option {
	var zero T
	*field, o.text, o.fallback = zero, "", description
	return o
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, errors.New("write true or false")
}

func parseInt(text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("write a whole number from %d to %d", low, high)
	}
	return n, nil
}

// parseBytes reads a byte size such as 64MiB (powers of 1024), 1GB (powers of 1000) or 1048588.
func parseBytes(text string, low, high int64) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return 0, errors.New("write a size such as 64MiB, 1GB or 1048588")
	}
	if n > math.MaxInt64 || int64(n) < low || int64(n) > high {
		return 0, fmt.Errorf("write a size from %s to %s", formatBytes(low), formatBytes(high))
	}
	return int64(n), nil
}

// formatBytes writes a size so that parseBytes reads the same number.
func formatBytes(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n != 0 && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

const day = 24 * time.Hour

// parseDuration reads a Go duration; whole days may be written as 7d.
func parseDuration(text string, low time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int
		n, err = parseInt(days, 0, int(math.MaxInt64/day))
		d = time.Duration(n) * day
	}
	if err != nil {
		return 0, errors.New("write a number with a unit, such as 250ms, 5s, 10m, 24h or 7d")
	}
	if d < low {
		return 0, fmt.Errorf("write %s or more", formatDuration(low))
	}
	return d, nil
}

// formatDuration writes d without the zero units that [time.Duration.String] ends in.
func formatDuration(d time.Duration) string {
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

const forever = "forever"

// parseRetention is parseDuration, and -1 for "forever".
func parseRetention(text string) (time.Duration, error) {
	if text == forever || text == "-1" {
		return -1, nil
	}
	d, err := parseDuration(text, time.Millisecond)
	if err != nil {
		return 0, fmt.Errorf("%w, or %s", err, forever)
	}
	return d, nil
}
