# Each target does its own set-up: a fresh clone needs nothing but Python 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready

.PHONY: demo test test-all bench bench-quick docs lint format clean

# Needs the package without extras only.
demo: $(BASE)
	@$(BIN)/python examples/demo.py

test: $(READY) lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

# Also builds the documentation, strictly, and replays what it shows (tests/docs).
test-all: $(READY) lint
	$(BIN)/python -m pytest -n 2 -m slow

# Every figure of results/bench, and its page: about two hours on two cores, better on a machine that does
# nothing else. Needs the datasets (CELM_DATA); rivals that are not installed are noted as such (benchmarks/training.py).
BENCHMARKS := training main_study probing cheaper_probes scaling averaging server_step flower_overhead large_round \
  many_nodes signed_record audit_memory hostile_files kills
bench: $(READY)
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit; done
	$(BIN)/python benchmarks/page.py

# The same in small, in under three minutes, for every change; nothing is written into results.
bench-quick: $(READY)
	for name in training probing cheaper_probes scaling averaging; do \
	  echo "--- $$name"; $(BIN)/python benchmarks/$$name.py --quick --out "$$(mktemp -d)/$$name.json" || exit; done

# The variable silences an advertisement for the theme's successor.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "built; open site/index.html, or, for the search box too: $(BIN)/python -m http.server --directory site"

# Folders of scripts: several have a measure.py, so that each is checked by itself.
SCRIPTS := benchmarks results results/audit results/cifar10 results/core results/fedisic results/flower results/nvflare results/natural results/trust results/trust/head
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for folder in $(SCRIPTS); do MYPYPATH=$$folder:$$(dirname $$folder) $(BIN)/mypy $$folder/*.py || exit; done
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Python compiles a module when it first imports it; to compile all that is installed takes a minute longer.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "celm needs Python 3.11 or newer; say which by: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.docs: $(BASE)
	$(INSTALL) -e '.[docs]'
	@touch $@

$(READY): $(BASE)
	$(INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
