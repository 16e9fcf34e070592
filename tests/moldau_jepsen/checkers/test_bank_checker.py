"""Goal: a bank that makes, loses, halves or repeats money is convicted, and a sound one is acquitted.

Method: golden histories by hand. Two accounts with 100 each, account 0 in one topic and account 1 in another; each
story breaks one rule, and both check_history and shards report it.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.checkers import AnomalyKind, Bank
from moldau_jepsen.history import Audit, Kind, Poll, Send, Status, TopicPartition
from support.kit.golden_histories import Story

EAST, WEST, ASKED = TopicPartition("east", 0), TopicPartition("west", 0), TopicPartition("asked", 0)
BANK = Bank(("east", "west"), "asked", 2, 100)
K = AnomalyKind
SOUND = ((0, 0), (1, 1))


def legs(transfer, value, amount=5):
    """A transfer from account 0 to account 1; its records have the same number in both partitions."""
    return Send(EAST, value, None, 0, (transfer, 0, -amount)), Send(WEST, value, None, 0, (transfer, 1, amount))


class BankStory(Story):
    """Writes what tellers, clerks and readers of the bank did."""

    def transfer(self, transfer, value, **more):
        return self.add(1, Kind.TRANSACTION, *legs(transfer, value), **more)

    def asked(self, transfer, value, status=Status.OK):
        return self.add(2, Kind.SEND, Send(ASKED, value, None, 0, (transfer, 0, 1, 5)), status=status)

    def end(self, east=SOUND, west=SOUND, asked=()):
        for partition, pairs in ((EAST, east), (WEST, west), (ASKED, asked)):
            self.add(9, Kind.POLL, Poll(((partition, tuple(pairs)),)), final=True)
        return self

    def read(self, east=(), west=()):
        return self.add(5, Kind.POLL, Poll(((EAST, tuple(east)), (WEST, tuple(west)))))

    def audit(self, east, west, *balances):
        return self.add(5, Kind.AUDIT, audit=Audit(((EAST, east), (WEST, west)), balances))

    def verdict(self, **options):
        return self.check(banks=(BANK,), **options)

    def found(self, **options):
        """Returns the counts of the bank's own checker; others may find more."""
        counts = self.verdict(**options).counts
        return {kind: count for kind, count in counts.items() if kind.value.startswith("bank")}


def two():
    """Two committed transfers without a read."""
    return BankStory().transfer(0, 0).transfer(1, 1)


def test_a_sound_bank_is_acquitted():
    story = two().transfer(2, 2, aborted=True).transfer(3, 3, status=Status.INFO).transfer(4, 4, status=Status.FAIL)
    assert story.end().verdict().counts == {}
    seen = (*SOUND, (9, 3))
    story = two().transfer(3, 3, status=Status.INFO).end(east=seen, west=seen)
    assert story.verdict().counts == {}, "a transfer of unknown outcome may have taken effect"


def test_other_records_in_the_banks_topics_are_no_legs():
    story = two().add(3, Kind.SEND, Send(EAST, 50, None)).add(3, Kind.SEND, Send(EAST, 51, None, 0, (7,)))
    assert story.end().found() == {}


def test_the_end_offsets_of_partitions_are_no_snapshot():
    """One partition is ahead of the other: the total is off by what is on its way, and that is no anomaly."""
    story = two().read(east=SOUND, west=((0, 0),)).audit(2, 1, 90, 105).read(west=((1, 1),)).audit(2, 2, 90, 110)
    assert story.audit(0, 0, 100, 100).end().verdict().counts == {}


@pytest.mark.parametrize(
    ("balances", "found"),
    [
        ((90, 110), {}),
        ((95, 105), {K.BANK_BALANCE: 1}),
        ((95, 110), {K.BANK_BALANCE: 1}),
        ((90, 105), {K.BANK_BALANCE: 1}),
    ],
)
def test_a_reader_finds_what_lies_below_its_positions(balances, found):
    """The second has missed one transfer altogether: its total is right, and its balances are not."""
    assert two().audit(2, 2, *balances).end().found() == found


def test_an_audit_names_the_account():
    verdict = two().audit(2, 2, 90, 105).end().verdict()
    (anomaly,) = verdict.anomalies
    assert anomaly.text == "process 5 found 105 on account 1, and the records below its position have 110"
    assert anomaly.partition == WEST
    assert 2 in anomaly.operations
    assert not verdict.valid


def test_half_a_transfer():
    for status in (Status.INFO, Status.OK):
        story = BankStory().transfer(0, 0).transfer(1, 1, status=status).end(west=((0, 0),))
        assert story.found() == {K.BANK_TORN: 1, K.BANK_TOTAL: 1}
    torn = next(one for one in story.verdict().anomalies if one.kind is K.BANK_TORN)
    assert torn.text == "transfer 1 is not in west-0 (+5 on account 1), and is in the other partition"
    assert torn.operations[0] == 1


def test_a_transfer_in_two_transactions():
    """A clerk did what another had done: each is whole, the total is right, and account 1 has too much."""
    story = BankStory().asked(0, 0).transfer(0, 0).transfer(0, 1, status=Status.INFO).end(asked=((0, 0),))
    assert story.found() == {K.BANK_TWICE: 1}
    twice = next(one for one in story.verdict().anomalies if one.kind is K.BANK_TWICE)
    assert twice.operations[:2] == (1, 2)
    once = BankStory().asked(0, 0).transfer(0, 0, aborted=True).transfer(0, 1)
    assert once.end(east=((3, 1),), west=((3, 1),), asked=((0, 0),)).verdict().counts == {}


def test_a_transfer_twice_in_one_transaction():
    """The total is right, and each record lies there once."""
    both = BankStory().asked(0, 0).add(1, Kind.TRANSACTION, *legs(0, 0), *legs(0, 1))
    assert both.end(asked=((0, 0),)).found() == {K.BANK_TWICE: 1}
    twice = next(one for one in both.verdict().anomalies if one.kind is K.BANK_TWICE)
    assert twice.text == "transfer 0 took effect twice in one transaction"
    two_ = BankStory().asked(0, 0).asked(1, 1).add(1, Kind.TRANSACTION, *legs(0, 0), *legs(1, 1))
    assert two_.end(asked=SOUND).verdict().counts == {}, "two transfers in one transaction"


def test_a_leg_at_two_offsets():
    assert two().end(east=(*SOUND, (2, 1))).found() == {K.BANK_TWICE: 1, K.BANK_TOTAL: 1}


@pytest.mark.parametrize("more", [{"aborted": True}, {"status": Status.FAIL}, {"status": Status.FAIL, "aborted": True}])
def test_an_aborted_transfer_is_read_in_the_end_or_on_the_way(more):
    assert two().transfer(2, 2, **more).end(east=(*SOUND, (2, 2)), west=(*SOUND, (2, 2))).found() == {K.BANK_ABORTED: 1}
    seen = two().read(east=(*SOUND, (2, 2))).transfer(2, 2, **more).end()
    assert seen.found() == {K.BANK_ABORTED: 1}
    assert not seen.verdict().valid
    assert seen.verdict(read_committed=False).counts[K.BANK_ABORTED] == 1
    assert seen.verdict(read_committed=False).valid


def test_an_acknowledged_transfer_is_lost():
    assert two().end(east=((0, 0),), west=((0, 0),)).found() == {K.BANK_LOST: 1}
    assert two().end(east=((0, 0),), west=((0, 0),)).found(final_phase=False) == {}


def test_a_request_is_carried_out_once_it_is_in_the_log():
    lost = BankStory().asked(0, 0).asked(1, 1, status=Status.INFO).transfer(0, 0)
    assert lost.end(east=((0, 0),), west=((0, 0),), asked=((0, 0),)).verdict().counts == {}
    assert lost.add(9, Kind.POLL, Poll(((ASKED, ((1, 1),)),)), final=True).found() == {K.BANK_LOST: 1}


def test_a_request_that_is_gone_was_never_made():
    unsure = BankStory().asked(0, 0, status=Status.INFO)
    assert unsure.transfer(0, 0).end(east=((0, 0),), west=((0, 0),)).found() == {K.BANK_UNKNOWN: 1}
    again = BankStory().asked(0, 0, status=Status.INFO).asked(0, 1).transfer(0, 0)
    assert again.end(east=((0, 0),), west=((0, 0),), asked=((0, 1),)).found() == {}


def test_money_that_no_transfer_moved():
    assert two().end(east=(*SOUND, (2, 7))).found() == {K.BANK_UNKNOWN: 1}


@pytest.mark.parametrize("goes_on", [False, True])
def test_records_that_an_unfinished_read_lacks_are_not_missing(goes_on):
    """A record that an unfinished final read has not seen is not missing, though the read of another topic ends."""
    story = two().audit(2, 2, 90, 110)
    story.add(9, Kind.POLL, Poll(((EAST, ((0, 0),)),)), final=True)
    story.add(9, Kind.POLL, status=Status.INFO, final=True, error="not at the end")
    if goes_on:
        story.add(9, Kind.POLL, Poll(((ASKED, ()),)), final=True)
    assert story.found() == {}
    assert story.verdict().counts[K.STUCK] == 1
