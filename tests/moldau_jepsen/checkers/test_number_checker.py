"""Goal: a number that no workload gave out convicts, and neither ends a judgement nor takes memory for all below it.

Method: golden histories by hand, with numbers of all sizes that foreign and damaged records begin with.
"""

import pytest

from moldau_jepsen.checkers import AnomalyKind, CheckOptions
from moldau_jepsen.checkers.anomalies import Findings
from moldau_jepsen.checkers.log import orders
from moldau_jepsen.checkers.log.orders import Orders
from moldau_jepsen.history import HistoryError, Kind, Poll, Send, Status
from support.kit.golden_histories import P0, P1, Story

K = AnomalyKind
FOREIGN = int.from_bytes(b"0 for 12", "big")


def test_values_that_are_no_numbers_of_a_workload_are_refused() -> None:
    with pytest.raises(HistoryError, match="values are numbers"):
        Story().send(1, 1 << 40, 0).check()


@pytest.mark.parametrize("value", [FOREIGN, (1 << 31) - 1, 1 << 31, (1 << 64) - 1, orders.AHEAD_MAX + 1])
def test_a_polled_number_that_was_never_sent_is_convicted(value: int) -> None:
    """A polled number that no client was given is convicted and uses no memory in the orders."""
    digests = Poll(((P0, ((0, 0), (1, value))),), ((7, 8),))
    story = Story().add(1, Kind.SEND, Send(P0, 0, 0, 7)).poll(2, (1, value)).poll(2, (1, value), rebalanced=True)
    story.add(6, Kind.TRANSACTION, Poll(((P0, ((1, value),)),))).poll(4, (2, value), group="g")
    story.poll(9, (0, 0), (1, value), final=True).add(8, Kind.POLL, digests, rebalanced=True)
    verdict = story.check(subscribe=True, pipes=(("t", "u"),))
    assert set(verdict.counts) == {K.ALTERED, K.GROUP_SKIP, K.PIPE_LOST}
    first, second = (one for one in verdict.anomalies if one.kind is K.ALTERED)
    assert first.text == f"the record at offset 1, with value {value}, was never sent"
    assert (first.partition, first.operations, first.offsets, first.allowed) == (P0, (1,), (1,), False)
    assert second.offsets == (2,), "each record counts once"
    assert verdict.figures.values_seen == 1
    known = Orders(story.history, Findings(CheckOptions()))
    assert len(known.of(P0).marks) == 1, "no memory is taken for it"


def test_a_group_that_skipped_a_record_without_a_send() -> None:
    story = Story().send(1, 0, 1).poll(2, (1, 0), group="g").poll(9, (0, FOREIGN), (1, 0), final=True)
    skip = next(one for one in story.check().anomalies if one.kind is K.GROUP_SKIP)
    assert skip.text == (
        "group g polled offset 1 and skipped a record that was never sent at offset 0 (records skipped: 1)"
    )


def test_values_polled_long_before_their_sends_get_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is polled long before the history has its send gets its place at the end."""
    monkeypatch.setattr(orders, "AHEAD_MAX", 3)

    def story(*more: tuple[int, int]) -> Story:
        reported = Story().send(1, 0, 0).poll(2, *((value, value) for value in range(9)), *more)
        reported.add(3, Kind.TRANSACTION, Send(P0, 8, None), Send(P1, 0, None), status=Status.INFO)
        for value in range(1, 8):
            reported.send(1, value, value)
        reported.poll(9, *((value, value) for value in range(9)), *more, final=True)
        return reported.poll(9, (0, 0), partition=P1, final=True)

    assert story().check().counts == {}
    assert story((9, 7)).check().counts == {K.DUPLICATE: 1}
    assert story((9, 9)).check().counts == {K.ALTERED: 1}
    lost = Story().poll(2, (8, 8)).add(3, Kind.TRANSACTION, Send(P0, 8, None), Send(P1, 0, None), status=Status.INFO)
    found_ = lost.poll(9, (8, 8), final=True).poll(9, (4, 4), partition=P1, final=True).check().counts
    assert found_[K.LOST_WRITE] == 1, "it proves that its transaction was committed"


def test_values_of_a_partition_without_sends_have_rising_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a partition without sends are placed in rising order."""
    monkeypatch.setattr(orders, "AHEAD_MAX", 3)
    assert Story().poll(9, *((value, value) for value in range(50)), final=True).check().counts == {}
    jump = Story().poll(9, (0, 0), (1, 1)).poll(9, (2, 40)).check(final_phase=False)
    assert jump.counts == {K.ALTERED: 1}
