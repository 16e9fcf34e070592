"""Goal: an observer judges no log with a segment that has rotted, and takes no other damage for rot.

Method: a log of several segments on a virtual disk; between two processes a closed one is cut, or a bit of it flips.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import BATCH_HEADER_BYTES, iterate_batches
from moldau_broker.log.errors import LogError
from moldau_jepsen.simulation.judge.observer import batches_seen
from moldau_jepsen.simulation.judge.rules.committed import committed_batches
from support.log.lab import create, open_manager, put
from support.log.model import VirtualMachine

BATCHES = 60


def damaged_log(damage):
    """Opens the log of a process that starts after ``damage(virtual_disk, path)`` and shows it to an observer."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for number in range(BATCHES):
        put(log, b"%d" % number)
    assert log.storage.segments.count > 3
    path = log.segments[1].path(".log")
    manager.close()
    machine.boot(power_lost=False)
    damage(machine.virtual_disk, path)
    log = create(open_manager(machine, ["/d1"]))
    assert log.log_end_offset == BATCHES
    machine.virtual_disk.is_watched = lambda: True
    return log


def read_by_rules(partition):
    return [header.base_offset for header, _ in committed_batches(partition, 0, BATCHES)]


@pytest.mark.parametrize("size", [0, 5, BATCH_HEADER_BYTES, BATCH_HEADER_BYTES + 1, 200])
def test_a_segment_that_was_cut_is_not_judged(size):
    """Found by seed 200149: the log knew the file's end, so it made no read that could have shown the damage."""
    partition = SimpleNamespace(log=damaged_log(lambda virtual_disk, path: virtual_disk.cut_short(path, size)))
    assert batches_seen(partition, 0, BATCHES) is None
    with pytest.raises(OSError, match="does not judge"):
        read_by_rules(partition)


def test_a_segment_that_was_cut_between_batches_is_not_judged():
    """A segment that was cut between two batches is not judged."""

    def damage(virtual_disk, path):
        content = virtual_disk.lookup(path).content
        virtual_disk.cut_short(
            path, next(at for at, header in iterate_batches(bytes(content)) if header.base_offset > 20)
        )

    partition = SimpleNamespace(log=damaged_log(damage))
    assert batches_seen(partition, 0, BATCHES) is None
    with pytest.raises(OSError, match="does not judge"):
        read_by_rules(partition)


def test_a_segment_with_a_bit_that_flipped_is_not_judged():
    partition = SimpleNamespace(log=damaged_log(lambda virtual_disk, path: virtual_disk.flip_bit(path, 100, 3)))
    assert batches_seen(partition, 0, BATCHES) is None
    with pytest.raises(OSError, match="does not judge"):
        read_by_rules(partition)


def test_damage_that_no_fault_has_done_is_a_finding():
    def damage(virtual_disk, path):
        del virtual_disk.lookup(path).content[5:]

    partition = SimpleNamespace(log=damaged_log(damage))
    for read in (lambda: batches_seen(partition, 0, BATCHES), lambda: read_by_rules(partition)):
        with pytest.raises(LogError) as raised:
            read()
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_whole_log_is_judged():
    partition = SimpleNamespace(log=damaged_log(lambda virtual_disk, path: None))
    assert [batch.base_offset for batch in batches_seen(partition, 0, BATCHES)] == list(range(BATCHES))
    assert read_by_rules(partition) == list(range(BATCHES))
