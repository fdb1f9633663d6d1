# The only entry point. `make help` lists the targets; CI runs `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST := $(PY) -m pytest
SOURCES := operator/src relay-image/src tests

export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### The two commands

.PHONY: demo
demo: venv ## Bring up a cluster, PostgreSQL and Kafka, and watch orders flow through an OutboxRelay
	@$(PY) -m tests.demo up

.PHONY: test
test: venv ## Run every tier of tests that this machine can run (in CI: all of them)
	@$(MAKE) --no-print-directory --jobs=2 lint tiers

# Most of the time it waits: lint costs it nothing.
.PHONY: tiers
tiers: venv
	@$(PY) -m tests

##### Parts of them

.PHONY: demo-down
demo-down: venv ## Remove what the demo installed (the cluster stays; see cluster-down)
	@$(PY) -m tests.demo down

.PHONY: check
check: lint unit ## What to run before a commit: lint and the fast tests

.PHONY: lint
lint: venv ## Format check, lint, types, layers, generated files
	@$(VENV)/bin/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy $(SOURCES)
	@$(VENV)/bin/lint-imports --no-cache

.PHONY: format
format: venv ## Format the code
	@$(VENV)/bin/ruff check --quiet --fix-only . && $(VENV)/bin/ruff format .

.PHONY: unit
unit: venv ## Pure code, contracts and kopf handlers: no services needed
	@$(PYTEST) tests/unit tests/contract tests/wire -m "not integration"

.PHONY: integration
integration: venv ready-services ## The relay against real PostgreSQL and Kafka on loopback
	@$(PYTEST) tests/contract tests/integration

.PHONY: apiserver
apiserver: venv ready ## CRD, chart and objects against the real kube-apiserver
	@$(PYTEST) tests/apiserver

.PHONY: e2e
e2e: venv ready ## The whole product on a real cluster
	@$(PYTEST) tests/e2e

.PHONY: bench
bench: venv ready-services ## Throughput of one relay beside bare psycopg and bare librdkafka
	@$(PY) -m tests.bench

.PHONY: bench-operator
bench-operator: venv ready-services ## The operator with 1,000 OutboxRelays; writes docs/benchmarks.md (an hour)
	@$(PY) -m tests.bench.fleet --write

.PHONY: crd
crd: venv ## Generate the CRD from the models
	@$(PY) -m outboxrelay_operator.api.crd > crds/.tmp && mv crds/.tmp crds/outboxrelays.yaml
	@cp crds/outboxrelays.yaml charts/outboxrelay/crds/outboxrelays.yaml

.PHONY: status-page
status-page: venv ready ## Write docs/status.md from a run on the cluster
	@OUTBOXRELAY_WRITE_STATUS_PAGE=1 $(PYTEST) tests/e2e/test_status_page.py

.PHONY: images
images: venv ## Build the images and load them into the running cluster
	@$(PY) -m tests.testbed images

.PHONY: cluster-up
cluster-up: venv ## Start (or find) the test cluster
	@$(PY) -m tests.testbed up

.PHONY: cluster-down
cluster-down: venv ## Stop the self-contained test cluster and leave nothing behind
	@$(PY) -m tests.testbed down

.PHONY: constraints
constraints: venv ## Pin every Python dependency again, with hashes and without naming an index
	@env -u PIP_FIND_LINKS $(VENV)/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header --no-annotate \
	  --output-file $(VENV)/constraints.txt requirements.in
	@{ echo '# Every Python dependency, pinned with hashes; `make constraints` writes it, no index is named.'; \
	  cat $(VENV)/constraints.txt; } > constraints.txt

.PHONY: clean
clean: ## Remove the virtual environment and caches of this checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

##### Set-up

.PHONY: venv
venv: $(STAMP) ## Install the Python dependencies into .venv

$(STAMP): constraints.txt operator/pyproject.toml relay-image/pyproject.toml
	@tests/testbed/ensure-python "$(PYTHON)"
	@echo "Installing Python dependencies into $(VENV) (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e relay-image -e operator
	@touch $@

.PHONY: ready
ready: venv
	@$(PY) -m tests.testbed prepare

.PHONY: ready-services
ready-services: venv
	@$(PY) -m tests.testbed.services prepare
