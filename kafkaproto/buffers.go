package kafkaproto

import "sync"

// smallBuffer is the largest buffer kept for responses but those of fetches.
const smallBuffer = 8 << 10

// bufferPool keeps buffers of responses for the next ones.
type bufferPool struct {
	sync.Pool
	max int // larger ones are left to the garbage collector
}

func newBufferPool(max int) *bufferPool {
	return &bufferPool{Pool: sync.Pool{New: func() any { return new([]byte) }}, max: max}
}

// Fetches have buffers of their own: theirs are large, and a small response in a large
// buffer would hold more than is charged for it.
var (
	responseBuffers = newBufferPool(smallBuffer)
	fetchBuffers    = newBufferPool(8 << 20)
)

func buffersFor(key int16) *bufferPool {
	if key == KeyFetch {
		return fetchBuffers
	}
	return responseBuffers
}

func (p *bufferPool) get() *[]byte { return p.Get().(*[]byte) }

func (p *bufferPool) put(b *[]byte) {
	if cap(*b) <= p.max {
		p.Put(b)
	}
}

// fit returns b, or a copy of about the right size if b is far too large. Then b is
// back in the pool.
func (p *bufferPool) fit(b *[]byte) *[]byte {
	if cap(*b) <= max(smallBuffer, 2*len(*b)) {
		return b
	}
	fitting := append([]byte(nil), *b...)
	p.put(b)
	return &fitting
}
