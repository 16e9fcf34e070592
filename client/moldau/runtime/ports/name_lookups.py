"""Looks host names up, so that a slow name server costs time and not the connection.

A resolver whose first name server is down asks the second one after five seconds (resolv.conf(5), ``timeout``), each
time again. A caller that gives an attempt to connect one second would never get an answer, however often it tried. So
a look-up goes on when its callers have given up, and later callers join it. Its answer is kept for a few times as long
as it took: a fast name server is asked for each connection, a slow one now and then.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_FACTOR: Final = 6.0
"""An answer is kept for so many times as long as it took."""
KEPT_MAX_S: Final = 30.0
"""The longest time that an answer is kept, as in a Java client."""
KEPT_MAX: Final = 1024
"""The most answers kept."""
JOINED_MAX_S: Final = 60.0
"""A look-up that has taken longer is joined by no further caller; the next one begins its own."""

Address = tuple[int, int, int, str, tuple[Any, ...]]
"""Family, type, protocol, canonical name and socket name, as of ``socket.getaddrinfo``."""


class _LookUp:
    """One question to the resolver, and the callers that wait for it."""

    __slots__ = ("began_s", "done", "error", "found")

    def __init__(self) -> None:
        self.began_s = trio.current_time()
        self.done = trio.Event()
        self.found: Sequence[Address] = ()
        self.error: Exception | None = None


class NameLookups:
    """The look-ups of one ``trio.run``: at most one that can be joined for each host and port."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], _LookUp] = {}
        self._kept: dict[tuple[str, int], tuple[Sequence[Address], float]] = {}

    def kept(self, host: str, port: int) -> Sequence[Address] | None:
        """Returns the answer of an earlier look-up that took long, None if there is none."""
        found, until_s = self._kept.get((host, port), ((), 0.0))
        return found if trio.current_time() < until_s else None

    def forget(self, host: str, port: int) -> None:
        """Drops a kept answer: no connection came of it, so the host may have moved."""
        self._kept.pop((host, port), None)

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """Asks the resolver for the addresses of a host, or joins a caller that asks already.

        Raises:
            ConnectionError: the name cannot be resolved.
        """
        numeric = _numeric(host, port)
        if numeric is not None:
            return numeric
        key = (host, port)
        lookup = self._running.get(key)
        if lookup is None or trio.current_time() - lookup.began_s > JOINED_MAX_S:
            lookup = self._running[key] = _LookUp()
            trio.lowlevel.spawn_system_task(self._run, key, lookup)
        await lookup.done.wait()
        if isinstance(lookup.error, (OSError, UnicodeError)):
            reason = getattr(lookup.error, "strerror", None) or lookup.error
            raise ConnectionError(
                errno.EHOSTUNREACH, f"host name {host!r} cannot be resolved: {reason}"
            ) from lookup.error
        if lookup.error is not None:
            raise lookup.error
        return lookup.found

    async def _run(self, key: tuple[str, int], lookup: _LookUp) -> None:
        """Asks the resolver, as a task that no caller's cancellation reaches. It must not raise: trio would end."""
        host, port = key
        try:
            lookup.found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            lookup.error = error
        else:
            self._keep(key, lookup)
        finally:
            if self._running.get(key) is lookup:
                del self._running[key]
            lookup.done.set()

    def _keep(self, key: tuple[str, int], lookup: _LookUp) -> None:
        now_s = trio.current_time()
        if len(self._kept) >= KEPT_MAX:
            self._kept = {key: kept for key, kept in self._kept.items() if now_s < kept[1]}
        if len(self._kept) < KEPT_MAX:
            kept_s = min(KEPT_FACTOR * (now_s - lookup.began_s), KEPT_MAX_S)
            self._kept[key] = (lookup.found, now_s + kept_s)


def _numeric(host: str, port: int) -> Sequence[Address] | None:
    """Returns the address that ``host`` is, None if it is a name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None


_OF_THIS_RUN: trio.lowlevel.RunVar[NameLookups] = trio.lowlevel.RunVar("moldau name lookups")


def of_this_run() -> NameLookups:
    """Returns the look-ups of the present ``trio.run``; its tasks share them."""
    try:
        return _OF_THIS_RUN.get()
    except LookupError:
        lookups = NameLookups()
        _OF_THIS_RUN.set(lookups)
        return lookups
