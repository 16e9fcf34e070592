"""The bound on the decompressed size of a fetched batch in a consumer."""

import pytest

from moldau.consumer.core.chunk import FetchedChunk
from moldau.records import ColumnBuilder, Compression, OversizedRecordsError, encode_batch
from moldau.runtime.config import CONSUMER_CONFIG

CODECS = [codec for codec in Compression if codec is not Compression.NONE]


def chunk(codec, bytes_max) -> FetchedChunk:
    """A batch of 10,000 bytes of records behind one of 1,000."""
    small = encode_batch([(1, None, bytes(1_000), ())], compression=codec)
    large = encode_batch([(1, None, bytes(10_000), ())], compression=codec, base_offset=1)
    return FetchedChunk(memoryview(small + large), 0, unpacked_bytes_max=bytes_max)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_beyond_the_bound_is_reported(codec) -> None:
    """The batch before it is handed out first."""
    fetched = chunk(codec, 5_000)
    assert len(fetched.take(10)) == 1
    with pytest.raises(OversizedRecordsError, match="more than 5000 bytes"):
        fetched.take(10)
    columns = chunk(codec, 5_000)
    assert columns.take_columns(ColumnBuilder(), 1 << 20) == 1
    with pytest.raises(OversizedRecordsError, match="more than 5000 bytes"):
        columns.take_columns(ColumnBuilder(), 1 << 20)
    assert len(chunk(codec, 20_000).take(10)) == 2


def test_the_bound_has_a_key() -> None:
    config = CONSUMER_CONFIG.parse({"bootstrap.servers": "localhost:9092"})
    assert config.get_int("fetch.max.uncompressed.bytes") == 64 * 1024 * 1024
