"""The plan of fetches and the fetch session alone, step by step: every input a value, no network and no clock."""

from uuid import UUID

import pytest

from moldau import TopicPartition
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.fetch_plan import IDLE_POLL_MS, FetchLimits, FetchPlan, Lane, PlannedFetch
from moldau.consumer.core.fetch_session import Asked, FetchSession
from moldau.consumer.core.positions import PartitionPosition
from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch, set_base_offset

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=50_000, partition_bytes=2000, buffer_bytes=20_000)


def position(number, *, idle=False):
    made = PartitionPosition(TopicPartition("t", number))
    made.seek(0)
    made.is_idle = idle
    return made


def feed(found, size):
    batch = bytearray(encode_batch([(0, None, b"x" * (size - 70), ())]))
    set_base_offset(batch, 0, found.fetch_offset)
    assert found.add_chunk(found.generation, found.fetch_offset, FetchedChunk(memoryview(batch), found.fetch_offset))


def plan_of(plan, *positions, now_ms=0.0, nodes=1):
    found = plan.next_fetch(1, positions, nodes, now_ms)
    if isinstance(found, PlannedFetch):
        return found.lane, [each.partition.partition for each in found.positions], found.max_wait_ms
    return found


def test_long_poll_names_every_partition():
    plan, busy, idle = FetchPlan(LIMITS), position(0), position(1, idle=True)
    assert plan_of(plan, busy, idle) == (Lane.MAIN, [0, 1], 500)
    assert plan_of(plan, busy, idle) == float("inf"), "one request at a time"


def test_no_long_poll_while_a_partition_is_full():
    plan, busy, idle = FetchPlan(LIMITS), position(0), position(1)
    for _ in range(2):
        feed(busy, 1500)
    first = plan.next_fetch(1, [busy, idle], 1, 1000.0)
    assert (first.lane, first.positions, first.max_wait_ms) == (Lane.MAIN, [idle], 0)
    idle.is_idle = True
    plan.ended(first, 1001.0)
    assert plan_of(plan, busy, idle, now_ms=1001.0) == 1001.0 + IDLE_POLL_MS
    assert plan_of(plan, busy, idle, now_ms=1001.0 + IDLE_POLL_MS) == (Lane.MAIN, [1], 0)


def test_partition_with_room_again_is_fetched_at_once():
    plan, busy, idle = FetchPlan(LIMITS), position(0), position(1, idle=True)
    for _ in range(2):
        feed(busy, 1500)
    plan.ended(plan.next_fetch(1, [busy, idle], 1, 1000.0), 1000.5)
    busy.chunk_ended()
    assert plan_of(plan, busy, idle, now_ms=1000.6) == (Lane.MAIN, [0, 1], 500)


def test_late_lane_serves_what_a_long_poll_misses():
    plan, ready, idle = FetchPlan(LIMITS), position(0), position(1, idle=True)
    ready.is_paused = True
    main = plan.next_fetch(1, [ready, idle], 1, 0.0)
    assert (main.positions, main.max_wait_ms) == ([idle], 500)
    ready.resume()
    late = plan.next_fetch(1, [ready, idle], 1, 1.0)
    assert (late.lane, late.positions, late.max_wait_ms) == (Lane.LATE, [ready], 0)
    plan.ended(main, 2.0)
    assert plan_of(plan, ready, idle, now_ms=2.0) == float("inf"), "the next long poll can name it soon"
    plan.ended(late, 3.0)
    assert plan_of(plan, ready, idle, now_ms=3.0) == (Lane.MAIN, [0, 1], 500)


def test_late_lane_asks_an_idle_partition_once():
    plan, ready, idle = FetchPlan(LIMITS), position(0), position(1, idle=True)
    plan.next_fetch(1, [idle], 1, 0.0)
    late = plan.next_fetch(1, [ready, idle], 1, 1.0)
    ready.is_idle = True
    plan.ended(late, 2.0)
    assert plan_of(plan, ready, idle, now_ms=2.0) == float("inf")


@pytest.mark.parametrize(("nodes", "expected"), [(1, 20_000 - 1500), (4, 5000 - 1500), (100, 200)])
def test_request_asks_for_the_rest_of_its_share(nodes, expected):
    plan, found = FetchPlan(LIMITS), position(0)
    if nodes < 100:
        feed(found, 1500)
    assert plan.next_fetch(1, [found], nodes, 0.0).max_bytes == expected


def test_full_share_stops_fetches_until_there_is_room():
    plan, positions = FetchPlan(LIMITS), [position(number) for number in range(20)]
    for each in positions[:13]:
        feed(each, 1500)
    assert plan_of(plan, *positions) == float("inf")
    for each in positions[:2]:
        each.chunk_ended()
    assert plan.next_fetch(1, positions, 1, 0.0).max_bytes == 20_000 - 11 * 1500


def test_paused_chunks_give_way():
    plan, paused, other = FetchPlan(LIMITS), position(0), position(1)
    for _ in range(13):
        feed(paused, 1500)
    paused.is_paused = True
    assert plan.next_fetch(1, [paused, other], 1, 0.0).max_bytes == 20_000
    assert (paused.fetch_offset, paused.offset, len(paused.chunks)) == (0, 0, 0)


def asked(offset, topic=1):
    return Asked(UUID(int=topic), 0, offset, 1000)


def reported(session, wanted, *, by_topic_id=True):
    request = session.next_request(wanted, by_topic_id=by_topic_id)
    return request.session_id, request.epoch, list(request.partitions), dict(request.forgotten)


def test_session_names_changes_only():
    session = FetchSession()
    assert reported(session, {T0: asked(0), T1: asked(0)}) == (0, 0, [T0, T1], {})
    session.answered(7)
    assert reported(session, {T0: asked(5), T1: asked(0)}) == (7, 1, [T0], {})
    session.answered(7)
    assert reported(session, {T1: asked(0)}) == (7, 2, [], {T0: UUID(int=1)})
    session.answered(7)
    assert reported(session, {T0: asked(5), T1: asked(0)}) == (7, 3, [T0], {})


def test_session_forgets_the_old_topic_id():
    session = FetchSession()
    reported(session, {T0: asked(0)})
    session.answered(7)
    assert reported(session, {T0: asked(0, topic=2)}) == (7, 1, [T0], {T0: UUID(int=1)})


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.NONE, 7),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
    ],
)
def test_lost_session_is_followed_by_a_full_request(code, session_id):
    session = FetchSession()
    reported(session, {T0: asked(0)})
    session.answered(7)
    reported(session, {T0: asked(1)})
    session.lost(code)
    assert reported(session, {T0: asked(1), T1: asked(0)}) == (session_id, 0, [T0, T1], {})


def test_session_ends_where_topics_get_names():
    session = FetchSession()
    reported(session, {T0: asked(0)})
    session.answered(7)
    assert reported(session, {T0: asked(0)}, by_topic_id=False) == (7, 0, [T0], {})


def test_broker_without_room_gets_full_requests():
    session = FetchSession()
    for _ in range(2):
        assert reported(session, {T0: asked(0)}) == (0, 0, [T0], {})
        session.answered(0)


def test_epoch_wraps_to_one():
    session = FetchSession()
    reported(session, {T0: asked(0)})
    session.answered(7)
    session.epoch = (1 << 31) - 1
    session.answered(7)
    assert session.epoch == 1
