"""Goal: a task reports rows only when all of them are delivered, and its error names the first that was not.

Method: a producer in memory, whose deliveries are done when it is flushed.
"""

import pyarrow as pa
import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigError
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.task import RowWriter, write_at_least_once

OPTIONS = parse_sink_options({"kafka.bootstrap.servers": "h:1", "topic": "t"}, streaming=True)


class Delivery:
    def __init__(self, producer, error):
        self.producer, self.error, self.topic = producer, error, "t"
        self.number = len(producer.deliveries)

    @property
    def is_done(self):
        return self.number < self.producer.flushed

    def result(self):
        assert self.is_done
        if self.error is not None:
            raise self.error


class Producer:
    """A producer; the row ``fails`` is not delivered, and the block ``refused`` is not taken."""

    fails = refused = made = None

    def __init__(self, config):
        self.config, self.deliveries, self.flushed, self.is_closed = config, [], 0, False
        self.made.append(self)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await trio.lowlevel.checkpoint()
        self.is_closed = True

    async def send_columns(self, topic, columns, *, partitions):
        await trio.lowlevel.checkpoint()
        if len(self.deliveries) == self.refused:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if len(self.deliveries) == self.fails else None
        self.deliveries.append(Delivery(self, error))
        return self.deliveries[-1:]

    async def flush(self):
        await trio.lowlevel.checkpoint()
        self.flushed = len(self.deliveries)


@pytest.fixture
def producer(monkeypatch):
    monkeypatch.setattr(Producer, "made", [])
    monkeypatch.setattr("pyspark_moldau.sink.task.Producer", Producer)
    return Producer


def blocks(*lengths):
    return iter(
        [pa.record_batch({"value": pa.array([str(n) for n in range(length)], pa.string())}) for length in lengths]
    )


@pytest.mark.parametrize("lengths", [(), (0,), (3,), (3, 0, 4), (1,) * 9])
def test_the_rows_of_all_blocks_are_counted_and_delivered(producer, lengths):
    assert write_at_least_once(OPTIONS, blocks(*lengths)) == sum(lengths)
    (made,) = producer.made
    assert made.config == dict(OPTIONS.producer)
    assert made.flushed == len(made.deliveries) == sum(length > 0 for length in lengths)
    assert made.is_closed


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("way", ["fails", "refused"])
def test_a_row_that_is_not_delivered_is_an_error(producer, monkeypatch, way, at):
    monkeypatch.setattr(producer, way, at)
    message = (
        "^option topic: topic 't' is not on h:1" if way == "fails" else "^column value: a row for topic 't' is too"
    )
    with pytest.raises(SinkError, match=message):
        write_at_least_once(OPTIONS, blocks(1, 2, 3))
    assert producer.made[0].is_closed


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ConfigError(["batch.size = 'x': must be a number"]), SinkError, r"^kafka\.batch\.size = 'x': must be"),
        (
            KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            SinkError,
            "^deliveryGuarantee: this client may not write",
        ),
        (KafkaError(ErrorCode.NOT_COORDINATOR), KafkaError, "NOT_COORDINATOR"),
        (ZeroDivisionError("x"), ZeroDivisionError, "x"),
    ],
)
def test_an_error_of_the_client_names_its_option(producer, monkeypatch, error, kind, message):
    def refused(config):
        raise error

    monkeypatch.setattr("pyspark_moldau.sink.task.Producer", refused)
    with pytest.raises(kind, match=message):
        write_at_least_once(OPTIONS, blocks(1))


def test_deliveries_are_not_kept_until_the_end(producer, monkeypatch):
    """A task may write millions of blocks."""
    monkeypatch.setattr("pyspark_moldau.sink.task.UNDELIVERED_MAX", 4)

    async def main():
        writer = RowWriter(OPTIONS, producer({}))
        for number in range(20):
            for block in blocks(1):
                await writer.write(block, fingerprints=False)
            if number % 3 == 0:
                await writer._producer.flush()
            assert len(writer._undelivered) <= 4
        await writer.finish()
        assert writer.rows == 20
        assert writer._undelivered == []

    trio.run(main)


def test_fingerprints_do_not_depend_on_blocks(producer):
    def fingerprint(*texts, topic="t", divided=False):
        async def main():
            writer = RowWriter(OPTIONS, producer({}))
            rows = [[text] for text in texts] if divided else [list(texts)]
            for each in rows:
                names = pa.array([topic] * len(each), pa.string())
                await writer.write(
                    pa.record_batch({"value": pa.array(each, pa.string()), "topic": names}), fingerprints=True
                )
            return writer.fingerprint

        return trio.run(main)

    assert fingerprint("a", "b") == fingerprint("a", "b", divided=True) == fingerprint("b", "a")
    assert len({fingerprint("a"), fingerprint("b"), fingerprint("a", "b"), fingerprint("a", "a")}) == 4
    assert 0 <= fingerprint("a", "b") < 2**64
