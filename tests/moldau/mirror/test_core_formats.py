"""Records of internal topics have the bytes of MirrorMaker 2, written down by hand from its schemas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau import TopicPartition
from moldau.mirror.core.formats import (
    Checkpoint,
    FormatError,
    Heartbeat,
    OffsetSync,
    Position,
    parse_position,
    position_key,
    position_value,
)

PARTITION = TopicPartition("orders", 7)
SYNC = OffsetSync(PARTITION, 41, 1000)
CHECKPOINT = Checkpoint("g", PARTITION, 5, 6, "m")
BEAT = Heartbeat("east", "hub", 1_700_000_000_000)


def test_an_offset_sync_has_no_version():
    assert SYNC.key() == b"\x00\x06orders\x00\x00\x00\x07"
    assert SYNC.value() == (41).to_bytes(8, "big") + (1000).to_bytes(8, "big")


def test_a_checkpoint_has_a_version_before_its_value():
    assert CHECKPOINT.key() == b"\x00\x01g\x00\x06orders\x00\x00\x00\x07"
    assert CHECKPOINT.value() == b"\x00\x00" + (5).to_bytes(8, "big") + (6).to_bytes(8, "big") + b"\x00\x01m"


def test_a_heartbeat_names_both_clusters():
    assert BEAT.key() == b"\x00\x04east\x00\x03hub"
    assert BEAT.value() == b"\x00\x00" + (1_700_000_000_000).to_bytes(8, "big")


def test_a_position_is_an_offset_of_connect():
    key = b'["MirrorSourceConnector",{"cluster":"east","partition":7,"topic":"orders"}]'
    assert position_key("east", PARTITION) == key
    assert position_value(Position(42)) == b'{"offset":41}'
    assert parse_position("east", key, b'{"offset":41}') == (PARTITION, Position(42))
    assert parse_position("east", key, None) == (PARTITION, None)
    assert parse_position("west", key, b'{"offset":41}') is None
    assert parse_position("east", key.replace(b"Source", b"Checkpoint"), b'{"offset":41}') is None


@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.integers(0, 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(1, 2**63 - 1),
    st.uuids(),
)
def test_records_survive_a_round_trip(first, second, number, offset, position, topic_id):
    partition = TopicPartition(first, number)
    for record in (
        OffsetSync(partition, offset, position),
        Checkpoint(second, partition, offset, position, first),
        Heartbeat(first, second, offset),
    ):
        assert type(record).parse(record.key(), record.value()) == record
    stored = Position(position, topic_id, number)
    assert parse_position(second, position_key(second, partition), position_value(stored)) == (partition, stored)


@pytest.mark.parametrize("kind", [SYNC, CHECKPOINT, BEAT], ids=lambda each: type(each).__name__)
def test_every_cut_is_refused(kind):
    parse = type(kind).parse
    for end in range(len(kind.key())):
        with pytest.raises(FormatError):
            parse(kind.key()[:end], kind.value())
    for end in range(len(kind.value())):
        with pytest.raises(FormatError):
            parse(kind.key(), kind.value()[:end])
    with pytest.raises(FormatError):
        parse(None, kind.value())


def test_other_versions_and_bad_texts_are_refused():
    with pytest.raises(FormatError, match="version 1"):
        Heartbeat.parse(BEAT.key(), b"\x00\x01" + BEAT.value()[2:])
    with pytest.raises(FormatError, match="UTF-8"):
        Heartbeat.parse(b"\x00\x01\xff\x00\x01h", BEAT.value())
    with pytest.raises(FormatError):
        Heartbeat("x" * 40_000, "hub", 1).key()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"x", b"{}"),
        (b"{}", b"{}"),
        (b'["MirrorSourceConnector",{"cluster":"east"}]', b'{"offset":1}'),
        (position_key("east", PARTITION), b"[]"),
        (position_key("east", PARTITION), b"{}"),
        (position_key("east", PARTITION), b'{"offset":1,"topicId":"x"}'),
        (None, b"{}"),
    ],
)
def test_a_damaged_position_is_refused(key, value):
    with pytest.raises(FormatError):
        parse_position("east", key, value)
