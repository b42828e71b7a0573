package faults

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// s3 is a bucket service with the parts of S3 that brokers use, that can be told to misbehave.
type s3 struct {
	server *httptest.Server
	closed chan struct{}

	mu      sync.Mutex
	objects map[string][]byte
	weather weather
	until   time.Time // when the weather is over
	rng     *rand.Rand
	met     map[fault]int
	// corrupted are the objects of which a copy was spoilt in this weather: each once, because what cannot be read
	// rightly several times in a row counts as damaged.
	corrupted map[string]bool
}

// fault is a way in which a request can fail.
type fault int

const (
	noFault fault = iota
	// refuse answers 500 without any effect.
	refuse
	// throttle answers 503 SlowDown without any effect.
	throttle
	// hangUp closes the connection without any effect.
	hangUp
	// loseAnswer closes the connection after the effect.
	loseAnswer
	// stall waits before the effect, which comes even if the client has given up.
	stall
	// stallAnswer waits after the effect.
	stallAnswer
	// truncate closes the connection after half of what was to be sent.
	truncate
	// corrupt changes a byte of an object on its way to the reader.
	corrupt
	numFaults
)

func (f fault) String() string {
	return [...]string{"none", "refuse", "throttle", "hang up", "lose answer", "stall", "stall answer", "truncate", "corrupt"}[f]
}

// weather says how often requests fail, each fault with a share of 0 to 1, and how long a stall is at most.
type weather struct {
	shares [numFaults]float64
	stall  time.Duration
}

const s3Bucket, s3Key, s3Secret = "data", "faults", "faults-secret"

// newS3 runs a service until the test ends.
func newS3(t testing.TB, seed uint64) *s3 {
	s := &s3{objects: make(map[string][]byte), rng: rand.New(rand.NewPCG(seed, 3)), met: make(map[fault]int), closed: make(chan struct{})}
	s.server = httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.closed)
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

// url is the bucket as brokers are told of it.
func (s *s3) url() string {
	return fmt.Sprintf("s3://%s/brooklet?endpoint=%s&region=us-east-1&path_style=true&access_key=%s&secret_key=%s", s3Bucket, s.server.URL, s3Key, s3Secret)
}

// setWeather makes requests fail as w says for a time.
func (s *s3) setWeather(w weather, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weather, s.until = w, time.Now().Add(d)
	s.corrupted = make(map[string]bool)
}

// calm makes the service behave from now on.
func (s *s3) calm() { s.setWeather(weather{}, 0) }

// draw decides what happens to a request, and how long it takes if it stalls.
func (s *s3) draw() (fault, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.rng.Float64()
	for f, share := range s.weather.shares {
		if x < share && time.Now().Before(s.until) {
			s.met[fault(f)]++
			return fault(f), time.Duration(s.rng.Float64() * float64(s.weather.stall))
		}
		x -= share
	}
	return noFault, 0
}

// names are the names of all objects.
func (s *s3) names() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]bool, len(s.objects))
	for key := range s.objects {
		names[key] = true
	}
	return names
}

func (s *s3) object(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key]
}

// faultsMet tells how many requests failed in which way.
func (s *s3) faultsMet() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for f := refuse; f < numFaults; f++ {
		parts = append(parts, fmt.Sprintf("%s %d", f, s.met[f]))
	}
	return strings.Join(parts, ", ")
}

func (s *s3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.URL.Path, "/"+s3Bucket+"/")
	body, err := s3Body(r)
	if !ok || err != nil {
		s3Error(w, http.StatusBadRequest, "InvalidRequest")
		return
	}
	f, d := s.draw()
	switch f {
	case refuse:
		s3Error(w, http.StatusInternalServerError, "InternalError")
		return
	case throttle:
		s3Error(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case hangUp:
		panic(http.ErrAbortHandler)
	case stall:
		s.sleep(d)
	}
	answer := s.answer(r, key, body)
	switch f {
	case loseAnswer:
		panic(http.ErrAbortHandler)
	case stallAnswer:
		s.sleep(d)
	case corrupt:
		s.corrupt(r, key, &answer, int(d))
	}
	for name, value := range answer.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(answer.body)))
	w.WriteHeader(answer.status)
	if r.Method == http.MethodHead {
		return
	}
	if f == truncate && len(answer.body) > 1 {
		_, _ = w.Write(answer.body[:len(answer.body)/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(answer.body) // the client may be gone
}

// corrupt changes one byte of an object that is read.
func (s *s3) corrupt(r *http.Request, key string, answer *s3Answer, at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	probe := strings.Contains(key, "/probe/") // a bucket that fails it is refused, and rightly
	if n := len(answer.body); r.Method == http.MethodGet && key != "" && n > 0 && !probe && !s.corrupted[key] {
		s.corrupted[key] = true
		answer.body = bytes.Clone(answer.body)
		answer.body[at%n] ^= 0x40
	}
}

// sleep ends early when the service does.
func (s *s3) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.closed:
	}
}

type s3Answer struct {
	status int
	header map[string]string
	body   []byte
}

// answer carries a request out.
func (s *s3) answer(r *http.Request, key string, body []byte) s3Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, exists := s.objects[key]
	switch {
	case r.Method == http.MethodGet && key == "":
		return s.listLocked(r.URL.Query())
	case r.Method == http.MethodPut:
		if exists && r.Header.Get("If-None-Match") == "*" {
			return s3Answer{status: http.StatusPreconditionFailed, body: s3ErrorBody("PreconditionFailed")}
		}
		s.objects[key] = body
		return s3Answer{status: http.StatusOK, header: map[string]string{"ETag": `"1"`}}
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		return s3Answer{status: http.StatusNoContent}
	case !exists:
		return s3Answer{status: http.StatusNotFound, body: s3ErrorBody("NoSuchKey")}
	}
	return s3Range(object, r.Header.Get("Range"))
}

// s3Range is the answer to a read of the bytes "bytes=first-last", or of all.
func s3Range(object []byte, spec string) s3Answer {
	header := map[string]string{"Last-Modified": "Mon, 02 Jan 2006 15:04:05 GMT", "ETag": `"1"`}
	if spec == "" {
		return s3Answer{http.StatusOK, header, object}
	}
	first, last := 0, len(object)-1
	if n, _ := fmt.Sscanf(spec, "bytes=%d-%d", &first, &last); n == 0 || first >= len(object) {
		return s3Answer{status: http.StatusRequestedRangeNotSatisfiable, body: s3ErrorBody("InvalidRange")}
	}
	last = min(last, len(object)-1)
	header["Content-Range"] = fmt.Sprintf("bytes %d-%d/%d", first, last, len(object))
	return s3Answer{http.StatusPartialContent, header, object[first : last+1]}
}

// s3PageSize is the length of a page of a listing, short so that there are several.
const s3PageSize = 50

func (s *s3) listLocked(q url.Values) s3Answer {
	prefix, after := q.Get("prefix"), max(q.Get("start-after"), q.Get("continuation-token"))
	type content struct {
		Key          string
		Size         int
		LastModified string
	}
	type folder struct{ Prefix string }
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []content
		CommonPrefixes        []folder
	}{}
	seen := make(map[string]bool)
	var names []string
	for key := range s.objects {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if dir, _, nested := strings.Cut(rest, "/"); nested && q.Get("delimiter") == "/" {
			key = prefix + dir + "/"
		}
		if key > after && !seen[key] {
			seen[key] = true
			names = append(names, key)
		}
	}
	slices.Sort(names)
	if len(names) > s3PageSize {
		names = names[:s3PageSize]
		result.IsTruncated, result.NextContinuationToken = true, names[s3PageSize-1]
	}
	for _, name := range names {
		if strings.HasSuffix(name, "/") {
			result.CommonPrefixes = append(result.CommonPrefixes, folder{name})
		} else {
			result.Contents = append(result.Contents, content{name, len(s.objects[name]), "2006-01-02T15:04:05Z"})
		}
	}
	body, err := xml.Marshal(result)
	if err != nil {
		panic(err) // strings and numbers can be marshalled
	}
	return s3Answer{status: http.StatusOK, body: body}
}

func s3ErrorBody(code string) []byte {
	return fmt.Appendf(nil, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
}

func s3Error(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = w.Write(s3ErrorBody(code))
}

// s3Body reads the body of a request. Without TLS clients sign it in chunks: "<hex length>;chunk-signature=…", CR LF, the
// bytes, CR LF, until one of length 0.
func s3Body(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return io.ReadAll(r.Body)
	}
	var data bytes.Buffer
	for in := bufio.NewReader(r.Body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || n == 0 {
			return data.Bytes(), err
		}
		if _, err := io.CopyN(&data, in, n); err != nil {
			return nil, err
		}
		if _, err := in.Discard(len("\r\n")); err != nil {
			return nil, err
		}
	}
}
