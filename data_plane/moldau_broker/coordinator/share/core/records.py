"""Records of ``__share_group_state`` in Kafka's own formats: a 16-bit version, then the fields. Pure.

Key version 0 belongs to a snapshot, 1 to an update; a snapshot without a value deletes the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError, decode
from moldau.protocol.messages.internal import share_state as messages
from moldau.protocol.messages.internal.share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from moldau_broker.coordinator.runtime.effects import StateRecord
from moldau_broker.coordinator.runtime.versioned import FIELDS_AT, decode_versioned, encode_versioned, versioned_key
from moldau_broker.coordinator.share.core.batches import StateBatch
from moldau_broker.coordinator.share.core.state import Change, SharePartitionKey, ShareState, Snapshot, Update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.values import Buffer

_VALUE_VERSION = 0
_SNAPSHOT, _UPDATE = 0, 1


def change_record(change: Change) -> StateRecord:
    """Returns the record of a change."""
    key = change.key
    if isinstance(change, Update):
        update_key = ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
        update = ShareUpdateValue(
            snapshot_epoch=change.snapshot_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            state_batches=_wire(change.batches),
        )
        return StateRecord(encode_versioned(update_key, _UPDATE), encode_versioned(update, _VALUE_VERSION))
    state = change.state
    snapshot_key = ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    value = None if state is None else encode_versioned(_snapshot(state), _VALUE_VERSION)
    return StateRecord(encode_versioned(snapshot_key, _SNAPSHOT), value)


def _snapshot(state: ShareState) -> ShareSnapshotValue:
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_ms,
        write_timestamp=state.write_ms,
        state_batches=_wire(state.batches),
    )


def parse_change(key: Buffer | None, value: Buffer | None) -> Change | None:
    """Parses a record; returns None for an unknown kind, which a newer coordinator may have written.

    Raises:
        DecodeError: a record of a known kind is malformed.
    """
    version, key = versioned_key(key, "share")
    if version == _SNAPSHOT:
        name = decode(ShareSnapshotKey, version, key, FIELDS_AT)
        where = SharePartitionKey(name.group_id, name.topic_id, name.partition)
        return Snapshot(key=where, state=None if value is None else _parse_snapshot(value))
    if version == _UPDATE:
        update_name = decode(ShareUpdateKey, version, key, FIELDS_AT)
        where = SharePartitionKey(update_name.group_id, update_name.topic_id, update_name.partition)
        if value is None:
            raise DecodeError("an update of a share-partition has no value")
        found = decode_versioned(ShareUpdateValue, value)
        return Update(
            key=where,
            snapshot_epoch=found.snapshot_epoch,
            leader_epoch=found.leader_epoch,
            start_offset=found.start_offset,
            delivery_complete_count=found.delivery_complete_count,
            batches=_parse_batches(found.state_batches),
        )
    return None


def _parse_snapshot(value: Buffer) -> ShareState:
    found = decode_versioned(ShareSnapshotValue, value)
    return ShareState(
        snapshot_epoch=found.snapshot_epoch,
        state_epoch=found.state_epoch,
        leader_epoch=found.leader_epoch,
        start_offset=found.start_offset,
        delivery_complete_count=found.delivery_complete_count,
        create_ms=found.create_timestamp,
        write_ms=found.write_timestamp,
        batches=_parse_batches(found.state_batches),
    )


def _parse_batches(found: Iterable[messages.StateBatch]) -> tuple[StateBatch, ...]:
    return tuple(StateBatch(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in found)


def _wire(batches: Iterable[StateBatch]) -> list[messages.StateBatch]:
    return [messages.StateBatch(**batch._asdict()) for batch in batches]
