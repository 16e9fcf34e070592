"""The answers to ApiVersions, the first request of every connection (KIP-35, KIP-511, KIP-584).

The answer names every API and feature, and is the same for all connections of a listener until the metadata change: it
is encoded once for each version. Connections that return all at once, as after a restart, cost little then.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, is_malformed
from moldau_broker.server.handlers.apis import api_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.framing import RequestHeader
    from moldau_broker.server.handlers.apis import ServedApi
    from moldau_broker.server.handlers.context import BrokerContext

_CORRELATION = struct.Struct(">i")
_SIZE_BYTES = 4
_BODY_AT = _SIZE_BYTES + _CORRELATION.size


class DescribedApis:
    """Answers ApiVersions on one listener."""

    __slots__ = ("_apis", "_context", "_described", "_frames")

    def __init__(self, context: BrokerContext, apis: Mapping[int, ServedApi]) -> None:
        self._context = context
        self._apis = apis
        self._frames: dict[int, bytes] = {}  # by version
        self._described: tuple[Mapping[str, int], int] | None = None  # the features, and the epoch, of these frames

    def answer(self, header: RequestHeader, frame: memoryview) -> tuple[bytes, tuple[str, str] | None]:
        """Returns the answer, and name and version of the client's software if the request was good.

        Raises:
            DecodeError: the request is malformed.
        """
        version = header.api_version
        entry = self._apis[ApiKey.API_VERSIONS]
        if not entry.first_version <= version <= entry.last_version:
            served = ApiVersion(
                api_key=ApiKey.API_VERSIONS, min_version=entry.first_version, max_version=entry.last_version
            )
            refused = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[served])
            return encode_response(refused, 0, header.correlation_id), None
        request = decode(ApiVersionsRequest, version, frame, header.body_offset)
        code = self._refusal(request, version)
        if code is not ErrorCode.NONE:
            return encode_response(ApiVersionsResponse(error_code=code), version, header.correlation_id), None
        described = self._frame(version)
        answer = described[:_SIZE_BYTES] + _CORRELATION.pack(header.correlation_id) + described[_BODY_AT:]
        return answer, (request.client_software_name, request.client_software_version)

    def _refusal(self, request: ApiVersionsRequest, version: int) -> ErrorCode:
        if is_malformed(request, version):
            return ErrorCode.INVALID_REQUEST
        expected = (self._context.metadata.image.cluster_id, self._context.broker_id)
        if request.cluster_id is not None and (request.cluster_id, request.node_id) != expected:
            # The client's metadata are of another cluster, or this address was another broker's (KIP-1242).
            return ErrorCode.REBOOTSTRAP_REQUIRED
        return ErrorCode.NONE

    def _frame(self, version: int) -> bytes:
        """Returns the whole answer for correlation id 0, as the present metadata have it."""
        image = self._context.metadata.image
        described = self._described
        if described is None or described[0] is not image.features or described[1] != image.offset:
            self._frames.clear()
            self._described = image.features, image.offset
        frame = self._frames.get(version)
        if frame is None:
            response = api_versions(self._apis, self._context.features, image.features, image.offset, version)
            frame = self._frames[version] = encode_response(response, version, 0)
        return frame
