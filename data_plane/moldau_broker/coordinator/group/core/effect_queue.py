"""The effects that the parts of a `GroupCore` decide on, and the writes whose outcome is still open. Pure.

All parts of one core share one queue, so the effects of an event keep the order in which they were decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.runtime.effects import Answer, Append, AskShareState
from moldau_broker.coordinator.runtime.pending import PendingWrite, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.core.records import OffsetRecord
    from moldau_broker.coordinator.runtime.effects import (
        CreateTopics,
        Effect,
        Marker,
        Moment,
        StateRecord,
        TransactionalProducer,
    )
    from moldau_broker.coordinator.runtime.pending import Continuation
    from moldau_broker.coordinator.runtime.timers import Deadlines

_COMMIT = "commit"


class EffectQueue:
    """Collects effects until `take`, and numbers the writes among them.

    Invariant: the ids of pending writes grow.
    """

    def __init__(self, commit_timeout_ms: int, deadlines: Deadlines[tuple[str, ...]]) -> None:
        """Starts empty. Each write with a continuation gets a deadline of kind ``commit`` in ``deadlines``."""
        self.pending: dict[int, PendingWrite] = {}
        """Writes that are neither committed nor refused, by append id."""
        self._commit_timeout_ms = commit_timeout_ms
        self._deadlines = deadlines
        self._effects: list[Effect] = []
        self._next_append_id = 0

    def answer(self, request_id: int, response: Response) -> None:
        """Adds the answer to a request."""
        self._effects.append(Answer(request_id=request_id, response=response))

    def ask(self, question: AskShareState) -> None:
        """Adds a question to share coordinators."""
        self._effects.append(question)

    def create(self, topics: CreateTopics) -> None:
        """Adds the creation of internal topics."""
        self._effects.append(topics)

    def append(
        self,
        records: tuple[StateRecord, ...],
        then: Continuation | None,
        moment: Moment,
        producer: TransactionalProducer | None = None,
        marker: Marker | None = None,
    ) -> int:
        """Adds a write and returns its id. ``then`` says what follows when the outcome is known."""
        append_id = self._next_append_id
        self._next_append_id += 1
        self.pending[append_id] = PendingWrite(
            append_id=append_id, records=records, producer=producer, marker=marker, then=then
        )
        if then is not None:
            self._deadlines.set((_COMMIT, str(append_id)), moment.now_ms + self._commit_timeout_ms)
        self._effects.append(Append(append_id=append_id, records=records, producer=producer, marker=marker))
        return append_id

    def reply_when_written(
        self,
        request_id: int,
        records: tuple[StateRecord, ...],
        respond: Callable[[ErrorCode], Response],
        moment: Moment,
        producer: TransactionalProducer | None = None,
    ) -> int | None:
        """Adds a write whose outcome answers a request, and returns its id; without records it answers at once."""
        if not records:
            self.answer(request_id, respond(ErrorCode.NONE))
            return None
        return self.append(records, Reply(request_id=request_id, respond=respond), moment, producer)

    def offsets_in_flight(self) -> list[OffsetRecord]:
        """Returns the offsets that are written but not committed yet, in the order of the log."""
        return [record for pending in self.pending.values() for record in pending.offset_records()]

    def groups_in_flight(self) -> set[str]:
        """Returns the ids of classic groups and of offsets that are written but not committed yet."""
        found: set[str] = set()
        for pending in self.pending.values():
            found.update(record.group_id for record in pending.offset_records())
            found.update(record.group_id for record in pending.group_records())
        return found

    def generation_in_flight(self, group_id: str) -> int:
        """Returns the highest generation of a classic group that is written but not committed yet; 0 if none is."""
        records = (record for pending in self.pending.values() for record in pending.group_records())
        ours = (record.value.generation for record in records if record.group_id == group_id and record.value)
        return max(ours, default=0)

    def cancel_deadline(self, pending: PendingWrite) -> None:
        """Cancels the deadline of a write whose outcome has been delivered."""
        self._deadlines.cancel((_COMMIT, str(pending.append_id)))

    def take(self) -> list[Effect]:
        """Removes and returns the collected effects, in the order in which they were added."""
        effects = self._effects
        self._effects = []
        return effects
