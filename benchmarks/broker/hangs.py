"""How long clients wait for the next acknowledged write when the leader of a partition hangs or is cut off.

Three producers (Moldau, librdkafka and, where Java and Maven are installed, Java) write to one partition
of three replicas, one record after the other is acknowledged, with acks=all and otherwise default settings. The figure
is the time from the fault to the first acknowledgement after the longest pause, or the length of that pause where it is
below a second: then the fault has delayed nothing. Syncs delay only writes to topics that wait for them
(flush.messages=1), so these are measured too.

    PYTHONPATH=tests python -m benchmarks.broker.hangs --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.blocking import Producer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.testing import cluster
from support.interop.clients import create_topic, wait_for, wait_until
from support.interop.mirrormaker import java, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.launcher.control import Control
    from moldau_jepsen.testing.local import TestCluster

LIMIT_S: Final = 75.0
FROZEN_MS: Final = 120_000.0
DELAY_S: Final = 1.0
"""A shorter pause is no effect of the fault."""
SETTLED_S: Final = 0.05
"""An answer may have been under way when the fault began."""
JAVA: Final = """
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

public class Writer {
    public static void main(String[] given) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", given[0]);
        properties.put("acks", "all");
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        for (int index = 2; index < given.length; index++) {
            properties.put(given[index].split("=")[0], given[index].split("=")[1]);
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            while (true) {
                try {
                    producer.send(new ProducerRecord<>(given[1], 0, null, "x")).get();
                } catch (java.util.concurrent.ExecutionException error) {
                    continue;
                }
                System.out.println(System.currentTimeMillis());
                Thread.sleep(20);
            }
        }
    }
}
"""


class Writer(threading.Thread):
    """Writes one record after the other; ``acknowledged`` are the times (of the wall clock) of the answers."""

    def __init__(self, write: Callable[[Writer], None]) -> None:
        """``write`` works until ``ends`` is set."""
        super().__init__(daemon=True)
        self._write = write
        self.ends = threading.Event()
        self.acknowledged: list[float] = []

    def run(self) -> None:
        """Writes."""
        self._write(self)

    def waited_s(self, fault: float) -> float | None:
        """Returns the time from the fault to the end of the longest pause after it; None if that has not ended.

        Without a noticeable pause, it returns the length of the longest one.
        """
        times = [fault, *(at for at in self.acknowledged if at > fault + SETTLED_S)]
        if len(times) < 3:
            return None
        longest, end = max((later - earlier, later) for earlier, later in itertools.pairwise(times))
        return end - fault if longest >= DELAY_S else longest


def own(bootstrap: str, topic: str, keys: dict[str, str]) -> Writer:
    """Moldau's producer."""

    def write(writer: Writer) -> None:
        with Producer({"bootstrap.servers": bootstrap, "acks": "all", **keys}) as producer:
            while not writer.ends.wait(0.02):
                try:
                    producer.send(topic, b"x", partition=0).result()
                except KafkaError:
                    continue
                writer.acknowledged.append(time.time())

    return Writer(write)


def librdkafka(bootstrap: str, topic: str, keys: dict[str, str]) -> Writer:
    """librdkafka's producer."""

    def write(writer: Writer) -> None:
        from confluent_kafka import Producer as ConfluentProducer

        answered: list[object] = []

        def delivered(error: object, _: object) -> None:
            answered.append(error)

        # This client has another name for request.timeout.ms.
        own_name = {"socket.timeout.ms": keys["request.timeout.ms"]} if "request.timeout.ms" in keys else {}
        producer = ConfluentProducer(
            {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, **keys, **own_name}
        )
        while not writer.ends.wait(0.02):
            answered.clear()
            producer.produce(topic, b"x", partition=0, on_delivery=delivered)
            while not answered and not writer.ends.is_set():
                producer.poll(0.05)
            if answered == [None]:
                writer.acknowledged.append(time.time())

    return Writer(write)


def of_java(bootstrap: str, topic: str, keys: dict[str, str], jars: Path, source: Path) -> Writer:
    """Kafka's producer."""
    source.write_text(JAVA)

    def write(writer: Writer) -> None:
        command = java(jars, str(source), bootstrap, topic, *(f"{key}={value}" for key, value in keys.items()))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                writer.acknowledged.append(int(line) / 1000)
                if writer.ends.is_set():
                    process.kill()

    return Writer(write)


def pause(running: TestCluster, leader: int) -> None:
    """SIGSTOP."""
    running.pause(leader)


def _healthy(control: Control) -> Control:
    return replace(control, write_delay_ms=0.0, sync_delay_ms=0.0)


def block_writes(running: TestCluster, leader: int) -> None:
    """Writes of the leader block, and with them its event loop."""
    running.control(leader, partial(replace, write_delay_ms=FROZEN_MS))


def block_syncs(running: TestCluster, leader: int) -> None:
    """Syncs of the leader block; its event loop turns."""
    running.control(leader, partial(replace, sync_delay_ms=FROZEN_MS))


def cut(running: TestCluster, leader: int) -> None:
    """No byte passes between the leader and anybody."""
    running.cut(leader)


DURABLE: Final = "blocked syncs, durable topic"
FAULTS: Final = {
    "SIGSTOP": pause,
    "blocked writes": block_writes,
    "blocked syncs": block_syncs,
    DURABLE: block_syncs,
    "cut links": cut,
}


def measure(running: TestCluster, name: str, topic: str, writers: dict[str, Writer]) -> dict[str, float | None]:
    """Brings one fault about and returns the seconds of each client; repairs the cluster afterwards."""
    for writer in writers.values():
        writer.start()
    wait_until(lambda: all(len(writer.acknowledged) > 50 for writer in writers.values()), "all clients write")
    leader = wait_for(lambda: running.partition_leader(topic, 0), "the partition has a leader")
    fault = time.time()
    FAULTS[name](running, leader)
    while time.time() - fault < LIMIT_S:
        time.sleep(0.2)
        done = [writer.waited_s(fault) for writer in writers.values()]
        if time.time() - fault > 12 and None not in done:
            break
    result = {client: writer.waited_s(fault) for client, writer in writers.items()}
    running.heal()
    running.control(leader, _healthy)
    for writer in writers.values():
        writer.ends.set()
    if name == "SIGSTOP" or name.startswith("blocked"):
        if running.state(leader) is not ProcessState.STOPPED:
            running.kill(leader)
        running.start_node(leader)
    wait_until(running.is_whole, "all replicas are in sync")
    for writer in writers.values():
        writer.join(LIMIT_S)
    return result


def _median(seconds: list[float | None]) -> float | None:
    ended = [one for one in seconds if one is not None]
    return round(statistics.median(ended), 2) if ended else None


def main(arguments: list[str]) -> int:
    """Measures all faults and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the nodes")
    parser.add_argument("--client", action="append", default=[], metavar="KEY=VALUE", help="for all producers")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="all by default")
    given = parser.parse_args(arguments)
    jars, reason = kafka_jars()
    if jars is None:
        sys.stderr.write(f"without Java: {reason}\n")
    figures: dict[str, dict[str, list[float | None]]] = {}
    settings = {"node.watchdog.ms": "2000", "min.insync.replicas": "2"} | dict(one.split("=") for one in given.set)
    keys = dict(one.split("=") for one in given.client)
    with (
        tempfile.TemporaryDirectory(prefix="moldau-hangs-") as home,
        cluster(brokers=3, controllers=3, links=True, hostile=True, settings=settings) as running,
    ):
        for number in range(given.rounds):
            for name in given.fault or FAULTS:
                topic = f"{name.replace(' ', '-').replace(',', '')}-{number}"
                create_topic(
                    running.bootstrap, topic, 1, 3, configs={"flush.messages": "1"} if name == DURABLE else None
                )
                writers = {"moldau": own(running.bootstrap, topic, keys)}
                writers["librdkafka"] = librdkafka(running.bootstrap, topic, keys)
                if jars is not None:
                    writers["java"] = of_java(running.bootstrap, topic, keys, jars, Path(home) / "Writer.java")
                for client, seconds in measure(running, name, topic, writers).items():
                    figures.setdefault(name, {}).setdefault(client, []).append(seconds)
                sys.stderr.write(f"{name}: {figures[name]}\n")
    medians = {name: {client: _median(seconds) for client, seconds in of.items()} for name, of in figures.items()}
    sys.stdout.write(f"{json.dumps(medians, indent=1)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
