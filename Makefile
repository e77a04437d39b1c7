# Everything here works on a fresh machine with Python 3.11 or newer and nothing else: no MPI,
# no compiler. Environments are made once; a stamp file remembers what is installed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON  ?= python3
VENV    ?= .venv
RANKS   ?= 4
SOAK_MINUTES ?= 5
SOAK_RANKS ?= 6
SOAK_SEED ?= 1
KILLS_SEED ?= 1
# At least four: many tests wait more than they compute.
TEST_JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 4 ? cores : 4)))
# Further options of pytest.
TEST_OPTIONS ?=
FUZZ_SECONDS ?= 60
FUZZ_FIRST ?= 0
FUZZ_JOBS ?= $(shell nproc 2>/dev/null || echo 2)

BIN     := $(VENV)/bin
STAMPS  := $(VENV)/.stamps
SOURCES := mallob_py apps tests scripts
AT_ONCE := --numprocesses $(TEST_JOBS) --dist worksteal

.PHONY: help demo test test-long test-slurm test-quick oracles soak kills large-trees check format fuzz mutate bench compare figures site native image clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(STAMPS)/run ## formulas share a service of 4 ranks, whose workers move (RANKS=4)
	@$(BIN)/python scripts/demo.py $(RANKS)

test: $(STAMPS)/test ## run all tests but those of Slurm, half of their seeds (TEST_JOBS=4 at once)
	@MALLOB_PY_SEEDS=$${MALLOB_PY_SEEDS:-0.5} $(BIN)/python -m pytest --ignore tests/slurm $(AT_ONCE) --durations 15 $(TEST_OPTIONS)

test-long: $(STAMPS)/test ## the same with twice as many seeds as the tests name, in half an hour
	@$(MAKE) test MALLOB_PY_SEEDS=2

test-slurm: $(STAMPS)/test ## run the sbatch scripts on two virtual nodes (as root, with Debian's Slurm)
	@$(BIN)/python -m pytest tests/slurm | tee $(STAMPS)/slurm.log
	@! grep -Eq '^=+ [0-9]+ skipped in ' $(STAMPS)/slurm.log || echo "make test-slurm: SKIPPED, nothing was tested (see above why)"

test-quick: $(STAMPS)/test ## run the tests that take less than a few seconds each
	@$(BIN)/python -m pytest --ignore tests/slurm $(AT_ONCE) -m "not slow"

oracles: $(STAMPS)/test ## compare batch schedulers with others' results (MALLOB_PY_TRACES=folder with oracle/, traces/)
	@[ -d "$${MALLOB_PY_TRACES:-}/oracle" ] || { echo "make oracles: MALLOB_PY_TRACES names no folder with oracle/ in it" >&2; exit 1; }
	$(BIN)/python -m pytest tests/batch --durations 5

soak: $(STAMPS)/test ## random jobs, lost and added ranks on a real service (SOAK_MINUTES=5 SOAK_RANKS=6 SOAK_SEED=1)
	$(BIN)/python scripts/chaos.py soak --minutes $(SOAK_MINUTES) --ranks $(SOAK_RANKS) --seed $(SOAK_SEED)

large-trees: $(STAMPS)/test ## bags with known results while workers come, go and are killed, and a rank (TREES="'UTS 15' T3L", default: up to 300 M tasks)
	$(BIN)/python scripts/chaos.py trees $(TREES) --losses 1 --restarts 1

kills: $(STAMPS)/test ## 500 small jobs and more while everything is killed again and again, 20 times (KILLS_SEED=1)
	$(BIN)/python scripts/chaos.py kills --seed $(KILLS_SEED)

check: $(STAMPS)/dev ## lint, formatting, types, and who may import whom
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMPS)/dev ## bring the sources into shape
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

fuzz: $(STAMPS)/run ## simulate random clusters and bag jobs, shrink failures (FUZZ_SECONDS=60 FUZZ_FIRST=seed FUZZ_JOBS=cores)
	$(BIN)/python -m mallob_py.simulation.fuzz --seconds $(FUZZ_SECONDS) --first $(FUZZ_FIRST) --jobs $(FUZZ_JOBS)
	$(BIN)/python -m mallob_py.simulation.fuzz --bags --seconds $(FUZZ_SECONDS) --first $(FUZZ_FIRST) --jobs $(FUZZ_JOBS)

mutate: $(STAMPS)/test ## break each rule, one at a time; the tests must notice (some minutes; FUZZ_JOBS=cores)
	$(BIN)/python scripts/mutate.py --jobs $(FUZZ_JOBS)

bench: $(STAMPS)/run ## run the benchmarks one after another
	@for script in scripts/bench/bench_*.py; do \
	    [ -e "$$script" ] || { echo "no benchmarks in scripts/bench"; break; }; \
	    echo "== $$script"; $(BIN)/python "$$script"; \
	done

compare: $(STAMPS)/run ## HEAD beside another commit, in turns: times, CPU, system calls (BASE=commit ONLY="noop-4 ..."; ten minutes)
	@[ -n "$(BASE)" ] || { echo "make compare: which commit? make compare BASE=HEAD~10" >&2; exit 1; }
	$(BIN)/python scripts/bench/compare.py $(BASE) $(if $(ONLY),--only $(ONLY))

# What docs/results/euro-par.md shows; realistic takes longest. With QUICK=1 all that is small, and the documents keep theirs.
FIGURES ?= priorities realistic matching balancing sizes
SMALL_priorities := --pes 48 --seconds 1m
SMALL_realistic  := --pes 48 --seconds 1m
SMALL_matching   := --pes 256
SMALL_balancing  := --pes 1000
SMALL_sizes      := --pes 1024
FIGURES_DIR      := build/figures$(if $(QUICK),-small)
figures: $(STAMPS)/test ## repeat the experiments whose figures the documents show (FIGURES=matching ...; 90 min on one core; QUICK=1: small ones, in minutes)
	@$(foreach name,$(FIGURES),$(BIN)/mallob-py experiment $(name) $(if $(QUICK),$(SMALL_$(name))) --output $(FIGURES_DIR) &&) true
	@$(if $(QUICK),ls $(FIGURES_DIR)/*.png,cp --verbose $(FIGURES_DIR)/*.png docs/figures/)

native: $(STAMPS)/run ## build and install the native solver (needs a C++ compiler; some minutes; MALLOB_PY_ARCHIVES=folder of its sources)
	@$(BIN)/python native/fetch_sources.py build/native
	MALLOB_PY_ARCHIVES=$(CURDIR)/build/native $(BIN)/python -m pip install --quiet \
	    $(if $(MALLOB_PY_ARCHIVES),--find-links "$(MALLOB_PY_ARCHIVES)") ./native

site: $(STAMPS)/run ## the documents as a site in build/site
	$(BIN)/python -m pip install --quiet --editable '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

image: ## build the image of the Dockerfile and use it (as root, with buildah and debootstrap; minutes)
	@scripts/try_image.sh

clean: ## remove the environment, caches and whatever the other targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .api
	find $(SOURCES) -type d -name __pycache__ -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# Where Python is told to leave no bytecode behind, as in many containers, each start would compile all that it imports.
COMPILE := $(BIN)/python -m compileall -q mallob_py apps

# The installation is editable: only a change of pyproject.toml asks for another one.
$(STAMPS)/run: pyproject.toml $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable '.[mpich]'
	@$(COMPILE)
	@touch $@

$(STAMPS)/test: pyproject.toml $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable '.[mpich,test]'
	@$(COMPILE)
	@touch $@ $(STAMPS)/run

$(STAMPS)/dev: pyproject.toml $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable '.[mpich,dev]'
	@$(COMPILE)
	@touch $@ $(STAMPS)/run $(STAMPS)/test
