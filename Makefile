# Everything a newcomer needs: each target makes the environment first, with nothing but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The releases that everything was last tested with. `make test CONSTRAINTS=/dev/null VENV=.venvs/newest` takes the
# newest that pyproject.toml allows instead, as a user's installation would; `make constraints` writes those down.
CONSTRAINTS ?= constraints.txt
# The tests start hundreds of interpreters: what is compiled is kept, also where a machine is told not to.
unexport PYTHONDONTWRITEBYTECODE

CHECKS := check-mypy check-pyright check-public-types check-ruff check-imports wheel

.PHONY: help install demo test test-engines retest test-fast simulate test-evals coverage lowest newest browser pooler vendor matrix check $(CHECKS) format docs site bench bench-peers bench-growth bench-operate bench-page bench-service bench-fleet constraints audit licenses addresses changelog release-check clean

help:
	@echo "make demo    run a pipeline offline and see it"
	@echo "make test    run all tests but those of engines (make test-fast: the quick ones, in a minute or so)"
	@echo "make test-engines  run the tests with Ray, Temporal and DBOS"
	@echo "make simulate   simulate crashes for an hour, and check histories of killed processes"
	@echo "make check   ruff, mypy --strict, pyright, import contracts, and whether the wheel installs"
	@echo "make test-evals  run the tests of evaluations, with pydantic-evals"
	@echo "make lowest  run the quick tests with the lowest releases allowed (make newest: with the newest)"
	@echo "make matrix  run all tests on every supported Python that is here (TARGET=test-fast: the quick ones)"
	@echo "make docs    write the page of settings and the picture of a run"
	@echo "make site    build the docs site into build/docs/site, offline"
	@echo "make bench   measure the runtime beside raw trio (make bench-peers: beside its peers,"
	@echo "             make bench-growth: how cost grows with size; make bench-fleet: what remote steps cost;"
	@echo "             make bench-service: a support desk over the wire, beside LangGraph and bare pydantic-ai)"
	@echo "make constraints   pin the newest releases that pyproject.toml allows, at least seven days old"
	@echo "make audit         known vulnerabilities of the pinned dependencies (make licenses: their licenses)"
	@echo "make release-check verify a release and list what is left for a person: RELEASING.md"

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "flujo-actors needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)

# uv installs the tools and engines of `dev` in a tenth of the CPU time of pip: it compiles no module before its import.
# pip does the same where uv reaches no index, such as behind a proxy that only pip is configured for.
UV_INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python

# Every package is pinned with its hashes, uv too. A directory has none, so the project itself is installed after them.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) build/uv.txt | $(BIN)/python
	$(PIP_INSTALL) --require-hashes --requirement build/uv.txt
ifeq ($(CONSTRAINTS),/dev/null)
	$(UV_INSTALL) --editable '.[dev]' || $(PIP_INSTALL) --editable '.[dev]'
else
	$(UV_INSTALL) --require-hashes --no-deps --requirement $(CONSTRAINTS) \
		|| $(PIP_INSTALL) --require-hashes --no-deps --requirement $(CONSTRAINTS)
	$(PIP_INSTALL) --no-deps --editable .
	$(BIN)/uv pip check --quiet --python $(BIN)/python
endif
	touch $@ $(VENV)/.installed-for-users

build/uv.txt: constraints.txt
	mkdir -p build
	sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > $@

# The pinned versions without hashes, for installations of a part of them.
build/versions.txt: $(CONSTRAINTS)
	mkdir -p build
	sed -e '/--hash=/d' -e 's/ \\$$//' $(CONSTRAINTS) > $@

# What a user installs, without the tools of those who work on the project.
$(VENV)/.installed-for-users: pyproject.toml build/versions.txt | $(BIN)/python
	$(PIP_INSTALL) --constraint build/versions.txt --editable .
	touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed-for-users
	$(BIN)/python examples/demo.py

# The run page is tested in a real browser: Debian's, installed where that is allowed, named where it is not.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq >/dev/null && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no browser: tests of the run page will be skipped; apt-get install chromium"

# The Postgres store is tested behind a pooler: Debian's, installed where that is allowed, named where it is not.
pooler:
	@command -v pgbouncer >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq >/dev/null && apt-get install -y -qq pgbouncer >/dev/null; } \
		|| echo "no pgbouncer: tests of the store behind a pooler will be skipped; apt-get install pgbouncer"

# Renews the files of others in the run page: the only use of npm.
vendor:
	$(PYTHON) .ci/vendor.py

# Each worker has a Postgres and a browser of its own. Workers begin with neighbors, so that what a module shares is
# mostly made once, and a worker that is done first takes what is left of the others.
# `make test` has two workers per core: half of the time of slow tests is waiting for processes, leases and browsers.
# Quick tests wait less, so `make test-fast` has three for two cores. `WORKERS=0` runs everything in one process.
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')
WORKERS ?= $(if $(filter test-fast lowest newest,$(MAKECMDGOALS)),$(shell expr '(' 3 '*' $(CORES) + 1 ')' / 2),$(shell expr 2 '*' $(CORES)))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Its exit code is kept: `make retest` repeats failed tests, and only those of a run that was complete.
TEST_EXIT := build/test-exit

# Ray, Temporal and DBOS take a tenth of the time of everything else, so they have a target of their own.
test test-engines: install browser pooler
	@mkdir -p build && rm -f $(TEST_EXIT)
	$(PYTEST) -m '$(if $(filter test-engines,$@),engines,not engines)' || { code=$$?; echo $$code > $(TEST_EXIT); exit $$code; }

retest: install
	$(BIN)/python .ci/retest.py $(TEST_EXIT)

# pydantic-evals pins an earlier pydantic-ai than constraints.txt: evaluations are tested with that one, in an
# environment of their own, and everything else with the newest.
EVALS := $(VENV)-evals
EVALS_TESTS := tests/evaluation tests/context/sources/test_context_values.py

EVALS_PIP_INSTALL = $(EVALS)/bin/python -m pip install --quiet --disable-pip-version-check

$(EVALS)/.installed: pyproject.toml constraints-evals.txt build/uv.txt
	$(PYTHON) -m venv $(EVALS)
	$(EVALS_PIP_INSTALL) --require-hashes --requirement build/uv.txt
	$(EVALS)/bin/uv pip install --quiet --python $(EVALS)/bin/python --require-hashes --no-deps \
		--requirement constraints-evals.txt \
		|| $(EVALS_PIP_INSTALL) --require-hashes --no-deps --requirement constraints-evals.txt
	$(EVALS_PIP_INSTALL) --no-deps --editable .
	$(EVALS)/bin/uv pip check --quiet --python $(EVALS)/bin/python
	touch $@

test-evals: $(EVALS)/.installed
	$(EVALS)/bin/python -m pytest -n $(WORKERS) --dist worksteal -o cache_dir=build/evals-cache $(EVALS_TESTS) \
		|| { echo $$? > build/evals-exit; \
			$(EVALS)/bin/python .ci/retest.py build/evals-exit build/evals-cache $(EVALS_TESTS); }

test-fast: install
	$(PYTEST) -m 'not slow'

simulate: install
	HISTORIES=20 $(BIN)/python -m pytest -n 0 tests/history
	$(BIN)/python tests/simulation/simulate_for_an_hour.py

# Two at a time: each uses one core.
check: install
	@$(MAKE) --no-print-directory --jobs 2 $(CHECKS)

check-mypy: install
	$(BIN)/mypy

check-pyright: install
	$(BIN)/basedpyright

check-public-types: install
	$(BIN)/python .ci/typed.py

check-ruff: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-imports: install
	$(BIN)/lint-imports

wheel: install
	$(BIN)/python .ci/wheel.py

# The quick tests with the lowest releases that pyproject.toml allows, and with the newest.
lowest:
	$(PYTHON) -m venv --clear .venvs/lowest
	.venvs/lowest/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	.venvs/lowest/bin/uv pip install --quiet --python .venvs/lowest/bin/python --resolution lowest-direct --editable '.[dev]'
	# anyio's lowest release has a pytest plugin that uses a name which pytest has renamed.
	.venvs/lowest/bin/python -m pytest -W 'ignore:_pytest.python.CallSpec2' -n $(WORKERS) --dist worksteal -m 'not slow'

newest:
	$(MAKE) test-fast CONSTRAINTS=/dev/null VENV=.venvs/newest

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
	$(BIN)/python docs/diagrams.py

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
	PYTHONPATH=tests $(BIN)/python -m benchmarks.stored
	PYTHONPATH=tests $(BIN)/python -m benchmarks.runs

# Listings, labels, questions and totals of a store with a million runs.
bench-operate: install
	$(BIN)/python -m benchmarks.operate

# How soon the run page shows what happens, and what its viewers cost.
bench-page: install browser
	$(BIN)/python -m benchmarks.page

# The same support desk on this library, on LangGraph and on bare pydantic-ai, each in an environment of its own.
# QUICK=1: less than a minute, and the page stays as it is.
bench-service: install build/versions.txt
	$(BIN)/python -m benchmarks.service $(if $(QUICK),--quick)

bench-fleet: install
	$(BIN)/python -m benchmarks.fleet

# Releases of the last seven days are left out: most malicious ones are found by then.
UV_COMPILE = .venvs/newest/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11.5 \
	--exclude-newer '7 days' --generate-hashes --no-header --no-annotate

constraints:
	$(PYTHON) -m venv --clear .venvs/newest
	.venvs/newest/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(UV_COMPILE) --extra dev --output-file constraints.txt pyproject.toml
	sed -e '/--hash=/d' -e 's/ \\$$//' -e '/^pydantic-ai-slim==/d' -e '/^pydantic-graph==/d' constraints.txt \
		> .venvs/newest/versions.txt
	$(UV_COMPILE) --constraint .venvs/newest/versions.txt --extra dev-evals --output-file constraints-evals.txt pyproject.toml
	$(UV_COMPILE) --constraint .venvs/newest/versions.txt --extra release --output-file constraints-release.txt pyproject.toml

# Branch coverage of the whole suite and of its forks, as a table, as build/coverage/index.html and as
# build/coverage.md. `COVERED="-m 'not slow'"` measures the quick tests, or others.
coverage: install browser pooler $(EVALS)/.installed
	$(PIP_INSTALL) 'pytest-cov>=7,<8'
	$(EVALS_PIP_INSTALL) 'pytest-cov>=7,<8'
	$(EVALS)/bin/python -m pytest -n $(WORKERS) --dist worksteal -o cache_dir=build/evals-cache $(EVALS_TESTS) --cov \
		--cov-report=
	$(PYTEST) $(COVERED) --cov --cov-append --cov-report=term:skip-covered --cov-report=html:build/coverage \
		--cov-report=markdown:build/coverage.md

RELEASE := .venvs/release/bin/python

# What builds and checks a release is pinned with hashes, the build backend too.
.venvs/release/.installed: constraints-release.txt
	$(PYTHON) -m venv --clear .venvs/release
	$(RELEASE) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		--requirement constraints-release.txt
	touch $@

# Needs the vulnerability service of the package index; --strict: a package that it does not know is a failure.
audit: .venvs/release/.installed
	for file in constraints*.txt; do \
		$(RELEASE) -m pip_audit --strict --require-hashes --disable-pip --requirement $$file || exit 1; done

licenses: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip-licenses>=5,<6'
	$(BIN)/python -m piplicenses --from=mixed --order=license

# Writes the addresses of [project.urls] into README.md, CITATION.cff and docs/llms.txt.
addresses:
	$(PYTHON) .ci/addresses.py

# Moves the files of changes/ into CHANGELOG.md, as the section of the version in pyproject.toml.
changelog: .venvs/release/.installed
	$(RELEASE) -m towncrier build --yes --version \
		"$$($(RELEASE) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')"

release-check: .venvs/release/.installed build/versions.txt
	$(RELEASE) .ci/release_check.py $(TAG)

clean:
	rm -rf $(VENV) $(EVALS) .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
