"""Goal: a job of Apache Flink copies each record of a topic once, with transactions that outlive its process.

Method: real processes. Flink prepares a transaction at each checkpoint and commits it afterwards. A restored job
commits what its savepoint has prepared, with the producer id and epoch of a process that is dead, and aborts what came
later.
"""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.blocking import Admin, Producer
from moldau_jepsen.testing import cluster
from support.interop.clients import create_topic, wait_until
from support.interop.flink import NEVER, OFTEN, Pipe, flink_jars

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]

PARTITIONS = 3
PROGRESS_S = 60


class Reader:
    """Reads the copies, committed or all."""

    def __init__(self, bootstrap: str, isolation: str) -> None:
        self.copies = Counter[str]()
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": isolation})
        self._consumer.assign([TopicPartition("copies", number, 0) for number in range(PARTITIONS)])

    def poll(self) -> None:
        message = self._consumer.poll(0.1)
        while message is not None:
            if message.error() is None:
                self.copies[message.value().decode()] += 1
            message = self._consumer.poll(0)

    def read_until(self, lines: Lines, what: str) -> None:
        """Reads until every line has a copy."""

        def is_copied() -> bool:
            self.poll()
            return len(self.copies) >= lines.sent

        wait_until(is_copied, f"{lines.sent} lines are copied {what}", PROGRESS_S)

    def close(self) -> None:
        self._consumer.close()


class Lines:
    """The topic that the job reads; keys spread its records, so that both halves of the job copy some."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = 0
        self._bootstrap = bootstrap

    def send(self, count: int) -> None:
        with Producer({"bootstrap.servers": self._bootstrap}) as producer:
            values = [b"%06d" % (self.sent + number) for number in range(count)]
            producer.send_many("lines", values, keys=values)
        self.sent += count


def open_transactions(bootstrap: str) -> list[str]:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        return [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]


@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"])
def test_lines_are_copied_once_across_savepoints_and_deaths(naming, tmp_path):
    """The second job commits nothing itself: it is killed with one transaction that is prepared, and a later one."""
    jars, reason = flink_jars()
    if jars is None:
        pytest.skip(reason)
    with cluster(brokers=3, controllers=1, links=False) as brokers:
        bootstrap = brokers.bootstrap
        for topic in ("lines", "copies"):
            create_topic(bootstrap, topic, PARTITIONS, 3)
        lines, committed, seen = (
            Lines(bootstrap),
            Reader(bootstrap, "read_committed"),
            Reader(bootstrap, "read_uncommitted"),
        )
        lines.send(500)
        with Pipe(jars, tmp_path, bootstrap, OFTEN, naming) as pipe:
            committed.read_until(lines, "without faults")
            lines.send(200)
            brokers.kill(2)
            lines.send(300)
            committed.read_until(lines, "after a broker was killed")
            brokers.start_all()
            stopped = pipe.saved("stop")
        with Pipe(jars, tmp_path, bootstrap, NEVER, naming, stopped) as pipe:
            lines.send(300)
            seen.read_until(lines, "in open transactions")
            prepared = pipe.saved("savepoint")
            lines.send(300)
            seen.read_until(lines, "in later transactions")
        committed.poll()
        assert len(committed.copies) == 1000
        assert len(open_transactions(bootstrap)) == 4
        with Pipe(jars, tmp_path, bootstrap, OFTEN, naming, prepared) as pipe:
            committed.read_until(lines, "after the job was restored")
            lines.send(100)
            committed.read_until(lines, "by the restored job")
            pipe.saved("stop")
        assert open_transactions(bootstrap) == []
        committed.poll()
        assert committed.copies == {f"{number:06d}": 1 for number in range(lines.sent)}
        seen.close()
        committed.close()
