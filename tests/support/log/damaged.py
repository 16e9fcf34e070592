"""Logs whose files a test damages: writes one, and gives its changed files to a new machine."""

from __future__ import annotations

import random

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.checkpoint import read_file
from support.log.model import Driver, VirtualMachine


def write_log(seed: int) -> Driver:
    """A log with transactions, epochs, several segments and a log start offset inside one of them; closed cleanly."""
    driver = Driver(VirtualMachine(seed), seed=seed)
    rnd = random.Random(seed)
    actions = ("append", "append_idempotent", "append_transactional", "end_transaction", "new_epoch", "append")
    while driver.log.storage.segments.count < 5:
        for action in actions:
            getattr(driver, action)(rnd)
    driver.log.update_high_watermark(driver.log.log_end_offset)
    driver.log.delete_records(driver.log.segments[0].base_offset + 3)
    driver.manager.close(7)
    return driver


def contents(driver: Driver) -> dict[str, bytes]:
    disk = driver.machine.disk
    return {path: read_file(disk, path) for path in driver.virtual_machine.virtual_disk.files("/data")}


def reborn(files: dict[str, bytes], seed: int) -> VirtualMachine:
    """A machine whose disk holds these files."""
    machine = VirtualMachine(seed)
    for path, content in files.items():
        parent = path.rpartition("/")[0]
        machine.disk.make_directories(parent)
        file = machine.disk.open(path, OpenMode.WRITE)
        file.append([content])
        file.sync()
        machine.disk.sync_directory(parent)
    machine.disk.sync_directory("/")
    return machine
