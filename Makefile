# Everything from a fresh clone: `make demo`, `make test`. See `make help`.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.developed
BENCHMARKED := $(VENV)/.benchmarked
SETUP := pyproject.toml constraints.txt
MYPY := $(VENV)/bin/mypy --strict
PIP := $(PYTHON) -m pip --disable-pip-version-check -qq
JOBS ?= 2
CASES ?= 100000
SEED ?= 0
FIRST ?= 0
MODEL ?= build/random-1gb.gguf

# The Swift worker is built while the first tests run. Each process takes tests in the order of their files, so that
# what those of a file share is made once, and computes on one thread, so that the processes do not disturb each other.
define run-tests
@$(PYTHON) tests/support/swift_build.py & \
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PYTHON) -m pytest -n $(JOBS) --dist worksteal $(1) $(PYTEST_ARGS); code=$$?; wait; exit $$code
endef

.DEFAULT_GOAL := help
.PHONY: help demo setup test journeys test-all fuzz lint typecheck check wheel benchmarks-smoke benchmark-pass benchmark-serving llama-server clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## set up, then convert, validate and generate on the embedded model
	@$(VENV)/bin/anespec demo
	@echo
	@echo "anespec is installed in $(VENV). To call it by its name:"
	@echo "  . $(VENV)/bin/activate                     in this shell"
	@echo "  uv tool install .   or   pipx install .   in every shell"

setup: $(DEVELOPED) ## set up what tests and checks need

test: $(DEVELOPED) ## set up, then run the tests, without the slow ones and the journeys
	$(call run-tests,-m 'not slow and not journey')

journeys: $(DEVELOPED) ## do what a person does, through whole processes
	$(call run-tests,-m journey)

test-all: export ANESPEC_TEST_EXAMPLES = thorough
test-all: $(DEVELOPED) ## run all tests, which takes several times as long
	$(call run-tests)

fuzz: $(DEVELOPED) ## damage GGUF headers, CASES=100000 of them, for some minutes (SEED=0 FIRST=0), and shards
	@$(PYTHON) tests/fuzz/campaign.py --cases $(CASES) --seed $(SEED) --first $(FIRST)
	@PYTHONPATH=tests/support $(PYTHON) tests/fuzz/program_campaign.py $$(($(CASES) / 20))

lint: $(DEVELOPED) ## check style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

typecheck: $(DEVELOPED) ## check types, and those of a program that uses the library
	@$(MYPY) --package anespec
	@$(MYPY) tests/anespec/typed_client.py

check: lint typecheck ## check style and types

wheel: $(INSTALLED) ## build the wheel into build/wheel
	@rm -rf build/lib build/bdist.* build/wheel
	@$(PIP) wheel --no-deps --wheel-dir build/wheel .

benchmark-pass: $(BENCHMARKED) $(MODEL) ## time a pass beside llama.cpp (MODEL=file.gguf for your own)
	@$(PYTHON) benchmarks/pass.py $(MODEL)

benchmarks-smoke: $(DEVELOPED) ## see that every benchmark runs, in minutes
	@$(PYTHON) benchmarks/smoke.py

benchmark-serving: $(MODEL) llama-server ## time the daemon beside llama-server (MODEL=file.gguf)
	@$(PYTHON) benchmarks/serving_speed.py $(MODEL)

llama-server: $(INSTALLED) ## build llama.cpp's server, with which benchmark-serving compares
	@$(PIP) install cmake ninja
	@$(PYTHON) benchmarks/llama_server.py

clean: ## remove what was built, the virtual environment too
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

build/random-1gb.gguf: $(INSTALLED) benchmarks/random_gguf.py
	@mkdir -p build
	@$(PYTHON) benchmarks/random_gguf.py 1gb $@

# The newest Python that every dependency has wheels for.
$(PYTHON):
	@for candidate in python3.13 python3.12 python3.11 python3; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			$$candidate -m venv $(VENV) && exit 0; \
			rm -rf $(VENV); exit 1; \
		fi; \
	done; \
	echo "make: anespec needs Python 3.11 or newer on the PATH (python3.11, python3.12, python3.13)" >&2; \
	exit 1

$(INSTALLED): $(SETUP) | $(PYTHON)
	@echo "Setting up $(VENV): a minute or a few, the first time"
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(DEVELOPED): $(INSTALLED)
	@$(PIP) install --constraint constraints.txt --group dev
	@touch $@

$(BENCHMARKED): $(INSTALLED)
	@$(PIP) install --constraint constraints.txt --editable '.[benchmark,torch]'
	@touch $@
