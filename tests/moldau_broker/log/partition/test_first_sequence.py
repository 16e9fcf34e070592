"""Goal: an unknown producer begins with sequence 0 in a log that forgot no producer, so that no batch takes the place
of an earlier one that was lost with another leader.

Method: a virtual disk; logs that forget nothing and logs that do, over restarts and truncations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError
from support.log.lab import START_MS, create, open_manager, put, tick
from support.log.model import VirtualMachine

if TYPE_CHECKING:
    from moldau_broker.log.directories.manager import LogManager

DAY_MS = 86_400_000
OLD, NEW = (7, 0, 0), (8, 0, 0)


def is_refused(log, producer) -> bool:
    """Whether the second batch of an unknown producer is; where it is not, it is written."""
    before, refusal = log.log_end_offset, None
    try:
        put(log, producer=producer)
    except LogError as error:
        refusal = error
    assert log.log_end_offset == before + (refusal is None)
    if refusal is not None:
        assert refusal.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert f"producer {producer[0]} has written nothing here" in str(refusal)
    return refusal is not None


def test_the_second_batch_waits_for_the_first() -> None:
    """Found by a seed: the first was lost with its leader, the next leader took the second, then the first again."""
    log = create(open_manager(VirtualMachine(1)))
    put(log, producer=OLD)
    assert is_refused(log, (8, 0, 1))
    assert is_refused(log, (8, 3, 5))
    put(log, producer=NEW)
    put(log, producer=(8, 0, 1))
    assert log.log_end_offset == 3


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("power_lost", [True, False])
def test_a_restart_with_a_snapshot_keeps_all_producers(clean: bool, power_lost: bool) -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for sequence in range(30):
        put(log, b"x" * 80, producer=(7, 0, sequence))
    assert log.storage.snapshots.offsets(), "segments were rolled"
    log.flush()
    if clean:
        manager.close()
    machine.boot(power_lost=power_lost)
    log = open_manager(machine).logs[log.topic_partition]
    assert is_refused(log, (8, 0, 1))
    put(log, producer=(7, 0, 30))


def test_a_truncation_keeps_the_remaining_producers() -> None:
    log = create(open_manager(VirtualMachine(1)))
    for sequence in range(30):
        put(log, b"x" * 80, producer=(7, 0, sequence))
    put(log, producer=NEW)
    log.truncate_to(30)
    assert is_refused(log, (8, 0, 1)), "its first batch is gone"
    log.truncate_to(0)
    assert is_refused(log, (7, 0, 30))
    put(log, producer=OLD)


def expired(manager: LogManager, log) -> None:
    tick(manager, START_MS + 2 * DAY_MS)
    assert log.producer_state.describe() == []


def began_later(manager: LogManager, log) -> None:
    log.truncate_fully_and_start_at(5, START_MS)


@pytest.mark.parametrize("forget", [expired, began_later])
def test_a_log_that_forgot_producers_accepts_any_sequence(forget) -> None:
    """A forgotten producer may continue with any sequence, as in Kafka, also after a restart from the snapshot."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, producer=OLD)
    forget(manager, log)
    assert not is_refused(log, (7, 0, 1))
    manager.close()
    machine.boot(power_lost=False)
    log = open_manager(machine).logs[log.topic_partition]
    assert not is_refused(log, (9, 0, 4))


def test_a_log_without_its_snapshots_may_lack_a_producer() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, producer=OLD)
    manager.close()
    for offset in log.storage.snapshots.offsets():
        machine.disk.remove(log.storage.snapshots.path(offset))
    machine.boot(power_lost=False)
    assert not is_refused(open_manager(machine).logs[log.topic_partition], (8, 0, 1))


def end_transaction(log, producer_epoch: int, producer_id: int = 7) -> None:
    log.append_end_transaction_marker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=3,
        commit=False,
        leader_epoch=1,
        now_ms=START_MS,
    )
    log.update_high_watermark(log.log_end_offset)


def begins_epoch(log, producer_epoch: int, producer_id: int = 7) -> None:
    """A producer goes on in an epoch in which it wrote nothing here: only with 0."""
    before = log.log_end_offset
    for sequence in (1, 5):
        with pytest.raises(LogError) as raised:
            put(log, producer=(producer_id, producer_epoch, sequence), transactional=True)
        assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == before
    put(log, producer=(producer_id, producer_epoch, 0), transactional=True)
    put(log, producer=(producer_id, producer_epoch, 1), transactional=True)


def test_an_epoch_that_a_marker_brought_begins_with_0() -> None:
    log = create(open_manager(VirtualMachine(1)))
    put(log, count=5, producer=OLD, transactional=True)
    end_transaction(log, 1)
    begins_epoch(log, 1)
    end_transaction(log, 1)
    put(log, producer=(7, 1, 2), transactional=True)


def test_a_producer_that_only_a_marker_names_begins_with_0() -> None:
    """It added the partition to its transaction, and nothing of it came."""
    log = create(open_manager(VirtualMachine(1)))
    end_transaction(log, 0, producer_id=8)
    begins_epoch(log, 0, producer_id=8)


def test_a_producer_that_was_forgotten_goes_on_behind_a_marker() -> None:
    log = create(open_manager(VirtualMachine(1)))
    log.truncate_fully_and_start_at(5, START_MS)
    end_transaction(log, 0, producer_id=8)
    put(log, producer=(8, 0, 4), transactional=True)


def test_a_restart_remembers_that_an_epoch_begins() -> None:
    """The snapshot says that a marker brought the epoch and nothing of it came, also for a producer without batches."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, producer=OLD, transactional=True)
    end_transaction(log, 1)
    end_transaction(log, 0, producer_id=8)
    manager.close()
    machine.boot(power_lost=False)
    log = open_manager(machine).logs[log.topic_partition]
    begins_epoch(log, 1)
    begins_epoch(log, 0, producer_id=8)


def test_a_restart_knows_no_more_than_before() -> None:
    """A marker of a producer that was forgotten does not show whether it wrote; neither does the snapshot after it."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    log.truncate_fully_and_start_at(5, START_MS)
    end_transaction(log, 0, producer_id=8)
    manager.close()
    machine.boot(power_lost=False)
    log = open_manager(machine).logs[log.topic_partition]
    put(log, producer=(8, 0, 4), transactional=True)
