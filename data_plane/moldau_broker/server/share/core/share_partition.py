"""The delivery state of one partition for one share group (KIP-932). Pure.

Theory of operation
-------------------
The leader of a partition keeps, for each share group that reads it, the records in flight: those from the start offset
(the first record that is not done) to the end offset (the first record that was never acquired). Each is available,
acquired by one member until its lock expires, acknowledged, or archived (rejected, absent, aborted, or delivered too
often).

    available --acquire--> acquired --ACCEPT--> acknowledged
        ^                     |-----REJECT, GAP, delivery count limit--> archived
        '---RELEASE, expired lock, closed session---'

In a group with a dead letter queue a rejected record, and one that was delivered too often, is archiving in between:
its dead letter is written once that state is stored, and archived is stored afterwards. A leader that ends meanwhile
leaves the rest to the next one, so a dead letter is written at least once.

Acknowledgements and releases take effect when the share coordinator has stored them. Until then the records stay
acquired, with a ``Change``; a refused write undoes the change. One write is under way at a time, and everything that
arrives meanwhile forms the next one, so the coordinator sees the states of a record in order. Acquisitions are not
stored: after a change of leader the new leader finds the records available.

An expired lock releases its records at once, and is stored without being waited for: losing that write only loses a
delivery count.

All calls that change states return ``Effects``. A record is acquired by at most one member at any time, because
``acquire`` takes available records only, and a record becomes available again only after its release is stored or its
lock has expired.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.share.core.runs import Change, Run, Runs
from moldau_broker.server.share.core.state_batches import overlay
from moldau_broker.server.share.core.values import (
    NO_EFFECTS,
    Acknowledged,
    AcknowledgementBatch,
    AcknowledgeType,
    AcquiredRange,
    AcquireMode,
    Cause,
    DeadLetters,
    Effects,
    Persist,
    RecordState,
    Settled,
    ShareLimits,
    StateBatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FENCED = frozenset(
    {
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,  # there is no state any more: the group, or its offsets, are deleted
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Answers to a write after which this leader's state is void: another leader or an administrator has replaced it."""

_COUNT_MAX = (1 << 31) - 1
"""The highest count that fits a request; a hole that compaction has left may be longer."""
_STATES = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class InvalidStateError(Exception):
    """The stored state of a share-partition contradicts itself."""


_Entry = tuple[int, StateBatch]
"""A batch to store, and the token of the operation that waits for it; token 0 if none does."""


class SharePartition:
    """The records in flight of one partition for one group, on the partition's leader.

    Invariants: ``start_offset <= end_offset``; the runs cover exactly the offsets between both; the first run is not
    terminal.
    """

    __slots__ = (
        "_next_token",
        "_queued",
        "_runs",
        "_unstored",
        "_writing",
        "closed",
        "end_offset",
        "is_behind",
        "leader_epoch",
        "limits",
        "start_offset",
        "state_epoch",
    )

    def __init__(self, limits: ShareLimits, *, leader_epoch: int, state_epoch: int, start_offset: int) -> None:
        self.limits = limits
        self.leader_epoch = leader_epoch
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.closed = False
        self._next_token = 1
        self._runs = Runs()
        self._queued: list[_Entry] = []  # for the next write
        self._unstored: list[_Entry] = []  # releases of expired locks from a failed write, for the write after it
        self._writing: list[_Entry] | None = None  # the write under way
        self.is_behind = False
        """Whether a write that no member waits for has failed or is due, and none has succeeded since."""

    @classmethod
    def restore(
        cls,
        limits: ShareLimits,
        batches: Sequence[StateBatch],
        *,
        leader_epoch: int,
        state_epoch: int,
        start_offset: int,
        log_start_offset: int,
    ) -> SharePartition:
        """Returns the state that the share coordinator has stored, in ascending batches.

        Records between the batches were acquired when the last leader stopped, and are available.

        Raises:
            InvalidStateError: batches overlap, lie below the start offset, or have a state that is never stored.
        """
        partition = cls(limits, leader_epoch=leader_epoch, state_epoch=state_epoch, start_offset=start_offset)
        runs = partition._runs
        for batch in batches:
            if batch.first < partition.end_offset or batch.last < batch.first or batch.state is RecordState.ACQUIRED:
                raise InvalidStateError(f"{batch} after offset {partition.end_offset}")
            if batch.first > partition.end_offset:
                runs.append(Run(partition.end_offset, batch.first, RecordState.AVAILABLE, 0))
            runs.append(Run(batch.first, batch.last + 1, batch.state, batch.delivery_count))
            partition.end_offset = batch.last + 1
        partition._advance()
        partition.move_log_start(log_start_offset)
        return partition

    # --- acquisition -----------------------------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """The offset to read next: the first available record, or the end offset."""
        for run in self._runs.runs:
            if run.is_acquirable:
                return run.first
        return self.end_offset

    @property
    def can_acquire(self) -> bool:
        """Whether records could be acquired if the log has them: some are available, or the bound allows new ones."""
        return (
            self.end_offset - self.start_offset < self.limits.record_locks_max
            or self.next_fetch_offset < self.end_offset
        )

    def acquire(
        self,
        member: str,
        fetched: Sequence[tuple[int, int]],
        *,
        fetch_offset: int,
        records_max: int,
        batch_size: int,
        mode: AcquireMode,
        now_ms: float,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> tuple[AcquiredRange, ...]:
        """Acquires available records of the record batches ``fetched`` for a member, and returns their offsets.

        ``fetched`` are the base offset and the end offset (exclusive) of the batches that were read from
        ``fetch_offset``, in order; offsets below the first of them and between them are gone from the log and are
        archived. So are the ranges ``aborted``, records of aborted transactions that the group does not want.
        In the mode ``BATCH_OPTIMIZED`` the limits can be exceeded up to the end of a record batch. Ranges hold about
        ``batch_size`` records each. Nothing is stored, so there are no effects.
        """
        if not fetched or records_max <= 0 or self.closed:
            return ()
        assert fetch_offset <= self.end_offset, "the read began behind records that were never acquired"
        first = max(fetched[0][0], self.start_offset)
        self._archive(fetch_offset, first)
        found: list[AcquiredRange] = []
        count = 0
        holes = [(end, begin) for (_, end), (begin, _) in pairwise(fetched) if end < begin]
        useless = sorted([*aborted, *holes]) if holes else aborted
        deadline_ms = now_ms + self.limits.lock_duration_ms
        for part_first, part_end in self._parts(first, fetched[-1][1]):
            room = records_max - count
            if part_first >= self.end_offset:
                room = min(room, self.limits.record_locks_max - (self.end_offset - self.start_offset))
            suspects_max = self._suspects_max(part_first, part_end)
            if suspects_max is not None:
                room = min(room, suspects_max) if not found else 0
            if room <= 0:
                break
            whole_batches = mode is AcquireMode.BATCH_OPTIMIZED and suspects_max is None
            end = _limit(part_first, part_end, room, fetched if whole_batches else ())
            self._extend(part_first, end)
            for piece_first, piece_end, unwanted in _pieces(part_first, end, useless):
                for run in self._runs.cut(piece_first, piece_end):
                    if unwanted:
                        run.become(RecordState.ARCHIVED, run.delivery_count)
                        continue
                    run.state, run.member, run.lock_deadline_ms = RecordState.ACQUIRED, member, deadline_ms
                    run.delivery_count += 1
                    found.extend(_ranges(run, fetched, batch_size))
                    count += run.end - run.first
            if suspects_max is not None and found:
                break
        self._tidy()
        return tuple(found)

    def _parts(self, first: int, end: int) -> list[tuple[int, int]]:
        """Returns the acquirable offsets of a range: those of available runs, and those that are new."""
        if first >= end:
            return []
        runs = self._runs.overlapping(first, end)
        parts = [(max(run.first, first), min(run.end, end)) for run in runs if run.is_acquirable]
        if end > self.end_offset:
            parts.append((max(first, self.end_offset), end))
        return parts

    def _suspects_max(self, first: int, end: int) -> int | None:
        """Returns how many of the acquirable records of a part are delivered at a time; None if all of them.

        Members may fail again and again because of one of them. The others must not be given up with it: after half of
        the deliveries the records come in smaller and smaller parts, and for the last time each comes alone.
        """
        if first >= self.end_offset:
            return None
        count, most = self._runs.runs[self._runs.index_at(first)].delivery_count, self.limits.delivery_count_max
        suspected_from = max(2, (most + 1) // 2)
        if count < suspected_from:
            return None
        return 1 if count >= most - 1 else max(1, (end - first) >> (count - suspected_from + 1))

    def _extend(self, first: int, end: int) -> None:
        """Adds new offsets as available; does nothing for known ones."""
        if first >= self.end_offset:
            assert first == self.end_offset
            self._runs.append(Run(first, end, RecordState.AVAILABLE, 0))
            self.end_offset = end

    def _archive(self, first: int, end: int) -> None:
        """Archives the available and the new offsets of a range: the log holds no record there."""
        for part_first, part_end in self._parts(first, end):
            self._extend(part_first, part_end)
            for run in self._runs.cut(part_first, part_end):
                run.become(RecordState.ARCHIVED, run.delivery_count)

    # --- acknowledgement -------------------------------------------------------------------------------------------

    def acknowledge(self, member: str, batches: Sequence[AcknowledgementBatch], *, now_ms: float) -> Acknowledged:
        """Takes a member's acknowledgements; all of them hold, or none.

        Offsets below the start offset are ignored. Renewals take effect at once; everything else when it is stored.
        INVALID_REQUEST: offsets that were never acquired, or an unknown type. INVALID_RECORD_STATE: the member does not
        hold a record, or has acknowledged it already.
        """
        if self.closed:
            return Acknowledged(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The share-partition has moved to another leader.")
        pieces: list[tuple[int, int, AcknowledgeType]] = []
        for batch in batches:
            try:
                pieces.extend(self._typed(batch))
            except ValueError:
                return Acknowledged(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge types in {batch}.")
        last_end = max((end for _, end, _ in pieces), default=0)
        if last_end > self.end_offset:
            return Acknowledged(ErrorCode.INVALID_REQUEST, f"Offset {last_end - 1} was never acquired.")
        for first, end, _ in pieces:
            for run in self._runs.overlapping(first, end):
                if not run.is_held_by(member):
                    return Acknowledged(
                        ErrorCode.INVALID_RECORD_STATE, f"The member does not hold offset {max(run.first, first)}."
                    )
        token = self._next_token
        changed = False
        for first, end, kind in pieces:
            for run in self._runs.cut(first, end):
                if kind is AcknowledgeType.RENEW:
                    run.lock_deadline_ms = now_ms + self.limits.lock_duration_ms
                else:
                    self._change(run, token, kind)
                    changed = True
        if changed:
            return Acknowledged(token=token, effects=self._begin())
        self._runs.join()
        return Acknowledged()

    def release(self, member: str) -> Acknowledged:
        """Releases everything that a member holds, because its session has ended.

        The delivery counts, as in Kafka: one of the records may have ended the session, and must not end one session
        after another. Records that were delivered often enough are archived.
        """
        if self.closed:
            return Acknowledged()
        token = self._next_token
        changed = False
        for run in self._runs.runs:
            if run.is_held_by(member):
                self._change(run, token, AcknowledgeType.RELEASE)
                changed = True
        return Acknowledged(token=token, effects=self._begin()) if changed else Acknowledged()

    def _typed(self, batch: AcknowledgementBatch) -> Iterator[tuple[int, int, AcknowledgeType]]:
        """Yields the offsets of a batch from the start offset on, by type; the end is exclusive.

        Raises:
            ValueError: the number of types does not fit, or a type is unknown.
        """
        if len(batch.types) not in (1, batch.last - batch.first + 1):
            raise ValueError("number of acknowledge types")
        offset = batch.first
        for number, same in groupby(batch.types):
            kind = AcknowledgeType(number)
            end = batch.last + 1 if len(batch.types) == 1 else offset + sum(1 for _ in same)
            if end > self.start_offset:
                yield max(offset, self.start_offset), end, kind
            offset = end

    @property
    def _given_up(self) -> RecordState:
        """The state of a record that is delivered no more, although no member has accepted it."""
        return RecordState.ARCHIVING if self.limits.writes_dead_letters else RecordState.ARCHIVED

    def _change(self, run: Run, token: int, kind: AcknowledgeType) -> None:
        state, count = _STATES[kind], run.delivery_count
        cause = Cause.REJECTED if kind is AcknowledgeType.REJECT else None
        if state is RecordState.AVAILABLE and count >= self.limits.delivery_count_max:
            cause = Cause.DELIVERED_TOO_OFTEN
        if cause is not None:
            state = self._given_up
        run.change = Change(token, state, count)
        self._queued.append((token, StateBatch(run.first, run.end - 1, state, count, cause)))

    # --- writes to the share coordinator ---------------------------------------------------------------------------

    def _begin(self) -> Effects:
        """Ends an operation that has queued changes."""
        self._next_token += 1
        self._runs.join()
        return Effects(persist=self._next_write())

    def write_again(self) -> Effects:
        """Repeats the write that no member waits for, unless another write is under way."""
        return Effects(persist=self._next_write(repeats=True)) if self.is_behind else NO_EFFECTS

    def _next_write(self, *, repeats: bool = False) -> Persist | None:
        if self._writing is not None or not (self._queued or repeats):
            return None
        self._writing = self._unstored + self._queued
        self._unstored, self._queued = [], []
        tokens = {token for token, _ in self._writing}
        start_offset, complete = None, 0
        for run in self._runs.runs:
            state = run.change.state if run.change is not None and run.change.token in tokens else run.state
            if start_offset is None and not state.is_terminal:
                start_offset = run.first
            if start_offset is not None and state.is_terminal:
                complete += run.end - run.first
        start_offset = self.end_offset if start_offset is None else start_offset
        return Persist(
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=min(complete, _COUNT_MAX),
            batches=tuple(overlay([batch for _, batch in self._writing], start_offset)),
        )

    def persisted(self, error: ErrorCode) -> Effects:
        """Takes the outcome of the write under way; a refusal that fences this leader closes the share-partition."""
        if self.closed:
            return NO_EFFECTS
        assert self._writing is not None, "no write is under way"
        entries, self._writing = self._writing, None
        if error in FENCED:
            self._writing = entries
            return self.close(error)
        tokens = dict.fromkeys(token for token, _ in entries if token)
        acquirable = False
        for run in self._runs.runs:
            change = run.change
            if change is None or change.token not in tokens:
                continue
            if error is ErrorCode.NONE:
                run.become(change.state, change.delivery_count)
                acquirable = True
            else:
                run.change = None
        self._tidy()
        if error is not ErrorCode.NONE:  # one state for each record, however long the share coordinator is away
            expired = [batch for token, batch in entries if not token]
            self._unstored = [(0, batch) for batch in overlay(expired, self.start_offset)]
            self.is_behind = self.is_behind or bool(expired)  # if all were archived, only the start offset says so
        else:
            self.is_behind = False
        stored = [batch for _, batch in entries] if error is ErrorCode.NONE else []
        return Effects(
            persist=self._next_write(),
            settled=tuple(Settled(token, error) for token in tokens),
            dead_letters=self._dead_letters(overlay(stored, self.start_offset)),
            acquirable=acquirable,
        )

    # --- dead letters ----------------------------------------------------------------------------------------------

    def unfinished_dead_letters(self, stored: Sequence[StateBatch]) -> Effects:
        """Returns the dead letters that the last leader may not have written; called once, after ``restore``.

        ``stored`` is the whole state: records that the log has lost since they were given up get a dead letter, too.
        """
        return Effects(dead_letters=self._dead_letters(stored))

    def _dead_letters(self, stored: Iterable[StateBatch]) -> tuple[DeadLetters, ...]:
        return tuple(
            DeadLetters(batch.first, batch.last, batch.delivery_count, batch.cause or self._likely_cause(batch))
            for batch in stored
            if batch.state is RecordState.ARCHIVING
        )

    def _likely_cause(self, batch: StateBatch) -> Cause:
        """Returns why the last leader gave records up, which is not stored."""
        is_limit = batch.delivery_count >= self.limits.delivery_count_max
        return Cause.DELIVERED_TOO_OFTEN if is_limit else Cause.REJECTED

    def dead_letters_written(self, first: int, last: int) -> Effects:
        """Archives the records whose dead letters are written, or were given up; those that are still in flight.

        As after an expired lock, the write is not waited for: losing it only writes the dead letters again.
        """
        if self.closed:
            return NO_EFFECTS
        is_gone = first < self.start_offset  # the log has lost records: the start offset says that they are done
        self.is_behind = self.is_behind or is_gone
        first, end = max(first, self.start_offset), min(last + 1, self.end_offset)
        if first >= end:
            return Effects(persist=self._next_write(repeats=is_gone))
        for run in self._runs.cut(first, end):
            if run.state is RecordState.ARCHIVING:
                run.become(RecordState.ARCHIVED, run.delivery_count)
                self._queued.append((0, StateBatch(run.first, run.end - 1, run.state, run.delivery_count)))
        self._tidy()
        return Effects(persist=self._next_write(repeats=is_gone), acquirable=True)

    # --- time, the log, and the end --------------------------------------------------------------------------------

    def next_deadline_ms(self) -> float | None:
        """Returns when the next lock expires; None if no record is acquired, or all are acknowledged already."""
        deadlines = [
            run.lock_deadline_ms for run in self._runs.runs if run.lock_deadline_ms is not None and run.change is None
        ]
        return min(deadlines, default=None)

    def on_timer(self, now_ms: float) -> Effects:
        """Releases the records whose lock has expired; archives those that were delivered often enough."""
        if self.closed:
            return NO_EFFECTS
        expired = False
        for run in self._runs.runs:
            if run.change is not None or run.lock_deadline_ms is None or run.lock_deadline_ms > now_ms:
                continue
            is_given_up = run.delivery_count >= self.limits.delivery_count_max
            run.become(self._given_up if is_given_up else RecordState.AVAILABLE, run.delivery_count)
            cause = Cause.DELIVERED_TOO_OFTEN if is_given_up else None
            self._queued.append((0, StateBatch(run.first, run.end - 1, run.state, run.delivery_count, cause)))
            expired = True
        if not expired:
            return NO_EFFECTS
        self._tidy()
        return Effects(persist=self._next_write(), acquirable=True)

    def move_log_start(self, log_start_offset: int) -> Effects:
        """Forgets the records below the log start offset; their acknowledgements are ignored from now on."""
        if self.closed or log_start_offset <= self.start_offset:
            return NO_EFFECTS
        self._runs.drop_before(log_start_offset)
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._advance()
        return Effects(acquirable=True)

    def close(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> Effects:
        """Ends this state, because another leader or another state replaces it; what waits for a write fails."""
        if self.closed:
            return NO_EFFECTS
        self.closed = True
        tokens = dict.fromkeys(token for token, _ in (self._writing or []) + self._queued if token)
        self._runs, self._writing, self._queued, self._unstored = Runs(), None, [], []
        self.is_behind = False
        return Effects(settled=tuple(Settled(token, error) for token in tokens), acquirable=True)

    def _tidy(self) -> None:
        self._runs.join()
        self._advance()

    def _advance(self) -> None:
        """Moves the start offset over records that are done."""
        for run in self._runs.runs:
            if not run.is_terminal:
                self.start_offset = run.first
                break
        else:
            self.start_offset = self.end_offset
        self._runs.drop_before(self.start_offset)

    @property
    def is_stored(self) -> bool:
        """Whether the stored state is all there is: no record is in hand, and no write is under way or due."""
        return (
            self._writing is None
            and not self._queued
            and not self.is_behind
            and all(run.state is not RecordState.ACQUIRED for run in self._runs.runs)
        )

    def snapshot(self) -> tuple[tuple[int, int, RecordState, int, str], ...]:
        """Returns first, end (exclusive), state, delivery count and member of each run; for tests and diagnosis."""
        return tuple((run.first, run.end, run.state, run.delivery_count, run.member) for run in self._runs.runs)


def _limit(first: int, end: int, room: int, batches: Sequence[tuple[int, int]]) -> int:
    """Returns where an acquisition of ``first`` to ``end`` ends if ``room`` records are wanted.

    The last of ``batches`` is acquired whole; without them the number of records is exact.
    """
    limit = first + room
    if limit >= end:
        return end
    for base_offset, batch_end in batches:
        if base_offset < limit < batch_end:
            return min(batch_end, end)
    return limit


def _pieces(first: int, end: int, useless: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Yields the parts of a range, and whether each lies in one of the ascending useless ranges."""
    for useless_first, useless_end in useless:
        if useless_end <= first:
            continue
        if useless_first >= end:
            break
        if first < useless_first:
            yield first, useless_first, False
        yield max(first, useless_first), min(end, useless_end), True
        first = min(end, useless_end)
    if first < end:
        yield first, end, False


def _ranges(run: Run, fetched: Sequence[tuple[int, int]], batch_size: int) -> Iterator[AcquiredRange]:
    """Yields an acquired run in ranges that end with a record batch and hold about ``batch_size`` records."""
    first = run.first
    if 0 < batch_size < run.end - run.first:
        for _, batch_end in fetched:
            if batch_end >= run.end:
                break
            if batch_end - first >= batch_size:
                yield AcquiredRange(first, batch_end - 1, run.delivery_count)
                first = batch_end
    yield AcquiredRange(first, run.end - 1, run.delivery_count)
