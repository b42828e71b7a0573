package kafkaproto

import (
	"sync"
	"time"
)

const (
	logWindow    = time.Minute
	logPerWindow = 10
	logMaxHosts  = 1024
)

// logLimiter bounds the lines logged about one remote host to logPerWindow per
// logWindow. It remembers a bounded number of hosts; beyond it, the rest share one
// allowance.
type logLimiter struct {
	mu    sync.Mutex
	hosts map[string]*logAllowance
	other logAllowance
}

type logAllowance struct {
	start      time.Time
	lines      int
	suppressed int
}

// allow tells whether a line about host may be logged now, and how many were not
// since the last one that was.
func (l *logLimiter) allow(host string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.allowance(host, now)
	if now.Sub(a.start) >= logWindow {
		a.start, a.lines = now, 0
	}
	if a.lines == logPerWindow {
		a.suppressed++
		return 0, false
	}
	a.lines++
	suppressed, a.suppressed = a.suppressed, 0
	return suppressed, true
}

func (l *logLimiter) allowance(host string, now time.Time) *logAllowance {
	if a, ok := l.hosts[host]; ok {
		return a
	}
	if l.hosts == nil {
		l.hosts = make(map[string]*logAllowance)
	}
	if len(l.hosts) >= logMaxHosts {
		for h, a := range l.hosts {
			if now.Sub(a.start) >= logWindow {
				delete(l.hosts, h)
			}
		}
	}
	if len(l.hosts) >= logMaxHosts {
		return &l.other
	}
	a := &logAllowance{start: now}
	l.hosts[host] = a
	return a
}
