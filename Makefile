# Needs make and a python3 >= 3.11 with venv; everything else is installed into .venv.
# Another interpreter:  make run PYTHON=/opt/python3.12/bin/python3

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
DATA_DIR ?= var
# Two more than two cores: many tests wait for other processes.
JOBS ?= 4
REF ?= main
# The versions of requirements/*.txt, by their hashes. LOCK=no: the newest that pyproject.toml allows; LOCK=lowest: the
# lowest, for `make pytest` with those tests that need no other clients.
LOCK ?= yes

# The first interpreter that is new enough; python3 first, so that an activated environment wins.
OLD_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c '$(OLD_ENOUGH)' 2>/dev/null && { echo "$$p"; exit; }; done)

.DEFAULT_GOAL := help
.PHONY: help run test test-ui test-placed lint pytest fmt coverage docs wheel deb constraints bench bench-instructions bench-compare bench-pairs \
	advisories conformance peer-4.3 size demo-export loop-steps campaign campaigns paper-report paper-sweep screenshots clean

help:
	@echo "make run                 start the broker on 127.0.0.1:5672, data in ./$(DATA_DIR)"
	@echo "make test                lint and all tests but those in a browser"
	@echo "make test-ui             the tests of the web page in a browser (needs Chromium)"
	@echo "make test-placed         the tests of clients, rows and the API against a broker of two processes, and one behind a front"
	@echo "make lint                ruff, its formatter and mypy"
	@echo "make pytest              the tests, ARGS='-k topic' for some"
	@echo "make fmt                 format the code"
	@echo "make coverage            what of each pure module its own tests run; ARGS=--write-docs"
	@echo "make size                lines, lines of code and files of each folder beside the recorded ones; ARGS=--write records them"
	@echo "make docs                write the generated pages under docs/, and the site into build/site"
	@echo "make screenshots         write the pictures of the web page in docs/figures/ (needs Chromium)"
	@echo "make wheel               build the package into dist/"
	@echo "make deb                 build a package for Debian into dist/; DEB_PYTHON= the version of its python3, 3.11 or later"
	@echo "make constraints         pin the dependencies in requirements/; ARGS=--upgrade takes newer ones"
	@echo "make bench               throughput beside RabbitMQ, or NAME= one of: $(BENCHES)"
	@echo "make bench-instructions  instructions per message beside those of the revision REF"
	@echo "make bench-compare       processor time per message beside that of the revision REF"
	@echo "make bench-pairs         throughput beside that of the revision REF"
	@echo "make paper-sweep         the paper's comparison, resumable; SLICE=280 for that many seconds of it, SWEEP= a directory"
	@echo "make paper-report        write docs/paper-report.md from the records in bench/records; ARGS='--add DIR --name NAME' adds some"
	@echo "make demo-export         an hour of the telemetry of a fleet with troubles, for leveret analyze, into build/demo/export"
	@echo "make advisories          published advisories that no row of tests/security/guarantees.md and no pinned version answers"
	@echo "make conformance         the error table beside a real RabbitMQ, PEER=4.3 for that of make peer-4.3"
	@echo "make peer-4.3            RabbitMQ 4.3 of Debian's sid in PEER_ROOT, build/rabbitmq-4.3 by default (needs root, debootstrap)"
	@echo "make loop-steps          the longest step of the event loop in each large case; ARGS=--write-docs"
	@echo "make campaign            NAME= one of: $(CAMPAIGNS); N= how many"
	@echo "make campaigns           the campaigns of docs/reliability.md to their full counts, resumable; ARGS='crash=300 flips' for a part"
	@echo "make clean               remove the environment and what tools left behind"

PYTEST = $(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Tests that failed beside the others get a second run, one after the other, which ends at the first that fails again.
second = { [ $$? -eq 1 ] && echo "Some tests failed beside the others; now alone (what passes is to be mended, too):" && \
	$(BIN)/pytest -q -x --last-failed --last-failed-no-failures none $(1); }
# Tests start hundreds of processes: without bytecode each of them compiles the broker first.
unexport PYTHONDONTWRITEBYTECODE

# Stamps make both installs idempotent: the second 'make run' needs no network. A source archive has none of the links.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
locked = $(if $(filter lowest,$(LOCK)),lowest,$(1))
ifeq ($(LOCK),no)
install = $(INSTALL) --editable '.$(2)'
else
install = $(INSTALL) --require-hashes $(patsubst %,-r requirements/%.txt,$(locked)) && \
	$(INSTALL) --no-deps --no-build-isolation --editable . || \
	{ echo "error: no such installation here; LOCK=no takes the newest versions that pyproject.toml allows" >&2; exit 1; }
endif

$(VENV)/.installed: pyproject.toml requirements/run.txt requirements/build.txt $(wildcard requirements/$(LOCK).txt)
	@"$(or $(PYTHON),false)" -c '$(OLD_ENOUGH)' 2>/dev/null || \
		{ echo "error: python3 >= 3.11 not found; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "error: cannot create $(VENV); is the venv module of $(PYTHON) installed?" >&2; exit 1; }
	@for each in analytics broker confirm exchanges storage; do test -e leveret/$$each || ln -s ../$$each leveret/$$each; done
	@echo "installing $$(grep -c '^[a-z].*==' requirements/run.txt) packages into $(VENV) (60 MB) ..."
	@$(call install,run build,)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed requirements/test.txt
	@echo "installing what the tests need into $(VENV) (1.1 GB), which takes some minutes ..."
	@$(call install,test,[test])
	@touch $@

run: $(VENV)/.installed
	@exec $(BIN)/leveret serve --data-dir $(DATA_DIR) $(ARGS)

# Beside each other: a type check keeps one core busy for a minute. What fails first is printed first.
test: $(VENV)/.installed-test
	@$(MAKE) --no-print-directory -j 2 lint pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In a new checkout one process compiles the tests for all workers, which would each do it at the same time.
pytest: $(VENV)/.installed-test
	@test -d tests/__pycache__ || $(BIN)/pytest -q --collect-only --ignore=tests/page $(ARGS) >/dev/null || true
	@$(PYTEST) --ignore=tests/page $(ARGS) || $(call second,--ignore=tests/page $(ARGS))

test-ui: $(VENV)/.installed-test
	@$(PYTEST) tests/page $(ARGS) || $(call second,tests/page $(ARGS))

PLACED = tests/broker/placement tests/broker/management/test_beside_rabbitmq.py tests/clients tests/conformance/test_rows.py
test-placed: $(VENV)/.installed-test
	@LEVERET_TEST_PLACED=2 $(PYTEST) $(PLACED) $(ARGS)
	@LEVERET_TEST_PLACED=forwarded $(PYTEST) $(PLACED) $(ARGS)

fmt: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(VENV)/.installed-test
	$(BIN)/python tests/covered/run.py $(ARGS)

size: $(VENV)/.installed
	@$(BIN)/python tests/size/run.py $(ARGS)

docs: $(VENV)/.installed-test
	$(BIN)/python -m docs.generate
	PYTHONPATH=.:tests $(BIN)/python tests/broker/embedded/test_synchronous_stub.py --write
	$(BIN)/python tests/conformance/run.py --write-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/site-trees docs build/site
	@echo "the site is in build/site/index.html"

screenshots: $(VENV)/.installed-test
	PYTHONPATH=.:tests $(BIN)/python tests/page/screenshots.py $(ARGS)

wheel: $(VENV)/.installed
	$(BIN)/python -m hatchling build -t wheel

# For the python3 of one release of Debian; tests/deb/run.py installs it into one.
DEB_PYTHON ?= 3.11
deb: $(VENV)/.installed-test
	@PYTHON=$(BIN)/python DEB_PYTHON=$(DEB_PYTHON) systemd/deb.sh

# Other versions of pip's format are made by hand; uv is the one tool that pins for all versions of Python at once.
# Pins are kept as they are where they still fit. It is installed here, as nothing else needs it.
constraints: $(VENV)/.installed-test
	$(INSTALL) 'uv>=0.5'
	$(BIN)/python requirements/pin.py $(ARGS)

BENCHES := analytics backlog budget celery_delays delayed embedded fairness field first_answer fixtures following hotpath ladder latency load_tool \
	logins management management_clients paper peek placement repeats replication retention scale shovel spark stalls store streams suites \
	tls tls_clients topic topology transactions ui

bench: $(VENV)/.installed-test
	$(if $(filter-out $(BENCHES),$(NAME)),$(error NAME is one of: $(BENCHES)))
	$(BIN)/python -m bench.$(or $(NAME),compare) $(ARGS)

bench-instructions: $(VENV)/.installed-test
	$(BIN)/python -m bench.instructions --against $(REF) $(ARGS)

bench-compare: $(VENV)/.installed-test
	$(BIN)/python -m bench.hotpath --against $(REF) $(ARGS)

bench-pairs: $(VENV)/.installed-test
	$(BIN)/python -m bench.pairs --against $(REF) $(ARGS)

# The paper's comparison: begins it or goes on, SLICE seconds at a time; ARGS for another plan at its beginning.
SWEEP ?= bench/results/paper-sweep
paper-sweep: $(VENV)/.installed-test
	$(BIN)/python -m bench.paper --into $(SWEEP) $(if $(SLICE),--for $(SLICE)) $(or $(ARGS),--sweep)

paper-report: $(VENV)/.installed-test
	$(BIN)/python -m bench.paper_page $(ARGS)

demo-export: $(VENV)/.installed
	$(BIN)/python -m bench.demo_export $(ARGS)

advisories: $(VENV)/.installed-test
	$(BIN)/python tests/security/advisories.py $(ARGS)

conformance: $(VENV)/.installed-test
	$(BIN)/python tests/conformance/run.py $(if $(PEER),--peer $(PEER)) $(ARGS)

# Nothing but folders: it is run by what uses it, and MIRROR chooses the mirror of Debian.
peer-4.3:
	tests/services/rabbitmq_root.sh make $(or $(PEER_ROOT),build/rabbitmq-4.3)

loop-steps: $(VENV)/.installed-test
	$(BIN)/python tests/loop/steps.py $(ARGS)

# N is a number of cycles, copies, sessions, messages, examples or seconds.
campaign.ansible = tests/playbooks/run.py
campaign.canary = tests/canary/run.py
campaign.certificates = tests/certified/run.py
campaign.churn = tests/churn/run.py --seconds $(or $(N),$(SECONDS),1800)
campaign.cluster = -m pytest -q tests/analytics/test_cluster.py
campaign.confirm-properties = tests/promises/run.py --messages $(or $(N),$(MESSAGES),100000)
campaign.answered = tests/crash/run.py answered -n $(or $(N),100)
campaign.backup = tests/crash/run.py backup -n $(or $(N),50)
campaign.crash = tests/crash/run.py $(or $(MODE),crash) -n $(or $(N),1000)
campaign.crash-points = tests/crash/run.py points -n $(or $(N),100)
campaign.debian = tests/deb/run.py
campaign.deferred = tests/deferred/run.py --walks $(or $(N),2000)
campaign.definitions-roundtrip = tests/conformance/definitions.py
campaign.disk-full = tests/crash/diskfull.py
campaign.extras = tests/extras/run.py
campaign.faults = tests/crash/run.py faults -n $(or $(N),200)
campaign.flips = tests/crash/run.py flips -n $(or $(N),10000)
campaign.exchange = tests/crash/run.py exchange -n $(or $(N),1000)
campaign.whole-files = tests/crash/run.py whole-files
campaign.followed = tests/followed/run.py -n $(or $(N),20)
campaign.fuzz = tests/fuzz/run.py --cases $(or $(N),20000)
campaign.handshakes = tests/handshakes/run.py --count $(or $(N),100000)
campaign.hold-model = tests/broker/queue/test_hold_model.py $(or $(N),10000) $(or $(STEPS),100)
campaign.management = tests/management_beside/run.py
campaign.model = tests/storage/queues/test_variable_queue.py $(or $(N),$(EXAMPLES),50000) $(or $(STEPS),100)
campaign.mutants = tests/crash/run.py mutants
campaign.pipeline = tests/crash/run.py pipeline -n $(or $(N),300)
campaign.platform = tests/platforms/run.py
campaign.powercut = tests/crash/run.py powercut -n $(or $(N),1000)
campaign.replication-cycles = tests/replicated/cycles.py --cycles $(or $(N),200)
campaign.replication-simulation = tests/replicated/run.py --seeds $(or $(N),10000)
campaign.schema = tests/fuzz/schema.py --cases $(or $(N),20000)
campaign.spark = tests/spark/run.py -n $(or $(N),50)
campaign.shovel = tests/shovelled/run.py -n $(or $(N),100)
campaign.transfer = tests/broker/transfer/test_transfer.py $(or $(N),100)
campaign.transfers-killed = tests/crash/run.py transfers -n $(or $(N),100)
campaign.tls-scan = tests/scanned/run.py
campaign.torn = tests/crash/run.py torn -n $(or $(N),20000)
CAMPAIGNS := $(sort $(patsubst campaign.%,%,$(filter campaign.%,$(.VARIABLES))))

campaign: $(VENV)/.installed-test
	$(if $(filter $(CAMPAIGNS),$(NAME)),,$(error NAME is one of: $(CAMPAIGNS)))
	$(if $(filter hold-model model transfer,$(NAME)),PYTHONPATH=.:tests )$(if $(filter cluster,$(NAME)),LEVERET_CLUSTER_JOBS='all compact' )$(BIN)/python $(campaign.$(NAME)) $(ARGS)

campaigns: $(VENV)/.installed-test
	$(BIN)/python tests/crash/campaigns.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Names of before 0.2.0: they do what they did, and tell the new ones.
OLD_BENCHES := $(addprefix bench-,$(BENCHES))
.PHONY: install install-test types fuzz-long $(OLD_BENCHES) $(CAMPAIGNS)
now = @echo "make $@ is make $(1) now" >&2

install: $(VENV)/.installed

install-test: $(VENV)/.installed-test

types: $(VENV)/.installed-test
	$(call now,lint)
	$(BIN)/mypy

$(OLD_BENCHES): bench-%:
	$(call now,bench NAME=$*)
	@$(MAKE) --no-print-directory bench NAME=$*

$(CAMPAIGNS):
	$(call now,campaign NAME=$@)
	@$(MAKE) --no-print-directory campaign NAME=$@

fuzz-long:
	$(call now,campaign NAME=fuzz N=2000000)
	@$(MAKE) --no-print-directory campaign NAME=fuzz N=$(or $(N),2000000)
