"""Records of committed offsets in ``__consumer_offsets``.

The 16-bit version before the key gives the type of the record: 0 or 1.
"""

from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Data


class OffsetCommitKey(Data, versions="0-1"):
    """Key of the committed offset of one group in one partition."""

    group: str = field.string("0-1")
    topic: str = field.string("0-1")
    partition: int = field.int32("0-1")


class OffsetCommitValue(Data, versions="0-4", flexible="4+"):
    """A committed offset; a null value deletes it."""

    offset: int = field.int64("0+")
    leader_epoch: int = field.int32("3+", default=-1)
    metadata: str = field.string("0+")
    commit_timestamp: int = field.int64("0+")
    expire_timestamp: int = field.int64("1", default=-1)
    topic_id: UUID = field.uuid("4+", tag=0)
