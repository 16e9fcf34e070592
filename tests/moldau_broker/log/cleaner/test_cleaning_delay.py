"""Goal: a closed segment of a compacted log is cleaned soon after it is durable, and no crash loses a record.

Method: the log manager's own settings on virtual time, its works done as they are due, one tick a second; then power
losses after each write of a cleaning that had a checkpoint written for itself.
"""

from __future__ import annotations

import pytest

from moldau_broker.log.config import LogManagerSettings
from moldau_broker.log.directories.directory import CLEANER_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, read_offsets
from moldau_broker.log.values import TopicPartition, run_work
from support.log.cleaner_lab import Lab
from support.log.model import PARTITION, PowerLoss, all_rows

SETTINGS = LogManagerSettings(cleaner_dedupe_buffer_size=24 * 1000)


def run(lab: Lab, seconds: int) -> list[str]:
    """A broker's housekeeping: a tick a second, and the cleaner whenever it is due; returns the names of the works."""
    names = []
    end = lab.now + seconds * 1000
    while lab.now < end:
        works = lab.manager.tick(lab.now, lab.now)
        while works:
            names += [work.name for work in works]
            for work in works:
                run_work(work)
            works = lab.manager.cleaner_works(lab.now)
        lab.now = min(end, lab.now + 1000)
    return names


def checkpoints(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(RECOVERY_POINT_CHECKPOINT)]


def running() -> Lab:
    """A broker that has been running for 70 s, in which a log is created."""
    lab = Lab(settings=SETTINGS)
    run(lab, 70)
    return lab


def rewrite(lab: Lab, log=None) -> None:
    """Closes a segment of ten records of one key."""
    log = log or lab.log
    for number in range(10):
        lab.put(b"key", b"%d" % number, log)
    log.storage.roll(log.log_end_offset, lab.now)


def test_a_new_log_is_cleaned_within_twenty_seconds() -> None:
    lab = running()
    rewrite(lab)
    run(lab, 20)
    assert [row.value for row in all_rows(lab.log)] == [b"9"]
    assert lab.manager.directories[0].recovery_points.offsets[PARTITION] == 10


def test_only_what_is_synced_is_cleaned() -> None:
    """A segment that is closed and not synced stays as it is, however often the cleaner looks."""
    lab = running()
    rewrite(lab)
    for _ in range(40):
        lab.now += 1000
        for work in lab.manager.cleaner_works(lab.now):
            run_work(work)
    assert len(all_rows(lab.log)) == 10
    lab.log.flush()
    for _ in range(20):
        lab.now += 1000
        for work in lab.manager.cleaner_works(lab.now):
            run_work(work)
    assert len(all_rows(lab.log)) == 1


def test_no_checkpoint_without_something_to_clean() -> None:
    """Neither an idle log, nor one that is not dirty enough, nor one that is not compacted asks for a checkpoint."""
    lab = running()
    rewrite(lab)
    assert len(checkpoints(run(lab, 30))) == 1
    assert checkpoints(run(lab, 20)) == []
    for compact, ratio in ((False, 0.0), (True, 1.0)):
        other = Lab(settings=SETTINGS, compact=compact, delete=not compact, min_cleanable_dirty_ratio=ratio)
        run(other, 70)
        rewrite(other)
        assert checkpoints(run(other, 45)) == []


def test_many_dirty_logs_share_a_checkpoint() -> None:
    lab = running()
    logs = [lab.create(TopicPartition("many", number)) for number in range(20)]
    for log in logs:
        rewrite(lab, log)
    assert len(checkpoints(run(lab, 20))) == 1
    assert [len(all_rows(log)) for log in logs] == [1] * 20


def test_a_failed_checkpoint_takes_the_directory_offline() -> None:
    lab = running()
    rewrite(lab)
    lab.log.flush()
    lab.now += 60_000
    (work,) = lab.manager.cleaner_works(lab.now)
    assert work.name.endswith(RECOVERY_POINT_CHECKPOINT)
    lab.machine.virtual_disk.profile.write_error_probability = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        run_work(work)
    assert lab.manager.offline_directories == ["/data"]


@pytest.mark.parametrize("power_lost", [False, True])
def test_crashes_after_each_write_lose_nothing(power_lost: bool) -> None:
    """From the sync of the closed segment to the end of its cleaning; what was deleted stays deleted."""
    for writes in range(1, 200):
        lab = running()
        lab.put(b"gone", b"value")
        rewrite(lab)
        lab.put(b"gone", None)
        rewrite(lab)
        lab.log.flush()
        lab.machine.arm(writes)
        try:
            run(lab, 20)
        except PowerLoss:
            lab.restart(power_lost=power_lost)
            points = read_offsets(lab.machine.disk, f"/data/{RECOVERY_POINT_CHECKPOINT}")
            cleaned = read_offsets(lab.machine.disk, f"/data/{CLEANER_CHECKPOINT}")
            assert cleaned.get(PARTITION, 0) <= points.get(PARTITION, 0)
        else:
            break
        assert lab.log.log_end_offset == 22
        assert lab.values() == {b"gone": None, b"key": b"9"}
        rewrite(lab)
        run(lab, 40)
        assert lab.values() == {b"gone": None, b"key": b"9"}
        assert len(all_rows(lab.log)) == 2
    else:
        raise AssertionError("the cleaning never ends")
    assert writes > 10
