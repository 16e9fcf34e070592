"""DeleteTopics: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DeleteTopicState(Struct):
    """An element of ``topics`` in ``DeleteTopicsRequest``."""

    name: str | None = field.string("6+", nullable="6+", default=None)
    topic_id: UUID = field.uuid("6+")


class DeleteTopicsRequest(Request, api_key=20, versions="1-6", flexible="4+"):
    """Delete topics by name or id (KIP-516)."""

    topics: Sequence[DeleteTopicState] = field.array(DeleteTopicState, "6+")
    topic_names: Sequence[str] = field.string_array("0-5")
    timeout_ms: int = field.int32("0+")


class DeletableTopicResult(Struct):
    """An element of ``responses`` in ``DeleteTopicsResponse``."""

    name: str | None = field.string("0+", nullable="6+")
    topic_id: UUID = field.uuid("6+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Response, api_key=20, versions="1-6", flexible="4+"):
    """One outcome for each topic."""

    throttle_time_ms: int = field.int32("1+")
    responses: Sequence[DeletableTopicResult] = field.array(DeletableTopicResult, "0+")
