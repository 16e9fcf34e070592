"""The private API with which brokers follow the committed metadata log: one request and one response in msgpack.

A follower asks any controller, active or not, for the committed entries from its next offset on. If there are none, the
controller waits a while (long poll). If that part of the log has been removed, the response holds the first pieces of a
snapshot instead; the follower then asks for further pieces by the snapshot's offset. Controllers serve only committed
entries, so a follower never truncates and may change controllers at any time.

A controller whose log cannot contain the follower's last position refuses with OFFSET_OUT_OF_RANGE: it has lost data
or runs on an older copy of them. Otherwise its later entries would be applied to an image that it never had.

    request  = msgpack [2, cluster_id, node_id, next_offset, wait_ms, bytes_max, snapshot_offset, piece,
                        last_epoch, leader_epoch]
    response = msgpack [1, error_code, leader_id, leader_epoch, committed_offset, entries,
                        snapshot_offset, pieces, complete, voters]
    entry    = msgpack [offset, epoch, command]
    voter    = msgpack [node_id, host, port]

``snapshot_offset`` is -1 if the message is not about a snapshot. Requests of version 1 lack the last two fields, and
their position is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgpack

from moldau_quorum.metadata.records import MetadataCorruptError

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA_FETCH_KEY: Final = 20_100
"""API key of the fetch; only controller listeners serve it, and they never advertise it."""
METADATA_FETCH_VERSION: Final = 1
"""Version of the API, and of its response."""
_REQUEST_VERSION: Final = 2
_REQUEST_TYPES: Final = (int, str, int, int, int, int, int, int)
FETCH_BYTES: Final = 256 * 1024
"""Size that a follower asks for. An answer has a second and a half, so a link of some Mbit/s has to carry it in that
time, and a follower that has missed much applies it in turns."""
FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest size that a controller grants; earlier versions ask for it."""
FETCH_WAIT_MS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchRequest:
    """A follower's request for entries or for pieces of a snapshot."""

    cluster_id: str = ""
    """Empty if the follower does not know its cluster yet; otherwise the controller refuses a mismatch."""
    node_id: int
    next_offset: int
    """The first offset that the follower does not have."""
    wait_ms: int = 500
    bytes_max: int = FETCH_BYTES
    snapshot_offset: int = -1
    """The snapshot to continue; -1 asks for the log."""
    piece: int = 0
    """The first piece of the snapshot to return."""
    last_epoch: int = -1
    """The Raft epoch of the last command below ``next_offset``; -1 if the controller is not to compare it."""
    leader_epoch: int = 0
    """The latest epoch of a leader that the follower has heard of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFetchResponse:
    """A controller's response: entries, or pieces of a snapshot."""

    error_code: int = 0
    """NONE, INCONSISTENT_CLUSTER_ID, SNAPSHOT_NOT_FOUND, OFFSET_OUT_OF_RANGE if the log cannot contain the follower's
    position, or BROKER_NOT_AVAILABLE if the controller is cut off from the quorum."""
    leader_id: int = -1
    leader_epoch: int = 0
    committed_offset: int = -1
    """The last committed offset that the controller knows."""
    entries: tuple[tuple[int, int, bytes], ...] = ()
    """Offset, epoch and encoded command, in order; the command is empty in Raft's own entries."""
    snapshot_offset: int = -1
    pieces: tuple[bytes, ...] = ()
    complete: bool = False
    """Whether ``pieces`` contain the end of the snapshot."""
    voters: tuple[tuple[int, str, int], ...] = ()
    """Id, host and port of each voter, sorted by id."""


def encode_fetch_request(request: MetadataFetchRequest) -> bytes:
    """Encodes the body of a request."""
    fields = (
        _REQUEST_VERSION,
        request.cluster_id,
        request.node_id,
        request.next_offset,
        request.wait_ms,
        request.bytes_max,
        request.snapshot_offset,
        request.piece,
        request.last_epoch,
        request.leader_epoch,
    )
    return bytes(msgpack.packb(fields))


def decode_fetch_request(body: bytes | memoryview) -> MetadataFetchRequest:
    """Decodes the body of a request.

    Raises:
        MetadataCorruptError: the body is malformed.
    """
    fields = _unpack(body, {1: _REQUEST_TYPES, _REQUEST_VERSION: (*_REQUEST_TYPES, int, int)})
    return MetadataFetchRequest(
        cluster_id=fields[1],
        node_id=fields[2],
        next_offset=fields[3],
        wait_ms=max(0, min(fields[4], FETCH_WAIT_MS_MAX)),
        bytes_max=max(1, min(fields[5], FETCH_BYTES_MAX)),
        snapshot_offset=fields[6],
        piece=max(0, fields[7]),
        last_epoch=fields[8] if fields[0] > 1 else -1,
        leader_epoch=fields[9] if fields[0] > 1 else 0,
    )


def encode_fetch_response(response: MetadataFetchResponse) -> bytes:
    """Encodes the body of a response."""
    fields = (
        METADATA_FETCH_VERSION,
        response.error_code,
        response.leader_id,
        response.leader_epoch,
        response.committed_offset,
        response.entries,
        response.snapshot_offset,
        response.pieces,
        response.complete,
        response.voters,
    )
    return bytes(msgpack.packb(fields))


def decode_fetch_response(body: bytes | memoryview) -> MetadataFetchResponse:
    """Decodes the body of a response.

    Raises:
        MetadataCorruptError: the body is malformed.
    """
    fields = _unpack(body, {METADATA_FETCH_VERSION: (int, int, int, int, int, tuple, int, tuple, bool, tuple)})
    entries, pieces = fields[5], fields[7]
    for entry in entries:
        if type(entry) is not tuple or [type(part) for part in entry] != [int, int, bytes]:
            raise MetadataCorruptError("an entry of a metadata fetch response is ill-typed")
    if not all(type(piece) is bytes for piece in pieces):
        raise MetadataCorruptError("a snapshot piece of a metadata fetch response is ill-typed")
    voters = fields[9]
    for voter in voters:
        if type(voter) is not tuple or [type(part) for part in voter] != [int, str, int]:
            raise MetadataCorruptError("a voter of a metadata fetch response is ill-typed")
    return MetadataFetchResponse(
        error_code=fields[1],
        leader_id=fields[2],
        leader_epoch=fields[3],
        committed_offset=fields[4],
        entries=entries,
        snapshot_offset=fields[6],
        pieces=pieces,
        complete=fields[8],
        voters=voters,
    )


def _unpack(body: bytes | memoryview, expected: Mapping[int, tuple[type, ...]]) -> tuple:  # type: ignore[type-arg]
    try:
        fields = msgpack.unpackb(body, use_list=False)
    except (ValueError, RecursionError) as error:
        raise MetadataCorruptError("a metadata fetch message is not valid msgpack") from error
    if type(fields) is not tuple or not fields or type(fields[0]) is not int or fields[0] not in expected:
        raise MetadataCorruptError("a metadata fetch message has an unknown version")
    if tuple(type(value) for value in fields) != expected[fields[0]]:
        raise MetadataCorruptError("a metadata fetch message is ill-typed")
    return fields
