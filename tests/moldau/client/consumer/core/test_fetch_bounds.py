"""Goal: the parts of a consumer that only count, plan and remember do so at their borders too.

Method: plans of fetches, sessions, counters, records that were read ahead, start policies; values in, values out.
"""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.fetch_plan import IDLE_POLL_MS, FetchLimits, FetchPlan, Lane
from moldau.consumer.core.fetch_session import Asked, FetchSession, full_request
from moldau.consumer.core.positions import PartitionPosition, Phase
from moldau.consumer.core.reset_policy import ResetPolicy
from moldau.consumer.core.statistics import ConsumerCounters
from moldau.consumer.core.unread import Unread
from moldau.consumer.core.values import ConsumedBatch, RebalanceCallbacks, TopicPartition
from moldau.records import Record, encode_batch
from moldau.values import duration_ms

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=50_000, partition_bytes=2000, buffer_bytes=20_000)


def position(partition=A, *, idle=False, buffered=0):
    made = PartitionPosition(partition)
    made.seek(0)
    if buffered:
        data = encode_batch([(0, None, b"x", ())])
        for _ in range(2):
            chunk = FetchedChunk(memoryview(data), made.fetch_offset)
            made.chunks.append(chunk)
        made.fetch_offset, made.buffered_bytes = 1, buffered
    made.is_idle = idle
    return made


def planned(positions, *, limits=LIMITS, nodes=1, now_ms=0.0):
    return FetchPlan(limits).next_fetch(1, positions, nodes, now_ms)


def test_nothing_to_fetch_is_looked_at_after_a_change():
    waiting = position()
    waiting.phase = Phase.VALIDATE
    assert planned([waiting]) == math.inf
    assert planned([]) == math.inf


@pytest.mark.parametrize(
    ("buffered", "expected"),
    [(0, 20_000), (1, 19_999), (18_000, 2_000), (18_001, None), (20_000, None), (30_000, None)],
)
def test_a_request_needs_room_for_one_partition(buffered, expected):
    """Else many small requests would fill what is left."""
    full, other = position(A, buffered=buffered), position(B)
    found = planned([full, other])
    assert (None if found == math.inf else found.max_bytes) == expected


@pytest.mark.parametrize(("nodes", "expected"), [(1, 20_000), (20, 1_000), (30_000, 1)])
def test_each_broker_has_an_equal_share(nodes, expected):
    assert planned([position()], nodes=nodes).max_bytes == expected


@pytest.mark.parametrize(("buffered", "expected"), [(500, 500), (501, None)])
def test_half_of_a_small_share_is_enough(buffered, expected):
    """A share below two answers would never have room for another one."""
    found = planned([position(A, buffered=buffered), position(B)], nodes=20)
    assert (None if found == math.inf else found.max_bytes) == expected


def test_a_request_is_no_larger_than_configured():
    limits = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=700, partition_bytes=2000, buffer_bytes=20_000)
    assert planned([position()], limits=limits).max_bytes == 700


def test_only_paused_partitions_lose_their_answers():
    paused, read, other = position(A, buffered=10_000), position(B, buffered=10_000), position(TopicPartition("t", 2))
    paused.is_paused = True
    assert planned([paused, read, other]).max_bytes == 10_000
    assert (len(paused.chunks), len(read.chunks)) == (0, 2)


def test_a_partition_with_records_is_not_kept_waiting():
    """While another one is full, those without records are asked for at intervals, and one with records at once."""
    plan, full, idle, busy = FetchPlan(LIMITS), position(A, buffered=3000), position(B, idle=True), position()
    busy.partition = TopicPartition("t", 2)
    plan.ended(plan.next_fetch(1, [full, idle], 1, 0.0), 10.0)
    assert plan.next_fetch(1, [full, idle], 1, 10.0) == 10.0 + IDLE_POLL_MS
    found = plan.next_fetch(1, [full, idle, busy], 1, 10.0)
    assert (found.positions, found.max_wait_ms) == ([idle, busy], 0)


def test_the_second_connection_is_for_long_polls_only():
    plan, full, asked, late = FetchPlan(LIMITS), position(A, buffered=3000), position(B), position()
    late.partition = TopicPartition("t", 2)
    main = plan.next_fetch(1, [full, asked], 1, 0.0)
    assert (main.lane, main.max_wait_ms) == (Lane.MAIN, 0)
    assert plan.next_fetch(1, [full, asked, late], 1, 0.0) == math.inf, "it comes back at once"
    other = FetchPlan(LIMITS)
    assert other.next_fetch(1, [asked], 1, 0.0).max_wait_ms == 500
    found = other.next_fetch(1, [asked, late], 1, 0.0)
    assert (found.lane, found.positions, found.max_wait_ms, found.max_bytes) == (Lane.LATE, [late], 0, 2000)


def test_a_partition_that_moved_is_late():
    plan, asked = FetchPlan(LIMITS), position()
    main = plan.next_fetch(1, [asked], 1, 0.0)
    assert main.covers(asked)
    asked.seek(7)
    assert not main.covers(asked)
    assert plan.next_fetch(1, [asked], 1, 0.0).asked == {A: (asked, asked.generation, 7)}


def test_a_late_answer_does_not_put_off_the_next_long_poll():
    plan, full, idle = FetchPlan(LIMITS), position(A), position(B, idle=True)
    main = plan.next_fetch(1, [idle], 1, 0.0)
    late = plan.next_fetch(1, [full, idle], 1, 90.0)
    plan.ended(main, 100.0)
    plan.ended(late, 140.0)
    full.chunks.extend(position(A, buffered=3000).chunks)
    full.buffered_bytes = 3000
    assert plan.next_fetch(1, [full, idle], 1, 120.0) == 100.0 + IDLE_POLL_MS


def test_a_request_that_was_not_sent_is_planned_again():
    plan, asked = FetchPlan(LIMITS), position()
    first = plan.next_fetch(1, [asked], 1, 0.0)
    assert plan.next_fetch(1, [asked], 1, 0.0) == math.inf
    plan.given_up(first)
    assert plan.next_fetch(1, [asked], 1, 0.0) == first


def test_brokers_are_forgotten_with_their_sessions():
    """Not while a request is under way; only sessions that a broker keeps need a farewell."""
    plan = FetchPlan(LIMITS)
    for node_id in (1, 2, 3):
        plan.session(node_id).answered(70 + node_id if node_id != 2 else 0)
    asked = plan.next_fetch(3, [position()], 1, 0.0)
    assert {node_id: each.session_id for node_id, each in plan.farewells().items()} == {1: 71, 3: 73}
    assert plan.forget_nodes({1: None}) == {}
    assert {node_id: each.session_id for node_id, each in plan.farewells().items()} == {1: 71, 3: 73}
    plan.ended(asked, 1.0)
    assert {node_id: (each.session_id, each.epoch) for node_id, each in plan.forget_nodes({1: None}).items()} == {
        3: (73, -1)
    }
    assert list(plan.farewells()) == [1]


def test_a_session_changes_how_it_names_topics_once():
    session, wanted = FetchSession(), {A: Asked(UUID(int=1), 0, 5, 100)}
    epochs = []
    for by_topic_id in (True, True, False, False, True):
        request = session.next_request(wanted, by_topic_id=by_topic_id)
        epochs.append((request.epoch, len(request.partitions)))
        session.answered(7)
    assert epochs == [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1)]
    assert (full_request(wanted).session_id, full_request(wanted).epoch) == (0, -1)


@pytest.mark.parametrize(("epoch", "following"), [(1, 2), (2**31 - 2, 2**31 - 1), (2**31 - 1, 1)])
def test_session_epochs_stay_positive(epoch, following):
    session = FetchSession()
    session.answered(7)
    session.epoch = epoch
    session.answered(7)
    assert session.epoch == following


def test_a_topic_that_was_made_again_is_forgotten_by_id_only():
    old, new = Asked(UUID(int=1), 0, 5, 100), Asked(UUID(int=2), 0, 5, 100)
    for by_topic_id, forgotten in ((True, {A: UUID(int=1)}), (False, {})):
        session = FetchSession()
        session.next_request({A: old}, by_topic_id=by_topic_id)
        session.answered(7)
        request = session.next_request({A: new}, by_topic_id=by_topic_id)
        assert (dict(request.forgotten), list(request.partitions)) == (forgotten, [A])


@pytest.mark.parametrize(
    ("offset", "end", "phase", "lag"),
    [
        *((2, 5, Phase.FETCH, 3), (5, 5, Phase.FETCH, 0), (6, 5, Phase.FETCH, 0), (0, 0, Phase.FETCH, 0)),
        *((2, -1, Phase.FETCH, -1), (2, 5, Phase.RESET, -1), (2, 5, Phase.VALIDATE, 3)),
    ],
)
def test_a_partition_without_position_has_no_lag(offset, end, phase, lag):
    made = position()
    made.offset, made.end_offset, made.phase, made.is_paused = offset, end, phase, True
    found = ConsumerCounters().statistics([made], 0, None)
    row = found.partitions[A]
    assert (row.records_lag, row.end_offset, row.is_paused) == (lag, end, True)
    assert row.position == (-1 if phase is Phase.RESET else offset)
    assert found.records_lag_max == lag if lag >= 0 else math.isnan(found.records_lag_max)


def test_statistics_are_what_was_counted():
    """A fetch without records is no request with records; the latency of a commit that failed is not counted."""
    counters = ConsumerCounters()
    counters.fetched(100, 4, 0)
    counters.fetched(300, 8, 0)
    for records in (6, 0, 10):
        counters.arrived(records, 0)
    counters.polled(16)
    counters.committed(3, 0, failed=False)
    counters.committed(7, 0, failed=False)
    counters.committed(90, 0, failed=True)
    counters.rebalanced(20, 0)
    counters.rebalanced(40, 0)
    for began_ms, ended_ms in ((900, 1_000), (1_000, 1_000), (1_250, 1_300), (1_300, 1_400)):
        counters.polled_for(began_ms, ended_ms)
    found = counters.statistics([position(A), position(B)], 2_500, 1_000).by_name()
    expected = {
        "records-consumed-total": 16,
        "bytes-consumed-total": 400,
        "fetch-total": 2,
        "fetch-latency-avg": 6,
        "fetch-latency-max": 8,
        "fetch-size-avg": 200,
        "fetch-size-max": 300,
        "records-per-request-avg": 8,
        "commit-total": 2,
        "commit-failed-total": 1,
        "commit-latency-avg": 5,
        "commit-latency-max": 7,
        "rebalance-total": 2,
        "rebalance-latency-avg": 30,
        "rebalance-latency-max": 40,
        "rebalance-latency-total": 60,
        "assigned-partitions": 2,
        "last-poll-seconds-ago": 1.5,
        "poll-idle-ratio-avg": pytest.approx((50 / 300 + 1) / 2),
    }
    assert {name: found[name] for name in expected} == expected


def records(partition, first, *values, epoch=0, cluster=0):
    return ConsumedBatch(
        topic=partition.topic,
        partition=partition.partition,
        records=[Record(first + at, 1, None, value, ()) for at, value in enumerate(values)],
        next_offset=first + len(values),
        leader_epoch=epoch,
        high_watermark=99,
        cluster=cluster,
    )


def test_unread_records_hold_their_positions_back():
    """Records that a loop has not read yet must not be committed: each partition counts from its first one."""
    unread = Unread()
    assert (unread.take(), len(unread), unread.starts()) == (None, 0, {})
    unread.fill([records(A, 5, b"a", b"b", epoch=3, cluster=1), records(B, 2, b"c", epoch=4, cluster=1)])
    assert unread.cluster == 1
    assert unread.starts() == {A: (5, 3), B: (2, 4)}
    assert unread.take().value == b"a"
    assert (unread.starts(), len(unread)) == ({A: (6, 3), B: (2, 4)}, 2)
    assert [unread.take().value for _ in range(2)] == [b"b", b"c"]
    unread.fill([records(B, 3, b"d", epoch=6, cluster=2)])
    assert (unread.starts(), unread.cluster) == ({B: (3, 6)}, 2)
    unread.clear()
    assert (unread.take(), unread.starts()) == (None, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("earliest", -2), ("latest", -1), ("none", None), ("by_duration:PT1S", 4_000), ("by_duration:PT1H", 0)],
)
def test_the_start_policy_names_a_time(name, expected):
    assert ResetPolicy(name).timestamp(5_000) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("pt1h", 3_600_000),
        ("PT1M", 60_000),
        ("PT1.5S", 1_500),
        ("P1DT2H3M4S", 93_784_000),
        ("+PT1S", 1_000),
        ("PT1H-30M", 1_800_000),
        ("-PT-1,5S", 1_500),
    ],
)
def test_durations_are_days_hours_minutes_seconds(text, expected):
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "+PT", "1D", "PT1H1H", "P1M"])
def test_a_duration_without_a_number_is_refused(text):
    with pytest.raises(ValueError, match="is no duration"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["-PT1S", "PT-1H30M", "P1DT-25H"])
def test_a_negative_duration_is_refused(text):
    with pytest.raises(ValueError, match="is negative"):
        duration_ms(text)


def test_lost_partitions_are_reported_as_revoked_by_default():
    async def revoked(partitions): ...

    async def lost(partitions): ...

    assert RebalanceCallbacks.of(None, revoked, None).on_lost is revoked
    assert RebalanceCallbacks.of(None, revoked, lost) == (None, revoked, lost)
    assert RebalanceCallbacks.of(lost, None, None) == (lost, None, None)
    with pytest.raises(TypeError, match="on_lost must be an async function"):
        RebalanceCallbacks.of(None, None, "no function")


def test_a_callback_object_must_return_something_to_await():
    """It may be any callable; only the call shows what it returns."""
    seen = []

    async def note(partitions):
        seen.append(partitions)

    callbacks = RebalanceCallbacks.of(lambda partitions: note(partitions), lambda partitions: None, None)
    with pytest.raises(StopIteration):
        callbacks.on_assigned([A]).send(None)
    assert seen == [[A]]
    with pytest.raises(TypeError, match=r"on_revoked must be an async function.*moldau\.blocking"):
        callbacks.on_revoked([A]).send(None)


def test_the_largest_lag_counts():
    """A partition at its end has a lag, of 0; one whose end is unknown has none."""
    positions = [position(TopicPartition("t", number)) for number in range(3)]
    for each, end in zip(positions, (7, 0, -1), strict=True):
        each.end_offset = end
    found = ConsumerCounters().statistics(positions, 0, None)
    assert found.records_lag_max == 7
    lags = [(each.value, dict(each.labels)["partition"]) for each in found.metrics() if each.labels]
    assert lags == [(7, "0"), (0, "1")]
