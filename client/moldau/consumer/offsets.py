"""The offsets of a consumer: what it has consumed and commits, where its partitions stand, and where their logs end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster import arguments
from moldau.cluster.committed import CommittedOffset
from moldau.cluster.offsets import list_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.positions import PartitionPosition, Positions
    from moldau.consumer.fetcher import Fetcher


class ConsumerOffsets:
    """The offsets of one consumer's partitions, from its positions and from the leaders."""

    def __init__(self, positions: Positions, timeout_ms: float, *, reads_committed: bool) -> None:
        """``timeout_ms`` bounds a request; ``reads_committed`` ends a log at its last stable offset."""
        self._positions = positions
        self._timeout_ms = timeout_ms
        self._isolation = 1 if reads_committed else 0

    def consumed(self) -> dict[TopicPartition, CommittedOffset]:
        """Returns the positions of the assigned partitions, as offsets to commit.

        What a poll has taken counts when it has been deserialized: another task may commit while a schema is looked up.
        """
        found = {}
        for position in self._positions.by_partition.values():
            if position.has_position:
                offset, leader_epoch = self._positions.to_commit(position)
                found[position.partition] = CommittedOffset(offset=offset, leader_epoch=leader_epoch)
        return found

    def to_commit(self, unread: Mapping[TopicPartition, tuple[int, int]]) -> dict[tuple[str, int], CommittedOffset]:
        """Returns ``consumed``, with the offset and leader epoch of ``unread`` where it names a partition."""
        offsets: dict[tuple[str, int], CommittedOffset] = dict(self.consumed().items())
        for partition, (offset, leader_epoch) in unread.items():
            if partition in offsets:
                offsets[partition] = CommittedOffset(offset=offset, leader_epoch=leader_epoch)
        return offsets

    async def list(
        self, partitions: Iterable[TopicPartition], timestamp: int, client: ClusterClient
    ) -> dict[TopicPartition, int]:
        """Returns the offset of each partition at ``timestamp``, which may be one of Kafka's special values."""
        found = await self.at(dict.fromkeys(partitions, timestamp), client)
        return {partition: offset for partition, (offset, _) in found.items()}

    async def at(
        self, wanted: dict[TopicPartition, int], client: ClusterClient
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of the first record at or after each wanted time."""
        return await list_offsets(client, wanted, self._timeout_ms, self._isolation)


def given_offsets(
    offsets: Mapping[tuple[str, int], int | CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    """Returns the offsets that an application gives to ``commit``.

    Raises:
        InvalidTopicError: a name is not a valid topic name.
        TypeError: a partition or an offset is of a wrong type.
        ValueError: an offset is negative.
    """
    return {
        partition: CommittedOffset(offset=offset, leader_epoch=epoch, metadata=metadata)
        for partition, offset, epoch, metadata in arguments.committed_offsets("commit", offsets)
    }


async def wait_position(client: ClusterClient, fetcher: Fetcher, position: PartitionPosition, timeout_ms: float) -> int:
    """Returns the offset of a position as soon as it is known.

    Raises:
        KafkaError: the position cannot be determined.
        trio.TooSlowError: it is unknown after ``timeout_ms``.
    """
    with trio.move_on_after(timeout_ms / 1000):
        await trio.lowlevel.checkpoint()
        while not position.has_position:
            if (error := fetcher.next_error()) is not None:
                raise error
            if client.bootstrap_error is not None:
                raise client.bootstrap_error
            if client.is_closed:
                raise RuntimeError("the client was closed during the call")
            await fetcher.arrived.wait()
        return position.offset
    raise trio.TooSlowError(f"{position.partition}: no position within {timeout_ms:g} ms")
