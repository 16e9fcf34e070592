"""Planted bugs of share-partitions and of the share coordinator that short histories of both together find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.share.core import decisions, share_core
from moldau_broker.coordinator.share.core import state as states
from moldau_broker.coordinator.share.core.share_core import ShareCore
from moldau_broker.server.share.core.share_partition import SharePartition
from moldau_broker.server.share.core.values import Effects, RecordState, StateBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.coordinator.share.core import batches
    from moldau_broker.coordinator.share.core.requests import Write
    from moldau_broker.coordinator.share.core.state import SharePartitionKey, ShareState
    from moldau_jepsen.planted_bug import Patch


def start_offset_goes_back() -> list[Patch]:
    """A late write of the same leader moves the stored start offset back."""
    original = decisions._write

    def write(ask: Write, key: SharePartitionKey, state: ShareState, *rest: int) -> object:
        return original(ask, key, replace(state, start_offset=min(state.start_offset, ask.start_offset)), *rest)

    return [(decisions, "_write", write)]


def later_batch_wins() -> list[Patch]:
    """Of two stored states of a record the one that arrived later wins, not the one of the later delivery."""

    def combine(given: Iterable[batches.StateBatch], start_offset: int) -> tuple[batches.StateBatch, ...]:
        newest = {
            offset: batch._replace(first_offset=offset, last_offset=offset)
            for batch in given
            for offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1)
        }
        return tuple(newest[offset] for offset in sorted(newest))

    return [(states, "combine", combine)]


def refused_write_counts() -> list[Patch]:
    """A write that was given up counts as stored."""
    original = SharePartition.persisted

    def persisted(self: SharePartition, error: ErrorCode) -> Effects:
        is_unknown = error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return original(self, ErrorCode.NONE if is_unknown else error)

    return [(SharePartition, "persisted", persisted)]


def lock_ends_during_write() -> list[Patch]:
    """The lock of a record expires while its acceptance is being stored."""
    original = SharePartition.on_timer

    def on_timer(self: SharePartition, now_ms: float) -> Effects:
        for run in self._runs.runs:
            if run.change is not None and run.lock_deadline_ms is not None and run.lock_deadline_ms <= now_ms:
                run.become(RecordState.AVAILABLE, run.delivery_count)
        return original(self, now_ms)

    return [(SharePartition, "on_timer", on_timer)]


def former_leader_writes() -> list[Patch]:
    """The coordinator takes writes of a former leader."""
    original = decisions._write
    good = decisions.decide

    def decide(ask: object, key: object, state: ShareState | None, *rest: int) -> object:
        if state is not None and type(ask).__name__ == "Write":
            return original(ask, key, state, *rest)  # type: ignore[arg-type]
        return good(ask, key, state, *rest)  # type: ignore[arg-type]

    return [(share_core, "decide", decide)]


def acquired_records_taken_for_done() -> list[Patch]:
    """A new leader takes records between the stored batches for done."""
    original = SharePartition.restore.__func__  # type: ignore[attr-defined]

    def restore(cls: type[SharePartition], /, limits: object, given: list[StateBatch], **rest: int) -> SharePartition:
        end, filled = rest["start_offset"], list[StateBatch]()
        for batch in given:
            if batch.first > end:
                filled.append(StateBatch(end, batch.first - 1, RecordState.ARCHIVED, 1))
            filled.append(batch)
            end = batch.last + 1
        return original(cls, limits, filled, **rest)  # type: ignore[no-any-return]

    return [(SharePartition, "restore", classmethod(restore))]


def answer_before_commit() -> list[Patch]:
    """The coordinator answers a write when it is appended."""
    good = ShareCore._write

    def write(self: ShareCore, changes: list[object], moment: object) -> list[object]:
        good(self, changes, moment)  # type: ignore[arg-type]
        return []

    return [(ShareCore, "_write", write)]
