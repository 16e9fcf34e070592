"""The limit of an answer's bytes: a larger answer is replaced by the refusal of its whole request.

Handlers bound what they compute; this is the last bound, for all APIs in one place. Clients refuse frames that are too
large and lose their connection: librdkafka's ``receive.message.max.bytes`` is 100,000,000 bytes by default. Fetch and
Produce do not pass here: Fetch is bounded by ``fetch.max.bytes``, and Produce by the number of its entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import FrameTooLargeError, encode_response, encode_response_in_steps
from moldau.protocol.refusals import has_code, refusal
from moldau.runtime.net.serving.answers import CloseConnection, gathered

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.net.serving.answers import ResponsePart
    from moldau.runtime.telemetry.log import EventLogger

ANSWER_BYTES_MAX: Final = 100_000_000
"""Largest answer in bytes, without its size prefix."""
ELEMENTS_PER_TURN: Final = 100
"""Elements of an answer's long array that are encoded between two checkpoints, such as topics with their values: some
ten milliseconds."""


def encode_answer(
    response: Response,
    version: int,
    correlation_id: int,
    *,
    request: Callable[[], Request],
    logger: EventLogger,
    bytes_max: int | None = None,
) -> bytes:
    """Returns the frame of a response, or of INVALID_REQUEST for the whole request if the response is too large.

    ``request`` returns the request; it is called only then. ``bytes_max`` is ``ANSWER_BYTES_MAX`` if None.

    Raises:
        CloseConnection: the response is too large, and a refusal is too, or the version has no field for an error code.
        EncodeError: a value does not fit its field.
    """
    limit = ANSWER_BYTES_MAX if bytes_max is None else bytes_max
    try:
        return encode_response(response, version, correlation_id, bytes_max=limit)
    except FrameTooLargeError as error:
        return _refused(error, response, version, correlation_id, request, logger, limit)


async def encode_answer_in_turns(
    response: Response, version: int, correlation_id: int, *, request: Callable[[], Request], logger: EventLogger
) -> bytes:
    """Does what ``encode_answer`` does; other tasks run while a long answer is encoded."""
    (frame,) = await encode_parts_in_turns(response, version, correlation_id, request=request, logger=logger)
    assert isinstance(frame, bytes), "no field of the response holds records of files"
    return frame


async def encode_parts_in_turns(
    response: Response, version: int, correlation_id: int, *, request: Callable[[], Request], logger: EventLogger
) -> list[ResponsePart]:
    """Does what ``encode_answer_in_turns`` does for responses that may hold ``FileRecords``."""
    steps = encode_response_in_steps(
        response, version, correlation_id, step=ELEMENTS_PER_TURN, bytes_max=ANSWER_BYTES_MAX
    )
    try:
        while True:
            next(steps)
            await trio.lowlevel.checkpoint()
    except StopIteration as end:
        return gathered(end.value)
    except FrameTooLargeError as error:
        return [_refused(error, response, version, correlation_id, request, logger, ANSWER_BYTES_MAX)]


def _refused(
    error: FrameTooLargeError,
    response: Response,
    version: int,
    correlation_id: int,
    request: Callable[[], Request],
    logger: EventLogger,
    limit: int,
) -> bytes:
    api = ApiKey(response.__api_key__).name
    reason = f"the response to {api} version {version} has {error.size} bytes, more than {limit}"
    logger.warning("answer-too-large", api=api, version=version, bytes=error.size, bytes_max=limit)
    refused = refusal(request(), ErrorCode.INVALID_REQUEST, f"{reason}: ask for less at a time", version=version)
    if not has_code(refused):
        raise CloseConnection(reason) from error
    try:
        return encode_response(refused, version, correlation_id, bytes_max=limit)
    except FrameTooLargeError as again:
        raise CloseConnection(f"{reason}, and so has its refusal") from again
