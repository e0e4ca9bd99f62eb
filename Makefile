# Every target brings .venv up to date by itself when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## the whole pipeline on the embedded market; prints the report's path
	@$(BIN)/peerglass demo

test: $(STAMP)  ## all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --quiet

lint: $(STAMP)  ## formatting, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the code as `make lint` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## speed, side by side with a reference in the same run
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/features_speed.py
	$(BIN)/python benchmarks/windows.py
	$(BIN)/python benchmarks/lake.py
