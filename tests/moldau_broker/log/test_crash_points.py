"""Goal: a crash after any single write leaves a log that is whole. Method: for each operation, the power fails after its first, second,
third ... write, until it gets through; what the restart finds is compared with the model (see ``log_model``)."""

from __future__ import annotations

import random

import pytest
from log_model import Driver, PowerLoss, VirtualMachine

from moldau_broker.log.values import run_work

WRITES_MAX = 120


def prepare(compact: bool, seed: int) -> tuple[Driver, random.Random]:
    """A log with several segments, part of it durable, its checkpoints written."""
    driver = Driver(VirtualMachine(seed), compact=compact, seed=seed)
    rnd = random.Random(seed)
    for action in ("append",) * 12 + ("append_transactional", "end_transaction", "append") + ("append",) * 6:
        getattr(driver, action)(rnd)
    while driver.log.segment_count < 4:
        driver.append(rnd)
    driver.log.update_high_watermark(driver.log.log_end_offset)
    driver.committed = driver.log.high_watermark
    driver.flush(rnd)
    for _ in range(2):
        driver.now += 1001
        for work in driver.manager.tick(driver.now):
            if not work.name.startswith("clean"):
                run_work(work)
            else:
                driver.manager.cleaner._stepping = False
    return driver, rnd


def roll(driver: Driver, rnd: random.Random) -> None:
    count = driver.log.segment_count
    while driver.log.segment_count == count:
        driver.append(rnd)


def truncate(driver: Driver, rnd: random.Random) -> None:
    driver.append(rnd)
    driver.log.update_high_watermark(driver.log.log_start_offset)
    driver.committed = 0
    driver.truncate(rnd)


def swap(driver: Driver, rnd: random.Random) -> None:
    cleanings = driver.manager.cleaner.statistics().cleanings
    driver.clean(rnd)
    assert driver.manager.cleaner.statistics().cleanings > cleanings, "nothing was cleaned"


def checkpoint(driver: Driver, rnd: random.Random) -> None:
    driver.append(rnd)
    driver.log.update_high_watermark(driver.log.log_end_offset)
    driver.flush(rnd)
    driver.now += 1001
    for work in driver.manager.tick(driver.now):
        run_work(work)


def retention(driver: Driver, rnd: random.Random) -> None:
    driver.now += 200_000
    for work in driver.manager.tick(driver.now):
        run_work(work)
    driver.now += 2000
    for work in driver.manager.tick(driver.now):
        run_work(work)


def restart_at(driver: Driver, rnd: random.Random) -> None:
    driver.restart_at(rnd)


def close(driver: Driver, rnd: random.Random) -> None:
    driver.manager.close(3)
    driver.machine.boot(power_lost=True)
    driver.start()


OPERATIONS = [
    (roll, False),
    (truncate, False),
    (swap, True),
    (checkpoint, False),
    (checkpoint, True),
    (retention, False),
    (restart_at, False),
    (close, False),
]


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize(("operation", "compact"), OPERATIONS, ids=[f"{op.__name__}-{c}" for op, c in OPERATIONS])
def test_crash_after_each_write(operation, compact: bool, power_lost: bool) -> None:
    crashes = 0
    for writes in range(1, WRITES_MAX):
        driver, rnd = prepare(compact, seed=writes % 3)
        floor = driver.durable_end
        driver.machine.arm(writes)
        try:
            operation(driver, rnd)
        except PowerLoss:
            crashes += 1
            if operation in (truncate, restart_at):
                floor = min(floor, driver.cut_to)
            driver.machine.boot(power_lost=power_lost)
            driver.start()
            driver._reconcile(floor, restarted=operation is restart_at)
            # The log goes on from there.
            driver.append(rnd)
            driver.check(rnd)
        else:
            driver.check(rnd)
            break
    else:
        pytest.fail(f"{operation.__name__} needed more than {WRITES_MAX} writes")
    assert crashes > 2
