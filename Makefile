# Everything a person or a CI runs, by name. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n 2 --dist loadgroup
# Half of the time of all tests they wait for something, so that two cores have room for a third.
WAITING := -n 3 --dist loadgroup

# The directories that hold Python now; ruff, mypy and format all work on these.
CODE = $(foreach d,src tests benchmarks scripts,$(if $(shell find $(d) -name '*.py' -print -quit 2>/dev/null),$(d)))

# A name on the path may be a shim that cannot run, or lack the venv module, so each candidate is tried, not only found.
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.13 python3.12 python3.11 python3 python)
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
define find_python
python=; tried=; \
for name in $(CANDIDATES); do \
  if "$$name" -c '$(USABLE)' >/dev/null 2>&1; then python=$$name; break; fi; \
  tried+="$${tried:+, }$$name ($$("$$name" --version 2>/dev/null || echo 'does not run'))"; \
done; \
if [ -z "$$python" ]; then \
  echo "gpuyard needs Python 3.11 or newer with its venv module; tried: $$tried." >&2; \
  echo "  install one (on Debian and Ubuntu also python3-venv), or name it: make setup PYTHON=/path/to/python3.12" >&2; \
  exit 1; \
fi
endef

# pip-tools and pip are pinned together, because pip-tools uses pip's inside.
LOCK_TOOLS := pip==26.3 pip-tools==7.6.2
LOCK_FLAGS := --quiet --generate-hashes --strip-extras --allow-unsafe \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options $(if $(UPGRADE),--upgrade)

.PHONY: help setup run test test-unit test-long testbed demo-kai lint format \
  bench-core bench-fake bench-fake-kube bench-service bench-hostile bench-vdk bench-peers bench-kube wheel clean lock

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.package ## Create .venv with the locked tools and gpuyard itself (quick when nothing changed)
	@:

run: setup ## Start gpuyard on this machine: manager, database, agent, fake GPUs where there are no real ones (ARGS="--listen HOST:PORT")
	@$(BIN)/gpuyard up $(ARGS)

test: lint testbed ## Lint, then all tests once
	@$(PYTEST) $(WAITING) -m "not long"

test-unit: setup ## The inner loop: the fast tests only, under a minute
	@GPUYARD_QUICK=1 $(PYTEST) $(PARALLEL) -m "not slow and not long"

test-long: setup testbed ## All tests with full counts
	@GPUYARD_LONG=1 $(PYTEST) $(PARALLEL) -m "long or not long"

# Before the tests, because a compiler beside them would only slow them down. Without root they are skipped.
testbed: setup ## Build the Kubernetes parts the tests start (ten minutes the first time; needs root)
	@if [ "$$(id -u)" = 0 ]; then $(BIN)/gpuyard kube testbed build --kwok 1 --training-operator >/dev/null || \
	  echo "the Kubernetes tests will say why they cannot run" >&2; fi

lint: setup ## ruff, formatting, mypy --strict, import directions
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "not formatted: run make format" >&2; exit 1; }
	@$(BIN)/mypy --strict $(CODE)
	@$(BIN)/lint-imports --no-logo

format: setup ## Format the code and apply the safe fixes of ruff
	@$(BIN)/ruff check --fix --quiet $(CODE) || true
	@$(BIN)/ruff format $(CODE)

demo-kai: setup ## Play KAI's demo on four real nodes with fake GPUs (needs root)
	@$(BIN)/gpuyard kube demo-kai

bench-core: setup ## Measure the scheduling core
	@$(BIN)/python -m benchmarks.core

bench-fake: setup ## Measure the fake GPUs (some minutes)
	@$(BIN)/python -m benchmarks.fake

bench-fake-kube: setup ## Measure the fake GPUs of a Kubernetes cluster (on a testbed; some minutes)
	@$(BIN)/python -m benchmarks.fake_kube

bench-service: setup ## Measure the running manager (some minutes)
	@$(BIN)/python -m benchmarks.service

bench-hostile: setup ## Measure the running manager under ten hostile clients (some minutes)
	@$(BIN)/python -m benchmarks.hostile

bench-vdk: setup ## Measure the GpuResourceManager (some minutes)
	@$(BIN)/python -m benchmarks.vdk

bench-peers: setup ## Measure KAI beside it (builds KAI first; a quarter of an hour)
	@$(BIN)/python -m benchmarks.peers.run

bench-kube: setup ## Measure the Kubernetes scheduler beside kube-scheduler and KAI (on a testbed; builds KAI first; about an hour)
	@$(BIN)/python -m benchmarks.kube.run

wheel: setup ## Build the wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist

clean: ## Remove .venv, builds and caches
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Locked with the oldest Python we support, so that every newer one can install the result too.
lock: ## Pin requirements/*.in into *.txt with hashes (UPGRADE=1 takes newer versions)
	@python3.11 --version >/dev/null 2>&1 || { echo "make lock needs python3.11, the oldest supported version" >&2; exit 1; }
	@tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	echo "lock: preparing pip-tools"; \
	python3.11 -m venv "$$tools"; \
	"$$tools/bin/python" -m pip install --quiet --disable-pip-version-check $(LOCK_TOOLS); \
	export CUSTOM_COMPILE_COMMAND="make lock" PIP_BUILD_CONSTRAINT=requirements/vdk-build.in; \
	for name in runtime dev vdk-build vdk; do \
	  echo "lock: requirements/$$name.txt"; \
	  "$$tools/bin/pip-compile" $(LOCK_FLAGS) --output-file requirements/$$name.txt requirements/$$name.in; \
	done

# Two stamps, because the settings in pyproject.toml change often and the locked requirements seldom.
$(VENV)/.requirements: requirements/dev.txt
	@$(find_python); \
	echo "setup: creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV)
	@echo "setup: installing requirements/dev.txt"
	@$(BIN)/python -m pip --disable-pip-version-check install --require-hashes --progress-bar off -r requirements/dev.txt \
	  | awk -v of=$$(grep -c '==' requirements/dev.txt) \
	    '/^Collecting/ { printf "\rsetup: %d of %d packages fetched", ++n, of; fflush() } \
	     /^Installing/ { printf "\nsetup: unpacking them\n"; fflush() } /^ERROR/ { print }'
	@touch $@

$(VENV)/.package: $(VENV)/.requirements pyproject.toml
	@echo "setup: installing gpuyard (editable)"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $@
