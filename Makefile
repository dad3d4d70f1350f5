# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each makes its own virtual environment (VENV) and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
# LangChain, LlamaIndex and Haystack, whose requirements are not those of the tests.
CLIENTS = $(VENV)/clients
PYTEST_ARGS ?=
PYTEST = $(VENV)/bin/python -m pytest
# Processes that run tests side by side; those that start engines and services run in one, after the others.
JOBS ?= 2
# The tests that compile the kernels come first, in one process (mypy beside them): two would compile them both.
KERNELS = tests/unit/kernels tests/unit/models tests/identities tests/contract/test_scorers.py tests/papers/test_plain_kernels.py
OTHERS = $(PYTEST) -n $(JOBS) -m "not live and not slow" $(addprefix --ignore=,$(KERNELS)) $(PYTEST_ARGS)
# How often `make test-full` kills, misleads, stops and asks; `make slow` takes the defaults of the tests.
FULL = SSI_KILLS=50 SSI_RENEWAL_KILLS=20 SSI_SEEDS=200 SSI_ENGINE_KILLS=8 SSI_PAUSE_S=30 SSI_SERVICE_SLOW=300 \
	SSI_SERVICE_SWAPS=200 SSI_REPLACEMENTS=50 SSI_SERVICE_PAUSE_S=30 SSI_SERVICE_SECONDS=60 SSI_FUZZ_LINES=1000000 \
	SSI_SCHEMA_CASES=5000 SSI_EXAMPLES=10000 SSI_ATTACK_S=20
# What the newer line of each engine runs; the older one everything.
NEWER = SSI_TEST_ELASTICSEARCH_VERSION=9.5.3 SSI_TEST_OPENSEARCH_VERSION=3.3.0
NEWER_TESTS = tests/contract tests/parity tests/live/test_first_stage.py \
	tests/live/test_retrain.py::test_an_index_with_impacts_gets_them_of_the_new_version

.DEFAULT_GOAL := help
.PHONY: help demo install test clients slow newer test-full check kernels unit mutants dist figures figures-check clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q --no-compile -c constraints.txt -e '.[all,dev]'
	@touch $@ $(VENV)/.core

install: $(VENV)/.core ## install the program into VENV
	@echo "installed: $(VENV)/bin/ssi"

demo: $(VENV)/.core ## index, train and compare on the documentation of the installed Python
	$(VENV)/bin/ssi demo

check: $(VENV)/.dev ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

kernels: $(VENV)/.dev ## the tests of the kernels and of what stands next to them
	$(PYTEST) -m "not live and not slow" $(KERNELS)

unit: kernels ## the tests that need no search engine, but the slow ones
	$(OTHERS)

test: $(VENV)/.dev ## lint, types, documentation, unit tests, and what every engine must do
	$(MAKE) --no-print-directory -j $(JOBS) --output-sync=target check kernels
	$(OTHERS)
	$(PYTEST) -m "live and not slow" $(PYTEST_ARGS)

$(CLIENTS)/.installed: tests/clients.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install -q -r tests/clients.txt
	@touch $@

clients: $(CLIENTS)/.installed ## install LangChain, LlamaIndex and Haystack, each for its example of docs/guide/api.md

slow: $(VENV)/.dev clients ## the tests that `make test` leaves out: services, kills, faults, routes, quality on whole corpora
	$(PYTEST) -n $(JOBS) -m "not live and slow" $(PYTEST_ARGS)
	$(PYTEST) -m "live and slow" $(PYTEST_ARGS)
	$(MAKE) --no-print-directory figures-check

newer: $(VENV)/.dev ## contract, parity, candidates by impacts and a retraining on the newer line of each engine (Java 21 and later)
	$(NEWER) $(PYTEST) -m live $(NEWER_TESTS) $(PYTEST_ARGS)

test-full: check clients ## the same with the reliability tests at full length (hours)
	$(FULL) $(PYTEST) --timeout 7200 $(PYTEST_ARGS)

mutants: $(VENV)/.dev ## make the mistakes of benchmarks/mutants.toml one by one and print those that no test catches (hours)
	$(VENV)/bin/python benchmarks/mutants.py --jobs $(JOBS)

dist: $(VENV)/.dev ## build wheel, source archive, SBOM and SHA256SUMS into dist/: the same bytes in every run
	$(VENV)/bin/python -m tests.docs.release dist

figures: $(VENV)/.core ## write docs/figures.md, its pages and the figures of README.md from benchmarks/results
	$(VENV)/bin/python benchmarks/figures.py

figures-check: $(VENV)/.core ## list the results that were measured with an earlier program
	$(VENV)/bin/python benchmarks/figures.py --programs

clean: ## remove caches and the virtual environment
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo build dist *.egg-info
