"""Goal: nodes that are forks of one process are as independent as nodes that were started singly, and are tied to the
process that starts them only if asked.

Method: two single controllers, the smallest nodes, as real processes.
"""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from moldau_jepsen.launcher import interpreter, process
from moldau_jepsen.launcher.forks import NodeForks
from moldau_jepsen.launcher.ports import choose_ports
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import ClusterSpec, LauncherError, node_properties, plan_nodes
from support.interop.clients import wait_until
from support.started import OWN_INTERPRETER

pytestmark = pytest.mark.processes

WAIT_MS = 60_000
STARTER = """
import sys
from moldau_jepsen.launcher import interpreter, process
from moldau_jepsen.launcher.spec import Node
words = iter(sys.argv[1:])
nodes = [
    Node(node_id=place, role="controller", port=0, directory="", config=config, log=log)
    for place, (config, log) in enumerate(zip(words, words))
]
process.spawn_all(nodes, tied_to_parent=True)
print(*(node.pid for node in nodes), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pair(tmp_path):
    """Two controllers, each the only voter of a quorum of its own, that do not run yet."""
    nodes = []
    for home, port in zip(("a", "b"), choose_ports(2, None), strict=True):
        spec = ClusterSpec(brokers=1, controllers=1, ports=(port + 1, port))
        plan = plan_nodes(spec, tmp_path / home, spec.ports)
        node = next(one for one in plan if one.role == "controller")
        os.makedirs(node.directory)
        with open(node.config, "w", encoding="utf-8") as file:
            file.write(node_properties(node, plan, {}))
        nodes.append(node)
    yield nodes
    for node in nodes:
        process.send_signal(node, signal.SIGKILL)
        assert process.wait_state(node, ProcessState.STOPPED, WAIT_MS)


def logged(node, word):
    return any(word in line for line in process.log_end(node))


def wait_ready(nodes):
    for node in nodes:
        wait_until(lambda node=node: logged(node, "ready") or is_gone(node), f"node {node.port} to serve")
        assert not is_gone(node), process.log_end(node)


def is_gone(node):
    return process.state_of(node.pid, node.started) is ProcessState.STOPPED


@contextmanager
def started_elsewhere(nodes):
    """A process that has started the nodes tied to itself."""
    words = [word for node in nodes for word in (node.config, node.log)]
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        for node, number in zip(nodes, starter.stdout.readline().split(), strict=True):
            node.pid = int(number)
            node.started = process.start_mark(node.pid)
        yield starter
        starter.kill()


def test_each_node_is_a_process_of_its_own(pair):
    """Sessions, logs and ends are separate, and a stop by SIGTERM is in order."""
    process.spawn_all(pair, tied_to_parent=True)
    first, second = pair
    wait_ready(pair)
    assert {os.getsid(node.pid) for node in pair} == {first.pid, second.pid}
    assert process.send_signal(first, signal.SIGKILL)
    assert process.wait_state(first, ProcessState.STOPPED, WAIT_MS)
    assert not is_gone(second)
    assert process.send_signal(second, signal.SIGTERM)
    assert process.wait_state(second, ProcessState.STOPPED, WAIT_MS)
    assert logged(second, "stopped node=101 asked=True")


def test_a_refused_node_does_not_stop_the_other(pair):
    first, second = pair
    with open(first.config, "a", encoding="utf-8") as file:
        file.write("process.roles=waiter\n")
    process.spawn_all(pair, tied_to_parent=True)
    assert process.wait_state(first, ProcessState.STOPPED, WAIT_MS)
    assert logged(first, "process.roles")
    wait_ready([second])


def test_tied_nodes_end_with_the_process_that_started_them(pair):
    with started_elsewhere(pair) as starter:
        wait_ready(pair)
        starter.kill()
        starter.wait()
        for node in pair:
            assert process.wait_state(node, ProcessState.STOPPED, WAIT_MS)


def test_untied_nodes_keep_running(pair, monkeypatch):
    """The process that forked them has ended when the call returns, and they serve without a parent."""
    monkeypatch.setattr(interpreter, "start_module", OWN_INTERPRETER)
    process.spawn_all(pair, tied_to_parent=False)
    asked = ["ps", "-o", "ppid=", "-p", str(pair[0].pid)]
    parent = int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert (
        "moldau_cli.nodes.several"
        not in subprocess.run(
            ["ps", "-o", "args=", "-p", str(parent)], capture_output=True, text=True, check=True
        ).stdout
    )
    wait_ready(pair)


def test_nodes_that_cannot_be_made_are_an_error(pair, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LauncherError, match="the nodes did not start"):
        process.spawn_all(pair, tied_to_parent=True)
    assert [node.pid for node in pair] == [0, 0]


def test_nodes_of_an_interrupted_start_do_not_stay(pair, tmp_path):
    """Ctrl-C during the imports ended the command alone; the first node ran on, and the cluster's file lacked it."""
    words = [word for node in pair for word in (node.config, node.log, "")]
    reader, writer = os.pipe()
    os.close(reader)  # before the start: a fast one would have written its answer by the time that it is interrupted
    with (tmp_path / "errors").open("wb") as errors, os.fdopen(writer, "wb") as out:
        starting = interpreter.start_module("moldau_cli.nodes.several", words, stdout=out, stderr=errors)
    assert starting.wait(timeout=WAIT_MS / 1000) == 1
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    assert pair[0].config not in listed
    assert (tmp_path / "errors").read_text() == ""


def parent_of(node):
    with open(f"/proc/{node.pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="parents are read from /proc")
def test_later_starts_are_forks_of_the_same_process(pair, monkeypatch):
    """A node that is started again costs no imports, and is a process of its own as before."""
    monkeypatch.setattr(process, "_FORKS", NodeForks())  # that of other tests may have other environment variables
    first, second = pair
    process.spawn_all([first], tied_to_parent=True)
    wait_ready([first])
    server = parent_of(first)
    assert server != os.getpid()
    assert process.send_signal(first, signal.SIGKILL)
    assert process.wait_state(first, ProcessState.STOPPED, WAIT_MS)
    process.spawn_all(pair, tied_to_parent=True)
    wait_ready(pair)
    assert {parent_of(node) for node in pair} == {server}
    assert {os.getsid(node.pid) for node in pair} == {first.pid, second.pid}


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="parents are read from /proc")
def test_other_variables_are_not_served_by_earlier_imports(pair, monkeypatch):
    """A node gets the environment variables of the moment of its start."""
    first, second = pair
    process.spawn_all([first], tied_to_parent=True)
    monkeypatch.setenv("MOLDAU_NODE_ID", "104")
    process.spawn_all([second], tied_to_parent=True)
    assert parent_of(second) == os.getpid()
    wait_until(lambda: is_gone(second), "the node to refuse an id that is no voter's")
    monkeypatch.delenv("MOLDAU_NODE_ID")
    process.spawn_all([second], tied_to_parent=True)
    wait_ready(pair)
    assert parent_of(second) == parent_of(first)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="parents are read from /proc")
def test_a_dead_server_of_forks_is_replaced(pair):
    """Its nodes end with it; the next start does not need it, and later ones have a new one."""
    process.spawn_all(pair, tied_to_parent=True)
    wait_ready(pair)
    os.kill(parent_of(pair[0]), signal.SIGKILL)
    for node in pair:
        assert process.wait_state(node, ProcessState.STOPPED, WAIT_MS)
    for _ in range(2):
        process.spawn_all(pair, tied_to_parent=True)
        wait_ready(pair)
        for node in pair:
            assert process.send_signal(node, signal.SIGKILL)
            assert process.wait_state(node, ProcessState.STOPPED, WAIT_MS)
