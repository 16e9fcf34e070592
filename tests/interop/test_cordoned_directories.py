"""Goal: Kafka's own Java admin client, unmodified, cordons log directories and sees them (KIP-1066).

Method: one real node with two log directories; one Java program takes all steps and prints an outcome for each.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from support.interop import plain_node
from support.interop.clients import WAIT_S
from support.interop.kafka_node import NEWEST, kafka_jars
from support.interop.mirrormaker import java
from support.interop.plain_node import PlainNode

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(plain_node.__file__).with_name("CordonedDirectories.java")
EXPECTED = {
    "at first": "{d1=false, d2=false}",
    "topic": "created",
    "wrong path": "InvalidConfigurationException",
    "first": "set",
    "described": "{d1=true, d2=false}",
    "configured": "DYNAMIC_BROKER_CONFIG false LIST",
    "second topic": "created",
    "places": "true",
    "move": "InvalidReplicaAssignmentException",
    "all": "set",
    "all described": "{d1=true, d2=true}",
    "no topic": "InvalidReplicationFactorException",
    "no partition": "InvalidReplicationFactorException",
    "no assignment": "InvalidReplicaAssignmentException",
    "same replica": "null",
    "none": "set",
    "at last": "{d1=false, d2=false}",
    "topic again": "created",
    "move again": "begun",
}


def test_the_java_admin_client_cordons_directories(tmp_path: Path) -> None:
    jars = kafka_jars(NEWEST)
    with PlainNode(tmp_path, take_free_ports(2), ("d1", "d2")) as node:
        command = java(jars, str(PROGRAM), node.bootstrap, *node.directories)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * WAIT_S)
    assert done.returncode == 0, done.stderr + done.stdout
    assert dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line) == EXPECTED
