"""Checks that a trio client is called from the trio run in the thread that opened it.

A client's state belongs to one thread and has no locks. A call from another thread would race with it, or wait for a
trio event that no trio run delivers. Such calls raise an error that names the client for ordinary threads.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, NoReturn, Self

import trio

if TYPE_CHECKING:
    from types import TracebackType


FORKED = -1
"""The ``thread_id`` of a client in a forked process: no thread has it, so the check costs calls nothing."""


class Caller:
    """Checks the calling thread of one client. ``thread_id`` is 0 until the client is opened."""

    __slots__ = ("__weakref__", "_kind", "_pid", "thread_id")

    def __init__(self, kind: str) -> None:
        """Takes the name of the client's class: Producer, Consumer or Admin."""
        self._kind = kind
        self._pid = 0
        self.thread_id = 0

    def enter(self) -> None:
        """Makes the current thread the client's own.

        Raises:
            RuntimeError: no trio run is active in the thread.
        """
        if not trio.lowlevel.in_trio_run():
            raise self._misplaced()
        self.thread_id = threading.get_ident()
        self._pid = os.getpid()
        _open_callers.add(self)

    def check(self) -> None:
        """Checks that the call comes from the client's thread and trio run.

        Raises:
            RuntimeError: it does not.
        """
        if self.thread_id != threading.get_ident() or not trio.lowlevel.in_trio_run():
            self.refuse()

    def refuse(self) -> NoReturn:
        """Refuses a call from the wrong place, or to a client that is not open.

        Raises:
            RuntimeError: always; the text says what to use.
        """
        kind = self._kind
        if self.thread_id == FORKED:
            raise RuntimeError(
                f"this {kind} was opened in process {self._pid}, before a fork, and its connections belong to that "
                "process; open a client of its own in each process"
            )
        if not trio.lowlevel.in_trio_run():
            raise self._misplaced()
        if self.thread_id in (0, threading.get_ident()):
            noun = {"Admin": "admin client"}.get(kind, kind.lower())
            raise RuntimeError(f"the {noun} is not open; use it as `async with {kind}(...) as ...`")
        raise RuntimeError(
            f"this {kind} was opened in another thread, and only that one may call it; "
            f"moldau.blocking.{kind} is for other threads"
        )

    def _misplaced(self) -> RuntimeError:
        kind = self._kind
        if in_asyncio_task():
            return RuntimeError(
                f"moldau.{kind} runs under trio, and this is an asyncio event loop; use moldau.aio.{kind}"
            )
        return RuntimeError(
            f"moldau.{kind} runs under trio, and no trio run is active in this thread; use moldau.blocking.{kind}"
        )


_open_callers: weakref.WeakSet[Caller] = weakref.WeakSet()


def _note_fork() -> None:
    for caller in list(_open_callers):
        caller.thread_id = FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def in_asyncio_task() -> bool:
    """Returns whether an asyncio event loop runs in this thread."""
    asyncio = sys.modules.get("asyncio")  # not imported here, which saves memory in nodes and trio programs
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Unportable:
    """Base of clients: they cannot be sent to another process, nor copied."""

    def __reduce__(self) -> NoReturn:
        """Refuses ``pickle`` and ``copy``; the error says what to do.

        Raises:
            TypeError: always.
        """
        kind = type(self).__name__
        article = "an" if kind[0] in "AEIOU" else "a"
        raise TypeError(f"{article} {kind} can be neither copied nor sent to another process; open one in each")

    def _twin(self) -> Self:
        """Returns another object of the same open client."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin


class AsyncOnly(Unportable):
    """Base of clients that are opened with ``async with``; ``with`` raises an error that says so."""

    def __enter__(self) -> NoReturn:
        """Refuses ``with``; the error names the class to use.

        Raises:
            TypeError: always.
        """
        kind = type(self).__name__
        raise TypeError(f"use `async with moldau.{kind}(...)` under trio, or `with moldau.blocking.{kind}(...)`")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Never reached: ``__enter__`` raises."""
