package httpapi

import "context"

// holding is a part of the memory for bodies and replies.
type holding struct {
	s *Server
	n int64
}

// hold takes n bytes, and waits for them. More than there is in all is taken as all.
func (s *Server) hold(ctx context.Context, n int64) (*holding, error) {
	n = min(n, s.opts.Memory)
	if !s.memory.TryAcquire(n) {
		s.m.memoryWaits.Inc()
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
