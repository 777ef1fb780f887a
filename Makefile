# Everything a newcomer needs: each target makes the environment first, with nothing but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The releases that everything was last tested with. `make test CONSTRAINTS=/dev/null VENV=.venvs/newest` takes the
# newest that pyproject.toml allows instead, as a user's installation would; `make constraints` writes those down.
CONSTRAINTS ?= constraints.txt
# The tests start hundreds of interpreters: what is compiled is kept, also where a machine is told not to.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-fast browser vendor matrix check wheel format docs site bench bench-peers bench-growth bench-page bench-service constraints clean

help:
	@echo "make demo    run a pipeline offline and see it"
	@echo "make test    run all tests (make test-fast: those that take no time, in a minute or so)"
	@echo "make check   ruff, mypy --strict, pyright, import contracts, and whether the wheel installs"
	@echo "make matrix  run all tests on every supported Python that is here (TARGET=test-fast: the quick ones)"
	@echo "make docs    write the page of settings and the picture of a run"
	@echo "make site    build the docs site into build/docs/site, offline"
	@echo "make bench   measure the runtime beside raw trio (make bench-peers: beside its peers,"
	@echo "             make bench-growth: how cost grows with size; make bench-fleet: what remote steps cost;"
	@echo "             make bench-service: a support desk over the wire, beside LangGraph and bare pydantic-ai)"
	@echo "make constraints   write down the newest releases that pyproject.toml allows"

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "flujo-actors needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP_INSTALL) '.[dev]'
	touch $@ $(VENV)/.installed-for-users

# What a user installs, without the tools of those who work on the project.
$(VENV)/.installed-for-users: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP_INSTALL) .
	touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed-for-users
	$(BIN)/python examples/demo.py

# The run page is tested in a real browser: Debian's, installed where that is allowed, named where it is not.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq >/dev/null && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no browser: tests of the run page will be skipped; apt-get install chromium"

# Renews the files of others in the run page: the only use of npm.
vendor:
	$(PYTHON) .ci/vendor.py

# As many workers as there are cores, each with a Postgres and a browser of its own. They begin with neighbors, so that
# what a module shares is mostly made once, and whoever is done first takes over what is left.
# `make test WORKERS=0` runs everything in one process.
WORKERS ?= logical
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: install browser
	$(PYTEST)

test-fast: install
	$(PYTEST) -m 'not slow'

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/python .ci/typed.py
	$(BIN)/lint-imports
	$(BIN)/python .ci/wheel.py

wheel: install
	$(BIN)/python .ci/wheel.py

# Each Python gets an environment of its own in .venvs; those that are not found are named.
TARGET ?= test
matrix:
	$(PYTHON) .ci/matrix.py $(TARGET)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install
	$(BIN)/python docs/settings_page.py
	$(BIN)/python docs/lint_page.py
	$(BIN)/python docs/blueprints_page.py
	$(BIN)/python docs/cli_page.py
	$(BIN)/python docs/run_picture.py

# Gathers the documents and builds pages of them; a dead link or a warning ends it.
site: install
	$(BIN)/python .ci/site.py

bench: install
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks --retrieval
	$(BIN)/python -m benchmarks --watching

bench-peers: install
	$(BIN)/python -m benchmarks --peers

bench-growth: install
	$(BIN)/python -m benchmarks --growth

# How soon the run page shows what happens, and what its viewers cost.
bench-page: install browser
	$(BIN)/python -m benchmarks.page

# The same support desk on this library, on LangGraph and on bare pydantic-ai, each in an environment of its own.
# QUICK=1: less than a minute, and the page stays as it is.
bench-service: install
	$(BIN)/python -m benchmarks.service $(if $(QUICK),--quick)

bench-fleet: install
	$(BIN)/python -m benchmarks.fleet

constraints:
	$(PYTHON) -m venv --clear .venvs/newest
	.venvs/newest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	.venvs/newest/bin/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
