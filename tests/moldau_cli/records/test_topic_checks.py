"""Goal: a topic or an offset that does not exist is refused before a client waits for it, and no other one.

Method: an admin client of brokers of which each knows its own number of partitions, or does not answer.
"""

from itertools import product
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from moldau import TopicPartition
from moldau.admin import EARLIEST, AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.errors import UsageError
from moldau_cli.records.topic_checks import check_offset, check_topic

SILENT, GONE = "silent", "gone"


class Admin:
    """The first question goes to any broker, which knows ``first`` partitions; ``counts`` are those of all brokers."""

    def __init__(self, first, counts):
        self.first = first
        self.counts = dict(enumerate(counts, 1))

    def __call__(self, settings):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def within(self, timeout_ms):
        return self

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=node) for node in self.counts])

    async def describe_topics(self, names, *, node_id):
        await trio.lowlevel.checkpoint()
        count = self.first if node_id is None else self.counts[node_id]
        if count == SILENT:
            await trio.sleep_forever()
        if count == GONE:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "gone")
        if not count:
            raise AdminError(dict.fromkeys(names, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none")), {})
        return {name: SimpleNamespace(partitions=range(count)) for name in names}


def run(check, *arguments):
    return trio.run(check, *arguments, clock=MockClock(autojump_threshold=0))


def test_a_topic_that_any_broker_knows_exists(monkeypatch):
    """The broker that created it knows it first, and others may be silent or gone."""
    for first, *counts in product((0, 1, 3), (0, 1, 3, SILENT, GONE), (0, 1, 3, SILENT, GONE)):
        monkeypatch.setattr("moldau.Admin", Admin(first, counts))
        known = max([first, *(each for each in counts if isinstance(each, int))])
        for partition in (None, 0, 1, 2, 3):
            if known > (partition or 0):
                run(check_topic, "t", {}, partition)
                continue
            with pytest.raises(UsageError) as raised:
                run(check_topic, "t", {}, partition)
            wrong = f"topic t has {'partition 0' if known == 1 else f'partitions 0 to {known - 1}'}, not {partition}"
            assert str(raised.value) == (wrong if known else "topic t does not exist; moldau topics create t")


def test_other_errors_are_those_of_the_topic(monkeypatch):
    class Refusing(Admin):
        async def describe_topics(self, names, *, node_id):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")

    monkeypatch.setattr("moldau.Admin", Refusing(1, [1]))
    with pytest.raises(KafkaError, match="not allowed"):
        run(check_topic, "t", {})


@pytest.mark.parametrize(
    ("begin", "end", "held"), [(2, 5, "holds offsets 2 to 4"), (3, 3, "is empty"), (0, 0, "is empty")]
)
def test_an_offset_is_in_the_log_or_its_end(monkeypatch, begin, end, held):
    class Log(Admin):
        async def list_offsets(self, times):
            await trio.lowlevel.checkpoint()
            ((where, at),) = times.items()
            assert where == TopicPartition("t", 1)
            return {where: (begin if at == EARLIEST else end, -1)}

    monkeypatch.setattr("moldau.Admin", Log(2, [2]))
    for offset in range(8):
        if begin <= offset <= end:
            run(check_offset, "t", 1, offset, {})
            continue
        with pytest.raises(UsageError) as raised:
            run(check_offset, "t", 1, offset, {})
        assert str(raised.value).startswith(
            f"--offset {offset} is out of range: t-1 {held}, and its next offset is {end}; -X auto.offset.reset="
        )
