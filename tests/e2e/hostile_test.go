package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/brookletmq/brooklet/tests/harness"
)

const (
	// hostileConnections are open at the same time.
	hostileConnections = 200
	// hostileMemory is the most that the broker's process may have held, in bytes. Its caches are set to 192 MiB
	// together; the rest is for the database, the program itself and garbage.
	hostileMemory = 512 << 20
	// stallTimeout is above the broker's limits for connections that send nothing, or not the rest of a request (30 s).
	stallTimeout = 50 * time.Second
)

// smallMemory are flags for a broker that does not hide waste in large caches. Requests have what batches of 32 MiB need.
var smallMemory = []string{
	"--request-memory-bytes", "144MiB", "--tail-cache-bytes", "16MiB", "--segment-cache-bytes", "8MiB",
	"--fetch-memory-bytes", "16MiB", "--block-cache-bytes", "8MiB",
}

func TestHostileConnections(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: smallMemory})
	bystander := watchBystander(t, b)

	// All connections are open at once; which of them does what depends on its number.
	var done sync.WaitGroup
	for i := range hostileConnections {
		attack := attacks[i%len(attacks)]
		done.Go(func() {
			if err := attack.run(b.Addr, i); err != nil {
				t.Errorf("%s: %v", attack.name, err)
			}
		})
	}
	done.Wait()

	bystander.check(t)
	checkPeak(t, b)
	checkHostileLog(t, b)
}

// attack is something that a peer does on one connection. The error says that the broker did not close it in time.
type attack struct {
	name string
	run  func(addr string, seed int) error
}

var attacks = []attack{
	{"random bytes", sendAndExpectClose(func(seed int) []byte { return scrambled(seed, 64<<10) })},
	{"a size of 2 GB", sendAndExpectClose(func(int) []byte { return announce(1<<31 - 1) })},
	{"a negative size", sendAndExpectClose(func(int) []byte { return announce(1 << 31) })},
	{"a size of 0", sendAndExpectClose(func(int) []byte { return announce(0) })},
	{"HTTP", sendAndExpectClose(func(int) []byte { return []byte("GET / HTTP/1.1\r\nHost: broker\r\n\r\n") })},
	{"SSH", sendAndExpectClose(func(int) []byte { return []byte("SSH-2.0-OpenSSH_9.9\r\n") })},
	{"TLS", helloTLS},
	{"half a frame, then the end", halfFrame},
	{"half a frame, then silence", stallAfter(halfOfMetadata)},
	{"silence", stallAfter(func() []byte { return nil })},
	{"32 MiB announced and not sent", stallAfter(announcedProduce)},
	{"32 MiB announced and trickled", trickle},
}

// sendAndExpectClose connects, sends, and wants the connection closed soon.
func sendAndExpectClose(content func(seed int) []byte) func(string, int) error {
	return func(addr string, seed int) error {
		return withConn(addr, func(nc net.Conn) error {
			// The broker may close before it has read all, so writing may fail.
			_, _ = nc.Write(content(seed))
			return awaitClose(nc, 10*time.Second)
		})
	}
}

func withConn(addr string, use func(net.Conn) error) error {
	nc, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return err
	}
	defer nc.Close()
	return use(nc)
}

// awaitClose reads until the broker closes the connection.
func awaitClose(nc net.Conn, within time.Duration) error {
	if err := nc.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, nc)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("still open after %v", within)
	}
	return nil
}

// scrambled returns n bytes that differ for each seed.
func scrambled(seed, n int) []byte {
	b := incompressible(n + 64*seed)
	return b[64*seed:]
}

func helloTLS(addr string, _ int) error {
	return withConn(addr, func(nc net.Conn) error {
		err := tls.Client(nc, &tls.Config{ServerName: "broker"}).Handshake()
		if errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
			return fmt.Errorf("the handshake ended with %v, not with a closed connection", err)
		}
		return nil
	})
}

func halfOfMetadata() []byte {
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrMetadataRequest(), 1)
	return frame[:len(frame)-3]
}

func halfFrame(addr string, _ int) error {
	return withConn(addr, func(nc net.Conn) error {
		if _, err := nc.Write(halfOfMetadata()); err != nil {
			return err
		}
		if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		return awaitClose(nc, 10*time.Second)
	})
}

// stallAfter sends the start of something and waits for the broker to lose its patience.
func stallAfter(start func() []byte) func(string, int) error {
	return func(addr string, _ int) error {
		return withConn(addr, func(nc net.Conn) error {
			if _, err := nc.Write(start()); err != nil {
				return err
			}
			return awaitClose(nc, stallTimeout)
		})
	}
}

// announcedProduce begins a Produce request of about the largest size.
func announcedProduce() []byte {
	frame := kmsg.NewRequestFormatter().AppendRequest(nil, produceRequest(9, "x", 0, incompressible(100)), 1)
	binary.BigEndian.PutUint32(frame, 32<<20)
	return frame
}

// trickle sends bytes too slowly to ever finish.
func trickle(addr string, _ int) error {
	return withConn(addr, func(nc net.Conn) error {
		if _, err := nc.Write(announcedProduce()); err != nil {
			return err
		}
		closed := make(chan error, 1)
		go func() { closed <- awaitClose(nc, stallTimeout) }()
		for tick := time.Tick(time.Second); ; {
			select {
			case err := <-closed:
				return err
			case <-tick:
				_, _ = nc.Write([]byte{0}) // fails when the broker has closed
			}
		}
	})
}

// bystander is a client with honest intentions.
type bystander struct {
	stop    context.CancelFunc
	done    chan struct{}
	rounds  int
	slowest time.Duration
	err     error
}

// watchBystander starts one that produces records and reads each of them back, over and over.
func watchBystander(t *testing.T, b *harness.Broker) *bystander {
	t.Helper()
	const topic = "bystander"
	createTopic(t, b, topic, 1)
	c := newKgo(t, b.Addr, kgo.DefaultProduceTopic(topic),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := &bystander{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil && w.err == nil {
			w.round(c)
		}
	}()
	return w
}

func (w *bystander) round(c *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	begin := time.Now()
	value := fmt.Append(nil, w.rounds)
	if w.err = c.ProduceSync(ctx, &kgo.Record{Value: value}).FirstErr(); w.err != nil {
		return
	}
	var got []*kgo.Record
	if got, w.err = pollRecords(ctx, c, 1); w.err == nil && (len(got) != 1 || !bytes.Equal(got[0].Value, value)) {
		w.err = fmt.Errorf("read %d records, want the one just written", len(got))
	}
	w.rounds++
	w.slowest = max(w.slowest, time.Since(begin))
}

// check stops it and fails the test if it was ever disturbed.
func (w *bystander) check(t *testing.T) {
	t.Helper()
	w.stop()
	<-w.done
	if w.err != nil || w.rounds == 0 {
		t.Errorf("an honest client was disturbed after %d rounds: %v", w.rounds, w.err)
	}
	t.Logf("an honest client made %d rounds, the slowest in %v", w.rounds, w.slowest)
}

func checkPeak(t *testing.T, b *harness.Broker) {
	t.Helper()
	peak := b.PeakMemory()
	if peak > hostileMemory {
		t.Errorf("the broker has used %d MiB of memory, more than %d MiB", peak>>20, hostileMemory>>20)
	}
	t.Logf("peak memory %d MiB", peak>>20)
}

// checkHostileLog wants the log neither flooded nor to report a fault of the broker's own.
func checkHostileLog(t *testing.T, b *harness.Broker) {
	t.Helper()
	about := 0
	for _, line := range b.Log() {
		if strings.Contains(line.Text, "panic") || line.Level == "error" || line.Level == "" {
			t.Errorf("log: %s", line.Text)
		}
		if line.Fields["remote"] != "" {
			about++
		}
	}
	if about == 0 || about > hostileConnections {
		t.Errorf("%d log lines about %d hostile connections, want some and at most one for each", about, hostileConnections)
	}
}

// TestHostileMemory has many connections take as much of the memory for requests and responses as they can, and keep it.
func TestHostileMemory(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: smallMemory})
	createTopic(t, b, "wide", 5000)
	bystander := watchBystander(t, b)
	var done sync.WaitGroup
	for i := range hostileConnections {
		hog := hogs[i%len(hogs)]
		done.Go(func() {
			err := withConn(b.Addr, func(nc net.Conn) error {
				// The broker may close before it has read all, so writing may fail.
				_, _ = nc.Write(hog())
				time.Sleep(hogTime) // without reading
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	bystander.check(t)
	if bystander.slowest > hogTime/2 {
		t.Errorf("an honest client waited for %v", bystander.slowest)
	}
	checkPeak(t, b)
}

// hogTime is how long connections keep what they have got.
const hogTime = 20 * time.Second

// hogs are what connections send that want memory.
var hogs = []func() []byte{
	// Requests that could be anything when they are decoded, one of them after one that waits.
	func() []byte { return append(waitingFetch(), zeroMetadata(500<<10)...) },
	func() []byte { return zeroMetadata(15 << 10) },
	// Frames that have begun, of several sizes.
	func() []byte { return append(announce(70_000), announcedProduce()[4:]...) },
	func() []byte { return append(announcedProduce(), incompressible(60_000)...) },
	// Many large responses, and many waiting requests, that nobody reads.
	func() []byte { return bytes.Repeat(metadataOfAll(), 200) },
	func() []byte { return bytes.Repeat(waitingFetch(), 200) },
}

func waitingFetch() []byte {
	req := fetchRequest(11, "wide", 0, 0)
	req.MaxWaitMillis = 60_000
	return kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
}

func metadataOfAll() []byte {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 1
	return kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
}

// zeroMetadata is a request of zeros, which mean topics without a name.
func zeroMetadata(size int) []byte {
	frame := append(announce(uint32(size)), 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff)
	frame = binary.BigEndian.AppendUint32(frame, uint32(size-14)/2)
	return append(frame, make([]byte, size-14)...)
}

// TestHostileLengths writes huge and negative numbers over every place of a request of every API key, so every length
// in it is hit, and wants each answered or its connection closed.
func TestHostileLengths(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, harness.Config{Flags: smallMemory})
	bystander := watchBystander(t, b)
	frames := make(chan hostileFrame)
	var done sync.WaitGroup
	for range hostileConnections {
		done.Go(func() {
			for f := range frames {
				if err := f.send(b.Addr); err != nil {
					t.Errorf("%s: %v", f.what, err)
				}
			}
		})
	}
	for _, k := range apiVersions(t, harness.Dial(t, b.Addr)) {
		low := k.MinVersion
		if k.ApiKey == int16(kmsg.Produce) {
			low = oldestProduce
		}
		sendHostileFrames(frames, k.ApiKey, low)
		sendHostileFrames(frames, k.ApiKey, k.MaxVersion)
	}
	close(frames)
	done.Wait()
	bystander.check(t)
	checkPeak(t, b)
	checkHostileLog(t, b)
}

// hostileFrame is a request with a number overwritten.
type hostileFrame struct {
	what  string
	bytes []byte
}

func (f hostileFrame) send(addr string) error {
	return withConn(addr, func(nc net.Conn) error {
		if _, err := nc.Write(f.bytes); err != nil {
			return nil // closed already
		}
		const within = 30 * time.Second
		if err := nc.SetReadDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		_, err := nc.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("neither answered nor closed within %v", within)
		}
		return nil
	})
}

// hugeNumbers are lengths as int32 and as unsigned varint: the largest, -1, the smallest.
var hugeNumbers = [][]byte{
	{0x7f, 0xff, 0xff, 0xff},
	{0xff, 0xff, 0xff, 0xff, 0x0f},
	{0xff, 0xff, 0xff, 0xff, 0x07},
	{0x80, 0x00, 0x00, 0x00},
}

// afterVersion is the place in a frame behind size, key and version.
const afterVersion = 8

func sendHostileFrames(frames chan<- hostileFrame, key, version int16) {
	req := kmsg.RequestForKey(key)
	fill(reflect.ValueOf(req).Elem())
	req.SetVersion(version)
	switch r := req.(type) {
	case *kmsg.ProduceRequest:
		r.Acks, r.TimeoutMillis = -1, 1000
		r.Topics[0].Partitions[0].Records = oneRecord()
	case *kmsg.FetchRequest:
		r.MaxWaitMillis = 100
	}
	formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID("x"))
	frame := formatter.AppendRequest(nil, req, 1)
	// Behind it comes a request that a living connection answers: the hostile one may have become one without a reply.
	honest := formatter.AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 2)
	for at := afterVersion; at < len(frame); at++ {
		for _, number := range hugeNumbers {
			hostile := append(bytes.Clone(frame), honest...)
			copy(hostile[at:len(frame)], number)
			frames <- hostileFrame{fmt.Sprintf("%s v%d with % x at %d", kmsg.NameForKey(key), version, number, at), hostile}
		}
	}
}
