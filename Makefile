# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

NV := .venv-nvflare
ENGINE ?= folder
B ?= 200

.PHONY: demo federation-demo test-nvflare test test-all lint types contracts docs check clean

$(VENV)/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedmiss needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev
	@touch $@

demo: $(VENV)/.run  ## the main job on the embedded data; ends with the path of the report
	$(BIN)/fedmiss demo --out fedmiss-demo

$(NV)/.run: pyproject.toml constraints-nvflare.txt
	$(PYTHON) -m venv $(NV)
	@$(NV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-nvflare.txt -e '.[nvflare]' pytest || \
	  { echo "the extra nvflare cannot be installed here, so the federation over NVFLARE was NOT tested"; exit 1; }
	@touch $@

$(VENV)/.federation: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[federation]'
	@touch $@

ENDS := $(if $(filter nvflare,$(ENGINE)),$(NV),$(VENV))

federation-demo: $(if $(filter nvflare,$(ENGINE)),$(NV)/.run,$(VENV)/.federation)  ## a study of three clubs on this computer; B=200 replicates, ENGINE=folder or nvflare
	rm -rf federation-demo
	$(ENDS)/bin/fedmiss federation demo --out federation-demo --bootstrap $(B) --engine $(ENGINE)

test-nvflare: $(NV)/.run  ## tests over NVFLARE: kills, strangers, code, connections
	$(NV)/bin/python -m pytest -m nvflare tests/network

test: $(VENV)/.dev  ## the default tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(VENV)/.dev  ## also the slow, Monte-Carlo and browser tests
	$(BIN)/python -m pytest -m "slow or mc or nightly or browser or not nvflare"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	! git grep -nE '^(<<<<<<<|>>>>>>>) '  # a merge that was left half done

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

$(VENV)/.docs: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	@touch $@

docs: $(VENV)/.docs  ## the documentation site, offline once installed; a warning is an error
	@# -a: Sphinx's search forgets the index entries of pages that are not written again
	$(BIN)/python -m sphinx -a -W --keep-going -q -b html docs build/site
	$(BIN)/python -m sphinx -a -W --keep-going -q -b html -c docs/research -d build/methods-doctrees docs build/site/methods
	@echo "open build/site/index.html"

check: lint types contracts test

clean:
	rm -rf $(VENV) $(NV) build dist fedmiss-demo federation-demo
