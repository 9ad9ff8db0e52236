# `make help` lists the targets. Every target sets up .venv first. Nothing outside the checkout is
# touched, but for caches in the home directory, and system packages when `make setup` runs as root.

SHELL := /bin/sh
VENV := .venv/bin/python
PYTHON ?= python3
STAMP := .venv/setup.stamp
# Those that measure choose by themselves unless told.
PROCESSES_IF_TOLD := $(if $(PROCESSES),--processes $(PROCESSES))
PROCESSES ?= 2
SEED ?=
FILE ?=
BLOCKS ?=
BENCH ?=
IDS ?=
QUICK ?=
RUNS ?= 2000
CUTS ?= 200
LONGEST ?=
BACKUP ?=
ONLY ?=
COMMIT ?=
WITHOUT ?=

# Refused here, before anything is set up or run: a recipe would fail late, and its tools each by
# themselves.
no_digits = $(subst 9,,$(subst 8,,$(subst 7,,$(subst 6,,$(subst 5,,$(subst 4,,$(subst 3,,$(subst \
	2,,$(subst 1,,$(subst 0,,$(1)))))))))))
ifneq ($(call no_digits,$(SEED)),)
$(error SEED must be a number from 0 on, not '$(SEED)')
endif
ifneq ($(call no_digits,$(PROCESSES)),)
$(error PROCESSES must be a number from 1 on, not '$(PROCESSES)')
endif
ifneq ($(words $(CURDIR)),1)
$(error the checkout must lie in a directory without spaces in its name, not in '$(CURDIR)')
endif

export PYTHON
ifneq ($(SEED),)
export SEED
endif
# Each simulation is a Python process: without compiled modules it takes a second longer to start.
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE

# Where CI is set pytest's summary prints all of what differs instead of a line a test.
PYTEST := env -u CI -u BUILD_NUMBER $(VENV) -m pytest -q
PARALLEL := -n $(PROCESSES) --dist worksteal

.PHONY: help setup lint format types checks unit formal mutants same smoke test test-full synth \
	bench characterise campaign powercut tune demo guest clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: SEED=n (random stimulus), WAVES=1, PROCESSES=n, PYTHON=python3.12 (setup)"

setup: $(STAMP) ## create .venv with pinned packages, check the system's tools (idempotent)

$(STAMP): requirements.txt tools/setup.sh
	@tools/setup.sh
	@touch $@

lint: $(STAMP) ## ruff, codespell, the order of imports, verilator -Wall on the controller
	$(VENV) -m ruff check .
	$(VENV) -m codespell_lib
	$(VENV) -m tools.lint_order
	$(VENV) -m tools.lint_hdl

format: $(STAMP) ## sort imports and apply ruff's safe fixes
	$(VENV) -m ruff check --fix .

types: $(STAMP) ## pyright
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV) -m pyright

unit: $(STAMP) ## unit tests: cocotb on Verilator, reference models, proofs; without slow ones
	$(PYTEST) $(PARALLEL) -m "not slow" --durations 20

formal: $(STAMP) ## all registered proofs
	$(VENV) -m sim.formal

mutants: $(STAMP) ## bugs planted in the design, which the proofs must find
	$(VENV) -m sim.formal --mutants

same: $(STAMP) ## whether the netlists are those of COMMIT (default: the last), else a proof
	$(VENV) -m tools.same $(COMMIT) $(RENAMED:%=--renamed %)

smoke: $(STAMP) ## a short characterisation run
	$(VENV) -m sw.characterise --quick --out build/smoke $(PROCESSES_IF_TOLD) P2 R5

checks: $(STAMP)
	@$(MAKE) -s -j $(PROCESSES) -Otarget lint types smoke

test: checks unit ## what every change must pass; ends with pytest's summary

test-full: checks ## as test, slow tests too (as root it installs what only those use)
	@FULL=1 tools/setup.sh
	$(PYTEST) $(PARALLEL) --durations 20
	$(VENV) -m campaign --runs $(RUNS) --processes $(PROCESSES) \
		$(if $(SEED),--seed $(SEED))
	$(VENV) -m powercut --cuts $(CUTS) --processes $(PROCESSES) $(if $(SEED),--seed $(SEED))
	$(VENV) -m powercut --backup --cuts $(CUTS) --processes $(PROCESSES) \
		$(if $(SEED),--seed $(SEED))

synth: $(STAMP) ## area and clock frequency of each block on an ECP5 (BLOCKS='mapper ..')
	$(VENV) -m synth $(BLOCKS)

bench: $(STAMP) ## how fast, as ratios to what bounds it (BENCH='row ..', QUICK=1)
	$(VENV) -m sw.bench $(if $(filter-out 0,$(QUICK)),--quick) $(PROCESSES_IF_TOLD) $(BENCH)

characterise: $(STAMP) ## load profiles beside the published figures (QUICK=1, IDS='R1 ..')
	$(VENV) -m sw.characterise $(if $(filter-out 0,$(QUICK)),--quick) $(PROCESSES_IF_TOLD) \
		$(if $(SEED),--seed $(SEED)) $(IDS)

campaign: $(STAMP) ## random loads, random faults, nothing lost (RUNS=n, SEED=n, ONLY=, WITHOUT=)
	$(strip $(VENV) -m campaign --runs $(RUNS) --processes $(PROCESSES) \
		$(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") \
		$(if $(WITHOUT),--without "$(WITHOUT)"))

powercut: $(STAMP) ## power goes, nothing acknowledged is lost (CUTS=n, SEED=n, BACKUP=1; or LONGEST=n)
	$(strip $(VENV) -m $(if $(LONGEST),powercut.exhaustive --longest $(LONGEST),powercut \
		--cuts $(CUTS) $(if $(filter-out 0,$(BACKUP)),--backup)) --processes $(PROCESSES) \
		$(if $(SEED),--seed $(SEED)))

tune: $(STAMP) ## faster simulations until the design changes (as root it installs what it needs)
	@TUNE=1 tools/setup.sh
	$(VENV) -m tools.tune

# As it was given: a name may have a dollar sign or quotes.
demo: export DEMO_FILE = $(value FILE)
demo: $(STAMP) ## store FILE on a RAID 6, pull two drives, read it back (FILE=path)
	@test -n "$$DEMO_FILE" || { echo "demo: name the file: make demo FILE=path" >&2; exit 2; }
	$(VENV) -m sw.demo $(if $(SEED),--seed $(SEED)) "$$DEMO_FILE"

guest: $(STAMP) ## a stock Linux in QEMU uses the simulated card (QUICK=1, SEED=n)
	$(VENV) -m sw.guest $(if $(filter-out 0,$(QUICK)),--quick) $(if $(SEED),--seed $(SEED))

clean: ## remove everything built; .venv stays
	rm -rf build

distclean: ## remove .venv as well
	rm -rf build .venv
