"""Looks host names up, so that a slow name server costs time and not the connection.

A resolver whose first name server is down asks the second one after five seconds (resolv.conf(5), ``timeout``), each
time again. A caller that gives an attempt to connect one second would never get an answer, however often it tried. So
a look-up goes on when its callers have given up, and later callers join it. Its answer is kept for a few times as long
as it took: a fast name server is asked for each connection, a slow one now and then.

A look-up can also hang because the name did not exist yet when it began, as that of a container does before its start.
So others begin beside it, after one second, two, four and so on; the first that ends answers all callers.

Each look-up takes one of the threads that trio lends to all, and cannot be ended. A part of them is left to other work,
and look-ups beside others leave room for those of other names.
"""

from __future__ import annotations

import errno
import math
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
BESIDE_MIN_S: Final = 1.0
"""The first look-up that begins beside another one of the same name, begins so long after it."""
RUNNING_MAX: Final = 8
"""The most look-ups of one name that count as running; the last of them begins a minute after the first."""
RUNNING_MAX_S: Final = 300.0
"""How long a look-up counts as running: no resolver is known to take longer, but one may hang for good."""
THREADS_MAX: Final = 32
"""The most look-ups of all names at once; trio lends 40 threads."""
BESIDE_MAX: Final = 16
"""No look-up begins beside another one of its name while so many of all names run."""

Address = tuple[int, int, int, str, tuple[Any, ...]]
"""Family, type, protocol, canonical name and socket name, as of ``socket.getaddrinfo``."""


class _Answer:
    """The outcome of the next look-up of a name that ends, for which its callers wait."""

    __slots__ = ("error", "found", "has_come")

    def __init__(self) -> None:
        self.has_come = trio.Event()
        self.found: Sequence[Address] = ()
        self.error: Exception | None = None


class _Name:
    """The look-ups of one name that run."""

    __slots__ = ("answer", "began_s")

    def __init__(self) -> None:
        self.answer = _Answer()
        self.began_s: list[float] = []
        """When each began, the oldest first."""

    def next_s(self) -> float:
        """Returns when another look-up is to begin beside those that run."""
        if not self.began_s:
            return -math.inf
        oldest_s, youngest_s = self.began_s[0], self.began_s[-1]
        if len(self.began_s) >= RUNNING_MAX:
            return oldest_s + RUNNING_MAX_S
        return youngest_s + max(BESIDE_MIN_S, youngest_s - oldest_s)

    def begin(self, now_s: float) -> None:
        """Notes that a look-up begins."""
        if len(self.began_s) >= RUNNING_MAX:
            del self.began_s[0]
        self.began_s.append(now_s)

    def end(self, began_s: float) -> None:
        """Notes that the look-up that began then has ended."""
        if began_s in self.began_s:
            self.began_s.remove(began_s)


class NameLookups:
    """The look-ups of one ``trio.run``."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], _Name] = {}
        self._kept: dict[tuple[str, int], tuple[Sequence[Address], float]] = {}
        self._threads = trio.CapacityLimiter(THREADS_MAX)

    def kept(self, host: str, port: int) -> Sequence[Address] | None:
        """Returns the answer of an earlier look-up that took long, None if there is none."""
        found, until_s = self._kept.get((host, port), ((), 0.0))
        return found if trio.current_time() < until_s else None

    def forget(self, host: str, port: int) -> None:
        """Drops a kept answer: no connection came of it, so the host may have moved.

        Later callers join no look-up that has begun before.
        """
        self._kept.pop((host, port), None)
        self._names.pop((host, port), None)

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """Asks the resolver for the addresses of a host, or joins a caller that asks already.

        Raises:
            ConnectionError: the name cannot be resolved.
        """
        numeric = _numeric(host, port)
        if numeric is not None:
            return numeric
        name = self._names.setdefault((host, port), _Name())
        answer = name.answer
        while not answer.has_come.is_set():
            now_s = trio.current_time()
            if name.next_s() <= now_s and (not name.began_s or self._threads.borrowed_tokens < BESIDE_MAX):
                name.begin(now_s)
                trio.lowlevel.spawn_system_task(self._run, host, port, name, now_s)
            next_s = name.next_s()
            with trio.move_on_at(next_s if next_s > now_s else now_s + BESIDE_MIN_S):
                await answer.has_come.wait()
        if isinstance(answer.error, (OSError, UnicodeError)):
            reason = getattr(answer.error, "strerror", None) or answer.error
            raise ConnectionError(
                errno.EHOSTUNREACH, f"host name {host!r} cannot be resolved: {reason}"
            ) from answer.error
        if answer.error is not None:
            raise answer.error
        return answer.found

    async def _run(self, host: str, port: int, name: _Name, began_s: float) -> None:
        """Asks the resolver, as a task that no caller's cancellation reaches. It must not raise: trio would end."""
        key = (host, port)
        found: Sequence[Address] = ()
        failed: Exception | None = None
        try:
            try:
                self._threads.acquire_nowait()
            except trio.WouldBlock:
                await self._threads.acquire()
            try:
                found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            finally:
                self._threads.release()
        except Exception as error:  # noqa: BLE001 - each caller raises it
            failed = error
        else:
            if self._names.get(key) is name:  # no other look-up of these has answered, and none is forgotten
                self._keep(host, port, found, trio.current_time() - began_s)
                del self._names[key]
        finally:
            name.end(began_s)
            if not name.began_s and self._names.get(key) is name:
                del self._names[key]
            answer, name.answer = name.answer, _Answer()
            answer.found, answer.error = found, failed
            answer.has_come.set()

    def _keep(self, host: str, port: int, found: Sequence[Address], took_s: float) -> None:
        now_s = trio.current_time()
        if len(self._kept) >= KEPT_MAX:
            self._kept = {key: kept for key, kept in self._kept.items() if now_s < kept[1]}
        if len(self._kept) < KEPT_MAX:
            self._kept[host, port] = (found, now_s + min(KEPT_FACTOR * took_s, KEPT_MAX_S))


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
