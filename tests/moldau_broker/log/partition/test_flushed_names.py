"""Goal: what a flush has covered survives a loss of power, whatever happened to the log and its process before.

Method: all short histories of appends, rolls, flushes that take their time and kills of the process, each followed by
an append, a flush and a loss of power, and some with a cut. Only the kernel holds what was not synced, so a new process
must not trust it. Each append is a transaction that aborts. In half of the histories the recovery point is checkpointed
before the loss of power: what lies below is not read again.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING

import pytest

from moldau.values import LeaderEpoch
from moldau_broker.log.values import run_work
from support.log.lab import A, create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows
from support.proof import proof_beyond

if TYPE_CHECKING:
    from moldau_broker.log.files.transaction_index import AbortedEntry
    from moldau_broker.log.values import Work

STEPS = ("append", "roll", "begin", "end", "kill")
BATCHES_OF_APPEND = 2
"""A record, and the marker of its transaction."""
SEEDS = 12
"""A loss of power leaves some of the unsynced writes: each seed leaves others."""


class History:
    """A log, the process that holds it, and a flush that is under way."""

    def __init__(self, seed: int) -> None:
        self.machine = VirtualMachine(seed)
        self.manager = open_manager(self.machine, ["/d1"])
        self.log = create(self.manager)
        self.flush: Work | None = None

    def step(self, name: str) -> None:
        if name == "append":
            self.append()
        elif name == "roll":
            self.log.storage.roll(self.log.log_end_offset, START_MS)
        elif name == "cut":
            self.log.truncate_to(max(0, self.log.log_end_offset - BATCHES_OF_APPEND))
        elif name == "begin":
            self.end()
            self.flush = self.log.flush_work()
            if self.flush is not None:
                self.flush.run()
        elif name == "end":
            self.end()
        else:
            self.boot(power_lost=False)

    def append(self) -> None:
        number = self.log.log_end_offset
        put(self.log, producer=(7, number, 0), transactional=True)
        self.log.append_end_transaction_marker(
            producer_id=7,
            producer_epoch=number,
            coordinator_epoch=0,
            commit=False,
            leader_epoch=LeaderEpoch(1),
            now_ms=START_MS,
        )

    def aborted(self) -> list[AbortedEntry]:
        return [entry for segment in self.log.segments for entry in segment.aborted_entries()]

    def checkpoint(self) -> None:
        self.manager.directories[0].recovery_points.write_now({A: self.log.recovery_point})

    def end(self) -> None:
        if self.flush is not None:
            self.flush.complete()
            self.flush = None

    def boot(self, *, power_lost: bool) -> None:
        for directory in self.manager.directories:
            directory.release()
        self.machine.boot(power_lost=power_lost)
        self.manager = open_manager(self.machine, ["/d1"])
        self.log, self.flush = create(self.manager), None
        assert self.manager.logs[A] is self.log


def check(seed: int, steps: tuple[str, ...]) -> None:
    """The log is durable before the history, so that only the history itself can leave what is not."""
    history = History(seed)
    history.append()
    history.log.flush()
    for step in steps:
        history.step(step)
    history.end()
    while (work := history.log.flush_work()) is not None:
        run_work(work)
    flushed, aborted = history.log.log_end_offset, history.aborted()
    assert history.log.recovery_point == flushed
    if seed % 2:
        history.checkpoint()
    history.boot(power_lost=True)
    history.log.update_high_watermark(flushed)
    assert [row.offset for row in all_rows(history.log)] == list(range(flushed)), f"seed {seed}: {steps}"
    assert history.aborted() == aborted, f"seed {seed}: {steps}"


@pytest.mark.parametrize("seed", proof_beyond(4, range(SEEDS)))
def test_flushed_records_survive_a_power_loss(seed: int) -> None:
    for steps in product(STEPS, repeat=3):
        check(seed, (*steps, "append"))


@pytest.mark.parametrize("seed", proof_beyond(4, range(SEEDS)))
def test_a_segment_that_was_cut_is_synced_again(seed: int) -> None:
    """A flush that a cut has made void says nothing of the segments that it has synced: they have other records now."""
    for steps in permutations(("roll", "begin", "cut", "append")):
        check(seed, ("append", *steps, "append", "end", "roll"))
