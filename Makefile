# make demo: solve CartPole through the service.   make test: the whole suite.   Both set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOC := .venv-protoc
STAMP := $(VENV)/.installed
PROTOC_STAMP := $(PROTOC)/.installed
PIP := -q --disable-pip-version-check

.PHONY: install demo test lint bench torture clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP) "pip>=25.1"
	@# torch first and by its exact version: that is the CPU build
	@$(BIN)/python -m pip install $(PIP) -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install $(PIP) -c constraints.txt -e ".[all]" --group test --group lint
	@touch $@

$(PROTOC_STAMP): Makefile
	@$(PYTHON) -m venv $(PROTOC)
	@$(PROTOC)/bin/python -m pip install $(PIP) grpcio-tools==1.76.0
	@touch $@

demo: $(STAMP)
	@$(BIN)/replaysvc demo

test: $(STAMP) $(PROTOC_STAMP)
	@$(BIN)/python -m pytest

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/mypy replaysvc clients/replay_client clients/dqn

# Longer runs of what `make test` does in small: real rollouts, killed and compared many times.
torture: $(STAMP)
	@$(BIN)/python tests/real_data.py --episodes 20 --kills 20

bench: $(STAMP)
	@$(BIN)/python tests/bench/long_episode.py
	@$(BIN)/python tests/bench/versus_reverb.py

clean:
	rm -rf $(VENV) $(PROTOC) .pytest_cache .mypy_cache .ruff_cache .hypothesis
