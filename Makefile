# Every target sets up what it needs.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types bench bench-large soak fuzz docs install-check fresh-check conformance-full clean
MAKEFLAGS += --no-print-directory

bin := .venv/bin
checked := src tests benchmarks examples scripts

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

setup:  ## Create .venv with all dependencies; the other targets do this first
	@scripts/setup.sh

demo: setup  ## Run the whole story on two local namespaces: outage, backlog, recovery, proof that nothing is lost
	@$(bin)/pairbus demo $(ARGS)

# Four workers also on two cores: many tests wait for the SDK or for a process. A part of the tests starts fewer.
workers = $(if $(findstring ::,$(ARGS)),0,$(if $(ARGS),3,4))
needs_browser = $(or $(if $(ARGS),,every test),$(findstring browser,$(ARGS)))

test: lint  ## Check formatting, lint and types, and run every test; ARGS='tests/unit -k queue' selects some
	@$(if $(needs_browser),scripts/browser.sh)
	@mkdir -p build; $(MAKE) types >build/types.log 2>&1 & types=$$!; \
	$(bin)/pytest -n $(workers) --dist loadscope --no-loadscope-reorder --durations=10 --durations-min=1 $(ARGS); result=$$?; \
	wait $$types || { cat build/types.log >&2; result=1; }; exit $$result

lint: setup  ## Check formatting and lint; write build/sbom.json and look for known vulnerabilities in the locked packages
	@$(bin)/ruff format --check --quiet $(checked) || { echo 'Not formatted: run .venv/bin/ruff format' >&2; exit 1; }
	@$(bin)/ruff check --quiet $(checked)
	@$(bin)/python scripts/audit.py

types: setup  ## Check types with mypy --strict; TYPES=src/pairbus/ledger selects a part
	@$(bin)/mypy --no-error-summary $(TYPES)

bench: setup  ## Run the benchmarks: rates and ratios, no assertions
	@for file in benchmarks/bench_*.py; do echo "== $$file"; PYTHONPATH=. $(bin)/python $$file $(ARGS) || exit 1; done

bench-large: setup  ## Build the tables from 2, 20 and 100 million operations: an hour, and 60 GB of disk
	@PYTHONPATH=. $(bin)/python benchmarks/bench_ledger.py --operations 2000000 20000000 100000000 --memory 4g $(ARGS)

soak: setup  ## Run the kill tests with many more kills, the pairing over every kind of connection, and fuzz for an hour
	@PYTHONPATH=. $(bin)/python scripts/fuzz.py --seconds $${PAIRBUS_FUZZ_SECONDS:-3600}
	@PAIRBUS_EVERY_WIRE=1 $(bin)/pytest tests/integration/pairing tests/integration/spool tests/integration/syphon/test_syphon_faulting.py $(ARGS)
	@PAIRBUS_KILL_ROUNDS=$${PAIRBUS_KILL_ROUNDS:-500} $(bin)/pytest --timeout=0 tests/integration/*/test_kill_*.py $(ARGS)
	@PAIRBUS_KILL_ROUNDS=$${PAIRBUS_KILL_ROUNDS:-500} PAIRBUS_DRAIN_MESSAGES=$${PAIRBUS_DRAIN_MESSAGES:-100000} \
		$(bin)/pytest --timeout=0 tests/integration/syphon/test_syphon_crash.py tests/integration/syphon/test_syphon_many.py $(ARGS)
	@PAIRBUS_BUILD_KILLS=$${PAIRBUS_BUILD_KILLS:-20} PAIRBUS_DRIVER_KILLS=$${PAIRBUS_DRIVER_KILLS:-12} \
		$(bin)/pytest --timeout=0 tests/integration/pipeline/test_pipeline_kill.py $(ARGS)
	@PAIRBUS_STREAM_KILL_ROUNDS=$${PAIRBUS_STREAM_KILL_ROUNDS:-10} $(bin)/pytest --timeout=0 tests/integration/pipeline/test_connector_kill.py $(ARGS)

fuzz: setup  ## Fuzz everything that reads bytes of others; ARGS='--seconds 600 sql' selects
	@PYTHONPATH=. $(bin)/python scripts/fuzz.py $(ARGS)

docs: setup  ## Build the documentation site in build/site; needs no network
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --quiet --strict $(ARGS)
	@echo "Open build/site/index.html; with its search: .venv/bin/python -m http.server --bind 127.0.0.1 -d build/site"

install-check: setup  ## Install pairbus[all] from the index into an empty environment, and run the demo there
	@scripts/install_check.sh

fresh-check:  ## Run both README commands on fresh Debian 12 and 13 systems; needs root and debootstrap
	@scripts/fresh_check.sh $(ARGS)

conformance-full: setup  ## Run the whole live test suite of azure-servicebus against the embedded namespace
	@$(bin)/python scripts/conformance.py $(ARGS)

clean:  ## Remove everything that was built, including .venv
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
