# Two commands do all their own set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
JOBS ?= 2

.PHONY: demo test test-deploy bench lint format docs dist clean

$(VENV)/.ready: requirements.txt pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed; say make PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(VENV)/.ready  ## train on the bundled images, compare, draw
	rm -rf runs/demo
	$(BIN)/pa3dfl compare --quick --methods pa3dfl,fedavg,ditto,local-only --out runs/demo

test: $(VENV)/.ready  ## all tests, in two processes; JOBS=1 for one
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal
	@command -v chromium chromium-browser > /dev/null || echo "left out: tests of pages in a browser, there is no chromium here"

SOAK := $(or $(PA3DFL_SOAK_MINUTES),30)
test-deploy: $(VENV)/.ready  ## real servers and nodes on this machine
	@echo "about an hour on two cores, and a soak of $(SOAK) minutes: PA3DFL_SOAK_MINUTES=5 makes it shorter"
	$(BIN)/python -m pytest -m deploy tests/deploy

bench: $(VENV)/.ready $(PEERS)/.ready  ## this library beside others; BENCH=--short for a trial
	$(BIN)/python -m benchmarks.cpu $(BENCH)

# A peer that does not install is a line in the table, not an error.
$(PEERS)/.ready: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep ^torch== requirements.txt)"
	while read -r peer; do $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" \
	  "$$(grep ^torch== requirements.txt)" || echo "$$peer does not install"; done < $<
	touch $@

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready  ## a website in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.ready  ## the sdist and the wheel of a release, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) $(PEERS) runs build dist site
