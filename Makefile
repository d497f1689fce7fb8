# One way to check for a person and for CI: `make test` does all of its own set-up.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := hookcore app tests benchmarks examples
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# One thread a process: the tests compare bits, and two cores are all that CI has.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Nothing is fetched while tests run.
export HF_HUB_OFFLINE := 1

.PHONY: help test lint types quick slow bench format clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

test: lint types quick slow  ## everything that CI checks, with all set-up

lint: $(STAMP)  ## style, and the direction of imports
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy --strict

quick: $(STAMP)  ## the tests that take seconds
	$(BIN)/python -m pytest -q -m "not slow"

slow: $(STAMP)  ## the tests that take longer: whole models, compilers, several processes
	$(BIN)/python -m pytest -q -m slow

bench: $(STAMP)  ## measure the cost on this machine; takes minutes
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.overhead

format: $(STAMP)  ## put the code into shape
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:  ## remove all that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone, so that the resolver finds it there and never looks for another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(call need_system_packages)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch==2.13.0
	$(PIP_INSTALL) -e '.[dev,frameworks]'
	touch $@

# Python's venv module to install with, a C++ compiler with Python's headers for torch.compile's tests, a browser for the
# pages' tests, and openssl for the certificates of those that speak TLS.
define need_system_packages
ready() { command -v g++ >/dev/null && command -v chromium >/dev/null && command -v openssl >/dev/null && $(PYTHON) -c 'import ensurepip, os, sysconfig, venv; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }; \
if ! ready; then \
	packages="python3-venv python3-dev g++ chromium openssl"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends $$packages >/dev/null; \
	else echo "Install these first: $$packages" >&2; exit 1; fi; \
fi
endef
