# make run      sets up everything and trains a joint model with FedLGA on unequal devices
# make test     sets up everything and runs the tests
# make test-quick     the tests that take little time: for the inner loop
# make check    lint, formatting, layers, types, documentation and tests
# make docs     builds the documentation site in build/site: open build/site/index.html, no server and no network needed
# make tables   writes the tables of README.md and docs/, and the pages of results/paper, from the data in results/
# make package  builds wheel and sdist, installs them in a new environment and runs them there
# make bench    seconds a round, ours and other simulators': takes an hour and needs the machine to itself
# make test-long      tests that take minutes, such as all six methods on a SuperLink; others show the same in less
# make test-sources   fetches the real datasets from every source it can reach and compares them
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup browser nginx run test test-quick check lint layers types docs tables package bench test-sources test-long clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"fedlga needs Python 3.11 or later; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: setup
	$(BIN)/fedlga run

# The page is tested in a real browser: Debian's Chromium, if apt-get can install it; if not, those tests are skipped.
browser:
	@command -v chromedriver >/dev/null || { apt-get update -qq && apt-get install -qq --no-install-recommends --yes chromium chromium-driver; } >/dev/null 2>&1 || echo "make browser: Chromium is not here and apt-get cannot install it: the tests that need it are skipped"

# What stands between a SuperLink and its nodes is tested with the real program.
nginx:
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { apt-get update -qq && apt-get install -qq --no-install-recommends --yes nginx-light; } >/dev/null 2>&1 || echo "make nginx: nginx is not here and apt-get cannot install it: the tests that need it fail"

test: setup browser nginx
	$(BIN)/python -m pytest -n auto

test-quick: setup
	$(BIN)/python -m pytest -n auto -m "not slow and not long and not sources"

layers: setup
	$(BIN)/lint-imports

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

check: lint layers types docs test

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build  # no --quiet: strict would count no warning
	@echo "written: build/site/index.html"

tables: setup
	$(BIN)/python tools/make_tables.py

package: setup
	$(BIN)/python tools/check_package.py

bench: setup
	$(BIN)/python benchmarks/simulators.py
	$(BIN)/python benchmarks/where.py --out results/simulators/where.csv
	$(BIN)/python benchmarks/models.py --out results/models/models.csv
	$(BIN)/python benchmarks/aggregator.py --out results/aggregator/aggregator.csv
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/flower.py --out results/flower/flower.csv

test-sources: setup
	$(BIN)/python -m pytest -m sources -n 0

test-long: setup
	$(BIN)/python -m pytest -m long -n 0

clean:
	rm -rf build/site .venv .pytest_cache .ruff_cache .hypothesis
