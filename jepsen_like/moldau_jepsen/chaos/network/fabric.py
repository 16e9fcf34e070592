"""Runs the link proxies in a thread, with blocking calls for ordinary tests.

Tests that are not trio programs cut links while their own code waits for a consumer, and the proxies must forward
meanwhile. So the proxies run in a thread of the test's process, outside of every node.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

import trio

from moldau.runtime.tasks.exceptions import leaves
from moldau_jepsen.chaos.network.links import Links
from moldau_jepsen.chaos.network.rules import CLIENT, Link
from moldau_jepsen.launcher.spec import LauncherUsageError, no_such_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

T = TypeVar("T")

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0


class LinkFabric:
    """Proxies in a thread of their own, for the length of a ``with`` block."""

    def __init__(self, targets: Mapping[int, int], ports: Mapping[int, int]) -> None:
        """``targets`` maps node ids to the ports they listen on, ``ports`` to those of their proxies."""
        self._links = Links(targets)
        self._members = sorted(targets)
        self._ports = dict(ports)
        self._thread = threading.Thread(target=self._main, name="moldau-links", daemon=True)
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope: trio.CancelScope | None = None
        self._failure: BaseException | None = None
        self._in_force: list[str] = []

    def __enter__(self) -> Self:
        """Returns when all proxies listen.

        Raises:
            OSError: A port is taken.
        """
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the link proxies did not start within {START_TIMEOUT_S:g} s")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes all connections and returns when the thread has ended."""
        scope = self._scope
        if scope is not None and self._thread.is_alive():
            self._call(scope.cancel)
        self._thread.join(STOP_TIMEOUT_S)

    def _main(self) -> None:
        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            with trio.CancelScope() as scope:
                self._scope = scope
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._links.serve, self._ports)
                    self._ready.set()

        try:
            trio.run(main)
        except* OSError as errors:
            self._failure = next(leaves(errors))
        finally:
            self._ready.set()

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        assert self._token is not None, "the fabric is used outside of its with block"
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._token)

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, node: int, *others: int, one_way: bool = False, clients: bool = False) -> None:
        """Cuts a node from ``others``, or from all other members when none are given.

        ``one_way`` holds back only what the node sends; with ``clients``, clients lose the node too.

        Raises:
            LauncherUsageError: a node does not exist, or is among its own ``others``. The other calls raise it too.
        """
        targets = list(others) or [member for member in self._members if member != node]
        if clients:
            targets.append(CLIENT)
        self._check([node, *others])
        check_others(node, others)
        self._call(lambda: self._links.cut([node], targets, both_ways=not one_way))
        self._in_force.append(cut_text(node, *others, one_way=one_way, clients=clients))

    def slow(self, node: int, delay_ms: float) -> None:
        """Delays every byte that a node sends; what is cut stays cut."""
        self._check([node])
        if not isinstance(delay_ms, int | float) or not 0 <= delay_ms < math.inf:
            raise LauncherUsageError(f"a delay is a number of milliseconds, 0 or more, not {delay_ms!r}")

        def rules() -> None:
            for other in [*self._members, CLIENT]:
                if other != node:
                    link = Link(node, other)
                    self._links.set_rule(link, replace(self._links.rule(link), delay_ms=delay_ms))

        self._call(rules)
        self._in_force.append(f"slow({node}, {delay_ms:g})")

    def reset(self, *nodes: int) -> int:
        """Ends all connections of these nodes (all nodes when none are given) with RST; returns how many."""
        self._check(nodes)
        return self._call(lambda: self._links.reset(nodes or self._members))

    def heal(self) -> None:
        """Lifts every cut and delay."""
        self._call(self._links.heal)
        self._in_force.clear()

    def isolate(self, *nodes: int) -> None:
        """Cuts these nodes from all others and from clients, and lifts all other cuts and delays.

        That is one step: no held byte of a node that was cut, and stays so, passes in between.
        """
        self._check(nodes)

        def rules() -> None:
            self._links.heal()
            for node in nodes:
                self._links.cut([node], [*(other for other in self._members if other != node), CLIENT])

        self._call(rules)
        self._in_force = [cut_text(node, clients=True) for node in nodes]

    @property
    def in_force(self) -> list[str]:
        """The cuts and delays since the last ``heal``, as they were called."""
        return list(self._in_force)

    def _check(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if node not in self._members:
                raise no_such_node(node, self._members)


def check_others(node: int, others: Iterable[int]) -> None:
    """Checks the nodes of a cut.

    Raises:
        LauncherUsageError: A node would be cut from itself.
    """
    if node in others:
        raise LauncherUsageError(f"node {node} cannot be cut from itself")


def cut_text(node: int, *others: int, one_way: bool = False, clients: bool = False) -> str:
    """Returns the text of a cut for messages."""
    words = [str(one) for one in (node, *others)]
    words += ["one_way=True"] * one_way + ["clients=True"] * clients
    return f"cut({', '.join(words)})"
