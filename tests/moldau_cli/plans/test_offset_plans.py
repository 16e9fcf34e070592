"""Goal: plans of offsets stay within the logs, files survive a round trip, and errors name the damaged line.

Method: properties over random partitions; tables of texts.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau import TopicPartition
from moldau_cli.errors import UsageError
from moldau_cli.plans.offsets import (
    Held,
    missing_in,
    parse_deletions,
    parse_duration_ms,
    parse_offsets,
    parse_time_ms,
    parse_topic,
    shifted,
    within_logs,
    write_offsets,
)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b-c", "d.e"]), st.integers(0, 9))
offsets = st.integers(0, 2**63 - 1)
held = st.tuples(offsets, offsets, offsets).map(sorted).map(lambda at: Held(begin=at[0], committed=at[1], end=at[2]))


@given(st.dictionaries(partitions, held), st.integers(-(2**63), 2**63))
def test_a_shift_stays_within_the_log(logs, by):
    """The new offset is the old one moved by the number, unless the log ends before."""
    for where, at in shifted(logs, by).items():
        assert logs[where].begin <= at <= logs[where].end
        assert at == logs[where].committed + by or at in (logs[where].begin, logs[where].end)


@given(st.dictionaries(partitions, st.tuples(offsets, held)))
def test_an_offset_of_the_log_is_kept(given_offsets):
    targets = within_logs(
        {one: at for one, (at, _) in given_offsets.items()}, {one: log for one, (_, log) in given_offsets.items()}
    )
    for where, (at, log) in given_offsets.items():
        assert targets[where] == at or not log.begin <= at <= log.end
        assert log.begin <= targets[where] <= log.end


@given(st.dictionaries(partitions, offsets, min_size=1))
def test_exported_offsets_can_be_read(exported):
    assert parse_offsets(write_offsets(exported), "file") == exported


def test_a_partition_without_commit_cannot_be_shifted():
    with pytest.raises(UsageError, match="a-0 cannot be shifted: the group has no committed offset"):
        shifted({TopicPartition("a", 0): Held(begin=0, end=5)}, 1)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("p1d", 86_400_000),
        ("P1DT1S", 86_401_000),
        ("PT0.5S", 500),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("250ms", 250),
    ],
)
def test_durations(text, ms):
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(("start", "before_ms"), [("PT", 0), ("PT1M", 60_000), ("P365DT", 365 * 86_400_000)])
def test_no_millisecond_of_a_duration_is_lost(start, before_ms):
    """Seconds with a fraction, such as 1.001, are a little less as a number of the machine."""
    for ms in range(5_000):
        assert parse_duration_ms(f"{start}{ms // 1000}.{ms % 1000:03}S") == before_ms + ms


def test_times():
    assert parse_time_ms("1700000000000") == 1_700_000_000_000
    assert parse_time_ms("2023-11-14T22:13:20") == 1_700_000_000_000
    assert parse_time_ms("2023-11-14T23:13:20.5+01:00") == 1_700_000_000_500
    assert parse_topic("a") == ("a", None)
    assert parse_topic("a:0,2,0") == ("a", [0, 2])


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_duration_ms, "P", "expected a duration"),
        (parse_duration_ms, "P1DT", "expected a duration"),
        (parse_duration_ms, "p1dt", "expected a duration"),
        (parse_duration_ms, "1", "expected a duration"),
        (parse_duration_ms, "-1h", "expected a duration"),
        (parse_time_ms, "yesterday", "expected a time"),
        (parse_topic, "a:", "expected NAME or NAME:0,1"),
        (parse_topic, "a:x", "expected NAME or NAME:0,1"),
        (parse_topic, "a:²", "expected NAME or NAME:0,1"),
        (parse_time_ms, "²", "expected a time"),
        (lambda text: parse_offsets(text, "f"), "a,0,1\na,0,2\n", "f:2: a-0 is there twice"),
        (lambda text: parse_offsets(text, "f"), "a,0\n", "f:1: expected topic,partition,offset"),
        (lambda text: parse_offsets(text, "f"), "a,0,-1\n", "f:1: expected topic,partition,offset"),
        (lambda text: parse_offsets(text, "f"), "\n", "f has no offsets"),
        (lambda text: parse_offsets(text, "f"), "x" * 200_000, "f: expected lines topic,partition,offset"),
        (lambda text: parse_deletions(text, "f"), "{", "f is not JSON"),
        (lambda text: parse_deletions(text, "f"), "[]", 'a list "partitions"'),
        (lambda text: parse_deletions(text, "f"), '{"partitions": [{"topic": "a"}]}', "expected topic, partition and"),
        (
            lambda text: parse_deletions(text, "f"),
            '{"partitions": [{"topic": "a", "partition": 0, "offset": true}]}',
            "expected topic, partition and",
        ),
    ],
)
def test_damaged_texts_are_named(parse, text, said):
    with pytest.raises(UsageError, match=said):
        parse(text)


def test_kafkas_file_of_deletions_is_read():
    text = '{"version": 1, "partitions": [{"topic": "a", "partition": 1, "offset": -1}]}'
    assert parse_deletions(text, "f") == {TopicPartition("a", 1): -1}


def test_a_file_may_begin_with_a_byte_order_mark():
    """It became a part of the first topic's name, or the file was no JSON."""
    assert parse_offsets("\ufeffa,1,7\n", "f") == {TopicPartition("a", 1): 7}
    assert parse_deletions('\ufeff{"partitions": [{"topic": "a", "partition": 1, "offset": 7}]}', "f") == {
        TopicPartition("a", 1): 7
    }


def test_partitions_without_an_offset_are_named():
    """`groups delete-offsets` left a misspelt topic out, and deleted the offsets of the others."""
    held = {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert missing_in(held, [("t", None), ("t", [0, 1])]) == []
    assert missing_in(held, [("t", [1, 7]), ("T", None), ("U", [0, 1])]) == ["t:7", "T", "U"]
