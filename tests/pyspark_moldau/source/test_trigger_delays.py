"""Goal: a query with minOffsetsPerTrigger waits as one of Spark's Kafka source does.

Method: each short sequence of appended records and passed seconds, on a stopped clock, against a model of that source.
"""

import itertools
import math
from types import SimpleNamespace

from pyspark_moldau.source import data_source as source
from pyspark_moldau.source import stream as stream_module
from pyspark_moldau.source.core.offsets import from_checkpoint
from pyspark_moldau.source.core.options import parse_options
from support.spark.memory_log import MemoryLog

LEAST = 3
DELAY_S = 10
STEPS = [(0, 11), (1, 6), (1, 11), (3, 6), (3, 11)]
"""Records that are appended, and the seconds until Spark asks again."""
OPTIONS = {
    "kafka.bootstrap.servers": "h:1",
    "subscribe": "t",
    "startingOffsets": "earliest",
    "minOffsetsPerTrigger": str(LEAST),
    "maxTriggerDelay": f"{DELAY_S}s",
}


def test_each_batch_begins_the_delay_again(monkeypatch):
    """A batch comes with enough records or after the delay, which counts from the last batch, whatever began it."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now, sleep=None)
    monkeypatch.setattr(stream_module, "time", clock)
    for steps in itertools.product(STEPS, repeat=3):
        log = MemoryLog([("t", 0)])
        reader = source.MoldauStreamReader(parse_options(OPTIONS, streaming=True), connect=lambda client, log=log: log)
        position, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        end, read, last_s = 0, 0, -math.inf
        for count, seconds in steps:
            log.append(("t", 0), *[(1, None, b"v", ())] * count)
            end += count
            if end - read >= LEAST or clock.now - last_s > DELAY_S:
                read, last_s = end, clock.now
            position = reader.latestOffset(position, limit)
            assert from_checkpoint(position) == {("t", 0): read}, steps
            clock.now += seconds
