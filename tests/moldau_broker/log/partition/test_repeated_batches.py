"""Goal: a log recognises a batch that a producer sends again after a lost answer, also after loading a snapshot.

Method: a virtual disk; a producer whose last five batches are sent again after restarts and cuts. Time passes by hand.
"""

from __future__ import annotations

import struct

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.checkpoint import read_file
from moldau_broker.log.producers.producer_state import BATCHES_KEPT, decode_snapshot
from moldau_broker.log.values import TopicPartition
from support.log.lab import START_MS, create, open_manager, put, tick
from support.log.model import VirtualMachine, make_batch

VALUE = b"x" * 80
ROW = struct.Struct(">qhiqiqiq")
DAY_MS = 86_400_000
MINUTE_MS = 60_000
NOW_MS = START_MS + 10 * DAY_MS


def written(machine: VirtualMachine, batches: int):
    """A log in which two producers wrote in turn, batches of two records and of one."""
    manager = open_manager(machine)
    log = create(manager)
    for number in range(batches):
        put(log, VALUE, count=2, producer=(7, 3, 2 * number))
        put(log, VALUE, producer=(8, 0, number))
    return manager, log


def check_repeated(log, end: int) -> None:
    """The last batches of both producers come again, the older ones first, as clients send them."""
    before = log.log_end_offset
    for number in range(end - BATCHES_KEPT, end):
        assert put(log, VALUE, count=2, producer=(7, 3, 2 * number)).first_offset == 3 * number
        assert put(log, VALUE, producer=(8, 0, number)).first_offset == 3 * number + 2
    assert log.log_end_offset == before, "nothing was written twice"
    with pytest.raises(LogError) as raised:
        put(log, VALUE, producer=(8, 0, end - BATCHES_KEPT - 1))
    assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repetition_is_answered_with_the_first_append_time() -> None:
    """A producer names its record by it, and the log has no record of the time of the repetition."""
    log = create(open_manager(VirtualMachine(1), message_timestamp_type="LogAppendTime"))
    answers = []
    for now in (NOW_MS, NOW_MS + MINUTE_MS):
        batch = make_batch([(START_MS, b"k", VALUE)], producer=(7, 0, 0))
        info = log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=now)
        answers.append((info.duplicate, info.first_offset, info.log_append_time_ms))
    assert answers == [(False, 0, NOW_MS), (True, 0, NOW_MS)]


@pytest.mark.parametrize("batches", range(12, 20))
@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart(clean: bool, batches: int) -> None:
    """Found by a seed: the snapshot had only the last batch, so four repeated batches were appended again."""
    machine = VirtualMachine(1)
    manager, log = written(machine, batches)
    assert log.storage.snapshots.offsets(), "segments were rolled"
    log.flush()
    if clean:
        manager.close()
    machine.boot(power_lost=not clean)
    log = open_manager(machine).logs[log.topic_partition]
    check_repeated(log, batches)
    put(log, VALUE, count=2, producer=(7, 3, 2 * batches))


def test_after_a_cut() -> None:
    """As far as what is left goes, and what the snapshot before it remembers."""
    _, log = written(VirtualMachine(1), 40)
    (*_, newest) = (offset for offset in log.storage.snapshots.offsets() if offset % 3 == 0)
    log.truncate_to(newest)
    check_repeated(log, newest // 3)


@pytest.mark.parametrize("batches", range(12, 20))
def test_after_retention_and_a_restart(batches: int) -> None:
    """Retention leaves the active segment and the snapshot at its start, which knows the batches that are gone."""
    machine = VirtualMachine(1)
    _, log = written(machine, batches)
    log.storage.drop_oldest(len(log.segments) - 1)
    log.flush()
    machine.boot(power_lost=True)
    log = open_manager(machine).logs[log.topic_partition]
    check_repeated(log, batches)
    put(log, VALUE, count=2, producer=(7, 3, 2 * batches))


def test_kafka_finds_the_newest_batch_in_the_last_row() -> None:
    """Kafka finds a producer's newest batch in the last row of its snapshot entry."""
    machine = VirtualMachine(1)
    manager, log = written(machine, 7)
    manager.close()
    data = read_file(machine.disk, log.storage.snapshots.path(log.log_end_offset))
    rows = [row for row in ROW.iter_unpack(data[10:]) if row[0] == 7]
    assert [row[2] for row in rows] == [5, 7, 9, 11, 13], "last sequences, the newest last"
    assert [row[3] for row in rows] == [7, 10, 13, 16, 19], "last offsets"
    (entry,) = (one for one in decode_snapshot("x", data) if one.producer_id == 7)
    assert [batch.last_offset for batch in entry.batches] == [row[3] for row in rows]
    assert (entry.epoch, entry.last_sequence, entry.last_offset) == (3, 13, 19)


def put_old(log, sequence: int, now: int):
    """A record that is two days old when it is written."""
    data = make_batch([(NOW_MS - 2 * DAY_MS, b"k", VALUE)], producer=(7, 3, sequence))
    info = log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=now)
    log.update_high_watermark(log.log_end_offset)
    return info


def check_known(log, count: int, now: int) -> None:
    """The last batch comes again; one that skips sequence numbers is refused."""
    assert put_old(log, count - 1, now).duplicate
    with pytest.raises(LogError) as raised:
        put_old(log, count + 3, now)
    assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == count, "nothing was written twice"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("batches", [1, 30])
def test_a_producer_of_old_records_is_known_after_a_restart(clean: bool, batches: int) -> None:
    """It was forgotten by the age of its records."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, now=NOW_MS)
    log = create(manager)
    for sequence in range(batches):
        put_old(log, sequence, NOW_MS)
    log.flush()
    if clean:
        manager.close()
    machine.boot(power_lost=not clean)
    manager = open_manager(machine, now=NOW_MS + MINUTE_MS)
    log = manager.logs[log.topic_partition]
    check_known(log, batches, NOW_MS + MINUTE_MS)
    put_old(log, batches, NOW_MS + MINUTE_MS)


def test_a_producer_of_old_records_is_known_while_it_writes() -> None:
    """By the time of the broker: also by that of a follower, and after a cut."""
    manager = open_manager(VirtualMachine(1), now=NOW_MS)
    log, follower = create(manager), create(manager, TopicPartition("follower", 0))
    for sequence in range(30):
        put_old(log, sequence, NOW_MS)
    while follower.log_end_offset < 30:
        result = log.read(follower.log_end_offset, max_bytes=1 << 20, upper_bound_offset=30, min_one_batch=True)
        for piece in result.ranges:
            data = bytearray(piece.file.read(piece.position, piece.count))
            follower.append_as_follower(memoryview(data), now_ms=NOW_MS)
    now = NOW_MS + DAY_MS - 1
    tick(manager, now)
    check_known(follower, 30, now)
    follower.truncate_to(25)
    tick(manager, now)
    check_known(follower, 25, now)
    check_known(log, 30, now)
    put_old(log, 30, now)
    tick(manager, now + DAY_MS - 1)
    put_old(log, 31, now + DAY_MS - 1)
    tick(manager, now + DAY_MS + 10 * MINUTE_MS)
    check_known(log, 32, now + DAY_MS + 10 * MINUTE_MS)
    assert follower.producer_state.describe() == [], "silent for a day since the cut, which loads it"


def test_a_silent_producer_expires_a_day_after_loading() -> None:
    """The age of its records does not matter, nor does a clock that was set back meanwhile."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, now=NOW_MS)
    log = create(manager)
    put_old(log, 0, NOW_MS)
    put(log, now=NOW_MS + DAY_MS // 2, producer=(8, 0, 0))
    manager.close()
    machine.boot(power_lost=False)
    loaded = NOW_MS + DAY_MS // 2
    manager = open_manager(machine, now=loaded)
    log = manager.logs[log.topic_partition]
    tick(manager, loaded - DAY_MS // 4)
    assert len(log.producer_state.describe()) == 2
    tick(manager, loaded + DAY_MS // 4 * 3 - 1)
    assert len(log.producer_state.describe()) == 2
    tick(manager, loaded + DAY_MS // 4 * 3 + 10 * MINUTE_MS)
    assert log.producer_state.describe() == []
