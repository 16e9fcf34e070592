"""Goal: once a log start offset counts as durable, no power failure brings an earlier one back.

Method: managers on virtual disks that lose power; the regular checkpoint, which is not durable, comes before, between
and after.
"""

from __future__ import annotations

import pytest

from moldau_broker.log.values import run_work
from support.log.lab import A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("regular", ["none", "before", "twice"])
def test_a_durable_start_survives_a_power_failure(seed: int, regular: str) -> None:
    machine = VirtualMachine(seed)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    put(log, count=5)
    log.flush()
    tick(manager, START_MS + 10_000)
    log.increment_log_start_offset(3)
    assert not manager.is_start_durable(log)
    if regular != "none":
        tick(manager, START_MS + 20_000)
        assert not manager.is_start_durable(log)  # it was renamed without a sync of the directory
    work = manager.log_start_work(log)
    assert work is not None
    run_work(work)
    assert manager.is_start_durable(log)
    assert manager.log_start_work(log) is None
    if regular == "twice":
        assert not [name for name in tick(manager, START_MS + 30_000) if "log-start" in name]
        assert manager.is_start_durable(log)
    machine.boot(power_lost=True)
    assert open_manager(machine, ["/d1"]).logs[A].log_start_offset == 3


def test_a_checkpoint_in_progress_is_waited_for() -> None:
    """A write that began before the start moved does not count for it."""
    manager = open_manager(VirtualMachine(1), ["/d1"])
    log = create(manager)
    put(log, count=5)
    log.increment_log_start_offset(1)
    (begun,) = [work for work in manager.tick(START_MS + 10_000, START_MS + 10_000) if "log-start" in work.name]
    log.increment_log_start_offset(2)
    assert manager.log_start_work(log) is None
    assert not manager.is_start_durable(log)
    run_work(begun)
    work = manager.log_start_work(log)
    assert work is not None
    run_work(work)
    assert manager.is_start_durable(log)
