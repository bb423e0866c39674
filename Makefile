PYTHON ?= python3
BIN := .venv/bin
ifeq ($(OS),Windows_NT)
PYTHON := python
BIN := .venv/Scripts
endif
KILLS ?= 100
INPUTS ?= 10000
export PYTHONDONTWRITEBYTECODE =  # or every process of the tests would compile all files again
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-default coverage test-system test-slow bench campaigns chaos fuzz check docs dist clean
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: .venv/installed  ## train on scikit-learn's digits with 40 labels
	$(BIN)/cotrain fit digits

test: .venv/installed  ## linters, types, and the default tests
	$(MAKE) --no-print-directory --jobs 2 check test-default COVERAGE=$(COVERAGE)

test-default: .venv/compiled
	$(PYTEST) $(PARALLEL) -m "not system and not slow and not realdata" $(COVERAGE)

coverage: COVERAGE = --cov
coverage: test  ## the same, and the lines that no test runs; a fifth slower

test-system: .venv/compiled  ## processes, browsers, repeated kills, whole studies; CI runs them too
	$(PYTEST) $(PARALLEL) -m "system and not slow"

test-slow: .venv/installed  ## the tests that take minutes
	$(PYTEST) -m "slow or realdata"

bench: .venv/installed  ## speed ratios, all measured in one run
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.bank
	$(BIN)/python -m benchmarks.predict

campaigns: .venv/installed  ## attacks of every kind, in at most 15 minutes
	$(BIN)/python -m tests.campaigns

chaos: .venv/installed  ## kill, fill and interrupt everything (KILLS=100)
	$(BIN)/python -m tests.campaigns.chaos --kills $(KILLS)

fuzz: .venv/installed  ## damaged files, settings and requests (INPUTS=10000)
	$(BIN)/python -m tests.campaigns.fuzz --inputs $(INPUTS)

check: .venv/installed  ## linters and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/installed-docs  ## build the site in docs/_build; warnings are errors
	$(BIN)/python -m sphinx -E -W --keep-going -n -q -b html docs docs/_build
	@echo "docs/_build/index.html"

dist: .venv/installed  ## build wheel and sdist, and try the wheel in a fresh environment
	$(BIN)/python .ci/dist.py

clean:  ## remove what these commands made, except runs/
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage dist docs/_build

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[dev]'
	touch $@

.venv/compiled: .venv/installed cotrain/augment/kernel.py  # the kernels and the tests
	$(BIN)/python -m tests.kernels
	$(PYTEST) --collect-only -q > /dev/null
	touch $@

.venv/installed-docs: .venv/installed
	$(INSTALL) --editable '.[docs]'
	touch $@
