"""Decides what the supervisor of a group of processes does. Pure.

All processes start together. A process that ends is started again after a wait, which doubles with each end that comes
before ``STEADY_MS`` of service, up to ``RESTART_MAX_MS``. The group fails in two cases, both before it was ready for
the first time: a process refuses to start (its configuration cannot be used, or a port is taken), or one ends
``FAILURES_MAX`` times in a row. Later, other processes serve on, so a process that does not start is tried again.

A stop ends all processes but those of ``last`` together, and then the others: brokers hand their leaderships over while
the controller that is to be stopped with them still serves.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

RESTART_MIN_MS: Final = 250.0
RESTART_MAX_MS: Final = 30_000.0
STEADY_MS: Final = 60_000.0
"""Service after which a process counts as healthy: its next restart waits ``RESTART_MIN_MS``."""
FAILURES_MAX: Final = 5
TERMINATED: Final = -15
"""The exit code of a process that SIGTERM reached before it could handle it."""
STOP_MAX_MS: Final = 30_000.0
"""Processes of a failed group get so long to end; then they are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a process."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """Send SIGTERM to a process: a controlled shutdown."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Send SIGKILL to a process."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Report that the group serves. It comes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End the supervisor; no process is left."""

    code: int


Effect = Start | Terminate | Kill | Ready | Exit


class Phase(enum.Enum):
    """The state of one process."""

    STARTING = enum.auto()
    SERVING = enum.auto()
    WAITING = enum.auto()
    """It ended, and starts again later."""
    STOPPING = enum.auto()
    """It was asked to end."""
    ENDED = enum.auto()
    """It ended, and stays so."""


@dataclass(slots=True)
class _Process:
    phase: Phase = Phase.STARTING
    failures: int = 0
    """Ends since the process last served for ``STEADY_MS``."""
    since_ms: float = 0.0
    """Begin of the phase; for WAITING the time of the next start."""
    beaten_ms: float = 0.0
    """When the process last said that its event loop turns."""

    @property
    def runs(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.SERVING, Phase.STOPPING)


@dataclass(slots=True)
class Group:
    """The processes of a group, numbered from 0. Invariant: after ``Exit``, none runs."""

    count: int
    last: frozenset[int] = frozenset()
    """Processes that stop after the others: those with a controller."""
    silence_ms: float = 0.0
    """A serving process that is silent for so long is killed; 0: none is."""
    _processes: list[_Process] = field(default_factory=list)
    _was_ready: bool = False
    _exit_code: int | None = None
    """Exit code of the supervisor at its end; None while the group is not stopping."""
    _kill_ms: float | None = None
    """When the rest of a failed group is killed."""

    def phase(self, index: int) -> Phase:
        """Returns the state of a process."""
        return self._processes[index].phase

    @property
    def is_stopping(self) -> bool:
        """Whether the group was stopped or has failed."""
        return self._exit_code is not None

    @property
    def serving(self) -> int:
        """The number of processes that serve."""
        return sum(process.phase is Phase.SERVING for process in self._processes)

    def begin(self, now_ms: float) -> list[Effect]:
        """Starts all processes."""
        self._processes = [_Process(since_ms=now_ms) for _ in range(self.count)]
        return [Start(index=index) for index in range(self.count)]

    def ready(self, index: int, now_ms: float) -> list[Effect]:
        """Notes that a process serves."""
        process = self._processes[index]
        if process.phase is not Phase.STARTING:
            return []
        process.phase, process.since_ms, process.beaten_ms = Phase.SERVING, now_ms, now_ms
        if self._was_ready or self.serving < self.count:
            return []
        self._was_ready = True
        return [Ready()]

    def beat(self, index: int, now_ms: float) -> None:
        """Notes that the event loop of a process runs."""
        self._processes[index].beaten_ms = now_ms

    def leaving(self, index: int, now_ms: float) -> None:
        """Notes that a process stops, because the group asked for it or a signal came."""
        process = self._processes[index]
        if process.phase is Phase.SERVING:
            process.failures = 0 if now_ms - process.since_ms >= STEADY_MS else process.failures
            process.phase, process.since_ms = Phase.STOPPING, now_ms

    def ended(self, index: int, code: int, now_ms: float) -> list[Effect]:
        """Notes that a process has ended; an exit code below zero is a signal."""
        process = self._processes[index]
        assert process.runs, f"process {index} ended twice"
        was_steady = process.phase is Phase.SERVING and now_ms - process.since_ms >= STEADY_MS
        process.failures = 1 if was_steady else process.failures + 1
        if self._exit_code is not None:
            process.phase = Phase.ENDED
            if code not in (EXIT_DONE, TERMINATED) and self._exit_code == EXIT_DONE:
                self._exit_code = EXIT_FAILED
            return self._go_on_stopping(now_ms)
        if not self._was_ready and (code == EXIT_USAGE or process.failures >= FAILURES_MAX):
            process.phase = Phase.ENDED
            self._kill_ms = now_ms + STOP_MAX_MS
            return self._stop(EXIT_USAGE if code == EXIT_USAGE else EXIT_FAILED, now_ms)
        process.phase = Phase.WAITING
        process.since_ms = now_ms + min(RESTART_MAX_MS, RESTART_MIN_MS * 2 ** (process.failures - 1))
        return []

    def stop(self, now_ms: float) -> list[Effect]:
        """Begins to end the group, as the operator wants."""
        return self._stop(EXIT_DONE, now_ms) if self._exit_code is None else []

    def _stop(self, code: int, now_ms: float) -> list[Effect]:
        self._exit_code = code
        for process in self._processes:
            if process.phase is Phase.WAITING:
                process.phase = Phase.ENDED
        return self._go_on_stopping(now_ms)

    def _go_on_stopping(self, now_ms: float) -> list[Effect]:
        assert self._exit_code is not None
        first = self._terminate((index for index in range(self.count) if index not in self.last), now_ms)
        if any(self._processes[index].runs for index in range(self.count) if index not in self.last):
            return first
        then = self._terminate(sorted(self.last), now_ms)
        if any(process.runs for process in self._processes):
            return then
        return [Exit(code=self._exit_code)]

    def _terminate(self, indexes: Iterable[int], now_ms: float) -> list[Effect]:
        effects: list[Effect] = []
        for index in indexes:
            process = self._processes[index]
            if process.phase in (Phase.STARTING, Phase.SERVING):
                process.phase, process.since_ms = Phase.STOPPING, now_ms
                effects.append(Terminate(index=index))
        return effects

    def next_deadline_ms(self) -> float | None:
        """Returns when ``on_timer`` has work next; None if only an event can bring some."""
        times = [process.since_ms for process in self._processes if process.phase is Phase.WAITING]
        if self._kill_ms is not None:
            times.append(self._kill_ms)
        if self.silence_ms:
            serving = (process for process in self._processes if process.phase is Phase.SERVING)
            times += [process.beaten_ms + self.silence_ms for process in serving]
        return min(times, default=None)

    def on_timer(self, now_ms: float) -> list[Effect]:
        """Starts processes whose wait is over, and kills those that hang."""
        effects: list[Effect] = []
        for index, process in enumerate(self._processes):
            if process.phase is Phase.WAITING and now_ms >= process.since_ms:
                process.phase, process.since_ms = Phase.STARTING, now_ms
                effects.append(Start(index=index))
        if self._kill_ms is not None and now_ms >= self._kill_ms:
            self._kill_ms = None
            effects += [Kill(index=index) for index, process in enumerate(self._processes) if process.runs]
        if self.silence_ms:
            for index, process in enumerate(self._processes):
                if process.phase is Phase.SERVING and now_ms - process.beaten_ms >= self.silence_ms:
                    process.beaten_ms = now_ms  # one kill is enough; its end follows
                    effects.append(Kill(index=index))
        return effects
