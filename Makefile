# Everything a developer runs. `make help` lists the targets.
STATICCHECK_VERSION := v0.8.2
TOOLS := $(CURDIR)/.tools
FUZZTIME ?= 10s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOFLAGS_BUILD := -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.PHONY: run
run: ## run idemd with a demo source and a log handler, no configuration needed
	go run ./cmd/idemd serve

.PHONY: build
build: ## build the stripped binary into bin/
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/idemd ./cmd/idemd

.PHONY: test
test: ## run all tests; needs only Go (and fetches the modules)
	go test -shuffle=on ./...

.PHONY: check
check: lint race ## everything that CI wants beside `make test`

.PHONY: lint
lint: $(TOOLS)/staticcheck ## formatting, vet, staticcheck, tidy go.mod
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...
	$(TOOLS)/staticcheck ./...
	go mod tidy -diff

.PHONY: race
race: ## run all tests under the race detector
	GORACE=atexit_sleep_ms=0 go test -race -shuffle=on ./...

.PHONY: fuzz
fuzz: ## fuzz every parser and codec, FUZZTIME=10s each, FUZZJOBS=2 at a time
	FUZZTIME=$(FUZZTIME) .ci/fuzz

.PHONY: bench
bench: ## print the speed figures against their references (takes a few minutes)
	go test -run '^$$' -bench . -benchtime 1x -timeout 30m ./dedup/boltstore ./app

.PHONY: overload
overload: ## print what becomes of ten times the sustainable rate (takes 90 seconds)
	go test -run '^$$' -bench BenchmarkOverload -benchtime 1x -timeout 10m ./app

$(TOOLS)/staticcheck:
	GOBIN=$(TOOLS) go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)
