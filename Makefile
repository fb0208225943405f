# The two commands of a newcomer are `make run` and `make test`; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A root shell often lacks the directory that Go's own installer uses.
export PATH := $(PATH):/usr/local/go/bin

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# One set of flags for the binary and for everything that only reads export data
# (lint, vulncheck): builds with other flags share no cache with each other.
PLAIN := CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
TOOL := go tool -modfile=tools/go.mod
GOTEST := go test -race -shuffle=on

# The fast level: every room, and of test/ what starts neither nginx nor an API server.
FAST_PACKAGES = $$(go list ./... | grep -vE '^headgate/test/' ) ./test/arch/...

.PHONY: help run build package test test-boot test-chaos-long check lint unit arch lua-lint lua-test shell-lint generate \
	generate-check vulncheck tidy-check testcluster deps clean fuzz bench-cpu bench-propagation \
	bench-churn bench-rollout bench-restart bench-scale bench-vip

help: ## print this list
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## install what is needed, build, and show the quick start on 127.0.0.1:8080 and :8443
	@scripts/install-deps.sh run
	@$(MAKE) build
	@scripts/quickstart.sh

build: ## build bin/headgate
	$(PLAIN) go build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/headgate ./cmd/headgate

package: ## build dist/headgate_<version>_{amd64,arm64}.{deb,rpm}; the same bytes wherever it is run
	@packaging/build.sh

test: ## run every test; installs and builds what is missing (root, Debian)
	@scripts/install-deps.sh test
	@$(MAKE) build testcluster
	@$(MAKE) lint lua-test generate-check tidy-check vulncheck
	$(GOTEST) -timeout 40m ./...

test-boot: ## boot hosts (systemd-nspawn), install the package and try what an administrator does (root)
	@scripts/install-deps.sh test
	@$(MAKE) testcluster
	$(GOTEST) -v -count=1 -timeout 30m ./test/boot

test-chaos-long: ## kill random parts for five minutes under load (HEADGATE_CHAOS=20m for longer)
	@scripts/install-deps.sh test
	HEADGATE_CHAOS=$${HEADGATE_CHAOS:-5m} $(GOTEST) -v -count=1 -timeout 2h -run 'TestChaos/random_kills' ./test/chaos

check: lint lua-test unit ## run the fast levels: lint, unit, arch, Lua (warm: under two minutes)

lint: lua-lint shell-lint ## run golangci-lint, luacheck and shellcheck
	$(PLAIN) $(TOOL) golangci-lint run --allow-parallel-runners ./...

lua-lint:
	@if [ -d lua ]; then luacheck --quiet lua; fi

shell-lint:
	shellcheck --severity=warning .ci/run $$(git ls-files -co --exclude-standard '*.sh')

unit:
	$(GOTEST) $(FAST_PACKAGES)

arch: ## test the rules of the rooms alone
	go test ./test/arch/...

lua-test: ## run the Lua specs (busted under LuaJIT)
	@if [ -d lua/spec ]; then cd lua && luajit /usr/bin/busted spec; fi

fuzz: ## run every fuzz target for FUZZTIME (10s); FUZZ=REGEX picks some, KEEP=N keeps N new inputs each
	@scripts/fuzz.sh

generate: ## rewrite the generated files
	$(PLAIN) go generate ./...

generate-check: ## fail when a generated file is not what `make generate` writes
	@scripts/generate-check.sh

tidy-check: ## fail when a go.mod or go.sum is not tidy
	go mod tidy -diff
	cd tools && go mod tidy -diff

vulncheck: ## look for known vulnerabilities that our code calls
	cd tools && go test ./...
	@$(PLAIN) scripts/vulncheck.sh

testcluster: ## build bin/testcluster, the real API server of the tests
	@test/testcluster/build.sh

bench-cpu: ## measure CPU time and latency a request beside static nginx (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build
	$(PLAIN) go build -o bin/bench-cpu ./bench/cpu
	@bin/bench-cpu

bench-propagation: ## measure how fast a change in a real API server is served (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build testcluster
	$(PLAIN) go build -o bin/bench-propagation ./bench/propagation
	@bin/bench-propagation

bench-churn: ## measure what clients notice while endpoints come and go (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build testcluster
	$(PLAIN) go build -o bin/bench-churn ./bench/churn
	@bin/bench-churn

bench-rollout: ## measure failed requests during rollouts of a Deployment (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build testcluster
	$(PLAIN) go build -o bin/bench-rollout ./bench/rollout
	@bin/bench-rollout

bench-restart: ## measure what clients notice of restarts and reloads (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build
	$(PLAIN) go build -o bin/bench-restart ./bench/restart
	@bin/bench-restart

bench-scale: ## measure memory and times up to 50,000 routes (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build testcluster
	$(PLAIN) go build -o bin/bench-scale ./bench/scale
	@bin/bench-scale

bench-vip: ## measure what clients notice of VIP failovers, beside keepalived (root; QUICK=1: short)
	@scripts/install-deps.sh test
	@$(MAKE) build
	$(PLAIN) go build -o bin/bench-vip ./bench/vip
	@bin/bench-vip

deps: ## install the Debian packages of `make run` and `make test`
	@scripts/install-deps.sh test

clean: ## remove what was built
	rm -rf bin build dist
