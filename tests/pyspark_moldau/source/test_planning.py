"""Goal: a query reads what its positions and options say, and reports each record that it cannot read, and no other.

Method: a log in memory, and all small cases of positions, ids of topics and ends; expected ranges are counted plainly.
"""

import itertools
import json
import logging
import types

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_moldau.errors import DataLossError
from pyspark_moldau.source import planning, stream
from pyspark_moldau.source.core.options import EARLIEST, LATEST, OptionError, Position, parse_options
from pyspark_moldau.source.planning import InputRanges, ends_of, plan, resolve
from pyspark_moldau.source.stream import MoldauStreamReader
from support.spark.memory_log import MemoryLog

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
A, B, EMPTY = ("t", 0), ("t", 1), ("t", 2)
PARTITIONS = [A, B, EMPTY]


def record(timestamp):
    return (timestamp, None, b"v", ())


@pytest.fixture
def log():
    """Partition 0 has the offsets 0 to 4 at times 100 to 104, partition 1 the offsets 3 to 5, partition 2 none."""
    found = MemoryLog(PARTITIONS)
    found.append(A, *map(record, range(100, 105)))
    found.append(B, *map(record, range(200, 206)))
    found.drop_before(B, 3)
    return found


@pytest.fixture
def clock(monkeypatch):
    """Time passes while a query waits for an end."""
    now = [0.0]
    fake = types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    for module in (planning, stream):
        monkeypatch.setattr(module, "time", fake)
    return now


def options_of(**more):
    return parse_options(BASE | more, streaming=True)


FIRST, END = {A: 0, B: 3, EMPTY: 0}, {A: 5, B: 6, EMPTY: 0}


def test_a_position_is_an_offset_of_each_partition(log):
    for everywhere, expected in ((EARLIEST, FIRST), (LATEST, END)):
        assert resolve(log, PARTITIONS, Position(everywhere=everywhere), "x") == expected
    choices = (EARLIEST, LATEST, 0, 4, 99)
    for values in itertools.product(choices, repeat=3):
        given = Position(offsets={"t": dict(enumerate(values))})
        found = resolve(log, PARTITIONS, given, "x")
        for key, value in zip(PARTITIONS, values, strict=True):
            assert found[key] == {EARLIEST: FIRST[key], LATEST: END[key]}.get(value, value)


def at_time(log, key, timestamp):
    return next((each.offset for each in log.records[key] if each.timestamp >= timestamp), None)


@pytest.mark.parametrize("lenient", [False, True])
def test_a_time_is_the_offset_of_the_first_record_as_late(log, lenient):
    """A partition without any record starts at its end; one of earlier records does only if the option says so."""
    times = (0, 102, 105, 203, 10**6)
    for values in itertools.product(times, repeat=3):
        given = Position(timestamps={"t": dict(enumerate(values))}, latest_if_no_match=lenient)
        found = {key: at_time(log, key, each) for key, each in zip(PARTITIONS, values, strict=True)}
        lacking = [key for key in (A, B) if found[key] is None]
        if lacking and not lenient:
            with pytest.raises(
                OptionError, match=rf"^x: no record of t-{lacking[0][1]} is that late; .* latest starts"
            ):
                resolve(log, PARTITIONS, given, "x")
            continue
        expected = {key: END[key] if at is None else at for key, at in found.items()}
        assert resolve(log, PARTITIONS, given, "x") == expected
        if len({*values}) == 1:
            one = Position(timestamp_ms=values[0], latest_if_no_match=lenient)
            assert resolve(log, PARTITIONS, one, "x") == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"t": {0: 1, 1: 1}}, "leaves out a partition: t-2"),
        ({"t": {0: 1, 1: 1, 2: 1, 3: 1}}, "names a partition that is not subscribed: t-3"),
        ({"t": {0: 1, 1: 1, 2: 1}, "u": {0: 1}}, "names a partition that is not subscribed: u-0"),
        ({}, "leaves out a partition: t-0"),
    ],
)
def test_a_position_names_each_partition_and_no_other(log, given, problem):
    """The remedy has only what the option takes."""
    timestamp = "name a timestamp for each partition of the query"
    for name, position, remedy in (
        ("startingOffsets", Position(offsets=given), "-2 means earliest and -1 latest"),
        ("endingOffsets", Position(offsets=given), "-1 means latest"),
        ("startingOffsetsByTimestamp", Position(timestamps=given), timestamp),
        ("endingOffsetsByTimestamp", Position(timestamps=given), timestamp),
    ):
        with pytest.raises(OptionError, match=rf"^{name} {problem}; {remedy}$"):
            resolve(log, PARTITIONS, position, name)


IDS = (None, "one", "two")


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_was_replaced_is_reported_once(log, clock, caplog, fails):
    """By the ids that it had at the start and the end of a micro-batch, and has now, as far as they are known."""
    options = options_of(failOnDataLoss=str(fails).lower())
    caplog.set_level(logging.WARNING)
    for before, after, now in itertools.product(IDS, repeat=3):
        caplog.clear()
        log.ids = {} if now is None else {"t": now}
        ids = {"start_ids": {"t": before} if before else {}, "end_ids": {"t": after} if after else {}}
        is_replaced = None not in (before, after) and before != after
        is_gone = now is None or after not in (None, now)
        losses = ["while the query read it"] * is_replaced + [
            "before its records up to the end of this batch"
        ] * is_gone
        case = (before, after, now)
        if losses and fails:
            with pytest.raises(DataLossError, match=rf"^topic t was deleted.*{losses[0]}.*; set failOnDataLoss to"):
                plan(log, options, {A: 2}, {A: 5}, **ids)
            continue
        ranges = [one for task in plan(log, options, {A: 2}, {A: 5}, **ids) for one in task.ranges]
        found = [(one.start, one.end, one.topic_id) for one in ranges]
        assert found == ([] if is_gone else [(0 if is_replaced else 2, 5, now)]), case
        warned = [text for text in caplog.messages if "data-loss" in text]
        assert len(warned) == len(losses), case
        assert all(loss in text for loss, text in zip(losses, warned, strict=True)), case


@pytest.mark.parametrize("fails", [True, False])
def test_each_range_that_cannot_be_read_is_reported(log, clock, caplog, fails):
    """All starts and ends within and around the records 3 to 5 of a partition."""
    options = options_of(failOnDataLoss=str(fails).lower())
    caplog.set_level(logging.WARNING)
    for start, end in itertools.product([None, *range(8)], range(8)):
        caplog.clear()
        log.forget_ends()
        clock[0] = 0.0
        begins = {} if start is None else {B: start}
        low = 3 if start is None else start
        lost = []
        if low < 3 and low < end:
            lost.append(f"records {low}..{min(3, end) - 1} of t-1 are gone")
            low = 3
        if start is not None and end < min(start, low):
            lost.append(f"t-1 ends at {end}, before the position {start} of this query")
        high = max(low, end)
        if low < high and high > 6:
            lost.append(f"t-1 was cut at offset 6: its records {max(low, 6)}..{high - 1} are gone")
            high = max(low, 6)
        if lost and fails:
            with pytest.raises(DataLossError, match=f"^{lost[0]}"):
                plan(log, options, begins, {B: end})
            continue
        tasks = plan(log, options, begins, {B: end})
        found = [(one.start, one.end) for task in tasks for one in task.ranges]
        assert found == ([(low, high)] if low < high else []), (start, end)
        assert len([text for text in caplog.messages if "data-loss" in text]) == len(lost), (start, end)


def test_a_partition_that_is_gone_is_reported(log, clock):
    with pytest.raises(DataLossError, match=r"^t-1 is gone; set failOnDataLoss to false"):
        plan(log, options_of(), {A: 0, B: 3}, {A: 5})
    with pytest.raises(
        DataLossError, match=r"^t-1 came while the query ran or rested, and its records 0\.\.2 are gone"
    ):
        plan(log, options_of(), {A: 0}, {A: 5, B: 6})
    ranges = [one for task in plan(log, options_of(), {A: 0}, {A: 5, EMPTY: 0}) for one in task.ranges]
    assert [(one.partition, one.start, one.end) for one in ranges] == [(0, 0, 5)]


def test_small_partitions_share_a_task_unless_an_option_divides(log, clock):
    both = {A: 0, B: 3}, {A: 5, B: 6}
    assert [len(task.ranges) for task in plan(log, options_of(), *both)] == [2]
    for name, value, parts in (
        ("minPartitions", "2", [(0, 5), (3, 6)]),
        ("minPartitions", "4", [(0, 2), (2, 5), (3, 4), (4, 6)]),
        ("maxRecordsPerPartition", "4", [(0, 2), (2, 5), (3, 6)]),
        ("maxRecordsPerPartition", "100", [(0, 5), (3, 6)]),
        ("maxBytesPerPartition", "300", [(0, 2), (2, 5), (3, 6)]),
    ):
        tasks = plan(log, options_of(**{name: value}), *both)
        assert [len(task.ranges) for task in tasks] == [1] * len(tasks)
        found = [(one.start, one.end) for task in tasks for one in task.ranges]
        assert (len(found), found[0][0], found[-1][1]) == (len(parts), 0, 6), (name, value, found)


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_is_no_shorter_log(log, committed, monkeypatch):
    """Its beginning holds the end of a read_committed reader back; the log itself is as long as it was."""
    level = "read_committed" if committed else "read_uncommitted"
    options = options_of(**{"kafka.isolation.level": level})
    stable = {A: 2, B: 6, EMPTY: 0}
    asked = []

    def offsets(wanted, *, uncommitted=False):
        asked.append((dict(wanted), uncommitted))
        return {key: END[key] if uncommitted or not committed else stable[key] for key in wanted}

    monkeypatch.setattr(log, "offsets", offsets)
    for least in (None, 0, 2, 3, 5, 6):
        asked.clear()
        shown = 2 if committed else 5
        expected = least if committed and least is not None and 2 < least <= 5 else shown
        assert ends_of(log, options, {A: least, B: None}) == {A: expected, B: 6}
        assert len(asked) == (2 if committed and least is not None and least > 2 else 1)
    assert ends_of(log, options, {}) == {}


def test_what_is_no_task_of_the_source_reads_nothing(log):
    """Spark puts a partition of its own in the place of none."""
    empty = types.SimpleNamespace(value=None)
    assert list(planning.read_chunks(lambda client: log, options_of(), empty)) == []
    work = plan(log, options_of(), {A: 1, B: 3}, {A: 4, B: 6})
    rows = [
        row
        for task in work
        for chunk in planning.read_chunks(lambda client: log, options_of(), task)
        for row in chunk.to_pylist()
    ]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (1, 5)]
    assert all(isinstance(task, InputRanges) for task in work)


def stream_of(log, **more):
    return MoldauStreamReader(options_of(**more), connect=lambda client: log)


@pytest.mark.parametrize("start", range(8))
def test_a_stream_does_not_start_behind_the_end(log, start):
    """Spark would wait there, and then read what comes as if it had read all before."""
    given = json.dumps({"t": {"0": 5, "1": start, "2": 0}})
    reader = stream_of(log, startingOffsets=given)
    initial = reader.initialOffset()
    if start > 6:
        with pytest.raises(
            OptionError, match=rf"^startingOffsets: t-1 ends at 6, before {start}; -1 starts at the end"
        ):
            reader.latestOffset(initial, ReadAllAvailable())
        return
    assert initial["t"] == {"0": 5, "1": start, "2": 0}
    reader.latestOffset(initial, ReadAllAvailable())


def test_a_topic_that_is_deleted_while_a_query_ends_is_left_out(log, clock):
    """The query has fixed its end before; the other topics are read up to there."""
    log.create("u", 1, "id-2")
    log.append(("u", 0), record(1))
    given = BASE | {"subscribe": "t,u", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = MoldauStreamReader(parse_options(given, streaming=True), connect=lambda client: log)
    reader.prepareForTriggerAvailableNow()
    initial = reader.initialOffset()
    log.append(("t", 0), record(300))
    log.delete("u")
    found = reader.latestOffset(initial, ReadAllAvailable())
    assert found["t"] == {"0": 5, "1": 6, "2": 0}
    assert "u" not in found
