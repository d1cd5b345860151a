# The whole workflow; CI calls these targets and nothing else. `make help` lists them.
#
# VENV=DIR   where the environment goes (.venv)
# PYTHON=X   the Python to make it with (3.11 to 3.13; found by itself)
# WORKERS=N  tests run side by side (4, on 2 cores: many wait for SLURM, browsers and servers)
# BASE=X     the commit that `make test-fast` compares with (origin/main)
# PY=X       use this Python's environment as it is and install nothing, for example on a GPU host without network

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The suite starts some two thousand processes: without bytecode each would compile what it imports of us anew.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
WORKERS ?= 4
ifeq ($(origin PY),undefined)
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
endif

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 16

.PHONY: install
install: $(INSTALLED) ## make the environment and install everything into it

$(VENV)/.installed: pyproject.toml constraints.txt scripts/install.sh
	bash scripts/install.sh $(VENV) '.[train,dev]'
	touch $@

.PHONY: quickstart
quickstart: $(INSTALLED) ## train a small GPT under TP=2 on the CPU, on real text, and generate from it
	bash scripts/quickstart.sh $(PY)

.PHONY: check
check: $(INSTALLED) ## format, lint, types, import contracts
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo

.PHONY: test
test: $(INSTALLED) install-slurm install-browser ## the whole test suite
	$(PY) -m pytest --ignore=tests/benchmarks -m 'not alone' --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=10
	$(PY) -m pytest -m alone $$(grep -rl --include='test_*.py' 'pytest.mark.alone' tests)

.PHONY: test-fast
test-fast: $(INSTALLED) ## the tests nearest to what differs from BASE, in under 4 minutes
	@files=$$(PYTHONPATH=tests $(PY) -m support.affected $(BASE)); \
	if [ -z "$$files" ]; then echo "Nothing that a test depends on has changed."; exit 0; fi; \
	$(PY) -m pytest -m 'not (slow or distributed or slurm or browser or gpu or benchmark or alone)' --hypothesis-profile=fast \
	--stop-after=150 --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $$files

.PHONY: install-slurm
install-slurm: $(INSTALLED) ## the SLURM that the tests start, from the distribution's packages; nothing without root and apt-get
	@PYTHONPATH=tests $(PY) -m slurm.packages

.PHONY: install-browser
install-browser: $(INSTALLED) ## the browser that the tests of the pages drive, likewise
	@PYTHONPATH=tests $(PY) -m browser.packages

# Subsets of `make test`, by marker. pytest exits with 5 when it finds nothing to run.
.PHONY: test-slurm test-browser test-gpu
test-slurm: $(INSTALLED) install-slurm ## only the tests on a SLURM cluster
test-browser: $(INSTALLED) install-browser ## only the tests in a browser
test-gpu: $(INSTALLED) ## only the tests on a GPU (skipped where there is none)
test-slurm test-browser test-gpu: test-%:
	@code=0; $(PY) -m pytest -m $* || code=$$?; \
	if [ $$code = 5 ]; then echo "This version has no $* tests: nothing was tested."; else exit $$code; fi

.PHONY: bench
bench: $(INSTALLED) ## measure, and write rows and tables in docs/benchmarks
	$(PY) -m pytest tests/benchmarks -s
	PYTHONPATH=$(CURDIR)/tests $(PY) tests/benchmarks/tables.py

.PHONY: baseline
baseline: $(INSTALLED) ## compare plans, scripts, losses and stored runs of 80 jobs with the recorded ones
	PYTHONPATH=$(CURDIR)/tests $(PY) -m baseline.record --compare

.PHONY: docs
docs: $(INSTALLED) ## write docs/reference from the models and the commands, and build all pages as a site in site/
	$(PY) scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

.PHONY: pictures
pictures: $(INSTALLED) install-browser ## write docs/images: the dashboard of the runs of `make quickstart`, as a browser shows it
	$(PY) scripts/pictures.py

.PHONY: constraints
constraints: ## pin what is installed in the environment now
	$(PY) scripts/constraints.py

.PHONY: clean
clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site .quickstart .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
