# make demo          the main job on whatever this machine has
# make test          lint, types and every test that needs no GPU
# make lint          the first two of these
# make gpu-test      the tests that need a GPU, with the python3 and torch that are installed
# make gpu-bench     the head benchmark, the same way; BENCH_ARGS="--steps 7" and so on
# make gpu-sanitize  small walks under compute-sanitizer; SANITIZE_ARGS="memcheck" for one tool
#
# make clean         remove .venv and build, where the lab's models are
#
# make lab-data      text and code of installed packages as tokens, in LAB_DATA (needs a network once)
# make lab           train a target and its drafters, compare accepted lengths; LAB_ARGS="--compile"
#
# demo, test, lint and lab-data set up a local environment in .venv on their first run. They need Python 3.11+.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

HAS_GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)

# Without a GPU torch is pinned. With one, an installed torch is reused and only what is missing is added.
ifeq ($(HAS_GPU),yes)
  VENV_FLAGS := --system-site-packages
  TORCH      ?= torch>=2.11
else
  VENV_FLAGS :=
  TORCH      ?= torch==2.13.0
endif

PYTEST_ARGS ?= -n auto

LAB_DATA   ?= build/lab/data
LAB_OUT    ?= build/lab/out
LAB_RECIPE ?= h200

.DEFAULT_GOAL := help
.PHONY: help demo test lint gpu-test gpu-bench gpu-sanitize lab-data lab clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "wts: $(PYTHON) is older than 3.11; run make PYTHON=/path/to/newer/python" >&2; exit 1; }
	@echo "setting up $(VENV) (first run only; torch is a large download)"
	$(PYTHON) -m venv --clear $(VENV_FLAGS) $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/wts demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS) --ignore=tests/gpu

gpu-test:
	WTS_NEEDS_GPU=1 PYTHONPATH=src $(PYTHON) -m pytest tests/gpu

gpu-bench:
	PYTHONPATH=src $(PYTHON) -m wts bench head $(BENCH_ARGS)

gpu-sanitize:
	PYTHONPATH=src:tests $(PYTHON) tests/gpu/sanitize.py $(SANITIZE_ARGS)

lab-data: $(READY)
	$(BIN)/python -m pip install --quiet tiktoken
	$(BIN)/python -m lab.data $(LAB_DATA)

lab:
	PYTHONPATH=src:. $(PYTHON) -m lab.run $(LAB_DATA) $(LAB_OUT)/models --recipe $(LAB_RECIPE) $(LAB_ARGS)
	PYTHONPATH=src:. $(PYTHON) -m lab.acceptance $(LAB_DATA) $(LAB_OUT)/models $(LAB_OUT)/acceptance
	PYTHONPATH=src:. $(PYTHON) -m lab.fidelity $(LAB_DATA) $(LAB_OUT)/models $(LAB_OUT)/fidelity
	PYTHONPATH=src:. $(PYTHON) -m lab.timing $(LAB_DATA) $(LAB_OUT)/models $(LAB_OUT)/timing
	PYTHONPATH=src:. $(PYTHON) -m lab.export $(LAB_DATA) $(LAB_OUT)/models $(LAB_OUT)/sample

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
