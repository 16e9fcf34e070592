"""The compression codecs of record batches, each with a bound on what it may produce.

| codec | what it is on the wire |
|---|---|
| gzip | RFC 1952, one or several members, and zeros behind them |
| snappy | written in xerial framing as the Java client does; read so or as one raw block (librdkafka, sarama) |
| lz4 | LZ4 frame format |
| zstd | one or several frames, with or without a content size, and skippable frames anywhere |

A batch that was compressed a thousandfold is an attack or a mistake: ``decompress`` never holds more than
``size_limit`` bytes of output, and first allocates what the compressed bytes can justify. ``decompression`` does the
same piece by piece.

The libraries are imported at their first use: most programs use at most one of them, and loading both takes longer than
loading a client's own modules.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import TYPE_CHECKING, assert_never

from moldau.records.errors import CorruptRecordError, OversizedRecordsError

if TYPE_CHECKING:
    from moldau.values import Buffer

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Bound on the decompressed size of one batch, where the caller gives none. Brokers accept half of it by default."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_EXPANSION_MAX = 32  # a copy element of 3 bytes yields at most 64
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_EXPANSION_MAX = 128 * 1024  # a block of 3 to 4 bytes yields at most 128 KiB
_ZSTD_FIRST_BYTES = 64 * 1024
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50  # and the fifteen numbers behind it
_ZSTD_SKIPPED_MAX = 16
"""Skippable frames that are passed over before the first one with content; more are taken for damage."""
_STREAM_FIRST_BYTES = 256
"""First input of each further gzip member or lz4 frame."""
_INT32 = struct.Struct(">i")
_ZSTD_SKIPPABLE = struct.Struct("<II")


class Compression(enum.IntEnum):
    """Compression codec of a batch: the three lowest bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """Name in configurations: ``none``, ``gzip`` ..."""
        return self.name.lower()

    @classmethod
    def from_config_name(cls, name: str) -> Compression:
        """Returns the codec called ``name`` (``none``, ``gzip`` ...).

        Raises:
            ValueError: there is no such codec.
        """
        try:
            return _BY_NAME[name]
        except KeyError:
            raise ValueError(f"unknown compression {name!r}; expected one of {', '.join(_BY_NAME)}") from None


_BY_NAME = {codec.name.lower(): codec for codec in Compression}


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Returns ``data`` compressed by ``codec``; ``level`` None is the codec's default. ``NONE`` returns a copy."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            return compressor.compress(data) + compressor.flush()
        case Compression.SNAPPY:
            import cramjam

            view = memoryview(data)
            parts = [XERIAL_HEADER]
            for start in range(0, len(view), XERIAL_BLOCK_BYTES):
                block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
                parts.append(_INT32.pack(len(block)))
                parts.append(block)
            return b"".join(parts)
        case Compression.LZ4:
            import lz4.frame

            compressed: bytes = lz4.frame.compress(
                data,
                compression_level=0 if level is None else level,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,  # Java's clients refuse frames whose blocks depend on each other
            )
            return compressed
        case Compression.ZSTD:
            import cramjam

            return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
        case _:
            assert_never(codec)


def decompress(codec: Compression, data: Buffer, size_limit: int = DECOMPRESSED_BYTES_MAX) -> bytes | bytearray:
    """Returns the decompressed bytes.

    Raises:
        CorruptRecordError: the bytes are damaged, or exceed ``size_limit`` when decompressed.
    """
    match codec:
        case Compression.NONE:
            if len(data) > size_limit:
                raise oversized(codec, size_limit)
            return bytes(data)
        case Compression.GZIP:
            return _decompress_gzip(data, size_limit)
        case Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), size_limit)
        case Compression.LZ4:
            return _decompress_lz4(data, size_limit)
        case Compression.ZSTD:
            return _decompress_zstd(memoryview(data), size_limit)
        case _:
            assert_never(codec)


def oversized(codec: Compression, size_limit: int) -> OversizedRecordsError:
    """Returns the error for data that decompresses to more than ``size_limit`` bytes."""
    return OversizedRecordsError(f"{codec.config_name} data decompresses to more than {size_limit} bytes")


def damaged(codec: Compression, detail: object) -> CorruptRecordError:
    """Returns the error for data that is no data of ``codec``."""
    return CorruptRecordError(f"{codec.config_name} data is damaged: {detail}")


def is_zero(data: memoryview) -> bool:
    """Returns whether all bytes are zero; quick where the first one is not."""
    return not data[0] and not bytes(data).lstrip(b"\0")


class _Input:
    """Hands compressed bytes to one stream after another.

    A library copies the input that a stream leaves, and data may consist of many thousand tiny streams. Only the first
    one therefore gets everything at once, as most data are one stream; the others get a little, and then more and more.
    """

    __slots__ = ("_at", "_data", "_step")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._step = len(self._data)

    @property
    def is_used_up(self) -> bool:
        """Whether no byte is left."""
        return self._at >= len(self._data)

    @property
    def is_padding(self) -> bool:
        """Whether the bytes that are left are zeros."""
        return is_zero(self._data[self._at :])

    def next_stream(self, unused: int) -> None:
        """Takes back the bytes that a stream has left behind its end."""
        self._at -= unused
        self._step = _STREAM_FIRST_BYTES

    def take(self) -> memoryview:
        """Returns the next bytes; none at the end."""
        found = self._data[self._at : self._at + self._step]
        self._at += len(found)
        self._step *= 2
        return found


def _decompress_gzip(data: Buffer, size_limit: int) -> bytes:
    source = _Input(data)
    parts: list[bytes] = []
    size = 0
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            given = source.take()
            try:
                # max_length 0 would mean "unlimited", hence one more than the limit.
                part = member.decompress(given, size_limit - size + 1)
            except zlib.error as error:
                raise damaged(Compression.GZIP, error) from None
            size += len(part)
            if size > size_limit:
                raise oversized(Compression.GZIP, size_limit)
            if not given and not member.eof:
                raise damaged(Compression.GZIP, "it ends too early")
            parts.append(part)
        source.next_stream(len(member.unused_data))
        if source.is_used_up or source.is_padding:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_lz4(data: Buffer, size_limit: int) -> bytes:
    import lz4.frame

    source = _Input(data)
    parts: list[bytes] = []
    size = 0
    while not source.is_used_up:
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            given: Buffer = source.take() if frame.needs_input else b""
            try:
                part: bytes = frame.decompress(given, max_length=size_limit - size + 1)
            except (RuntimeError, ValueError) as error:
                raise damaged(Compression.LZ4, error) from None
            size += len(part)
            if size > size_limit:
                raise oversized(Compression.LZ4, size_limit)
            if not given and not part and not frame.eof:
                raise damaged(Compression.LZ4, "it ends too early")
            parts.append(part)
        source.next_stream(len(frame.unused_data or b""))
    if not parts:
        raise damaged(Compression.LZ4, "it is empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decompress_snappy_block(block: memoryview, size_limit: int, before: int = 0) -> bytearray:
    """Decompresses one raw block; ``before`` bytes of the limit are used up."""
    import cramjam

    if not block:
        raise damaged(Compression.SNAPPY, "it is empty")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise damaged(Compression.SNAPPY, error) from None
    if size > size_limit - before:
        raise oversized(Compression.SNAPPY, size_limit)
    if size > len(block) * _SNAPPY_EXPANSION_MAX:
        raise damaged(Compression.SNAPPY, f"{len(block)} bytes claim to hold {size}")
    output = bytearray(size)
    if size == 0:
        return output
    try:
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise damaged(Compression.SNAPPY, error) from None
    if written != size:
        raise damaged(Compression.SNAPPY, f"a block of {size} bytes yielded {written}")
    return output


def _decompress_snappy(data: memoryview, size_limit: int) -> bytes | bytearray:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return decompress_snappy_block(data, size_limit)
    at = len(XERIAL_HEADER)
    if len(data) < at:
        raise damaged(Compression.SNAPPY, "the xerial header is incomplete")
    output = bytearray()
    while at < len(data):
        if len(data) - at < 4:
            raise damaged(Compression.SNAPPY, "a block length is incomplete")
        (size,) = _INT32.unpack_from(data, at)
        at += 4
        if size <= 0 or size > len(data) - at:
            raise damaged(Compression.SNAPPY, f"a block of {size} bytes exceeds the {len(data) - at} left")
        output += decompress_snappy_block(data[at : at + size], size_limit, len(output))
        at += size
    return output


def _behind_skippable(data: memoryview) -> memoryview:
    """Returns a zstd stream from its first frame with content on (RFC 8878, section 3.1.2)."""
    for _ in range(_ZSTD_SKIPPED_MAX):
        if len(data) < _ZSTD_SKIPPABLE.size:
            break
        magic, size = _ZSTD_SKIPPABLE.unpack_from(data)
        if magic & ~0xF != _ZSTD_SKIPPABLE_MAGIC:
            break
        data = data[_ZSTD_SKIPPABLE.size + size :]
    return data


def zstd_content_size(data: memoryview) -> int | None:
    """Returns the content size that the first frame with content declares, or None (RFC 8878, section 3.1.1.1)."""
    data = _behind_skippable(data)
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        return None  # no frame; decompressing it fails
    descriptor = data[4]
    is_single_segment = bool(descriptor & 0x20)
    size_flag = descriptor >> 6
    if size_flag == 0 and not is_single_segment:
        return None
    at = 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    width = (1, 2, 4, 8)[size_flag]
    field = data[at : at + width]
    return int.from_bytes(field, "little") + (256 if width == 2 else 0)


def _decompress_zstd(data: memoryview, size_limit: int) -> bytearray:
    import cramjam

    data = _behind_skippable(data)
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        raise damaged(Compression.ZSTD, "it does not start with a zstd frame")
    justified = min(size_limit, len(data) * _ZSTD_EXPANSION_MAX)
    content_size = zstd_content_size(data)
    if content_size is not None and content_size > size_limit:
        raise oversized(Compression.ZSTD, size_limit)
    capacity = min(content_size if content_size is not None else max(_ZSTD_FIRST_BYTES, 8 * len(data)), justified)
    while True:
        output = bytearray(max(capacity, 1))
        try:
            size = cramjam.zstd.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            # The only sign of a full output buffer is its text; where the frame is damaged, growing would not help.
            if "whole buffer" not in str(error):
                raise damaged(Compression.ZSTD, error) from None
            if capacity >= justified:
                raise oversized(Compression.ZSTD, size_limit) from None
            capacity = min(max(4 * capacity, _ZSTD_FIRST_BYTES), justified)
            continue
        if size > size_limit:
            raise oversized(Compression.ZSTD, size_limit)
        del output[size:]
        return output
