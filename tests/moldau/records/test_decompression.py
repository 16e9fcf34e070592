"""Decompression piece by piece: the same bytes as at once, in bounded memory, and nothing but corruption raised."""

import gzip
import tracemalloc

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import Compression, CorruptRecordError, OversizedRecordsError, compress, decompress
from moldau.records.decompression import LongStep, StreamCompressor, pieces
from support.proof import examples

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"Moldau flows through Prague. " * 5000
SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"
BOMB = bytes(16 * 1024 * 1024)
LIMIT = 10**9
PIECE = 16 * 1024


def joined(codec, packed, limit=LIMIT, whole=1024 * 1024) -> bytes:
    """Puts the pieces together, running long steps as they come."""
    parts = []
    for piece in pieces(codec, memoryview(packed), limit, PIECE, whole):
        if isinstance(piece, LongStep):
            piece.run()
        else:
            assert len(piece) <= PIECE
            parts.append(bytes(piece))
    return b"".join(parts)


def outcome(function, *args):
    try:
        return bytes(function(*args))
    except CorruptRecordError as error:
        return type(error)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(range(256)) * 300])
def test_pieces_join_to_the_input(codec, data):
    assert joined(codec, compress(codec, data)) == data
    assert joined(codec, compress(codec, data), whole=10) == data


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Compression.ZSTD, bytes(cramjam.zstd.compress(TEXT[:70_000])) + bytes(cramjam.zstd.compress(TEXT[70_000:]))),
        (Compression.GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(b"") + gzip.compress(TEXT[1000:])),
        (Compression.LZ4, lz4.frame.compress(TEXT, store_size=False, block_linked=False)),
        (Compression.GZIP, gzip.compress(TEXT) + bytes(600)),
        (Compression.ZSTD, SKIPPABLE + SKIPPABLE + bytes(cramjam.zstd.compress(TEXT)) + SKIPPABLE),
        (Compression.LZ4, lz4.frame.compress(TEXT[:9], content_checksum=True) + lz4.frame.compress(TEXT[9:])),
    ],
    ids=[
        "raw snappy",
        "two zstd frames",
        "three gzip members",
        "lz4 without size",
        "padded gzip",
        "zstd behind skippable frames",
        "two lz4 frames",
    ],
)
def test_pieces_of_what_other_clients_write(codec, packed):
    assert joined(codec, packed) == TEXT


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [0, 1, 1000, 40_000, len(TEXT)])
def test_a_stream_compressor_writes_what_others_read(codec, size):
    stream, data = StreamCompressor(codec, None), memoryview(TEXT[:size])
    parts = [stream.add(data[at : at + PIECE]) for at in range(0, size, PIECE)]
    assert bytes(decompress(codec, b"".join([*parts, stream.finish()]))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_the_bound_of_pieces_is_exact(codec):
    packed = compress(codec, TEXT)
    assert joined(codec, packed, len(TEXT)) == TEXT
    handed_out = []

    def take():
        handed_out.extend(map(len, pieces(codec, memoryview(packed), len(TEXT) - 1, PIECE)))

    with pytest.raises(OversizedRecordsError):
        take()
    assert sum(handed_out) < len(TEXT), "what lies above the bound is not handed out"
    for whole in (10, 10**6):
        with pytest.raises(OversizedRecordsError, match=f"more than {len(TEXT) - 1} bytes"):
            joined(codec, packed, len(TEXT) - 1, whole)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.SNAPPY])
def test_streams_hold_a_piece_and_not_the_whole(codec):
    """16 MiB of zeros take less than one of them: what a walk over the records sees is gone again."""
    packed = memoryview(compress(codec, BOMB))
    tracemalloc.start()
    try:
        size = sum(0 if isinstance(piece, LongStep) else len(piece) for piece in pieces(codec, packed, LIMIT, PIECE))
        assert size == len(BOMB)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_more_than_its_bound(codec):
    packed = compress(codec, BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(OversizedRecordsError):
            joined(codec, packed, 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw", [False, True])
def test_codecs_without_streaming_are_announced(raw):
    """zstd and raw snappy blocks above the bound are decompressed where the caller wants it, damaged ones too."""
    codec = Compression.SNAPPY if raw else Compression.ZSTD
    packed = bytes(cramjam.snappy.compress_raw(BOMB)) if raw else compress(codec, BOMB)
    found = pieces(codec, memoryview(packed), LIMIT, PIECE)
    step = next(found)
    assert isinstance(step, LongStep)
    step.run()
    assert sum(len(piece) for piece in found) == len(BOMB)
    damaged = bytearray(packed)
    damaged[len(damaged) // 2 :] = b"\xff" * (len(damaged) - len(damaged) // 2)
    found = pieces(codec, memoryview(damaged), LIMIT, PIECE)
    step = next(found)
    assert isinstance(step, LongStep)
    step.run()
    with pytest.raises(CorruptRecordError):
        next(found)


def test_content_that_is_larger_than_estimated_is_announced():
    """A zstd stream need not say how large it is; its few bytes let one expect little."""
    stream = StreamCompressor(Compression.ZSTD, None)
    packed = stream.add(BOMB[: 2 * 1024 * 1024]) + stream.finish()
    assert len(packed) < 1000
    found = pieces(Compression.ZSTD, memoryview(packed), LIMIT, PIECE)
    step = next(found)
    assert isinstance(step, LongStep)
    step.run()
    assert sum(len(piece) for piece in found) == 2 * 1024 * 1024


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_in_pieces_is_an_error(codec):
    packed = compress(codec, TEXT[:2000])
    for cut in range(len(packed)):
        assert outcome(joined, codec, packed[:cut]) == outcome(decompress, codec, packed[:cut])


@given(codec=st.sampled_from(CODECS), data=st.binary(max_size=200), cut=st.integers(0, 100))
@settings(max_examples=examples(300))
def test_random_bytes_have_the_outcome_of_decompress(codec, data, cut):
    packed = compress(codec, TEXT[:300])[:cut] + data
    assert outcome(joined, codec, packed, 100_000) == outcome(decompress, codec, packed, 100_000)


@given(codec=st.sampled_from(CODECS), at=st.integers(0, 10_000), byte=st.integers(1, 255))
@settings(max_examples=examples(300))
def test_damaged_bytes_have_the_outcome_of_decompress(codec, at, byte):
    packed = bytearray(compress(codec, TEXT[:3000]))
    packed[at % len(packed)] ^= byte
    assert outcome(joined, codec, bytes(packed), 10_000) == outcome(decompress, codec, bytes(packed), 10_000)
