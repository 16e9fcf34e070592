"""Records of a classic group in ``__consumer_offsets``.

The 16-bit version before the key gives the type of the record: 2.
"""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct
from moldau.values import Buffer


class GroupMetadataKey(Data, versions="2"):
    """Key of the record that holds a group's generation and members."""

    group: str = field.string("2")


class MemberMetadata(Struct):
    """An element of ``members`` in ``GroupMetadataValue``."""

    member_id: str = field.string("0+")
    group_instance_id: str | None = field.string("3+", nullable="3+", default=None)
    client_id: str = field.string("0+")
    client_host: str = field.string("0+")
    rebalance_timeout: int = field.int32("1+")
    session_timeout: int = field.int32("0+")
    subscription: Buffer = field.binary("0+")
    assignment: Buffer = field.binary("0+")


class GroupMetadataValue(Data, versions="0-4", flexible="4+"):
    """A group's generation, protocol, leader and members with their assignments; a null value deletes the group."""

    protocol_type: str = field.string("0+")
    generation: int = field.int32("0+")
    protocol: str | None = field.string("0+", nullable="0+")
    leader: str | None = field.string("0+", nullable="0+")
    current_state_timestamp: int = field.int64("2+", default=-1)
    members: Sequence[MemberMetadata] = field.array(MemberMetadata, "0+")
