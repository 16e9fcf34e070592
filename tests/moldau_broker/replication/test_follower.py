"""Goal: a follower fetches the records that it lacks, truncates where histories differ, and backs off.

Method: stories; then a random session against the broker's cache.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchedPartition
from moldau_broker.log.values import TopicPartition
from moldau_broker.replication import follower
from moldau_broker.replication.alter_partition import AlterPartitionQueue
from moldau_broker.replication.fetch_session import FetchPartition, FetchSessionCache
from moldau_broker.replication.follower import (
    Followed,
    FollowerFetcher,
    FollowRequest,
    FollowState,
    StepKind,
)
from moldau_broker.replication.replica import IsrProposal

TOPIC = uuid.UUID(int=7)


def followed(partition: int, *, offset: int = 0, epoch: int = 3) -> Followed:
    return Followed(
        TopicPartition("t", partition),
        TOPIC,
        leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=0,
    )


def answer(
    partition: int, error: ErrorCode = ErrorCode.NONE, records: bytes = b"", diverging: tuple[int, int] = (-1, -1)
) -> FetchedPartition:
    return FetchedPartition(
        topic_id=TOPIC.bytes,
        partition=partition,
        error_code=error,
        high_watermark=5,
        log_start_offset=0,
        records=memoryview(records),
        diverging_epoch=diverging[0],
        diverging_end_offset=diverging[1],
    )


def fetcher(*partitions: Followed) -> FollowerFetcher:
    core = FollowerFetcher(backoff_ms=50, backoff_max_ms=1000)
    for partition in partitions:
        core.add(partition)
    return core


def request_of(core: FollowerFetcher, now_ms: float = 0) -> FollowRequest:
    request = core.next_request(now_ms)
    assert request is not None
    return request


def test_the_first_request_is_full_and_later_ones_incremental() -> None:
    """The first request names all partitions; later ones name only partitions that changed."""
    a, b = followed(0), followed(1)
    core = fetcher(a, b)
    request = request_of(core)
    assert (request.session_id, request.session_epoch, request.partitions) == (0, 0, (a, b))
    steps = core.answered(ErrorCode.NONE, 9, [answer(0, records=b"x")], request, 0)
    assert [(step.kind, step.followed) for step in steps] == [(StepKind.ADVANCE, a)]
    core.appended(a, 4, 3, 0)
    request = request_of(core)
    assert (request.session_id, request.session_epoch, request.partitions) == (9, 1, (a,))
    core.answered(ErrorCode.NONE, 9, [], request, 0)
    assert request_of(core).partitions == ()


def names(request: FollowRequest) -> list[int]:
    return [each.key.partition for each in request.partitions]


def test_many_partitions_enter_a_session_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader looks at all partitions of a request in one turn: with 10,000 of them it stood still for 0.4 s."""
    monkeypatch.setattr(follower, "PARTITIONS_MAX", 2)
    partitions = [followed(number) for number in range(5)]
    core = fetcher(*partitions)
    request = request_of(core)
    assert (names(request), request.session_epoch, request.has_more) == ([0, 1], 0, True)
    core.answered(ErrorCode.NONE, 9, [answer(0, records=b"x")], request, 0)
    core.appended(partitions[0], 4, 3, 0)
    request = request_of(core)
    assert (names(request), request.session_epoch, request.has_more) == ([2, 3, 0], 1, True)
    core.answered(ErrorCode.NONE, 9, [], request, 0)
    request = request_of(core)
    assert (names(request), request.has_more) == ([4], False)
    core.answered(ErrorCode.NONE, 9, [], request, 0)
    for each in partitions:
        core.appended(each, 7, 3, 0)
    request = request_of(core)
    assert (sorted(names(request)), request.has_more) == ([0, 1, 2, 3, 4], False), "the session has them all"


@pytest.mark.parametrize("refusal", [ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND])
def test_a_leader_without_room_for_a_session_gets_all(refusal: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens no session, or lets it not grow. Else the first partitions alone would be fetched again and again."""
    monkeypatch.setattr(follower, "PARTITIONS_MAX", 2)
    core = fetcher(*(followed(number) for number in range(5)))
    core.answered(refusal, 0, [], request_of(core), 0)
    request = request_of(core, 1000)
    assert (names(request), request.session_epoch, request.has_more) == ([0, 1, 2, 3, 4], 0, False)
    core.request_failed(1000)
    assert names(request_of(core, 2000)) == [0, 1], "another leader may have room"


def test_a_log_start_that_moves_alone_is_reported() -> None:
    """DeleteRecords waits for it, and nothing else may ever change in that partition."""
    a, b = followed(0, offset=4, epoch=3), followed(1)
    core = fetcher(a, b)
    core.answered(ErrorCode.NONE, 9, [answer(0), answer(1)], request_of(core), 0)
    core.appended(a, 4, -1, 0)
    core.appended(b, 0, -1, 0)
    request = request_of(core)
    assert request.partitions == ()
    core.answered(ErrorCode.NONE, 9, [answer(0)], request, 0)
    core.appended(a, 4, -1, 3)
    assert request_of(core).partitions == (a,)
    assert a.log_start_offset == 3


def test_an_answer_to_a_replaced_partition_is_dropped() -> None:
    old = followed(0)
    core = fetcher(old)
    request = request_of(core)
    core.add(followed(0, epoch=4))
    assert core.answered(ErrorCode.NONE, 9, [answer(0, records=b"x")], request, 0) == []
    assert not core.is_current(old)


def test_a_removed_partition_is_forgotten_by_the_session() -> None:
    a, b = followed(0), followed(1)
    core = fetcher(a, b)
    core.answered(ErrorCode.NONE, 9, [], request_of(core), 0)
    core.remove(a.key)
    request = request_of(core)
    assert (request.partitions, request.forgotten) == ((), (a,))


def test_divergence_truncates_and_goes_on_from_there() -> None:
    a = followed(0, offset=10)
    core = fetcher(a)
    steps = core.answered(ErrorCode.NONE, 9, [answer(0, diverging=(2, 6))], request_of(core), 0)
    assert steps[0].kind is StepKind.TRUNCATE
    core.truncated(a, 6, 2, 0)
    assert request_of(core).partitions == (a,)
    assert (a.fetch_offset, a.last_fetched_epoch) == (6, 2)


def test_logs_that_share_nothing_are_truncated_to_offset_0() -> None:
    a = followed(0, offset=10)
    core = fetcher(a)
    steps = core.answered(ErrorCode.NONE, 9, [answer(0, diverging=(-1, 0))], request_of(core), 0)
    assert [step.kind for step in steps] == [StepKind.TRUNCATE]


def test_an_offset_the_leader_has_not_got_is_reset() -> None:
    a = followed(0, offset=10)
    core = fetcher(a)
    steps = core.answered(ErrorCode.NONE, 9, [answer(0, ErrorCode.OFFSET_OUT_OF_RANGE)], request_of(core), 0)
    assert steps[0].kind is StepKind.RESET
    assert core.next_request(0) is None
    assert core.next_deadline_ms() is None


def test_a_log_is_restored_beside_other_fetches() -> None:
    """It may take long: the leader's answers to other partitions, and failures of requests, do not end it."""
    a, b = followed(0), followed(1)
    core = fetcher(a, b)
    moved = answer(0, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
    steps = core.answered(ErrorCode.NONE, 9, [moved, answer(1, records=b"x")], request_of(core), 0)
    assert [(step.kind, step.followed) for step in steps] == [(StepKind.RESTORE, a), (StepKind.ADVANCE, b)]
    assert a.state is FollowState.RESTORING
    core.appended(b, 4, 3, 0)
    request = request_of(core)
    assert (request.partitions, request.forgotten) == ((b,), (a,))
    core.request_failed(0)
    assert a.state is FollowState.RESTORING
    assert request_of(core, 100).partitions == (b,)
    core.truncated(a, 700, 3, 5)
    request = request_of(core, 100)
    assert (a.fetch_offset, a.last_fetched_epoch, a.log_start_offset) == (700, 3, 5)
    assert request.partitions == (a, b)


def test_a_failed_restoration_is_tried_again_with_growing_pauses() -> None:
    a = followed(0)
    core = fetcher(a)
    now_ms, pauses = 0.0, []
    for _ in range(7):
        moved = [answer(0, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)]
        (step,) = core.answered(ErrorCode.NONE, 9, moved, request_of(core, now_ms), now_ms)
        assert step.kind is StepKind.RESTORE
        assert core.next_deadline_ms() is None
        core.delay(a, now_ms)
        deadline_ms = core.next_deadline_ms()
        assert deadline_ms is not None
        pauses.append(deadline_ms - now_ms)
        now_ms = deadline_ms
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
    core.truncated(a, 40, -1, 40)
    assert request_of(core).partitions == (a,)


def test_an_interrupted_reset_is_retried_later_each_time() -> None:
    """A failed request ends RESETTING; the partition must not wait for the next leader epoch."""
    a, b = followed(0, offset=10), followed(1)
    core = fetcher(a, b)
    now = 0.0
    for back_off in (50, 100, 200):
        refusal = answer(0, ErrorCode.OFFSET_OUT_OF_RANGE)
        steps = core.answered(ErrorCode.NONE, 9, [refusal], request_of(core, now), now)
        assert [step.kind for step in steps] == [StepKind.RESET]
        core.request_failed(now)
        assert core.next_request(now + 49) is None, "the source has its own back-off"
        assert (a.state, a.delayed_until_ms) == (FollowState.DELAYED, now + back_off)
        assert b.state is FollowState.FETCHING
        now += back_off
        assert request_of(core, now).partitions == (a, b)


def test_a_fenced_partition_waits_for_newer_metadata() -> None:
    a = followed(0)
    core = fetcher(a)
    core.answered(ErrorCode.NONE, 9, [answer(0, ErrorCode.FENCED_LEADER_EPOCH)], request_of(core), 0)
    assert a.state is FollowState.FENCED
    assert core.next_request(1e9) is None


def test_refused_partitions_back_off_alone_and_longer_each_time() -> None:
    a, b = followed(0), followed(1)
    core = fetcher(a, b)
    core.answered(ErrorCode.NONE, 9, [answer(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)], request_of(core), 0)
    request = request_of(core, 49)
    assert (request.partitions, request.forgotten) == ((), (a,))
    core.answered(ErrorCode.NONE, 9, [], request, 49)
    request = request_of(core, 50)
    assert request.partitions == (a,)
    core.answered(ErrorCode.NONE, 9, [answer(0, ErrorCode.UNKNOWN_LEADER_EPOCH)], request, 50)
    assert a.delayed_until_ms == 150
    core.answered(ErrorCode.NONE, 9, [answer(1)], request_of(core, 150), 150)


def test_the_first_end_of_a_back_off_is_the_deadline() -> None:
    a, b = followed(0), followed(1)
    core = fetcher(a, b)
    core.delay(a, 0)
    core.delay(a, 0)
    core.delay(b, 10)
    assert (a.delayed_until_ms, b.delayed_until_ms) == (100, 60)
    assert core.next_deadline_ms() == 60


def test_a_served_partition_backs_off_shortly_again() -> None:
    a = followed(0)
    core = fetcher(a)
    for now in (0.0, 50.0):
        core.answered(ErrorCode.NONE, 9, [answer(0, ErrorCode.STALE_BROKER_EPOCH)], request_of(core, now), now)
    core.answered(ErrorCode.NONE, 9, [answer(0)], request_of(core, 150), 150)
    core.appended(a, 0, -1, 0)
    core.answered(ErrorCode.NONE, 9, [answer(0, ErrorCode.STALE_BROKER_EPOCH)], request_of(core, 150), 150)
    assert a.delayed_until_ms == 200


def test_records_that_the_log_refuses_are_asked_for_more_rarely() -> None:
    """The leader's disk has damaged a batch: each answer has it again, and costs a megabyte and a line of the log."""
    a = followed(0)
    core = fetcher(a)
    now = 0.0
    for back_off in (50, 100, 200, 400, 800, 1000, 1000):
        steps = core.answered(ErrorCode.NONE, 9, [answer(0, records=b"damaged")], request_of(core, now), now)
        assert [step.kind for step in steps] == [StepKind.ADVANCE]
        core.delay(a, now)
        assert a.delayed_until_ms == now + back_off
        now += back_off


def test_an_answer_for_a_partition_that_backs_off_is_dropped() -> None:
    """The shell delays a partition whose log it cannot write while the answer to the next request is under way."""
    a = followed(0)
    core = fetcher(a)
    request = request_of(core)
    core.delay(a, 0)
    assert core.answered(ErrorCode.NONE, 9, [answer(0, records=b"x")], request, 0) == []


def test_an_error_of_a_newer_leader_only_delays_its_partition() -> None:
    a, b = followed(0), followed(1)
    core = fetcher(a, b)
    unknown = answer(0)._replace(error_code=9_999)
    steps = core.answered(ErrorCode.NONE, 9, [unknown, answer(1, records=b"x")], request_of(core), 0)
    assert [step.kind for step in steps] == [StepKind.REFUSED, StepKind.ADVANCE]
    assert (a.state, b.state) == (FollowState.DELAYED, FollowState.FETCHING)


def test_a_lost_request_starts_a_new_session_after_a_back_off() -> None:
    """A lost request ends the session; the back-off before the next one grows with each failure."""
    a = followed(0)
    core = fetcher(a)
    core.answered(ErrorCode.NONE, 9, [], request_of(core), 0)
    core.request_failed(0)
    assert core.next_request(49) is None
    assert core.next_deadline_ms() == 50
    request = request_of(core, 50)
    assert (request.session_id, request.session_epoch, request.partitions) == (0, 0, (a,))
    core.request_failed(50)
    assert core.next_deadline_ms() == 150
    core.reset_backoff()
    assert request_of(core, 51).session_epoch == 0


def test_an_answer_ends_the_growth_of_the_back_off() -> None:
    """Connections that are lost months apart each cost the shortest back-off."""
    core = fetcher(followed(0))
    now = 0.0
    for _ in range(3):
        core.answered(ErrorCode.NONE, 9, [], request_of(core, now), now)
        core.request_failed(now)
        assert core.next_deadline_ms() == now + 50
        now += 50


def test_a_broker_that_returns_ends_the_growth_of_the_back_off() -> None:
    """It may refuse the first connections of its new process, which is no reason to leave it alone for a second."""
    core = fetcher(followed(0))
    for _ in range(5):
        core.request_failed(0)
    core.reset_backoff()
    assert core.next_request(0) is not None
    core.request_failed(0)
    assert core.next_deadline_ms() == 50


def test_a_refused_session_is_opened_again() -> None:
    core = fetcher(followed(0))
    core.answered(ErrorCode.NONE, 9, [], request_of(core), 0)
    core.answered(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [], request_of(core), 0)
    assert request_of(core, 1000).session_epoch == 0


EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "append", "delay", "lose", "fetch"]), st.integers(0, 4)), max_size=40
)


@given(EVENTS)
def test_broker_and_follower_agree_on_what_is_fetched(events: list[tuple[str, int]]) -> None:
    core = FollowerFetcher(backoff_ms=1, backoff_max_ms=1)
    cache = FetchSessionCache(slots_max=5)
    present: dict[int, Followed] = {}
    now, fresh = 0.0, 1
    for kind, index in [*events, ("fetch", 0)]:
        now += 1
        if kind == "add":
            present[index] = followed(index, offset=int(now))
            core.add(present[index])
        elif kind == "remove":
            core.remove(TopicPartition("t", index))
            present.pop(index, None)
        elif kind == "append" and index in present:
            core.appended(present[index], present[index].fetch_offset + 3, 3, 0)
        elif kind == "delay" and index in present:
            core.delay(present[index], now, 3)
        elif kind == "lose":
            core.request_failed(now)
        elif kind == "fetch":
            request = core.next_request(now)
            expected = {i: f.fetch_offset for i, f in present.items() if f.state is FollowState.FETCHING}
            if request is None:
                continue
            fresh += 1
            context = cache.open(
                request.session_id,
                request.session_epoch,
                [FetchPartition(f.topic_id.bytes, f.key.partition, f.fetch_offset, 1) for f in request.partitions],
                [(f.topic_id.bytes, f.key.partition) for f in request.forgotten],
                privileged=True,
                uses_topic_ids=True,
                now_ms=now,
                fresh_id=fresh,
            )
            assert context.error is ErrorCode.NONE
            assert {p.partition: p.fetch_offset for p in context.partitions} == expected
            core.answered(ErrorCode.NONE, context.session_id, [], request, now)


def test_isr_changes_travel_together_and_one_request_at_a_time() -> None:
    queue = AlterPartitionQueue(partitions_max=2, backoff_ms=50)
    proposals = [IsrProposal(isr=(n,), broker_epochs=(1,), leader_epoch=1, partition_epoch=1) for n in range(4)]
    keys = [TopicPartition("t", n) for n in range(4)]
    assert queue.next_request(0) == {}
    for key, proposal in zip(keys[:3], proposals[:3], strict=True):
        queue.submit(key, proposal)
    assert list(queue.next_request(0)) == keys[:2]
    assert queue.next_request(0) == {}
    assert queue.next_deadline_ms() is None
    queue.submit(keys[0], proposals[3])
    queue.failed(10)
    assert queue.next_request(59) == {}
    assert queue.next_deadline_ms() == 60
    assert queue.next_request(60) == {keys[2]: proposals[2], keys[0]: proposals[3]}
    queue.answered()
    assert queue.next_request(60) == {keys[1]: proposals[1]}, "the other proposal of the failed request"
    queue.failed(70)
    queue.withdraw(keys[1])
    assert queue.next_request(200) == {}
