"""Settings that all tests share, such as Hypothesis's search for examples.

No time limit is put on an example, for a machine that is busy elsewhere makes any example slow; and the examples are
the same in every run, so that a test fails because of what was changed and not because of what was drawn. ``make test``
draws an eighth of them (``support.proof``). To look for new ones: ``pytest --hypothesis-profile=explore``.

Hypothesis draws some values from a pool of constants, which it collects from the source of every imported module of the
project, also with ``derandomize``. Which modules are imported depends on the tests that the same process ran before,
and a constant in one module changes the examples of all tests. So the pool stays empty where examples are to be
repeatable; the constants that Hypothesis itself brings remain.
"""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from support.forked import add_option, run_forked
from support.order import longest_first, scheduler_of
from support.proof import examples
from support.shared import SHARED
from support.started import share

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

os.environ["MOLDAU_PROFILE"] = ""  # the profile that a developer uses names no cluster of a test

settings.register_profile("explore", **UNHURRIED)
settings.register_profile("moldau", **UNHURRIED, derandomize=True, max_examples=examples(100))
settings.load_profile("moldau")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options of the suite."""
    add_option(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Keeps the constants of imported modules out of repeatable examples, once the profile is chosen."""
    # Hypothesis has no setting for this. ``test_examples.py`` fails if a new version ignores the replacement.
    if settings().derandomize:
        empty = providers.Constants()
        providers._get_local_constants = lambda: empty


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts long files first where several processes share the tests."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests in forks of this process if the command line asks for it."""
    return run_forked(session)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Runs two processes more than there are cores, because some tests wait for processes of nodes."""
    del config
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Replaces the portions of ``--dist loadfile`` by those of ``support.order``."""
    return scheduler_of(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Notes where portions end, starts nodes as forks, and exempts what collection loaded from garbage collection."""
    SHARED.collected(session.items)
    share()
    _exempt_from_collection()


def _exempt_from_collection() -> None:
    """Collects garbage, and exempts all that is left from further collections.

    Every simulated run starts with a full collection. The modules and test items of the whole suite make that take a
    fifth of a second, which is more than most simulated tests need.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # the default of 700 objects takes a thirtieth of the processor time of tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Ends what the files of a portion share with the portion's last test.

    The reports of a file's tests, and the modules that they loaded, stay to the end of the run: they are exempted from
    garbage collection as well.
    """
    SHARED.test_begins(item.nodeid)
    try:
        return (yield)
    finally:
        SHARED.test_ended(item.nodeid)
        if nextitem is None or nextitem.path != item.path:
            _exempt_from_collection()


def pytest_sessionfinish() -> None:
    """Ends what is still shared when a run is cut short."""
    SHARED.close()


@pytest.fixture(autouse=True)
def kept_log_levels() -> Iterator[None]:
    """Fails a test that leaves other levels of loggers to the next one, which may count or compare log lines."""
    loggers = (logging.getLogger(), logging.getLogger("moldau"))
    before = [logger.level for logger in loggers]
    yield
    after = [logger.level for logger in loggers]
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
    assert after == before, "the levels of the root logger and of Moldau's"


@pytest.fixture(scope="module")
def interruptible() -> Iterator[None]:
    """Lets SIGINT interrupt this process and its children.

    A process that a shell starts in the background inherits the signal as ignored.
    """
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, inherited)
