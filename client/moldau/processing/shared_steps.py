"""The steps of a processor that trio and asyncio share: poll, handle one record, send a failed one, commit.

The faces differ in how they start tasks, wait and shield. They own one ``SharedSteps`` each.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from moldau.consumer import CommitFailedError
from moldau.processing.steps import POLL_MS, HandlerError, Plan, awaitable, no_room, shorter
from moldau.protocol.errors import KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau.serialization.core.values import RecordDeserializationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer import ConsumedBatch, ConsumedRecord
    from moldau.producer import OutputRecord

_logger = EventLogger("moldau.processing")


class AsyncConsumer(Protocol):
    """The calls that a processor makes, which the consumers of trio and asyncio both have."""

    @property
    def assignment(self) -> Iterable[TopicPartition]:
        """The partitions that the consumer reads."""

    @property
    def clusters_left(self) -> int:
        """How often the consumer has gone to another cluster."""

    async def poll(self, timeout_ms: float = ...) -> list[ConsumedBatch[Any, Any]]:
        """Returns records."""

    async def commit(
        self, offsets: Mapping[tuple[str, int], int | CommittedOffset], *, cluster: int | None = None
    ) -> None:
        """Commits offsets."""

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops reading partitions."""

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Reads paused partitions again."""

    def seek(
        self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1, cluster: int | None = None
    ) -> None:
        """Sets a position."""


class SharedSteps:
    """Invariant: only ``poll`` and ``commit`` call the consumer; ``handle`` touches the work alone."""

    def __init__(
        self,
        consumer: AsyncConsumer,
        handler: Callable[[ConsumedRecord[Any, Any]], Awaitable[object]],
        plan: Plan,
        producer: Any,  # noqa: ANN401 - the producer of either face
        *,
        wall_ms: Callable[[], int],
        too_slow: type[Exception],
    ) -> None:
        """``wall_ms`` is the time since the Unix epoch, ``too_slow`` what calls of this face raise at their timeout."""
        self._consumer = consumer
        self._handler = handler
        self._plan = plan
        self._work = plan.work
        self._producer = producer
        self._wall_ms = wall_ms
        # A consumer that another task has closed raises a RuntimeError; the next poll says so, or an earlier failure.
        self._commit_errors = (CommitFailedError, KafkaError, too_slow, RuntimeError)

    async def poll(self) -> None:
        """Pauses and resumes partitions as the work demands, then takes the records of one poll."""
        work, consumer = self._work, self._consumer
        paused, resumed = work.to_pause(), work.to_resume()
        consumer.pause(*(each for each in paused if each in consumer.assignment))
        consumer.resume(*(each for each in resumed if each in consumer.assignment))
        try:
            batches = await consumer.poll(POLL_MS)
            work.follow(consumer.clusters_left)
            work.take(batches)
        except RecordDeserializationError as error:
            if self._plan.retries is None:
                raise
            await self._send(self._plan.retries.failed(error, error, self._wall_ms()), is_raw=True)
            with contextlib.suppress(LookupError):  # in another cluster the offset is of another record
                consumer.seek(error.topic_partition, error.offset + 1, cluster=error.cluster)
                work.follow(error.cluster)
                work.skip(error.topic_partition, error.offset)
        work.retain(consumer.assignment)

    def next_record(self) -> ConsumedRecord[Any, Any] | None:
        """Returns the next record that may be handled now; None if there is none."""
        return self._work.start(self._wall_ms())

    async def handle(self, record: ConsumedRecord[Any, Any]) -> None:
        """Calls the handler for a record, sends the record to its retry topic if that fails, and counts it as finished.

        Raises:
            HandlerError: the handler is no coroutine function.
            Exception: the handler failed, and there are no retry topics.
        """
        is_done = False
        try:
            try:
                await awaitable(self._handler(record))
            except Exception as error:
                if self._plan.retries is None or isinstance(error, HandlerError):
                    raise
                _logger.warning("record-failed", topic=record.topic, offset=record.offset, error=error)
                await self._send(self._plan.retries.failed(record, error, self._wall_ms()))
            is_done = True
        finally:
            (self._work.finish if is_done else self._work.fail)(record)

    async def _send(self, output: OutputRecord[Any, Any], *, is_raw: bool = False) -> None:
        send = self._producer.send_bytes if is_raw else self._producer.send

        async def attempt(output: OutputRecord[Any, Any]) -> None:
            topic, value, key, headers, *_ = output
            await (await send(topic, value, key, headers=headers))

        try:
            await attempt(output)
        except KafkaError as error:
            output = shorter(output, error)
            try:
                await attempt(output)
            except KafkaError as again:
                raise no_room(output, again) from error

    @contextlib.contextmanager
    def ending(self, *, has_failed: bool) -> Iterator[None]:
        """Logs an error of the end if the processor ends by another one, which it would hide."""
        try:
            yield
        except Exception as error:
            if not has_failed:
                raise
            _logger.warning("processing-not-ended", error=error)

    def end(self) -> None:
        """Returns the records that were not processed to the consumer, and ends the pauses, once no handler runs.

        Otherwise the next poll would begin behind these records, and the commits after it would include them.
        """
        work, consumer = self._work, self._consumer
        work.follow(consumer.clusters_left)
        work.retain(consumer.assignment)
        for partition, offset in work.to_return().items():
            with contextlib.suppress(LookupError):  # the consumer has gone to another cluster since
                consumer.seek(partition, offset, cluster=work.cluster)
        consumer.resume(*(each for each in work.paused() if each in consumer.assignment))

    async def commit(self) -> None:
        """Commits what is processed; a member that has lost its partitions reads them again elsewhere."""
        self._work.follow(self._consumer.clusters_left)
        self._work.retain(self._consumer.assignment)
        offsets = self._work.to_commit()
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets, cluster=self._work.cluster)
        except self._commit_errors as error:
            _logger.warning("commit-failed", error=error)
        else:
            self._work.committed(offsets)
