"""Goal: the watermarks of a log never lie beyond its end. Method: one virtual log, truncated, then written."""

from __future__ import annotations

from support.log.lab import create, open_manager, put
from support.log.model import START_MS, VirtualMachine, make_batch


def test_a_truncation_takes_all_watermarks_along() -> None:
    log = create(open_manager(VirtualMachine(1)))
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(memoryview(make_batch([(START_MS, b"k", value)])), leader_epoch=1, now_ms=START_MS)
    log.update_high_watermark(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)
    log.truncate_to(1)
    assert (log.high_watermark, log.last_stable_offset, log.watermarks.settled_end_offset) == (1, 1, 1)
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", b"d")])), leader_epoch=2, now_ms=START_MS)
    assert (log.high_watermark, log.log_end_offset) == (1, 2)


def test_transactions_that_ended_hold_nothing_back_after_a_cut() -> None:
    """A cut reads the producers from the batches again, with the ends that were replicated before."""
    log = create(open_manager(VirtualMachine(1)))
    put(log, producer=(7, 0, 0), transactional=True)
    log.append_end_transaction_marker(
        producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True, leader_epoch=1, now_ms=START_MS
    )
    put(log)
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", b"cut")])), leader_epoch=1, now_ms=START_MS)
    log.truncate_to(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)
