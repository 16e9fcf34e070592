"""The ``.aux`` object: what was written is read, and each damage is noticed and named."""

import pytest

from moldau.records.checksum import crc32c
from moldau_broker.log.values import SegmentParts
from moldau_broker.remote_log.core.auxiliary import decode_auxiliary, decode_for_reading, encode_auxiliary
from moldau_broker.remote_log.core.errors import CorruptRemoteSegmentError

PARTS = SegmentParts(b"i" * 16, b"t" * 24, b"x" * 34, b"p" * 50, b"0\n1\n1 0\n")
HEADER_BYTES = 52


@pytest.mark.parametrize("parts", [PARTS, SegmentParts(b"", b"", b"", b"", b""), PARTS._replace(time_index=b"")])
def test_parts_come_back(parts: SegmentParts) -> None:
    data = encode_auxiliary(parts)
    assert decode_auxiliary(data) == parts
    assert decode_auxiliary(memoryview(data)) == parts
    assert decode_for_reading(data) == (parts, [])
    assert len(data) == HEADER_BYTES + sum(map(len, parts))


def test_every_changed_byte_is_noticed() -> None:
    data = encode_auxiliary(PARTS)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptRemoteSegmentError, match=r"remote object s\.aux: byte"):
            decode_auxiliary(damaged, "s.aux")


def test_every_cut_is_noticed() -> None:
    data = encode_auxiliary(PARTS)
    for size in range(len(data)):
        reason = "fewer than the 52 bytes of a header" if size < HEADER_BYTES else "is cut"
        for decode in (decode_auxiliary, decode_for_reading):
            with pytest.raises(CorruptRemoteSegmentError, match=f"byte {size}: .*{reason}"):
                decode(data[:size])
    with pytest.raises(CorruptRemoteSegmentError, match="1 bytes follow the last part"):
        decode_auxiliary(data + b"x")


@pytest.mark.parametrize("field", SegmentParts._fields)
def test_only_indexes_may_be_damaged_for_a_reader(field: str) -> None:
    data = bytearray(encode_auxiliary(PARTS))
    data[HEADER_BYTES + sum(map(len, PARTS[: PARTS._fields.index(field)]))] ^= 1
    if field in ("offset_index", "time_index"):
        parts, damage = decode_for_reading(data, "s.aux")
        assert parts == PARTS._replace(**{field: b""})
        assert [error.reason for error in damage] == [f"{field} does not have its checksum"]
    else:
        with pytest.raises(CorruptRemoteSegmentError, match=f"{field} does not have its checksum"):
            decode_for_reading(data)


def test_another_number_of_parts_is_refused() -> None:
    data = bytearray(encode_auxiliary(PARTS))
    data[7] += 1
    data[48:52] = crc32c(data[:48]).to_bytes(4, "big")
    with pytest.raises(CorruptRemoteSegmentError, match="the header does not have its checksum"):
        decode_auxiliary(data)


def test_another_version_or_object_is_named() -> None:
    data = bytearray(encode_auxiliary(PARTS))
    with pytest.raises(CorruptRemoteSegmentError, match="version 2 is unknown, expected 1"):
        decode_auxiliary(data[:4] + b"\x00\x02" + data[6:])
    with pytest.raises(CorruptRemoteSegmentError, match="no auxiliary object of a segment: it begins with b'<htm'"):
        decode_auxiliary(b"<html>" + data)


def test_the_layout_stays() -> None:
    """Objects outlive the release that wrote them."""
    parts = SegmentParts(b"a", b"", b"bc", b"", b"d")
    lengths = b"".join(len(part).to_bytes(4, "big") + crc32c(part).to_bytes(4, "big") for part in parts)
    header = b"MRSA\x00\x01\x00\x05" + lengths
    assert encode_auxiliary(parts) == header + crc32c(header).to_bytes(4, "big") + b"abcd"
