package groups

import (
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// Bounds of a regular expression that subscribes to topics.
const (
	// maxRegex is its longest length in bytes.
	maxRegex = 4 << 10
	// maxRegexCost is the most instructions it may compile to, as [regexCost] estimates them. The length does not bound
	// them: a{1000} has seven bytes and a thousand instructions.
	maxRegexCost = 10_000
	// regexInstructionBytes is about what an instruction takes in memory, with what matching needs for it.
	regexInstructionBytes = 100
)

// topicPattern is a regular expression that must match the whole name of a topic. The members of a group that have the
// same one share it.
type topicPattern struct {
	whole string // anchored
	// compiled is nil until a member has it, so that only those who may join make the broker compile.
	compiled *regexp.Regexp
	// bytes is about what it takes in memory; members counts those of the group who have it.
	bytes, members int
}

// parsePattern checks an expression; it takes little time whatever the expression. The error is for clients. The pattern
// of "" is nil.
func parsePattern(expr string) (*topicPattern, *kafkaproto.Error) {
	if expr == "" {
		return nil, nil
	}
	if len(expr) > maxRegex {
		return nil, kafkaproto.ErrInvalidRegularExpression.WithMessage("the regular expression is %d bytes long, at most %d are allowed", len(expr), maxRegex)
	}
	parsed, err := syntax.Parse(expr, syntax.Perl) // on its own, or ")(" would do
	if err != nil {
		return nil, kafkaproto.ErrInvalidRegularExpression.WithMessage("%v", err)
	}
	cost := regexCost(parsed)
	if cost > maxRegexCost {
		return nil, kafkaproto.ErrInvalidRegularExpression.WithMessage("the regular expression is too large when its repetitions are written out; use fewer or smaller ones")
	}
	whole := `\A(?:` + expr + `)\z`
	if _, err := syntax.Parse(whole, syntax.Perl); err != nil {
		return nil, kafkaproto.ErrInvalidRegularExpression.WithMessage("%v", err)
	}
	return &topicPattern{whole: whole, bytes: cost * regexInstructionBytes}, nil
}

// regexCost estimates from above how many instructions an expression compiles to, before its repetitions are written out.
// Character classes count more the more ranges they have. It stops counting beyond maxRegexCost.
func regexCost(re *syntax.Regexp) int {
	cost := 1
	switch re.Op {
	case syntax.OpLiteral:
		cost = len(re.Rune)
	case syntax.OpCharClass:
		cost += len(re.Rune) / 8
	}
	for _, sub := range re.Sub {
		if cost += regexCost(sub) + 1; cost > maxRegexCost {
			return maxRegexCost + 1
		}
	}
	if re.Op == syntax.OpRepeat {
		cost *= max(re.Min, re.Max, 1) // at most 1000 each
	}
	return min(cost, maxRegexCost+1)
}

// compile makes the pattern ready to match.
func (p *topicPattern) compile() *kafkaproto.Error {
	if p.compiled != nil {
		return nil
	}
	compiled, err := regexp.Compile(p.whole)
	if err != nil {
		return kafkaproto.ErrInvalidRegularExpression.WithMessage("%v", err)
	}
	p.compiled = compiled
	return nil
}

// matching returns those of the topics that the pattern matches, sorted; an empty slice for none.
func (p *topicPattern) matching(topics []string) []string {
	matched := []string{}
	for _, t := range topics {
		if p.compiled.MatchString(t) {
			matched = append(matched, t)
		}
	}
	slices.Sort(matched)
	return matched
}

// setRegex makes a member subscribe with an expression, whose pattern is nil if it cannot be used: then it matches
// nothing. The member is not counted in the sums of the group meanwhile.
func (cg *consumerGroup) setRegex(m *consumerMember, expr string, pattern *topicPattern) {
	if shared := cg.patterns[expr]; shared != nil {
		pattern = shared
	}
	if pattern != nil && pattern.compile() != nil {
		pattern = nil
	}
	m.regex, m.pattern = expr, pattern
}

// countPattern counts a member that has the pattern, or one less.
func (cg *consumerGroup) countPattern(expr string, p *topicPattern, n int) {
	if p == nil {
		return
	}
	if p.members == 0 {
		cg.patterns[expr] = p
		cg.metadataBytes += p.bytes
	}
	if p.members += n; p.members == 0 {
		delete(cg.patterns, expr)
		cg.metadataBytes -= p.bytes
	}
}

// patternBytes is what the group has to remember more if a member brings the pattern.
func (cg *consumerGroup) patternBytes(expr string, p *topicPattern) int {
	if p == nil || cg.patterns[expr] != nil {
		return 0
	}
	return p.bytes
}
