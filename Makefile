# ironwheel.gpu: two commands do all the set-up: `make site` and `make test`.
# Every target uses the pinned tools of .venv; set PYTHON to choose the interpreter that makes it (3.11 or newer).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; exit; fi; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.requirements
NEED := tests/tools/need.sh
STEPS = $(BIN)/python tests/tools/steps.py
# Arguments for ansible-playbook or pytest, as in: make site ARGS="-e vllm_model=demo -v"
ARGS ?=
INVENTORY ?= inventories/local
SCENARIO ?= default

.PHONY: help venv site plan verify lint sanity unit integration molecule molecule-all test test-full test-gpu images wheelhouse bench-site build clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

venv: $(STAMP)  ## make .venv with the pinned controller tools

$(STAMP): requirements.txt
	@PYTHON=$(PYTHON) $(NEED) venv
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(0 if sys.version_info >= (3, 11) else "The controller tools need Python 3.11 or newer; $(PYTHON) is " + v + ". Remedy: make venv PYTHON=/path/to/python3.11")'
	@[ -x $(BIN)/python ] || { echo "Making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing the pinned tools into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@cp requirements.txt $(STAMP)

site: $(STAMP)  ## run the site playbook on INVENTORY (default: this machine)
	@$(BIN)/ansible-playbook site.yml -i $(INVENTORY) $(ARGS)

plan: $(STAMP)  ## show what site would do on INVENTORY; changes nothing
	@$(BIN)/ansible-playbook playbooks/plan.yml -i $(INVENTORY) $(ARGS)

verify: $(STAMP)  ## judge the hosts of INVENTORY as they are
	@$(BIN)/ansible-playbook playbooks/verify.yml -i $(INVENTORY) $(ARGS)

lint: $(STAMP)  ## ruff, yamllint, ansible-lint, argument specs, action group, shellcheck
	@$(NEED) shellcheck git
	@$(STEPS) lint

sanity: $(STAMP)  ## ansible-test sanity on a copy of the tree
	@$(NEED) git
	@$(STEPS) sanity

unit: $(STAMP)  ## unit tests, under a minute
	@$(STEPS) unit

integration: wheelhouse  ## ansible-runner drives the site playbook on this machine; the built collection works
	@$(STEPS) integration

molecule: images wheelhouse  ## one Molecule scenario (SCENARIO=default)
	@$(STEPS) molecule:$(SCENARIO)

molecule-all: images wheelhouse  ## every Molecule scenario
	@$(STEPS) molecule:all

test: prepare-tests  ## lint, sanity, unit, integration and the Molecule scenario default
	@$(STEPS) lint sanity unit integration molecule:default

test-full: prepare-tests  ## the same with every Molecule scenario
	@$(STEPS) lint sanity unit integration molecule:all

test-gpu: $(STAMP)  ## what needs a real GPU
	@$(BIN)/pytest -v tests/gpu $(ARGS)

.PHONY: prepare-tests
prepare-tests: $(STAMP)
	@$(NEED) git shellcheck
	@$(MAKE) images wheelhouse

images: $(STAMP)  ## build the test hosts' images that are missing
	@$(NEED) containers images git
	@$(BIN)/python tests/images/build.py

wheelhouse: $(STAMP)  ## fetch what test hosts cannot get themselves
	@$(BIN)/python tests/tools/wheelhouse.py

bench-site: images wheelhouse  ## time the first and the second site run on one container host
	@$(BIN)/python tests/tools/bench_site.py

build: $(STAMP)  ## build the collection's archive
	@$(BIN)/ansible-galaxy collection build --force

clean:  ## remove .venv, caches and archives (test hosts and their images too)
	@tests/images/remove.sh
	rm -rf $(VENV) .cache .ansible .pytest_cache .ruff_cache .hypothesis ironwheel-gpu-*.tar.gz
