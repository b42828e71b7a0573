package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is set by the linker (-X main.version=v1.2.3); builds without it tell what the Go tool recorded.
var version string

// build tells where a binary comes from.
type build struct {
	version string // a tag, or "devel"
	commit  string // "unknown" outside a checkout; "+changes" is appended if files differed from it
}

func readBuild() build {
	b := build{version: version, commit: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.version == "" && info.Main.Version != "(devel)" {
		b.version = info.Main.Version
	}
	if b.version == "" {
		b.version = "devel"
	}
	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.commit = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		}
	}
	if changed {
		b.commit += "+changes"
	}
	return b
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:         "version",
		Usage:        "print the version, the commit and the Go release of this binary",
		OnUsageError: usageError,
		Before:       noArguments,
		Action: func(c *cli.Context) error {
			b := readBuild()
			_, err := fmt.Fprintf(c.App.Writer, "brooklet %s\ncommit   %s\ngo       %s %s/%s\n",
				b.version, b.commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
