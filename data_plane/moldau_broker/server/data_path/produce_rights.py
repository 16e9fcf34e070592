"""Removes the partitions that a client may not write from its Produce request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import ProducePartitionResult
from moldau_broker.server.data_path.fetch_query import TOPIC_IDS
from moldau_broker.server.data_path.transaction_checks import ATTRIBUTES_LOW_BYTE, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.hot import ProduceRequestView
    from moldau_quorum.authorization.authorizer import Permissions

Results = list[tuple[bytes, list[ProducePartitionResult]]]
NOTHING_DENIED: Results = []


def permitted(
    request: ProduceRequestView, version: int, permissions: Permissions
) -> tuple[ProduceRequestView, Results]:
    """Returns the request without the partitions that the client may not write, and their results.

    The first loop serves nearly all requests: no transaction, and topics that are known to be permitted.
    """
    by_id = version >= TOPIC_IDS
    known = permissions.writable[by_id]
    for topic, partitions in request.topics:
        if topic not in known:
            return _checked(request, permissions, by_id=by_id)
        for _, records in partitions:
            if len(records) > ATTRIBUTES_LOW_BYTE and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
                return _checked(request, permissions, by_id=by_id)
    return request, NOTHING_DENIED


def _checked(
    request: ProduceRequestView, permissions: Permissions, *, by_id: bool
) -> tuple[ProduceRequestView, Results]:
    permissions.api = ApiKey.PRODUCE
    allowed: list[tuple[bytes, list[tuple[int, memoryview]]]] = []
    denied: Results = []
    is_transactional = False
    for topic in request.topics:
        for _, records in topic[1]:
            if len(records) > ATTRIBUTES_LOW_BYTE and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
                is_transactional = True
        error = permissions.topic_error(AclOperation.WRITE, topic[0], by_id=by_id)
        if error is ErrorCode.NONE:
            allowed.append(topic)
        else:
            denied.append(_refused(*topic, error))
    if is_transactional:
        name = request.transactional_id
        if name is None or not permissions.may(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, name):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return request._replace(topics=[]), [_refused(*topic, code) for topic in request.topics]
    return (request._replace(topics=allowed), denied) if denied else (request, NOTHING_DENIED)


def _refused(
    topic: bytes, partitions: Sequence[tuple[int, memoryview]], code: ErrorCode
) -> tuple[bytes, list[ProducePartitionResult]]:
    return topic, [ProducePartitionResult(index, code) for index, _ in partitions]
