"""A node of Apache Kafka in KRaft mode, broker and controller in one process, for tests of our clients."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from moldau.blocking import Admin
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher.ports import take_free_ports
from support.interop.clients import wait_until
from support.interop.maven import kafka_jars_of
from support.interop.mirrormaker import java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NEWEST, NEW, OLD = "4.4.0", "4.1.0", "3.9.1"
NODE = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={home}/data
"""
ALONE = """offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
"""
"""Settings of a cluster with one broker, whose groups form at once."""


def kafka_jars(version: str) -> Path:
    """Returns the folder of the broker's jars; skips the test where it cannot be had."""
    jars, reason = kafka_jars_of(version, ("kafka_2.13",), "kafka-broker")
    if jars is None:
        pytest.skip(reason)
    return jars


@contextlib.contextmanager
def kafka(
    home: Path,
    version: str,
    more: str = "",
    environment: Mapping[str, str] | None = None,
    ports: tuple[int, int] | None = None,
) -> Iterator[str]:
    """Runs a node; gives its address.

    ``more`` are further settings, which count before the usual ones; compiled classes in ``home`` may be plugins.
    ``ports`` are those of broker and controller.
    """
    jars = kafka_jars(version)
    broker, controller = ports or take_free_ports(2)
    config = home / "kafka.properties"
    config.write_text(NODE.format(home=home, broker=broker, controller=controller) + ALONE + more)
    words = ("format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(config))
    subprocess.run(java(jars, "kafka.tools.StorageTool", *words), capture_output=True, check=True, timeout=300)
    command = java(jars, "kafka.Kafka", str(config), heap="400m")
    command[command.index("-cp") + 1] += f":{home}"
    with (home / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    try:
        wait_until(lambda: _is_up(f"127.0.0.1:{broker}"), f"Kafka {version} is up", 300)
        yield f"127.0.0.1:{broker}"
    finally:
        process.kill()
        process.wait()


def _is_up(bootstrap: str) -> bool:
    try:
        with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 2000}) as admin:
            return bool(admin.describe_cluster().brokers)
    except (KafkaError, OSError, TimeoutError):
        return False
