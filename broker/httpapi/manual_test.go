package httpapi

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The examples of docs/http.md are run from top to bottom: each block of curl commands must answer what the block behind it
// shows, where … stands for anything.
func TestManual(t *testing.T) {
	text, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	d := openDoor(t, nil)
	examples := 0
	for i, b := range blocks {
		if b[1] != "sh" {
			continue
		}
		if i+1 == len(blocks) || !slices.Contains([]string{"json", "text"}, blocks[i+1][1]) {
			t.Fatalf("nothing is shown for %s", b[2])
		}
		var got strings.Builder
		for _, command := range curlCommands(t, b[2]) {
			got.WriteString(d.curl(command, strings.Count(blocks[i+1][2], "\ndata: ")))
		}
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(blocks[i+1][2])), "…", "(?s:.*?)")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(strings.TrimSpace(got.String())) {
			t.Errorf("%s\nanswers\n%s\nthe manual shows\n%s", b[2], got.String(), blocks[i+1][2])
		}
		examples++
	}
	if examples < 12 {
		t.Errorf("only %d examples were found", examples)
	}
}

// The manual names every problem and every header of the protocol.
func TestManualIsComplete(t *testing.T) {
	text, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range problemKinds {
		row := regexp.MustCompile(fmt.Sprintf("\n\\| %d \\|.*`%s`", k.status, k.code))
		if !row.Match(text) {
			t.Errorf("the problem %s is not in the row of status %d", k.code, k.status)
		}
	}
	for _, name := range []string{headerStreamID, headerStartOffset, headerEndOffset, headerNextOffset, headerClosed, headerRecord, headerProducerID, headerProducerEpoch, headerProducerSeq, headerLastEventID} {
		if !bytes.Contains(text, []byte(name)) {
			t.Errorf("the header %s is not in the manual", name)
		}
	}
	for _, name := range []string{eventBase64, eventNull, eventCursor, eventGap, eventDeleted, eventClosed, eventError} {
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("the event %s is not in the manual", name)
		}
	}
}

// curlCommands splits a block into commands, each a list of words as a shell makes them.
func curlCommands(t *testing.T, block string) (commands [][]string) {
	t.Helper()
	word := regexp.MustCompile(`'[^']*'|[^\s']+`)
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
		var words []string
		for _, w := range word.FindAllString(line, -1) {
			words = append(words, strings.Trim(w, "'"))
		}
		if len(words) == 0 {
			continue
		}
		if words[0] != "curl" {
			t.Fatalf("not a curl command: %s", line)
		}
		commands = append(commands, words[1:])
	}
	return commands
}

// curl does what curl does with these words. An event stream (-N) ends after so many events.
func (d *door) curl(words []string, events int) string {
	d.t.Helper()
	method, body, path, head, follow := "", "", "", false, false
	var headers []string
	for len(words) > 0 {
		w := words[0]
		words = words[1:]
		next := func() string {
			if len(words) == 0 {
				d.t.Fatalf("%s has no value", w)
			}
			v := words[0]
			words = words[1:]
			return v
		}
		switch w {
		case "-X":
			method = next()
		case "-H":
			name, value, _ := strings.Cut(next(), ": ")
			headers = append(headers, name, value)
		case "-d":
			body = next()
			if method == "" {
				method = "POST"
			}
		case "-i":
			head = true
		case "-N":
			follow = true
		default:
			var ok bool
			if path, ok = strings.CutPrefix(w, "http://127.0.0.1:8080"); !ok {
				d.t.Fatalf("curl: %q", w)
			}
		}
	}
	if method == "" {
		method = "GET"
	}
	if body != "" && !slices.Contains(headers, "Content-Type") {
		headers = append(headers, "Content-Type", "application/x-www-form-urlencoded")
	}
	if follow {
		return d.curlEvents(path, events, headers)
	}
	a, err := d.try(method, path, body, headers...)
	if err != nil {
		d.t.Fatal(err)
	}
	if !head {
		return a.body
	}
	var text strings.Builder
	fmt.Fprintf(&text, "HTTP/1.1 %s\n", a.Status)
	_ = a.Header.Write(&text) // a builder takes everything
	return strings.ReplaceAll(text.String(), "\r", "") + "\n" + a.body
}

// curlEvents returns an event stream up to its n-th event.
func (d *door) curlEvents(path string, n int, headers []string) string {
	d.t.Helper()
	resp, err := d.send("GET", path, http.NoBody, headers...)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var text strings.Builder
	for in := bufio.NewReader(resp.Body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			d.t.Fatalf("%v after %s", err, text.String())
		}
		text.WriteString(line)
		if line == "\n" && strings.Count(text.String(), "\ndata: ") == n {
			return text.String()
		}
	}
}
