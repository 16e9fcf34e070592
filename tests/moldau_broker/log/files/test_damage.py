"""Goal: damage at a random place of any file gives no wrong record and loses no other one.

Method: a log is closed; one bit of one of its files is flipped, or the file is cut or extended by random bytes. The log
is opened again and compared with the written records.
"""

from __future__ import annotations

import random

import pytest

from moldau.records import iterate_batches
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.checksums import CHECKSUMS
from moldau_broker.log.files.dump import BAD_BYTE, dump_file
from moldau_broker.log.values import TopicPartition
from support.log.damaged import contents, reborn, write_log
from support.log.model import PARTITION, TOPIC_ID, Driver, all_rows, make_batch, read_rows
from support.proof import examples, proof_beyond

SMALL_FILES = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "leader-epoch-checkpoint",
    "partition.metadata",
    ".kafka_cleanshutdown",
    CHECKSUMS,
)
KINDS = (".index", ".timeindex", ".txnindex", ".snapshot", *SMALL_FILES)


def damage(rnd: random.Random, content: bytes) -> bytes:
    kind = rnd.choice(("flip", "flip", "flip", "cut", "garbage"))
    if kind == "flip" and content:
        changed = bytearray(content)
        changed[rnd.randrange(len(changed))] ^= 1 << rnd.randrange(8)
        return bytes(changed)
    if kind == "cut" and content:
        return content[: rnd.randrange(len(content))]
    return content + rnd.randbytes(rnd.randint(1, 40))


@pytest.mark.drawn
@pytest.mark.parametrize("kind", proof_beyond(4, KINDS))
def test_damage_beside_the_log_is_mended(kind: str) -> None:
    driver = write_log(3)
    files = contents(driver)
    expected = (all_rows_of(driver), driver.log.log_end_offset)
    targets = [path for path in sorted(files) if path.endswith(kind)]
    assert targets
    driver.check_indexes = False  # a damaged entry stays until it would be used
    for number in range(examples(40)):
        rnd = random.Random(number)
        target = rnd.choice(targets)
        changed = {**files, target: damage(rnd, files[target])}
        driver.machine = reborn(changed, number)
        driver.start()
        log = driver.log
        assert log.log_end_offset == expected[1]
        found = all_rows(log)
        # A log start offset that is not known any more brings deleted records back, never hides others.
        assert found[-len(expected[0]) :] == expected[0], f"{target} damaged (run {number})"
        assert log.topic_id == TOPIC_ID
        log.update_high_watermark(log.log_end_offset)
        driver.check(rnd)
        for _ in range(3):
            driver.append(rnd)
            driver.check(rnd)
        driver.history = {offset: row for offset, row in driver.history.items() if offset < expected[1]}


def all_rows_of(driver: Driver):
    return [row for offset, row in sorted(driver.history.items()) if offset >= driver.log.log_start_offset]


@pytest.mark.parametrize("byte", [1, 3, 4])
def test_a_rotten_base_offset_ends_the_index_not_the_broker(byte: int) -> None:
    """Found by a seed: the index of the same segment was damaged too, and was built again from what the log said.

    Bits of the base offset that make it larger than an index can say, and one that makes it smaller than what was
    before.
    """
    driver = write_log(3)
    end = driver.log.log_end_offset
    files = contents(driver)
    first, second = [path for path in sorted(files) if path.endswith(".log")][:2]
    batches = [position for position, _ in iterate_batches(files[second])]
    changed = bytearray(files[second])
    place = batches[len(batches) // 2]
    if byte == 4:
        changed[place : place + 8] = bytes(8)
    else:
        changed[place + byte] ^= 0x40
    kept = {path: data for path, data in files.items() if path != second.replace(".log", ".index")}
    driver.check_indexes = False
    driver.machine = reborn({**kept, second: bytes(changed)}, 1)
    driver.start()
    log = driver.log
    assert log.log_end_offset == end
    before = [row.offset for row in all_rows(log, upper=log.segments[1].base_offset)]
    assert before[-1] == log.segments[1].base_offset - 1, first
    assert log.segments[1].unreadable_from == place


def test_a_missing_file_is_made_again() -> None:
    driver = write_log(3)
    files = contents(driver)
    end, rows = driver.log.log_end_offset, all_rows_of(driver)
    for path in sorted(files):
        if path.endswith((".log", "meta.properties", ".lock")):
            continue
        driver.machine = reborn({name: data for name, data in files.items() if name != path}, 1)
        driver.start()
        assert driver.log.log_end_offset == end, path
        assert all_rows(driver.log)[-len(rows) :] == rows, path
        driver.log.update_high_watermark(end)
        driver.check(random.Random(1))


def test_damage_in_the_tail_after_a_crash() -> None:
    """A start verifies the log behind the recovery point.

    The log ends before the damage, everything before it is intact.
    """
    driver = write_log(5)
    files = {
        path: data
        for path, data in contents(driver).items()
        if not path.endswith((".kafka_cleanshutdown", "-checkpoint"))
    }
    rows = [row for _, row in sorted(driver.history.items())]
    logs = [path for path in sorted(files) if path.endswith(".log")]
    for number in range(120):
        rnd = random.Random(number)
        target = rnd.choice(logs)
        content = damage(rnd, files[target])
        same = next(
            (i for i, (a, b) in enumerate(zip(content, files[target], strict=False)) if a != b),
            min(len(content), len(files[target])),
        )
        whole = [(p, h) for p, h in iterate_batches(files[target]) if p + h.size_bytes <= same]
        hit = next(((p, h) for p, h in iterate_batches(files[target]) if p <= same < p + h.size_bytes), None)
        driver.machine = reborn({**files, target: content}, number)
        driver.start()
        base = int(target.rpartition("/")[2][:20])
        intact = whole[-1][1].next_offset if whole else base
        assert driver.log.log_end_offset >= intact, f"{target} at byte {same}"
        found = all_rows(driver.log)
        # The leader assigns offset and epoch outside the checksum: a flip there shows in the batch after it.
        outside = hit is not None and (same - hit[0] < 8 or 12 <= same - hit[0] < 16)
        limit = intact if outside else driver.log.log_end_offset
        assert [row for row in found if row.offset < limit] == [row for row in rows if row.offset < limit]
        if not outside:
            assert all(row in rows for row in found)


def test_damage_below_the_recovery_point_is_always_found() -> None:
    """A clean start does not read the log.

    Each reader verifies the checksum, and a batch with a good checksum is the written batch.
    """
    driver = write_log(6)
    files = contents(driver)
    rows = dict(driver.history)
    logs = [path for path in sorted(files) if path.endswith(".log")]
    refused = 0
    for number in range(60):
        rnd = random.Random(number)
        target = rnd.choice(logs)
        changed = bytearray(files[target])
        position, header = rnd.choice(list(iterate_batches(files[target])))
        changed[position + rnd.randrange(16, header.size_bytes)] ^= 1 << rnd.randrange(8)
        driver.machine = reborn({**files, target: bytes(changed)}, number)
        driver.start()
        log, offset = driver.log, driver.log.log_start_offset
        while offset < log.log_end_offset:
            try:
                _, found, following = read_rows(log, offset)
            except (AssertionError, ValueError, LogError):
                refused += 1
                break
            assert all(rows[row.offset] == row for row in found)
            assert following is not None, "a damaged part was passed over in silence"
            offset = following
    # The rest is damage in the last batch, which a start cuts, or below the log start offset.
    assert refused >= 55


def test_a_closed_segment_without_its_end_is_always_refused() -> None:
    """Also after its indexes were built again from what is left of it: that is not where the segment ends, and the next
    segment does not follow there. A cut between two batches could not be detected."""
    driver = write_log(6)
    files = contents(driver)
    rows = dict(driver.history)
    logs = sorted(path for path in files if path.endswith(".log"))[1:-1]
    for number in range(30):
        rnd = random.Random(number)
        target = rnd.choice(logs)
        batches = list(iterate_batches(files[target]))
        position, header = rnd.choice(batches[1:])
        driver.machine = reborn(
            {**files, target: files[target][: position + rnd.randrange(1, header.size_bytes)]}, number
        )
        driver.start()
        log = driver.log
        for _ in range(3):
            for lost in range(header.base_offset, batches[-1][1].last_offset + 1):
                with pytest.raises(LogError, match="no batch header"):
                    read_rows(log, lost)
            offset = max(batches[0][1].base_offset, log.log_start_offset)
            while offset < header.base_offset:
                _, found, following = read_rows(log, offset)
                assert all(rows[row.offset] == row for row in found)
                assert following is not None
                offset = following
            assert offset == header.base_offset


def test_dump_points_at_the_first_bad_byte() -> None:
    driver = write_log(7)
    files = contents(driver)
    for number in range(150):
        rnd = random.Random(number)
        target = rnd.choice(
            [
                path
                for path in sorted(files)
                if path.endswith((".log", ".index", ".timeindex", ".txnindex", ".snapshot"))
            ]
        )
        machine = reborn(files, 1)
        assert not [line for line in dump_file(machine.disk, target) if line.startswith(BAD_BYTE)], target
        if not files[target]:
            continue
        changed = bytearray(files[target])
        where = rnd.randrange(len(changed))
        changed[where] ^= 0x80
        machine = reborn({**files, target: bytes(changed)}, 1)
        lines = list(dump_file(machine.disk, target))
        if target.endswith(".log"):
            start = next(p for p, h in iterate_batches(files[target]) if p <= where < p + h.size_bytes)
            bad = [line for line in lines if line.startswith(BAD_BYTE)]
            assert bad, f"{target}: byte {where} went unnoticed"
            said = int(bad[0].removeprefix(BAD_BYTE).split(" ")[0])
            # Offset and epoch are outside the checksum: they show at the batch that follows.
            assert said >= start
            if not (where - start < 8 or 12 <= where - start < 16):
                assert start <= said <= max(where, start + 61)
        elif target.endswith((".index", ".timeindex", ".snapshot")):
            assert lines[-1].startswith(BAD_BYTE), f"{target}: byte {where} went unnoticed"


def test_dump_of_small_files_and_strangers() -> None:
    driver = write_log(8)
    disk = driver.machine.disk
    assert "topic: topic partition: 0 offset:" in list(dump_file(disk, "/data/recovery-point-offset-checkpoint"))[1]
    assert list(dump_file(disk, "/data/.kafka_cleanshutdown"))[1] == "brokerEpoch: 7"
    assert list(dump_file(disk, "/data/topic-0/leader-epoch-checkpoint"))[1].startswith("epoch: ")
    assert "topicId: AAAAAAAAAAAAAAAAAAD-7Q" in list(dump_file(disk, "/data/topic-0/partition.metadata"))[1]
    assert list(dump_file(disk, "/data/meta.properties"))[1:3] == ["clusterId: cluster", "nodeId: 1"]
    with pytest.raises(ValueError, match="none of the files of a log"):
        list(dump_file(disk, "/data/.lock"))
    log = next(path for path in driver.machine.virtual_disk.files("/data") if path.endswith(".log"))
    lines = list(dump_file(disk, log, print_records=True))
    assert lines[1].startswith("Log starting offset: ")
    assert "isvalid: true" in lines[2]
    assert lines[3].startswith("| offset: ")
    assert any("endTxnMarker: " in line and "coordinatorEpoch: 3" in line for line in lines)


def test_another_nodes_directory_is_refused() -> None:
    driver = write_log(9)
    disk = reborn(contents(driver), 1).disk
    other = LogManager(disk, ["/data"], node_id=2, cluster_id="cluster", random=random.Random(1))
    with pytest.raises(ValueError, match="give the node its own log directory"):
        other.start(1)


def test_overlapping_segments_are_not_both_served() -> None:
    """A crash brought back the name of a segment whose removal was not durable."""
    driver = write_log(10)
    files = {
        path: data
        for path, data in contents(driver).items()
        if not path.endswith((".kafka_cleanshutdown", "-checkpoint"))
    }
    first = min(path for path in files if path.endswith(".log"))
    batch = bytearray(make_batch([(1, b"k", b"stale")] * 2))
    batch[:8] = (2).to_bytes(8, "big")
    stale = first.replace(f"{0:020d}", f"{2:020d}")
    driver.machine = reborn({**files, stale: bytes(batch)}, 1)
    driver.start()
    assert all(row.value != b"stale" for row in all_rows(driver.log))
    assert driver.manager.get(TopicPartition(*PARTITION)) is driver.log
