# Every target sets up all it needs from a bare clone; the environment is re-made only when its recipe changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DOCS_STAMP := $(VENV)/.docs
# A file of tests stays in one process, which shares what it trains.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist loadfile

.PHONY: help co2 quick test test-all coverage any-processor any-torch slow gpu docs paper lint format types clean

help:
	@echo "make co2     install and run the Mauna Loa CO2 experiment: table and figure"
	@echo "make test    install and run the tests; make test-all: these and further cases of them"
	@echo "make quick   a first answer: guides, divergences, likelihoods, distributions and metrics"
	@echo "make coverage    lines and branches that make test runs, in one process"
	@echo "make any-processor    all tests as on other processors, and with other seeds: hours"
	@echo "make any-torch TORCH=2.14.1    the tests with other releases of PyTorch, on Python 3.12: gigabytes each"
	@echo "make slow    the long reproductions"
	@echo "make gpu     all that waits for a GPU, in pieces that continue where they were; ARGS=-n shows them"
	@echo "make docs    build the documentation site, without the network: docs/_build/html/index.html"
	@echo "make paper   docs/_build/paper.pdf, with pandoc and XeLaTeX of your own"
	@echo "make lint    ruff; make format: let it change the files; make types: mypy"
	@echo "make clean   remove the environment and what was built"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pyrodrop needs Python 3.11 or newer; set PYTHON=")'
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch and more than a hundred packages into $(VENV), once; it takes minutes:"
	@$(BIN)/python .ci/installing.py --constraint constraints.txt --editable '.[test]'
	@touch $@

co2: $(STAMP)
	$(BIN)/pyrodrop run co2 $(ARGS)

quick: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) tests/guides tests/pyrodrop/divergences tests/pyrodrop/likelihoods \
	  tests/pyrodrop/distributions tests/pyrodrop/metrics $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: test
	$(BIN)/python -m pytest $(PARALLEL) -m 'more and not slow and not gpu' $(ARGS)

# In one process; those that tests start are not measured.
coverage: $(STAMP)
	$(BIN)/python -m coverage erase
	$(BIN)/python -P -m coverage run -p -m pytest -n 0 $(ARGS)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

# torch's kernels for processors without vector instructions, and with AVX2; the seeds of the tests, and three shifts of them.
any-processor: $(STAMP)
	@for kernels in default avx2; do for shift in 0 1 2 3; do \
	  echo "ATEN_CPU_CAPABILITY=$$kernels PYRODROP_SEED_SHIFT=$$shift"; \
	  ATEN_CPU_CAPABILITY=$$kernels PYRODROP_SEED_SHIFT=$$shift \
	    $(BIN)/python -m pytest -q $(PARALLEL) -m 'not slow and not gpu' $(ARGS) || failed=1; \
	done; done; exit $${failed:-0}

# With other releases of PyTorch, on Python 3.12.
TORCH ?= 2.11.0 2.12.1 2.14.1
any-torch:
	.ci/any_torch $(TORCH) -- $(ARGS)

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

gpu: $(STAMP)
	@$(MAKE) --no-print-directory --keep-going -f analysis/lab/gpu.mk PYTHON=$(BIN)/python $(ARGS)

$(DOCS_STAMP): $(STAMP)
	@echo "installing what builds the documentation (once)"
	@$(BIN)/python .ci/installing.py --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(DOCS_STAMP)
	@$(BIN)/python -P -m sphinx -b html -q -W --keep-going docs docs/_build/html
	@$(BIN)/python -P docs/_ext/dead_links.py docs/_build/html
	@echo "the site is at $(CURDIR)/docs/_build/html/index.html"

paper:
	@mkdir -p docs/_build
	pandoc docs/paper/paper.md --citeproc --resource-path docs/paper --pdf-engine xelatex --output docs/_build/paper.pdf

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy -p pyrodrop

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache runs docs/_build docs/api docs/gallery docs/notebooks docs/project docs/zoo
