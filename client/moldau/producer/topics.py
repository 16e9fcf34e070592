"""The topics of one producer: their metadata, queues and partitioners, looked up for each record.

``ProducerTopics`` rebuilds the state of a topic when the cluster's metadata have a new version, and forgets topics that
get no records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster import arguments
from moldau.cluster.client import wait_topic
from moldau.cluster.metadata import TopicPartition
from moldau.cluster.troubles import check_topic_names
from moldau.producer.core.partitioner import make_keyless
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records.codec import TopicRoute

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicInfo
    from moldau.producer.core.accumulator import Accumulator
    from moldau.producer.core.partition_queue import PartitionQueue
    from moldau.producer.core.partitioner import KeylessPartitioner
    from moldau.producer.sender import Sender
    from moldau.runtime.config import Config


LOAD_INTERVAL_RECORDS = 256
"""Records of a topic after which the producer reads the loads of its partitions again."""


class TopicState(TopicRoute):
    """The data that ``send`` needs for each record of a topic; rebuilt when the topic's metadata changes.

    ``available`` are the partitions that keyless records may go to. ``kept`` is the queue that the partitioner has
    chosen for keyless records until a batch begins or is full, or ``kept_bytes`` reaches ``kept_bytes_max``. Then
    ``report`` gives it the bytes, and it chooses again: two calls per batch, not per record.
    """

    __slots__ = ("available", "info", "keyless", "load_at")

    def __init__(self, info: TopicInfo, queues: list[PartitionQueue], keyless: KeylessPartitioner) -> None:
        """Starts with all partitions that have a leader."""
        super().__init__(queues)
        self.info = info
        self.keyless = keyless
        self.available = info.available_partitions
        self.load_at = (
            LOAD_INTERVAL_RECORDS  # the value of ``sent`` from which the loads of the partitions are read again
        )

    def choose(self, draw: Callable[[], int]) -> PartitionQueue:
        """Returns the queue of the next keyless record; ``draw`` returns a non-negative random number."""
        queue: PartitionQueue = self.queues[self.keyless.choose(self.available, len(self.queues), draw)]
        self.kept = queue
        self.kept_bytes_max = self.keyless.bytes_to_stay()
        return queue

    def report(self, *, began_batch: bool, is_full: bool) -> None:
        """Gives the partitioner the bytes of the records since it chose, which began or filled a batch."""
        if self.kept is not None:
            self.keyless.appended(self.kept_bytes, began_batch=began_batch, is_full=is_full)
            self.kept, self.kept_bytes = None, 0


class ProducerTopics:
    """Invariant: ``known`` agrees with version ``version`` of the cluster metadata."""

    def __init__(self, config: Config, accumulator: Accumulator, *, batch_size: int) -> None:
        """Starts without topics; they come with ``look_up``."""
        self.known: dict[str, TopicState] = {}
        self._lost: dict[str, TopicState] = {}  # of topics that the metadata hold no more
        self.version = -1
        self._accumulator = accumulator
        self._partitioner_name = config.get_str_or_none("partitioner.class")
        self._is_adaptive = config.get_bool("partitioner.adaptive.partitioning.enable")
        self._availability_ms = config.get_int("partitioner.availability.timeout.ms")
        self._batch_size = batch_size
        self._max_block_ms = config.get_int("max.block.ms")
        self._max_idle_ms = config.get_int("metadata.max.idle.ms")

    def look_up(self, client: ClusterClient, topic: str) -> TopicState:
        """Returns the state of a topic after the metadata changed, or of a topic that is not known yet.

        Raises:
            InvalidTopicError: the name is not a valid topic name. Brokers never see it: one that is too long or cannot
                be encoded would spoil each request for metadata, of all topics.
            LookupError: the topic's metadata is missing.
        """
        arguments.text("send", "topic", topic)
        cluster_metadata = client.cluster_metadata
        if self.version != cluster_metadata.version:
            self.version = cluster_metadata.version
            for name, state in list(self.known.items()):
                info = cluster_metadata.topics.get(name)
                if info is None or not info.partitions:
                    self._lost[name] = self.known.pop(name)
                elif info is not state.info:
                    state.report(began_batch=False, is_full=False)
                    renewed = self.known[name] = self._make_state(info, state.keyless)
                    renewed.sent = state.sent  # else the topic may look idle
                    renewed.load_at += state.sent
        known = self.known.get(topic)
        if known is not None:
            return known
        found = cluster_metadata.topics.get(topic)
        if found is None or not found.partitions:
            check_topic_names([topic])
            client.add_topic(topic, until_absent=True)
            raise LookupError(f"metadata of topic {topic} is missing; await partitions_for({topic!r}) first")
        created = self._make_state(found, make_keyless(self._partitioner_name, self._batch_size))
        self.known[topic] = created
        self._lost.pop(topic, None)
        client.add_topic(topic)  # its batches wait for a topic that brokers do not know for a while
        return created

    def _make_state(self, info: TopicInfo, keyless: KeylessPartitioner) -> TopicState:
        queues = [self._accumulator.queue(TopicPartition(info.name, part.partition)) for part in info.partitions]
        return TopicState(info, queues, keyless)

    async def wait_for(self, client: ClusterClient, topic: str, partition: int | None, deadline_ms: float) -> TopicInfo:
        """Waits until the metadata hold a topic, and the partition if one is given.

        Raises:
            KafkaError: the topic does not exist, or its metadata did not arrive in time.
        """
        try:
            return await wait_topic(client, topic, deadline_ms, partition)
        except trio.TooSlowError as error:
            info = client.cluster_metadata.topics.get(topic)
            if info is not None and info.partitions:
                reason = f"it has partitions 0 to {len(info.partitions) - 1}, not {partition}"
                reason += f", after max.block.ms = {self._max_block_ms}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}: {reason}") from None
            if info is not None and info.error is not ErrorCode.NONE:
                raise KafkaError(info.error, f"topic {topic}: {info.error.message}") from None
            reason = str(error).removeprefix("no metadata: ")
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"topic {topic}: no metadata within {self._max_block_ms} ms: {reason}"
            ) from error

    def refresh_load(self, topic: str, state: TopicState, sender: Sender) -> None:
        """Gives the partitioner the queue lengths, without partitions whose broker takes no batches (KIP-794)."""
        if self._availability_ms > 0:
            stuck = sender.stuck_nodes(self._availability_ms)
            parts = state.info.partitions
            usable = [number for number in state.info.available_partitions if parts[number].leader not in stuck]
            state.available = tuple(usable) or state.info.available_partitions
            if state.kept is not None and state.kept.partition.partition not in state.available:
                state.report(began_batch=False, is_full=False)
        if self._is_adaptive:
            state.keyless.set_load(self._accumulator.queue_sizes(topic, state.available))

    async def forget_idle(self, client: ClusterClient) -> None:
        """Drops the metadata of topics without a record for ``metadata.max.idle.ms``; runs until cancelled."""
        # A topic that was forgotten or gone meanwhile has another partitioner, and its count began again.
        counts: dict[str, tuple[KeylessPartitioner, int]] = {}
        while True:
            await trio.sleep(self._max_idle_ms / 1000)
            before, counts = counts, {name: (state.keyless, state.sent) for name, state in self.known.items()}
            idle = {name: self.known[name] for name, count in counts.items() if before.get(name) == count}
            for name, state in (self._lost | idle).items():
                if not any(queue.batches or queue.outstanding for queue in state.queues):
                    (self.known if name in idle else self._lost).pop(name)
                    client.forget_topic(name)
