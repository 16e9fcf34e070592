"""Goal: a history survives the trip through its file, and a damaged file is told apart from one cut short.

Method: random histories by Hypothesis; truncation at every byte; a flipped byte in every frame.
"""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_jepsen.history import (
    HistoryError,
    Kind,
    Operation,
    Poll,
    Send,
    Status,
    TopicPartition,
    read_history,
    write_history,
)

partitions = st.builds(TopicPartition, st.text(max_size=8), st.integers(0, 9))
sends = st.builds(Send, partitions, st.integers(0, 2**60), st.none() | st.integers(0, 2**60))
pairs = st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**60)), max_size=4).map(tuple)
polls = st.builds(Poll, st.lists(st.tuples(partitions, pairs), max_size=3).map(tuple))
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
    error=st.text(max_size=10),
)


def written(history: list[Operation]) -> bytes:
    stream = io.BytesIO()
    write_history(stream, history)
    return stream.getvalue()


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
