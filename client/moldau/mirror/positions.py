"""The stored positions of a source: records of a compacted topic in the target, as Connect stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.mirror.core.formats import Position, parse_position, position_key, position_value
from moldau.mirror.internal import create_compacted, open_reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.admin import Admin
    from moldau.cluster.metadata import TopicPartition
    from moldau.mirror.core.settings import SourceSettings
    from moldau.producer import Delivery, Producer
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger


class PositionStore:
    """Reads and writes the positions of one source."""

    def __init__(self, environment: Environment, settings: SourceSettings, logger: EventLogger) -> None:
        self._environment = environment
        self._settings = settings
        self._logger = logger
        self.topic = settings.policy.offsets_topic(settings.alias)

    async def create(self, admin: Admin) -> None:
        """Creates the topic in the target unless it exists."""
        await create_compacted(admin, self.topic, self._settings.config.get_int("replication.factor"))

    async def read(self) -> dict[TopicPartition, Position]:
        """Returns the newest committed position of each partition.

        Raises:
            KafkaError: the target refuses, or it is down.
            trio.TooSlowError: a transaction of another mirror stayed open for too long.
        """
        found: dict[TopicPartition, Position] = {}
        alias = self._settings.alias

        def take(record: Record) -> None:
            stored = parse_position(alias, record.key, record.value)
            if stored is None:
                return
            partition, position = stored
            if position is None:
                found.pop(partition, None)
            else:
                found[partition] = position

        async with open_reader(self._environment, self._settings.target, self.topic, self._logger) as reader:
            await reader.begin()
            await reader.read_to_end(take)
        return found

    async def send(self, producer: Producer, positions: Mapping[TopicPartition, Position]) -> list[Delivery]:
        """Sends a record for each position; the caller awaits the deliveries, or commits the transaction."""
        alias = self._settings.alias
        return [
            await producer.send(self.topic, position_value(position), key=position_key(alias, partition))
            for partition, position in positions.items()
        ]
