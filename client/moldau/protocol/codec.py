"""Encoding and decoding of message bodies, with every failure turned into a `ProtocolError`."""

import struct
from typing import TypeVar

from moldau.protocol.compiler import (
    ENTRIES_UNBOUNDED,
    Codec,
    DecodeError,
    EncodeError,
    ProtocolError,
    TooManyEntriesError,
    UnsupportedVersionError,
    codec_for,
)
from moldau.protocol.schema import Message
from moldau.values import Buffer

__all__ = [
    "Buffer",
    "Codec",
    "DecodeError",
    "EncodeError",
    "ProtocolError",
    "TooManyEntriesError",
    "UnsupportedVersionError",
    "codec_for",
    "decode",
    "decode_prefix",
    "encode",
    "encode_into",
]

M = TypeVar("M", bound=Message)


def encode_into(message: Message, version: int, out: list[Buffer]) -> None:
    """Appends the encoded body to ``out`` as a list of buffers; record bytes are borrowed, not copied.

    Raises:
        EncodeError: a value does not fit its field; ``out`` may then hold a part of the message.
        UnsupportedVersionError: the class has no such version.
    """
    codec = codec_for(type(message), version)
    try:
        codec.encode(message, out)
    except (struct.error, UnicodeEncodeError) as error:
        from moldau.protocol.misfits import misfit  # not loaded until a message fails

        raise EncodeError(f"{type(message).__name__} v{version}: {misfit(message, version) or error}") from error


def encode(message: Message, version: int) -> bytes:
    """Encodes a body (no header, no size prefix). Fields that the version lacks are left out.

    Raises:
        EncodeError: a value does not fit its field.
        UnsupportedVersionError: the class has no such version.
    """
    out: list[Buffer] = []
    encode_into(message, version, out)
    return b"".join(out)


def decode_prefix(
    cls: type[M], version: int, buffer: Buffer, offset: int = 0, *, entries_max: int = ENTRIES_UNBOUNDED
) -> tuple[M, int]:
    """Decodes a body that starts at ``offset``; returns it and the position after it.

    ``bytes`` and ``records`` fields are memoryviews into ``buffer``, valid as long as it is not changed.
    ``entries_max`` bounds the elements of all arrays together; long strings count as several.

    Raises:
        DecodeError: the bytes are no such message. Memory used is linear in the size of the buffer.
        TooManyEntriesError: it holds more than ``entries_max`` entries.
        UnsupportedVersionError: the class has no such version.
    """
    codec = codec_for(cls, version)
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    if not 0 <= offset <= len(view):
        raise DecodeError(f"{cls.__name__} v{version}: offset {offset} is outside of the {len(view)} bytes")
    try:
        message, position = codec.decode(view, offset, [entries_max])
    except TooManyEntriesError as error:
        raise TooManyEntriesError(f"{cls.__name__} v{version}: {error}") from error
    except DecodeError as error:
        raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
    except (struct.error, IndexError) as error:
        raise DecodeError(f"{cls.__name__} v{version}: the message ends after {len(view) - offset} bytes") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"{cls.__name__} v{version}: a string is not UTF-8: {error}") from error
    assert isinstance(message, cls)
    return message, position


def decode(cls: type[M], version: int, buffer: Buffer, offset: int = 0, *, entries_max: int = ENTRIES_UNBOUNDED) -> M:
    """Decodes a body that starts at ``offset``. Bytes after it are ignored, as Kafka does.

    Raises:
        DecodeError: the bytes are no such message.
        TooManyEntriesError: it holds more than ``entries_max`` entries.
        UnsupportedVersionError: the class has no such version.
    """
    return decode_prefix(cls, version, buffer, offset, entries_max=entries_max)[0]
