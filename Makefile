# One model, many GPUs. Each target is one line that anyone could type; README.md has them without make.

PYTHON ?= python3
BIN = .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(PATH)

SOURCES = _config.yml _toc.yml $(shell find book code/shardlab bench/results tools -type f ! -name '*.pyc')
QUICK = $(addprefix tests/, test_house.py test_sizes.py test_mirror.py test_notation.py test_schedules.py \
	test_exchanges.py test_trace.py model sharding costs/step costs/collectives costs/zero) \
	tests/plain/test_data_parallel.py
# the rooms whose comments are not aligned with shapes
FORMATTED = $(addprefix code/shardlab/, costs launch files plan figures explorers exercises own preflight schedules \
	exchanges sharding model)

.PHONY: book archive pdf slides quick touched test test-all test-book lab reset bench stale preflight check format clean

book: .venv/ready           ## build the book; prints where it is
	jupyter-book build . -W --keep-going
	touch _build/ready

archive: _build/ready       ## the built pages in one zip file, to read without a network
	python tools/archive.py

pdf: _build/ready           ## the built pages in one PDF
	python tools/pdf.py

slides: .venv/ready         ## a deck for each chapter, with notes; prints where they are
	python tools/slides.py

quick: .venv/ready          ## in a minute: house rules, schedules, types, the model of a step, a plain file
	pytest -q -n logical --maxprocesses 4 $(QUICK)

touched: .venv/ready        ## the tests of what you have changed since main
	python tools/touched.py

test: .venv/ready           ## test the package, on up to four cores: does it work here?
	pytest -n logical --maxprocesses 4 -m "not slow" --ignore tests/book

test-all: .venv/ready       ## test the package whole: processes that are killed, agents, workshops, the largest sizes
	pytest -n logical --maxprocesses 4 --ignore tests/book

test-book: .venv/ready      ## test the book: its pages in a browser, its cells as on GPUs, how it is built
	pytest -n logical --maxprocesses 4 tests/book

lab: .venv/ready            ## open the chapters as notebooks; what you have changed in notebooks/ stays
	python tools/lab.py
	JUPYTER_CONFIG_PATH=tools jupyter lab --notebook-dir=notebooks

reset: .venv/ready          ## make CHAPTER=memory anew; your own version stays beside it
	python tools/lab.py reset $(CHAPTER)

bench: .venv/ready          ## measure again, and write bench/results
	for file in bench/[a-z]*.py; do python $$file || exit 1; done

stale: .venv/ready          ## which results and pictures are older than their sources, and how to make them anew
	python tools/stale.py

preflight: .venv/ready      ## check this machine, with two ranks; on others start it as you start the run
	torchrun --standalone --nproc-per-node 2 -m shardlab.preflight

check: .venv/ready          ## style, types, architecture; and a report of sizes, which fails nothing
	ruff check . && mypy && pytest -q tests/test_house.py tests/test_mirror.py
	ruff format --quiet --check --line-length 100 --exclude "*.md" $(FORMATTED) || (echo "run: make format"; exit 1)
	python tools/sizes.py

format: .venv/ready         ## lay out the rooms whose comments are not aligned with shapes
	ruff format --quiet --line-length 100 --exclude "*.md" $(FORMATTED)

clean:                      ## remove what was built; the next build runs every chapter again
	rm -rf _build

_build/ready: .venv/ready $(SOURCES)
	$(MAKE) book

.venv/ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt --editable .
	touch $@
