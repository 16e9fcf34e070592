"""Names the broker that a client should ask when it asked the wrong one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.protocol.hot import NodeEndpointResult
    from moldau.values import BrokerId
    from moldau_broker.server.replicas.partition import Partition


class Hints(Protocol):
    """Answers questions about metadata that redirect a client (``cluster_metadata.cache.ListenerHints``)."""

    def leader_hint(self, topic: bytes, partition: int, *, by_id: bool) -> tuple[int, int] | None:
        """Returns leader id (-1: none) and leader epoch; None if the partition does not exist."""
        ...

    def endpoint_hint(self, broker_id: BrokerId) -> NodeEndpointResult | None:
        """Returns the endpoint on which a broker serves clients (KIP-951)."""
        ...

    def topic_exists(self, topic: bytes, *, by_id: bool) -> bool:
        """Returns whether the topic exists."""
        ...

    def preferred_read_replica(self, partition: Partition, rack_id: str, fetch_offset: int) -> int:
        """Returns the replica that a consumer of that rack should read from (KIP-392); -1 for this one."""
        ...
