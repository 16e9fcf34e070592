"""Compression: Moldau reads the output of other clients, and no input makes the output exceed its bound."""

import gzip
import struct
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import Compression, CorruptRecordError, compress, decompress
from moldau.records.decompression import StreamCompressor
from support.proof import examples

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"Moldau flows through Prague. " * 5000
SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(range(256)) * 300])
def test_round_trip(codec, data):
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize(
    ("codec", "low", "usual", "high"),
    [(Compression.GZIP, 1, 6, 9), (Compression.LZ4, 0, 0, 9), (Compression.ZSTD, 1, 3, 19)],
)
def test_the_level_counts_and_the_usual_one_is_kafkas(codec, low, usual, high):
    data = b"".join(b"%d %d\n" % (number, number * number % 977) for number in range(5000))
    by_level = {level: compress(codec, data, level) for level in (low, usual, high)}
    assert len(by_level[high]) < len(by_level[low])
    assert compress(codec, data) == by_level[usual]


@pytest.mark.parametrize("codec", list(Compression))
def test_bound_is_exact(codec):
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(CorruptRecordError, match=f"more than {len(TEXT) - 1} bytes"):
        decompress(codec, packed, len(TEXT) - 1)


def zstd_without_content_size(data):
    compressor = cramjam.zstd.Compressor()
    compressor.compress(data)
    return bytes(compressor.finish())


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Compression.ZSTD, zstd_without_content_size(TEXT)),
        (Compression.ZSTD, bytes(cramjam.zstd.compress(TEXT[:70_000])) + bytes(cramjam.zstd.compress(TEXT[70_000:]))),
        (Compression.GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
        (Compression.LZ4, lz4.frame.compress(TEXT, store_size=False, block_linked=False)),
        (Compression.GZIP, gzip.compress(TEXT) + bytes(600)),
        (Compression.ZSTD, SKIPPABLE + SKIPPABLE + bytes(cramjam.zstd.compress(TEXT)) + SKIPPABLE),
        (Compression.LZ4, lz4.frame.compress(TEXT[:9], content_checksum=True) + lz4.frame.compress(TEXT[9:])),
    ],
    ids=[
        "raw snappy",
        "zstd without size",
        "two zstd frames",
        "two gzip members",
        "lz4 without size",
        "padded gzip",
        "zstd behind skippable frames",
        "two lz4 frames",
    ],
)
def test_batches_of_other_clients_decompress(codec, packed):
    assert decompress(codec, packed) == TEXT


def test_xerial_framing_matches_java():
    packed = compress(Compression.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (size,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == TEXT[: 32 * 1024]


def test_lz4_blocks_match_java():
    """Kafka's Java client refuses a frame whose blocks depend on each other; only larger batches have several."""
    data = bytes(range(256)) * 1000
    stream = StreamCompressor(Compression.LZ4, None)
    in_pieces = b"".join([*(stream.add(data[at : at + 5000]) for at in range(0, len(data), 5000)), stream.finish()])
    for packed in (compress(Compression.LZ4, data), in_pieces):
        info = lz4.frame.get_frame_info(packed)
        assert not info["block_linked"]
        assert info["block_size"] == 64 * 1024 < len(data)
        assert not info["block_checksum"]
        assert decompress(Compression.LZ4, packed) == data


def test_bombs_are_refused_without_the_memory():
    """A thousandfold compressed gigabyte, a snappy length out of thin air, a zstd frame that claims a terabyte."""
    zeros = bytes(16 * 1024 * 1024)
    bombs = [(codec, compress(codec, zeros)) for codec in CODECS]
    bombs.append((Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)))
    bombs.append((Compression.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + bytes(50)))
    tracemalloc.start()
    try:
        for codec, bomb in bombs:
            tracemalloc.reset_peak()
            with pytest.raises(CorruptRecordError):
                decompress(codec, bomb, 1024 * 1024)
            assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024, codec
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_an_error(codec):
    packed = compress(codec, TEXT[:2000])
    for cut in range(len(packed)):
        if codec is Compression.SNAPPY and cut == 16:
            continue  # the header of the framing alone is an empty stream
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed[:cut])


@given(codec=st.sampled_from(CODECS), data=st.binary(max_size=200))
@settings(max_examples=examples(300))
def test_random_bytes_raise_nothing_but_corruption(codec, data):
    try:
        assert len(decompress(codec, data, 100_000)) <= 100_000
    except CorruptRecordError:
        return


@given(codec=st.sampled_from(CODECS), at=st.integers(0, 10_000), byte=st.integers(1, 255))
@settings(max_examples=examples(300))
def test_damaged_bytes_raise_nothing_but_corruption(codec, at, byte):
    packed = bytearray(compress(codec, TEXT[:3000]))
    packed[at % len(packed)] ^= byte
    try:
        decompress(codec, packed, 10_000)
    except CorruptRecordError:
        return


def test_names():
    assert [codec.config_name for codec in Compression] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert Compression.from_config_name("zstd") is Compression.ZSTD
    with pytest.raises(ValueError, match="unknown compression 'brotli'; expected one of none, gzip"):
        Compression.from_config_name("brotli")


class Offered:
    """Counts the bytes that decompressors are offered; each copies what it leaves of them."""

    def __init__(self, make):
        self.make, self.count = make, 0

    def __call__(self, *args):
        return Counting(self.make(*args), self)


class Counting:
    def __init__(self, stream, offered):
        self._stream, self._offered = stream, offered

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def decompress(self, data, *args, **options):
        self._offered.count += len(data)
        return self._stream.decompress(data, *args, **options)


@pytest.mark.parametrize(
    ("codec", "module", "name"),
    [(Compression.GZIP, zlib, "decompressobj"), (Compression.LZ4, lz4.frame, "LZ4FrameDecompressor")],
    ids=["gzip", "lz4"],
)
def test_the_work_grows_with_the_number_of_streams(codec, module, name, monkeypatch):
    """And not with its square: one megabyte holds 50,000 empty gzip members, or 95,000 empty lz4 frames."""
    streams = 2_000
    empty = gzip.compress(b"") if codec is Compression.GZIP else lz4.frame.compress(b"", store_size=False)
    packed = empty * streams + compress(codec, TEXT)
    offered = Offered(getattr(module, name))
    monkeypatch.setattr(module, name, offered)
    assert decompress(codec, packed) == TEXT
    assert offered.count < 2 * len(packed) + 512 * streams
