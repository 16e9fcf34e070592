"""Goal: our commands change the voters of Apache Kafka's metadata quorum, asked through a broker or a controller.

Method: a node of Kafka whose quorum has one voter, and a controller that only observes it (KIP-853).
"""

import contextlib
import json
import subprocess

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from support.commands import run_command
from support.interop.clients import wait_until
from support.interop.kafka_node import NEWEST, kafka_jars
from support.interop.mirrormaker import java

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
SHARED = """controller.quorum.bootstrap.servers=127.0.0.1:{first}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={home}/{name}
"""
ROLES = {
    "node": "process.roles=broker,controller\nnode.id=1\n"
    "listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{first}\noffsets.topic.replication.factor=1\n",
    "observer": "process.roles=controller\nnode.id=2\nlisteners=CONTROLLER://127.0.0.1:{second}\n",
}
FORMATS = {"node": "--standalone", "observer": "--no-initial-controllers"}


@contextlib.contextmanager
def quorum(home):
    """Gives the addresses of a broker, of its controller, and of the observer."""
    jars = kafka_jars(NEWEST)
    broker, first, second = take_free_ports(3)
    with contextlib.ExitStack() as stack:
        for name, text in ROLES.items():
            config = home / f"{name}.properties"
            config.write_text((text + SHARED).format(home=home, name=name, broker=broker, first=first, second=second))
            words = ("format", "-t", CLUSTER, "-c", str(config), FORMATS[name])
            subprocess.run(java(jars, "kafka.tools.StorageTool", *words), capture_output=True, check=True, timeout=300)
            log = stack.enter_context((home / f"{name}.log").open("wb"))
            command = java(jars, "kafka.Kafka", str(config), heap="300m")
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield tuple(f"127.0.0.1:{port}" for port in (broker, first, second))


def roles(address):
    """Returns the role of each node of the quorum; nothing while no broker answers."""
    done = run_command("-b", address, "quorum", "status", "--json")
    return {one["node"]: one["role"] for one in json.loads(done.stdout)["replicas"]} if done.returncode == 0 else {}


def is_added(observer, *words):
    done = run_command("quorum", "add-voter", "2", observer, *words)
    assert done.stdout == "node 2 is a voter\n" or "BROKER_NOT_AVAILABLE" in done.stderr, done
    return done.returncode == 0


def test_voters_of_kafka_are_added_and_removed(tmp_path):
    with quorum(tmp_path) as (broker, controller, observer):
        wait_until(lambda: roles(broker) == {1: "leader", 2: "observer"}, "the controller observes", 300)
        for words in (("-b", broker), ("--bootstrap-controller", controller)):
            # The leader refuses while it has no connection to the observer, which it begins to open then.
            wait_until(lambda words=words: is_added(observer, *words), "the observer is a voter", 60)
            assert roles(broker) == {1: "leader", 2: "voter"}
            removed = run_command("quorum", "remove-voter", "2", *words)
            assert (removed.returncode, removed.stdout) == (0, "node 2 is no longer a voter\n"), removed
            assert roles(broker) == {1: "leader", 2: "observer"}
