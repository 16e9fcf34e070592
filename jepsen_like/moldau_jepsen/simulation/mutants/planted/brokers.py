"""Bugs in how brokers replicate and acknowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.records import iterate_batches
from moldau.runtime.net.serving.answer_queue import AnswerQueue, ready_bytes
from moldau.values import Offset
from moldau_broker.replication.follower import StepKind
from moldau_broker.replication.purgatory import Purgatory
from moldau_broker.replication.replica import Replica, Role
from moldau_broker.server.replicas.delayed import Operation, ProduceOperation
from moldau_broker.server.replicas.replica_fetcher import _Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.net.serving.answers import Deferred, ResponsePart
    from moldau.values import LeaderEpoch
    from moldau_broker.replication.follower import Followed, Step
    from moldau_broker.replication.purgatory import Delayed
    from moldau_jepsen.planted_bug import Patch


def follower_acks_before_append() -> list[Patch]:
    """A follower asks for what comes after records that it has received and not yet appended."""
    original = _Source._perform
    held: dict[Followed, Step] = {}

    def perform(self: _Source, step: Step, now_ms: float) -> bool:
        late = held.pop(step.followed, None)
        if late is not None:
            original(self, late, now_ms)
        headers = [header for _, header in iterate_batches(step.answer.records)]
        if step.kind is not StepKind.ADVANCE or not headers or not self.core.is_current(step.followed):
            return original(self, step, now_ms)
        held[step.followed] = step
        last = headers[-1]
        self.core.appended(
            step.followed, Offset(last.next_offset), last.partition_leader_epoch, step.followed.log_start_offset
        )
        return True

    return [(_Source, "_perform", perform)]


def produce_completed_twice() -> list[Patch]:
    """An operation that leaves the purgatory by its condition leaves its deadline behind."""

    def complete(self: Purgatory[object, object], delayed: Delayed[object, object]) -> bool:
        self._forget(delayed)
        return True

    return [(Purgatory, "complete", complete)]


def deposed_leader_acknowledges() -> list[Patch]:
    """An operation that waits when leadership ends is answered as if it were committed."""
    original = Replica.acknowledgement

    def acknowledgement(self: Replica, leader_epoch: LeaderEpoch, required_offset: Offset) -> ErrorCode | None:
        if self.role is not Role.LEADER or self.state.leader_epoch != leader_epoch:
            return ErrorCode.NONE
        return original(self, leader_epoch, required_offset)

    return [(Replica, "acknowledgement", acknowledgement)]


def min_isr_ignored() -> list[Patch]:
    """The high watermark moves, and appends are acknowledged, however small the ISR is."""
    return [(Replica, "effective_min_isr", property(lambda self: 1))]


def answers_sent_ahead_and_queued() -> list[Patch]:
    """Answers that are ready go out ahead of one that is not, and then stand in the queue behind it as well."""
    original = AnswerQueue.leave

    def leave(self: AnswerQueue, answers: Sequence[Sequence[ResponsePart] | Deferred]) -> Sequence[ResponsePart]:
        if answers and not self.pending and not isinstance(answers[-1], list | tuple):
            for answer in answers:
                if not isinstance(answer, list | tuple):
                    break
                self._transmission.send_now(answer)
        return original(self, answers)

    return [(AnswerQueue, "leave", leave)]


def produce_answered_twice() -> list[Patch]:
    """An operation that leaves the purgatory by its condition leaves its deadline behind; both send the answer."""
    leave_once, finish_once = AnswerQueue.leave, Operation.finish
    queues: dict[int, tuple[AnswerQueue, Operation]] = {}

    def leave(self: AnswerQueue, answers: Sequence[Sequence[ResponsePart] | Deferred]) -> Sequence[ResponsePart]:
        for answer in answers:
            if isinstance(answer, ProduceOperation):
                queues[id(answer)] = (self, answer)
        return leave_once(self, answers)

    def finish(self: Operation) -> None:
        if self.finished and id(self) in queues:
            queue, operation = queues.pop(id(self))
            assert isinstance(operation, ProduceOperation)
            parts = [*operation._encode(operation.errors)]
            queue._held.answer_queued(ready_bytes(parts))
            queue.pending.append(parts)
            queue.changed.notify()
        elif not self.finished:
            finish_once(self)

    def answer_now(self: ProduceOperation) -> Sequence[ResponsePart]:
        return self._encode(self.errors)

    return [
        *produce_completed_twice(),
        (AnswerQueue, "leave", leave),
        (Operation, "finish", finish),
        (ProduceOperation, "answer_now", answer_now),
    ]
