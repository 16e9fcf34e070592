"""Bodies of the private APIs: they survive their encoding, and garbage is refused with one exception and nothing
else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau_quorum.broker_side.controller_client import next_voter
from moldau_quorum.broker_side.metadata_fetch import (
    FETCH_WAIT_MS_MAX,
    MetadataFetchRequest,
    MetadataFetchResponse,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from moldau_quorum.metadata.records import MetadataCorruptError, decode_command
from moldau_quorum.metadata.snapshot import SnapshotReader
from moldau_quorum.node.voters.leadership_transfer import (
    TransferResponse,
    decode_transfer_request,
    decode_transfer_response,
    encode_transfer_request,
    encode_transfer_response,
)
from support.proof import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=11) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=30,
)


def test_messages_survive_their_encoding() -> None:
    request = MetadataFetchRequest(
        cluster_id="c", node_id=3, next_offset=9, wait_ms=10, snapshot_offset=4, piece=2, last_epoch=5, leader_epoch=6
    )
    assert decode_fetch_request(encode_fetch_request(request)) == request
    older = decode_fetch_request(msgpack.packb((1, "c", 3, 9, 10, 4096, 4, 2)))
    assert (older.next_offset, older.piece, older.last_epoch, older.leader_epoch) == (9, 2, -1, 0)
    response = MetadataFetchResponse(
        error_code=98,
        leader_id=101,
        leader_epoch=4,
        committed_offset=12,
        entries=((10, 4, b"x"), (11, 4, b"")),
        snapshot_offset=9,
        pieces=(b"p", b"q"),
        complete=True,
        voters=((101, "h", 9093),),
    )
    assert decode_fetch_response(memoryview(encode_fetch_response(response))) == response
    assert decode_transfer_request(encode_transfer_request(-1)) == -1
    moved = TransferResponse(error_code=0, message="", leader_id=102)
    assert decode_transfer_response(encode_transfer_response(moved)) == moved


def test_a_followers_fetch_is_bounded_in_time_and_size() -> None:
    """A follower cannot make a controller wait or send without bound."""
    greedy = MetadataFetchRequest(node_id=1, next_offset=0, wait_ms=10**9, bytes_max=10**12, piece=-5)
    taken = decode_fetch_request(encode_fetch_request(greedy))
    assert taken.wait_ms == FETCH_WAIT_MS_MAX
    assert taken.bytes_max == 4 * 1024 * 1024
    assert taken.piece == 0


@given(
    body=st.binary(max_size=60)
    | PLAIN.map(msgpack.packb)
    | st.lists(PLAIN, max_size=11).map(lambda v: msgpack.packb([1, *v]))
)
@settings(max_examples=examples(400), deadline=None)
def test_garbage_is_refused(body: bytes) -> None:
    for decode in (decode_fetch_request, decode_fetch_response, decode_transfer_request, decode_transfer_response):
        try:
            decode(body)
        except MetadataCorruptError:
            continue
    with pytest.raises(MetadataCorruptError):
        decode_command(body)
    with pytest.raises(MetadataCorruptError):
        SnapshotReader().feed(body)


def changed_parts(value: object) -> Iterator[object]:
    """Yields the value with one part replaced by another type, each part in turn, at every depth."""
    wrong: tuple[object, ...] = (None, 1, "x", b"x", (1,), 1.5, True)
    if isinstance(value, tuple):
        for number, part in enumerate(value):
            for other in changed_parts(part):
                yield (*value[:number], other, *value[number + 1 :])
    yield from (other for other in wrong if type(other) is not type(value))


def test_each_ill_typed_part_of_a_fetch_is_refused() -> None:
    """A follower would fail later, at a place where no other controller is tried."""
    request = MetadataFetchRequest(node_id=3, next_offset=9)
    response = MetadataFetchResponse(
        entries=((10, 4, b"x"), (11, 4, b"")), pieces=(b"p", b"q"), voters=((101, "h", 9093), (102, "h", 9093))
    )
    for decode, body in (
        (decode_fetch_request, encode_fetch_request(request)),
        (decode_fetch_response, encode_fetch_response(response)),
    ):
        plain = msgpack.unpackb(body, use_list=False)
        decode(msgpack.packb(plain))
        for wrong in changed_parts(plain):
            with pytest.raises(MetadataCorruptError):
                decode(msgpack.packb(wrong))


def test_voters_are_tried_in_turn() -> None:
    voters = {1: ("a", 1), 3: ("b", 1), 5: ("c", 1)}
    assert [next_voter(voters, present) for present in (1, 3, 5, 4, 9)] == [3, 5, 1, 5, 1]
