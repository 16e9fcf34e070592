"""Goal: share groups read compacted logs, in which whole ranges of offsets have no record.

Method: a leader's share-partition over a log on a virtual disk; its batches have the gaps that a cleaner leaves.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch
from moldau.values import LeaderEpoch
from moldau_broker.server.share.core.share_partition import SharePartition
from moldau_broker.server.share.core.values import (
    Acknowledged,
    AcknowledgementBatch,
    AcknowledgeType,
    AcquiredRange,
    AcquireMode,
    ShareLimits,
)
from moldau_broker.server.share.led_partition import LedPartition, Wanted
from moldau_broker.server.share.persister import ShareKey
from moldau_broker.server.share.settings import ShareGroupSettings
from support.log.cleaner_lab import NOW, Lab

if TYPE_CHECKING:
    from moldau_broker.server.replicas.partition import Partition

LIMITS = ShareLimits(delivery_count_max=5, record_locks_max=2000, lock_duration_ms=30_000)
SETTINGS = ShareGroupSettings(limits=LIMITS, reads_committed=False, renew_allowed=True, reset="earliest")
OFFSETS = (0, 100, 1500)


def led_partition() -> LedPartition:
    log = Lab().log
    for offset in OFFSETS:
        data = encode_batch([(NOW, b"%d" % offset, b"v", ())], base_offset=offset, partition_leader_epoch=1)
        log.append_as_follower(memoryview(data), now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)
    log.begin_leader_epoch(LeaderEpoch(2))
    partition = cast("Partition", SimpleNamespace(log=log, replica=SimpleNamespace(high_watermark=log.log_end_offset)))
    core = SharePartition(LIMITS, leader_epoch=2, state_epoch=0, start_offset=0)
    return LedPartition(ShareKey("g", uuid.UUID(int=1), 0), partition, LeaderEpoch(2), core)


def take(led: LedPartition, member: str, most: int) -> tuple[tuple[AcquiredRange, ...], bool]:
    """Returns the ranges that a member acquires, and whether there are records with them."""
    wanted = Wanted(
        member=member,
        records_max=most,
        bytes_max=1 << 20,
        batch_size=500,
        mode=AcquireMode.BATCH_OPTIMIZED,
        first=True,
    )
    found = led.acquire(SETTINGS, wanted, NOW)
    assert found is not None
    return found.ranges, bool(found.records)


def stored(led: LedPartition, answer: Acknowledged) -> None:
    """The share coordinator has stored the changes, if there are any."""
    assert led.core is not None
    if answer.effects.persist is not None:
        led.core.persisted(ErrorCode.NONE)


def test_only_offsets_with_records_are_acquired() -> None:
    led = led_partition()
    assert take(led, "a", 50) == ((AcquiredRange(0, 0, 1),), True)
    assert take(led, "b", 50) == ((AcquiredRange(100, 100, 1),), True)
    assert take(led, "c", 50) == ((AcquiredRange(1500, 1500, 1),), True)


def test_a_hole_behind_the_record_of_another_member() -> None:
    """A member leaves; the offsets behind its record, and those behind that of the next member, have no records."""
    led = led_partition()
    take(led, "a", 50)
    take(led, "b", 51)
    assert led.core is not None
    stored(led, led.core.acknowledge("a", [AcknowledgementBatch(0, 0, [AcknowledgeType.ACCEPT])], now_ms=NOW))
    stored(led, led.core.release("a"))
    ranges, has_records = take(led, "c", 500)
    assert (ranges[-1].last, has_records) == (1500, True)
