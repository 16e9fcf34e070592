"""Goal: fetch sessions follow the rules of KIP-227.

Method: each row of the table in ``fetch_session``, eviction, and a client that follows the rules against a full-fetch
model.
"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch
from moldau_broker.replication.fetch_session import (
    FetchContext,
    FetchPartition,
    FetchSession,
    FetchSessionCache,
    next_epoch,
)

REQUESTED = ("fetch_offset", "max_bytes", "current_leader_epoch", "last_fetched_epoch", "log_start_offset")
"""The fields of a partition that each request states."""


def wanted(partition: int, offset: int = 0, topic: bytes = b"t") -> FetchPartition:
    return FetchPartition(topic, partition, offset, 1000)


def fetch(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    partitions: list[FetchPartition],
    forgotten: list[int] | None = None,
    *,
    now_ms: float = 0,
    fresh_id: int = 77,
    privileged: bool = False,
    ids: bool = False,
) -> FetchContext:
    return cache.open(
        session_id,
        epoch,
        partitions,
        [(b"t", index) for index in forgotten or []],
        privileged=privileged,
        uses_topic_ids=ids,
        now_ms=now_ms,
        fresh_id=fresh_id,
    )


def test_a_fetch_without_session_leaves_none() -> None:
    cache = FetchSessionCache(slots_max=10)
    context = fetch(cache, 0, -1, [wanted(0)])
    assert (context.error, context.session_id, context.incremental) == (ErrorCode.NONE, 0, False)
    assert len(cache) == 0


def test_open_update_forget_and_close() -> None:
    cache = FetchSessionCache(slots_max=10)
    assert fetch(cache, 0, 0, [wanted(0), wanted(1)]).session_id == 77
    context = fetch(cache, 77, 1, [wanted(1, 5), wanted(2)])
    assert context.incremental
    assert [(p.partition, p.fetch_offset) for p in context.partitions] == [(0, 0), (1, 5), (2, 0)]
    context = fetch(cache, 77, 2, [], [0])
    assert [p.partition for p in context.partitions] == [1, 2]
    assert cache.partition_count == 2
    assert fetch(cache, 77, -1, [wanted(4)]).session_id == 0
    assert (len(cache), cache.partition_count) == (0, 0)


def test_wrong_epochs_and_session_ids_are_refused() -> None:
    """Wrong epochs, unknown session ids, and a mix of topic ids and names in a session are refused."""
    cache = FetchSessionCache(slots_max=10)
    fetch(cache, 0, 0, [wanted(0)])
    assert fetch(cache, 77, 2, []).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert fetch(cache, 77, 1, [], ids=True).error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert fetch(cache, 5, 1, []).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(cache, 77, 1, []).error is ErrorCode.NONE
    assert fetch(cache, 77, 1, []).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH, "an epoch is served once"


def test_a_full_fetch_replaces_the_session() -> None:
    cache = FetchSessionCache(slots_max=10)
    fetch(cache, 0, 0, [wanted(0)])
    assert fetch(cache, 77, 0, [wanted(1)], fresh_id=78).session_id == 78
    assert fetch(cache, 77, 1, []).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_ends() -> None:
    cache = FetchSessionCache(slots_max=10)
    fetch(cache, 0, 0, [wanted(0)])
    assert fetch(cache, 77, 1, [], [0]).session_id == 0
    assert len(cache) == 0


def test_an_id_in_use_is_not_given_twice() -> None:
    cache = FetchSessionCache(slots_max=10)
    assert fetch(cache, 0, 0, [wanted(0)]).session_id == 77
    assert fetch(cache, 0, 0, [wanted(0)]).session_id == 0


def test_a_full_cache_keeps_the_young_and_drops_the_stale() -> None:
    cache = FetchSessionCache(slots_max=1, eviction_ms=100)
    fetch(cache, 0, 0, [wanted(0)], fresh_id=1)
    assert fetch(cache, 0, 0, [wanted(0)], fresh_id=2, now_ms=100).session_id == 0
    assert fetch(cache, 0, 0, [wanted(0)], fresh_id=3, now_ms=101).session_id == 3
    assert fetch(cache, 1, 1, [], now_ms=102).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_sessions_that_end_are_handed_out_once() -> None:
    """A fetch may wait in one; it must be answered, for it would hear of no change."""
    cache = FetchSessionCache(slots_max=1, eviction_ms=100)
    first = fetch(cache, 0, 0, [wanted(0)], fresh_id=1).session
    assert cache.take_ended() == []
    evicting = fetch(cache, 0, 0, [wanted(0)], fresh_id=2, now_ms=101).session
    assert (cache.take_ended(), cache.evictions) == ([first], 1)
    cache.close(2)
    cache.close(2)
    assert cache.take_ended() == [evicting]
    assert (cache.take_ended(), cache.evictions) == ([], 1)


def test_an_ended_session_is_looked_at_as_a_whole() -> None:
    """A fetch that waits in a session that ends hears of no change any more, so no partition stays at rest."""
    cache = FetchSessionCache(slots_max=1, eviction_ms=100)
    session = fetch(cache, 0, 0, [wanted(0), wanted(1)], fresh_id=1).session
    assert session is not None
    for partition in session.due_partitions():
        session.at_rest(partition)
    assert session.due_partitions() == []
    fetch(cache, 0, 0, [wanted(0)], fresh_id=2, now_ms=101)
    assert [partition.partition for partition in session.due_partitions()] == [0, 1]


def test_due_partitions_are_in_the_order_of_the_session() -> None:
    cache = FetchSessionCache(slots_max=10)
    session = fetch(cache, 0, 0, [wanted(0), wanted(1), wanted(2)]).session
    assert session is not None
    for partition in session.due_partitions():
        session.at_rest(partition)
    context = fetch(cache, 77, 1, [wanted(2, 7), wanted(0, 5)])
    assert [partition.partition for partition in context.partitions] == [0, 2]


def test_a_follower_displaces_an_old_consumer_in_use() -> None:
    cache = FetchSessionCache(slots_max=1, eviction_ms=100)
    fetch(cache, 0, 0, [wanted(0)], fresh_id=1)
    fetch(cache, 1, 1, [], now_ms=150)
    assert fetch(cache, 0, 0, [wanted(0)], fresh_id=2, now_ms=160).session_id == 0
    assert fetch(cache, 0, 0, [wanted(0)], fresh_id=3, now_ms=160, privileged=True).session_id == 3
    assert fetch(cache, 0, 0, [wanted(0)], fresh_id=4, now_ms=200, privileged=True).session_id == 0


def test_partitions_of_all_sessions_are_bounded() -> None:
    cache = FetchSessionCache(slots_max=10, partitions_max=3)
    assert fetch(cache, 0, 0, [wanted(0), wanted(1)], fresh_id=1).session_id == 1
    assert fetch(cache, 0, 0, [wanted(0), wanted(1)], fresh_id=2).session_id == 0


def test_a_session_that_grows_beyond_the_bound_ends() -> None:
    cache = FetchSessionCache(slots_max=1, partitions_max=4)
    assert fetch(cache, 0, 0, [wanted(0), wanted(1)], fresh_id=1).session_id == 1
    assert fetch(cache, 1, 1, [wanted(1, 7), wanted(2), wanted(3)]).session_id == 1
    assert fetch(cache, 1, 2, [wanted(1, 8), wanted(2, 9), wanted(0, 3)]).session_id == 1, (
        "the request adds no partition"
    )
    assert fetch(cache, 1, 3, [wanted(4), wanted(5)], [0, 1]).session_id == 1, (
        "the request adds as many partitions as it forgets"
    )
    assert cache.partition_count == 4
    assert fetch(cache, 1, 4, [wanted(6)]).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache), cache.partition_count) == (0, 0)
    everything = [wanted(index) for index in range(5)]
    assert fetch(cache, 0, 0, everything, fresh_id=2).session_id == 0, "the fetcher continues with full requests"
    assert fetch(cache, 0, 0, everything[:4], fresh_id=3).session_id == 3


def test_a_session_that_grows_evicts_as_a_new_one_does() -> None:
    cache = FetchSessionCache(slots_max=10, partitions_max=4, eviction_ms=100)
    fetch(cache, 0, 0, [wanted(0)], fresh_id=1)
    fetch(cache, 0, 0, [wanted(0), wanted(1)], fresh_id=2)
    fetch(cache, 0, 0, [wanted(0)], fresh_id=3, privileged=True)
    assert fetch(cache, 1, 1, [wanted(1)], now_ms=50).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, (
        "session 2 is young"
    )
    fetch(cache, 2, 1, [], now_ms=90)
    assert fetch(cache, 3, 1, [wanted(1), wanted(2)], now_ms=101, privileged=True).session_id == 3, (
        "session 2 is evicted"
    )
    assert (len(cache), cache.partition_count) == (1, 3)
    fetch(cache, 0, 0, [wanted(0)], fresh_id=4, now_ms=150)
    assert fetch(cache, 4, 1, [wanted(1)], now_ms=202).session_id == 4, "the follower's session was unused for too long"
    assert (len(cache), cache.partition_count) == (1, 2)


def test_consumers_cannot_block_sessions_of_followers() -> None:
    cache = FetchSessionCache(slots_max=10, partitions_max=100, eviction_ms=100)
    fetch(cache, 0, 0, [wanted(0)], fresh_id=1)
    assert fetch(cache, 1, 1, [wanted(index) for index in range(1000)]).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(cache, 0, 0, [wanted(0)], fresh_id=2, privileged=True).session_id == 2


def test_only_news_is_worth_saying() -> None:
    partition = wanted(0)
    assert partition.has_changes(10, 0, has_news=False)
    assert not partition.has_changes(10, 0, has_news=False)
    assert partition.has_changes(10, 0, has_news=True)
    assert partition.has_changes(11, 0, has_news=False)
    assert partition.has_changes(11, 4, has_news=False)


def test_agreement_ends_with_a_changed_request() -> None:
    """The leader compares the logs again when the follower's position differs, also at the same offset."""
    cache = FetchSessionCache(slots_max=10)
    (known,) = fetch(cache, 0, 0, [wanted(0, 5)]).partitions
    known.agreed_epoch = 3
    assert list(fetch(cache, 77, 1, []).partitions) == [known]
    assert known.agreed_epoch == 3
    fetch(cache, 77, 2, [wanted(0, 5)])
    assert known.agreed_epoch == -1


def test_a_later_request_replaces_all_that_it_says() -> None:
    """DeleteRecords waits for the log start offsets of followers, and a consumer's bounds may change."""
    cache = FetchSessionCache(slots_max=10)
    (known,) = fetch(cache, 0, 0, [FetchPartition(b"t", 0, 1, 2, LeaderEpoch(3), 4, 5)]).partitions
    later = FetchPartition(b"t", 0, 11, 12, LeaderEpoch(13), 14, 15)
    assert list(fetch(cache, 77, 1, [later]).partitions) == [known]
    assert [getattr(known, name) for name in REQUESTED] == [getattr(later, name) for name in REQUESTED]


def test_partitions_with_records_go_to_the_end() -> None:
    cache = FetchSessionCache(slots_max=10)
    context = fetch(cache, 0, 0, [wanted(0), wanted(1), wanted(2)])
    assert context.session is not None
    context.session.rotate([(b"t", 0), (b"t", 9)])
    assert [p.partition for p in fetch(cache, 77, 1, []).partitions] == [1, 2, 0]


def test_due_partitions_keep_the_order_of_the_session() -> None:
    """All histories of three steps, against a list of the session's order and a set of the partitions that are due."""
    steps = tuple(itertools.product(("rotate", "rest", "wake", "forget", "add"), range(3)))
    for history in itertools.product(steps, repeat=3):
        session = FetchSession(77, privileged=False, uses_topic_ids=False, now_ms=0)
        for number in range(3):
            session.add(wanted(number))
        order, due = [0, 1, 2], {0, 1, 2}
        for step, number in history:
            key = (b"t", number)
            if step == "add" and number not in order:
                session.add(wanted(number))
                order.append(number)
                due.add(number)
            elif step == "rotate":
                session.rotate([key])
                order.sort(key=lambda other, moved=number: other == moved)
            elif step == "forget":
                session.forget(key)
                order, due = [other for other in order if other != number], due - {number}
            elif step == "rest" and number in order:
                session.at_rest(session.partitions[key])
                due.discard(number)
            elif step == "wake" and number in order:
                session.wake(key)
                due.add(number)
        assert [each.partition for each in session.due_partitions()] == [each for each in order if each in due], history
        assert [each.partition for each in session.partitions.values()] == order, history


def test_epochs_wrap_to_one() -> None:
    assert next_epoch((1 << 31) - 1) == 1
    assert next_epoch(1) == 2


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 6), st.integers(0, 3), max_size=4), st.sets(st.integers(0, 6))),
        min_size=1,
        max_size=20,
    )
)
def test_a_session_means_what_the_sum_of_its_requests_says(requests: list[tuple[dict[int, int], set[int]]]) -> None:
    cache = FetchSessionCache(slots_max=2)
    model: dict[int, int] = {100: 0}
    context = fetch(cache, 0, 0, [wanted(100)])
    epoch = 1
    for offsets, forgotten in requests:
        model.update(offsets)
        for index in forgotten:
            model.pop(index, None)
        context = fetch(cache, 77, epoch, [wanted(i, o) for i, o in offsets.items()], sorted(forgotten))
        epoch = next_epoch(epoch)
        assert {p.partition: p.fetch_offset for p in context.partitions} == model
        assert cache.partition_count == len(model)


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(
            st.integers(0, 3),  # which fetcher
            st.booleans(),  # with a full request
            st.sets(st.integers(0, 6), min_size=1),
            st.sets(st.integers(0, 6)),
            st.integers(0, 60),
        ),
        max_size=40,
    ),
)
def test_no_sequence_of_requests_exceeds_the_bound(
    partitions_max: int, steps: list[tuple[int, bool, set[int], set[int], int]]
) -> None:
    """A session that continues has the partitions that its fetcher expects; any other session reports an error."""
    cache = FetchSessionCache(slots_max=3, partitions_max=partitions_max, eviction_ms=100)
    believed: dict[int, tuple[int, int, set[int]]] = {}  # session id, next epoch and partitions, by fetcher
    now_ms = 0
    for number, (fetcher, full, named, forgotten, passed_ms) in enumerate(steps):
        now_ms += passed_ms
        session_id, epoch, partitions = believed.get(fetcher, (0, 0, set()))
        if full or not session_id:
            epoch, partitions, forgotten = 0, set(), set()
        context = fetch(
            cache,
            session_id,
            epoch,
            [wanted(index) for index in sorted(named)],
            sorted(forgotten),
            now_ms=now_ms,
            fresh_id=number + 1,
            privileged=fetcher == 0,
        )
        assert context.error in (ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if context.error is ErrorCode.NONE:
            partitions = (partitions | named) - forgotten
            assert {wanted.partition for wanted in context.partitions} == partitions
        believed[fetcher] = (context.session_id, next_epoch(epoch), partitions)
        assert cache.partition_count <= partitions_max
        assert len(cache) <= 3
