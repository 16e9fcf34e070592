"""Goal: one command runs the brokers of a machine: it starts them, brings dead ones back, and ends them in order.

Method: real processes from one file with ``broker.processes``, a socket in the place of systemd's, and signals.
"""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.probe import fetch_metadata
from support.commands import run_command
from support.interop.clients import WAIT_S, ConfluentClient, create_topic, wait_until

pytestmark = pytest.mark.processes

CONFIG = """
process.roles=broker,controller
node.id=10
controller.quorum.voters=10@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={home}/data
broker.processes=2
offsets.topic.replication.factor=1
"""
WATCHDOG_USEC = 20_000_000


class Group:
    """A supervisor and what it wrote."""

    def __init__(self, home, port, controller):
        self.port, self.home = port, home
        self.file = home / "node.properties"
        self.file.write_text(CONFIG.format(port=port, controller=controller, home=home))
        self.log = home / "log"
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.systemd.bind(str(home / "notify"))
        self.systemd.settimeout(WAIT_S)
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moldau_cli", "server", str(self.file), "--with-parent"],
                env=os.environ | {"NOTIFY_SOCKET": str(self.home / "notify"), "WATCHDOG_USEC": str(WATCHDOG_USEC)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def hear(self, wanted):
        """Reads reports until one is ``wanted``; returns those before it."""
        heard = []
        while not heard or heard[-1] != wanted:
            heard.append(self.systemd.recv(1000).decode())
        return heard[:-1]

    def pids(self, node):
        """The process ids that a process of the group had, in order."""
        return [int(pid) for pid in re.findall(rf"process-started node={node} pid=(\d+)", self.log.read_text())]

    def brokers(self, port):
        found = fetch_metadata(port, [], 1000)
        return [] if found is None else sorted(broker.node_id for broker in found.brokers)

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.systemd.close()


@pytest.fixture
def group(tmp_path):
    port, second = 0, 0
    while second != port + 1:
        port, second, controller = take_free_ports(3)
    made = Group(tmp_path, port, controller)
    try:
        yield made
    finally:
        made.close()


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_group_serves_survives_kill_9_and_stops_in_order(group):
    group.start()
    before = group.hear("READY=1")
    assert "WATCHDOG=1" in before
    assert f"STATUS={2} of 2 processes serve" not in before
    # Each process serves as soon as it is in service itself; that the other one is, it learns with the next metadata.
    wait_until(lambda: group.brokers(group.port + 1) == [10, 11], "each broker knows the other")
    create_topic(f"127.0.0.1:{group.port}", "t", 4, 2)
    client = ConfluentClient(f"127.0.0.1:{group.port},127.0.0.1:{group.port + 1}")
    placed = client.produce("t", [(b"k", b"v%d" % number, []) for number in range(20)])

    os.kill(group.pids(11)[0], signal.SIGKILL)
    group.hear("STATUS=1 of 2 processes serve")
    group.hear("STATUS=2 of 2 processes serve")
    assert len(group.pids(11)) == 2
    wait_until(lambda: group.brokers(group.port + 1) == [10, 11], "the broker is back")
    assert sorted((p, o, v) for p, o, _, v, _ in client.consume("t", 4, 20)) == sorted(placed)

    group.process.send_signal(signal.SIGTERM)
    assert group.process.wait(WAIT_S) == 0, group.log.read_text()
    assert group.hear("STOPPING=1") is not None
    assert all(is_gone(pid) for node in (10, 11) for pid in group.pids(node))
    ended = re.findall(r"process-ended node=(\d+) exit_code=0", group.log.read_text())
    assert ended == ["11", "10"], "the controller ends last"
    assert "Traceback" not in group.log.read_text()
    assert sorted(path.name for path in (group.home / "data").iterdir()) == ["broker.10", "broker.11"]

    alone = group.file.read_text().replace("broker.processes=2", "broker.processes=1")
    group.file.write_text(alone)
    done = run_command("server", str(group.file))
    assert done.returncode == 2
    assert "holds broker.10, broker.11 of several processes, and broker.processes is 1" in done.stderr


@pytest.fixture
def taken(group):
    """Another program's port that the second process of the group has in its listeners."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", group.port + 1))
        other.listen()
        yield group.port + 1


def test_a_taken_port_is_found_before_the_start(group, taken):
    found = run_command("node", "check", str(group.file))
    assert found.returncode == 1
    assert f"PLAINTEXT://127.0.0.1:{taken}" in found.stdout


@pytest.mark.proof
@pytest.mark.usefixtures("taken")
def test_a_taken_port_ends_the_whole_group(group):
    """Five starts of a process; ``make test`` shows the decision in ``test_supervision``, and one death above."""
    group.start()
    assert group.process.wait(WAIT_S) == 1, group.log.read_text()
    assert all(is_gone(pid) for node in (10, 11) for pid in group.pids(node))
    assert "in use" in group.log.read_text()


def test_directories_of_all_processes_are_prepared(group):
    done = run_command("node", "format", str(group.file), "--cluster-id", "AyUshreRQAWssT7I_rBNBA")
    assert done.returncode == 0, done
    for node in (10, 11):
        assert f"node.id={node}\n" in (group.home / "data" / f"broker.{node}" / "meta.properties").read_text()
    (group.home / "data" / "meta.properties").write_text("version=1\n")
    for command in (["node", "format"], ["server"]):
        done = run_command(*command, str(group.file), *(["--cluster-id", "x"] if command[0] == "node" else []))
        assert done.returncode == 2
        assert "holds the data of a single process, and broker.processes is 2" in done.stderr
    done = run_command("server", str(group.file), "--node", "12", "--check")
    assert done.returncode == 2
    assert "--node 12" in done.stderr
    done = run_command("server", str(group.file), "--check")
    assert done.stdout.splitlines() == [
        f"{group.file}: node 10 (broker, controller)",
        f"{group.file}: node 11 (broker)",
    ]
