# Needs make and a python3 >= 3.11 with venv; everything else is installed into .venv.
# Another interpreter:  make run PYTHON=/opt/python3.12/bin/python3

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
DATA_DIR ?= var
JOBS ?= 2

# The first interpreter that is new enough; python3 first, so that an activated environment wins.
OLD_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c '$(OLD_ENOUGH)' 2>/dev/null && { echo "$$p"; exit; }; done)

.DEFAULT_GOAL := help
.PHONY: help run install install-test test lint types fmt pytest docs wheel \
	bench bench-pairs bench-hotpath bench-instructions bench-topic bench-topology bench-scale bench-latency bench-fairness bench-compare \
	bench-store bench-backlog bench-delayed bench-stalls bench-transactions bench-ladder bench-paper bench-analytics conformance definitions-roundtrip fuzz fuzz-long model \
	confirm-properties \
	crash powercut crash-points faults torn flips mutants disk-full loop-steps churn campaigns clean

help:
	@echo "make run          start the broker on 127.0.0.1:5672, data in ./$(DATA_DIR)"
	@echo "make test         lint, types and all tests"
	@echo "make fmt          format the code"
	@echo "make docs         write the generated pages under docs/, and the site into build/site"
	@echo "make bench        throughput beside RabbitMQ; also bench-pairs (beside REF=), -hotpath, -instructions, -topic, -topology, -scale, -latency,"
	@echo "                  -fairness, -store, -backlog, -stalls, -transactions, -ladder, -paper, -analytics"
	@echo "make conformance  the error table beside a real RabbitMQ"
	@echo "make definitions-roundtrip  definitions to a real RabbitMQ and back"
	@echo "make fuzz         20,000 mutated sessions; fuzz-long: 2,000,000"
	@echo "make model        the queue on disk beside a list, 50,000 times 100 operations"
	@echo "make confirm-properties  100,000 messages through random publishers and consumers in each confirm mode, MESSAGES="
	@echo "make crash        1000 kills under load, N=10 for ten, MODE=consumer-ack or consumer-ack-light for one of these;"
	@echo "                  also powercut, crash-points, faults, torn, flips, mutants, disk-full"
	@echo "make loop-steps   the longest step of the event loop in each large case, and confirms beside it; ARGS=--write-docs"
	@echo "make churn        half an hour of coming and going, SECONDS=60 for a minute"
	@echo "make campaigns    all of these to their full counts, resumable; ARGS='crash=300 flips' for a part"
	@echo "make clean        remove the environment and what tools left behind"

# Stamps make both installs idempotent: the second 'make run' needs no network.
$(VENV)/.installed: pyproject.toml
	@"$(or $(PYTHON),false)" -c '$(OLD_ENOUGH)' 2>/dev/null || \
		{ echo "error: python3 >= 3.11 not found; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "error: cannot create $(VENV); is the venv module of $(PYTHON) installed?" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

install: $(VENV)/.installed

install-test: $(VENV)/.installed-test

run: $(VENV)/.installed
	@exec $(BIN)/leveret serve --data-dir $(DATA_DIR) $(ARGS)

test: lint types pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

pytest: $(VENV)/.installed-test
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile $(ARGS)

fmt: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-test
	$(BIN)/python -m broker config --markdown > docs/configuration.md
	$(BIN)/python -m broker.export.reference > docs/export.md
	$(BIN)/python -m broker.metrics.page > docs/metrics.md
	$(BIN)/python -m broker.export.tables_json > analytics/tables.json
	$(BIN)/python tests/conformance/run.py --write-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/site-trees docs build/site
	@echo "the site is in build/site/index.html"

wheel: $(VENV)/.installed-test
	$(BIN)/python -m build --wheel

bench: $(VENV)/.installed-test
	$(BIN)/python -m bench.compare $(ARGS)

bench-pairs: $(VENV)/.installed-test
	$(BIN)/python -m bench.pairs --against $(or $(REF),main) $(ARGS)

bench-hotpath: $(VENV)/.installed-test
	$(BIN)/python -m bench.hotpath $(ARGS)

bench-instructions: $(VENV)/.installed-test
	$(BIN)/python -m bench.instructions --against $(or $(REF),main) $(ARGS)

bench-topic: $(VENV)/.installed-test
	$(BIN)/python -m bench.topic $(ARGS)

bench-topology: $(VENV)/.installed-test
	$(BIN)/python -m bench.topology $(ARGS)

bench-scale: $(VENV)/.installed-test
	$(BIN)/python -m bench.scale $(ARGS)

bench-latency: $(VENV)/.installed-test
	$(BIN)/python -m bench.latency $(ARGS)

bench-fairness: $(VENV)/.installed-test
	$(BIN)/python -m bench.fairness $(ARGS)

bench-store: $(VENV)/.installed-test
	$(BIN)/python -m bench.store $(ARGS)

bench-backlog: $(VENV)/.installed-test
	$(BIN)/python -m bench.backlog $(ARGS)

bench-delayed: $(VENV)/.installed-test
	$(BIN)/python -m bench.delayed $(ARGS)

bench-stalls: $(VENV)/.installed-test
	$(BIN)/python -m bench.stalls $(ARGS)

bench-transactions: $(VENV)/.installed-test
	$(BIN)/python -m bench.transactions $(ARGS)

bench-ladder: $(VENV)/.installed-test
	$(BIN)/python -m bench.ladder $(ARGS)

bench-paper: $(VENV)/.installed-test
	$(BIN)/python -m bench.paper $(ARGS)

bench-analytics: $(VENV)/.installed-test
	$(BIN)/python -m bench.analytics $(ARGS)

bench-compare: $(VENV)/.installed-test
	$(BIN)/python -m bench.hotpath --against $(or $(REF),main) $(ARGS)

conformance: $(VENV)/.installed-test
	$(BIN)/python tests/conformance/run.py $(ARGS)

definitions-roundtrip: $(VENV)/.installed-test
	$(BIN)/python tests/conformance/definitions.py

fuzz: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/run.py --cases 20000 $(ARGS)

fuzz-long: $(VENV)/.installed-test
	$(BIN)/python tests/fuzz/run.py --cases 2000000 $(ARGS)

model: $(VENV)/.installed-test
	PYTHONPATH=.:tests $(BIN)/python tests/storage/test_variable_queue.py $(or $(EXAMPLES),50000) $(or $(STEPS),100)

confirm-properties: $(VENV)/.installed-test
	$(BIN)/python tests/promises/run.py --messages $(or $(MESSAGES),100000) $(ARGS)

crash: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py $(or $(MODE),crash) -n $(or $(N),1000) $(ARGS)

powercut: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py powercut -n $(or $(N),1000) $(ARGS)

crash-points: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py points -n $(or $(N),100) $(ARGS)

faults: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py faults -n $(or $(N),200) $(ARGS)

torn: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py torn -n $(or $(N),20000) $(ARGS)

flips: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py flips -n $(or $(N),10000) $(ARGS)

mutants: $(VENV)/.installed-test
	$(BIN)/python tests/crash/run.py mutants $(ARGS)

disk-full: $(VENV)/.installed-test
	$(BIN)/python tests/crash/diskfull.py $(ARGS)

loop-steps: $(VENV)/.installed-test
	$(BIN)/python tests/loop/steps.py $(ARGS)

campaigns: $(VENV)/.installed-test
	$(BIN)/python tests/crash/campaigns.py $(ARGS)

churn: $(VENV)/.installed-test
	$(BIN)/python tests/churn/run.py --seconds $(or $(SECONDS),1800) $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
