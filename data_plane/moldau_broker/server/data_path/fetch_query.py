"""Describes how one Fetch reads, and the local replica that one of its partitions names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau_broker.replication.fetch_session import FetchPartition
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

TOPIC_IDS = 13
"""The first version of Fetch, and of Produce, that names topics by their ids."""
READ_COMMITTED = 1


class FetchQuery(NamedTuple):
    """The limits, isolation and reader of one request."""

    version: int
    correlation_id: int
    replica_id: int  # of the follower; below 0 for a consumer
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int  # at most ``max_bytes``
    max_bytes: int  # at most ``fetch.max.bytes``
    isolation_level: int
    rack_id: str


def local_replica(replicas: ReplicaManager, query: FetchQuery, wanted: FetchPartition) -> Partition | None:
    """Returns the requested local replica; None if there is none."""
    local = replicas.by_raw_id if query.version >= TOPIC_IDS else replicas.by_raw_name
    return local.get((wanted.topic, wanted.partition))
