# Everything below works on a machine with Python 3.10 or newer, pip and make. With a C++ compiler
# and Python's headers the recorder is built too.
#
#   PYTHON      the interpreter to start from
#   VENV        where the environment goes
#   VENV_FLAGS  --system-site-packages to use a torch that is installed already
#   WORKERS     processes that run the tests
#   TORCH       what pip installs where the environment has no torch
#   PACKAGE     what pip installs as OpGuard: this folder, or a wheel (the environment must be new)
#   OPGUARD_TRACING_BUILD   0 for Python alone, cpu for the recorder; found out where it is not set

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
WORKERS ?= 2
TORCH ?= torch==2.13.0
PACKAGE ?= .

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
# The module is linked to torch, which has to be there first.
STUBTEST := $(BIN)/python -c 'import sys, torch; from mypy.stubtest import main; sys.exit(main())' \
  --mypy-config-file csrc/stubtest.ini --allowlist csrc/stubtest.allow
EXAMPLE := examples/train_gpt/train.py
DEMO_STEPS ?= 5
SOAK_EVENTS ?= 10000000

# The compiler that torch's build helpers call; `make CXX=...` names another.
COMPILER := $(if $(filter default,$(origin CXX)),c++,$(firstword $(CXX)))
ifndef OPGUARD_TRACING_BUILD
  PURE_REASON := $(shell command -v $(COMPILER) > /dev/null || { echo 'no C++ compiler'; exit; }; \
    $(PYTHON) -c 'import os, sys, sysconfig; \
    header = os.path.join(sysconfig.get_path("include"), "Python.h"); \
    print("not Linux" if sys.platform != "linux" \
    else "" if os.path.exists(header) else "no Python headers")')
  OPGUARD_TRACING_BUILD := $(if $(PURE_REASON),0,cpu)
endif
BUILD := OPGUARD_TRACING_BUILD=$(OPGUARD_TRACING_BUILD) OPGUARD_CALLSITE_TRACER=0
NATIVE := $(VENV)/.native-$(OPGUARD_TRACING_BUILD)
ifeq ($(OPGUARD_TRACING_BUILD),0)
  PURE_REASON := $(or $(PURE_REASON),OPGUARD_TRACING_BUILD=0)
  SAY_PURE := echo '$(PURE_REASON): pure Python, the recorder is not built'
else
  SAY_PURE := :
endif
NATIVE_SOURCES := $(shell find csrc -name tests -prune -o -name '*.h' -print -o -name '*.cpp' -print)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint cases bench soak sanitize sanitize-standalone build clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(NATIVE) ## Run the example twice, once with a bug, and name the first divergent op
	@$(SAY_PURE)
	$(BIN)/opguard run -o .demo/baseline --force $(EXAMPLE) --steps $(DEMO_STEPS)
	$(BIN)/opguard run -o .demo/candidate --force $(EXAMPLE) --steps $(DEMO_STEPS) --bug ln-eps
	@# Exit code 1 says "diverged", which is what the planted bug has to give.
	$(BIN)/opguard compare .demo/baseline .demo/candidate || test $$? -eq 1

test: $(VENV)/.dev $(NATIVE) ## Run all tests (ARGS="-k name" passes arguments to pytest)
	@$(SAY_PURE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(VENV)/.dev $(NATIVE) ## Check style, types, layers and sizes
	@$(SAY_PURE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	test $(OPGUARD_TRACING_BUILD) = 0 || $(STUBTEST) opguard._C
	$(BIN)/python -m pytest --quiet tests/unit/test_house.py

cases: $(NATIVE) ## Score all cases with a known first divergence, in all mechanisms and modes
	for mechanism in $(if $(filter 0,$(OPGUARD_TRACING_BUILD)),,native) dispatch; do \
	for folder in cases cases_own; do for mode in trusted full; do \
	  $(BIN)/python tests/cases/score.py --cases tests/$$folder --mode $$mode \
	    --mechanism $$mechanism || exit 1; done; done; done

bench: $(VENV)/.dev $(NATIVE) ## Print what capture and comparison cost on this machine
	for script in $(filter-out benchmarks/soak.py,$(wildcard benchmarks/*.py)); do \
	  $(BIN)/python $$script || exit 1; done

soak: $(VENV)/.dev $(NATIVE) ## Capture 10 million events; memory has to stay flat (SOAK_EVENTS=N: fewer)
	$(BIN)/python benchmarks/soak.py --events $(SOAK_EVENTS)

sanitize: sanitize-standalone $(VENV)/.dev ## Run the C++ tests under Address, UB and Thread sanitizers
	csrc/sanitize/recorder address $(BIN)/python
	csrc/sanitize/recorder thread $(BIN)/python

sanitize-standalone: ## The part of it that needs no torch
	csrc/sanitize/standalone $(COMPILER)

build: $(VENV)/.torch ## Build the source distribution, and from it the wheel, into dist/
	@$(SAY_PURE)
	rm -f dist/opguard-*
	$(PIP) 'build>=1.2'
	PATH="$(abspath $(BIN)):$$PATH" $(BUILD) $(BIN)/python -m build --no-isolation

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) .demo build dist src/opguard/_C.*.so src/opguard/_native_build.json

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
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) $(TORCH)
	@# To build without isolation. ninja compiles two files at a time, and only what changed.
	$(PIP) 'setuptools>=77' $(if $(shell command -v ninja),,ninja)
	touch $@

ifeq ($(PACKAGE),.)
EDITABLE := OPGUARD_TRACING_BUILD=0 OPGUARD_CALLSITE_TRACER=0 $(PIP) --no-build-isolation --editable

$(VENV)/.opguard: $(VENV)/.torch pyproject.toml setup.py
	$(EDITABLE) .
	touch $@

$(VENV)/.dev: $(VENV)/.opguard
	$(EDITABLE) '.[dev]'
	touch $@

$(VENV)/.native-0: $(VENV)/.opguard
	rm -f $(VENV)/.native-* src/opguard/_C.*.so src/opguard/_native_build.json
	touch $@

# In place and not by pip, which would compile everything again where one file has changed.
$(VENV)/.native-%: $(VENV)/.opguard setup.py $(NATIVE_SOURCES)
	rm -f $(VENV)/.native-*
	@mkdir -p build
	@echo 'compiling the recorder (build/native.txt)'
	@PATH="$(abspath $(BIN)):$$PATH" $(BUILD) $(BIN)/python setup.py --quiet build_ext --inplace \
	  > build/native.txt 2>&1 || { cat build/native.txt; exit 1; }
	touch $@
else
$(VENV)/.opguard: $(VENV)/.torch $(PACKAGE)
	$(PIP) $(PACKAGE)
	touch $@

$(VENV)/.dev: $(VENV)/.opguard
	$(PIP) '$(PACKAGE)[dev]'
	touch $@

$(NATIVE): $(VENV)/.opguard
	touch $@
endif
