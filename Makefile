# Brooklet needs Go and nothing else to build and run. The tests want kcat and Chromium as well (apt-get install kcat
# chromium), make race a C compiler.

PREFIX  ?= /usr/local
DESTDIR ?=

# Without C: no compiler to build it, no C library to run it, and Go's memory limit governs all memory of the broker.
# The tests share what the build compiles.
export CGO_ENABLED := 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BUILD   := go build -buildvcs=auto -ldflags '-s -w -X main.version=$(VERSION)'

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

BINARY := bin/brooklet

# Arguments for run and bench, for example: make run ARGS='--log-level debug'
ARGS     ?=
FUZZTIME ?= 30s
SOAKTIME ?= 10m

.DEFAULT_GOAL := help

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/brooklet
	$(BUILD) -o $(BINARY) ./cmd/brooklet

.PHONY: run
run: build ## run a broker on 127.0.0.1:9092 that keeps its data in ./data
	./$(BINARY) serve $(ARGS)

.PHONY: test
test: ## run all tests; they need no network but the loopback, and no other service
	go test -timeout 15m ./...

.PHONY: race
race: ## run the tests of all rooms under the race detector
	CGO_ENABLED=1 go test -race -timeout 15m ./cmd/... ./client/... ./broker/... ./kafkaproto/... ./streamstore/... ./objstore/...

.PHONY: check
check: ## check formatting, go vet, staticcheck and the module files
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
		if [ -n "$$unformatted" ]; then echo "run gofmt -w on:" $$unformatted; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff

.PHONY: docs
docs: ## write docs/configuration.md and deploy/brooklet.env from the program
	go generate ./cmd/brooklet

.PHONY: compat
compat: build ## run the clients that people use, installed into .tools/compat, and write docs/compatibility.md
	go run ./tests/compat -broker $(BINARY) $(ARGS)

.PHONY: bench
bench: build ## run the benchmarks over the network against a broker; ARGS=-h lists what they can do
	go run ./tests/bench $(ARGS)

.PHONY: soak
soak: ## for SOAKTIME, run the model test of the store and kill brokers under load, with ever new seeds
	@go test ./tests/faults -run '^TestKills$$' -timeout 0 -faults.time $(SOAKTIME) & kills=$$!; \
		go test ./streamstore -run '^TestModel$$' -timeout 0 -model.soak $(SOAKTIME); model=$$?; \
		wait $$kills && exit $$model

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			go test $$package -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME); \
		done; \
	done

.PHONY: cover
cover: ## write the test coverage to bin/cover.html
	@mkdir -p bin
	go test -timeout 15m -coverpkg=./... -coverprofile=bin/cover.out ./...
	go tool cover -html=bin/cover.out -o bin/cover.html

.PHONY: install
install: build ## install the binary, the systemd unit and its settings below DESTDIR; existing settings are kept
	install -D -m 0755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/brooklet
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|^ExecStart=/usr/local/|ExecStart=$(PREFIX)/|' deploy/brooklet.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/brooklet.service
	chmod 0644 $(DESTDIR)$(PREFIX)/lib/systemd/system/brooklet.service
	test -e $(DESTDIR)/etc/brooklet/brooklet.env || install -D -m 0600 deploy/brooklet.env $(DESTDIR)/etc/brooklet/brooklet.env

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
