"""The envelope of every message between controllers: checksum, sender and recipient.

    crc32c u32 (big endian) | msgpack [format, cluster id, sender, its directory, recipient, its directory, payload]

The checksum covers all after itself, so entries and pieces of snapshots that were damaged on their way are refused. A
directory is the 16 bytes of its id (KIP-853), zeros where it is not known. The payload belongs to the engine of that
format; ``sessions`` describes how the sender is bound to its connection.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from moldau.records.checksum import crc32c
from moldau.values import ZERO_UUID
from moldau_quorum.log.port import VOTER_ID_MAX, replacement_advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.values import Buffer

RAFT_FORMAT: Final = 3
PYSYNCOBJ_FORMAT: Final = 4
HANDSHAKE_FORMAT: Final = 5

EPOCH_MAX: Final = (1 << 31) - 1
"""Kafka's epochs are 32-bit integers."""
INDEX_MAX: Final = 1 << 62
"""No log gets so long; larger indexes are forged or damaged."""
CLUSTER_ID_CHARACTERS_MAX: Final = 64
_CHECKSUM_BYTES: Final = 4
_HEADER_TYPES: Final = (int, str, int, bytes, int, bytes, tuple)

Payload = tuple[object, ...]


class MessageError(ValueError):
    """A message that is refused: malformed, meant for another node, or impossible. Nothing has changed."""


class WrongDirectoryError(MessageError):
    """A message between nodes of which one has another directory than the other thinks: it is left unread.

    That is no fault of the connection: a stale membership names an earlier directory.
    """


class Envelope(NamedTuple):
    """Sender and recipient of a message."""

    sender: int
    recipient: int
    sender_directory: uuid.UUID = ZERO_UUID
    recipient_directory: uuid.UUID = ZERO_UUID
    """Directory that the sender takes the recipient's to be; zero where it does not know, and in all answers."""
    cluster_id: str = ""
    """Empty as long as the sender does not know its cluster."""


def seal(envelope: Envelope, payload_format: int, payload: Payload) -> bytes:
    """Returns the body of a quorum message."""
    packed = msgpack.packb(
        (
            payload_format,
            envelope.cluster_id,
            envelope.sender,
            envelope.sender_directory.bytes,
            envelope.recipient,
            envelope.recipient_directory.bytes,
            payload,
        )
    )
    return crc32c(packed).to_bytes(_CHECKSUM_BYTES, "big") + bytes(packed)


def unseal(body: Buffer) -> tuple[Envelope, int, Payload]:
    """Returns envelope, format and payload of a body, which is borrowed for the call.

    Raises:
        MessageError: the body is damaged, or no quorum message.
    """
    view = memoryview(body)
    packed = view[_CHECKSUM_BYTES:]
    if len(view) <= _CHECKSUM_BYTES or crc32c(packed) != int.from_bytes(view[:_CHECKSUM_BYTES], "big"):
        raise MessageError("a quorum message does not match its checksum")
    try:
        values = msgpack.unpackb(packed, use_list=False)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a quorum message is not valid msgpack: {error}") from error
    if type(values) is not tuple or tuple(type(value) for value in values) != _HEADER_TYPES:
        raise MessageError("a quorum message has an unknown format")
    payload_format, cluster_id, sender, sender_directory, recipient, recipient_directory, payload = values
    if not 0 <= sender <= VOTER_ID_MAX or len(cluster_id) > CLUSTER_ID_CHARACTERS_MAX:
        raise MessageError(f"a quorum message comes from node {sender} of cluster {cluster_id[:99]!r}")
    if len(sender_directory) != 16 or len(recipient_directory) != 16:
        raise MessageError("a directory id of a quorum message does not have 16 bytes")
    envelope = Envelope(
        sender,
        recipient,
        uuid.UUID(bytes=sender_directory),
        uuid.UUID(bytes=recipient_directory),
        cluster_id,
    )
    return envelope, payload_format, payload


class Identity:
    """This node's identity, with which it refuses messages for other nodes."""

    def __init__(self, node_id: int, directory_id: uuid.UUID, cluster_id: Callable[[], str]) -> None:
        """``cluster_id`` returns an empty text as long as the node does not know its cluster."""
        self.node_id = node_id
        self.directory_id = directory_id
        self._cluster_id = cluster_id

    def envelope(self, recipient: int, recipient_directory: uuid.UUID = ZERO_UUID) -> Envelope:
        """Returns the envelope of a message from this node."""
        return Envelope(self.node_id, recipient, self.directory_id, recipient_directory, self._cluster_id())

    def check(self, envelope: Envelope) -> None:
        """Checks that the message is meant for this node.

        Raises:
            MessageError: it is for another node or cluster, or claims to come from this node.
            WrongDirectoryError: it is for another directory.
        """
        own_cluster, sender = self._cluster_id(), envelope.sender
        if envelope.recipient != self.node_id:
            raise MessageError(f"a message of node {sender} is meant for node {envelope.recipient}, not {self.node_id}")
        if sender == self.node_id:
            raise MessageError(f"a message says to come from node {sender}, which is this one")
        if own_cluster and envelope.cluster_id and envelope.cluster_id != own_cluster:
            raise MessageError(f"node {sender} belongs to cluster {envelope.cluster_id}, this node to {own_cluster}")
        if envelope.recipient_directory not in (ZERO_UUID, self.directory_id):
            raise WrongDirectoryError(
                f"node {sender} knows node {self.node_id} by directory {envelope.recipient_directory}, but this one is "
                f"{self.directory_id}: {replacement_advice(self.node_id)}"
            )
