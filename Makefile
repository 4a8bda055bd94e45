# The commands of this repository. `make help` lists them.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO          ?= go
INTEROP     := test/interop
THROUGH     := PROXY='$(CURDIR)/$(INTEROP)/sidecar.sh {UPSTREAM} {PORT}'
# How many checks of `make interop` there are: fewer means that some did not run.
INTEROP_CHECKS := 256
CELL_CHECKS    := 1277

.PHONY: help build quickstart test test-fast test-allocs fuzz check generate breaking-baseline conformance interop \
	bench-programs bench bench-compare bench-gate bench-micro clean

help: ## List the commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

build: ## Build the programs into bin/.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/ ./sidecar/cmd/... ./controlplane/cmd/...

quickstart: build ## Run a whole mesh here until Ctrl-C; ONCE=1 checks every step and stops.
	./deploy/quickstart/run.sh

# Everything that tests need is installed then, so none may skip for want of it.
test: export CI := true
test: ## Run every test: Go with the race detector, then conformance and interop. Installs what is missing.
	tools/packages.sh gcc redis-server nginx taskset curl node npm
	$(INTEROP)/install.sh
	$(MAKE) test-fast
	$(MAKE) conformance
	$(MAKE) interop

test-fast: ## Run the Go tests with the race detector.
	@tools/build.sh gotestsum
	bin/tools/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary skipped \
	    --post-run-command tools/count.sh \
	    -- -race -p 2 -timeout 10m ./...

test-allocs: ## Run the tests that count allocations, without the race detector, which changes the counts.
	$(GO) test -run Alloc -count 1 -timeout 3m ./sidecar/...

fuzz: ## Fuzz every target for FUZZTIME (10s) each; the tests run only their seeds.
	tools/fuzz.sh

check: ## Check form: gofmt, vet, staticcheck, buf lint and breaking, generated code is current.
	tools/build.sh
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); \
	    [ -z "$$unformatted" ] || { echo "not gofmt'd:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	bin/tools/staticcheck ./...
	cd $(INTEROP)/go && $(GO) vet ./...
	bin/tools/buf lint
	bin/tools/buf breaking --against tools/breaking.binpb
	tools/generated.sh

generate: ## Generate Go from the protos.
	tools/build.sh
	bin/tools/buf generate

breaking-baseline: ## Make the protos as they are now what `make check` holds later ones to.
	tools/build.sh buf
	bin/tools/buf build -o tools/breaking.binpb

conformance: build ## Run the official MCP conformance suite directly and through the sidecar; fail on any loss.
	tools/packages.sh node npm
	$(INTEROP)/install.sh
	$(THROUGH) node $(INTEROP)/conformance/run.mjs

interop: build ## Run real MCP clients through the sidecar against real servers.
	tools/packages.sh node npm
	$(INTEROP)/install.sh
	$(THROUGH) STRICT=1 EXPECT=$(INTEROP_CHECKS) node $(INTEROP)/run-all.mjs
	$(THROUGH) EXPECT=$(CELL_CHECKS) node $(INTEROP)/cells/run.mjs

# SHORT=1 measures fewer cases for less time; SCENARIO=path,latency only those; BENCHFLAGS are passed on.
BENCH = bin/bench/run $(if $(SHORT),-short) $(if $(SCENARIO),-scenario $(SCENARIO))

bench-programs: build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/bench/ ./bench/run ./bench/load ./bench/null

bench: bench-programs ## Measure everything and write bench/results; SHORT=1 takes some 10 minutes, SCENARIO=a,b only those.
	tools/packages.sh nginx taskset
	$(BENCH) -history bench/HISTORY.md $(BENCHFLAGS)

bench-compare: ## Say what changed beyond noise from one run to another: A=bench/results/... B=bench/results/...
	@$(GO) run ./bench/run compare $(A) $(B)
	@[ ! -f $(A)/micro.txt ] || [ ! -f $(B)/micro.txt ] || bench/micro.sh compare $(A) $(B)

bench-gate: bench-programs ## Fail when a call costs more than its gate, in multiples of nginx (GATE_JSON, GATE_SSE).
	tools/packages.sh nginx taskset
	bin/bench/run -gate $(BENCHFLAGS)

bench-micro: ## Run the micro-benchmarks beside the code into DIR/micro.txt (bin/bench); a run's report then shows them too.
	bench/micro.sh $(or $(DIR),bin/bench)

clean: ## Remove what was built. The caches outside the tree stay.
	rm -rf bin $(INTEROP)/node_modules $(INTEROP)/bridges/node_modules
