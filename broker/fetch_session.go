package broker

import (
	"container/list"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/kafkaproto"
	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// A fetch session (KIP-227, Kafka's classes FetchSession and FetchManager) remembers the partitions that a client
// follows, so that a request names only what changed and a reply only what has news. Here it does one thing more: it
// keeps its partitions registered in a [streamstore.Watch] between requests, so that an incremental fetch reads the
// partitions that have news and those with data left over from last time, and never looks at the others.
//
// Sessions are for partitions that exist, and for named streams that may come to exist: a client that asks for others gets no session, and asks for everything each
// time, until they are there. A session that outlives its partitions keeps them.
//
// A fetch outside any session uses a fetchSession of its own that ends with the reply.

// Limits of the session cache.
const (
	// sessionIdleEviction is how long a session may go unused before its slot may be taken, and how long a new one is
	// safe from being evicted for a larger one: the evictionMs of Kafka's FetchSessionCache.
	sessionIdleEviction = 120 * time.Second
	// shortIdleEviction is how long a session may go unused when the cache is full. One whose connection is gone may not
	// at all: its client starts a new one.
	shortIdleEviction = 10 * time.Second
	// maxSessionPartitions bounds the partitions of all sessions together, some 300 bytes each. A session that does
	// not fit is refused, which makes its client send full requests: slower, never wrong.
	maxSessionPartitions = 300_000
	// sessionShare: one session may have this part of those.
	sessionShare = 10
)

// Session epochs with a meaning of their own.
const (
	sessionEpochInitial = 0  // full request that asks for a new session
	sessionEpochFinal   = -1 // full request outside any session
	fetchSessionsFrom   = 7  // first version that has sessions
	fetchTopicIDsFrom   = 13 // first version that names topics by id only
)

// partitionKey names a partition as the request did: below Fetch v13 the id is zero, from there on the name is empty.
type partitionKey struct {
	name      string
	id        [16]byte
	partition int32
}

// fetchPartition is one partition that a fetch follows.
type fetchPartition struct {
	partitionKey

	// What the client asked for last.
	offset      int64
	maxBytes    int32
	leaderEpoch int32 // that the client knows; -1: do not check

	// stream is 0 until the partition was found, and again when its stream turned out to be deleted.
	stream streamstore.StreamID
	// awaited: the watch tells under watchKey when a stream of this name is made.
	awaited bool
	// chosen: offset is the broker's choice, which the client was not told yet (see fetchFollow).
	chosen bool
	// of is the stream that offset belongs to, as far as the client knows; 0: it has not said. sentID is the one that
	// it was told. Both are of sessions that follow a prefix.
	of, sentID streamstore.StreamID

	// What the client was told last, -1: nothing, or an error.
	sentHighWatermark, sentStart int64

	watchKey  int  // index in fetchSession.partitions
	queued    bool // in fetchSession.queue
	forgotten bool // removed by the client

	// Of the running fetch.
	result int  // index in its results, -1: none
	unread bool // in its list of the same name
	cold   bool // being read from the bucket
	again  bool // to be looked at when that is done
}

// fetchSession is the set of partitions of one client. All fields but those under "cache" belong to the one fetch that
// has begun it and not ended it yet.
type fetchSession struct {
	id           int32 // 0: never was in the cache
	usesTopicIDs bool
	byKey        map[partitionKey]*fetchPartition
	partitions   []*fetchPartition // by watch key; nil where a key is free
	freeKeys     []int
	// queue holds the partitions to read next, each at most once: those whose position is new, that have news, that
	// returned an error, or that had more data than a reply could take.
	queue partitionQueue
	// watch reports every partition that has a stream. Nil for a fetch outside any session until it has to wait.
	watch *streamstore.Watch
	news  []int // scratch space of takeNews
	// follow adds partitions by itself, nil: no.
	follow *fetchFollow

	// cache: guarded by fetchSessions.mu.
	epoch    int32           // that the next request must carry
	busy     bool            // a fetch has begun it
	gone     <-chan struct{} // closed when the connection of the last request ends; nil: never
	created  time.Time
	lastUsed time.Time
	size     int           // partitions, as counted in the cache's total
	lru      *list.Element // nil: not, or no longer, in the cache
}

func newFetchSession(req *kmsg.FetchRequest) *fetchSession {
	return &fetchSession{
		usesTopicIDs: req.Version >= fetchTopicIDsFrom,
		byKey:        make(map[partitionKey]*fetchPartition),
	}
}

// update applies the partitions that a request adds, moves and forgets, and queues what it names.
func (s *fetchSession) update(req *kmsg.FetchRequest) {
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			rp := &t.Partitions[j]
			p := s.partition(partitionKey{name: t.Topic, id: t.TopicID, partition: rp.Partition})
			p.offset, p.maxBytes, p.leaderEpoch = rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch
			id, _, _ := ext.Int64(&rp.UnknownTags, ext.TagStreamID)
			p.of = streamstore.StreamID(id)
			s.queue.push(p)
		}
	}
	if isFullFetch(req) {
		return
	}
	for i := range req.ForgottenTopics {
		t := &req.ForgottenTopics[i]
		for _, partition := range t.Partitions {
			s.forget(partitionKey{name: t.Topic, id: t.TopicID, partition: partition})
		}
	}
}

// partition returns the partition of that key, which it adds if the session does not have it.
func (s *fetchSession) partition(key partitionKey) *fetchPartition {
	if p, ok := s.byKey[key]; ok {
		return p
	}
	p := &fetchPartition{partitionKey: key, sentHighWatermark: -1, sentStart: -1, result: -1}
	if n := len(s.freeKeys); n > 0 {
		p.watchKey, s.freeKeys = s.freeKeys[n-1], s.freeKeys[:n-1]
		s.partitions[p.watchKey] = p
	} else {
		p.watchKey = len(s.partitions)
		s.partitions = append(s.partitions, p)
	}
	s.byKey[key] = p
	return p
}

func (s *fetchSession) forget(key partitionKey) {
	p, ok := s.byKey[key]
	if !ok {
		return
	}
	s.detach(p)
	s.queue.drop(p)
	delete(s.byKey, key)
	s.partitions[p.watchKey] = nil
	s.freeKeys = append(s.freeKeys, p.watchKey)
}

// isEmpty tells that the session has no partitions, and that none can come.
func (s *fetchSession) isEmpty() bool { return len(s.byKey) == 0 && s.follow == nil }

// attach makes stream the one that p reads. With a watch, news of it are reported from here on. The error is
// [streamstore.ErrNoStream].
func (s *fetchSession) attach(p *fetchPartition, stream streamstore.StreamID) error {
	s.detach(p)
	switch {
	case s.follow != nil:
		s.follow.byStream[stream] = p
	case s.watch != nil:
		if err := s.watch.Add(stream, p.watchKey); err != nil {
			return err
		}
	}
	p.stream = stream
	return nil
}

// await makes p, whose stream does not exist, wait for one of its name. It reports false if p does so already, or if
// there is no watch yet.
func (s *fetchSession) await(p *fetchPartition) bool {
	if s.watch == nil || p.awaited {
		return false
	}
	s.watch.AddName(p.name, p.watchKey)
	p.awaited = true
	return true
}

func (s *fetchSession) detach(p *fetchPartition) {
	switch {
	case s.follow != nil:
		delete(s.follow.byStream, p.stream)
	case s.watch != nil && (p.stream != 0 || p.awaited):
		s.watch.Remove(p.watchKey)
	}
	p.stream, p.awaited = 0, false
}

// startWatch gives a session without a watch one, and queues every partition, because data may have arrived after it
// was read and before it was watched. It reports false, and does nothing, if the session has a watch.
func (s *fetchSession) startWatch(store *streamstore.Store) bool {
	if s.watch != nil {
		return false
	}
	s.watch = store.NewWatch()
	for _, p := range s.partitions { // none is nil: only cached sessions forget, and they have a watch
		if stream := p.stream; stream != 0 {
			p.stream = 0
			_ = s.attach(p, stream) // a stream that is gone is looked up again when p is read
		}
		s.queue.push(p)
	}
	return true
}

// takeNews queues the partitions that have news.
func (s *fetchSession) takeNews() {
	if s.follow != nil {
		s.takeFollowed()
	}
	if s.watch == nil {
		return
	}
	s.news = s.watch.Take(s.news[:0])
	for _, key := range s.news {
		// News of a key may have been on its way when the key was given up.
		if p := s.partitions[key]; p != nil {
			s.queue.push(p)
		}
	}
}

func (s *fetchSession) closeWatch() {
	if s.watch != nil {
		s.watch.Close()
	}
	if s.follow != nil {
		s.follow.watch.Close()
	}
}

// partitionQueue is a first-in-first-out queue of partitions, each in it at most once.
type partitionQueue struct {
	items     []*fetchPartition // items[:head] are free
	head      int
	forgotten int // items that drop has marked and pop will skip
}

func (q *partitionQueue) len() int { return len(q.items) - q.head - q.forgotten }

// push appends p unless it is in the queue.
func (q *partitionQueue) push(p *fetchPartition) {
	if p.queued {
		return
	}
	p.queued = true
	if q.head > len(q.items)/2 {
		q.compact()
	}
	q.items = append(q.items, p)
}

// pop removes and returns the first partition, nil if there is none.
func (q *partitionQueue) pop() *fetchPartition {
	for q.head < len(q.items) {
		p := q.items[q.head]
		q.items[q.head] = nil
		q.head++
		if p.forgotten {
			q.forgotten--
			continue
		}
		p.queued = false
		return p
	}
	return nil
}

// unpop puts partitions back in front, in order, those that are in the queue by now excepted.
func (q *partitionQueue) unpop(ps []*fetchPartition) {
	for _, p := range slices.Backward(ps) {
		if p.queued || p.forgotten {
			continue
		}
		p.queued = true
		if q.head == 0 {
			q.items = slices.Insert(q.items, 0, make([]*fetchPartition, len(ps))...)
			q.head = len(ps)
		}
		q.head--
		q.items[q.head] = p
	}
}

// drop marks p as forgotten and takes it out. A client that forgets and adds the same partitions for ever makes the
// queue no longer than twice what is in it.
func (q *partitionQueue) drop(p *fetchPartition) {
	p.forgotten = true
	if !p.queued {
		return
	}
	q.forgotten++
	if q.forgotten > (len(q.items)-q.head)/2 {
		q.compact()
	}
}

// compact moves the items to the start of their array and leaves out the forgotten ones.
func (q *partitionQueue) compact() {
	live := q.items[:0]
	for _, p := range q.items[q.head:] {
		if !p.forgotten {
			live = append(live, p)
		}
	}
	clear(q.items[len(live):])
	q.items, q.head, q.forgotten = live, 0, 0
}

// fetchSessions is the cache of fetch sessions. A session that leaves it closes its watch, at once or when the fetch
// that uses it ends.
type fetchSessions struct {
	store         *streamstore.Store
	slots         int
	maxPartitions int // of all sessions
	maxPerSession int
	// exists tells whether there is such a partition.
	exists func(key partitionKey, byID bool) bool
	m      *fetchMetrics

	mu struct {
		sync.Mutex
		byID       map[int32]*fetchSession
		lru        *list.List // of *fetchSession, least recently used first
		partitions int        // sum of the sessions' sizes
	}
}

func newFetchSessions(store *streamstore.Store, slots int, exists func(partitionKey, bool) bool, m *fetchMetrics) *fetchSessions {
	c := &fetchSessions{store: store, slots: slots, maxPartitions: maxSessionPartitions, maxPerSession: maxSessionPartitions / sessionShare, exists: exists, m: m}
	c.mu.byID = make(map[int32]*fetchSession)
	c.mu.lru = list.New()
	return c
}

var (
	errSessionNotFound = kafkaproto.ErrFetchSessionIDNotFound.WithMessage("no such fetch session; start a new one")
	errSessionEpoch    = kafkaproto.ErrInvalidFetchSessionEpoch.WithMessage("the fetch session is at another epoch; start a new one")
	errSessionTopicIDs = kafkaproto.ErrFetchSessionTopicIDError.WithMessage("the fetch session names topics another way; start a new one")
	errSessionTooLarge = kafkaproto.ErrFetchSessionIDNotFound.WithMessage("the fetch session has grown too large; fetch without one")
)

// isFullFetch reports whether a request names all partitions it wants and its reply must do so too.
func isFullFetch(req *kmsg.FetchRequest) bool {
	return req.Version < fetchSessionsFrom || req.SessionEpoch == sessionEpochInitial || req.SessionEpoch == sessionEpochFinal
}

// begin returns the session that a request belongs to, updated by what the request says. Every session begun must be
// ended. The errors are those of the whole reply. gone is closed when the request's connection ends.
func (c *fetchSessions) begin(req *kmsg.FetchRequest, gone <-chan struct{}) (*fetchSession, *kafkaproto.Error) {
	if !isFullFetch(req) {
		return c.resume(req, gone)
	}
	if req.Version >= fetchSessionsFrom && req.SessionID != 0 {
		c.remove(req.SessionID)
	}
	s := newFetchSession(req)
	s.update(req)
	if kerr := c.startFollowing(s, req); kerr != nil {
		s.closeWatch()
		return nil, kerr
	}
	if req.Version >= fetchSessionsFrom && req.SessionEpoch == sessionEpochInitial && c.deserving(s) {
		s.gone = gone
		c.insert(s)
	}
	return s, nil
}

// deserving tells whether a new session may ask for a slot.
func (c *fetchSessions) deserving(s *fetchSession) bool {
	if s.follow != nil {
		return true
	}
	if n := len(s.byKey); n == 0 || n > c.maxPerSession {
		return false
	}
	for _, p := range s.partitions {
		if !c.exists(p.partitionKey, s.usesTopicIDs) {
			return false
		}
	}
	return true
}

// resume begins the cached session of an incremental request.
func (c *fetchSessions) resume(req *kmsg.FetchRequest, gone <-chan struct{}) (*fetchSession, *kafkaproto.Error) {
	s, err := c.acquire(req, gone)
	if err != nil {
		return nil, err
	}
	s.update(req)
	if c.resize(s) {
		return s, nil
	}
	c.remove(req.SessionID)
	if s.isEmpty() {
		return s, nil // the client has forgotten everything: the reply ends the session, as in Kafka
	}
	c.end(s)
	return nil, errSessionTooLarge
}

// acquire checks an incremental request against its session, in Kafka's order, and marks the session busy.
func (c *fetchSessions) acquire(req *kmsg.FetchRequest, gone <-chan struct{}) (*fetchSession, *kafkaproto.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.mu.byID[req.SessionID]
	switch {
	case !ok:
		return nil, errSessionNotFound
	case s.epoch != req.SessionEpoch || s.busy:
		return nil, errSessionEpoch
	case s.usesTopicIDs != (req.Version >= fetchTopicIDsFrom):
		return nil, errSessionTopicIDs
	}
	s.busy, s.gone = true, gone
	s.epoch = nextSessionEpoch(s.epoch)
	c.touchLocked(s)
	return s, nil
}

// nextSessionEpoch skips the two values that mean something else.
func nextSessionEpoch(epoch int32) int32 {
	if epoch == math.MaxInt32 {
		return 1
	}
	return epoch + 1
}

// resize counts the partitions of a session anew, and reports whether it may stay: it has some, and not too many.
func (c *fetchSessions) resize(s *fetchSession) bool {
	c.mu.Lock()
	if s.lru == nil {
		c.mu.Unlock()
		return true // removed meanwhile: this fetch is its last
	}
	c.mu.partitions += len(s.byKey) - s.size
	s.size = len(s.byKey)
	var evicted []*fetchSession
	if c.mu.partitions > c.maxPartitions {
		evicted = c.makeRoomLocked(0, 0, time.Now())
	}
	c.m.sessionPartitions.Set(float64(c.mu.partitions))
	ok := !s.isEmpty() && s.size <= c.maxPerSession && c.mu.partitions <= c.maxPartitions
	c.mu.Unlock()
	closeWatches(evicted)
	return ok
}

// insert gives s an id and a slot, begun. If there is none to be had, s stays outside the cache, with id 0, which
// tells the client to go on with full requests.
func (c *fetchSessions) insert(s *fetchSession) {
	watch := c.store.NewWatch()
	evicted, ok := c.claimSlot(s)
	if ok {
		s.watch = watch
	} else {
		watch.Close()
	}
	closeWatches(evicted)
}

func closeWatches(sessions []*fetchSession) {
	for _, s := range sessions {
		s.closeWatch()
	}
}

// claimSlot puts s into the cache if it may, and returns the sessions whose watch the caller must close.
func (c *fetchSessions) claimSlot(s *fetchSession) (evicted []*fetchSession, ok bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	evicted = c.makeRoomLocked(1, len(s.byKey), now)
	if c.mu.partitions+len(s.byKey) > c.maxPartitions {
		return evicted, false
	}
	if len(c.mu.byID) >= c.slots {
		e := c.smallerLocked(len(s.byKey), now)
		if e == nil {
			return evicted, false
		}
		evicted = c.evictLocked(e, evicted)
	}
	s.id = c.newIDLocked()
	s.epoch = nextSessionEpoch(sessionEpochInitial)
	s.busy = true
	s.created, s.lastUsed = now, now
	s.size = len(s.byKey)
	s.lru = c.mu.lru.PushBack(s)
	c.mu.byID[s.id] = s
	c.mu.partitions += s.size
	c.gaugesLocked()
	return evicted, true
}

// makeRoomLocked evicts what has been idle for long. If so many slots and partitions more do not fit then, it evicts what
// has lost its connection, and after that what has been idle for a while, oldest first. It returns the sessions whose watch the caller must close.
func (c *fetchSessions) makeRoomLocked(slots, partitions int, now time.Time) (evicted []*fetchSession) {
	evict := func(expendable func(s *fetchSession) bool) {
		var next *list.Element
		for el := c.mu.lru.Front(); el != nil; el = next {
			next = el.Next()
			if s := el.Value.(*fetchSession); !s.busy && expendable(s) {
				evicted = c.evictLocked(s, evicted)
			}
		}
	}
	short := func() bool {
		return len(c.mu.byID)+slots > c.slots || c.mu.partitions+partitions > c.maxPartitions
	}
	evict(func(s *fetchSession) bool { return now.Sub(s.lastUsed) > sessionIdleEviction })
	if short() {
		evict((*fetchSession).isGone)
		evict(func(s *fetchSession) bool { return short() && now.Sub(s.lastUsed) > shortIdleEviction })
	}
	return evicted
}

func (s *fetchSession) isGone() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// evictLocked removes s, and appends it to evicted if its watch can be closed now.
func (c *fetchSessions) evictLocked(s *fetchSession, evicted []*fetchSession) []*fetchSession {
	c.m.sessionEvictions.Inc()
	if c.removeLocked(s) {
		evicted = append(evicted, s)
	}
	return evicted
}

// smallerLocked returns the smallest session that a new one of that size may push out: it is smaller and has had its
// slot for a while. Kafka's FetchSessionCache.tryEvict. Nil if there is none.
func (c *fetchSessions) smallerLocked(size int, now time.Time) *fetchSession {
	var smallest *fetchSession
	for _, s := range c.mu.byID {
		if s.size < size && now.Sub(s.created) > sessionIdleEviction && (smallest == nil || s.size < smallest.size) {
			smallest = s
		}
	}
	return smallest
}

// newIDLocked returns a random id, so that a client that comes back after a restart does not meet another's session.
func (c *fetchSessions) newIDLocked() int32 {
	for {
		id := 1 + rand.Int32N(math.MaxInt32)
		if _, taken := c.mu.byID[id]; !taken {
			return id
		}
	}
}

func (c *fetchSessions) touchLocked(s *fetchSession) {
	s.lastUsed = time.Now()
	c.mu.lru.MoveToBack(s.lru)
}

// end gives a session back: it waits for its client's next request, or is closed if it is not, or no longer, cached.
func (c *fetchSessions) end(s *fetchSession) {
	c.mu.Lock()
	s.busy = false
	cached := s.lru != nil
	if cached {
		c.touchLocked(s)
	}
	c.mu.Unlock()
	if !cached {
		s.closeWatch()
	}
}

// remove takes a session out of the cache, if it is there.
func (c *fetchSessions) remove(id int32) {
	c.mu.Lock()
	s, ok := c.mu.byID[id]
	idle := ok && c.removeLocked(s)
	c.mu.Unlock()
	if idle {
		s.closeWatch()
	}
}

// removeLocked takes s out of the cache and reports whether its watch can be closed: no fetch is using it.
func (c *fetchSessions) removeLocked(s *fetchSession) (idle bool) {
	delete(c.mu.byID, s.id)
	c.mu.lru.Remove(s.lru)
	s.lru = nil
	c.mu.partitions -= s.size
	c.gaugesLocked()
	return !s.busy
}

func (c *fetchSessions) gaugesLocked() {
	c.m.sessions.Set(float64(len(c.mu.byID)))
	c.m.sessionPartitions.Set(float64(c.mu.partitions))
}

// close removes all sessions.
func (c *fetchSessions) close() {
	c.mu.Lock()
	ids := make([]int32, 0, len(c.mu.byID))
	for id := range c.mu.byID {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.remove(id)
	}
}
