"""Messages between the members of the quorum, and their encoding in msgpack.

The payload of a message in its envelope (``envelope``) is ``[type, epoch, ...fields]``. Nothing but integers, booleans,
byte strings and tuples of them is accepted, and every field is checked for type and range before it reaches the core.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from moldau_quorum.log.raft.core.types import Configuration, Entry, EntryKind, decode_configuration
from moldau_quorum.log.raft.envelope import EPOCH_MAX, INDEX_MAX, RAFT_FORMAT, Envelope, MessageError, seal

if TYPE_CHECKING:
    from moldau_quorum.log.raft.envelope import Payload

SNAPSHOT_PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
SNAPSHOT_PIECES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Asks for a vote (Raft section 5.2), or in a pre-vote whether one would be given (thesis section 9.6)."""

    epoch: int
    """Epoch of the election: in a pre-vote the sender has not entered it."""
    pre_vote: bool
    transfer: bool = False
    """The leader asked for this election, so its presence is no reason to refuse."""
    last_index: int
    last_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """A vote. Granted pre-votes carry the epoch asked for, all else the epoch of the sender."""

    epoch: int
    pre_vote: bool
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest:
    """Entries after ``prev_index``; without entries a heartbeat."""

    epoch: int
    prev_index: int
    prev_epoch: int
    commit_index: int
    read_sequence: int = 0
    """Echoed by the response: proves that the sender was leader when it had drawn this number (ReadIndex)."""
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResponse:
    """The log of the sender agrees durably with the leader's up to ``match_index``, or did not hold ``prev``."""

    epoch: int
    accepted: bool
    match_index: int = 0
    rejected_index: int = 0
    """``prev_index`` of the refused request."""
    hint_index: int = 0
    hint_epoch: int = 0
    """Entry at or before ``rejected_index`` above which nothing can agree."""
    read_sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """A piece of a snapshot (Raft section 7). The core leaves ``data`` empty; the sending shell reads the piece."""

    epoch: int
    index: int
    index_epoch: int
    configuration: bytes
    piece: int
    piece_count: int
    read_sequence: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResponse:
    """The sender wants ``next_piece`` of the snapshot next."""

    epoch: int
    index: int
    next_piece: int
    read_sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """The leader transfers its leadership: the recipient starts an election at once (thesis section 3.10)."""

    epoch: int


Message = VoteRequest | VoteResponse | AppendRequest | AppendResponse | SnapshotRequest | SnapshotResponse | TimeoutNow
MessageType = (
    type[VoteRequest]
    | type[VoteResponse]
    | type[AppendRequest]
    | type[AppendResponse]
    | type[SnapshotRequest]
    | type[SnapshotResponse]
    | type[TimeoutNow]
)

MESSAGE_TYPES: Final[tuple[MessageType, ...]] = (
    VoteRequest,
    VoteResponse,
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
)
"""The position is the number on the wire."""

_FIELD_TYPES: Final = {"bool": bool, "int": int, "bytes": bytes, "tuple[Entry, ...]": tuple}
_LAYOUTS: Final = tuple(
    tuple((item.name, _FIELD_TYPES[str(item.type)]) for item in fields(message_type)) for message_type in MESSAGE_TYPES
)
_NUMBERS: Final = {message_type: number for number, message_type in enumerate(MESSAGE_TYPES)}
_ENTRY_TYPES: Final = (int, int, int, bytes)
_KINDS: Final = frozenset(int(kind) for kind in EntryKind)


def encode_message(envelope: Envelope, message: Message) -> bytes:
    """Returns the body of a quorum message."""
    number = _NUMBERS[type(message)]
    values = [getattr(message, name) for name, _ in _LAYOUTS[number]]
    return seal(envelope, RAFT_FORMAT, (number, *values))


def decode_payload(payload: Payload) -> Message:
    """Returns the message of a payload.

    Raises:
        MessageError: it is none, or a field is outside its range.
    """
    number = payload[0] if payload else None
    if type(number) is not int or not 0 <= number < len(MESSAGE_TYPES):
        raise MessageError(f"a quorum message has the unknown type {number!r}")
    layout = _LAYOUTS[number]
    if len(payload) != 1 + len(layout):
        raise MessageError(f"a {MESSAGE_TYPES[number].__name__} has {len(payload) - 1} fields, not {len(layout)}")
    arguments: dict[str, Any] = {}
    for (name, expected), value in zip(layout, payload[1:], strict=True):
        if type(value) is not expected:
            raise MessageError(f"{MESSAGE_TYPES[number].__name__}.{name} is ill-typed")
        if isinstance(value, int) and not 0 <= value <= (EPOCH_MAX if name.endswith("epoch") else INDEX_MAX):
            raise MessageError(f"{MESSAGE_TYPES[number].__name__}.{name} cannot be {value}")
        arguments[name] = value
    if number == _NUMBERS[AppendRequest]:
        arguments["entries"] = _checked_entries(AppendRequest(**arguments))
    elif number == _NUMBERS[SnapshotRequest]:
        _checked_configuration(arguments["configuration"])
        if not arguments["piece"] < arguments["piece_count"] <= SNAPSHOT_PIECES_MAX:
            raise MessageError("the piece of a SnapshotRequest is outside the snapshot")
        if not 0 < arguments["index_epoch"] <= arguments["epoch"]:
            raise MessageError(f"a leader of epoch {arguments['epoch']} has no entry of {arguments['index_epoch']}")
        if len(arguments["data"]) > SNAPSHOT_PIECE_BYTES_MAX:
            raise MessageError(f"a piece of a snapshot has {len(arguments['data'])} bytes")
    message: Message = MESSAGE_TYPES[number](**arguments)
    return message


def _checked_configuration(data: bytes) -> Configuration:
    try:
        return decode_configuration(data)
    except ValueError as error:
        raise MessageError(str(error)) from error


def _checked_entries(request: AppendRequest) -> tuple[Entry, ...]:
    entries = []
    last_epoch = request.prev_epoch
    for index, row in enumerate(request.entries, request.prev_index + 1):
        if type(row) is not tuple or tuple(type(value) for value in row) != _ENTRY_TYPES:
            raise MessageError("an entry of an AppendRequest is ill-typed")
        if row[0] != index or not last_epoch <= row[1] <= request.epoch or row[2] not in _KINDS:
            raise MessageError(f"entry {row[:3]} of an AppendRequest of epoch {request.epoch} is not fit for {index}")
        if row[2] == EntryKind.CONFIGURATION and not _checked_configuration(row[3]).voters:
            raise MessageError("a membership in an AppendRequest has no voters")
        last_epoch = row[1]
        entries.append(Entry(*row))
    return tuple(entries)
