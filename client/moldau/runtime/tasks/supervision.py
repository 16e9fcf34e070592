"""Helpers for long-running tasks: exponential backoff, restarts after temporary failures, and a task group.

The caller names the exceptions after which a task restarts. Any other exception, such as the ``AssertionError`` of a
broken invariant, ends the node, which then restarts with clean state from its disk.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

import trio

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable

    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger

Ts = TypeVarTuple("Ts")


class TaskHost:
    """Tasks that others start while their owner runs.

    A nursery closes when its last task ends, which is before the task that opened it resumes; another task may run in
    between. So the group accepts no task once its end has begun.
    """

    def __init__(self) -> None:
        """Creates a group whose owner does not run yet."""
        self._nursery: trio.Nursery | None = None

    @property
    def accepts(self) -> bool:
        """Whether ``start`` may be called."""
        return self._nursery is not None

    def start(self, task: Callable[[Unpack[Ts]], Awaitable[object]], *args: *Ts) -> None:
        """Starts a task, which ends with the owner at the latest."""
        assert self._nursery is not None, "it takes in no tasks"
        self._nursery.start_soon(task, *args)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accepts tasks until the block ends, then waits for them."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self._nursery = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Waits of ``initial_ms * factor**n``, at most ``max_ms``, each spread by ``jitter`` (KIP-580: 0.2)."""

    initial_ms: float = 100.0
    max_ms: float = 1_000.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay_ms(self, failures: int, random: random.Random) -> float:
        """Returns the wait after the ``failures``-th failure in a row (1 is the first)."""
        assert failures >= 1, "no wait before the first failure"
        exponent = min(failures - 1, 64)
        delay = min(self.max_ms, self.initial_ms * self.factor**exponent)
        return delay * (1 + self.jitter * (2 * random.random() - 1))


async def run_with_restarts(
    environment: Environment,
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    restart_on: tuple[type[Exception], ...] = (OSError, trio.TooSlowError),
    policy: BackoffPolicy | None = None,
    healthy_ms: float = 10_000.0,
    logger: EventLogger,
) -> None:
    """Runs ``work`` until it returns; after an exception of ``restart_on`` waits and runs it again, without end.

    A run of at least ``healthy_ms`` forgets the earlier failures. Exception groups are restarted when all that is in
    them is of ``restart_on``.
    """
    policy = policy if policy is not None else BackoffPolicy()
    failures = 0
    while True:
        started_ms = environment.clock.monotonic_ms()
        try:
            await work()
        except BaseExceptionGroup as group:
            if group.split(restart_on)[1] is not None:
                raise
            error: BaseException = group
        except restart_on as single:
            error = single
        else:
            return
        if environment.clock.monotonic_ms() - started_ms >= healthy_ms:
            failures = 0
        failures += 1
        delay_ms = policy.delay_ms(failures, environment.random)
        logger.warning("restarting", task=name, error=repr(error), failures=failures, delay_ms=delay_ms)
        await trio.sleep(delay_ms / 1000)


async def set_when_cancelled(event: trio.Event) -> None:
    """Sleeps until it is cancelled, then sets the event."""
    try:
        await trio.sleep_forever()
    finally:
        event.set()


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    """Cancels the scope once the event is set."""
    await event.wait()
    scope.cancel()
