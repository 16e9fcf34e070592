"""Internal topics of a mirror: their creation, and reading them to their end."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio

from moldau.admin import LATEST, Admin, AdminError, ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.cluster.metadata import TopicPartition
from moldau.consumer import Consumer
from moldau.mirror.core.formats import FormatError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from moldau.mirror.core.settings import ClusterSettings
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger

READ_TIMEOUT_MS = 120_000.0
"""For reading one internal topic to its end; a source starts again after that."""
_POLL_MS = 500.0
_POLICY = "cleanup.policy"


async def create_compacted(admin: Admin, name: str, replication_factor: int, *, partitions: int = 1) -> None:
    """Creates a compacted topic unless it exists; one that a broker made for a producer is compacted from now on.

    Raises:
        KafkaError: it could not be created.
    """
    topic = NewTopic(name, partitions, replication_factor, configs={_POLICY: "compact"})
    try:
        await admin.create_topics([topic])
    except AdminError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        await _compact(admin, ConfigResource(ResourceType.TOPIC, name))


async def _compact(admin: Admin, topic: ConfigResource) -> None:
    """Compacts a topic without a cleanup policy of its own: retention would delete the newest records of keys, too.

    The topic stays as it is where the cluster refuses that.
    """
    with suppress(AdminError):
        policy = (await admin.describe_configs([topic]))[topic].get(_POLICY)
        if policy is not None and policy.source is not ConfigSource.DYNAMIC_TOPIC and policy.value == "delete":
            await admin.alter_configs({topic: [ConfigAlteration(name=_POLICY, value="compact")]})


class TopicReader:
    """Reads an internal topic from its start, and later what has been added; made by ``open_reader``."""

    def __init__(self, admin: Admin, consumer: Consumer, topic: str, logger: EventLogger) -> None:
        self._topic = topic
        self._logger = logger
        self._admin = admin
        self._consumer = consumer

    async def begin(self, since_ms: int | None = None) -> None:
        """Begins at the start of the topic, or at the first record since a time (Unix milliseconds).

        Raises:
            KafkaError: the topic does not exist, among others.
        """
        described = await self._admin.describe_topics([self._topic])
        partitions = [TopicPartition(self._topic, each.partition) for each in described[self._topic].partitions]
        times: dict[tuple[str, int], int] = {} if since_ms is None else dict.fromkeys(partitions, since_ms)
        found = await self._consumer.offsets_for_times(times) if times else {}
        # No checkpoint from here on: the consumer must not look for positions by itself.
        self._consumer.assign(partitions)
        for partition in partitions:
            if partition not in found:
                self._consumer.seek_to_beginning(partition)
            elif found[partition][0] < 0:
                self._consumer.seek_to_end(partition)
            else:
                self._consumer.seek(partition, found[partition][0])

    async def read_to_end(self, take: Callable[[Record], object]) -> None:
        """Gives ``take`` each record up to the present end; records that it refuses with ``FormatError`` are skipped.

        Aborted records are left out. The read waits for open transactions, because one of them may hold the newest
        value.

        Raises:
            trio.TooSlowError: the end was not reached in ``READ_TIMEOUT_MS``.
            KafkaError: the topic cannot be read.
        """
        consumer = self._consumer
        wanted: dict[tuple[str, int], int] = dict.fromkeys(consumer.assignment, LATEST)
        with trio.fail_after(READ_TIMEOUT_MS / 1000):
            ends = {each: found[0] for each, found in (await self._admin.list_offsets(wanted)).items()}
            while not await _reached(consumer, ends):
                for part in await consumer.poll(_POLL_MS):
                    for record in part.records:
                        try:
                            take(record)
                        except FormatError as error:
                            self._logger.warning("record-skipped", topic=self._topic, offset=record.offset, error=error)


@asynccontextmanager
async def open_reader(
    environment: Environment, cluster: ClusterSettings, topic: str, logger: EventLogger
) -> AsyncIterator[TopicReader]:
    """Opens clients that read a topic, which must exist before ``begin``."""
    settings = cluster.client("consumer", isolation_level="read_committed")
    async with (
        Admin(cluster.client("admin"), environment=environment) as admin,
        Consumer(settings, environment=environment) as consumer,
    ):
        yield TopicReader(admin, consumer, topic, logger)


async def _reached(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Returns whether the consumer stands at or behind all ends.

    A position before a marker at the end does not move without a record, so poll is called until it does.
    """
    return all([await consumer.position(partition) >= end for partition, end in ends.items()])


async def exists(admin: Admin, topic: str) -> bool:
    """Returns whether a topic exists."""
    try:
        await admin.describe_topics([topic])
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        raise
    return True
