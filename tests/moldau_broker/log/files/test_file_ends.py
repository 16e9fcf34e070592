"""Goal: readers of a log's files stop where they must, and what was cut off stays off.

Method: single files on a virtual disk.
"""

from __future__ import annotations

import pytest

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.batches import BatchReader
from moldau_broker.log.files.open_files import OpenFiles
from moldau_broker.log.files.transaction_index import AbortedEntry, TransactionIndex
from support.log.model import START_MS, VirtualMachine, make_batch

ENTRIES = [AbortedEntry(7, first, first + 3, first + 4) for first in (0, 10, 20)]


@pytest.mark.parametrize("rest", [1, 60, 61])
def test_a_batch_cut_by_the_end_is_reported(rest: int) -> None:
    machine = VirtualMachine(1)
    batch = bytes(make_batch([(START_MS, b"k", b"v")]))
    file = machine.disk.open("/x.log", OpenMode.WRITE)
    file.append([batch * 3])
    reader = BatchReader(file, 0, 2 * len(batch) + rest)
    assert len(list(reader)) == 2
    assert reader.position == 2 * len(batch)
    assert reader.problem is not None
    assert (f"{rest} bytes at the end are no batch header" == reader.problem) == (rest < 61)


@pytest.mark.parametrize("closed", [False, True])
def test_cut_off_transactions_stay_off_after_a_power_loss(closed: bool) -> None:
    """A file may be closed between a change and its sync."""
    machine = VirtualMachine(1)
    index = TransactionIndex(machine.disk, "/0.txnindex", 0, OpenFiles(machine.disk))
    for entry in ENTRIES:
        index.append(entry)
    index.sync()
    machine.disk.sync_directory("/")
    index.truncate_to_offset(ENTRIES[1].last_offset)
    if closed:
        index.close()
    index.sync()
    machine.boot(power_lost=True)
    assert TransactionIndex(machine.disk, "/0.txnindex", 0, OpenFiles(machine.disk)).entries() == ENTRIES[:1]
