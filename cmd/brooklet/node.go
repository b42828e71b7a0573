package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/brookletmq/brooklet/broker"
	"github.com/brookletmq/brooklet/broker/groups"
	"github.com/brookletmq/brooklet/broker/httpapi"
	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/objstore"
	"github.com/brookletmq/brooklet/streamstore"
)

// node is the running process. Its parts are opened in the order of the fields and closed in the reverse one.
type node struct {
	settings *settings
	log      *zap.Logger
	notify   notifier
	registry *prometheus.Registry

	// state answers the readiness probe.
	state atomic.Pointer[func() error]
	// failed receives the error of a part that stopped by itself.
	failed chan error

	admin    *http.Server
	bucket   objstore.Bucket
	store    *streamstore.Store
	listener net.Listener
	broker   *broker.Broker
	http     *httpapi.Server
	kafka    *kafkaproto.Server
}

func newNode(s *settings, log *zap.Logger) *node {
	n := &node{settings: s, log: log, notify: notifier{log}, registry: prometheus.NewRegistry(), failed: make(chan error, 3)}
	n.setState(errors.New("starting"))
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newBuildInfo())
	return n
}

func newBuildInfo() prometheus.Collector {
	b := readBuild()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "brooklet", Name: "build_info", Help: "Always 1; the labels tell which binary this is.",
		ConstLabels: prometheus.Labels{"version": b.version, "commit": b.commit, "go_version": runtime.Version()},
	})
	g.Set(1)
	return g
}

// setState makes the readiness probe answer with err.
func (n *node) setState(err error) {
	state := func() error { return err }
	n.state.Store(&state)
}

// progress tells operators what the node is busy with before it is ready.
func (n *node) progress(what string) {
	n.setState(errors.New("recovering: " + what))
	n.notify.status(what)
	n.log.Debug(what)
}

// run serves until ctx ends, which is an orderly stop and no error, or until the node cannot go on.
func (n *node) run(ctx context.Context) error {
	err := n.start(ctx)
	if err == nil {
		watched, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also while stopping
		defer cancel()
		go n.notify.watch(watched, func() bool { return n.store.Err() == nil })
		err = n.serve(ctx)
	}
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		if stopErr := n.stop(); stopErr != nil {
			n.log.Warn("not everything could be closed in order", zap.String("error", stopErr.Error()))
		}
		return err
	}
	n.log.Info("stopping", zap.String("reason", context.Cause(ctx).Error()))
	if err := n.stop(); err != nil {
		return err
	}
	n.log.Info("stopped")
	return nil
}

// start opens the parts one after the other. What it opened is closed by stop, also after an error.
func (n *node) start(ctx context.Context) error {
	steps := []struct {
		what string
		run  func(context.Context) error
	}{
		{"opening the admin endpoint", n.openAdmin},
		{"trying the addresses", n.tryAddresses},
		{"waiting for the bucket", n.openBucket},
		{"replaying the commit log", n.openStore},
		{"opening the Kafka listener", n.openListener},
		{"loading the topics", n.openBroker},
		{"opening the HTTP listener", n.openHTTP},
		{"beginning to serve", n.openKafka},
	}
	for _, step := range steps {
		n.progress(step.what)
		if err := step.run(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err() // told to stop; the error is only the consequence
			}
			return err
		}
	}
	return nil
}

// Time limits of the admin endpoint; its answers are short.
const (
	adminReadTimeout  = 10 * time.Second
	adminWriteTimeout = time.Minute
)

func (n *node) openAdmin(context.Context) error {
	l, err := listenOn("admin-listen", n.settings.adminListen)
	if err != nil {
		return err
	}
	ready := func() error { return (*n.state.Load())() }
	n.admin = &http.Server{
		Handler:     broker.NewAdminHandler(ready, n.registry),
		ReadTimeout: adminReadTimeout, WriteTimeout: adminWriteTimeout,
		ErrorLog: zap.NewStdLog(n.log.Named("admin")),
	}
	go func() {
		if err := n.admin.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.failed <- fmt.Errorf("admin endpoint: %w", err)
		}
	}()
	n.log.Info("admin endpoint", zap.String("listen", l.Addr().String()))
	return nil
}

// tryAddresses proves that clients can be listened to before the bucket is claimed: a broker that could not serve them
// would only stop the one that does. Nobody is let in until there is something to serve, so that clients try elsewhere
// meanwhile.
func (n *node) tryAddresses(context.Context) error {
	l, err := listenOn("listen", n.settings.listen)
	if err != nil {
		return err
	}
	listeners := []net.Listener{l}
	if n.settings.httpListen != httpOff {
		l, err = n.listenHTTP()
		if l != nil {
			listeners = append(listeners, l)
		}
	}
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// listenHTTP listens at the address of the stream API over HTTP. A default address that is taken must not keep a broker
// from starting that nobody wants to use over HTTP: then there is no listener, and no error.
func (n *node) listenHTTP() (net.Listener, error) {
	l, err := listenOn("http-listen", n.settings.httpListen)
	if errors.Is(err, syscall.EADDRINUSE) && n.settings.httpListen == defaultHTTPListen {
		return nil, nil
	}
	return l, err
}

func (n *node) openBucket(ctx context.Context) error {
	b, err := objstore.Open(ctx, objstore.Options{URL: n.settings.bucket, Logger: n.log.Named("bucket"), Registerer: n.registry})
	if err != nil {
		return fmt.Errorf("%s: %w", n.settings.bucketSetting, err)
	}
	n.bucket = b
	return nil
}

func (n *node) openStore(ctx context.Context) error {
	s := n.settings
	store, err := streamstore.Open(ctx, streamstore.Options{
		Dir:               s.dataDir,
		Bucket:            n.bucket,
		Durability:        s.storeDurability(),
		FlushInterval:     s.flushInterval,
		FlushBytes:        s.flushBytes,
		MaxUnflushedBytes: s.maxUnflushedBytes,
		TailCacheBytes:    s.memory.tailCache,
		SegmentCacheBytes: s.memory.segmentCache,
		DiskCacheBytes:    s.memory.diskCache,
		BlockCacheBytes:   s.memory.blockCache,
		RetentionInterval: s.retentionCheckInterval,

		CompactionBytes:     s.compactionBytes,
		CompactionInterval:  s.compactionInterval,
		CompactionBandwidth: s.compactionBandwidth,
		CompactionMemory:    s.memory.compaction,
		DeleteGrace:         s.deleteGrace,
		CheckpointInterval:  s.checkpointInterval,
		CheckpointCommits:   s.checkpointCommits,
		CheckpointBytes:     s.checkpointBytes,

		Logger:     n.log.Named("store"),
		Registerer: n.registry,
	})
	if err != nil {
		return explainOpen(s, err)
	}
	n.store = store
	n.logRecovery(store.Recovery())
	return nil
}

// explainOpen says what to do about an error of opening the store.
func explainOpen(s *settings, err error) error {
	if errors.Is(err, objstore.ErrLocked) {
		return fmt.Errorf("%s: %w", s.bucketSetting, err)
	}
	return explainDisk(s.dataDir, err)
}

// explainDisk says what to do about the failures of a data directory that people meet.
func explainDisk(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("--data-dir %s is in use by another process: stop it, or give each broker a folder of its own: %w", dir, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("--data-dir %s: this user may not write there: %w", dir, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("--data-dir %s is on a file system that is read-only: %w", dir, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("--data-dir %s: the disk is full: make room there: %w", dir, err)
	}
	return fmt.Errorf("--data-dir %s: %w", dir, err)
}

func (n *node) logRecovery(r streamstore.Recovery) {
	n.log.Info("recovered", zap.Uint64("epoch", r.Epoch), zap.Uint64("commit", r.Commit),
		zap.Uint64("checkpoint", r.Checkpoint), zap.Int64("fetched_bytes", r.FetchedBytes), // checkpoint 0: the local database was kept
		zap.Int("replayed_commits", r.ReplayedCommits), zap.Int("tail_appends", r.TailAppends), zap.Duration("took", r.Took))
	if r.SetAside != "" {
		n.log.Error("unflushed records of this disk could not be kept, because another writer had claimed the shard: look at the file and append again what is missing",
			zap.String("file", r.SetAside), zap.Int("appends", r.SetAsideAppends))
	}
}

func (n *node) openListener(context.Context) (err error) {
	n.listener, err = listenOn("listen", n.settings.listen)
	return err
}

func (n *node) openBroker(ctx context.Context) error {
	s := n.settings
	advertised, err := s.advertised()
	if err != nil {
		return err
	}
	if advertised.port == 0 {
		advertised.port = portOf(n.listener)
	}
	n.broker, err = broker.New(ctx, broker.Options{
		NodeID:            int32(s.nodeID),
		AdvertisedHost:    advertised.host,
		AdvertisedPort:    int32(advertised.port),
		Rack:              s.rack,
		AutoCreateTopics:  s.autoCreateTopics,
		DefaultPartitions: int32(s.defaultPartitions),
		MaxMessageBytes:   int(s.maxMessageBytes),
		DefaultRetention:  s.defaultRetention,
		FetchMaxBytes:     int(min(s.memory.fetch, fetchMaxBytes)),
		FetchMemory:       s.memory.fetch,
		Groups:            s.groupOptions(),
		Store:             n.store,
		Logger:            n.log.Named("broker"),
		Registerer:        n.registry,
	})
	if err != nil {
		return err
	}
	n.log.Info("clients are told to connect to", zap.String("advertise", advertised.String()), zap.Int("node", s.nodeID))
	return nil
}

func (s *settings) groupOptions() groups.Options {
	delay := s.groupInitialDelay
	if delay == 0 {
		delay = -1 // zero would mean the default
	}
	return groups.Options{
		InitialRebalanceDelay:     delay,
		MinSessionTimeout:         s.groupMinSessionTimeout,
		MaxSessionTimeout:         s.groupMaxSessionTimeout,
		MaxSize:                   s.groupMaxSize,
		ConsumerMaxSize:           s.groupMaxSize,
		ConsumerSessionTimeout:    s.groupConsumerSessionTimeout,
		ConsumerHeartbeatInterval: s.groupConsumerHeartbeatInterval,
		OffsetRetention:           s.offsetsRetention,
	}
}

// fetchMaxBytes is Kafka's default of fetch.max.bytes.
const fetchMaxBytes = 55 * mib

func (n *node) openKafka(context.Context) (err error) {
	s := n.settings
	n.kafka, err = kafkaproto.NewServer(kafkaproto.Options{
		Versions:             n.broker.Versions(),
		MaxFrameBytes:        int(s.maxFrameBytes),
		MaxControlFrameBytes: int(s.maxControlFrameBytes()),
		MaxRequestMemory:     s.memory.request,
		MaxConnections:       s.maxConnections,
		MaxConnectionsPerIP:  s.maxConnectionsPerIP,
		IdleTimeout:          s.idleTimeout,
		Logger:               n.log.Named("kafka"),
		Registerer:           n.registry,
	}, n.broker)
	if err != nil {
		return err
	}
	go func() {
		if err := n.kafka.Serve(n.listener); !errors.Is(err, kafkaproto.ErrServerClosed) {
			n.failed <- fmt.Errorf("listener of Kafka clients: %w", err)
		}
	}()
	ready := n.broker.Ready
	n.state.Store(&ready)
	n.log.Info("serving Kafka clients", zap.String("listen", n.listener.Addr().String()))
	n.notify.ready("serving Kafka clients on " + n.listener.Addr().String())
	return nil
}

// httpOff is the value of --http-listen for no stream API over HTTP.
const httpOff = "off"

// openHTTP serves the stream API over HTTP.
func (n *node) openHTTP(context.Context) error {
	s := n.settings
	if s.httpListen == httpOff {
		return nil
	}
	l, err := n.listenHTTP()
	if err != nil {
		return err
	}
	if l == nil {
		n.log.Warn("no stream API over HTTP: another process has its default address; set --http-listen to a free address, or to off", zap.String("listen", s.httpListen))
		return nil
	}
	n.http, err = n.broker.NewHTTP(httpapi.Options{
		MaxBodyBytes:   s.memory.http / httpShare,
		MaxReadBytes:   int(s.memory.http / httpShare),
		Memory:         s.memory.http,
		AllowedOrigins: s.origins(),
		MaxConnections: s.httpMaxConnections,
		Logger:         n.log.Named("http"),
		Registerer:     n.registry,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	go func() {
		if err := n.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.failed <- fmt.Errorf("listener of HTTP clients: %w", err)
		}
	}()
	n.log.Info("serving HTTP clients", zap.String("listen", l.Addr().String()))
	return nil
}

// httpShare: one request or reply over HTTP takes at most this part of the memory for all.
const httpShare = 8

// origins are the entries of --http-origins.
func (s *settings) origins() []string {
	if s.httpOrigins == "none" {
		return nil
	}
	var origins []string
	for origin := range strings.SplitSeq(s.httpOrigins, ",") {
		if origin = strings.TrimSpace(origin); origin != "" {
			origins = append(origins, origin)
		}
	}
	return origins
}

// checkOrigins checks the entries of --http-origins.
func checkOrigins(origins []string) error {
	for _, origin := range origins {
		if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil && origin != "*" {
			return fmt.Errorf("--http-origins: %q is no origin: write a list such as https://app.example.com,http://localhost:3000, or *, or none: %w", origin, err)
		}
	}
	return nil
}

// serve waits for the end: ctx's error if it was told to stop.
func (n *node) serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-n.failed:
		return err
	case <-n.store.Failed():
		return explainFailure(n.store.Err(), n.settings.dataDir)
	}
}

// explainFailure says why the store takes no more writes and what becomes of the records that only this disk has.
func explainFailure(err error, dir string) error {
	if errors.Is(err, streamstore.ErrFenced) {
		err = fmt.Errorf("%w: another broker has opened the same bucket and serves it now. Records that had not reached the bucket are kept in %s, and the next start there sets them aside in a file. Start this broker again only if the other one is gone", err, dir)
		return &exitError{err: err, code: exitFenced}
	}
	return fmt.Errorf("%w; records that had not reached the bucket are kept in %s and are recovered at the next start", err, dir)
}
