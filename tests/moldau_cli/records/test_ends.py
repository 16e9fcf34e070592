"""Goal: a read with an end writes the records of each partition below it, and nothing of what lies behind.

Method: all small logs of two partitions, with gaps and damaged records, read by the pump from a consumer that has
the rules of Moldau's: partitions take turns, and the error of a record comes with the poll after the records before it.
One whole command shows that the consumer has these rules.
"""

from dataclasses import replace
from itertools import product

import pytest
import trio

from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.records import Record
from moldau.serialization import RecordDeserializationError
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.records.core.positions import Origin, Span
from moldau_cli.records.reading import OnError, Pump, Request, assign
from support.client.socket_cluster import cluster
from support.commands import run_command

ABSENT, SOUND, DAMAGED = "-", "s", "d"
"""The records that a log may have at an offset."""
POLLS_MAX = 30


class Consumer:
    """Reads a log of each partition, a text with a letter for each offset; a poll returns up to ``most`` records."""

    def __init__(self, logs, most):
        self.logs = {TopicPartition("t", number): log for number, log in enumerate(logs)}
        self.most = most
        self.positions = {}
        self.paused = set()
        self.pending = []
        self.polls = 0

    async def partitions_for(self, topic):
        return list(self.logs)

    async def beginning_offsets(self, partitions):
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions):
        return {one: len(self.logs[one]) for one in partitions}

    def assign(self, partitions):
        self.positions = dict.fromkeys(partitions, 0)

    def seek(self, partition, offset):
        self.positions[partition] = offset

    def pause(self, partition):
        self.paused.add(partition)

    def position_nowait(self, partition):
        return self.positions[partition]

    @property
    def assignment(self):
        return list(self.positions)

    def raise_pending(self):
        while self.pending:
            partition, offset = self.pending.pop(0)
            if self.positions[partition] == offset:
                fields = {"field": "value", "timestamp": 0, "key": None, "value": b"", "headers": ()}
                raise RecordDeserializationError("damaged", topic_partition=partition, offset=offset, **fields)

    async def poll(self, timeout_ms, *, max_records):
        await trio.lowlevel.checkpoint()
        self.polls += 1
        assert self.polls < POLLS_MAX, "the read does not end"
        self.raise_pending()
        batches, left = [], self.most if max_records is None else min(self.most, max_records)
        for partition in list(self.positions):
            if left and partition not in self.paused and (taken := self.take(partition, left)):
                left -= len(taken)
                batches.append(self.batch(partition, taken))
        if not batches:
            self.raise_pending()
        return batches

    def take(self, partition, most):
        log, taken = self.logs[partition], []
        at = self.positions.pop(partition)
        while at < len(log) and len(taken) < most and log[at] != DAMAGED:
            taken += [at] if log[at] == SOUND else []
            at += 1
        if len(taken) < most and at < len(log):
            self.pending.append((partition, at))
        self.positions[partition] = at  # its turn is the last one now
        return taken

    def batch(self, partition, offsets):
        shape = {"next_offset": self.positions[partition], "leader_epoch": 0, "high_watermark": 0}
        records = [Record(at, 0, None, b"") for at in offsets]
        return ConsumedBatch(topic="t", partition=partition.partition, records=records, **shape)


class Sink:
    def __init__(self):
        self.rows = []
        self.flushed = 0

    def write_values(self, records):
        return False

    def write(self, row):
        self.rows.append((row.partition, row.offset))

    def flush(self):
        self.flushed = len(self.rows)


async def read(logs, end, most, errors=OnError.SKIP):
    """Returns what a read below an offset writes, and how many records it leaves out."""
    consumer, sink = Consumer(logs, most), Sink()
    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST, to_offset=end), errors=errors)
    ends = await assign(consumer, request)
    assert consumer.paused == {one for one, log in consumer.logs.items() if not log[:end]}, "they have nothing to read"
    pump = Pump(consumer, request, sink, ends, lambda: 0.0, no_reason, no_silence)
    await pump.run()
    assert pump.written == sink.flushed == len(sink.rows)
    assert consumer.paused == consumer.logs.keys(), "each is read to its end"
    return sorted(sink.rows), pump.skipped


async def read_some(log, count, most):
    """Returns what a read of so many records writes, and how many it leaves out before them."""
    consumer, sink = Consumer([log], most), Sink()
    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), count=count, errors=OnError.SKIP)
    assert await assign(consumer, request) == {}
    pump = Pump(consumer, request, sink, {}, lambda: 0.0, no_reason, no_silence)
    await pump.run()
    assert pump.written == sink.flushed == len(sink.rows)
    return [offset for _, offset in sink.rows], pump.skipped


async def no_reason():
    raise AssertionError("all start positions are known")


async def no_silence(ends):
    raise AssertionError("reading has no time limit")


def places(logs, end, kind):
    """Returns the records of a kind below the end."""
    return [(number, at) for number, log in enumerate(logs) for at, found in enumerate(log[:end]) if found == kind]


@pytest.mark.parametrize("end", range(4))
@pytest.mark.parametrize("most", [1, 2, 9])
def test_nothing_behind_an_end_is_read(end, most):
    """A partition may be done long before the others, and a damaged record behind its end is none of the read's."""

    async def main():
        kinds = [*map("".join, product((ABSENT, SOUND, DAMAGED), repeat=3))]
        for logs in product(kinds, repeat=2):
            rows, skipped = await read(logs, end, most)
            assert rows == places(logs, end, SOUND), logs
            assert skipped == len(places(logs, end, DAMAGED)), logs

    trio.run(main)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_a_count_is_of_records_that_are_written(most):
    """Records that are left out do not count, and none behind the last one is looked at."""

    async def main():
        for kinds in product((ABSENT, SOUND, DAMAGED), repeat=4):
            log = "".join(kinds)
            sound = [at for at, kind in enumerate(log) if kind == SOUND]
            for count in range(1, len(sound) + 1):
                rows, skipped = await read_some(log, count, most)
                assert rows == sound[:count], log
                assert skipped == log[: rows[-1]].count(DAMAGED), log

    trio.run(main)


def test_a_partition_that_any_of_the_topics_lacks_is_refused():
    class Topics(Consumer):
        async def partitions_for(self, topic):
            await trio.lowlevel.checkpoint()
            return [TopicPartition(topic, number) for number in range({"t": 3, "u": 2}[topic])]

    request = Request(topics=("t", "u"), partitions=frozenset({0, 2, 5}), span=Span())
    with pytest.raises(UsageError, match="topic t has partitions 0 to 2, not 5"):
        trio.run(assign, Topics([], 1), request)
    with pytest.raises(UsageError, match="topic u has partitions 0 to 1, not 2"):
        trio.run(assign, Topics([], 1), replace(request, partitions=frozenset({0, 2})))


@pytest.mark.parametrize("errors", [OnError.REPORT, OnError.END])
def test_a_damaged_record_behind_an_end_is_no_error(errors):
    """The first partition is done, and its next record damaged, before the second one is read to its end."""
    rows, _ = trio.run(read, ("ssd", "sss"), 2, 3, errors)
    assert rows == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(CommandError):
        trio.run(read, ("ssd", "sss"), 3, 3, errors)


def test_a_command_reads_all_partitions_to_its_end():
    """A poll returns 500 records at most: the first partition fills it, and is done with a damaged record behind."""
    with cluster() as broker:
        broker.add_topic("t", 2)
        server = ("-b", broker.bootstrap)
        run_command("produce", "t", "-p", "0", *server, given="1\n" * 499 + "no json\n")
        run_command("produce", "t", "-p", "1", *server, given="2\n")
        done = run_command("consume", "t", "-o", ":499", "--value-format", "json", "--end-at-error", *server)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1\n" * 499 + "2\n"
