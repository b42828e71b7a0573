package kfake

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	startTimeout = 60 * time.Second
	adminTimeout = 30 * time.Second
)

// Opt configures a cluster.
type Opt func(*config)

type config struct {
	seeds    []seed
	settings map[string]string // flags of the broker without the dashes
	err      error
}

type seed struct {
	partitions int32
	topics     []string
}

// NumBrokers is taken for 1: this broker is a cluster of one. Tests that need more are not run.
func NumBrokers(int) Opt { return func(*config) {} }

// SeedTopics creates topics, with the default number of partitions if that is 0 or less.
func SeedTopics(partitions int32, topics ...string) Opt {
	return func(c *config) { c.seeds = append(c.seeds, seed{partitions, topics}) }
}

// AllowAutoTopicCreation lets metadata requests create topics.
func AllowAutoTopicCreation() Opt {
	return func(c *config) { c.settings["auto-create-topics"] = "true" }
}

// DefaultNumPartitions is how many partitions topics get that are created without a number.
func DefaultNumPartitions(n int) Opt {
	return func(c *config) { c.settings["default-partitions"] = strconv.Itoa(n) }
}

// GroupMinSessionTimeout bounds what members may ask for.
func GroupMinSessionTimeout(d time.Duration) Opt {
	return func(c *config) { c.settings["group-min-session-timeout"] = d.String() }
}

// MaxVersions is an error of NewCluster: this broker cannot be made to speak as an older one.
func MaxVersions(*kversion.Versions) Opt {
	return func(c *config) { c.err = errors.Join(c.err, errors.New("kfake: the broker has no older versions")) }
}

// SleepOutOfOrder is about controls that sleep, which there are none of here.
func SleepOutOfOrder() Opt { return func(*config) {} }

// brokerConfigs are the settings that configs of Kafka stand for.
var brokerConfigs = map[string]struct {
	flag   string
	millis bool
}{
	"group.consumer.heartbeat.interval.ms": {"group-consumer-heartbeat-interval", true},
	"group.consumer.session.timeout.ms":    {"group-consumer-session-timeout", true},
	"group.max.size":                       {"group-max-size", false},
	"group.min.session.timeout.ms":         {"group-min-session-timeout", true},
}

// BrokerConfigs sets configs by Kafka's names. One that this broker has no setting for is an error of NewCluster.
func BrokerConfigs(configs map[string]string) Opt {
	return func(c *config) {
		for name, value := range configs {
			setting, ok := brokerConfigs[name]
			if !ok {
				c.err = errors.Join(c.err, fmt.Errorf("kfake: the broker has no setting for %s", name))
			}
			if setting.millis {
				value += "ms"
			}
			c.settings[setting.flag] = value
		}
	}
}

// Cluster is one broker process behind a relay that sees its requests.
type Cluster struct {
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended
	relay  *relay
	client *kgo.Client
	admin  *kadm.Client
	closed sync.Once
}

// NewCluster starts a broker with an empty data folder.
func NewCluster(opts ...Opt) (*Cluster, error) {
	cfg := config{settings: map[string]string{
		// What the original does.
		"auto-create-topics": "false", "default-partitions": "10", "default-retention": "forever",
		"group-initial-rebalance-delay": "0s", "group-min-session-timeout": "1ms",
	}}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.err != nil {
		return nil, cfg.err
	}
	c := &Cluster{ended: make(chan struct{})}
	err := c.start(&cfg)
	if err == nil {
		err = c.seed(&cfg)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(cfg *config) error {
	binary := os.Getenv("BROOKLET_BINARY")
	if binary == "" {
		close(c.ended)
		return errors.New("kfake: BROOKLET_BINARY is not set")
	}
	addr, err := c.spawn(binary, cfg)
	if err != nil {
		return err
	}
	c.relay.serve(addr)
	if c.client, err = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...)); err != nil {
		return err
	}
	c.admin = kadm.NewClient(c.client)
	return nil
}

// spawn starts the process and returns the address that it serves. It tells clients that of the relay.
func (c *Cluster) spawn(binary string, cfg *config) (addr string, err error) {
	defer func() {
		if c.cmd == nil {
			close(c.ended)
		}
	}()
	if c.dir, err = os.MkdirTemp("", "brooklet-kfake-"); err != nil {
		return "", err
	}
	if c.relay, err = newRelay(); err != nil {
		return "", err
	}
	args := []string{
		"serve", "--listen", "127.0.0.1:0", "--advertise", c.relay.addr(), "--admin-listen", "127.0.0.1:0", "--http-listen", "off",
		"--data-dir", filepath.Join(c.dir, "data"), "--log-format", "json",
	}
	for flag, value := range cfg.settings {
		args = append(args, "--"+flag+"="+value)
	}
	cmd := exec.Command(binary, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	c.cmd = cmd
	listens := make(chan string, 1)
	go c.follow(stderr, listens)
	select {
	case addr := <-listens:
		return addr, nil
	case <-c.ended:
		return "", fmt.Errorf("kfake: the broker ended: %v", cmd.ProcessState)
	case <-time.After(startTimeout):
		return "", fmt.Errorf("kfake: the broker does not serve clients after %v", startTimeout)
	}
}

// follow reads the log until the process ends, and passes complaints on.
func (c *Cluster) follow(stderr io.Reader, listens chan<- string) {
	defer close(c.ended)
	lines := bufio.NewReader(stderr)
	for {
		text, err := lines.ReadString('\n')
		var line struct{ Level, Msg, Listen string }
		switch {
		case text == "":
		case json.Unmarshal([]byte(text), &line) != nil || line.Level == "error":
			fmt.Fprintln(os.Stderr, "brooklet:", strings.TrimSpace(text))
		case line.Msg == "serving Kafka clients":
			listens <- line.Listen
		}
		if err != nil {
			break
		}
	}
	_ = c.cmd.Wait() // ProcessState tells how it ended
}

func (c *Cluster) seed(cfg *config) error {
	for _, s := range cfg.seeds {
		for _, topic := range s.topics {
			if err := c.CreateTopic(topic, s.partitions, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// ListenAddrs returns the addresses of all brokers.
func (c *Cluster) ListenAddrs() []string { return []string{c.relay.addr()} }

// Close ends the broker and removes its data.
func (c *Cluster) Close() {
	c.closed.Do(func() {
		if c.client != nil {
			c.client.Close()
		}
		if c.cmd != nil {
			_ = c.cmd.Process.Kill() // it may have ended by itself
		}
		<-c.ended
		if c.relay != nil {
			c.relay.close()
		}
		if c.dir != "" {
			_ = os.RemoveAll(c.dir) // a folder for temporary files; its absence is no matter
		}
	})
}

// ControlKey lets fn see the requests of an API key. It must leave the answers to the broker.
func (c *Cluster) ControlKey(key int16, fn func(kmsg.Request) (kmsg.Response, error, bool)) { //nolint:revive // as the original
	c.relay.observe(key, func(r kmsg.Request) {
		if _, err, handled := fn(r); err != nil || handled {
			panic("kfake: replies cannot be scripted: list the test as not applicable")
		}
	})
}

// LeaderFor returns the leader of a partition.
func (c *Cluster) LeaderFor(topic string, partition int32) int32 {
	if p := c.PartitionInfo(topic, partition); p != nil {
		return p.Leader
	}
	return -1
}

// relay passes connections on to the broker, and what they ask to observers.
type relay struct {
	listener net.Listener
	target   string

	mu        sync.Mutex
	observers map[int16][]func(kmsg.Request)
	conns     map[net.Conn]bool
	closed    bool
}

func newRelay() (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &relay{listener: listener, observers: make(map[int16][]func(kmsg.Request)), conns: make(map[net.Conn]bool)}, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) observe(key int16, fn func(kmsg.Request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers[key] = append(r.observers[key], fn)
}

func (r *relay) serve(target string) {
	r.target = target
	go func() {
		for {
			client, err := r.listener.Accept()
			if err != nil {
				return // closed
			}
			go r.carry(client)
		}
	}()
}

func (r *relay) carry(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", r.target)
	if err != nil {
		return // the broker is gone, and so shall the client's connection be
	}
	defer broker.Close()
	if !r.keep(client) || !r.keep(broker) {
		return
	}
	go func() {
		_, _ = io.Copy(client, broker) // whichever side ends, ends both
		client.Close()
		broker.Close()
	}()
	r.ask(broker, client)
	r.forget(client, broker)
}

// ask passes requests on frame by frame.
func (r *relay) ask(broker io.Writer, client io.Reader) {
	in := bufio.NewReader(client)
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		r.show(frame[4:])
		if _, err := broker.Write(frame); err != nil {
			return
		}
	}
}

// keep remembers a connection, to close it with the relay.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.conns[c] = true
	}
	return !r.closed
}

func (r *relay) forget(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}

func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.listener.Close()
	for c := range r.conns {
		c.Close()
	}
}

// context bounds one call of the administration client.
func (c *Cluster) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), adminTimeout)
}
