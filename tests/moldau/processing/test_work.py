"""Goal: a processor runs records in order within a lane, within its bounds, and commits nothing unprocessed.

Method: Hypothesis drives the pure core with random polls, starts, ends and lost partitions.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau import TopicPartition
from moldau.consumer import ConsumedBatch, ConsumedRecord
from moldau.processing.core.retry_topics import RetryTopics
from moldau.processing.core.work import ORDERS, Work
from moldau.records import Record

PARTITIONS = [TopicPartition("t", number) for number in range(3)]


def batch(partition, first, count, keys=2):
    records = [Record(first + n, 0, b"%d" % ((first + n) % keys), b"") for n in range(count)]
    return ConsumedBatch(
        topic=partition.topic,
        partition=partition.partition,
        records=records,
        next_offset=first + count,
        leader_epoch=0,
        high_watermark=1000,
    )


class Model:
    """Performs commands on the work, and remembers what must hold."""

    def __init__(self, order, concurrency):
        self.work = Work(concurrency=concurrency, order=order, pending_max=6)
        self.order, self.concurrency = order, concurrency
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.open = {partition: set() for partition in PARTITIONS}
        self.running = []
        self.stale = []  # their partitions were lost meanwhile
        self.held = set()
        self.paused = set()  # at the consumer

    def lane(self, record):
        within = {"partition": None, "key": record.key, "none": record.offset}[self.order]
        return record.topic_partition, within

    def poll(self, number, count):
        partition = PARTITIONS[number]
        self.held.add(partition)
        self.work.take([batch(partition, self.next[partition], count)])
        self.open[partition] |= set(range(self.next[partition], self.next[partition] + count))
        self.next[partition] += count

    def start(self):
        record = self.work.start(0)
        if record is None:
            return
        assert self.lane(record) not in map(self.lane, self.running + self.stale)
        self.running.append(record)
        assert len(self.running) + len(self.stale) <= self.concurrency

    def end(self, index):
        everything = self.stale + self.running
        if everything:
            record = everything[index % len(everything)]
            if record in self.stale:
                self.stale.remove(record)
            else:
                self.running.remove(record)
                self.open[record.topic_partition].discard(record.offset)
            self.work.finish(record)

    def work_off(self, count):
        for _ in range(count):
            self.start()
            self.end(0)
        self.pauses()

    def outlast(self, lost):
        """The handlers of a lost partition go on."""
        self.stale += [record for record in self.running if record.topic_partition == lost]
        self.running = [record for record in self.running if record.topic_partition != lost]

    def lose(self, number):
        """The partition comes back at once, from the first offset that is not processed."""
        lost = PARTITIONS[number]
        self.held.discard(lost)
        self.work.retain([partition for partition in PARTITIONS if partition != lost])
        again = min(self.open[lost], default=self.next[lost])
        self.open[lost] = set()
        self.next[lost] = again
        self.outlast(lost)

    def lose_within_a_poll(self, number, count):
        """The partition is lost and comes back before the work hears of it; the poll has records of it."""
        lost = PARTITIONS[number]
        again = min(self.open[lost], default=self.next[lost])
        if again < self.next[lost]:
            self.open[lost] = set()
            self.next[lost] = again
            self.outlast(lost)
        self.poll(number, count)

    def pauses(self):
        """A partition rests from 6 unfinished records until 3 are left, or until it is lost."""
        self.paused |= set(self.work.to_pause())
        assert self.paused >= {each for each in self.held if len(self.open[each]) >= 6}
        assert set(self.work.paused()) == self.paused
        resumed = set(self.work.to_resume())
        assert resumed <= self.paused
        self.paused -= resumed
        assert all(each in self.held and len(self.open[each]) > 3 for each in self.paused)
        assert set(self.work.paused()) == self.paused

    def check(self):
        for partition, offset in self.work.to_commit().items():
            assert offset <= min(self.open[partition], default=self.next[partition])


COMMANDS = st.lists(
    st.tuples(st.just("poll"), st.integers(0, 2), st.integers(1, 5))
    | st.tuples(st.just("start"))
    | st.tuples(st.just("pauses"))
    | st.tuples(st.just("work_off"), st.integers(1, 9))
    | st.tuples(st.just("end"), st.integers(0, 9))
    | st.tuples(st.just("lose"), st.integers(0, 2))
    | st.tuples(st.just("lose_within_a_poll"), st.integers(0, 2), st.integers(1, 5)),
    max_size=40,
)


@given(st.sampled_from(ORDERS), st.integers(1, 4), COMMANDS)
def test_commits_never_pass_an_unprocessed_record(order, concurrency, commands):
    model = Model(order, concurrency)
    for name, *arguments in commands:
        getattr(model, name)(*arguments)
        model.check()
    for _ in range(sum(map(len, model.open.values())) + len(model.stale) + 1):
        model.start()
        model.end(0)
    model.check()
    assert model.work.to_commit() == {partition: model.next[partition] for partition in model.held}
    assert model.work.running == 0


def test_records_of_a_lane_run_in_order():
    work = Work(concurrency=3, order="key", pending_max=10)
    work.take([batch(PARTITIONS[0], 0, 4)])
    first, second = work.start(0), work.start(0)
    assert (first.offset, second.offset, work.start(0)) == (0, 1, None)
    work.finish(second)
    assert work.start(0).offset == 3
    assert work.to_commit() == {PARTITIONS[0]: 0}
    work.finish(first)
    assert work.to_commit() == {PARTITIONS[0]: 2}
    work.committed({PARTITIONS[0]: 2})
    assert work.to_commit() == {}


@pytest.mark.parametrize("order", ["partition", "key"])
def test_nothing_runs_behind_a_failed_record_in_its_lane(order):
    """Another handler that ended in the same turn started the next record, which was then processed before this one."""
    work = Work(concurrency=2, order=order, pending_max=10)
    work.take([batch(PARTITIONS[0], 0, 4, keys=1), batch(PARTITIONS[1], 0, 2, keys=1)])
    failed, other = work.start(0), work.start(0)
    work.fail(failed)
    work.finish(other)
    left = iter(lambda: work.start(0), None)
    assert [(record.partition, record.offset) for record in left] == [(1, 1)]
    assert work.to_return() == {PARTITIONS[0]: 0, PARTITIONS[1]: 1}


def test_full_partitions_pause_until_half_is_done():
    work = Work(concurrency=10, order="none", pending_max=4)
    work.take([batch(PARTITIONS[0], 0, 4), batch(PARTITIONS[1], 0, 3)])
    assert work.to_pause() == [PARTITIONS[0]]
    assert work.to_pause() == []
    running = [work.start(0) for _ in range(7)]
    work.finish(running[0])
    assert work.to_resume() == []
    work.finish(running[1])
    assert work.to_resume() == [PARTITIONS[0]]
    assert (work.to_resume(), work.paused()) == ([], [])
    work.take([batch(PARTITIONS[0], 4, 2)])
    assert work.to_pause() == [PARTITIONS[0]], "it fills up again"


def test_a_pause_ends_with_the_records_of_another_cluster():
    """A partition that was assigned by hand stays assigned in the other cluster, and paused."""
    work = Work(concurrency=10, order="none", pending_max=4)
    work.take([batch(PARTITIONS[0], 0, 4)])
    assert work.to_pause() == [PARTITIONS[0]]
    work.follow(1)
    assert work.paused() == [PARTITIONS[0]]
    assert work.to_resume() == [PARTITIONS[0]]
    assert work.to_resume() == work.paused() == []


def test_a_record_of_a_retry_topic_waits_until_it_is_due():
    work = Work(concurrency=1, order="partition", pending_max=4)
    (plain,) = batch(PARTITIONS[0], 0, 1).with_partition()
    out = RetryTopics("t", [500]).failed(plain, ValueError("x"), 1000)
    records = [Record(0, 0, out.key, out.value, out.headers)]
    late = ConsumedBatch(topic="r", partition=0, records=records, next_offset=1, leader_epoch=0, high_watermark=1)
    work.take([late, batch(PARTITIONS[0], 0, 1)])
    assert work.start(1499).topic == "t"
    work.finish(next(batch(PARTITIONS[0], 0, 1).with_partition()))
    assert work.start(1500).topic == "r"


def test_a_stale_end_leaves_the_new_record_alone():
    work = Work(concurrency=2, order="partition", pending_max=4)
    work.take([batch(PARTITIONS[0], 0, 2)])
    old = work.start(0)
    work.retain([])
    work.take([batch(PARTITIONS[0], 0, 2)])
    assert work.start(0) is None, "records of a partition run one after the other"
    work.finish(old)
    assert work.to_commit() == {PARTITIONS[0]: 0}
    work.finish(work.start(0))
    assert work.to_commit() == {PARTITIONS[0]: 1}


def test_records_that_come_again_are_committed():
    """Their partition was lost and came back within a poll, while records of it were unfinished."""
    work = Work(concurrency=4, order="key", pending_max=10)
    work.take([batch(PARTITIONS[0], 0, 2)])
    slow, quick = work.start(0), work.start(0)
    work.finish(quick)
    work.take([batch(PARTITIONS[0], 0, 2)])
    again = work.start(0)
    assert (again.offset, work.start(0)) == (1, None), "the record of the other key still runs"
    work.finish(again)
    work.finish(slow)
    assert work.to_commit() == {PARTITIONS[0]: 0}
    work.finish(work.start(0))
    assert work.to_commit() == {PARTITIONS[0]: 2}
    assert work.running == 0


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"order": "lane"}, {"pending_max": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="process: "):
        Work(**{"concurrency": 1, "order": "key", "pending_max": 1, **wrong})


def test_records_finished_out_of_order_do_not_pause_a_partition():
    work = Work(concurrency=10, order="none", pending_max=6)
    work.take([batch(PARTITIONS[0], 0, 5)])
    first, *others = [work.start(0) for _ in range(5)]
    for record in others:
        work.finish(record)
    work.take([batch(PARTITIONS[0], 5, 4)])
    assert work.to_pause() == [], "five are unfinished"
    work.take([batch(PARTITIONS[0], 9, 1)])
    assert work.to_pause() == [PARTITIONS[0]]
    assert work.to_commit() == {PARTITIONS[0]: first.offset}


@pytest.mark.parametrize(("count", "resumed"), [(4, []), (3, [PARTITIONS[0]])])
def test_a_partition_that_comes_back_full_stays_paused(count, resumed):
    work = Work(concurrency=10, order="none", pending_max=4)
    work.take([batch(PARTITIONS[0], 0, 4)])
    assert work.to_pause() == [PARTITIONS[0]]
    work.retain(())
    work.take([batch(PARTITIONS[0], 0, count)])
    assert bool(work.to_pause()) == (not resumed)
    assert work.to_resume() == resumed


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_kept_of_finished_records(order):
    """A processor runs for months, over any number of keys and offsets."""
    work = Work(concurrency=10, order=order, pending_max=100)
    work.take([batch(PARTITIONS[0], 0, 50, keys=25)])
    while (record := work.start(0)) is not None:
        work.finish(record)
    assert work._lanes == {}
    assert not work._ready
    assert work.finished == 50


def test_keys_that_have_no_hash_make_lanes_too():
    """A deserializer may return a list or a dictionary; equal ones share a lane."""
    work = Work(concurrency=10, order="key", pending_max=6)
    keys = ([1], [2], [1], {"a": 1}, {"a": 1})
    records = [ConsumedRecord("t", 0, offset, 0, key, b"", ()) for offset, key in enumerate(keys)]
    polled = SimpleNamespace(topic_partition=PARTITIONS[0], cluster=0, records=records, next_offset=5)
    polled.with_partition = lambda: records
    work.take([polled])
    started = [work.start(0) for _ in range(4)]
    assert [each and each.offset for each in started] == [0, 1, 3, None]
    work.finish(started[0])
    assert work.start(0).offset == 2
