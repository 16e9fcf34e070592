"""ShareFetch: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct
from moldau.values import Buffer


class AcknowledgementBatch(Struct):
    """An element of ``acknowledgement_batches`` in ``FetchPartition``."""

    first_offset: int = field.int64("1+")
    last_offset: int = field.int64("1+")
    acknowledge_types: Sequence[int] = field.int8_array("1+")


class FetchPartition(Struct):
    """An element of ``partitions`` in ``FetchTopic``."""

    partition_index: int = field.int32("1+")
    acknowledgement_batches: Sequence[AcknowledgementBatch] = field.array(AcknowledgementBatch, "1+")


class FetchTopic(Struct):
    """An element of ``topics`` in ``ShareFetchRequest``."""

    topic_id: UUID = field.uuid("1+")
    partitions: Sequence[FetchPartition] = field.array(FetchPartition, "1+")


class ForgottenTopic(Struct):
    """An element of ``forgotten_topics_data`` in ``ShareFetchRequest``."""

    topic_id: UUID = field.uuid("1+")
    partitions: Sequence[int] = field.int32_array("1+")


class ShareFetchRequest(Request, api_key=78, versions="1-2", flexible="1+"):
    """Acquire records for a member of a share group, and acknowledge others (KIP-932).

    Acquire modes are KIP-1206's, renewals KIP-1222's.
    """

    group_id: str | None = field.string("1+", nullable="1+", default=None)
    member_id: str | None = field.string("1+", nullable="1+")
    share_session_epoch: int = field.int32("1+")
    max_wait_ms: int = field.int32("1+")
    min_bytes: int = field.int32("1+")
    max_bytes: int = field.int32("1+", default=2147483647)
    max_records: int = field.int32("1+")
    batch_size: int = field.int32("1+")
    share_acquire_mode: int = field.int8("2+")
    is_renew_ack: bool = field.boolean("2+")
    topics: Sequence[FetchTopic] = field.array(FetchTopic, "1+")
    forgotten_topics_data: Sequence[ForgottenTopic] = field.array(ForgottenTopic, "1+")


class LeaderIdAndEpoch(Struct):
    """The value of ``current_leader`` in ``PartitionData``."""

    leader_id: int = field.int32("1+")
    leader_epoch: int = field.int32("1+")


class AcquiredRecords(Struct):
    """An element of ``acquired_records`` in ``PartitionData``."""

    first_offset: int = field.int64("1+")
    last_offset: int = field.int64("1+")
    delivery_count: int = field.int16("1+")


class PartitionData(Struct):
    """An element of ``partitions`` in ``ShareFetchableTopicResponse``."""

    partition_index: int = field.int32("1+")
    error_code: int = field.int16("1+")
    error_message: str | None = field.string("1+", nullable="1+", default=None)
    acknowledge_error_code: int = field.int16("1+")
    acknowledge_error_message: str | None = field.string("1+", nullable="1+", default=None)
    current_leader: LeaderIdAndEpoch = field.struct(LeaderIdAndEpoch, "1+")
    records: Buffer = field.binary("1+")
    acquired_records: Sequence[AcquiredRecords] = field.array(AcquiredRecords, "1+")


class ShareFetchableTopicResponse(Struct):
    """An element of ``responses`` in ``ShareFetchResponse``."""

    topic_id: UUID = field.uuid("1+")
    partitions: Sequence[PartitionData] = field.array(PartitionData, "1+")


class NodeEndpoint(Struct):
    """An element of ``node_endpoints`` in ``ShareFetchResponse``."""

    node_id: int = field.int32("1+")
    host: str = field.string("1+")
    port: int = field.int32("1+")
    rack: str | None = field.string("1+", nullable="1+", default=None)


class ShareFetchResponse(Response, api_key=78, versions="1-2", flexible="1+"):
    """The acquired records of each partition, and the outcome of the acknowledgements."""

    throttle_time_ms: int = field.int32("1+")
    error_code: int = field.int16("1+")
    error_message: str | None = field.string("1+", nullable="1+", default=None)
    acquisition_lock_timeout_ms: int = field.int32("1+")
    responses: Sequence[ShareFetchableTopicResponse] = field.array(ShareFetchableTopicResponse, "1+")
    node_endpoints: Sequence[NodeEndpoint] = field.array(NodeEndpoint, "1+")
