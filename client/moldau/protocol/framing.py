"""Frames: a 32-bit size, a header, a body.

Request headers are version 1 or 2 (with a tagged section), response headers 0 or 1; `moldau.protocol.api` says which.
Sizes are signed; a frame's own size field is not counted in its size.
"""

import struct
from collections.abc import Generator
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from moldau.protocol.api import APIS, request_header_version, response_header_version
from moldau.protocol.codec import DecodeError, EncodeError, decode_prefix, encode_into
from moldau.protocol.compiler import check_tagged_count, fields_in, free_text, read_uvarint, uvarint
from moldau.protocol.schema import Request, Response
from moldau.values import Buffer

R = TypeVar("R", bound=Response)

_REQUEST_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
FRAME_SIZE_MAX = 0x7FFFFFFF


class FrameTooLargeError(EncodeError):
    """A frame exceeds its limit; ``size`` is that of the frame without its size prefix."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes exceeds the limit of {limit}")
        self.size = size


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request; ``body_offset`` is the position of the body in the buffer that was read."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def skip_tagged_section(buffer: memoryview, position: int) -> int:
    """Steps over a tagged section; returns the position after it.

    Raises:
        DecodeError: it does not end inside the buffer, or has more fields than any message.
    """
    try:
        count, position = read_uvarint(buffer, position)
        check_tagged_count(count)
        for _ in range(count):
            _, position = read_uvarint(buffer, position)
            size, position = read_uvarint(buffer, position)
            position += size
            if position > len(buffer):
                raise DecodeError(f"a tagged field of {size} bytes ends beyond the frame")
    except IndexError as error:
        raise DecodeError("the frame ends inside a tagged section") from error
    return position


def decode_request_header(buffer: Buffer, offset: int = 0) -> RequestHeader:
    """Reads the header of a request frame (without its size prefix).

    An unknown API key, or a version of a known one that is not, is not an error here: the header is then read as
    version 1 up to the client id, and ``body_offset`` stands behind that. Callers check key and version before they
    decode a body. Bytes of the client id that are not UTF-8 become U+FFFD, as in Java.

    Raises:
        DecodeError: the frame ends inside the header, or the client id is not UTF-8 and too long.
    """
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(view, offset)
    except struct.error as error:
        raise DecodeError(f"a frame of {len(view) - offset} bytes is too short for a request header") from error
    position = offset + _REQUEST_HEADER.size
    client_id: str | None = None
    if length >= 0:
        if length > len(view) - position:
            raise DecodeError(f"client id: {length} bytes announced, {len(view) - position} are left")
        client_id = free_text(view[position : position + length])
        position += length
    elif length != -1:
        raise DecodeError(f"client id: negative length {length}")
    api = APIS.get(api_key)
    if api is not None and api_version in api.versions and api.is_flexible(api_version):
        position = skip_tagged_section(view, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None, header: int) -> bytes:
    """Writes a request header of version 1 or 2.

    Raises:
        EncodeError: the client id is longer than 32767 bytes, or a number is out of range.
    """
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    try:
        start = _REQUEST_HEADER.pack(api_key, version, correlation_id, length)
    except struct.error as error:
        raise EncodeError(f"request header of API {api_key}: {error}") from error
    return start + name + (b"\0" if header == 2 else b"")


def encode_request(message: Request, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Returns a whole request frame, size prefix included.

    Raises:
        EncodeError: a value does not fit its field.
        UnsupportedVersionError: the request has no such version.
    """
    key = message.__api_key__
    header = encode_request_header(key, version, correlation_id, client_id, request_header_version(key, version))
    out: list[Buffer] = [b"", header]
    encode_into(message, version, out)
    out[0] = _SIZE.pack(_frame_size(out))
    return b"".join(out)


def encode_response(message: Response, version: int, correlation_id: int, *, bytes_max: int = FRAME_SIZE_MAX) -> bytes:
    """Returns a whole response frame, size prefix included; ``bytes_max`` bounds it without that prefix.

    Raises:
        FrameTooLargeError: the frame has more than ``bytes_max`` bytes.
        EncodeError: a value does not fit its field.
        UnsupportedVersionError: the response has no such version.
    """
    body: list[Buffer] = []
    encode_into(message, version, body)
    return b"".join(_response_frame(message, version, correlation_id, body, bytes_max))


def encode_response_in_steps(
    message: Response, version: int, correlation_id: int, *, step: int, bytes_max: int = FRAME_SIZE_MAX
) -> Generator[None, None, list[Buffer]]:
    """Encodes what ``encode_response`` does, and yields after each ``step`` elements of a long array of the body.

    Other tasks may run meanwhile: a description of ten thousand topics takes a second to encode. Returns one buffer;
    where a field of bytes holds an object that has a length and is no buffer, this object stands among the buffers.
    """
    key = _long_array(message, version, step)
    if key is None:
        whole: list[Buffer] = []
        encode_into(message, version, whole)
        return _joined(_response_frame(message, version, correlation_id, whole, bytes_max))
    elements = getattr(message, key)
    part = copy(message)
    setattr(part, key, ())
    empty: list[Buffer] = []
    encode_into(part, version, empty)
    body: list[Buffer] = []
    at = 0  # where the length of the array stands among the buffers
    for first in range(0, len(elements), step):
        setattr(part, key, elements[first : first + step])
        out: list[Buffer] = []
        encode_into(part, version, out)
        if not first:
            at = next(index for index, buffer in enumerate(empty) if buffer != out[index])
        body += _joined(out[at + 1 : len(out) - (len(empty) - at - 1)])
        yield
    count = len(elements)
    length = uvarint(count + 1) if version in message.__flexible__ else _SIZE.pack(count)
    every = [*empty[:at], length, *body, *empty[at + 1 :]]
    return _joined(_response_frame(message, version, correlation_id, every, bytes_max))


def _long_array(message: Response, version: int, step: int) -> str | None:
    """Returns the only field that is an array of more than ``step`` structs; None if there is none, or another one."""
    arrays = [(key, spec) for key, spec in fields_in(type(message), version) if spec.is_array]
    long = [(key, spec) for key, spec in arrays if len(getattr(message, key) or ()) > step]
    if len(long) != 1:
        return None
    ((key, spec),) = long
    return key if spec.struct is not None and spec.tag is None else None


def _response_frame(
    message: Response, version: int, correlation_id: int, body: list[Buffer], bytes_max: int
) -> list[Buffer]:
    header = b"\0" if response_header_version(message.__api_key__, version) == 1 else b""
    size = _frame_size([header, *body], bytes_max) + 4
    return [_SIZE_AND_CORRELATION.pack(size, correlation_id), header, *body]


def _joined(parts: list[Any]) -> list[Buffer]:
    """Joins neighbouring buffers."""
    try:
        return [b"".join(parts)]
    except TypeError:  # one of them is no buffer
        pass
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if isinstance(part, Buffer):
            run.append(part)
        else:
            joined += (b"".join(run), part)
            run = []
    joined.append(b"".join(run))
    return joined


def _frame_size(parts: list[Buffer], bytes_max: int = FRAME_SIZE_MAX) -> int:
    size = sum(map(len, parts))
    if size + 4 > bytes_max:
        raise FrameTooLargeError(size + 4, bytes_max)
    return size


def decode_response(cls: type[R], version: int, frame: Buffer) -> tuple[int, R]:
    """Reads a response frame (without its size prefix); returns the correlation id and the message.

    Raises:
        DecodeError: the frame is no such response.
        UnsupportedVersionError: the response has no such version.
    """
    view = frame if type(frame) is memoryview else memoryview(frame)
    if len(view) < 4:
        raise DecodeError(f"a frame of {len(view)} bytes is too short for a response header")
    (correlation_id,) = _SIZE.unpack_from(view)
    position = 4
    if response_header_version(cls.__api_key__, version) == 1:
        position = skip_tagged_section(view, position)
    message, _ = decode_prefix(cls, version, view, position)
    return correlation_id, message
