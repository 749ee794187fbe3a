# GNU make 3.81 (the one macOS ships) or newer, on Linux and macOS.
PYTHON ?= python3
VENV ?= .venv
# What the tests need beyond the core: extras of pyproject.toml, and Debian packages for those extras
# (envpool: libegl1 libopengl0, its Procgen: libqt5gui5), a browser for the site and the pages of rlops, a database for
# the tuner, a scheduler for the benchmark. Tests of what is missing are skipped.
TEST_EXTRAS ?= test,mujoco,dm_control,atari,envpool,procgen,memory,pettingzoo,jax,ray,cloud,docs
TEST_PACKAGES ?= libegl1 libopengl0 libqt5gui5 chromium chromium-driver postgresql slurmctld slurmd slurm-client munge
# torch.compile (`--compile`) needs a C++ compiler and Python's headers, which Debian packs apart.
HEADERS = import os, sys, sysconfig; found = os.path.exists(sysconfig.get_path("include") + "/Python.h"); \
  print("" if found else "python%d.%d-dev" % sys.version_info[:2])
SYSTEM_PACKAGES ?= g++ $(shell "$(PYTHON)" -c '$(HEADERS)' 2>/dev/null) $(TEST_PACKAGES)
PYTEST_FLAGS ?= -n 2

BIN = $(VENV)/bin
# Each build would say that the theme is maintained until May 2027, and what comes after it.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

.PHONY: help install train test lint format results docs docs-serve system clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'
	@echo
	@echo "Variables: PYTHON=$(PYTHON) (which Python makes the environment), VENV=$(VENV) (where the environment is)"

train: $(VENV)/.installed ## install if needed, then train PPO on CartPole-v1, evaluate it and film it
	$(BIN)/python cleanrl/ppo.py --save-model --capture-video

test: system $(VENV)/.installed-test ## install what is missing, run the tests (PYTEST_FLAGS="-m slow": the slow ones)
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(VENV)/.installed-test ## style, spelling, and whether the algorithm files are still alike
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m cleanrl_utils.lineage check

format: $(VENV)/.installed-test ## rewrite the files in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: $(VENV)/.installed-test ## make tables, plots and the README's rows anew from benchmark/results/
	$(BIN)/python benchmark/update.py

docs: $(VENV)/.installed-docs ## build the site into site/: open site/index.html
	$(MKDOCS) build --strict

docs-serve: $(VENV)/.installed-docs ## show the site at http://127.0.0.1:8000 while you write
	$(MKDOCS) serve

install: $(VENV)/.installed ## only make the environment and install

# A stamp older than pyproject.toml: the dependencies may have changed. An environment made by uv has no pip.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip
	$(BIN)/python -m pip install --disable-pip-version-check -q 'pip>=23.3' # older ones do not know the extra dm_control
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip
	$(BIN)/python -m pip install --disable-pip-version-check -q 'pip>=23.3' # older ones do not know the extra dm_control
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[$(TEST_EXTRAS)]"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[docs]"
	@touch $(VENV)/.installed $@

# Debian and Ubuntu ship Python without ensurepip, which `venv` needs.
$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "error: no $(PYTHON) here; pass a Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is $$("$(PYTHON)" -V 2>&1), not 3.11 or newer; try make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory system \
	  SYSTEM_PACKAGES="$$("$(PYTHON)" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
	"$(PYTHON)" -m venv "$(VENV)"

# Installs the Debian packages that are missing, if it may; otherwise says how. On macOS there is nothing to do.
system: ## install the system libraries the tests need (root on Debian or Ubuntu), or say which
	@command -v apt-get >/dev/null || exit 0; missing=; \
	for package in $(SYSTEM_PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q ' installed$$' || missing="$$missing $$package"; \
	done; \
	test -n "$$missing" || exit 0; \
	if test "$$(id -u)" = 0; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing && exit 0; \
	fi; \
	echo "Missing system packages; please run: sudo apt-get install$$missing" >&2

clean: ## remove caches and build products; runs/ and the environment stay
	rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.*' -prune -exec rm -rf {} +

distclean: clean ## remove the environment as well
	rm -rf "$(VENV)"
