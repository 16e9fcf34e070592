"""Goal: a fault of an application's metric is logged once, and harms no other metric.

Method: functions that fail as a test says; each call of ``values`` stands for a push.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from moldau.cluster.telemetry.application import ApplicationMetrics

if TYPE_CHECKING:
    from collections.abc import Callable


class Logger:
    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []

    def error(self, event: str, *, exception: BaseException, metric: str) -> None:
        self.errors.append((metric, str(exception)))


def metrics() -> tuple[ApplicationMetrics, list[tuple[str, str]]]:
    logger: Any = Logger()
    return ApplicationMetrics(logger), logger.errors


def failing(text: str) -> Callable[[], float]:
    def read() -> float:
        raise ValueError(text)

    return read


def test_the_first_error_of_each_function_is_logged() -> None:
    """A function that comes back is a new one: its fault would never be seen."""
    given, errors = metrics()
    given.register("a.broken", failing("first"))
    given.register("a.broken", failing("of the shop"), shop="east")
    given.register("b.right", lambda: 7)
    for _ in range(3):
        assert list(given.values()) == [("b.right", 7.0, ())]
    assert errors == [("a.broken", "first"), ("a.broken", "of the shop")]
    given.unregister("a.broken", shop="east")
    given.register("a.broken", failing("again"), shop="east")
    for _ in range(2):
        list(given.values())
    assert errors[2:] == [("a.broken", "again")]


def test_the_error_of_a_replacing_function_is_logged() -> None:
    given, errors = metrics()
    for text in ("first", "replaced"):
        given.register("a.broken", failing(text))
        for _ in range(2):
            assert list(given.values()) == []
    assert errors == [("a.broken", "first"), ("a.broken", "replaced")]


@pytest.mark.parametrize("found", [None, "x", [], 1 + 2j])
def test_a_value_that_is_no_number_is_left_out(found: Any) -> None:
    given, errors = metrics()
    given.register("a.odd", lambda: found)
    given.register("b.right", lambda: math.nan)
    assert [name for name, _, _ in given.values()] == ["b.right"]
    assert [name for name, _ in errors] == ["a.odd"]


def test_labels_tell_metrics_of_one_name_apart() -> None:
    given, _ = metrics()
    for number, labels in enumerate(({}, {"a": "1"}, {"b": "1"}, {"a": "1", "b": "2"}, {"a": "2", "b": "1"})):
        given.register("x.y", lambda number=number: number, **labels)
    given.register("x.y", lambda: 33, b="2", a="1")  # replaces the one with the same labels
    assert [value for _, value, _ in given.values()] == [0, 1, 2, 33, 4]
    given.unregister("x.y", b="2", a="1")
    given.unregister("x.y", c="1")
    assert [labels for _, _, labels in given.values()] == [(), (("a", "1"),), (("b", "1"),), (("a", "2"), ("b", "1"))]


def test_an_application_may_change_its_metrics_meanwhile() -> None:
    """Another thread does so while the client reads; a push holds what was registered when it began."""
    given, _ = metrics()

    def read() -> float:
        given.unregister("b.later")
        given.register("c.new", lambda: 3)
        return 1

    given.register("a.first", read)
    given.register("b.later", lambda: 2)
    assert [name for name, _, _ in given.values()] == ["a.first", "b.later"]
    assert [name for name, _, _ in given.values()] == ["a.first", "c.new"]
