"""Decides what a request does to one share-partition: the answer, and the change that is written. Pure (KIP-932)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.share.core.batches import (
    ACKNOWLEDGED,
    ARCHIVED,
    FIRST_OFFSET,
    UNCHANGED_OFFSET,
    StateBatch,
    combine,
)
from moldau_broker.coordinator.share.core.requests import Delete, Initialize, KeyAnswer, Read, Summarize
from moldau_broker.coordinator.share.core.state import (
    NO_COUNT,
    NO_EPOCH,
    ShareState,
    Snapshot,
    Update,
    applied,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.coordinator.share.core.requests import Ask, Write
    from moldau_broker.coordinator.share.core.state import Change, SharePartitionKey

_COUNT_MAX = (1 << 31) - 1
_DONE = KeyAnswer()


def decide(
    ask: Ask, key: SharePartitionKey, state: ShareState | None, updates_max: int, wall_ms: int
) -> tuple[KeyAnswer, Change | None]:
    """Returns the answer to a request about one share-partition, and the change to write before it; None for none.

    Args:
        ask: what the request asks. The share-partition exists.
        key: the share-partition.
        state: its state, with the changes that are written but not committed; None if it has none.
        updates_max: updates between two snapshots.
        wall_ms: now.
    """
    if isinstance(ask, Initialize):
        return _initialize(ask, key, state, wall_ms)
    if isinstance(ask, Delete):
        return _DONE, None if state is None else Snapshot(key=key, state=None)
    if isinstance(ask, Summarize):
        return KeyAnswer(state=state), None
    if state is None:
        kind = "read" if isinstance(ask, Read) else "written"
        return _refused(ErrorCode.INVALID_REQUEST, f"the state of a share-partition is not {kind} before it begins")
    if ask.leader_epoch != NO_EPOCH and ask.leader_epoch < state.leader_epoch:
        return _refused(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {ask.leader_epoch} is older than {state.leader_epoch}"
        )
    if isinstance(ask, Read):
        return _read(ask, key, state, updates_max, wall_ms)
    return _write(ask, key, state, updates_max, wall_ms)


def _refused(code: ErrorCode, message: str) -> tuple[KeyAnswer, None]:
    return KeyAnswer(code=code, message=message), None


def _fenced(state_epoch: int, state: ShareState) -> tuple[KeyAnswer, None]:
    return _refused(ErrorCode.FENCED_STATE_EPOCH, f"state epoch {state_epoch} is older than {state.state_epoch}")


def _initialize(
    ask: Initialize, key: SharePartitionKey, state: ShareState | None, wall_ms: int
) -> tuple[KeyAnswer, Change | None]:
    if ask.start_offset < UNCHANGED_OFFSET or ask.state_epoch < 0:
        return _refused(ErrorCode.INVALID_REQUEST, "neither a state epoch nor a start offset below -1 exists")
    if state is not None and ask.state_epoch < state.state_epoch:
        return _fenced(ask.state_epoch, state)
    if (
        state is not None
        and ask.state_epoch == state.state_epoch
        and ask.start_offset <= min(state.start_offset, FIRST_OFFSET)
    ):
        # The group coordinator repeats a request whose answer it missed: what was delivered since must not be lost.
        return _DONE, None
    begun = ShareState(
        snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
        state_epoch=ask.state_epoch,
        leader_epoch=NO_EPOCH if state is None else state.leader_epoch,
        start_offset=ask.start_offset,
        delivery_complete_count=NO_COUNT if ask.start_offset == UNCHANGED_OFFSET else 0,
        create_ms=wall_ms,
        write_ms=wall_ms,
    )
    return _DONE, Snapshot(key=key, state=begun)


def _read(
    ask: Read, key: SharePartitionKey, state: ShareState, updates_max: int, wall_ms: int
) -> tuple[KeyAnswer, Change | None]:
    answer = KeyAnswer(state=state)
    if ask.leader_epoch in (NO_EPOCH, state.leader_epoch):
        return answer, None
    update = Update(
        key=key,
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=ask.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        batches=(),
    )
    return answer, _folded(update, state, updates_max, wall_ms)


def _write(
    ask: Write, key: SharePartitionKey, state: ShareState, updates_max: int, wall_ms: int
) -> tuple[KeyAnswer, Change | None]:
    if ask.state_epoch != NO_EPOCH and ask.state_epoch < state.state_epoch:
        return _fenced(ask.state_epoch, state)
    if ask.leader_epoch != NO_EPOCH and state.leader_epoch == NO_EPOCH:
        # A leader reads the state before it writes. This one knows that of a deleted group, whose epochs may be higher.
        return _refused(ErrorCode.FENCED_STATE_EPOCH, "the state has begun since the leader read it")
    bad = next((batch for batch in ask.batches if not _is_sound(batch)), None)
    if bad is not None:
        return _refused(
            ErrorCode.INVALID_REQUEST,
            f"offsets {bad.first_offset} to {bad.last_offset}, delivered {bad.delivery_count} times, are no batch",
        )
    start_offset, complete_count = ask.start_offset, ask.delivery_complete_count
    if start_offset != UNCHANGED_OFFSET and start_offset < state.start_offset:
        # An earlier write that arrives late, after its leader has sent it again or given it up: no epoch tells it from
        # a present one, and below the start offset nothing is known any more that could outweigh it.
        start_offset = state.start_offset
        complete_count = _complete_count(combine((*state.batches, *ask.batches), start_offset))
    update = Update(
        key=key,
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=ask.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=complete_count,
        batches=combine(ask.batches, start_offset),
    )
    return _DONE, _folded(update, state, updates_max, wall_ms)


def _complete_count(batches: Iterable[StateBatch]) -> int:
    """Returns the number of offsets whose delivery is complete; holes of compacted logs count, records have 32 bits."""
    complete = sum(
        batch.last_offset - batch.first_offset + 1
        for batch in batches
        if batch.delivery_state in (ACKNOWLEDGED, ARCHIVED)
    )
    return min(complete, _COUNT_MAX)


def _is_sound(batch: StateBatch) -> bool:
    return 0 <= batch.first_offset <= batch.last_offset and batch.delivery_count >= 0 and batch.delivery_state >= 0


def _folded(update: Update, state: ShareState, updates_max: int, wall_ms: int) -> Change:
    """Returns the update, or after enough updates the snapshot that contains it."""
    if state.updates < updates_max:
        return update
    after = applied(state, update)
    assert after is not None
    return snapshot(update.key, replace(after, create_ms=wall_ms), wall_ms)


def snapshot(key: SharePartitionKey, state: ShareState, wall_ms: int) -> Snapshot:
    """Returns the next snapshot of a state."""
    return Snapshot(key=key, state=replace(state, snapshot_epoch=state.snapshot_epoch + 1, write_ms=wall_ms, updates=0))
