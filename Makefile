# Everything below works on a machine with Python 3.10 or newer, pip and make.
#
#   PYTHON      the interpreter to start from
#   VENV        where the environment goes
#   VENV_FLAGS  --system-site-packages to use a torch that is installed already
#   WORKERS     processes that run the tests
#   TORCH       what pip installs where the environment has no torch

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
WORKERS ?= 2
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
EXAMPLE := examples/train_gpt/train.py
DEMO_STEPS ?= 5
# Pure Python: there are no native parts to build yet.
INSTALL := OPGUARD_TRACING_BUILD=0 OPGUARD_CALLSITE_TRACER=0 $(BIN)/python -m pip install --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint cases bench build clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.opguard ## Run the example twice, once with a bug, and name the first divergent op
	$(BIN)/opguard run -o .demo/baseline --force $(EXAMPLE) --steps $(DEMO_STEPS)
	$(BIN)/opguard run -o .demo/candidate --force $(EXAMPLE) --steps $(DEMO_STEPS) --bug ln-eps
	@# Exit code 1 says "diverged", which is what the planted bug has to give.
	$(BIN)/opguard compare .demo/baseline .demo/candidate || test $$? -eq 1

test: $(VENV)/.dev ## Run all tests (ARGS="-k name" passes arguments to pytest)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(VENV)/.dev ## Check style, types, layers and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/unit/test_house.py

cases: $(VENV)/.opguard ## Score all cases with a known first divergence, in both modes
	for folder in cases cases_own; do for mode in trusted full; do \
	  $(BIN)/python tests/cases/score.py --cases tests/$$folder --mode $$mode || exit 1; done; done

bench: $(VENV)/.dev ## Print what capture and comparison cost on this machine
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

build: $(VENV)/.dev ## Build the source distribution and the wheel into dist/
	OPGUARD_TRACING_BUILD=0 OPGUARD_CALLSITE_TRACER=0 $(BIN)/python -m build

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) .demo build dist

# Stamps: each step is done once, and again when what it depends on changes.

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	@# Some systems ship Python without ensurepip; there pip fills the environment from outside.
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV) || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV_FLAGS) $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	touch $@

$(VENV)/.torch: $(VENV)/.venv
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet $(TORCH)
	touch $@

$(VENV)/.opguard: $(VENV)/.torch pyproject.toml setup.py
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.opguard
	$(INSTALL) --editable '.[dev]'
	touch $@
