package kafkaproto

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ErrServerClosed is returned by [Server.Serve] after [Server.Shutdown].
var ErrServerClosed = errors.New("kafkaproto: server closed")

// Server accepts connections, reads requests for a [Handler] and writes its
// responses. It is made by [NewServer].
type Server struct {
	opts     Options
	handler  Handler
	logger   *zap.Logger
	logs     logLimiter
	metrics  *metrics
	mem      *memory
	expected map[int16]*expectation

	ctx    context.Context // of all requests
	cancel context.CancelFunc
	conns  sync.WaitGroup

	mu struct {
		sync.Mutex
		closed    bool
		nextID    uint64
		listeners map[net.Listener]struct{}
		open      map[*conn]struct{}
		perHost   map[string]int
	}
}

// NewServer returns a server that gives requests to h. The error lists everything
// that is wrong with opts.
func NewServer(opts Options, h Handler) (*Server, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		opts:     opts,
		handler:  h,
		logger:   opts.Logger,
		mem:      newMemory(&opts),
		expected: make(map[int16]*expectation),
	}
	for _, key := range opts.Versions.Keys() {
		s.expected[key] = new(expectation)
	}
	s.metrics = newMetrics(opts.Registerer, opts.Versions.Keys(), s.mem)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.listeners = make(map[net.Listener]struct{})
	s.mu.open = make(map[*conn]struct{})
	s.mu.perHost = make(map[string]int)
	return s, nil
}

// Serve accepts connections from l until l fails or Shutdown is called; then it
// returns [ErrServerClosed]. It closes l. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.addListener(l) {
		return ErrServerClosed
	}
	defer s.removeListener(l)
	var delay time.Duration
	for {
		nc, err := l.Accept()
		if err == nil {
			delay = 0
			s.start(nc)
			continue
		}
		if s.isClosed() {
			return ErrServerClosed
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("kafkaproto: listener closed: %w", err)
		}
		// Accept fails for a while when the process is out of file descriptors.
		// Giving up would turn that into an outage.
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		s.logBounded(zap.WarnLevel, "accept", "cannot accept connections, trying again", zap.Error(err), zap.Duration("delay", delay))
		select {
		case <-time.After(delay):
		case <-s.ctx.Done():
		}
	}
}

// start serves nc in its own goroutines, or closes it if there are too many.
func (s *Server) start(nc net.Conn) {
	s.metrics.accepted.Inc()
	c, err := s.admit(nc)
	if err != nil {
		_ = nc.Close() // nothing was sent on it
		if errors.Is(err, ErrServerClosed) {
			s.metrics.closed[closedDrain].Inc()
			return
		}
		s.metrics.closed[closedLimit].Inc()
		host := hostOf(nc.RemoteAddr())
		s.logBounded(zap.InfoLevel, host, "connection refused", zap.String("remote", host), zap.Error(err))
		return
	}
	s.metrics.connections.Inc()
	go func() {
		defer s.conns.Done()
		c.serve()
		s.metrics.connections.Dec()
		s.forget(c)
	}()
}

func (s *Server) admit(nc net.Conn) (*conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host := hostOf(nc.RemoteAddr())
	switch {
	case s.mu.closed:
		return nil, ErrServerClosed
	case len(s.mu.open) >= s.opts.MaxConnections:
		return nil, fmt.Errorf("all %d connections are in use", s.opts.MaxConnections)
	case s.mu.perHost[host] >= s.opts.MaxConnectionsPerIP:
		return nil, fmt.Errorf("%d connections from this address are open already", s.opts.MaxConnectionsPerIP)
	}
	s.mu.nextID++
	c := newConn(s, nc, s.mu.nextID)
	s.mu.open[c] = struct{}{}
	s.mu.perHost[host]++
	s.conns.Add(1)
	return c, nil
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, c)
	if s.mu.perHost[c.host]--; s.mu.perHost[c.host] == 0 {
		delete(s.mu.perHost, c.host)
	}
}

// Shutdown stops accepting connections and reading requests, lets requests that have
// been read finish and their responses leave, and closes the connections. Replies
// that wait for news see [ConnInfo.Draining] and should answer at once. When ctx
// ends first, the remaining connections are cut and an error that wraps ctx's is
// returned; handlers may then still be running, their context ended.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.close() {
		c.stopReading()
	}
	done := make(chan struct{})
	go func() {
		s.conns.Wait()
		close(done)
	}()
	defer s.cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	open := s.openConns()
	for _, c := range open {
		c.setCause(closing{reason: closedDrain, err: errors.New("cut: its requests took longer than the drain may")})
		c.cut()
	}
	err := fmt.Errorf("kafkaproto: %d connections cut: %w", len(open), ctx.Err())
	s.cancel()
	select {
	case <-done:
		return err
	case <-time.After(cutGrace):
		return fmt.Errorf("%w: %w", ErrHandlersRunning, err)
	}
}

// ErrHandlersRunning is returned by [Server.Shutdown] when handlers did not return although their connections were
// cut: they may still be using what they work on.
var ErrHandlersRunning = errors.New("kafkaproto: handlers are still running")

// cutGrace is how long handlers of cut connections may take to return. All they wait for has ended by then.
const cutGrace = 5 * time.Second

// close marks the server closed, closes the listeners and returns the connections.
func (s *Server) close() []*conn {
	s.mu.Lock()
	s.mu.closed = true
	for l := range s.mu.listeners {
		_ = l.Close() // Serve sees that accepting ended
	}
	s.mu.Unlock()
	return s.openConns()
}

func (s *Server) openConns() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make([]*conn, 0, len(s.mu.open))
	for c := range s.mu.open {
		open = append(open, c)
	}
	return open
}

func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.closed {
		s.mu.listeners[l] = struct{}{}
	}
	return !s.mu.closed
}

func (s *Server) removeListener(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.listeners, l)
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.closed
}

// logBounded logs about a remote host, a bounded number of lines per minute.
func (s *Server) logBounded(level zapcore.Level, host, msg string, fields ...zap.Field) {
	suppressed, ok := s.logs.allow(host)
	if !ok {
		return
	}
	if suppressed > 0 {
		fields = append(fields, zap.Int("similar_suppressed", suppressed))
	}
	s.logger.Log(level, msg, fields...)
}

// hostOf returns the remote address without its port, which differs between
// connections of one host.
func hostOf(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().String()
	}
	return a.String()
}
