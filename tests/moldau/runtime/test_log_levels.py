"""Goal: an administrator's change of a logger's level lasts until it is taken back, and then leaves no trace.

Method: loggers of this test's own, with each order of changes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from moldau.runtime.telemetry.log_levels import LEVELS, ROOT, LogLevels

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTER, INNER = "moldau.test_levels", "moldau.test_levels.inner.part"


@pytest.fixture
def levels() -> Iterator[LogLevels]:
    before = {name: logging.getLogger(name).level for name in (OUTER, INNER, "moldau")}
    root = logging.getLogger().level
    made = LogLevels()
    yield made
    made.reset_all()
    assert {name: logging.getLogger(name).level for name in before} == before
    assert logging.getLogger().level == root


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_read_as_it_was_set(levels: LogLevels, level: str) -> None:
    levels.set(OUTER, level)
    assert levels.level(OUTER) == levels.level(INNER) == level, "the inner logger inherits it"
    for other, number in LEVELS.items():
        assert logging.getLogger(INNER).isEnabledFor(number) is (number >= LEVELS[level]), other


def test_a_level_between_two_is_the_more_talkative_one(levels: LogLevels) -> None:
    for number, shown in (
        (1, "TRACE"),
        (5, "TRACE"),
        (9, "TRACE"),
        (15, "DEBUG"),
        (25, "INFO"),
        (59, "FATAL"),
        (99, "OFF"),
    ):
        levels.set(OUTER, "INFO")
        logging.getLogger(OUTER).setLevel(number)
        assert levels.level(OUTER) == shown


def test_the_level_before_the_first_change_comes_back(levels: LogLevels) -> None:
    logging.getLogger(OUTER).setLevel(logging.ERROR)
    try:
        for level in ("DEBUG", "WARN"):
            levels.set(OUTER, level)
        levels.set(INNER, "TRACE")
        levels.reset(OUTER)
        assert (levels.level(OUTER), levels.level(INNER)) == ("ERROR", "TRACE")
        levels.set(OUTER, "INFO")
        logging.getLogger(OUTER).setLevel(logging.CRITICAL)  # by the program, after a change was taken back
        levels.reset(OUTER)
        assert levels.level(OUTER) == "ERROR"
        levels.reset(OUTER)
        levels.reset("moldau.never_changed")
        assert levels.level(OUTER) == "ERROR"
        levels.set(ROOT, "FATAL")
        levels.reset_all()
        assert logging.getLogger(INNER).level == logging.NOTSET
        levels.reset_all()
    finally:
        logging.getLogger(OUTER).setLevel(logging.NOTSET)


def test_a_wrong_level_changes_nothing(levels: LogLevels) -> None:
    before = levels.level(OUTER)
    for wrong in ("info", "WARNING", "", "20"):
        with pytest.raises(KeyError):
            levels.set(OUTER, wrong)
    assert levels.level(OUTER) == before


def test_loggers_of_moldau_and_those_above_them_are_named(levels: LogLevels) -> None:
    logging.getLogger(INNER)
    logging.getLogger("moldaux.other")
    names = levels.names()
    assert names == sorted(set(names))
    assert {ROOT, "moldau", OUTER, f"{OUTER}.inner", INNER} <= set(names)
    assert all(name == ROOT or name == "moldau" or name.startswith("moldau.") for name in names)
