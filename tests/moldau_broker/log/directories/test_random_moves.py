"""Goal: a log that was moved to another directory is the log that it was, whatever happened to it during the move.

Method: random histories of one log over two virtual directories: appends, transactions, new leader epochs, truncations,
restarts at other offsets, retention, cleaning, pieces of moves that begin and are cancelled, stops and power losses.
At the end the move is completed, and the moved log is compared with the log before, and again after a start.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import LogError
from moldau_broker.log.values import run_work
from support.log.lab import A, create, open_manager, tick
from support.log.model import START_MS, VirtualMachine, all_rows, committed_rows, make_batch
from support.proof import examples

if TYPE_CHECKING:
    from moldau_broker.log.partition.partition_log import PartitionLog

REFUSED = (ErrorCode.INVALID_TXN_STATE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
"""Answers to a producer whose earlier batches were truncated."""
OPERATIONS = {
    "append": 8,
    "write": 4,
    "end": 3,
    "elect": 2,
    "truncate": 1,
    "start_over": 1,
    "delete_records": 1,
    "roll": 1,
    "copy": 3,
    "move": 2,
    "clean": 1,
    "tick": 1,
    "boot": 1,
}


class History:
    """One log and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = VirtualMachine(seed)
        self.now = START_MS
        self.epoch = LeaderEpoch(1)
        compact = self.random.random() < 0.5
        self.config = {
            "segment_bytes": 600,
            "retention_ms": -1,
            "compact": compact,
            "delete": not compact,
            "min_cleanable_dirty_ratio": 0.0,
            "delete_retention_ms": 0,
        }
        self.boots = self.cleaned_to = 0
        self.open()

    @property
    def log(self) -> PartitionLog:
        return self.manager.logs[A]

    def open(self) -> None:
        self.boots += 1
        self.manager = open_manager(self.machine, now=self.now, **self.config)
        self.manager._store._random = random.Random(self.boots)  # names of directories differ from those of other runs
        if A not in self.manager.logs:
            create(self.manager, directory="/d1")
        self.elect()

    def row(self, value: bytes) -> tuple[int, bytes, bytes]:
        return self.now, b"k%d" % self.random.randrange(4), value

    def append(self) -> None:
        data = make_batch([self.row(b"v%d" % self.random.randrange(100)) for _ in range(self.random.randrange(1, 4))])
        self.log.append_as_leader(memoryview(data), leader_epoch=self.epoch, now_ms=self.now)

    def write(self) -> None:
        """Appends a batch of a transaction."""
        producer = self.random.randrange(3)
        known = self.log.producer_state.get(producer)
        sequence = known.last_sequence + 1 if known is not None and known.batches else 0
        data = make_batch([self.row(b"t%d" % sequence)], producer=(producer, 0, sequence), transactional=True)
        self.log.append_as_leader(memoryview(data), leader_epoch=self.epoch, now_ms=self.now)

    def end(self) -> None:
        """Ends the transaction of a producer."""
        self.log.append_end_transaction_marker(
            producer_id=self.random.randrange(3),
            producer_epoch=0,
            coordinator_epoch=0,
            commit=self.random.random() < 0.5,
            leader_epoch=self.epoch,
            now_ms=self.now,
        )

    def elect(self) -> None:
        self.epoch = LeaderEpoch(max(self.epoch, self.log.latest_epoch) + self.random.randrange(1, 3))
        self.log.begin_leader_epoch(self.epoch)

    def truncate(self) -> None:
        """Cuts the log; after an unclean election below the high watermark, but not among records that were cleaned."""
        lowest = self.log.log_start_offset if self.random.random() < 0.3 else self.log.high_watermark
        lowest = min(max(lowest, self.cleaned_to), self.log.log_end_offset)
        self.log.truncate_to(self.random.randint(lowest, self.log.log_end_offset))
        self.elect()

    def start_over(self) -> None:
        self.cleaned_to = 0
        start = self.random.randint(self.log.log_start_offset - 8, self.log.log_end_offset + 5)
        self.log.truncate_fully_and_start_at(max(0, start), self.now)
        self.elect()

    def delete_records(self) -> None:
        if self.config["compact"]:
            return
        self.log.update_high_watermark(self.random.randint(self.log.high_watermark, self.log.log_end_offset))
        self.log.increment_log_start_offset(self.random.randint(self.log.log_start_offset, self.log.high_watermark))

    def roll(self) -> None:
        self.log.storage.roll(self.log.log_end_offset, self.now)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.apply_retention(self.now)

    def move(self) -> None:
        self.manager.alter_replica_log_dir(A, self.random.choice(["/d1", "/d2"]), self.now)

    def copy(self) -> bool:
        if A not in self.manager.future_logs:
            return False
        return self.manager.copy_to_future(A, self.now, self.random.choice([1, 300, 5000]))

    def clean(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.flush()
        self.cleaned_to = self.log.log_end_offset if self.config["compact"] else 0
        directory = self.manager._store.directories[self.log.parent_directory]
        directory.recovery_points.write_now({A: self.log.recovery_point})
        works = True
        while works:
            self.now += 20_000
            works = self.manager.cleaner_works(self.now)
            for work in works:
                run_work(work)

    def tick(self) -> None:
        self.now += 5000
        tick(self.manager, self.now)

    def boot(self) -> None:
        is_lost = self.random.random() < 0.5
        if not is_lost:
            self.manager.close()
        self.machine.boot(power_lost=is_lost)
        self.open()

    def run(self, steps: int) -> None:
        names = self.random.choices(list(OPERATIONS), list(OPERATIONS.values()), k=steps)
        for name in names:
            try:
                getattr(self, name)()
            except LogError as error:
                if error.code not in REFUSED:
                    raise


def seen(log: PartitionLog) -> dict[str, object]:
    """Returns what readers and followers see of a log.

    A transaction counts only if its first record is there: of another one, the copy knows what is left.
    """
    state: dict[str, object] = {
        "offsets": (log.log_start_offset, log.high_watermark, log.log_end_offset),
        "epochs": tuple(log.epochs.entries),
        "rows": all_rows(log),
    }
    starts = [each.current_transaction_start_offset for each in log.producer_state.describe()]
    if all(start < 0 or start >= log.log_start_offset for start in starts):
        state |= {"stable": log.last_stable_offset, "committed": committed_rows(log)}
    return state


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples(100)))
def test_a_moved_log_is_the_log_that_it_was(seed: int) -> None:
    history = History(seed)
    history.run(history.random.randrange(20, 80))
    if A not in history.manager.future_logs:
        history.manager.alter_replica_log_dir(A, "/d2" if history.log.parent_directory == "/d1" else "/d1", history.now)
    while not history.copy():
        pass
    history.log.update_high_watermark(history.log.log_end_offset)  # a start forgets which markers it was below
    before = seen(history.log)
    source = history.log.parent_directory
    moved = history.manager.replace_current_with_future(A)
    assert moved.parent_directory != source
    after = seen(moved)
    assert {key: after[key] for key in before} == before
    history.manager.close()
    history.machine.boot(power_lost=False)
    again = seen(open_manager(history.machine, now=history.now, **history.config).logs[A])
    del before["epochs"]  # a start forgets the last one, if it has no records
    assert {key: again[key] for key in before} == before
