"""Goal: the end of a cluster leaves no process behind. Method: sleeping processes stand for nodes."""

import signal
import subprocess
import sys

import pytest

from moldau_jepsen.launcher import LocalCluster, open_cluster
from moldau_jepsen.launcher import process as processes
from moldau_jepsen.launcher.process import ProcessState, start_mark, state_of
from moldau_jepsen.launcher.spec import FILE_NAME, Node, to_json


@pytest.fixture
def sleep():
    """Starts sleeping processes; kills those that a test leaves behind."""
    started = []

    def start():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        started.append(process)
        return process.pid, start_mark(process.pid)

    yield start
    for process in started:
        process.kill()
        process.wait()


def node_of(pid, mark):
    node = Node(node_id=1, role="broker", port=1, directory="", config="", log="")
    node.pid, node.started = pid, mark
    return node


def test_a_process_that_another_command_started_ends_too(tmp_path, sleep):
    """The script of the console's pictures left a broker behind that the console had started again."""
    first, second = sleep(), sleep()
    (tmp_path / FILE_NAME).write_text(to_json([node_of(*first)]), encoding="utf-8")
    cluster = open_cluster(tmp_path)
    (tmp_path / FILE_NAME).write_text(to_json([node_of(*second)]), encoding="utf-8")
    cluster.shut_down()
    assert state_of(*second) is ProcessState.STOPPED


def test_a_process_that_the_file_does_not_know_ends(tmp_path, sleep):
    """A disk that was full when the nodes had started kept their processes out of the file."""
    known = sleep()
    (tmp_path / FILE_NAME).write_text(to_json([node_of(0, "")]), encoding="utf-8")
    cluster = open_cluster(tmp_path)
    cluster.node(1).pid, cluster.node(1).started = known
    cluster.shut_down()
    assert state_of(*known) is ProcessState.STOPPED


def test_without_the_file_known_processes_end(tmp_path, sleep):
    known = sleep()
    (tmp_path / FILE_NAME).write_text(to_json([node_of(*known)]), encoding="utf-8")
    cluster = open_cluster(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    cluster.shut_down()
    assert state_of(*known) is ProcessState.STOPPED


@pytest.mark.parametrize("stop", [lambda cluster: cluster.stop_node(1), lambda cluster: cluster.stop_all()])
def test_a_paused_node_is_woken_to_stop_in_order(tmp_path, monkeypatch, stop):
    """A stopped process takes a SIGTERM only after SIGCONT: it would be killed for being late."""
    sent = []
    monkeypatch.setattr(processes, "send_signal", lambda node, number: sent.append(number))
    monkeypatch.setattr(processes, "wait_state", lambda node, wanted, timeout_ms: signal.SIGCONT in sent)
    monkeypatch.setattr(LocalCluster, "kill", lambda cluster, node_id: sent.append(signal.SIGKILL))
    stop(LocalCluster(tmp_path, [node_of(0, "")]))
    assert sent == [signal.SIGTERM, signal.SIGCONT]
