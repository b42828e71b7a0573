package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/brookletmq/brooklet/streamstore"
)

const (
	// headerTimeout bounds the time in which a client sends the head of a request.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection is kept between two requests.
	idleTimeout = 2 * time.Minute
	// maxHeaderBytes bounds the head of a request. The cursor of a reader of a prefix is the largest thing in it: some
	// 10 bytes for each of up to MaxFollowedStreams.
	maxHeaderBytes = 1 << 20
)

// Server answers requests for streams over HTTP/1.1 and HTTP/2 without TLS. Its methods may be called from any
// goroutine.
type Server struct {
	opts  Options
	store *streamstore.Store
	log   *zap.Logger
	m     *metrics
	http  *http.Server
	names *newNames
	// memory is what request bodies and replies under way may take, in bytes.
	memory *semaphore.Weighted
	// foreign tells requests of web pages that are not the server's own or of an allowed origin.
	foreign     *http.CrossOriginProtection
	connections connectionCount
	// draining is closed by Drain: reads that wait for records end.
	draining  chan struct{}
	drainOnce sync.Once
	durable   durableState
	// background is work that no request waits for.
	background sync.WaitGroup
}

// New makes a server that listens nowhere yet.
func New(opts Options) (*Server, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	foreign, err := newForeign(opts.AllowedOrigins)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts:     opts,
		store:    opts.Store,
		log:      opts.Logger,
		m:        newMetrics(opts.Registerer),
		names:    &newNames{store: opts.Store},
		memory:   semaphore.NewWeighted(opts.Memory),
		foreign:  foreign,
		draining: make(chan struct{}),
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           s,
		Protocols:         &protocols,
		BaseContext:       connContext,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          zap.NewStdLog(opts.Logger),
		// No ReadTimeout and no WriteTimeout: they bound a whole request, and so would end every event stream. The
		// deadlines of exchange.Write and body.Read move with what is written and read.
	}
	return s, nil
}

// Serve answers requests that arrive at l until Shutdown, and then returns [http.ErrServerClosed].
func (s *Server) Serve(l net.Listener) error {
	return s.http.Serve(&limitedListener{Listener: l, s: s})
}

// Drain ends reads that wait for records, event streams included, in order, so that their clients connect elsewhere or
// try again. It returns at once and may be called many times.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Shutdown drains, stops listening and waits until the requests under way are answered. When ctx ends first their
// connections are closed, and the error is that of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.background.Wait()
	return err
}

// isDraining tells whether Drain was called.
func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}
