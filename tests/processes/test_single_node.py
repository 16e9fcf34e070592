"""Goal: one process may be broker and controller at once, from a TOML file with environment overrides, and ends in
order. Method: a real process, a real client, SIGTERM.
"""

import os
import signal
import subprocess
import sys

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.probe import fetch_metadata
from support.interop.clients import WAIT_S, ConfluentClient, create_topic, wait_until

pytestmark = pytest.mark.processes

CONFIG = """
[process]
roles = ["broker", "controller"]
[node]
id = 1
[controller]
listener.names = "CONTROLLER"
quorum.voters = "1@127.0.0.1:{controller}"
[log]
dirs = "{home}/data"
[offsets.topic]
replication.factor = 1
"""


@pytest.fixture
def node(tmp_path):
    broker, controller = take_free_ports(2)
    config = tmp_path / "node.toml"
    config.write_text(CONFIG.format(controller=controller, home=tmp_path))
    listeners = f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}"
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "moldau_cli", "server", str(config)],
        env=os.environ | {"MOLDAU_LISTENERS": listeners},
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    process.broker_port = broker
    process.log = tmp_path / "log"
    try:
        wait_until(lambda: _serves(process), "the node serves")
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


def _serves(process):
    assert process.poll() is None, process.log.read_text()
    found = fetch_metadata(process.broker_port, [], 1000)
    return found is not None and [broker.node_id for broker in found.brokers] == [1]


def test_a_node_of_both_roles_serves_and_ends_in_order(node):
    address = f"127.0.0.1:{node.broker_port}"
    create_topic(address, "alone", 2, 1)
    client = ConfluentClient(address)
    placed = client.produce("alone", [(b"k", b"v%d" % number, []) for number in range(50)])
    assert sorted((p, o, v) for p, o, _, v, _ in client.consume("alone", 2, 50)) == sorted(placed)
    node.send_signal(signal.SIGTERM)
    assert node.wait(WAIT_S) == 0, node.log.read_text()
    assert "Traceback" not in node.log.read_text()
