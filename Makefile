# Two commands do everything: `make demo` and `make test`. Both create .venv when it is missing.

PYTHON ?= python3
BIN := .venv/bin
DEMO := build/demo
MODELS := ppocr_det:x=1,3,640,640 ppocr_rec:x=1,3,48,320 ppocr_cls:x=1,3,48,192
# Processes that run tests side by side.
WORKERS ?= 2
# OPTIONS is handed to `tensaurus optimize` in the demo.
OPTIONS ?= --time-limit 60

# The bench: models (or groups of them, see `tensaurus bench --help`), options, and where its figures go.
MODELS_TO_BENCH ?= zoo cases batches pretrained
BENCH_OPTIONS ?= --resume
TABLE ?= docs/benchmarks.csv
PAGE ?= docs/benchmarks.md

# The nightly: seconds for each pretrained model, and what the fuzzers draw: models, mutants, expressions, from
# a seed that is another every day.
NIGHTLY := build/nightly
NIGHTLY_LIMIT ?= 15
DRAWN ?= 1000
SEED ?= $(shell date +%j)
SMALL := nasrnn squeezenet infogan

.PHONY: help demo test lint nightly bench bench-smoke bench-tools clean

help:
	@echo "make demo   optimize three real models, print the summaries, verify the results (about 5 minutes)"
	@echo "make test   run the tests; SINCE=COMMIT adds the slow ones of rooms that changed since then"
	@echo "make lint   ruff and mypy --strict"
	@echo "make nightly  the slow tests, a proof of every rule, every pretrained model, the fuzzers (hours)"
	@echo "make bench  measure every model beside every peer; hours, Ctrl-C and again goes on (docs/benchmarks.md)"
	@echo "make bench-smoke  the same on three small models, in under 2 minutes"
	@echo "make bench-tools  install what the bench compares with; \`make test\` then tests it, too"
	@echo "make clean  remove .venv and everything built"

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,openvino,kernels]'
	@touch $@

demo: .venv/.installed
	@mkdir -p $(DEMO)
	@set -e; for model in $(MODELS); do \
	  name=$${model%%:*}; shape=$${model#*:}; \
	  echo; echo "== $$name, $$shape"; \
	  $(BIN)/tensaurus zoo fetch $$name --folder $(DEMO); \
	  $(BIN)/tensaurus optimize $(DEMO)/$$name.onnx --shape $$shape $(OPTIONS) \
	    -o $(DEMO)/$$name.fast.onnx --json $(DEMO)/$$name.json; \
	  $(BIN)/tensaurus verify $(DEMO)/$$name.onnx $(DEMO)/$$name.fast.onnx --shape $$shape; \
	done

test: .venv/.installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(if $(SINCE),--since $(SINCE))

lint: .venv/.installed
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy src

# Everything runs, whatever fails before it.
nightly: .venv/.installed
	@mkdir -p $(NIGHTLY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[ray]'
	@status=0; \
	$(BIN)/python -m pytest -q -n $(WORKERS) --nightly -m nightly > $(NIGHTLY)/tests.txt || \
	  { status=1; git log --oneline -20 | tee -a $(NIGHTLY)/tests.txt; }; \
	$(BIN)/tensaurus rules verify --seed $(SEED) > $(NIGHTLY)/rules.txt || status=1; \
	$(BIN)/python bench/pretrained.py --time-limit $(NIGHTLY_LIMIT) --table $(NIGHTLY)/pretrained.csv || status=1; \
	$(BIN)/python bench/differential.py --seed $(SEED) --models $(DRAWN) --table $(NIGHTLY)/differential.md || status=1; \
	$(BIN)/python bench/fuzz.py --seed $(SEED) --mutants $(DRAWN) --table $(NIGHTLY)/fuzz.md || status=1; \
	$(BIN)/python bench/kernels.py --seed $(SEED) --scopes $(DRAWN) --table $(NIGHTLY)/kernels.md || status=1; \
	$(BIN)/python bench/mutants.py --seed $(SEED) --mutants $(DRAWN) --table $(NIGHTLY)/mutants.md || status=1; \
	exit $$status

.venv/.bench: .venv/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,openvino,kernels,bench]'
	@touch $@

bench-tools: .venv/.bench

bench: .venv/.bench
	$(BIN)/tensaurus bench $(MODELS_TO_BENCH) $(BENCH_OPTIONS) --csv $(TABLE) --report $(PAGE)

bench-smoke: .venv/.bench
	@rm -rf build/smoke && mkdir -p build/smoke
	$(BIN)/tensaurus bench $(SMALL) --rounds 1 --time-limit 1 --ours onnxruntime --csv build/smoke/table.csv --report build/smoke/page.md

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
