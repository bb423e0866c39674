PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow bench check clean

demo: .venv/installed  ## train on scikit-learn's digits with 40 labels
	$(BIN)/cotrain fit digits

test: check  ## lint, types, and the default tests
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not realdata"

test-slow: .venv/installed  ## the tests that take minutes
	$(BIN)/pytest -m "slow or realdata"

bench: .venv/installed  ## ratios of speed, all measured in one run
	$(BIN)/python -m benchmarks

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
