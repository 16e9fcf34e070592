"""The borders of the judges of groups, whose histories are events with times.

An interval counts only where it is certain. Times are those of one clock: an event that ends as another one begins came
before it, except where a rule says "after"; then the two may be in either order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_jepsen.checkers.group.administered import (
    OPEN,
    Act,
    GroupOperation,
    Membership,
    OffsetRead,
    Parting,
    Sighting,
    check_administered,
)
from moldau_jepsen.checkers.group.dead_letters import DeadLetter
from moldau_jepsen.checkers.group.share import (
    CLOCK_RATE_MAX,
    Acknowledged,
    Acknowledgement,
    Archived,
    Delivered,
    Event,
    Sent,
    check_share_group,
)
from moldau_jepsen.checkers.group.share_administration import (
    LIMIT,
    RESET,
    OffsetsRead,
    Outcome,
    Presence,
    Setting,
    ShareAct,
    ShareAdministrationHistory,
    ShareCall,
    Written,
    check_share_administration,
)
from moldau_jepsen.checkers.group.streams import Commit, History, Holding, Read, judge
from moldau_jepsen.history import TopicPartition
from support.kit.borders.border import Border, Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = TopicPartition("t", 0)
MEMBER = Membership("m1", 3, "", frozenset({"t"}))
OLD, NEW = Membership("s1", 3, "static", frozenset()), Membership("s2", 4, "static", frozenset())


# --- offsets of a group that is administered


def write(begun: float, ended: float, value: int | None, member: Membership | None = None) -> GroupOperation:
    act = Act.RESET if member is None else Act.COMMIT
    return GroupOperation(act=act, begun_ms=begun, ended_ms=ended, values=((P, value),), member=member)


def offsets(
    *operations: GroupOperation,
    read: tuple[float, float, int | None] | None = None,
    seen: Sequence[Sighting] = (),
    partings: Sequence[Parting] = (),
    stale_ms: float = 0.0,
) -> Callable[[], Found]:
    reads = [] if read is None else [OffsetRead(read[0], read[1], ((P, read[2]),))]
    return lambda: set(
        ["group-administration"] * bool(check_administered(operations, reads, seen, partings, stale_ms=stale_ms))
    )


def in_group(begun: float, ended: float, *, parted: float | None = None) -> Callable[[], Found]:
    """A reset while a member was seen until 20 ms and since 40 ms."""
    partings = [] if parted is None else [Parting(parted, "m1")]
    seen = [Sighting(10, 20, MEMBER), Sighting(40, 50, MEMBER)]
    return offsets(write(begun, ended, 5), seen=seen, partings=partings)


def former_epoch(begun: float) -> Callable[[], Found]:
    return offsets(write(begun, 60, 5, MEMBER), seen=[Sighting(0, 30, MEMBER._replace(epoch=4))])


def replaced(begun: float) -> Callable[[], Found]:
    """A commit of a static member that was seen at 20 ms, and whose successor's life began."""
    return offsets(write(50, 60, 5, OLD), seen=[Sighting(0, 20, OLD), Sighting(begun, 30, NEW)])


def overwritten(second: float, third: float, read: float, *, stale_ms: float = 0.0) -> Callable[[], Found]:
    """The value 1 was written until 20 ms, then 2 from ``second`` to ``third``; a read returned 1."""
    return offsets(write(10, 20, 1), write(second, third, 2), read=(read, read + 9, 1), stale_ms=stale_ms)


# --- records of a share group

LOCK_MS = 80
PLACE = (P, 5)
ACCEPT, RELEASE, REJECT = Acknowledgement.ACCEPT, Acknowledgement.RELEASE, Acknowledgement.REJECT
SENT = Sent(PLACE, 9)


def came(member: int, begun: float, ended: float, count: int = 1, value: int = 9) -> Delivered:
    return Delivered(PLACE, value, count, member, begun, ended)


def answer(
    member: int, begun: float, ended: float, kind: Acknowledgement = ACCEPT, *, is_stored: bool | None = True
) -> Acknowledged:
    return Acknowledged(PLACE, member, kind, begun, ended, is_stored)


def shared(*events: Event) -> Callable[[], Found]:
    return judged_share([SENT, *events])


def buried(*events: Event) -> Callable[[], Found]:
    """A record that member 1 had once, of a group with a dead letter queue."""
    return judged_share([SENT, came(1, 0, 10), *events], has_queue=True)


def judged_share(events: Sequence[Event], *, has_queue: bool = False) -> Callable[[], Found]:
    def found() -> Found:
        verdict = check_share_group(events, delivery_count_max=5, lock_ms=LOCK_MS, has_queue=has_queue)
        return {each.kind.value for each in verdict.anomalies}

    return found


def letter(deliveries: int, *, is_rejection: bool = False) -> DeadLetter:
    return DeadLetter(PLACE, 9, deliveries, is_rejection)


def two_holders(
    own: float = 10, began: float = 50, came_at: float = 60, asked: float = 70, answered: float = 75
) -> Callable[[], Found]:
    """Member 1 holds a record and has an acknowledgement stored, after it came to member 2."""
    return shared(came(1, 0, own), came(2, began, came_at, 2), answer(1, asked, answered))


def done_by_another(begun: float) -> Callable[[], Found]:
    last = answer(2, begun, begun + 9, is_stored=None)
    return shared(came(1, 0, 10), came(2, 50, 60, 2), answer(1, 70, 75, Acknowledgement.RENEW), last)


def again(begun: float, kind: Acknowledgement, count: int) -> Callable[[], Found]:
    """A record that was answered until 30 ms and delivered again since ``begun``."""
    return shared(came(1, 0, 10, 2), answer(1, 20, 30, kind), came(2, begun, 50, count), answer(2, 60, 70))


# --- share groups that are administered

WRITTEN = [Written((P, offset), 5.0) for offset in range(10)]
FINAL_MS = 1_000.0
EARLIEST, LATEST = Setting(RESET, "earliest", 1, 2, 3), Setting(RESET, "latest", 1, 2, 3)
THREE = Setting(LIMIT, "3", 1, 2, 3)


def call(start: int | None, begun: float, outcome: Outcome = Outcome.OK, *, has_member: bool = False) -> ShareCall:
    act = ShareAct.DELETE_GROUP if start is None else ShareAct.ALTER
    return ShareCall(
        act=act,
        outcome=outcome,
        begun_ms=begun,
        answered_ms=begun + 1,
        starts=((P, start),),
        has_member=has_member,
    )


def given(offset: int, at: float, count: int = 1) -> Delivered:
    return Delivered((P, offset), 0, count, 1, at, at + 1)


def taken(offset: int, at: float, kind: Acknowledgement = ACCEPT) -> Acknowledged:
    return Acknowledged((P, offset), 1, kind, at, at + 1, True)


def shown(start: int | None, at: float) -> OffsetsRead:
    return OffsetsRead(at, at + 1, ((P, start),))


def administered(
    *events: ShareCall | Delivered | Acknowledged | OffsetsRead | Archived,
    members: Sequence[Presence] | None = None,
    settings: Sequence[Setting] = (EARLIEST, THREE),
    lost_fetches: Sequence[float] = (),
    kept: bool = False,
    stale_ms: float = 0.0,
    written: Sequence[Written] = WRITTEN,
) -> Callable[[], Found]:
    history = ShareAdministrationHistory(
        group="g",
        calls=[each for each in events if isinstance(each, ShareCall)],
        settings=list(settings),
        reads=[each for each in events if isinstance(each, OffsetsRead)],
        members=[Presence(begun_ms=10)] if members is None else list(members),
        deliveries=[each for each in events if isinstance(each, Delivered)],
        answers=[each for each in events if isinstance(each, Acknowledged)],
        lost_fetches=list(lost_fetches),
        archived=[each for each in events if isinstance(each, Archived)],
    )

    def found() -> Found:
        texts = check_share_administration(
            history, written, [P] * kept, undivided={"t"}, final_ms=FINAL_MS, stale_ms=stale_ms
        )
        return set(["share-administration"] * bool(texts))

    return found


def before_start(
    *, called: float = 100, proven: float = 110, answered: float = 112, at: float = 120, proof: int = 1
) -> Callable[[], Found]:
    """A record before the start that a call has set; its member's answer shows that it knows the call."""
    members = [Presence(begun_ms=10, is_exact=False)]
    return administered(call(5, called), given(5, proven, proof), taken(5, answered), given(4, at), members=members)


def counted_again(*lost: float, begun: float = 100, before: float = 90) -> Callable[[], Found]:
    """A record's second count after a call, which began the counts again."""
    events = given(6, before), taken(6, before + 2, RELEASE), call(5, begun), given(5, 110), taken(5, 112)
    return administered(*events, given(6, 120, 2), lost_fetches=lost)


def counted_meanwhile(begun: float) -> Callable[[], Found]:
    """A second count until 121 ms, and another delivery of the record since ``begun``."""
    return administered(call(5, 100), given(5, 110), taken(5, 112), given(6, 120, 2), given(6, begun))


def fresh(
    *settings: Setting, answered: float = 5.0, joined: float = 105, left: float = OPEN, begun: float = 120
) -> Callable[[], Found]:
    """A record that was written before a group was deleted and began again."""
    members = [Presence(begun_ms=joined, ended_ms=left)]
    events = call(None, 100), given(9, 110), taken(9, 112), given(2, begun)
    written = [*(Written((P, offset), answered) for offset in range(9)), Written((P, 9), 107.0)]
    return administered(*events, settings=(*settings, THREE), members=members, written=written)


def at_the_end(*events: Delivered | Acknowledged | Archived, called: float = 100) -> Callable[[], Found]:
    """The last record is all that lies behind the start; it must be done."""
    return administered(call(9, called), *events, members=[Presence(begun_ms=10, is_exact=False)], kept=True)


# --- tasks of a streams group

SESSION_MS = 1_000
TASK = ("0", 0)


def holding(member: str, begun: float, ended: float | None, *epochs: int) -> Holding:
    return Holding(TASK, member, begun, ended, set(epochs), "b1")


def tasks(history: History) -> Callable[[], Found]:
    return lambda: {each.kind.value for each in judge(history, SESSION_MS)}


def both_act(heard: float, *, ended: float | None = None, begun: float = 600) -> Callable[[], Found]:
    """A second member begins a task at 600 ms; the first one was heard last at ``heard``."""
    history = History(holdings=[holding("m1", -700, ended, 1), holding("m2", begun, None, 2)])
    history.accepted = {"m1": [(heard, "b1")], "m2": [(590.0, "b1")]}
    return tasks(history)


def epochs(first: int, second: int) -> Callable[[], Found]:
    return tasks(History(holdings=[holding("m1", 0, 10, first), holding("m2", 10, None, second)]))


def committed(
    second: int, begun: float, *reads: Read, unknown: float | None = None, coordinators: str = "111"
) -> Callable[[], Found]:
    """50 is committed from 5 to 6 ms, then ``second`` by another member; a third commit follows at 50 ms."""
    one, two = holding("m1", 0, 4, 1), holding("m2", 4, None, 2)
    made = [(one, 50, 5.0, 6.0), (two, second, begun, begun + 1), (two, max(50, second), 50.0, 51.0)]
    commits = [
        Commit(
            holding=held,
            partition=0,
            offset=offset,
            begun_ms=start,
            ended_ms=end,
            accepted=True,
            coordinator=f"b{number}",
        )
        for (held, offset, start, end), number in zip(made, coordinators, strict=True)
    ]
    if unknown is not None:
        commits.append(replace(commits[0], offset=60, begun_ms=unknown, ended_ms=unknown + 1, accepted=None))
    return tasks(History(holdings=[one, two], commits=commits, reads=list(reads)))


def offset_read(offset: int, begun: float, coordinator: int = 1) -> Read:
    return Read(partition=0, offset=offset, begun_ms=begun, coordinator=f"b{coordinator}")


OFFSETS_BORDERS = (
    Border(
        "group-administration",
        "a write that began after the read",
        offsets(write(31, 40, 1), read=(20, 30, 1)),
        offsets(write(30, 40, 1), read=(20, 30, 1)),
    ),
    Border("group-administration", "the begin of the next write", overwritten(21, 30, 50), overwritten(20, 30, 50)),
    Border("group-administration", "the end of the next write", overwritten(21, 30, 31), overwritten(21, 30, 30)),
    Border(
        "group-administration",
        "the time that an answer may be stale",
        overwritten(21, 30, 41, stale_ms=10),
        overwritten(21, 30, 40, stale_ms=10),
    ),
    Border("group-administration", "a value that nothing wrote", offsets(read=(1, 2, 0)), offsets(read=(1, 2, None))),
    Border("group-administration", "the first certain moment of a member", in_group(20, 30), in_group(19, 30)),
    Border("group-administration", "the last certain moment of a member", in_group(30, 40), in_group(30, 41)),
    Border(
        "group-administration", "a parting before it was seen", in_group(25, 35, parted=19), in_group(25, 35, parted=20)
    ),
    Border(
        "group-administration", "a parting after it was seen", in_group(25, 35, parted=51), in_group(25, 35, parted=50)
    ),
    Border("group-administration", "a later epoch", former_epoch(31), former_epoch(30)),
    Border("group-administration", "the begin of the successor", replaced(21), replaced(20)),
    Border(
        "group-administration",
        "a certain end",
        offsets(write(25, 35, 5), seen=[Sighting(10, 20, MEMBER), Sighting(40, 50, MEMBER)]),
        offsets(write(25, OPEN, 5), seen=[Sighting(10, 20, MEMBER), Sighting(40, 50, MEMBER)]),
    ),
)
SHARE_BORDERS = (
    Border("share-two-holders", "the other one had it first", two_holders(own=50), two_holders(own=51)),
    Border("share-two-holders", "it came before the answer was sent", two_holders(asked=60), two_holders(asked=59)),
    Border(
        "share-two-holders",
        "half of the lock",
        two_holders(answered=50 + LOCK_MS // CLOCK_RATE_MAX),
        two_holders(answered=51 + LOCK_MS // CLOCK_RATE_MAX),
    ),
    Border("share-two-holders", "done by another meanwhile", done_by_another(76), done_by_another(75)),
    Border("share-delivered-again", "the end of the acceptance", again(31, ACCEPT, 3), again(30, ACCEPT, 3)),
    Border("share-letter-missing", "the rejection", buried(answer(1, 20, 30, REJECT)), buried(answer(1, 20, 30))),
    Border("share-letter-missing", "the limit", buried(came(1, 20, 30, 5)), buried(came(1, 20, 30, 5), letter(5))),
    Border(
        "share-letter-wrong",
        "below the limit",
        buried(came(1, 20, 30, 5), letter(4)),
        buried(came(1, 20, 30, 5), letter(5)),
    ),
    Border(
        "share-letter-wrong",
        "above the limit",
        buried(came(1, 20, 30, 5), letter(6)),
        buried(came(1, 20, 30, 5), letter(5)),
    ),
    Border(
        "share-letter-wrong",
        "the rejection",
        buried(answer(1, 20, 30, REJECT, is_stored=False), answer(1, 40, 50), letter(1, is_rejection=True)),
        buried(answer(1, 20, 30, REJECT, is_stored=None), answer(1, 40, 50), letter(1, is_rejection=True)),
    ),
    Border("share-count", "the end of the release", again(31, RELEASE, 2), again(30, RELEASE, 2)),
    Border("share-count", "one more", again(31, RELEASE, 2), again(31, RELEASE, 3)),
    Border(
        "share-count", "none", shared(came(1, 0, 9, 0), answer(1, 10, 20)), shared(came(1, 0, 9), answer(1, 10, 20))
    ),
    Border(
        "share-count",
        "the limit",
        shared(came(1, 0, 9, 6), answer(1, 10, 20)),
        shared(came(1, 0, 9, 5), answer(1, 10, 20)),
    ),
    Border("share-lost", "the limit", shared(came(1, 0, 9, 4)), shared(came(1, 0, 9, 5))),
    Border("share-lost", "the stored limit", shared(Archived(PLACE, 4)), shared(Archived(PLACE, 5))),
    Border(
        "share-lost",
        "an answer",
        shared(came(1, 0, 9), answer(1, 10, 20, is_stored=False)),
        shared(came(1, 0, 9), answer(1, 10, 20, is_stored=None)),
    ),
    Border(
        "share-altered",
        "the value",
        shared(came(1, 0, 9, value=8), answer(1, 10, 20)),
        shared(came(1, 9, 9), answer(1, 9, 20)),
    ),
)
ADMINISTERED_BORDERS = (
    Border(
        "share-administration",
        "the end of the call",
        before_start(called=100, at=FINAL_MS),
        before_start(called=FINAL_MS),
    ),
    Border(
        "share-administration",
        "the end of the run",
        before_start(proof=3, at=FINAL_MS),
        before_start(proof=3, at=FINAL_MS - 1),
    ),
    Border("share-administration", "acquired after the call", before_start(proven=102), before_start(proven=101)),
    Border(
        "share-administration", "answered before the delivery", before_start(answered=118), before_start(answered=119)
    ),
    Border(
        "share-administration", "seen before it was answered", before_start(answered=111), before_start(answered=110)
    ),
    Border("share-administration", "below the limit, a write is needed", before_start(proof=2), before_start(proof=3)),
    Border(
        "share-administration",
        "a call of unknown outcome that began later",
        administered(call(5, 100), given(5, 110), taken(5, 112), given(2, 120), call(1, 122, Outcome.UNKNOWN)),
        administered(call(5, 100), given(5, 110), taken(5, 112), given(2, 120), call(1, 121, Outcome.UNKNOWN)),
    ),
    Border("share-administration", "a delivery as the call began", counted_again(before=98), counted_again(before=99)),
    Border("share-administration", "a delivery that began later", counted_meanwhile(122), counted_meanwhile(121)),
    Border("share-administration", "a fetch that was lost later", counted_again(122), counted_again(121)),
    Border(
        "share-administration",
        "a member that may take unseen",
        administered(given(6, 90, 2), members=[Presence(begun_ms=10), Presence(begun_ms=92, is_exact=False)]),
        administered(given(6, 90, 2), members=[Presence(begun_ms=10), Presence(begun_ms=91, is_exact=False)]),
    ),
    Border(
        "share-administration",
        "the limit that members knew",
        administered(
            given(6, 90, 4),
            members=[Presence(begun_ms=10, is_exact=False)],
            settings=[EARLIEST, THREE._replace(known_ms=9)],
        ),
        administered(
            given(6, 90, 4),
            members=[Presence(begun_ms=10, is_exact=False)],
            settings=[EARLIEST, THREE._replace(known_ms=10)],
        ),
    ),
    Border(
        "share-administration",
        "a higher limit that began later",
        administered(
            given(6, 90, 4),
            members=[Presence(begun_ms=10, is_exact=False)],
            settings=[EARLIEST, THREE, Setting(LIMIT, "4", 92, 93, 94)],
        ),
        administered(
            given(6, 90, 4),
            members=[Presence(begun_ms=10, is_exact=False)],
            settings=[EARLIEST, THREE, Setting(LIMIT, "4", 91, 93, 94)],
        ),
    ),
    Border(
        "share-administration",
        "written before the group began",
        fresh(LATEST, answered=104),
        fresh(LATEST, answered=105),
    ),
    Border(
        "share-administration",
        "the rule was known by then",
        fresh(LATEST._replace(known_ms=104)),
        fresh(LATEST._replace(known_ms=105)),
    ),
    Border(
        "share-administration",
        "another rule came later",
        fresh(LATEST, Setting(RESET, "earliest", 122, 123, OPEN)),
        fresh(LATEST, Setting(RESET, "earliest", 121, 123, OPEN)),
    ),
    Border(
        "share-administration",
        "a former rule that came late",
        fresh(Setting(RESET, "earliest", 15, 19, OPEN), Setting(RESET, "latest", 20, 21, 30)),
        fresh(Setting(RESET, "earliest", 15, 20, OPEN), Setting(RESET, "latest", 20, 21, 30)),
    ),
    Border(
        "share-administration",
        "the start that was set",
        administered(call(5, 100), shown(4, 110)),
        administered(call(5, 100), shown(5, 110)),
    ),
    Border(
        "share-administration",
        "a description as the call ended",
        administered(call(5, 100), shown(None, 102), members=[]),
        administered(call(5, 100), shown(None, 101), members=[]),
    ),
    Border(
        "share-administration",
        "a member that had left",
        administered(call(5, 100), shown(6, 110), members=[Presence(begun_ms=10, ended_ms=99)]),
        administered(call(5, 100), shown(6, 110), members=[Presence(begun_ms=10, ended_ms=100)]),
    ),
    Border(
        "share-administration",
        "a member that came later",
        administered(call(5, 100), shown(6, 110), members=[Presence(begun_ms=112)]),
        administered(call(5, 100), shown(6, 110), members=[Presence(begun_ms=111)]),
    ),
    Border(
        "share-administration",
        "forward",
        administered(call(5, 100), shown(6, 110), shown(5, 120)),
        administered(call(5, 100), shown(6, 110), shown(6, 120)),
    ),
    Border(
        "share-administration",
        "back from what was shown before",
        administered(call(5, 100), shown(6, 110), shown(5, 112)),
        administered(call(5, 100), shown(6, 110), shown(5, 111)),
    ),
    Border(
        "share-administration",
        "back without a call",
        administered(call(5, 109), shown(6, 111), shown(5, 120)),
        administered(call(5, 110), shown(6, 111), shown(5, 120)),
    ),
    Border(
        "share-administration",
        "back before a call",
        administered(call(5, 100), shown(6, 110), shown(5, 120), call(5, 122)),
        administered(call(5, 100), shown(6, 110), shown(5, 120), call(5, 121)),
    ),
    Border(
        "share-administration",
        "an answer after the last call",
        at_the_end(given(9, 90), taken(9, 98), called=100),
        at_the_end(given(9, 90), taken(9, 99), called=100),
    ),
    Border(
        "share-administration",
        "a count after the last call",
        at_the_end(given(9, 98, 3), called=100),
        at_the_end(given(9, 99, 3), called=100),
    ),
    Border(
        "share-administration", "the stored limit", at_the_end(Archived((P, 9), 2)), at_the_end(Archived((P, 9), 3))
    ),
    Border(
        "share-administration",
        "the count's limit",
        at_the_end(given(9, 110, 4)),
        at_the_end(given(9, 110), taken(9, 112)),
    ),
    Border(
        "share-administration",
        "a member in the group",
        administered(call(5, 100, has_member=True)),
        administered(call(5, 100)),
    ),
)
STREAMS_BORDERS = (
    Border("streams-two-in-epoch", "the epoch", epochs(1, 1), epochs(1, 2)),
    Border("streams-two-at-once", "the session", both_act(600.0 - SESSION_MS + 1), both_act(600.0 - SESSION_MS)),
    Border("streams-two-at-once", "the end of the first one", both_act(599.0, ended=601), both_act(599.0, ended=600)),
    Border("streams-two-at-once", "its last heartbeat", both_act(601.0, ended=601), both_act(602.0, ended=601)),
    Border("streams-offset-back", "the committed offset", committed(49, 6), committed(50, 6)),
    Border("streams-offset-back", "the end of the former commit", committed(49, 6), committed(49, 5.5)),
    Border("streams-offset-back", "before a doubtful one", committed(49, 7, unknown=6), committed(49, 7, unknown=5.5)),
    Border(
        "streams-offset-lost",
        "the committed offset",
        committed(50, 9, offset_read(49, 20)),
        committed(50, 9, offset_read(50, 20)),
    ),
    Border(
        "streams-offset-lost",
        "the end of the commit",
        committed(60, 9, offset_read(50, 10)),
        committed(60, 9, offset_read(50, 9.5)),
    ),
    Border(
        "streams-offset-lost",
        "the last coordinator before",
        committed(60, 9, offset_read(50, 10, 2), coordinators="123"),
        committed(60, 9, offset_read(50, 11, 1), coordinators="123"),
    ),
    Border(
        "streams-offset-lost",
        "the coordinator after the commit that has just ended",
        committed(60, 9, offset_read(50, 10, 3), coordinators="123"),
        committed(60, 9, offset_read(50, 10, 1), coordinators="123"),
    ),
    Border(
        "streams-offset-lost",
        "the first coordinator after",
        committed(60, 9, offset_read(50, 50.5, 3), coordinators="123"),
        committed(60, 9, offset_read(50, 50.5, 1), coordinators="123"),
    ),
    Border(
        "streams-offset-lost",
        "without any commit",
        tasks(History(reads=[offset_read(0, 1)])),
        tasks(History(reads=[offset_read(-1, 1)])),
    ),
    Border("streams-not-settled", "a problem", tasks(History(unsettled="Reconciling")), tasks(History(unsettled=""))),
)
BORDERS = (*OFFSETS_BORDERS, *SHARE_BORDERS, *ADMINISTERED_BORDERS, *STREAMS_BORDERS)
