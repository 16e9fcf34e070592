"""Delays signal handlers that raise, as those of time limits of tests do, until trio's own code has ended.

An exception in the middle of that code ends trio's loop without its tasks. Python then collects them as garbage in any
code, which fails; pytest itself has ended with an internal error. Code of a task is interrupted at once, because it may
never wait.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

LOOP = "unrolled_run"
"""Name of trio's function that runs the tasks."""


class Alarms:
    """Calls of SIGALRM's handler that wait for the end of a step."""

    def __init__(self) -> None:
        """Delays nothing yet."""
        self.waiting: list[int] = []
        """Numbers of the signals that came while trio's own code ran."""
        self._handler: object = None

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Takes the place of the handler. Only the main thread has one, if the process has any."""
        self._handler = signal.getsignal(signal.SIGALRM)
        if threading.current_thread() is not threading.main_thread() or not callable(self._handler):
            yield
            return
        mine = self._came
        signal.signal(signal.SIGALRM, mine)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGALRM) == mine:
                signal.signal(signal.SIGALRM, self._handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        self.waiting.append(number)
        if runs_task(frame):
            self.strike(frame)

    def strike(self, frame: FrameType | None = None) -> None:
        """Calls the handler for the signals that have come; what it raises passes through."""
        while self.waiting:
            assert callable(self._handler), "only its signals are counted"
            self._handler(self.waiting.pop(0), frame)


def runs_task(frame: FrameType | None) -> bool:
    """Returns whether the code of a task runs in a frame: trio's loop, and nothing else of trio, has called it."""
    if frame is not None and frame.f_globals.get("__name__", "").startswith("trio."):
        return False
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("trio."):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != LOOP:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False  # The loop has called a clock, an instrument or a queue.
    return True
