"""The processor for trio: see ``process``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.consumer import CommitFailedError
from moldau.processing.steps import POLL_MS, Plan, plan_of
from moldau.protocol.errors import KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau.serialization.core.values import KeyOut, RecordDeserializationError, ValueOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.consumer import ConsumedRecord, Consumer
    from moldau.processing.core.retry_topics import RetryTopics
    from moldau.processing.core.work import Order
    from moldau.producer import OutputRecord, Producer

FAREWELL_S = 5.0
"""How long a cancelled processor takes to commit what it has processed."""

_logger = EventLogger("moldau.processing")


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
        ConfigError: the consumer commits by itself (``enable.auto.commit``).
        ExceptionGroup: a handler or a poll raised.
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
    return await _Processor(consumer, handler, plan, producer, until).run()


class _Processor:
    """Invariant: only ``run`` calls the consumer; handlers touch the work alone."""

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        handler: Callable[[ConsumedRecord[Any, Any]], Awaitable[object]],
        plan: Plan,
        producer: Producer[Any, Any] | None,
        until: Callable[[], bool],
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._plan = plan
        self._work = plan.work
        self._producer = producer
        self._until = until
        self._client = consumer._opened()[0]

    def _wall_ms(self) -> int:
        return int(self._client.environment.clock.wall_ms())

    async def run(self) -> int:
        work = self._work
        try:
            async with trio.open_nursery() as nursery:
                due_s = trio.current_time() + self._plan.commit_interval_ms / 1000
                while not self._until():
                    await self._poll()
                    self._start(nursery)
                    if trio.current_time() >= due_s:
                        await self._commit()
                        due_s = trio.current_time() + self._plan.commit_interval_ms / 1000
                self._until = lambda: True
        finally:
            with trio.move_on_after(FAREWELL_S, shield=True):
                await self._commit()
        return work.finished

    async def _poll(self) -> None:
        work, consumer = self._work, self._consumer
        paused, resumed = work.to_pause(), work.to_resume()
        consumer.pause(*(each for each in paused if each in consumer.assignment))
        consumer.resume(*(each for each in resumed if each in consumer.assignment))
        try:
            work.take(await consumer.poll(POLL_MS))
        except RecordDeserializationError as error:
            if self._plan.retries is None:
                raise
            await self._send(self._plan.retries.failed(error, error, self._wall_ms()), is_raw=True)
            work.skip(error.topic_partition, error.offset)
            consumer.seek(error.topic_partition, error.offset + 1)
        work.retain(consumer.assignment)

    def _start(self, nursery: trio.Nursery) -> None:
        while not self._until() and (record := self._work.start(self._wall_ms())) is not None:
            nursery.start_soon(self._handle, nursery, record)

    async def _handle(self, nursery: trio.Nursery, record: ConsumedRecord[Any, Any]) -> None:
        is_done = False
        try:
            try:
                await self._handler(record)
            except Exception as error:
                if self._plan.retries is None:
                    raise
                _logger.warning("record-failed", topic=record.topic, offset=record.offset, error=error)
                await self._send(self._plan.retries.failed(record, error, self._wall_ms()))
            is_done = True
        finally:
            (self._work.finish if is_done else self._work.fail)(record)
        self._start(nursery)

    async def _send(self, output: OutputRecord[Any, Any], *, is_raw: bool = False) -> None:
        assert self._producer is not None
        topic, value, key, headers, *_ = output
        send = self._producer.send_bytes if is_raw else self._producer.send
        await (await send(topic, value, key, headers=headers))

    async def _commit(self) -> None:
        """Commits what is processed; a member that has lost its partitions reads them again elsewhere."""
        self._work.retain(self._consumer.assignment)
        offsets = self._work.to_commit()
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, KafkaError, trio.TooSlowError) as error:
            _logger.warning("commit-failed", error=error)
        else:
            self._work.committed(offsets)
