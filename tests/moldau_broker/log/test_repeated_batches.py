"""Goal: a batch that a producer sends again, because its answer was lost, is recognised for as long as it may be under
way, also by a log that was opened from a snapshot.

Method: a virtual disk; a producer whose last five batches are sent again after restarts and cuts.
"""

from __future__ import annotations

import struct

import pytest

from log_lab import create, open_manager, put
from log_model import VirtualMachine
from moldau.protocol.errors import ErrorCode
from moldau_broker.log.checkpoint import read_file
from moldau_broker.log.errors import LogError
from moldau_broker.log.producer_state import BATCHES_KEPT, decode_snapshot

VALUE = b"x" * 80
ROW = struct.Struct(">qhiqiqiq")


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


@pytest.mark.parametrize("batches", range(12, 20))
@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart(clean: bool, batches: int) -> None:
    """Found by a seed: the snapshot had the last batch alone, and four that came again were written once more."""
    machine = VirtualMachine(1)
    manager, log = written(machine, batches)
    assert log.snapshot_offsets(), "segments were rolled"
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
    (*_, newest) = (offset for offset in log.snapshot_offsets() if offset % 3 == 0)
    log.truncate_to(newest)
    check_repeated(log, newest // 3)


def test_kafka_finds_the_newest_batch_in_the_last_row_of_a_producer() -> None:
    machine = VirtualMachine(1)
    manager, log = written(machine, 7)
    manager.close()
    data = read_file(machine.disk, log.snapshot_path(log.log_end_offset))
    rows = [row for row in ROW.iter_unpack(data[10:]) if row[0] == 7]
    assert [row[2] for row in rows] == [5, 7, 9, 11, 13], "last sequences, the newest last"
    assert [row[3] for row in rows] == [7, 10, 13, 16, 19], "last offsets"
    (entry,) = (one for one in decode_snapshot("x", data) if one.producer_id == 7)
    assert [batch.last_offset for batch in entry.batches] == [row[3] for row in rows]
    assert (entry.epoch, entry.last_sequence, entry.last_offset) == (3, 13, 19)
