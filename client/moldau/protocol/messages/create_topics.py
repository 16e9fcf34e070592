"""CreateTopics: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class CreatableReplicaAssignment(Struct):
    """An element of ``assignments`` in ``CreatableTopic``."""

    partition_index: int = field.int32("0+")
    broker_ids: Sequence[int] = field.int32_array("0+")


class CreatableTopicConfig(Struct):
    """An element of ``configs`` in ``CreatableTopic``."""

    name: str = field.string("0+")
    value: str | None = field.string("0+", nullable="0+")


class CreatableTopic(Struct):
    """An element of ``topics`` in ``CreateTopicsRequest``."""

    name: str = field.string("0+")
    num_partitions: int = field.int32("0+")
    replication_factor: int = field.int16("0+")
    assignments: Sequence[CreatableReplicaAssignment] = field.array(CreatableReplicaAssignment, "0+")
    configs: Sequence[CreatableTopicConfig] = field.array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Request, api_key=19, versions="2-7", flexible="5+"):
    """Create topics, or check whether they could be created (KIP-4, KIP-525)."""

    topics: Sequence[CreatableTopic] = field.array(CreatableTopic, "0+")
    timeout_ms: int = field.int32("0+", default=60000)
    validate_only: bool = field.boolean("1+")


class CreatableTopicConfigs(Struct):
    """An element of ``configs`` in ``CreatableTopicResult``."""

    name: str = field.string("5+")
    value: str | None = field.string("5+", nullable="5+")
    read_only: bool = field.boolean("5+")
    config_source: int = field.int8("5+", default=-1)
    is_sensitive: bool = field.boolean("5+")


class CreatableTopicResult(Struct):
    """An element of ``topics`` in ``CreateTopicsResponse``."""

    name: str = field.string("0+")
    topic_id: UUID = field.uuid("7+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("1+", nullable="0+")
    topic_config_error_code: int = field.int16("5+", tag=0)
    num_partitions: int = field.int32("5+", default=-1)
    replication_factor: int = field.int16("5+", default=-1)
    configs: Sequence[CreatableTopicConfigs] | None = field.array(CreatableTopicConfigs, "5+", nullable="5+")


class CreateTopicsResponse(Response, api_key=19, versions="2-7", flexible="5+"):
    """Outcome and effective configuration of each topic."""

    throttle_time_ms: int = field.int32("2+")
    topics: Sequence[CreatableTopicResult] = field.array(CreatableTopicResult, "0+")
