"""Goal: records appended after a truncation count as dirty, so that no deleted key comes back.

Method: logs over a virtual disk that are cleaned, cut or started over, filled past their old ends, and cleaned again,
in the same run and in the next one. The key is deleted after the cut, so a cleaner that counted this part as clean
would drop the tombstone and keep the value.
"""

from __future__ import annotations

import pytest

from moldau.records import set_base_offset
from moldau.values import LeaderEpoch
from moldau_broker.log.directories.directory import CLEANER_CHECKPOINT, read_offsets
from moldau_broker.log.values import TopicPartition, run_work
from support.log.cleaner_lab import DAY, Lab
from support.log.model import PARTITION, make_batch
from support.proof import proof_beyond


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


@pytest.mark.parametrize("change", proof_beyond(1, [cut, restart_later]))
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


def restart_earlier(lab: Lab) -> None:
    lab.log.truncate_fully_and_start_at(lab.log.log_start_offset, lab.now)


def restart_within_a_batch(lab: Lab) -> None:
    """The first batch from the leader begins below the log start offset of the empty log."""
    lab.log.truncate_fully_and_start_at(lab.log.log_start_offset + 2, lab.now)
    data = bytearray(make_batch([(lab.now, b"other", b"v")] * 2))
    set_base_offset(data, 0, lab.log.log_end_offset - 1)
    lab.log.append_as_follower(memoryview(data), now_ms=lab.now)


@pytest.mark.parametrize("change", [cut, restart_later, restart_earlier, restart_within_a_batch])
def test_records_that_follow_a_change_are_compacted(change) -> None:
    """A log is cut, or starts over, below its clean offset: the records that take the place of others are dirty."""
    lab = Lab()
    for number in range(9):
        lab.put(b"old%d" % number, b"v")
    lab.fill()
    lab.clean()
    change(lab)
    for _ in range(3):
        lab.put(b"twice", b"v")
    assert lab.log.log_end_offset < 9, "the story needs repeated keys below the former clean offset"
    while lab.log.log_end_offset < 20:
        lab.put(b"new%d" % lab.log.log_end_offset, b"v")
    lab.fill()
    lab.clean()
    assert [row.key for row in lab.rows()].count(b"twice") == 1


def test_the_checkpoint_forgets_deleted_topics() -> None:
    """The names of all compacted topics that there ever were stayed in the file and in memory."""
    lab = cleaned()
    lab.manager.delete(PARTITION)
    other = TopicPartition("other", 0)
    lab.log = lab.create(other)
    fill_past_the_old_end(lab)
    lab.clean()
    lab.tick()
    assert list(read_offsets(lab.machine.disk, f"/data/{CLEANER_CHECKPOINT}")) == [other]


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


@pytest.mark.parametrize("kept", proof_beyond(1, [3, 500]))
def test_the_lowest_of_several_cuts_counts(kept: int) -> None:
    """A log whose leaders change often is cut again before it is cleaned."""
    lab = cleaned()
    cut(lab)
    start = lab.log.log_end_offset
    fill_past_the_old_end(lab)
    lab.log.truncate_to(start + kept)  # behind the value and its tombstone
    for number in range(600):
        lab.put(b"newer%d" % number, b"v")
    lab.fill()
    clean_twice(lab)
    assert b"gone" not in lab.values()


@pytest.mark.parametrize("change", [cut, restart_later])
def test_the_checkpoint_is_lowered_before_a_changed_log_grows(change) -> None:
    lab = Lab()
    for _ in range(3):
        lab.put(b"k", b"v")
    lab.fill()
    lab.manager.directories[0].cleaner_offsets.write_now({PARTITION: 3})
    change(lab)
    on_disk = read_offsets(lab.machine.disk, f"/data/{CLEANER_CHECKPOINT}")
    assert on_disk[PARTITION] <= lab.log.log_end_offset


@pytest.mark.parametrize("written", ["a deleted key", "an aborted transaction"])
def test_a_slow_move_misses_no_tombstone_and_no_marker(written: str) -> None:
    """A move takes longer than ``delete.retention.ms``: the copy has records whose removal it has yet to read.

    A deleted key came back with the moved log, and readers of committed records saw those of an aborted transaction.
    """
    lab = Lab(delete_retention_ms=DAY, directories=("/d1", "/d2"))
    if written == "a deleted key":
        lab.put(b"gone", b"value")
    else:
        lab.begin(7, {b"gone": b"value"})
    lab.put(b"other", b"v" * 100)
    lab.manager.alter_replica_log_dir(PARTITION, "/d2", lab.now)
    assert not lab.manager.copy_to_future(PARTITION, lab.now, 1), "the story needs a move that is not over"
    if written == "a deleted key":
        lab.put(b"gone", None)
    else:
        lab.end(7, commit=False)
        lab.transaction(7, {b"later": b"value"}, commit=True)
    lab.fill()
    clean_twice(lab)
    while not lab.manager.copy_to_future(PARTITION, lab.now):
        pass
    lab.log = lab.manager.replace_current_with_future(PARTITION)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert lab.log.last_stable_offset == lab.log.log_end_offset
    assert lab.committed().get(b"gone") is None
    lab.manager.directories[1].recovery_points.write_now({PARTITION: lab.log.recovery_point})
    clean_twice(lab)
    assert b"gone" not in lab.values(), "the moved log is cleaned again"


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_moved_log_knows_where_its_cleaned_epochs_began(power_lost: bool) -> None:
    """The first records of an epoch are cleaned away; a follower with records of the former epoch must truncate there.

    To the moved log, the former epoch ended at the first record that was left.
    """
    lab = Lab(directories=("/d1", "/d2"))
    lab.put(b"a", b"first")  # all of epoch 1
    for value in (b"old", b"old", b"new"):
        data = make_batch([(lab.now, b"b", value)])
        lab.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(3), now_ms=lab.now)
        lab.log.update_high_watermark(lab.log.log_end_offset)
    lab.fill()
    lab.clean()
    assert [row.offset for row in lab.rows()] == [0, 3]
    ends = [lab.log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3)]
    lab.manager.alter_replica_log_dir(PARTITION, "/d2", lab.now)
    while not lab.manager.copy_to_future(PARTITION, lab.now):
        pass
    lab.log = lab.manager.replace_current_with_future(PARTITION)
    assert [lab.log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3)] == ends
    lab.manager.directories[1].recovery_points.write_now({PARTITION: lab.log.recovery_point})
    lab.restart(power_lost=power_lost)
    assert [lab.log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3)] == ends
