"""Goal: what a broker believes of a partition's remote segments is never older than its own changes, or its own log.

Method: listings whose pages were taken before, during or after copies and deletions; a log that is truncated.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.runtime.ports.objects import ObjectStoreError, StoredObject
from moldau_broker.remote_log.core.names import AUXILIARY, Listing, RemoteSegment
from moldau_broker.server.remote_log.remote_partition import RemotePartition, RemoteRole

OLD, NEW = (RemoteSegment(base, base + 9, 0, 5, False, UUID(int=base), 100) for base in (0, 10))


def remote_partition() -> RemotePartition:
    log = SimpleNamespace(
        storage=SimpleNamespace(segments=SimpleNamespace(generation=0)),
        epochs=SimpleNamespace(epoch_for_offset=lambda offset: 0),
        log_end_offset=100,
    )
    partition: Any = SimpleNamespace(log=log, replica=SimpleNamespace(state=SimpleNamespace(leader_epoch=0)))
    return RemotePartition(partition, "c/t/0/", RemoteRole.LEADER)


def at(now_ms: float) -> Any:
    return SimpleNamespace(monotonic_ms=lambda: now_ms, wall_ms=lambda: round(now_ms))


def list_now(remote: RemotePartition, *segments: RemoteSegment, unfinished: list[StoredObject] | None = None) -> None:
    remote.begin_listing(at(1.0))
    remote.end_listing(Listing(list(segments), unfinished or []))


@pytest.mark.parametrize("shown", [(), (NEW,)])
def test_a_copy_during_a_listing_stays_known(shown: tuple[RemoteSegment, ...]) -> None:
    remote = remote_partition()
    list_now(remote, OLD)
    remote.begin_listing(at(2.0))
    remote.copied(NEW)
    remote.end_listing(Listing([OLD, *shown], []))
    assert remote.log is not None
    assert remote.log.segments == [OLD, NEW]


@pytest.mark.parametrize("shown", [(), (OLD,)])
def test_a_deletion_during_a_listing_stays_known(shown: tuple[RemoteSegment, ...]) -> None:
    remote = remote_partition()
    list_now(remote, OLD, NEW)
    remote.begin_listing(at(2.0))
    remote.deleted(OLD)
    remote.end_listing(Listing([*shown, NEW], []))
    assert remote.log is not None
    assert remote.log.segments == [NEW]


def test_a_copy_may_be_listed_before_it_is_known() -> None:
    remote = remote_partition()
    list_now(remote, OLD, NEW)
    remote.copied(NEW)
    assert remote.log is not None
    assert remote.log.segments == [OLD, NEW]


def test_a_deletion_may_be_planned_by_an_older_listing() -> None:
    remote = remote_partition()
    half = StoredObject(f"c/t/0/{NEW.name}{AUXILIARY}", 9, 0)
    list_now(remote, OLD, unfinished=[half])
    list_now(remote)
    remote.deleted(OLD)
    remote.removed(half)
    assert remote.log is not None
    assert remote.log.segments == []


def test_a_finished_copy_is_no_leftover() -> None:
    """A listing during the copy has shown its first object."""
    remote = remote_partition()
    half = StoredObject(f"c/t/0/{NEW.name}{AUXILIARY}", 9, 0)
    list_now(remote, OLD, unfinished=[half])
    remote.copied(NEW)
    assert remote.log is not None
    assert remote.log.unfinished == []


def test_the_age_of_a_leftover_counts_from_its_first_listing() -> None:
    remote = remote_partition()
    half = StoredObject(f"c/t/0/{NEW.name}{AUXILIARY}", 9, 0)
    list_now(remote, unfinished=[half])
    remote.begin_listing(at(50.0))
    remote.end_listing(Listing([], [half]))
    assert remote.unfinished_since == {half.name: 1.0}


def test_a_truncation_ends_the_knowledge() -> None:
    """Segments that were the log's own may hold records that it has lost."""
    remote = remote_partition()
    list_now(remote, OLD)
    assert remote.listed_ms == 1.0
    remote.partition.log.storage.segments.generation += 1
    assert (remote.log, remote.listed_ms) == (None, None)
    remote.copied(NEW)
    remote.deleted(OLD)
    list_now(remote, OLD, NEW)
    assert remote.log is not None
    assert remote.log.segments == [OLD, NEW]


def test_a_failed_listing_leaves_what_was_known() -> None:
    remote = remote_partition()
    list_now(remote, OLD)
    listing = remote.begin_listing(at(2.0))
    remote.end_listing(ObjectStoreError("away"))
    assert isinstance(listing.error, ObjectStoreError)
    assert remote.log is not None
    assert remote.log.segments == [OLD]


def test_a_segment_above_the_end_of_the_log_is_not_its_own() -> None:
    """A follower of a leader that lost the record at offset 19 may get another one there."""
    remote = remote_partition()
    log: Any = remote.partition.log
    log.log_end_offset = 19
    list_now(remote, OLD, NEW)
    assert remote.log is not None
    assert (remote.log.segments, remote.log.foreign) == ([OLD], [NEW])
