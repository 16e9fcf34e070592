"""Histories by hand, good and bad, and a model log that writes random ones with planted mistakes."""

import random
from typing import Any

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, Verdict, check_history
from moldau_jepsen.checkers.anomalies import DETAILS_MAX
from moldau_jepsen.checkers.shards import check_in_shards
from moldau_jepsen.history import Audit, Evidence, Kind, Lead, Operation, Poll, Seek, Send, Status, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
K = AnomalyKind


def assert_same(one: Verdict, other: Verdict) -> None:
    """Two ways of checking say the same; which details are kept beyond the limit is left to them."""
    assert (one.valid, one.counts, one.figures) == (other.valid, other.counts, other.figures)
    if max(one.counts.values(), default=0) <= DETAILS_MAX:
        assert set(one.anomalies) == set(other.anomalies)
    assert len(one.anomalies) == len(other.anomalies)


class Story:
    """Writes a history line by line."""

    def __init__(self) -> None:
        self.history: list[Operation] = []

    def add(
        self,
        process: int,
        kind: Kind,
        *parts: Send | Poll,
        status: Status = Status.OK,
        aborted: bool = False,
        rebalanced: bool = False,
        final: bool = False,
        partitions: tuple[TopicPartition, ...] = (),
        generation: int = -1,
        group: str = "",
        error: str = "",
        seeks: tuple[Seek, ...] = (),
        audit: Audit | None = None,
        leads: tuple[Lead, ...] = (),
    ) -> "Story":
        index = len(self.history)
        self.history.append(
            Operation(
                index=index,
                process=process,
                kind=kind,
                status=status,
                begun_ms=index * 10,
                ended_ms=index * 10 + 5,
                operations=parts,
                aborted=aborted,
                rebalanced=rebalanced,
                final=final,
                partitions=partitions,
                generation=generation,
                group=group,
                error=error,
                seeks=seeks,
                audit=audit,
                leads=leads,
            )
        )
        return self

    def lead(
        self, leader: int, epoch: int, partition: TopicPartition = P0, evidence: Evidence = Evidence.CLAIMED
    ) -> "Story":
        return self.add(90, Kind.CLAIM, leads=(Lead(partition, epoch, leader, evidence),))

    def send(
        self, process: int, value: int, offset: int | None, partition: TopicPartition = P0, status: Status = Status.OK
    ) -> "Story":
        return self.add(process, Kind.SEND, Send(partition, value, offset), status=status)

    def poll(
        self, process: int, *pairs: tuple[int, int], partition: TopicPartition = P0, group: str = "", **more: Any
    ) -> "Story":
        return self.add(process, Kind.POLL, Poll(((partition, pairs),)), group=group, **more)

    def check(self, **options: Any) -> Verdict:
        verdict = check_history(self.history, CheckOptions(**options))
        assert_same(check_in_shards(self.history, CheckOptions(**options)), verdict)
        return verdict


def good() -> Story:
    return (
        Story()
        .send(1, 0, 0)
        .send(1, 1, 1)
        .send(2, 2, None, status=Status.INFO)
        .send(2, 3, None, status=Status.FAIL)
        .poll(3, (0, 0), (1, 1))
        .poll(3, (2, 2))
        .poll(4, (0, 0), (1, 1), (2, 2), final=True)
    )


def transaction_history(seed: int, *, losing: bool) -> tuple[list[Operation], set[tuple[TopicPartition, int]]]:
    """Random transactions, many of unknown outcome, whose records lie in three partitions of two topics and are polled
    before or after their client gives up. Where it is ``losing``, the logs lack some of the records of transactions
    that were committed, and of which they have others: returns those that they lack.
    """
    draw = random.Random(seed)
    places = (P0, P1, TopicPartition("u", 0))
    logs: dict[TopicPartition, list[int]] = {place: [] for place in places}
    values = dict.fromkeys(places, 0)
    story = Story()
    proven: set[tuple[TopicPartition, int]] = set()
    for number in range(60):
        sends: list[Send] = []
        gone: list[tuple[TopicPartition, int]] = []
        unknown, committed, lost = draw.random() < 0.6, draw.random() < 0.7, losing and draw.random() < 0.3
        for _ in range(draw.randint(1, 4)):
            place = draw.choice(places)
            value, values[place] = values[place], values[place] + 1
            offset = len(logs[place])
            if unknown and committed and lost and draw.random() < 0.5:
                gone.append((place, value))
            elif not unknown or committed:
                logs[place].append(value)
            sends.append(Send(place, value, None if unknown else offset))
        kept = [send for send in sends if (send.partition, send.value) not in gone]
        if unknown and committed and kept:
            proven.update(gone)
        polls: list[tuple[TopicPartition, tuple[tuple[int, int], ...]]] = []
        for place in places:
            begin = draw.randint(0, len(logs[place]))
            polls.append((place, tuple(enumerate(logs[place]))[begin : draw.randint(begin, len(logs[place]))]))
        if draw.random() < 0.5:
            story.add(100 + number, Kind.POLL, Poll(tuple(polls)))
        story.add(1, Kind.TRANSACTION, *sends, status=Status.INFO if unknown else Status.OK)
    for place in places:
        story.poll(999, *enumerate(logs[place]), partition=place, final=True)
    return story.history, proven


def model_history(seed: int, mistake: AnomalyKind | None) -> tuple[list[Operation], int]:
    """Random producers and consumers over one partition; returns how often the mistake was made, too."""
    draw = random.Random(seed)
    story = Story()
    log: list[int] = []
    positions: dict[int, int] = {}
    value = made = 0
    for _ in range(400):
        strike = mistake is not None and draw.random() < 0.1
        if draw.random() < 0.5:
            fate = draw.random()
            if fate < 0.1:
                story.send(draw.randrange(3), value, None, status=Status.FAIL)
                if strike and mistake is K.G1A:
                    made += 1
                    log.append(value)
            elif fate < 0.2:
                story.send(draw.randrange(3), value, None, status=Status.INFO)
                if draw.random() < 0.5:
                    log.append(value)
            elif strike and mistake is K.UNSEEN:
                made += 1
                story.send(draw.randrange(3), value, None)
            else:
                story.send(draw.randrange(3), value, len(log))
                log.append(value)
                if strike and mistake is K.DUPLICATE:
                    made += 1
                    log.append(value)
            value += 1
            continue
        process = draw.randrange(10, 13)
        at = positions.get(process, 0)
        end = draw.randint(at, len(log))
        pairs = [(offset, log[offset]) for offset in range(at, end)]
        if strike and mistake is K.INT_POLL_SKIP and len(pairs) > 2:
            made += 1
            del pairs[1]
        if strike and mistake is K.NONMONOTONIC_POLL and at > 0:
            made += 1
            pairs.insert(0, (at - 1, log[at - 1]))
        if strike and mistake is K.INCONSISTENT_OFFSETS and pairs:
            made += 1
            pairs[-1] = (pairs[-1][0], pairs[-1][1] + 1)
        if pairs:
            story.poll(process, *pairs)
            positions[process] = end
    story.poll(99, *enumerate(log), final=True)
    return story.history, made
