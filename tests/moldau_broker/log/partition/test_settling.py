"""Goal: settled records (``flush.messages``) are on the disk, whatever happens while a sync is under way.

Method: the works of one log, begun and ended by hand, so that appends, truncations, failures and the end of the process
fall between; power losses of a virtual disk.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch
from moldau_broker.log.config import LogConfig
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import TopicPartition, run_work
from moldau_jepsen.world.disk.disk import NodeDisk, VirtualFile
from support.log.lab import A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable


def opened(seed: int = 1, flush_messages: int = 1, **config: object):
    machine = VirtualMachine(seed)
    manager = open_manager(machine, ["/d1"], segment_bytes=100_000, flush_messages=flush_messages, **config)
    return machine, manager, create(manager)


def follow(log, base_offset: int, value: bytes = b"v", *, epoch: int = 1) -> None:
    data = encode_batch([(START_MS, b"k", value, ())], base_offset=base_offset, partition_leader_epoch=epoch)
    log.append_as_follower(memoryview(data), now_ms=START_MS)


def test_without_a_policy_all_that_is_written_is_settled() -> None:
    manager = open_manager(VirtualMachine(1), ["/d1"])
    log = create(manager)
    assert not log.config.bounds_unsynced
    for count in range(1, 5):
        put(log)
        assert log.is_settled
        assert (log.settled_end_offset, log.recovery_point) == (count, 0)


def test_nothing_settles_before_its_sync_or_is_lost_after_it() -> None:
    """No record is settled before its sync, and no settled record is lost with the power."""
    for seed in range(10):
        machine, manager, log = opened(seed)
        for number in range(5):
            for _ in range(4):
                log.stage_as_leader(memoryview(make_batch([(START_MS, b"", b"x")])), leader_epoch=1, now_ms=START_MS)
            log.flush_staged()
            assert (log.log_end_offset, log.settled_end_offset) == (4 * number + 4, 4 * number)
            run_work(manager.flush_work(log))
            assert log.is_settled
        put(log)
        machine.boot(power_lost=True)
        assert open_manager(machine, ["/d1"]).logs[A].log_end_offset >= 20


def test_fewer_than_m_acknowledged_records_are_not_on_the_disk() -> None:
    """L11, for M from 1 to 7: settled records above the recovery point are fewer than M, and only these are lost."""
    for bound in range(1, 8):
        for seed in range(6):
            machine, manager, log = opened(seed, bound)
            settled = 0
            for number in range(20):
                put(log, b"%d" % number, count=1 + number % 3)
                if not log.is_settled and number % 2:
                    run_work(manager.flush_work(log))
                assert log.settled_end_offset - log.recovery_point < bound
                assert log.settled_end_offset >= settled
                settled = log.settled_end_offset
            assert settled > 20
            machine.boot(power_lost=True)
            kept = open_manager(machine, ["/d1"]).logs[A].log_end_offset
            assert settled - kept < bound


def test_appends_during_one_sync_share_the_next() -> None:
    _, manager, log = opened()
    put(log)
    heard = []
    manager.flush_listener = heard.append
    first = manager.flush_work(log)
    for _ in range(50):
        put(log)
        assert manager.flush_work(log) is None, "one sync of a log at a time"
    run_work(first)
    assert (log.settled_end_offset, log.log_end_offset) == (1, 51)
    run_work(manager.flush_work(log))
    assert log.is_settled
    assert manager.flush_work(log) is None, "nothing is left to sync"
    assert heard == [A, A]


def test_a_flush_that_is_heard_of_has_ended() -> None:
    """The listener moves the high watermark by what is settled then, and may ask for the next sync."""
    _, manager, log = opened()
    heard = []
    manager.flush_listener = lambda key: heard.append((log.settled_end_offset, manager.is_flushing(log)))
    put(log)
    run_work(manager.flush_work(log))
    assert heard == [(1, False)]


@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_for_a_flush_hears_of_its_end_once(fails: bool) -> None:
    """Whether it succeeds or fails, and only of the flush that was under way."""
    _, manager, log = opened()
    put(log)
    work = manager.flush_work(log)
    ends: list[int] = []
    manager.at_flush_end(log, lambda: ends.append(1))
    manager.at_flush_end(log, lambda: ends.append(2))
    assert not ends
    if fails:
        work.failed(OSError("disk"))
    else:
        run_work(work)
        put(log)
        run_work(manager.flush_work(log))
    assert ends == [1, 2]
    assert log.failed == fails


def test_periodic_flushes_and_syncs_for_answers_take_turns() -> None:
    """The periodic flush and a sync for an answer do not run at the same time."""
    _, manager, log = opened()
    put(log)
    works = [work for work in manager.tick(START_MS, START_MS) if work.name.startswith("flush")]
    assert len(works) == 1
    assert manager.flush_work(log) is None
    run_work(works[0])
    assert log.is_settled
    put(log)
    work = manager.flush_work(log)
    assert not [other for other in manager.tick(START_MS + 1000, START_MS + 1000) if other.name.startswith("flush")]
    run_work(work)
    assert log.is_settled


def test_a_truncation_voids_the_sync_under_way() -> None:
    """A sync that began before a truncation does not settle the records that replace the cut ones."""
    machine, manager, log = opened(3)
    for offset in range(5):
        follow(log, offset)
    work = manager.flush_work(log)
    log.truncate_to(2)
    assert log.settled_end_offset <= 2
    work.run()
    for offset in range(2, 5):
        follow(log, offset, b"new", epoch=2)
    work.complete()
    assert log.settled_end_offset <= 2
    run_work(manager.flush_work(log))
    assert log.settled_end_offset == 5
    machine.boot(power_lost=True)
    rows = all_rows(open_manager(machine, ["/d1"]).logs[A])
    assert [row.value for row in rows] == [b"v"] * 2 + [b"new"] * 3


def test_records_grow_no_younger_by_a_void_sync() -> None:
    """``flush.ms`` counts on from when they were noticed: else a follower that is cut now and then syncs nothing."""
    _, _, log = opened(flush_messages=100, flush_ms=5_000)
    put(log)
    put(log)
    assert not log.storage.flush_due(START_MS)
    work = log.flush_work()
    work.run()
    log.truncate_to(1)
    work.complete()
    assert log.recovery_point == 0, "the sync was void"
    assert not log.storage.flush_due(START_MS + 4_999)
    assert log.storage.flush_due(START_MS + 5_000)


def test_a_restarted_log_is_settled_at_its_start_offset() -> None:
    _, manager, log = opened()
    follow(log, 0)
    work = manager.flush_work(log)
    log.truncate_fully_and_start_at(100, START_MS)
    assert (log.settled_end_offset, log.is_settled) == (100, True)
    run_work(work)
    follow(log, 100)
    assert log.settled_end_offset == 100


def test_a_failed_sync_settles_nothing_and_fails_the_directory() -> None:
    """A failed sync settles no record and takes the directory offline."""
    machine, manager, log = opened()
    put(log)
    work = manager.flush_work(log)
    machine.virtual_disk.profile.sync_error_probability = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        run_work(work)
    assert (log.settled_end_offset, manager.offline_directories) == (0, ["/d1"])
    assert manager.flush_work(log) is None, "a sync that failed is never tried again"


def test_an_unreported_sync_failure_is_not_retried() -> None:
    """The caller of the sync is cancelled. A second sync would succeed, because the kernel drops the error."""
    machine, manager, log = opened()
    put(log)
    work = manager.flush_work(log)
    machine.virtual_disk.profile.sync_error_probability = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        work.run()
    machine.virtual_disk.profile.sync_error_probability = 0.0
    with pytest.raises(LogStorageError) as caught:
        log.storage.seal()
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    manager.close()
    assert not machine.disk.exists("/d1/.kafka_cleanshutdown"), "what was lost must be looked for at the next start"


def test_the_next_process_syncs_what_a_failed_sync_left() -> None:
    """The kernel marks pages of a failed sync as written, so the next process must write them again."""
    for records in (1, 200):
        machine, manager, log = opened()
        put(log)
        run_work(manager.flush_work(log))
        for _ in range(records):
            put(log, b"x" * 100)
        work = manager.flush_work(log)
        machine.virtual_disk.profile.sync_error_probability = 1.0
        with pytest.raises(OSError, match="Input/output error"):
            run_work(work)
        machine.virtual_disk.profile.sync_error_probability = 0.0
        machine.boot(power_lost=False)
        manager = open_manager(machine, ["/d1"])
        log = manager.logs[A]
        assert log.log_end_offset == 1 + records, "the cache has it all"
        run_work(manager.flush_work(log))
        assert log.settled_end_offset == 1 + records
        machine.boot(power_lost=True)
        rows = all_rows(open_manager(machine, ["/d1"]).logs[A])
        assert [row.value for row in rows] == [b"v"] + [b"x" * 100] * records


def lost_after_a_retried_sync(seed: int) -> bool:
    """Returns whether a power loss loses records although a second try of their sync succeeded."""
    machine, manager, log = opened(seed)
    put(log, b"x" * 10_000)
    work = manager.flush_work(log)
    machine.virtual_disk.profile.sync_error_probability = 0.5
    run_work(work)
    machine.virtual_disk.profile.sync_error_probability = 0.0
    assert log.settled_end_offset == 1
    machine.boot(power_lost=True)
    return not all_rows(open_manager(machine, ["/d1"]).logs[A])


def test_a_log_that_tried_failed_syncs_again_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the rule is needed: without it, the virtual disk loses acknowledged records."""

    def stubborn(sync: Callable[..., None]) -> Callable[..., None]:
        def again(*arguments: object) -> None:
            while True:
                with suppress(OSError):
                    return sync(*arguments)

        return again

    for owner, name in ((VirtualFile, "sync"), (NodeDisk, "sync_directory")):
        monkeypatch.setattr(owner, name, stubborn(getattr(owner, name)))
    assert any(lost_after_a_retried_sync(seed) for seed in range(20))


def test_a_log_may_be_deleted_during_its_sync() -> None:
    _, manager, log = opened()
    other = create(manager, TopicPartition("b", 0))
    put(log)
    heard = []
    manager.flush_listener = heard.append
    work = manager.flush_work(log)
    manager.delete(A)
    run_work(work)
    again = create(manager)
    put(again)
    run_work(manager.flush_work(again))
    put(other)
    assert manager.offline_directories == []
    assert (again.settled_end_offset, heard) == (1, [A, A])


def test_a_changed_policy_holds_for_what_comes() -> None:
    _, manager, log = opened(flush_messages=LogConfig().flush_messages)
    put(log)
    manager.update_topic_config("a", LogConfig(flush_messages=1))
    assert log.settled_end_offset == 1, "what was acknowledged stays so"
    put(log)
    assert log.settled_end_offset == 1
    run_work(manager.flush_work(log))
    put(log)
    assert log.settled_end_offset == 2
    manager.update_topic_config("a", LogConfig())
    assert log.settled_end_offset == 3


def test_writes_of_a_killed_process_are_synced_before_they_count() -> None:
    """Records that a killed process wrote are synced before they count as settled."""
    machine, manager, log = opened()
    put(log)
    run_work(manager.flush_work(log))
    tick(manager, START_MS + 6000)
    put(log)
    machine.boot(power_lost=False)
    manager = open_manager(machine, ["/d1"], segment_bytes=100_000, flush_messages=1)
    log = manager.logs[A]
    assert (log.log_end_offset, log.settled_end_offset) == (2, 1)
    run_work(manager.flush_work(log))
    assert log.is_settled


def test_a_failed_sync_of_a_moved_log_wakes_its_waits() -> None:
    """The new log was synced with the same records already; they would wait until the next one is appended."""
    _, manager, log = opened()
    put(log)
    heard: list[TopicPartition] = []
    manager.flush_listener = heard.append
    work = manager.flush_work(log)
    assert work is not None
    manager.delete(A)
    work.failed(OSError("its files are closed"))
    assert (heard, manager.offline_directories) == ([A], [])
