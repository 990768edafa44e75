# Everything a developer or CI runs. The first target of each kind sets up what it needs.
#
#   make demo [PROMPT="..."] [RANKS=4]   the demo: text as it streams, then a table
#   make test                            all tests
#   make check                           lint, types, import contracts, size caps
#   make format                          let ruff rewrite what it can
#   make tree                            docs/flags.md and the README's tree, made from the code
#
# On Linux, PyPI's torch is a CUDA build of several GB. A machine without a GPU wants the CPU build:
# put its wheel in a folder and name the folder (PIP_FIND_LINKS=DIR make demo), or name an index
# that has it (TORCH_INDEX=URL make demo).

PYTHON ?= python3
RANKS ?= 2
PROMPT ?=
TORCH_INDEX ?=

BIN := .venv/bin
BUILD := .build
STAMP := .venv/.installed
ROOMS := runtime ep proposers kernels launch
NATIVE := $(wildcard setup.py kernels/native/*.c kernels/native/*.h)

# As typed: make would otherwise read a dollar sign as a variable of its own.
export PROMPT_TEXT := $(value PROMPT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install demo test check lint types contracts format tree clean

install: $(STAMP)

# The environment is rebuilt when the pins, the metadata or the native sources change. torch goes in
# first and pinned, so that no later package can pull in another build of it.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@test -x $(BIN)/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing the pinned dependencies into .venv (minutes on the first run)"
	@$(BIN)/python -m pip install -qq -c constraints.txt setuptools wheel
	@$(BIN)/python -m pip install -qq -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@$(BIN)/python -m pip install -qq -c constraints.txt --no-build-isolation -e ".[demo,dev]"
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/phalanx demo --ranks $(RANKS) --prompt "$$PROMPT_TEXT"

test: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest

check: lint types contracts

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy and import-linter do not follow the package mapping of an editable install, so they get a
# folder laid out as the package is installed.
$(BUILD)/tree: $(STAMP)
	@rm -rf $@ && mkdir -p $@/phalanx
	@for room in $(ROOMS); do ln -s "$(CURDIR)/$$room" $@/phalanx/$$room; done

types: $(BUILD)/tree
	cd $(BUILD)/tree && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	    --cache-dir $(CURDIR)/$(BUILD)/mypy $(addprefix -p phalanx.,$(ROOMS))

contracts: $(BUILD)/tree
	cd $(BUILD)/tree && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --no-logo --no-cache $(CURDIR)/pyproject.toml
	$(BIN)/python -m pytest tests/architecture

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tree: $(STAMP)
	$(BIN)/phalanx flags --markdown > docs/flags.md
	$(BIN)/python -m tests.docs.readme_tree

clean:
	rm -rf $(BUILD) build *.egg-info .ruff_cache .mypy_cache .pytest_cache
