package objstore_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fakeStore is what the fake services have in common: a map of objects, conditional
// creation, and ways to misbehave.
type fakeStore struct {
	mu      sync.Mutex
	objects map[string][]byte
	// requests counts object requests by method.
	requests map[string]int

	// ignoreCondition overwrites whatever the condition says.
	ignoreCondition bool
	// claimCondition overwrites as well, but says that the object exists.
	claimCondition bool
	// ignoreRange answers range requests with the whole object.
	ignoreRange bool
	// pageSize bounds the lines of one page of a listing.
	pageSize int
	// before may answer a request in place of the service; it returns true if it did.
	before func(w http.ResponseWriter, r *http.Request) bool
	// afterCreate is called once an object was created, before the answer.
	afterCreate func(name string)
}

func newFakeStore() *fakeStore {
	return &fakeStore{objects: map[string][]byte{}, requests: map[string]int{}, pageSize: 3}
}

// serve counts the request and runs before, then the service.
func (f *fakeStore) serve(t *testing.T, service http.HandlerFunc) *url.URL {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests[r.Method]++
		before := f.before
		f.mu.Unlock()
		if before != nil && before(w, r) {
			return
		}
		service(w, r)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// failFirst answers the first n requests with status.
func (f *fakeStore) failFirst(n, status int) {
	f.before = func(w http.ResponseWriter, r *http.Request) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		n--
		if n >= 0 {
			w.WriteHeader(status)
		}
		return n >= 0
	}
}

// create stores data unless the object exists and the condition holds creation back.
func (f *fakeStore) create(name string, data []byte, ifAbsent bool) (created bool) {
	f.mu.Lock()
	_, exists := f.objects[name]
	refuse := exists && ifAbsent
	if !refuse || f.ignoreCondition || f.claimCondition {
		f.objects[name] = data
	}
	created = !refuse || f.ignoreCondition
	after := f.afterCreate
	f.mu.Unlock()
	if created && after != nil {
		after(name)
	}
	return created
}

func (f *fakeStore) get(name string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, ok := f.objects[name]
	return data, ok
}

func (f *fakeStore) remove(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.objects[name]
	delete(f.objects, name)
	return ok
}

func (f *fakeStore) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, 0, len(f.objects))
	for name := range f.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (f *fakeStore) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[method]
}

// line is an object or a folder (with a slash at its end) of a listing.
type line struct {
	name   string
	size   int
	folder bool
}

// page lists by "/" what has prefix and is, as name or folder, past token and not less
// than from. next is the token of the page after, or "".
func (f *fakeStore) page(prefix, from, token string) (lines []line, next string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[string]bool{}
	var all []line
	for name, data := range f.objects {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || name < from {
			continue
		}
		l := line{name: name, size: len(data)}
		if i := strings.Index(rest, "/"); i >= 0 {
			l = line{name: prefix + rest[:i+1], folder: true}
		}
		if !seen[l.name] && l.name > token {
			seen[l.name] = true
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b line) int { return strings.Compare(a.name, b.name) })
	if len(all) > f.pageSize {
		all = all[:f.pageSize]
		next = all[len(all)-1].name
	}
	return all, next
}

// serveRange answers a read as RFC 9110 says.
func (f *fakeStore) serveRange(w http.ResponseWriter, r *http.Request, data []byte, spec string) {
	if f.ignoreRange {
		spec = ""
	}
	w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
	w.Header().Set("ETag", `"etag"`)
	status := http.StatusOK
	if spec != "" {
		var first, last int
		if n, _ := fmt.Sscanf(spec, "bytes=%d-%d", &first, &last); n < 2 {
			last = len(data) - 1
		}
		if first >= len(data) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		last = min(last, len(data)-1)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		data, status = data[first:last+1], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(data)
	}
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

// startS3 serves f as S3 bucket "data" and returns the bucket address.
func startS3(t *testing.T, f *fakeStore, prefix string) string {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	u := f.serve(t, f.s3)
	return fmt.Sprintf("s3://data/%s?region=us-east-1&endpoint=%s&insecure=true&access_key=me&path_style=true", prefix, u.Host)
}

func (f *fakeStore) s3(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/data/")
	if !ok {
		fail(http.StatusNotFound, "NoSuchBucket")
		return
	}
	switch {
	case r.Method == http.MethodGet && rest == "":
		f.s3List(w, r.URL.Query())
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		data, ok := f.get(rest)
		if !ok {
			fail(http.StatusNotFound, "NoSuchKey")
			return
		}
		f.serveRange(w, r, data, r.Header.Get("Range"))
	case r.Method == http.MethodPut:
		data, err := s3Body(r)
		if err != nil {
			fail(http.StatusBadRequest, "IncompleteBody")
			return
		}
		if !f.create(rest, data, r.Header.Get("If-None-Match") == "*") {
			fail(http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		w.Header().Set("ETag", `"etag"`)
	case r.Method == http.MethodDelete:
		f.remove(rest)
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// s3Body undoes the chunked signing format, which the client uses without TLS:
// "<hex length>;chunk-signature=...\r\n<bytes>\r\n" until a chunk of length 0.
func s3Body(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var data bytes.Buffer
	in := bufio.NewReader(r.Body)
	for {
		head, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(head), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			_, err := io.Copy(io.Discard, in)
			return data.Bytes(), err
		}
		if _, err := io.CopyN(&data, in, n); err != nil {
			return nil, err
		}
		if _, err := in.Discard(2); err != nil {
			return nil, err
		}
	}
}

func (f *fakeStore) s3List(w http.ResponseWriter, q url.Values) {
	// start-after is exclusive.
	from := q.Get("start-after")
	if from != "" {
		from += "\x00"
	}
	lines, next := f.page(q.Get("prefix"), from, q.Get("continuation-token"))
	type object struct {
		Key          string
		Size         int
		LastModified string
	}
	type folder struct{ Prefix string }
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []object
		CommonPrefixes        []folder
	}{IsTruncated: next != "", NextContinuationToken: next}
	for _, l := range lines {
		if l.folder {
			result.CommonPrefixes = append(result.CommonPrefixes, folder{l.name})
		} else {
			result.Contents = append(result.Contents, object{l.name, l.size, "2006-01-02T15:04:05Z"})
		}
	}
	xml.NewEncoder(w).Encode(result)
}

// startGCS serves f as GCS bucket "data" and returns the path of a configuration file:
// the SDK can be led to an emulator, but wants a service account all the same.
func startGCS(t *testing.T, f *fakeStore, prefix string) string {
	u := f.serve(t, f.gcs)
	t.Setenv("STORAGE_EMULATOR_HOST", u.String())
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	account, err := json.Marshal(map[string]string{
		"type":           "service_account",
		"project_id":     "test",
		"private_key_id": "1",
		"private_key":    string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email":   "test@example.com",
		"client_id":      "1",
		"token_uri":      u.String() + "/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	return writeConfig(t, fmt.Sprintf("type: GCS\nconfig:\n  bucket: data\n  service_account: %q\nprefix: %q\n", account, prefix))
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bucket.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (f *fakeStore) gcs(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.EscapedPath()
	unescape := func(s string) string {
		name, err := url.PathUnescape(s)
		if err != nil {
			panic(err)
		}
		return name
	}
	if path == "/token" {
		fmt.Fprint(w, `{"access_token":"t","token_type":"Bearer","expires_in":3600}`)
		return
	}
	if name, ok := strings.CutPrefix(path, "/data/"); ok && r.Method == http.MethodGet {
		data, ok := f.get(unescape(name))
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
		w.Header().Set("X-Goog-Hash", "crc32c="+base64.StdEncoding.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}))
		w.Header().Set("X-Goog-Generation", "1")
		f.serveRange(w, r, data, r.Header.Get("Range"))
		return
	}
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/b/data/o"):
		f.gcsUpload(w, r)
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/b/data/o"):
		f.gcsList(w, r.URL.Query())
	case r.Method == http.MethodDelete:
		_, name, _ := strings.Cut(path, "/b/data/o/")
		if !f.remove(unescape(name)) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"code":404,"message":"No such object","errors":[{"reason":"notFound"}]}}`)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":404,"message":"unknown path"}}`)
	}
}

func (f *fakeStore) gcsUpload(w http.ResponseWriter, r *http.Request) {
	_, p, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	parts := multipart.NewReader(r.Body, p["boundary"])
	var meta struct{ Name, Crc32c string }
	var bodies [][]byte
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		body, _ := io.ReadAll(part)
		bodies = append(bodies, body)
	}
	if len(bodies) != 2 || json.Unmarshal(bodies[0], &meta) != nil || meta.Crc32c == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if !f.create(meta.Name, bodies[1], r.URL.Query().Get("ifGenerationMatch") == "0") {
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprint(w, `{"error":{"code":412,"message":"conditionNotMet","errors":[{"reason":"conditionNotMet"}]}}`)
		return
	}
	json.NewEncoder(w).Encode(map[string]string{
		"bucket": "data", "name": meta.Name, "generation": "1", "crc32c": meta.Crc32c, "size": strconv.Itoa(len(bodies[1])),
	})
}

func (f *fakeStore) gcsList(w http.ResponseWriter, q url.Values) {
	// startOffset is inclusive.
	lines, next := f.page(q.Get("prefix"), q.Get("startOffset"), q.Get("pageToken"))
	result := struct {
		Items         []map[string]string `json:"items"`
		Prefixes      []string            `json:"prefixes"`
		NextPageToken string              `json:"nextPageToken,omitempty"`
	}{NextPageToken: next}
	for _, l := range lines {
		if l.folder {
			result.Prefixes = append(result.Prefixes, l.name)
		} else {
			result.Items = append(result.Items, map[string]string{"name": l.name, "size": strconv.Itoa(l.size)})
		}
	}
	json.NewEncoder(w).Encode(result)
}

// startAzure serves f as container "data" of account "acct" and returns the address.
func startAzure(t *testing.T, f *fakeStore, prefix string) string {
	u := f.serve(t, f.azure)
	t.Setenv("AZURE_STORAGE_ACCESS_KEY", "")
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", fmt.Sprintf(
		"DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=%s;BlobEndpoint=%s/acct;",
		base64.StdEncoding.EncodeToString([]byte("key")), u))
	return "azblob://data/" + prefix + "?account=acct"
}

func (f *fakeStore) azure(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, code string) {
		w.Header().Set("x-ms-error-code", code)
		w.WriteHeader(status)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/acct/data")
	if !ok {
		fail(http.StatusNotFound, "ContainerNotFound")
		return
	}
	name := strings.TrimPrefix(rest, "/")
	switch {
	case r.Method == http.MethodGet && name == "":
		f.azureList(w, r.URL.Query())
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		data, ok := f.get(name)
		if !ok {
			fail(http.StatusNotFound, "BlobNotFound")
			return
		}
		spec := r.Header.Get("x-ms-range")
		if spec == "" {
			spec = r.Header.Get("Range")
		}
		f.serveRange(w, r, data, spec)
	case r.Method == http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("x-ms-blob-type") != "BlockBlob" {
			fail(http.StatusBadRequest, "InvalidInput")
			return
		}
		if !f.create(name, data, r.Header.Get("If-None-Match") == "*") {
			fail(http.StatusConflict, "BlobAlreadyExists")
			return
		}
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodDelete:
		if !f.remove(name) {
			fail(http.StatusNotFound, "BlobNotFound")
			return
		}
		w.WriteHeader(http.StatusAccepted)
	default:
		fail(http.StatusMethodNotAllowed, "UnsupportedHttpVerb")
	}
}

func (f *fakeStore) azureList(w http.ResponseWriter, q url.Values) {
	lines, next := f.page(q.Get("prefix"), "", q.Get("marker"))
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprint(w, `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="data"><Blobs>`)
	for _, l := range lines {
		if l.folder {
			fmt.Fprintf(w, "<BlobPrefix><Name>%s</Name></BlobPrefix>", l.name)
		} else {
			fmt.Fprintf(w, "<Blob><Name>%s</Name><Properties><Content-Length>%d</Content-Length></Properties></Blob>", l.name, l.size)
		}
	}
	fmt.Fprintf(w, "</Blobs><NextMarker>%s</NextMarker></EnumerationResults>", next)
}
