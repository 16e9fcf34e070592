"""Goal: a follower whose records are only in the object store starts over behind them, and no crash mixes two logs.

Method: the power fails after each write of a restart on a virtual disk. The log after the crash is either a prefix of
the old one, with the old epochs, or all that was asked for: offsets, epochs and producers.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError, OffsetInRemoteStorageError
from moldau_broker.log.files.checkpoint import EpochEntry, encode_epochs
from support.log.lab import A, create
from support.log.model import START_MS, PowerLoss, VirtualMachine
from support.log.tiered import (
    PRODUCER,
    append,
    check_whole,
    copies_of,
    filled,
    loaded,
    local_rows,
    open_tiered,
    run_retention,
)
from support.proof import all_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.log.partition.partition_log import PartitionLog
    from support.log.model import Row
    from support.log.tiered import Copy

STEP = 1 if all_examples() else 7
"""The power fails after each write, or after each seventh."""

OFFSET, START = 1000, 10
EPOCHS = [EpochEntry(leader_epoch=2, start_offset=0), EpochEntry(leader_epoch=9, start_offset=500)]


def snapshot_of_a_leader() -> bytes:
    """Returns a producer snapshot that a leader took at another offset; the producer is known by its content."""
    log = filled(open_tiered(VirtualMachine(5)))
    return copies_of(log)[-1].parts.producer_snapshot


SNAPSHOT = snapshot_of_a_leader()


def restart(log: PartitionLog, offset: int = OFFSET) -> None:
    log.restart_behind(
        offset,
        log_start_offset=START,
        leader_epochs=encode_epochs(EPOCHS),
        producer_snapshot=SNAPSHOT,
        now_ms=START_MS,
    )


def check_restarted(log: PartitionLog, offset: int = OFFSET) -> None:
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (START, offset, offset)
    assert (log.high_watermark, log.recovery_point, log.copied_end_offset) == (offset, offset, offset)
    assert list(log.epochs.entries) == [EpochEntry(leader_epoch=2, start_offset=START), EPOCHS[1]][: 1 + (offset > 500)]
    assert log.producer_state.get(PRODUCER) is not None
    with pytest.raises(OffsetInRemoteStorageError):
        log.read(offset - 1, max_bytes=100, upper_bound_offset=offset)


class Old(NamedTuple):
    rows: list[Row]
    epochs: Sequence[EpochEntry]
    copies: list[Copy]


def check_prefix(log: PartitionLog, old: Old) -> None:
    """Checks that a log is the old one without its end; without a local start it may be empty, at 0."""
    end, local = log.log_end_offset, log.local_log_start_offset
    assert local_rows(log) == old.rows[local:end]
    assert log.log_start_offset == 0
    assert local == 0 or local in [copy.end_offset for copy in old.copies]
    assert list(log.epochs.entries) == [entry for entry in old.epochs if entry.start_offset < end]


def test_a_restarted_log_goes_on() -> None:
    machine = VirtualMachine(1)
    manager = open_tiered(machine)
    log = create(manager)
    restart(log)
    check_restarted(log)
    log.begin_leader_epoch(11)
    append(log, 3)
    manager.close()
    machine.boot(power_lost=True)
    again = loaded(machine)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (START, OFFSET, OFFSET + 3)
    assert [entry.leader_epoch for entry in again.epochs.entries] == [2, 9, 11]


@pytest.mark.drawn
@pytest.mark.parametrize("power_lost", [True, False])
@pytest.mark.parametrize("has_remote", [True, False])
@pytest.mark.parametrize("offset", [OFFSET, 20])
def test_crash_after_each_write_of_a_restart(offset: int, has_remote: bool, power_lost: bool) -> None:
    seen = {"old": 0, "new": 0}
    for writes in itertools.count(1, STEP):
        machine = VirtualMachine(writes)
        log = filled(open_tiered(machine))
        old = Old(local_rows(log), log.epochs.entries, copies_of(log)[:4])
        if has_remote:
            log.note_copied(old.copies[-1].end_offset)
            run_retention(log)
        machine.arm(writes)
        try:
            restart(log, offset)
        except PowerLoss:
            machine.boot(power_lost=power_lost)
            again = loaded(machine)
            if again.log_start_offset == START:
                seen["new"] += 1
                check_restarted(again, offset)
            else:
                seen["old"] += 1
                check_prefix(again, old)
            restart(again, offset)
            check_restarted(again, offset)
            continue
        check_restarted(log, offset)
        assert min(seen.values()) > 0, seen
        return


@pytest.mark.drawn
@pytest.mark.parametrize("power_lost", [True, False])
def test_crash_after_each_write_of_a_truncation_below_the_disk(power_lost: bool) -> None:
    """The leader agrees only up to an offset that is not on this disk: the log starts over there, without producers."""
    for writes in itertools.count(1, STEP):
        machine = VirtualMachine(writes)
        log = filled(open_tiered(machine))
        old = Old(local_rows(log), log.epochs.entries, copies_of(log))
        run_retention(log)
        local = log.local_log_start_offset
        machine.arm(writes)
        try:
            assert log.truncate_to(16)
        except PowerLoss:
            machine.boot(power_lost=power_lost)
            log = loaded(machine)
            assert log.log_start_offset == 0
            if log.log_end_offset >= local:
                check_prefix(log, old)
                continue
        else:
            machine.disk.crash_after_writes(10**9, lambda: None)
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 16, 16)
        assert [(entry.leader_epoch, entry.start_offset) for entry in log.epochs.entries] == [(1, 0), (4, 14)]
        assert (log.copied_end_offset, log.high_watermark) == (16, 16)
        if writes > 40:
            return


def test_a_truncation_lowers_the_copied_end() -> None:
    """Else the records that follow would leave the disk without a copy."""
    log = filled(open_tiered(VirtualMachine(1)))
    copies = copies_of(log)
    log.update_high_watermark(0)
    log.truncate_to(copies[2].base_offset)
    assert log.copied_end_offset == copies[2].base_offset
    log.begin_leader_epoch(8)
    append(log, 20)
    log.flush()
    run_retention(log)
    assert log.local_log_start_offset == copies[1].end_offset


def test_a_log_that_starts_over_forgets_remote_records() -> None:
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine))
    copies_of(log)
    run_retention(log)
    log.truncate_fully_and_start_at(7, START_MS)
    for again in (log, None):
        if again is None:
            machine.boot(power_lost=True)
            again = loaded(machine)
        assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (7, 7, 7)
        assert again.epochs.entries == ()


@pytest.mark.parametrize("part", ["leader_epochs", "producer_snapshot"])
def test_damaged_parts_are_refused_before_anything_changes(part: str) -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    rows = local_rows(log)
    parts = {"leader_epochs": encode_epochs(EPOCHS), "producer_snapshot": SNAPSHOT, part: b"\x00" * 40}
    with pytest.raises(LogError) as caught:
        log.restart_behind(OFFSET, log_start_offset=START, now_ms=START_MS, **parts)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    check_whole(log, rows, [])


def test_a_log_start_above_the_offset_counts_as_the_offset() -> None:
    log = create(open_tiered(VirtualMachine(1)))
    log.restart_behind(
        20, log_start_offset=25, leader_epochs=encode_epochs(EPOCHS), producer_snapshot=SNAPSHOT, now_ms=START_MS
    )
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (20, 20, 20)


def test_the_log_start_can_move_below_the_first_segment() -> None:
    log = create(open_tiered(VirtualMachine(1)))
    restart(log)
    assert log.increment_log_start_offset(600)
    assert (log.log_start_offset, log.local_log_start_offset) == (600, OFFSET)
    assert list(log.epochs.entries) == [EpochEntry(leader_epoch=9, start_offset=600)]
    assert log.topic_partition == A
