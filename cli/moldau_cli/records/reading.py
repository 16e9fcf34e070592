"""Reads records for ``moldau consume``: chooses the partitions, seeks, and hands each record to a writer."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.records.core.positions import LogRange, Origin, starts, stops
from moldau_cli.records.core.values import Content, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from moldau import Consumer, TopicPartition
    from moldau.consumer import ConsumedBatch
    from moldau.records import Record
    from moldau.serialization import RecordDeserializationError
    from moldau_cli.records.core.positions import Span

POLL_MS: Final = 500
NOTES_MAX: Final = 10
"""Records whose error is shown, of those that cannot be; a wrong schema would fill the screen."""


class OnError(enum.Enum):
    """The effect of a record that cannot be deserialized."""

    REPORT = enum.auto()
    """Reading goes on, and fails at its end."""
    SKIP = enum.auto()
    """Reading goes on."""
    END = enum.auto()
    """Reading fails at once."""


class Sink(Protocol):
    """Where records go."""

    def write_values(self, records: Sequence[Record[Any, Any]]) -> bool:
        """Writes records whose values alone are wanted; returns whether it did so."""

    def write(self, row: Row) -> None:
        """Writes a record."""

    def flush(self) -> None:
        """Hands what is written to the reader of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The records to read.

    ``pattern`` is a regular expression for whole topic names, instead of ``topics``. Empty ``partitions`` are all.
    ``idle_ms`` ends reading after that time without a record. ``errors`` is the effect of a record that cannot be
    deserialized.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[int] = frozenset()
    span: Span
    group: str | None = None
    count: int | None = None
    idle_ms: float | None = None
    errors: OnError = OnError.REPORT


async def assign(consumer: Consumer[Any, Any], request: Request) -> dict[TopicPartition, int]:
    """Assigns partitions at their first offsets; returns the exclusive ends, empty if reading has none.

    Raises:
        UsageError: a topic does not have a partition.
        KafkaError: a topic cannot be read.
    """
    from moldau import TopicPartition

    wanted: list[TopicPartition] = []
    for topic in request.topics:
        known = [one.partition for one in await consumer.partitions_for(topic)]
        for number in sorted(request.partitions - set(known)):
            raise UsageError(f"topic {topic} has partitions 0 to {len(known) - 1}, not {number}")
        wanted += [TopicPartition(topic, number) for number in known if number in (request.partitions or known)]
    consumer.assign(wanted)
    begins, ends = await consumer.beginning_offsets(wanted), await consumer.end_offsets(wanted)
    logs = {one: LogRange(begin=begins[one], end=ends[one]) for one in wanted}
    times = await _at(consumer, wanted, request.span.from_time_ms)
    first = starts(request.span, logs, times, within=not request.partitions)
    if request.span.origin is not Origin.LATEST or request.span.is_bounded:
        for partition, offset in first.items():
            consumer.seek(partition, offset)
    last = stops(request.span, logs, await _at(consumer, wanted, request.span.to_time_ms))
    for partition, end in last.items():
        if end <= first.get(partition, 0):
            consumer.pause(partition)
    return {partition: end for partition, end in last.items() if end > first.get(partition, 0)}


async def _at(
    consumer: Consumer[Any, Any], wanted: Iterable[TopicPartition], time_ms: int | None
) -> Mapping[TopicPartition, int]:
    if time_ms is None:
        return {}
    found = await consumer.offsets_for_times(dict.fromkeys(wanted, time_ms))
    return {partition: offset for partition, (offset, _) in found.items()}


async def matching_topics(bootstrap_settings: Mapping[str, str], pattern: str) -> tuple[str, ...]:
    """Returns the topics whose whole name matches a regular expression.

    Raises:
        UsageError: the expression is wrong, or no topic matches.
    """
    from moldau import Admin
    from moldau_cli.records.topic_checks import first_answer

    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--include: {pattern!r} is no regular expression: {error}") from error
    async with Admin(bootstrap_settings) as admin:
        names = [topic.name for topic in await first_answer(admin, lambda asked: asked.list_topics())]
    found = tuple(name for name in names if expression.fullmatch(name))
    if not found:
        raise UsageError(f"--include: no topic matches {pattern!r}")
    return found


class Pump:
    """Hands records to a sink until the request is fulfilled."""

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        request: Request,
        sink: Sink,
        ends: dict[TopicPartition, int],
        now_ms: Callable[[], float],
    ) -> None:
        """``ends`` are the exclusive ends of partitions; empty means that reading has none, or has reached them."""
        self._consumer = consumer
        self._request = request
        self._sink = sink
        self._ends = ends
        self._now_ms = now_ms
        self._has_ends = request.span.is_bounded and request.group is None
        self.written = 0
        self.skipped = 0

    async def run(self) -> None:
        """Reads until the count, all ends, or the idle time is reached.

        Raises:
            CommandError: records cannot be deserialized, and the request does not accept that.
        """
        await self._read()
        if self.skipped and self._request.errors is OnError.REPORT:
            records = "record was" if self.skipped == 1 else "records were"
            raise CommandError(f"{self.skipped} {records} left out that cannot be deserialized (--skip-errors)")

    async def _read(self) -> None:
        request = self._request
        last_ms = self._now_ms()
        while not self._is_done():
            left = None if request.count is None else request.count - self.written
            handled = self.written + self.skipped
            for batch in await self._polled(left):
                self._write(batch)
            self._sink.flush()
            self._retire()
            if self.written + self.skipped > handled:
                last_ms = self._now_ms()
            elif request.idle_ms is not None and self._now_ms() - last_ms >= request.idle_ms:
                return

    def _is_done(self) -> bool:
        counted = self._request.count is not None and self.written >= self._request.count
        return counted or (self._has_ends and not self._ends)

    async def _polled(self, left: int | None) -> list[ConsumedBatch[Any, Any]]:
        from moldau.serialization import RecordDeserializationError, RegistryError, SerializationError

        wait_ms = POLL_MS if self._request.idle_ms is None else min(POLL_MS, self._request.idle_ms)
        try:
            return await self._consumer.poll(wait_ms, max_records=left)
        except RecordDeserializationError as error:
            self._skip(error)
            return []
        except (RegistryError, SerializationError) as error:
            raise CommandError(str(error)) from error

    def _skip(self, error: RecordDeserializationError) -> None:
        place = f"{error.topic_partition} offset {error.offset}"
        if self._request.errors is OnError.END:
            raise CommandError(f"{place}: {error}; --skip-errors leaves such records out") from error
        self.skipped += 1
        if self.skipped <= NOTES_MAX:
            output.note(f"skipped {place}: {' '.join(str(error).split())}")
        elif self.skipped == NOTES_MAX + 1:
            output.note("more records cannot be deserialized; they are skipped without a line each")
        self._consumer.seek(error.topic_partition, error.offset + 1)

    def _write(self, batch: ConsumedBatch[Any, Any]) -> None:
        end = self._ends.get(batch.topic_partition)
        records = batch.records
        if end is not None and records and records[-1].offset >= end:
            records = [record for record in records if record.offset < end]
        if not self._sink.write_values(records):
            for record in records:
                self._sink.write(row_of(batch, record))
        self.written += len(records)

    def _retire(self) -> None:
        """Pauses partitions that are read to their ends; markers and gaps at an end count as read."""
        for partition, end in list(self._ends.items()):
            at = self._consumer.position_nowait(partition)
            if at is not None and at >= end:
                del self._ends[partition]
                self._consumer.pause(partition)


def row_of(batch: ConsumedBatch[Any, Any], record: Record[Any, Any]) -> Row:
    """Returns a consumed record as a row."""
    return Row(
        batch.topic,
        batch.partition,
        record.offset,
        record.timestamp,
        _content(record.key),
        _content(record.value),
        record.headers,
    )


def _content(value: bytes | Content | None) -> Content:
    return value if isinstance(value, Content) else Content(value, value)
