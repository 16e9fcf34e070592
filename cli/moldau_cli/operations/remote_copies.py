"""Asks leaders how far the copies of tiered topics are, with Kafka's API alone.

A leader copies closed segments, and keeps on its disk what is not copied. So records that local retention would delete,
and that are not in the object store, show that copies are behind: the store fails, or is too slow, and the disk fills.
The open segment is never copied, so as many bytes as it may hold count for nothing.

The API tells offsets. The bytes of a range are taken for its share of the offsets on the leader's disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from moldau import TopicPartition
from moldau.admin import (
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    ConfigResource,
    ResourceType,
)
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.health import COPIES_BEHIND, STORE_FAILS, Problem
from moldau_cli.operations.broker_settings import known_settings
from moldau_cli.operations.partial import OFFSETS_S, ask_log_dirs, ask_offsets, describe_present_configs
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import ConfigEntry, LogDirDescription, TopicDescription
    from moldau.cluster.metadata import BrokerNode

GRACE_MS: Final = 300_000
"""Records that wait for less are not late: a leader looks for segments each 30 s, and copies take time."""
ANSWER_S: Final = 3.0
"""How long leaders may take to tell offsets; an object store that does not answer holds up some of them."""
_AS_RETENTION: Final = -2


class LocalLimits(NamedTuple):
    """When records of a tiered topic should have left the disks; -1: never."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int


class Copied(NamedTuple):
    """The log of a leader."""

    local_start: int
    """First offset on its disk."""
    pending: int
    """First offset that is not in the store."""
    end: int
    size_bytes: int
    """Of the records on its disk."""

    def waiting_bytes(self, end: int) -> int:
        """Returns how many bytes are not copied, of the records below ``end``."""
        on_disk = self.end - self.local_start
        waiting = min(end, self.end) - self.pending
        return self.size_bytes * waiting // on_disk if waiting > 0 and on_disk > 0 else 0


def limits_of(entries: Mapping[str, ConfigEntry]) -> LocalLimits | None:
    """Returns the limits of a topic; None if it is not tiered, or nothing of it should leave the disks."""

    def value(key: str) -> str:
        return (entries[key].value or "") if key in entries else ""

    def number(key: str) -> int:
        text = value(f"local.{key}")
        return int(value(key) or -1) if not text or int(text) == _AS_RETENTION else int(text)

    if value("remote.storage.enable") != "true" or value("remote.log.copy.disable") == "true":
        return None
    limits = LocalLimits(number("retention.ms"), number("retention.bytes"), int(value("segment.bytes") or 1 << 30))
    return limits if limits.retention_ms >= 0 or limits.retention_bytes >= 0 else None


def late_bytes(limits: LocalLimits, log: Copied, past_retention: int, past_grace: int) -> int:
    """Returns about how many bytes should have left the disk and are not copied; 0 if the copies keep up.

    ``past_retention`` and ``past_grace`` are the ends (exclusive) of the records that are older than ``retention_ms``
    and ``GRACE_MS`` together, and older than ``GRACE_MS``.
    """
    found = 0
    if limits.retention_ms >= 0:
        found = log.waiting_bytes(past_retention) - limits.segment_bytes
    if limits.retention_bytes >= 0:
        found = max(found, log.waiting_bytes(past_grace) - limits.retention_bytes - limits.segment_bytes)
    return max(found, 0)


async def ask_for_copies(
    admin: Admin, topics: Mapping[str, TopicDescription], brokers: Sequence[BrokerNode], *, now_ms: int
) -> list[Problem]:
    """Returns the leaders whose copies are behind, or which cannot say what the store has; one problem for each.

    ``brokers`` answer; leaders that do not, or not in time, are left out. ``now_ms`` is wall-clock time.
    A cluster whose brokers say that they have no tiered storage is asked for no topics.

    Raises:
        KafkaError: the login was refused, or no broker can be used.
    """
    settings = await known_settings(admin, brokers)
    if not brokers or (settings and not any(each.has_store for each in settings.values())):
        return []
    answering = {broker.node_id for broker in brokers}
    limits = await _limits(admin, topics)
    leaders = {
        TopicPartition(name, each.partition): each.leader
        for name in limits
        for each in topics[name].partitions
        if each.leader in answering
    }
    local = (await ask_offsets(admin, dict.fromkeys(leaders, EARLIEST_LOCAL), within_s=ANSWER_S)).found
    tiered = await ask_offsets(admin, dict.fromkeys(local, LATEST_TIERED), within_s=ANSWER_S)
    unknown = [one for one in local if _fails_for_store(tiered.failures.get(str(one)))]
    late = await _late(admin, limits, await _logs(admin, leaders, local, tiered.found), now_ms)
    return [*_failing(leaders, unknown), *_behind(leaders, late)]


async def _limits(admin: Admin, topics: Mapping[str, TopicDescription]) -> dict[str, LocalLimits]:
    names = [name for name, topic in topics.items() if not topic.is_internal]
    found = await _configs(admin, [ConfigResource(type=ResourceType.TOPIC, name=name) for name in names])
    limits = {resource.name: limits_of(entries) for resource, entries in found.items()}
    return {name: each for name, each in limits.items() if each is not None}


async def _configs(
    admin: Admin, resources: Sequence[ConfigResource]
) -> Mapping[ConfigResource, Mapping[str, ConfigEntry]]:
    """Returns the configurations that this user may describe, none if no broker answers in time."""
    try:
        return await describe_present_configs(admin.within(round(OFFSETS_S * 1000)), resources)
    except KafkaError as error:
        if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise
        return {}  # the verdict names brokers that do not answer


def _fails_for_store(error: KafkaError | None) -> bool:
    """Returns whether a leader that answers does not know in time what the store has."""
    return error is not None and error.code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)


async def _logs(
    admin: Admin,
    leaders: Mapping[TopicPartition, int],
    local: Mapping[TopicPartition, tuple[int, int]],
    tiered: Mapping[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, Copied]:
    """Returns the logs, of those whose last tiered offset is known, that have records which are not copied."""
    latest = (await ask_offsets(admin, dict.fromkeys(tiered, LATEST), within_s=ANSWER_S)).found
    pending = {one: max(local[one][0], tiered[one][0] + 1) for one in latest}
    waiting = [one for one in latest if pending[one] < latest[one][0]]
    if not waiting:
        return {}
    wanted = sorted({leaders[one] for one in waiting})
    described, _ = await ask_log_dirs(admin, wanted, partitions=waiting)
    sizes = _sizes(described)
    return {
        one: Copied(local[one][0], pending[one], latest[one][0], sizes.get((leaders[one], one), 0)) for one in waiting
    }


def _sizes(described: Mapping[int, Iterable[LogDirDescription]]) -> dict[tuple[int, TopicPartition], int]:
    return {
        (broker, part.topic_partition): part.size_bytes
        for broker, directories in described.items()
        for directory in directories
        for part in directory.partitions
        if not part.is_future
    }


async def _late(
    admin: Admin, limits: Mapping[str, LocalLimits], logs: Mapping[TopicPartition, Copied], now_ms: int
) -> dict[TopicPartition, int]:
    """Returns the late bytes of the partitions whose copies are behind.

    The search for older records is the last one: it may need the store, and then hold up what follows.
    """
    graced_ms = now_ms - GRACE_MS
    past_grace = await _ends(admin, logs, dict.fromkeys(logs, graced_ms))
    candidates = {
        one: logs[one]
        for one, end in past_grace.items()
        if logs[one].waiting_bytes(end) > limits[one.topic].segment_bytes
    }
    aged = {
        one: graced_ms - limits[one.topic].retention_ms for one in candidates if limits[one.topic].retention_ms >= 0
    }
    past_retention = await _ends(admin, logs, {one: max(0, at_ms) for one, at_ms in aged.items()})
    late = {
        one: late_bytes(limits[one.topic], log, past_retention.get(one, 0), past_grace[one])
        for one, log in candidates.items()
    }
    return {one: size for one, size in late.items() if size}


async def _ends(
    admin: Admin, logs: Mapping[TopicPartition, Copied], wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Returns the ends (exclusive) of the records that are older than the times, of the leaders that answer."""
    found = (await ask_offsets(admin, wanted, within_s=ANSWER_S)).found
    return {one: offset if offset >= 0 else logs[one].end for one, (offset, _) in found.items()}


def _failing(leaders: Mapping[TopicPartition, int], unknown: Iterable[TopicPartition]) -> list[Problem]:
    counts: dict[int, int] = {}
    for one in unknown:
        counts[leaders[one]] = counts.get(leaders[one], 0) + 1
    return [
        Problem(
            kind=STORE_FAILS,
            subject=f"broker {leader}",
            detail=f"cannot say what the store has of {counted(count, 'tiered partition')} that it leads",
        )
        for leader, count in sorted(counts.items())
    ]


def _behind(leaders: Mapping[TopicPartition, int], late: Mapping[TopicPartition, int]) -> list[Problem]:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for one, size in late.items():
        by_leader.setdefault(leaders[one], {})[one] = size
    problems = []
    for leader, sizes in sorted(by_leader.items()):
        worst = max(sizes, key=lambda one: (sizes[one], str(one)))
        others = f" and {counted(len(sizes) - 1, 'more partition')}" if len(sizes) > 1 else ""
        detail = (
            f"about {sum(sizes.values()):,} bytes of {worst}{others} should have left its disk by local.retention.*, "
            "and are not in the object store"
        )
        problems.append(Problem(kind=COPIES_BEHIND, subject=f"broker {leader}", detail=detail))
    return problems
