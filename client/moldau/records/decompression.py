"""Decompression piece by piece, so that walking a batch's records takes bounded memory and can be interleaved.

gzip and lz4 are streams, and so is snappy in xerial framing, which consists of blocks. The zstd library and the raw
snappy format have no streams: such data is decompressed as a whole and returned in pieces. If that may take long, a
``LongStep`` comes first: the caller runs it in a thread (the native code releases the interpreter's lock), and then
requests the next piece.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cramjam
import lz4.frame

from moldau.records.compression import (
    XERIAL_BLOCK_BYTES,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    Compression,
    compress,
    damaged,
    decompress,
    decompress_snappy_block,
    is_zero,
    oversized,
    zstd_content_size,
)
from moldau.records.errors import CorruptRecordError, OversizedRecordsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.values import Buffer

WHOLE_BYTES_MAX = 1024 * 1024
"""Up to this size, data that cannot be streamed is decompressed at once; about a millisecond."""

_INPUT_BYTES = 16 * 1024  # what a stream does not take of its input is copied, so it gets little at a time
_INT32 = struct.Struct(">i")
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_INDEPENDENT_BLOCKS = 0x20  # in the byte of flags after the magic number


@dataclass(slots=True, eq=False)
class LongStep:
    """Native computing that may take tens of milliseconds. ``run`` may be called in another thread."""

    run: Callable[[], None]


def pieces(
    codec: Compression,
    data: memoryview,
    size_limit: int,
    piece_bytes: int,
    whole_bytes_max: int = WHOLE_BYTES_MAX,
    *,
    as_java_reads: bool = False,
) -> Iterator[Buffer | LongStep]:
    """Yields the decompressed bytes in pieces of at most ``piece_bytes``.

    Some pieces are empty: they give the caller a turn. Content that is expected to be larger than ``whole_bytes_max``
    and cannot be streamed follows a ``LongStep``. A piece is borrowed until the next one is requested.

    Raises:
        CorruptRecordError: the bytes are damaged, or are ``as_java_reads`` and Java's clients cannot read them.
        OversizedRecordsError: there are more than ``size_limit`` bytes; raised as soon as that is known.
    """
    match codec:
        case Compression.NONE:
            source = _sliced(data, piece_bytes)
        case Compression.GZIP:
            source = _gzip_pieces(data, piece_bytes)
        case Compression.LZ4:
            source = _lz4_pieces(data, piece_bytes, as_java_reads=as_java_reads)
        case Compression.SNAPPY:
            source = _snappy_pieces(data, _Whole(size_limit, piece_bytes, whole_bytes_max))
        case Compression.ZSTD:
            whole = _Whole(size_limit, piece_bytes, whole_bytes_max)
            source = whole.pieces(lambda limit: decompress(Compression.ZSTD, data, limit), _zstd_size(data))
    size = 0
    for piece in source:
        if not isinstance(piece, LongStep):
            size += len(piece)
            if size > size_limit:
                raise oversized(codec, size_limit)
        yield piece


def _sliced(data: memoryview, piece_bytes: int) -> Iterator[Buffer | LongStep]:
    for at in range(0, len(data), piece_bytes):
        yield data[at : at + piece_bytes]


def _gzip_pieces(data: memoryview, piece_bytes: int) -> Iterator[Buffer | LongStep]:
    at = 0
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            source: Buffer = member.unconsumed_tail
            if not source:
                source = data[at : at + _INPUT_BYTES]
                at += len(source)
            try:
                piece = member.decompress(source, piece_bytes)
            except zlib.error as error:
                raise damaged(Compression.GZIP, error) from None
            if not piece and not source and not member.eof:
                raise damaged(Compression.GZIP, "it ends too early")
            yield piece
        at -= len(member.unused_data)
        if at >= len(data) or is_zero(data[at:]):
            return


def _lz4_pieces(data: memoryview, piece_bytes: int, *, as_java_reads: bool) -> Iterator[Buffer | LongStep]:
    at, is_first = 0, True
    if as_java_reads and data[:4] == _LZ4_MAGIC and len(data) > 4 and not data[4] & _LZ4_INDEPENDENT_BLOCKS:
        raise damaged(Compression.LZ4, "its blocks depend on each other, which Java's clients cannot read")
    while True:
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            source: Buffer = b""
            if frame.needs_input:
                source = data[at : at + _INPUT_BYTES]
                at += len(source)
                if not source:
                    raise damaged(Compression.LZ4, "it ends too early")
            try:
                piece: bytes = frame.decompress(source, max_length=piece_bytes)
            except (RuntimeError, ValueError) as error:
                raise damaged(Compression.LZ4, error) from None
            if not piece and not source and not frame.eof and not frame.needs_input:
                raise damaged(Compression.LZ4, "it does not go on")
            if as_java_reads and piece and not is_first:
                raise damaged(Compression.LZ4, "Java's clients read the first of its frames only")
            yield piece
        at -= len(frame.unused_data or b"")
        if at >= len(data):
            return
        is_first = False


def _snappy_pieces(data: memoryview, whole: _Whole) -> Iterator[Buffer | LongStep]:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield from _snappy_block(data, whole)
        return
    at = len(XERIAL_HEADER)
    if len(data) < at:
        raise damaged(Compression.SNAPPY, "the xerial header is incomplete")
    while at < len(data):
        if len(data) - at < 4:
            raise damaged(Compression.SNAPPY, "a block length is incomplete")
        (size,) = _INT32.unpack_from(data, at)
        at += 4
        if size <= 0 or size > len(data) - at:
            raise damaged(Compression.SNAPPY, f"a block of {size} bytes exceeds the {len(data) - at} left")
        yield from _snappy_block(data[at : at + size], whole)
        at += size


def _snappy_block(block: memoryview, whole: _Whole) -> Iterator[Buffer | LongStep]:
    size = 0
    if block:
        try:
            size = cramjam.snappy.decompress_raw_len(block)
        except cramjam.DecompressionError as error:
            raise damaged(Compression.SNAPPY, error) from None
    yield from whole.pieces(lambda limit: decompress_snappy_block(block, limit), size)


def _zstd_size(data: memoryview) -> int:
    """Returns the decompressed size that the first frame announces, or else an estimate."""
    declared = zstd_content_size(data)
    return 8 * len(data) if declared is None else declared


@dataclass(frozen=True, slots=True)
class _Whole:
    """Decompresses, as a whole, data that cannot be streamed."""

    size_limit: int
    piece_bytes: int
    whole_bytes_max: int

    def pieces(self, unpack: Callable[[int], Buffer], size: int) -> Iterator[Buffer | LongStep]:
        """Yields the result of ``unpack``, which takes a limit in bytes; ``size`` is the expected size."""
        unpacked: list[Buffer] = []
        if size <= self.whole_bytes_max:
            try:
                unpacked.append(unpack(min(self.size_limit, self.whole_bytes_max)))
            except OversizedRecordsError:
                if self.size_limit <= self.whole_bytes_max:
                    raise
        if not unpacked:
            failures: list[CorruptRecordError] = []

            def run() -> None:
                try:
                    unpacked.append(unpack(self.size_limit))
                except CorruptRecordError as error:
                    failures.append(error)  # raised where the next piece is asked for

            yield LongStep(run)
            if failures:
                raise failures[0]
            assert unpacked, "the long step was not run"
        if not unpacked[0]:
            yield b""
        yield from _sliced(memoryview(unpacked[0]), self.piece_bytes)


class StreamCompressor:
    """Compresses the records of one batch piece by piece, in the same formats as ``compress``."""

    __slots__ = ("_add", "_finish", "_pending")

    def __init__(self, codec: Compression, level: int | None) -> None:
        self._pending = bytearray()
        match codec:
            case Compression.NONE:
                self._add: Callable[[Buffer], bytes] = bytes
                self._finish: Callable[[], bytes] = bytes
            case Compression.GZIP:
                gzip = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
                self._add, self._finish = gzip.compress, gzip.flush
            case Compression.LZ4:
                frame = lz4.frame.LZ4FrameCompressor(
                    compression_level=0 if level is None else level,
                    block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                    block_linked=False,
                )
                self._add, self._finish = frame.compress, frame.flush
                self._pending += frame.begin()
            case Compression.ZSTD:
                stream = cramjam.zstd.Compressor(level=3 if level is None else level)

                def add(piece: Buffer) -> bytes:
                    stream.compress(bytes(piece))
                    return bytes(stream.flush())

                self._add, self._finish = add, lambda: bytes(stream.finish())
            case Compression.SNAPPY:
                self._add, self._finish = self._snappy_blocks(XERIAL_HEADER)

    @staticmethod
    def _snappy_blocks(header: bytes) -> tuple[Callable[[Buffer], bytes], Callable[[], bytes]]:
        waiting = bytearray()
        before = [header]

        def blocks(data: memoryview) -> bytes:
            """Yields the blocks without the header, which ``compress`` writes each time."""
            packed = before.pop() if before else b""
            return packed + compress(Compression.SNAPPY, data)[len(XERIAL_HEADER) :]

        def add(piece: Buffer) -> bytes:
            waiting.extend(piece)
            whole = len(waiting) - len(waiting) % XERIAL_BLOCK_BYTES
            with memoryview(waiting) as view, view[:whole] as ready:
                packed = blocks(ready)
            del waiting[:whole]
            return packed

        return add, lambda: blocks(memoryview(waiting))

    def add(self, piece: Buffer) -> bytes:
        """Takes the next bytes and returns the compressed bytes that are ready."""
        packed = bytes(self._pending) + self._add(piece)
        self._pending.clear()
        return packed

    def finish(self) -> bytes:
        """Returns the rest; nothing may be added after it."""
        return bytes(self._pending) + self._finish()
