# A fresh machine needs make and Python 3.11 or newer (on Debian with its python3-venv package), nothing else.
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(PYTHON) -m venv .venv && $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: venv demo test test-gpu lint bench bench-gpu reproduce soak docs installs clean

venv: .venv/.dev

demo: .venv/.demo
	$(BIN)/python examples/weather.py

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# On a machine with a GPU: every question to the GPU engine, by kernels and by torch, and tensors in and out.
test-gpu: .venv/.gpu
	$(BIN)/python -m pytest tests/engines/test_gpu.py tests/test_tensors.py tests/test_gpu_benchmarks.py

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/.dev
	$(BIN)/python -m benchmarks --json benchmarks/results/latest.json
	$(BIN)/python -m benchmarks table

bench-gpu: .venv/.gpu
	$(BIN)/python -m benchmarks.gpu --json benchmarks/results/gpu.json
	$(BIN)/python -m benchmarks.gpu table

# Every number of the documentation anew: hours on two cores. `experiments/reproduce.py` says what, and goes on where it was.
reproduce: .venv/.dev
	$(BIN)/python -m experiments.reproduce

# Hours: ten thousand to a million of each; tests/test_soak.py runs a few.
soak: .venv/.dev
	$(BIN)/python -m soak --keep

docs: .venv/.dev
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

# Wheel and sdist in clean environments, by every Python that is found; half an hour, and downloads what it installs.
installs:
	$(PYTHON) scripts/installs.py --keep benchmarks/results/installs.txt

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
