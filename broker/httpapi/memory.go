package httpapi

import (
	"context"
	"time"
)

// holding is a part of the memory for bodies and replies.
type holding struct {
	s *Server
	n int64
}

// slowestBytes is what a client must send of a body, or take of a reply, that is in memory as a whole, in bytes a second:
// whoever is slower would keep that memory from others for hours.
const slowestBytes = 64 << 10

// timeFor is how long a client may take for so many bytes that are held for it.
func (s *Server) timeFor(bytes int64) time.Duration {
	return s.opts.IOTimeout + time.Duration(bytes)*time.Second/slowestBytes
}

// hold takes n bytes, and waits for them as long as for a client. More than there is in all is taken as all.
func (s *Server) hold(ctx context.Context, n int64) (*holding, error) {
	n = min(n, s.opts.Memory)
	if !s.memory.TryAcquire(n) {
		s.m.memoryWaits.Inc()
		ctx, cancel := context.WithTimeout(ctx, s.opts.IOTimeout)
		defer cancel()
		if err := s.memory.Acquire(ctx, n); err != nil {
			return nil, errMemory()
		}
	}
	return &holding{s, n}, nil
}

// grow makes it n bytes, without waiting: those who hold memory and wait for more could wait for each other.
func (h *holding) grow(n int64) error {
	n = min(n, h.s.opts.Memory)
	if n <= h.n {
		return nil
	}
	if !h.s.memory.TryAcquire(n - h.n) {
		return errMemory()
	}
	h.n = n
	return nil
}

func (h *holding) release() {
	h.s.memory.Release(h.n)
	h.n = 0
}

func errMemory() error {
	return busy.new("requests and replies under way hold the memory for them; try again").withHeader("Retry-After", retryAfter)
}
