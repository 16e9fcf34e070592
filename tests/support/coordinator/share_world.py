"""A driver for the pure core of the share coordinator, and short forms of its requests."""

from typing import TYPE_CHECKING
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from moldau.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from moldau.protocol.messages.read_share_group_state import ReadShareGroupStateRequest
from moldau.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from moldau.protocol.messages.write_share_group_state import WriteShareGroupStateRequest
from moldau_broker.coordinator.runtime.effects import Answer, Append, DeleteRecords, Effect, Moment
from moldau_broker.coordinator.share.core.batches import StateBatch
from moldau_broker.coordinator.share.core.config import ShareConfig
from moldau_broker.coordinator.share.core.requests import (
    Ask,
    Delete,
    Initialize,
    KeyAnswer,
    Read,
    ShareStateRequest,
    Summarize,
    Write,
    asks_of,
    request_of,
)
from moldau_broker.coordinator.share.core.share_core import ShareCore
from moldau_broker.coordinator.share.core.state import SharePartitionKey
from support.coordinator.group_world import WALL_START_MS, Topics

if TYPE_CHECKING:
    from collections.abc import Iterable

T = UUID(int=1)
"""The id of the topic ``t`` of `Topics`."""
KINDS: dict[type[object], type[ShareStateRequest]] = {
    Initialize: InitializeShareGroupStateRequest,
    Read: ReadShareGroupStateRequest,
    Write: WriteShareGroupStateRequest,
    Delete: DeleteShareGroupStateRequest,
    Summarize: ReadShareGroupStateSummaryRequest,
}


def key(partition: int = 0, group: str = "g", topic: UUID = T) -> SharePartitionKey:
    return SharePartitionKey(group, topic, partition)


def write(
    *batches: tuple[int, int, int, int], start: int = -1, state_epoch: int = 0, leader_epoch: int = -1, count: int = 0
) -> Write:
    """Returns a write of batches ``(first offset, last offset, delivery state, delivery count)``."""
    return Write(
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start,
        delivery_complete_count=count,
        batches=tuple(StateBatch(*batch) for batch in batches),
    )


def request(*asks: tuple[SharePartitionKey, Ask]) -> ShareStateRequest:
    """Returns the request that asks this; all asks are of one kind and one group."""
    (first, ask), *_ = asks
    return request_of(KINDS[type(ask)], first.group_id, dict(asks))


class ShareDriver:
    """Drives one `ShareCore`: keeps the answers by request id, and commits writes on demand."""

    def __init__(self, config: ShareConfig | None = None, *, auto_commit: bool = True) -> None:
        self.config = config or ShareConfig()
        self.auto_commit = auto_commit
        self.now_ms = 1_000
        self.answers: dict[int, dict[SharePartitionKey, object]] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.start_offset = 0
        self.uncommitted: list[Append] = []
        self.end_offset = 0
        self.topics = Topics()
        self.request_count = 0
        self.core = self._new_core()
        self.perform(self.core.start(self.moment()))

    def _new_core(self) -> ShareCore:
        core = ShareCore(self.config, self.topics)
        for offset, (record_key, value) in enumerate(self.log):
            if offset >= self.start_offset:
                core.replay_at(record_key, value, offset)
        return core

    def moment(self) -> Moment:
        return Moment(self.now_ms, WALL_START_MS + self.now_ms)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.uncommitted.append(effect)
                self.core.appended(effect.append_id, self.end_offset)
                self.end_offset += len(effect.records)
            elif isinstance(effect, DeleteRecords):
                assert effect.end_offset <= len(self.log)
                self.start_offset = effect.end_offset
                self.core.pruned(effect.end_offset)
            else:
                assert isinstance(effect, Answer)
                assert effect.request_id not in self.answers, "a request was answered twice"
                self.answers[effect.request_id] = {
                    key(part.partition, topic=topic.topic_id): part
                    for topic in effect.response.results  # type: ignore[attr-defined]
                    for part in topic.partitions
                }
        if self.auto_commit:
            self.commit()

    def commit(self, count: int = 1_000_000) -> None:
        """Commits pending writes."""
        while self.uncommitted and count:
            count -= 1
            append = self.uncommitted.pop(0)
            self.log += [(record.key, record.value) for record in append.records]
            self.perform(self.core.committed(append.append_id, self.moment()))

    def pass_time(self, milliseconds: int) -> None:
        """Advances the time and runs the timer at each deadline on the way; no snapshot of its own changes a state."""
        end = self.now_ms + milliseconds
        while (due := self.core.next_deadline_ms()) is not None and due <= end:
            self.now_ms = max(due, self.now_ms)
            before = self.contents()
            effects = self.core.on_timer(self.moment())
            for where, content in self.contents().items():
                assert content == before[where], f"a snapshot of {where} is not the state that was written"
            self.perform(effects)
        self.now_ms = end

    def contents(self) -> dict[SharePartitionKey, object]:
        """Returns what the log says of each share-partition once all writes are committed."""
        found: dict[SharePartitionKey, object] = {}
        for where in [*self.core.states, *self.core._latest]:
            state = self.core._state(where)
            if state is not None:
                found[where] = (state.state_epoch, state.leader_epoch, state.start_offset, state.batches)
        return found

    def fail_over(self, *, keeps: bool = False) -> None:
        """Replaces the coordinator by one that loads the log; ``keeps`` states whether pending writes survive."""
        self.perform(self.core.resign(ErrorCode.NOT_COORDINATOR, self.moment()))
        for append in self.uncommitted if keeps else ():
            self.log += [(record.key, record.value) for record in append.records]
        self.uncommitted.clear()
        self.end_offset = len(self.log)
        self.core = self._new_core()
        self.perform(self.core.start(self.moment()))

    def send(self, *asks: tuple[SharePartitionKey, Ask]) -> int:
        request_id = self.request_count
        self.request_count += 1
        found = request(*asks)
        self.perform(self.core.handle(request_id, type(found), asks_of(found), self.moment()))
        return request_id

    def refuse(self, code: ErrorCode, *asks: tuple[SharePartitionKey, Ask]) -> int:
        """Sends a request whose first write the log refuses at once."""
        request_id = self.request_count
        self.request_count += 1
        found = request(*asks)
        effects = self.core.handle(request_id, type(found), asks_of(found), self.moment())
        (append,) = [effect for effect in effects if isinstance(effect, Append)]
        self.perform(self.core.failed(append.append_id, code, self.moment()))
        return request_id

    def ask(self, ask: Ask, where: SharePartitionKey | None = None) -> "object":
        """Sends a request about one share-partition that is answered at once; returns the answer."""
        where = where or key()
        return self.answers[self.send((where, ask))][where]

    def code(self, ask: Ask, where: SharePartitionKey | None = None) -> ErrorCode:
        return ErrorCode(self.ask(ask, where).error_code)  # type: ignore[attr-defined]

    def codes(self, request_id: int) -> list[ErrorCode]:
        return [ErrorCode(part.error_code) for part in self.answers[request_id].values()]  # type: ignore[attr-defined]


def batches_of(answer: object) -> list[tuple[int, int, int, int]]:
    """Returns the batches of an answer to ReadShareGroupState."""
    found: Iterable[object] = answer.state_batches  # type: ignore[attr-defined]
    return [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in found]  # type: ignore[attr-defined]


__all__ = ["KeyAnswer", "ShareDriver", "batches_of", "key", "request", "write"]
