"""Records of ``__share_group_state``: the durable state of share-partitions (KIP-932, KIP-1226).

The 16-bit version before the key gives the type of the record: 0 for a snapshot, 1 for an update of the last snapshot.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct


class ShareSnapshotKey(Data, versions="0"):
    """Key of the whole state of a share-partition."""

    group_id: str = field.string("0")
    topic_id: UUID = field.uuid("0")
    partition: int = field.int32("0")


class StateBatch(Struct):
    """An element of ``state_batches``: offsets with the same delivery state; ``last_offset`` is inclusive."""

    first_offset: int = field.int64("0+")
    last_offset: int = field.int64("0+")
    delivery_state: int = field.int8("0+")
    delivery_count: int = field.int16("0+")


class ShareSnapshotValue(Data, versions="0", flexible="0+"):
    """The whole state of a share-partition; a null value deletes it. Timestamps are Unix milliseconds."""

    snapshot_epoch: int = field.int32("0+")
    state_epoch: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    start_offset: int = field.int64("0+")
    delivery_complete_count: int = field.int32("0+", tag=0, default=-1)
    create_timestamp: int = field.int64("0+")
    write_timestamp: int = field.int64("0+")
    state_batches: Sequence[StateBatch] = field.array(StateBatch, "0+")


class ShareUpdateKey(Data, versions="1"):
    """Key of a change of a share-partition's state."""

    group_id: str = field.string("1")
    topic_id: UUID = field.uuid("1")
    partition: int = field.int32("1")


class ShareUpdateValue(Data, versions="0", flexible="0+"):
    """The changes since the last snapshot; a start offset of -1 leaves it as it is."""

    snapshot_epoch: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    start_offset: int = field.int64("0+")
    delivery_complete_count: int = field.int32("0+", tag=0, default=-1)
    state_batches: Sequence[StateBatch] = field.array(StateBatch, "0+")
