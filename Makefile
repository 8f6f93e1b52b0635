# The verbs that people and CI use. `make demo` and `make test` do everything on a fresh Debian or Ubuntu.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup toolchain demo test check lab image kernel bench bench-ebpf bench-disk bench-network bench-fleet bench-episodes test-thorough test-kernels test-problems test-vagrant check-problems kubernetes test-kubernetes proto clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## install what is missing (asks first unless YES=1)
	@scripts/setup

demo: setup ## boot the lab, plant a bad sector, see it, heal it
	@$(BIN)/labctl demo

toolchain:
	@scripts/setup kernel

test: toolchain check ## the tests: fast ones first, then Debian 13's kernel in virtual machines
	@$(PYTEST) -n auto --dist worksteal tests/unit tests/contract
	@scripts/test-nodes -m 'not other_kernels and not thorough' tests/vm tests/e2e

test-thorough: toolchain ## the real-kernel tests that `make test` leaves out for their length (an hour and a half)
	@scripts/test-nodes -m 'thorough and not other_kernels' tests/vm

test-kernels: toolchain ## the same faults on Debian 12's kernel and on the lab's own, with what only these can do (half an hour)
	@scripts/test-nodes -m other_kernels tests/vm

check: ## format, lint, types, generated code
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@cd ansible && PATH="$(CURDIR)/$(BIN):$$PATH" ansible-lint -q
	@$(BIN)/python scripts/generate-api --check

lab: setup ## bring the three-node lab up
	@$(BIN)/labctl up

image: setup ## build the node image without booting it
	@$(BIN)/labctl image

kernel: toolchain ## build the lab's own kernel and its image (once; about ten minutes)
	@$(BIN)/labctl image --kernel lab

bench: setup ## times of up, reset, inject and recover, as JSON
	@$(BIN)/python -m tests.bench.lab

bench-ebpf: toolchain ## what system-call faults cost those who are no target; JSON, and docs/bench-ebpf.svg
	@$(BIN)/python -m tests.bench.ebpf --plot docs/bench-ebpf.svg

bench-disk: toolchain ## how long disk faults take under load, what the layer below costs; JSON, and docs/bench-disk.svg
	@$(BIN)/python -m tests.bench.disk --plot docs/bench-disk.svg

bench-network: toolchain ## how long a network fault takes to plant and to take back, beside tc over SSH; JSON
	@$(BIN)/python -m tests.bench.network

bench-fleet: setup ## inject and recover on 1,000 agents on this machine, some of them sick; JSON
	@$(BIN)/python -m tests.bench.fleet

bench-episodes: setup ## trials per hour with the lab's snapshots, and without; JSON (half an hour)
	@$(BIN)/python -m tests.bench.episodes

test-problems: setup ## episodes and oracles on the real service (half an hour; not part of `make test` yet)
	@$(PYTEST) --durations 20 tests/problems

test-vagrant: ## Vagrant and libvirt with the exported node image (installs both; ten minutes where nodes are emulated)
	@scripts/setup vagrant
	@$(PYTEST) -rR --durations 10 tests/vagrant

check-problems: setup ## what all problems prove about themselves, on lab `problems` (hours); writes docs/problems.md
	@$(BIN)/labctl --lab problems up --workload booking
	@status=0; $(BIN)/labctl --lab problems check --all --results docs/problems.json || status=$$?; \
	  $(BIN)/python scripts/generate-problems; exit $$status

kubernetes: ## build the cluster of the tests: Kubernetes 1.20 from Debian's source (once; five minutes)
	@scripts/setup cluster
	@$(BIN)/python -m tests.kubernetes.bed.built

test-kubernetes: kubernetes ## faults on pods of a real cluster in namespaces of this machine (root; not part of `make test`)
	@$(PYTEST) -rR --durations 10 tests/kubernetes

proto: ## generate the Python side of the contract again
	@$(BIN)/python scripts/generate-api

clean: ## what builds and tests left in this checkout (not labs, not the cache)
	@rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
