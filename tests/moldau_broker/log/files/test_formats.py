"""Goal: Kafka's file formats to the byte. Method: golden bytes, written by hand from Kafka's layouts."""

from __future__ import annotations

import random
import struct
import uuid
from contextlib import suppress

import pytest

from moldau.records import encode_end_txn_marker
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import (
    EpochEntry,
    MetaProperties,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
    read_file,
    write_atomically,
)
from moldau_broker.log.files.names import (
    marked_directory,
    parse_directory,
    parse_segment_file,
    partition_directory,
    segment_file,
)
from moldau_broker.log.producers.producer_state import decode_snapshot
from moldau_broker.log.values import TopicPartition
from support.log.model import PARTITION, START_MS, TOPIC_ID, PowerLoss, VirtualMachine, make_batch

TOPIC_ID_TEXT = "AAAAAAAAAAAAAAAAAAD-7Q"
PARTITION_METADATA = f"version: 0\ntopic_id: {TOPIC_ID_TEXT}\ncrc32c: 054b6b69\n".encode()


def test_names() -> None:
    assert segment_file(4711, ".log") == "00000000000000004711.log"
    assert parse_segment_file("00000000000000004711.timeindex.deleted") == (4711, ".timeindex", ".deleted")
    assert parse_segment_file("leader-epoch-checkpoint") is None
    assert partition_directory(TopicPartition("a-b", 3)) == "a-b-3"
    assert parse_directory("a-b-3") == (TopicPartition("a-b", 3), "")
    name = marked_directory(TopicPartition("t", 0), "f" * 32, "-delete")
    assert name == f"t-0.{'f' * 32}-delete"
    assert parse_directory(name) == (TopicPartition("t", 0), "delete")
    assert len(marked_directory(TopicPartition("t" * 249, 10), "f" * 32, "-delete")) <= 255
    for stranger in ("lost+found", "nodash", "-0", "x-", "x-\u0661", "x-00", "x-01"):
        assert parse_directory(stranger) is None


@pytest.mark.parametrize("is_new", [True, False])
def test_a_small_file_is_replaced_as_a_whole(is_new: bool) -> None:
    """A loss of power after any step leaves the old content or the new one."""
    old, new, found = b"o" * 9_000, b"n" * 9_000, []
    for writes in range(1, 20):
        for seed in range(6):
            machine = VirtualMachine(seed)
            machine.disk.make_directories("/d")
            machine.disk.sync_directory("/")
            if not is_new:
                write_atomically(machine.disk, "/d/file", old)
            machine.arm(writes)
            with suppress(PowerLoss):
                write_atomically(machine.disk, "/d/file", new)
                machine.boot(power_lost=True)
                assert read_file(machine.disk, "/d/file") == new, "durable on return"
                assert set(found) == {None if is_new else old, new}
                return
            machine.boot(power_lost=True)
            found.append(read_file(machine.disk, "/d/file") if machine.disk.exists("/d/file") else None)
            assert found[-1] in (None if is_new else old, new), f"{writes} writes, seed {seed}"
    raise AssertionError("the write never ends")


def test_offset_checkpoint() -> None:
    offsets = {TopicPartition("b", 1): 5, TopicPartition("a", 0): 1 << 40}
    golden = b"0\n2\na 0 1099511627776\nb 1 5\n"
    assert encode_offsets(offsets) == golden
    assert decode_offsets("x", golden) == offsets
    assert decode_offsets("x", b"0\n0\n") == {}
    for bad in (
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 1",
        b"0\n1\na 0 -1\n",
        b"0\n1\na 0 x\n",
        b"\xff\n0\n",
        b"",
    ):
        with pytest.raises(CorruptLogFileError):
            decode_offsets("x", bad)


def test_leader_epoch_checkpoint() -> None:
    golden = b"0\n2\n1 0\n7 4200\n"
    entries = [EpochEntry(leader_epoch=1, start_offset=0), EpochEntry(leader_epoch=7, start_offset=4200)]
    assert encode_epochs(entries) == golden
    assert decode_epochs("x", golden) == entries
    for bad in (b"0\n2\n7 4200\n1 0\n", b"0\n2\n1 5\n2 5\n", b"0\n1\n-1 0\n"):
        with pytest.raises(CorruptLogFileError):
            decode_epochs("x", bad)


def test_partition_metadata() -> None:
    golden = PARTITION_METADATA
    assert encode_partition_metadata(TOPIC_ID) == golden
    of_kafka = golden[: golden.index(b"\ncrc32c")]
    for content in (golden, of_kafka, of_kafka + b"\n"):
        assert decode_partition_metadata("x", content) == TOPIC_ID
    for bad in (b"", b"version: 1\ntopic_id: x", b"version: 0\n", b"version: 0\ntopic_id: ??"):
        with pytest.raises(CorruptLogFileError):
            decode_partition_metadata("x", bad)


def test_no_changed_bit_of_partition_metadata_goes_unnoticed() -> None:
    """A changed bit looked like the id of another topic, and the broker deleted the log."""
    for bit in range(8 * len(PARTITION_METADATA)):
        changed = bytearray(PARTITION_METADATA)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLogFileError):
            decode_partition_metadata("x", bytes(changed))


def test_meta_properties() -> None:
    properties = MetaProperties(cluster_id="MkU3OEVBNTcwNTJENDM2Qk", node_id=3, directory_id=TOPIC_ID)
    golden = f"#\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\ndirectory.id={TOPIC_ID_TEXT}\nnode.id=3\nversion=1\n".encode()
    assert encode_meta_properties(properties) == golden
    assert decode_meta_properties("x", golden) == properties
    kafkas = b"#\n#Sat Nov 14 10:00:00 UTC 2026\nnode.id=3\nversion=1\ndirectory.id=" + TOPIC_ID_TEXT.encode()
    assert decode_meta_properties("x", kafkas + b"\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n") == properties
    with pytest.raises(CorruptLogFileError):
        decode_meta_properties("x", kafkas)


def test_clean_shutdown_marker() -> None:
    assert encode_clean_shutdown(12) == b'{"version":0,"brokerEpoch":12}'
    assert decode_clean_shutdown("x", b'{"version":0,"brokerEpoch":12}') == 12
    assert decode_clean_shutdown("x", b"") == -1
    with pytest.raises(CorruptLogFileError):
        decode_clean_shutdown("x", b"{")


@pytest.fixture
def written():
    """A log with a segment of three batches (one of them transactional and aborted), closed cleanly."""
    machine = VirtualMachine(1)
    manager = LogManager(
        machine.disk,
        ["/data"],
        node_id=1,
        cluster_id="c",
        random=random.Random(1),
        default_config=LogConfig(index_interval_bytes=1),
    )
    manager.start(START_MS)
    log = manager.get_or_create(PARTITION, topic_id=TOPIC_ID, now_ms=START_MS)
    log.append_as_leader(memoryview(make_batch([(1000, b"k", b"v"), (1005, None, b"w")])), leader_epoch=4, now_ms=1)
    batch = make_batch([(900, b"k", b"v")], producer=(77, 2, 0), transactional=True)
    log.append_as_leader(memoryview(batch), leader_epoch=4, now_ms=1)
    log.append_end_transaction_marker(
        producer_id=77, producer_epoch=2, coordinator_epoch=9, commit=False, leader_epoch=5, now_ms=2000
    )
    log.update_high_watermark(4)
    manager.close(31)
    return machine.disk


def test_segment_files(written) -> None:
    log = read_file(written, "/data/topic-0/00000000000000000000.log")
    sizes, position = [], 0
    while position < len(log):
        (size,) = struct.unpack_from(">i", log, position + 8)
        sizes.append(size + 12)
        position += size + 12
    first, second, third = sizes
    # base offset, batch length, leader epoch, magic
    assert log[:17] == struct.pack(">qiib", 0, first - 12, 4, 2)
    assert log[first : first + 17] == struct.pack(">qiib", 2, second - 12, 4, 2)
    assert log[first + second : first + second + 17] == struct.pack(">qiib", 3, third - 12, 5, 2)
    # An entry once more than index.interval.bytes were written since the last: relative last offset, position.
    assert read_file(written, "/data/topic-0/00000000000000000000.index") == struct.pack(
        ">iiii", 2, first, 3, first + second
    )
    # Largest timestamp so far and the last offset of its batch.
    assert read_file(written, "/data/topic-0/00000000000000000000.timeindex") == struct.pack(">qiqi", 1005, 1, 2000, 3)
    # Version, producer, first and last offset, last stable offset.
    assert read_file(written, "/data/topic-0/00000000000000000000.txnindex") == struct.pack(">hqqqq", 0, 77, 2, 3, 4)


def test_marker_is_kafkas(written) -> None:
    log = read_file(written, "/data/topic-0/00000000000000000000.log")
    assert log.endswith(
        bytes(
            encode_end_txn_marker(
                commit=False,
                producer_id=77,
                producer_epoch=2,
                coordinator_epoch=9,
                timestamp=2000,
                base_offset=3,
                partition_leader_epoch=5,
            )
        )
    )


def test_producer_snapshot(written) -> None:
    data = read_file(written, "/data/topic-0/00000000000000000004.snapshot")
    knows_all_row = struct.pack(">qhiqiqiq", -1, -1, -1, -1, 0, -1, -1, -1)
    row = struct.pack(">qhiqiqiq", 77, 2, 0, 2, 0, 2000, 9, -1)
    body = struct.pack(">i", 2) + knows_all_row + row
    assert data[:2] == b"\0\1"
    assert data[6:] == body
    from crc32c import crc32c

    assert struct.unpack_from(">I", data, 2)[0] == crc32c(body)
    knows_all, entry = decode_snapshot("x", data)
    assert (knows_all.producer_id, knows_all.batches) == (-1, [])
    assert (entry.producer_id, entry.epoch, entry.last_sequence, entry.coordinator_epoch) == (77, 2, 0, 9)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        with pytest.raises(CorruptLogFileError):
            decode_snapshot("x", bytes(damaged))


def test_checkpoints_and_markers(written) -> None:
    assert read_file(written, "/data/topic-0/leader-epoch-checkpoint") == b"0\n2\n4 0\n5 3\n"
    assert read_file(written, "/data/topic-0/partition.metadata") == PARTITION_METADATA
    assert read_file(written, "/data/recovery-point-offset-checkpoint") == b"0\n1\ntopic 0 4\n"
    assert read_file(written, "/data/replication-offset-checkpoint") == b"0\n1\ntopic 0 4\n"
    assert read_file(written, "/data/log-start-offset-checkpoint") == b"0\n0\n"
    assert read_file(written, "/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":31}'
    assert uuid.UUID(int=0) != decode_meta_properties("x", read_file(written, "/data/meta.properties")).directory_id
