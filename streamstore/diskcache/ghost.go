package diskcache

// ghostWays is how many fingerprints share a set.
const ghostWays = 8

// ghost remembers what was dropped from memory after a single use: fingerprints only, 8
// bytes each. Each set is a queue; an old fingerprint leaves it when new ones push it out,
// or when more than span bytes were dropped since.
type ghost struct {
	sets [][ghostWays]uint64 // fingerprint << 32 | time; newest first
	unit uint64              // bytes per tick of that time
	now  uint64              // bytes dropped so far
}

// ghostTicks is how many ticks of time an entry is remembered.
const ghostTicks = 1 << 16

func newGhost(entries int, span int64) ghost {
	return ghost{sets: make([][ghostWays]uint64, max(1, entries/ghostWays)), unit: max(1, uint64(span)/ghostTicks)}
}

func (g *ghost) find(hash uint64) (set *[ghostWays]uint64, fingerprint uint32) {
	return &g.sets[uint32(hash)%uint32(len(g.sets))], uint32(hash>>32) | 1 // never that of an empty place
}

func (g *ghost) time() uint32 { return uint32(g.now / g.unit) }

// add remembers an entry of size bytes.
func (g *ghost) add(hash uint64, size int) {
	g.now += uint64(size)
	set, fingerprint := g.find(hash)
	copy(set[1:], set[:])
	set[0] = uint64(fingerprint)<<32 | uint64(g.time())
}

// take reports whether an entry is remembered, and forgets it.
func (g *ghost) take(hash uint64) bool {
	set, fingerprint := g.find(hash)
	for i, place := range set {
		if uint32(place>>32) == fingerprint {
			copy(set[i:], set[i+1:])
			set[ghostWays-1] = 0
			return g.time()-uint32(place) <= ghostTicks
		}
	}
	return false
}
