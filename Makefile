# make demo: learn CartPole through the service.   make test: the whole suite.   Each sets up all that it needs.
PYTHON ?= python3
VENV := .venv
PROTOC := .venv-protoc
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
GENERATOR := $(PROTOC)/.installed

.PHONY: install demo test browser lint bench torture clean

install: $(DEV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version 2>&1). Say which: make PYTHON=python3.11 ..."; exit 1; }
	@echo "== making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What runs the service, the client and the demo. torch comes first and alone, by its exact version: it is by far the largest
# part, and so no resolver ever weighs another build of it. pip itself is new enough to know dependency groups.
$(RUN): pyproject.toml constraints.txt Makefile | $(BIN)/python
	@echo "== installing pip and torch (a few minutes the first time)"
	@$(PIP) "pip>=25.1" "$$(grep '^torch==' constraints.txt)"
	@echo "== installing replaysvc"
	@$(PIP) -e ".[server,torch,gym]"
	@touch $@

# What tests, linters and benchmarks need besides.
$(DEV): $(RUN)
	@echo "== installing what tests and linters need"
	@$(PIP) -e ".[all]" --group test --group lint
	@touch $@

# The generator of replaysvc/v1 wants an older protobuf than the service runs with, so it lives apart.
$(GENERATOR): Makefile
	@echo "== installing the protobuf generator into $(PROTOC)"
	@$(PYTHON) -m venv $(PROTOC)
	@$(PROTOC)/bin/python -m pip --disable-pip-version-check install -qq grpcio-tools==1.76.0 grpcio==1.76.0 protobuf==6.31.1
	@touch $@

demo: $(RUN)
	@$(BIN)/replaysvc demo

test: $(DEV) $(GENERATOR)
	@$(BIN)/python -m pytest -n 2 --dist loadfile

# A real browser clicks through the dashboard of a running demo; Debian's package is chromium.
browser: $(DEV)
	@$(BIN)/python -m pytest tests/browser

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/mypy replaysvc clients/replay_client clients/dqn

# The figures of tests/bench/README.md.
bench: $(DEV)
	@$(BIN)/python -m tests.bench.versus
	@$(BIN)/python -m tests.bench.where_time_goes
	@$(BIN)/python -m tests.bench.growth
	@$(BIN)/python -m tests.bench.waits
	@$(BIN)/python -m tests.bench.precision
	@$(BIN)/python tests/bench/long_episode.py
	@$(BIN)/python tests/bench/kinds.py
	@$(BIN)/python tests/bench/hindsight.py
	@$(BIN)/python -m tests.bench.watched

# What `make test` does in small, for as long as it takes (some three hours), one after the other; each says what it found, and
# the last line writes that into the README.
TORTURE := kills "kills --points" powerloss io_faults corruption fuzz full_disk "network --count 3" hostile hostile_admin many_clients chaos_demo guards
torture: $(DEV)
	@$(BIN)/python tests/real_data.py --episodes 20 --kills 20
	@$(BIN)/python -m pytest tests/engine/test_model.py --hypothesis-profile=torture --timeout=3600
	@for each in $(TORTURE); do $(BIN)/python -m tests.torture.$$each || exit 1; done
	@$(BIN)/python -m tests.torture.promises

clean:
	rm -rf $(VENV) $(PROTOC) .pytest_cache .mypy_cache .ruff_cache .hypothesis
