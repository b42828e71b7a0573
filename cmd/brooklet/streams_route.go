package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/brookletmq/brooklet/kafkaproto/ext"
	"github.com/brookletmq/brooklet/streamstore"
)

// A template is the name of a stream with fields in braces, such as users/{user_id} or logs/{4}.
type template struct {
	text string
	// literals are the texts around the fields: one more than there are fields.
	literals []string
	fields   []string
}

// parseTemplate reads a template. Doubled braces stand for themselves.
func parseTemplate(text string) (*template, error) {
	t := &template{text: text}
	var literal strings.Builder
	for rest := text; rest != ""; {
		c := rest[0]
		switch {
		case strings.HasPrefix(rest, "{{") || strings.HasPrefix(rest, "}}"):
			literal.WriteByte(c)
			rest = rest[2:]
		case c == '}':
			return nil, fmt.Errorf("%q has a } without a {; write }} for the character itself", text)
		case c == '{':
			field, behind, ok := strings.Cut(rest[1:], "}")
			if !ok || field == "" {
				return nil, fmt.Errorf("%q has a { that names no field, such as {user_id}; write {{ for the character itself", text)
			}
			t.literals, t.fields = append(t.literals, literal.String()), append(t.fields, field)
			literal.Reset()
			rest = behind
		default:
			literal.WriteByte(c)
			rest = rest[1:]
		}
	}
	t.literals = append(t.literals, literal.String())
	return t, nil
}

// fieldSource finds the fields of one line.
type fieldSource func(field string) (string, error)

// expand puts the fields of a line into the template.
func (t *template) expand(fields fieldSource) (string, error) {
	if len(t.fields) == 0 {
		return t.literals[0], nil
	}
	var b strings.Builder
	for i, field := range t.fields {
		value, err := fields(field)
		if err != nil {
			return "", err
		}
		if value == "" {
			return "", fmt.Errorf("field %q is empty", field)
		}
		b.WriteString(t.literals[i])
		b.WriteString(value)
	}
	b.WriteString(t.literals[len(t.fields)])
	return b.String(), nil
}

// router decides which streams a line goes to, and under which key.
type router struct {
	stream *template
	key    string // name of the field that becomes the key, "": none
	// One of these tells where fields come from.
	json      bool
	match     *regexp.Regexp
	delimiter string // "": fields are separated by white space
	// all routes a line once for every match of the expression.
	all bool
}

// checkFields makes sure that the fields exist in any line at all.
func (r *router) checkFields() error {
	names := r.stream.fields
	if r.key != "" {
		names = append(names[:len(names):len(names)], r.key)
	}
	for _, name := range names {
		switch {
		case r.json:
		case r.match != nil:
			if r.group(name) < 0 {
				return fmt.Errorf("field %q is no group of the expression %q: write (?P<%s>…) for a group of that name", name, r.match, name)
			}
		default:
			if n, err := strconv.Atoi(name); err != nil || n < 1 {
				return fmt.Errorf("field %q: fields of plain lines are numbered from {1}; give names to parts of a line with --match, or use --format json", name)
			}
		}
	}
	return nil
}

// group finds a group of the expression by its name or number, -1 if there is none.
func (r *router) group(name string) int {
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && n <= r.match.NumSubexp() {
		return n
	}
	return r.match.SubexpIndex(name)
}

// route is where a line goes. key is nil for none.
type route struct {
	stream string
	key    []byte
}

// routes appends where a line goes to. The error says what is wrong with the line.
func (r *router) routes(line []byte, to []route) ([]route, error) {
	if r.match == nil {
		fields, err := r.fields(line)
		if err != nil {
			return nil, err
		}
		return r.route(fields, to)
	}
	n := 1
	if r.all {
		n = -1
	}
	matches := r.match.FindAllSubmatchIndex(line, n)
	if len(matches) == 0 {
		return nil, fmt.Errorf("it does not match %q", r.match)
	}
	for _, m := range matches {
		var err error
		to, err = r.route(func(field string) (string, error) {
			at := 2 * r.group(field)
			if m[at] < 0 {
				return "", fmt.Errorf("group %q matches nothing", field)
			}
			return string(line[m[at]:m[at+1]]), nil
		}, to)
		if err != nil {
			return nil, err
		}
	}
	return to, nil
}

func (r *router) route(fields fieldSource, to []route) ([]route, error) {
	stream, err := r.stream.expand(fields)
	if err != nil {
		return nil, err
	}
	if err := checkStream(stream); err != nil {
		return nil, err
	}
	for i := range to {
		if to[i].stream == stream {
			return to, nil // a line that names the same thing twice
		}
	}
	next := route{stream: stream}
	if r.key != "" {
		key, err := fields(r.key)
		if err != nil {
			return nil, err
		}
		next.key = []byte(key)
	}
	return append(to, next), nil
}

// errTopic: a name is not a stream's, but a topic's.
var errTopic = errors.New("is the name of a topic")

// checkStream refuses names that a broker would refuse for a stream.
func checkStream(name string) error {
	err := streamstore.ValidateName(name)
	switch {
	case err != nil:
	case !ext.IsStream(name):
		err = fmt.Errorf("%q %w: a stream's has a slash, such as users/%s", name, errTopic, name)
	case strings.HasPrefix(name, "_") || strings.HasPrefix(name, "topics/"):
		err = fmt.Errorf("%q cannot be a stream: names that begin with _ or topics/ are the broker's own", name)
	}
	return err
}

// fields takes a line apart.
func (r *router) fields(line []byte) (fieldSource, error) {
	if r.json {
		return jsonFields(line)
	}
	return func(field string) (string, error) {
		n, _ := strconv.Atoi(field)
		value, ok := plainField(line, n, r.delimiter)
		if !ok {
			return "", fmt.Errorf("it has no field %d", n)
		}
		return string(value), nil
	}, nil
}

// plainField returns the field number n, counted from 1.
func plainField(line []byte, n int, delimiter string) (field []byte, ok bool) {
	for ; n > 0; n-- {
		if delimiter != "" {
			if line == nil {
				return nil, false
			}
			if field, line, ok = bytes.Cut(line, []byte(delimiter)); !ok {
				line = nil
			}
			continue
		}
		line = bytes.TrimLeft(line, " \t")
		if len(line) == 0 {
			return nil, false
		}
		end := bytes.IndexAny(line, " \t")
		if end < 0 {
			end = len(line)
		}
		field, line = line[:end], line[end:]
	}
	return field, true
}

// jsonFields finds fields of a JSON object by dotted paths, such as user.id or items.0.id. A key that has dots itself is
// found by its whole name.
func jsonFields(line []byte) (fieldSource, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, fmt.Errorf("it is no JSON object: %w", err)
	}
	if object == nil {
		return nil, errors.New("it is null, no JSON object")
	}
	return func(field string) (string, error) {
		raw, ok := jsonPath(object, field)
		if !ok {
			return "", fmt.Errorf("it has no field %q", field)
		}
		return jsonText(field, raw)
	}, nil
}

func jsonPath(object map[string]json.RawMessage, path string) (json.RawMessage, bool) {
	if raw, ok := object[path]; ok {
		return raw, true
	}
	for at := 0; at < len(path); at++ {
		if path[at] != '.' {
			continue
		}
		if raw, ok := object[path[:at]]; ok {
			if inner, ok := jsonMembers(raw); ok {
				if found, ok := jsonPath(inner, path[at+1:]); ok {
					return found, true
				}
			}
		}
	}
	return nil, false
}

// jsonMembers returns the members of an object, or the elements of an array by their numbers.
func jsonMembers(raw json.RawMessage) (map[string]json.RawMessage, bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) == nil {
		return object, object != nil
	}
	var array []json.RawMessage
	if json.Unmarshal(raw, &array) != nil {
		return nil, false
	}
	object = make(map[string]json.RawMessage, len(array))
	for i, element := range array {
		object[strconv.Itoa(i)] = element
	}
	return object, true
}

// jsonText returns a string as it reads, and numbers and truth values as they are written.
func jsonText(field string, raw json.RawMessage) (string, error) {
	switch c := raw[0]; {
	case c == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", fmt.Errorf("field %q: %w", field, err)
		}
		return s, nil
	case c == '{' || c == '[' || c == 'n':
		return "", fmt.Errorf("field %q is %s, no text or number", field, shorten(string(raw)))
	}
	return string(raw), nil
}

// shorten cuts text that is quoted in an error.
func shorten(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for !utf8.ValidString(text) && len(text) > most-utf8.UTFMax {
		text = text[:len(text)-1]
	}
	return text + "…"
}
