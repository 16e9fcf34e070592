"""Goal: each anomaly of the catalogue is found in a history that has it, and in no history that has not.

Method: golden histories by hand, one good and at least one bad per anomaly; a random model log whose honest histories
are all valid, and in which each planted mistake is found.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, Verdict, check_history
from moldau_jepsen.checkers.log import orders
from moldau_jepsen.checkers.shards import check_in_shards
from moldau_jepsen.checkers.transaction.graph import Edges, components
from moldau_jepsen.history import (
    HistoryFile,
    Kind,
    Poll,
    Send,
    Status,
    TopicPartition,
    write_history,
)
from support.kit.golden_histories import P0, P1, Story, assert_same, good, model_history, transaction_history

K = AnomalyKind


def graph(*pairs: tuple[int, int]) -> Edges:
    edges = Edges()
    for source, target in pairs:
        edges.add(source, target)
    return edges


def found(verdict: Verdict) -> dict[AnomalyKind, int]:
    return verdict.counts


def test_an_honest_history_has_no_anomaly() -> None:
    verdict = good().check()
    assert verdict.valid
    assert not verdict.counts
    assert verdict.figures.sends_acknowledged == 2
    assert verdict.figures.sends_failed == verdict.figures.sends_unknown == 1
    assert verdict.figures.records_polled == 6
    assert verdict.figures.values_seen == 3


def test_inconsistent_offsets() -> None:
    verdict = good().send(5, 7, 1).poll(6, (1, 7)).check(final_phase=False)
    assert found(verdict) == {K.INCONSISTENT_OFFSETS: 1}
    assert verdict.anomalies[0].text == "offset 1 holds value 1 and value 7"
    assert verdict.anomalies[0].operations == (1, 7)
    assert not verdict.valid


def test_duplicates_are_forbidden_to_idempotent_producers_only() -> None:
    story = good().poll(7, (3, 1), (4, 5)).poll(7, (5, 1)).poll(8, (4, 5), final=True)
    assert found(story.check()) == {K.DUPLICATE: 2}
    assert not story.check().valid
    assert story.check(idempotent=False).valid


def test_lost_write_and_unseen() -> None:
    lost = Story().send(1, 0, 0).send(1, 1, 1).send(1, 2, 2).poll(2, (0, 0), (2, 2), final=True)
    assert found(lost.check()) == {K.LOST_WRITE: 1, K.UNSEEN: 1, K.INT_POLL_SKIP: 1}
    tail = Story().send(1, 0, 0).send(1, 1, 1).poll(2, (0, 0), final=True)
    assert found(tail.check()) == {K.UNSEEN: 1}
    assert tail.check(final_phase=False).valid
    seen_before = Story().send(1, 0, 0).poll(2, (0, 0)).check()
    assert found(seen_before) == {K.UNSEEN: 1}


def test_polled_records_must_not_vanish() -> None:
    """A leader dies after a reader has seen a record whose sender got no answer, and the new log ends before it."""

    def story(*final: tuple[int, int], status: Status = Status.INFO) -> Story:
        return Story().send(1, 0, 0).send(1, 1, None, status=status).poll(2, (0, 0), (1, 1)).poll(3, *final, final=True)

    assert story((0, 0), (1, 1)).check().valid
    lost = story((0, 0)).check()
    assert not lost.valid
    assert found(lost) == {K.UNSEEN: 1}
    assert lost.anomalies[0].text == "value 1 was polled at offset 1 and is not in the final read"
    assert lost.anomalies[0].operations == (1, 2, 3), "who sent it, who polled it, and the final read without it"
    assert not story((0, 0)).check(read_committed=False).valid, "the high watermark binds these readers too"
    assert story((0, 0)).check(final_phase=False).valid, "retention may have taken it"
    assert found(story((0, 0), status=Status.FAIL).check()) == {K.G1A: 1}, "not both"
    unknown = Story().poll(2, (0, 0)).check()
    assert found(unknown) == {K.UNSEEN: 1}
    assert unknown.anomalies[0].operations == (0,), "its sender is unknown"


def test_a_polled_record_of_a_later_aborted_transaction() -> None:
    """A polled record whose transaction is aborted later is not missing from the final read."""
    open_ = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, None), status=Status.INFO)
        .poll(2, (0, 0))
        .send(1, 1, 2)
        .poll(3, (2, 1), final=True)
    )
    assert found(open_.check()) == {K.UNSEEN: 1}, "readers of committed data saw it: it was committed"
    assert open_.check(read_committed=False).valid
    aborted = Story().add(1, Kind.TRANSACTION, Send(P0, 0, None), aborted=True).poll(2, (0, 0))
    assert found(aborted.check()) == {K.G1A: 1}


def test_failed_writes_must_not_be_read() -> None:
    story = good().poll(9, (3, 3))
    assert found(story.check()) == {K.G1A: 1}
    aborted = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, 0), aborted=True)
        .send(2, 1, 2)
        .poll(3, (0, 0), (2, 1))
        .poll(4, (2, 1), final=True)
    )
    assert found(aborted.check()) == {K.G1A: 1}
    assert aborted.check(read_committed=False).valid


def test_transactions_of_unknown_outcome_are_seen_whole() -> None:
    """A transaction of unknown outcome is seen as a whole or not at all."""

    def story(*final: int) -> Story:
        pairs = tuple((value, value) for value in final)
        return (
            Story()
            .add(1, Kind.TRANSACTION, Send(P0, 0, None), Send(P0, 1, None), Send(P1, 0, None), status=Status.INFO)
            .poll(2, *pairs, final=True)
            .poll(2, *(((0, 0),) if 0 in final else ()), partition=P1, final=True)
        )

    assert story(0, 1).check().valid
    assert story().check().valid
    torn = story(0).check()
    assert found(torn) == {K.TORN: 1, K.LOST_WRITE: 1}, "what the final read saw of it proves that it was committed"
    assert torn.anomalies[0].text == "a transaction was seen without its values 1 of t-0"
    assert story(0).check(read_committed=False).valid
    assert story(0).check(final_phase=False).valid


U0 = TopicPartition("u", 0)


def proven_story(*final: int, sends: tuple[Send, ...] = (), **more: Any) -> Story:
    """Of a transaction of unknown outcome a reader polls value 0; what of it the final phase reads is ``final``."""
    story = Story().poll(2, (0, 0)) if more.pop("early", False) else Story()
    sends = sends or (Send(P0, 0, None), Send(P0, 1, None), Send(P1, 0, None))
    story.add(1, Kind.TRANSACTION, *sends, status=Status.INFO, **more)
    story.poll(2, (0, 0)).send(3, 2, 2)
    story.poll(9, *((value, value) for value in (*final, 2)), final=True)
    return story


def test_no_record_of_a_proven_transaction_may_be_lost() -> None:
    """No record of a transaction that is proven committed may be lost."""
    whole = proven_story(0, 1).poll(9, (0, 0), partition=P1, final=True)
    assert whole.check().valid
    lost = proven_story(0, 1).check()
    assert found(lost) == {K.TORN: 1, K.LOST_WRITE: 1}, "the final phase has read the topic, and nothing of t-1"
    write = next(one for one in lost.anomalies if one.kind is K.LOST_WRITE)
    assert write.text == (
        "value 0 of a transaction that was committed, for its value 0 of t-0 was polled, was never polled, "
        "and is not in the final read"
    )
    assert (write.partition, write.operations, write.allowed) == (P1, (0, 1), False)
    all_lost = proven_story().check()
    assert found(all_lost) == {K.UNSEEN: 1, K.LOST_WRITE: 2}, "nothing is torn, for the final read saw nothing of it"
    early = next(one for one in proven_story(early=True).check().anomalies if one.kind is K.LOST_WRITE)
    assert early.operations == (0, 1), "a reader may poll it before the client loses its connection"


def test_records_not_proven_committed_are_not_lost() -> None:
    assert proven_story().check(read_committed=False).valid, "these readers see what is aborted later"
    unfinished = Story().add(1, Kind.TRANSACTION, Send(P0, 0, None), Send(P0, 1, None), status=Status.INFO)
    assert unfinished.send(3, 2, 2).poll(9, (2, 2), final=True).check().valid
    aborted = proven_story(aborted=True).check()
    assert found(aborted) == {K.G1A: 1}, "its client chose to abort it"
    single = Story().add(1, Kind.SEND, Send(P0, 0, None), Send(P0, 1, None), status=Status.INFO)
    assert single.poll(2, (0, 0)).poll(9, (0, 0), final=True).check().valid, "sends are no transaction"


def test_proven_transactions_lose_records_only_after_a_full_read() -> None:
    """A record of a proven transaction is lost only if the whole topic was read."""
    stuck = proven_story(0, 1).add(8, Kind.POLL, status=Status.INFO, final=True, error="timed out")
    assert K.LOST_WRITE not in stuck.check().counts
    elsewhere = proven_story(0, sends=(Send(P0, 0, None), Send(U0, 0, None)))
    assert K.LOST_WRITE not in elsewhere.check().counts, "no consumer has read that topic"
    assert found(elsewhere.poll(9, (3, 3), partition=U0, final=True).check())[K.LOST_WRITE] == 1
    assert proven_story(0, 1).check(final_phase=False).valid


def test_known_offset_of_a_proven_transaction_shows_a_lost_write() -> None:
    """The known offset of a record lies below polled offsets, so the record of a committed transaction is lost."""

    def story(offset: int) -> Story:
        sends = (Send(P0, 0, 0), Send(P1, 0, offset))
        return proven_story(0, sends=sends).poll(4, (7, 7), partition=P1)

    verdict = story(7).send(1, 9, 7, partition=U0).check(final_phase=False)
    assert found(verdict) == {K.LOST_WRITE: 1}
    assert verdict.anomalies[0].text == (
        "value 0, which landed at offset 7, of a transaction that was committed, for its value 0 of t-0 was polled, "
        "was never polled, though offset 7 was"
    )
    assert (verdict.anomalies[0].operations, verdict.anomalies[0].offsets) == ((0, 1), (7, 7))
    assert story(8).check(final_phase=False).valid, "it may be yet to come"
    assert story(7).check(final_phase=False, read_committed=False).valid


def test_lost_writes_are_found_despite_too_many_witnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker finds lost writes even if there are more witnesses than it can keep."""
    monkeypatch.setattr(orders, "EARLY_MAX", 2)
    story = Story().poll(2, *((value, value) for value in range(5)))
    for value in range(5):
        story.add(1, Kind.TRANSACTION, Send(P0, value, None), Send(P1, value, None), status=Status.INFO)
    story.poll(9, *((value, value) for value in range(5)), final=True)
    lost = [one.operations for one in story.check().anomalies if one.kind is K.LOST_WRITE]
    assert lost == [(0, 1), (0, 2), (3,), (4,), (5,)]


def test_exactly_the_lost_writes_of_transactions_are_found() -> None:
    """The checker finds each lost write of random transactions, and reports no other anomaly."""
    found_ = 0
    for seed in range(60):
        history, lost = transaction_history(seed, losing=seed % 3 > 0)
        verdict = check_history(history, CheckOptions())
        assert_same(check_in_shards(history, CheckOptions()), verdict)
        convicted = [(one.partition, int(one.text.split()[1])) for one in verdict.anomalies if one.kind is K.LOST_WRITE]
        assert sorted(convicted) == sorted(lost), seed
        assert set(verdict.counts) == ({K.TORN, K.LOST_WRITE} if lost else set()), seed
        found_ += len(lost)
    assert found_ > 100


def test_a_transaction_must_not_read_what_it_has_not_committed() -> None:
    story = Story().add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P0, ((0, 0),)),)))
    convicted = story.check(final_phase=False)
    assert found(convicted) == {K.PRECOMMITTED_READ: 1}
    assert not convicted.valid
    allowed = story.check(final_phase=False, read_committed=False)
    assert found(allowed) == {K.PRECOMMITTED_READ: 1}, "a figure"
    assert allowed.valid
    assert allowed.anomalies[0].allowed
    others = Story().add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P1, ((0, 0),)),)))
    assert others.check(final_phase=False).counts == {}, "the same value of another partition is not its own"


def test_a_transaction_must_not_read_behind_its_own_first_record() -> None:
    """Until it is committed, what lies behind that is not stable."""

    def story(*parts: Send | Poll, **more: Any) -> Story:
        return Story().send(2, 1, 1).poll(3, (0, 0), (1, 1)).add(1, Kind.TRANSACTION, *parts, **more)

    behind, before = Poll(((P0, ((1, 1), (2, 2))),)), Poll(((P0, ((1, 1),)),))
    convicted = story(Send(P0, 0, 0), behind).send(2, 2, 2).check(final_phase=False)
    assert found(convicted) == {K.PRECOMMITTED_READ: 1}
    assert not convicted.valid
    (anomaly,) = convicted.anomalies
    assert anomaly.text == (
        "the transaction of process 1 polled offset 1, and its own first record there lies at offset 0"
    )
    assert (anomaly.operations, anomaly.offsets) == ((2,), (1,))
    lowest = story(Send(P0, 0, 0), Send(P1, 4, 9), Send(P0, 5, 6), Send(P0, 7, None), before)
    assert found(lowest.check(final_phase=False)) == {K.PRECOMMITTED_READ: 1}
    for sound in (
        story(before, Send(P0, 0, 3)),
        story(behind, Send(P0, 0, 0)),  # whatever that is, nothing of its own was open
        story(Send(P0, 0, 3), before),
        story(Send(P0, 0, None), before),
        story(Send(P1, 0, 0), before),
        story(Send(P0, 0, 0), before, status=Status.INFO),
        story(Send(P0, 0, 0), before, aborted=True),  # the coordinator may have ended it long before
        story(Send(P0, 0, 0), before, status=Status.FAIL),
    ):
        assert K.PRECOMMITTED_READ not in sound.check(final_phase=False).counts
    assert K.PRECOMMITTED_READ not in lowest.check(final_phase=False, read_committed=False).counts


def test_polls_that_jump_or_go_back() -> None:
    base = Story().send(1, 0, 0).send(1, 1, 1).send(1, 2, 2).poll(9, (0, 0), (1, 1), (2, 2))

    def with_polls(*polls: tuple[tuple[int, int], ...], **options: bool) -> Verdict:
        story = Story()
        story.history = list(base.history)
        for pairs in polls:
            story.poll(5, *pairs)
        return story.check(final_phase=False, **options)

    assert found(with_polls(((0, 0), (1, 1)), ((2, 2),))) == {}
    assert found(with_polls(((0, 0), (2, 2)))) == {K.INT_POLL_SKIP: 1}
    assert found(with_polls(((1, 1), (0, 0)))) == {K.INT_NONMONOTONIC_POLL: 1}
    assert found(with_polls(((0, 0),), ((2, 2),))) == {K.POLL_SKIP: 1}
    assert found(with_polls(((0, 0), (1, 1)), ((1, 1), (2, 2)))) == {K.NONMONOTONIC_POLL: 1}
    assert with_polls(((0, 0),), ((2, 2),), subscribe=True).valid
    assert not with_polls(((0, 0), (2, 2)), subscribe=True).valid


def test_gaps_without_records_and_new_assignments_are_no_skips() -> None:
    """An offset without a record is not a skip, and a new assignment resets the position."""
    story = Story().send(1, 0, 0).send(1, 1, 7).poll(2, (0, 0), (7, 1))
    story.add(2, Kind.ASSIGN, partitions=(P0,)).poll(2, (0, 0), (7, 1), final=True)
    assert found(story.check()) == {}
    again = Story().send(1, 0, 0).poll(2, (0, 0)).poll(2, (0, 0), rebalanced=True).poll(3, (0, 0), final=True)
    assert found(again.check()) == {}


def test_sends_that_land_out_of_order() -> None:
    across = Story().send(1, 0, 5).send(1, 1, 4)
    assert found(across.check(final_phase=False)) == {K.NONMONOTONIC_SEND: 1}
    within = Story().add(1, Kind.SEND, Send(P0, 0, 5), Send(P0, 1, 4))
    assert found(within.check(final_phase=False)) == {K.INT_NONMONOTONIC_SEND: 1}
    others = Story().send(1, 0, 5).send(2, 1, 4).send(1, 2, 0, partition=P1)
    assert others.check(final_phase=False).valid
    for story, kind in ((across, K.NONMONOTONIC_SEND), (within, K.INT_NONMONOTONIC_SEND)):
        retried = story.check(final_phase=False, idempotent=False)
        assert (found(retried), retried.valid) == ({kind: 1}, True), "a figure: the retry came after what followed"
    unknown = Story().send(1, 0, 5).send(1, 1, None).poll(2, (4, 1), (5, 0))
    assert found(unknown.check(final_phase=False)) == {K.NONMONOTONIC_SEND: 1}, "a reader found the second one"
    crashed = Story().send(1, 0, 5).add(1, Kind.CRASH).send(1, 1, 4)
    assert crashed.check(final_phase=False).valid
    for story in (
        Story().send(1, 0, 5).add(1, Kind.ASSIGN, partitions=(P0,)),
        Story().send(1, 0, 5).add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=3),
        Story().send(1, 0, 5).poll(1, rebalanced=True),
    ):
        verdict = story.send(1, 1, 4).check(final_phase=False)
        assert found(verdict) == {K.NONMONOTONIC_SEND: 1}, "what a client reads does not change what it has sent"


def test_cycles_of_transactions() -> None:
    writes = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, 0), Send(P1, 0, 1))
        .add(2, Kind.TRANSACTION, Send(P0, 1, 1), Send(P1, 1, 0))
    )
    verdict = writes.check(final_phase=False)
    assert found(verdict) == {K.G0: 1}
    assert verdict.valid, "Kafka's transactions promise no order of writes between partitions"
    reads = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P1, ((0, 0),)),)))
        .add(2, Kind.TRANSACTION, Send(P1, 0, 0), Poll(((P0, ((0, 0),)),)))
    )
    verdict = reads.check(final_phase=False)
    assert found(verdict) == {K.G1C: 1}
    assert not verdict.valid
    uncommitted = reads.check(final_phase=False, read_committed=False)
    assert found(uncommitted) == {K.G1C: 1}, "a figure: both read what was not committed yet"
    assert uncommitted.valid
    assert uncommitted.anomalies[0].allowed
    mixed = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P1, ((0, 0),)),)))
        .add(2, Kind.TRANSACTION, Send(P0, 1, 1), Send(P1, 0, 0))
    )
    verdict = mixed.check(final_phase=False)
    assert found(verdict) == {K.G1C: 1}
    assert verdict.valid


def circle(*statuses: Status, **more: bool) -> Story:
    """Two transactions that polled each other's record."""
    story = Story()
    for number, (status, mine, other) in enumerate(zip(statuses, (P0, P1), (P1, P0), strict=True)):
        send = Send(mine, 0, 0 if status is Status.OK else None)
        story.add(number, Kind.TRANSACTION, send, Poll(((other, ((0, 0),)),)), status=status, **more)
    return story.poll(9, (0, 0), final=True).poll(9, (0, 0), partition=P1, final=True)


def test_a_send_that_may_still_appear_hides_no_lost_one() -> None:
    """Of a transaction that was committed each send is judged by itself."""
    later = TopicPartition("u", 0)
    story = Story().add(1, Kind.TRANSACTION, Send(P0, 0, 0), Send(P1, 0, None), Send(later, 0, 3), status=Status.INFO)
    story.add(1, Kind.TRANSACTION, Send(later, 1, 7)).poll(2, (0, 0)).poll(2, (7, 1), partition=later)
    assert story.check(final_phase=False).counts == {K.LOST_WRITE: 1}
    (lost,) = story.check(final_phase=False).anomalies
    assert "value 0, which landed at offset 3," in lost.text


def test_polled_transaction_of_unknown_outcome_is_in_a_cycle() -> None:
    """A transaction of unknown outcome can be part of a cycle if one of its records was polled."""
    for statuses in ((Status.OK, Status.INFO), (Status.INFO, Status.OK), (Status.INFO, Status.INFO)):
        verdict = circle(*statuses).check()
        assert found(verdict) == {K.G1C: 1}
        assert not verdict.valid
        assert verdict.anomalies[0].operations == (0, 1)
        assert found(circle(*statuses).check(read_committed=False)) == {}, "what was polled may be aborted later"
    assert K.G1C not in circle(Status.OK, Status.FAIL).check().counts
    assert K.G1C not in circle(Status.INFO, Status.INFO, aborted=True).check().counts
    writes = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, None), Send(P1, 0, None), status=Status.INFO)
        .add(2, Kind.TRANSACTION, Send(P0, 1, 1), Send(P1, 1, 0))
        .poll(9, (0, 0), (1, 1), final=True)
        .poll(9, (0, 1), (1, 0), partition=P1, final=True)
    )
    assert found(writes.check()) == {K.G0: 1}, "a figure here, too"


def test_unpolled_transaction_of_unknown_outcome_is_in_no_cycle() -> None:
    """A transaction of unknown outcome is in no cycle if none of its records was polled."""
    story = (
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, None), Poll(((P1, ((0, 0),)),)), status=Status.INFO)
        .add(2, Kind.TRANSACTION, Send(P1, 0, 0))
        .poll(9, (0, 0), partition=P1, final=True)
    )
    assert story.check().counts == {}


def test_components_of_a_long_path_need_no_recursion() -> None:
    length = 50_000
    path = graph(*((number, number + 1) for number in range(length)))
    assert components(length + 1, path) == []
    path.add(length, 0)
    assert components(length + 1, path) == [list(range(length + 1))]
    assert components(5, graph((1, 2), (2, 1), (3, 4), (4, 3), (4, 1), (4, 1), (0, 0))) == [[1, 2], [3, 4]]
    assert components(0, graph()) == []


def test_components_are_those_of_mutual_reach() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        count = draw.randint(1, 9)
        pairs = [(draw.randrange(count), draw.randrange(count)) for _ in range(draw.randint(0, 14))]
        reach = {number: {number} for number in range(count)}
        for _ in range(count):
            for source, target in pairs:
                reach[source] |= reach[target]
        expected = {
            tuple(sorted(other for other in reach[number] if number in reach[other])) for number in range(count)
        }
        found_ = {tuple(component) for component in components(count, graph(*pairs))}
        assert found_ == {component for component in expected if len(component) > 1}, pairs


def test_a_final_read_that_does_not_end_is_stuck() -> None:
    story = good().add(5, Kind.POLL, status=Status.INFO, final=True, error="timed out at offset 1 of 3")
    assert found(story.check()) == {K.STUCK: 1}


def test_unfinished_final_read_convicts_no_missing_record() -> None:
    """A record missing from an unfinished final read is neither lost nor unseen, and its transaction is not torn."""

    def stuck(story: Story) -> Story:
        return story.add(9, Kind.POLL, status=Status.INFO, final=True, error="timed out")

    tail = Story().send(1, 0, 0).send(1, 1, 1).poll(2, (0, 0), (1, 1)).send(1, 2, 2).poll(9, (0, 0), final=True)
    assert found(tail.check()) == {K.UNSEEN: 2}
    assert found(stuck(tail).check()) == {K.STUCK: 1}
    later = Story().send(1, 0, 0).send(1, 1, 1).add(2, Kind.ASSIGN, partitions=(P0,)).poll(2, (1, 1))
    later.add(9, Kind.ASSIGN).poll(9, (1, 1), final=True)
    assert found(later.check()) == {K.LOST_WRITE: 1, K.UNSEEN: 1}
    assert found(stuck(later).check()) == {K.STUCK: 1}, "its reader began behind it, and the final read did not come"
    halves = Story().add(1, Kind.TRANSACTION, Send(P0, 0, None), Send(P1, 0, 0), status=Status.INFO)
    halves.poll(9, (0, 0), final=True).poll(3, (4, 4), partition=P1)
    assert set(halves.check().counts) == {K.TORN, K.LOST_WRITE, K.UNSEEN}
    assert found(stuck(halves).check()) == {K.STUCK: 1}
    wrong = stuck(good().poll(7, (3, 1)).poll(7, (4, 3)))
    assert found(wrong.check()) == {K.STUCK: 1, K.DUPLICATE: 1, K.G1A: 1}, "what was polled is judged as ever"


def test_details_are_bounded_and_counts_are_not() -> None:
    story = Story()
    for value in range(300):
        story.send(1, value, value)
    verdict = story.check()
    assert found(verdict) == {K.UNSEEN: 300}
    assert len(verdict.anomalies) == 100


# -- a model log, honest or with one planted mistake -----------------------------------------------------------------


def test_honest_histories_of_the_model_are_valid() -> None:
    for seed in range(40):
        verdict = check_history(model_history(seed, None)[0], CheckOptions())
        assert verdict.valid, (seed, verdict.anomalies[:3])


@pytest.mark.parametrize(
    "mistake",
    [K.G1A, K.UNSEEN, K.DUPLICATE, K.INT_POLL_SKIP, K.NONMONOTONIC_POLL, K.INCONSISTENT_OFFSETS],
)
def test_each_planted_mistake_of_the_model_is_found(mistake: AnomalyKind) -> None:
    convicted = 0
    for seed in range(20):
        history, made = model_history(seed, mistake)
        verdict = check_history(history, CheckOptions())
        assert_same(check_in_shards(history, CheckOptions()), verdict)
        assert (mistake in verdict.counts) == bool(made), seed
        convicted += not verdict.valid
    assert convicted >= 15


def test_a_history_file_is_judged_as_the_values_are(tmp_path: Path) -> None:
    history, _ = model_history(3, K.DUPLICATE)
    path = tmp_path / "history"
    with path.open("wb") as stream:
        write_history(stream, history)
    assert check_history(HistoryFile(path), CheckOptions()) == check_history(history, CheckOptions())


def test_a_poll_that_goes_back_is_found_wherever_it_stands():
    """Offsets and numbers of operations are compared with their like: offset 1 comes after operation 0 here."""
    counts = Story().poll(1, (5, 5)).poll(1, (1, 1)).check(final_phase=False).counts
    assert counts == {AnomalyKind.NONMONOTONIC_POLL: 1}
