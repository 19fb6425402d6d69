# A fresh machine needs make and Python 3.11 or newer (on Debian with its python3-venv package), nothing else.
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(PYTHON) -m venv .venv && $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: venv demo test test-lab test-gpu lint bench bench-gpu reproduce soak docs installs clean

venv: .venv/.dev

demo: .venv/.demo
	$(BIN)/python examples/weather.py

# Two processes with one thread of BLAS each: threads that wait for each other took a fifth of the time.
test: .venv/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Every study and benchmark at a tiny size, and the tools: a minute or two. Threads of BLAS would only wait for each other.
test-lab: .venv/.dev
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal lab/tests lab/optspace.py

# On a machine with a GPU: every question to the GPU engine, by kernels and by torch, and tensors in and out.
test-gpu: .venv/.gpu
	$(BIN)/python -m pytest tests/engines/test_gpu.py tests/test_tensors.py lab/tests/test_gpu.py

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/.dev
	$(BIN)/python -m lab.benchmarks --json lab/benchmarks/results/latest.json
	$(BIN)/python -m lab.benchmarks table

bench-gpu: .venv/.gpu
	$(BIN)/python -m lab.benchmarks.gpu --json lab/benchmarks/results/gpu.json
	$(BIN)/python -m lab.benchmarks.gpu table

# Every number of the documentation anew: hours on two cores. `lab/experiments/reproduce.py` says what, and goes on where it was.
reproduce: .venv/.dev
	$(BIN)/python -m lab.experiments.reproduce

# Hours: ten thousand to a million of each; make test-lab runs a few.
soak: .venv/.dev
	$(BIN)/python -m lab.soak --keep

docs: .venv/.dev
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

# Wheel and sdist in clean environments, by every Python that is found; half an hour, and downloads what it installs.
installs:
	$(PYTHON) -m lab.installs --keep lab/results/installs.txt

# Whatever was built; the environment stays.
clean:
	rm -rf dist docs/_build docs/generated .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +

.venv/.demo: pyproject.toml constraints.txt
	$(INSTALL) -e '.[demo]'
	touch $@

# Holds everything the demo needs too.
.venv/.dev: pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch .venv/.demo $@

.venv/.gpu: .venv/.dev
	$(BIN)/pip install -q --disable-pip-version-check -e '.[gpu]'
	touch $@
