"""Goal: encoding and decoding are inverse, and nothing but `DecodeError` comes out of bad bytes.

Method: seeded samples of every class and version round-trip; then samples are cut at every place, mutated, and
replaced by random bytes. Memory is measured while hostile counts are decoded.
"""

import random
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.codec import (
    DecodeError,
    EncodeError,
    UnsupportedVersionError,
    codec_for,
    decode,
    decode_prefix,
    encode,
)
from moldau.protocol.compiler import minimum_size
from moldau.protocol.hot import read_fetch_request
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
)
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.internal.end_txn_marker import EndTxnMarker
from moldau.protocol.messages.internal.group_metadata import GroupMetadataKey
from moldau.protocol.messages.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from moldau.protocol.messages.internal.transaction_log import TransactionLogValue
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.schema import Message
from support.proof import examples
from support.protocol_samples import all_messages, samples

MESSAGES = all_messages()
FLEXIBLE = [(cls, version) for cls, version in MESSAGES if version in cls.__flexible__]


def test_round_trip_of_every_class_and_version() -> None:
    for cls, version in MESSAGES:
        for extremes in (False, True):
            for sample in samples(cls, version, 3, extremes=extremes):
                data = encode(sample, version)
                decoded, position = decode_prefix(cls, version, b"\xaa\xbb" + data + b"tail", 2)
                assert position == 2 + len(data)
                assert decoded == sample
                assert len(data) >= minimum_size(cls, version, version in cls.__flexible__)


def with_long_messages(value: object, text: str) -> int:
    """Puts ``text`` into every text for people of a struct and its parts; returns how many there were."""
    count = 0
    for key, spec in type(value).__fields__.items():
        if key.endswith(("error_message", "status_detail")):
            setattr(value, key, text)
            count += 1
        elif spec.struct is not None:
            parts = getattr(value, key)
            for part in (parts or ()) if spec.is_array else [parts]:
                count += 0 if part is None else with_long_messages(part, text)
    return count


def test_error_messages_are_cut_to_what_the_wire_takes() -> None:
    """They repeat what the peer sent; one that does not fit must not make the whole response impossible.

    The status of a streams group does so, too: it names the member that asked all others to stop.
    """
    found = 0
    for cls, version in MESSAGES:
        for sample in samples(cls, version, 2):
            for text in ("\u20ac" * 20_000, "x" * 32_768, "x" * 32_767):
                if not with_long_messages(sample, text):
                    continue
                decoded = decode(cls, version, encode(sample, version))
                cut = {message for message in messages_of(decoded) if message}
                for message in cut:
                    size = len(message.encode())
                    assert 32_764 <= size <= 32_767
                    assert message == text or message.endswith(text[0] + "...")
                found += len(cut)
    assert found > 100


def messages_of(value: object) -> list[str | None]:
    """The texts for people of a struct and its parts."""
    messages: list[str | None] = []
    for key, spec in type(value).__fields__.items():
        if key.endswith(("error_message", "status_detail")):
            messages.append(getattr(value, key))
        elif spec.struct is not None:
            parts = getattr(value, key)
            for part in (parts or ()) if spec.is_array else [parts]:
                messages += [] if part is None else messages_of(part)
    return messages


def test_every_cut_is_an_error() -> None:
    """A message that ends early never decodes, wherever it ends: no length is taken on trust."""
    for cls, version in MESSAGES:
        for sample in samples(cls, version, 1):
            data = encode(sample, version)
            step = max(1, len(data) // 40)
            for cut in range(0, len(data), step):
                with pytest.raises(DecodeError):
                    decode(cls, version, data[:cut])


def test_unknown_tagged_fields_are_skipped() -> None:
    """KIP-482: a newer peer may send tags we do not know; they vanish."""
    unknown = b"\x01\xe7\x07\x03abc"  # one field, tag 999, three bytes
    for cls, version in FLEXIBLE:
        sample = cls()
        data = encode(sample, version)
        assert data[-1] == 0
        assert decode(cls, version, data[:-1] + unknown) == sample


def test_tagged_field_of_wrong_size_is_an_error() -> None:
    data = encode(FetchRequest(replica_state=ReplicaState(replica_id=3, replica_epoch=9)), 15)
    position = data.index(b"\x01\x01\x0d")
    for size in (0x0C, 0x0E):
        with pytest.raises(DecodeError):
            decode(FetchRequest, 15, data[: position + 2] + bytes((size,)) + data[position + 3 :] + b"\0")


def test_null_only_where_the_version_allows_it() -> None:
    assert decode(MetadataRequest, 1, encode(MetadataRequest(topics=None), 1)).topics is None
    with pytest.raises(EncodeError, match=r"MetadataRequest\.topics may not be null"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(DecodeError, match="may not be null"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")
    with pytest.raises(DecodeError, match="negative length"):
        decode(MetadataRequest, 1, b"\xff\xff\xff\xfe")


def test_nullable_struct() -> None:
    for cursor in (None, DescribeTopicPartitionsRequestCursor(topic_name="t", partition_index=4)):
        sample = DescribeTopicPartitionsRequest(cursor=cursor)
        assert decode(DescribeTopicPartitionsRequest, 0, encode(sample, 0)) == sample


def test_fields_absent_from_a_version_are_dropped_and_default() -> None:
    topic = FetchTopic(topic="t", topic_id=UUID(int=7), partitions=[FetchPartition(partition=1, last_fetched_epoch=5)])
    old = decode(FetchRequest, 11, encode(FetchRequest(topics=[topic]), 11)).topics[0]
    assert (old.topic, old.topic_id, old.partitions[0].last_fetched_epoch) == ("t", UUID(int=0), -1)
    new = decode(FetchRequest, 13, encode(FetchRequest(topics=[topic]), 13)).topics[0]
    assert (new.topic, new.topic_id, new.partitions[0].last_fetched_epoch) == ("", UUID(int=7), 5)


def test_records_are_not_copied() -> None:
    records = b"r" * 1000
    request = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=memoryview(records))])]
    )
    frame = bytearray(encode(request, 9))
    decoded = decode(ProduceRequest, 9, frame).topic_data[0].partition_data[0].records
    assert isinstance(decoded, memoryview)
    frame[frame.index(b"rrrr")] = ord("x")
    assert decoded[0] == ord("x")


def test_long_strings_are_refused_in_flexible_versions_too() -> None:
    """Kafka bounds every string by 32767 bytes, so that what was read can be written in any other version."""
    for length, fits in ((32767, True), (32768, False)):
        size = length + 1
        prefix = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
        data = prefix + b"x" * length + bytes(4) + b"\1\0\0"
        if fits:
            assert decode(HeartbeatRequest, 4, data).group_id == "x" * length
        else:
            with pytest.raises(DecodeError, match="a string of 32768 bytes"):
                decode(HeartbeatRequest, 4, data)


def test_values_out_of_range_are_encode_errors() -> None:
    with pytest.raises(EncodeError):
        encode(CreateTopicsRequest(timeout_ms=1 << 31), 5)
    with pytest.raises(EncodeError, match="32768 bytes"):
        encode(MetadataResponse(topics=[MetadataResponseTopic(name="x" * 32768)]), 1)
    with pytest.raises(EncodeError):
        encode(MetadataResponse(topics=[MetadataResponseTopic(name="\ud800")]), 9)


def test_versions_out_of_range() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"FetchRequest has versions 4-18, not 19"):
        encode(FetchRequest(), 19)
    with pytest.raises(UnsupportedVersionError):
        decode(FetchRequest, -1, b"")


def test_classes_refuse_misuse() -> None:
    with pytest.raises(TypeError):
        FetchRequest(no_such_field=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        FetchRequest().no_such_field = 1  # type: ignore[attr-defined]
    assert FetchRequest() != ProduceRequest()
    assert "session_epoch=-1" in repr(FetchRequest())
    first, second = FetchRequest(), FetchRequest()
    assert first.replica_state is not second.replica_state


@pytest.mark.parametrize(
    ("cls", "version", "count"), [(MetadataRequest, 1, 4), (FetchRequest, 4, 4), (ProduceRequest, 9, 5)]
)
def test_huge_counts_allocate_nothing(cls: type[Message], version: int, count: int) -> None:
    """An announced array of two billion elements in a frame of a few bytes must not reserve memory for them."""
    heads = {MetadataRequest: b"", FetchRequest: bytes(17), ProduceRequest: b"\0" + bytes(6)}
    size = b"\x7f\xff\xff\xff" if count == 4 else b"\xff\xff\xff\xff\x07"
    codec_for(cls, version)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(cls, version, heads[cls] + size + bytes(64))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_memory_is_linear_in_the_input() -> None:
    """The worst honest case: 200 kB of the smallest elements cost a bounded multiple of 200 kB."""
    count = 100_000
    data = encode(MetadataRequest(topics=()), 0)
    data = count.to_bytes(4, "big") + bytes(2 * count)
    codec_for(MetadataRequest, 0)
    tracemalloc.start()
    try:
        assert len(decode(MetadataRequest, 0, data).topics or ()) == count
        assert tracemalloc.get_traced_memory()[1] < 150 * len(data)
    finally:
        tracemalloc.stop()


def test_texts_of_clients_may_hold_other_bytes() -> None:
    """A consumer with such a rack, or a commit with such metadata, closed its connection; Kafka serves both."""
    for message, version in (
        (FetchRequest(rack_id="caf~"), 11),
        (FetchRequest(rack_id="caf~"), 12),
        (ConsumerGroupHeartbeatRequest(rack_id="caf~"), 0),
    ):
        data = encode(message, version).replace(b"caf~", b"caf\xe9")
        assert decode(type(message), version, data).rack_id == "caf\ufffd"
        if isinstance(message, FetchRequest):
            assert read_fetch_request(memoryview(data), 0, version).rack_id == "caf\ufffd"
    commit = OffsetCommitRequestTopic(partitions=[OffsetCommitRequestPartition(committed_metadata="caf~")])
    data = encode(OffsetCommitRequest(topics=[commit]), 9).replace(b"caf~", b"caf\xe9")
    assert decode(OffsetCommitRequest, 9, data).topics[0].partitions[0].committed_metadata == "caf\ufffd"
    with pytest.raises(DecodeError, match="UTF-8"):
        decode(HeartbeatRequest, 0, encode(HeartbeatRequest(group_id="g~"), 0).replace(b"~", b"\xff"))


def test_mutated_messages_raise_only_decode_errors() -> None:
    """Flip bytes of valid messages, lengths above all: the outcome is a message or a `DecodeError`."""
    generator = random.Random(20)
    outcomes = [0, 0]
    for cls, version in MESSAGES:
        for sample in samples(cls, version, 1):
            data = encode(sample, version)
            for _ in range(12):
                mutated = bytearray(data)
                for _ in range(generator.randint(1, 3)):
                    if mutated:
                        mutated[generator.randrange(len(mutated))] = generator.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
                try:
                    decode(cls, version, mutated)
                    outcomes[0] += 1
                except DecodeError:
                    outcomes[1] += 1
    assert min(outcomes) > 500


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(MESSAGES), st.binary(max_size=200))
def test_random_bytes_raise_only_decode_errors(case: tuple[type[Message], int], data: bytes) -> None:
    cls, version = case
    try:
        message, position = decode_prefix(cls, version, data)
    except DecodeError:
        return
    assert position <= len(data)
    again = encode(message, version)
    assert decode(cls, version, again) == message or b"\x7f" in again  # a NaN is not equal to itself


def test_golden_bytes_of_internal_records() -> None:
    """Checks messages unknown to the oracle libraries byte by byte against Kafka's schemas."""
    assert encode(GroupMetadataKey(group="g"), 2) == b"\0\x01g"
    assert encode(OffsetCommitKey(group="g", topic="tt", partition=3), 1) == b"\0\x01g\0\x02tt\0\0\0\x03"
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9, expire_timestamp=11)
    assert encode(value, 3) == bytes(7) + b"\x05\0\0\0\x02\0\x01m" + bytes(7) + b"\x09"
    assert encode(value, 1) == bytes(7) + b"\x05\0\x01m" + bytes(7) + b"\x09" + bytes(7) + b"\x0b"
    assert encode(EndTxnMarker(coordinator_epoch=7), 0) == b"\0\0\0\x07"
    transaction = TransactionLogValue(
        producer_id=1, producer_epoch=2, transaction_timeout_ms=3, transaction_partitions=None
    )
    assert encode(transaction, 0) == bytes(7) + b"\x01\0\x02\0\0\0\x03\0\xff\xff\xff\xff" + bytes(16)
    assert encode(transaction, 1) == bytes(7) + b"\x01\0\x02\0\0\0\x03\0\0" + bytes(16) + b"\0"
    transaction.next_producer_epoch = 4
    assert encode(transaction, 1).endswith(bytes(16) + b"\x01\x03\x02\0\x04")
