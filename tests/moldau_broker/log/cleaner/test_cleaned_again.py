"""Goal: records appended after a truncation count as dirty, so that no deleted key comes back.

Method: logs over a virtual disk that are cleaned, cut or started over, filled past their old ends, and cleaned again,
in the same run and in the next one. The key is deleted after the cut, so a cleaner that counted this part as clean
would drop the tombstone and keep the value.
"""

from __future__ import annotations

import pytest

from moldau_broker.log.directories.directory import CLEANER_CHECKPOINT, read_offsets
from moldau_broker.log.values import run_work
from support.log.cleaner_lab import DAY, Lab
from support.log.model import PARTITION


def cut(lab: Lab) -> None:
    lab.log.truncate_to(lab.log.log_start_offset + 1)


def restart_later(lab: Lab) -> None:
    lab.log.truncate_fully_and_start_at(lab.log.log_start_offset + 1, lab.now)


def cleaned() -> Lab:
    """A log of 400 records that is clean up to its active segment, and remembers that."""
    lab = Lab(delete_retention_ms=DAY)
    for number in range(400):
        lab.put(b"old%d" % (number % 50), b"v")
    lab.fill()
    lab.clean()
    lab.tick()
    assert lab.manager.directories[0].cleaner_offsets.offsets == {PARTITION: 400}
    return lab


def fill_past_the_old_end(lab: Lab) -> None:
    lab.put(b"gone", b"value")
    lab.put(b"gone", None)
    for number in range(600):
        lab.put(b"new%d" % number, b"v")
    lab.fill()


def clean_twice(lab: Lab) -> None:
    """The second time after the tombstone's retention."""
    for _ in range(2):
        lab.clean()
        lab.now += 2 * DAY
        lab.put(b"another", b"v")
        lab.fill()
    lab.clean()


@pytest.mark.parametrize("change", [cut, restart_later])
@pytest.mark.parametrize("runs", ["the same run", "after a stop", "after a power loss", "cut, then a power loss"])
def test_no_deleted_key_comes_back_behind_a_cut(change, runs: str) -> None:
    lab = cleaned()
    change(lab)
    if runs == "cut, then a power loss":
        lab.restart(power_lost=True)
    fill_past_the_old_end(lab)
    if runs in ("after a stop", "after a power loss"):
        lab.tick()
        lab.restart(power_lost=runs == "after a power loss")
    assert lab.log.log_end_offset > 600
    clean_twice(lab)
    assert b"gone" not in lab.values()


def test_an_abandoned_cleaning_leaves_the_log_dirty() -> None:
    """A cleaning that is abandoned leaves the log as dirty as it was."""
    lab = cleaned()
    cut(lab)
    fill_past_the_old_end(lab)
    lab.now += 1
    (step,) = lab.manager.cleaner_works(lab.now)
    lab.log.truncate_to(lab.log.log_end_offset - 1)  # far above what is dirty: the cleaning is void
    run_work(step)
    lab.fill()
    lab.tick()
    clean_twice(lab)
    assert b"gone" not in lab.values()


def test_the_checkpoint_is_lowered_before_a_cut_log_grows() -> None:
    lab = cleaned()
    cut(lab)
    on_disk = read_offsets(lab.machine.disk, f"/data/{CLEANER_CHECKPOINT}")
    assert on_disk[PARTITION] <= lab.log.log_end_offset
