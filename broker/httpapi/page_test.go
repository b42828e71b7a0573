package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
)

// The files of the page are served with their types, for no other page to frame and nothing foreign to run.
func TestPageFiles(t *testing.T) {
	d := openDoor(t, nil)
	for path, want := range map[string]struct{ media, text string }{
		"/":              {"text/html", "<title>Brooklet</title>"},
		"/page/page.css": {"text/css", "polyline"},
		"/page/page.js":  {"text/javascript", "EventSource"},
	} {
		a := d.ask(200, "GET", path, "")
		if !strings.HasPrefix(a.Header.Get("Content-Type"), want.media) || !strings.Contains(a.body, want.text) {
			t.Errorf("%s: %q %.80s", path, a.Header.Get("Content-Type"), a.body)
		}
		if policy := a.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'self'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if head := d.ask(200, "HEAD", path, ""); head.body != "" || head.Header.Get("ETag") != a.Header.Get("ETag") {
			t.Errorf("%s: HEAD: %q, %v", path, head.body, head.Header)
		}
		d.ask(304, "GET", path, "", "If-None-Match", a.Header.Get("ETag"))
		d.ask(400, "GET", path+"?x=1", "")
	}
}

func TestStats(t *testing.T) {
	d := openDoor(t, nil)
	read := func() (s statistics) {
		t.Helper()
		if err := json.Unmarshal([]byte(d.ask(200, "GET", "/v1/stats", "").body), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := read()
	d.ask(200, "POST", "/v1/streams/a/b", "hello")
	d.ask(200, "GET", "/v1/streams/a/b?from=0", "")
	after := read()
	if after.Appends <= before.Appends || after.AppendedBytes <= before.AppendedBytes || after.ReadBytes <= before.ReadBytes || after.Time < before.Time {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if after.AppendedBytes-before.AppendedBytes != after.ReadBytes-before.ReadBytes {
		t.Errorf("appended and read differ: %+v, %+v", before, after)
	}
	if after.Followers != 0 {
		t.Errorf("%d followers", after.Followers)
	}
	d.ask(400, "GET", "/v1/stats?x=1", "")
}
