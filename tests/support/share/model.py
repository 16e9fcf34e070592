"""A naive model of a share-partition: one entry for each record, and no runs, ranges or shortcuts."""

from dataclasses import dataclass, replace

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.share.core.values import AcknowledgeType, RecordState

LIMIT, LOCK_MS = 2, 100

Done = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(frozen=True)
class Record:
    """One record; ``change`` is token, state and count of a change that is being stored."""

    state: RecordState
    count: int
    member: str = ""
    deadline: float | None = None
    change: tuple[int, RecordState, int] | None = None


class Model:
    """The specification, record by record. Every log batch holds one record, so limits are exact in each mode."""

    def __init__(self, locks_max: int, *, writes_dead_letters: bool = False) -> None:
        self.locks_max = locks_max
        self.given_up = RecordState.ARCHIVING if writes_dead_letters else RecordState.ARCHIVED
        self.letters: list[int] = []
        """The records whose dead letters are due: they are stored as archiving."""
        self.start = self.end = 0
        self.records: dict[int, Record] = {}
        self.token = 1
        self.writing: list[tuple[int, int, RecordState, int]] | None = None
        self.queued: list[tuple[int, int, RecordState, int]] = []
        self.unstored: list[tuple[int, int, RecordState, int]] = []

    def next_fetch(self) -> int:
        return min((o for o, r in self.records.items() if r.state is RecordState.AVAILABLE), default=self.end)

    def acquire(self, member: str, log_end: int, most: int, now: float) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for offset in range(self.next_fetch(), log_end):
            if len(found) == most:
                break
            if offset >= self.end:
                if self.end - self.start >= self.locks_max:
                    break
                self.records[offset] = Record(RecordState.AVAILABLE, 0)
                self.end = offset + 1
            record = self.records.get(offset)
            if record is not None and record.state is RecordState.AVAILABLE:
                self.records[offset] = Record(RecordState.ACQUIRED, record.count + 1, member, now + LOCK_MS)
                found.append((offset, record.count + 1))
        return found

    def holds(self, member: str, offset: int) -> bool:
        record = self.records.get(offset)
        return (
            record is not None
            and record.state is RecordState.ACQUIRED
            and record.member == member
            and record.change is None
        )

    def acknowledge(self, member: str, wanted: list[tuple[int, int]], now: float) -> tuple[ErrorCode, int | None]:
        wanted = [(offset, kind) for offset, kind in wanted if offset >= self.start]
        if any(offset >= self.end for offset, _ in wanted):
            return ErrorCode.INVALID_REQUEST, None
        if not all(self.holds(member, offset) for offset, _ in wanted):
            return ErrorCode.INVALID_RECORD_STATE, None
        token, changed = self.token, False
        for offset, kind in wanted:
            record = self.records[offset]
            if kind == AcknowledgeType.RENEW:
                self.records[offset] = replace(record, deadline=now + LOCK_MS)
                continue
            state = {0: RecordState.ARCHIVED, 1: RecordState.ACKNOWLEDGED, 2: RecordState.AVAILABLE}.get(kind)
            state = self.given_up if state is None else state
            if state is RecordState.AVAILABLE and record.count >= LIMIT:
                state = self.given_up
            self.change(offset, token, state, record.count)
            changed = True
        return ErrorCode.NONE, self.begin() if changed else None

    def release(self, member: str) -> int | None:
        token = self.token
        held = [offset for offset in self.records if self.holds(member, offset)]
        for offset in held:
            count = self.records[offset].count
            state = self.given_up if count >= LIMIT else RecordState.AVAILABLE
            self.change(offset, token, state, count)
        return self.begin() if held else None

    def change(self, offset: int, token: int, state: RecordState, count: int) -> None:
        self.records[offset] = replace(self.records[offset], change=(token, state, count))
        self.queued.append((token, offset, state, count))

    def begin(self) -> int:
        self.token += 1
        self.write()
        return self.token - 1

    def write(self, *, repeats: bool = False) -> None:
        if self.writing is None and (self.queued or repeats):
            self.writing, self.unstored, self.queued = self.unstored + self.queued, [], []

    def persisted(self, error: ErrorCode) -> list[int]:
        assert self.writing is not None
        entries, self.writing = self.writing, None
        tokens = list(dict.fromkeys(token for token, *_ in entries if token))
        for offset, record in self.records.items():
            if record.change is not None and record.change[0] in tokens:
                if error is ErrorCode.NONE:
                    self.records[offset] = Record(record.change[1], record.change[2])
                else:
                    self.records[offset] = replace(record, change=None)
        if error is not ErrorCode.NONE:
            self.unstored = [entry for entry in entries if not entry[0]]
        else:
            stored = {offset for _, offset, state, _ in entries if state is RecordState.ARCHIVING}
            self.letters += sorted(offset for offset in stored if offset >= self.start)
        self.advance()
        self.write()
        return tokens

    def letters_written(self, offsets: list[int]) -> None:
        is_gone = min(offsets) < self.start
        for offset in offsets:
            self.letters.remove(offset)
            record = self.records.get(offset)
            if record is not None and record.state is RecordState.ARCHIVING:
                self.records[offset] = Record(RecordState.ARCHIVED, record.count)
                self.queued.append((0, offset, RecordState.ARCHIVED, record.count))
        self.advance()
        self.write(repeats=is_gone)

    def expire(self, now: float) -> None:
        for offset, record in self.records.items():
            if record.deadline is not None and record.change is None and record.deadline <= now:
                state = self.given_up if record.count >= LIMIT else RecordState.AVAILABLE
                self.records[offset] = Record(state, record.count)
                self.queued.append((0, offset, state, record.count))
        self.advance()
        self.write()

    def move_log_start(self, offset: int) -> None:
        if offset > self.start:
            self.records = {each: record for each, record in self.records.items() if each >= offset}
            self.start, self.end = offset, max(self.end, offset)
            self.advance()

    def advance(self) -> None:
        while self.start < self.end and self.records[self.start].state in Done:
            del self.records[self.start]
            self.start += 1

    def stored(self) -> tuple[int, int, dict[int, tuple[RecordState, int]]]:
        """The write under way, if it began now: start offset, complete records, and the state of each record in it."""
        assert self.writing is not None
        tokens = {token for token, *_ in self.writing}
        after = {
            offset: record.change[1] if record.change and record.change[0] in tokens else record.state
            for offset, record in self.records.items()
        }
        start = self.start
        while start < self.end and after[start] in Done:
            start += 1
        complete = sum(state in Done for offset, state in after.items() if offset >= start)
        states = {offset: (state, count) for _, offset, state, count in self.writing if offset >= start}
        return start, complete, states
