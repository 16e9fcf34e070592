"""Things that the test files of one portion share, and that end with the portion's last test.

A fixture of the session would keep its processes until the whole run ends, and idle nodes and JVMs take processor time
from the tests of other portions.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar, cast

from support.order import portion_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import pytest

T = TypeVar("T")


class SharedResources:
    """Starts each shared thing at its first use, and closes all of a portion after the portion's last test."""

    def __init__(self) -> None:
        """Starts with nothing running."""
        self._portion = ""
        self._last: dict[str, str] = {}
        self._running: dict[str, dict[str, object]] = {}
        self._exits: dict[str, ExitStack] = {}
        self._variables: dict[str, str] = {}

    def collected(self, items: Iterable[pytest.Item]) -> None:
        """Notes the last test of each portion, and the environment variables in which portions begin."""
        self._variables = _own_variables()
        self._last = {portion_of(item.nodeid): item.nodeid for item in items}

    def test_begins(self, nodeid: str) -> None:
        """A test begins; the portion it belongs to owns what is started from now on."""
        self._portion = portion_of(nodeid)

    def test_ended(self, nodeid: str) -> None:
        """A test and its fixtures have ended."""
        portion = portion_of(nodeid)
        if self._last.get(portion) == nodeid:
            self._close(portion)
            self._restore_variables()

    def get(self, name: str, start: Callable[[], AbstractContextManager[T]]) -> T:
        """Returns what ``start`` yields; it runs once for each portion and name."""
        running = self._running.setdefault(self._portion, {})
        if name not in running:
            exits = self._exits.setdefault(self._portion, ExitStack())
            running[name] = exits.enter_context(start())
        return cast("T", running[name])

    def close(self) -> None:
        """Closes everything that still runs."""
        for portion in list(self._exits):
            self._close(portion)

    def _restore_variables(self) -> None:
        """Undoes what a portion did to the environment, as a Spark session does for as long as its process runs.

        Nodes and commands could not be forks of those that were started under the variables of before.
        """
        for name in _own_variables().keys() - self._variables.keys():
            del os.environ[name]
        os.environ.update(self._variables)

    def _close(self, portion: str) -> None:
        self._running.pop(portion, None)
        exits = self._exits.pop(portion, None)
        if exits is not None:
            exits.close()


def _own_variables() -> dict[str, str]:
    """Returns the environment variables, except those of pytest, which tell which test runs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


SHARED = SharedResources()
