# `make` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help check test lint fmt generate bench dev image

tool := go tool -modfile=tools/go.mod

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: ## all that CI runs; takes minutes
	.ci/run

test: ## the tests, with a PostgreSQL of their own
	go test ./...

lint: ## look for what the linter knows
	$(tool) golangci-lint run ./...

fmt: ## format the code
	$(tool) golangci-lint fmt ./...

generate: ## write generated code anew, from openapi.yaml
	go generate ./...

bench: ## measure ingest and delivery at full length
	go run ./cmd/inboxd bench ingest --compare
	go run ./cmd/inboxd bench deliver

dev: ## run everything on this machine
	go run ./cmd/inboxd dev

image: ## build the container image inboxd:dev
	docker build --build-arg VERSION=$$(git describe --tags --always --dirty) -t inboxd:dev .
