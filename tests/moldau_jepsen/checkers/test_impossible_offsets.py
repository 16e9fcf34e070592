"""Goal: an offset that no log can have is a finding of its own, and the rest of its history is judged as before.

Method: golden histories by hand, each of which is sound but for such offsets; both ways of checking must agree. One of
them is like that of a chaos run in which a bit of a batch's base offset had rotted on a disk.
"""

from __future__ import annotations

import io

import pytest

from moldau_jepsen.checkers import AnomalyKind, Bank, CheckOptions, check_history
from moldau_jepsen.checkers.anomalies import Findings
from moldau_jepsen.checkers.group import groups
from moldau_jepsen.checkers.log import orders
from moldau_jepsen.checkers.log.orders import NOTHING, Orders, PartitionOrder
from moldau_jepsen.checkers.log.reach import GAP_MAX, OFFSET_END, Reach, end_of, has_reached
from moldau_jepsen.history import Audit, Kind, Poll, Seek, Send, Status, TopicPartition, read_history, write_history
from support.kit.golden_histories import P0, P1, Story

K = AnomalyKind
ROTTEN = 1 << 49
IMPOSSIBLE = [-1, -(1 << 62), GAP_MAX + 10, 1 << 31, ROTTEN, OFFSET_END - 1, OFFSET_END, (1 << 64) - 1]
EAST, WEST = TopicPartition("east", 0), TopicPartition("west", 0)
SOURCE, TARGET = TopicPartition("in", 0), TopicPartition("out", 0)


def sent(count: int = 10, partition: TopicPartition = P0) -> Story:
    """Values that lie at their own offsets."""
    story = Story()
    for value in range(count):
        story.send(1, value, value, partition=partition)
    return story


def pairs(*values: int) -> tuple[tuple[int, int], ...]:
    return tuple((value, value) for value in values)


def rotten(*values: int) -> tuple[tuple[int, int], ...]:
    return tuple((value ^ ROTTEN, value) for value in values)


# -- the bound


def test_a_reach_admits_what_is_near_the_known_offsets() -> None:
    reach = Reach()
    assert [reach.admits(offset) for offset in (0, 5, 3, GAP_MAX + 5, GAP_MAX + 6, 2 * GAP_MAX + 6)] == [
        True,
        True,
        True,
        True,
        True,
        True,
    ]
    assert reach.end == 2 * GAP_MAX + 7
    for offset in (-1, reach.end + GAP_MAX, OFFSET_END):
        assert not reach.may_admit(offset)
        assert not reach.admits(offset)
        assert offset not in reach
    assert reach.end == 2 * GAP_MAX + 7, "what is not admitted changes nothing"
    old = Reach(OFFSET_END)
    assert old.admits(OFFSET_END - 1)
    assert not old.admits(OFFSET_END)


def test_a_reason_names_the_bound() -> None:
    assert Reach().refusal(ROTTEN) == "far above 0, where the log begins"
    reach = Reach()
    reach.admits(7)
    assert reach.refusal(ROTTEN) == "far above 7, the highest one known"
    assert reach.refusal(-3) == "which is negative"
    assert reach.refusal(OFFSET_END) == "which no request can name"


def test_ends_do_not_count_impossible_offsets() -> None:
    assert end_of([]) == 0
    assert end_of([3, ROTTEN, 8, -1]) == 9
    assert [has_reached(at, 5) for at in (None, 0, 4, 5, 6, 5 + GAP_MAX, ROTTEN)] == [
        False,
        False,
        False,
        True,
        True,
        False,
        False,
    ]


# -- order, loss, duplicates


def chaos_story() -> Story:
    """A client reads three records of a rotten batch, is sent back to the beginning, and goes on."""
    story = sent()
    story.add(5, Kind.ASSIGN, partitions=(P0,)).add(5, Kind.SEEK, seeks=(Seek(P0, None),))
    story.poll(5, *pairs(0, 1, 2, 3)).poll(5, *pairs(4, 5), *rotten(6, 7, 8))
    story.poll(5, *pairs(0, 1, 2, 3, 4, 5)).poll(5, *pairs(6, 7, 8, 9))
    return story.poll(9, *pairs(*range(10)), final=True)


def test_a_rotten_base_offset_is_the_only_finding() -> None:
    (found,) = chaos_story().check().anomalies
    assert found.kind is K.IMPOSSIBLE_OFFSET
    assert found.text == (
        f"process 5 polled value 6 at offset {6 ^ ROTTEN} of t-0 at 0.135 s, far above 9, the highest one known; "
        "and 2 more of that kind in the same poll"
    )
    assert (found.partition, found.operations, found.allowed) == (P0, (6, 13), False)
    assert found.offsets == (6 ^ ROTTEN, 7 ^ ROTTEN, 8 ^ ROTTEN)


def test_a_history_file_with_a_rotten_offset_is_judged() -> None:
    stream = io.BytesIO()
    write_history(stream, chaos_story().history)
    stream.seek(0)
    verdict = check_history(list(read_history(stream)), CheckOptions())
    assert verdict.counts == {K.IMPOSSIBLE_OFFSET: 1}
    assert verdict.figures.records_polled == 29
    assert verdict.figures.values_seen == 10


@pytest.mark.parametrize("offset", IMPOSSIBLE)
def test_each_impossible_offset_is_a_finding(offset: int) -> None:
    polled = sent().poll(2, *pairs(0, 1), (offset, 2)).poll(9, *pairs(*range(10)), final=True).check()
    assert polled.counts == {K.IMPOSSIBLE_OFFSET: 1}
    assert f"process 2 polled value 2 at offset {offset} of t-0" in polled.anomalies[0].text
    answered = Story().send(1, 0, 0).send(3, 1, offset).send(3, 2, 2)
    (found,) = answered.poll(9, *pairs(0, 1, 2), final=True).check().anomalies
    assert found.kind is K.IMPOSSIBLE_OFFSET
    assert found.text.startswith(f"value 1 of process 3 was acknowledged at offset {offset} of t-0 at 0.015 s, ")
    assert found.operations == (1,)


def test_an_impossible_offset_takes_no_memory() -> None:
    story = chaos_story()
    order = Orders(story.history, Findings(CheckOptions())).of(P0)
    assert (len(order.value_at), order.highest_polled, order.reach.end) == (10, 9, 10)
    seen = bytearray()
    groups._note(seen, rotten(6, 7), order)
    groups._note(seen, ((ROTTEN, 50), (-5, 51)), order)
    assert len(seen) == 8, "values count where they lie; what lies nowhere does not count"


def test_a_wrong_record_counts_once_however_often_it_is_read() -> None:
    story = sent(3).poll(2, *pairs(0), *rotten(1)).poll(3, *pairs(0), *rotten(1)).poll(4, *rotten(1, 2))
    verdict = story.poll(9, *pairs(0, 1, 2), final=True).check()
    assert [one.offsets for one in verdict.anomalies] == [(1 ^ ROTTEN,), (2 ^ ROTTEN,)]


def test_a_value_at_an_impossible_offset_was_read() -> None:
    """The final read returned it, so that it is neither lost nor unseen; that it must not be there counts, too."""
    assert sent(3).poll(9, *pairs(0, 1), *rotten(2), final=True).check().counts == {K.IMPOSSIBLE_OFFSET: 1}
    failed = sent(2).send(1, 2, None, status=Status.FAIL).poll(2, *rotten(2)).poll(9, *pairs(0, 1), final=True)
    verdict = failed.check()
    assert verdict.counts == {K.IMPOSSIBLE_OFFSET: 1, K.G1A: 1}
    assert verdict.anomalies[1].text.endswith("was polled at an impossible offset")
    vanished = sent(2).send(1, 2, None, status=Status.INFO).poll(2, *rotten(2)).poll(9, *pairs(0, 1), final=True)
    assert vanished.check().counts == {K.IMPOSSIBLE_OFFSET: 1, K.UNSEEN: 1}


def test_other_findings_of_such_a_history_stay() -> None:
    """Behind an impossible offset the checkers find what is lost, doubled or passed over, as ever."""
    story = sent().poll(2, *pairs(0, 1), *rotten(2), *pairs(3, 5)).poll(3, *pairs(8), (11, 8))
    verdict = story.poll(9, *pairs(0, 1, 2, 3, 4, 5, 6, 8, 9), final=True).check()
    assert verdict.counts == {
        K.IMPOSSIBLE_OFFSET: 1,
        K.INT_POLL_SKIP: 3,
        K.DUPLICATE: 1,
        K.LOST_WRITE: 1,
        K.UNSEEN: 1,
    }


def test_no_loss_follows_from_an_impossible_offset() -> None:
    """A truncated history ends before most records were polled: none of them lies below a polled offset."""
    assert sent().poll(2, *pairs(0), *rotten(1)).check(final_phase=False).counts == {K.IMPOSSIBLE_OFFSET: 1}


def test_foreign_values_at_impossible_offsets_count_once() -> None:
    foreign = Poll(((P0, ((ROTTEN, (1 << 64) - 1),)),), ((5,),))
    story = Story().add(1, Kind.SEND, Send(P0, 0, 0, 7)).add(2, Kind.POLL, foreign).add(2, Kind.POLL, foreign)
    verdict = story.add(9, Kind.POLL, Poll(((P0, ((0, 0),)),), ((7,),)), final=True).check()
    assert verdict.counts == {K.IMPOSSIBLE_OFFSET: 1}


def test_an_altered_record_at_an_impossible_offset_is_both() -> None:
    story = Story().add(1, Kind.SEND, Send(P0, 0, 0, 7)).add(2, Kind.POLL, Poll(((P0, rotten(0)),), ((8,),)))
    verdict = story.add(9, Kind.POLL, Poll(((P0, ((0, 0),)),), ((7,),)), final=True).check()
    assert verdict.counts == {K.IMPOSSIBLE_OFFSET: 1, K.ALTERED: 1}


# -- positions


def test_positions_start_over_behind_an_impossible_offset() -> None:
    """Neither the jump to it, nor the way back, nor a seek to it or from it is a step of the client."""
    story = sent()
    story.poll(2, *pairs(4, 5), *rotten(6)).poll(2, *pairs(0, 1))
    story.add(2, Kind.SEEK, seeks=(Seek(P0, 6 ^ ROTTEN),)).poll(2, *pairs(0, 1))
    story.add(2, Kind.SEEK, seeks=(Seek(P0, 4),)).poll(2, *rotten(4)).poll(2, *pairs(0, 1))
    story.add(2, Kind.SEEK, seeks=(Seek(P0, 5, 100, 100, 5 ^ ROTTEN),)).poll(2, *pairs(5, 6))
    story.add(2, Kind.SEEK, seeks=(Seek(P0, -1, 100, -1, 5 ^ ROTTEN),)).poll(2, *pairs(7, 8))
    assert story.poll(9, *pairs(*range(10)), final=True).check().counts == {K.IMPOSSIBLE_OFFSET: 2}


def test_sends_keep_their_order_around_an_impossible_offset() -> None:
    story = Story().send(1, 0, 0).send(1, 1, ROTTEN).send(1, 2, 2)
    assert story.poll(9, *pairs(0, 1, 2), final=True).check().counts == {K.IMPOSSIBLE_OFFSET: 1}
    back = Story().send(1, 0, 5).send(1, 1, ROTTEN).send(1, 2, 2).poll(9, (2, 2), (4, 1), (5, 0), final=True)
    assert back.check().counts == {K.IMPOSSIBLE_OFFSET: 1, K.NONMONOTONIC_SEND: 1}


def test_a_transaction_polls_an_impossible_offset_of_its_own() -> None:
    story = sent(2).add(3, Kind.TRANSACTION, Send(P0, 2, 2), Poll(((P0, rotten(1)),)))
    assert story.poll(9, *pairs(0, 1, 2), final=True).check().counts == {K.IMPOSSIBLE_OFFSET: 1}
    placed = sent(2).add(3, Kind.TRANSACTION, Send(P0, 2, ROTTEN), Poll(((P0, pairs(1)),)))
    assert placed.poll(9, *pairs(0, 1, 2), final=True).check().counts == {K.IMPOSSIBLE_OFFSET: 1}


def test_a_group_skips_nothing_that_it_was_given_elsewhere() -> None:
    story = sent(6).poll(2, *pairs(0, 1), *rotten(2), group="g", rebalanced=True)
    story.poll(3, *pairs(3, 5), group="g", rebalanced=True).poll(9, *pairs(*range(6)), final=True)
    verdict = story.check()
    assert verdict.counts == {K.IMPOSSIBLE_OFFSET: 1, K.INT_POLL_SKIP: 1, K.GROUP_SKIP: 1}
    assert verdict.anomalies[-1].text.startswith("group g polled offset 5 and skipped value 4 at offset 4 ")


def test_dependencies_of_transactions_follow_values() -> None:
    """A transaction that saw a record at an impossible offset depends on its writer."""
    story = Story().add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P1, rotten(0)),)))
    story.add(2, Kind.TRANSACTION, Send(P1, 0, 0), Poll(((P0, pairs(0)),)))
    story.poll(9, *pairs(0), final=True).poll(9, *pairs(0), partition=P1, final=True)
    assert story.check().counts == {K.IMPOSSIBLE_OFFSET: 1, K.G1C: 1}


# -- topics that are older than their history


def test_offsets_of_an_old_topic_may_have_any_size() -> None:
    first = 3_000_000_000
    story = Story().send(1, 0, first).send(1, 1, first + 1).send(1, 2, first + 5)
    story.poll(2, (first, 0), (first + 1, 1), (first + 5, 2))
    assert story.check(final_phase=False, new_topics=False).counts == {}
    assert K.IMPOSSIBLE_OFFSET in story.check(final_phase=False).counts
    skipped = story.poll(3, (first, 0), (first + 5, 2)).check(final_phase=False, new_topics=False)
    assert skipped.counts == {K.INT_POLL_SKIP: 1}
    twice = story.poll(4, (ROTTEN, 2)).check(final_phase=False, new_topics=False)
    assert twice.counts == {K.INT_POLL_SKIP: 1, K.DUPLICATE: 1}
    assert K.IMPOSSIBLE_OFFSET in story.poll(5, (OFFSET_END, 2)).check(final_phase=False, new_topics=False).counts


def test_far_and_near_offsets_are_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets far behind the array are kept apart, until the array has come to them."""
    monkeypatch.setattr(orders, "GAP_MAX", 10)
    order = PartitionOrder(OFFSET_END)

    def placed(*offsets: int) -> list[int]:
        for offset in offsets:
            assert order.reach.admits(offset)
            assert order.place(offset, offset) == (NOTHING, NOTHING)
        return list(order.offsets())

    assert placed(40, 3, 90, 0) == [0, 3, 40, 90]
    assert len(order.value_at) == 4
    between = ((-1, 9), (0, 9), (3, 90), (40, 90), (40, 91))
    assert [order.first_between(low, high) for low, high in between] == [0, 3, 40, NOTHING, 90]
    assert [order.value_of(offset) for offset in (0, 3, 40, 90, 7)] == [0, 3, 40, 90, NOTHING]
    assert placed(10, 20, 30, 95, 36, 41) == [0, 3, 10, 20, 30, 36, 40, 41, 90, 95]
    assert 41 <= len(order.value_at) < 90
    assert order.value_of(40) == 40
    assert order.place(7, 95) == (95, NOTHING)
    assert order.place(95, 40) == (40, 95)


# -- pipes and banks


def piped(*target: tuple[int, int], source: tuple[tuple[int, int], ...] = ((0, 0), (1, 1), (2, 2))) -> Story:
    """A sound pipe of three records, whose final read may be given impossible offsets."""
    story = sent(3, SOURCE)
    taken = Poll(((SOURCE, pairs(0, 1, 2)),))
    story.add(2, Kind.TRANSACTION, taken, *(Send(TARGET, value, value) for value in range(3)))
    return story.poll(9, *source, partition=SOURCE, final=True).poll(9, *target, partition=TARGET, final=True)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((*pairs(0), *rotten(1), *pairs(2)), pairs(0, 1, 2)),
        ((*pairs(0), *rotten(1), *pairs(0, 1, 2)), pairs(0, 1, 2)),
        (pairs(0, 1, 2), (*pairs(0), *rotten(1), *pairs(2))),
        (pairs(0, 1, 2), (*rotten(0), *pairs(1, 2))),
        (pairs(0, 1, 2), (*pairs(0, 1), *rotten(2), *pairs(0, 1, 2))),
        ((*rotten(0), *pairs(0, 1, 2)), (*pairs(0, 1), (-4, 2))),
    ],
)
def test_a_pipe_is_judged_beside_impossible_offsets(
    source: tuple[tuple[int, int], ...], target: tuple[tuple[int, int], ...]
) -> None:
    """The reader may be sent back, and read everything twice."""
    counts = piped(*target, source=source).check(pipes=(("in", "out"),)).counts
    del counts[K.IMPOSSIBLE_OFFSET]
    assert set(counts) <= {K.INT_NONMONOTONIC_POLL, K.NONMONOTONIC_POLL}
    lost = piped(*pairs(0, 1), source=(*pairs(0, 1), *rotten(2))).check(pipes=(("in", "out"),))
    texts = [one.text for one in lost.anomalies if one.kind is K.PIPE_LOST]
    assert texts == ["value 2 at an impossible offset of the source has 0 records in the target"]


def banked(*east: tuple[int, int], audits: tuple[Audit, ...] = (), read: tuple[tuple[int, int], ...] = ()) -> Story:
    """Three transfers of 5 from account 0 (east) to account 1 (west)."""
    story = Story()
    for number in range(3):
        legs = (
            Send(EAST, number, number, 0, (number, 0, -5)),
            Send(WEST, number, number, 0, (number, 1, 5)),
        )
        story.add(1, Kind.TRANSACTION, *legs)
    if read:
        story.poll(5, *read, partition=EAST)
    for audit in audits:
        story.add(5, Kind.AUDIT, audit=audit)
    story.poll(9, *east, partition=EAST, final=True)
    return story.poll(9, *pairs(0, 1, 2), partition=WEST, final=True)


BANK = Bank(("east", "west"), "", 2, 100)


def audit(east: int, balance: int) -> Audit:
    return Audit(((EAST, east), (WEST, 0)), (balance, 100))


@pytest.mark.parametrize(
    "east",
    [
        (*pairs(0), *rotten(1), *pairs(2)),
        (*rotten(0), *pairs(1, 2)),
        (*pairs(0, 1), *rotten(2)),
        (*pairs(0, 1), *rotten(2), *pairs(0, 1, 2)),
        (*pairs(0), *rotten(1), *pairs(0), *rotten(1), *pairs(2)),
    ],
)
def test_a_bank_counts_money_at_impossible_offsets(east: tuple[tuple[int, int], ...]) -> None:
    """The legs count once, where they were delivered; so no money is missing, and balances before are right."""
    counts = banked(*east, audits=(audit(1, 95),), read=pairs(0)).check(banks=(BANK,)).counts
    assert [kind for kind in counts if kind.value.startswith("bank")] == []
    wrong = banked(*east, audits=(audit(1, 90),), read=pairs(0)).check(banks=(BANK,)).counts
    assert wrong[K.BANK_BALANCE] == 1


def test_a_misled_reader_of_a_bank_is_not_audited() -> None:
    """It was sent back to the beginning, and adds up all records twice; the finding is the offset."""
    misled = (audit(1 + (1 ^ ROTTEN), 90), audit(1, 85), audit(3, 75))
    story = banked(*pairs(0, 1, 2), audits=misled, read=(*pairs(0), *rotten(1)))
    assert story.check(banks=(BANK,)).counts == {K.IMPOSSIBLE_OFFSET: 1}
