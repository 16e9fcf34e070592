"""The limit of a request's entries: topics, partitions, groups, members, keys and all other elements of its arrays.

A frame of one megabyte holds several hundred thousand of the smallest entries, and each of them costs a handler some
microseconds of the event loop. The limit bounds that for all APIs in one place. It grows with the cluster, so that a
client may name all its partitions in one request. Fetch and Produce have readers and limits of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import TooManyEntriesError, decode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import encode_response
from moldau.protocol.refusals import has_code, refusal
from moldau.runtime.net.serving.answers import CloseConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Request
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import Buffer

ENTRIES_PER_PARTITION: Final = 8
"""Entries that a request may hold for each partition of the cluster: itself, its replicas, and their epochs."""


def decode_limited(
    api_key: int,
    version: int,
    frame: Buffer,
    offset: int,
    *,
    entries_max: int,
    partition_count: Callable[[], int],
    correlation_id: int,
    logger: EventLogger,
) -> Request | bytes:
    """Decodes a request; returns the frame of its refusal if it has too many entries.

    ``entries_max`` is the limit beside the partitions of the cluster; ``partition_count`` counts these, and is called
    only for a frame that may exceed the limit.

    Raises:
        CloseConnection: the request has too many entries, and its response has no error code of its own.
        DecodeError: the bytes are no such request.
    """
    request_class = APIS[api_key].request
    limit = entries_max
    if len(frame) - offset > limit:  # no entry has less than a byte
        limit += ENTRIES_PER_PARTITION * partition_count()
    try:
        return decode(request_class, version, frame, offset, entries_max=limit)
    except TooManyEntriesError as error:
        api = ApiKey(api_key).name
        logger.warning("request-too-large", api=api, version=version, entries_max=limit, bytes=len(frame) - offset)
        reason = f"{api} version {version} has more than {limit} entries (request.max.entries): ask for less at a time"
        refused = refusal(request_class(), ErrorCode.INVALID_REQUEST, reason, version=version)
        if not has_code(refused):
            raise CloseConnection(reason, is_logged=True) from error
        return encode_response(refused, version, correlation_id)
