# `make run` starts the wizard, `make test` runs the whole suite; both build .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: setup run test lint types imports bench

setup: $(STAMP)

# torch goes first and alone: its version decides whether pip picks the CPU build or several gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

run: setup
	$(BIN)/verl-wizard

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Everything that is promised in numbers; SOAK_SECONDS=600 for the long flood, ONLY="idle live" for some of it.
SOAK_SECONDS ?= 20
bench: setup
	$(BIN)/python -m tools.bench --soak-seconds $(SOAK_SECONDS) $(ONLY)
