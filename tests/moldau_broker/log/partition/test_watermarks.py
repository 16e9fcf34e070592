"""Goal: the watermarks of a log never lie beyond its end. Method: one virtual log, truncated, then written."""

from __future__ import annotations

from support.log.lab import create, open_manager
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
