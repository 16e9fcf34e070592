"""The message browser and the produce form: short-lived consumers and producers with bounded work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console.core.content import PREVIEW_BYTES, WHOLE_BYTES, entered, shown
from moldau_cli.words import absent_partition, counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Consumer
    from moldau.consumer import ConsumedRecord
    from moldau_cli.console.avro import AvroViews
    from moldau_cli.console.identities import Identity
    from moldau_cli.output import Json

RECORDS_MAX: Final = 200
SCANNED_RECORDS_MAX: Final = 50_000
SCANNED_BYTES_MAX: Final = 32 * 1024 * 1024
SEARCH_S: Final = 8.0
HEADERS_MAX: Final = 50
NAMED_MAX: Final = 10
"""Partitions without a leader that the page names."""
ORIGINS: Final = ("tail", "start", "offset", "time", "before")
FIRST_OFFSETS: Final = 4
"""Offsets of the first step back from the ends, of all partitions together; a record may have megabytes."""
GROWTH: Final = 4
"""Each further step goes at most so many times as far as the one before."""
_POLL_MS = 100

READING: Final = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    "fetch.max.bytes": str(4 * 1024 * 1024),
    "max.partition.fetch.bytes": str(1024 * 1024),
    "request.timeout.ms": "8000",
    "default.api.timeout.ms": "8000",
}
WRITING: Final = {
    "acks": "all",
    "linger.ms": "0",
    "max.request.size": str(5 * 1024 * 1024),  # as much as the console accepts: the topic's max.message.bytes decides
    "request.timeout.ms": "8000",
    "max.block.ms": "8000",
}
DELIVERY_TIMEOUT_MS: Final = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The position from which the message browser reads. ``value`` is an offset or Unix milliseconds, by ``origin``.

    ``tail`` and ``before`` show the last records in front of an end: that of the log, or the offset ``value``.
    """

    topic: str
    partition: int | None = None
    origin: str = "tail"
    value: int = 0
    limit: int = 50
    key: str = ""
    contains: str = ""
    committed_only: bool = False

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise ValueError(f"unknown start {self.origin!r:.40}; known are {', '.join(ORIGINS)}")
        if not 1 <= self.limit <= RECORDS_MAX:
            raise ValueError(f"the number of records must be 1 to {RECORDS_MAX}, not {self.limit}")
        if self.origin in ("offset", "before") and self.partition is None:
            raise ValueError("an offset belongs to one partition: choose the partition")
        if self.value < 0:
            raise ValueError("an offset or time is not negative")

    @property
    def is_backward(self) -> bool:
        """Whether the last records in front of an end are wanted."""
        return self.origin in ("tail", "before")

    def matches(self, record: ConsumedRecord) -> bool:
        """Returns whether the record passes the filters of key and value."""
        if self.key and self.key.encode() not in (record.key or b""):
            return False
        return not self.contains or self.contains.encode() in (record.value or b"")


@dataclass(slots=True)
class _Scan:
    """The progress of one search. Invariant: ``found`` has at most ``RECORDS_MAX`` elements unless it is backward."""

    ends: dict[tuple[str, int], int]
    found: list[ConsumedRecord]
    records: int = 0
    bytes: int = 0
    stopped: str = ""
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Records of each partition that match."""

    def take(self, record: ConsumedRecord, search: Search) -> None:
        place = (record.topic, record.partition)
        if record.offset >= self.ends[place]:
            return
        self.records += 1
        self.bytes += len(record.key or b"") + len(record.value or b"")
        if search.matches(record):
            self.found.append(record)
            self.counts[place] += 1
            if search.is_backward and len(self.found) > 2 * RECORDS_MAX:
                self.found = _latest(self.found, search.limit)

    def is_done(self, consumer: Consumer, search: Search) -> bool:
        if not search.is_backward and len(self.found) >= search.limit:
            return True
        if self.records >= SCANNED_RECORDS_MAX or self.bytes >= SCANNED_BYTES_MAX:
            self.stop()
            return True
        return not self._unread(consumer)

    def stop(self) -> None:
        self.stopped = f"stopped after {counted(self.records, 'record')}; narrow the search"

    def _unread(self, consumer: Consumer) -> set[tuple[str, int]]:
        return {place for place, end in self.ends.items() if (consumer.position_nowait(place) or 0) < end}

    def room(self) -> int:
        """Returns how many records the next step may read: half of what is left, because their sizes differ."""
        left = SCANNED_RECORDS_MAX - self.records
        if self.bytes:
            left = min(left, (SCANNED_BYTES_MAX - self.bytes) * self.records // self.bytes)
        return left // 2

    def drop_unfinished(self, consumer: Consumer) -> None:
        """Drops what a step back has found in partitions that it did not read to their ends: others would lack between.

        If nothing else was found, that is kept.
        """
        unread = self._unread(consumer)
        kept = [
            each
            for each in self.found
            if (place := (each.topic, each.partition)) not in unread or each.offset >= self.ends[place]
        ]
        self.found = kept or self.found


def _latest(records: Sequence[ConsumedRecord], limit: int) -> list[ConsumedRecord]:
    """Returns the newest records by time; a partition's own by offset, which timestamps need not follow."""
    if len({each.partition for each in records}) == 1:
        return sorted(records, key=lambda each: each.offset)[-limit:]
    return sorted(records, key=lambda each: (each.timestamp, each.partition, each.offset))[-limit:]


async def browse(identity: Identity, search: Search, avro: AvroViews | None = None) -> dict[str, Json]:
    """Returns the records that a search finds, oldest first; bounded in records, bytes and time.

    Raises:
        KafkaError: the topic does not exist, or cannot be read.
        ValueError: the topic has no such partition.
    """
    from moldau import Consumer

    numbers, leaderless = await _partitions(identity, search.topic, search.partition)
    isolation = "read_committed" if search.committed_only else "read_uncommitted"
    config = {**READING, **identity.settings, "isolation.level": isolation}
    async with Consumer(config, environment=identity.environment) as consumer:
        places = [(search.topic, number) for number in numbers if number not in leaderless]
        begins = {(one.topic, one.partition): at for one, at in (await consumer.beginning_offsets(places)).items()}
        ends = {(one.topic, one.partition): at for one, at in (await consumer.end_offsets(places)).items()}
        stops = ends
        if search.origin == "before":
            stops = {place: min(max(search.value, begins[place]), end) for place, end in ends.items()}
        starts = await _starts(consumer, search, begins, stops)
        scan = _Scan({place: stops[place] for place in places if starts[place] < stops[place]}, [])
        await _scan(consumer, search, scan, begins, starts)
    records = _latest(scan.found, search.limit) if search.is_backward else scan.found[: search.limit]
    if search.partition is None:
        records.sort(key=lambda each: (each.timestamp, each.partition, each.offset))
    else:
        records.sort(key=lambda each: each.offset)
    return {
        "records": [await _shown(record, PREVIEW_BYTES, avro) for record in records],
        "scanned": scan.records,
        "stopped": "; ".join(filter(None, (_absence(leaderless), scan.stopped))),
        "partitions": {str(place[1]): [begins[place], ends[place]] for place in places},
    }


async def _partitions(identity: Identity, topic: str, wanted: int | None) -> tuple[list[int], list[int]]:
    """Returns all partitions of a topic, or the wanted one, and those of all that have no leader.

    A consumer would wait for partitions that do not exist, and for leaders.

    Raises:
        KafkaError: the topic does not exist, or may not be described.
        ValueError: the topic has no such partition.
    """
    described = (await identity.admin.describe_topics([topic]))[topic]
    leaders = {part.partition: part.leader for part in described.partitions}
    numbers = sorted(leaders)
    if wanted is None:
        return numbers, [number for number in numbers if leaders[number] < 0]
    if wanted not in numbers:
        raise ValueError(absent_partition(topic, numbers, wanted))
    return [wanted], []


def _absence(leaderless: Sequence[int]) -> str:
    if not leaderless:
        return ""
    more = f" and {len(leaderless) - NAMED_MAX} more" if len(leaderless) > NAMED_MAX else ""
    return f"left out without a leader: partition {', '.join(map(str, leaderless[:NAMED_MAX]))}{more}"


async def _scan(
    consumer: Consumer,
    search: Search,
    scan: _Scan,
    begins: Mapping[tuple[str, int], int],
    starts: Mapping[tuple[str, int], int],
) -> None:
    """Reads from ``starts`` to the ends of ``scan``; a backward search goes on in front of them for what it lacks."""
    reach = {place: end - starts[place] for place, end in scan.ends.items()}
    with trio.move_on_after(SEARCH_S) as scope:
        while scan.ends:
            consumer.assign(list(scan.ends))
            for place in scan.ends:
                consumer.seek(place, starts[place])
            while not scan.is_done(consumer, search):
                for batch in await consumer.poll(_POLL_MS):
                    for record in batch.with_partition():
                        scan.take(record, search)
            if scan.stopped or not search.is_backward:
                break
            # Markers, aborted records and those that compaction has removed take offsets, and are none to show.
            lacking = [each for each in scan.ends if scan.counts[each] < search.limit and starts[each] > begins[each]]
            room = scan.room() // max(1, len(lacking))
            if lacking and not room:
                scan.stop()
                return
            reach = {place: min(GROWTH * reach[place], room) for place in lacking}
            scan.ends = {place: starts[place] for place in lacking}
            starts = {place: max(begins[place], starts[place] - reach[place]) for place in lacking}
    if scope.cancelled_caught:
        scan.stopped = f"stopped after {SEARCH_S:g} s and {counted(scan.records, 'record')}; narrow the search"
    if scan.stopped and search.is_backward:
        scan.drop_unfinished(consumer)


async def _starts(
    consumer: Consumer,
    search: Search,
    begins: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
) -> dict[tuple[str, int], int]:
    """Returns the offset of each partition at which the search begins, within the log."""
    if search.origin == "start":
        return dict(begins)
    if search.origin == "offset":
        return {place: min(max(search.value, begins[place]), end) for place, end in ends.items()}
    if search.origin == "time":
        found = await consumer.offsets_for_times(dict.fromkeys(ends, search.value))
        placed = {(one.topic, one.partition): offset for one, (offset, _) in found.items() if offset >= 0}
        return {place: placed.get(place, end) for place, end in ends.items()}
    reach = max(1, FIRST_OFFSETS // max(1, len(ends)))
    return {place: max(begins[place], end - reach) for place, end in ends.items()}


async def whole_record(
    identity: Identity, topic: str, partition: int, offset: int, avro: AvroViews | None = None
) -> dict[str, Json]:
    """Returns one record with up to ``WHOLE_BYTES`` of its key and value.

    Raises:
        LookupError: there is no record at the offset.
        KafkaError: the topic does not exist, or cannot be read.
        ValueError: the topic has no such partition.
        trio.TooSlowError: the partition's leader does not answer.
    """
    from moldau import Consumer

    await _partitions(identity, topic, partition)
    async with Consumer({**READING, **identity.settings}, environment=identity.environment) as consumer:
        consumer.assign([(topic, partition)])
        consumer.seek((topic, partition), offset)
        with trio.fail_after(SEARCH_S):
            end = next(iter((await consumer.end_offsets([(topic, partition)])).values()))
            while offset < end and (consumer.position_nowait((topic, partition)) or 0) < end:
                for batch in await consumer.poll(_POLL_MS, max_records=1):
                    for record in batch.with_partition():
                        if record.offset == offset:
                            return await _shown(record, WHOLE_BYTES, avro)
                        raise LookupError(f"{topic}-{partition} has no record at offset {offset}; it was deleted")
    raise LookupError(f"{topic}-{partition} has no record at offset {offset}")


async def _shown(record: ConsumedRecord, bytes_max: int, avro: AvroViews | None) -> dict[str, Json]:
    value = shown(record.value, bytes_max=bytes_max)
    decoded = None if avro is None or record.value is None else await avro.view(record.value)
    if value is not None and decoded is not None:
        value = {**value, "avro": decoded, "best": "avro"}
    headers: list[Json] = [
        {"name": name[:200], "value": None if content is None else content[:200].decode("utf-8", errors="replace")}
        for name, content in record.headers[:HEADERS_MAX]
    ]
    key = shown(record.key, bytes_max=bytes_max)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None if key is None else dict(key),
        "value": None if value is None else dict(value),
        "headers": headers,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A record that a user entered."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: tuple[tuple[str, bytes], ...]


def draft_of(document: Mapping[str, object]) -> Draft:
    """Returns the record in a form's JSON document.

    Raises:
        ValueError: a field is missing, of a wrong type, or not of its form.
    """
    topic, partition = document.get("topic"), document.get("partition")
    if not isinstance(topic, str) or not topic:
        raise ValueError("topic: expected a topic's name")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool) or partition < 0):
        raise ValueError("partition: expected a number, or nothing for the partitioner's choice")
    headers = document.get("headers", [])
    if not isinstance(headers, list) or len(headers) > HEADERS_MAX:
        raise ValueError(f"headers: expected a list of at most {HEADERS_MAX} pairs")
    pairs: list[tuple[str, bytes]] = []
    for pair in headers:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError("headers: expected pairs of name and text")
        pairs.append((pair[0], pair[1].encode()))
    return Draft(
        topic=topic,
        key=_entered(document, "key"),
        value=_entered(document, "value"),
        partition=partition,
        headers=tuple(pairs),
    )


def _entered(document: Mapping[str, object], name: str) -> bytes | None:
    text, form = document.get(name), document.get(f"{name}_form", "text")
    if (text is not None and not isinstance(text, str)) or not isinstance(form, str):
        raise ValueError(f"{name}: expected text or null")
    try:
        return entered(text, form)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def writing_config(settings: Mapping[str, str], delivery_timeout_ms: int) -> dict[str, str]:
    """Returns the configuration of a producer; the user's ``request.timeout.ms`` counts if it is below the bound."""
    config = {**WRITING, **settings, "delivery.timeout.ms": str(delivery_timeout_ms)}
    config["request.timeout.ms"] = str(min(int(config["request.timeout.ms"]), delivery_timeout_ms))
    return config


async def produce(identity: Identity, draft: Draft) -> dict[str, Json]:
    """Sends one record with acks=all and returns where it was written.

    Raises:
        KafkaError: it was not acknowledged, names a partition that the topic lacks, or is larger than the topic's
            ``max.message.bytes``.
    """
    from moldau import Producer

    began = trio.current_time()
    described = await identity.admin.describe_topics([draft.topic])  # a producer's request might create the topic
    count = len(described[draft.topic].partitions)
    if draft.partition is not None and draft.partition >= count:  # a producer would wait for it
        text = absent_partition(draft.topic, range(count), draft.partition)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    config = writing_config(identity.settings, DELIVERY_TIMEOUT_MS)
    async with Producer(config, environment=identity.environment) as producer:
        delivery = await producer.send(
            draft.topic, draft.value, key=draft.key, headers=draft.headers, partition=draft.partition
        )
        with trio.move_on_after(DELIVERY_TIMEOUT_MS / 1000) as scope:
            placed = await delivery
        if scope.cancelled_caught:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the record was not acknowledged; it may still be written")
    return {
        "topic": draft.topic,
        "partition": placed.partition,
        "offset": placed.offset,
        "timestamp": placed.timestamp,
        "took_ms": round((trio.current_time() - began) * 1000, 1),
    }
