"""The newest committed image on a broker, with the queries of handlers."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from moldau.protocol.hot import NodeEndpointResult
from moldau_broker.server.cluster_metadata.shared_answers import SharedAnswers
from moldau_quorum.metadata.image import MetadataImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.values import BrokerId
    from moldau_broker.server.replicas.partition import Partition
    from moldau_quorum.metadata.image import PartitionImage, TopicImage
    from moldau_quorum.metadata.records import Endpoint


class MetadataCache:
    """The newest image. Readers take ``image`` once: an image is immutable, and a newer one replaces it."""

    def __init__(self, broker_id: BrokerId, inter_broker_listener: str, *, rack_aware_reads: bool) -> None:
        self.image = MetadataImage()
        self._broker_id = broker_id
        self._inter_broker_listener = inter_broker_listener
        self._rack_aware_reads = rack_aware_reads
        self.is_suspect: Callable[[BrokerId], bool] = lambda _: False
        self._counted: tuple[MetadataImage, int] | None = None
        self.answers = SharedAnswers()
        """Answers to Metadata for the image."""

    def partition_count(self) -> int:
        """Returns the number of partitions of all topics, counted once for each image."""
        image = self.image
        if self._counted is None or self._counted[0] is not image:
            self._counted = (image, sum(len(topic.partitions) for topic in image.topics_by_name.values()))
        return self._counted[1]

    def topic(self, raw_topic: bytes, *, by_id: bool) -> TopicImage | None:
        """Returns a topic by the bytes on the wire, its name or its 16-byte id; None if it does not exist."""
        if by_id:
            return self.image.topics_by_id.get(uuid.UUID(bytes=raw_topic))
        return self.image.topics_by_name.get(raw_topic.decode())

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        """Returns a partition by topic name; None if it does not exist."""
        image = self.image.topics_by_name.get(topic)
        return None if image is None else image.partitions.get(partition)

    def endpoint(self, broker_id: BrokerId, listener_name: str) -> Endpoint | None:
        """Returns an endpoint of a live broker; None while it is fenced or lacks the listener."""
        broker = self.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.endpoint(listener_name)

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener for requests between brokers."""
        return self._inter_broker_listener

    def inter_broker_address(self, broker_id: BrokerId) -> tuple[str, int] | None:
        """Returns host and port of a registered broker's inter-broker listener, fenced or not."""
        broker = self.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._inter_broker_listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def suspects(self) -> frozenset[int]:
        """Returns the unfenced brokers that seem to have crashed a moment ago."""
        return frozenset(
            broker.broker_id
            for broker in self.image.brokers.values()
            if not broker.fenced and self.is_suspect(broker.broker_id)
        )

    def is_alive(self, broker_id: BrokerId) -> bool:
        """Returns whether the broker is registered and not fenced."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.fenced


class ListenerHints:
    """The metadata for clients of one listener; see ``data_path.hints.Hints``."""

    __slots__ = ("_broker_id", "_cache", "_listener_name")

    def __init__(self, cache: MetadataCache, broker_id: BrokerId, listener_name: str) -> None:
        self._cache = cache
        self._broker_id = broker_id
        self._listener_name = listener_name

    def leader_hint(self, topic: bytes, partition: int, *, by_id: bool) -> tuple[int, int] | None:
        """Returns leader id (-1: none) and leader epoch; None if the partition does not exist."""
        image = self._cache.topic(topic, by_id=by_id)
        found = None if image is None else image.partitions.get(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def endpoint_hint(self, broker_id: BrokerId) -> NodeEndpointResult | None:
        """Returns the endpoint on which a broker serves clients (KIP-951)."""
        endpoint = self._cache.endpoint(broker_id, self._listener_name)
        if endpoint is None:
            return None
        return NodeEndpointResult(broker_id, endpoint.host, endpoint.port, self._cache.image.brokers[broker_id].rack)

    def topic_exists(self, topic: bytes, *, by_id: bool) -> bool:
        """Returns whether the topic exists."""
        return self._cache.topic(topic, by_id=by_id) is not None

    def preferred_read_replica(self, partition: Partition, rack_id: str, fetch_offset: int) -> int:
        """Returns the replica that a consumer of that rack should read from (KIP-392); -1 for this one.

        That is the leader if it is in the rack; else the live in-sync replica of the rack with the highest log end
        offset, among those that hold ``fetch_offset`` and have the client's listener.
        """
        cache = self._cache
        if not cache._rack_aware_reads:
            return -1
        brokers = cache.image.brokers
        own = brokers.get(self._broker_id)
        if own is not None and own.rack == rack_id:
            return -1
        best, best_offset = -1, -1
        replica = partition.replica
        for broker_id in replica.state.isr:
            broker = brokers.get(broker_id)
            follower = replica.follower(broker_id)
            if broker is None or broker.rack != rack_id or follower is None:
                continue
            if cache.endpoint(broker_id, self._listener_name) is None:
                continue  # the client does not find it in its metadata, and would ask here again
            if follower.log_start_offset <= fetch_offset <= follower.log_end_offset > best_offset:
                best, best_offset = broker_id, follower.log_end_offset
        return best
