# Everything goes through .venv, which the first command makes; only Python 3.11+ and git are needed beforehand.
#
#   make demo                 a fleet, a broker and a processor, with answers checked against brute force
#   make demo BROKER=kafka    the same on Apache Kafka (Java 17 and Maven; or BROKER=docker)
#   make demo TRACE=FILE      replay a block trace in place of the documents
#   make test ARGS="-k gate"  the tests; ARGS goes to pytest
#   make chaos                the processor killed 200 times under load, and what else may befall it
#   make bench ARGS=match     measurements by name, all without; PEER_PYTHON=... names a Python with LMCache to compare
#   make lint, fmt, clean     check and format the code; remove what was made

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
KERNELS := $(shell find processor -name '*kernels.py') \
	processor/kernel.py processor/state/hashing.py processor/state/layout.py

BROKER ?= embedded
TRACE ?=
ARGS ?=
PEER_PYTHON ?=
export PEER_PYTHON

.PHONY: help setup demo test chaos lint fmt bench clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   \{0,1\}//p' Makefile

setup: $(VENV)/.compiled

demo: setup
	$(BIN)/blendstream demo --broker $(BROKER) $(if $(TRACE),--trace $(TRACE)) $(ARGS)

test: setup
	$(BIN)/pytest $(ARGS)

chaos: setup
	BLENDSTREAM_CHAOS_ROUNDS=$(or $(BLENDSTREAM_CHAOS_ROUNDS),200) $(BIN)/pytest tests/chaos $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m bench $(or $(ARGS),all)

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,dev]'
	@touch $@

# The kernels are compiled once, here and with progress shown, so that no test or demo waits for a compiler.
$(VENV)/.compiled: $(VENV)/.installed $(KERNELS)
	@$(BIN)/python -m processor.warmup
	@touch $@
