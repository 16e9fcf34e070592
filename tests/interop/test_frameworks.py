"""Goal: Python frameworks above Kafka clients work unmodified: they lose no record, and repeat none where they say so.

Method: applications in environments of their own share partitions; one is killed and started again, and the broker that
leads a partition of their input is killed. Every record that they emit is counted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from moldau_jepsen.testing import cluster
from support.interop.clients import create_topic, wait_until
from support.interop.frameworks import APPLICATIONS, Applications, Lines, live_through_kills, python_with
from support.shared import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moldau_jepsen.testing.local import TestCluster

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
SEND_S = 60
KEYS = ("a", "b", "c")
HOUR_MS = 3_600_000


@pytest.fixture
def brokers() -> TestCluster:
    return SHARED.get("frameworks' cluster", lambda: cluster(brokers=3, controllers=1, links=False))


@pytest.fixture
def applications(tmp_path: Path) -> Iterator[Applications]:
    running = Applications(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(running.end)
        yield running


def python_of(environment: str) -> Path:
    python, reason = python_with(environment)
    if python is None:
        pytest.skip(reason)
    return python


@dataclass(frozen=True)
class Framework:
    environment: str
    application: str
    words: tuple[Any, ...]
    counts: bool = True
    once: bool = False
    instances: int = 2


FRAMEWORKS = {
    "quix-exactly-once": Framework("quix", "counts_quix.py", ("exactly-once",), once=True),
    "quix-at-least-once": Framework("quix", "counts_quix.py", ("at-least-once",)),
    "faust": Framework("faust", "counts_faust.py", ("at_least_once",)),
    "faststream-aiokafka": Framework("faststream", "relay_faststream.py", ("kafka",), counts=False),
    "faststream-confluent": Framework("faststream", "relay_faststream.py", ("confluent",), counts=False),
    "bytewax": Framework("bytewax", "counts_bytewax.py", (), instances=1),
}


@pytest.mark.parametrize("name", list(FRAMEWORKS))
def test_words_survive_kills(name, brokers, applications, tmp_path):
    framework = FRAMEWORKS[name]
    python = python_of(framework.environment)
    lines = Lines(brokers, name, applications, counts=framework.counts)

    def start(instance: str) -> None:
        words = (brokers.bootstrap, name, tmp_path / f"state-{instance}", *framework.words)
        applications.start(instance, [python, APPLICATIONS / framework.application, *words])

    live_through_kills(lines, applications, brokers, start, framework.instances)
    assert not lines.expected - lines.found
    if framework.once:
        assert not lines.found - lines.expected


def test_windows_of_quix_streams_close_once(brokers, applications, tmp_path):
    """Each window of ten records is emitted once, with all of its records, although the application is killed."""
    python = python_of("quix")
    for suffix in ("lines", "counts"):
        create_topic(brokers.bootstrap, f"windows-{suffix}", 3, 3)
    settings = {"bootstrap.servers": brokers.bootstrap, "log_level": 2}
    producer = Producer(settings | {"enable.idempotence": True})
    consumer = Consumer(
        settings | {"group.id": "windows-reader", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["windows-counts"])
    beginning_ms = int(time.time()) // 10 * 10_000 - HOUR_MS  # brokers refuse times that lie far ahead
    found: Counter[tuple[str, int, int]] = Counter()
    expected: Counter[tuple[str, int, int]] = Counter()

    def send(first: int, last: int) -> None:
        """Sends one record a second for each key; the record of a later window closes the one before."""
        for second, key in itertools.product(range(first, last), KEYS):
            producer.produce("windows-lines", "x", key, timestamp=beginning_ms + second * 1_000)
        assert producer.flush(SEND_S) == 0
        expected.update((key, start * 10_000, 10) for start in range(first // 10, (last - 1) // 10) for key in KEYS)

    def has_all() -> bool:
        record = consumer.poll(0.2)
        if record is not None and record.error() is None:
            window = json.loads(record.value())
            found[record.key().decode(), window["start"] - beginning_ms, window["value"]] += 1
        return found >= expected

    def start() -> None:
        words = (brokers.bootstrap, "windows", tmp_path / "state")
        applications.start("windows", [python, APPLICATIONS / "windows_quix.py", *words])

    with contextlib.closing(consumer):
        start()
        send(0, 31)
        wait_until(has_all, "the first windows are closed")
        send(31, 55)
        applications.kill("windows")
        send(55, 71)
        start()
        wait_until(has_all, "the windows after a kill are closed")
        applications.end()
    assert found == expected


def test_tasks_of_celery_survive_kills(brokers, applications, tmp_path):
    """A killed worker loses the task that it has just fetched at most: kombu commits positions, and does not wait."""
    python = python_of("celery")
    results = tmp_path / "results"
    results.touch()

    def command(role: str, *words: Any) -> list[Any]:
        return [python, APPLICATIONS / "tasks_celery.py", role, brokers.bootstrap, "celery", results, *words]

    def send(first: int, last: int) -> None:
        subprocess.run([str(word) for word in command("send", first, last)], check=True, timeout=SEND_S, cwd=tmp_path)

    def done() -> set[int]:
        return {int(number) for number in results.read_text().split()}

    send(0, 20)
    applications.start("worker", command("worker"))
    wait_until(lambda: done() >= set(range(10)), "tasks are carried out")
    applications.kill("worker")
    send(20, 40)
    applications.start("worker", command("worker"))
    wait_until(lambda: done() >= set(range(20, 40)), "tasks after a kill are carried out")
    assert len(set(range(20)) - done()) <= 1
