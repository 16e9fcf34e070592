"""``moldau offsets``: the offsets of partitions, as ``kafka-get-offsets`` shows them."""

from __future__ import annotations

import enum
import time as clock
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import refuse_failures
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.completion import names
from moldau_cli.errors import UsageError
from moldau_cli.words import absent_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau import Admin, TopicPartition
    from moldau.protocol.errors import KafkaError

    Found = Mapping[TopicPartition, tuple[int, int]]


class Isolation(enum.StrEnum):
    """Kafka's isolation levels of consumers."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def offsets(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:0,1]...", help="Topics, or some partitions. Default: all.", autocompletion=names.topics
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            "-t",
            metavar="TIME",
            help="earliest, latest, max-timestamp, earliest-local, latest-tiered, a time, or a duration before now. "
            "Default: the first three.",
        ),
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation-level", help="read_committed: latest is the last stable offset.")
    ] = Isolation.READ_UNCOMMITTED,
    tiered: Annotated[
        bool, typer.Option("--tiered", help="Show what the brokers' disks and the object store hold of each log.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal/--exclude-internal", help="Show internal topics too, if none is named.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show the offsets of partitions: earliest, latest, of the greatest timestamp, or at a time.

    A partition without a leader has none. With --tiered, the last columns count the offsets of records that only the
    object store has, and of those that only the disks of brokers have.
    """
    from moldau_cli.plans.offsets import parse_topic

    if tiered and time is not None:
        raise UsageError("--tiered shows several offsets of a partition, and --time one: give one of them")
    wanted = _merged(parse_topic(topic, "TOPIC") for topic in topics or [])
    at = None if time is None else _parse(time)
    level = int(isolation is Isolation.READ_COMMITTED)

    async def work(admin: Admin) -> tuple[list[TopicPartition], list[Found], dict[str, KafkaError]]:
        from moldau.admin import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP
        from moldau_cli.operations.partial import ask_offsets

        partitions, living = await _partitions(admin, wanted, internal=internal)
        more = [EARLIEST_LOCAL, LATEST_TIERED] if tiered else [MAX_TIMESTAMP]
        times = [EARLIEST, LATEST, *more] if at is None else [at]
        found: list[Found] = []
        failures: dict[str, KafkaError] = {}
        for one in times:
            asked = {each: one for each in living if str(each) not in failures}
            answer = await ask_offsets(admin, asked, isolation_level=level)
            found.append(answer.found)
            failures.update(answer.failures)
        return partitions, found, failures

    partitions, found, failures = with_admin(bootstrap_server, work)
    columns, rows = _table(partitions, found, is_one=at is not None, tiered=tiered)
    output.answer_rows("partitions", columns, rows, times=("timestamp", "max_timestamp"))
    refuse_failures("offsets are missing", failures)


def _table(
    partitions: list[TopicPartition], found: list[Found], *, is_one: bool, tiered: bool
) -> tuple[list[str], list[dict[str, output.Json]]]:
    """Returns columns and lines. ``found`` has the offsets of each time that was asked for, or of one time."""
    if is_one:
        at = found[0]
        return ["topic", "partition", "offset", "timestamp"], [
            _row(one, {"offset": _offset(at, one), "timestamp": _timestamp(at, one)}) for one in partitions
        ]
    if tiered:
        columns = ["topic", "partition", "earliest", "earliest_local", "latest_tiered", "latest"]
        columns += ["only_tiered", "only_local"]
        return columns, [_tiered_row(one, *found) for one in partitions]
    columns = ["topic", "partition", "earliest", "latest", "records", "max_timestamp_offset", "max_timestamp"]
    return columns, [_whole_row(one, *found) for one in partitions]


def _merged(named: Iterable[tuple[str, list[int] | None]]) -> dict[str, list[int] | None]:
    """Returns the partitions of each topic that is named, perhaps several times; None: all of them."""
    found: dict[str, list[int] | None] = {}
    for name, numbers in named:
        before = found.get(name, [])
        found[name] = None if before is None or numbers is None else list(dict.fromkeys([*before, *numbers]))
    return found


def _parse(text: str) -> int:
    from moldau.admin import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP
    from moldau_cli.records.core.positions import parse_when_ms

    named = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}
    named |= {"earliest-local": EARLIEST_LOCAL, "latest-tiered": LATEST_TIERED}
    named |= {str(number): number for number in named.values()}  # as kafka-get-offsets takes them
    if text in named:
        return named[text]
    try:
        return parse_when_ms(text, clock.time_ns() // 1_000_000, "--time")
    except UsageError as error:
        raise UsageError(f"{error}, {', '.join(list(named)[:4])} or latest-tiered") from error


async def _partitions(
    admin: Admin, wanted: dict[str, list[int] | None], *, internal: bool
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Returns the partitions that the user means, and those of them that have a leader."""
    from moldau import TopicPartition
    from moldau_cli.operations.partial import describe_present

    names = list(wanted) or [topic.name for topic in await admin.list_topics(include_internal=internal)]
    described = await (admin.describe_topics(names) if wanted else describe_present(admin, names))
    partitions, living = [], []
    for name in sorted(described):
        known = {part.partition: part.leader for part in described[name].partitions}
        chosen = wanted.get(name)
        for number in known if chosen is None else chosen:
            if number not in known:
                raise UsageError(absent_partition(name, known, number))
            partitions.append(TopicPartition(name, number))
            if known[number] >= 0:
                living.append(TopicPartition(name, number))
    return partitions, living


def _row(partition: TopicPartition, more: dict[str, output.Json]) -> dict[str, output.Json]:
    return {"topic": partition.topic, "partition": partition.partition, **more}


def _whole_row(partition: TopicPartition, earliest: Found, latest: Found, newest: Found) -> dict[str, output.Json]:
    begin, end = _offset(earliest, partition), _offset(latest, partition)
    return _row(
        partition,
        {
            "earliest": begin,
            "latest": end,
            "records": None if begin is None or end is None else end - begin,
            "max_timestamp_offset": _offset(newest, partition),
            "max_timestamp": _timestamp(newest, partition),
        },
    )


def _tiered_row(
    partition: TopicPartition, earliest: Found, latest: Found, local: Found, tiered: Found
) -> dict[str, output.Json]:
    """Returns one line of ``--tiered``. The records that are in both places count in neither of the last columns."""
    begin, end, first = _offset(earliest, partition), _offset(latest, partition), _offset(local, partition)
    last = _offset(tiered, partition)
    copied = begin if last is None else last + 1
    return _row(
        partition,
        {
            "earliest": begin,
            "earliest_local": first,
            "latest_tiered": last,
            "latest": end,
            "only_tiered": None if begin is None or first is None else max(first - begin, 0),
            "only_local": None if copied is None or first is None or end is None else max(end - max(copied, first), 0),
        },
    )


def _offset(found: Found, partition: TopicPartition) -> int | None:
    offset = found[partition][0] if partition in found else -1
    return offset if offset >= 0 else None


def _timestamp(found: Found, partition: TopicPartition) -> int | None:
    timestamp = found[partition][1] if partition in found else -1
    return timestamp if timestamp >= 0 else None
