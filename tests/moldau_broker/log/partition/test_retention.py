"""Goal: retention deletes the oldest segments by age and by size, and only where ``cleanup.policy`` has ``delete``.

Method: a log of several segments on a virtual machine, and the count of those that have expired.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError
from moldau_broker.log.partition.retention import expired_count
from support.log.lab import create, open_manager, put
from support.log.model import START_MS, VirtualMachine

RECORDS = 60


def expired(
    now: int = START_MS, *, high_watermark: int = RECORDS, has_staged: bool = False, **config: Any
) -> tuple[int, int]:
    """Returns how many segments have expired, and how many there are."""
    log = create(open_manager(VirtualMachine(1), ["/d1"], **config))
    for number in range(RECORDS):
        put(log, b"%03d" % number * 20)
    log.flush()
    segments = log.storage.segments
    assert segments.count > 4
    return expired_count(log.storage, high_watermark, now, has_staged=has_staged), segments.count


@pytest.mark.parametrize(("policy", "expires"), [((False, True), True), ((True, True), True), ((True, False), False)])
@pytest.mark.parametrize("limit", ["retention_bytes", "retention_ms"])
def test_a_topic_that_is_only_compacted_expires_never(policy: tuple[bool, bool], expires: bool, limit: str) -> None:
    compact, delete = policy
    limits = {"retention_bytes": -1, "retention_ms": -1, limit: 0}
    count, segments = expired(START_MS + 1, compact=compact, delete=delete, **limits)
    assert count == (segments if expires else 0)


def test_nothing_expires_without_limits() -> None:
    assert expired(START_MS + 10**12, delete=True, retention_bytes=-1, retention_ms=-1)[0] == 0


def test_segments_up_to_the_high_watermark_expire() -> None:
    count, segments = expired(START_MS + 1, high_watermark=RECORDS // 2, delete=True, retention_ms=0)
    assert 0 < count < segments - 1


@pytest.mark.parametrize("has_staged", [False, True])
def test_the_active_segment_waits_for_its_staged_records(has_staged: bool) -> None:
    """They are younger than the limit, and would go with it."""
    count, segments = expired(START_MS + 1, delete=True, retention_ms=0, has_staged=has_staged)
    assert count == segments - has_staged


@pytest.mark.parametrize(("passed_ms", "expires"), [(1_000, False), (1_001, True)])
def test_a_segment_expires_once_it_is_older_than_the_limit(passed_ms: int, expires: bool) -> None:
    count, segments = expired(START_MS + passed_ms, delete=True, retention_ms=1_000, retention_bytes=-1)
    assert count == (segments if expires else 0)


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("compact", [False, True])
def test_only_compaction_alone_refuses_to_delete_records(compact: bool, delete: bool) -> None:
    """An empty ``cleanup.policy`` keeps all records until DeleteRecords names them, as in Kafka."""
    log = create(open_manager(VirtualMachine(1), ["/d1"], compact=compact, delete=delete, retention_bytes=0))
    for _ in range(RECORDS):
        put(log, b"v" * 60)
    if compact and not delete:
        with pytest.raises(LogError) as caught:
            log.delete_records(RECORDS - 1)
        assert (caught.value.code, log.log_start_offset) == (ErrorCode.POLICY_VIOLATION, 0)
    else:
        assert log.delete_records(RECORDS - 1) == RECORDS - 1
        assert log.apply_retention(START_MS) > 0, "segments below the log start go"


def test_hidden_segments_are_part_of_the_size() -> None:
    """Segments below the log start count towards ``retention.bytes`` until they go, and then no more.

    For each log start and each limit, retention deletes what the log start or the size alone would, whichever is more.
    """
    log = create(open_manager(VirtualMachine(1), ["/d1"], delete=True, retention_ms=-1))
    for number in range(RECORDS):
        put(log, b"%03d" % number * 20)
    segments = log.storage.segments.all
    sizes, ends = [each.size for each in segments], [each.base_offset for each in segments[1:]]
    assert len(sizes) > 4
    left = [sum(sizes[count:]) for count in range(len(sizes) + 1)]
    for start in range(RECORDS + 1):
        log.delete_records(start)
        by_start = sum(end <= start for end in ends)
        for limit in sorted({size + more for size in left for more in (-1, 0, 1)} - {-1}):
            log.update_config(replace(log.config, retention_bytes=limit))
            by_size = max((count for count, size in enumerate(left) if size >= limit), default=0)
            found = expired_count(log.storage, RECORDS, START_MS, has_staged=False)
            assert found == max(by_start, by_size), f"log start {start}, retention.bytes {limit}"
