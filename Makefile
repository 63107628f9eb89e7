# Everything a developer runs. Each target sets up what it needs first.
# Another torch than the pinned one has an environment of its own.
VENV ?= .venv$(if $(TORCH),-torch-$(TORCH))
PYTEST_ARGS ?=
BENCH_ARGS ?=
INTEGRATIONS ?= torchtitan transformers lightning ray megatron nemo_run kubernetes torchx

bin := $(VENV)/bin
package := $(VENV)/.undaunted-package
stamp := $(VENV)/.undaunted-setup
measure := $(VENV)/.undaunted-measure
pytest := $(bin)/python -m pytest
# Tests with the mark slow run where ALL is set.
quick := $(if $(ALL),, and not slow)

# Where it is set, as in many images, each of a thousand launchers would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help integration-names setup system demo test test-all test-unit test-e2e test-docs test-slurm test-integrations test-gpu test-jobs coverage mutation lint format types generated docs bench clean

help: ## show this list
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' Makefile
	@echo "options: PYTHON=python3.12 (setup), PYTEST_ARGS='-k pages -x' (tests), BENCH_ARGS=--quick,"
	@echo "         TORCH=2.8.0 (another torch, in the environment .venv-torch-2.8.0)"

setup: $(stamp) ## make .venv with the package, torch and the tools

$(stamp): $(package)
	@bash scripts/setup.sh $(VENV) tools
	@touch $@

$(package): pyproject.toml compat/nvidia-resiliency-ext/pyproject.toml constraints.txt scripts/setup.sh
	@echo "setting up $(VENV) (a few minutes the first time)"
	@bash scripts/setup.sh $(VENV)
	@touch $@

system:
	@bash scripts/system-packages.sh

demo: $(package) ## train a small language model through a crash and a hang
	@$(bin)/python examples/char_lm/demo.py

test: test-unit test-e2e ## run the tests, except those of the docs and those that take minutes

test-all: ## run those that take minutes too
	@$(MAKE) --no-print-directory test ALL=1

test-unit: setup system ## fast tests, no training processes
	@# some wait: one more than there are cores
	$(pytest) -n $$(($$(nproc) + 1)) --maxprocesses 8 --dist worksteal \
		-m "not e2e and not docs and not integration$(quick)" $(PYTEST_ARGS)

test-e2e: setup system ## tests that start launchers and training processes
	@# they wait as well, so that more than there are cores get on with each other
	$(pytest) -n 4 --dist worksteal -m "e2e and not slurm and not docs and not integration$(quick)" $(PYTEST_ARGS)

test-slurm: setup system ## jobs on a Slurm cluster of its own, which needs root; test-e2e has a sample
	$(pytest) -n 3 tests/slurm $(PYTEST_ARGS)

integration-names:
	@echo $(INTEGRATIONS)

test-integrations: setup system ## adapters of frameworks, with the real packages: INTEGRATIONS="lightning"
	@for name in $(INTEGRATIONS); do \
		scripts/integration-env.sh $(VENV) $$name && \
		.venv-integrations/$$name/bin/python -m pytest -n 3 -m integration tests/integrations/$$name \
			tests/imports $(PYTEST_ARGS) || exit 1; \
	done

test-jobs: setup system ## real programs under faults: JOBS=lightning FAULTS=kill, SAMPLE=1 for six cells
	@scripts/integration-env.sh $(VENV) jobs
	@PYTHONPATH=src:. .venv-integrations/jobs/bin/python -m tests.jobs $(if $(SAMPLE),--sample) \
		$(if $(JOBS),--jobs $(JOBS)) $(if $(FAULTS),--faults $(FAULTS)) $(JOBS_ARGS)
	@PYTHONPATH=src:. .venv-integrations/jobs/bin/python -m pytest -q -p no:xdist \
		tests/data/test_shards.py tests/imports/test_known_imports.py \
		-k "parquet or webdataset or programs" # which the unit tests skip

test-docs: setup ## run the examples in README.md and docs/
	$(pytest) -n 3 -m "docs and not integration" $(PYTEST_ARGS)

test-gpu: $(if $(PYTHON),,setup) ## what needs a GPU, on this machine's; PYTHON=python3 needs no setup
	@PYTHONPATH=src:. $(or $(PYTHON),$(bin)/python) -m tests.gpu $(GPU_ARGS)

coverage: $(measure) system ## lines and branches that unit tests reach: PACKAGES="journal chaos", E2E=1 for all tests
	@$(bin)/coverage erase
	$(bin)/coverage run -m pytest -n auto --maxprocesses 8 --dist worksteal $(PACKAGES:%=tests/%) $(PYTEST_ARGS) \
		-m "$(if $(E2E),,not e2e and )not slurm and not docs and not integration"
	@$(bin)/coverage combine --quiet
	@$(bin)/coverage json --quiet
	@$(bin)/python -m scripts.covered $(PACKAGES)

mutation: $(measure) ## bugs that are planted one at a time: MODULE=src/undaunted/X.py TESTS="tests/X.py"
	@$(bin)/python -m scripts.mutated $(MODULE) $(TESTS)

$(measure): $(stamp)
	@$(bin)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --group measure
	@touch $@

lint: setup ## ruff: rules and format; words of pages and docstrings
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/python -m scripts.words

format: setup ## let ruff repair what it can
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

types: setup ## mypy, strict
	$(bin)/mypy

generated: setup ## write the pages of docs/ that are made from code
	@$(bin)/python -m scripts.generated

docs: setup ## build the documentation into site/, strictly
	@# not --quiet: warnings that are not shown do not count as failures
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

bench: setup ## measure, against torchrun
	$(bin)/python -m benchmarks $(BENCH_ARGS)

clean: ## remove everything that was built, .venv too
	rm -rf $(VENV) .venv-integrations site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
