"""DeleteShareGroupOffsets: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DeleteShareGroupOffsetsRequestTopic(Struct):
    """An element of ``topics`` in ``DeleteShareGroupOffsetsRequest``."""

    topic_name: str = field.string("0+")


class DeleteShareGroupOffsetsRequest(Request, api_key=92, versions="0", flexible="0+"):
    """Delete the offsets that an empty share group has in topics (KIP-932)."""

    group_id: str = field.string("0+")
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = field.array(DeleteShareGroupOffsetsRequestTopic, "0+")


class DeleteShareGroupOffsetsResponseTopic(Struct):
    """An element of ``responses`` in ``DeleteShareGroupOffsetsResponse``."""

    topic_name: str = field.string("0+")
    topic_id: UUID = field.uuid("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Response, api_key=92, versions="0", flexible="0+"):
    """One error code for each topic, or one for the request."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = field.array(DeleteShareGroupOffsetsResponseTopic, "0+")
