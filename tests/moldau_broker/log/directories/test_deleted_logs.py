"""Goal: a log of a name that was deleted begins with nothing of its predecessor's checkpoints.

Method: each periodic write of a checkpoint is under way in its thread while the topic is deleted and created again.
"""

from __future__ import annotations

import pytest

from moldau_broker.log.directories.directory import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from moldau_broker.log.files.checkpoint import read_offsets
from support.log.lab import A, create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows


@pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])
def test_a_checkpoint_in_flight_is_none_of_the_next_log(name: str) -> None:
    """The next start would drop all records below the log start offset of the deleted log."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(10):
        put(log, b"old")
    log.flush()
    log.delete_records(7)
    (work,) = [work for work in manager.tick(START_MS + 6000, START_MS + 6000) if work.name.endswith(name)]
    work.run()
    assert manager.delete(A)
    new = create(manager)
    put(new, b"new")
    work.complete()
    assert A not in read_offsets(machine.disk, f"/d1/{name}")
    new.flush()
    machine.boot(power_lost=False)
    assert [row.value for row in all_rows(open_manager(machine, ["/d1"]).logs[A])] == [b"new"]


@pytest.mark.parametrize("name", [LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])
def test_a_checkpoint_in_flight_is_none_of_a_log_started_over(name: str) -> None:
    """A follower begins at 0, where the checkpoint on disk has no entry yet."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(10):
        put(log, b"old")
    log.delete_records(7)
    (work,) = [work for work in manager.tick(START_MS + 6000, START_MS + 6000) if work.name.endswith(name)]
    work.run()
    log.truncate_fully_and_start_at(0, START_MS)
    work.complete()
    assert read_offsets(machine.disk, f"/d1/{name}").get(A, 0) == 0
