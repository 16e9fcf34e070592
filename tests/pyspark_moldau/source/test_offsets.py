"""Goal: micro-batches lose and repeat no records, for any limits. Method: properties of the arithmetic on offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_moldau.client_options import OptionError
from pyspark_moldau.source.core.offsets import (
    OffsetRange,
    from_checkpoint,
    group_ranges,
    limit_bytes,
    limit_rows,
    split_ranges,
    start_of,
    to_checkpoint,
    topic_ids_of,
    with_start,
)

partitions = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 20))
starts_and_lengths = st.dictionaries(partitions, st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), max_size=12)


@given(starts_and_lengths)
def test_the_checkpoint_form_is_lossless_and_ordered(spans):
    offsets = {partition: start for partition, (start, _) in spans.items()}
    document = to_checkpoint(offsets)
    assert from_checkpoint(document) == offsets
    assert list(document) == sorted(document)


@given(starts_and_lengths)
def test_the_start_of_a_query_is_kept_beside_an_end(spans):
    start = {partition: low for partition, (low, _) in spans.items()}
    end = {partition: low + length for partition, (low, length) in spans.items()}
    document = to_checkpoint(end, {"a": "id-a"})
    noted = with_start(document, start)
    assert start_of(document) is None
    assert (start_of(noted) or {}) == start
    assert from_checkpoint(noted) == end
    assert topic_ids_of(noted) == topic_ids_of(document)
    assert all(noted[name] == {} for name in noted.keys() - {"a", "b"})


@given(starts_and_lengths, st.integers(1, 10**7))
def test_a_limited_batch_makes_progress_in_every_partition(spans, rows_max):
    """A limited batch makes progress in every partition, and its size stays near the limit."""
    start = {partition: low for partition, (low, _) in spans.items()}
    end = {partition: low + length for partition, (low, length) in spans.items()}
    limited = limit_rows(start, end, rows_max)
    taken = {partition: limited[partition] - start[partition] for partition in spans}
    assert limited.keys() == end.keys()
    assert all((taken[one] > 0) == (length > 0) and taken[one] <= length for one, (_, length) in spans.items())
    assert sum(taken.values()) <= max(rows_max, rows_max + len(spans) - 1)


def test_the_limit_is_shared_in_proportion():
    end = {("a", 0): 300, ("a", 1): 100}
    assert limit_rows({("a", 0): 0, ("a", 1): 0}, end, 100) == {("a", 0): 75, ("a", 1): 25}


@given(starts_and_lengths, st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(1000, 10**6)))
def test_split_ranges_cover_exactly_what_they_were_made_of(spans, partitions_min, records_max):
    whole = [
        OffsetRange(topic=topic, partition=number, start=start, end=start + length)
        for (topic, number), (start, length) in spans.items()
    ]
    parts = split_ranges(whole, partitions_min=partitions_min, records_max=records_max)
    for one in whole:
        pieces = [part for part in parts if (part.topic, part.partition) == (one.topic, one.partition)]
        assert all(piece.start < piece.end for piece in pieces)
        bounds = [piece.start for piece in pieces] + [one.end]
        assert [piece.end for piece in pieces] == bounds[1:]
        assert not pieces or pieces[0].start == one.start
        assert bool(pieces) == (one.end > one.start)
        assert records_max is None or all(piece.end - piece.start <= records_max for piece in pieces)


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(0, 40))
def test_groups_hold_all_ranges_in_order_and_are_bounded(lengths, rows):
    ranges = [OffsetRange(topic="a", partition=n, start=5, end=5 + length) for n, length in enumerate(lengths)]
    groups = group_ranges(ranges, rows)
    assert [one for group in groups for one in group] == ranges
    held = [[one.end - one.start for one in group] for group in groups]
    assert all(sum(each) < 2 * rows or len(each) == 1 for each in held)

    assert len([each for each in held if sum(each) < rows]) <= 1 + sum(length >= rows for length in lengths)


def test_large_partitions_are_divided_into_enough_tasks():
    """Large partitions are divided until there are enough tasks."""
    whole = [
        OffsetRange(topic="a", partition=0, start=0, end=900),
        OffsetRange(topic="a", partition=1, start=0, end=100),
    ]
    parts = split_ranges(whole, partitions_min=10, records_max=None)
    assert [part.end - part.start for part in parts if part.partition == 0] == [100] * 9
    assert len(parts) == 10


@given(starts_and_lengths)
def test_topic_ids_travel_in_the_checkpoint(spans):
    offsets = {partition: start for partition, (start, _) in spans.items()}
    ids = {topic: f"id_of-{topic}" for topic, _ in offsets}
    document = to_checkpoint(offsets, ids | {"unread": "x"})
    assert from_checkpoint(document) == offsets
    assert topic_ids_of(document) == ids
    assert topic_ids_of(to_checkpoint(offsets)) == {}
    assert all(type(at) is int for partitions in document.values() for at in partitions.values())


@given(starts_and_lengths, st.integers(1, 10**9), st.floats(0.5, 1000))
def test_a_batch_limited_by_bytes_makes_progress(spans, bytes_max, mean):
    start = {partition: low for partition, (low, _) in spans.items()}
    end = {partition: low + length for partition, (low, length) in spans.items()}
    limited = limit_bytes(start, end, dict.fromkeys(spans, mean), bytes_max)
    taken = {partition: limited[partition] - start[partition] for partition in spans}
    assert all((taken[one] > 0) == (length > 0) and taken[one] <= length for one, (_, length) in spans.items())
    assert sum(taken.values()) * mean <= bytes_max + len(spans) * mean


FOREIGN = [
    7,
    [1],
    "8",
    None,
    {"a": 5},
    {"a": {"x": 1}},
    {"a": {"0": -1}},
    {"a": {"-1": 0}},
    {"a": {"0": 2**63}},
    {"a": {"9" * 5000: 0}},
    {"a": {"0": 1, "00": 2}},
]
DAMAGED_STARTS = [7, *({f"a#from:{pairs}": {}} for pairs in ("0", "x=1", "-1=5", "0=-5", "0=1,0=2", f"0={2**63}"))]


@pytest.mark.parametrize(
    ("read", "document"),
    [*((from_checkpoint, each) for each in FOREIGN), *((start_of, each) for each in DAMAGED_STARTS)],
)
def test_a_checkpoint_of_another_source_is_refused(read, document):
    with pytest.raises(OptionError, match=r"checkpointLocation: its offsets .* a checkpoint of its own"):
        read(document)
