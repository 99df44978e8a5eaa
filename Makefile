# Every target sets up what it needs by itself: a bare machine needs make and Python 3.11 or newer.
#   make demo    make test    make help
# VENV=DIR puts the private environment elsewhere; PYTHON=... names the interpreter to build it with.

VENV ?= .venv
PYTHON ?=
DEMO_OUT ?= discreet-demo
PYTEST_WORKERS ?= 2
PYTEST_OPTIONS ?=
PEERS ?= peers
NOTEBOOKS ?= run
DIST ?= dist
BIN := $(VENV)/bin

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-newest test-part docs docs-serve bench audit paper paper-quick screenshots stats lint format build hooks clean

help:  ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.ready-demo  ## Fit a simulated table at epsilon 1: coefficients, a picture and the page
	$(BIN)/discreet demo --out "$(DEMO_OUT)"

# pyright takes as long for the tests as for all else: `make test-all` and `make lint` have them checked too.
test: TYPED := src examples benchmarks tools
test: lint  ## Format, lint, types, then the quick tests: those that tests/costs.tsv names are left out, but for the essential ones
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal --durations 20 --quick -m "not exhaustive"

test-all: lint  ## Format, lint, types, then every test; PYTEST_OPTIONS=--record-costs writes tests/costs.tsv, by which `make test` chooses
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal --durations 40 $(PYTEST_OPTIONS)

# pip takes a newer JAX there than on Python 3.11. The environment is one of its own, beside the usual one.
test-newest:  ## The demo and a part of the tests on the newest Python here, with the JAX that pip takes there
	@python="$$(.ci/newest-python)" || { echo "No Python newer than 3.11 was found: nothing is tried on a newer JAX."; exit 0; }; \
	$(MAKE) VENV="$(VENV)-newest" PYTHON="$$python" DEMO_OUT="$(DEMO_OUT)-newest" demo test-part

# What reads programs as JAX writes them down, what draws random numbers, and one fit of each method.
test-part: $(VENV)/.ready-dev  ## The part of the tests that a new release of JAX is likely to break, five minutes
	$(BIN)/python -c 'import platform, jax; print("Python", platform.python_version(), "with JAX", jax.__version__)'
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal tests/test_jax.py \
	    tests/test_readme.py::test_the_example_prints_what_the_page_shows \
	    tests/inference/test_dpsgld.py::test_a_run_is_proved_and_costs_what_the_plan_says \
	    tests/inference/test_ops.py::test_draws_follow_the_tempered_posterior \
	    tests/inference/test_noise_aware.py::test_the_regression_finds_the_noise_that_was_added
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal --quick -m "not exhaustive" \
	    tests/verify tests/gradients tests/random tests/sampling/test_subset.py tests/inference/test_proof.py

# What mkdocs-material says of its successor is no warning of ours. Not --quiet: what it keeps quiet about is not counted as a warning.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs docs-serve: export EXECUTE_NOTEBOOKS := $(if $(NOTEBOOKS),true,false)
docs: $(VENV)/.ready-docs  ## The documentation as a site in site/, built strictly; 'make docs NOTEBOOKS=' does not run the notebooks, which take five minutes
	$(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.ready-docs  ## The same at http://127.0.0.1:8000, built again when a page changes
	$(BIN)/python -m mkdocs serve --strict

bench: $(VENV)/.ready-bench  ## Measure against NumPyro and the peers: benchmarks/results.md, 25 minutes
	$(BIN)/python -m benchmarks

audit: $(VENV)/.ready-dev  ## Attack the claims at full size: lower bounds on ε beside them, docs/audit/, five to ten minutes
	$(BIN)/python -m tests.audit.full_size

paper: $(VENV)/.ready-dev  ## The papers' experiments: docs/papers/, an hour
	$(BIN)/python examples/paper

paper-quick: $(VENV)/.ready-dev  ## The same at a small size: that they run and still find what they should, six minutes
	$(BIN)/python examples/paper --quick

screenshots: $(VENV)/.ready-dev  ## Pictures of every page (desktop, dark, phone, paper) in screenshots/, to be looked at; needs Chromium
	$(BIN)/python -m tests.page.screenshots

stats: $(VENV)/.ready-dev  ## Count tokens, lines, words, names, the functions that one fit runs, and what methods cannot be asked
	@$(BIN)/python tools/stats.py

lint: $(VENV)/.ready-dev  ## ruff (format and rules) and pyright
	$(BIN)/ruff format --check --quiet . || { echo "Some files are not formatted: run 'make format'." >&2; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python $(TYPED)

format: $(VENV)/.ready-dev  ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

build: $(VENV)/.ready-dev  ## Source archive and wheel in dist/; .ci/try-wheel installs and uses one
	$(BIN)/python -m build --outdir "$(DIST)"

hooks: $(VENV)/.ready-dev  ## Run lint before each commit
	$(BIN)/pre-commit install

clean:  ## Remove caches, builds and the demo's output; the environment stays
	rm -rf build dist site screenshots .pytest_cache .ruff_cache .hypothesis "$(DEMO_OUT)" "$(DEMO_OUT)-distributed"
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. A stamp is touched after success only, so an interrupted set-up is taken up again.
# A name on PATH may be a shim with nothing behind it, so each candidate is asked to run.
$(VENV)/.ready-venv:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "Making a private environment in $(VENV) with $$python (once)."; \
	        "$$python" -m venv "$(VENV)" && touch "$@" && exit 0; exit 1; \
	    fi; \
	done; \
	echo "No Python 3.11 or newer with venv was found. Install one (Debian: apt install python3-venv)," >&2; \
	echo "or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1

$(VENV)/.ready-demo: pyproject.toml $(VENV)/.ready-venv
	@echo "Installing discreet (once, a minute or two)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli,plot,fast]'
	@touch "$@"

$(VENV)/.ready-dev: pyproject.toml $(VENV)/.ready-venv
	@echo "Installing discreet and its development tools (once, a few minutes)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs,plot]'
	@touch "$@"

$(VENV)/.ready-docs: pyproject.toml $(VENV)/.ready-venv
	@echo "Installing discreet and what its documentation is built with (once, a minute or two)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli,docs]'
	@touch "$@"

$(VENV)/.ready-bench: pyproject.toml $(VENV)/.ready-venv
	@echo "Installing discreet and what it is measured against (once, a few minutes; 'make bench PEERS=' leaves PyTorch out)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@test -z "$(PEERS)" || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[peers]' || \
	    echo "The peers cannot be installed here: their figures are skipped, with the reason." >&2
	@touch "$@"
