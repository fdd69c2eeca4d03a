# make run      sets up everything and trains a joint model with FedLGA on unequal devices
# make test     sets up everything and runs the tests
# make check    lint, formatting, types and tests
# make bench    seconds a round, ours and other simulators': an hour, and the machine to itself
# make test-long      what takes minutes and is shown in less by another test: all six methods on a SuperLink
# make test-sources   fetches the real datasets from every source it can reach and compares them
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup browser run test check lint types bench test-sources test-long clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"fedlga needs Python 3.11 or later; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup
	$(BIN)/fedlga run

# The page is tested in a real browser. Debian's is fetched where that can be done; where not, those tests say so.
browser:
	@command -v chromedriver >/dev/null || { apt-get update -qq && apt-get install -qq --no-install-recommends --yes chromium chromium-driver; } >/dev/null 2>&1 || echo "make browser: no Chromium here, and none to be had with apt-get: the tests that need one are left out"

test: setup browser
	$(BIN)/python -m pytest -n auto

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

check: lint types test

bench: setup
	$(BIN)/python benchmarks/simulators.py
	$(BIN)/python benchmarks/where.py --out results/simulators/where.csv
	$(BIN)/python benchmarks/aggregator.py --out results/aggregator/aggregator.csv
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/flower.py --out results/flower/flower.csv

test-sources: setup
	$(BIN)/python -m pytest -m sources -n 0

test-long: setup
	$(BIN)/python -m pytest -m long -n 0

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
