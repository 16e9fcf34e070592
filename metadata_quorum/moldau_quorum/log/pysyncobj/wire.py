"""Messages of the hardened pysyncobj engine: the payload of an envelope (``raft.envelope``), every field checked.

    [term, sequence, message]

``term`` is the sender's term and ``sequence`` numbers what a leader sends to a member; answers repeat it. The library's
messages have neither, and without them an answer of an older term, or an older answer, moves the leader astray.
``message`` is a dictionary of plain values whose keys and types are those below: nothing is ever unpickled, and the
forms of the library that carry pickles (forwarded commands, entries sent in parts) do not exist here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau_quorum.log.pysyncobj.journal import DATA, NOOP
from moldau_quorum.log.raft.core.messages import SNAPSHOT_PIECE_BYTES_MAX, SNAPSHOT_PIECES_MAX
from moldau_quorum.log.raft.envelope import EPOCH_MAX, INDEX_MAX, PYSYNCOBJ_FORMAT, Envelope, MessageError, seal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_quorum.log.raft.envelope import Payload

LibraryMessage = dict[str, Any]
"""A message of the library."""

_FIELDS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "request_vote": {"term": (int,), "last_log_index": (int,), "last_log_term": (int,)},
    "response_vote": {"term": (int,)},
    "append_entries": {
        "term": (int,),
        "commit_index": (int,),
        "entries": (tuple,),
        "prevLogIdx": (int,),
        "prevLogTerm": (int,),
    },
    "snapshot": {"term": (int,), "index": (int,), "piece": (int,), "count": (int,), "data": (bytes,)},
    "snapshot_ack": {"index": (int,), "next": (int,)},
    "next_node_idx": {"next_node_idx": (int,), "reset": (bool,), "success": (bool,)},
    "stale_term": {"term": (int,)},
    "timeout_now": {"term": (int,)},
}


def encode(envelope: Envelope, term: int, sequence: int, message: LibraryMessage) -> bytes:
    """Returns the body of a quorum message."""
    assert message["type"] in _FIELDS, f"message {message['type']} is not sent"
    return seal(envelope, PYSYNCOBJ_FORMAT, (term, sequence, message))


def decode(payload: Payload) -> tuple[int, int, LibraryMessage]:
    """Returns term, sequence and message.

    Raises:
        MessageError: not such a message, or a field is outside its range.
    """
    if len(payload) != 3:
        raise MessageError(f"a quorum message has {len(payload)} parts, not 3")
    term, sequence, message = payload
    if type(term) is not int or type(sequence) is not int or type(message) is not dict:
        raise MessageError("a quorum message is ill-typed")
    if not 0 <= term <= EPOCH_MAX or not 0 <= sequence <= INDEX_MAX:
        raise MessageError(f"a quorum message has term {term} and sequence {sequence}")
    kind = message.get("type")
    expected = _FIELDS.get(kind) if type(kind) is str else None
    if expected is None or message.keys() != expected.keys() | {"type"}:
        raise MessageError(
            f"a quorum message of type {message.get('type')!r} has the fields {sorted(map(str, message))}"
        )
    for name, types in expected.items():
        value = message[name]
        if type(value) not in types:
            raise MessageError(f"{message['type']}.{name} is ill-typed")
        if type(value) is int and not 0 <= value <= (EPOCH_MAX if "term" in name.lower() else INDEX_MAX):
            raise MessageError(f"{message['type']}.{name} cannot be {value}")
    if message["type"] == "append_entries":
        _check_entries(message)
    elif message["type"] == "snapshot" and not (
        message["piece"] < message["count"] <= SNAPSHOT_PIECES_MAX and len(message["data"]) <= SNAPSHOT_PIECE_BYTES_MAX
    ):
        raise MessageError("the piece of a snapshot is too large, or outside the snapshot")
    return term, sequence, message


def _check_entries(message: LibraryMessage) -> None:
    last_term = message["prevLogTerm"]
    for index, entry in enumerate(message["entries"], message["prevLogIdx"] + 1):
        if type(entry) is not tuple or [type(value) for value in entry] != [bytes, int, int]:
            raise MessageError("an entry of append_entries is ill-typed")
        if entry[1] != index or not last_term <= entry[2] <= message["term"] or entry[0][:1] not in (DATA, NOOP):
            raise MessageError(f"entry {entry[1:]} of append_entries does not stand at index {index}")
        last_term = entry[2]
