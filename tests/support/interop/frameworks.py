"""Frameworks above Kafka clients, in environments of their own with pinned versions, and how tests run and judge them.

An application reads lines of three words, and emits records whose keys are words. A framework with state emits each
count of a word, so a word that is lost or counted twice shows as a missing or repeated number. One without state sends
the line on for each of its words.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.interop.clients import create_topic, wait_until
from support.interop.maven import CACHE
from support.interop.word_count import line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau_jepsen.testing.local import TestCluster

APPLICATIONS = Path(__file__).parents[2] / "interop" / "applications"
PINNED: Mapping[str, tuple[str, ...]] = {
    "quix": ("quixstreams==3.28.1", "confluent-kafka==2.12.2"),
    "faust": ("faust-streaming==0.15.3", "aiokafka==0.14.0"),
    "faststream": ("faststream[kafka,confluent]==0.7.8", "aiokafka==0.14.0", "confluent-kafka==2.16.1"),
    "bytewax": ("bytewax[kafka]==0.21.1", "confluent-kafka==2.16.1"),
    "celery": ("celery==5.7.0", "kombu==5.7.0", "confluent-kafka==2.16.1"),
}
PINNED_JAVASCRIPT = ("kafkajs@2.2.4",)
INSTALL_TIMEOUT_S = 600
STALLED_S = 120.0
"""An application that emits nothing for so long is stuck."""
END_S = 30.0
RESTARTS_MAX = 4
PARTITIONS = 3


@functools.cache
def python_with(name: str) -> tuple[Path | None, str]:
    """Returns a Python that has a framework, or None and the reason why there is none."""
    home = _home(name, (*PINNED[name], f"python {sys.version_info.major}.{sys.version_info.minor}"))
    python = home / "bin" / "python"
    if (home / "complete").exists():
        return python, ""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    pip = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    failure = _installed(home, [[sys.executable, "-m", "venv", home], [*pip, "-q", *PINNED[name]]])
    return (None, f"{name}: {failure}") if failure else (python, "")


@functools.cache
def node_modules() -> tuple[Path | None, str]:
    """Returns the folder with packages for Node.js, or None and the reason why there is none."""
    missing = [each for each in ("node", "npm") if shutil.which(each) is None]
    if missing:
        return None, f"no {missing[0]} on the PATH"
    home = _home("javascript", PINNED_JAVASCRIPT)
    modules = home / "node_modules"
    if (home / "complete").exists():
        return modules, ""
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", home, *PINNED_JAVASCRIPT]
    failure = _installed(home, [install])
    return (None, failure) if failure else (modules, "")


def _home(name: str, pinned: tuple[str, ...]) -> Path:
    return CACHE / f"{name}-{hashlib.sha256(' '.join(pinned).encode()).hexdigest()[:12]}"


def _installed(home: Path, commands: list[list[Any]]) -> str:
    """Runs the commands that fill a folder; returns why they failed, or an empty text."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for command in commands:
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"{Path(command[0]).name} did not end within {INSTALL_TIMEOUT_S} s"
        if run.returncode:
            return f"{Path(command[0]).name} failed: {' '.join(run.stderr.split())[-300:]}"
    (home / "complete").touch()
    return ""


class Applications:
    """The running applications of a test, by name; their output is in one file each.

    One that ends by itself is started again, as a supervisor does: some frameworks leave it to that when a broker dies.
    """

    def __init__(self, folder: Path) -> None:
        """Starts nothing yet; ``folder`` is where applications work and write their logs."""
        self._folder = folder
        self._started: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts = 0

    def start(self, name: str, command: list[Any], environment: Mapping[str, str] | None = None) -> None:
        """Starts an application, or starts it again."""
        self._started[name] = ([str(word) for word in command], {**os.environ, **(environment or {})})
        self._start(name)

    def _start(self, name: str) -> None:
        command, environment = self._started[name]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def kill(self, name: str) -> None:
        """Ends an application with SIGKILL; it stays down until it is started again."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def supervise(self) -> None:
        """Starts applications that have ended by themselves; fails if that happens again and again."""
        for name in [name for name, process in self._running.items() if process.poll() is not None]:
            self._restarts += 1
            assert self._restarts <= RESTARTS_MAX, f"{name} has ended again: {self.log()}"
            self._start(name)

    def end(self) -> None:
        """Ends all applications, as an operator would."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def log(self) -> str:
        """Returns the last lines of each application."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1_500:]}" for path in logs)


class Lines:
    """Sends lines, and reads the records that applications make of them."""

    def __init__(self, cluster: TestCluster, name: str, applications: Applications, *, counts: bool) -> None:
        """Creates the topics. ``counts``: the application emits counts of words, and not the lines themselves."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        self.name = name
        self.found: Counter[tuple[str, str]] = Counter()
        """Keys and values that were read; ``expected`` are those of an application that loses and repeats nothing."""
        self.expected: Counter[tuple[str, str]] = Counter()
        self._times: Counter[str] = Counter()
        self._reached = [-1] * PARTITIONS  # the end of each partition when it was last reached
        self._sent, self._counts, self._applications = 0, counts, applications
        for suffix in ("lines", "counts"):
            create_topic(cluster.bootstrap, f"{name}-{suffix}", PARTITIONS, 3)
        settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "log_level": 2}
        self._producer = Producer({**settings, "enable.idempotence": True})
        self._consumer = Consumer(
            {
                **settings,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        self._places = [TopicPartition(f"{name}-counts", partition, 0) for partition in range(PARTITIONS)]
        self._consumer.assign(self._places)

    def send(self, count: int) -> None:
        """Sends lines, and waits until they are acknowledged."""
        for number in range(self._sent, self._sent + count):
            text = line(number)
            self._producer.produce(f"{self.name}-lines", text, str(number))
            for word in text.split():
                self._times[word] += 1
                self.expected[word, str(self._times[word]) if self._counts else text] += 1
        assert self._producer.flush(STALLED_S) == 0
        self._sent += count

    def read_all(self) -> None:
        """Reads until no expected record is missing; fails if none comes any more."""
        last = time.monotonic()
        while missing := self.expected - self.found:
            if self._read():
                last = time.monotonic()
            shown = f"{missing.total()} of {self.expected.total()} are missing"
            assert time.monotonic() - last < STALLED_S, f"{shown}: {self._applications.log()}"
            self._applications.supervise()

    def read_rest(self) -> None:
        """Reads up to the ends of the partitions, once the applications have ended."""
        ends = [self._consumer.get_watermark_offsets(place, STALLED_S)[1] for place in self._places]

        def is_read() -> bool:
            self._read()
            return all(reached >= end for reached, end in zip(self._reached, ends, strict=True))

        wait_until(is_read, f"{self.name}-counts is read up to {ends}")

    def _read(self) -> bool:
        from confluent_kafka import KafkaError

        record = self._consumer.poll(0.2)
        if record is None:
            return False
        error = record.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._reached[record.partition() or 0] = record.offset() or 0  # behind markers of transactions, too
            return False
        self.found[(record.key() or b"").decode(), (record.value() or b"").decode()] += 1
        return True

    def leader(self) -> int:
        """Returns the broker that leads the first partition of the lines."""
        topics = self._consumer.list_topics(f"{self.name}-lines", STALLED_S).topics
        return int(topics[f"{self.name}-lines"].partitions[0].leader)

    def close(self) -> None:
        """Closes the reader."""
        self._consumer.close()


__all__ = ["APPLICATIONS", "Applications", "Lines", "node_modules", "python_with"]


def live_through_kills(
    lines: Lines, applications: Applications, brokers: TestCluster, start: Callable[[str], None], instances: int = 2
) -> None:
    """Sends lines to applications while the first instance is killed, and then the broker that leads a partition.

    ``start`` starts an instance by its name. Reads all that the applications have emitted, and ends them.
    """
    with contextlib.closing(lines):
        for instance in ("one", "two")[:instances]:
            start(instance)
        lines.send(60)
        lines.read_all()
        lines.send(40)
        applications.kill("one")
        lines.send(40)
        start("one")
        lines.read_all()
        victim = lines.leader()
        lines.send(20)
        brokers.kill(victim)
        try:
            lines.send(40)
            lines.read_all()
        finally:
            brokers.restart(victim)
        applications.end()
        lines.read_rest()
