"""Reads records for ``moldau consume``: chooses the partitions, seeks, and hands each record to a writer."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.records.core.positions import LogRange, Origin, starts, stops
from moldau_cli.records.core.values import Content, Row
from moldau_cli.words import absent_partition, expression_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau import Consumer, TopicPartition
    from moldau.consumer import ConsumedBatch
    from moldau.records import Record
    from moldau.serialization import RecordDeserializationError
    from moldau_cli.records.core.positions import Span

POLL_MS: Final = 500
START_MS_MIN: Final = 3000
"""How long the start positions may take at least: a look at each leader, also through TLS and a login."""
SILENCE_MS_MIN: Final = 3000
"""How long a record that is there may take to come at least."""
END_MS: Final = 3000
"""How long leaders may take to say where a silent partition ends."""
REASON_MS: Final = 3000
"""How long brokers may take to answer when the reason of a failure is looked for; those that do not are named.

A client that begins at a broker that hangs needs more than a second to ask another one.
"""
LOOK_MS: Final = 10_000
"""Silence after which a reader without a time limit looks for the reason; each further look waits twice as long."""
LOOK_MS_MAX: Final = 60_000
"""Longest wait between two looks for the reason of a silence."""
START_GROUP_MS_MIN: Final = 15_000
"""How long the assignment of a group may take at least: a new group waits 3 s for more members before the first one."""
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
    ``idle_ms`` ends reading after that time without a record, from when all start positions are known, if the leaders
    say that there is none. ``errors`` is the effect of a record that cannot be deserialized.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[int] = frozenset()
    span: Span
    group: str | None = None
    count: int | None = None
    idle_ms: float | None = None
    errors: OnError = OnError.REPORT

    @property
    def start_ms(self) -> float:
        """How long start positions may take; without ``idle_ms`` the limits of the consumer's calls decide."""
        if self.idle_ms is None:
            return math.inf
        return max(self.idle_ms, START_MS_MIN if self.group is None else START_GROUP_MS_MIN)

    @property
    def silence_ms(self) -> float:
        """How long records that are there may take to come; without ``idle_ms`` they have all the time."""
        return math.inf if self.idle_ms is None else max(self.idle_ms, SILENCE_MS_MIN)


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
            raise UsageError(absent_partition(topic, known, number))
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


async def matching_topics(
    bootstrap_settings: Mapping[str, str], pattern: str, within_s: float = math.inf
) -> tuple[str, ...]:
    """Returns the topics whose whole name matches a regular expression; ``within_s`` as in ``first_answer``.

    Raises:
        UsageError: the expression is wrong, or no topic matches.
    """
    from moldau import Admin
    from moldau_cli.records.topic_checks import first_answer

    expression = expression_of(pattern, "--include")
    async with Admin(bootstrap_settings) as admin:
        names = [topic.name for topic in await first_answer(admin, lambda asked: asked.list_topics(), within_s)]
    found = tuple(name for name in names if expression.fullmatch(name))
    if not found:
        raise UsageError(f"--include: no topic matches {pattern!r}")
    return found


async def reason_for_no_start(settings: Mapping[str, str], consumer: Consumer[Any, Any], request: Request) -> str:
    """Returns why the coordinator of the group, or leaders of partitions, do not say where reading starts.

    ``settings`` are those of an admin client.
    """
    from moldau import Admin
    from moldau.admin import LATEST
    from moldau.protocol.errors import KafkaError
    from moldau_cli.operations.partial import ask_offsets, describe_present, summarize_failures

    try:
        async with Admin(settings) as admin:
            bounded = admin.within(REASON_MS)
            if request.group is not None:
                described = (await bounded.describe_groups([request.group]))[request.group]
                if consumer.assignment_generation < 0:
                    return f"the group is in state {described.state} at its coordinator, broker {described.coordinator}"
            if not consumer.assignment:
                await describe_present(bounded, request.topics)
            answer = await ask_offsets(admin, dict.fromkeys(consumer.assignment, LATEST), within_s=REASON_MS / 1000)
    except KafkaError as error:
        return str(error)
    return summarize_failures(answer.failures) or "its brokers answer now"


async def reason_for_silence(
    settings: Mapping[str, str], consumer: Consumer[Any, Any], ends: Mapping[TopicPartition, int], *, is_committed: bool
) -> str:
    """Returns why no record came although reading is not at the end; empty if each leader says that it is.

    ``settings`` are those of an admin client. ``ends`` are as in ``Pump``, ``is_committed`` stands for read_committed.
    """
    from moldau import Admin
    from moldau.admin import LATEST
    from moldau.protocol.errors import KafkaError
    from moldau_cli.operations.partial import NAMED_MAX, ask_offsets, summarize_failures

    paused = set(consumer.paused)
    read = {one: consumer.position_nowait(one) for one in consumer.assignment if one not in paused}
    wanted = dict.fromkeys(read, LATEST)
    try:
        async with Admin(settings) as admin:
            answer = await ask_offsets(admin, wanted, within_s=END_MS / 1000, isolation_level=int(is_committed))
    except KafkaError as error:
        return str(error)
    if answer.failures:
        return summarize_failures(answer.failures)
    unread = []
    for one, (end, _) in answer.found.items():
        at, last = read[one], min(end, ends.get(one, end))
        if at is None:
            unread.append(f"{one}, whose position is not known")
        elif at < last:
            unread.append(f"{one} offsets {at} to {last - 1}")
    more = [f"and {len(unread) - NAMED_MAX} more"] if len(unread) > NAMED_MAX else []
    return f"not received: {', '.join([*unread[:NAMED_MAX], *more])}" if unread else ""


async def commit_position(consumer: Consumer[Any, Any]) -> None:
    """Commits the position of a group's member at the end.

    Raises:
        CommandError: it is not committed; the consumer itself would only log that.
    """
    from moldau.protocol.errors import KafkaError

    try:
        await consumer.commit()
    except (KafkaError, trio.TooSlowError) as error:
        raise CommandError(f"{error}; what was read since the last commit will be read again") from error


def no_start(request: Request, reason: str) -> CommandError:
    """Returns the error of a command whose start positions are not known in time."""
    what = "no start position" if request.group is None else f"no assignment or start position in group {request.group}"
    return CommandError(f"{what} within {request.start_ms / 1000:g} s: {reason}")


class Pump:
    """Hands records to a sink until the request is fulfilled."""

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        request: Request,
        sink: Sink,
        ends: dict[TopicPartition, int],
        now_ms: Callable[[], float],
        reason_for_no_start: Callable[[], Awaitable[str]],
        reason_for_silence: Callable[[Mapping[TopicPartition, int]], Awaitable[str]],
    ) -> None:
        """``ends`` are the exclusive ends of partitions; empty means that reading has none, or has reached them.

        The reasons are those of the functions with these names; ``reason_for_silence`` gets the ends that are left.
        """
        self._consumer = consumer
        self._request = request
        self._sink = sink
        self._limits = dict(ends)  # also of partitions that are read to their ends
        self._ends = ends
        self._now_ms = now_ms
        self._reason_for_no_start = reason_for_no_start
        self._reason_for_silence = reason_for_silence
        self._has_ends = request.span.is_bounded and request.group is None
        self._look_at_ms = 0.0
        self._look_wait_ms: float = LOOK_MS
        self._noted = ""
        self.written = 0
        self.skipped = 0

    async def run(self) -> None:
        """Reads until the count, all ends, or the idle time is reached.

        Raises:
            CommandError: records cannot be deserialized, and the request does not accept that; or the idle time is
                over, and the start positions are not known after ``Request.start_ms``, or a leader does not say that
                there is no further record.
        """
        await self._read()
        if self.skipped and self._request.errors is OnError.REPORT:
            records = "record was" if self.skipped == 1 else "records were"
            raise CommandError(f"{self.skipped} {records} left out that cannot be deserialized (--skip-errors)")

    async def _read(self) -> None:
        request = self._request
        last_ms, has_started, wait_ms = self._now_ms(), False, request.idle_ms
        self._end_silence(last_ms)
        while not self._is_done():
            left = None if request.count is None else request.count - self.written
            handled = self.written + self.skipped
            for batch in await self._polled(left):
                self._write(batch)
            self._sink.flush()
            self._retire()
            goes_on = self.written + self.skipped > handled
            if not has_started and self._has_started():
                has_started = goes_on = True
            silent_ms = self._now_ms() - last_ms
            if goes_on:
                last_ms, wait_ms = self._now_ms(), request.idle_ms
                self._end_silence(last_ms)
            elif wait_ms is None:
                await self._look(silent_ms, has_started=has_started)
            elif silent_ms < wait_ms:
                continue
            elif has_started:
                if not (reason := await self._reason_for_silence(self._ends)):
                    return
                if self._now_ms() - last_ms >= request.silence_ms:
                    raise CommandError(f"no record within {request.silence_ms / 1000:g} s, before the end: {reason}")
                wait_ms = request.silence_ms  # the records are there, and may be on their way
            elif silent_ms >= request.start_ms:
                raise no_start(request, await self._reason_for_no_start())

    def _end_silence(self, now_ms: float) -> None:
        self._look_at_ms, self._look_wait_ms, self._noted = now_ms + LOOK_MS, LOOK_MS, ""

    async def _look(self, silent_ms: float, *, has_started: bool) -> None:
        """Notes why there is no record although there is no time limit, each reason once: a leader may hang."""
        if self._now_ms() < self._look_at_ms:
            return
        reason = await (self._reason_for_silence(self._ends) if has_started else self._reason_for_no_start())
        if reason and reason != self._noted:
            output.note(f"no record for {silent_ms / 1000:.0f} s: {reason}")
        self._noted = reason
        self._look_wait_ms = min(2 * self._look_wait_ms, LOOK_MS_MAX)
        self._look_at_ms = self._now_ms() + self._look_wait_ms

    def _has_started(self) -> bool:
        """Returns whether the first record to read of each assigned partition is known."""
        if self._request.group is not None and self._consumer.assignment_generation < 0:
            return False
        return all(self._consumer.position_nowait(one) is not None for one in self._consumer.assignment)

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
        end = self._limits.get(error.topic_partition)
        if end is not None and error.offset >= end:
            return  # the consumer looked behind the end before the partition was paused
        place = f"{error.topic_partition} offset {error.offset}"
        if self._request.errors is OnError.END:
            raise CommandError(f"{place}: {_reason_of(error)}; --skip-errors leaves such records out") from error
        self.skipped += 1
        if self.skipped <= NOTES_MAX:
            output.note(f"skipped {place}: {_reason_of(error)}")
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


def _reason_of(error: RecordDeserializationError) -> str:
    """Returns why a record cannot be deserialized, without its place and the advice to programs that the text has."""
    _, _, reason = " ".join(str(error).split()).partition(": ")
    return reason.rpartition("; seek to ")[0]


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
