"""Goal: what a broker believes of a partition's remote segments is never older than its own changes, or its own log.

Method: listings whose pages were taken before, during or after copies and deletions; a log that is truncated.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.runtime.ports.objects import ObjectStoreError, StoredObject
from moldau_broker.remote_log.core.names import AUXILIARY, DeletionProof, Listing, RemoteSegment
from moldau_broker.server.remote_log.remote_partition import (
    NO_STATISTICS,
    Lag,
    RemotePartition,
    RemoteRole,
    RemoteStatistics,
)

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
    remote.removed(StoredObject(f"c/t/0/{NEW.name}{AUXILIARY}", 9, 0))
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


def test_counts_of_a_partition() -> None:
    remote = remote_partition()
    log: Any = remote.partition.log
    log.log_start_offset, log.local_log_start_offset = 0, 20
    assert remote.statistics() == NO_STATISTICS  # nothing is known before the first listing
    inner = RemoteSegment(3, 7, 0, 5, False, UUID(int=3), 50)
    list_now(remote, OLD, inner, NEW)
    remote.copy_lag = Lag.of([OLD, NEW, inner]).without([NEW])
    remote.delete_lag = Lag.of([inner])
    expected = RemoteStatistics(2, 150, 1, 50, segments=3, size_bytes=200, damaged=0)
    assert remote.statistics() == expected
    remote.damaged_offset = 25
    assert remote.statistics() == expected._replace(damaged=1)
    remote.damaged_offset = None
    log.local_log_start_offset = 21
    assert remote.statistics() == expected._replace(damaged=1)
    assert expected.plus(expected) == RemoteStatistics(4, 300, 2, 100, 6, 400, 0)


def test_a_role_lasts_as_long_as_its_leader_epoch() -> None:
    remote = remote_partition()
    state: Any = remote.partition.replica.state
    assert (remote.is_still(RemoteRole.LEADER), remote.is_still(RemoteRole.FOLLOWER)) == (True, False)
    state.leader_epoch = 1
    assert (remote.is_still(RemoteRole.LEADER), remote.is_still(RemoteRole.FOLLOWER)) == (False, False)


def test_proofs_are_known_once_and_in_order_until_they_go() -> None:
    remote = remote_partition()
    first, last = DeletionProof(10, 0), DeletionProof(20, 0)
    remote.proved(first)  # before the first listing nothing is kept
    remote.superseded(first)
    list_now(remote)
    for proof in (last, first, last):
        remote.proved(proof)
    assert remote.log is not None
    assert remote.log.proofs == [first, last]
    remote.superseded(first)
    remote.superseded(first)
    assert remote.log.proofs == [last]


def test_a_listing_forgets_the_changes_before_it_and_ends() -> None:
    remote = remote_partition()
    list_now(remote, OLD)
    remote.copied(NEW)
    listing = remote.begin_listing(at(7.0))
    assert (listing.begun_ms, listing.begun_wall_ms, listing.done.is_set()) == (7.0, 7, False)
    with pytest.raises(AssertionError, match="one listing at a time"):
        remote.begin_listing(at(8.0))
    remote.end_listing(Listing([OLD], []))
    assert listing.done.is_set()
    assert (remote.listing, remote.listed_ms) == (None, 7.0)
    assert remote.log is not None
    assert (remote.log.segments, remote.log.listed_ms) == ([OLD], 7)
    remote.begin_listing(at(8.0))
    remote.deleted(OLD)
    remote.end_listing(ObjectStoreError("away"))
    list_now(remote, OLD)  # another broker may have copied it under the same name
    assert remote.log.segments == [OLD]
    remote.distrust()
    assert remote.listed_ms is None


def test_a_removed_leftover_and_a_known_foreign_segment() -> None:
    remote = remote_partition()
    half, other = (StoredObject(f"c/t/0/{each.name}{AUXILIARY}", 9, 0) for each in (NEW, OLD))
    foreign = NEW._replace(last_epoch=7)
    list_now(remote, OLD, foreign, unfinished=[half, other])
    assert remote.log is not None
    remote.removed(half)
    assert remote.log.unfinished == [other]
    remote.copied(foreign)
    assert (remote.log.segments, remote.log.foreign) == ([OLD], [foreign])
    remote.deleted(foreign)
    assert remote.log.foreign == []
