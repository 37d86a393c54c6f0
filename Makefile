# What a person does here. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
SEEDS ?= 0
KILLS ?= 20
SEED ?= 0
RUNS ?= 5
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint chaos bench picture clean

help:  ## list what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/ready  ## make the environment .venv with the pinned packages

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"python {v[0]}.{v[1]} came; PYTHON=python3.11 or newer would do")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/ready  ## SFT, then GRPO, of a tiny model on this CPU; SEEDS="0 1 2" for more than one
	$(VENV)/bin/python benchmarks/demo.py $(SEEDS)

test: $(VENV)/ready-dev  ## run every test
	$(VENV)/bin/pytest -n 2 --dist loadfile --durations=10

lint: $(VENV)/ready-dev  ## style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy launcher benchmarks

chaos: $(VENV)/ready-dev  ## kill a run KILLS times at random moments; each must resume to the same result
	$(VENV)/bin/python benchmarks/chaos.py $(KILLS) $(SEED)

bench: $(VENV)/ready-dev  ## what starting, planning and a training step cost
	$(VENV)/bin/python benchmarks/costs.py $(RUNS)

picture: $(VENV)/ready  ## draw docs/console.svg from the newest quickstart run
	$(VENV)/bin/python docs/console.py

clean:  ## remove the environment and caches; runs stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
