"""The replicated core of the share coordinator of one partition of ``__share_group_state``. Pure (KIP-932).

Theory of operation. The state of each share-partition is a function of the committed log; `replay` is its only mutator.
A request is decided on the state with the changes that are written but not committed (`_latest`), because writes of one
share-partition may follow each other quickly and a snapshot must contain all of them. Its answer waits until its own
write and all earlier writes of the share-partition are committed, so nothing that a failover could lose is ever shown.

The log refuses a write at once or never, and at once means before the next decision. So no decision is ever based on a
change that is later refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from moldau_broker.coordinator.runtime.effects import Answer, Append, DeleteRecords
from moldau_broker.coordinator.runtime.log_refusals import LOG_REFUSALS
from moldau_broker.coordinator.runtime.timers import Deadlines
from moldau_broker.coordinator.share.core.decisions import decide, snapshot
from moldau_broker.coordinator.share.core.pruning import Snapshots, cold
from moldau_broker.coordinator.share.core.records import change_record, parse_change
from moldau_broker.coordinator.share.core.requests import KeyAnswer, Summarize, response_of
from moldau_broker.coordinator.share.core.state import Snapshot, applied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.values import Buffer
    from moldau_broker.coordinator.runtime.effects import Effect, Moment, StateRecord
    from moldau_broker.coordinator.runtime.ports import TopicNames
    from moldau_broker.coordinator.share.core.config import ShareConfig
    from moldau_broker.coordinator.share.core.requests import Ask, ShareStateRequest
    from moldau_broker.coordinator.share.core.state import Change, SharePartitionKey, ShareState

_COMMIT, _PRUNE, _COLD, _GONE = "commit", ("prune",), ("cold",), ("gone",)
WRITE_RECORDS_MAX = 100
"""Records of one write; a request about more share-partitions becomes several writes."""
WRITE_BYTES_MAX = 256 * 1024
"""Bytes of one write, which the log takes as one batch; a larger record is a write of its own."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A request that waits for writes. ``waits`` are their ids with the share-partitions whose answers they hold up."""

    request_id: int
    kind: type[ShareStateRequest]
    answers: dict[SharePartitionKey, KeyAnswer]
    waits: dict[int, list[SharePartitionKey]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Write:
    """A write between its append and its commit; ``opens`` are the requests that wait for it."""

    changes: tuple[Change, ...]
    opens: list[_Open] = field(default_factory=list)


class ShareCore:
    """The coordinator of one partition. Events return effects, in the order in which to perform them.

    Invariants: every request id is answered once; ``_latest`` holds the share-partitions of pending writes only, with
    all pending changes applied.
    """

    def __init__(self, config: ShareConfig, topics: TopicNames) -> None:
        """Starts with nothing loaded; ``topics`` are those of the moment of a call."""
        self.states: dict[SharePartitionKey, ShareState] = {}
        """The committed states."""
        self.unreadable_records = 0
        self._config = config
        self._topics = topics
        self._snapshots = Snapshots()
        self._pruned_offset = 0
        self._latest: dict[SharePartitionKey, ShareState | None] = {}
        self._last_write: dict[SharePartitionKey, int] = {}
        """The last pending write of each share-partition that has one."""
        self._pending: dict[int, _Write] = {}
        self._base_offsets: dict[int, int] = {}
        self._next_append_id = 0
        self._deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._effects: list[Effect] = []

    # The log

    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int | None = None) -> None:
        """Applies one committed record whose offset does not matter."""
        del producer_id  # no transactional batch is written to this topic
        self.replay_at(key, value, -1)

    def replay_at(self, key: Buffer | None, value: Buffer | None, offset: int) -> None:
        """Applies one committed record; ``offset`` is its place in the log."""
        try:
            change = parse_change(key, value)
        except DecodeError:
            self.unreadable_records += 1
            return
        if change is not None:
            self._apply(change, offset)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Does nothing: the topic holds no markers."""

    def _apply(self, change: Change, offset: int) -> None:
        state = applied(self.states.get(change.key), change)
        if state is None:
            self.states.pop(change.key, None)
        else:
            self.states[change.key] = state
        self._snapshots.replay(change, offset, state)

    def start(self, moment: Moment) -> list[Effect]:
        """Begins to serve the loaded states."""
        self._deadlines.set(_PRUNE, moment.now_ms + self._config.prune_interval_ms)
        self._deadlines.set(_COLD, moment.now_ms + self._config.cold_interval_ms)
        self._remove_gone(moment)
        return self._take()

    def topics_deleted(self, moment: Moment) -> list[Effect]:
        """Deletes the states of topics that no longer exist."""
        self._remove_gone(moment)
        return self._take()

    def appended(self, append_id: int, base_offset: int) -> None:
        """Notes where the log has put a write; the shell calls it before the write is committed."""
        self._base_offsets[append_id] = base_offset

    def pruned(self, end_offset: int) -> None:
        """Notes that redundant records are deleted; the next round repeats what failed."""
        self._pruned_offset = end_offset

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """Applies a committed write and all writes before it, and answers what waited for them."""
        assert append_id in self._pending, f"write {append_id} is not pending"
        for each in [pending for pending in self._pending if pending <= append_id]:
            write = self._pending.pop(each)
            self._deadlines.cancel((_COMMIT, str(each)))
            base_offset = self._base_offsets.pop(each, -1)
            for index, change in enumerate(write.changes):
                self._apply(change, base_offset + index if base_offset >= 0 else -1)
            self._forget_latest(each, write)
            self._deliver(each, write, ErrorCode.NONE)
        return self._take()

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Drops a write that the log has refused, before anything else is decided."""
        write = self._pending.pop(append_id)
        self._deadlines.cancel((_COMMIT, str(append_id)))
        for change in write.changes:
            self._rebuild_latest(change.key)
        if any(isinstance(change, Snapshot) and change.state is None for change in write.changes):
            self._deadlines.set(_GONE, moment.now_ms + self._config.retry_ms)
        self._deliver(append_id, write, _client_error(code))
        return self._take()

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Answers all open requests after leadership is lost. The core must not be used afterwards."""
        del moment
        for append_id, write in list(self._pending.items()):
            self._deliver(append_id, write, code)
        self._pending.clear()
        return self._take()

    def _forget_latest(self, append_id: int, write: _Write) -> None:
        for change in write.changes:
            if self._last_write.get(change.key) == append_id:
                del self._last_write[change.key]
                del self._latest[change.key]

    def _rebuild_latest(self, key: SharePartitionKey) -> None:
        state = self.states.get(key)
        last: int | None = None
        for append_id, write in self._pending.items():
            for change in write.changes:
                if change.key == key:
                    state, last = applied(state, change), append_id
        if last is None:
            self._last_write.pop(key, None)
            self._latest.pop(key, None)
        else:
            self._last_write[key], self._latest[key] = last, state

    def _deliver(self, append_id: int, write: _Write, code: ErrorCode) -> None:
        """Delivers the outcome of a write to the requests that wait for it."""
        opens, write.opens = write.opens, []
        for each in opens:
            for key in each.waits.pop(append_id, ()):
                if code is not ErrorCode.NONE:
                    each.answers[key] = KeyAnswer(code=code)
            if not each.waits:
                self._answer(each)

    def _answer(self, each: _Open) -> None:
        self._effects.append(Answer(request_id=each.request_id, response=response_of(each.kind, each.answers)))

    # Time

    def next_deadline_ms(self) -> int | None:
        """Returns when `on_timer` has to be called next."""
        return self._deadlines.next_ms()

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Performs what is due."""
        while (key := self._deadlines.pop_due(moment.now_ms)) is not None:
            if key == _PRUNE:
                self._prune()
                self._deadlines.set(_PRUNE, moment.now_ms + self._config.prune_interval_ms)
            elif key == _COLD:
                self._write_cold(moment)
                self._deadlines.set(_COLD, moment.now_ms + self._config.cold_interval_ms)
            elif key == _GONE:
                self._remove_gone(moment)
            else:
                append_id = int(key[1])
                # The write may still be committed; it is replayed in its place then.
                self._deliver(append_id, self._pending[append_id], _client_error(ErrorCode.REQUEST_TIMED_OUT))
        return self._take()

    def _prune(self) -> None:
        end_offset = self._snapshots.redundant_end_offset()
        if end_offset > self._pruned_offset:
            self._effects.append(DeleteRecords(end_offset=end_offset))

    def _write_cold(self, moment: Moment) -> None:
        settled = {key: state for key, state in self.states.items() if key not in self._latest}
        keys = cold(settled, moment.wall_ms - self._config.cold_interval_ms)
        self._write([snapshot(key, settled[key], moment.wall_ms) for key in keys], moment)

    def _remove_gone(self, moment: Moment) -> None:
        """Deletes states of deleted topics; a write that fails is repeated."""
        known: dict[object, bool] = {}
        for key in [*self.states, *self._latest]:
            if key.topic_id not in known:
                known[key.topic_id] = self._topics.topic_name(key.topic_id) is not None
        gone = [key for key in dict.fromkeys([*self.states, *self._latest]) if not known[key.topic_id]]
        self._write([Snapshot(key=key, state=None) for key in gone if self._state(key) is not None], moment)

    # Requests

    def handle(
        self, request_id: int, kind: type[ShareStateRequest], asks: Mapping[SharePartitionKey, Ask], moment: Moment
    ) -> list[Effect]:
        """Handles a request about share-partitions of this partition; its answer is among these or later effects.

        Args:
            request_id: names the answer.
            kind: the class of the request.
            asks: what it asks of each share-partition, in the order of the answer.
            moment: now.
        """
        each = _Open(request_id=request_id, kind=kind, answers={})
        is_full = (
            kind is not ReadShareGroupStateSummaryRequest and len(self._pending) >= self._config.appends_pending_max
        )
        changes: list[Change] = []
        waits: dict[int, list[SharePartitionKey]] = {}
        for key, ask in asks.items():
            if is_full:
                each.answers[key] = KeyAnswer(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
                continue
            each.answers[key], change = self._decide(ask, key, moment)
            if change is not None:
                changes.append(change)
            elif (
                each.answers[key].code is ErrorCode.NONE
                and key in self._last_write
                and kind is not ReadShareGroupStateSummaryRequest
            ):
                waits.setdefault(self._last_write[key], []).append(key)
        for append_id, keys in [*waits.items(), *self._write(changes, moment)]:
            each.waits[append_id] = keys
            self._pending[append_id].opens.append(each)
            if self._deadlines.get((_COMMIT, str(append_id))) is None:  # it has passed: this wait needs an end too
                self._await_commit(append_id, moment)
        if not each.waits:
            self._answer(each)
        return self._take()

    def _decide(self, ask: Ask, key: SharePartitionKey, moment: Moment) -> tuple[KeyAnswer, Change | None]:
        if key.partition < 0:
            return KeyAnswer(code=ErrorCode.INVALID_REQUEST, message="the partition is negative"), None
        name = self._topics.topic_name(key.topic_id)
        if name is None or not self._topics.has_partition(name, key.partition):
            return KeyAnswer(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
        # A summary shows committed state at once; all else is decided on what is written.
        state = self.states.get(key) if isinstance(ask, Summarize) else self._state(key)
        return decide(ask, key, state, self._config.updates_per_snapshot, moment.wall_ms)

    def _state(self, key: SharePartitionKey) -> ShareState | None:
        return self._latest[key] if key in self._latest else self.states.get(key)

    # Writes

    def _write(self, changes: list[Change], moment: Moment) -> list[tuple[int, list[SharePartitionKey]]]:
        """Writes changes of different share-partitions; returns the ids of the writes with their share-partitions."""
        writes: list[tuple[int, list[SharePartitionKey]]] = []
        records: list[StateRecord] = []
        first, size = 0, 0
        for index, change in enumerate(changes):
            record = change_record(change)
            record_bytes = len(record.key) + len(record.value or b"")
            if records and (len(records) >= WRITE_RECORDS_MAX or size + record_bytes > WRITE_BYTES_MAX):
                writes.append(self._append(changes[first:index], records, moment))
                records, first, size = [], index, 0
            records.append(record)
            size += record_bytes
        if records:
            writes.append(self._append(changes[first:], records, moment))
        return writes

    def _append(
        self, changes: list[Change], records: list[StateRecord], moment: Moment
    ) -> tuple[int, list[SharePartitionKey]]:
        append_id = self._next_append_id
        self._next_append_id += 1
        self._pending[append_id] = _Write(changes=tuple(changes))
        for change in changes:
            self._latest[change.key] = applied(self._state(change.key), change)
            self._last_write[change.key] = append_id
        self._await_commit(append_id, moment)
        self._effects.append(Append(append_id=append_id, records=tuple(records)))
        return append_id, [change.key for change in changes]

    def _await_commit(self, append_id: int, moment: Moment) -> None:
        self._deadlines.set((_COMMIT, str(append_id)), moment.now_ms + self._config.write_timeout_ms)

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _client_error(code: ErrorCode) -> ErrorCode:
    """Returns the code for clients of an error of the log."""
    too_large = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)
    return ErrorCode.UNKNOWN_SERVER_ERROR if code in too_large else LOG_REFUSALS.get(code, code)
