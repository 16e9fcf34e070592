"""The processor for trio: see ``process``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.cluster.background import exits_unwrapped
from moldau.processing.shared_steps import SharedSteps
from moldau.processing.steps import Plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.consumer import ConsumedRecord, Consumer
    from moldau.processing.core.retry_topics import RetryTopics
    from moldau.processing.core.work import Order
    from moldau.producer import Producer
    from moldau.serialization.core.values import KeyOut, ValueOut

FAREWELL_S = 5.0
"""How long a cancelled processor takes to commit what it has processed."""


async def process(
    consumer: Consumer[KeyOut, ValueOut],
    handler: Callable[[ConsumedRecord[KeyOut, ValueOut]], Awaitable[object]],
    *,
    concurrency: int = 10,
    order: Order = "partition",
    pending_max: int = 500,
    commit_interval_ms: float = 5000,
    retries: RetryTopics | None = None,
    producer: Producer[Any, Any] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Calls a coroutine function for each record, up to ``concurrency`` at a time, and commits in order.

    Records of one partition (``order="partition"``) or of one key of a partition (``"key"``) run one after the other;
    with ``"none"`` all may run at once. A partition with ``pending_max`` unfinished records is paused. Only offsets
    before which all records are processed are committed, so each record is processed at least once.

    With ``retries`` a record whose handler raises goes to a retry topic or the dead letters, by ``producer``, and
    counts as processed. Without, the exception ends ``process``; the record is not committed.

    Returns the number of records processed after ``until`` has returned True and the running handlers have ended; a
    cancellation commits what is processed.

    Raises:
        ConfigError: the consumer commits by itself (``enable.auto.commit``), or has no ``group.id``.
        ExceptionGroup: a handler or a poll raised; KeyboardInterrupt and SystemExit come without a group.
    """
    plan = plan_of(
        consumer=consumer,
        producer=producer,
        retries=retries,
        concurrency=concurrency,
        order=order,
        pending_max=pending_max,
        commit_interval_ms=commit_interval_ms,
    )
    clock = consumer._opened()[0].environment.clock
    steps = SharedSteps(
        consumer, handler, plan, producer, wall_ms=lambda: int(clock.wall_ms()), too_slow=trio.TooSlowError
    )
    return await _Processor(steps, plan, until).run()


class _Processor:
    """Runs the steps in trio tasks. ``run`` polls and commits; each record is handled in a task of its own."""

    def __init__(self, steps: SharedSteps, plan: Plan, until: Callable[[], bool]) -> None:
        self._steps = steps
        self._plan = plan
        self._until = until

    async def run(self) -> int:
        steps, interval_s = self._steps, self._plan.commit_interval_ms / 1000
        has_failed = True
        try:
            with exits_unwrapped():
                async with trio.open_nursery() as nursery:
                    due_s = trio.current_time() + interval_s
                    while not self._until():
                        await steps.poll()
                        self._start(nursery)
                        if trio.current_time() >= due_s:
                            await steps.commit()
                            due_s = trio.current_time() + interval_s
                    self._until = lambda: True
            has_failed = False
        finally:
            try:
                with steps.ending(has_failed=has_failed), trio.move_on_after(FAREWELL_S, shield=True):
                    await steps.commit()
            finally:
                with steps.ending(has_failed=has_failed):
                    steps.end()
        return self._plan.work.finished

    def _start(self, nursery: trio.Nursery) -> None:
        while not self._until() and (record := self._steps.next_record()) is not None:
            nursery.start_soon(self._handle, nursery, record)

    async def _handle(self, nursery: trio.Nursery, record: ConsumedRecord[Any, Any]) -> None:
        await self._steps.handle(record)
        self._start(nursery)
