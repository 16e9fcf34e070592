"""Goal: an unmodified Java client reads records that only an object store has as if they were on the disks.

Method: transactions, some of them aborted, fill segments that leave the disks of two brokers. One Java process reads
them with both isolation levels, searches by time, asks for the offsets of tiered topics (KIP-1005) and deletes records.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moldau_jepsen.testing import cluster
from support.interop import tiered_topic
from support.interop.clients import WAIT_S
from support.interop.kafka_node import NEWEST
from support.interop.maven import kafka_jars_of
from support.interop.mirrormaker import java
from support.interop.tiered_topic import RECORDS, TRANSACTIONS, fill, settings_of

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(tiered_topic.__file__).with_name("TieredReads.java")
TOPIC = "tiered-java"
NUMBER = 3 * RECORDS - 5
"""A record of the third transaction; the second one is aborted."""


def test_a_java_client_reads_what_only_the_store_has(tmp_path: Path) -> None:
    jars, reason = kafka_jars_of(NEWEST, ("kafka-tools", "kafka_2.13"), "kafka-tools")
    if jars is None:
        pytest.skip(reason)
    with cluster(brokers=2, controllers=1, links=False, settings=settings_of(tmp_path / "store")) as running:
        filled = fill(running.bootstrap, TOPIC, 2)
        since = filled.offset_of(NUMBER)
        words = (running.bootstrap, TOPIC, "", str(filled.time_of(NUMBER)), str(since + 1))
        program = subprocess.run(
            java(jars, str(PROGRAM), *words), capture_output=True, text=True, timeout=4 * WAIT_S, check=False
        )
    assert program.returncode == 0, program.stderr
    said = dict(line.split("=", 1) for line in program.stdout.splitlines())
    assert said["committed"] == f"[{', '.join(f'{offset}:{value}' for offset, value in filled.committed)}]"
    assert said["since"] == f"{since} {since}:{NUMBER:06d}"
    assert said["all"] == str(TRANSACTIONS * RECORDS)
    assert said["EarliestSpec"] == "0"
    assert int(said["EarliestLocalSpec"]) == int(said["LatestTieredSpec"]) + 1 > since + RECORDS
    assert said["start"] == str(since + 1)
    assert said["rest"] == f"{since + 1}:{NUMBER + 1:06d}"
