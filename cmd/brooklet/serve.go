package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func serveCommand() *cli.Command {
	var s settings
	options := s.options()
	flags := make([]cli.Flag, len(options))
	for i, o := range options {
		flags[i] = o.flag()
	}
	return &cli.Command{
		Name:  "serve",
		Usage: "run the broker",
		Description: "Every flag can also be set by the environment variable behind it; the flag wins. Sizes are written as 64MiB, 1GB\n" +
			"or plain bytes, times as 250ms, 5s, 24h or 7d.",
		Flags:        flags,
		OnUsageError: usageError,
		Before:       noArguments,
		Action:       func(c *cli.Context) error { return serve(c, &s, options) },
	}
}

func serve(c *cli.Context, s *settings, options []*option) error {
	limit := findMemoryLimit(os.DirFS("/"), goMemoryLimit())
	err := errors.Join(s.complete(options), s.completeBucket(c.Context))
	s.completeDiskCache(limit, freeBytes)
	err = errors.Join(err, s.completeMemory(limit))
	if err != nil {
		return wrongSettings(settingsError(err))
	}
	limitGarbage(limit)
	log := newLogger(s)
	defer func() { _ = log.Sync() }() // standard error may not support it
	for _, name := range unknownVariables(os.Environ(), options) {
		log.Warn("this environment variable is no setting and has no effect; brooklet serve --help lists those that are", zap.String("variable", name))
	}
	logSettings(log, s, limit)
	return logExit(log, newNode(s, log).run(c.Context))
}

func logSettings(log *zap.Logger, s *settings, limit memoryLimit) {
	b := readBuild()
	log.Info("brooklet", zap.String("version", b.version), zap.String("commit", b.commit), zap.String("go", runtime.Version()))
	log.Info("storage", zap.String("data_dir", s.dataDir), zap.String("bucket", s.bucketLocation), zap.String("durability", s.durability), zap.String("disk_cache_bytes", formatBytes(s.memory.diskCache)))
	log.Info("memory", append([]zap.Field{zap.String("limit", approximately(limit.bytes)), zap.String("set_by", limit.source)}, s.memory.fields()...)...)
	log.Info("requests", zap.String("max_frame_bytes", formatBytes(s.maxFrameBytes)), zap.String("max_control_frame_bytes", formatBytes(s.maxControlFrameBytes())))
	if err := s.memory.checkAmount(limit, s.flushBytes); err != nil {
		log.Warn("memory", zap.Error(err))
	}
}

// logExit writes the error that ends the process to the log, where it has the same form as all else.
func logExit(log *zap.Logger, err error) error {
	if err == nil {
		return nil
	}
	log.Error("the broker ends", zap.String("error", err.Error())) // without the stack traces that some errors print
	exit := &exitError{err: err, code: exitFailure}
	errors.As(err, &exit)
	return &exitError{err: exit.err, code: exit.code, logged: true}
}

// settingsError writes one problem per line.
func settingsError(err error) error {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) == 1 {
		return err
	}
	return errors.New(fmt.Sprintf("%d settings are wrong:\n  ", len(lines)) + strings.Join(lines, "\n  "))
}

func newLogger(s *settings) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(config)
	if s.logFormat == "console" {
		config.EncodeTime = zapcore.ISO8601TimeEncoder
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(config)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), s.level()))
}
