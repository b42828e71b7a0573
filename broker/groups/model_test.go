package groups

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// TestRandomMembers lets clients that follow the protocol come, go, stall and crash, over a storage that is slow, fails
// at times, and survives restarts of the coordinator. What must hold:
//
//   - the generation that the coordinator gives out never falls, except to what was stored at a restart;
//   - each generation has one leader, who is told all members, and all members have the same protocol;
//   - an assignment is what the leader of that generation gave that member;
//   - a client is answered in bounded time, and when the clients are left alone the group becomes Stable with all of
//     them in one generation;
//   - the counters of the group agree with its members.
func TestRandomMembers(t *testing.T) {
	for range 30 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { runModel(t, seed) })
	}
}

func runModel(t *testing.T, seed uint64) {
	inBubble(t, func(o *Options) { o.InitialRebalanceDelay = time.Second }, func(t *testing.T, f *fixture) {
		w := &model{fixture: f, t: t, rand: rand.New(rand.NewPCG(seed, 1)), leaders: map[string]string{}, given: map[string]string{}}
		for range 400 {
			w.step()
		}
		w.settle()
	})
}

type model struct {
	*fixture
	t       *testing.T
	rand    *rand.Rand
	clients []*client
	// run counts coordinators: a generation belongs to one.
	run     int
	leaders map[string]string // by generation
	given   map[string]string // assignment by generation and member
	made    int
	// last is the latest generation that this coordinator has given out.
	last int32
}

// client is one that follows the protocol. It has at most one request that waits.
type client struct {
	instance string
	JoinResult
	state   clientState
	joining *Pending[JoinResult]
	syncing *Pending[SyncResult]
	since   time.Time // of the request that waits
	topics  int       // which subscription it has
}

type clientState int

const (
	out clientState = iota
	waitingJoin
	joined
	waitingSync
	inGroup
)

func (w *model) request(c *client) *JoinRequest {
	r := joining(c.MemberID, static(c.instance), requireID)
	r.Protocols = []Protocol{{"range", subscribe("orders", fmt.Sprint(c.topics))}, {"sticky", nil}}
	return r
}

func (w *model) step() {
	switch n := w.rand.IntN(100); {
	case n < 15 && len(w.clients) < 8:
		c := &client{}
		if w.rand.IntN(3) == 0 {
			c.instance = fmt.Sprint("i", w.made)
		}
		w.made++
		w.clients = append(w.clients, c)
	case n < 20 && len(w.clients) > 0: // one crashes
		i := w.rand.IntN(len(w.clients))
		c := w.clients[i]
		w.clients = slices.Delete(w.clients, i, i+1)
		if c.instance != "" && w.rand.IntN(2) == 0 { // and comes again
			w.clients = append(w.clients, &client{instance: c.instance})
		}
	case n < 24 && len(w.clients) > 0: // one leaves
		i := w.rand.IntN(len(w.clients))
		c := w.clients[i]
		w.clients = slices.Delete(w.clients, i, i+1)
		w.Leave("g", []LeavingMember{{MemberID: c.MemberID, InstanceID: c.instance}})
	case n < 28 && len(w.clients) > 0: // one changes its subscription
		c := w.clients[w.rand.IntN(len(w.clients))]
		if c.state == inGroup {
			c.topics++
			c.state = out
		}
	case n < 30:
		w.rows.set(nil, time.Duration(w.rand.IntN(3000))*time.Millisecond)
	case n < 32:
		w.rows.set(kafkaproto.ErrCoordinatorNotAvailable, 0)
	case n < 36:
		w.rows.set(nil, 0)
	case n < 37:
		w.restart()
		w.run++
		w.last = 0
		for _, c := range w.clients {
			if c.state != inGroup { // its connection is lost
				c.state = out
			}
		}
	case n < 39: // all stall
		pass(time.Duration(w.rand.IntN(12000)) * time.Millisecond)
	default:
		pass(time.Duration(w.rand.IntN(1000)) * time.Millisecond)
	}
	for _, c := range w.clients {
		w.act(c)
	}
	synctest.Wait()
	w.checkCounters()
}

// act lets a client do what is next.
func (w *model) act(c *client) {
	synctest.Wait()
	switch c.state {
	case out:
		c.joining, c.since, c.state = w.Join(w.request(c)), time.Now(), waitingJoin
	case waitingJoin:
		if isAnswered(w, c, c.joining) {
			w.onJoin(c, c.joining.value)
		}
	case joined:
		var assignments []Assignment
		if c.LeaderID == c.MemberID && !c.SkipAssignment {
			for _, m := range c.Members {
				data := fmt.Sprint(w.generation(c), " ", m.MemberID)
				w.given[data] = data
				assignments = append(assignments, Assignment{m.MemberID, []byte(data)})
			}
		}
		r := syncing(c.JoinResult, assignments...)
		r.InstanceID = c.instance
		c.syncing, c.since, c.state = w.Sync(r), time.Now(), waitingSync
	case waitingSync:
		if isAnswered(w, c, c.syncing) {
			w.onSync(c, c.syncing.value)
		}
	case inGroup:
		w.onError(c, w.Heartbeat(&HeartbeatRequest{Group: "g", MemberID: c.MemberID, InstanceID: c.instance, Generation: c.Generation}))
	}
}

func isAnswered[T any](w *model, c *client, p *Pending[T]) bool {
	select {
	case <-p.done:
		return true
	default:
	}
	if waited := time.Since(c.since); waited > 3*time.Minute {
		w.t.Fatalf("a request of %q has waited for %s", c.MemberID, waited)
	}
	return false
}

func (w *model) generation(c *client) string { return fmt.Sprint(w.run, "/", c.Generation) }

func (w *model) onJoin(c *client, r JoinResult) {
	if r.Err != nil {
		if r.Err.Code == kafkaproto.ErrMemberIDRequired.Code {
			c.MemberID = r.MemberID
		}
		w.onError(c, r.Err)
		c.state = out
		return
	}
	w.last = max(w.last, r.Generation)
	c.JoinResult, c.state = r, joined
	if len(r.Members) == 0 {
		return
	}
	// The leader. Its clients may change within a generation: a static one comes again.
	names := map[string]bool{}
	for _, m := range r.Members {
		if names[m.MemberID] {
			w.t.Fatalf("member %q is there twice", m.MemberID)
		}
		names[m.MemberID] = true
	}
	if !names[r.MemberID] {
		w.t.Fatalf("the leader %q is not among %v", r.MemberID, r.Members)
	}
	if r.SkipAssignment {
		return
	}
	if other, ok := w.leaders[w.generation(c)]; ok && other != r.MemberID {
		w.t.Fatalf("generation %s has the leaders %q and %q", w.generation(c), other, r.MemberID)
	}
	w.leaders[w.generation(c)] = r.MemberID
}

func (w *model) onSync(c *client, r SyncResult) {
	if r.Err != nil {
		w.onError(c, r.Err)
		c.state = out
		return
	}
	c.state = inGroup
	data := string(r.Assignment)
	if data == "" { // a member that came back after the leader had its list, or that the leader does not know
		return
	}
	if w.given[data] == "" {
		w.t.Fatalf("%q got %q, which no leader gave", c.MemberID, data)
	}
	var run int
	var generation int32
	var member string
	if _, err := fmt.Sscanf(data, "%d/%d %s", &run, &generation, &member); err != nil {
		w.t.Fatal(err)
	}
	if generation != c.Generation || member != c.MemberID && c.instance == "" {
		w.t.Fatalf("%q of generation %d got %q", c.MemberID, c.Generation, data)
	}
}

// onError does what clients do about an error.
func (w *model) onError(c *client, err *kafkaproto.Error) {
	if err == nil {
		return
	}
	switch err.Code {
	case kafkaproto.ErrUnknownMemberID.Code, kafkaproto.ErrFencedInstanceID.Code:
		c.MemberID = ""
	case kafkaproto.ErrMemberIDRequired.Code, kafkaproto.ErrIllegalGeneration.Code, kafkaproto.ErrRebalanceInProgress.Code,
		kafkaproto.ErrCoordinatorNotAvailable.Code, kafkaproto.ErrNotCoordinator.Code:
	default:
		w.t.Fatalf("unexpected error %v", err)
	}
	c.state = out
}

// checkCounters compares what the group counts with its members.
func (w *model) checkCounters() {
	var problems []string // told when no lock is held
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	w.each(func(g *group) {
		awaiting, unsynced, bytes := 0, 0, 0
		supported, instances := map[string]int{}, map[string]string{}
		for id, m := range g.members {
			if m.id != id {
				problem("member %q is filed under %q", m.id, id)
			}
			if m.joining != nil {
				awaiting++
			}
			if m.unsynced {
				unsynced++
			}
			if m.instanceID != "" {
				instances[m.instanceID] = id
			}
			bytes += m.size()
			for _, p := range m.protocols {
				supported[p.Name]++
			}
		}
		if awaiting != g.awaitingJoin || unsynced != g.unsynced || bytes != g.metadataBytes ||
			!maps.Equal(supported, g.supported) || !maps.Equal(instances, g.static) {
			problem("counters: %d %d %d %v %v, members: %d %d %d %v %v",
				g.awaitingJoin, g.unsynced, g.metadataBytes, g.supported, g.static, awaiting, unsynced, bytes, supported, instances)
		}
		if _, ok := g.members[g.leader]; len(g.members) > 0 && !ok {
			problem("the leader %q is no member", g.leader)
		}
		if g.generation < w.last {
			problem("generation %d after %d", g.generation, w.last)
		}
	})
	for _, p := range problems {
		w.t.Fatal(p)
	}
}

// settle leaves the clients alone until all are members of one generation.
func (w *model) settle() {
	w.rows.set(nil, 0)
	if len(w.clients) == 0 {
		w.clients = append(w.clients, &client{})
	}
	for range 600 {
		pass(500 * time.Millisecond)
		for _, c := range w.clients {
			w.act(c)
		}
	}
	w.wantState(Stable)
	d, _ := w.Describe("g")
	if len(d.Members) != len(w.clients) {
		w.t.Fatalf("%d members, %d clients", len(d.Members), len(w.clients))
	}
	for _, c := range w.clients {
		if c.state != inGroup || c.Generation != w.clients[0].Generation {
			w.t.Fatalf("client %+v, another %+v", c, w.clients[0])
		}
		i := slices.IndexFunc(d.Members, func(m MemberDescription) bool { return m.MemberID == c.MemberID })
		if i < 0 {
			w.t.Fatalf("client %q is no member", c.MemberID)
		}
	}
}
