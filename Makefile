# Each verb sets up all it needs in .venv (bench: .venv-bench too): nothing is installed by hand.
PYTHON ?= python3
MODELS := SmolLM2-135M-Instruct all-MiniLM-L6-v2
PY := .venv/bin/python
INSTALL := $(PY) -m pip install --quiet --constraint constraints.txt --editable
PYTEST := EYELINE_MODEL_REQUIRED=1 $(PY) -m pytest

.PHONY: demo test test-slow test-all check architecture bench model clean

demo: model
	$(PY) -m eyeline compare
	$(PY) -m eyeline bench
	$(PY) -m eyeline generate "Attention is the ability to"

test: .venv/.dev model
	OMP_NUM_THREADS=1 $(PYTEST) -n 2 -m "not slow and not cuda"

test-slow: .venv/.dev model
	$(PYTEST) -m "slow and not cuda"

test-all: test test-slow

check: .venv/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# The tables of docs/architecture.md and the list of public names, as the source is now.
architecture: .venv/.dev
	PYTHONPATH=tests $(PY) tests/architecture/refresh.py

bench: model
	bash benchmarks/run.sh
	COLUMNS=120 $(PY) -m eyeline compare --plot docs/images/compare.png | sed 's/ *$$//' \
		> benchmarks/results/compare.txt
	COLUMNS=100 $(PY) -m eyeline bench --mechanism all --length 1024 --length 8192 --backward \
		| sed 's/ *$$//' | cat -s > benchmarks/results/table.txt
	$(PY) -m benchmarks.pages

model: .venv/.app
	for name in $(MODELS); do $(PY) -m eyeline models --fetch $$name || exit 1; done

clean:
	rm -rf .venv .venv-bench

.venv/.app: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(INSTALL) '.[app]'
	touch $@

.venv/.dev: .venv/.app
	$(INSTALL) '.[app,dev]'
	touch $@
