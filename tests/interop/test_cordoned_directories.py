"""Goal: Kafka's own Java admin client, unmodified, cordons log directories and sees them (KIP-1066).

Method: one real node with two log directories; one Java program takes all steps and prints an outcome for each.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moldau.blocking import Admin
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher.ports import take_free_ports
from support.interop import mirrormaker
from support.interop.clients import WAIT_S, wait_until
from support.interop.kafka_node import NEWEST, kafka_jars
from support.started import Command

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(mirrormaker.__file__).with_name("CordonedDirectories.java")
NODE = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
log.dirs={home}/d1,{home}/d2
"""
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


def is_up(bootstrap: str) -> bool:
    try:
        with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 2000}) as admin:
            return bool(admin.describe_cluster().brokers)
    except (KafkaError, OSError, TimeoutError):
        return False


def test_the_java_admin_client_cordons_directories(tmp_path: Path) -> None:
    jars = kafka_jars(NEWEST)
    broker, controller = take_free_ports(2)
    for name in ("d1", "d2"):
        (tmp_path / name).mkdir()
    config = tmp_path / "node.properties"
    config.write_text(NODE.format(home=tmp_path, broker=broker, controller=controller))
    bootstrap = f"127.0.0.1:{broker}"
    with (tmp_path / "node.log").open("wb") as log:
        node = Command("server", str(config), stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: is_up(bootstrap), "the node starts")
        command = mirrormaker.java(jars, str(PROGRAM), bootstrap, f"{tmp_path}/d1", f"{tmp_path}/d2")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * WAIT_S)
        assert done.returncode == 0, done.stderr + done.stdout
        assert dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line) == EXPECTED
    finally:
        node.terminate()
        node.wait(WAIT_S)
