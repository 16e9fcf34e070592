"""The durable state of a share-partition, and the two kinds of changes that a log holds. Data, and one function. Pure.

A snapshot sets the whole state or deletes it; an update changes what it names. Two epochs fence: the *state epoch*
comes from the group coordinator, which raises it when it sets an offset; the *leader epoch* comes from the leader of
the share-partition, which states it when it reads the state. A request with a lower epoch is refused.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from moldau_broker.coordinator.share.core.batches import UNCHANGED_OFFSET, StateBatch, combine

NO_EPOCH = -1
NO_COUNT = -1
"""The delivery complete count of a state whose writers do not count."""
DEFAULT_EPOCH = 0
"""The epochs that ReadShareGroupStateSummary shows of a share-partition without a state."""
GROUP_ID_BYTES_MAX = 32_767 - len(":") - 22 - len(":2147483647")
"""The longest id of a share group, in UTF-8: the coordinator keys of its share-partitions are strings of the protocol.

A topic id takes 22 characters there.
"""
MEMBER_ID_CHARACTERS_MAX = 36
"""The longest id of a member of a share group, which is that of a UUID as text, as in Kafka."""


class SharePartitionKey(NamedTuple):
    """The partition of a topic, as one share group reads it."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The text whose hash chooses the partition of ``__share_group_state``; FindCoordinator contains it."""
        text = base64.urlsafe_b64encode(self.topic_id.bytes).decode("ascii").rstrip("=")
        return f"{self.group_id}:{text}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SharePartitionKey:
        """Parses ``groupId:topicId:partition``; only the group id may contain a colon.

        Raises:
            ValueError: the text has another form.
        """
        parts = text.rsplit(":", 2)
        if len(parts) != 3 or not parts[0].strip():
            raise ValueError(f"{text!r} must have the form groupId:topicId:partition")
        try:
            topic_id = UUID(bytes=base64.b64decode(parts[1] + "==", altchars=b"-_", validate=True))
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{parts[1]!r} is no topic id") from error
        if not (parts[2].isascii() and parts[2].isdigit()):
            raise ValueError(f"{parts[2]!r} is no partition")
        return cls(parts[0], topic_id, int(parts[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """The state of one share-partition.

    ``batches`` are disjoint and in the order of their offsets, none below ``start_offset``. Times are Unix
    milliseconds: ``create_ms`` is that of the last snapshot that a request caused, ``write_ms`` that of the last
    snapshot.
    """

    snapshot_epoch: int
    """Counts the snapshots."""
    state_epoch: int
    leader_epoch: int = NO_EPOCH
    start_offset: int = UNCHANGED_OFFSET
    """The first offset that is not done with; -1 until the leader of the partition has chosen one."""
    delivery_complete_count: int = NO_COUNT
    """Offsets from the start offset on whose delivery is complete (KIP-1226)."""
    create_ms: int = 0
    write_ms: int = 0
    batches: tuple[StateBatch, ...] = ()
    updates: int = 0
    """Updates since the last snapshot. Derived from the log: the record does not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Sets the state; None deletes it."""

    key: SharePartitionKey
    state: ShareState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Changes the state; a leader epoch or a start offset of -1 stays as it is."""

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


Change = Snapshot | Update


def applied(state: ShareState | None, change: Change) -> ShareState | None:
    """Returns the state after a change; an update of an absent state begins one."""
    if isinstance(change, Snapshot):
        return change.state
    before = state or ShareState(snapshot_epoch=change.snapshot_epoch, state_epoch=DEFAULT_EPOCH)
    start_offset = before.start_offset if change.start_offset == UNCHANGED_OFFSET else change.start_offset
    return replace(
        before,
        leader_epoch=before.leader_epoch if change.leader_epoch == NO_EPOCH else change.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=change.delivery_complete_count,
        batches=combine((*before.batches, *change.batches), start_offset),
        updates=before.updates + 1,
    )
