"""A mirror as the clusters see it: positions, lag and translated offsets. The mirror itself is not asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.admin import LATEST, Admin, AdminError
from moldau.cluster.metadata import TopicPartition
from moldau.mirror.core.formats import Checkpoint, Heartbeat
from moldau.mirror.core.policy import HEARTBEATS
from moldau.mirror.core.progress import stored_start
from moldau.mirror.core.topics import SourceTopics
from moldau.mirror.internal import exists, open_reader
from moldau.mirror.positions import PositionStore
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.mirror.core.settings import SourceSettings
    from moldau.protocol.errors import KafkaError
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment

HEARTBEATS_READ_MS = 600_000
ENDS_MS = 10_000
"""For the leaders of a source to tell where their partitions end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition of a source.

    ``position`` is -1 if nothing of it was mirrored yet, ``end_offset`` if its leader does not tell it.
    """

    partition: TopicPartition
    remote_topic: str
    position: int
    end_offset: int

    @property
    def lag(self) -> int | None:
        """Offsets of the source behind the stored position; 0 if its log was cut below that, None if not known."""
        return None if self.end_offset < 0 else max(0, self.end_offset - max(self.position, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One source.

    ``heartbeat_age_ms`` is None if the target has no heartbeat of the last minutes. ``missing`` holds names of the key
    ``topics`` that the source does not have, or does not show to the mirror's user. ``failures`` has the errors of the
    partitions whose end is not known, by name.
    """

    alias: str
    heartbeat_age_ms: int | None
    missing: tuple[str, ...]
    partitions: tuple[PartitionStatus, ...]
    failures: Mapping[str, KafkaError] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """Offsets of all partitions behind the stored positions; None if one of them is not known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if len(known) == len(self.partitions) else None


async def source_status(environment: Environment, settings: SourceSettings) -> SourceStatus:
    """Returns how far a source is mirrored, by the topics of both clusters.

    Positions are stored every ``offset.flush.interval.ms``, so the lag may seem greater than it is.

    Raises:
        KafkaError: a cluster cannot be asked.
        trio.TooSlowError: an internal topic could not be read in time.
    """
    logger = EventLogger("moldau.mirror", source=settings.alias, target=settings.target_alias)
    async with (
        Admin(settings.cluster.client("admin"), environment=environment) as source,
        Admin(settings.target.client("admin"), environment=environment) as target,
    ):
        topics = SourceTopics(settings.topic_rules)
        topics.look(await source.list_topics())
        wanted = [
            TopicPartition(name, number) for name, topic in topics.known.items() for number in range(topic.partitions)
        ]
        ends, failures = await _ends(source, wanted)
        store = PositionStore(environment, settings, logger)
        stored = await store.read() if await exists(target, store.topic) else {}
        age_ms = await _heartbeat_age(environment, settings, target, logger)

    def position_of(partition: TopicPartition) -> int:
        # A position in a topic of the same name that was deleted says nothing about this one.
        position = stored_start(stored.get(partition), topics.known[partition.topic].topic_id)
        return -1 if position is None else position.offset

    return SourceStatus(
        alias=settings.alias,
        heartbeat_age_ms=age_ms,
        missing=topics.missing,
        partitions=tuple(
            PartitionStatus(
                partition=partition,
                remote_topic=settings.policy.remote_topic(settings.alias, partition.topic),
                position=position_of(partition),
                end_offset=ends.get(partition, -1),
            )
            for partition in sorted(wanted)
        ),
        failures=failures,
    )


async def _ends(
    source: Admin, wanted: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], Mapping[str, KafkaError]]:
    """Returns the ends of partitions, and the errors of those whose leader does not tell it in time."""
    if not wanted:
        return {}, {}
    asked: dict[tuple[str, int], int] = dict.fromkeys(wanted, LATEST)
    failures: Mapping[str, KafkaError] = {}
    try:
        found = await source.within(ENDS_MS).list_offsets(asked, isolation_level=1)
    except AdminError as error:
        found = error.results if isinstance(error.results, dict) else {}
        failures = error.failures
    return {partition: end for partition, (end, _) in found.items()}, failures


async def _heartbeat_age(
    environment: Environment, settings: SourceSettings, target: Admin, logger: EventLogger
) -> int | None:
    if not await exists(target, HEARTBEATS):
        return None
    now_ms = environment.clock.wall_ms()
    newest: list[int] = []

    def take(record: Record) -> None:
        beat = Heartbeat.parse(record.key, record.value)
        if (beat.source, beat.target) == (settings.alias, settings.target_alias):
            newest[:] = [beat.timestamp]

    async with open_reader(environment, settings.target, HEARTBEATS, logger) as reader:
        await reader.begin(now_ms - HEARTBEATS_READ_MS)
        await reader.read_to_end(take)
    return max(now_ms - newest[0], 0) if newest else None


async def translated_offsets(
    environment: Environment, settings: SourceSettings, group: str
) -> dict[TopicPartition, Checkpoint]:
    """Returns the newest checkpoint of each partition of a group, by the partition in the target.

    Raises:
        KafkaError: the target cannot be asked.
        trio.TooSlowError: the topic of checkpoints could not be read in time.
    """
    logger = EventLogger("moldau.mirror", source=settings.alias, target=settings.target_alias)
    topic = settings.policy.checkpoints_topic(settings.alias)
    found: dict[TopicPartition, Checkpoint] = {}

    def take(record: Record) -> None:
        if record.value is None:
            return
        checkpoint = Checkpoint.parse(record.key, record.value)
        if checkpoint.group == group:
            found[checkpoint.partition] = checkpoint

    async with Admin(settings.target.client("admin"), environment=environment) as target:
        if not await exists(target, topic):
            return {}
    async with open_reader(environment, settings.target, topic, logger) as reader:
        await reader.begin()
        await reader.read_to_end(take)
    return found
