# Every target updates .venv if pyproject.toml or constraints.txt changed. A new .venv uses the newest supported Python
# on the PATH, or PYTHON=/path/to/python3. If that has another version than .venv, .venv is created again. "make demo"
# installs what users need. The other targets add the tools of developers, which include all extras.
SUPPORTED := 3.13 3.12 3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
STAMP_OF_USERS := $(VENV)/.installed
VERSION = -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help install venv demo check test golden golden-check lint format bench docs reference

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# $(call update,EXTRAS,WORDS,STAMPS): a stamp is the time of an installation that suffices; the first one is set.
define update
	@has=$$($(BIN)/python $(VERSION)); python='$(PYTHON)'; \
	case ' $(SUPPORTED) ' in *" $${has:-none} "*) : ;; *) has= ;; esac; \
	if [ -z "$$python$$has" ]; then \
	    for name in $(SUPPORTED:%=python%) python3; do \
	        if "$$name" -c 'import ensurepip, venv' 2>/dev/null; then python=$$name; break; fi; \
	    done; \
	    if [ -z "$$python" ]; then \
	        echo "make: found no Python 3.13, 3.12 or 3.11 with its venv module: install one (on Debian: apt" \
	            "install python3-venv) or set PYTHON=/path/to/python3." >&2; exit 1; \
	    fi; \
	fi; \
	if [ -n "$$python" ]; then \
	    wants=$$("$$python" $(VERSION)); \
	    case ' $(SUPPORTED) ' in *" $${wants:-none} "*) : ;; *) \
	        echo "make: $$python is not Python 3.13, 3.12 or 3.11 (its version is $${wants:-unknown}): set" \
	            "PYTHON=/path/to/python3." >&2; exit 1;; \
	    esac; \
	    if [ "$$has" != "$$wants" ]; then \
	        if [ -e $(VENV) ]; then echo "make: creating $(VENV) again for Python $$wants." >&2; fi; \
	        "$$python" -m venv --clear $(VENV) || exit 1; \
	    fi; \
	fi; \
	first=yes; \
	for stamp in $(3); do \
	    if [ $$stamp -nt pyproject.toml -a $$stamp -nt constraints.txt ]; then exit 0; fi; \
	    if [ -e $$stamp ]; then first=; fi; \
	done; \
	if [ -n "$$first" ]; then \
	    echo "make: installing Peerglass$(2)"; \
	    if [ "$$(uname -sm)" = "Linux x86_64" -a -z "$$PIP_EXTRA_INDEX_URL$$PIP_FIND_LINKS" ] && \
	        ! command -v nvidia-smi >/dev/null; then \
	        echo "make: torch brings CUDA here, 2.6 GB more to download. For the version without CUDA, press Ctrl-C and run:"; \
	        echo "make:     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make $(MAKECMDGOALS)"; \
	    fi; \
	fi; \
	if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; \
	$(BIN)/python -m pip install $$quiet --disable-pip-version-check --constraint constraints.txt \
	    --editable '.$(1)' || exit 1; \
	touch $(firstword $(3))
endef

venv:
	$(call update,[dev], with the tools of developers: 3.7 GB on the disk; takes minutes.,$(STAMP))

install:  ## install what users need into .venv
	$(call update,,: 0.7 GB to download and 2.6 GB on the disk; takes minutes.,$(STAMP_OF_USERS) $(STAMP))

demo: install  ## run the whole pipeline on the embedded market; prints the report's path
	@$(BIN)/peerglass demo

# Containers often set PYTHONDONTWRITEBYTECODE. Without cached bytecode, every process that the tests start would compile
# the package again. The C library keeps memory that is freed, up to 1 GiB a process: asking the system for pages again
# took a tenth of the processor time.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 MALLOC_MMAP_THRESHOLD_=1073741824 \
    MALLOC_TRIM_THRESHOLD_=1073741824 $(BIN)/python -m pytest --numprocesses 4 --dist loadfile \
    --no-loadscope-reorder --quiet

test: venv  ## run all tests
	$(PYTEST)

check: venv lint  ## run what a change needs: lint, and all tests that are not marked slow
	$(PYTEST) -m "not slow"

golden: venv  ## regenerate the golden figures in tests/golden
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/make.py

golden-check: venv  ## run the demo and compare it with its golden figures
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/make.py --check

lint: venv  ## check formatting, style, types and import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv  ## format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: venv  ## run the benchmarks for at most half an hour; lists those left out
	$(BIN)/python benchmarks/run_all.py

docs: venv  ## build the user's guide; prints the path of its first page
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo site/index.html

reference: venv  ## write the pages of the guide that are generated from the code
	$(BIN)/python docs/reference.py features > docs/features.md
	$(BIN)/python docs/reference.py config > docs/config_reference.md
	$(BIN)/python docs/reference.py commands > docs/cli.md
	$(BIN)/python docs/result_tables.py > docs/result_tables.md
