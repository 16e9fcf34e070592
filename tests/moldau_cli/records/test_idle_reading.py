"""Goal: ``moldau consume --timeout-ms`` ends when no record arrives, and only then.

Method: the pump alone, with a clock of the test and a consumer that plays a script of polls.
"""

import trio

from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.records import Record
from moldau.serialization import RecordDeserializationError
from moldau_cli.records.core.positions import Origin, Span
from moldau_cli.records.reading import OnError, Pump, Request

WHERE = TopicPartition("t", 0)


class Consumer:
    """Each poll takes 300 ms; the records with an offset of ``damaged`` cannot be deserialized."""

    def __init__(self, *, damaged, end):
        self.now_ms = 0.0
        self.damaged = damaged
        self.end = end
        self.position = 0

    async def poll(self, timeout_ms, *, max_records):
        await trio.lowlevel.checkpoint()
        self.now_ms += 300
        at = self.position
        if at in self.damaged:
            fields = {"field": "value", "timestamp": 0, "key": None, "value": b"", "headers": ()}
            raise RecordDeserializationError("damaged", topic_partition=WHERE, offset=at, **fields)
        if at == self.end:
            return []
        self.position += 1
        shape = {"next_offset": at + 1, "leader_epoch": 0, "high_watermark": self.end}
        return [ConsumedBatch(topic="t", partition=0, records=[Record(at, 0, None, b"%d" % at)], **shape)]

    def seek(self, partition, offset):
        self.position = offset


class Sink:
    def __init__(self):
        self.values = []

    def write_values(self, records):
        self.values += [record.value for record in records]
        return True

    def flush(self):
        pass


def test_records_that_are_left_out_are_no_silence():
    consumer, sink = Consumer(damaged=range(1, 6), end=7), Sink()
    request = Request(topics=("t",), span=Span(origin=Origin.EARLIEST), idle_ms=1000, errors=OnError.SKIP)
    pump = Pump(consumer, request, sink, {}, lambda: consumer.now_ms)
    trio.run(pump.run)
    assert sink.values == [b"0", b"6"]
    assert pump.skipped == 5
    assert consumer.now_ms == 300 * (7 + 4)  # four more polls until a second has passed
