package groups

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
	"time"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// An expression that would compile to very much is refused before it is compiled, however it says so.
func TestRegexCost(t *testing.T) {
	for _, expr := range []string{
		strings.Repeat("a{1000}", 11), "((a{10}){10}){10}{11}", "(a{100}|b{100}){60}", "(abcdefghijkl){900}", `(?:\pL{100}x){2}`,
		strings.Repeat("x", maxRegex+1), "(", ")(", "a{1001}",
	} {
		if _, err := parsePattern(expr); err == nil {
			t.Errorf("%.30q is taken", expr)
		}
	}
	for _, expr := range []string{
		"a", ".*", "orders-[0-9]{1,20}", "a{9}", "(?i)orders|payments|refunds", `\pL+`, "(a{10}){100}", "(ab|c*){5,}", "(|a){2,5}", "x{0}",
		strings.Repeat("topic-name|", 300) + "x",
	} {
		p, kerr := parsePattern(expr)
		if kerr != nil {
			t.Errorf("%.30q: %v", expr, kerr)
			continue
		}
		parsed, err := syntax.Parse(expr, syntax.Perl)
		want(t, "error", err, nil)
		prog, err := syntax.Compile(parsed.Simplify())
		want(t, "error", err, nil)
		if cost := p.bytes / regexInstructionBytes; len(prog.Inst) > 2*cost+4 {
			t.Errorf("%.30q compiles to %d instructions, the estimate is %d", expr, len(prog.Inst), cost)
		}
		wantErr(t, "compile", p.compile(), nil)
		want(t, "matches", p.compiled.MatchString("a"), regexp.MustCompile("^(?:"+expr+")$").MatchString("a"))
	}
}

// Members with the same expression share one pattern, which is accounted for once, also after a restart.
func TestPatternShared(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		const expr = "ord(e{1,100}|x{500})rs"
		for _, id := range []string{"a", "b", "c"} {
			wantErr(t, "join", f.consumer(id, matching(expr)).join().Err, nil)
		}
		check := func(members int) {
			t.Helper()
			g, err := f.enter("g")
			want(t, "error", err, nil)
			defer f.leave(g)
			cg := g.consumer
			sum := 0
			for _, m := range cg.members {
				if m.pattern != cg.patterns[m.regex] {
					t.Error("a member has a pattern of its own")
				}
				sum += m.size()
			}
			for _, p := range cg.patterns {
				want(t, "members of the pattern", p.members, members)
				sum += p.bytes
			}
			want(t, "patterns", len(cg.patterns), min(members, 1))
			want(t, "size", cg.metadataBytes, sum)
		}
		check(3)
		f.restart()
		check(3)
		c := f.consumer("c", matching(expr))
		wantErr(t, "join", c.join().Err, nil)
		check(3)
		c.edits = []func(*ConsumerHeartbeatRequest){reading("orders"), func(r *ConsumerHeartbeatRequest) { none := ""; r.Regex = &none }}
		wantErr(t, "subscribe by name", c.beat().Err, nil)
		check(2)
		for _, id := range []string{"a", "b"} {
			wantErr(t, "leave", f.consumer(id).leave().Err, nil)
		}
		check(0)
	})
}

// Whoever is no member cannot make the broker compile.
func TestPatternOfStranger(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.settled("a")
		r := f.consumer("stranger", matching("a{1000}")).request(3)
		wantErr(t, "heartbeat", get(t, f.ConsumerHeartbeat(r)).Err, kafkaproto.ErrUnknownMemberID)
		g, _ := f.enter("g")
		defer f.leave(g)
		want(t, "patterns", len(g.consumer.patterns), 0)
	})
}

// A stored expression that this release does not take matches nothing, and stops nobody.
func TestStoredRegexUnusable(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a, b := f.consumer("a", matching("ord.*")), f.consumer("b")
		wantErr(t, "join", a.join().Err, nil)
		wantErr(t, "join", b.join().Err, nil)
		f.settle(a, b)
		f.Close()
		key := string(memberKey("g", "a"))
		m, err := decodeMember("a", []byte(f.rows.rows[key]))
		want(t, "error", err, nil)
		m.regex = "ord("
		f.rows.rows[key] = string(m.encode())
		f.start()
		c := f.consumer("c")
		wantErr(t, "join", c.join().Err, nil)
		for range 8 {
			wantErr(t, "heartbeat", a.keepAlive().Err, nil)
			a.send(&ConsumerHeartbeatRequest{Group: "g", MemberID: "a", MemberIDRequired: true, MemberEpoch: a.epoch, RebalanceTimeout: -1, Owned: named(a.owned)})
			wantErr(t, "heartbeat", b.beat().Err, nil)
			wantErr(t, "heartbeat", c.beat().Err, nil)
		}
		want(t, "partitions of the others", b.owned.union(c.owned), parts(0, 1, 2, 3))
	})
}

// A look lists the topics once for all expressions, and not at all if nothing has changed since they were matched.
func TestTopicsListedOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		a, b, c := f.consumer("a", matching("ord.*")), f.consumer("b", matching("orders|x")), f.consumer("c", matching("none"))
		for i, m := range []*fakeConsumer{a, b, c} {
			wantErr(t, "join", m.join().Err, nil)
			want(t, "lists", f.topics.listed, i+1)
		}
		f.settle(a, b, c)
		b.leave()
		f.settle(a, c)
		pass(11 * time.Second)
		f.settle(a, c)
		want(t, "lists", f.topics.listed, 3)
		f.topics.set("order-book", 9)
		pass(2 * time.Second)
		f.settle(a, c)
		want(t, "lists", f.topics.listed, 4)
		want(t, "partitions", len(a.owned), 5)
	})
}
