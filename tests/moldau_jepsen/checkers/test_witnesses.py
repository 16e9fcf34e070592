"""Goal: each anomaly names the operations that a person needs to see it: who wrote, who read, and what proves it.

Method: a golden bad history for each kind of the catalogue, with the operations that must be named; both ways of
checking must name them. No kind may be missing here.
"""

from dataclasses import dataclass

import pytest

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.checkers.anomalies import DETAILS_MAX, Bank, Findings
from moldau_jepsen.checkers.shards import check_in_shards
from moldau_jepsen.checkers.witnesses import TAKEN_MAX, WitnessKind, WitnessQuery, name_witnesses
from moldau_jepsen.history import Audit, Evidence, Kind, Lead, Operation, Poll, Seek, Send, Status, TopicPartition
from support.kit.golden_histories import P0, P1, Story

K = AnomalyKind
IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)
PIPE = CheckOptions(pipes=(("in", "out"),))
ASKED = TopicPartition("asked", 0)
FINAL, WITHOUT_FINAL = CheckOptions(), CheckOptions(final_phase=False)
BANK = CheckOptions(banks=(Bank(("t",), "asked", 2, 100),))


@dataclass(frozen=True)
class Case:
    """A bad history; ``needed`` are the operations behind its anomaly of ``kind``."""

    kind: AnomalyKind
    story: Story
    needed: tuple[int, ...]
    options: CheckOptions = WITHOUT_FINAL
    offsets: tuple[int, ...] = ()


def leg(value: int, transfer: int, account: int, amount: int, partition: TopicPartition) -> Send:
    return Send(partition, value, None, says=(transfer, account, amount))


def bank(*final: TopicPartition, status: Status = Status.OK, aborted: bool = False) -> Story:
    """Operation 0 asks for transfer 7, 1 carries it out with a leg in each partition; the final read sees ``final``."""
    story = Story().add(1, Kind.SEND, Send(ASKED, 0, 0, says=(7,)))
    legs = (leg(0, 7, 0, -5, P0), leg(0, 7, 1, 5, P1))
    story.add(2, Kind.TRANSACTION, *legs, status=status, aborted=aborted)
    story.poll(9, (0, 0), partition=ASKED, final=True)
    for partition in final:
        story.poll(9, (0, 0), partition=partition, final=True)
    return story


def pipe(*target: tuple[int, int], source: tuple[int, ...] = (0, 1)) -> Story:
    """Operations 0 and 1 feed the pipe, 2 makes value 0, 3 makes value 1 and 4 value 2, both from value 1."""
    story = Story().add(1, Kind.SEND, Send(IN, 0, 0)).add(1, Kind.SEND, Send(IN, 1, 1))
    for made, of in ((0, 0), (1, 1), (2, 1)):
        taken = Poll(((IN, ((of, of),)),))
        story.add(2, Kind.TRANSACTION, taken, Send(OUT, made, None), status=Status.INFO, rebalanced=True)
    story.poll(9, *((value, value) for value in source), partition=IN, final=True)
    return story.poll(9, *target, partition=OUT, final=True)


def three() -> Story:
    return Story().send(1, 0, 0).send(1, 1, 1).send(1, 2, 2)


def split_brain() -> Story:
    story = Story().send(1, 0, 0)
    for broker in (1, 2):
        story.history.append(
            Operation(
                index=len(story.history),
                process=3,
                kind=Kind.CLAIM,
                status=Status.OK,
                begun_ms=1,
                ended_ms=2,
                leads=(Lead(P0, 4, broker, Evidence.CLAIMED),),
            )
        )
    return story


def seek(offset: int, **more: int) -> Story:
    story = three()
    story.history.append(
        Operation(
            index=3,
            process=5,
            kind=Kind.SEEK,
            status=Status.OK,
            begun_ms=1,
            ended_ms=2,
            seeks=(Seek(P0, offset, **more),),
        )
    )
    return story


def audit() -> Story:
    story = bank(P0, P1)
    story.history.append(
        Operation(
            index=len(story.history),
            process=8,
            kind=Kind.AUDIT,
            status=Status.OK,
            begun_ms=1,
            ended_ms=2,
            audit=Audit(((P0, 1), (P1, 1)), (90, 105)),
        )
    )
    return story


def altered() -> Story:
    story = Story().add(1, Kind.SEND, Send(P0, 0, 0, digest=5))
    return story.add(2, Kind.POLL, Poll(((P0, ((0, 0),)),), ((6,),)))


CASES = {
    "an offset that no log has": Case(
        K.IMPOSSIBLE_OFFSET,
        Story().send(1, 0, 0).poll(2, (1 << 49, 0), (1 << 50, 0)),
        (0, 1),
        offsets=(1 << 49, 1 << 50),
    ),
    "an acknowledged offset that no log has": Case(
        K.IMPOSSIBLE_OFFSET, Story().send(1, 0, 1 << 49), (0,), offsets=(1 << 49,)
    ),
    "two values, both polled": Case(
        K.INCONSISTENT_OFFSETS,
        Story()
        .send(1, 0, None, status=Status.INFO)
        .poll(2, (0, 0))
        .send(3, 1, None, status=Status.INFO)
        .poll(4, (0, 1)),
        (0, 1, 2, 3),
        offsets=(0,),
    ),
    "two values, both acknowledged": Case(
        K.INCONSISTENT_OFFSETS, Story().send(1, 0, 0).send(2, 1, 0), (0, 1), offsets=(0,)
    ),
    "duplicate of an acknowledged value": Case(
        K.DUPLICATE, Story().send(1, 0, 0).poll(2, (0, 0)).poll(2, (1, 0)), (0, 2), offsets=(0, 1)
    ),
    "duplicate of a value of unknown fate": Case(
        K.DUPLICATE,
        Story().send(1, 0, None, status=Status.INFO).poll(2, (3, 0)).poll(2, (4, 0)),
        (0, 1, 2),
        offsets=(3, 4),
    ),
    "lost": Case(K.LOST_WRITE, three().poll(2, (0, 0)).poll(3, (2, 2)), (1, 4), offsets=(1, 2)),
    "unseen though acknowledged": Case(
        K.UNSEEN,
        three().poll(2, (0, 0), (1, 1)).poll(9, (0, 0), final=True).poll(9, (2, 2), final=True),
        (1, 3, 5),
        FINAL,
        (1,),
    ),
    "unseen though polled": Case(
        K.UNSEEN,
        Story().send(1, 0, 0).send(1, 1, None, status=Status.INFO).poll(2, (0, 0), (1, 1)).poll(9, (0, 0), final=True),
        (1, 2, 3),
        FINAL,
        (1,),
    ),
    "unseen at an unknown offset": Case(
        K.UNSEEN,
        Story().send(1, 0, 0).send(1, 1, None).poll(9, (0, 0), final=True).poll(9, (0, 0), final=True),
        (1, 3),
        FINAL,
    ),
    "failed write polled": Case(
        K.G1A, Story().send(1, 0, None, status=Status.FAIL).poll(2, (4, 0)).poll(3, (4, 0)), (0, 1), offsets=(4,)
    ),
    "torn": Case(
        K.TORN,
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, None), Send(P1, 0, None), status=Status.INFO)
        .poll(2, (0, 0), final=True),
        (0, 1),
        FINAL,
    ),
    "own read": Case(
        K.PRECOMMITTED_READ, Story().add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P0, ((0, 0),)),))), (0,)
    ),
    "skip within a poll": Case(K.INT_POLL_SKIP, three().poll(5, (0, 0), (2, 2)), (1, 3), offsets=(0, 1, 2)),
    "skip between polls": Case(K.POLL_SKIP, three().poll(5, (0, 0)).poll(5, (2, 2)), (1, 3, 4), offsets=(0, 1, 2)),
    "back within a poll": Case(K.INT_NONMONOTONIC_POLL, three().poll(5, (1, 1), (0, 0)), (3,), offsets=(1, 0)),
    "back between polls": Case(K.NONMONOTONIC_POLL, three().poll(5, (1, 1)).poll(5, (0, 0)), (3, 4), offsets=(1, 0)),
    "a seek that skips": Case(
        K.SEEK_MISSED, seek(1).poll(5, (2, 2)).poll(9, (0, 0), (1, 1), (2, 2), final=True), (1, 3, 4), FINAL, (2, 1)
    ),
    "a seek by time behind what was known": Case(
        K.SEEK_MISSED,
        seek(2, timestamp=50, found_timestamp=60, bound=1).poll(9, (0, 0), (1, 1), (2, 2), final=True),
        (1, 3),
        FINAL,
    ),
    "altered": Case(K.ALTERED, altered(), (0, 1)),
    "group skip": Case(
        K.GROUP_SKIP,
        three()
        .poll(2, (0, 0), group="g", rebalanced=True)
        .poll(3, (2, 2), group="g", rebalanced=True)
        .poll(9, (0, 0), (1, 1), (2, 2), final=True),
        (1, 3, 4, 5),
        FINAL,
        (1, 2),
    ),
    "send before send in one operation": Case(
        K.INT_NONMONOTONIC_SEND, Story().add(1, Kind.SEND, Send(P0, 0, 5), Send(P0, 1, 4)), (0,), offsets=(5, 4)
    ),
    "send before send": Case(K.NONMONOTONIC_SEND, Story().send(1, 0, 5).send(1, 1, 4), (0, 1), offsets=(5, 4)),
    "cycle of writes": Case(
        K.G0,
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, 0), Send(P1, 0, 1))
        .add(2, Kind.TRANSACTION, Send(P0, 1, 1), Send(P1, 1, 0)),
        (0, 1),
    ),
    "cycle of reads": Case(
        K.G1C,
        Story()
        .add(1, Kind.TRANSACTION, Send(P0, 0, 0), Poll(((P1, ((0, 0),)),)))
        .add(2, Kind.TRANSACTION, Send(P1, 0, 0), Poll(((P0, ((0, 0),)),))),
        (0, 1),
    ),
    "two owners": Case(
        K.DUAL_OWNERSHIP,
        Story()
        .add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=5)
        .add(2, Kind.SUBSCRIBE, partitions=(P0,), generation=5),
        (0, 1),
    ),
    "two leaders": Case(K.SPLIT_BRAIN, split_brain(), (1, 2)),
    "pipe lost": Case(K.PIPE_LOST, pipe((0, 0)), (1, 3, 4, 5), PIPE, (1,)),
    "pipe twice": Case(K.PIPE_DUPLICATE, pipe((0, 0), (1, 1), (2, 2)), (1, 3, 4, 5), PIPE, (1,)),
    "pipe in disorder": Case(K.PIPE_DISORDER, pipe((0, 1), (1, 0)), (2, 3, 6), PIPE, (1,)),
    "pipe made from what was not kept": Case(K.PIPE_UNKNOWN, pipe((0, 0), (1, 1), source=(0,)), (3, 6), PIPE, (1,)),
    "pipe made from nothing": Case(K.PIPE_UNKNOWN, pipe((0, 0), (1, 1), (2, 9)), (6,), PIPE, (2,)),
    "half a transfer": Case(K.BANK_TORN, bank(P0), (1, 3), BANK),
    "a transfer twice": Case(
        K.BANK_TWICE,
        bank(P0, P1)
        .add(3, Kind.TRANSACTION, leg(1, 7, 0, -5, P0), leg(1, 7, 1, 5, P1))
        .poll(9, (1, 1), final=True)
        .poll(9, (1, 1), partition=P1, final=True),
        (1, 3, 5, 6),
        BANK,
    ),
    "an aborted transfer": Case(K.BANK_ABORTED, bank(P0, P1, aborted=True), (1, 3), BANK),
    "a lost transfer": Case(K.BANK_LOST, bank(status=Status.INFO), (0, 2), BANK),
    "a leg of no transfer": Case(K.BANK_UNKNOWN, bank(P0, P1).poll(9, (1, 4), final=True), (5,), BANK, (1,)),
    "money made": Case(K.BANK_TOTAL, bank(P0), (), BANK),
    "another balance": Case(K.BANK_BALANCE, audit(), (5,), BANK),
    "stuck": Case(K.STUCK, three().add(5, Kind.POLL, status=Status.INFO, final=True, error="never"), (3,)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_an_anomaly_names_the_operations_behind_it(name: str) -> None:
    case = CASES[name]
    for check in (check_history, check_in_shards):
        anomalies = [one for one in check(case.story.history, case.options).anomalies if one.kind is case.kind]
        assert anomalies, check.__name__
        named = {one for anomaly in anomalies for one in anomaly.operations}
        assert set(case.needed) <= named, check.__name__
        for anomaly in anomalies:
            assert list(anomaly.operations) == sorted(set(anomaly.operations))
        if case.offsets:
            assert case.offsets in [anomaly.offsets for anomaly in anomalies]


def test_no_kind_is_left_out() -> None:
    assert {case.kind for case in CASES.values()} == set(AnomalyKind)
    empty = [case.kind for case in CASES.values() if not case.needed]
    assert empty == [K.BANK_TOTAL], "a sum over all accounts has no operation of its own"


def test_the_first_of_several_witnesses_is_named_and_no_more() -> None:
    story = Story().send(1, 0, None, status=Status.FAIL)
    for process in range(2, 50):
        story.poll(process, (4, 0))
    (anomaly,) = check_history(story.history, CheckOptions(final_phase=False)).anomalies
    assert anomaly.operations == (0, 1)
    lost = Story().add(1, Kind.SEND, Send(IN, 0, 0))
    for process in range(2, 50):
        lost.add(process, Kind.TRANSACTION, Poll(((IN, ((0, 0),)),)), aborted=True)
    lost.poll(99, (0, 0), partition=IN, final=True)
    (anomaly,) = check_history(lost.history, PIPE).anomalies
    assert anomaly.operations == (0, *range(1, TAKEN_MAX + 1), 49)


class Counted:
    """A history that counts how often it is read."""

    def __init__(self, history: list[Operation]) -> None:
        self.history, self.times = history, 0

    def __iter__(self):
        self.times += 1
        return iter(self.history)


def test_histories_are_read_a_third_time_only_for_anomalies() -> None:
    """The checkers read a history twice, and a third time if it has anomalies."""
    good, bad = Counted(three().history), Counted(three().poll(5, (0, 0), (2, 2)).history)
    for history, times in ((good, 2), (bad, 3)):
        check_history(history, CheckOptions(final_phase=False))
        assert history.times == times


def test_witnesses_of_anomalies_are_bounded() -> None:
    findings = Findings(CheckOptions())
    story = Story()
    for value in range(3 * DETAILS_MAX):
        story.send(1, value, value)
    story.poll(9, (3 * DETAILS_MAX, 3 * DETAILS_MAX), final=True)
    verdict = check_history(story.history, findings.options)
    assert verdict.counts[K.UNSEEN] == 3 * DETAILS_MAX
    unseen = [one for one in verdict.anomalies if one.kind is K.UNSEEN]
    assert [one.operations for one in unseen] == [(value, 3 * DETAILS_MAX) for value in range(DETAILS_MAX)]


def named(story: Story, *sought: WitnessQuery) -> tuple[int, ...]:
    """Returns the operations that queries about one anomaly find in a history."""
    findings = Findings(CheckOptions())
    findings.add(K.DUPLICATE, "twice", sought=sought)
    name_witnesses(story.history, findings)
    return findings.kept[0].operations


@pytest.mark.parametrize("fate", [{"status": Status.INFO}, {"status": Status.FAIL}, {"aborted": True}], ids=str)
def test_only_a_send_that_took_effect_has_an_offset(fate):
    """A transaction knows the offsets of its sends before its own outcome."""
    story = Story().add(1, Kind.TRANSACTION, Send(P0, 7, 3), **fate).add(2, Kind.SEND, Send(P0, 8, 3))
    assert named(story, WitnessQuery(WitnessKind.SEEN, P0, offset=3)) == (1,)
    assert named(story, WitnessQuery(WitnessKind.SENT, P0, value=7)) == (0,)


def test_only_transactions_take_records_and_each_counts_once():
    story = Story().poll(1, (0, 5), partition=P0)
    for process in (2, 3, 4):
        story.add(process, Kind.TRANSACTION, Poll(((P0, ((0, 5),)),)), Poll(((P0, ((0, 5),)),)))
    story.poll(5, (0, 5), partition=P0)
    taken = tuple(range(1, 4))[:TAKEN_MAX]
    assert named(story, WitnessQuery(WitnessKind.TAKEN, P0, value=5)) == taken
