"""Ends a run early if tasks never rest or a request fails inside a node."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import trio
from trio.abc import Instrument

from moldau_jepsen.places import place_of
from moldau_jepsen.world.disk.disk import CRASHED_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_jepsen.world.time.timeline import VirtualClock

TURNS_AT_ONE_INSTANT_MAX = 100_000
LOG_LINES_MAX = 5_000


class StepGuard(Instrument):
    """Ends a run in which tasks keep running without time advancing: a busy loop that would never end.

    ``turn_ended`` is for the watchers of the world's agenda. Tasks are looked at one by one only when half of the turns
    that are allowed at one instant have passed.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._instant = -1.0
        self._turns = 0
        self._by_task: dict[trio.lowlevel.Task, int] = {}
        self._looks = False  # whether this is one of trio's instruments now
        self.found: str | None = None
        self.on_found: Callable[[], None] | None = None

    def turn_ended(self) -> None:
        """Looks at what a turn of the event loop has changed."""
        now = self._clock.now
        if now != self._instant:
            self._instant = now
            self._turns = 0
            self.end()
            return
        self._turns += 1
        if self._turns >= TURNS_AT_ONE_INSTANT_MAX // 2 and not self._looks:
            self._looks = True
            trio.lowlevel.add_instrument(self)
        if self._turns >= TURNS_AT_ONE_INSTANT_MAX and self.found is None:
            busiest = max(self._by_task, key=lambda one: self._by_task[one])
            frames = [f"{frame.f_code.co_qualname}:{line}" for frame, line in busiest.iter_await_frames()]
            self.found = f"busy loop at {now:.6f} s in {busiest.name}: {' < '.join(reversed(frames))}"
            if self.on_found is not None:
                self.on_found()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Notes that a task has run."""
        self._by_task[task] = self._by_task.get(task, 0) + 1

    def end(self) -> None:
        """Looks at tasks no more."""
        if self._looks:
            self._looks = False
            self._by_task.clear()
            trio.lowlevel.remove_instrument(self)


class LogLines(logging.Handler):
    """Takes the nodes' log lines into the timeline; a failed request is a violation."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.failures: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        line = f"{trio.current_time():12.6f}  {record.levelname.lower():<12} {record.name} {text}"
        if len(self.lines) < LOG_LINES_MAX:
            self.lines.append(line)
        if text.startswith("request-failed"):
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, OSError) and CRASHED_TEXT in str(error):
                return  # the process died in the middle of the request
            self.failures.append(f"{text} {place_of(error)}")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Takes all lines of Moldau while it lasts, and lets none through to other handlers."""
        logger = logging.getLogger("moldau")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate
