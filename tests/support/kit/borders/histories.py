"""The borders of the checkers of one history (``checkers.check``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau_jepsen.checkers import AnomalyKind, Bank
from moldau_jepsen.checkers.log.reach import GAP_MAX, OFFSET_END
from moldau_jepsen.history import Audit, Kind, Poll, Seek, Send, Status, TopicPartition
from support.kit.borders.border import Border, Found
from support.kit.golden_histories import P0, P1, Story

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE, TARGET, DEBITS, CREDITS, REQUESTS = (TopicPartition(name, 0) for name in ("in", "out", "d", "c", "r"))
BANK = Bank(topics=("d", "c"), requests="r", accounts=2, opening=10)


def judged(story: Story, **options: Any) -> Callable[[], Found]:
    """Returns the judgement of a history: what is not allowed, and cycles of writes, which never are an error."""

    def found() -> Found:
        verdict = story.check(**options)
        kinds = {each.kind for each in verdict.anomalies if not each.allowed or each.kind is AnomalyKind.G0}
        return {kind.value for kind in kinds}

    return found


def running(story: Story, **options: Any) -> Callable[[], Found]:
    """The same of a history without a final phase."""
    return judged(story, final_phase=False, **options)


def polled(*offsets: int, sent: int = 6, at_once: bool = False) -> Story:
    """Values at the offsets of their numbers, and one process that polls some of them, at once or one by one."""
    story = Story()
    for value in range(sent):
        story.send(1, value, value)
    if at_once:
        return story.poll(2, *((offset, offset) for offset in offsets))
    for offset in offsets:
        story.poll(2, (offset, offset))
    return story


def sought(target: int, offset: int) -> Story:
    return (
        Story()
        .send(1, 3, 3)
        .send(1, 5, 5)
        .add(2, Kind.SEEK, seeks=(Seek(P0, target),))
        .poll(2, (offset, offset))
        .poll(9, (3, 3), (5, 5), final=True)
    )


def sought_time(found_timestamp: int = 100, offset: int = 1, bound: int = 1) -> Story:
    seek = Seek(P0, offset, 100, found_timestamp, bound)
    story = Story().send(1, 0, 0).send(1, 1, 1).send(1, 2, 2)
    return story.add(2, Kind.SEEK, seeks=(seek,)).poll(9, (0, 0), (1, 1), (2, 2), final=True)


def landed(*offsets: int, apart: bool = True) -> Story:
    sends = [Send(P0, value, offset) for value, offset in enumerate(offsets)]
    if not apart:
        return Story().add(1, Kind.TRANSACTION, *sends)
    story = Story()
    for send in sends:
        story.add(1, Kind.SEND, send)
    return story


def digested(sent: int, received: int, value: int = 0) -> Story:
    story = Story().add(1, Kind.SEND, Send(P0, 0, 0, sent))
    return story.add(2, Kind.POLL, Poll(((P0, ((value, value),)),), ((received,),)))


def transaction(status: Status = Status.OK, *, final: tuple[TopicPartition, ...] = (P0, P1)) -> Story:
    """A record in each of two partitions; the final phase reads those of ``final``."""
    story = Story().add(1, Kind.TRANSACTION, Send(P0, 0, None), Send(P1, 0, None), status=status)
    for partition in final:
        story.poll(9, (0, 0), partition=partition, final=True)
    return story


def own_read(offset: int) -> Story:
    """A transaction whose first record is at offset 5 polls another one."""
    story = Story().send(7, 0, 4).send(7, 2, 6)
    return story.add(1, Kind.TRANSACTION, Send(P0, 1, 5), Poll(((P0, ((offset, {4: 0, 6: 2}[offset]),)),)))


def crossed(*, both: bool, by_reads: bool) -> Story:
    """Two transactions that depend on each other, or the second one on the first."""
    if by_reads:
        polls = [Poll(((P1, ((0, 0),)),)), Poll(((P0, ((0, 0),)),))]
        story = Story().add(1, Kind.TRANSACTION, *([polls[0]] if both else []), Send(P0, 0, 0))
        return story.add(2, Kind.TRANSACTION, polls[1], Send(P1, 0, 0))
    first, second = (0, 1), (1, 0) if both else (0, 1)
    story = Story().add(1, Kind.TRANSACTION, Send(P0, 0, first[0]), Send(P1, 0, second[0]))
    story.add(2, Kind.TRANSACTION, Send(P0, 1, first[1]), Send(P1, 1, second[1]))
    return story.poll(3, (0, 0), (1, 1)).poll(3, (second[0], 0), (second[1], 1), partition=P1)


def owned(generation: int, other: int) -> Story:
    story = Story().add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=generation)
    return story.add(2, Kind.SUBSCRIBE, partitions=(P0,), generation=other)


def piped(*origins: int, sent: int | None = None, read: int = 3) -> Story:
    """A pipe of three records; the target has those made from ``origins``, and perhaps more than were taken."""
    story = Story()
    for value in range(3):
        story.send(1, value, value, partition=SOURCE)
    for value, origin in enumerate(origins):
        copies = [Send(TARGET, value, value)]
        if sent is not None and origin == origins[-1]:
            copies += [Send(TARGET, value + more, value + more) for more in range(1, sent)]
        story.add(5, Kind.TRANSACTION, Poll(((SOURCE, ((origin, origin),)),)), *copies)
    story.poll(9, *((value, value) for value in range(read)), partition=SOURCE, final=True)
    made = len(origins) + (sent or 1) - 1
    return story.poll(9, *((value, value) for value in range(made)), partition=TARGET, final=True)


def banked(
    *legs: tuple[int, int],
    status: Status = Status.OK,
    read: tuple[bool, bool] = (True, True),
    requested: int | None = 7,
    audit: Audit | None = None,
) -> Story:
    """A transfer 7 of one transaction, with a leg in each partition, and readers that saw some of them."""
    story = Story()
    if requested is not None:
        story.add(1, Kind.SEND, Send(REQUESTS, 0, 0, 0, (requested,)))
    places = (DEBITS, CREDITS)
    sends = [Send(place, 0, None, 0, (7, *leg)) for place, leg in zip(places, legs, strict=True)]
    story.add(2, Kind.TRANSACTION, *sends, status=status)
    if audit is not None:
        story.add(3, Kind.AUDIT, audit=audit)
    if requested is not None:
        story.poll(9, (0, 0), partition=REQUESTS, final=True)
    for place, is_read in zip(places, read, strict=True):
        if is_read:
            story.poll(9, (0, 0), partition=place, final=True)
    return story


def bank(story: Story, accounts: Bank = BANK) -> Callable[[], Found]:
    return judged(story, banks=(accounts,))


def moved_twice() -> Story:
    """One transfer in two transactions."""
    story = banked((0, -4), (1, 4))
    story.history.pop()
    story.history.pop()
    story.add(2, Kind.TRANSACTION, *(Send(place, 1, None, 0, (7, *leg)) for place, leg in _LEGS))
    for place, _ in _LEGS:
        story.poll(9, (0, 0), (1, 1), partition=place, final=True)
    return story


_PIPES = (("in", "out"),)
_LEGS = ((DEBITS, (0, -4)), (CREDITS, (1, 4)))
WITHOUT_REQUESTS = BANK._replace(requests="")
MOVED = banked((0, -4), (1, 4))


def balances(first: int, debits: int = 1) -> Story:
    return banked((0, -4), (1, 4), audit=Audit(((DEBITS, debits), (CREDITS, 1)), (first, 14)))


BORDERS = (
    Border(
        "inconsistent-offsets", "the next offset", running(Story().send(1, 0, 0).poll(2, (0, 1))), running(polled(0))
    ),
    Border(
        "impossible-offset",
        "above the known ones",
        running(Story().send(1, 0, 0).poll(2, (GAP_MAX + 1, 0))),
        running(Story().send(1, 0, 0).poll(2, (0, 0))),
    ),
    Border("impossible-offset", "below 0", running(Story().send(1, 0, -1)), running(Story().send(1, 0, 0))),
    Border(
        "impossible-offset",
        "the greatest of all",
        running(Story().send(1, 0, OFFSET_END), new_topics=False),
        running(Story().send(1, 0, OFFSET_END - 1), new_topics=False),
    ),
    Border(
        "duplicate",
        "another value",
        running(Story().send(1, 0, 0).poll(2, (1, 0))),
        running(Story().send(1, 0, 0).send(1, 1, 1).poll(2, (0, 0), (1, 1))),
    ),
    Border(
        "lost-write",
        "the highest polled offset",
        running(Story().send(1, 0, 1).send(3, 1, 1).poll(2, (1, 1))),
        running(Story().send(1, 0, 2).send(3, 1, 1).poll(2, (1, 1))),
    ),
    Border(
        "unseen",
        "an acknowledgement",
        judged(Story().send(1, 0, None)),
        judged(Story().send(1, 0, None, status=Status.INFO)),
    ),
    Border(
        "unseen",
        "a poll of a record without an acknowledgement",
        judged(Story().send(1, 0, None, status=Status.INFO).poll(2, (0, 0))),
        judged(Story().send(1, 0, None, status=Status.INFO).poll(2, (0, 0)).poll(9, (0, 0), final=True)),
    ),
    Border(
        "G1a",
        "a failure",
        running(Story().send(1, 0, None, status=Status.FAIL).poll(2, (0, 0))),
        running(Story().send(1, 0, None, status=Status.INFO).poll(2, (0, 0))),
    ),
    Border(
        "torn-transaction", "all of it", judged(transaction(Status.INFO, final=(P0,))), judged(transaction(Status.INFO))
    ),
    Border(
        "torn-transaction",
        "nothing of it",
        judged(transaction(Status.INFO, final=(P1,))),
        judged(transaction(Status.INFO, final=())),
    ),
    Border("precommitted-read", "the first own record", running(own_read(6)), running(own_read(4))),
    Border("int-poll-skip", "a known record", running(polled(0, 2, at_once=True)), running(polled(0, 1, at_once=True))),
    Border(
        "int-nonmonotonic-poll",
        "the same offset",
        running(polled(0, 0, at_once=True)),
        running(polled(0, 1, at_once=True)),
    ),
    Border("poll-skip", "a known record", running(polled(0, 2)), running(polled(0, 1))),
    Border(
        "poll-skip",
        "an offset of a marker",
        running(Story().send(1, 0, 0).send(1, 1, 1).send(1, 2, 2).poll(2, (0, 0)).poll(2, (2, 2))),
        running(Story().send(1, 0, 0).send(1, 2, 2).poll(2, (0, 0)).poll(2, (2, 2))),
    ),
    Border("nonmonotonic-poll", "the same offset", running(polled(0, 0)), running(polled(0, 1))),
    Border("seek-missed", "before the target", judged(sought(4, 3)), judged(sought(3, 3))),
    Border("seek-missed", "behind the first record", judged(sought(3, 5)), judged(sought(4, 5))),
    Border("seek-missed", "the time", judged(sought_time(99)), judged(sought_time(100))),
    Border("seek-missed", "a known record of the time", judged(sought_time(offset=2)), judged(sought_time(offset=1))),
    Border("altered-record", "the digest", running(digested(7, 8)), running(digested(7, 7))),
    Border(
        "altered-record",
        "the greatest digest",
        running(digested((1 << 32) - 1, 1)),
        running(digested((1 << 32) - 1, (1 << 32) - 1)),
    ),
    Border(
        "altered-record", "behind the last value", running(digested(7, 7, value=1)), running(digested(7, 7, value=0))
    ),
    Border(
        "group-skip",
        "the first record",
        judged(polled(sent=2).poll(3, (1, 1), group="g").poll(9, (0, 0), (1, 1), final=True)),
        judged(polled(sent=2).poll(3, (0, 0), group="g").poll(9, (0, 0), (1, 1), final=True)),
    ),
    Border(
        "int-nonmonotonic-send",
        "the same offset",
        running(landed(1, 1, apart=False)),
        running(landed(1, 2, apart=False)),
    ),
    Border(
        "int-nonmonotonic-send",
        "the offset before",
        running(landed(1, 0, apart=False)),
        running(landed(0, 1, apart=False)),
    ),
    Border("nonmonotonic-send", "the same offset", running(landed(1, 1)), running(landed(1, 2))),
    Border("nonmonotonic-send", "the offset before", running(landed(1, 0)), running(landed(0, 1))),
    Border(
        "G0", "both ways", running(crossed(both=True, by_reads=False)), running(crossed(both=False, by_reads=False))
    ),
    Border("G1c", "both ways", running(crossed(both=True, by_reads=True)), running(crossed(both=False, by_reads=True))),
    Border("dual-ownership", "the generation", running(owned(4, 4)), running(owned(4, 5))),
    Border("dual-ownership", "the first generation", running(owned(0, 0)), running(owned(-1, -1))),
    Border("split-brain", "the epoch", running(Story().lead(1, 4).lead(2, 4)), running(Story().lead(1, 4).lead(2, 5))),
    Border(
        "split-brain", "the first epoch", running(Story().lead(1, 0).lead(2, 0)), running(Story().lead(1, 0).lead(1, 0))
    ),
    Border("pipe-lost", "the last record", judged(piped(0, 1), pipes=_PIPES), judged(piped(0, 1, 2), pipes=_PIPES)),
    Border("pipe-duplicate", "one more", judged(piped(0, 1, 2, 2), pipes=_PIPES), judged(piped(0, 1, 2), pipes=_PIPES)),
    Border("pipe-disorder", "neighbours", judged(piped(0, 2, 1), pipes=_PIPES), judged(piped(0, 1, 2), pipes=_PIPES)),
    Border(
        "pipe-unknown",
        "more than it took",
        judged(piped(0, 1, 2, sent=2), pipes=_PIPES),
        judged(piped(0, 1, 2, sent=1), pipes=_PIPES),
    ),
    Border("bank-torn-transfer", "one leg", bank(banked((0, -4), (1, 4), read=(True, False))), bank(MOVED)),
    Border("bank-transfer-twice", "two transactions", bank(moved_twice()), bank(MOVED)),
    Border("bank-transfer-twice", "two debits", bank(banked((0, -4), (0, -4))), bank(banked((0, -4), (0, 4)))),
    Border(
        "bank-aborted-transfer",
        "a failure",
        bank(banked((0, -4), (1, 4), status=Status.FAIL)),
        bank(banked((0, -4), (1, 4), status=Status.INFO)),
    ),
    Border(
        "bank-transfer-lost",
        "an acknowledgement",
        bank(banked((0, -4), (1, 4), read=(False, False), requested=None), WITHOUT_REQUESTS),
        bank(banked((0, -4), (1, 4), read=(False, False), requested=None, status=Status.INFO), WITHOUT_REQUESTS),
    ),
    Border("bank-transfer-lost", "a request", bank(banked((0, -4), (1, 4), requested=8)), bank(MOVED)),
    Border(
        "bank-unknown-leg",
        "a record of no transfer",
        bank(Story().send(1, 0, 0, partition=DEBITS).poll(9, (0, 0), partition=DEBITS, final=True)),
        bank(MOVED),
    ),
    Border("bank-total", "one unit", bank(banked((0, -4), (1, 5))), bank(MOVED)),
    Border("bank-balance", "one unit", bank(balances(7)), bank(balances(6))),
    Border("bank-balance", "the position", bank(balances(6, debits=0)), bank(balances(10, debits=0))),
    Border(
        "stuck",
        "the final phase",
        judged(Story().add(9, Kind.POLL, status=Status.INFO, final=True)),
        judged(Story().add(9, Kind.POLL, status=Status.INFO)),
    ),
)
