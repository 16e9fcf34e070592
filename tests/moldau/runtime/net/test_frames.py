"""Goal: responses come out of the received bytes as they were sent, however the transport cuts them.

Method: drawn sizes and cuts; lists of buffers against one joined text.
"""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.runtime.net.buffers import BufferPool, byte_count, drop_filled, drop_sent
from moldau.runtime.net.frames import RECEIVE_BYTES, BadFrameError, ResponseFrames, reason_of_bad_frame

HALF = RECEIVE_BYTES // 2
MOST = 3 * RECEIVE_BYTES
SIZES = st.one_of(
    st.integers(4, 40), st.sampled_from((4, HALF - 4, HALF - 1, HALF, HALF + 1, RECEIVE_BYTES, RECEIVE_BYTES + 1, MOST))
)


def frame_of(number: int, size: int) -> bytes:
    return bytes((number * 7 + at) % 256 for at in range(min(size, 256))) * (size // 256 + 1)


def received(frames: ResponseFrames, data: bytes, cuts: list[int], found: list[bytes] | None = None) -> list[bytes]:
    """Hands the bytes over in parts, and adds the frames to ``found``.

    The cuts are used in turn, and no part is larger than the room.
    """
    found, at, turn = [] if found is None else found, 0, 0
    while at < len(data):
        room = frames.room()
        assert len(room) > 0
        part = data[at : at + min(cuts[turn % len(cuts)], len(room))]
        room[: len(part)] = part
        for frame in frames.take(len(part)):
            found.append(frame.tobytes())
        at, turn = at + len(part), turn + 1
    return found


@example(sizes=[HALF, HALF + 1, 4, MOST, 4], cuts=[1 << 20])
@example(sizes=[HALF, HALF + 1, 4, 9], cuts=[HALF + 4])
@given(sizes=st.lists(SIZES, max_size=6), cuts=st.lists(st.sampled_from((3, 5, 8, 1_000, HALF, 1 << 20)), min_size=1))
def test_frames_are_those_that_were_sent(sizes: list[int], cuts: list[int]) -> None:
    sent = [frame_of(number, size)[:size] for number, size in enumerate(sizes)]
    data = b"".join(struct.pack(">i", len(each)) + each for each in sent)
    assert received(ResponseFrames(MOST), data, cuts) == sent


def test_frames_keep_memory_of_their_own() -> None:
    """Records are views of it; the next bytes must not change them."""
    frames = ResponseFrames(MOST)
    kept = []
    for number in range(5):
        data = struct.pack(">i", 40) + bytes([number]) * 40
        frames.room()[:44] = data
        kept += list(frames.take(44))
    assert [frame.tobytes() for frame in kept] == [bytes([number]) * 40 for number in range(5)]


@pytest.mark.parametrize("size", [-1, 0, 3, MOST + 1, 1 << 30])
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_a_bad_size_is_noticed_behind_good_frames(size: int, cut: int) -> None:
    found: list[bytes] = []
    data = struct.pack(">i4si", 4, b"good", size)
    with pytest.raises(BadFrameError, match=f"answer of {size} bytes is outside 4..{MOST}") as caught:
        received(ResponseFrames(MOST), data, [cut], found)
    assert found == [b"good"]
    assert caught.value.received[:4] == data[8:]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x0a", "this listener speaks TLS: set security.protocol=SSL"),
        (b"\x16\x03\x01\x02\x00\x01", "this listener speaks TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n", "this is an HTTP server, not a broker"),
        (b"\x7f\xff\xff\xff", "answer of 2147483647 bytes is outside"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is outside"),
    ],
)
def test_a_peer_of_another_kind_is_named(data: bytes, text: str) -> None:
    with pytest.raises(BadFrameError) as caught:
        received(ResponseFrames(MOST), data, [1 << 20])
    assert text in reason_of_bad_frame(caught.value)


PARTS = st.lists(st.binary(max_size=5), max_size=6)


@given(PARTS, st.integers(0, 30))
def test_what_was_sent_is_dropped_and_nothing_else(parts: list[bytes], sent: int) -> None:
    whole = b"".join(parts)
    sent = min(sent, len(whole))
    wide = [memoryview(array("H", part + part)) if len(part) % 2 == 0 else part for part in parts]
    for given_parts in (parts, [memoryview(part) for part in parts], wide):
        whole = b"".join(bytes(memoryview(part).cast("B")) for part in given_parts)
        left = drop_sent(given_parts, sent)
        assert b"".join(bytes(memoryview(part).cast("B")) for part in left) == whole[sent:]
        assert not left or byte_count(left[0]) > 0, "the transport is offered bytes"
    with pytest.raises(AssertionError):
        drop_sent(parts, len(b"".join(parts)) + 1)


@given(PARTS, st.integers(0, 30))
def test_what_is_still_to_be_filled_is_kept(parts: list[bytes], filled: int) -> None:
    buffers = [memoryview(bytearray(part)) for part in parts]
    whole = b"".join(parts)
    filled = min(filled, len(whole))
    left = drop_filled(buffers, filled)
    assert b"".join(left) == whole[filled:]
    assert not left or len(left[0]) > 0, "the disk is asked for bytes"
    for view in left:
        view[:] = b"\xff" * len(view)
    assert b"".join(buffers) == whole[:filled] + b"\xff" * (len(whole) - filled), "they are views of the same memory"
    with pytest.raises(AssertionError):
        drop_filled(buffers, len(whole) + 1)


def test_a_pool_keeps_so_many_buffers_and_no_more() -> None:
    pool = BufferPool(8, 2)
    taken = [pool.take() for _ in range(3)]
    assert len({id(each) for each in taken}) == 3
    for each in taken:
        assert len(each) == 8
        pool.give_back(each)
    again = [pool.take() for _ in range(3)]
    assert {id(each) for each in again[:2]} == {id(each) for each in taken[:2]}
    assert id(again[2]) not in {id(each) for each in again[:2]}
    with pytest.raises(AssertionError):
        pool.give_back(bytearray(7))
