# make setup   .venv with everything that demo and test need, and the model
# make demo    a streamed generation and its speed against plain decoding
# make test    lint, types, installed wheel, tests and doctests
# `make help` lists the rest. Variables are meant to be overridden:
#   make test PYTEST_ARGS="-k tree"      make bench DATASET=prompts.jsonl

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
VENV_LATEST := .venv-latest
VENV_PARITY := .venv-parity
VENV_LLAMA := .venv-llama
VENV_TPU := .venv-tpu
BIN := $(VENV)/bin

MODEL ?= smollm2-135m
DATASET ?= benchmarks/data/mt_bench.jsonl
DRAFTERS ?= none,auto,prompt_lookup
LIMIT ?= 24
BENCH_ARGS ?=
OUT ?= results
WORKERS ?= 2
PYTEST_ARGS ?=
TPU_ARGS ?=
PEER_ARGS ?=

# Errors only: pip's warnings are about its own settings.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
PYTEST = -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)
# What a new jax or flax breaks first, in a minute or two.
FAST_TESTS ?= $(wildcard tests/core tests/verify tests/decoding/test_engine.py)

# $(call first_python,CANDIDATES,MINOR): the first candidate that runs (a pyenv
# shim may not), is Python 3.MINOR or newer and can make an environment.
first_python = $(shell for python in $(1); do \
    if "$$python" -c 'import ensurepip, sys, venv; \
sys.exit(sys.version_info < (3, $(2)))' >/dev/null 2>&1; \
    then echo "$$python"; break; fi; done)
# $(call pyenv_pythons,MINORS): the interpreters that pyenv has installed.
pyenv_pythons = $(foreach minor,$(1),$(wildcard \
    $(shell pyenv root 2>/dev/null)/versions/*/bin/python3.$(minor)))

PYTHON ?= $(call first_python,python3 python3.13 python3.12 python3.11 python3.14 \
    $(call pyenv_pythons,13 12 11),11)
PYTHON_LATEST ?= $(call first_python,python3.14 python3.13 python3.12 python3 \
    $(call pyenv_pythons,14 13 12),12)

.PHONY: help setup demo test lint format smoke bench peers parity goldens \
    test-latest test-latest-fast latest tpu tpu-check tpu-report clean

help:
	@echo 'make setup             .venv with everything, and the model $(MODEL)'
	@echo 'make demo              setup, then a streamed generation and its speed'
	@echo 'make test              setup, then lint, smoke, tests and doctests'
	@echo 'make lint              ruff check, ruff format --check, pyright'
	@echo 'make format            ruff check --fix, ruff format'
	@echo 'make smoke             build the wheel and run it outside the repository'
	@echo 'make bench             DRAFTERS on LIMIT prompts of DATASET, report in OUT'
	@echo 'make peers             decoding against transformers and llama.cpp'
	@echo 'make parity            compare golden logits with transformers (torch)'
	@echo 'make goldens           make the golden logits anew'
	@echo 'make test-latest       tests on the newest jax and flax, Python >= 3.12'
	@echo 'make test-latest-fast  the part of them that CI runs'
	@echo 'make tpu-check         compile kernels and rounds for TPU, without one'
	@echo 'make tpu-report        what large models would take on TPUs'
	@echo 'make clean             remove the environments and build outputs'

setup: $(VENV)/.model

$(VENV)/.installed: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo 'make: no Python 3.11 or newer with its venv module was found; install' \
	    'one (Debian: python3-venv) or name it: make setup PYTHON=/path/to/python3' \
	    >&2; exit 1; fi
	@echo "setup: $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) --upgrade pip
	@$(BIN)/python $(PIP_INSTALL) --editable '.[test]'
	@touch $@

$(VENV)/.model: $(VENV)/.installed
	@$(BIN)/python -m specjax fetch $(MODEL)
	@touch $@

demo: setup
	@$(BIN)/python -m benchmarks.demo

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

smoke: $(VENV)/.installed
	@bash .ci/smoke $(BIN)/python

test: setup lint smoke
	$(BIN)/python $(PYTEST) --doctest-modules specjax pallas_kernels tests

bench: setup
	@mkdir -p $(OUT)
	$(BIN)/python -m specjax bench --model $(MODEL) --dataset $(DATASET) \
	  --drafters $(DRAFTERS) --limit $(LIMIT) --out $(OUT)/bench.jsonl $(BENCH_ARGS)
	$(BIN)/python -m specjax report $(OUT)/bench.jsonl --out $(OUT)

# llama.cpp is compiled for this machine, which takes minutes.
$(VENV_LLAMA)/.installed:
	@$(PYTHON) -m venv $(VENV_LLAMA)
	@$(VENV_LLAMA)/bin/python $(PIP_INSTALL) --upgrade pip
	@$(VENV_LLAMA)/bin/python $(PIP_INSTALL) 'llama-cpp-python>=0.3.16'
	@touch $@

peers: setup $(VENV_PARITY)/.installed $(VENV_LLAMA)/.installed
	@for peer in transformers:$(VENV_PARITY) llama_cpp:$(VENV_LLAMA); do \
	  $(BIN)/python -m benchmarks.decoding.peers $${peer%%:*} --model $(MODEL) \
	    --peer-python $${peer#*:}/bin/python --dataset $(DATASET) --limit $(LIMIT) \
	    $(PEER_ARGS); done

# The index's torch for Linux brings gigabytes of CUDA: a wheel that pip is
# configured to find by a link (a CPU build) is taken first, where there is one.
$(VENV_PARITY)/.installed: pyproject.toml
	@$(PYTHON) -m venv $(VENV_PARITY)
	@$(VENV_PARITY)/bin/python $(PIP_INSTALL) --upgrade pip
	@$(VENV_PARITY)/bin/python $(PIP_INSTALL) --no-index --no-deps torch \
	  2>/dev/null || echo 'parity: taking torch from the package index'
	@$(VENV_PARITY)/bin/python $(PIP_INSTALL) --editable '.[parity]'
	@touch $@

parity: $(VENV_PARITY)/.installed
	$(VENV_PARITY)/bin/python tests/parity/make_goldens.py --check

goldens: $(VENV_PARITY)/.installed
	$(VENV_PARITY)/bin/python tests/parity/make_goldens.py

# Upgraded at every call: newest means newest today.
latest:
	@if [ -n "$(PYTHON_LATEST)" ]; then \
	  $(PYTHON_LATEST) -m venv $(VENV_LATEST); \
	  $(VENV_LATEST)/bin/python $(PIP_INSTALL) --upgrade pip; \
	  $(VENV_LATEST)/bin/python $(PIP_INSTALL) --upgrade --editable '.[test]' \
	    jax jaxlib flax; fi

# $(call on_latest,ARGUMENTS): pytest there, or a notice where there is no Python.
on_latest = @if [ -z "$(PYTHON_LATEST)" ]; then \
	  echo 'NOTICE: tests on the newest jax and flax were skipped: they need Python' \
	    '3.12 or newer with its venv module, and none was found'; \
	  else $(VENV_LATEST)/bin/python -c "import sys, jax, flax; print('newest:', \
	    'Python', sys.version.split()[0], 'jax', jax.__version__, \
	    'flax', flax.__version__)"; \
	  $(VENV_LATEST)/bin/python $(PYTEST) $(1); fi

test-latest: latest
	$(call on_latest,tests)

test-latest-fast: latest
	$(call on_latest,-m 'not slow' $(FAST_TESTS))

# libtpu has wheels for Linux on x86 only: elsewhere nothing is compiled for TPU.
tpu: $(VENV)/.installed
	@if [ ! -e $(VENV_TPU)/.installed ] || \
	    [ pyproject.toml -nt $(VENV_TPU)/.installed ]; then \
	  $(PYTHON) -m venv $(VENV_TPU); \
	  if $(VENV_TPU)/bin/python $(PIP_INSTALL) --editable '.[tpu]'; \
	    then touch $(VENV_TPU)/.installed; else rm -f $(VENV_TPU)/.installed; fi; fi

tpu-check: tpu
	@if [ -e $(VENV_TPU)/.installed ]; \
	  then $(VENV_TPU)/bin/python -m benchmarks.tpu.check $(TPU_ARGS); \
	  else echo 'NOTICE: nothing was compiled for TPU: libtpu cannot be installed'; fi

tpu-report: tpu
	$(VENV_TPU)/bin/python -m benchmarks.tpu.report $(TPU_ARGS)

clean:
	rm -rf $(VENV) $(VENV_LATEST) $(VENV_PARITY) $(VENV_LLAMA) $(VENV_TPU) build dist $(OUT)
