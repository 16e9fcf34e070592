"""Fetch: writes the requests of followers without message objects.

A follower sends one with every batch that it replicates, so its cost is part of the time until a produce is
acknowledged.
"""

import struct

from moldau.protocol.api import ApiKey
from moldau.protocol.compiler import uvarint
from moldau.protocol.hot.fetch import FetchRequestView
from moldau.protocol.messages.fetch import FetchRequest

_REPLICA_STATES = 15
"""First version in which a tagged field holds id and epoch of a follower."""
_LAST = FetchRequest.__versions__.last
_RACK_AND_ONE_TAG = b"\x01\x01"  # an empty rack id, and the count of tagged fields
_SIZE_BYTES = 4

# size, API key, version, correlation id, length of the client id
_HEADER = struct.Struct(">ihhih")
# tagged fields of the header, max wait, min bytes, max bytes, isolation level, session id, session epoch
_HEAD = struct.Struct(">xiiibii")
# index, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, tagged fields
_PARTITION = struct.Struct(">iiqiqix")
# tag and size of the replica state, its id, epoch and tagged fields
_REPLICA_STATE = struct.Struct(">BBiqx")


def write_follower_fetch(request: FetchRequestView, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """Writes a whole request frame of a version that names topics by id, and followers in a tagged field.

    ``request`` names no rack and no cluster, and its partitions have neither a directory nor a high watermark.
    """
    assert _REPLICA_STATES <= version <= _LAST, "followers use versions that name topics by id"
    out = [
        b"",
        client_id,
        _HEAD.pack(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
        ),
        uvarint(len(request.topics) + 1),
    ]
    for topic_id, partitions in request.topics:
        out += (topic_id, uvarint(len(partitions) + 1))
        out += [_PARTITION.pack(*each[:6]) for each in partitions]
        out.append(b"\0")
    out.append(uvarint(len(request.forgotten_topics) + 1))
    for topic_id, numbers in request.forgotten_topics:
        out += (topic_id, uvarint(len(numbers) + 1), struct.pack(f">{len(numbers)}ix", *numbers))
    out += (_RACK_AND_ONE_TAG, _REPLICA_STATE.pack(1, 13, request.replica_id, request.replica_epoch))
    size = _HEADER.size - _SIZE_BYTES + sum(map(len, out))
    out[0] = _HEADER.pack(size, ApiKey.FETCH, version, correlation_id, len(client_id))
    return b"".join(out)
