package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/brookletmq/brooklet/tests/harness"
)

// openBrowser starts Chromium without a window. It skips the test where there is none, but not in CI.
func openBrowser(t *testing.T) context.Context {
	t.Helper()
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("Chromium is not installed: apt-get install chromium")
		}
		t.Skip("Chromium is not installed: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(time.Minute)) // a busy machine starts it slowly
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithLogf(t.Logf))
	t.Cleanup(cancel)
	return ctx
}

// The live page lists streams by prefix, follows one live, appends to it, shows rates, and takes what streams hold for
// text, whatever it is.
func TestPage(t *testing.T) {
	ctx := openBrowser(t)
	b := harness.Start(t, harness.Config{})
	appendTo := func(stream, value string) {
		t.Helper()
		resp, err := http.Post("http://"+b.HTTP+"/v1/streams/"+stream, "application/octet-stream", strings.NewReader(value))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("appending to %s: %s", stream, resp.Status)
		}
	}
	const hostile = `<img src=x onerror="document.title='taken'"></td><script>document.title='taken'</script>`
	appendTo("users/alice", "first")
	appendTo("users/bob%20%3Cb%3E", hostile)
	for i := range 120 {
		appendTo(fmt.Sprintf("devices/%03d", i), "x")
	}

	run := func(what string, actions ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, actions...); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	// await waits until an expression of the page has a value.
	await := func(what, expression, want string) {
		t.Helper()
		_, err := chromedp.Run(ctx, chromedp.Poll[bool](fmt.Sprintf("String(%s) === %q", expression, want), chromedp.WithPollingTimeout(30*time.Second)))
		if err != nil {
			got, _ := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf("String(%s)", expression)))
			t.Fatalf("%s: %s is %q, want %q (%v)", what, expression, got, want, err)
		}
	}
	names := `[...document.querySelectorAll("#streams a")].map(a => a.dataset.name).join()`
	values := `[...document.querySelectorAll("#records td:last-child")].map(td => td.textContent).join("|")`

	run("opening the page", chromedp.Navigate("http://"+b.HTTP+"/"))
	await("a page of all streams", `document.querySelectorAll("#streams a").length`, "100")
	run("more", chromedp.Click("#more"))
	await("all streams", `document.querySelectorAll("#streams a").length`, "122")
	await("no more", `document.getElementById("more").hidden`, "true")
	run("a prefix", chromedp.SendKeys("#prefix", "users/"))
	await("streams under the prefix", names, "users/alice,users/bob <b>")

	run("choosing a stream", chromedp.Click(`#streams a[data-name="users/alice"]`))
	await("its records", values, "first")
	await("following", `document.getElementById("state").textContent`, "live")
	appendTo("users/alice", "second")
	await("a record that came", values, "second|first")
	run("pausing", chromedp.Click("#pause"))
	appendTo("users/alice", "third")
	await("the record that waits", `pending.length`, "1")
	await("records while paused", values, "second|first")
	run("going on", chromedp.Click("#pause"))
	await("records after the pause", values, "third|second|first")
	run("appending", chromedp.SendKeys("#value", "from the page\n"))
	await("what was appended", values, "from the page|third|second|first")

	await("followers", `document.getElementById("followers").textContent`, "1")
	await("the curve of rates", `document.querySelector("#history polyline").getAttribute("points")?.length > 0`, "true")

	run("a stream of hostile text", chromedp.Click(`#streams li:nth-child(2) a`))
	await("its name", `document.getElementById("name").textContent`, "users/bob <b>")
	await("its text", values, hostile)
	await("what became of it", `document.querySelectorAll("#records img, #records script, #streams b").length + document.title`, "0users/bob <b> – Brooklet")

	b.Kill()
	await("the broker is gone", `document.getElementById("state").textContent`, "connecting again")
	b.Start()
	await("the broker is back", `document.getElementById("state").textContent`, "live")
	appendTo("users/bob%20%3Cb%3E", "after")
	await("a record after that", values, "after|"+hostile)
}
