"""The pending answer of a request on a client's connection."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_response
from moldau.protocol.messages.api_versions import ApiVersionsResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.net.rpc import RpcConnection

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 30_000


class RpcBusyError(Exception):
    """Reports that ``in_flight_max`` requests are in flight; wait for an answer first."""


class PendingResponse(Generic[T]):
    """A pending answer. One task calls ``wait``, once."""

    __slots__ = ("_abandoned", "_connection", "_decode", "_frame", "arrived", "correlation_id")

    def __init__(self, connection: RpcConnection, correlation_id: int, decode: Callable[[memoryview], T]) -> None:
        """Made by ``RpcConnection.submit``."""
        self._connection = connection
        self._decode = decode
        self._frame: memoryview | None = None
        self.arrived = False
        """Whether ``wait`` would return without waiting."""
        self.correlation_id = correlation_id
        self._abandoned: tuple[float, float] | None = None  # begin and limit of a wait that was cancelled, in seconds

    @property
    def is_overdue(self) -> bool:
        """Whether the time of a wait is over that was cancelled before the answer came."""
        if self._abandoned is None:
            return False
        begun, limit = self._abandoned
        return trio.current_time() >= max(begun, self._connection.throttled_until) + limit

    async def wait(self, timeout_ms: float = REQUEST_TIMEOUT_MS) -> T:
        """Waits for the answer and returns it.

        A peer that throttles this client (KIP-219) reads no request until the throttle time of its last answer is
        over. The timeout begins then. It goes on after a cancellation: the next request on the connection looks whether
        the answer has come.

        Raises:
            ConnectionError: the connection died; whether the request was carried out is unknown.
            trio.TooSlowError: no answer within ``timeout_ms``; the connection is closed.
            DecodeError: the answer cannot be read; the connection is closed.
        """
        connection = self._connection
        begun = trio.current_time()
        while self._frame is None:
            deadline = max(begun, connection.throttled_until) + timeout_ms / 1000
            with trio.move_on_at(deadline) as scope:
                try:
                    await connection.drive(self)
                except trio.Cancelled:
                    self._abandoned = begun, timeout_ms / 1000
                    raise
            is_due = max(begun, connection.throttled_until) + timeout_ms / 1000 <= deadline
            if scope.cancelled_caught and self._frame is None and is_due:
                connection.fail(f"no answer to request {self.correlation_id} within {timeout_ms:.0f} ms")
                raise trio.TooSlowError(f"{connection.peer}: no answer within {timeout_ms:.0f} ms")
        return self._read()

    async def wait_without_deadline(self) -> T:
        """Waits like ``wait``, for callers that cancel it in time and then close the connection.

        Raises:
            Exception: as ``wait``, except ``trio.TooSlowError``.
        """
        if self._frame is None:
            await self._connection.drive(self)
        return self._read()

    def _read(self) -> T:
        connection, frame = self._connection, self._frame
        assert frame is not None, "it has arrived"
        try:
            answer = self._decode(frame)
        except DecodeError as error:
            connection.fail(f"bad answer: {error}")
            raise
        throttle_time_ms = getattr(answer, "throttle_time_ms", 0)
        if throttle_time_ms > 0:
            connection.throttled_until = trio.current_time() + throttle_time_ms / 1000
        return answer

    def resolve(self, frame: memoryview) -> None:
        """Called by the connection when the answer has come."""
        self._frame = frame
        self.arrived = True


def decode_api_versions(frame: memoryview, version: int) -> ApiVersionsResponse:
    """Reads an ApiVersions response, which is of version 0 when the peer does not know ``version`` (KIP-511)."""
    (error_code,) = struct.unpack_from(">h", frame, 4) if len(frame) >= 6 else (0,)
    if error_code == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    return decode_response(ApiVersionsResponse, version, frame)[1]


def older_version(response: ApiVersionsResponse, tried: int) -> int:
    """Returns the version of ApiVersions to ask with after ``tried`` was refused: the peer's last one, else 0."""
    named = (each.max_version for each in response.api_keys if each.api_key == ApiKey.API_VERSIONS)
    return min(next(named, 0), tried - 1)
