"""Metadata: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class MetadataRequestTopic(Struct):
    """An element of ``topics`` in ``MetadataRequest``."""

    topic_id: UUID = field.uuid("10+")
    name: str | None = field.string("0+", nullable="10+")


class MetadataRequest(Request, api_key=3, versions="0-13", flexible="9+"):
    """Ask for brokers, topics and partition leaders (KIP-516 topic ids)."""

    topics: Sequence[MetadataRequestTopic] | None = field.array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = field.boolean("4+", default=True)
    include_cluster_authorized_operations: bool = field.boolean("8-10")
    include_topic_authorized_operations: bool = field.boolean("8+")


class MetadataResponseBroker(Struct):
    """An element of ``brokers`` in ``MetadataResponse``."""

    node_id: int = field.int32("0+")
    host: str = field.string("0+")
    port: int = field.int32("0+")
    rack: str | None = field.string("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    """An element of ``partitions`` in ``MetadataResponseTopic``."""

    error_code: int = field.int16("0+")
    partition_index: int = field.int32("0+")
    leader_id: int = field.int32("0+")
    leader_epoch: int = field.int32("7+", default=-1)
    replica_nodes: Sequence[int] = field.int32_array("0+")
    isr_nodes: Sequence[int] = field.int32_array("0+")
    offline_replicas: Sequence[int] = field.int32_array("5+")


class MetadataResponseTopic(Struct):
    """An element of ``topics`` in ``MetadataResponse``."""

    error_code: int = field.int16("0+")
    name: str | None = field.string("0+", nullable="12+")
    topic_id: UUID = field.uuid("10+")
    is_internal: bool = field.boolean("1+")
    partitions: Sequence[MetadataResponsePartition] = field.array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = field.int32("8+", default=-2147483648)


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    """Brokers, controller, topics, partitions with leader and in-sync replicas."""

    throttle_time_ms: int = field.int32("3+")
    brokers: Sequence[MetadataResponseBroker] = field.array(MetadataResponseBroker, "0+")
    cluster_id: str | None = field.string("2+", nullable="2+", default=None)
    controller_id: int = field.int32("1+", default=-1)
    topics: Sequence[MetadataResponseTopic] = field.array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = field.int32("8-10", default=-2147483648)
    error_code: int = field.int16("13+")
