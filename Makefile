# The same checks for people and CI: `make test` sets up everything itself.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
NODE_STAMP := node_modules/.installed
NODE_BIN := node_modules/.bin
CODE := hookcore app tests benchmarks examples .ci
# The sources of the extension, compiled by the compiler that pip installs.
KERNEL := setup.py hookcore/observe/_kernel.c hookcore/observe/_loops.h hookcore/observe/_objects.h hookcore/observe/_track.h hookcore/observe/_hold.h hookcore/delivery/_signals.c
# Nothing is compiled in advance: only a tenth of the installed files is ever imported.
PIP_INSTALL := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

# One thread per process: the tests compare bits, and CI has only two cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Hundreds of tests start their own Python: the first one compiles, the others only read.
export PYTHONDONTWRITEBYTECODE =
# Tests at a time: two more than CI has cores, since many wait for a browser or a process. These may be run again,
# because the machine may be shared. The pages' tests run beside the others, which use the cores that a browser leaves.
# The tests of a file run in one process, so that the servers and trainings that they share start once; of the quick
# tests, nearly all do: each process begins with a third of them, and takes over others when it has finished.
AT_ONCE ?= 4
TORCH ?= 2.13.0
AGAIN ?= --reruns 2 --rerun-except 'from pytest-timeout' -rfER --rerun-show-tracebacks
# Of the pages' tests: chromium, or firefox, which is Debian's. Not taken from the environment, where it means something else.
BROWSER := chromium
SCHEMA := tests/api/test_api_schema.py
# `make test-all` runs all tests, all cases in all ways, and not only those of one change; see tests/lanes.py.
ALL :=
# Without the plugins of packages that only some tests need, which import half a second of others.
PYTEST := $(BIN)/python -m pytest -q -p no:schemathesis -p no:hydra_pytest $(ALL)
# Each process collects all files that it is given, and what they import takes seconds: so files with nothing to run in
# a stage aren't given to it.
FILES := tests --include='test_*.py' --exclude-dir=browser
QUICK = $(filter-out $(SCHEMA),$(shell grep -rL '^pytestmark = .*mark\.slow' $(FILES)))
SLOW = $(filter-out $(SCHEMA),$(shell grep -rl 'mark\.slow' $(FILES)))
# Nothing is downloaded while tests run.
export HF_HUB_OFFLINE := 1

.PHONY: help demo test test-all others lint lint-python lint-scripts types types-python types-scripts types-elsewhere scripts quick pages slow rest schema matrix gpu docs site bench image release format clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

demo: $(DEMO)  ## train a small network with the dashboard open, including all setup; DEMO_FLAGS="--trouble nan"
	@$(BIN)/hookcore demo $(DEMO_FLAGS)

# What needs one core runs beside what leaves one: pip beside the checks of the scripts, the pages beside all the rest.
test:  ## everything that CI checks, including all setup
	@$(call need,$(HAS_ALL),$(ALL_PACKAGES))
	$(MAKE) --no-print-directory --jobs 2 --output-sync $(STAMP) lint-scripts types-scripts scripts
	$(MAKE) --no-print-directory --jobs 2 --output-sync pages others

test-all:  ## all tests, all cross products: before each release
	$(MAKE) --no-print-directory test ALL=--all
	$(MAKE) --no-print-directory types-elsewhere

# In this order: what is one process, while the pages' browsers take most of a core; then all other tests.
others:
	$(MAKE) --no-print-directory lint-python types-python schema rest

lint: lint-python lint-scripts types-scripts  ## style of Python, scripts, and styles; tsc over the scripts

lint-python: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

lint-scripts: $(NODE_STAMP)
	$(NODE_BIN)/biome ci --error-on-warnings

types: types-python types-scripts  ## types: mypy --strict, and tsc over the scripts

types-python: $(STAMP)
	$(BIN)/mypy --strict

types-elsewhere: $(STAMP)  ## types as Python has them on macOS and on Windows
	$(BIN)/mypy --strict --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/mypy --strict --platform win32 --cache-dir .mypy_cache/win32

types-scripts: $(NODE_STAMP)
	$(NODE_BIN)/tsc

# In one run, because each of its processes imports for ten seconds: first files with slow tests, then the short ones.
rest: $(STAMP)
	$(PYTEST) -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder --durations 30 $(AGAIN) -m "not browser" $(SLOW) $(filter-out $(SLOW),$(QUICK))

quick: $(STAMP)  ## the tests that take seconds
	$(PYTEST) -n $(AT_ONCE) --dist worksteal --durations 15 $(AGAIN) -m "not slow" $(QUICK)

scripts: $(NODE_STAMP)  ## the tests of the pages' pure modules, in Node
	node --test tests/js/*.test.mjs

pages: $(STAMP)  ## the pages in a real browser; BROWSER=firefox for Debian's Firefox
	$(if $(filter firefox,$(BROWSER)),@$(call need,command -v firefox-esr,firefox-esr))
	TEST_BROWSER=$(BROWSER) $(PYTEST) -n $$((($(AT_ONCE) + 1) / 2)) --dist loadfile --durations 15 $(AGAIN) -m browser tests/browser

slow: $(STAMP)  ## the tests that take longer: whole models, compilers, several processes
	$(PYTEST) -n $(AT_ONCE) --dist loadfile --durations 15 $(AGAIN) -m slow $(SLOW)

# Apart, because each process that only collects it makes its requests, which takes ten seconds.
schema: $(STAMP)  ## requests that the description of the API allows and forbids
	$(BIN)/python -m pytest -q --durations 3 $(AGAIN) $(ALL) $(SCHEMA)

matrix: $(KERNEL)  ## quick tests and the zoo in a fresh environment: TORCH=2.8.0 PYTHON=python3.12
	.ci/matrix $(TORCH) $(PYTHON)

# On the GPU, torch's own choice of a build may be another one than that of CI: install it before.
gpu: $(STAMP)  ## the tests of a GPU, and the zoo's trainings with every tensor on it; needs one
	$(PYTEST) --all -m '' tests/recorder/test_gpu.py tests/recorder/test_gpu_odd.py tests/observe/test_triton_kernel.py
	$(PYTEST) --all -m '' -p tests.on_gpu tests/recorder/test_harmless.py tests/recorder/test_truth.py tests/capsules/test_capsules_zoo.py
	TOGETHER=1 $(PYTEST) --all -m '' -p tests.on_gpu tests/recorder/test_harmless.py tests/recorder/test_truth.py

docs: site  ## build the site of the documentation, run its code and its commands, and follow its links
	$(PYTEST) -n $(AT_ONCE) --dist worksteal $(AGAIN) tests/repository/test_docs.py tests/repository/test_docs_commands.py

site: $(STAMP)  ## build the site of the documentation, build/site; any warning is an error
	PYTHONPATH=$(CURDIR) $(BIN)/python .ci/website.py

bench: $(STAMP)  ## measure the cost on this machine; takes minutes
	$(BIN)/python -m benchmarks.coldstart
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.overhead

image: $(DEMO)  ## build the dashboard's image and run it, without a Docker engine; as root, on Debian
	docker/prove.sh

release:  ## build and check all files of a release, from the last commit; uploads nothing: VERSION=0.1.0
	$(PYTHON) .ci/release.py "$(VERSION)"

format: $(STAMP) $(NODE_STAMP)  ## format the code
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(NODE_BIN)/biome check --write
	$(BIN)/python -m tests.answer_types

clean:  ## remove everything that was built
	rm -rf $(VENV) node_modules build dist *.egg-info hookcore/*/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch is installed first and alone, so that the resolver finds it and never looks for another build of it.
$(STAMP): pyproject.toml constraints.txt $(KERNEL)
	@$(call need,$(HAS_ALL),$(ALL_PACKAGES))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch==2.13.0
	$(PIP_INSTALL) -e '.[demo,dev,docs,frameworks]'
	touch $@

# The checkers of the scripts: a formatter, and a compiler that only checks. Neither is part of a page.
$(NODE_STAMP): package.json package-lock.json
	@$(call need,$(HAS_ALL),$(ALL_PACKAGES))
	npm ci --no-audit --no-fund --loglevel error
	touch $@

# Everything for `make demo`: no compiler, no browser, none of the tests' packages.
$(DEMO): pyproject.toml constraints.txt $(KERNEL)
	@$(call need,$(HAS_VENV),python3-venv)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch==2.13.0
	$(PIP_INSTALL) -e '.[demo]'
	touch $@

# Requirements and the packages that contain them: Python's venv module to install with; a C++ compiler with Python's
# headers for torch.compile's tests, a browser for the pages' tests, openssl for the certificates of the TLS tests,
# nginx for those of a reverse proxy, ClickHouse and ZooKeeper for those of the second store, curl for the commands in the documentation, npm for the checkers of the scripts.
HAS_VENV = $(PYTHON) -c 'import ensurepip, venv'
HAS_ALL = command -v g++ && command -v chromium-headless-shell && command -v openssl && command -v npm && command -v curl && \
	export PATH="$$PATH:/usr/sbin" && command -v nginx && command -v clickhouse-server && command -v clickhouse-client && \
	command -v java && ls /usr/share/java/zookeeper.jar && \
	$(PYTHON) -c 'import ensurepip, os, sysconfig, venv; os.stat(sysconfig.get_path("include") + "/Python.h")'
ALL_PACKAGES = python3-venv python3-dev g++ chromium-headless-shell openssl nginx curl \
	clickhouse-server clickhouse-client zookeeperd \
	$(shell command -v npm >/dev/null || echo nodejs npm)  # a Node from elsewhere has an npm that conflicts with Debian's

# Install Debian packages unless a command shows that they are installed.
define need
if ! { $(1); } >/dev/null 2>&1; then \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends $(2) >/dev/null; \
	else echo "Install these first: $(2)" >&2; exit 1; fi; \
fi
endef
