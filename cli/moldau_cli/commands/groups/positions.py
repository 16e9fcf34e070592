"""The offsets that commands about groups set and show: their options, and what the cluster knows of the partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from moldau_cli.errors import UsageError
from moldau_cli.words import absent_partition, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Sized

    from moldau import Admin, TopicPartition
    from moldau.protocol.errors import KafkaError
    from moldau_cli.plans.offsets import Held

AllTopics = Annotated[bool, typer.Option("--all-topics", help="All partitions of which the group has offsets.")]
ToOffset = Annotated[int | None, typer.Option("--to-offset", min=0, help="Continue at this offset.")]
ToDatetime = Annotated[
    str | None, typer.Option("--to-datetime", metavar="TIME", help="First record since 2026-03-01T12:00:00 (UTC).")
]
ByDuration = Annotated[
    str | None, typer.Option("--by-duration", metavar="DURATION", help="First record of the last 1h30m.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the new offsets, and change nothing.")]
Create = Annotated[bool, typer.Option("--create", help="Create the group if it does not exist.")]
CREATES = "; --create makes it"
"""Follows the message that there is no such group."""


def refuse_members(group: str, members: Sized, *, whom: str = "them") -> None:
    """Checks that a group has no members, which would overwrite new offsets; ``whom`` names what to stop.

    Raises:
        UsageError: it has members.
    """
    if members:
        raise UsageError(f"{group} has {counted(len(members), 'member')}: stop {whom} first")


def earliest_ms(to_datetime: str | None, by_duration: str | None) -> int | None:
    """Returns the time at which a group continues, in ms since 1970; None if the user named none.

    Raises:
        UsageError: a text is no time, or no duration.
    """
    from moldau_cli.plans import offsets as plans

    if by_duration is not None:
        return time.time_ns() // 1_000_000 - plans.parse_duration_ms(by_duration, "--by-duration")
    return None if to_datetime is None else plans.parse_time_ms(to_datetime, "--to-datetime")


async def offsets_since(
    admin: Admin, partitions: list[TopicPartition], since_ms: int, held: Mapping[TopicPartition, Held]
) -> dict[TopicPartition, int]:
    """Returns the offset of the first record since a time; the log end offset where there is none."""
    found = await admin.list_offsets(dict.fromkeys(partitions, max(0, since_ms)))
    return {one: at if at >= 0 else held[one].end for one, (at, _) in found.items()}


async def named_partitions(admin: Admin, wanted: list[tuple[str, list[int] | None]]) -> list[TopicPartition]:
    """Returns the partitions that the user named.

    Raises:
        UsageError: a topic does not have a partition.
    """
    from moldau import TopicPartition

    described = await admin.describe_topics([name for name, _ in wanted]) if wanted else {}
    found: list[TopicPartition] = []
    for name, numbers in wanted:
        known = [part.partition for part in described[name].partitions]
        for number in known if numbers is None else numbers:
            if number not in known:
                raise UsageError(absent_partition(name, known, number))
            found.append(TopicPartition(name, number))
    return list(dict.fromkeys(found))


async def living(admin: Admin, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Leaves out the partitions of deleted topics."""
    counts = {topic.name: topic.partition_count for topic in await admin.list_topics(include_internal=True)}
    return [one for one in partitions if one.partition < counts.get(one.topic, 0)]


class LogEnds(NamedTuple):
    """The log end offsets that are known, the times of the answers with them, and the errors of other partitions.

    Times are seconds of trio's clock.
    """

    offsets: dict[TopicPartition, int]
    answered_s: dict[TopicPartition, float]
    failures: dict[str, KafkaError]


async def log_ends(admin: Admin, partitions: Sequence[TopicPartition]) -> LogEnds:
    """Returns the log end offsets of partitions; all leaders are asked at once.

    Partitions of deleted topics, and those without a leader, have neither an offset nor an error: a request for the end
    of one would wait for its leader.

    Raises:
        KafkaError: the login was refused, or no broker can be used.
    """
    import trio

    from moldau.admin import LATEST
    from moldau.protocol.errors import KafkaError
    from moldau_cli.operations.partial import ask_offsets, describe_present

    alive = await living(admin, partitions)
    topics = await describe_present(admin, sorted({one.topic for one in alive}))
    leaders = {(topic.name, part.partition): part.leader for topic in topics.values() for part in topic.partitions}
    led: dict[int, list[TopicPartition]] = {}
    for one in alive:
        led.setdefault(leaders.get((one.topic, one.partition), -1), []).append(one)
    led.pop(-1, None)
    ends, refused = LogEnds({}, {}, {}), list[KafkaError]()

    async def ask(wanted: Sequence[TopicPartition]) -> None:
        try:
            found, failures = await ask_offsets(admin, dict.fromkeys(wanted, LATEST))
        except KafkaError as error:
            refused.append(error)
            nursery.cancel_scope.cancel()
            return
        ends.offsets.update({one: at for one, (at, _) in found.items()})
        ends.answered_s.update(dict.fromkeys(found, trio.current_time()))
        ends.failures.update(failures)

    async with trio.open_nursery() as nursery:
        for wanted in led.values():
            nursery.start_soon(ask, wanted)
    if refused:
        raise refused[0]
    return ends


async def held_offsets(
    admin: Admin, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Held]:
    """Returns what is known of partitions: the ends of their logs, and the group's committed offsets."""
    from moldau.admin import EARLIEST, LATEST
    from moldau_cli.plans.offsets import Held

    if not partitions:
        return {}
    begins = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    return {
        one: Held(begin=begins[one][0], end=ends[one][0], committed=committed.get(one)) for one in sorted(partitions)
    }
