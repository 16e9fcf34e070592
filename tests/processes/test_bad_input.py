"""Goal: bad input gets its clear error, and the node lives on or refuses to start with exit code 2 and one line.
Method: a real broker and controller; bytes over plain sockets; configuration files and data directories spoilt by hand.
"""

import contextlib
import shutil
import socket
from pathlib import Path

import pytest

from moldau_jepsen.launcher import ClusterSpec, start_cluster
from moldau_jepsen.launcher.probe import fetch_metadata
from moldau_jepsen.launcher.process import ProcessState
from support.interop.clients import WAIT_S, ConfluentClient, create_topic
from support.started import run_started

pytestmark = pytest.mark.processes

SMALL = {"socket.request.max.bytes": "1000000"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    running = start_cluster(tmp_path_factory.mktemp("small"), ClusterSpec(brokers=1, controllers=1, settings=SMALL))
    yield running
    running.shut_down()


class Stopped:
    """A copy of the files of a broker and a controller that have run, for one test to spoil."""

    def __init__(self, cluster, directory, still, copy):
        shutil.copytree(still, copy)
        self._paths = (str(directory), str(copy))
        self._cluster = cluster
        for node_id in (1, 101):
            self.config(node_id).write_text(self.config(node_id).read_text().replace(*self._paths))

    def config(self, node_id):
        return Path(str(self._cluster.node(node_id).config).replace(*self._paths))

    def directory(self, node_id):
        return Path(str(self._cluster.node(node_id).directory).replace(*self._paths))


@pytest.fixture(scope="module")
def killed_nodes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed") / "cluster"
    running = start_cluster(directory, ClusterSpec(brokers=1, controllers=1))
    for node_id in (1, 101):
        running.kill(node_id)  # after a stop in order, a node would report any changed file as such
    still = tmp_path_factory.mktemp("copied") / "cluster"
    shutil.copytree(directory, still)
    running.start_node(101)  # a broker asks its controllers before it looks at its directory
    yield running, directory, still
    running.shut_down()


@pytest.fixture
def stopped(killed_nodes, tmp_path):
    return Stopped(*killed_nodes, tmp_path / "copy")


def run_server(config):
    return run_started("server", str(config), timeout=WAIT_S)


def refusal(run, code=2):
    """The one line with which a server refused to start."""
    assert run.returncode == code, run.stderr
    lines = [line for line in run.stderr.splitlines() if line.startswith("moldau: ")]
    assert len(lines) == 1, run.stderr
    assert "Traceback" not in run.stderr
    return lines[0]


# -- over the wire --------------------------------------------------------------------------------------------------


def api_versions_request(version=0, key=18):
    body = key.to_bytes(2, "big") + version.to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    return len(body).to_bytes(4, "big") + body


def talk(port, data, *, half_close=False):
    """Sends bytes and returns all that comes back until the broker closes; fails where it does not."""
    received = b""
    # A broker that has seen enough may close while the rest is on its way.
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(data)
        if half_close:
            peer.shutdown(socket.SHUT_WR)
        while chunk := peer.recv(65536):
            received += chunk
    return received


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((999_999_999).to_bytes(4, "big") + b"x" * 100, id="oversized"),
        pytest.param((-5).to_bytes(4, "big", signed=True) + b"x" * 100, id="negative"),
        pytest.param(b"\0\0\0\0", id="empty"),
        pytest.param(b"\0\0\0\3abc", id="too-short-for-a-header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 512, id="tls"),
        pytest.param(api_versions_request(key=999), id="unknown-api"),
        pytest.param(api_versions_request(key=0, version=3), id="truncated-produce"),
    ],
)
@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_broken_frame_closes_only_its_connection(small, role, data):
    """A broken frame closes its connection and no other."""
    node = small.brokers[0] if role == "broker" else small.controllers[0]
    with socket.create_connection(("127.0.0.1", node.port), timeout=WAIT_S) as bystander:
        assert talk(node.port, data, half_close=True) == b""
        bystander.sendall(api_versions_request())
        assert int.from_bytes(bystander.recv(4), "big") > 6
    assert small.state(node.node_id) is ProcessState.RUNNING


def test_a_frame_that_is_never_finished_does_not_stop_others(small):
    port = small.brokers[0].port
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as half:
        half.sendall((1000).to_bytes(4, "big") + b"only a part")
        assert fetch_metadata(port, [], WAIT_S * 1000) is not None


def test_unsupported_api_versions_learn_what_is_supported(small):
    """An unsupported version of ApiVersions is answered with the versions that are supported."""
    answer = talk(small.brokers[0].port, api_versions_request(version=99), half_close=True)
    assert answer[4:8] == (7).to_bytes(4, "big")
    assert int.from_bytes(answer[8:10], "big") == 35
    assert small.state(1) is ProcessState.RUNNING


def test_producing_to_an_unknown_topic_is_refused_by_name(small):
    from confluent_kafka import Producer

    errors = []
    producer = Producer(
        {"bootstrap.servers": small.bootstrap, "message.timeout.ms": 4000, "allow.auto.create.topics": False}
    )
    producer.produce("no.such.topic/!", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_S)
    assert len(errors) == 1
    assert errors[0] is not None
    assert small.state(1) is ProcessState.RUNNING


def test_the_cluster_still_serves_after_all_that(small):
    create_topic(small.bootstrap, "after", 1, 1)
    client = ConfluentClient(small.bootstrap)
    placed = client.produce("after", [(b"k", b"v", [])])
    assert [(p, o, v) for p, o, _, v, _ in client.consume("after", 1, 1)] == placed


# -- at the start ---------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(small):
    node = small.node(1)
    small.kill(1)
    with socket.create_server(("127.0.0.1", node.port)):
        line = refusal(run_server(node.config), code=1)  # the same configuration works later
    small.start_node(1)
    assert str(node.port) in line
    assert "in use" in line


@pytest.mark.parametrize("node_id", [1, 101])
@pytest.mark.parametrize("damage", ["", "version=1\n", "\0\0\0", "version=one\ncluster.id=x\nnode.id=1\n"])
def test_a_corrupt_meta_properties_is_named(stopped, node_id, damage):
    path = next(stopped.directory(node_id).rglob("meta.properties"))
    path.write_text(damage)
    assert "meta.properties" in refusal(run_server(stopped.config(node_id)))


def test_the_directory_of_another_node_is_refused(stopped, tmp_path):
    other = tmp_path / "other.properties"
    other.write_text(stopped.config(1).read_text().replace("node.id=1\n", "node.id=2\n"))
    line = refusal(run_server(other))
    assert "node 1" in line
    assert str(stopped.directory(1)) in line


def test_the_directory_of_another_cluster_is_refused(stopped, small):
    """A broker that is sent to another cluster's controllers must not mix its data with theirs."""
    config = stopped.config(1)
    lines = [line for line in config.read_text().splitlines() if not line.startswith("controller.quorum.voters=")]
    controller = small.controllers[0]
    lines.append(f"controller.quorum.voters={controller.node_id}@{controller.address}")
    config.write_text("\n".join(lines) + "\n")
    assert "cluster" in refusal(run_server(config))
    assert small.state(1) is ProcessState.RUNNING


def test_one_directory_serves_one_process(small, tmp_path):
    """The same directory under a second process, on another port, is refused while the first lives.

    That may pass, so a service manager repeats the start: exit code 1.
    """
    node = small.node(1)
    config = tmp_path / "second.properties"
    config.write_text(Path(node.config).read_text().replace(f":{node.port}\n", ":0\n", 1))
    line = refusal(run_server(config), code=1)
    assert "lock" in line or "in use" in line
    assert small.state(1) is ProcessState.RUNNING


def test_data_survives_a_stop_and_a_start_of_everything(small):
    create_topic(small.bootstrap, "kept", 1, 1)
    client = ConfluentClient(small.bootstrap)
    placed = client.produce("kept", [(b"k", b"v%d" % n, []) for n in range(10)])
    assert small.stop_all() == []
    small.start_all()
    assert [(p, o, v) for p, o, _, v, _ in client.consume("kept", 1, 10)] == placed
