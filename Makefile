# Two commands do all their own set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-deploy lint format clean

$(VENV)/.ready: requirements.txt pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed; say make PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(VENV)/.ready  ## train on the bundled images, compare, draw
	rm -rf runs/demo
	$(BIN)/pa3dfl compare --quick --methods pa3dfl,fedavg,local-only --out runs/demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest

test-deploy: $(VENV)/.ready  ## real servers and nodes on this machine: half an hour on two cores
	$(BIN)/python -m pytest -m deploy tests/deploy

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build dist
