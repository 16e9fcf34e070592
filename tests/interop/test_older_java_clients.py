"""Goal: applications with Java clients of the last eight years work, not only those with the newest.

Method: one node, and for each release a program with calls that all of them have: topics, an idempotent producer,
transactions, a group that reads committed records and commits, offsets of the group. Clients 3.3 to 3.7 once failed on
each connection, because they refuse features whose lowest level is 0.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from support.interop import plain_node
from support.interop.clients import WAIT_S
from support.interop.maven import kafka_jars_of
from support.interop.mirrormaker import java
from support.interop.plain_node import PlainNode

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(plain_node.__file__).with_name("OlderClients.java")
RELEASES = ("2.0.1", "2.4.1", "2.8.2", "3.0.2", "3.3.2", "3.5.2", "3.7.2", "3.9.1", "4.1.0")


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with PlainNode(tmp_path_factory.mktemp("node"), take_free_ports(2)) as node:
        yield node.bootstrap


@pytest.mark.parametrize("release", RELEASES)
def test_a_java_client_works(bootstrap: str, release: str) -> None:
    jars, reason = kafka_jars_of(release, ("kafka-clients",), "kafka-clients")
    if jars is None:
        pytest.skip(reason)
    topic = f"of-{release}"
    command = java(jars, str(PROGRAM), bootstrap, topic)
    program = subprocess.run(command, capture_output=True, text=True, timeout=4 * WAIT_S, check=False)
    assert program.returncode == 0, program.stderr
    assert program.stdout.splitlines() == [
        "brokers=1",
        "transactions=done",
        "read=101 0 committed",
        "committed=[0, 1]",
        "deleted=true",
    ]
