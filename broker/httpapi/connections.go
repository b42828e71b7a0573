package httpapi

import (
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

// limitedListener closes connections beyond Options.MaxConnections as they come, as the Kafka door does: a client learns at
// once, where one that is left waiting would not.
type limitedListener struct {
	net.Listener
	s *Server
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.s.connections.admit(l.s.opts.MaxConnections) {
			l.s.m.connections.Inc()
			return &countedConn{Conn: c, ended: sync.OnceFunc(l.s.connectionEnded)}, nil
		}
		_ = c.Close() // nothing was sent on it
		l.s.m.connectionsRefused.Inc()
		if l.s.connections.mayLog(time.Now()) {
			l.s.log.Warn("connections refused: all are in use; see --http-max-connections", zap.Int("limit", l.s.opts.MaxConnections), zap.Stringer("client", c.RemoteAddr()))
		}
	}
}

func (s *Server) connectionEnded() {
	s.connections.end()
	s.m.connections.Dec()
}

// countedConn is an open connection. Close may be called many times.
type countedConn struct {
	net.Conn
	ended func()
}

func (c *countedConn) Close() error {
	defer c.ended()
	return c.Conn.Close()
}

// connectionCount counts open connections, of all listeners.
type connectionCount struct {
	mu     sync.Mutex
	open   int
	logged time.Time
}

func (n *connectionCount) admit(limit int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open >= limit {
		return false
	}
	n.open++
	return true
}

func (n *connectionCount) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open--
}

// mayLog allows one line a minute.
func (n *connectionCount) mayLog(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.logged) < time.Minute {
		return false
	}
	n.logged = now
	return true
}
