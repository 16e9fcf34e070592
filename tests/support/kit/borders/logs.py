"""The borders of the judges of logs, of quotas, of rights, and of the register."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moldau_jepsen.checkers import RegisterOperation, TopicRead, TopicWrite, check_register, check_topics
from moldau_jepsen.checkers.anomalies import CheckOptions, Findings
from moldau_jepsen.checkers.log.compacted import NEVER, Fate, KeyRead, KeyRecord, KeyWrite, check_compacted
from moldau_jepsen.checkers.log.copies import CopiedRow, Copies, SourceRow, check_copies
from moldau_jepsen.checkers.log.few_acks import NO_OFFSET, FewAcksRead, FewAcksSend, check_few_acks
from moldau_jepsen.checkers.log.reach import GAP_MAX, OFFSET_END, Reach, end_of, has_reached
from moldau_jepsen.checkers.log.tiered import (
    TieredRead,
    TieredRecord,
    TieredSearch,
    TieredStory,
    TieredWrite,
    check_tiered,
)
from moldau_jepsen.checkers.quotas import OVERHEAD_BYTES, PRODUCER, Account, QuotaVerdict
from moldau_jepsen.checkers.rights import Outcome, RightsVerdict, Watched
from support.kit.borders.border import Border, Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def named(rule: str, texts: Callable[[], Iterable[object]]) -> Callable[[], Found]:
    """Returns a judgement that has one rule only, broken if there are texts."""
    return lambda: {rule} if list(texts()) else set()


# --- offsets that a log can have


def reached(*offsets: int, gap: int = 10) -> Callable[[], Found]:
    reach = Reach(gap)
    return named("impossible-offset", lambda: [each for each in offsets if not reach.admits(each)])


def at_end(position: int | None, end: int) -> Callable[[], Found]:
    return named("impossible-offset", lambda: [] if has_reached(position, end) else [position])


# --- keys of a compacted topic


def key_write(value: bytes | None, offset: int, known_at: int = 5, begun: int = NEVER) -> KeyWrite:
    fate = Fate.UNKNOWN if known_at == NEVER else Fate.COMMITTED
    return KeyWrite(partition=0, key="a", value=value, fate=fate, offset=offset, known_at=known_at, begun=begun)


def keys(
    *writes: KeyWrite,
    read: Sequence[int] = (),
    begun: int = 10,
    ended: int = 20,
    log_start: int = 0,
    end: int = NEVER,
    before: Sequence[KeyRead] = (),
    shift: int = 0,
    stays: bool = False,
) -> Callable[[], Found]:
    """A read that returned the writes with these numbers, each at its offset, or ``shift`` behind it."""
    records = [KeyRecord(writes[number].offset + shift, "a", number, writes[number].value) for number in read]
    last = KeyRead(0, begun, ended, log_start, tuple(records), end)
    return named("compacted-key", lambda: check_compacted(writes, [*before, last], tombstones_stay=stays))


ONE, TWO, GONE = key_write(b"1", 3), key_write(b"2", 4), key_write(None, 3)
UNANSWERED = key_write(b"1", NEVER, NEVER)


def read_before(ended: int) -> Callable[[], Found]:
    """A record without an answer was read once; a later read lacks it."""
    return keys(UNANSWERED, before=[KeyRead(0, 1, ended, 0, (KeyRecord(3, "a", 0, b"1"),))])


def superseded(begun: int = 19, offset: int = 9, ended: int = 20) -> Callable[[], Found]:
    return keys(ONE, key_write(b"2", offset, 30, begun), ended=ended, end=9)


def stray_number(number: int) -> Callable[[], Found]:
    read = KeyRead(0, 10, 20, 0, (KeyRecord(3, "a", number, b"1"),))
    return named("compacted-key", lambda: check_compacted([ONE], [read], tombstones_stay=True))


# --- producers that wait for few acknowledgements


def sent(number: int, offset: int, *, epoch: int = 4, acks: int = 1, retries: bool = False) -> FewAcksSend:
    return FewAcksSend(
        number=number,
        producer=1,
        partition=0,
        value=f"v{number}",
        acks=acks,
        retries=retries,
        in_flight=1,
        is_acknowledged=offset != NO_OFFSET,
        offset=offset,
        leader_epoch=epoch,
    )


def acknowledged(*sends: FewAcksSend, left: Sequence[tuple[int, int]], read: Sequence[int] = ()) -> Callable[[], Found]:
    """``left`` has offsets and numbers at the end; ``read`` the offsets of an earlier read."""
    final = [FewAcksRead(0, tuple((offset, f"v{number}") for offset, number in left))]
    at = dict(final[0].records)
    reads = [FewAcksRead(0, tuple((offset, at[offset]) for offset in read))]
    return named("few-acks", lambda: check_few_acks(sends, reads, final, {0: 4}))


# --- tiered partitions

PLACE = ("t", 0)


def tiered(
    *offsets: int,
    read: Sequence[int] = (),
    begun: int = 10,
    known_at: int = 5,
    start: int = 0,
    log_start: int = 0,
    end: int = 99,
    trim: int = 0,
    late_ms: int = 0,
    asked: tuple[int, int] | None = None,
) -> Callable[[], Found]:
    """Writes at these offsets, with ten times the offset as timestamp; a pass, or a search by time."""
    writes = [
        TieredWrite(
            place=PLACE,
            producer=1,
            value=b"%d" % offset,
            timestamp_ms=10 * offset,
            fate=Fate.COMMITTED,
            offset=offset,
            acknowledged_at=known_at,
            committed_at=known_at,
        )
        for offset in offsets
    ]
    records = tuple(TieredRecord(offset, b"%d" % offset, 10 * offset + late_ms) for offset in read)
    reads = [TieredRead(PLACE, True, begun, begun + 1, start, log_start, records, end)] if asked is None else []
    searches = [] if asked is None else [TieredSearch(PLACE, begun, *asked, log_start, end)]
    story = TieredStory(writes=writes, reads=reads, searches=searches, trims={PLACE: trim})
    return named("tiered-read", lambda: check_tiered(story))


# --- topics that are made again


def made_again(
    *values: str, at: Sequence[int] = (0, 1, 2), writes: int = 2, before: int | None = None
) -> Callable[[], Found]:
    """Two records were acknowledged, and one has no answer; a read returns some of them."""
    written = [TopicWrite("id", 0, "a", 0), TopicWrite("id", 0, "b", 1), TopicWrite("id", 0, "c", -1)]
    records = tuple(zip(at, values, strict=False))
    reads = [TopicRead("id", 0, records, 9, writes)]
    if before is not None:
        reads.insert(0, TopicRead("id", 0, ((0, "a"), (1, "b"), (2, "c")), 9, before))
    return named("topic-recreated", lambda: check_topics(written, reads))


# --- copies of rows


def copied(*origins: int, rows: int = 3) -> Callable[[], Found]:
    source = tuple(SourceRow(0, offset, "k", f"v{offset}") for offset in range(rows))
    copies = tuple(CopiedRow(0, at, 0, offset, "k", f"v{offset}") for at, offset in enumerate(origins))

    def found() -> Found:
        findings = Findings(CheckOptions())
        check_copies(Copies("in", "out", source, copies), findings)
        return {kind.value for kind in findings.counts}

    return found


# --- quotas

LIMIT, KEPT_MS, REQUEST = 10_000.0, 2_000.0, 1_000
AT_ONCE = int(LIMIT * KEPT_MS / 1_000) + 2 * 2 * REQUEST
"""The allowance of all windows, and two requests of each connection."""
ONE_MS = (REQUEST + OVERHEAD_BYTES) / LIMIT * 1_000


def quota(*uses: tuple[float, int, float], limit: float | None = LIMIT) -> Callable[[], Found]:
    """Requests with their times, the bytes that were accepted, and the pauses that were asked for."""

    def found() -> Found:
        verdict = QuotaVerdict(kept_ms=KEPT_MS, connections=2, bytes_max=REQUEST)
        account: Account = verdict.account(1, "c", PRODUCER)
        verdict.knows(account, limit, 0.0, is_new=True)
        for now_ms, accepted, pause_ms in uses:
            verdict.answered(verdict.begin(account, REQUEST, now_ms), accepted, int(pause_ms), now_ms)
        return {rule for rule, _ in verdict.wrong}

    return found


# --- rights


def answered(outcome: Outcome, *known: bool | None) -> Callable[[], Found]:
    def found() -> Found:
        values = iter(known)
        watched = Watched(lambda: next(values))
        for _ in known:
            watched.sample()
        verdict = RightsVerdict()
        verdict.take(watched, outcome, "")
        return {rule for rule, _ in verdict.wrong}

    return found


# --- the register


def register(*operations: tuple[str, int | None, float, float], states_max: int = 1_000) -> Callable[[], Found]:
    every = [
        RegisterOperation(write=kind == "w", value=value, begun_ms=begun, ended_ms=ended)
        for kind, value, begun, ended in operations
    ]

    def found() -> Found:
        verdict = check_register(every, states_max=states_max)
        return set() if verdict.linearizable else {"metadata-not-linearizable"}

    return found


BORDERS = (
    Border("impossible-offset", "the gap", reached(4, 15), reached(4, 14)),
    Border("impossible-offset", "the first gap", reached(10), reached(9)),
    Border("impossible-offset", "below 0", reached(4, -1), reached(4, 0)),
    Border(
        "impossible-offset",
        "the greatest of all",
        reached(OFFSET_END, gap=OFFSET_END),
        reached(OFFSET_END - 1, gap=OFFSET_END),
    ),
    Border("impossible-offset", "the position at the end", at_end(6, 7), at_end(7, 7)),
    Border("impossible-offset", "the position far behind", at_end(7 + GAP_MAX, 7), at_end(6 + GAP_MAX, 7)),
    Border("impossible-offset", "no position", at_end(None, 0), at_end(0, end_of([-1]))),
    Border("compacted-key", "the last write", keys(ONE, TWO, read=[0]), keys(ONE, TWO, read=[1])),
    Border("compacted-key", "its offset", keys(ONE, read=[0], shift=1), keys(ONE, read=[0])),
    Border("compacted-key", "known before the read", keys(key_write(b"1", 3, 9)), keys(key_write(b"1", 3, 10))),
    Border("compacted-key", "known by an earlier read", read_before(9), read_before(10)),
    Border("compacted-key", "the log start offset", keys(ONE, log_start=3), keys(ONE, log_start=4)),
    Border("compacted-key", "a tombstone", keys(GONE, stays=True), keys(GONE)),
    Border("compacted-key", "a later write begun meanwhile", superseded(begun=20), superseded(begun=19)),
    Border("compacted-key", "a later write behind the end", superseded(offset=8), superseded(offset=9)),
    Border("compacted-key", "the last number", stray_number(1), stray_number(0)),
    Border("compacted-key", "the first number", stray_number(-1), stray_number(0)),
    Border(
        "few-acks", "the last leader", acknowledged(sent(0, 0), left=[]), acknowledged(sent(0, 0, epoch=3), left=[])
    ),
    Border(
        "few-acks",
        "the order",
        acknowledged(sent(0, 1), sent(1, 0), left=[(0, 1), (1, 0)]),
        acknowledged(sent(0, 0), sent(1, 1), left=[(0, 0), (1, 1)]),
    ),
    Border(
        "few-acks",
        "a read offset",
        acknowledged(sent(0, 0), sent(1, 1), left=[(0, 0), (1, 1)], read=[1, 1]),
        acknowledged(sent(0, 0), sent(1, 1), left=[(0, 0), (1, 1)], read=[0, 1]),
    ),
    Border(
        "few-acks",
        "a retry",
        acknowledged(sent(0, 0), left=[(0, 0), (1, 0)]),
        acknowledged(sent(0, 0, retries=True), left=[(0, 0), (1, 0)]),
    ),
    Border(
        "few-acks",
        "the offset of acks=0",
        acknowledged(sent(0, 0, acks=0), left=[(0, 0)]),
        acknowledged(sent(0, -1, acks=0), left=[]),
    ),
    Border("tiered-read", "the end of the pass", tiered(3, end=4), tiered(3, end=3)),
    Border("tiered-read", "the start of the pass", tiered(3, start=3), tiered(3, start=4)),
    Border("tiered-read", "the log start offset", tiered(3, log_start=3, trim=4), tiered(3, log_start=4, trim=4)),
    Border(
        "tiered-read", "what may be deleted", tiered(read=[], log_start=5, trim=4), tiered(read=[], log_start=4, trim=4)
    ),
    Border("tiered-read", "known before the pass", tiered(3, known_at=9), tiered(3, known_at=10)),
    Border("tiered-read", "the timestamp", tiered(3, read=[3], late_ms=1), tiered(3, read=[3])),
    Border("tiered-read", "the next offset", tiered(3, 4, read=[4, 4], start=4), tiered(3, 4, read=[3, 4])),
    Border("tiered-read", "the time asked for", tiered(3, asked=(31, 3)), tiered(3, asked=(30, 3))),
    Border("tiered-read", "a record of that time before", tiered(3, 4, asked=(30, 4)), tiered(3, 4, asked=(31, 4))),
    Border("tiered-read", "the end of the search", tiered(3, asked=(30, -1), end=4), tiered(3, asked=(30, -1), end=3)),
    Border("tiered-read", "the first offset of all", tiered(0, asked=(1, 0)), tiered(0, asked=(0, 0))),
    Border("topic-recreated", "the writes before the read", made_again("a", writes=2), made_again("a", writes=1)),
    Border("topic-recreated", "twice", made_again("a", "b", "b"), made_again("a", "b", "c")),
    Border(
        "topic-recreated",
        "the same offset",
        made_again("a", "b", at=(0, 0), writes=0),
        made_again("a", "b", at=(0, 1), writes=0),
    ),
    Border(
        "topic-recreated",
        "read before",
        made_again("a", "b", writes=3, before=3),
        made_again("a", "b", writes=2, before=3),
    ),
    Border("pipe-lost", "the last row", copied(0, 1), copied(0, 1, 2)),
    Border("pipe-duplicate", "one more copy", copied(0, 1, 2, 2), copied(0, 1, 2)),
    Border("pipe-disorder", "neighbours", copied(0, 2, 1), copied(0, 1, 2)),
    Border("pipe-unknown", "behind the last row", copied(0, 1, 2, rows=2), copied(0, 1, rows=2)),
    Border("quota-exceeded", "at once", quota((0, AT_ONCE + 1, 0)), quota((0, AT_ONCE, 0))),
    Border(
        "quota-exceeded", "at once, after a long time", quota((60_000, AT_ONCE + 1, 0)), quota((60_000, AT_ONCE, 0))
    ),
    Border(
        "quota-exceeded", "over time", quota((0, AT_ONCE, 0), (100, 1_001, 0)), quota((0, AT_ONCE, 0), (100, 1_000, 0))
    ),
    Border("throttled-without-limit", "a pause", quota((0, 0, 1), limit=None), quota((0, 0, 0), limit=None)),
    Border("paused-too-long", "what was used", quota((0, 0, ONE_MS + 3)), quota((0, 0, ONE_MS + 2))),
    Border(
        "paused-too-long", "a limit without an end", quota((0, 0, 3), limit=math.inf), quota((0, 0, 2), limit=math.inf)
    ),
    Border(
        "paused-too-long",
        "a use that the windows have left",
        quota((0, 0, 0), (KEPT_MS + 1, 0, 2 * ONE_MS + 2)),
        quota((0, 0, 0), (KEPT_MS, 0, 2 * ONE_MS + 2)),
    ),
    Border(
        "permitted-though-denied",
        "permitted meanwhile",
        answered(Outcome.PERMITTED, False),
        answered(Outcome.PERMITTED, False, True),
    ),
    Border(
        "denied-though-permitted",
        "denied meanwhile",
        answered(Outcome.DENIED, True),
        answered(Outcome.DENIED, True, False),
    ),
    Border("denied-though-permitted", "an answer", answered(Outcome.DENIED, True), answered(Outcome.UNKNOWN, True)),
    Border(
        "metadata-not-linearizable",
        "the end of the write",
        register(("w", 1, 0, 10), ("r", None, 11, 12)),
        register(("w", 1, 0, 10), ("r", None, 10, 12)),
    ),
    Border(
        "metadata-not-linearizable",
        "the end of a read",
        register(("w", 1, 0, 30), ("r", 1, 5, 10), ("r", None, 11, 12)),
        register(("w", 1, 0, 30), ("r", 1, 5, 10), ("r", None, 10, 12)),
    ),
    Border(
        "metadata-not-linearizable",
        "a write that may come at any time",
        register(("w", 1, 0, 30), ("w", 2, 31, 40), ("r", 1, 50, 51)),
        register(("w", 1, 0, math.inf), ("w", 2, 31, 40), ("r", 1, 50, 51)),
    ),
    Border(
        "metadata-not-linearizable",
        "states",
        register(("w", 1, 0, 1), states_max=0),
        register(("w", 1, 0, 1), states_max=2),
    ),
)
