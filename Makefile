# `make` alone lists what there is. Everything runs in .venv, which the first command makes.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= .ci/constraints.txt
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
EXTRAS := '.[commands,embedded,httpx,metrics,requests]'

# uv takes a third of pip's time. pip is there wherever Python is; that of Python 3.11 knows no groups.
UV := $(if $(shell command -v uv),uv pip install --quiet --compile-bytecode --python $(BIN)/python)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
install = $(if $(UV),$(UV) --constraint $(CONSTRAINTS) $(1) ||) \
	{ $(PIP) 'pip>=25.1' && $(PIP) --constraint $(CONSTRAINTS) $(1); }
# Trust the system's certificates, as pip does.
export UV_NATIVE_TLS := 1

# Errors of mypy that come only from the weaker types of an older Scrapy or requests.
TYPED_SINCE := arg-type import-untyped misc return-value union-attr

export URL NODES LIMIT LATENCY PAGES

# Without bytecode each worker compiles all tests again: more than half of the time it takes to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: crawl
crawl: $(INSTALLED) ## crawl the example site, or URL=, with NODES=3 LIMIT=4 (LATENCY= ms, PAGES=)
	@$(BIN)/python -m lab.demo --url "$$URL" --nodes "$$NODES" --limit "$$LIMIT" \
		--latency "$$LATENCY" --pages "$$PAGES"

# In CI a test that failed is run again, alone.
PYTEST := $(BIN)/python -m $(if $(CI),tests.support.rerun,pytest) --numprocesses auto --dist worksteal
# Twice the number of processors, as tests wait for servers, processes and leases.
WORKERS = $(shell echo $$(($$(nproc) * 2)))

.PHONY: test
test: $(INSTALLED) ## run the tests; SEMAPHORE_TEST_SERVER=/path/to/redis-server tests with that one
	$(PYTEST) --numprocesses $(WORKERS) -m 'not slow and not compose and not processes' $(ARGS)

.PHONY: test-processes
test-processes: $(INSTALLED) ## run the tests of crawls by several processes, which make test leaves out
	$(PYTEST) --numprocesses $(WORKERS) -m 'processes and not slow' $(ARGS)

.PHONY: bytecode
bytecode: $(INSTALLED)
	$(BIN)/python -m pytest --collect-only --quiet >/dev/null

# For make test CONSTRAINTS=build/constraints-scrapy-2.16.0.txt, in a VENV of its own.
build/constraints-scrapy-%.txt: .ci/constraints.txt
	mkdir -p build
	sed 's/^Scrapy==.*/Scrapy==$*/' $< >$@

.PHONY: test-all
test-all: $(INSTALLED)-companions ## run the slow tests too: crawls under faults, benchmarks, a browser
	$(PYTEST) $(ARGS)

.PHONY: test-servers
test-servers: $(INSTALLED) ## run the tests of the server with Redis 6.2, 7.0, 8.2, Valkey 8.1 and 9.0
	$(BIN)/python -m tests.support.other_servers $(ARGS)

.PHONY: sim
sim: $(INSTALLED) ## run the system in simulated time under faults, and judge it (SEEDS=1000; SEED=7: its timeline)
	$(BIN)/python -m lab.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

.PHONY: pacing
pacing: $(INSTALLED) ## write what automatic pacing does at sites of many kinds to lab/pacing/report.txt
	$(BIN)/python -m lab.pacing

.PHONY: mutants
mutants: $(INSTALLED) ## make small mistakes, and list those that no test sees (BASE=HEAD, ONLY=scope_lease.py, SAMPLE=50 SEED=7)
	$(BIN)/python -m lab.mutants $(if $(BASE),--base $(BASE)) $(if $(ONLY),--only '$(ONLY)') \
		$(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: foreign-tests
foreign-tests: $(INSTALLED) ## run Scrapy's own tests, plain and with the add-on, and list what differs
	$(BIN)/python -m lab.foreign.run $(ARGS)

.PHONY: compose-test
compose-test: $(INSTALLED) ## run docker-compose.yml in containers and judge: minutes, see docs/docker.md
	$(BIN)/python -m pytest -m compose lab/compose -rfEsP --no-fold-skipped $(ARGS)

.PHONY: bench
bench: $(INSTALLED)-bench ## measure the figures of docs/benchmarks.md; make bench-use measures one
	$(BIN)/python -m lab.benchmarks $(ARGS)

bench-%: $(INSTALLED)-bench
	$(BIN)/python -m lab.benchmarks $* $(ARGS)

.PHONY: pictures
pictures: $(INSTALLED) ## take the picture of docs/page.md, with headless Chromium
	$(BIN)/python -m lab.page_picture

.PHONY: lint
lint: $(INSTALLED) ## check style, types, who may import whom, and the Lua scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m tests.support.luacheck

.PHONY: lua
lua: $(INSTALLED) ## write the Lua scripts as the server gets them to build/lua
	$(BIN)/python -m tests.support.luacheck build/lua

.PHONY: without
without: $(INSTALLED) ## delete each feature in a copy, or FEATURE=console, and check what is left
	$(BIN)/python -m lab.without --feature "$(FEATURE)"

.PHONY: lint-scrapy
lint-scrapy: $(INSTALLED) ## check that VENV's Scrapy has each name and argument that is used
	$(BIN)/mypy --no-warn-unused-ignores $(TYPED_SINCE:%=--disable-error-code=%) -p semaphore_middleware

.PHONY: format
format: $(INSTALLED) ## put the code into the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: dist
dist: $(INSTALLED)-release ## build what is published, the wheel and the sources, into dist/, and check it
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*
	$(BIN)/pyroma --min 10 dist/*.tar.gz
	@echo "pip install '$$(echo dist/*.whl)[commands,embedded]'"

.PHONY: docs
docs: $(INSTALLED)-docs ## build the site of the pages in docs/ into build/docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

.PHONY: clean
clean: ## remove the environment and what crawls have left
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist pages runs

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 3))' || \
		{ echo 'Python 3.11.3 or newer is needed; name one with make PYTHON=...'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(call install,--editable $(EXTRAS) --group dev)
	@touch $@

$(INSTALLED)-%: $(INSTALLED)
	$(call install,--group $*)
	@touch $@
