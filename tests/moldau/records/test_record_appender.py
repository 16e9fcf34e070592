"""Goal: the appender takes plain records exactly, and leaves all others to its caller unchanged.

Method: both implementations with the same cases, and drawn sequences of records through both, compared byte by byte.
"""

import contextlib
import importlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.records import InvalidRecordError
from moldau.records.pure import codec as pure_codec
from support.proof import examples

MODULES = [pure_codec]
with contextlib.suppress(ImportError):
    MODULES.append(importlib.import_module("moldau.records._codec"))

PARTITIONS = 3
THREAD = 7


class Bench:
    """An appender with one topic of three partitions, each with an open batch that holds one record."""

    def __init__(self, module, *, size_limit=400, interval=100, **options):
        class Place(module.RecordPlace):
            __slots__ = ()

        class Queue(module.PartitionSlot):
            pass

        self.module = module
        self.writers = [module.RecordWriter(0) for _ in range(PARTITIONS)]
        self.queues = [Queue() for _ in self.writers]
        for number, (queue, writer) in enumerate(zip(self.queues, self.writers, strict=True)):
            writer.append(1000, None, b"first")
            queue.open(f"batch {number}", writer, size_limit)
        self.route = module.TopicRoute(self.queues)
        self.route.kept, self.route.kept_bytes_max = self.queues[2], 1000.0
        self.metadata = SimpleNamespace(version=5)
        self.caller = SimpleNamespace(thread_id=THREAD)
        self.appender = module.RecordAppender(
            Place, {"t": self.route}, record_bytes_max=5000, interval=interval, **options
        )
        self.appender.open(self.metadata, lambda: 1_002_999_999, lambda: THREAD, self.caller)
        self.appender.version = 5
        self.place = Place

    def append(self, topic="t", value=b"v", key=None, headers=(), partition=None, timestamp=None):
        return self.appender.append(topic, value, key, headers, partition, timestamp)

    def state(self):
        return (
            [(writer.count, writer.size, writer.max_timestamp) for writer in self.writers],
            (self.route.sent, self.route.kept_bytes, self.appender.left),
        )

    def leaves(self, **record):
        """Whether the appender leaves a record and changes nothing."""
        before = self.state()
        return self.append(**record) is None and self.state() == before


@pytest.fixture(params=MODULES, ids=lambda module: module.IMPLEMENTATION)
def module(request):
    return request.param


def test_record_enters_the_batch_of_its_partition(module):
    bench = Bench(module)
    placed = [
        bench.append(partition=0, timestamp=1001),
        bench.append(key=b"key", value=None),
        bench.append(),
        bench.append(),
    ]
    by_key = (module.murmur2(b"key") & 0x7FFFFFFF) % PARTITIONS
    counts = [1] * PARTITIONS
    expected = []
    for partition, timestamp in [(0, 1001), (by_key, 1002), (2, 1002), (2, 1002)]:
        expected.append((f"batch {partition}", counts[partition], timestamp))
        counts[partition] += 1
    assert [(each._batch, each._index, each._timestamp) for each in placed] == expected
    assert all(type(each) is bench.place for each in placed)
    assert [writer.count for writer in bench.writers] == counts
    assert (bench.route.sent, bench.route.kept_bytes, bench.appender.left) == (4, 2 * 17, 96)


def test_records_that_need_a_check_are_left(module):
    bench = Bench(module)
    for record in [
        {"headers": [("h", b"")]},
        {"headers": (("h", b""),)},
        {"value": bytearray(b"v")},
        {"value": "text"},
        {"key": memoryview(b"k")},
        {"topic": "other"},
        {"topic": ["t"]},
        {"partition": 3},
        {"partition": -1},
        {"partition": 2**70},
        {"partition": True},
        {"partition": 1.0},
        {"timestamp": -1},
        {"timestamp": 1.5},
        {"value": b"v" * 4990},
    ]:
        assert bench.leaves(**record), record
    assert bench.append() is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: setattr(bench.appender, "is_open", False),
        lambda bench: setattr(bench.metadata, "version", 6),
        lambda bench: setattr(bench.caller, "thread_id", THREAD + 1),
        lambda bench: setattr(bench.route, "kept", None),
        lambda bench: setattr(bench.route, "kept_bytes_max", 17.0),
        lambda bench: bench.queues[2].shut(),
        lambda bench: bench.writers[2].take(),
    ],
)
def test_records_are_left_after_a_change(module, change):
    bench = Bench(module)
    assert bench.append() is not None
    change(bench)
    places = []
    bench.appender.append_many("t", [b"v"], None, None, places)
    assert places == []
    assert bench.append() is None


def test_record_that_fills_a_batch_is_left(module):
    """The caller wakes the sender for it; the batch stays open until the caller says otherwise."""
    bench = Bench(module)
    while bench.append(value=b"x" * 20) is not None:
        pass
    size = bench.writers[2].size
    assert size + 28 + 8 > 400 >= size
    assert bench.leaves(value=b"x" * 20)
    assert bench.append(value=b"x", partition=1) is not None


def test_options_leave_the_choice_to_the_caller(module):
    custom = Bench(module, is_custom=True)
    assert custom.leaves()
    assert custom.leaves(key=b"k")
    assert custom.append(partition=1)._batch == "batch 1"
    keyless = Bench(module, ignores_keys=True)
    assert keyless.append(key=b"k")._batch == "batch 2"
    assert keyless.route.kept_bytes == 18


def test_topic_without_partitions_is_left(module):
    bench = Bench(module)
    bench.queues.clear()
    assert bench.append(key=b"k") is None


def test_refusal_of_the_check_is_raised(module):
    bench = Bench(module)

    def refuse():
        raise RuntimeError("no transaction")

    bench.appender.check = refuse
    before = bench.state()
    with pytest.raises(RuntimeError, match="no transaction"):
        bench.append()
    assert bench.state() == before


def test_timestamps_too_far_apart_are_refused(module):
    bench = Bench(module)
    bench.queues[0].open("early", early := module.RecordWriter(0), 400)
    early.append(-(2**62), None, b"")
    with pytest.raises(InvalidRecordError, match="too far"):
        bench.append(partition=0, timestamp=2**62)
    assert early.count == 1


def test_interval_ends_once(module):
    bench = Bench(module, size_limit=10_000, interval=3)
    assert [bench.append() is None for _ in range(4)] == [False, False, False, True]
    assert not bench.appender.take_turn()
    bench.appender.counted()
    assert bench.appender.take_turn()
    assert not bench.appender.take_turn()
    assert bench.appender.left == 3


def test_many_records_stop_where_the_caller_must_act(module):
    bench = Bench(module)
    places = []
    values = [b"a", b"b", bytearray(b"c"), b"d"]
    bench.appender.append_many("t", values, None, 1, places)
    assert [each._index for each in places] == [1, 2]
    places.append("by the caller")
    bench.appender.append_many("t", values, None, 1, places)
    assert (len(places), places[3]._index) == (4, 3)
    keyed = []
    bench.appender.append_many("t", [b"v"] * 2, [b"k", None], None, keyed)
    assert len(keyed) == 2


def test_handed_records_stop_where_the_caller_must_act(module):
    bench = Bench(module)
    waiting = [module.PendingRecord("owner") for _ in range(5)]
    waiting[2].intercepted = "seen"
    queue = [("t", b"%d" % number, None, (), 0, None, each) for number, each in enumerate(waiting)]
    queue[4] = ("t", b"", None, (), 0, -1, waiting[4])
    order = iter(queue)
    assert bench.appender.append_handed(order.__next__, 5, 1700) == (3, queue[2])
    assert [(each.taken._index, each.taken._timestamp) for each in waiting[:2]] == [(1, 1700), (2, 1700)]
    assert bench.appender.append_handed(order.__next__, 1, 1700) == (1, None)
    assert bench.appender.append_handed(order.__next__, 1, 1700) == (1, queue[4])
    assert (waiting[2].taken, waiting[4].taken, waiting[4]._error) == (None, None, None)

    def refuse():
        raise RuntimeError("no transaction")

    bench.appender.check = refuse
    assert bench.appender.append_handed(lambda: queue[0], 5, 1700) == (1, queue[0])


def test_place_must_be_a_record_place(module):
    with pytest.raises(TypeError, match="RecordPlace"):
        module.RecordAppender(int, {}, record_bytes_max=1, interval=1)


FIELD = st.none() | st.binary(max_size=30) | st.just(bytearray(b"x"))
RECORD = st.tuples(
    FIELD, FIELD, st.none() | st.integers(-1, 3), st.none() | st.integers(-1, 2000) | st.sampled_from([2**62])
)


@settings(max_examples=examples(100), deadline=None)
@given(records=st.lists(RECORD, max_size=30))
def test_twins_take_and_leave_the_same(records):
    if len(MODULES) < 2:
        pytest.skip("the extension was not built")
    benches = [Bench(module, size_limit=200, interval=20) for module in MODULES]
    for value, key, partition, timestamp in records:
        placed = [bench.append(value=value, key=key, partition=partition, timestamp=timestamp) for bench in benches]
        assert len({each and (each._batch, each._index, each._timestamp) for each in placed}) == 1
        assert benches[0].state() == benches[1].state()
    assert [bytes(each.take()) for each in benches[0].writers] == [bytes(each.take()) for each in benches[1].writers]
