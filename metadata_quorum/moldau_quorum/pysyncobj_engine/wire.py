"""Messages of the hardened pysyncobj engine: an envelope around the library's own, in msgpack, every field checked.

    [2, sender, recipient, term, sequence, message]

``term`` is the sender's term and ``sequence`` numbers what a leader sends to a member; answers repeat it. The library's
messages have neither, and without them an answer of an older term, or an older answer, moves the leader astray.
``message`` is a dictionary of plain values whose keys and types are those below: nothing is ever unpickled, and the
forms of the library that carry pickles (forwarded commands, entries sent in parts) do not exist here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from moldau_quorum.raft.messages import SNAPSHOT_PIECE_BYTES_MAX, MessageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.environment import Buffer

FORMAT: Final = 2
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


def encode(sender: int, recipient: int, term: int, sequence: int, message: LibraryMessage) -> bytes:
    """The body of a quorum message."""
    assert message["type"] in _FIELDS, f"message {message['type']} is not sent"
    return bytes(msgpack.packb((FORMAT, sender, recipient, term, sequence, message)))


def decode(recipient: int, body: Buffer) -> tuple[int, int, int, LibraryMessage]:
    """Returns sender, term, sequence and message.

    Raises:
        MessageError: not such a message, or one for another node.
    """
    try:
        values = msgpack.unpackb(body, use_list=False)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a quorum message is not valid msgpack: {error}") from error
    if type(values) is not tuple or len(values) != 6 or values[0] != FORMAT or values[2] != recipient:
        raise MessageError("a quorum message has an unknown format, or is meant for another node")
    _, sender, _, term, sequence, message = values
    if not all(type(value) is int and value >= 0 for value in (sender, term, sequence)) or type(message) is not dict:
        raise MessageError("the envelope of a quorum message is ill-typed")
    expected = _FIELDS.get(message.get("type", ""))
    if expected is None or message.keys() != expected.keys() | {"type"}:
        raise MessageError(
            f"a quorum message of type {message.get('type')!r} has the fields {sorted(map(str, message))}"
        )
    for name, types in expected.items():
        value = message[name]
        if type(value) not in types or (type(value) is int and value < 0):
            raise MessageError(f"{message['type']}.{name} is ill-typed or negative")
    if message["type"] == "append_entries":
        _check_entries(message)
    elif message["type"] == "snapshot" and not (
        message["piece"] < message["count"] and len(message["data"]) <= SNAPSHOT_PIECE_BYTES_MAX
    ):
        raise MessageError("the piece of a snapshot is too large, or outside the snapshot")
    return sender, term, sequence, message


def _check_entries(message: LibraryMessage) -> None:
    last_term = message["prevLogTerm"]
    for index, entry in enumerate(message["entries"], message["prevLogIdx"] + 1):
        if type(entry) is not tuple or [type(value) for value in entry] != [bytes, int, int]:
            raise MessageError("an entry of append_entries is ill-typed")
        if entry[1] != index or not last_term <= entry[2] <= message["term"] or not entry[0]:
            raise MessageError(f"entry {entry[1:]} of append_entries does not stand at index {index}")
        last_term = entry[2]
