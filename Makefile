# Everything runs from .venv, which is made here with python3 alone; uv makes it quicker.
PYTHON ?= python3
BIN := .venv/bin
# Bytecode of tests is kept, whatever the environment says: to compile them takes 7 seconds.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(CURDIR)/build/bytecode" $(BIN)/python -m pytest
PARALLEL := $(PYTEST) --numprocesses auto --dist worksteal

.PHONY: demo demo-platform check test lab accuracy published-files published-lab hang-lab hang-soak schema lint bench fuzz agent clean
demo: .venv/.run ; @$(BIN)/machtrace demo
# A generated fleet whose reports are sent to a server: its pages, until Ctrl-C.
demo-platform: .venv/.dev ; @rm -rf build/demo-platform && $(BIN)/machtrace serve build/demo-platform --demo
# What needs no process, no emulator and no other program: for every save.
check: .venv/.dev ; $(PARALLEL) -m "not (live or emulated or peer)"
# Everything. What captures running processes has the machine to itself.
test: .venv/.dev
	@status=0; set -x; \
	$(PARALLEL) -m "not live" || status=$$?; \
	$(PYTEST) -m live || status=$$?; \
	exit $$status
lab: .venv/.dev ; $(BIN)/python -m tests.lab.run
accuracy: .venv/.dev ; $(BIN)/python -m tests.lab.run --write docs/accuracy.md --rows build/accuracy-rows.md
# Binaries of PyPI, npm and Debian, fetched by pip, npm and apt-get. The lab continues where it was interrupted.
RUNS ?= 16000
SEED ?= 12
published-files: .venv/.dev ; $(BIN)/python -m tests.published.lab --fetch-only
published-lab: .venv/.dev ; $(BIN)/python -m tests.published.lab --runs $(RUNS) --seed $(SEED) --peers --results build/published-results.jsonl --write docs/accuracy-published.md
# Programs that hang, watched from outside and from inside, 12 minutes; some sections: SECTIONS="idle self".
# Each is stored in build/hang-lab. With few hangs: HANGS=40 NO_HANGS=200.
SECTIONS ?= all
HANGS ?= 220
NO_HANGS ?= 1050
MINUTES ?= 20
CYCLES ?= 10000
HANG_LAB := $(BIN)/python -m tests.lab.hangs.lab --write docs/watch-accuracy.md
hang-lab: .venv/.dev ; $(HANG_LAB) $(SECTIONS) --hangs $(HANGS) --quiet $(NO_HANGS)
hang-soak: .venv/.dev ; $(HANG_LAB) cycles soak --minutes $(MINUTES) --cycles $(CYCLES)
schema: .venv/.dev ; $(BIN)/python -c "from machtrace.reports.machtrace_json import schema_text; print(schema_text(), end='')" > docs/report.schema.json
lint: .venv/.dev ; $(BIN)/ruff format --check && $(BIN)/ruff check && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python scripts/check_language.py && $(BIN)/python scripts/figures.py --check
bench: .venv/.dev ; $(PYTEST) benchmarks --benchmark-only
# The agent for Linux, macOS and iOS, in build/agent: docs/agent.md.
agent: .venv/.dev ; $(BIN)/python scripts/build_agent.py
fuzz: .venv/.dev ; $(BIN)/python -m fuzz all --count 1000000 --jobs 2
clean: ; rm -rf .venv build

SOURCES := pyproject.toml CMakeLists.txt $(shell find src native agent -type f -not -name '*.pyc')

# The lock is installed before the package, so that a change of ours does not fetch it again.
.venv/.run: .venv/.run-lock $(SOURCES) ; @sh scripts/install.sh package && touch $@
.venv/.dev: .venv/.dev-lock $(SOURCES) ; @sh scripts/install.sh package && touch $@
.venv/.run-lock: requirements/run.lock ; @PYTHON=$(PYTHON) sh scripts/install.sh $< && touch $@
.venv/.dev-lock: requirements/dev.lock ; @PYTHON=$(PYTHON) sh scripts/install.sh $< && touch $@
