package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

//go:embed sarama_skips.txt
var saramaSkips string

const toxiproxy = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"

// saramaNodes are the brokers of the cluster that Sarama's tests are written for. They are reached by way of a proxy that
// breaks connections, at fixed ports.
const (
	saramaNodes     = 5
	saramaFirstPort = 29091
)

// saramaSuite are the functional tests of Sarama. All nodes that they know are one broker, with the settings of the
// cluster in their docker-compose.yml.
func saramaSuite(binary string) *suite {
	const module = "github.com/IBM/sarama"
	version := requiredVersion(module)
	return &suite{
		name: "sarama-tests", heading: "The tests of Sarama",
		about: "The functional tests of the client library Sarama, by way of Toxiproxy, with a broker of their own in the place of their cluster of five.",
		env: &environment{
			name: "sarama-tests", files: map[string]string{"version": version},
			steps: append(copyModule(module, "v"+version),
				[]string{"sh", "-c", `GOBIN="$PWD" go install ` + toxiproxy + " && mv server toxiproxy"},
				[]string{"sh", "-c", "cd source && go test -c -tags functional -o ../sarama.test ."}),
		},
		programs: []testProgram{{
			name: "sarama", skips: parseSkips(saramaSkips), dir: "source", binary: "sarama.test", sources: "source/functional_*_test.go",
			environ: func(ctx context.Context, e *environment, _ string) ([]string, func(), error) {
				return saramaCluster(ctx, e, binary)
			},
		}},
	}
}

// saramaCluster starts a broker and the proxies before it.
func saramaCluster(ctx context.Context, e *environment, binary string) (environ []string, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	b, err := startBroker(ctx, binary, "--advertise", fmt.Sprintf("127.0.0.1:%d", saramaFirstPort),
		"--auto-create-topics=false", "--group-initial-rebalance-delay", "0s")
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, b.stop)
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	log, err := os.Create(filepath.Join(e.dir, "toxiproxy.log"))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	proxy := command(ctx, e.dir, "./toxiproxy", "-host", "127.0.0.1", "-port", port)
	proxy.Stdout, proxy.Stderr = log, log
	if err := proxy.Start(); err != nil {
		cancel()
		return nil, nil, errors.Join(err, log.Close())
	}
	stops = append(stops, func() {
		cancel()
		_ = proxy.Wait() // it was killed
		_ = log.Close()  // it is read by people only
	})
	url := "http://127.0.0.1:" + port
	if err := addProxies(ctx, url, b.addr); err != nil {
		return nil, nil, fmt.Errorf("%w; see %s", err, log.Name())
	}
	return []string{"TOXIPROXY_ADDR=" + url, "KAFKA_VERSION=4.0.0"}, stop, nil
}

// freePort finds a port that nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String()) // an address of ours is well formed
	return port, l.Close()
}

// addProxies makes all nodes lead to one broker.
func addProxies(ctx context.Context, url, target string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := awaitHTTP(ctx, url+"/version"); err != nil {
		return err
	}
	for i := range saramaNodes {
		proxy, err := json.Marshal(map[string]any{
			"name": fmt.Sprintf("kafka%d", i+1), "listen": fmt.Sprintf("127.0.0.1:%d", saramaFirstPort+i), "upstream": target, "enabled": true,
		})
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/proxies", strings.NewReader(string(proxy)))
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusCreated {
			return fmt.Errorf("a proxy at port %d cannot be made: %s; is the port free?", saramaFirstPort+i, response.Status)
		}
	}
	return nil
}

// awaitHTTP waits until a server answers.
func awaitHTTP(ctx context.Context, url string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			return response.Body.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
