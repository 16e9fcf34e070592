"""ShareAcknowledge: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AcknowledgementBatch(Struct):
    """An element of ``acknowledgement_batches`` in ``AcknowledgePartition``."""

    first_offset: int = field.int64("1+")
    last_offset: int = field.int64("1+")
    acknowledge_types: Sequence[int] = field.int8_array("1+")


class AcknowledgePartition(Struct):
    """An element of ``partitions`` in ``AcknowledgeTopic``."""

    partition_index: int = field.int32("1+")
    acknowledgement_batches: Sequence[AcknowledgementBatch] = field.array(AcknowledgementBatch, "1+")


class AcknowledgeTopic(Struct):
    """An element of ``topics`` in ``ShareAcknowledgeRequest``."""

    topic_id: UUID = field.uuid("1+")
    partitions: Sequence[AcknowledgePartition] = field.array(AcknowledgePartition, "1+")


class ShareAcknowledgeRequest(Request, api_key=79, versions="1-2", flexible="1+"):
    """Acknowledge records that a member of a share group has acquired (KIP-932)."""

    group_id: str | None = field.string("1+", nullable="1+", default=None)
    member_id: str | None = field.string("1+", nullable="1+")
    share_session_epoch: int = field.int32("1+")
    is_renew_ack: bool = field.boolean("2+")
    topics: Sequence[AcknowledgeTopic] = field.array(AcknowledgeTopic, "1+")


class LeaderIdAndEpoch(Struct):
    """The value of ``current_leader`` in ``PartitionData``."""

    leader_id: int = field.int32("1+")
    leader_epoch: int = field.int32("1+")


class PartitionData(Struct):
    """An element of ``partitions`` in ``ShareAcknowledgeTopicResponse``."""

    partition_index: int = field.int32("1+")
    error_code: int = field.int16("1+")
    error_message: str | None = field.string("1+", nullable="1+", default=None)
    current_leader: LeaderIdAndEpoch = field.struct(LeaderIdAndEpoch, "1+")


class ShareAcknowledgeTopicResponse(Struct):
    """An element of ``responses`` in ``ShareAcknowledgeResponse``."""

    topic_id: UUID = field.uuid("1+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "1+")


class NodeEndpoint(Struct):
    """An element of ``node_endpoints`` in ``ShareAcknowledgeResponse``."""

    node_id: int = field.int32("1+")
    host: str = field.string("1+")
    port: int = field.int32("1+")
    rack: str | None = field.string("1+", nullable="1+", default=None)


class ShareAcknowledgeResponse(Response, api_key=79, versions="1-2", flexible="1+"):
    """The outcome for each partition."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("1+")
    error_message: str | None = field.string("1+", nullable="1+", default=None)
    acquisition_lock_timeout_ms: int = field.int32("2+")
    responses: Sequence[ShareAcknowledgeTopicResponse] = field.array(ShareAcknowledgeTopicResponse, "1+")
    node_endpoints: Sequence[NodeEndpoint] = field.array(NodeEndpoint, "1+")
