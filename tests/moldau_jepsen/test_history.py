"""Goal: a history survives the trip through its file, and a damaged file is distinguished from one cut short.

Method: random histories by Hypothesis; truncation at every byte; a flipped byte in every frame.
"""

import io
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_jepsen.history import (
    FRAME_RECORDS,
    Audit,
    Evidence,
    HistoryError,
    HistoryFile,
    HistoryWriter,
    Kind,
    Lead,
    Operation,
    Poll,
    Seek,
    Send,
    Status,
    TopicPartition,
    frame_positions,
    pack_operation,
    read_frames,
    read_history,
    unpack_operation,
    write_history,
)

partitions = st.builds(TopicPartition, st.text(max_size=8), st.integers(0, 9))
numbers, digests = st.integers(0, 2**60), st.integers(0, 2**32 - 1)
says = st.lists(st.integers(-(2**60), 2**60), max_size=3).map(tuple)
sends = st.builds(Send, partitions, numbers, st.none() | numbers, digests, says)
pairs = st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple)
records = st.lists(st.tuples(partitions, pairs), max_size=3).map(tuple)
digested = st.lists(st.lists(digests, max_size=4).map(tuple), max_size=3).map(tuple)
polls = st.builds(Poll, records, digested)
seeks = st.builds(Seek, partitions, st.none() | numbers, st.none() | numbers, numbers, numbers)
audits = st.builds(
    Audit, st.lists(st.tuples(partitions, numbers), max_size=3).map(tuple), st.lists(numbers, max_size=3).map(tuple)
)
leads = st.builds(Lead, partitions, st.integers(0, 2**31), st.integers(0, 2**31), st.sampled_from(Evidence))
operations = st.builds(
    Operation,
    index=st.integers(0, 100),
    process=st.integers(0, 10),
    kind=st.sampled_from(Kind),
    status=st.sampled_from(Status),
    begun_ms=st.floats(0, 1e9),
    ended_ms=st.floats(0, 1e9),
    operations=st.lists(sends | polls, max_size=4).map(tuple),
    aborted=st.booleans(),
    rebalanced=st.booleans(),
    final=st.booleans(),
    partitions=st.lists(partitions, max_size=3).map(tuple),
    generation=st.integers(-1, 5),
    group=st.text(max_size=5),
    error=st.text(max_size=10),
    seeks=st.lists(seeks, max_size=2).map(tuple),
    audit=st.none() | audits,
    leads=st.lists(leads, max_size=3).map(tuple),
)


def written(history: list[Operation]) -> bytes:
    stream = io.BytesIO()
    write_history(stream, history)
    return stream.getvalue()


def test_operations_without_groups_keep_the_old_file_format() -> None:
    """Operations without groups have the file format from before there were groups."""
    fields = [0, 1, "poll", "ok", 0.0, 1.0, [], 2, [["t", 0]], 3, "why"]
    packed: bytes = msgpack.packb(fields)
    expected = Operation(
        index=0,
        process=1,
        kind=Kind.POLL,
        status=Status.OK,
        begun_ms=0.0,
        ended_ms=1.0,
        rebalanced=True,
        partitions=(TopicPartition("t", 0),),
        generation=3,
        error="why",
    )
    assert unpack_operation(packed) == expected
    assert pack_operation(expected) == packed


@given(st.lists(operations, max_size=20))
def test_a_history_reads_back_as_it_was_written(history: list[Operation]) -> None:
    assert list(read_history(io.BytesIO(written(history)))) == history


@given(st.lists(operations, min_size=1, max_size=5), st.data())
def test_a_file_cut_short_reads_as_a_prefix(history: list[Operation], data: st.DataObject) -> None:
    whole = written(history)
    cut = data.draw(st.integers(len(b"moldau-history 1\n"), len(whole) - 1))
    assert list(read_history(io.BytesIO(whole[:cut]))) == []


def test_other_files_and_damaged_frames_are_refused() -> None:
    operation = Operation(index=0, process=0, kind=Kind.SEND, status=Status.OK, begun_ms=0, ended_ms=1)
    with pytest.raises(HistoryError, match="not a history"):
        list(read_history(io.BytesIO(b"PK\x03\x04 something else")))
    damaged = bytearray(written([operation]))
    damaged[len(b"moldau-history 1\n") + 4] ^= 0xFF
    with pytest.raises(HistoryError, match="damaged at byte 17"):
        list(read_history(io.BytesIO(bytes(damaged))))


def test_a_frame_holds_a_bounded_number_of_records(tmp_path: Path) -> None:
    path = tmp_path / "history"
    pairs = tuple((offset, offset) for offset in range(FRAME_RECORDS // 4))
    poll = Poll(((TopicPartition("t", 0), pairs),))
    operations = [
        Operation(index=index, process=1, kind=Kind.POLL, status=Status.OK, begun_ms=0, ended_ms=1, operations=(poll,))
        for index in range(10)
    ]
    with path.open("wb") as stream:
        write_history(stream, operations)
    positions = frame_positions(path)
    assert len(positions) == 3
    assert list(read_frames(path, positions)) == operations == list(HistoryFile(path))
    assert [operation.index for operation in read_frames(path, positions[1:2])] == [4, 5, 6, 7]


def test_frames_are_found_up_to_where_the_file_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"something else")
    with pytest.raises(HistoryError, match="not a history"):
        frame_positions(path)
    with path.open("wb") as stream:
        writer = HistoryWriter(stream)
        for index in range(3):
            writer.add(Operation(index=index, process=1, kind=Kind.CRASH, status=Status.INFO, begun_ms=0, ended_ms=1))
            writer.flush()
    whole = frame_positions(path)
    assert len(whole) == 3
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 1)
    assert frame_positions(path) == whole[:2]
