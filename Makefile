# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Everything is installed into .venv; a target is cheap when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Interpreted kernels and small matrices run many times slower with BLAS threads fighting for cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help demo test check lint format install clean
help:
	@echo "make demo    install, then ingest a sample trace and judge two kernels on this CPU"
	@echo "make test    install, lint, type-check and run the tests (5 to 12 minutes on two cores)"
	@echo "make check   the slow checks: browser walk, wheel, services"
	@echo "make format  format the code"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/atrex demo --store demo-store || [ $$? -eq 7 ]  # 7: this machine is too busy to time

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m "not slow and not gpu"

check: $(STAMP)
	$(BIN)/pytest -m "slow and not gpu" --timeout 600

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist demo-store .mypy_cache .ruff_cache .pytest_cache
